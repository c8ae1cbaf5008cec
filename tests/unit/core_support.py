"""What the tests of the core's protocol share: both cores, and short ways to make plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from mixflow import _rt
from mixflow.backends import pure
from mixflow.ir.types import Desc

CPU = (1, 0)
native = _rt.load_native()
#: (name, core, engine kind)
CORES = [("pure", pure, "serial")]
if native is not None:
    CORES += [("native", native, "threaded"), ("native-serial", native, "serial")]


def desc(*shape: int, dtype: int = 0, device: tuple[int, int] = CPU) -> Desc:
    return Desc(dtype, shape, 0, device)


def step(
    kernel: Any,
    inputs: Sequence[tuple[Any, ...]],
    outputs: Sequence[tuple[Any, ...]],
    *,
    shape: tuple[int, ...] = (4,),
    label: str = "step",
    draw: int = -1,
) -> SimpleNamespace:
    """A step whose buffers are all float32 of `shape` (scalars: of shape ())."""
    descs = [desc() if slot[0] == "scalar" else desc(*shape) for slot in inputs]
    return SimpleNamespace(
        kernel=kernel,
        inputs=list(inputs),
        outputs=list(outputs),
        input_descs=descs,
        output_descs=[desc(*shape) for _ in outputs],
        workspace=None,
        draw_slot=draw,
        label=label,
    )


def plan(core: Any, steps: Sequence[Any], access: str, *, shape: Any = (4,), **more: Any) -> Any:
    """A plan whose arguments are all float32 of `shape`; `access` like 'r w rw'."""
    kinds = access.split()
    return core.Plan(
        list(steps),
        [desc(*shape) for _ in kinds],
        kinds,
        more.get("num_scalars", 0),
        more.get("arena_bytes", 0),
        more.get("phase_ends", [len(steps)]),
        more.get("label", "plan"),
    )


def add_one(ins: list[Any], outs: list[Any], rng: tuple[int, int]) -> None:
    np.add(ins[0], 1, out=outs[0])


def add(ins: list[Any], outs: list[Any], rng: tuple[int, int]) -> None:
    outs[0][...] = ins[0] + ins[1]


def fail(ins: list[Any], outs: list[Any], rng: tuple[int, int]) -> None:
    raise ValueError("went wrong")


def kernel_or(core: Any, primitive: str, count: int, otherwise: Callable[..., None]) -> Any:
    """A native kernel for float32 vectors of 4, or the host call where there is none."""
    return core.prepare(primitive, {}, [desc(4)] * count, [desc(4)], 1) or otherwise


def vector(core: Any, *values: float) -> Any:
    return core.from_numpy(np.array(values or (0, 1, 2, 3), np.float32), CPU)


def empty(core: Any, *shape: int) -> Any:
    return core.empty(shape or (4,), 0, CPU)
