"""CompiledPlan: the flat plan that the core runs, and the figures of how it was made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..ir import Desc


@dataclass
class Step:
    """One step of a plan (see `_rt.StepSpec`)."""

    kernel: Any
    inputs: list[tuple[Any, ...]]
    outputs: list[tuple[Any, ...]]
    input_descs: list[Desc]
    output_descs: list[Desc]
    workspace: tuple[int, int] | None = None
    draw_slot: int = -1
    label: str = ""


@dataclass
class CompiledPlan:
    """A plan and what is known about it.

    Attributes:
        plan: the core's Plan.
        steps: the steps, for printing and the overlap oracle.
        arg_descs: descriptor of each argument.
        arg_access: 'r', 'w' or 'rw' for each argument.
        out_descs: descriptors of the graph's outputs.
        memory: bytes by strategy: none, inplace, coshare, both, arena, lower_bound,
            lower_bound_unfused.
        inplace: (output, input) pairs of arguments that may be one memory.
    """

    plan: Any
    steps: list[Step]
    arg_descs: list[Desc]
    arg_access: list[str]
    out_descs: list[Desc]
    memory: dict[str, int] = field(default_factory=dict)
    inplace: list[tuple[int, int]] = field(default_factory=list)
