"""Picking elements by indices, slices, masks and conditions, and writing into a copy."""

from __future__ import annotations

import builtins
import math
from typing import Any

import numpy as np

from picodl.ops.core import Array, Numeric, normalize_axis, op
from picodl.tensor import Tensor, record

_ALL = builtins.slice(None)


def spread(g: Any, key: Any, shape: tuple[int, ...]) -> Any:
    """Zeros of a shape with g added at key: the transpose of x[key], for arrays and Tensors.

    Gradient: dg = h[key], for the gradient h of the result.
    """
    a = g.data if isinstance(g, Tensor) else np.asarray(g)
    z = np.zeros(shape, a.dtype)
    if not _may_repeat(key):
        z[key] = a
    else:  # on flat positions np.add.at takes a third of the time
        np.add.at(z.reshape(-1), _positions(key, shape).reshape(-1), a.reshape(-1))
    if not isinstance(g, Tensor):
        return z

    def backward(h: Any) -> Any:
        return (h[key],)

    return record(z, (g,), backward)


def _may_repeat(key: Any) -> bool:
    """Whether an index can name an element twice: only arrays of integers can."""
    parts = key if isinstance(key, tuple) else (key,)
    return builtins.any(
        isinstance(k, list) or (isinstance(k, np.ndarray) and k.ndim > 0 and k.dtype.kind != "b")
        for k in parts
    )


def _positions(key: Any, shape: tuple[int, ...]) -> Any:
    """Where in the flattened array the elements of x[key] stand."""
    parts = key if isinstance(key, tuple) else (key,)
    ids = parts[-1]
    axis = len(parts) - 1
    one = isinstance(ids, np.ndarray) and ids.dtype.kind in "iu" and axis < len(shape)
    if one and builtins.all(isinstance(k, builtins.slice) and k == _ALL for k in parts[:-1]):
        n = shape[axis]
        outer = math.prod(shape[:axis])
        inner = math.prod(shape[axis + 1 :])
        rows = (np.arange(outer) * n)[:, None] + (ids.reshape(-1).astype(np.int64) % n)
        return rows[..., None] * inner + np.arange(inner)
    size = math.prod(shape)
    return np.arange(size).reshape(shape)[key]


def _plain_key(key: Any) -> Any:
    """An index without Tensors; lists become arrays."""
    if isinstance(key, tuple):
        return tuple(_plain_key(k) for k in key)
    if isinstance(key, Tensor):
        return key.data
    if isinstance(key, builtins.slice):
        ends = (key.start, key.stop, key.step)
        if builtins.any(isinstance(k, Tensor) for k in ends):
            return builtins.slice(*(int(k) if isinstance(k, Tensor) else k for k in ends))
        return key
    if isinstance(key, list):
        return np.asarray([_plain_key(k) for k in key]) if key else np.zeros(0, np.intp)
    return key


@op
def get_item(x: Numeric, key: Any) -> Tensor:
    """x[key] for integers, slices, None, Ellipsis, arrays of integers and masks.

    Gradient: dx = zeros with g added at key; an element that was picked twice gets both.
    """
    key = _plain_key(key)
    shape = x.data.shape

    def backward(g: Any) -> Any:
        return (spread(g, key, shape),)

    return record(x.data[key], (x,), backward)


@op
def take(x: Numeric, indices: Array, axis: int | None = None) -> Tensor:
    """The elements of x at indices along an axis; of the flattened x for axis None.

    Args:
        x: the array.
        indices: integers of any shape; negative ones count from the end.
        axis: Defaults to None.

    Shapes: x (a, n, b), indices (i, ...), axis 1 -> (a, i, ..., b).

    Raises:
        IndexError: for an index outside the axis.

    Gradient: dx = zeros with g added at the indices; repeated ones add up.
    """
    shape = x.data.shape
    ids = np.asarray(indices)
    if ids.dtype.kind == "b" or ids.dtype.kind == "f":
        ids = _whole(ids)
    if axis is None:
        y = x.data.reshape(-1)[ids]
        key: Any = ids
    else:
        (axis,) = normalize_axis(axis, len(shape))
        y = np.take(x.data, ids, axis=axis)
        key = (_ALL,) * axis + (ids,)
    flat = (math.prod(shape),) if axis is None else shape

    def backward(g: Any) -> Any:
        return (spread(g, key, flat).reshape(shape),)

    return record(y, (x,), backward)


