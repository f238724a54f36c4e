"""What is known of a convolution before the numbers: shapes, windows, blocks and phases."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any, NamedTuple

import numpy as np

from picodl.ops.conv_direct import serves
from picodl.ops.windows import (
    Columns,
    Windows,
    as_sizes,
    columns_of,
    extent,
    output_sizes,
    pads_of,
    units_of,
)
from picodl.typing import Array


class Convolution(NamedTuple):
    """What is known before the numbers: shapes and windows of a convolution.

    Args:
        windows: over the input's spatial axes.
        sizes: of these axes.
        channels: of the input.
        filters: of the output.
        groups: the channels and the filters fall into this many groups that do not meet.
    """

    windows: Windows
    sizes: tuple[int, ...]
    channels: int
    filters: int
    groups: int

    def channel_slices(self) -> list[slice]:
        n = self.channels // self.groups
        return [slice(g * n, (g + 1) * n) for g in range(self.groups)]

    def filter_slices(self) -> list[slice]:
        n = self.filters // self.groups
        return [slice(g * n, (g + 1) * n) for g in range(self.groups)]

    def units(self, images: int, dtype: Any, both_ways: bool = False) -> list[tuple[slice, slice]]:
        """The blocks of a walk over the windows of so many images.

        Args:
            images: the size of the batch.
            dtype: of the arrays.
            both_ways: make them small enough for the walk over the output as well.
        """
        if serves(self.windows, dtype):
            width = math.prod(self.windows.strides) * self.channels + self.filters
            return units_of(self.windows, images, width)
        width = self.taps * self.channels
        if both_ways:
            width = max(width, self.taps * self.filters // math.prod(self.windows.strides))
        return units_of(self.windows, images, width // self.groups)

    def pairs_pay(self, dtype: Any) -> bool:
        """Whether to make two neighbouring windows of a row at once, from one longer window.

        With few channels the columns are what takes the time; a row of both holds a third less, and
        the product, though a third longer, is faster: 1.4 times in all for one channel, 1.25 for
        three. It serves first layers, whose input needs no gradient.
        """
        windows = self.windows
        return (
            not serves(windows, dtype)
            and self.groups == 1
            and self.channels * windows.kernel[-1] <= 16
            and windows.kernel[-1] > 1
            and windows.strides[-1] == windows.dilation[-1] == 1
            and windows.out[-1] % 2 == 0
        )

    def in_pairs(self) -> Convolution:
        """The convolution whose outputs are pairs of neighbouring outputs of this one."""
        kernel, strides, dilation, before, out = self.windows
        windows = Windows(
            (*kernel[:-1], kernel[-1] + 1),
            (*strides[:-1], 2),
            dilation,
            before,
            (*out[:-1], out[-1] // 2),
        )
        return self._replace(windows=windows, filters=2 * self.filters)

    @property
    def taps(self) -> int:
        return math.prod(self.windows.kernel)

    def columns(self, block: Array, bias: bool) -> list[Columns]:
        """Buffers for the windows of such a block, one per group, with ones for a bias."""
        ones = bias and not self.is_pointwise()
        slices = self.channel_slices()
        return [columns_of(self.windows, block.shape, block.dtype, c, ones) for c in slices]

    def is_pointwise(self) -> bool:
        """Whether the columns are the pixels themselves, so that nothing need be copied."""
        return self.windows.is_identity(self.sizes)

    def work(self, images: int) -> float:
        """Microseconds of one product, roughly: 100 GFLOP/s and a nanosecond per copied number."""
        columns = images * math.prod(self.windows.out) * self.taps * self.channels // self.groups
        return columns * (self.filters * 2e-5 + 1e-3)


def paired_kernel(kernel: Array) -> Array:
    """The kernel of `in_pairs`: itself for the first of a pair, one tap further for the second."""
    *rest, taps, channels, filters = kernel.shape
    wide = np.zeros((*rest, taps + 1, channels, 2, filters), kernel.dtype)
    wide[..., :taps, :, 0, :] = kernel
    wide[..., 1:, :, 1, :] = kernel
    return wide.reshape(*rest, taps + 1, channels, 2 * filters)


def unpaired_kernel(gradient: Array) -> Array:
    """The kernel's gradient from that of `paired_kernel`."""
    *rest, taps, channels, filters = gradient.shape
    wide = gradient.reshape(*rest, taps, channels, 2, filters // 2)
    return wide[..., :-1, :, 0, :] + wide[..., 1:, :, 1, :]


class Phase(NamedTuple):
    """The input pixels of one remainder modulo the strides, and the taps that meet them."""

    pixels: tuple[slice, ...]
    taps: tuple[slice, ...]
    windows: Windows


@functools.lru_cache(maxsize=256)
def phases(windows: Windows, sizes: tuple[int, ...]) -> list[Phase]:
    """One stride-1 walk over the output for each remainder; none where no tap meets a pixel.

    Pixel i = r + q * s meets tap t of window o where o * s + t * d = i + before: taps t0,
    t0 + step, ... with step = s / gcd(s, d), each window further down than the last.
    """
    choices = []
    for n, k, s, d, before in zip(sizes, *windows[:4], strict=True):
        axis = []
        for r in range(min(s, n)):
            taps = [t for t in range(k) if (t * d - r - before) % s == 0]
            if taps:
                step = s // math.gcd(s, d)
                first = (r + before - taps[-1] * d) // s
                reversed_taps = slice(taps[-1], taps[0] - 1 if taps[0] else None, -step)
                axis.append(
                    (
                        slice(r, n, s),
                        reversed_taps,
                        len(taps),
                        d * step // s if len(taps) > 1 else 1,
                        -first,
                        -(-(n - r) // s),
                    )
                )
        choices.append(axis)
    found = []
    for pick in itertools.product(*choices):
        pixels, taps, kernel, dilation, before, out = zip(*pick, strict=True)
        ones = (1,) * len(sizes)
        found.append(Phase(pixels, taps, Windows(kernel, ones, dilation, before, out)))
    return found


def _hashable(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(_hashable(v) for v in value)
    return value


def plan_of(shape: Any, kernel: Any, strides: Any, padding: Any, dilation: Any) -> Convolution:
    """The plan of a convolution over arrays of this shape (batch, *spatial, channels), kept."""
    return _cached_plan(
        shape[1:], kernel, _hashable(strides), _hashable(padding), _hashable(dilation)
    )


@functools.lru_cache(maxsize=512)
def _cached_plan(
    shape: tuple[int, ...], kernel: tuple[int, ...], strides: Any, padding: Any, dilation: Any
) -> Convolution:
    rank = len(kernel) - 2
    if rank < 1 or len(shape) != rank + 1:
        raise ValueError(
            f"conv expects inputs of rank {rank + 2} for a kernel of shape {kernel} "
            f"(sizes, input channels, filters); received inputs of shape (batch, "
            f"{', '.join(map(str, shape))})."
        )
    sizes, channels = shape[:-1], shape[-1]
    taps, per_group, filters = kernel[:-2], kernel[-2], kernel[-1]
    groups = channels // per_group if per_group else 0
    if groups < 1 or channels != groups * per_group or filters % groups:
        raise ValueError(
            f"conv: a kernel of shape {kernel} takes {per_group} channels per group, but the "
            f"inputs have {channels} channels and the kernel {filters} filters. Both must be "
            "multiples of the number of groups."
        )
    s, d = as_sizes(strides, rank, "strides"), as_sizes(dilation, rank, "dilation_rate")
    pads = pads_of(padding, sizes, taps, s, d)
    out = output_sizes(sizes, taps, s, d, pads)
    if min(out) < 1:
        reach = tuple(extent(k, e) for k, e in zip(taps, d, strict=True))
        raise ValueError(
            f"conv: a kernel of size {taps} (reaching over {reach} with its dilation) does not fit "
            f"into inputs of size {sizes} with padding {padding!r}: the output would have size "
            f'{tuple(max(n, 0) for n in out)}. Use a smaller kernel, larger inputs or "same".'
        )
    windows = Windows(taps, s, d, tuple(before for before, _ in pads), out)
    return Convolution(windows, sizes, channels, filters, groups)


def transposed_axis(
    n: int, k: int, s: int, d: int, padding: str, output_padding: int | None
) -> tuple[int, int]:
    """The length of a transposed convolution's axis, and what is cut off in front.

    With reach e = (k - 1) * d + 1 the inputs write (n - 1) * s + e elements; "valid" keeps all and
    adds zeros up to a stride, "same" cuts about e - s of them, as Keras does.
    """
    e = extent(k, d)
    if padding == "valid":
        extra = max(e, s) - e if output_padding is None else output_padding
        return (n - 1) * s + e + extra, 0
    if output_padding is None:
        total = s + e - 2
        length = n * s
    else:
        total = e + e % 2 - 2 + output_padding
        length = (n - 1) * s + e % 2 + output_padding
    left = min(total // 2 + total % 2, e - 1)
    return length, e - 1 - left


def transposed_plan_of(
    shape: Any, kernel: Any, strides: Any, padding: Any, output_padding: Any, dilation: Any
) -> Convolution:
    """The plan of the convolution whose transposition this is."""
    rank = len(kernel) - 2
    if rank < 1 or len(shape) != rank + 2 or shape[-1] != kernel[-1]:
        raise ValueError(
            f"conv_transpose with a kernel of shape {kernel} (sizes, filters, input channels) "
            f"expects inputs of rank {rank + 2} with {kernel[-1]} channels; received {shape}."
        )
    padding = str(padding).lower()
    if padding not in ("valid", "same"):
        raise ValueError(f'padding must be "valid" or "same"; received {padding!r}.')
    s, d = as_sizes(strides, rank, "strides"), as_sizes(dilation, rank, "dilation_rate")
    extra = output_paddings(output_padding, s)
    axes = [
        transposed_axis(n, k, a, b, padding, p)
        for n, k, a, b, p in zip(shape[1:-1], kernel[:-2], s, d, extra, strict=True)
    ]
    sizes = tuple(length for length, _ in axes)
    if min(sizes) < 1:
        raise ValueError(
            f"conv_transpose of inputs {shape} with a kernel of shape {kernel}, strides {s} and "
            f"padding {padding!r} would have output size {sizes}."
        )
    windows = Windows(kernel[:-2], s, d, tuple(cut for _, cut in axes), shape[1:-1])
    return Convolution(windows, sizes, kernel[-2], kernel[-1], 1)


def output_paddings(value: Any, strides: tuple[int, ...]) -> tuple[int | None, ...]:
    """One output_padding per axis, checked against the strides.

    Raises:
        ValueError: for another length, negative numbers, or one not below its stride.
    """
    if value is None:
        return (None,) * len(strides)
    values = (value,) * len(strides) if isinstance(value, (int, np.integer)) else tuple(value)
    if len(values) != len(strides) or any(
        not 0 <= v < s for v, s in zip(values, strides, strict=False)
    ):
        raise ValueError(
            f"output_padding must be 0 or more and below the strides {strides} on each axis; "
            f"received {value!r}."
        )
    return tuple(int(v) for v in values)
