"""MXNet's codes in the target shape of a reshape."""

from __future__ import annotations

from ..errors import ShapeError


def resolve_reshape(
    shape: tuple[int, ...], codes: tuple[int, ...], reverse: bool = False
) -> tuple[int, ...]:
    """The shape that `codes` mean for an array of `shape`.

    0 copies a dimension, -1 is inferred, -2 copies the rest, -3 joins two dimensions, -4 splits
    one into the next two codes (one of them may be -1). With `reverse` from the right.

    Raises:
        ShapeError: the sizes differ, or a code has nothing to work on.
    """
    if reverse:
        flipped = _flip_codes(codes)
        return tuple(reversed(resolve_reshape(shape[::-1], flipped)))
    result, unknown = _expand(shape, codes)
    total = 1
    for d in shape:
        total *= d
    known = 1
    for i, d in enumerate(result):
        known *= 1 if i == unknown else d
    if unknown is not None:
        if known == 0 or total % known:
            raise _mismatch(shape, codes)
        result[unknown] = total // known
    elif known != total:
        raise _mismatch(shape, codes)
    return tuple(result)


def _mismatch(shape: tuple[int, ...], codes: tuple[int, ...]) -> ShapeError:
    return ShapeError(f"[reshape] expected a shape of the size of {shape}, got {codes}")


def _flip_codes(codes: tuple[int, ...]) -> tuple[int, ...]:
    """Codes from right to left; the two numbers after -4 stay behind it, swapped."""
    groups: list[tuple[int, ...]] = []
    i = 0
    while i < len(codes):
        if codes[i] == -4:
            groups.append((-4, *reversed(codes[i + 1 : i + 3])))
            i += 3
        else:
            groups.append((codes[i],))
            i += 1
    return tuple(c for group in reversed(groups) for c in group)


def _expand(shape: tuple[int, ...], codes: tuple[int, ...]) -> tuple[list[int], int | None]:
    result: list[int] = []
    unknown: int | None = None
    source, i = 0, 0
    while i < len(codes):
        code = codes[i]
        needs = {0: 1, -3: 2, -4: 1}.get(code, 0)
        if (needs and source + needs > len(shape)) or code < -4:
            raise _mismatch(shape, codes)
        if code == -1:
            if unknown is not None:
                raise ShapeError(f"[reshape] expected one -1, got {codes}")
            unknown = len(result)
            result.append(-1)
            source += 1
        elif code == -2:
            result += shape[source:]
            source = len(shape)
        elif code == -4:
            result += _split(shape, codes, source, i)
            source, i = source + 1, i + 2
        elif code == -3:
            result.append(shape[source] * shape[source + 1])
            source += 2
        else:
            result.append(shape[source] if code == 0 else code)
            source += 1
        i += 1
    return result, unknown


def _split(shape: tuple[int, ...], codes: tuple[int, ...], source: int, i: int) -> tuple[int, int]:
    pair = codes[i + 1 : i + 3]
    size = shape[source]
    if len(pair) != 2 or min(pair) < -1 or pair == (-1, -1):
        raise ShapeError(f"[reshape] expected two numbers after -4, got {codes}")
    a, b = pair
    a, b = (size // b if a == -1 and b else a), (size // a if b == -1 and a else b)
    if a * b != size:
        raise ShapeError(f"[reshape] expected -4 to split {size}, got {pair}")
    return a, b
