"""The products of a convolution by the compiled kernels, straight from the images: no columns."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np

from picodl import compiled
from picodl.compiled import address
from picodl.compiled.walk import RELU, Walk, copies_between, walk
from picodl.ops.windows import Windows, kept_in_thread, located
from picodl.typing import Array

_SHORTEST = 4  # pixels of a row of windows; shorter ones leave registers idle


def serves(windows: Windows, dtype: Any) -> bool:
    """Whether the compiled kernels walk over such windows."""
    return compiled.kernels is not None and dtype == np.float32 and windows.out[-1] >= _SHORTEST


def panels(matrix: Array) -> Array:
    """(n, filters) cut into panels of a vector of filters each, (panels, n, vector)."""
    filled = whole_vectors(matrix)
    parts = filled.reshape(len(matrix), -1, compiled.kernels.vector)
    return np.ascontiguousarray(parts.transpose(1, 0, 2))


def whole_vectors(x: Array) -> Array:
    """The array with zeros after its last axis, up to a multiple of the vector's length."""
    length, vector = x.shape[-1], compiled.kernels.vector
    if length % vector == 0 and x.strides[-1] == 4:
        return x
    filled = np.zeros((*x.shape[:-1], -(-length // vector) * vector), np.float32)
    filled[..., :length] = x
    return filled


class Slides:
    """The windows of one block as the compiled kernels find them.

    Args:
        windows: where the windows lie.
        shape: of the images, (batch, *spatial, channels).
        channels: the slice of channels to look at.
    """

    def __init__(self, windows: Windows, shape: tuple[int, ...], channels: slice) -> None:
        self.windows, self.shape, self.channels = windows, shape, channels
        count = channels.stop - channels.start
        self.length = math.prod(windows.kernel) * count
        self._walks: dict[Any, tuple[Walk, Array | None]] = {}

    def multiply(
        self, x: Array, rows: slice, panel: Array, out: Array, bias: Any = None, relu: bool = False
    ) -> None:
        """out = f(the windows of x times a kernel, plus a bias).

        Args:
            x: a few C-contiguous images.
            rows: a range of the first axis of windows.
            panel: the kernel's matrix as `panels` gives it.
            out: (images, *windows, filters), neighbouring filters next to each other.
            bias: in whole vectors, or None.
            relu: whether f is relu; else nothing is done.
        """
        way, padded = self._walk(x, rows, out)
        _, length, vector = panel.shape
        compiled.kernels.convolve(
            *(ctypes.byref(way), address(x), None if padded is None else address(padded)),
            *(address(panel), vector, length * vector, None if bias is None else address(bias)),
            *(address(out), out.shape[-1], RELU if relu else 0),
        )

    def add_products(self, x: Array, rows: slice, h: Array, total: Array) -> None:
        """total += the windows of x, transposed, times h, and the sums of h.

        Args:
            x, rows: as above.
            h: (images, *windows, filters), filters in whole vectors.
            total: (taps * channels + 1, filters).
        """
        way, padded = self._walk(x, rows, h)
        compiled.kernels.convolve_kernel(
            *(ctypes.byref(way), address(x), None if padded is None else address(padded)),
            *(address(h), address(total), address(total[-1]), h.shape[-1]),
        )

    def _walk(self, x: Array, rows: slice, y: Array) -> tuple[Walk, Array | None]:
        """How to walk from x to y, and the buffer that this takes."""
        key = (len(x), rows.start, rows.stop, y.strides)
        found = self._walks.get(key)
        if found is None:
            if len(self._walks) >= 16:
                self._walks.clear()
            found = self._walks[key] = self._way(x, rows, y)
        return found

    def _way(self, x: Array, rows: slice, y: Array) -> tuple[Walk, Array | None]:
        windows = self.windows
        at = located(windows, self.shape, np.float32, self.channels, len(x), rows)
        count = self.channels.stop - self.channels.start
        whole = windows.dilation[-1] == 1 and at.strides[-2] == 4 * count
        taps = windows.kernel[:-1] if whole else windows.kernel
        copies = None
        if at.padded is not None:
            copies = copies_between(x, at.taken, at.padded, at.inside)
        way = walk(
            (len(x), rows.stop - rows.start, *windows.out[1:]),
            (at.strides[0], *at.over),
            y.strides[:-1],
            taps,
            at.apart[: len(taps)],
            count * (windows.kernel[-1] if whole else 1),
            at.offset,
            copies,
        )
        return way, at.padded


def slides_of(windows: Windows, shape: tuple[int, ...], channels: slice) -> Slides:
    """The Slides for such images, those of the last call in this thread if they were alike."""
    key = (windows, shape[1:], channels.start, channels.stop)
    return kept_in_thread(key, lambda: Slides(windows, shape, channels))


def kernel_products(h: Array, slides: Slides, x: Array, rows: slice, total: Array | None) -> Array:
    """total + the windows of x, transposed, times h, with the sums of h as a last row.

    Args:
        h: the output's gradient, (images, *windows, filters).
        slides, x, rows: the windows.
        total: of the blocks before, which is written into; None for the first.

    Returns: (taps * channels + 1, filters), filters in whole vectors.
    """
    h = whole_vectors(h)
    if total is None:
        total = np.zeros((slides.length + 1, h.shape[-1]), np.float32)
    slides.add_products(x, rows, h, total)
    return total
