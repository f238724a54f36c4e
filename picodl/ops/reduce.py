"""Sums, means, extrema and products over axes, and the running forms along one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from picodl.ops.core import Array, Numeric, normalize_axis, op
from picodl.tensor import Tensor, output, record, value
from picodl.typing import Axis

# Any, because numpy's stubs know no keepdims that is a variable
_add: Any = np.add.reduce
_maximum: Any = np.maximum.reduce
_multiply: Any = np.multiply.reduce


def _axes(axis: Axis) -> Any:
    """Several axes as the tuple numpy wants."""
    return axis if axis is None or isinstance(axis, int) else tuple(axis)


def kept_shape(shape: tuple[int, ...], axis: Axis) -> tuple[int, ...]:
    """The shape a reduction has with keepdims."""
    gone = normalize_axis(axis, len(shape))
    return tuple(1 if i in gone else n for i, n in enumerate(shape))


def _count(shape: tuple[int, ...], axis: Axis) -> int:
    """How many elements go into one result."""
    return math.prod([shape[i] for i in normalize_axis(axis, len(shape))])


# -------------------------------------------------------------------- sums and means


@op
def sum(x: Numeric, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The sum over axes; over all for None.

    Gradient: dx = g, stretched over the summed axes.
    """
    shape = x.data.shape
    axes = _axes(axis)

    def backward(g: Any) -> Any:
        if axis is not None and not keepdims:
            g = g.reshape(kept_shape(shape, axes))
        elif axis is None and g.size == 1:
            g = g.reshape((1,) * len(shape))
        return (np.broadcast_to(g, shape),)

    return record(_add(x.data, axes, keepdims=keepdims), (x,), backward)


