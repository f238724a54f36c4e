"""The table of differentiable ops: a name, a function of tensors and the arrays it is tried on.

Adding an op is one line. `flat` marks functions without a second derivative.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from picodl import activations, ops, random


class Case(NamedTuple):
    name: str
    function: Callable[..., Any]
    arrays: tuple[Any, ...]
    flat: bool = False


_rng = np.random.default_rng(0)
X = _rng.normal(size=(3, 4, 5))  # no two elements are equal, none is near 0
Y = _rng.normal(size=(3, 4, 5))
M = _rng.normal(size=(4, 3))
V = np.array([-1.7, 0.4, 1.3])
P = np.array([0.1, 0.4, 0.9])
S = _rng.normal(size=(2, 3, 3))
SPD = S @ S.transpose(0, 2, 1) + np.eye(3)
ZEROS = np.array([[0.7, 0.0, -1.2, 0.4], [0.0, 0.0, 1.5, 2.0], [0.3, 0.6, 0.9, 1.1]])
ALL_ZERO_ROW = np.array([[3.0, 4.0], [0.0, 0.0]])
IMAGES = _rng.random((2, 6, 8, 3))
COLUMN = np.array([[1.21], [2.7], [-1.1]])
TRANSFORM = np.array(
    [
        [1.1137, 0.1213, -0.4371, 0.0519, 0.9123, 0.7031, 0.0117, -0.0213],
        [0.8017, -0.3011, 1.0173, 0.2113, 1.2171, -1.0511, 0.001, 0.002],
    ]
)
NAN = np.where(np.arange(60).reshape(3, 4, 5) % 7 == 2, np.nan, 0.0)

CASES: list[Case] = []


def case(name: str, function: Callable[..., Any], *arrays: Any, flat: bool = False) -> None:
    CASES.append(Case(name, function, arrays, flat))


def named(name: str, *arrays: Any) -> None:
    case(name, getattr(ops, name), *arrays)


def symmetric(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of the symmetric part, so that every direction keeps the input symmetric."""
    return lambda x: function(0.5 * (x + ops.swapaxes(x, -1, -2)))


# -------------------------------------------------------------------- one variable

for name in [
    "abs",
    "absolute",
    "square",
    "negative",
    "fabs",
    "exp",
    "exp2",
    "expm1",
    "sin",
    "cos",
    "tan",
    "arctan",
    "sinh",
    "cosh",
    "tanh",
    "arcsinh",
    "deg2rad",
    "rad2deg",
    "cbrt",
    "erf",
    "erfc",
    "i0",
    "copy",
    "nan_to_num",
    "ravel",
]:
    named(name, V)
for name in [
    "sqrt",
    "rsqrt",
    "log",
    "log2",
    "log10",
    "log1p",
    "reciprocal",
    "arcsin",
    "arccos",
    "arctanh",
    "erfinv",
    "sinc",
]:
    named(name, P)
named("arccosh", P + 1.5)
case("sinc", ops.sinc, np.array([-2.3, -0.1, 0.0, 0.1, 0.26]))
case("cast", lambda x: ops.cast(x, "float64") ** 2, V)

# -------------------------------------------------------------------- activations

for name in [
    "relu",
    "relu6",
    "leaky_relu",
    "elu",
    "celu",
    "selu",
    "gelu",
    "silu",
    "mish",
    "exponential",
    "sigmoid",
    "softplus",
    "softsign",
    "squareplus",
    "log_sigmoid",
    "hard_sigmoid",
    "hard_silu",
    "hard_tanh",
    "hard_shrink",
    "soft_shrink",
    "tanh_shrink",
    "softmax",
    "log_softmax",
    "sparse_plus",
    "sparse_sigmoid",
    "sparsemax",
]:
    case(f"activations.{name}", lambda x, f=getattr(activations, name): f(x) ** 2, M)
case("activations.glu", lambda x: activations.glu(x, axis=0) ** 2, M)
case("activations.threshold", lambda x: activations.threshold(x, 0.2, -1.0) ** 2, M)
case("gelu", lambda x: ops.gelu(x) ** 2, M)
case("elu", lambda x: ops.elu(x, 0.3) ** 2, M)
case("leaky_relu", lambda x: ops.leaky_relu(x, 0.3) ** 2, M)
case("activations.relu", lambda x: activations.relu(x, 0.1, 1.5, 0.2) ** 2, M)
case("activations.softmax", lambda x: activations.softmax(x, axis=(0, 1)) ** 2, M)

# -------------------------------------------------------------------- two variables

