"""Activations that are used rarely: shrinkage, sparse and piecewise forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from picodl.ops.activation import hard_sigmoid_pair, sigmoid, softplus, softplus_op
from picodl.ops.core import op
from picodl.tensor import Tensor, record, value
from picodl.typing import Array


def _piecewise(
    name: str,
    forward: Callable[[Array], Array],
    slope: Callable[[Array], Array],
    does: str,
    kind: str = "Tensor",
) -> Callable[..., Any]:
    """An op whose slope is constant or linear between its kinks."""

    def function(x: Tensor) -> Tensor:
        a = x.data

        def backward(g: Any) -> Any:
            return (g * slope(value(x, g)).astype(a.dtype),)

        backward.__qualname__ = name
        return record(forward(a), (x,), backward)

    function.__name__ = function.__qualname__ = name
    function.__annotations__["x"] = kind
    function.__doc__ = f"{does}, elementwise.\n\n    Gradient: dx = g * the slope of that.\n    "
    return op(function)


hard_tanh = _piecewise(
    "hard_tanh",
    lambda a: np.clip(a, 0 if a.dtype.kind == "u" else -1, 1),
    lambda x: (x > -1) & (x < 1),
    "x between -1 and 1, the bound outside",
    "Numeric",
)
sparse_plus = _piecewise(
    "sparse_plus",
    lambda a: np.where(a <= -1, 0, np.where(a < 1, 0.25 * np.square(a + 1), a)).astype(a.dtype),
    lambda x: _ramp(x),
    "0 below -1, (x + 1)^2 / 4 up to 1, x above",
)
sparse_sigmoid = _piecewise(
    "sparse_sigmoid",
    lambda a: np.clip(0.5 * (a + 1), 0, 1),
    lambda x: 0.5 * ((x > -1) & (x < 1)),
    "(x + 1) / 2 between -1 and 1, else 0 or 1",
)


def _ramp(x: Any) -> Any:
    """clip((x + 1) / 2, 0, 1), for arrays and Tensors."""
    inside = (x > -1) & (x < 1)
    return inside * (0.5 * (x + 1)) + 1.0 * (x >= 1)


@op
def hard_silu(x: Tensor) -> Tensor:
    """x * clip(x / 6 + 1/2, 0, 1), elementwise.

    Gradient: dx = g * (h + x / 6 inside (-3, 3)), h the clipped factor.
    """
    a = x.data
    h, _ = hard_sigmoid_pair.forward(a.copy())
    inside = (h > 0) & (h < 1)

    def backward(g: Any) -> Any:
        if isinstance(g, Tensor):
            return (g * (inside * (x / 3 + 0.5) + 1.0 * (h >= 1)),)
        return (g * (h + a * inside * (1 / 6)),)

    return record(a * h, (x,), backward)


hard_swish = hard_silu


@op
def log_sigmoid(x: Tensor) -> Tensor:
    """log(sigmoid(x)) = -softplus(-x), elementwise, without overflow.

    Gradient: dx = g * sigmoid(-x).
    """
    a = x.data
    if a.ndim == 0:  # see apply_pair
        return -softplus_op(-x)

    def backward(g: Any) -> Any:
        if isinstance(g, Tensor):
            from picodl import ops

            return (g * ops.sigmoid(-x),)
        return (g * sigmoid(-a),)

    return record(-softplus(-a), (x,), backward)


@op
def tanh_shrink(x: Tensor) -> Tensor:
    """x - tanh(x), elementwise.

    Gradient: dx = g * tanh(x)^2.
    """

    def backward(g: Any) -> Any:
        return (g * np.square(np.tanh(value(x, g))),)

    return record(x.data - np.tanh(x.data), (x,), backward)


@op
def hard_shrink(x: Tensor, threshold: float = 0.5) -> Tensor:
    """x where |x| > threshold, else 0.

    Gradient: dx = g where |x| > threshold, else 0.
    """
    kept = np.abs(x.data) > threshold

    def backward(g: Any) -> Any:
        return (g * kept,)

    return record(x.data * kept, (x,), backward)


@op
def soft_shrink(x: Tensor, threshold: float = 0.5) -> Tensor:
    """x moved towards 0 by the threshold; 0 inside it.

    Gradient: dx = g where |x| > threshold, else 0.
    """
    a = x.data
    kept = np.abs(a) > threshold

    def backward(g: Any) -> Any:
        return (g * kept,)

    return record((a - np.sign(a) * a.dtype.type(threshold)) * kept, (x,), backward)


@op
def threshold(x: Tensor, threshold: float, default_value: float) -> Tensor:
    """x where x > threshold, else default_value.

    Gradient: dx = g where x > threshold, else 0.
    """
    a = x.data
    kept = a > threshold

    def backward(g: Any) -> Any:
        return (g * kept,)

    return record(np.where(kept, a, a.dtype.type(default_value)), (x,), backward)


@op
def squareplus(x: Tensor, b: float = 4) -> Tensor:
    """(x + sqrt(x^2 + b)) / 2, elementwise.

    Gradient: dx = g * (1 + x / sqrt(x^2 + b)) / 2.
    """
    root = np.sqrt(np.square(x.data) + b)

    def backward(g: Any) -> Any:
        a = value(x, g)
        r = np.sqrt(np.square(a) + b) if isinstance(g, Tensor) else root
        return (g * (0.5 + 0.5 * a / r),)

    return record(0.5 * (x.data + root), (x,), backward)


@op
def celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """max(x, 0) + min(alpha * (exp(x / alpha) - 1), 0), elementwise.

    Gradient: dx = g * (1 if x >= 0 else exp(x / alpha)).
    """
    a = x.data

    def backward(g: Any) -> Any:
        return (g * np.exp(np.minimum(value(x, g), 0) / alpha),)

    return record(np.maximum(a, 0) + alpha * np.expm1(np.minimum(a, 0) / alpha), (x,), backward)


@op
def glu(x: Tensor, axis: int = -1) -> Tensor:
    """a * sigmoid(b) for the halves a, b of x along the axis.

    Gradient: da = g * sigmoid(b), db = g * a * s * (1 - s).

    Raises:
        ValueError: if the axis has an odd size.
    """
    if x.data.shape[axis] % 2:
        raise ValueError(f"glu halves axis {axis}, which has the odd size {x.data.shape[axis]}.")
    a, b = np.split(x.data, 2, axis)
    s = sigmoid(b)

    def backward(g: Any) -> Any:
        return (np.concatenate((g * s, g * a * s * (1 - s)), axis),)

    def composed(x: Any) -> Any:
        from picodl import ops

        a, b = ops.split(x, 2, axis)
        return a * ops.sigmoid(b)

    return record(a * s, (x,), backward, composed)


@op
def sparsemax(x: Tensor, axis: int = -1) -> Tensor:
    """The nearest point of the probability simplex: it sums to 1 and has exact zeros.

    Gradient: dx = g minus its mean over the support, 0 outside the support.
    Reference: Martins and Astudillo, 2016, "From Softmax to Sparsemax", arXiv:1602.02068.
    """
    z = np.moveaxis(x.data, axis, -1)
    ordered = -np.sort(-z, axis=-1)
    total = np.cumsum(ordered, axis=-1)
    k = np.arange(1, z.shape[-1] + 1, dtype=z.dtype)
    count = np.count_nonzero(1 + k * ordered > total, axis=-1)[..., None]
    tau = (np.take_along_axis(total, count - 1, -1) - 1) / count.astype(z.dtype)
    support = np.moveaxis(z > tau, -1, axis)
    y = np.moveaxis(np.maximum(z - tau, 0), -1, axis)

    def backward(g: Any) -> Any:
        kept = g * support
        share = support.sum(axis, keepdims=True).astype(x.dtype)
        return (support * (g - kept.sum(axis, keepdims=True) / share),)

    return record(y, (x,), backward)
