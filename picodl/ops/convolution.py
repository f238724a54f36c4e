"""The three products of a convolution, on arrays: forward, input gradient and kernel gradient.

A convolution is linear in its input and in its kernel, so two walks over the images give all there
is. `gather` takes windows of the input as rows ("columns"): times the kernel they make the output,
and their transpose times the output's gradient makes the kernel's. `spread` takes windows of the
output's gradient: times the flipped kernel they make the input's gradient (which is also what a
transposed convolution computes), and times the input the kernel's once more. With stride s an input
pixel meets every s-th tap only, so `spread` is one walk of stride 1 for each remainder.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from picodl.ops.windows import Columns, Windows, row_chunks, units_of
from picodl.parallel import map_blocks, shares_of
from picodl.typing import Array

Source = Callable[[int, slice], Array]


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

    def units(self, images: int, both_ways: bool = False) -> list[tuple[slice, slice]]:
        """The blocks of a walk over the windows of so many images.

        Args:
            images: the size of the batch.
            both_ways: make them small enough for the walk over the output as well.
        """
        taps = math.prod(self.windows.kernel)
        width = taps * self.channels
        if both_ways:
            width = max(width, taps * self.filters // math.prod(self.windows.strides))
        return units_of(self.windows, images, width // self.groups)

    def is_pointwise(self) -> bool:
        """Whether the columns are the pixels themselves, so that nothing need be copied."""
        return self.windows.is_identity(self.sizes)

    def work(self, images: int) -> float:
        """Microseconds of one product, roughly: 100 GFLOP/s and a nanosecond per copied number."""
        taps = math.prod(self.windows.kernel) * self.channels // self.groups
        columns = images * math.prod(self.windows.out) * taps
        return columns * (self.filters * 2e-5 + 1e-3)


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


def _matrix(columns: Columns, block: Array, rows: slice, identity: bool) -> Array:
    """The columns of a block; the pixels themselves where that is the same."""
    if not identity:
        return columns.fill(block, rows)
    return block[:, rows][..., columns.channels].reshape(-1, columns.count)


def kernel_matrices(kernel: Array, bias: Array | None, groups: int) -> list[Array]:
    """The kernel of each group as a matrix (taps * channels, filters), the bias as a last row."""
    parts = np.split(kernel.reshape(-1, kernel.shape[-1]), groups, axis=1) if groups > 1 else None
    matrices = parts or [kernel.reshape(-1, kernel.shape[-1])]
    if bias is not None:
        rows = bias.reshape(groups, 1, -1)
        matrices = [np.concatenate(pair) for pair in zip(matrices, rows, strict=True)]
    return [np.ascontiguousarray(m) for m in matrices]


def add_bias(z: Array, bias: Array) -> None:
    """z += bias along the last axis, in place; few channels are seen as longer rows.

    numpy's inner loop is the last axis: on (65536, 16) rows of 512 take a third of the time.
    """
    m = bias.size
    times = 512 // m if m else 0
    if times > 1 and z.flags.c_contiguous and z.size % (m * times) == 0:
        rows = z.reshape(-1, m * times)
        rows += np.tile(bias, times)
    else:
        z += bias


def column_sums(h: Array) -> Array:
    """The sum over all but the last axis, as a product: 10 times faster than sum(0)."""
    rows = h.reshape(-1, h.shape[-1])
    return np.ones(len(rows), h.dtype).dot(rows)


def gather(
    shape: Convolution,
    units: Sequence[tuple[slice, slice]],
    source: Source,
    product: Callable[[Array, int, int], None] | None,
    ones: bool = False,
    gradient: Source | None = None,
) -> list[Array]:
    """Walk over windows of the input; give their products with the gradient, one per group.

    Args:
        shape: the convolution.
        units: (images, rows) blocks.
        source: unit's number, images -> those images of the input.
        product: takes the columns, the unit's number and the group: the forward product.
        ones: whether the columns end in a one, for the bias.
        gradient: unit's number, images -> those images of the output's gradient, to multiply with.

    Returns:
        Without gradient nothing, else one matrix per group, whose last row is the bias's gradient
        with ones; for a 1x1 kernel that comes as one more vector.
    """
    windows, filters = shape.windows, shape.filter_slices()
    identity = shape.is_pointwise()

    def share(part: slice) -> list[Array]:
        columns: list[Columns] = []
        sums: list[Array] = []
        for number in range(part.start, part.stop):
            images, rows = units[number]
            block = source(number, images)
            if not columns:
                columns = [
                    Columns(windows, block.shape, block.dtype, c, ones and not identity)
                    for c in shape.channel_slices()
                ]
            h = gradient(number, images) if gradient is not None else None
            for g, column in enumerate(columns):
                matrix = _matrix(column, block, rows, identity)
                if product is not None:
                    product(matrix, number, g)
                if h is not None:
                    right = h[..., filters[g]].reshape(len(matrix), -1)
                    _accumulate(sums, g, matrix.T.dot(right))
            if h is not None and ones and identity:
                _accumulate(sums, shape.groups, column_sums(h))
        return sums

    return _total(map_blocks(share, shares_of(len(units)), shape.work(_images(units))))


def spread(
    shape: Convolution,
    blocks: Sequence[slice],
    source: Source,
    kernel: Array | None,
    result: Callable[[int, slice], Array] | None = None,
    finish: Callable[[int], None] | None = None,
    other: Source | None = None,
    bias: bool = False,
) -> tuple[Array | None, Array | None]:
    """Walk over windows of the output; write the input's gradient, give the kernel's and bias's.

    Args:
        shape: the convolution.
        blocks: of images.
        source: block number, images -> those images of the output's gradient.
        kernel: of the convolution, where the input's gradient is wanted.
        result: block number, images -> where to write it.
        finish: called with the block's number when it is written.
        other: block number, images -> the input, where the kernel's gradient is wanted.
        bias: whether to sum the output's gradient too.

    Returns:
        The kernel's gradient and the bias's, each None unless asked for.
    """
    channels, filters = shape.channel_slices(), shape.filter_slices()
    walks = phases(shape.windows, shape.sizes)
    per_channel, per_filter = shape.channels // shape.groups, shape.filters // shape.groups
    matrices = {}
    if kernel is not None:
        for p, walk in enumerate(walks):
            flipped = np.swapaxes(kernel[walk.taps], -1, -2)
            for g, f in enumerate(filters):
                matrices[p, g] = np.ascontiguousarray(flipped[..., f, :]).reshape(-1, per_channel)
    covered = sum(math.prod(walk.windows.out) for walk in walks) == math.prod(shape.sizes)
    whole = len(walks) == 1 and covered and shape.groups == 1
    identity = [walk.windows.is_identity(shape.windows.out) for walk in walks]

    def share(part: slice) -> list[Array]:
        columns: dict[tuple[int, int], Columns] = {}
        sums: list[Array] = []
        for number in range(part.start, part.stop):
            images = blocks[number]
            h = source(number, images)
            x = other(number, images) if other is not None else None
            dx = result(number, images) if result is not None else None
            if dx is not None and not covered:
                dx[...] = 0
            for p, walk in enumerate(walks):
                at = (slice(None), *walk.pixels)
                for g, (c, f) in enumerate(zip(channels, filters, strict=True)):
                    column = columns.get((p, g))
                    if column is None:
                        column = columns[p, g] = Columns(walk.windows, h.shape, h.dtype, f)
                    if dx is None and x is None:
                        break
                    for rows in row_chunks(walk.windows, column.width, len(h)):
                        matrix = _matrix(column, h, rows, identity[p])
                        if dx is not None:
                            _write(dx, at, rows, c, matrix, matrices[p, g], whole)
                        if x is not None:
                            left = x[at][:, rows][..., c].reshape(-1, per_channel)
                            _accumulate(sums, p * shape.groups + g, left.T.dot(matrix))
            if finish is not None:
                finish(number)
            if bias:
                _accumulate(sums, len(walks) * shape.groups if x is not None else 0, column_sums(h))
        return sums

    images = _images([(block, block) for block in blocks])
    sums = _total(map_blocks(share, shares_of(len(blocks)), 2 * shape.work(images)))
    total = sums.pop() if bias else None
    if other is None:
        return None, total
    taps = shape.windows.kernel
    gradient = np.zeros((*taps, per_channel, shape.filters), total_dtype(sums, total))
    for p, walk in enumerate(walks):
        for g, f in enumerate(filters):
            part = sums[p * shape.groups + g].reshape(per_channel, *walk.windows.kernel, per_filter)
            gradient[walk.taps][..., f] = np.moveaxis(part, 0, -2)
    return gradient, total


def total_dtype(sums: Sequence[Array], total: Array | None) -> Any:
    return sums[0].dtype if sums else total.dtype if total is not None else np.float32


def _images(units: Sequence[tuple[slice, slice]]) -> int:
    return units[-1][0].stop if units else 0


def _write(
    dx: Array, at: Any, rows: slice, channels: slice, matrix: Array, kernel: Array, whole: bool
) -> None:
    """dx[pixels] = matrix @ kernel, straight into dx where the pixels lie together."""
    if whole and (len(dx) == 1 or rows.stop - rows.start == dx.shape[1]):
        np.dot(matrix, kernel, out=dx[:, rows].reshape(-1, dx.shape[-1]))
    else:
        place = dx[at][:, rows][..., channels]
        place[...] = matrix.dot(kernel).reshape(place.shape)


def _accumulate(sums: list[Array], place: int, part: Array) -> None:
    if place == len(sums):
        sums.append(part)
    else:
        sums[place] += part


def _total(parts: Sequence[list[Array]]) -> list[Array]:
    """The sums of all shares, in their order."""
    sums = parts[0] if parts else []
    for part in parts[1:]:
        for place, array in enumerate(part):
            sums[place] += array
    return sums