for name in [
    "add",
    "subtract",
    "multiply",
    "divide",
    "true_divide",
    "maximum",
    "minimum",
    "fmax",
    "fmin",
    "mod",
    "remainder",
    "fmod",
    "divide_no_nan",
    "logaddexp",
    "logaddexp2",
    "hypot",
    "arctan2",
]:
    named(name, COLUMN, V)
case("power", ops.power, np.abs(COLUMN), np.array([2.0, 0.0, -1.5]))
for exponent in (0.0, 0.5, 1.0, 2.0, 3.0, -1.0, 4.0):
    case("power", lambda x, p=exponent: x**p, np.abs(X))
case("power", lambda x: 2.0**x, X)
case("power", lambda x: x**3, np.array([-1.0, 0.0, 2.0]))
case("divide_no_nan", lambda x: ops.divide_no_nan(x, np.array([2.0, 0.0, 1.0])), V)
case("ldexp", lambda x: ops.ldexp(x, np.array([1, -2, 3])), V)
case("heaviside", lambda y: ops.heaviside(np.array([1.0, 0.0, -1.0]), y), V)
case("gammainc", lambda x: ops.gammainc(np.array([0.5, 2.0, 3.0]), x), P)
case("clip", lambda x: ops.clip(x, -0.5, 0.9) ** 2, X)
case("clip", ops.clip, X, np.full(5, -0.5), np.full((4, 1), 0.4))
case("where", lambda x, y: ops.where(X > 0, x, y * y), X, V.reshape(3, 1, 1))
case("select", lambda x: ops.select([X > 1, X > 0], [x, 2 * x], 0.5) ** 2, X)

# -------------------------------------------------------------------- reductions

for axis in (None, 0, -1, (0, 2), [1]):
    for keep in (False, True):
        for name in [
            "sum",
            "mean",
            "var",
            "std",
            "max",
            "min",
            "amax",
            "amin",
            "ptp",
            "prod",
            "logsumexp",
            "median",
        ]:
            case(
                name,
                lambda x, f=getattr(ops, name), a=axis, k=keep: f(x, axis=a, keepdims=k) ** 2,
                X[:, :3],
            )
        for name in [
            "nansum",
            "nanmean",
            "nanvar",
            "nanstd",
            "nanmax",
            "nanmin",
            "nanprod",
            "nanmedian",
        ]:
            case(
                name,
                lambda x, f=getattr(ops, name), a=axis, k=keep: f(x + NAN, axis=a, keepdims=k),
                X,
            )
for axis in (None, 0, 1):
    case("prod", lambda x, a=axis: ops.prod(x, a), ZEROS)
    case("cumprod", lambda x, a=axis: ops.cumprod(x, a), ZEROS)
    for name in ["cumsum", "nancumsum", "nancumprod", "sort"]:
        case(name, lambda x, f=getattr(ops, name), a=axis: f(x, a) ** 2, M)
case("max", lambda x: ops.max(x, 1, initial=0.3) ** 2, X)
case("average", lambda x, w: ops.average(x, 0, w) ** 2, M, P[:1] + np.arange(4.0))
case("average", lambda x, w: ops.average(x, None, w) ** 2, M, M**2 + 1)
case("moments", lambda x: ops.moments(x, (0, 2)), X)
case("count", lambda x: x * ops.count_nonzero(x.data), V)
for method in ("linear", "lower", "higher", "midpoint", "nearest"):
    case("quantile", lambda x, m=method: ops.quantile(x, [0.2, 0.7], (0, 2), m) ** 2, X)
    case("nanquantile", lambda x, m=method: ops.nanquantile(x + NAN, 0.3, 1, m) ** 2, X)
case("percentile", lambda x: ops.percentile(x, 30.0, 1, keepdims=True), X)
case("nanpercentile", lambda x: ops.nanpercentile(x + NAN, [30.0, 60.0]), X)
case("top_k", lambda x: ops.top_k(x, 3)[0] ** 2, X)
case("bincount", lambda w: ops.bincount(np.array([0, 1, 1, 3]), weights=w) ** 2, X[0, :, 0])
case("unique", lambda x: ops.unique(x) ** 2, X)

# -------------------------------------------------------------------- shape

