"""Pooling over windows: maxima and means, also adaptive ones.

A window's maximum or sum is taken along one axis after the other, rows first: there whole rows lie
together.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from ctypes import byref
from typing import Any, NamedTuple

import numpy as np

from picodl import compiled, config
from picodl.compiled import address
from picodl.compiled.walk import walk
from picodl.ops.core import op
from picodl.ops.shape import moveaxis, pad
from picodl.ops.windows import as_sizes, output_sizes, pads_of
from picodl.parallel import map_blocks, parts_of
from picodl.tensor import Tensor, record
from picodl.typing import Array


class Pooling(NamedTuple):
    """Windows of a pooling: size and strides, zeros around the input, number along each axis."""

    size: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    sizes: tuple[int, ...]
    out: tuple[int, ...]

    @property
    def padded(self) -> bool:
        return any(a or b for a, b in self.pads)

    @property
    def disjoint(self) -> bool:
        return all(s >= k for s, k in zip(self.strides, self.size, strict=True))

    @property
    def complete(self) -> bool:
        """Whether every element lies in exactly one window, so that gradients fill the array."""
        return (
            not self.padded
            and self.size == self.strides
            and all(o * s == n for o, s, n in zip(self.out, self.strides, self.sizes, strict=True))
        )

    def taps(self) -> list[tuple[slice, ...]]:
        """For each place in the window, row by row, the padded elements that stand there."""
        return _taps(self)


@functools.lru_cache(maxsize=256)
def _taps(p: Pooling) -> list[tuple[slice, ...]]:
    found = []
    for place in itertools.product(*(range(k) for k in p.size)):
        axes = zip(place, p.out, p.strides, strict=True)
        found.append((slice(None), *(slice(t, t + (o - 1) * s + 1, s) for t, o, s in axes)))
    return found


@op
def max_pool(
    inputs: Tensor,
    pool_size: int | Sequence[int],
    strides: int | Sequence[int] | None = None,
    padding: str = "valid",
    data_format: str | None = None,
) -> Tensor:
    """The largest element of each window, per channel.

    Args:
        inputs: images, sequences or volumes.
        pool_size: size of the windows.
        strides: distance of neighbouring windows. Defaults to pool_size.
        padding: "valid", or "same": windows hang over the edge, what lies outside never wins.
        data_format: "channels_last" or "channels_first".

    Shapes: inputs (batch, *sizes, n) -> (batch, *out, n), out as for `conv`.
    Raises:
        ValueError: if no window fits into the input.
    Gradient: g to the first of the largest elements of each window, row by row.

    >>> max_pool(np.array([1.0, 4.0, 3.0, 2.0]).reshape(1, 4, 1), 2).ravel()
    array([4., 3.])
    """
    return _pooled(_max_pool, inputs, pool_size, strides, padding, data_format)


@op
def average_pool(
    inputs: Tensor,
    pool_size: int | Sequence[int],
    strides: int | Sequence[int] | None = None,
    padding: str = "valid",
    data_format: str | None = None,
) -> Tensor:
    """The mean of each window, per channel; with "same" padding the mean of what lies inside.

    Args: as for `max_pool`.
    Shapes: inputs (batch, *sizes, n) -> (batch, *out, n), out as for `conv`.
    Gradient: g / count to each element of the window.

    >>> average_pool(np.arange(1.0, 6.0).reshape(1, 5, 1), 3, 1, "same").ravel()
    array([1.5, 2. , 3. , 4. , 4.5])
    """
    return _pooled(_average_pool, inputs, pool_size, strides, padding, data_format)


def _pooled(
    pool: Callable[[Tensor, Pooling], Tensor],
    inputs: Tensor,
    pool_size: Any,
    strides: Any,
    padding: str,
    data_format: str | None,
) -> Any:
    if config.standardize_data_format(data_format) == "channels_first":
        x = moveaxis(inputs, 1, -1)
        return moveaxis(_pooled(pool, x, pool_size, strides, padding, "channels_last"), -1, 1)
    sizes = inputs.shape[1:-1]
    if isinstance(pool_size, list):
        pool_size = tuple(pool_size)
    if isinstance(strides, list):
        strides = tuple(strides)
    return pool(inputs, pooling_of(sizes, pool_size, strides, padding))


@functools.lru_cache(maxsize=256)
def pooling_of(sizes: tuple[int, ...], pool_size: Any, strides: Any, padding: str) -> Pooling:
    """The windows over axes of these sizes.

    Raises:
        ValueError: if no window fits, or sizes and strides are not positive.
    """
    rank = len(sizes)
    size = as_sizes(pool_size, rank, "pool_size")
    steps = size if strides is None else as_sizes(strides, rank, "strides")
    ones = (1,) * rank
    padding = str(padding).lower()
    if padding not in ("valid", "same"):
        raise ValueError(f'padding must be "valid" or "same"; received {padding!r}.')
    pads = pads_of(padding, sizes, size, steps, ones)
    out = output_sizes(sizes, size, steps, ones, pads)
    if rank < 1 or min(out) < 1:
        raise ValueError(
            f"Pooling windows of size {size} do not fit into inputs of size {sizes}: the output "
            'would have size 0. Use a smaller pool_size, larger inputs or padding="same".'
        )
    return Pooling(size, steps, pads, sizes, out)


def _blocks(x: Array) -> list[slice]:
    return parts_of(len(x), math.prod(x.shape[1:]))


def _padded(x: Array, p: Pooling, fill: float) -> Array:
    """The block of images with its border filled; the block itself where there is none."""
    if not p.padded:
        return x
    shape = [n + a + b for n, (a, b) in zip(p.sizes, p.pads, strict=True)]
    wide = np.full((len(x), *shape, x.shape[-1]), fill, x.dtype)
    wide[_inside(p)] = x
    return wide


def _inside(p: Pooling) -> tuple[slice, ...]:
    inner = (slice(a, a + n) for n, (a, _) in zip(p.sizes, p.pads, strict=True))
    return (slice(None), *inner)


def _reduced(x: Array, p: Pooling, combine: np.ufunc, out: Array) -> None:
    """combine over each window of the (padded) block, along one axis after the other, into out."""
    last = len(p.size) - 1
    for axis, (k, s, o) in enumerate(zip(p.size, p.strides, p.out, strict=True)):
        before = (slice(None),) * (axis + 1)
        taps = [x[(*before, slice(t, t + (o - 1) * s + 1, s))] for t in range(k)]
        if k == 1:
            if axis == last:
                out[...] = taps[0]
            x = taps[0]
            continue
        target = out if axis == last else np.empty(taps[0].shape, x.dtype)
        combine(taps[0], taps[1], out=target)
        for tap in taps[2:]:
            combine(target, tap, out=target)
        x = target


def _composed(x: Any, p: Pooling, weights: Sequence[Array]) -> Any:
    """The sum of weight * element over the places in the windows, out of differentiable ops."""
    wide = pad(x, [(0, 0), *p.pads, (0, 0)]) if p.padded else x
    total = None
    for tap, weight in zip(p.taps(), weights, strict=True):
        part = wide[tap] * weight
        total = part if total is None else total + part
    return total


# -------------------------------------------------------------------- maxima


def _max_pool(x: Tensor, p: Pooling) -> Tensor:
    a = np.ascontiguousarray(x.data)
    y = np.empty((len(a), *p.out, a.shape[-1]), a.dtype)
    blocks, work = _blocks(a), a.size * 1e-3

    def forward(images: slice) -> None:
        wide = _padded(a[images], p, -np.inf)
        if not _compiled("max_pool", wide, p, y[images]):
            _reduced(wide, p, np.maximum, y[images])

    map_blocks(forward, blocks, work)

    def backward(g: Any) -> Any:
        dx = (np.empty if p.complete else np.zeros)(a.shape, a.dtype)

        def back(images: slice) -> None:
            wide = _padded(a[images], p, -np.inf)
            fits = not p.padded and g.flags.c_contiguous and g.dtype == np.float32
            if compiled.kernels is not None and fits:
                into = dx[images]
                into[...] = 0
                if _compiled("max_pool_back", wide, p, y[images], g[images], into):
                    return
            into = np.zeros(wide.shape, a.dtype) if p.padded else dx[images]
            for tap, wins in zip(p.taps(), _winners(wide, y[images], p), strict=True):
                if p.disjoint:
                    np.multiply(g[images], wins, out=into[tap])
                else:
                    into[tap] += g[images] * wins
            if p.padded:
                dx[images] = into[_inside(p)]

        map_blocks(back, blocks, 3 * work)
        return (dx,)

    def composed(x: Any) -> Any:
        return _composed(x, p, list(_winners(_padded(a, p, -np.inf), y, p)))

    backward.__qualname__ = "max_pool"
    return record(y, (x,), backward, composed)


def _compiled(name: str, wide: Array, p: Pooling, y: Array, *arrays: Array) -> bool:
    """Whether a compiled kernel did it, which wants whole vectors of float32 channels."""
    kernels, channels = compiled.kernels, wide.shape[-1]
    if kernels is None or wide.dtype != np.float32 or channels % kernels.vector:
        return False
    steps = wide.strides[1:-1]
    over = (wide.strides[0], *(s * step for s, step in zip(p.strides, steps, strict=True)))
    way = walk(y.shape[:-1], over, y.strides[:-1], p.size, steps)
    getattr(kernels, name)(byref(way), *map(address, (wide, y, *arrays)), channels)
    return True


def _winners(wide: Array, y: Array, p: Pooling) -> Iterator[Array]:
    """For each place in the windows, where it holds the first of the largest elements."""
    taps = p.taps()
    given = np.zeros(y.shape, bool)
    for tap in taps[:-1]:
        wins = wide[tap] == y
        np.greater(wins, given, out=wins)  # wins and not given
        given |= wins
        yield wins
    yield ~given


# -------------------------------------------------------------------- means


def _average_pool(x: Tensor, p: Pooling) -> Tensor:
    a = np.ascontiguousarray(x.data)
    y = np.empty((len(a), *p.out, a.shape[-1]), a.dtype)
    blocks, work = _blocks(a), a.size * 1e-3
    share = _shares(p, a.dtype)

    def forward(images: slice) -> None:
        part = y[images]
        _reduced(_padded(a[images], p, 0), p, np.add, part)
        part *= share

    map_blocks(forward, blocks, work)

    def backward(g: Any) -> Any:
        dx = np.empty_like(a)

        def back(images: slice) -> None:
            _spread(g[images] * share, p, dx[images])

        map_blocks(back, blocks, work)
        return (dx,)

    def composed(x: Any) -> Any:
        return _composed(x, p, [share] * math.prod(p.size))

    backward.__qualname__ = "average_pool"
    return record(y, (x,), backward, composed)


def _shares(p: Pooling, dtype: Any) -> Any:
    """One over the number of elements in each window; a plain number where all are full."""
    if not p.padded:
        return 1 / math.prod(p.size)
    inside = _padded(np.ones((1, *p.sizes, 1)), p, 0)
    count = np.empty((1, *p.out, 1))
    _reduced(inside, p, np.add, count)
    return (1 / count).astype(dtype)


def _spread(g: Array, p: Pooling, dx: Array) -> None:
    """Give each element the sum of g over the windows it lies in, the last axis first."""
    for axis in range(len(p.size) - 1, -1, -1):
        k, s, o = p.size[axis], p.strides[axis], p.out[axis]
        (before, after), n = p.pads[axis], p.sizes[axis]
        length = before + n + after
        lead = (slice(None),) * (axis + 1)
        shape = (*g.shape[: axis + 1], length, *g.shape[axis + 2 :])
        last = axis == 0 and dx.shape == shape
        into = dx if last else np.empty(shape, g.dtype)
        if not (k == s and o * s == length):
            into[...] = 0
        for t in range(k):
            place = into[(*lead, slice(t, t + (o - 1) * s + 1, s))]
            if s >= k:
                place[...] = g
            else:
                place += g
        g = into[(*lead, slice(before, before + n))]
    if g.base is not dx and g is not dx:
        dx[...] = g


# -------------------------------------------------------------------- adaptive pooling


def _adaptive_axes(x: Any, output_size: Any, data_format: str | None) -> list[tuple[int, int, int]]:
    """(axis, its size, its output size) of each spatial axis."""
    rank = len(x.shape) - 2
    first = 2 if config.standardize_data_format(data_format) == "channels_first" else 1
    out = as_sizes(output_size, rank, "output_size")
    return [(first + i, x.shape[first + i], o) for i, o in enumerate(out)]


def adaptive_bounds(n: int, out: int) -> list[tuple[int, int]]:
    """Window i reaches from floor(i n / out) to ceil((i + 1) n / out)."""
    return [(i * n // out, -(-(i + 1) * n // out)) for i in range(out)]


@op
def adaptive_average_pool(
    inputs: Tensor, output_size: int | Sequence[int], data_format: str | None = None
) -> Tensor:
    """The means of windows that cover the input evenly and give an output of a wanted size.

    Args:
        inputs: images or sequences.
        output_size: windows along each axis; window i reaches from floor(i n / out) to
            ceil((i + 1) n / out).
        data_format: "channels_last" or "channels_first".

    Gradient: g / count to each element of the window.
    """
    x: Any = inputs
    for axis, n, out in _adaptive_axes(inputs, output_size, data_format):
        weights = np.zeros((n, out), x.dtype)
        for i, (a, b) in enumerate(adaptive_bounds(n, out)):
            weights[a:b, i] = 1 / (b - a)
        x = moveaxis(moveaxis(x, axis, -1) @ weights, -1, axis)
    return x


@op
def adaptive_max_pool(
    inputs: Tensor, output_size: int | Sequence[int], data_format: str | None = None
) -> Tensor:
    """The maxima of windows that cover the input evenly; see `adaptive_average_pool`.

    Gradient: g to the largest element; equal ones share it.
    """
    from picodl.ops.reduce import amax
    from picodl.ops.shape import stack

    x: Any = inputs
    for axis, n, out in _adaptive_axes(inputs, output_size, data_format):
        lead = (slice(None),) * axis
        parts = [amax(x[(*lead, slice(a, b))], axis) for a, b in adaptive_bounds(n, out)]
        x = stack(parts, axis)
    return x
