"""Depthwise convolutions: every channel has taps of its own and meets no other channel.

The sum over taps is one `einsum` on a view of the windows: its inner loop multiplies and adds in
one pass over whole rows of pixels, in half the time of a loop of multiply and add over the taps.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from ctypes import byref
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from picodl import compiled, config
from picodl.compiled import address
from picodl.compiled.walk import walk
from picodl.ops.activation import Pair
from picodl.ops.conv_plan import Convolution, phases, plan_of
from picodl.ops.convolution import column_sums, finish_block
from picodl.ops.core import op
from picodl.ops.shape import moveaxis, pad, repeat, reshape
from picodl.ops.windows import Windows, overlap
from picodl.parallel import map_blocks, parts_of, sum_blocks
from picodl.tensor import Tensor, record
from picodl.typing import Array


@op
def depthwise_conv(
    inputs: Tensor,
    kernel: Tensor,
    strides: int | Sequence[int] = 1,
    padding: Any = "valid",
    data_format: str | None = None,
    dilation_rate: int | Sequence[int] = 1,
    bias: Tensor | None = None,
    pair: Any = None,
) -> Tensor:
    """Convolution of each channel by itself: y[., c m + j] = f(sum of x[., c] w[t, c, j] + b).

    Args: as for `conv`.
    Shapes: inputs (batch, *sizes, n), kernel (*k, n, m), bias (n m,) -> (batch, *out, n m).
    Raises:
        ValueError: if ranks or channels do not fit, or no window fits into the input.
    Gradient: as for `conv`, channel by channel.
    """
    if config.standardize_data_format(data_format) == "channels_first":
        x = moveaxis(inputs, 1, -1)
        y = depthwise_conv(x, kernel, strides, padding, "channels_last", dilation_rate, bias, pair)
        return moveaxis(y, -1, 1)
    *taps, channels, multiplier = kernel.shape
    if channels != inputs.shape[-1]:
        raise ValueError(
            f"depthwise_conv: the kernel of shape {kernel.shape} is for {channels} channels, but "
            f"received inputs of shape {inputs.shape}."
        )
    if multiplier > 1:
        inputs = repeat(inputs, multiplier, -1)
    flat = (*taps, channels * multiplier)
    plan = plan_of(inputs.shape, (*taps, 1, flat[-1]), strides, padding, dilation_rate)
    return _depthwise(inputs, reshape(kernel, flat), bias, plan, pair)


@op
def separable_conv(
    inputs: Tensor,
    depthwise_kernel: Tensor,
    pointwise_kernel: Tensor,
    strides: int | Sequence[int] = 1,
    padding: Any = "valid",
    data_format: str | None = None,
    dilation_rate: int | Sequence[int] = 1,
    bias: Tensor | None = None,
    pair: Any = None,
) -> Tensor:
    """A depthwise convolution, then a 1x1 convolution that mixes the channels.

    Args: as for `conv`; strides and dilation belong to the first of the two.
    Shapes: inputs (batch, *sizes, n), depthwise_kernel (*k, n, m), pointwise_kernel
    (1, ..., n m, f), bias (f,) -> (batch, *out, f).
    Gradient: that of the two, one after the other.
    """
    from picodl.ops.conv import conv

    x = depthwise_conv(inputs, depthwise_kernel, strides, padding, data_format, dilation_rate)
    return conv(x, pointwise_kernel, 1, "valid", data_format, 1, bias, pair)


def _depthwise(
    x: Tensor, kernel: Tensor, bias: Tensor | None, plan: Convolution, pair: Pair | None
) -> Tensor:
    """The convolution with a kernel of shape (*k, n)."""
    dtype = np.result_type(x.data, kernel.data)
    a, w = np.ascontiguousarray(x.data, dtype), np.ascontiguousarray(kernel.data, dtype)
    windows = plan.windows
    y = np.empty((len(a), *windows.out, plan.channels), dtype)
    blocks = parts_of(len(a), math.prod(windows.out) * plan.channels)
    saved: list[Any] = [None] * len(blocks)
    work = y.size * plan.taps * 2e-4

    def forward(number: int) -> None:
        z = y[blocks[number]]
        _taps_times(_windows(a[blocks[number]], windows), w, windows, z)
        saved[number] = finish_block(z, None if bias is None else bias.data, pair)

    map_blocks(forward, range(len(blocks)), work)

    def backward(g: Any) -> Any:
        g = np.ascontiguousarray(g, dtype)
        dx = None
        if x.requires_grad:
            walks = phases(windows, plan.sizes)
            covered = sum(math.prod(walk.windows.out) for walk in walks) == math.prod(plan.sizes)
            dx = np.empty_like(a) if covered else np.zeros_like(a)

        def back(number: int) -> Array:
            images = blocks[number]
            h = g[images] if pair is None else pair.backward(g[images], saved[number])
            if dx is not None:
                _input_gradient(h, w, plan, dx[images])
            found = np.empty((plan.taps + 1, plan.channels), dtype)
            found[:-1] = _kernel_gradient(_windows(a[images], windows), h, windows)
            found[-1] = column_sums(h)
            return found

        if not blocks:
            return (dx, np.zeros_like(w), *([] if bias is None else [np.zeros_like(bias.data)]))
        total = sum_blocks(back, range(len(blocks)), 3 * work)
        dw = total[:-1].reshape(w.shape)
        return (dx, dw) if bias is None else (dx, dw, total[-1])

    def composed(x: Any, kernel: Any, bias: Any = None) -> Any:
        z = _out_of_taps(x, kernel, plan)
        z = z if bias is None else z + bias
        return z if pair is None else pair.composed(z)

    backward.__qualname__ = "depthwise_conv"
    inputs = (x, kernel) if bias is None else (x, kernel, bias)
    return record(y, inputs, backward, composed)


def _windows(x: Array, windows: Windows) -> Array:
    """A view of shape (*taps, images, *out, channels) on the images, with zeros around them."""
    ranges = windows.reach(slice(0, windows.out[0]))
    sizes = x.shape[1:-1]
    if all(a >= 0 and b <= n for (a, b), n in zip(ranges, sizes, strict=True)):
        source = x[(slice(None), *(slice(a, b) for a, b in ranges))]
    else:
        source = np.zeros((len(x), *(b - a for a, b in ranges), x.shape[-1]), x.dtype)
        pairs = [overlap(a, b, n) for (a, b), n in zip(ranges, sizes, strict=True)]
        inside, taken = zip(*pairs, strict=True)
        source[(slice(None), *inside)] = x[(slice(None), *taken)]
    steps = source.strides[1:-1]
    taps = tuple(d * step for d, step in zip(windows.dilation, steps, strict=True))
    over = tuple(s * step for s, step in zip(windows.strides, steps, strict=True))
    return as_strided(
        source,
        (*windows.kernel, len(x), *windows.out, x.shape[-1]),
        (*taps, source.strides[0], *over, source.strides[-1]),
        writeable=False,
    )


def _merged(view: Array, windows: Windows) -> tuple[Array, str, str, int]:
    """The view with pixels of a row joined where they lie together, and letters for its axes."""
    rank = len(windows.kernel)
    taps, rest = "abc"[:rank], "nxyz"[: rank + 1]
    wide = windows.out[-1] if windows.strides[-1] == 1 else 1
    if wide > 1:
        steps = (*view.strides[:-2], view.strides[-1])
        view = as_strided(view, (*view.shape[:-2], wide * view.shape[-1]), steps, writeable=False)
        rest = rest[:-1]
    return view, taps, rest + "k", wide


def _taps_times(view: Array, w: Array, windows: Windows, out: Array) -> None:
    """out = sum over taps of view * w."""
    if _compiled("depthwise", view, windows, out, w, out):
        return
    view, taps, rest, wide = _merged(view, windows)
    if wide > 1:
        w = np.tile(w, wide)
        out = out.reshape(*out.shape[:-2], -1)
    np.einsum(f"{taps}{rest},{taps}k->{rest}", view, w, out=out)


def _compiled(name: str, view: Array, windows: Windows, pixels: Array, *arrays: Array) -> bool:
    """Whether a compiled kernel did it, which wants whole vectors of float32 channels."""
    kernels, channels = compiled.kernels, view.shape[-1]
    if kernels is None or view.dtype != np.float32 or channels % kernels.vector:
        return False
    rank = len(windows.kernel)
    way = walk(
        pixels.shape[:-1],
        view.strides[rank:-1],
        pixels.strides[:-1],
        windows.kernel,
        view.strides[:rank],
    )
    getattr(kernels, name)(byref(way), *map(address, (view, *arrays)), channels)
    return True


def _kernel_gradient(view: Array, h: Array, windows: Windows) -> Array:
    """The sum over pixels of view * h, one row for each tap.

    Tap by tap, so that the sums of one stay in L1: two thirds of the time of a single einsum.
    """
    channels = h.shape[-1]
    dw = np.zeros((math.prod(windows.kernel), channels), h.dtype)
    if _compiled("depthwise_kernel", view, windows, h, h, dw):
        return dw
    view, _, rest, wide = _merged(view, windows)
    if wide > 1:
        h = h.reshape(*h.shape[:-2], -1)
    places = np.ndindex(*windows.kernel)
    dw = np.stack([np.einsum(f"{rest},{rest}->k", view[place], h) for place in places])
    return dw.reshape(-1, wide, channels).sum(1)


def _input_gradient(h: Array, w: Array, plan: Convolution, dx: Array) -> None:
    for pixels, taps, windows in phases(plan.windows, plan.sizes):
        place = dx[(slice(None), *pixels)]
        part = place if place.flags.c_contiguous else np.empty(place.shape, dx.dtype)
        _taps_times(_windows(h, windows), np.ascontiguousarray(w[taps]), windows, part)
        if part is not place:
            place[...] = part


def _out_of_taps(x: Any, kernel: Any, plan: Convolution) -> Any:
    """The convolution out of ops that can be differentiated again."""
    windows = plan.windows
    ranges = windows.reach(slice(0, windows.out[0]))
    before = [max(-a, 0) for a, _ in ranges]
    after = [max(b - n, 0) for (_, b), n in zip(ranges, plan.sizes, strict=True)]
    x = pad(x, [(0, 0), *zip(before, after, strict=True), (0, 0)])
    total: Any = None
    for place in itertools.product(*map(range, windows.kernel)):
        at = [slice(None)]
        for t, s, d, o, (a, _), extra in zip(
            place, *windows[1:3], windows.out, ranges, before, strict=True
        ):
            first = a + extra + t * d
            at.append(slice(first, first + (o - 1) * s + 1, s))
        part = x[tuple(at)] * kernel[place]
        total = part if total is None else total + part
    return total