def _whole(ids: Any) -> Any:
    """Indices that came as floats, as integers if they are whole."""
    whole = ids.astype(np.int64)
    if not np.array_equal(whole, ids):
        raise TypeError("Indices must be whole numbers, but received fractions.")
    return whole


@op
def take_along_axis(x: Numeric, indices: Array, axis: int | None = None) -> Tensor:
    """x at indices that say, line by line, which elements along the axis to take.

    Shapes: indices as x except along the axis, both broadcast elsewhere -> as indices.

    Gradient: dx = zeros with g added at the indices; repeated ones add up.
    """
    if axis is None:
        return take_along_axis(x.reshape(-1), np.asarray(indices).reshape(-1), 0)
    key = _along(np.asarray(indices), x.data.shape, axis)
    shape = x.data.shape

    def backward(g: Any) -> Any:
        return (spread(g, key, shape),)

    return record(x.data[key], (x,), backward)


def _along(indices: Any, shape: tuple[int, ...], axis: int) -> tuple[Any, ...]:
    """The index that numpy's take_along_axis stands for."""
    (axis,) = normalize_axis(axis, len(shape))
    if indices.ndim != len(shape):
        raise ValueError(
            f"take_along_axis needs indices with {len(shape)} axes, as x of shape {shape} has; "
            f"received shape {indices.shape}."
        )
    ids = indices if indices.dtype.kind in "iu" else _whole(indices)
    wide = tuple(ids.shape[i] if i == axis or n == 1 else n for i, n in enumerate(shape))
    key: list[Any] = [
        np.arange(n).reshape((-1,) + (1,) * (len(shape) - 1 - i)) for i, n in enumerate(shape)
    ]
    key[axis] = np.broadcast_to(ids, wide)
    return tuple(key)


@op
def where(condition: Array, x1: Numeric | None = None, x2: Numeric | None = None) -> Any:
    """x1 where the condition holds, else x2, elementwise; with the condition alone, `nonzero`.

    Gradient: dx1 = g where the condition holds, else 0; dx2 the other way round.
    """
    if x1 is None or x2 is None:
        if x1 is not x2:
            raise ValueError("where takes the condition alone, or both x1 and x2.")
        return nonzero(condition)
    c = np.asarray(condition)
    c = c if c.dtype.kind == "b" else c != 0

    def backward(g: Any) -> Any:
        return (
            np.where(c, g, 0) if x1.requires_grad else None,
            np.where(c, 0, g) if x2.requires_grad else None,
        )

    return record(np.where(c, x1.data, x2.data), (x1, x2), backward)


@op
def select(condlist: list[Array], choicelist: list[Numeric], default: Numeric = 0) -> Tensor:  # type: ignore[assignment]
    """The choice that goes with the first condition that holds, elementwise; else default.

    Gradient: g to the choice that was taken.
    """
    if len(condlist) != len(choicelist):
        raise ValueError(
            f"select received {len(condlist)} conditions for {len(choicelist)} choices."
        )
    y = default
    for condition, choice in zip(reversed(condlist), reversed(choicelist), strict=True):
        y = where(condition, choice, y)
    return y if isinstance(y, Tensor) else Tensor(y)


@op
def nonzero(x: Numeric) -> tuple[Tensor, ...]:
    """The indices of the elements that are not 0, one array per axis. Not differentiable."""
    return tuple(record(ids.astype(np.int32)) for ids in np.nonzero(x.data))


