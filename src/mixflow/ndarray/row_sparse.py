"""Row-sparse arrays: a few rows of a tall array, computed asynchronously like dense ones.

The hazard: how many rows a result has is known only when its task runs, so its storage can't be
allocated when the call returns. So a row-sparse array is a tag of the engine and a cell that the
task which holds the tag fills with row numbers and values; whoever reads waits for the tag.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from .. import _rt
from .. import dtype as dtypes
from ..context import Context, current_context
from ..errors import DTypeError, MixflowError, ShapeError
from . import rows as _rows
from .creation import array as _dense
from .creation import empty as _dense_empty
from .ndarray import FLUENT, NDArray
from .register import function, registered
from .rows import Array, Rows

#: Calls on row-sparse arrays that autograd can follow: ``(inputs, result)`` puts one on the tape.
RECORDED: dict[str, Callable[[Sequence[Any], Any], None]] = {}


class BaseSparseNDArray:
    """What sparse arrays share. It is no NDArray: functions of `mx.nd` take either.

    Attributes:
        shape: dimensions.
        ctx, context: where a dense copy goes; the parts lie in the host's memory.
    """

    stype: ClassVar[str] = ""
    shape: tuple[int, ...]
    context: Context
    __array_priority__ = 1000.0
    __array_ufunc__ = None
    __hash__ = object.__hash__

    @property
    def ctx(self) -> Context:
        """Where a dense copy goes."""
        return self.context

    @property
    def dtype(self) -> Any:
        """NumPy type of the elements."""
        raise NotImplementedError

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Elements, stored or not."""
        return math.prod(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.shape))
        return f"\n<{type(self).__name__} {shape} @{self.context}>"

    # -- values

    def asnumpy(self) -> Array:
        """A dense NumPy array. Waits; raises the error of what made the values."""
        raise NotImplementedError

    def tostype(self, stype: str) -> Any:
        """The same values in another storage."""
        raise NotImplementedError

    def check_format(self, full_check: bool = True) -> None:
        """Checks the stored parts."""

    def as_nd_ndarray(self) -> Any:
        """Itself."""
        return self

    def astype(self, dtype: Any, copy: bool = True) -> Any:
        """The elements converted to `dtype`; itself if nothing changes and `copy` is false."""
        raise NotImplementedError

    def wait_to_read(self) -> None:
        """Waits until the values are there."""

    def todense(self) -> NDArray:
        """A dense NDArray."""
        found: NDArray = self.tostype("default")
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        found = self.asnumpy()
        return found if dtype is None else found.astype(dtype, copy=False)

    def asscalar(self) -> Any:
        """The value of an array of one element, as a NumPy scalar."""
        return self.todense().asscalar()

    def __bool__(self) -> bool:
        return bool(self.todense())

    def copy(self) -> Any:
        """A copy of the same storage."""
        return self.astype(self.dtype)

    def as_in_context(self, context: Context) -> Any:
        """Itself where it belongs there, else a copy that does."""
        return self if context == self.context else self.copyto(context)

    as_in_ctx = as_in_context

    def copyto(self, other: Any) -> Any:
        """Copies the values into another array of the same shape, or to a context."""
        raise NotImplementedError

    def detach(self) -> Any:
        """Itself: autograd does not follow sparse arrays."""
        return self

    def reshape(self, *shape: Any, **kwargs: Any) -> Any:
        """Sparse arrays keep their shape.

        Raises:
            MixflowError: always.
        """
        raise MixflowError("[reshape] expected a dense array, got a sparse one; use tostype first")

    # -- arithmetic: what each storage can do stands in `storage`

    def __add__(self, other: Any) -> Any:
        return _binary("broadcast_add", "_plus_scalar", self, other)

    def __radd__(self, other: Any) -> Any:
        return _binary("broadcast_add", "_plus_scalar", self, other, mirrored=True)

    def __sub__(self, other: Any) -> Any:
        return _binary("broadcast_sub", "_minus_scalar", self, other)

    def __rsub__(self, other: Any) -> Any:
        return _binary("broadcast_sub", "_rminus_scalar", self, other, mirrored=True)

    def __mul__(self, other: Any) -> Any:
        return _binary("broadcast_mul", "_mul_scalar", self, other)

    def __rmul__(self, other: Any) -> Any:
        return _binary("broadcast_mul", "_mul_scalar", self, other, mirrored=True)

    def __truediv__(self, other: Any) -> Any:
        return _binary("broadcast_div", "_div_scalar", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _binary("broadcast_div", "_rdiv_scalar", self, other, mirrored=True)

    def __pow__(self, other: Any) -> Any:
        return _binary("broadcast_power", "_power_scalar", self, other)

    def __eq__(self, other: Any) -> Any:
        return False if other is None else _binary("broadcast_equal", "_equal_scalar", self, other)

    def __ne__(self, other: Any) -> Any:
        if other is None:
            return True
        return _binary("broadcast_not_equal", "_not_equal_scalar", self, other)

    def __gt__(self, other: Any) -> Any:
        return _binary("broadcast_greater", "_greater_scalar", self, other)

    def __lt__(self, other: Any) -> Any:
        return _binary("broadcast_lesser", "_lesser_scalar", self, other)

    def __neg__(self) -> Any:
        return function("negative")(self)

    def __abs__(self) -> Any:
        return function("abs")(self)

    @property
    def T(self) -> NDArray:
        """The axes in reverse order, dense."""
        return self.todense().T


def _binary(array_op: str, scalar_op: str, left: Any, other: Any, mirrored: bool = False) -> Any:
    if isinstance(other, (_rt.core.Array, BaseSparseNDArray)):
        pair = (other, left) if mirrored else (left, other)
        return function(array_op)(*pair)
    if isinstance(other, (bool, int, float, np.generic)):
        return function(scalar_op)(left, scalar=float(other))
    return NotImplemented


def _fluent(name: str) -> Callable[..., Any]:
    def method(self: BaseSparseNDArray, *args: Any, **kwargs: Any) -> Any:
        return function(name)(self, *args, **kwargs)

    method.__name__ = method.__qualname__ = name
    method.__doc__ = f"`mx.nd.{name}` of this array."
    return method


for _name in (*FLUENT, "transpose", "flatten", "expand_dims", "broadcast_like"):
    if registered(_name):
        setattr(BaseSparseNDArray, _name, _fluent(_name))


class RowSparseNDArray(BaseSparseNDArray):
    """An array of which only some rows (slices along the first axis) are stored.

    Made by `row_sparse_array`, `mx.nd.sparse.zeros('row_sparse', shape)` and operators. Stored
    rows are in rising order, each once. Use an array from one thread at a time.
    """

    stype = "row_sparse"
    #: Not iterable: the core would take it, given as `out`, for an empty list of arrays.
    __iter__ = None
    __slots__ = ("_dtype", "autograd", "cell", "context", "shape", "tag")

    def __init__(self, shape: Sequence[int], dtype: Any = None, ctx: Context | None = None) -> None:
        self.shape = tuple(int(d) for d in shape)
        if not self.shape or min(self.shape) < 0:
            raise ShapeError(f"[row_sparse] expected at least one dimension, got {self.shape}")
        self._dtype = dtypes.canonical(dtype)
        self.context = ctx or current_context()
        #: What the task that holds `tag` reads or fills: the stored rows.
        self.cell = _rows.none_of(self.shape, self._dtype)
        self.tag = _rt.core.Tag()
        #: Slot for the tape, as that of a dense array.
        self.autograd: Any = None

    @property
    def dtype(self) -> Any:
        """NumPy type of the elements."""
        return self._dtype.type

    @property
    def data(self) -> NDArray:
        """(stored, ...) values of the stored rows: a copy. Waits."""
        return _dense(self.stored().values, ctx=self.context, dtype=self._dtype)

    @property
    def indices(self) -> NDArray:
        """(stored,) int64 row numbers, rising: a copy. Waits."""
        return _dense(self.stored().numbers, ctx=self.context, dtype=np.int64)

    def stored(self) -> Rows:
        """Numbers and values of the stored rows; not to be changed. Waits."""
        self.wait_to_read()
        return self.cell

    def wait_to_read(self) -> None:
        """Waits until the values are there; raises the error of what should have made them."""
        self.tag.wait()

    def asnumpy(self) -> Array:
        """A dense NumPy array. Waits."""
        return _rows.to_dense(self.stored(), self.shape)

    # -- writing

    def fill(self, make: Callable[..., Rows], *sources: Any, name: str = "row_sparse") -> Any:
        """Pushes a task that sets the stored rows to what `make` returns, and returns the array.

        `make` gets one value per source: `Rows` of a row-sparse array, and of a dense one a
        NumPy view that is only to be read. What it returns belongs to this array.
        """

        def task(*values: Any) -> None:
            self.set_rows(make(*values[:-1]))

        push(task, sources, [self], name)
        return self

    def set_rows(self, made: Rows) -> None:
        """Sets the stored rows now; for a task that holds `tag`."""
        self.cell = Rows(made.numbers, np.asarray(made.values, self._dtype))

    def set_dense(self, source: Any, every_row: bool = False) -> None:
        """Takes the values of a dense array: its rows that are not 0, or every row."""
        self._same_shape(source, "copyto")

        def make(values: Array) -> Rows:
            if every_row:
                return Rows(np.arange(len(values)), values.copy())
            return _rows.from_dense(values)

        self.fill(make, source, name="cast_storage")

    def _same_shape(self, other: Any, who: str) -> None:
        if other.shape != self.shape:
            raise ShapeError(f"[{who}] expected shape {self.shape}, got {other.shape}")

    def __setitem__(self, key: Any, value: Any) -> None:
        if not (isinstance(key, slice) and key == slice(None)) and key is not Ellipsis:
            raise IndexError(f"[RowSparseNDArray] expected [:] for an assignment, got {key!r}")
        if isinstance(value, BaseSparseNDArray):
            if value is not self:
                value.copyto(self)
            return
        if not isinstance(value, NDArray):
            given, value = value, _dense_empty(self.shape, self.context, self._dtype)
            value[:] = given
        self.set_dense(value, every_row=True)

    def __getitem__(self, key: Any) -> RowSparseNDArray:
        """All of it, with [:].

        Raises:
            IndexError: another key.
        """
        if not (isinstance(key, slice) and key == slice(None)):
            raise IndexError(f"[RowSparseNDArray] expected [:], got {key!r}; see retain")
        return self

    def _in_place(self, made: Any) -> Any:
        if not isinstance(made, RowSparseNDArray):
            return made  # dense: the name stands for another array now, as in MXNet
        self[:] = made
        return self

    def __iadd__(self, other: Any) -> Any:
        return self._in_place(self + other)

    def __isub__(self, other: Any) -> Any:
        return self._in_place(self - other)

    def __imul__(self, other: Any) -> Any:
        return self._in_place(self * other)

    def __itruediv__(self, other: Any) -> Any:
        return self._in_place(self / other)

    # -- copies

    def like(self, dtype: Any = None) -> RowSparseNDArray:
        """An array of this shape and context without any row."""
        return RowSparseNDArray(self.shape, self._dtype if dtype is None else dtype, self.context)

    def astype(self, dtype: Any, copy: bool = True) -> RowSparseNDArray:
        """The elements converted to `dtype`; itself if nothing changes and `copy` is false."""
        made = self.like(dtype)
        if made.dtype == self.dtype and not copy:
            return self
        return self.copyto(made)  # type: ignore[no-any-return]

    def copyto(self, other: Any) -> Any:
        """Copies into an array of the same shape (dense: all of it), or to a context.

        Raises:
            ShapeError: the shapes differ.
        """
        if isinstance(other, Context):
            made = RowSparseNDArray(self.shape, self._dtype, other)
            return self.copyto(made)
        if not isinstance(other, (NDArray, RowSparseNDArray)):
            raise TypeError(f"copyto does not support type {type(other).__name__}")
        if other.shape != self.shape:
            raise ShapeError(f"[copyto] expected shape {other.shape}, got {self.shape}")
        if isinstance(other, RowSparseNDArray):
            return other.fill(
                lambda r: Rows(r.numbers, r.values.astype(other.dtype)), self, name="copyto"
            )

        def write(found: Rows, target: Array) -> None:
            target[...] = 0
            target[found.numbers] = found.values

        push(write, [self], [other], "copyto")
        return other

    def tostype(self, stype: str) -> Any:
        """Itself for 'row_sparse', a dense NDArray for 'default'.

        Raises:
            DTypeError: another storage type.
        """
        if stype == "row_sparse":
            return self
        if stype != "default":
            raise DTypeError(f"[tostype] expected 'default' or 'row_sparse', got {stype!r}")
        made = _rt.core.empty(self.shape, dtypes.code(self._dtype), self.context.key)
        self.copyto(made)
        if self.autograd is not None and _rt.core.is_recording():
            RECORDED["cast_storage"]([self], made)
        return made

    def retain(self, indices: Any) -> RowSparseNDArray:
        """The rows of these numbers alone; those that are not stored are rows of 0.

        Args:
            indices: row numbers, an NDArray or a list in any order.
        """
        return retain(self, indices)

    def check_format(self, full_check: bool = True) -> None:
        """Does nothing: rows are checked when they are made."""

    def __reduce__(self) -> Any:
        found = self.stored()
        return _restored, (found.numbers, found.values, self.shape, self.context.key)


def push(
    body: Callable[..., Any],
    sources: Sequence[Any],
    targets: Sequence[Any],
    name: str,
) -> None:
    """Pushes ``body(*sources, *targets)`` as a task over arrays of either storage.

    The body gets the `Rows` of each row-sparse source and a NumPy view of each dense array. A
    row-sparse target comes as itself: the body sets its cell.
    """
    reads, writes = [_tagged(a) for a in sources], [_tagged(a) for a in targets]
    inside = [_inside(a) for a in (*sources, *targets)]

    def task() -> None:
        given = [_opened(a) for a in inside]
        for at in range(len(sources)):
            if isinstance(given[at], RowSparseNDArray):
                given[at] = given[at].cell
        body(*given)

    _rt.core.push(task, reads, writes, name)


def _tagged(array: Any) -> Any:
    return array.tag if isinstance(array, RowSparseNDArray) else array


def _inside(array: Any) -> Any:
    """What a callback may use of an array whose tag its task holds."""
    return array if isinstance(array, RowSparseNDArray) else _rt.core.fresh_handle(array)


def _opened(array: Any) -> Any:
    return array if isinstance(array, RowSparseNDArray) else _rt.core.writable_view(array)


def retain(data: Any, indices: Any, out: Any = None) -> RowSparseNDArray:
    """Rows of a row-sparse array by number; those that are not stored are rows of 0.

    Args:
        data: row-sparse array (rows, ...).
        indices: row numbers of any shape and order, an NDArray or nested lists.
        out: row-sparse array of the same shape for the result.

    Raises:
        MixflowError: `data` or `out` is not row-sparse.
        ShapeError: a row outside of the array (when the values are read).
    """
    for array in (data, data if out is None else out):
        if not isinstance(array, RowSparseNDArray):
            raise MixflowError(f"[retain] expected a row_sparse array, got {_storage(array)}")
    if not isinstance(indices, NDArray):
        indices = _dense(np.asarray(indices), dtype=np.int64)
    return take_rows(data, indices, data.like() if out is None else out)


def take_rows(data: Any, indices: NDArray, target: RowSparseNDArray) -> RowSparseNDArray:
    """Rows of a dense or row-sparse array by number, into a row-sparse one; see `retain`."""
    target._same_shape(data, "retain")

    def make(found: Any, asked: Array) -> Rows:
        numbers = _rows.wanted(asked)
        _rows.within(numbers, data.shape, "retain")
        if not isinstance(found, Rows):
            return Rows(numbers, found[numbers])
        return Rows(numbers, _rows.take(found, numbers, data.shape[0]))

    return target.fill(make, data, indices, name="retain")  # type: ignore[no-any-return]


def _storage(value: Any) -> str:
    return getattr(value, "stype", type(value).__name__)


def row_sparse_array(
    arg1: Any,
    shape: Sequence[int] | None = None,
    ctx: Context | None = None,
    dtype: Any = None,
) -> RowSparseNDArray:
    """An array of which some rows are stored.

    Args:
        arg1: (data, indices) with one row of data per row number; a shape, for one without rows;
            a row-sparse array; or dense values, of which the rows that are not 0 are stored.
        shape: of the whole array; by default the fewest rows that hold the indices.
        ctx: where its dense copies go.
        dtype: of the elements; by default that of an array, float32 for lists.

    Raises:
        ShapeError: parts that do not fit together or into the shape, or a row given twice.
    """
    if isinstance(arg1, RowSparseNDArray):
        made = RowSparseNDArray(arg1.shape, dtype or arg1.dtype, ctx or arg1.context)
        return arg1.copyto(made)  # type: ignore[no-any-return]
    if isinstance(arg1, tuple) and arg1 and all(isinstance(d, (int, np.integer)) for d in arg1):
        return RowSparseNDArray(arg1, dtype, ctx)
    if isinstance(arg1, tuple) and len(arg1) == 2:
        return _from_parts(*arg1, shape, ctx, dtype)
    values = _values(arg1, dtype)
    return _made(_rows.from_dense(values), values.shape, ctx)


def _from_parts(
    data: Any, indices: Any, shape: Sequence[int] | None, ctx: Context | None, dtype: Any
) -> RowSparseNDArray:
    values = _values(data, dtype)
    numbers = np.asarray(_values(indices, np.int64))
    if shape is None:
        shape = (int(numbers.max(initial=-1)) + 1, *values.shape[1:])
    if len(numbers) == 0:
        values = values.reshape((0, *tuple(shape)[1:]))
    return _made(_rows.checked(numbers, values, tuple(shape)), shape, ctx)


def _values(source: Any, dtype: Any) -> Array:
    """A NumPy copy: arrays keep their dtype, lists are float32."""
    if dtype is None and not hasattr(source, "dtype"):
        dtype = np.float32
    if isinstance(source, (NDArray, BaseSparseNDArray)):
        source = source.asnumpy()
    found = np.array(source, None if dtype is None else dtypes.canonical(dtype))
    return found


def _made(rows: Rows, shape: Sequence[int], ctx: Context | None) -> RowSparseNDArray:
    made = RowSparseNDArray(shape, rows.values.dtype, ctx)
    made.cell = rows
    return made


def _restored(numbers: Array, values: Array, shape: Sequence[int], ctx: Any) -> RowSparseNDArray:
    return _made(_rows.checked(numbers, values, tuple(shape)), shape, Context.from_key(ctx))
