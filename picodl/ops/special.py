"""Special functions, and functions of two variables that are more than arithmetic.

scipy is imported at first use: numpy has none of the error, Bessel and gamma functions.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from picodl.ops.core import Array, Numeric, op
from picodl.ops.elementwise import times, unary
from picodl.tensor import Tensor, output, record, value


@functools.cache
def _scipy(name: str) -> Callable[..., Any]:
    import scipy.special

    return getattr(scipy.special, name)


def _special(name: str) -> Callable[..., Any]:
    return lambda a: _scipy(name)(a).astype(a.dtype, copy=False)  # scipy has no float16


_ROOT = 2 / math.sqrt(math.pi)

erf = unary(
    "erf",
    _special("erf"),
    lambda x, y: _ROOT * np.exp(-x * x),
    "The error function, 2 / sqrt(pi) times the integral of exp(-t^2) from 0 to x",
    "2 / sqrt(pi) * exp(-x^2)",
)
erfc = unary(
    "erfc",
    _special("erfc"),
    lambda x, y: -_ROOT * np.exp(-x * x),
    "1 - erf(x), exact for large x",
    "-2 / sqrt(pi) * exp(-x^2)",
)
erfinv = unary(
    "erfinv",
    _special("erfinv"),
    lambda x, y: np.exp(y * y) / _ROOT,
    "The inverse of erf, from -1 to 1",
    "sqrt(pi) / 2 * exp(y^2)",
    steep=True,
)

_SINC = [(-1) ** k * 2 * k * math.pi ** (2 * k) / math.factorial(2 * k + 1) for k in range(1, 9)]


def _sinc_slope(x: Any, y: Any) -> Any:
    """(cos(pi x) - y) / x; near 0, where that cancels, the series."""
    near = np.abs(x.data if isinstance(x, Tensor) else x) < 0.25
    small, large = np.where(near, x, 0.0), np.where(near, 1.0, x)
    square = small * small
    series = 0.0
    for c in reversed(_SINC):
        series = series * square + c
    return np.where(near, series * small, (np.cos(math.pi * large) - np.sinc(large)) / large)


sinc = unary(
    "sinc",
    lambda a: np.sinc(a).astype(a.dtype),
    _sinc_slope,
    "sin(pi x) / (pi x), 1 at 0",
    "(cos(pi x) - y) / x, 0 at 0",
)


@op
def _bessel(x: Tensor, order: int) -> Tensor:
    """The modified Bessel function I of a whole order.

    Gradient: dx = g * (I_(n-1) + I_(n+1)) / 2, with I_(-1) = I_1.
    """
    y = _scipy("iv")(order, x.data).astype(x.data.dtype)

    def backward(g: Any) -> Any:
        v = value(x, g)
        return (g * (0.5 * (_bessel(v, abs(order - 1)) + _bessel(v, order + 1))),)

    return record(y, (x,), backward)


def i0(x: Any) -> Any:
    """The modified Bessel function of order 0, elementwise.

    Gradient: dx = g * I_1(x).
    """
    return _bessel(x, 0)


@op
def gammainc(x1: Tensor, x2: Tensor) -> Tensor:
    """The regularised lower incomplete gamma function of order x1 at x2, elementwise.

    Raises:
        NotImplementedError: in backward, if x1 requires a gradient: it has no closed form.

    Gradient: dx2 = g * x2^(x1 - 1) exp(-x2) / gamma(x1).
    """
    y = _scipy("gammainc")(x1.data, x2.data)
    y = y.astype(np.result_type(x1.data, x2.data), copy=False)

    def backward(g: Any) -> Any:
        if x1.requires_grad:
            raise NotImplementedError(
                "gammainc has no gradient with respect to its order x1; pass stop_gradient(x1)."
            )
        a, x = x1.data, value(x2, g)
        log_gamma = _scipy("gammaln")(a).astype(a.dtype)
        return None, times(g, lambda: np.exp((a - 1) * np.log(x) - x - log_gamma))

    return record(y, (x1, x2), backward)


# -------------------------------------------------------------------- two variables


def _log_add(name: str, forward: Any, power: Any, words: str) -> Callable[..., Any]:
    def function(x1: Tensor, x2: Tensor) -> Tensor:
        y = forward(x1.data, x2.data)

        def backward(g: Any) -> Any:
            whole = output(y, g, ready, x1, x2)
            s1, s2 = power(value(x1, g) - whole), power(value(x2, g) - whole)
            if not np.isfinite(y).all():  # of log(0) nothing flows back; infinities share it
                top1, top2 = x1.data == y, x2.data == y
                share = ((y != -np.inf) / np.maximum(1, 1 * top1 + top2)).astype(y.dtype)
                s1 = np.where(np.isinf(y), share * top1, s1)
                s2 = np.where(np.isinf(y), share * top2, s2)
            return g * s1, g * s2

        backward.__qualname__ = name
        return record(y, (x1, x2), backward)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"""{words}, without overflow, elementwise.

    Gradient: dx1 = g * {power.__name__}(x1 - y), dx2 = g * {power.__name__}(x2 - y).
    """
    ready = op(function)
    return ready


logaddexp = _log_add("logaddexp", np.logaddexp, np.exp, "log(exp(x1) + exp(x2))")
logaddexp2 = _log_add("logaddexp2", np.logaddexp2, np.exp2, "log2(2^x1 + 2^x2)")


@op
def hypot(x1: Tensor, x2: Tensor) -> Tensor:
    """The length of the hypotenuse, sqrt(x1^2 + x2^2), elementwise.

    Gradient: dx1 = g * x1 / y, dx2 = g * x2 / y; 0 where y is 0.
    """
    y = np.hypot(x1.data, x2.data)

    def backward(g: Any) -> Any:
        part = g / (output(y, g, hypot, x1, x2) + (y == 0))
        return part * value(x1, g), part * value(x2, g)

    return record(y, (x1, x2), backward)


@op
def arctan2(x1: Tensor, x2: Tensor) -> Tensor:
    """The angle of the point (x2, x1), from -pi to pi, elementwise.

    Gradient: dx1 = g * x2 / (x1^2 + x2^2), dx2 = -g * x1 / (x1^2 + x2^2); 0 at the origin.
    """

    def backward(g: Any) -> Any:
        a, b = value(x1, g), value(x2, g)
        square = a * a + b * b
        part = g / (square + ((square.data if isinstance(square, Tensor) else square) == 0))
        return part * b, -part * a

    return record(np.arctan2(x1.data, x2.data), (x1, x2), backward)


@op
def ldexp(x1: Tensor, x2: Array) -> Tensor:
    """x1 * 2^x2 for integers x2, elementwise.

    Gradient: dx1 = g * 2^x2.
    """
    power = np.asarray(x2)
    if power.dtype.kind not in "iub":
        raise TypeError(f"ldexp takes integers x2; received {power.dtype}.")

    def backward(g: Any) -> Any:
        return (np.ldexp(g, power),)

    return record(np.ldexp(x1.data, power), (x1,), backward)


@op
def heaviside(x1: Tensor, x2: Tensor) -> Tensor:
    """0 where x1 < 0, x2 where x1 = 0, 1 where x1 > 0, elementwise.

    Gradient: dx2 = g where x1 = 0. Nothing flows to x1.
    """

    def backward(g: Any) -> Any:
        return (g * (x1.data == 0),)

    return record(np.heaviside(x1.data, x2.data), (x2,), backward)


def _f_extremum(name: str, forward: Any, best: Any, word: str) -> Callable[..., Any]:
    def function(x1: Numeric, x2: Numeric) -> Tensor:
        a, b = x1.data, x2.data

        def backward(g: Any) -> Any:
            half = 0.5 * ((a == b) | ((a != a) & (b != b)))
            share = (best(a, b) | ((b != b) & (a == a))) + half
            share = share.astype(g.dtype)
            return g * share, g * (1 - share)

        backward.__qualname__ = name
        return record(forward(a, b), (x1, x2), backward)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"""The {word} of x1 and x2, elementwise; the other one where one is nan.

    Gradient: g to the {word}; half to each where they are equal.
    """
    return op(function)


fmax = _f_extremum("fmax", np.fmax, np.greater, "larger")
fmin = _f_extremum("fmin", np.fmin, np.less, "smaller")
