"""Comparison, logic and bits: nothing flows back through any of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from picodl.ops.core import Array, Numeric, op
from picodl.tensor import Tensor, record


def _pair(name: str, forward: Callable[..., Any], does: str) -> Callable[..., Any]:
    def function(x1: Numeric, x2: Numeric) -> Tensor:
        return record(forward(x1.data, x2.data))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{does}, elementwise. Not differentiable."
    return op(function)


def _single(name: str, forward: Callable[..., Any], does: str) -> Callable[..., Any]:
    def function(x: Numeric) -> Tensor:
        return record(forward(x.data))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{does}, elementwise. Not differentiable."
    return op(function)


def _bits(name: str, forward: Callable[..., Any], does: str) -> Callable[..., Any]:
    def function(x: Array, y: Array) -> Tensor:
        a, b = np.asarray(x), np.asarray(y)
        if "f" in a.dtype.kind + b.dtype.kind:
            raise TypeError(
                f"{name} works on integers and bools; received {a.dtype} and {b.dtype}."
            )
        return record(forward(x, y))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{does} of integers or bools, elementwise. Not differentiable."
    return op(function)


equal = _pair("equal", np.equal, "Whether x1 == x2")
not_equal = _pair("not_equal", np.not_equal, "Whether x1 != x2")
greater = _pair("greater", np.greater, "Whether x1 > x2")
greater_equal = _pair("greater_equal", np.greater_equal, "Whether x1 >= x2")
less = _pair("less", np.less, "Whether x1 < x2")
less_equal = _pair("less_equal", np.less_equal, "Whether x1 <= x2")

logical_and = _pair("logical_and", np.logical_and, "Whether both are not 0")
logical_or = _pair("logical_or", np.logical_or, "Whether one or both are not 0")
logical_xor = _pair("logical_xor", np.logical_xor, "Whether exactly one is not 0")
logical_not = _single("logical_not", np.logical_not, "Whether x is 0")

isfinite = _single("isfinite", np.isfinite, "Whether x is neither infinite nor nan")
isinf = _single("isinf", np.isinf, "Whether x is infinite")
isnan = _single("isnan", np.isnan, "Whether x is nan")
isposinf = _single("isposinf", np.isposinf, "Whether x is positive infinity")
isneginf = _single("isneginf", np.isneginf, "Whether x is negative infinity")
isreal = _single("isreal", np.isreal, "Whether x has no imaginary part, which is always so")

bitwise_and = _bits("bitwise_and", np.bitwise_and, "The bits that both have")
bitwise_or = _bits("bitwise_or", np.bitwise_or, "The bits that one or both have")
bitwise_xor = _bits("bitwise_xor", np.bitwise_xor, "The bits that exactly one has")
left_shift = _bits("left_shift", np.left_shift, "The bits of x moved y places up")
right_shift = _bits("right_shift", np.right_shift, "The bits of x moved y places down")
bitwise_left_shift, bitwise_right_shift = left_shift, right_shift


@op
def gcd(x1: Array, x2: Array) -> Tensor:
    """The greatest common divisor of integers, elementwise. Not differentiable."""
    return record(np.gcd(x1, x2))


@op
def lcm(x1: Array, x2: Array) -> Tensor:
    """The least common multiple of integers, elementwise. Not differentiable."""
    return record(np.lcm(x1, x2))


@op
def bitwise_not(x: Array) -> Tensor:
    """All bits of integers or bools turned, elementwise. Not differentiable."""
    if np.asarray(x).dtype.kind == "f":
        raise TypeError(f"bitwise_not works on integers and bools; received {np.asarray(x).dtype}.")
    return record(np.invert(x))


bitwise_invert = invert = bitwise_not


@op
def isclose(
    x1: Numeric, x2: Numeric, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Tensor:
    """Whether |x1 - x2| <= atol + rtol * |x2|, elementwise. Not differentiable."""
    return record(np.isclose(x1.data, x2.data, rtol, atol, equal_nan))


@op
def allclose(
    x1: Numeric, x2: Numeric, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Tensor:
    """Whether all elements are close, as in `isclose`. Not differentiable."""
    return record(np.allclose(x1.data, x2.data, rtol, atol, equal_nan))


@op
def isin(x1: Array, x2: Array, assume_unique: bool = False, invert: bool = False) -> Tensor:
    """Whether each element of x1 occurs in x2. Not differentiable."""
    return record(np.isin(x1, x2, assume_unique=assume_unique, invert=invert))
