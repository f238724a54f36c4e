"""Decompositions of stacks of matrices: Cholesky, QR, eigenvalues, singular values, LU.

The gradients are those of Giles, 2008, "Collected matrix derivative results for forward and reverse
mode algorithmic differentiation", and of Walter and Lehmann, 2012, "Algorithmic differentiation of
linear algebra functions".
"""

from __future__ import annotations

from typing import Any

import numpy as np

from picodl.ops.core import op
from picodl.ops.elementwise import times
from picodl.ops.solving import _failed, _solve, _square, _t, inv
from picodl.tensor import Tensor, output, record


@op
def cholesky(x: Tensor, upper: bool = False) -> Tensor:
    """The lower triangular L with L L^T = x, for positive definite x; L^T if upper.

    Raises:
        ValueError: for a matrix that is not positive definite.

    Gradient, with P = the lower triangle of L^T g, its diagonal halved: dx = the symmetric part of
    L^-T P L^-1.
    """
    _square(x, "cholesky")
    try:
        y = np.linalg.cholesky(x.data)
    except np.linalg.LinAlgError as error:
        raise _failed("cholesky", x.data, error) from error

    def backward(g: Any) -> Any:
        factor = output(y, g, cholesky, x)
        p = np.tril(_t(factor) @ np.tril(g))
        p = p * (1 - 0.5 * np.eye(y.shape[-1], dtype=y.dtype))
        back = inv(factor) if isinstance(g, Tensor) else np.linalg.inv(factor)
        s = _t(back) @ p @ back
        return (0.5 * (s + _t(s)),)

    out = record(y, (x,), backward)
    return _t(out) if upper else out


@op
def qr(x: Tensor, mode: str = "reduced") -> tuple[Tensor, Tensor]:
    """Q with orthonormal columns and an upper triangular R, Q R = x.

    Args:
        x: (..., m, n) matrices.
        mode: "reduced", for Q (m, k) and R (k, n) with k = min(m, n), or "complete", for Q (m, m).

    Gradient, for m >= n, with M = R gR^T - gQ^T Q and its lower triangle mirrored,
    dx = (gQ + Q copyltu(M)) R^-T.

    Reference: Walter and Lehmann, 2012, "Algorithmic differentiation of linear algebra functions".
    """
    if mode not in ("reduced", "complete"):
        raise ValueError(f'qr: mode must be "reduced" or "complete"; received {mode!r}.')
    q, r = np.linalg.qr(x.data, "complete" if mode == "complete" else "reduced")
    m, n = x.data.shape[-2:]
    if x.requires_grad and (m < n or (mode == "complete" and m > n)):
        raise NotImplementedError(
            f"qr has a gradient only for matrices with m >= n in mode reduced; received shape "
            f"{x.data.shape} in mode {mode!r}. Pass stop_gradient(x)."
        )

    def part(which: int, y: Any) -> Tensor:
        def backward(g: Any) -> Any:
            qv, rv = (qr(x)) if isinstance(g, Tensor) else (q, r)
            if which == 0:
                inner = -(_t(g) @ qv)
                outer = g
            else:
                inner = rv @ _t(g)
                outer = None
            low = np.tril(inner, -1)
            mirrored = np.tril(inner) + _t(low)
            side = qv @ mirrored if outer is None else outer + qv @ mirrored
            return (_t(_solve(rv, _t(side))),)

        backward.__qualname__ = "qr"
        return record(y, (x,), backward)

    return part(0, q), part(1, r)


