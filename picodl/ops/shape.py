"""Rearranging elements: reshape and transpose, join and split, repeat, pad and flip."""

from __future__ import annotations

import builtins
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from picodl.ops.core import Numeric, normalize_axis, op
from picodl.ops.indexing import spread, take
from picodl.tensor import Tensor, record
from picodl.typing import Axis

_ALL = builtins.slice(None)


def _numbers(shape: Any) -> Any:
    """A shape given as a tuple, a list, a number or a Tensor, as plain integers."""
    if isinstance(shape, Tensor):
        shape = shape.data
    if isinstance(shape, (list, tuple, np.ndarray)):
        return tuple(int(n) for n in shape)
    return (int(shape),)


# -------------------------------------------------------------------- the same elements, other axes


@op
def reshape(x: Numeric, newshape: Any) -> Tensor:
    """The elements in the same order under another shape; one size may be -1.

    Gradient: dx = g in x's shape.

    Raises:
        ValueError: for smaller sizes, and shapes of another number of elements.
    """
    shape = x.data.shape
    if not isinstance(newshape, (int, tuple)):
        newshape = _numbers(newshape)
    y = x.data.reshape(newshape)
    if y.shape != newshape and (newshape if isinstance(newshape, int) else min(newshape)) < -1:
        # numpy takes all negative sizes for -1
        raise ValueError(f"reshape: a size must be -1 or not negative; received {newshape}.")

    def backward(g: Any) -> Any:
        return (g.reshape(shape),)

    return record(y, (x,), backward)


def ravel(x: Any) -> Any:
    """The elements as a vector; see `reshape`."""
    return reshape(x, -1)


@op
def transpose(x: Numeric, axes: Sequence[int] | None = None) -> Tensor:
    """The axes in another order; reversed for None.

    Gradient: dx = g with the axes put back.
    """
    if axes is None:
        back = None
    else:
        axes = normalize_axis(tuple(axes), x.data.ndim)
        back = tuple(sorted(range(len(axes)), key=axes.__getitem__))

    def backward(g: Any) -> Any:
        return (g.transpose(back) if back else g.transpose(),)

    return record(x.data.transpose(axes), (x,), backward)


def swapaxes(x: Any, axis1: int, axis2: int) -> Any:
    """Two axes exchanged; see `transpose`."""
    n = len(x.shape) if hasattr(x, "shape") else np.ndim(x)
    (a,), (b,) = normalize_axis(axis1, n), normalize_axis(axis2, n)
    axes = list(range(n))
    axes[a], axes[b] = b, a
    return transpose(x, tuple(axes))


def moveaxis(x: Any, source: Axis, destination: Axis) -> Any:
    """Axes moved to other places, the rest kept in order; see `transpose`."""
    n = len(x.shape) if hasattr(x, "shape") else np.ndim(x)
    start, end = normalize_axis(source, n), normalize_axis(destination, n)
    if len(start) != len(end):
        raise ValueError(f"moveaxis received {len(start)} source axes and {len(end)} destinations.")
    axes = [i for i in range(n) if i not in start]
    for to, axis in sorted(zip(end, start, strict=True)):
        axes.insert(to, axis)
    return transpose(x, tuple(axes))


@op
def squeeze(x: Numeric, axis: Axis = None) -> Tensor:
    """Without the axes of size 1, or without those named, which must have size 1.

    Gradient: dx = g in x's shape.
    """
    shape = x.data.shape
    axes: Any = axis if axis is None or isinstance(axis, int) else tuple(axis)

    def backward(g: Any) -> Any:
        return (g.reshape(shape),)

    return record(x.data.squeeze(axes), (x,), backward)


@op
def expand_dims(x: Numeric, axis: int | Sequence[int]) -> Tensor:
    """With new axes of size 1 at the places named, counted in the result.

    Gradient: dx = g in x's shape.
    """
    shape = x.data.shape
    axes = tuple(axis) if isinstance(axis, (list, tuple)) else axis

    def backward(g: Any) -> Any:
        return (g.reshape(shape),)

    return record(np.expand_dims(x.data, axes), (x,), backward)


