"""Arithmetic and functions of single elements, with broadcasting.

Most are one line of a table: the numpy function and its slope, written with numpy functions so that
it works on arrays and, for second derivatives, on Tensors. `steep` marks slopes that can be
infinite: there a zero gradient from above stays zero instead of becoming 0 * inf = nan.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from picodl.ops.core import Numeric, op
from picodl.tensor import Tensor, output, record, value

Slope = Callable[[Any, Any], Any]


def unary(
    name: str, forward: Callable[..., Any], slope: Slope, does: str, formula: str, steep: bool = False
) -> Callable[..., Any]:
    """The op y = forward(x) with dx = g * slope(x, y)."""

    def function(x: Tensor) -> Tensor:
        y = forward(x.data)

        def backward(g: Any) -> Any:
            if steep:
                return (times(g, lambda: slope(value(x, g), output(y, g, ready, x))),)
            return (g * slope(value(x, g), output(y, g, ready, x)),)

        backward.__qualname__ = name
        return record(y, (x,), backward)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{does}, elementwise.\n\n    Gradient: dx = g * {formula}.\n    "
    ready = op(function)
    return ready


def times(g: Any, slope: Callable[[], Any]) -> Any:
    """g * slope(), but 0 where g is 0 however steep the slope."""
    with np.errstate(all="ignore"):
        product = g * slope()
        if isinstance(g, Tensor):
            from picodl.ops.shape import where

            return where(g.data == 0, 0.0, product)
        return np.where(g == 0, np.zeros((), product.dtype), product)


# -------------------------------------------------------------------- arithmetic


@op
def add(x1: Numeric, x2: Numeric) -> Tensor:
    """x1 + x2, elementwise.

    Gradient: dx1 = g, dx2 = g.
    """

    def backward(g: Any) -> Any:
        return g, g

    return record(x1.data + x2.data, (x1, x2), backward)


@op
def subtract(x1: Numeric, x2: Numeric) -> Tensor:
    """x1 - x2, elementwise.

    Gradient: dx1 = g, dx2 = -g.
    """

    def backward(g: Any) -> Any:
        return g, -g if x2.requires_grad else None

    return record(x1.data - x2.data, (x1, x2), backward)


@op
def multiply(x1: Numeric, x2: Numeric) -> Tensor:
    """x1 * x2, elementwise.

    Gradient: dx1 = g * x2, dx2 = g * x1.
    """

    def backward(g: Any) -> Any:
        return (
            g * value(x2, g) if x1.requires_grad else None,
            g * value(x1, g) if x2.requires_grad else None,
        )

    return record(x1.data * x2.data, (x1, x2), backward)


@op
def divide(x1: Tensor, x2: Tensor) -> Tensor:
    """x1 / x2, elementwise.

    Gradient: dx1 = g / x2, dx2 = -g * x1 / x2^2; 0 where g is 0.
    """

    def backward(g: Any) -> Any:
        a, b = value(x1, g), value(x2, g)
        return (
            times(g, lambda: 1 / b) if x1.requires_grad else None,
            times(g, lambda: -a / (b * b)) if x2.requires_grad else None,
        )

    return record(x1.data / x2.data, (x1, x2), backward)


true_divide = divide


@op
def power(x1: Numeric, x2: Numeric) -> Tensor:
    """x1 to the power x2, elementwise.

    Gradient: dx1 = g * x2 * x1^(x2 - 1), 0 where x2 is 0; dx2 = g * y * log(x1), 0 where x1 is 0;
    both 0 where g is 0.
    """
    a, b = x1.data, x2.data
    if b.size == 1 and b == 2:  # x * x is 40 times faster than x ** 2
        y = np.square(a) if b.ndim == 0 else np.broadcast_to(np.square(a), np.broadcast(a, b).shape)
    else:
        y = np.power(a, b)

    def backward(g: Any) -> Any:
        base, exponent = value(x1, g), value(x2, g)
        dx1 = dx2 = None
        if x1.requires_grad:
            lower = np.where(b == 0, 0, b - 1) if not isinstance(g, Tensor) else exponent - 1 * (b != 0)
            dx1 = times(g, lambda: exponent * base**lower)
        if x2.requires_grad:
            safe = np.where(a == 0, 1, a) if not isinstance(g, Tensor) else base + 1 * (a == 0)
            dx2 = times(g, lambda: output(y, g, power, x1, x2) * np.log(safe))
        return dx1, dx2

    return record(y, (x1, x2), backward)


@op
def negative(x: Numeric) -> Tensor:
    """-x, elementwise.

    Gradient: dx = -g.
    """

    def backward(g: Any) -> Any:
        return (-g,)

    return record(-x.data, (x,), backward)


@op
def abs(x: Numeric) -> Tensor:
    """The absolute value, elementwise.

    Gradient: dx = g * sign(x), 0 at 0.
    """

    def backward(g: Any) -> Any:
        return (g * np.sign(x.data),)

    return record(np.abs(x.data), (x,), backward)


absolute = abs


@op
def square(x: Numeric) -> Tensor:
    """x * x, elementwise.

    Gradient: dx = 2 * g * x.
    """

    def backward(g: Any) -> Any:
        return (2 * g * value(x, g),)

    return record(np.square(x.data), (x,), backward)


def _extremum(name: str, forward: Any, first_wins: Any, word: str) -> Callable[..., Any]:
    def function(x1: Numeric, x2: Numeric) -> Tensor:
        a, b = x1.data, x2.data

        def backward(g: Any) -> Any:
            half = 0.5 * (a == b)  # a tie gives each a half
            share = (first_wins(a, b) + half).astype(a.dtype if a.dtype.kind == "f" else b.dtype)
            return g * share, g * (1 - share)

        backward.__qualname__ = name
        return record(forward(a, b), (x1, x2), backward)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"""The {word} of x1 and x2, elementwise.

    Gradient: g to the {word}; half to each where they are equal.
    """
    return op(function)


maximum = _extremum("maximum", np.maximum, np.greater, "larger")
minimum = _extremum("minimum", np.minimum, np.less, "smaller")


@op
def clip(x: Numeric, x_min: Any, x_max: Any) -> Tensor:
    """x kept between x_min and x_max, elementwise; None for no bound.

    Gradient: dx = g where x lies inside (bounds included), else 0.
    """
    low = x_min.data if isinstance(x_min, Tensor) else x_min
    high = x_max.data if isinstance(x_max, Tensor) else x_max

    def backward(g: Any) -> Any:
        inside = np.ones(x.data.shape, bool) if low is None else x.data >= low
        if high is not None:
            inside = inside & (x.data <= high)
        return (g * inside,)

    return record(np.clip(x.data, low, high).astype(x.data.dtype, copy=False), (x,), backward)


# -------------------------------------------------------------------- powers, exponentials, waves

sqrt = unary("sqrt", np.sqrt, lambda x, y: 0.5 / y, "Square root", "1 / (2 y), 0 where g is 0", True)
exp = unary("exp", np.exp, lambda x, y: y, "e to the power x", "y")
log = unary("log", np.log, lambda x, y: 1 / x, "Natural logarithm", "1 / x, 0 where g is 0", True)
sin = unary("sin", np.sin, lambda x, y: np.cos(x), "Sine", "cos(x)")
cos = unary("cos", np.cos, lambda x, y: -np.sin(x), "Cosine", "-sin(x)")
tanh = unary("tanh", np.tanh, lambda x, y: 1 - y * y, "Hyperbolic tangent", "(1 - y^2)")