@op
def eigh(x: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues w in ascending order and eigenvectors V (columns) of symmetric matrices.

    Only the lower triangle is read.

    Gradient: of w, V diag(g) V^T; of V, V (F * V^T g) V^T with F_ij = 1 / (w_j - w_i), 0 on the
    diagonal, both made symmetric. Of V only where eigenvalues differ, else infinite or nan.
    """
    _square(x, "eigh")
    w, v = np.linalg.eigh(x.data)

    def vectors(g: Any) -> tuple[Any, Any]:
        return eigh(x) if isinstance(g, Tensor) else (w, v)

    def from_values(g: Any) -> Any:
        _, vv = vectors(g)
        return ((vv * g[..., None, :]) @ _t(vv),)

    def from_vectors(g: Any) -> Any:
        ww, vv = vectors(g)
        gaps = ww[..., None, :] - ww[..., :, None]
        eye = np.eye(w.shape[-1], dtype=w.dtype)
        p = times(_t(vv) @ g, lambda: (1 - eye) / (gaps + eye))
        s = vv @ p @ _t(vv)
        return (0.5 * (s + _t(s)),)

    from_values.__qualname__ = from_vectors.__qualname__ = "eigh"
    return record(w, (x,), from_values), record(v, (x,), from_vectors)


def eig(x: Any) -> tuple[Any, Any]:
    """Eigenvalues and eigenvectors of square matrices, complex in general. Not differentiable.

    Returns plain arrays, also for a Tensor: Tensors hold real numbers only.
    """
    w, v = np.linalg.eig(np.asarray(x))
    return w, v


@op
def svd(x: Tensor, full_matrices: bool = True, compute_uv: bool = True) -> Any:
    """Singular values: u diag(s) vh = x.

    Args:
        x: (..., m, n) matrices.
        full_matrices: whether u and vh are square; else they have min(m, n) columns and rows.
        compute_uv: whether u and vh are wanted; else s alone is returned.

    Returns:
        (u, s, vh), or s.

    Gradient: of s, u diag(g) vh. Of u and vh, with F_ij = 1 / (s_j^2 - s_i^2), 0 on the diagonal:
    dx = u ((F * (u^T gu - gu^T u)) S + S (F * (v^T gv - gv^T v))) vh, and the parts of gu and gv
    outside the space of u and v, divided by s. Singular values must differ and not be 0.
    """
    u, s, vh = np.linalg.svd(x.data, full_matrices=False)

    def from_s(g: Any) -> Any:
        uu, _, vv = svd(x, False) if isinstance(g, Tensor) else (u, s, vh)
        return ((uu * g[..., None, :]) @ vv,)

    from_s.__qualname__ = "svd"
    values = record(s, (x,), from_s)
    if not compute_uv:
        return values
    if full_matrices and x.data.shape[-1] != x.data.shape[-2]:
        if x.requires_grad:
            raise NotImplementedError(
                "svd of matrices that are not square has a gradient only with "
                "full_matrices=False (or compute_uv=False)."
            )
        return tuple(record(part) for part in np.linalg.svd(x.data))

    def from_u(g: Any) -> Any:
        uu, ss, vv = svd(x, False) if isinstance(g, Tensor) else (u, s, vh)
        return (_from_side(uu, ss, vv, g),)

    def from_vh(g: Any) -> Any:
        uu, ss, vv = svd(x, False) if isinstance(g, Tensor) else (u, s, vh)
        return (_t(_from_side(_t(vv), ss, _t(uu), _t(g))),)

    from_u.__qualname__ = from_vh.__qualname__ = "svd"
    return record(u, (x,), from_u), values, record(vh, (x,), from_vh)


def _from_side(u: Any, s: Any, vh: Any, g: Any) -> Any:
    """The gradient of x = u diag(s) vh from that of u; that of v is the same of the transpose."""
    eye = np.eye(s.shape[-1], dtype=s.dtype)
    square = s * s
    gaps = square[..., None, :] - square[..., :, None] + eye
    inside = _t(u) @ g
    turned = (1 - eye) / gaps * (inside - _t(inside))
    outside = g - u @ inside
    return (u @ turned * s[..., None, :] + outside / s[..., None, :]) @ vh


@op
def lu_factor(x: Tensor) -> tuple[Tensor, Tensor]:
    """L and U in one matrix, the unit diagonal of L left out, and the rows exchanged at each step.

    Not differentiable; scipy's form.

    Shapes: (..., m, n) -> (..., m, n) and (..., min(m, n)).
    """
    from scipy.linalg import get_lapack_funcs

    shape = x.data.shape
    if len(shape) < 2:
        raise ValueError(f"lu_factor takes matrices (..., m, n); received shape {shape}.")
    (getrf,) = get_lapack_funcs(("getrf",), (x.data,))
    pairs = [getrf(a) for a in x.data.reshape(-1, *shape[-2:])]
    lu = np.stack([p[0] for p in pairs]).reshape(shape).astype(x.data.dtype, copy=False)
    pivots = np.stack([p[1] for p in pairs]).reshape(*shape[:-2], min(shape[-2:]))
    return record(lu), record(pivots.astype(np.int32))