@op
def broadcast_to(x: Numeric, shape: Any) -> Tensor:
    """x stretched to a shape by numpy's rules.

    Gradient: dx = g summed over the stretched axes.
    """

    def backward(g: Any) -> Any:
        return (g,)  # the engine undoes broadcasting

    return record(np.broadcast_to(x.data, _numbers(shape)), (x,), backward)


@op
def flip(x: Numeric, axis: Axis = None) -> Tensor:
    """The elements in reverse order along axes; all for None.

    Gradient: dx = g flipped.
    """
    axes = normalize_axis(axis, x.data.ndim)

    def backward(g: Any) -> Any:
        return (np.flip(g, axes),)

    return record(np.flip(x.data, axes), (x,), backward)


def fliplr(x: Any) -> Any:
    """Left and right exchanged: `flip` along axis 1."""
    return flip(x, 1)


def flipud(x: Any) -> Any:
    """Up and down exchanged: `flip` along axis 0."""
    return flip(x, 0)


@op
def roll(x: Numeric, shift: Any, axis: Any = None) -> Tensor:
    """The elements moved on by shift along axes, those that fall off coming in again.

    Gradient: dx = g rolled back.
    """
    shift = _numbers(shift) if isinstance(shift, (list, tuple, np.ndarray, Tensor)) else int(shift)
    axis = tuple(axis) if isinstance(axis, list) else axis
    back = tuple(-s for s in shift) if isinstance(shift, tuple) else -shift

    def backward(g: Any) -> Any:
        return (np.roll(g, back, axis),)

    return record(np.roll(x.data, shift, axis), (x,), backward)


@op
def rot90(array: Numeric, k: int = 1, axes: Sequence[int] = (0, 1)) -> Tensor:
    """Turned by k quarter turns in the plane of two axes, from the first to the second.

    Gradient: dx = g turned back.
    """
    plane = (axes[0], axes[1])

    def backward(g: Any) -> Any:
        return (np.rot90(g, -k, plane),)

    return record(np.rot90(array.data, k, plane), (array,), backward)


# -------------------------------------------------------------------- join and split


@op
def concatenate(xs: list[Numeric], axis: int | None = 0) -> Tensor:
    """The arrays one after the other along an axis they have; flattened first for None.

    Gradient: dx_i = the part of g that came from x_i.
    """
    if axis is None:
        return concatenate([x.reshape(-1) for x in xs], 0)
    y = np.concatenate([x.data for x in xs], axis)
    (axis,) = normalize_axis(axis, y.ndim)
    before = (_ALL,) * axis
    sizes = [x.data.shape[axis] for x in xs]

    def backward(g: Any) -> Any:
        parts = []
        start = 0
        for x, n in zip(xs, sizes, strict=True):
            key = (*before, builtins.slice(start, start + n))
            parts.append(g[key] if x.requires_grad else None)
            start += n
        return parts

    return record(y, tuple(xs), backward)


def append(x1: Any, x2: Any, axis: int | None = None) -> Any:
    """x2 after x1 along an axis; both flattened for None. See `concatenate`."""
    return concatenate([x1, x2], axis)


@op
def stack(x: list[Numeric], axis: int = 0) -> Tensor:
    """The arrays, all of one shape, along a new axis.

    Gradient: dx_i = g at place i of that axis.
    """
    y = np.stack([part.data for part in x], axis)
    before = (_ALL,) * normalize_axis(axis, y.ndim)[0]

    def backward(g: Any) -> Any:
        return [g[(*before, i)] if part.requires_grad else None for i, part in enumerate(x)]

    return record(y, tuple(x), backward)


@op
def hstack(xs: list[Numeric]) -> Tensor:
    """The arrays side by side: along axis 1, vectors along axis 0. See `concatenate`."""
    parts = [x if x.data.ndim else x.reshape(1) for x in xs]
    return concatenate(parts, 0 if parts and parts[0].data.ndim == 1 else 1)


@op
def vstack(xs: list[Numeric]) -> Tensor:
    """The arrays below each other: along axis 0, vectors as rows. See `concatenate`."""
    return concatenate([x if x.data.ndim > 1 else x.reshape(1, -1) for x in xs], 0)


