"""Differentiable functions under the names of keras.ops. This is the whole public list.

`ops.shape` and `ops.norm` are functions although modules here have these names: their imports stand
below those of the modules.
"""

# fmt: off
import sys as _sys

from picodl.ops.activation import (
    elu, hard_sigmoid, leaky_relu, log_softmax, mish, relu, relu6, selu, sigmoid_op as
    sigmoid, silu, softmax, softplus_op as softplus, softsign, swish,
)
from picodl.ops.activation_gelu import gelu
from picodl.ops.activation_more import (
    celu, glu, hard_shrink, hard_silu, hard_swish, hard_tanh, log_sigmoid, soft_shrink, sparse_plus,
    sparse_sigmoid, sparsemax, squareplus, tanh_shrink, threshold,
)

from picodl.ops.attention import dot_product_attention
from picodl.ops.compare import (
    allclose, bitwise_and, bitwise_invert, bitwise_left_shift, bitwise_not, bitwise_or,
    bitwise_right_shift, bitwise_xor, equal, gcd, greater, greater_equal, invert, isclose, isfinite,
    isin, isinf, isnan, isneginf, isposinf, isreal, lcm, left_shift, less, less_equal, logical_and,
    logical_not, logical_or, logical_xor, not_equal, right_shift,
)
from picodl.ops.control import (
    associative_scan, cond, fori_loop, map, scan, switch, vectorize, vectorized_map, while_loop,
)
from picodl.ops.conv import conv
from picodl.ops.conv_transpose import conv_transpose
from picodl.ops.creation import (
    arange, array, bartlett, blackman, copy, empty, empty_like, eye, full, full_like, geomspace,
    hamming, hanning, identity, kaiser, linspace, logspace, ones, ones_like, tri, vander, zeros,
    zeros_like,
)
from picodl.ops.ctc import ctc_decode, ctc_loss
from picodl.ops.diagonals import diag, diagflat, diagonal, trace, tril, triu
from picodl.ops.depthwise import depthwise_conv, separable_conv
from picodl.ops.elementwise import (
    abs, absolute, add, ceil, clip, divide, divide_no_nan, fabs, floor, floor_divide, fmod, maximum,
    minimum, mod, multiply, nan_to_num, negative, nextafter, power, remainder, round, sign, signbit,
    square, subtract, true_divide, trunc,
)
from picodl.ops.embedding import embedding
from picodl.ops.functions import (
    arccos, arccosh, arcsin, arcsinh, arctan, arctanh, cbrt, cos, cosh, deg2rad, degrees, exp, exp2,
    expm1, log, log10, log1p, log2, rad2deg, radians, reciprocal, rsqrt, sin, sinh, sqrt, tan, tanh,
)
from picodl.ops import image
from picodl.ops.indexing import (
    get_item, index_add, multi_hot, nonzero, one_hot, scatter, scatter_update, select, slice,
    slice_update, take, take_along_axis, unravel_index, where,
)
from picodl.ops.linalg import (
    cholesky, cholesky_inverse, det, eig, eigh, inv, logdet, lstsq, lu_factor, matrix_rank,
    pinv, qr, slogdet, solve, solve_triangular, svd,
)
from picodl.ops.group_norm import group_normalization
from picodl.ops.linear import dense, einsum, matmul
from picodl.ops import noise
from picodl.ops.nan import (
    nanargmax, nanargmin, nancumprod, nancumsum, nanmax, nanmean, nanmedian, nanmin, nanpercentile,
    nanprod, nanquantile, nanstd, nansum, nanvar,
)
from picodl.ops.noise import dropout
from picodl.ops.norm import (
    batch_normalization, layer_normalization, normalize_batch, rms_normalization, scale_and_shift,
)
from picodl.ops.pool import adaptive_average_pool, adaptive_max_pool, average_pool, max_pool
from picodl.ops.patches import (
    depth_to_space, fold, normalize, rearrange, space_to_depth, unfold,
)
from picodl.ops.products import (
    cdist, correlate, corrcoef, cross, diff, dot, inner, kron, matrix_power, outer, psnr, tensordot,
    trapezoid, vdot,
)
from picodl.ops.loss import (
    binary_crossentropy, categorical_crossentropy, sparse_categorical_crossentropy,
)
from picodl.ops.recurrent import gru, lstm, simple_rnn
from picodl.ops.reduce import (
    all, amax, amin, any, argmax, argmin, average, count_nonzero, cumprod, cumsum, logsumexp, max,
    mean, min, moments, prod, ptp, std, sum, var,
)
from picodl.ops.segment import segment_max, segment_min, segment_prod, segment_sum
from picodl.ops.shape import (
    append, array_split, broadcast_to, column_stack, concatenate, dsplit, dstack, expand_dims, flip,
    fliplr, flipud, hsplit, hstack, meshgrid, moveaxis, pad, ravel, repeat, reshape, roll, rot90,
    split, squeeze, stack, swapaxes, tile, transpose, unstack, vsplit, vstack,
)
from picodl.ops.sorting import (
    argpartition, argsort, bincount, digitize, histogram, in_top_k, median, percentile, quantile,
    searchsorted, sort, top_k, unique,
)
from picodl.ops.special import (
    arctan2, erf, erfc, erfinv, fmax, fmin, gammainc, heaviside, hypot, i0, ldexp, logaddexp,
    logaddexp2, sinc,
)

from picodl.ops.core import (  # after the module named shape
    cast, convert_to_numpy, convert_to_tensor, custom_gradient, dtype, is_tensor, ndim,
    saturate_cast, shape, size, stop_gradient, view,
)
from picodl.ops.linalg import norm  # after the module named norm


def __getattr__(name: str) -> object:
    if name in ("nn", "numpy"):  # where Keras has the same functions a second time
        return _sys.modules[__name__]
    raise AttributeError(f"module 'picodl.ops' has no attribute {name!r}")
