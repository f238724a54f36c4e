"""Linear algebra on stacks of matrices, the last two axes. Computed by numpy (LAPACK).

The gradients are those of Giles, 2008, "Collected matrix derivative results for forward and reverse
mode algorithmic differentiation", and of Walter and Lehmann, 2012, "Algorithmic differentiation of
linear algebra functions". With a bar for the gradient of a matrix: A = L L^T gives
dA = sym(L^-T phi(L^T dL) L^-1), and so on, as each docstring says.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from picodl.ops.core import normalize_axis, op
from picodl.ops.diagonals import diagonal, tril, triu
from picodl.ops.elementwise import absolute, times
from picodl.ops.functions import log
from picodl.ops.linear import matmul
from picodl.ops.reduce import kept_shape
from picodl.ops.reduce import max as largest
from picodl.ops.reduce import min as smallest
from picodl.ops.shape import moveaxis
from picodl.tensor import Tensor, output, record, value
from picodl.typing import Axis


def _t(x: Any) -> Any:
    """The matrices transposed."""
    return np.swapaxes(x, -1, -2)


def _square(x: Tensor, name: str) -> None:
    shape = x.data.shape
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise ValueError(f"{name} takes square matrices (..., n, n); received shape {shape}.")


def _failed(name: str, x: Any, error: Exception) -> ValueError:
    return ValueError(f"{name} failed on matrices of shape {x.shape}: {error}.")


# -------------------------------------------------------------------- solving


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


# -------------------------------------------------------------------- decompositions


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
def cholesky_inverse(x: Tensor, upper: bool = False) -> Tensor:
    """The inverse of the matrix whose Cholesky factor is x.

    Gradient: that of inv(x x^T), or of inv(x^T x) if upper.
    """
    _square(x, "cholesky_inverse")
    back = inv(triu(x) if upper else tril(x))
    return matmul(back, _t(back)) if upper else matmul(_t(back), back)


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
    """
    import scipy.linalg

    _square(x, "lu_factor")
    stack = x.data.reshape(-1, *x.data.shape[-2:])
    pairs = [scipy.linalg.lu_factor(a) for a in stack]
    lu = np.stack([p[0] for p in pairs]).reshape(x.data.shape)
    pivots = np.stack([p[1] for p in pairs]).reshape(x.data.shape[:-1])
    return record(lu), record(pivots.astype(np.int32))


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
