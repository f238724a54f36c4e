"""How the compiled kernels walk over windows: the structure Walk of common.h."""

from __future__ import annotations

import ctypes
import functools
from typing import Any, NamedTuple

import numpy as np

from picodl.typing import Array

MORE, RELU = 1, 2  # what convolve does besides: add to what is there, cut off below 0
_pointer, _integer = ctypes.c_void_p, ctypes.c_int64


class Walk(ctypes.Structure):
    """The fields of the C structure, and the arrays that they point to."""

    _fields_ = [
        *((name, _pointer) for name in ("x_rows", "y_rows", "taps", "source", "to")),
        *((name, _integer) for name in ("rows", "pixels", "x_step", "y_step")),
        *((name, _integer) for name in ("tap_count", "run", "copies", "length")),
    ]
    arrays: tuple[Array, ...]


class Copies(NamedTuple):
    """Which pieces of an array go into a buffer of zeros, in floats."""

    source: tuple[int, ...]
    to: tuple[int, ...]
    length: int


@functools.lru_cache(maxsize=256)
def walk(
    shape: tuple[int, ...],
    over: tuple[int, ...],
    steps: tuple[int, ...],
    taps: tuple[int, ...],
    apart: tuple[int, ...],
    run: int = 1,
    offset: int = 0,
    copies: Copies | None = None,
) -> Walk:
    """The walk over some windows.

    Args:
        shape: of the windows, (images, *windows).
        over: how far apart neighbouring ones are in the input, in bytes.
        steps: the same in the output.
        taps: how many runs of neighbouring inputs a window has along each axis.
        apart: how far apart these are.
        run: numbers in one of them.
        offset: where the first window begins, in bytes.
        copies: what has to be copied first.
    """
    arrays = [
        starts(shape[:-1], over[:-1]) + offset // 4,
        starts(shape[:-1], steps[:-1]),
        starts(taps, apart),
        np.array(copies.source if copies else (), np.int64),
        np.array(copies.to if copies else (), np.int64),
    ]
    found = Walk(
        *(array.ctypes.data for array in arrays),
        *(len(arrays[0]), shape[-1], over[-1] // 4, steps[-1] // 4),
        *(len(arrays[2]), run, len(arrays[3]), copies.length if copies else 0),
    )
    found.arrays = tuple(arrays)
    return found


def starts(shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    """Where the elements of an array with such strides in bytes lie, in floats."""
    found = np.zeros((), np.int64)
    for n, stride in zip(shape, strides, strict=True):
        found = found[..., None] + np.arange(n) * (stride // 4)
    return found.reshape(-1)


def copies_between(source: Array, taken: Any, target: Array, inside: Any) -> Copies:
    """The pieces of target[inside] = source[taken], images with neighbouring channels."""
    a, b = source[taken], target[inside]
    length, axes = a.shape[-1], a.ndim - 1
    if a.strides[-2] == b.strides[-2] == 4 * length:  # whole rows of pixels
        length, axes = length * a.shape[-2], axes - 1
    places = (starts(part.shape[:axes], part.strides[:axes]) for part in (a, b))
    first = (
        (part.ctypes.data - whole.ctypes.data) // 4 for part, whole in ((a, source), (b, target))
    )
    source_at, target_at = (
        tuple((place + at).tolist()) for place, at in zip(places, first, strict=True)
    )
    return Copies(source_at, target_at, length)