@op
def dstack(xs: list[Numeric]) -> Tensor:
    """The arrays behind each other: along axis 2. See `concatenate`."""
    deep = [x if x.data.ndim > 1 else x.reshape(1, -1) for x in xs]
    return concatenate([x if x.data.ndim > 2 else expand_dims(x, 2) for x in deep], 2)


@op
def column_stack(xs: list[Numeric]) -> Tensor:
    """Vectors as columns, matrices side by side. See `concatenate`."""
    return concatenate([x if x.data.ndim > 1 else x.reshape(-1, 1) for x in xs], 1)


def _pieces(x: Tensor, keys: list[Any]) -> list[Tensor]:
    """x[key] for each of some keys that do not overlap.

    The pieces write their gradients into one array that stands behind them, so that a hundred
    pieces do not cost a hundred arrays of x's size.
    """
    shape = x.data.shape
    buffer: list[Any] = []

    def whole(g: Any) -> Any:
        buffer.clear()
        return (g,)

    behind = record(x.data, (x,), whole)

    def piece(key: Any) -> Tensor:
        def split(g: Any) -> Any:
            if isinstance(g, Tensor):
                return (spread(g, key, shape),)
            first = not buffer
            if first:
                buffer.append(np.zeros(shape, g.dtype))
            buffer[0][key] = g
            return (buffer[0] if first else None,)

        split.__qualname__ = "split"
        return record(x.data[key], (behind,), split)

    return [piece(key) for key in keys]


def _split(x: Tensor, sections: Any, axis: int, equal: bool, name: str) -> list[Tensor]:
    (axis,) = normalize_axis(axis, x.data.ndim)
    n = x.data.shape[axis]
    if isinstance(sections, (int, np.integer)):
        if sections < 1 or (equal and n % sections):
            raise ValueError(
                f"{name} cannot cut axis {axis} of size {n} into {sections} equal parts; "
                "pass the indices to cut at, or use array_split."
            )
        small, rest = divmod(n, int(sections))
        sizes = [small + 1] * rest + [small] * (int(sections) - rest)
        cuts = [0, *np.cumsum(sizes).tolist()]
    else:
        cuts = [0, *_numbers(sections), n]
    before = (_ALL,) * axis
    return _pieces(x, [(*before, builtins.slice(a, b)) for a, b in itertools.pairwise(cuts)])


@op
def split(x: Numeric, indices_or_sections: Any, axis: int = 0) -> list[Tensor]:
    """Parts of x along an axis: a number of equal ones, or cut before the given indices.

    Gradient: dx = the gradients of the parts, joined.
    """
    return _split(x, indices_or_sections, axis, True, "split")


@op
def array_split(x: Numeric, indices_or_sections: Any, axis: int = 0) -> list[Tensor]:
    """As `split`, but the first parts may be one larger than the last."""
    return _split(x, indices_or_sections, axis, False, "array_split")


@op
def hsplit(x: Numeric, indices_or_sections: Any) -> list[Tensor]:
    """`split` along axis 1; vectors along axis 0."""
    return _split(x, indices_or_sections, 0 if x.data.ndim == 1 else 1, True, "hsplit")


@op
def vsplit(x: Numeric, indices_or_sections: Any) -> list[Tensor]:
    """`split` along axis 0."""
    return _split(x, indices_or_sections, 0, True, "vsplit")


@op
def dsplit(x: Numeric, indices_or_sections: Any) -> list[Tensor]:
    """`split` along axis 2."""
    return _split(x, indices_or_sections, 2, True, "dsplit")


@op
def unstack(x: Numeric, num: int | None = None, axis: int = 0) -> list[Tensor]:
    """The arrays that `stack` would join to x.

    Args:
        x: the array.
        num: how many there must be; only checked. Defaults to None.
        axis: Defaults to 0.

    Gradient: dx = the gradients of the parts, stacked.
    """
    (axis,) = normalize_axis(axis, x.data.ndim)
    n = x.data.shape[axis]
    if num is not None and num != n:
        raise ValueError(f"unstack expected {num} parts along axis {axis} of shape {x.shape}.")
    before = (_ALL,) * axis
    return _pieces(x, [(*before, i) for i in range(n)])


