"""Activations: a pair of array functions each, shared by the op and by the fused layers."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from picodl import compiled
from picodl.ops.core import op
from picodl.parallel import PART, map_blocks, parts_of
from picodl.tensor import Tensor, record
from picodl.typing import Array


class Pair(NamedTuple):
    """An activation on plain arrays.

    Attributes:
        forward: z -> (y, saved); it may overwrite z, so whoever calls it owns z.
        backward: (g, saved) -> dz; g is read only.
        composed: the same out of ops that can be differentiated twice.
    """

    forward: Callable[[Array], tuple[Array, Any]]
    backward: Callable[[Array, Any], Array]
    composed: Callable[[Any], Any]


@functools.lru_cache(maxsize=64)
def works_in_place(pair: Pair) -> bool:
    """Whether an activation leaves its values where z was."""
    z = np.zeros((1, 1), np.float32)
    return pair.forward(z)[0] is z


def apply_pair(x: Tensor, pair: Pair, name: str, elementwise: bool = True) -> Tensor:
    """An activation as an op of its own; a large elementwise one is worked out on threads."""
    a = x.data
    if a.ndim == 0:  # numpy's functions make plain numbers of it, which cannot be written into
        return apply_pair(x.reshape(1), pair, name, elementwise).reshape(())
    if a.size > PART and elementwise:
        y, run_back = _in_parts(np.ascontiguousarray(a), pair)
    else:
        y, saved = pair.forward(a.copy())

        def run_back(g: Array) -> Array:
            return pair.backward(g, saved)

    def backward(g: Any) -> Any:
        return (run_back(g),)

    backward.__qualname__ = name
    return record(y, (x,), backward, pair.composed)


def _in_parts(a: Array, pair: Pair) -> tuple[Array, Callable[[Array], Array]]:
    """The values of a large array, and the way back."""
    flat, y, in_place = a.reshape(-1), np.empty(a.size, a.dtype), works_in_place(pair)
    parts = parts_of(a.size, 1)
    work = a.size * 1e-3

    def forward(s: slice) -> Any:
        if not in_place:
            y[s], saved = pair.forward(flat[s].copy())
            return saved
        y[s] = flat[s]
        return pair.forward(y[s])[1]

    kept = map_blocks(forward, parts, work)

    def back(g: Array) -> Array:
        g = np.ascontiguousarray(g).reshape(-1)
        dx = np.empty(g.size, np.result_type(a, g))

        def run(place: int) -> None:
            dx[parts[place]] = pair.backward(g[parts[place]], kept[place])

        map_blocks(run, range(len(parts)), work)
        return dx.reshape(a.shape)

    return y.reshape(a.shape), back


def all_ops() -> Any:
    """The package of ops, which cannot be imported here before it is there."""
    from picodl import ops

    return ops


def _from_output(forward: Callable[..., Any], slope: Callable[[Array], Any], composed: Any) -> Pair:
    """A pair whose slope is a function of the output y."""

    def run(z: Array) -> tuple[Array, Array]:
        y = forward(z, out=z) if isinstance(forward, np.ufunc) else forward(z)
        return y, y

    return Pair(run, lambda g, y: g * slope(y), composed)


def constants(*numbers: float) -> list[Array]:
    """Numbers as 0-d float32 arrays: the fastest operands of hot loops (1.7 us against 2.6)."""
    return [np.array(n, np.float32) for n in numbers]


def fastest_power() -> tuple[np.ufunc, float]:
    """exp or exp2, whichever numpy computes faster here, and log(e) to its base.

    numpy has kernels of exp2 for AVX-512 only: there it takes half of the time of exp, else twice.
    """
    found = np.lib.introspect.opt_func_info(func_name="^exp2$", signature="float32")
    kernels = [kernel["current"] for kernel in found.get("exp2", {}).values()]
    fast = any("X86_V4" in name or "AVX512" in name for name in kernels)
    return (np.exp2, math.log2(math.e)) if fast else (np.exp, 1.0)


_ZERO, _INFINITY = constants(0, math.inf)


# -------------------------------------------------------------------- the relu family


def positive(z: Array, out: Array | None = None) -> Array:
    """max(z, 0) on an array. numpy's clip runs 2 to 5 times faster than its maximum does with a
    number; it costs 0.3 us more to call."""
    if z.size < 2048:
        return np.maximum(z, _ZERO if z.dtype == np.float32 else 0, out=out)
    if z.dtype == np.float32:
        return z.clip(_ZERO, _INFINITY, out=out)
    return np.maximum(z, 0, out=out) if z.dtype.kind in "iu" else z.clip(0, np.inf, out=out)


def _relu_forward(z: Array) -> tuple[Array, Array]:
    y = positive(z, z)
    return y, y


def _relu_backward(g: Array, y: Array) -> Array:
    if compiled.kernels is not None:
        d = np.empty_like(g)
        if compiled.run("relu_backward", g, y, d, g.size):
            return d
    return g * (y > 0)


linear_pair = Pair(lambda z: (z, None), lambda g, saved: g, lambda x: x)
relu_pair = Pair(_relu_forward, _relu_backward, lambda x: x * (x.data > 0))
relu6_pair = Pair(
    lambda z: (z.clip(0, 6, out=z),) * 2,
    lambda g, y: g * ((y > 0) & (y < 6)),
    lambda x: all_ops().clip(x, 0, 6),
)


@functools.cache
def leaky_relu_pair(slope: float) -> Pair:
    """max(z, 0) + slope * min(z, 0)."""

    def forward(z: Array) -> tuple[Array, Array]:
        positive = z > 0
        y = np.multiply(z, np.where(positive, 1, slope).astype(z.dtype), out=z)
        return y, positive

    def backward(g: Array, positive: Array) -> Array:
        return g * np.where(positive, 1, slope).astype(g.dtype)

    return Pair(forward, backward, lambda x: x * np.where(x.data > 0, 1, slope).astype(x.dtype))


@functools.cache
def elu_pair(alpha: float, scale: float = 1.0) -> Pair:
    """scale * z for z > 0, else scale * alpha * (exp(z) - 1)."""

    def forward(z: Array) -> tuple[Array, Array]:
        y = np.expm1(np.minimum(z, 0))
        y *= alpha
        y += positive(z, z)
        if scale != 1:
            y *= scale
        return y, y

    def backward(g: Array, y: Array) -> Array:
        slope = np.minimum(y, 0)
        slope += scale * alpha
        np.copyto(slope, scale, where=y > 0)
        return np.multiply(g, slope, out=slope)

    def composed(x: Any) -> Any:
        ops = all_ops()
        low = alpha * (ops.exp(ops.minimum(x, 0)) - 1)
        return scale * ops.where(x.data > 0, x, low)

    return Pair(forward, backward, composed)


SELU_SCALE, SELU_ALPHA = 1.0507009873554805, 1.6732632423543772
selu_pair = elu_pair(SELU_ALPHA, SELU_SCALE)


# -------------------------------------------------------------------- sigmoids


def sigmoid(z: Array, out: Array | None = None) -> Array:
    """1 / (1 + exp(-z)) on an array; exp only sees numbers below 0, so that nothing overflows."""
    negative = z < 0
    e = np.abs(z)
    np.negative(e, out=e)
    np.exp(e, out=e)
    y = np.add(e, 1, out=out)
    np.reciprocal(y, out=y)
    return np.multiply(y, e, out=y, where=negative)


def softplus(z: Array) -> Array:
    """log(1 + exp(z)) on an array, without overflow."""
    y = np.abs(z)
    np.negative(y, out=y)
    np.exp(y, out=y)
    np.log1p(y, out=y)
    y += positive(z)
    return y


def _silu_forward(z: Array) -> tuple[Array, Any]:
    s = sigmoid(z)
    y = np.multiply(z, s, out=z)
    return y, (s, y)


def _silu_backward(g: Array, saved: Any) -> Array:
    s, y = saved
    slope = 1 - s
    slope *= y
    slope += s
    return np.multiply(g, slope, out=slope)


def _mish_forward(z: Array) -> tuple[Array, Any]:
    t = np.tanh(softplus(z))
    return z * t, (z, t)


def _mish_backward(g: Array, saved: Any) -> Array:
    z, t = saved
    return g * (t + z * (1 - t * t) * sigmoid(z))


def _hard_sigmoid_forward(z: Array) -> tuple[Array, Array]:
    z /= 6
    z += 0.5
    y = z.clip(0, 1, out=z)
    return y, y


def _softsign_forward(z: Array) -> tuple[Array, Array]:
    size = np.abs(z)
    size += 1
    return np.divide(z, size, out=z), size


sigmoid_pair = _from_output(
    lambda z: sigmoid(z, z), lambda y: y * (1 - y), lambda x: 0.5 + 0.5 * all_ops().tanh(0.5 * x)
)
tanh_pair = _from_output(np.tanh, lambda y: 1 - y * y, lambda x: all_ops().tanh(x))
exponential_pair = _from_output(np.exp, lambda y: y, lambda x: all_ops().exp(x))
softplus_pair = _from_output(
    softplus,
    lambda y: -np.expm1(-y),
    lambda x: all_ops().log(1 + all_ops().exp(-all_ops().abs(x))) + x * (x.data > 0),
)
silu_pair = Pair(_silu_forward, _silu_backward, lambda x: x * sigmoid_pair.composed(x))
mish_pair = Pair(
    _mish_forward, _mish_backward, lambda x: x * all_ops().tanh(softplus_pair.composed(x))
)
hard_sigmoid_pair = Pair(
    _hard_sigmoid_forward,
    lambda g, y: g * ((y > 0) & (y < 1)) * (1 / 6),
    lambda x: all_ops().clip(x / 6 + 0.5, 0, 1),
)
softsign_pair = Pair(
    _softsign_forward, lambda g, size: g / (size * size), lambda x: x / (1 + all_ops().abs(x))
)


# -------------------------------------------------------------------- softmax


@functools.cache
def softmax_pair(axis: int | tuple[int, ...] = -1) -> Pair:
    """exp(z) / sum(exp(z)) over the axis."""

    def forward(z: Array) -> tuple[Array, Array]:
        z -= z.max(axis=axis, keepdims=True)
        y = np.exp(z, out=z)
        y /= np.add.reduce(y, axis=axis, keepdims=True)
        return y, y

    def backward(g: Array, y: Array) -> Array:
        dz = g * y
        dz -= y * np.add.reduce(dz, axis=axis, keepdims=True)
        return dz

    def composed(x: Any) -> Any:
        e = all_ops().exp(x - x.data.max(axis=axis, keepdims=True))
        return e / all_ops().sum(e, axis, True)

    return Pair(forward, backward, composed)


@functools.cache
def log_softmax_pair(axis: int = -1) -> Pair:
    """z - log(sum(exp(z))) over the axis, right for numbers of any size."""

    def forward(z: Array) -> tuple[Array, Array]:
        z -= z.max(axis=axis, keepdims=True)
        z -= np.log(np.add.reduce(np.exp(z), axis=axis, keepdims=True))
        return z, z

    def backward(g: Array, y: Array) -> Array:
        dz = np.exp(y)
        dz *= np.add.reduce(g, axis=axis, keepdims=True)
        return np.subtract(g, dz, out=dz)

    return Pair(forward, backward, lambda x: x - all_ops().logsumexp(x, axis, True))


# -------------------------------------------------------------------- the ops


def pair_op(
    name: str, pair: Pair, does: str, formula: str, kind: str = "Tensor"
) -> Callable[..., Any]:
    """A pair as a public op, with a docstring of what it does and the formula of its slope; with
    kind "Numeric" integers stay integers, and bools become some."""

    def function(x: Tensor) -> Tensor:
        if x.data.dtype.kind == "b":
            x = Tensor(x.data.astype(np.int32))
        return apply_pair(x, pair, name)

    function.__name__ = function.__qualname__ = name
    function.__annotations__["x"] = kind
    function.__doc__ = f"{does}, elementwise.\n\n    Gradient: dx = g * {formula}.\n    "
    ready = op(function)
    ready.pair = pair  # type: ignore[attr-defined]
    return ready


relu = pair_op("relu", relu_pair, "max(x, 0)", "(x > 0)", "Numeric")
relu6 = pair_op("relu6", relu6_pair, "min(max(x, 0), 6)", "(0 < x < 6)")
sigmoid_op = pair_op("sigmoid", sigmoid_pair, "1 / (1 + exp(-x))", "y (1 - y)")
softplus_op = pair_op("softplus", softplus_pair, "log(1 + exp(x))", "(1 - exp(-y))")
softsign = pair_op("softsign", softsign_pair, "x / (1 + |x|)", "1 / (1 + |x|)^2")
silu = pair_op("silu", silu_pair, "x * sigmoid(x)", "(s + y (1 - s)), s = sigmoid(x)")
selu = pair_op("selu", selu_pair, "Self-normalising elu", "scale if x > 0, else y + scale alpha")
mish = pair_op("mish", mish_pair, "x * tanh(softplus(x))", "(t + x (1 - t^2) sigmoid(x))")
hard_sigmoid = pair_op("hard_sigmoid", hard_sigmoid_pair, "clip(x / 6 + 1/2, 0, 1)", "1/6 inside")
swish = silu


@op
def leaky_relu(x: Tensor, negative_slope: float = 0.2) -> Tensor:
    """x for x > 0, else negative_slope * x.

    Gradient: dx = g * (1 if x > 0 else negative_slope).
    """
    return apply_pair(x, leaky_relu_pair(float(negative_slope)), "leaky_relu")


@op
def elu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """x for x > 0, else alpha * (exp(x) - 1).

    Gradient: dx = g * (1 if x > 0 else y + alpha).
    """
    return apply_pair(x, elu_pair(float(alpha)), "elu")


@op
def softmax(x: Tensor, axis: Any = -1) -> Tensor:
    """exp(x) / sum(exp(x)) over the axis (or axes), without overflow.

    Gradient: dx = y * (g - sum(g * y)).
    """
    pair = softmax_pair(tuple(axis) if isinstance(axis, (list, tuple)) else axis)
    return apply_pair(x, pair, "softmax", elementwise=False)


@op
def log_softmax(x: Tensor, axis: int = -1) -> Tensor:
    """x - log(sum(exp(x))) over the axis, right for numbers of any size.

    Gradient: dx = g - exp(y) * sum(g).
    """
    return apply_pair(x, log_softmax_pair(axis), "log_softmax", elementwise=False)