@op
def one_hot(
    x: Array, num_classes: int, axis: int = -1, dtype: Any = None, sparse: bool = False
) -> Tensor:
    """A 1 at each id along a new axis, 0 elsewhere; ids outside the range give only zeros.

    Args:
        x: integers.
        num_classes: the size of the new axis.
        axis: where it goes. Defaults to -1, the last.
        dtype: Defaults to floatx.
        sparse: must be False.

    Shapes: (...) -> (..., num_classes).

    Not differentiable.
    """
    from picodl import config

    _no_sparse(sparse)
    ids = np.asarray(x)
    ids = _whole(ids) if ids.dtype.kind == "f" else ids
    (axis,) = normalize_axis(axis, ids.ndim + 1)
    classes = np.arange(num_classes).reshape((-1,) + (1,) * (ids.ndim - axis))
    hits = np.expand_dims(ids, axis) == classes
    return record(hits.astype(dtype or config.floatx()))


@op
def multi_hot(
    inputs: Array,
    num_classes: int | None = None,
    axis: int = -1,
    dtype: Any = None,
    sparse: bool = False,
    **kwargs: Any,
) -> Tensor:
    """A 1 for each class among the ids of a row, 0 for the others.

    Args:
        inputs: integers, ids of one row along the last axis (a whole vector is one row).
        num_classes: the number of classes.
        axis: of the result, where the classes go. Defaults to -1.
        dtype: Defaults to floatx.
        sparse: must be False.

    Shapes: (batch, ids) -> (batch, num_classes); (ids,) -> (num_classes,).

    Not differentiable.
    """
    num_classes = kwargs.pop("num_tokens", num_classes)
    if num_classes is None or kwargs:
        raise ValueError(f"multi_hot needs num_classes; received {num_classes} and {kwargs}.")
    ids = np.asarray(inputs)
    hot = one_hot(ids, num_classes, axis, dtype, sparse)
    return record(np.max(hot, axis=1 if ids.ndim > 1 else 0, initial=0))


def _no_sparse(sparse: bool) -> None:
    if sparse:
        raise ValueError("picodl has no sparse tensors; leave sparse=False.")


# -------------------------------------------------------------------- writing into a copy


@op
def scatter(indices: Array, values: Numeric, shape: Any) -> Tensor:
    """Zeros of a shape with values added at indices; repeated ones add up.

    Shapes: indices (n, k), values (n, ...) -> shape, whose first k axes the indices address.

    Gradient: dvalues = g at the indices.
    """
    shape = tuple(int(n) for n in (shape.data if isinstance(shape, Tensor) else shape))
    key = _index_rows(indices, shape)

    def backward(g: Any) -> Any:
        return (g[key],)

    return record(spread(values.data, key, shape), (values,), backward)


@op
def scatter_update(
    inputs: Numeric, indices: Array, updates: Numeric, reduction: str | None = None
) -> Tensor:
    """A copy of inputs with updates written, or combined, at indices.

    Args:
        inputs: the array.
        indices: of shape (n, k), addressing the first k axes.
        updates: n values.
        reduction: None to replace (the last one wins), "add", "max", "min" or "mul".

    Gradient: of the updates, g at the indices where they were taken; of the inputs, g elsewhere,
    and everywhere for "add". Equal extrema share it; products give each the product of the others.
    """
    key = _index_rows(indices, inputs.data.shape)
    wide = np.broadcast_to(updates.data, inputs.data[key].shape)
    if reduction == "add":
        return inputs + spread(_stretched(updates, wide.shape), key, inputs.data.shape)
    if reduction is None:
        return _replace(inputs, key, updates, wide.shape)
    if reduction not in ("max", "min", "mul"):
        raise ValueError(
            f'reduction must be None, "add", "max", "min" or "mul"; received {reduction!r}.'
        )
    from picodl.ops import elementwise, segment

    shape = inputs.data.shape
    places, group = np.unique(_positions(key, shape).reshape(-1), return_inverse=True)
    joined = {"max": segment.segment_max, "min": segment.segment_min, "mul": segment.segment_prod}
    combine = {
        "max": elementwise.maximum,
        "min": elementwise.minimum,
        "mul": elementwise.multiply,
    }[reduction]
    new = joined[reduction](_stretched(updates, wide.shape).reshape(-1), group)
    flat = inputs.reshape(-1)
    return _replace(flat, places, combine(flat[places], new), places.shape).reshape(shape)


