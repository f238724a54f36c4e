"""Products of vectors and matrices beside matmul and einsum, and distances."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from picodl.ops.core import Numeric, normalize_axis, op
from picodl.ops.linear import matmul
from picodl.ops.shape import expand_dims, moveaxis, stack
from picodl.tensor import Tensor, record


@op
def dot(x1: Numeric, x2: Numeric) -> Tensor:
    """The sum over the last axis of x1 and the last but one of x2; a product with a number.

    Gradient: that of the product; see `tensordot`.
    """
    a, b = x1.data.ndim, x2.data.ndim
    if a == 0 or b == 0:
        return x1 * x2
    if a <= 2 and b <= 2:
        return matmul(x1, x2)
    return tensordot(x1, x2, ([a - 1], [max(b - 2, 0)]))


@op
def vdot(x1: Numeric, x2: Numeric) -> Tensor:
    """The inner product of all elements, flattened.

    Gradient: dx1 = g * x2, dx2 = g * x1.
    """
    return matmul(x1.reshape(-1), x2.reshape(-1))


@op
def inner(x1: Numeric, x2: Numeric) -> Tensor:
    """The inner products along the last axes; a product with a number.

    Gradient: that of `tensordot`.
    """
    if x1.data.ndim == 0 or x2.data.ndim == 0:
        return x1 * x2
    return tensordot(x1, x2, ([-1], [-1]))


@op
def outer(x1: Numeric, x2: Numeric) -> Tensor:
    """All products of an element of x1 and one of x2, flattened.

    Gradient: dx1 = g @ x2, dx2 = g.T @ x1.
    """
    return x1.reshape(-1, 1) * x2.reshape(1, -1)


@op
def tensordot(x1: Numeric, x2: Numeric, axes: Any = 2) -> Tensor:
    """The sum of products over pairs of axes.

    Args:
        x1, x2: the arrays.
        axes: how many last axes of x1 meet the first of x2, or a pair of lists of axes.

    Gradient: that of the one matrix product it is.
    """
    a, b = x1.data.ndim, x2.data.ndim
    if isinstance(axes, (int, np.integer)):
        left = list(range(a - axes, a))
        right = list(range(axes))
    else:
        left, right = (
            list(normalize_axis(e if isinstance(e, (list, tuple)) else [e], n))
            for e, n in zip(axes, (a, b), strict=True)
        )
    sizes = [x1.data.shape[i] for i in left]
    if len(left) != len(right) or sizes != [x2.data.shape[i] for i in right]:
        raise ValueError(
            f"tensordot cannot pair axes {left} of shape {x1.data.shape} with axes {right} of "
            f"shape {x2.data.shape}."
        )
    rows = [i for i in range(a) if i not in left]
    columns = [i for i in range(b) if i not in right]
    shape = [x1.data.shape[i] for i in rows] + [x2.data.shape[i] for i in columns]
    n = math.prod(sizes)
    m = math.prod([x2.data.shape[i] for i in columns])
    k = math.prod([x1.data.shape[i] for i in rows])
    flat1 = x1.transpose((*rows, *left)).reshape(k, n)
    flat2 = x2.transpose((*right, *columns)).reshape(n, m)
    return matmul(flat1, flat2).reshape(shape)


@op
def kron(x1: Numeric, x2: Numeric) -> Tensor:
    """The Kronecker product: x1 with each element replaced by it times x2.

    Gradient: dx1 = sum of g * x2 over each block, dx2 = sum of g * x1 over the blocks.
    """
    n = max(x1.data.ndim, x2.data.ndim)
    s1 = (1,) * (n - x1.data.ndim) + x1.data.shape
    s2 = (1,) * (n - x2.data.ndim) + x2.data.shape
    wide1 = x1.reshape([k for pair in s1 for k in (pair, 1)])
    wide2 = x2.reshape([k for pair in s2 for k in (1, pair)])
    return (wide1 * wide2).reshape([p * q for p, q in zip(s1, s2, strict=True)])


@op
def cross(
    x1: Numeric,
    x2: Numeric,
    axisa: int = -1,
    axisb: int = -1,
    axisc: int = -1,
    axis: int | None = None,
) -> Tensor:
    """The cross product of vectors of 3 (or 2) along an axis; for two vectors of 2 a number.

    Args:
        x1, x2: the vectors.
        axisa, axisb, axisc: the axis in x1, x2 and the result. Defaults to the last.
        axis: one axis for all three.

    Gradient: dx1 = x2 x g, dx2 = g x x1.
    """
    if axis is not None:
        axisa = axisb = axisc = axis
    a, b = moveaxis(x1, axisa, -1), moveaxis(x2, axisb, -1)
    if a.shape[-1] not in (2, 3) or b.shape[-1] not in (2, 3):
        raise ValueError(
            f"cross takes vectors of 2 or 3 elements; received shapes {x1.shape} and {x2.shape}."
        )
    a0, a1, b0, b1 = a[..., 0], a[..., 1], b[..., 0], b[..., 1]
    third = a0 * b1 - a1 * b0
    if a.shape[-1] == b.shape[-1] == 2:
        return third
    a2 = a[..., 2] if a.shape[-1] == 3 else None
    b2 = b[..., 2] if b.shape[-1] == 3 else None
    first = (a1 * b2 if b2 is not None else 0) - (a2 * b1 if a2 is not None else 0)
    second = (a2 * b0 if a2 is not None else 0) - (a0 * b2 if b2 is not None else 0)
    return moveaxis(stack([first, second, third], -1), -1, axisc)


@op
def matrix_power(x: Tensor, n: int) -> Tensor:
    """The n-th power of square matrices, by repeated squaring; negative ones of the inverse.

    Gradient: that of the products.
    """
    from picodl.ops.linalg import inv

    if n < 0:
        return matrix_power(inv(x), -n)
    if n == 0:
        return Tensor(np.broadcast_to(np.eye(x.shape[-1], dtype=x.dtype), x.shape).copy())
    result: Any = None
    while n:
        if n % 2:
            result = x if result is None else matmul(result, x)
        n //= 2
        if n:
            x = matmul(x, x)
    return result


# -------------------------------------------------------------------- along an axis


@op
def diff(a: Numeric, n: int = 1, axis: int = -1) -> Tensor:
    """The differences of neighbours along an axis, n times over; of bools, where they differ.

    Gradient: dx_i = g_(i-1) - g_i.
    """
    (place,) = normalize_axis(axis, a.data.ndim)
    before = (slice(None),) * place
    for _ in range(n):
        right, left = a[(*before, slice(1, None))], a[(*before, slice(None, -1))]
        a = right - left if a.data.dtype.kind != "b" else record(right.data != left.data)
    return a


@op
def trapezoid(y: Tensor, x: Tensor | None = None, dx: float = 1.0, axis: int = -1) -> Tensor:
    """The integral along an axis by the trapezoidal rule.

    Args:
        y: the values.
        x: where they were taken. Defaults to None, evenly spaced by dx.
        dx: Defaults to 1.
        axis: Defaults to the last.

    Gradient: dy = g * half the width of both neighbouring intervals.
    """
    (place,) = normalize_axis(axis, y.data.ndim)
    before = (slice(None),) * place
    heights = y[(*before, slice(1, None))] + y[(*before, slice(None, -1))]
    if x is None:
        return heights.sum(place) * (0.5 * dx)
    widths = diff(x, axis=-1 if x.data.ndim == 1 else place)
    if x.data.ndim == 1:
        widths = widths.reshape([-1 if i == place else 1 for i in range(y.data.ndim)])
    return (heights * widths).sum(place) * 0.5


@op
def correlate(x1: Tensor, x2: Tensor, mode: str = "valid") -> Tensor:
    """The cross-correlation of two vectors, c_k = sum over n of x1_(n+k) x2_n.

    Args:
        x1, x2: vectors.
        mode: "valid" where they overlap wholly, "same" for the length of the longer, or "full".

    Gradient: dx1 = g convolved with x2, dx2 = x1 correlated with g.
    """
    from picodl.ops.shape import flip, pad

    if mode not in ("valid", "same", "full"):
        raise ValueError(f'mode must be "valid", "same" or "full"; received {mode!r}.')
    if x1.data.ndim != 1 or x2.data.ndim != 1:
        raise ValueError(f"correlate takes vectors; received {x1.data.shape}, {x2.data.shape}.")
    n, m = x1.data.size, x2.data.size
    if n < m:  # the roles exchanged, and the result turned round
        return flip(correlate(x2, x1, mode))
    if mode != "valid":
        # numpy puts the odd element of "same" after the middle when it flips
        before = m - 1 if mode == "full" else m // 2
        after = m - 1 if mode == "full" else m - 1 - m // 2
        x1 = pad(x1, (before, after))
    windows = np.arange(x1.data.size - m + 1)[:, None] + np.arange(m)
    return matmul(x1[windows], x2)


@op
def corrcoef(x: Tensor) -> Tensor:
    """Pearson's correlation coefficients of the rows.

    Shapes: (variables, samples) -> (variables, variables).

    Gradient: that of the means and products it is made of.
    """
    from picodl.ops.elementwise import clip
    from picodl.ops.functions import sqrt

    rows = x.reshape(1, -1) if x.data.ndim == 1 else x
    centred = rows - rows.mean(1, keepdims=True)
    c = matmul(centred, centred.T)
    size = sqrt((centred * centred).sum(1))
    r = clip(c / (expand_dims(size, 1) * expand_dims(size, 0)), -1.0, 1.0)
    return r.reshape(()) if x.data.ndim == 1 else r


def _pairs(x: Tensor, y: Tensor, name: str) -> None:
    if x.data.ndim < 2 or y.data.ndim < 2 or x.data.shape[-1] != y.data.shape[-1]:
        raise ValueError(
            f"{name} takes rows of points of one size; received {x.data.shape}, {y.data.shape}."
        )


@op
def cdist(x: Tensor, y: Tensor) -> Tensor:
    """The Euclidean distances between the rows of x and those of y.

    Shapes: x (..., n, d), y (..., m, d) -> (..., n, m).

    Gradient: dx = sum of g * (x - y) / distance over the rows of y; 0 where the distance is 0.
    """
    from picodl.ops.linalg import norm

    _pairs(x, y, "cdist")
    return norm(expand_dims(x, -2) - expand_dims(y, -3), axis=-1)


@op
def psnr(x1: Tensor, x2: Tensor, max_val: float) -> Tensor:
    """The peak signal-to-noise ratio in decibels, 20 log10(max_val) - 10 log10(mean((x1 - x2)^2)).

    Gradient: that of the logarithm and the mean.
    """
    from picodl.ops.functions import log10

    if x1.data.shape != x2.data.shape:
        raise ValueError(
            f"psnr compares arrays of one shape; received {x1.data.shape}, {x2.data.shape}."
        )
    error = x1 - x2
    return 20 * float(np.log10(max_val)) - 10 * log10((error * error).mean())
