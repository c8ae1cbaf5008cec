"""CompiledPlan: the flat plan that the core runs, and the figures of how it was made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..ir import Desc


@dataclass
class Step:
    """One step of a plan (see `_rt.StepSpec`).

    `input_ids` and `output_ids` name the contents that the step means to read and write (-1: given
    from outside); the overlap oracle compares them with what the slots hold. `op` is the primitive.
    """

    kernel: Any
    inputs: list[tuple[Any, ...]]
    outputs: list[tuple[Any, ...]]
    input_descs: list[Desc]
    output_descs: list[Desc]
    workspace: tuple[int, int] | None = None
    draw_slot: int = -1
    label: str = ""
    input_ids: list[int] = field(default_factory=list)
    output_ids: list[int] = field(default_factory=list)
    op: str = ""
    steady: bool = False
    prepared: tuple[int, int] | None = None


@dataclass
class CompiledPlan:
    """A plan and what is known about it.

    Attributes:
        plan: the core's Plan.
        steps: the steps, for printing and the overlap oracle.
        arg_descs: descriptor of each argument.
        arg_access: 'r', 'w' or 'rw' for each argument.
        out_descs: descriptors of the graph's outputs.
        outputs: argument index of each graph output.
        memory: bytes by strategy: none, inplace, coshare, both, arena, lower_bound,
            lower_bound_unfused; where there are several devices, `copies`: arrays that values are
            sent from and to.
        inplace: (output, input) pairs of arguments that may be one memory.
        draws: '<node label>#<k>', the k-th draw of that node, for each draw that a run takes.
        recomputed: steps of the backward phase that compute forward values again.
        kept: bytes of each binding for what is made of parameters alone (pass keep).
        phase_ends: number of steps up to the end of each phase.
        pieces: of a part of a placed graph: the piece that each phase of the plan is.
    """

    plan: Any
    steps: list[Step]
    arg_descs: list[Desc]
    arg_access: list[str]
    out_descs: list[Desc]
    memory: dict[str, int] = field(default_factory=dict)
    inplace: list[tuple[int, int]] = field(default_factory=list)
    draws: list[str] = field(default_factory=list)
    phase_ends: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    recomputed: int = 0
    kept: int = 0
    pieces: list[int] = field(default_factory=list)