def _index_rows(indices: Any, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """The columns of an index table as a numpy index, checked against the shape."""
    ids = np.asarray(indices)
    if ids.ndim < 1 or ids.shape[-1] > len(shape):
        raise ValueError(
            f"indices of shape {ids.shape} must hold along their last axis at most {len(shape)} "
            f"coordinates, one per axis of the shape {shape}."
        )
    columns = tuple(_whole(ids[..., i]) for i in range(ids.shape[-1]))
    for i, column in enumerate(columns):
        if column.size and not -shape[i] <= column.min() <= column.max() < shape[i]:
            raise IndexError(
                f"An index along axis {i} is out of range: they go from {column.min()} to "
                f"{column.max()}, but the axis has size {shape[i]}."
            )
    return columns


def _stretched(updates: Tensor, shape: tuple[int, ...]) -> Tensor:
    from picodl.ops.shape import broadcast_to

    return updates if updates.data.shape == shape else broadcast_to(updates, shape)


def _replace(x: Tensor, key: Any, updates: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A copy of x with updates at key; where an index repeats, the last one wins."""
    dtype = np.result_type(x.data, updates.data)
    y = x.data.astype(dtype)  # a copy
    y[key] = updates.data
    kept = np.ones(x.data.shape, bool)
    kept[key] = False
    ids = np.full(x.data.shape, -1)
    order = np.arange(math.prod(shape)).reshape(shape)
    ids[key] = order
    taken = ids[key] == order

    def replace(g: Any) -> Any:
        return g * kept, g[key] * taken

    replace.__qualname__ = "replace"
    return record(y, (x, updates), replace)


@op
def slice(inputs: Numeric, start_indices: Any, shape: Any) -> Tensor:
    """The block of a shape that begins at start_indices.

    Gradient: dinputs = zeros with g in the block.
    """
    return inputs[_block(inputs, start_indices, shape)]


@op
def slice_update(inputs: Numeric, start_indices: Any, updates: Numeric) -> Tensor:
    """A copy of inputs with the block that begins at start_indices replaced by updates.

    Gradient: dinputs = g with 0 in the block; dupdates = g in the block.
    """
    key = _block(inputs, start_indices, updates.data.shape)
    return _replace(inputs, key, updates, updates.data.shape)


def _block(x: Tensor, start: Any, shape: Any) -> tuple[builtins.slice, ...]:
    start = [int(i) for i in (start.data if isinstance(start, Tensor) else start)]
    shape = [int(n) for n in (shape.data if isinstance(shape, Tensor) else shape)]
    whole = x.data.shape
    if not len(start) == len(shape) == len(whole):
        raise ValueError(
            f"start_indices {start} and shape {shape} must have one number per axis of {whole}."
        )
    shape = [w - i if n == -1 else n for i, n, w in zip(start, shape, whole, strict=True)]
    for i, n, w in zip(start, shape, whole, strict=True):
        if i < 0 or n < 0 or i + n > w:
            raise ValueError(
                f"The block of shape {shape} at {start} does not lie inside an array of {whole}."
            )
    return tuple(builtins.slice(i, i + n) for i, n in zip(start, shape, strict=True))


@op
def index_add(x: Numeric, indices: Array, updates: Numeric, axis: int = 0) -> Tensor:
    """A copy of x with updates added at indices along an axis; repeated indices add up.

    Gradient: dx = g, dupdates = g at the indices.
    """
    (place,) = normalize_axis(axis, x.data.ndim)
    key = (_ALL,) * place + (np.asarray(indices),)
    shape = x.data.shape
    wanted = x.data[key].shape
    return x + spread(_stretched(updates, wanted), key, shape)


@op
def unravel_index(indices: Array, shape: Any) -> tuple[Tensor, ...]:
    """Flat positions as one index per axis of a shape. Not differentiable."""
    flat = np.unravel_index(np.asarray(indices), tuple(shape))
    return tuple(record(np.asarray(i, np.int32)) for i in flat)