case("reshape", lambda x: ops.reshape(x, (4, -1)) ** 2, X)
case("transpose", lambda x: ops.transpose(x, (2, 0, 1)) ** 2, X)
case("transpose", lambda x: x.T**2, X)
case("swapaxes", lambda x: ops.swapaxes(x, 0, -1) ** 2, X)
case("moveaxis", lambda x: ops.moveaxis(x, (0, 1), (-1, 0)) ** 2, X)
case("squeeze", lambda x: ops.squeeze(x, 1) ** 2, COLUMN)
case("expand_dims", lambda x: ops.expand_dims(x, (0, -1)) ** 2, M)
case("broadcast_to", lambda x: ops.broadcast_to(x, (2, 3, 4)) ** 2, COLUMN)
case("flip", lambda x: ops.flip(x, (0, 2)) ** 2, X)
case("fliplr", lambda x: ops.fliplr(x) ** 2, X)
case("flipud", lambda x: ops.flipud(x) ** 2, X)
case("roll", lambda x: ops.roll(x, (1, 2), (0, 1)) ** 2, X)
case("roll", lambda x: ops.roll(x, 3) ** 2, X)
case("rot90", lambda x: ops.rot90(x, 1, (1, 2)) ** 2, X)
case("concatenate", lambda x, y: ops.concatenate([x, y], 1) ** 2, X, X[:, :1])
case("concatenate", lambda x, y: ops.concatenate([x, y], None) ** 2, X, V)
case("append", lambda x, y: ops.append(x, y, 0) ** 2, M, M)
case("stack", lambda x, y: ops.stack([x, y, x], -1) ** 2, M, M)
for name in ["hstack", "vstack", "dstack", "column_stack"]:
    case(name, lambda x, y, f=getattr(ops, name): f([x, y]) ** 2, V, V)
case("split", lambda x: [p**2 * i for i, p in enumerate(ops.split(x, [1, 3], 1))], X)
case("array_split", lambda x: [p**2 * i for i, p in enumerate(ops.array_split(x, 3, 1))], X)
case("hsplit", lambda x: [p**2 for p in ops.hsplit(x, 2)], X)
case("vsplit", lambda x: [p**2 for p in ops.vsplit(x, 3)], X)
case("dsplit", lambda x: [p**2 for p in ops.dsplit(x, 5)], X)
case("unstack", lambda x: [p**2 * i for i, p in enumerate(ops.unstack(x, axis=1))], X)
case("repeat", lambda x: ops.repeat(x, 3, 1) ** 2, X)
case("repeat", lambda x: ops.repeat(x, [1, 0, 2], 0) ** 2, X)
case("tile", lambda x: ops.tile(x, (2, 1, 2, 1)) ** 2, X)
for mode in ("constant", "reflect", "symmetric", "edge", "wrap"):
    case("pad", lambda x, m=mode: ops.pad(x, ((1, 2), (0, 1), (2, 0)), m) ** 2, X)
case("meshgrid", lambda x, y: ops.meshgrid(x * x, y, indexing="ij"), V, P)
case("diagonal", lambda x: ops.diagonal(x, 1, 0, 2) ** 2, X)
case("diag", lambda x: ops.diag(x, -1) ** 2, V)
case("diag", lambda x: ops.diag(x, 1) ** 2, M)
case("diagflat", lambda x: ops.diagflat(x) ** 2, M)
case("trace", lambda x: ops.trace(x, -1) ** 2, X)
case("tril", lambda x: ops.tril(x, -1) ** 2, X)
case("triu", lambda x: ops.triu(x, 1) ** 2, X)
case("rearrange", lambda x: ops.rearrange(x, "a (b c) ... -> c (... a) b", b=2) ** 2, X)

# -------------------------------------------------------------------- indexing

KEYS: list[Any] = [
    1,
    slice(None, None, -2),
    (..., 2),
    (None, slice(1, 3), None, 0),
    (np.array([0, 0, 2]), slice(None), slice(1, 3)),
    (slice(None), [0, 0, 2]),
    (np.array([0, 2]), slice(None), np.array([1, 1])),
    (..., None, np.array([[1, 1], [0, 2]])),
    X > 0,
    (slice(None), np.array([True, False, True, True])),
    (np.array(1), -1),
]
for key in KEYS:
    case("get_item", lambda x, k=key: x[k] ** 2, X)
case("take", lambda x: ops.take(x, np.array([[0, -1], [2, 0]]), 1) ** 2, X)
case("take", lambda x: ops.take(x, np.array([[0, -1], [2, 0]])) ** 2, X)
case("take_along_axis", lambda x: ops.take_along_axis(x, np.argsort(X, 1)[:, :2], 1) ** 2, X)
case("take_along_axis", lambda x: ops.take_along_axis(x, np.array([3, 3])) ** 2, X)
INDEX = np.array([[0, 1], [2, 0], [0, 1]])
case("scatter", lambda v: ops.scatter(INDEX, v, (3, 2)) ** 2, V)
for how in (None, "add", "max", "min", "mul"):
    case("scatter_update", lambda x, u, h=how: ops.scatter_update(x, INDEX, u, h) ** 2, M, V)
