"""Which policy and applier a slice has: those of the job, or those of the table that it belongs to.

The hazard: workers that disagree on a table's staleness would each get what the last one said. A
table's rule is set once; the same again changes nothing, another one is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...errors import ParamError
from ..protocol.policy import Bounded, Policy

if TYPE_CHECKING:
    from .slots import Applier

#: Setting of a table's rule: this, then its name.
TABLE = "table "


def key_of(name: str) -> str:
    """Key of a slice."""
    return name.rpartition("/")[0] or name


def index_of(name: str) -> int | str:
    """Key of a slice as the program has it."""
    text = key_of(name)
    return int(text) if text.isdigit() else text


class Rules:
    """Policy and applier by slice, owned by one shard; `additive` applies increments of tables."""

    def __init__(self, policy: Policy, applier: Applier, additive: Applier) -> None:
        self.policy = policy
        self.applier = applier
        self._additive = additive
        self._tables: dict[str, Bounded] = {}

    def configure(self, setting: str, value: Mapping[str, Any]) -> None:
        """Takes a setting: a table's ('table NAME', {'staleness': s}), or one of the applier.

        Raises:
            ParamError: the table has another staleness.
            MixflowError: unknown setting or bad value.
        """
        if not setting.startswith(TABLE):
            self.applier.configure(setting, dict(value))
            return
        name = setting.removeprefix(TABLE)
        rule = Bounded(int(value["staleness"]))
        if self._tables.setdefault(name, rule) != rule:
            raise ParamError(
                f"[kvstore server] expected staleness {self._tables[name].staleness} for table "
                f"'{name}', got {rule.staleness}: workers disagree"
            )

    def of(self, name: str) -> tuple[Policy, Applier]:
        """Policy and applier of a slice."""
        rule = self._tables.get(key_of(name))
        return (self.policy, self.applier) if rule is None else (rule, self._additive)