# -------------------------------------------------------------------- more elements


@op
def repeat(x: Numeric, repeats: Any, axis: int | None = None) -> Tensor:
    """Each element repeated along an axis; of the flattened x for None.

    Gradient: dx = g summed over the copies.
    """
    if axis is None:
        return repeat(x.reshape(-1), repeats, 0)
    (axis,) = normalize_axis(axis, x.data.ndim)
    times = _numbers(repeats)
    if len(times) > 1:
        return take(x, np.repeat(np.arange(x.data.shape[axis]), times), axis)
    shape = x.data.shape
    apart = (*shape[: axis + 1], times[0], *shape[axis + 1 :])

    def backward(g: Any) -> Any:
        return (g.reshape(apart).sum(axis + 1),)

    return record(np.repeat(x.data, times[0], axis), (x,), backward)


@op
def tile(x: Numeric, repeats: Any) -> Tensor:
    """The array as a whole repeated along each axis.

    Gradient: dx = g summed over the copies.
    """
    shape = x.data.shape
    times = _numbers(repeats)
    extra = builtins.max(len(times), len(shape))
    full = (1,) * (extra - len(shape)) + shape
    times = (1,) * (extra - len(times)) + times
    apart = tuple(n for pair in zip(times, full, strict=True) for n in pair)

    def backward(g: Any) -> Any:
        return (g.reshape(apart).sum(tuple(range(0, 2 * extra, 2))).reshape(shape),)

    return record(np.tile(x.data, times), (x,), backward)


@op
def pad(x: Numeric, pad_width: Any, mode: str = "constant", constant_values: Any = None) -> Tensor:
    """x with a border.

    Args:
        x: the array.
        pad_width: a number for all sides, a pair (before, after) for all axes, or a pair per axis.
        mode: "constant", "reflect" (without the edge), "symmetric" (with it), "edge" or "wrap".
        constant_values: a number for mode "constant". Defaults to 0.

    Gradient: dx = g without the border; what the border repeats is added to where it came from.
    """
    widths = [(int(a), int(b)) for a, b in np.broadcast_to(np.asarray(pad_width), (x.data.ndim, 2))]
    if builtins.any(a < 0 or b < 0 for a, b in widths):
        raise ValueError(f"pad_width must not be negative; received {pad_width}.")
    if mode != "constant":
        if constant_values is not None:
            raise ValueError(f'constant_values goes with mode="constant"; received mode={mode!r}.')
        if mode not in ("reflect", "symmetric", "edge", "wrap"):
            raise ValueError(
                f'mode must be "constant", "reflect", "symmetric", "edge" or "wrap"; '
                f"received {mode!r}."
            )
        for axis, width in enumerate(widths):
            if width != (0, 0):
                x = take(x, np.pad(np.arange(x.data.shape[axis]), width, mode), axis)  # type: ignore[call-overload]
        return x
    inside = tuple(builtins.slice(a, a + n) for (a, _), n in zip(widths, x.data.shape, strict=True))
    border = 0 if constant_values is None else constant_values

    def backward(g: Any) -> Any:
        return (g[inside],)

    return record(np.pad(x.data, widths, constant_values=border), (x,), backward)


def meshgrid(*x: Any, indexing: str = "xy") -> list[Any]:
    """Coordinate arrays of the grid that vectors span.

    Args:
        x: vectors.
        indexing: "xy" puts the second vector along the first axis, "ij" keeps their order.

    Gradient: of each vector, g summed over the other axes.
    """
    if indexing not in ("xy", "ij"):
        raise ValueError(f'indexing must be "xy" or "ij"; received {indexing!r}.')
    return _meshgrid(list(x), indexing)


@op
def _meshgrid(xs: list[Numeric], indexing: str) -> list[Tensor]:
    order = list(range(len(xs)))
    if indexing == "xy" and len(xs) > 1:
        order[0], order[1] = 1, 0
    shape = tuple(xs[i].data.size for i in order)
    grids = []
    for i, x in enumerate(xs):
        apart = [1] * len(xs)
        apart[order.index(i)] = -1
        grids.append(broadcast_to(x.reshape(apart), shape))
    return grids
