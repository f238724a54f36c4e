"""The products of a convolution by the compiled kernels, straight from the images: no columns."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from picodl import compiled
from picodl.compiled import address
from picodl.ops.windows import Located, Windows, kept_in_thread, located, starts
from picodl.typing import Array

_SHORTEST = 4  # pixels of a row of windows; shorter ones leave registers idle


def serves(windows: Windows, dtype: Any) -> bool:
    """Whether the compiled kernels walk over such windows."""
    return compiled.kernels is not None and dtype == np.float32 and windows.out[-1] >= _SHORTEST


def panels(matrix: Array) -> Array:
    """(n, filters) cut into panels of a vector of filters each, (panels, n, vector)."""
    n, filters = matrix.shape
    vector = compiled.kernels.vector
    out = np.zeros((n, -(-filters // vector) * vector), np.float32)
    out[:, :filters] = matrix
    return np.ascontiguousarray(out.reshape(n, -1, vector).transpose(1, 0, 2))


class _Place(NamedTuple):
    at: Located
    rows: Array  # where the rows of windows begin, in elements
    step: int  # from a pixel to the next
    taps: Array  # where the runs of neighbouring taps begin
    run: int  # elements of a run


class Slides:
    """The windows of one block as the compiled kernels find them.

    Args:
        windows: where the windows lie.
        shape: of the images, (batch, *spatial, channels).
        channels: the slice of channels to look at.
    """

    def __init__(self, windows: Windows, shape: tuple[int, ...], channels: slice) -> None:
        self.windows, self.shape, self.channels = windows, shape, channels
        self._places: dict[Any, _Place] = {}

    def multiply(self, x: Array, rows: slice, panel: Array, out: Array) -> None:
        """out = the windows of x times a kernel.

        Args:
            x: a few C-contiguous images.
            rows: a range of the first axis of windows.
            panel: the kernel's matrix as `panels` gives it.
            out: (images, *windows, filters), neighbouring filters next to each other.
        """
        place, source = self._find(x, rows)
        to, step = starts(out.shape[:-2], out.strides[:-2]), out.strides[-2] // 4
        compiled.kernels.convolve(
            *(address(source), address(panel), address(out)),
            *(address(place.rows), address(to), len(to)),
            *(out.shape[-2], place.step, step, address(place.taps), len(place.taps), place.run),
            *(out.shape[-1], panel.shape[2], panel.shape[1] * panel.shape[2], 0),
        )

    def add_products(self, x: Array, rows: slice, h: Array, total: Array) -> None:
        """total += the windows of x, transposed, times h.

        Args:
            x, rows: as above.
            h: (images, *windows, filters), filters a multiple of the vector.
            total: (taps * channels, filters).
        """
        place, source = self._find(x, rows)
        of_h, step = starts(h.shape[:-2], h.strides[:-2]), h.strides[-2] // 4
        compiled.kernels.convolve_kernel(
            *(address(source), address(h), address(total)),
            *(address(place.rows), address(of_h), len(of_h)),
            *(h.shape[-2], place.step, step, address(place.taps), len(place.taps), place.run),
            h.shape[-1],
        )

    def _find(self, x: Array, rows: slice) -> tuple[_Place, Array]:
        """Where the windows are, and the array that holds them from there on."""
        key = (len(x), rows.start, rows.stop)
        place = self._places.get(key)
        if place is None:
            if len(self._places) >= 16:
                self._places.clear()
            place = self._places[key] = self._place(len(x), rows)
        if place.at.padded is None:
            return place, x
        place.at.padded[place.at.inside] = x[place.at.taken]
        return place, place.at.padded

    def _place(self, images: int, rows: slice) -> _Place:
        windows = self.windows
        at = located(windows, self.shape, np.float32, self.channels, images, rows)
        out = (images, rows.stop - rows.start, *windows.out[1:])
        begin = starts(out[:-1], (at.strides[0], *at.over[:-1])) + at.offset // 4
        count = self.channels.stop - self.channels.start
        whole = windows.dilation[-1] == 1 and at.strides[-2] == 4 * count
        kernel = windows.kernel[:-1] if whole else windows.kernel
        run = count * (windows.kernel[-1] if whole else 1)
        taps = starts(kernel, at.apart[: len(kernel)])
        return _Place(at, begin, at.over[-1] // 4, taps, run)


def slides_of(windows: Windows, shape: tuple[int, ...], channels: slice) -> Slides:
    """The Slides for such images, those of the last call in this thread if they were alike."""
    key = (windows, shape[1:], channels.start, channels.stop)
    return kept_in_thread(key, lambda: Slides(windows, shape, channels))


def kernel_products(h: Array, slides: Slides, x: Array, rows: slice, total: Any) -> Array:
    """total + the windows of x, transposed, times h; total may be None, else it is written into.

    Its filters are filled up to whole vectors.
    """
    filters, vector = h.shape[-1], compiled.kernels.vector
    wide = -(-filters // vector) * vector
    if wide != filters or h.strides[-1] != 4:
        filled = np.zeros((*h.shape[:-1], wide), np.float32)
        filled[..., :filters] = h
        h = filled
    if total is None:
        count = slides.channels.stop - slides.channels.start
        total = np.zeros((math.prod(slides.windows.kernel) * count, wide), np.float32)
    slides.add_products(x, rows, h, total)
    return total
