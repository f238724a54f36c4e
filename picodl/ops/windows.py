"""Sliding windows over images: their sizes, and their contents as the rows of a matrix.

All of it works on arrays of shape (batch, *spatial, channels), with any number of spatial axes.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from picodl.parallel import blocks_of, shares_of
from picodl.typing import Array

Pads = tuple[tuple[int, int], ...]

# Elements of one block of columns: it stays in L2 between its copy and its product.
COLUMNS = 1 << 18

KEPT = 1 << 24  # bytes of padded blocks a thread keeps for the next call


def as_sizes(value: Any, rank: int, name: str) -> tuple[int, ...]:
    """An int or a sequence as one positive int per spatial axis.

    Raises:
        ValueError: for another length, or a size below 1.
    """
    sizes = (value,) * rank if isinstance(value, (int, np.integer)) else value
    if not isinstance(sizes, (tuple, list)) or len(sizes) != rank:
        raise ValueError(f"{name} must be an int or {rank} ints; received {value!r}.")
    for n in sizes:
        if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 1:
            raise ValueError(f"{name} must hold ints of at least 1; received {value!r}.")
    return tuple(int(n) for n in sizes)


def extent(kernel: int, dilation: int) -> int:
    """How far a dilated kernel reaches: (k - 1) * d + 1."""
    return (kernel - 1) * dilation + 1


def pads_of(
    padding: Any,
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilation: Sequence[int],
) -> Pads:
    """Zeros before and after each spatial axis.

    Args:
        padding: "valid" (none), "same" (the output has ceil(n / stride) elements; the odd zero
            comes last), "causal" (all before), or pairs as returned here.
    """
    if not isinstance(padding, str):
        return tuple((int(a), int(b)) for a, b in padding)
    name = padding.lower()
    if name == "valid":
        return ((0, 0),) * len(sizes)
    if name == "causal":
        return tuple((extent(k, d) - 1, 0) for k, d in zip(kernel, dilation, strict=True))
    if name != "same":
        raise ValueError(f'padding must be "valid", "same" or "causal"; received {padding!r}.')
    pads = []
    for n, k, s, d in zip(sizes, kernel, strides, dilation, strict=True):
        total = max((-(-n // s) - 1) * s + extent(k, d) - n, 0)
        pads.append((total // 2, total - total // 2))
    return tuple(pads)


def output_sizes(
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilation: Sequence[int],
    pads: Pads,
) -> tuple[int, ...]:
    """How many windows fit along each spatial axis; 0 or less where none does."""
    return tuple(
        (n + before + after - extent(k, d)) // s + 1
        for n, k, s, d, (before, after) in zip(sizes, kernel, strides, dilation, pads, strict=True)
    )


class Windows(NamedTuple):
    """Windows over images: number o along an axis begins at o * stride - before.

    Args:
        kernel: taps along each axis.
        strides: distance of neighbouring windows.
        dilation: distance of neighbouring taps.
        before: zeros in front of each axis; negative cuts elements off.
        out: number of windows along each axis.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    before: tuple[int, ...]
    out: tuple[int, ...]

    def reach(self, rows: slice) -> list[tuple[int, int]]:
        """The range of each spatial axis that the windows of some rows of the first one touch."""
        ranges = []
        for axis, (k, s, d, before, out) in enumerate(zip(*self, strict=True)):
            first, last = (rows.start, rows.stop - 1) if axis == 0 else (0, out - 1)
            ranges.append((first * s - before, last * s - before + extent(k, d)))
        return ranges

    def images_at_once(self, width: int, images: int) -> int:
        """How many whole images make one block of columns, of a batch of so many.

        At least eight blocks, for the threads, unless they would hold less than 32k elements each.
        """
        size = max(1, math.prod(self.out) * width)
        fit = (COLUMNS + size // 2) // size
        return max(1, min(fit, max(-(-images // 8), (1 << 15) // size)))

    def is_identity(self, sizes: Sequence[int]) -> bool:
        """Whether the columns are the pixels themselves: a 1x1 kernel that visits each once."""
        ones = (1,) * len(self.kernel)
        return (
            self.kernel == ones
            and self.strides == ones
            and not any(self.before)
            and self.out == tuple(sizes)
        )


class Located(NamedTuple):
    """Where the windows of a block of images are found.

    Args:
        padded: a buffer that takes the images between zeros; None if all windows lie inside them.
        inside: where in the buffer the images go.
        taken: which part of the images that is.
        strides: of the buffer, or of the images, in bytes.
        over: how far apart neighbouring windows are along each axis, in bytes.
        apart: how far apart neighbouring taps are.
        offset: where the first tap of the first window is.
    """

    padded: Array | None
    inside: tuple[slice, ...]
    taken: tuple[slice, ...]
    strides: tuple[int, ...]
    over: tuple[int, ...]
    apart: tuple[int, ...]
    offset: int


def located(
    windows: Windows, shape: tuple[int, ...], dtype: Any, channels: slice, images: int, rows: slice
) -> Located:
    """Find the windows of some rows of the first axis, over C-contiguous images.

    Args:
        windows: where the windows lie.
        shape: of the images, (batch, *spatial, channels).
        dtype: of the images.
        channels: the slice of channels to look at.
        images: how many there are in the block.
        rows: a range of the first axis of windows.
    """
    ranges, sizes, item = windows.reach(rows), shape[1:-1], np.dtype(dtype).itemsize
    padded: Array | None = None
    inside: tuple[slice, ...] = ()
    taken: tuple[slice, ...] = ()
    if all(a >= 0 and b <= n for (a, b), n in zip(ranges, sizes, strict=True)):
        steps = _steps((images, *shape[1:]), item)
        offset = sum(a * step for (a, _), step in zip(ranges, steps[1:], strict=False))
        offset += channels.start * item
    else:
        count = channels.stop - channels.start
        padded = np.zeros((images, *(b - a for a, b in ranges), count), dtype)
        _scratch.kept += padded.nbytes
        pairs = [overlap(a, b, size) for (a, b), size in zip(ranges, sizes, strict=True)]
        inside = (slice(None), *(pair[0] for pair in pairs))
        taken = (slice(None), *(pair[1] for pair in pairs), channels)
        steps, offset = padded.strides, 0
    over = tuple(s * step for s, step in zip(windows.strides, steps[1:], strict=False))
    apart = tuple(d * step for d, step in zip(windows.dilation, steps[1:], strict=False))
    return Located(padded, inside, taken, steps, over, apart, offset)


T = TypeVar("T")


class _Scratch(threading.local):
    """One buffer for the columns of a block, and what is known about blocks, per thread."""

    def __init__(self) -> None:
        self.buffer: Array = np.empty(0, np.uint8)
        self.known: dict[Any, Any] = {}
        self.kept = 0  # bytes of padded blocks


_scratch = _Scratch()


def kept_in_thread(key: Any, make: Callable[[], T]) -> T:
    """What `make` gave for the key in this thread before; all is made anew from time to time."""
    found = _scratch.known.get(key)
    if found is None:
        if len(_scratch.known) >= 64 or _scratch.kept > KEPT:
            _scratch.known.clear()
            _scratch.kept = 0
        found = _scratch.known[key] = make()
    return found


def columns_of(
    windows: Windows,
    shape: tuple[int, ...],
    dtype: Any,
    channels: slice | None = None,
    ones: bool = False,
) -> Columns:
    """The Columns for such images, those of the last call in this thread if they were alike."""
    taken = channels or slice(0, shape[-1])
    key = (windows, shape[1:], dtype, taken.start, taken.stop, ones)
    return kept_in_thread(key, lambda: Columns(windows, shape, dtype, taken, ones))


class Columns:
    """The windows of one block as rows of a matrix: (windows, taps * channels [+ 1]).

    All Columns of a thread fill the same buffer, so a matrix holds until the next one is filled.

    Args:
        windows: where the windows lie.
        shape: of the images, (batch, *spatial, channels).
        dtype: of the images.
        channels: the slice of channels to look at.
        ones: add a last column of ones: it turns a bias into one more row of the kernel.
    """

    def __init__(
        self, windows: Windows, shape: tuple[int, ...], dtype: Any, channels: slice, ones: bool
    ) -> None:
        self.windows = windows
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self.channels = channels
        self.count = channels.stop - channels.start
        # One element of the copy: a run of pixels where taps are neighbours, else one pixel. As one
        # opaque item it is copied by memcpy, 1.2 times faster than an inner loop over its numbers.
        whole = windows.dilation[-1] == 1 and self.count == shape[-1]
        self.taps = windows.kernel[:-1] if whole else windows.kernel
        run = self.count * (windows.kernel[-1] if whole else 1)
        self.item = np.dtype((np.void, run * self.dtype.itemsize))
        self.width = math.prod(windows.kernel) * self.count
        self.ones = ones
        self._buffer: Array | None = None
        self._layouts: dict[Any, tuple[Any, ...]] = {}
        self._chunks: dict[int, list[slice]] = {}

    def chunks(self, images: int) -> list[slice]:
        """The first axis of windows in parts whose columns fit, for so many images at a time."""
        if images not in self._chunks:
            self._chunks[images] = row_chunks(self.windows, self.width, images)
        return self._chunks[images]

    def fill(self, x: Array, rows: slice) -> Array:
        """The windows of some rows of the first axis as a matrix.

        Args:
            x: a few C-contiguous images.
            rows: a range of the first axis of windows.
        """
        key = (len(x), rows.start, rows.stop)
        if self._buffer is not _scratch.buffer or key not in self._layouts:
            self._lay_out(key, rows)
        matrix, place, ones, at, view, strides = self._layouts[key]
        if view is None:  # straight from x
            view = np.ndarray(place.shape, self.item, x, at.offset, strides)
        else:
            at.padded[at.inside] = x[at.taken]
        np.copyto(place, view)
        if ones is not None:
            ones[...] = 1
        return matrix

    def _lay_out(self, key: tuple[int, int, int], rows: slice) -> None:
        n = math.prod((key[0], key[2] - key[1], *self.windows.out[1:])) * (self.width + self.ones)
        if n * self.dtype.itemsize > _scratch.buffer.nbytes:
            _scratch.buffer = np.empty(n * self.dtype.itemsize, np.uint8)
        if self._buffer is not _scratch.buffer or len(self._layouts) >= 16:
            self._layouts.clear()
        self._buffer = _scratch.buffer
        self._layouts[key] = self._layout(key[0], rows)

    def _layout(self, n: int, rows: slice) -> tuple[Any, ...]:
        """Where a block of n images finds its windows and where it puts them."""
        windows, item = self.windows, self.dtype.itemsize
        out = (n, rows.stop - rows.start, *windows.out[1:])
        shape = (*out, *self.taps)
        total, width = math.prod(out), self.width + self.ones
        matrix: Array = np.ndarray((total, width), self.dtype, _scratch.buffer)
        to = _steps(out, width * item) + _steps(self.taps, self.item.itemsize)
        place: Array = np.ndarray(shape, self.item, matrix, 0, to)

        at = located(windows, self.shape, self.dtype, self.channels, n, rows)
        strides = (at.strides[0], *at.over, *at.apart[: len(self.taps)])
        view = None
        if at.padded is not None:
            view = np.ndarray(shape, self.item, at.padded, at.offset, strides)
        ones = matrix[:, -1] if self.ones else None
        return matrix, place, ones, at, view, strides


def _steps(shape: Sequence[int], item: int) -> tuple[int, ...]:
    """The strides of a C-contiguous array with items of so many bytes."""
    steps = [item]
    for n in shape[:0:-1]:
        steps.insert(0, steps[0] * n)
    return tuple(steps[: len(shape)])


def overlap(a: int, b: int, size: int) -> tuple[slice, slice]:
    """Where the range a..b meets 0..size: in the range's own numbers, and in the axis's."""
    first, last = max(a, 0), min(b, size)
    if first >= last:
        return slice(0, 0), slice(0, 0)
    return slice(first - a, last - a), slice(first, last)


def units_of(windows: Windows, images: int, width: int) -> list[tuple[slice, slice]]:
    """(images, rows) pairs, each one block of columns: several whole images, or rows of one."""
    rows = windows.out[0]
    chunks = row_chunks(windows, width)
    if len(chunks) == 1:
        blocks = blocks_of(images, windows.images_at_once(width, images))
        return [(block, slice(0, rows)) for block in blocks]
    return [(slice(i, i + 1), chunk) for i in range(images) for chunk in chunks]


def row_chunks(windows: Windows, width: int, images: int = 1) -> list[slice]:
    """The first axis of windows in even parts whose columns fit; whole up to twice that size."""
    size = images * math.prod(windows.out) * width
    return shares_of(windows.out[0], 1 if size <= 2 * COLUMNS else -(-size // COLUMNS))
