"""GELU, exact and by tanh, with float32 kernels of few passes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from picodl import compiled
from picodl.ops.activation import Pair, all_ops, constants, fastest_power, pair_op
from picodl.typing import Array

_SQRT_HALF = math.sqrt(0.5)
_INV_SQRT_TAU = 1 / math.sqrt(2 * math.pi)


def exact_gelu(power: np.ufunc, log_e: float) -> Pair:
    """z / (1 + exp(-u(z))), with the logarithm u of the odds of the normal distribution function.

    u(z) = z * (a + b * s + c / (s + d + e / (s + f))) with s = z * z, fitted so that max(|z|, 1)
    times the error of the distribution function stays below 1.3e-7; in float64 scipy's is taken.

    Args:
        power: the exponential function to a base.
        log_e: the logarithm of Euler's number to that base.
    """
    a, b, c, d, e, f, one, minus_half, phi = constants(
        -2.45889791 * log_e,
        -3.49146349e-2 * log_e,
        8.17247394 * log_e,
        -10.1421307,
        656.298133,
        33.4665123,
        1,
        -0.5 * log_e,
        _INV_SQRT_TAU,
    )

    def forward(z: Array) -> tuple[Array, Any]:
        if z.dtype != np.float32:
            from scipy.special import ndtr

            cdf = ndtr(z.astype(np.float64)).astype(z.dtype)
            return z * cdf, (z, cdf)
        s, t = np.empty_like(z), np.empty_like(z)
        if compiled.run("gelu_forward", z, s, t, z.size):
            return t, (z, s)
        with np.errstate(over="ignore"):  # far below zero: z / inf = 0
            np.multiply(z, z, out=s)
            np.add(s, f, out=t)
            np.divide(e, t, out=t)
            t += s
            t += d
            np.divide(c, t, out=t)
            s *= b
            s += a
            s += t
            s *= z
            power(s, out=s)
        s += one
        return np.divide(z, s, out=t), (z, s)

    def backward(g: Array, saved: Any) -> Array:
        z, cdf = saved
        if z.dtype != np.float32:
            slope = z * np.exp(-0.5 * z * z)
            slope *= _INV_SQRT_TAU
            slope += cdf
        else:
            slope = np.empty_like(z)
            if compiled.run("gelu_backward", g, z, cdf, slope, z.size):
                return slope
            np.multiply(z, minus_half, out=slope)
            slope *= z
            power(slope, out=slope)
            slope *= z
            slope *= phi
            slope += np.reciprocal(cdf)  # forward kept that
        return np.multiply(g, slope, out=slope)

    return Pair(forward, backward, lambda x: 0.5 * x * (1 + all_ops().erf(x * _SQRT_HALF)))


_TANH_A, _TANH_B = math.sqrt(2 / math.pi), 0.044715


def _gelu_tanh_forward(z: Array) -> tuple[Array, Any]:
    t = z * z
    t *= _TANH_A * _TANH_B
    t += _TANH_A
    t *= z
    np.tanh(t, out=t)
    y = t + 1
    y *= z
    y *= 0.5
    return y, (z, t)


def _gelu_tanh_backward(g: Array, saved: Any) -> Array:
    z, t = saved
    inner = _TANH_A + 3 * _TANH_A * _TANH_B * z * z
    return g * (0.5 * (1 + t) + 0.5 * z * (1 - t * t) * inner)


gelu_pair = exact_gelu(*fastest_power())
gelu_tanh_pair = Pair(
    _gelu_tanh_forward,
    _gelu_tanh_backward,
    lambda x: 0.5 * x * (1 + all_ops().tanh(_TANH_A * (x + _TANH_B * x * x * x))),
)

gelu_exact = pair_op("gelu", gelu_pair, "x * P(N <= x)", "(cdf(x) + x density(x))")
gelu_tanh = pair_op("gelu", gelu_tanh_pair, "Tanh approximation of gelu", "its slope")


def gelu(x: Any, approximate: bool = True) -> Any:
    """x times the normal distribution function of x; its tanh approximation by default.

    Gradient: dx = g * (cdf(x) + x * density(x)).
    Reference: Hendrycks and Gimpel, 2016, "Gaussian Error Linear Units", arXiv:1606.08415.
    """
    return gelu_tanh(x) if approximate else gelu_exact(x)
