"""Fused elementwise programs: the text form that passes, the reference and the core share.

`t0 = multiply i1 i2; t1 = subtract i0 t0; out t1`: see docs/design/primitives.md.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ... import dtype as dtypes
from ...errors import GraphError
from ...ir import Param, Str, TensorType
from .rules import Types, broadcast_shapes, define, merge_dtype, merge_type

_REGISTER = re.compile(r"[it]\d+")


class Instruction(NamedTuple):
    """`target = op:dtype args`; numbers stand as floats among the args."""

    target: str
    op: str
    dtype: np.dtype[Any] | None
    args: tuple[str | float, ...]


class Program(NamedTuple):
    """A parsed program: instructions, and the registers that are its outputs."""

    instructions: tuple[Instruction, ...]
    outputs: tuple[str, ...]

    @property
    def num_inputs(self) -> int:
        """Highest input used, plus one."""
        used = [a for i in self.instructions for a in i.args] + list(self.outputs)
        numbers = [int(a[1:]) for a in used if isinstance(a, str) and a[0] == "i"]
        return max(numbers, default=-1) + 1


def _argument(text: str) -> str | float:
    return text if _REGISTER.fullmatch(text) else float(text)


@lru_cache(maxsize=4096)
def parse(text: str) -> Program:
    """The program of a text.

    Raises:
        GraphError: not a program.
    """
    instructions = []
    *body, last = [line.strip() for line in text.strip().rstrip(";").split(";")]
    try:
        for line in body:
            target, _, rest = line.partition("=")
            name, *args = rest.split()
            op, _, code = name.partition(":")
            dtype = dtypes.from_code(int(code)) if code else None
            instructions.append(Instruction(target.strip(), op, dtype, tuple(map(_argument, args))))
        word, *outputs = last.split()
    except ValueError as error:
        raise GraphError(f"[fused] expected a program, got '{text}' ({error})") from None
    if word != "out" or not outputs:
        raise GraphError(f"[fused] expected a last instruction 'out ...', got '{last}'")
    return Program(tuple(instructions), tuple(outputs))


def register_dtypes(program: Program, inputs: list[np.dtype[Any]]) -> dict[str, np.dtype[Any]]:
    """Dtype of every register.

    Raises:
        DTypeError: an instruction mixes dtypes.
        GraphError: nothing fixes a dtype.
    """
    known = {f"i{k}": dtype for k, dtype in enumerate(inputs)}
    for step in program.instructions:
        values = step.args[1:] if step.op == "select" else step.args
        found = None
        for name in values:
            if isinstance(name, str):
                found = merge_dtype("fused", f"{name} in '{step.op}'", found, known[name])
        if found is None and inputs:
            found = inputs[0]
        chosen = step.dtype if step.dtype is not None else found
        if chosen is None:
            raise GraphError(
                f"[fused] expected an input or a cast that fixes the dtype, got '{step}'"
            )
        known[step.target] = chosen
    return known


def _infer(params: dict[str, Any], ins: Types, outs: Types) -> tuple[Types, Types]:
    program = parse(params["program"])
    if not all(t.known for t in ins):
        return ins, outs
    shape = broadcast_shapes("fused", *(t.shape for t in ins))
    known = register_dtypes(program, [t.dtype for t in ins if t.dtype is not None])
    made = [TensorType(shape, known[name]) for name in program.outputs]
    return ins, [merge_type("fused", "output", m, t) for m, t in zip(made, outs, strict=True)]


define(
    "fused",
    inputs=lambda p: tuple(f"i{k}" for k in range(parse(p["program"]).num_inputs)),
    params=(Param("program", Str),),
    outputs=lambda p: tuple(f"output{k}" for k in range(len(parse(p["program"]).outputs))),
    infer=_infer,
    differentiable="no",
    doc="A chain of elementwise primitives as one kernel; made by the fuse pass.",
)