@op
def mean(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The mean over axes; over all for None. Integers give floatx.

    Gradient: dx = g / n, stretched, for n elements in each mean.
    """
    shape = x.data.shape
    axes = _axes(axis)
    kept = kept_shape(shape, axes)
    n = _count(shape, axes)

    def backward(g: Any) -> Any:
        return (np.broadcast_to((g / n).reshape(kept), shape),)

    if x.data.dtype == np.float16 or n == 0:
        return record(x.data.mean(axes, keepdims=keepdims), (x,), backward)
    total = _add(x.data, axes, keepdims=keepdims)
    return record(total / n, (x,), backward)


@op
def var(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The variance over axes: the mean of (x - mean)^2, divided by n and not by n - 1.

    Gradient: dx = g * 2 (x - mean) / n.
    """
    shape = x.data.shape
    axes = _axes(axis)
    kept = kept_shape(shape, axes)
    n = _count(shape, axes) or 1

    def backward(g: Any) -> Any:
        a = value(x, g)
        return ((g * (2 / n)).reshape(kept) * (a - a.mean(axes, keepdims=True)),)

    y = x.data.var(axes, dtype=_wide(x.data), keepdims=keepdims)
    return record(y.astype(x.data.dtype, copy=False), (x,), backward)


def _wide(a: Any) -> Any:
    """The dtype to add squares in: in float16 a few thousand would be infinite."""
    return np.float32 if a.dtype == np.float16 else None


@op
def std(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The standard deviation over axes: the root of `var`.

    Gradient: dx = g * (x - mean) / (n y), 0 where y is 0.
    """
    axes = _axes(axis)
    y = x.data.std(axes, dtype=_wide(x.data), keepdims=keepdims)
    y = y.astype(x.data.dtype, copy=False)
    shape = x.data.shape
    kept = kept_shape(shape, axes)
    n = _count(shape, axes) or 1

    def backward(g: Any) -> Any:
        a = value(x, g)
        safe = output(y, g, std, x, axis, keepdims) + (y == 0)
        return ((g / (safe * n)).reshape(kept) * (a - a.mean(axes, keepdims=True)),)

    return record(y, (x,), backward)


@op
def average(x: Tensor, axis: Axis = None, weights: Tensor | None = None) -> Tensor:
    """The weighted mean: sum of weights * x, divided by the sum of the weights.

    Args:
        x: the array.
        axis: Defaults to None, all.
        weights: of x's shape, or a vector for the one axis. Defaults to None, all alike.

    Gradient: dx = g * weights / sum(weights); dweights = g * (x - y) / sum(weights).
    """
    if weights is None:
        return mean(x, axis)
    if weights.data.shape != x.data.shape:
        axes = normalize_axis(axis, x.data.ndim)
        if weights.data.ndim != 1 or len(axes) != 1 or weights.data.size != x.data.shape[axes[0]]:
            raise ValueError(
                f"weights must have the shape {x.data.shape} of x, or be a vector for the one axis "
                f"{axis}; received {weights.data.shape}."
            )
        weights = weights.reshape([-1 if i == axes[0] else 1 for i in range(x.data.ndim)])
        total = sum(weights)
    else:
        total = sum(weights, axis)
    return sum(x * weights, axis) / total


@op
def logsumexp(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """log(sum(exp(x))) over axes, without overflow.

    Gradient: dx = g * exp(x - y), the softmax.
    """
    a = x.data
    axes = _axes(axis)
    kept = kept_shape(a.shape, axes)
    top = _maximum(a, axes, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0)
    y = _add(np.exp(a - top), axes, keepdims=keepdims)
    with np.errstate(divide="ignore"):  # the sum over nothing, or over exp(-inf), is log(0)
        y = np.log(y, out=y) if y.ndim else np.log(y)
    y = y + top.reshape(y.shape)

    def backward(g: Any) -> Any:
        whole = output(y, g, logsumexp, x, axis, keepdims).reshape(kept)
        slope = np.exp(value(x, g) - whole)
        if not np.isfinite(y).all():
            top = a == y.reshape(kept)  # of log(0) nothing flows back; infinities share it
            share = np.where(top, (1 / np.maximum(_add(top, axes, keepdims=True), 1)), 0)
            share = share * (y.reshape(kept) != -np.inf)
            slope = np.where(np.isinf(y).reshape(kept), share.astype(a.dtype), slope)
        return (g.reshape(kept) * slope,)

    return record(y, (x,), backward)


# -------------------------------------------------------------------- extrema


def _extremum(name: str, reduction: Any, word: str) -> Any:
    def function(
        x: Numeric, axis: Axis = None, keepdims: bool = False, initial: Any = None
    ) -> Tensor:
        a = x.data
        axes = _axes(axis)
        kept = kept_shape(a.shape, axes)
        if initial is None:
            if a.size == 0 and _count(a.shape, axes) == 0:
                raise ValueError(
                    f"{name} over axis {axis} of an array of shape {a.shape} is empty; "
                    "pass initial."
                )
            y = reduction.reduce(a, axes, keepdims=keepdims)
        else:
            if isinstance(initial, Tensor):
                initial = initial.data
            y = reduction.reduce(a, axes, keepdims=keepdims, initial=initial)

        def backward(g: Any) -> Any:
            whole = y.reshape(kept)
            hit = a == whole
            if (whole != whole).any():
                hit |= (a != a) & (whole != whole)  # a nan is its own extremum
            ties = np.maximum(_add(hit, axes, keepdims=True), 1)
            share = hit if ties.max(initial=1) == 1 else (hit / ties).astype(a.dtype)
            return (g.reshape(kept) * share,)

        backward.__qualname__ = name
        return record(y, (x,), backward)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"""The {word} over axes; over all for None.

    Args:
        x: the array.
        axis: Defaults to None.
        keepdims: whether reduced axes stay with size 1.
        initial: a number that takes part too, so that an empty axis has a result.

    Gradient: g to the {word}; equal ones share it evenly.
    """
    return op(function)


max = _extremum("max", np.maximum, "largest element")
min = _extremum("min", np.minimum, "smallest element")


def amax(x: Any, axis: Axis = None, keepdims: bool = False) -> Any:
    """The largest element over axes: another name of `max`."""
    return max(x, axis, keepdims)


def amin(x: Any, axis: Axis = None, keepdims: bool = False) -> Any:
    """The smallest element over axes: another name of `min`."""
    return min(x, axis, keepdims)


@op
def ptp(x: Numeric, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The range over axes, max - min.

    Gradient: g to the largest, -g to the smallest element.
    """
    return max(x, axis, keepdims) - min(x, axis, keepdims)


@op
def argmax(x: Numeric, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Where the largest element stands, the first of equal ones; int32. Not differentiable."""
    return record(np.argmax(x.data, axis, keepdims=keepdims).astype(np.int32))


@op
def argmin(x: Numeric, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Where the smallest element stands, the first of equal ones; int32. Not differentiable."""
    return record(np.argmin(x.data, axis, keepdims=keepdims).astype(np.int32))


# -------------------------------------------------------------------- counting


@op
def any(x: Array, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Whether any element is not 0. Not differentiable."""
    return record(np.any(x, _axes(axis), keepdims=keepdims))


@op
def all(x: Array, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Whether no element is 0. Not differentiable."""
    return record(np.all(x, _axes(axis), keepdims=keepdims))


@op
def count_nonzero(x: Array, axis: Axis = None) -> Tensor:
    """How many elements are not 0; int32. Not differentiable."""
    return record(np.asarray(np.count_nonzero(x, _axes(axis)), np.int32))


# -------------------------------------------------------------------- products and running forms


@op
def prod(x: Numeric, axis: Axis = None, keepdims: bool = False, dtype: Any = None) -> Tensor:
    """The product over axes; over all for None.

    Gradient: dx_i = g * the product of the others, exact also where elements are 0.
    """
    if dtype is not None:
        from picodl.ops.core import cast

        x = cast(x, dtype)
    a = x.data
    axes = normalize_axis(axis, a.ndim)
    kept = kept_shape(a.shape, axes)
    rest = tuple(i for i in range(a.ndim) if i not in axes)

    def backward(g: Any) -> Any:
        rows = a.transpose(rest + axes)
        others = _product_of_others(rows.reshape(*rows.shape[: len(rest)], -1))
        back = np.argsort(rest + axes)
        return (g.reshape(kept) * others.reshape(rows.shape).transpose(back),)

    def composed(x: Any) -> Any:
        rows = x.transpose(rest + axes)
        rows = rows.reshape((*rows.shape[: len(rest)], -1))
        while (n := rows.shape[-1]) > 1:  # neighbours multiplied until one is left
            pairs = rows[..., : n - n % 2 : 2] * rows[..., 1::2]
            rows = np.concatenate([pairs, rows[..., n - 1 :]], -1) if n % 2 else pairs
        out = rows.sum(-1)
        return out.reshape(kept) if keepdims else out

    return record(_multiply(a, axes, keepdims=keepdims), (x,), backward, composed)


def _product_of_others(rows: Any) -> Any:
    """For each element of a row the product of all others: those before times those after."""
    ones = np.ones_like(rows[..., :1])
    before = np.concatenate([ones, np.cumprod(rows[..., :-1], -1)], -1)
    after = np.concatenate([ones, np.cumprod(rows[..., :0:-1], -1)], -1)[..., ::-1]
    return before * after if rows.shape[-1] else rows


@op
def cumsum(x: Numeric, axis: int | None = None, dtype: Any = None) -> Tensor:
    """The running sum along an axis; of the flattened x for None.

    Gradient: dx = the running sum of g from the end.
    """
    if axis is None:
        return cumsum(x.reshape(-1), 0, dtype)
    (axis,) = normalize_axis(axis, x.data.ndim)

    def backward(g: Any) -> Any:
        return (np.flip(np.cumsum(np.flip(g, axis), axis), axis),)

    return record(np.cumsum(x.data, axis, dtype), (x,), backward)


@op
def cumprod(x: Numeric, axis: int | None = None, dtype: Any = None) -> Tensor:
    """The running product along an axis; of the flattened x for None.

    Gradient, with h_i = g_i + x_(i+1) h_(i+1) from the end: dx_i = y_(i-1) h_i, exact also where
    elements are 0.
    """
    if axis is None:
        return cumprod(x.reshape(-1), 0, dtype)
    (axis,) = normalize_axis(axis, x.data.ndim)
    y = np.cumprod(x.data, axis, dtype)
    n = x.data.shape[axis]

    def backward(g: Any) -> Any:
        steps = np.moveaxis(x.data, axis, 0)
        products = np.moveaxis(y, axis, 0)
        h = np.moveaxis(g, axis, 0).astype(x.data.dtype)  # a copy
        for i in range(n - 2, -1, -1):
            h[i] += steps[i + 1] * h[i + 1]
        h[1:] *= products[:-1]
        return (np.moveaxis(h, 0, axis),)

    def composed(x: Any) -> Any:
        from picodl.ops.shape import stack, unstack

        parts = unstack(x, axis=axis)
        for i in range(1, n):
            parts[i] = parts[i - 1] * parts[i]
        return stack(parts, axis)

    return record(y, (x,), backward, composed)


@op
def moments(
    x: Tensor, axes: Axis, keepdims: bool = False, synchronized: bool = False
) -> tuple[Tensor, Tensor]:
    """The mean and the variance over axes; see `mean` and `var`.

    Args:
        x: the array.
        axes: Those to reduce.
        keepdims: whether reduced axes stay with size 1.
        synchronized: must be False: there is one device.
    """
    if synchronized:
        raise NotImplementedError("moments(synchronized=True) needs several devices.")
    return mean(x, axes, keepdims), var(x, axes, keepdims)
