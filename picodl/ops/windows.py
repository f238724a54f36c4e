"""Sliding windows over images: their sizes, and their contents as the rows of a matrix.

All of it works on arrays of shape (batch, *spatial, channels), with any number of spatial axes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from picodl.parallel import blocks_of, shares_of
from picodl.typing import Array

Pads = tuple[tuple[int, int], ...]

# Elements of one block of columns: it stays in L2 between its copy and its product.
COLUMNS = 1 << 18


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
    if padding == "valid":
        return ((0, 0),) * len(sizes)
    if padding == "causal":
        return tuple((extent(k, d) - 1, 0) for k, d in zip(kernel, dilation, strict=True))
    if padding != "same":
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

    def images_at_once(self, width: int) -> int:
        """How many whole images make one block of columns."""
        return max(1, COLUMNS // max(1, math.prod(self.out) * width))

    def is_identity(self, sizes: Sequence[int]) -> bool:
        """Whether the columns are the pixels themselves: a 1x1 kernel that visits each once."""
        ones = (1,) * len(self.kernel)
        return (
            self.kernel == ones
            and self.strides == ones
            and not any(self.before)
            and self.out == tuple(sizes)
        )


class Columns:
    """A buffer that holds the windows of one block as rows: (windows, taps * channels [+ 1]).

    Args:
        windows: where the windows lie.
        shape: of the images, (batch, *spatial, channels).
        dtype: of the images.
        channels: the slice of channels to look at. Defaults to all.
        ones: add a last column of ones: it turns a bias into one more row of the kernel.
    """

    def __init__(
        self,
        windows: Windows,
        shape: tuple[int, ...],
        dtype: Any,
        channels: slice | None = None,
        ones: bool = False,
    ) -> None:
        self.windows = windows
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self.channels = channels or slice(0, shape[-1])
        self.count = self.channels.stop - self.channels.start
        # One element of the copy: a run of pixels where taps are neighbours, else one pixel. As one
        # opaque item it is copied by memcpy, 1.2 times faster than an inner loop over its numbers.
        whole = windows.dilation[-1] == 1 and self.count == shape[-1]
        self.taps = windows.kernel[:-1] if whole else windows.kernel
        run = self.count * (windows.kernel[-1] if whole else 1)
        self.item = np.dtype((np.void, run * self.dtype.itemsize))
        self.width = math.prod(windows.kernel) * self.count
        self.ones = ones
        self._buffer: Array | None = None
        self._recent: tuple[Any, ...] = (None,)

    def fill(self, x: Array, rows: slice) -> Array:
        """The windows of some rows of the first axis as a matrix, which the next call overwrites.

        Args:
            x: a few C-contiguous images.
            rows: a range of the first axis of windows.
        """
        key = (len(x), rows.start, rows.stop)
        if self._recent[0] != key:  # blocks are alike, so nearly everything is known from the last
            self._recent = (key, *self._layout(len(x), rows))
        _, matrix, place, padded, inside, taken, view, strides, offset = self._recent
        if view is None:  # straight from x
            view = np.ndarray(place.shape, self.item, x, offset, strides)
        else:
            padded[inside] = x[taken]
        np.copyto(place, view)
        return matrix

    def _layout(self, n: int, rows: slice) -> tuple[Any, ...]:
        """Where a block of n images finds its windows and where it puts them."""
        windows, item = self.windows, self.dtype.itemsize
        out = (n, rows.stop - rows.start, *windows.out[1:])
        shape = (*out, *self.taps)
        total, width = math.prod(out), self.width + self.ones
        if self._buffer is None or len(self._buffer) < total:
            self._buffer = np.empty((total, width), self.dtype)
            if self.ones:
                self._buffer[:, -1] = 1
        matrix = self._buffer[:total]
        to = _steps(out, width * item) + _steps(self.taps, self.item.itemsize)
        place: Array = np.ndarray(shape, self.item, matrix, 0, to)

        ranges = windows.reach(rows)
        sizes = self.shape[1:-1]
        inside, taken, padded, view = None, None, None, None
        if all(a >= 0 and b <= n for (a, b), n in zip(ranges, sizes, strict=True)):
            steps = _steps((n, *self.shape[1:]), item)
            offset = sum(a * step for (a, _), step in zip(ranges, steps[1:], strict=False))
            offset += self.channels.start * item
        else:
            padded = np.zeros((n, *(b - a for a, b in ranges), self.count), self.dtype)
            pairs = [overlap(a, b, size) for (a, b), size in zip(ranges, sizes, strict=True)]
            inside = (slice(None), *(pair[0] for pair in pairs))
            taken = (slice(None), *(pair[1] for pair in pairs), self.channels)
            steps, offset = padded.strides, 0
        over = [s * step for s, step in zip(windows.strides, steps[1:], strict=False)]
        apart = [d * step for d, step in zip(windows.dilation, steps[1:], strict=False)]
        strides = (steps[0], *over, *apart[: len(self.taps)])
        if padded is not None:
            view = np.ndarray(shape, self.item, padded, offset, strides)
        return matrix, place, padded, inside, taken, view, strides, offset


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
        blocks = blocks_of(images, windows.images_at_once(width))
        return [(block, slice(0, rows)) for block in blocks]
    return [(slice(i, i + 1), chunk) for i in range(images) for chunk in chunks]


def row_chunks(windows: Windows, width: int, images: int = 1) -> list[slice]:
    """The first axis of windows in even parts whose columns fit; whole up to twice that size."""
    size = images * math.prod(windows.out) * width
    return shares_of(windows.out[0], 1 if size <= 2 * COLUMNS else -(-size // COLUMNS))
