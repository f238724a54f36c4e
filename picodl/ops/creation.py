"""New arrays: filled, counted, spaced, identities and windows. Floats are floatx unless asked."""

from __future__ import annotations

from typing import Any

import numpy as np

from picodl import config
from picodl.ops.core import Numeric, op
from picodl.ops.shape import _numbers
from picodl.tensor import Tensor, as_array, record
from picodl.typing import Array


def array(x: Any, dtype: Any = None) -> Any:
    """x as an array, or the same Tensor; Python floats become floatx."""
    from picodl.ops.core import cast
    from picodl.symbolic import Symbol

    if isinstance(x, (Tensor, Symbol)):
        return x if dtype is None else cast(x, dtype)
    return as_array(x, dtype)


def zeros(shape: Any, dtype: Any = None) -> Array:
    """An array of zeros."""
    return np.zeros(_numbers(shape), dtype or config.floatx())


def ones(shape: Any, dtype: Any = None) -> Array:
    """An array of ones."""
    return np.ones(_numbers(shape), dtype or config.floatx())


def empty(shape: Any, dtype: Any = None) -> Array:
    """An array of zeros: what is not initialised could hide a fault."""
    return zeros(shape, dtype)


@op
def full(shape: Any, fill_value: Numeric, dtype: Any = None) -> Tensor:
    """An array filled with one value.

    Gradient: dfill_value = the sum of g.
    """
    from picodl.ops.core import cast
    from picodl.ops.shape import broadcast_to

    y = broadcast_to(fill_value, _numbers(shape))
    return cast(y, dtype or (y.dtype if y.dtype.kind == "f" else config.floatx()))


@op
def zeros_like(x: Numeric, dtype: Any = None) -> Tensor:
    """Zeros of x's shape and dtype. Not differentiable."""
    return record(np.zeros_like(x.data, dtype))


@op
def ones_like(x: Numeric, dtype: Any = None) -> Tensor:
    """Ones of x's shape and dtype. Not differentiable."""
    return record(np.ones_like(x.data, dtype))


def empty_like(x: Any, dtype: Any = None) -> Any:
    """Zeros of x's shape and dtype; see `empty`."""
    return zeros_like(x, dtype)


@op
def full_like(x: Numeric, fill_value: Any, dtype: Any = None) -> Tensor:
    """One value in x's shape and dtype. Not differentiable."""
    fill = fill_value.data if isinstance(fill_value, Tensor) else fill_value
    return record(np.full_like(x.data, fill, dtype))


def arange(start: Any, stop: Any = None, step: Any = None, dtype: Any = None) -> Array:
    """The numbers from start up to, without, stop; int32 for integers, else floatx."""
    numbers = [p.item() if isinstance(p, Tensor) else p for p in (start, stop, step)]
    step = 1 if numbers[2] is None else numbers[2]
    begin, end = (0, numbers[0]) if numbers[1] is None else (numbers[0], numbers[1])
    if dtype is None:
        whole = all(np.asarray(p).dtype.kind in "iub" for p in (begin, end, step))
        dtype = np.int32 if whole else config.floatx()
    return np.arange(begin, end, step, dtype=dtype)


@op
def linspace(
    start: Tensor,
    stop: Tensor,
    num: int = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: Any = None,
    axis: int = 0,
) -> Any:
    """num numbers from start to stop, evenly spaced.

    Args:
        start, stop: the ends, numbers or arrays.
        num: Defaults to 50.
        endpoint: whether stop is the last. Defaults to True.
        retstep: also give the step. Defaults to False.
        dtype: Defaults to floatx.
        axis: where the numbers go if the ends are arrays. Defaults to 0.

    Gradient: of start g * (1 - t), of stop g * t, summed over the numbers t from 0 to 1.
    """
    from picodl.ops.core import cast
    from picodl.ops.shape import moveaxis

    if not (start.requires_grad or stop.requires_grad):
        y, step = np.linspace(start.data, stop.data, num, endpoint, retstep=True, axis=axis)
        y = y.astype(dtype or np.result_type(start.data, stop.data))
        if not retstep:
            return record(y)
        return record(y), float(step) if np.ndim(step) == 0 else record(step.astype(y.dtype))
    t = np.linspace(0, 1, num, endpoint)
    t = t.reshape((-1,) + (1,) * np.broadcast(start.data, stop.data).ndim)
    t = t.astype(np.result_type(start.data, stop.data))
    y = start * (1 - t) + stop * t
    y = moveaxis(y, 0, axis) if axis else y
    y = cast(y, dtype) if dtype is not None else y
    if not retstep:
        return y
    return y, (stop - start) / max(num - 1 if endpoint else num, 1)


def logspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    base: Any = 10,
    dtype: Any = None,
    axis: int = 0,
) -> Any:
    """num numbers from base^start to base^stop whose logarithms are evenly spaced."""
    from picodl.ops.core import cast
    from picodl.ops.elementwise import power

    y = power(base, linspace(start, stop, num, endpoint, axis=axis))
    return y if dtype is None else cast(y, dtype)


def geomspace(
    start: Any, stop: Any, num: int = 50, endpoint: bool = True, dtype: Any = None, axis: int = 0
) -> Array:
    """num numbers from start to stop, each the same multiple of the last. Not differentiable."""
    y = np.geomspace(as_array(start), as_array(stop), num, endpoint, axis=axis)
    return y.astype(dtype or config.floatx())


def eye(N: int, M: int | None = None, k: int = 0, dtype: Any = None) -> Array:
    """An N x M matrix with ones on the k-th diagonal."""
    return np.eye(N, M, k, dtype or config.floatx())


def identity(n: int, dtype: Any = None) -> Array:
    """The identity matrix."""
    return eye(n, dtype=dtype)


def tri(N: int, M: int | None = None, k: int = 0, dtype: Any = None) -> Array:
    """An N x M matrix with ones on and below the k-th diagonal."""
    return np.tri(N, M, k, dtype or config.floatx())


@op
def copy(x: Numeric) -> Tensor:
    """A copy.

    Gradient: dx = g.
    """

    def backward(g: Any) -> Any:
        return (g,)

    return record(x.data.copy(), (x,), backward)


@op
def vander(x: Numeric, N: int | None = None, increasing: bool = False) -> Tensor:
    """The powers of a vector's elements as columns, from the highest down unless increasing.

    Gradient: dx = the sum over columns p of g * p * x^(p - 1).
    """
    n = x.data.size if N is None else N
    powers = np.arange(n) if increasing else np.arange(n)[::-1]
    return x.reshape(-1, 1) ** powers.astype(x.dtype)


# -------------------------------------------------------------------- windows


def _window(forward: Any, x: int, *parameters: float) -> Array:
    return forward(int(x), *parameters).astype(config.floatx())


def bartlett(x: int) -> Array:
    """The triangular window of x points."""
    return _window(np.bartlett, x)


def blackman(x: int) -> Array:
    """The Blackman window of x points: 0.42 - 0.5 cos(2 pi t) + 0.08 cos(4 pi t)."""
    return _window(np.blackman, x)


def hamming(x: int) -> Array:
    """The Hamming window of x points: 0.54 - 0.46 cos(2 pi t)."""
    return _window(np.hamming, x)


def hanning(x: int) -> Array:
    """The Hann window of x points: 0.5 - 0.5 cos(2 pi t)."""
    return _window(np.hanning, x)


def kaiser(x: int, beta: float) -> Array:
    """The Kaiser window of x points: i0(beta sqrt(1 - t^2)) / i0(beta), t from -1 to 1."""
    return _window(np.kaiser, x, float(beta))
