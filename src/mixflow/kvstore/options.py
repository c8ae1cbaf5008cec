"""Typed options of a store of several workers, and the names that stand for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import ParamError, UnknownNameError, describe_unknown
from .protocol.policy import POLICIES, Async, Backup, Bounded, Policy, Sync
from .protocol.sharding import BIG_ARRAY
from .transport.faults import Faults

#: Names of `kvstore.create` and the policy that each stands for.
NAMES: dict[str, Policy] = {
    "dist": Sync(),
    "dist_sync": Sync(),
    "dist_sync_device": Sync(),
    "dist_device_sync": Sync(),
    "dist_async": Async(),
    "dist_async_device": Async(),
    "dist_device_async": Async(),
    "dist_ssp": Bounded(),
    "dist_backup": Backup(),
}


@dataclass(frozen=True)
class StoreOptions:
    """Options of a store of several workers.

    Args:
        policy: consistency between hosts: `Sync()`, `Async()`, `Bounded(staleness)`,
            `Backup(take)`.
        deadline: seconds that any wait on other processes may take.
        repeat: seconds after which a request without an answer is sent again (later ones wait
            longer, and big ones as long as a slow link needs).
        give_up: past the deadline go on without the missing workers instead of failing.
        bound: elements from which an array is cut over all servers.
        sample_period: seconds between two samples of what each process uses; 0: none are taken.
        faults: faults on purpose in what is sent.
        lease: seconds between two deposits of a lone worker that holds the state (see `lease`): at
            most so much work of it is done again when it is killed. 0: every update is made by the
            servers.
        boards: whether steady rounds between processes of one host may go by shared words in the
            place of messages (see `lanes`).

    Raises:
        ParamError: a deadline or bound that is not positive, or a negative period.
    """

    policy: Policy = field(default_factory=Sync)
    deadline: float = 60.0
    repeat: float = 0.5
    give_up: bool = False
    bound: int = BIG_ARRAY
    faults: Faults = field(default_factory=Faults)
    sample_period: float = 0.0
    lease: float = 1.0
    boards: bool = True

    def __post_init__(self) -> None:
        if self.deadline <= 0 or self.repeat <= 0 or self.bound < 1:
            raise ParamError(
                "[kvstore] expected a deadline > 0, repeat > 0 and a bound >= 1, got "
                f"{self.deadline}, {self.repeat}, {self.bound}"
            )
        for name in ("sample_period", "lease"):
            if getattr(self, name) < 0:
                raise ParamError(f"[kvstore] expected {name} >= 0, got {getattr(self, name)}")

    def to_json(self) -> dict[str, Any]:
        """Plain values, for other processes of the job."""
        return {
            "policy": [self.policy.name, vars(self.policy)],
            "deadline": self.deadline,
            "repeat": self.repeat,
            "give_up": self.give_up,
            "bound": self.bound,
            "faults": vars(self.faults),
            "sample_period": self.sample_period,
            "lease": self.lease,
            "boards": self.boards,
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> StoreOptions:
        """What `to_json` wrote."""
        name, settings = value["policy"]
        return StoreOptions(
            POLICIES[name](**settings),
            float(value["deadline"]),
            float(value["repeat"]),
            bool(value["give_up"]),
            int(value["bound"]),
            Faults(**value["faults"]),
            float(value["sample_period"]),
            float(value["lease"]),
            bool(value["boards"]),
        )


def policy_of(name: str) -> Policy:
    """The policy that a store's name stands for.

    Raises:
        UnknownNameError: unknown name; the text lists the known ones.
    """
    if name not in NAMES:
        raise UnknownNameError(describe_unknown("kvstore", name, list(NAMES)))
    return NAMES[name]
