"""Activations by name, with Keras's signatures: functions that layers can fuse.

A function with a `pair` attribute (see `picodl.ops.activation`) is fused into the layer that uses
it; any other callable is applied to the layer's result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from picodl import naming, ops
from picodl.ops import activation as kernels
from picodl.ops.activation_gelu import gelu_pair
from picodl.saving import registry, serialization

# -------------------------------------------------------------------- fused when used by name


def _with_pair(pair: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        function.pair = pair  # type: ignore[attr-defined]
        return function

    return mark


@_with_pair(kernels.linear_pair)
def linear(x: Any) -> Any:
    """x itself."""
    return x


@_with_pair(kernels.relu_pair)
def relu(
    x: Any, negative_slope: float = 0.0, max_value: float | None = None, threshold: float = 0.0
) -> Any:
    """max(x, 0); in general max_value where x >= max_value, x where x > threshold, else
    negative_slope * (x - threshold).

    >>> relu([-1.0, 2.0])
    array([0., 2.], dtype=float32)
    """
    if negative_slope == 0 and max_value is None and threshold == 0:
        return ops.relu(x)
    if negative_slope == 0 and max_value == 6 and threshold == 0:
        return ops.relu6(x)
    if max_value is None and threshold == 0:
        return ops.leaky_relu(x, negative_slope)
    if not hasattr(x, "dtype"):
        x = ops.convert_to_numpy(x)
    low = ops.less_equal(x, threshold)  # NaN is not low, and stays
    y = ops.where(low, 0.0, x) if threshold else ops.relu(x)
    if max_value is not None:
        y = ops.minimum(y, max_value)
    return y - negative_slope * ops.relu(threshold - x) if negative_slope else y


@_with_pair(gelu_pair)
def gelu(x: Any, approximate: bool = False) -> Any:
    """x times the normal distribution function of x; approximate=True uses tanh."""
    return ops.gelu(x, approximate)


@_with_pair(kernels.leaky_relu_pair(0.2))
def leaky_relu(x: Any, negative_slope: float = 0.2) -> Any:
    """x for x > 0, else negative_slope * x."""
    return ops.leaky_relu(x, negative_slope)


@_with_pair(kernels.elu_pair(1.0))
def elu(x: Any, alpha: float = 1.0) -> Any:
    """x for x > 0, else alpha * (exp(x) - 1)."""
    return ops.elu(x, alpha)


@_with_pair(kernels.softmax_pair())
def softmax(x: Any, axis: Any = -1) -> Any:
    """exp(x) / sum(exp(x)) over the axis: positive numbers that sum to 1."""
    return ops.softmax(x, axis)


@_with_pair(kernels.log_softmax_pair())
def log_softmax(x: Any, axis: int = -1) -> Any:
    """log(softmax(x)), without overflow."""
    return ops.log_softmax(x, axis)


def _named(name: str, op: Callable[..., Any]) -> Callable[..., Any]:
    """An op under the name that configs use, with its pair."""

    def function(x: Any) -> Any:
        return op(x)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = op.__doc__
    pair = getattr(op, "pair", None)
    if pair is not None:
        function.pair = pair  # type: ignore[attr-defined]
    return function


relu6 = _named("relu6", ops.relu6)
sigmoid = _named("sigmoid", ops.sigmoid)
tanh = _with_pair(kernels.tanh_pair)(_named("tanh", ops.tanh))
softplus = _named("softplus", ops.softplus)
softsign = _named("softsign", ops.softsign)
silu = _named("silu", ops.silu)
selu = _named("selu", ops.selu)
mish = _named("mish", ops.mish)
hard_sigmoid = _named("hard_sigmoid", ops.hard_sigmoid)
hard_silu = _named("hard_silu", ops.hard_silu)
exponential = _with_pair(kernels.exponential_pair)(_named("exponential", ops.exp))
hard_tanh = _named("hard_tanh", ops.hard_tanh)
tanh_shrink = _named("tanh_shrink", ops.tanh_shrink)
log_sigmoid = _named("log_sigmoid", ops.log_sigmoid)
sparse_plus = _named("sparse_plus", ops.sparse_plus)
sparse_sigmoid = _named("sparse_sigmoid", ops.sparse_sigmoid)


# -------------------------------------------------------------------- with arguments of their own


def celu(x: Any, alpha: float = 1.0) -> Any:
    """max(x, 0) + min(alpha * (exp(x / alpha) - 1), 0)."""
    return ops.celu(x, alpha)


def glu(x: Any, axis: int = -1) -> Any:
    """a * sigmoid(b) for the halves a, b of x along the axis."""
    return ops.glu(x, axis)


def hard_shrink(x: Any, threshold: float = 0.5) -> Any:
    """x where |x| > threshold, else 0."""
    return ops.hard_shrink(x, threshold)


def soft_shrink(x: Any, threshold: float = 0.5) -> Any:
    """x moved towards 0 by the threshold, 0 inside it."""
    return ops.soft_shrink(x, threshold)


def threshold(x: Any, threshold: float, default_value: float) -> Any:
    """x where x > threshold, else default_value."""
    return ops.threshold(x, threshold, default_value)


def squareplus(x: Any, b: float = 4) -> Any:
    """(x + sqrt(x^2 + b)) / 2."""
    return ops.squareplus(x, b)


def sparsemax(x: Any, axis: int = -1) -> Any:
    """The nearest point of the probability simplex: sums to 1, with exact zeros."""
    return ops.sparsemax(x, axis)


_ALL: list[Any] = [
    celu, elu, exponential, gelu, glu, hard_shrink, hard_sigmoid, hard_silu, hard_tanh, leaky_relu,
    linear, log_sigmoid, log_softmax, mish, relu, relu6, selu, sigmoid, silu, soft_shrink, softmax,
    softplus, softsign, sparse_plus, sparse_sigmoid, sparsemax, squareplus, tanh, tanh_shrink,
    threshold,
]  # fmt: skip
_BY_NAME: dict[str, Callable[..., Any]] = {str(f.__name__): f for f in _ALL}
_BY_NAME.update(swish=silu, hard_swish=hard_silu)
swish, hard_swish = silu, hard_silu
registry.add_kind("activation", "keras.activations", _BY_NAME)


def get(identifier: Any) -> Callable[..., Any]:
    """The activation for a name, a callable, a serialised config, or None (linear).

    Raises:
        ValueError: for an unknown name; the message suggests the nearest one.
        TypeError: for anything else.

    >>> get("relu") is relu
    True
    """
    if identifier is None:
        return linear
    if isinstance(identifier, str):
        if identifier not in _BY_NAME:
            custom = registry.find_custom(identifier)
            if custom is not None:
                return custom
            raise ValueError(
                f"Unknown activation {identifier!r}.{naming.suggest(identifier, _BY_NAME)} "
                f"Known ones: {', '.join(sorted(_BY_NAME))}."
            )
        return _BY_NAME[identifier]
    if isinstance(identifier, dict):
        return deserialize(identifier)
    if callable(identifier):
        return identifier
    raise TypeError(
        "An activation is a name, a callable or None; received "
        f"{type(identifier).__name__} {identifier!r}."
    )


def serialize(activation: Any) -> Any:
    """The plain name of a built-in activation; a config for registered functions and layers."""
    name = getattr(activation, "__name__", "")
    if name and _BY_NAME.get(name) is activation:
        return name
    return serialization.serialize_keras_object(activation)


def deserialize(config: Any, custom_objects: dict[str, Any] | None = None) -> Callable[..., Any]:
    """The activation that `serialize` described."""
    if isinstance(config, str) and config in _BY_NAME:
        return _BY_NAME[config]
    return get(serialization.deserialize_keras_object(config, custom_objects, kind="activation"))
