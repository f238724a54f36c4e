"""Linear algebra on stacks of matrices (the last two axes): `ops.linalg`. Determinants and norms.

Computed by numpy (LAPACK). What is solved or decomposed stands in `solving` and `decompositions`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from picodl.ops.core import normalize_axis, op
from picodl.ops.decompositions import cholesky, eig, eigh, lu_factor, qr, svd
from picodl.ops.diagonals import diagonal
from picodl.ops.elementwise import absolute
from picodl.ops.functions import log
from picodl.ops.reduce import kept_shape
from picodl.ops.reduce import max as largest
from picodl.ops.reduce import min as smallest
from picodl.ops.shape import moveaxis
from picodl.ops.solving import (
    _square,
    _t,
    cholesky_inverse,
    inv,
    lstsq,
    pinv,
    solve,
    solve_triangular,
)
from picodl.tensor import Tensor, output, record, value
from picodl.typing import Axis

__all__ = [
    "cholesky",
    "cholesky_inverse",
    "det",
    "eig",
    "eigh",
    "inv",
    "logdet",
    "lstsq",
    "lu_factor",
    "matrix_rank",
    "norm",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "solve_triangular",
    "svd",
]

# -------------------------------------------------------------------- determinants


@op
def det(x: Tensor) -> Tensor:
    """The determinant of square matrices.

    Gradient: dx = g * y * x^-T; the matrix of cofactors where x is singular.
    """
    _square(x, "det")
    y = np.linalg.det(x.data).astype(x.data.dtype)

    def backward(g: Any) -> Any:
        return (g[..., None, None] * _cofactors(x.data),)

    def composed(x: Any) -> Any:
        if np.any(y == 0):
            raise NotImplementedError("det has no second derivative at a singular matrix.")
        sign, logarithm = slogdet(x)
        return sign * np.exp(logarithm)

    return record(np.asarray(y), (x,), backward, composed)


def _cofactors(a: Any) -> Any:
    """det(a) a^-T, from the singular values, so that it exists for singular matrices too."""
    u, s, vt = np.linalg.svd(a)
    n = a.shape[-1]
    others = np.stack([np.prod(np.delete(s, i, -1), -1) for i in range(n)], -1)
    sign = np.linalg.det(u) * np.linalg.det(vt)
    return (sign[..., None, None] * (u * others[..., None, :]) @ vt).astype(a.dtype)


@op
def slogdet(x: Tensor) -> tuple[Tensor, Tensor]:
    """The sign of the determinant, and the logarithm of its absolute value.

    Gradient: dx = g * x^-T, from the logarithm. The sign is constant.
    """
    _square(x, "slogdet")
    sign, logarithm = np.linalg.slogdet(x.data)

    def backward(g: Any) -> Any:
        back = inv(x) if isinstance(g, Tensor) else np.linalg.inv(x.data)
        return (g[..., None, None] * _t(back),)

    return record(sign), record(logarithm, (x,), backward)


@op
def logdet(x: Tensor) -> Tensor:
    """The logarithm of the determinant of positive definite matrices.

    Gradient: dx = g * x^-T.
    """
    return 2 * log(diagonal(cholesky(x), 0, -2, -1)).sum(-1)


@op
def matrix_rank(x: Tensor, tol: float | None = None) -> Tensor:
    """The number of singular values above tol; int32. Not differentiable."""
    return record(np.asarray(np.linalg.matrix_rank(x.data, tol), np.int32))


# -------------------------------------------------------------------- norms


@op
def norm(x: Tensor, ord: Any = None, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The norm of vectors along an axis, or of matrices along two.

    Args:
        x: the array.
        ord: for vectors any number p for (sum |x|^p)^(1/p), inf, -inf or 0; for matrices "fro",
            "nuc", 1, -1, 2, -2, inf or -inf. Defaults to None: the root of the sum of squares.
        axis: one axis for vectors, two for matrices. Defaults to None: all, as one vector unless
            ord is given for a matrix.
        keepdims: whether the axes stay with size 1.

    Gradient: for the default dx = g * x / y, 0 where y is 0.
    """
    shape = x.data.shape
    if axis is None:
        if ord is not None and len(shape) not in (1, 2):
            raise ValueError(f"norm with ord={ord!r} of an array of shape {shape} needs an axis.")
        axes = tuple(range(len(shape)))
    else:
        axes = normalize_axis(axis, len(shape))
    if ord is None or (len(axes) == 1 and ord == 2) or (len(axes) == 2 and ord == "fro"):
        return _euclidean(x, axes, keepdims)
    if len(axes) == 1:
        return _vector_norm(x, ord, axes, keepdims)
    if len(axes) == 2:
        return _matrix_norm(x, ord, axes, keepdims)
    raise ValueError(f"norm works on one axis or two; received axis={axis}.")


@op
def _euclidean(x: Tensor, axes: tuple[int, ...], keepdims: bool) -> Tensor:
    """sqrt(sum(x^2)). Gradient: dx = g * x / y, 0 where y is 0."""
    y = np.sqrt(np.add.reduce(x.data * x.data, axes, keepdims=keepdims))  # type: ignore[call-overload]
    kept = kept_shape(x.data.shape, axes)

    def backward(g: Any) -> Any:
        length = output(y, g, _euclidean, x, axes, keepdims) + (y == 0)
        return ((g / length).reshape(kept) * value(x, g),)

    backward.__qualname__ = "norm"
    return record(y, (x,), backward)


def _vector_norm(x: Tensor, ord: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
    size = absolute(x)
    if ord == np.inf:
        return largest(size, axes, keepdims)
    if ord == -np.inf:
        return smallest(size, axes, keepdims)
    if ord == 0:
        return record(np.count_nonzero(x.data, axes, keepdims=keepdims).astype(x.data.dtype))
    if isinstance(ord, str):
        raise ValueError(f"norm of vectors knows no ord={ord!r}.")
    if ord == 1:
        return size.sum(axes, keepdims)
    return (size**ord).sum(axes, keepdims) ** (1 / ord)


def _matrix_norm(x: Tensor, ord: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
    rows = moveaxis(x, axes, (-2, -1))
    if ord in (1, -1, np.inf, -np.inf):
        sums = absolute(rows).sum(-2 if ord in (1, -1) else -1)
        y = largest(sums, -1) if ord > 0 else smallest(sums, -1)
    elif ord in (2, -2, "nuc"):
        s = svd(rows, compute_uv=False)
        y = s.sum(-1) if ord == "nuc" else s[..., 0 if ord == 2 else -1]
    else:
        raise ValueError(f"norm of matrices knows no ord={ord!r}.")
    return y.reshape(kept_shape(x.data.shape, axes)) if keepdims else y
