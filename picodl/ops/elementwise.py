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
from picodl.ops.indexing import where
from picodl.tensor import Tensor, output, record, value

Slope = Callable[[Any, Any], Any]


def unary(
    name: str,
    forward: Callable[..., Any],
    slope: Slope,
    does: str,
    formula: str,
    steep: bool = False,
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
    """g * slope(), but 0 where g is 0 and the slope is not finite."""
    s = slope()
    finite = np.isfinite(s.data if isinstance(s, Tensor) else s)
    if not finite.all():
        if isinstance(g, Tensor):
            s = where(finite | (g.data != 0), s, 0.0)
        else:
            s = np.where(finite | (g != 0), s, np.zeros((), s.dtype))
    return g * s


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

    Gradient: dx1 = g * x2 * x1^(x2 - 1), 0 where x2 is 0; dx2 = g * y * log(x1), 0 where x1 is 0
    and x2 is not negative; both 0 where g is 0.
    """
    a, b = x1.data, x2.data
    if b.ndim == 0 and a.dtype.kind == "f" and not x2.requires_grad:
        return _constant_power(x1, float(b))
    y = np.power(a, b)

    def backward(g: Any) -> Any:
        base, exponent = value(x1, g), value(x2, g)
        dx1 = dx2 = None
        if x1.requires_grad:
            lower = exponent - ((a != 0) | (b != 0)).astype(b.dtype)
            dx1 = times(g, lambda: exponent * base**lower)
        if x2.requires_grad:
            safe = base + ((a == 0) & (b >= 0)).astype(a.dtype)
            dx2 = times(g, lambda: output(y, g, power, x1, x2) * np.log(safe))
        return dx1, dx2

    return record(y, (x1, x2), backward)


def _constant_power(x: Tensor, p: float) -> Tensor:
    """x to the power of a number; dx = g * p * x^(p - 1)."""

    def backward(g: Any) -> Any:
        if p == 2:
            return (g * (2 * value(x, g)),)
        if isinstance(g, Tensor):
            return (times(g, lambda: p * power(x, p - 1 if p else 0.0)),)
        return (times(g, lambda: p * _raise(x.data, p - 1 if p else 0.0)),)

    backward.__qualname__ = "power"
    return record(_raise(x.data, p), (x,), backward)


def _raise(a: Any, p: float) -> Any:
    """a ** p; small whole powers as products, which are up to 40 times faster."""
    if p == 2:
        return np.square(a)
    if p == 3:
        return a * a * a
    if p == 0.5:
        return np.sqrt(a)
    return a if p == 1 else a**p


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
def fabs(x: Tensor) -> Tensor:
    """The absolute value as a float, elementwise.

    Gradient: dx = g * sign(x), 0 at 0.
    """
    return abs(x)


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
def clip(x: Numeric, x_min: Numeric | None, x_max: Numeric | None) -> Tensor:
    """x kept between x_min and x_max, elementwise; None for no bound.

    Gradient: dx = g where x lies strictly inside, else 0. Bounds that require a gradient get g
    where they hold: then it is minimum(maximum(x, x_min), x_max).
    """
    if (x_min is not None and x_min.requires_grad) or (x_max is not None and x_max.requires_grad):
        y = x if x_min is None else maximum(x, x_min)
        return y if x_max is None else minimum(y, x_max)
    low = None if x_min is None else x_min.data
    high = None if x_max is None else x_max.data

    def backward(g: Any) -> Any:
        inside = np.ones(x.data.shape, bool) if low is None else x.data > low
        if high is not None:
            inside = inside & (x.data < high)
        return (g * inside,)

    y = x.data if low is None else np.maximum(x.data, low)
    return record(y if high is None else np.minimum(y, high), (x,), backward)


@op
def floor_divide(x1: Numeric, x2: Numeric) -> Tensor:
    """The largest whole number not above x1 / x2, elementwise. Not differentiable."""
    return record(np.floor_divide(x1.data, x2.data))


def _remainder(name: str, forward: Any, quotient: Any, sign: str) -> Callable[..., Any]:
    def function(x1: Numeric, x2: Numeric) -> Tensor:
        def backward(g: Any) -> Any:
            dx2 = None
            if x2.requires_grad:
                dx2 = times(g, lambda: -quotient(x1.data / x2.data))
            return g, dx2

        backward.__qualname__ = name
        return record(forward(x1.data, x2.data), (x1, x2), backward)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"""The remainder of x1 / x2 with the sign of {sign}, elementwise.

    Gradient: dx1 = g, dx2 = -g * {quotient.__name__}(x1 / x2).
    """
    return op(function)


mod = _remainder("mod", np.mod, np.floor, "x2")
remainder = mod
fmod = _remainder("fmod", np.fmod, np.trunc, "x1")


@op
def divide_no_nan(x1: Tensor, x2: Tensor) -> Tensor:
    """x1 / x2, elementwise, but 0 where x2 is 0.

    Gradient: that of x1 / x2; 0 where x2 is 0.
    """
    zero = x2.data == 0
    if not zero.any():
        return divide(x1, x2)
    return where(zero, 0.0, divide(x1, where(zero, 1.0, x2)))


@op
def nan_to_num(
    x: Numeric, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    """x with nan and the infinities replaced by numbers; the largest of the dtype for None.

    Gradient: dx = g where x is finite, else 0.
    """

    def backward(g: Any) -> Any:
        return (g * np.isfinite(x.data),)

    y = np.nan_to_num(x.data, nan=nan, posinf=posinf, neginf=neginf)
    return record(y, (x,), backward)


# -------------------------------------------------------------------- rounding


def constant(name: str, forward: Callable[..., Any], does: str) -> Callable[..., Any]:
    """An op that nothing flows through."""

    def function(x: Tensor) -> Tensor:
        return record(forward(x.data))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{does}, elementwise. Not differentiable."
    return op(function)


floor = constant("floor", np.floor, "The largest whole number not above x")
ceil = constant("ceil", np.ceil, "The smallest whole number not below x")
signbit = constant("signbit", np.signbit, "Whether the sign bit is set (also for -0.0)")


@op
def sign(x: Numeric) -> Tensor:
    """-1, 0 or 1, elementwise. Not differentiable."""
    return record(np.sign(x.data))


@op
def trunc(x: Numeric) -> Tensor:
    """The whole part of x, elementwise. Not differentiable."""
    return record(np.trunc(x.data).astype(x.data.dtype))


@op
def round(x: Numeric, decimals: int = 0) -> Tensor:
    """x rounded to decimals, halves to the even number, elementwise. Not differentiable."""
    return record(np.round(x.data, decimals))


@op
def nextafter(x1: Tensor, x2: Tensor) -> Tensor:
    """The next number of the dtype from x1 towards x2, elementwise. Not differentiable."""
    return record(np.nextafter(x1.data, x2.data))