case("slice", lambda x: ops.slice(x, (1, 0), (2, 2)) ** 2, M)
case("slice_update", lambda x, u: ops.slice_update(x, (1, 0), u) ** 2, M, M[:2, :2])
case("index_add", lambda x, u: ops.index_add(x, np.array([0, 0, 2]), u) ** 2, M, M[:3])
case("index_add", lambda x, u: ops.index_add(x, np.array([0, 0]), u, 1) ** 2, M, M[:, :2])
IDS = np.array([0, 2, -1, 0])
for name in ("segment_sum", "segment_prod"):
    case(name, lambda x, f=getattr(ops, name): f(x, IDS, 4) ** 2, M)
for name in ("segment_max", "segment_min"):
    case(name, lambda x, f=getattr(ops, name): f(x, np.abs(IDS) // 2) ** 2, M)

# -------------------------------------------------------------------- products and linear algebra

case("matmul", ops.matmul, X, X[0].T)
case("einsum", lambda x, y: ops.einsum("abc,cd->adb", x, y), X, X[0].T)
case("dot", ops.dot, X, X[0].T)
case("dot", ops.dot, V, V)
case("dot", ops.dot, X[0], X.transpose(0, 2, 1))
case("vdot", ops.vdot, M, M.T)
case("inner", ops.inner, X, X[0])
case("outer", ops.outer, V, M)
case("tensordot", lambda x, y: ops.tensordot(x, y, ([1, 2], [1, 0])), X, X[0].T)
case("tensordot", lambda x, y: ops.tensordot(x, y, 0), V, M)
case("kron", ops.kron, V, M)
case("cross", ops.cross, M, M[::-1] + 1)
case("cross", ops.cross, M[:, :2], M + 1)
case("matrix_power", lambda x: ops.matrix_power(x, 5), S)
case("matrix_power", lambda x: ops.matrix_power(x, -2), S)
case("diff", lambda x: ops.diff(x, 2, 1) ** 2, X)
case("trapezoid", lambda x: ops.trapezoid(x**2, axis=1), X)
case("trapezoid", lambda y, x: ops.trapezoid(y**2, x), M, V)
for mode in ("valid", "same", "full"):
    case("correlate", lambda x, y, m=mode: ops.correlate(x, y, m), X[0, 0], V)
    case("correlate", lambda x, y, m=mode: ops.correlate(x, y, m), V[:2], X[0, 0])
case("corrcoef", ops.corrcoef, M)
case("cdist", ops.cdist, X, X[:, :2] + 1)
case("psnr", lambda x, y: ops.psnr(x, y, 1.0), X, X * 0.9)
case("inv", ops.inv, S)
case("solve", ops.solve, S, S[:, :, :2])
case("solve", ops.solve, S[0], V)
for lower in (False, True):
    case(
        "solve_triangular",
        lambda a, b, low=lower: ops.solve_triangular(a, b, low),
        S + 3 * np.eye(3),
        S,
    )
    case("cholesky_inverse", lambda x, up=lower: ops.cholesky_inverse(x, up), S + 3 * np.eye(3))
    case("cholesky", symmetric(lambda x, up=lower: ops.cholesky(x, up)), SPD)
case("lstsq", ops.lstsq, M, M)
case("pinv", ops.pinv, M)
case("pinv", ops.pinv, M.T)
case("det", ops.det, S)
case("slogdet", lambda x: ops.slogdet(x)[1], S)
case("logdet", symmetric(ops.logdet), SPD)
case("qr", ops.qr, M)
case("eigh", symmetric(ops.eigh), SPD)
case("svd", lambda x: ops.svd(x, False), M)
case("svd", lambda x: ops.svd(x, False), M.T)
case("svd", lambda x: ops.svd(x, compute_uv=False), X)
for order in (None, 1, 2, 3, 2.5, np.inf, -np.inf):
    case("norm", lambda x, p=order: ops.norm(x, p, 1), X)
for order in (None, "fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf):
    case("norm", lambda x, p=order: ops.norm(x, p, (0, 2), keepdims=True), X)

# -------------------------------------------------------------------- creation, control flow

case("full", lambda x: ops.full((2, 3), x) ** 2, np.array(2.0))
case("linspace", lambda x, y: ops.linspace(x, y, 4) ** 2, V, P)
case("logspace", lambda x, y: ops.logspace(x, y, 4, base=2), V, P)
case("vander", ops.vander, V)
case("map", lambda x: ops.map(lambda t: t * t, x), M)
case("vectorized_map", lambda x: ops.vectorized_map(lambda t: t * t, x), M)
case("scan", lambda x: ops.scan(lambda c, t: (c * t, c + t), x[0], x, reverse=True), M)
case("associative_scan", lambda x: ops.associative_scan(lambda a, b: a * b, x, axis=1), M)
case("while_loop", lambda x: ops.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a * x), (0, x)), V)  # fmt: skip  # noqa: E501
case("fori_loop", lambda x: ops.fori_loop(0, 3, lambda i, a: a * x + i, x), V)
case("cond", lambda x: ops.cond(x.data[0] < 0, lambda: x * x, lambda: x), V)
case("switch", lambda x: ops.switch(5, [lambda t: t, lambda t: t * t], x), V)
case("vectorize", lambda x, y: ops.vectorize(lambda a, b: a * b + 1)(x, y), M, V)

# -------------------------------------------------------------------- images and sequences

for method in ("nearest", "bilinear", "bicubic", "lanczos3", "lanczos5"):
    for form in ("channels_last", "channels_first"):
        case(
            "image.resize",
            lambda x, m=method, f=form: ops.image.resize(x, (3, 9), m, True, data_format=f) ** 2,
            IMAGES,
        )
case(
    "image.resize",
    lambda x: ops.image.resize(x, (4, 4), pad_to_aspect_ratio=True, fill_value=0.3) ** 2,
    IMAGES,
)
case("image.resize", lambda x: ops.image.resize(x, (4, 4), crop_to_aspect_ratio=True), IMAGES)
case("image.pad_images", lambda x: ops.image.pad_images(x, 1, 2, 3, 4) ** 2, IMAGES)
case("image.crop_images", lambda x: ops.image.crop_images(x, 1, 2, 1, 1) ** 2, IMAGES)
case("image.rgb_to_grayscale", lambda x: ops.image.rgb_to_grayscale(x) ** 2, IMAGES)
case("image.rgb_to_hsv", lambda x: ops.image.rgb_to_hsv(x) ** 2, IMAGES)
case("image.hsv_to_rgb", lambda x: ops.image.hsv_to_rgb(x) ** 2, IMAGES)
case("image.extract_patches", lambda x: ops.image.extract_patches(x, 3, 2, 1, "same") ** 2, IMAGES)
PLACES = np.array([[-1.3, 0.2, 3.6, 1.1], [0.4, 2.7, -0.6, 1.9]])
for mode in ("constant", "nearest", "wrap", "mirror", "reflect"):
    case(
        "image.affine_transform",
        lambda x, t, m=mode: ops.image.affine_transform(x, t, fill_mode=m) ** 2,
        IMAGES,
        TRANSFORM,
    )
    case(
        "image.map_coordinates",
        lambda x, c, m=mode: ops.image.map_coordinates(x, c, 1, m) ** 2,
        M,
        PLACES,
    )
for form in ("channels_last", "channels_first"):
    data = _rng.normal(size=(2, 4, 4, 4))
    case("depth_to_space", lambda x, f=form: ops.depth_to_space(x, 2, f) ** 2, data)
    case("space_to_depth", lambda x, f=form: ops.space_to_depth(x, 2, f) ** 2, data)
case("unfold", lambda x: ops.unfold(x, (2, 3), 1, (1, 0), 2) ** 2, IMAGES)
case("fold", lambda x: ops.fold(x, (4, 5), 2, 1, 1, (2, 1)) ** 2, _rng.normal(size=(2, 8, 18)))
for order in (1, 2, 3, np.inf):
    case("normalize", lambda x, p=order: ops.normalize(x, order=p), X)
LOGITS = _rng.normal(size=(3, 9, 5))
LABELS = np.array([[1, 2, 2, 4], [3, 3, 0, 0], [1, 0, 0, 0]])
case(
    "ctc_loss",
    lambda x: ops.ctc_loss(LABELS, x, np.array([4, 2, 1]), np.array([9, 6, 4])),
    LOGITS,
    flat=True,
)
case("random.dropout", lambda x: random.dropout(x, 0.4, seed=1) ** 2, X)
case("random.shuffle", lambda x: random.shuffle(x, 1, seed=1) ** 2, X)
