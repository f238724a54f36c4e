"""Inverses and solutions of systems of linear equations, on stacks of matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from picodl.ops.core import op
from picodl.ops.diagonals import tril, triu
from picodl.ops.linear import matmul
from picodl.tensor import Tensor, output, record, value


def _t(x: Any) -> Any:
    """The matrices transposed."""
    return np.swapaxes(x, -1, -2)


def _square(x: Tensor, name: str) -> None:
    shape = x.data.shape
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise ValueError(f"{name} takes square matrices (..., n, n); received shape {shape}.")


def _failed(name: str, x: Any, error: Exception) -> ValueError:
    return ValueError(f"{name} failed on matrices of shape {x.shape}: {error}.")


@op
def inv(x: Tensor) -> Tensor:
    """The inverse of square matrices.

    Raises:
        ValueError: for a singular matrix.

    Gradient: dx = -y^T g y^T.
    """
    _square(x, "inv")
    try:
        y = np.linalg.inv(x.data)
    except np.linalg.LinAlgError as error:
        raise _failed("inv", x.data, error) from error

    def backward(g: Any) -> Any:
        back = _t(output(y, g, inv, x))
        return (-(back @ g @ back),)

    return record(y, (x,), backward)


@op
def solve(a: Tensor, b: Tensor) -> Tensor:
    """The x with a x = b.

    Shapes: a (..., n, n), b (..., n, k) or (n,) -> as b.

    Raises:
        ValueError: for a singular matrix.

    Gradient: db = the solution of a^T db = g; da = -db x^T.
    """
    _square(a, "solve")
    vector = b.data.ndim == 1 or b.data.ndim == a.data.ndim - 1
    rhs = b.data[..., None] if vector else b.data
    try:
        y = np.linalg.solve(a.data, rhs)
    except np.linalg.LinAlgError as error:
        raise _failed("solve", a.data, error) from error
    y = y[..., 0] if vector else y

    def backward(g: Any) -> Any:
        x = output(y, g, solve, a, b)
        column = g[..., None] if vector else g
        db = _solve(_t(value(a, g)), column)
        da = -(db @ _t(x[..., None] if vector else x))
        return da, db[..., 0] if vector else db

    return record(y, (a, b), backward)


def _solve(a: Any, b: Any) -> Any:
    return solve(a, b) if isinstance(b, Tensor) or isinstance(a, Tensor) else np.linalg.solve(a, b)


@op
def solve_triangular(a: Tensor, b: Tensor, lower: bool = False) -> Tensor:
    """The x with a x = b, for the upper (or lower) triangle of a.

    Gradient: db = the solution of a^T db = g; da = the triangle of -db x^T.
    """
    _square(a, "solve_triangular")
    triangle = tril if lower else triu
    return solve(triangle(a), b)


@op
def lstsq(a: Tensor, b: Tensor, rcond: float | None = None) -> Tensor:
    """The x that makes |a x - b| least, the shortest such x.

    Args:
        a: (m, n) matrix.
        b: (m,) or (m, k).
        rcond: singular values below this fraction of the largest count as 0.

    Gradient: that of pinv(a) b.
    """
    y = np.linalg.lstsq(a.data, b.data, rcond)[0]
    if not (a.requires_grad or b.requires_grad):
        return record(y.astype(np.result_type(a.data, b.data), copy=False))
    cut = np.finfo(a.data.dtype).eps * max(a.data.shape) if rcond is None else rcond
    return matmul(pinv(a, cut), b)


@op
def pinv(x: Tensor, rcond: float | None = None) -> Tensor:
    """The Moore-Penrose inverse, from the singular values.

    Args:
        x: (..., m, n) matrices.
        rcond: singular values below this fraction of the largest count as 0. Defaults to
            10 max(m, n) times the dtype's precision.

    Gradient, for y the inverse: dx = -y^T g y^T + (1 - x y) g^T y y^T + y^T y g^T (1 - y x), valid
    while the rank does not change.

    Reference: Golub and Pereyra, 1973, "The differentiation of pseudo-inverses and nonlinear least
    squares problems whose variables separate".
    """
    if rcond is None:
        rcond = 10 * max(x.data.shape[-2:]) * float(np.finfo(x.data.dtype).eps)
    y = np.linalg.pinv(x.data, rcond)

    def backward(g: Any) -> Any:
        a, p = value(x, g), output(y, g, pinv, x, rcond)
        pt, gt = _t(p), _t(g)
        right = gt @ p @ pt
        left = pt @ p @ gt
        return (-(pt @ g @ pt) + (right - a @ (p @ right)) + (left - (left @ p) @ a),)

    return record(y, (x,), backward)


@op
def cholesky_inverse(x: Tensor, upper: bool = False) -> Tensor:
    """The inverse of the matrix whose Cholesky factor is x.

    Gradient: that of inv(x x^T), or of inv(x^T x) if upper.
    """
    _square(x, "cholesky_inverse")
    back = inv(triu(x) if upper else tril(x))
    return matmul(back, _t(back)) if upper else matmul(_t(back), back)
