"""The three products of a convolution, on arrays: forward, input gradient and kernel gradient.

A convolution is linear in its input and in its kernel, so two walks over the images give all there
is. `gather` takes windows of the input as rows ("columns"): times the kernel they make the output,
and their transpose times the output's gradient makes the kernel's. `spread` takes windows of the
output's gradient: times the flipped kernel they make the input's gradient (which is also what a
transposed convolution computes), and times the input the kernel's once more. With stride s an input
pixel meets every s-th tap only, so `spread` is one walk of stride 1 for each remainder.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from picodl.blas import dot, dot_over_rows
from picodl.ops.activation import Pair, linear_pair, relu_pair
from picodl.ops.conv_direct import (
    kernel_products,
    panels,
    serves,
    slides_of,
    whole_vectors,
)
from picodl.ops.conv_plan import Convolution, Phase, phases
from picodl.ops.windows import Columns, Windows, columns_of
from picodl.parallel import map_blocks, shares_of
from picodl.typing import Array

Source = Callable[[int, slice], Array]
Sums = dict[Any, Array]


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
    """z += bias along the last axis, in place; few channels are seen as rows of about 8192.

    numpy's inner loop is the last axis: on (65536, 16) that takes a seventh of the time.
    """
    rows = z.reshape(-1, bias.size)
    times = math.gcd(len(rows), max(1, 8192 // max(1, bias.size)))
    if times > 1 and z.flags.c_contiguous:
        z = z.reshape(-1, times * bias.size)
        bias = np.tile(bias, times)
    z += bias


def column_sums(h: Array) -> Array:
    """The sum over all but the last axis, as a product: 10 times faster than sum(0)."""
    rows = h.reshape(-1, h.shape[-1])
    return np.ones(len(rows), h.dtype).dot(rows)


def finish_block(z: Array, bias: Array | None, pair: Pair | None) -> Any:
    """Bias and activation on one block of the output, in place, while it is in the cache.

    Returns:
        What the activation saved. Except for relu that may be z itself, so it gets a copy.
    """
    if bias is not None:
        add_bias(z, bias)
    if pair is None or pair is linear_pair:
        return None
    y, saved = pair.forward(z if pair is relu_pair else z.copy())
    if y is not z:
        z[...] = y
    return saved


def gather(
    shape: Convolution,
    units: Sequence[tuple[slice, slice]],
    dtype: Any,
    source: Source,
    kernel: Array | None = None,
    bias: Array | None = None,
    pair: Pair | None = None,
    result: Array | None = None,
    saved: list[Any] | None = None,
    gradient: Source | None = None,
    ones: bool = False,
) -> Sums:
    """Walk over windows of the input; write the output, sum the kernel's and the bias's gradient.

    Args:
        shape: the convolution.
        units: (images, rows) blocks.
        dtype: of all arrays.
        source: unit's number, images -> those images of the input.
        kernel, bias: of the convolution, where the output is wanted.
        pair: the activation's array functions, or None.
        result: where to write the output.
        saved: where to put what the activation saves of each unit.
        gradient: unit's number, images -> those images of the output's gradient.
        ones: whether to sum that too, for the bias.

    Returns:
        The gradients, as `gathered` takes them.
    """
    windows, direct = shape.windows, serves(shape.windows, dtype)
    channels, filters = shape.channel_slices(), shape.filter_slices()
    pointwise = shape.is_pointwise()
    row = bias is not None and not pointwise and not direct  # one more row of the kernel
    relu = direct and pair is relu_pair
    matrices: list[Array] = []
    if kernel is not None:
        matrices = kernel_matrices(kernel, bias if row else None, shape.groups)
    if direct:
        matrices = [panels(matrix) for matrix in matrices]
        biases = [None if bias is None else whole_vectors(bias[part]) for part in filters]

    def share(part: slice) -> Sums:
        columns: list[Columns] = []
        sums: Sums = {}
        for number in range(part.start, part.stop):
            images, rows = units[number]
            block = source(number, images)
            h = gradient(number, images) if gradient is not None else None
            if h is not None and rows.stop - rows.start < windows.out[0]:
                h = h[:, rows]
            z = None if result is None else result[images, rows]
            if not direct:
                columns = columns or shape.columns(block, ones or row)
            for g in range(shape.groups):
                of_group = slice(None) if shape.groups == 1 else filters[g]
                if direct:
                    slides = slides_of(windows, block.shape, channels[g])
                    if z is not None:
                        out = z[..., of_group]
                        slides.multiply(block, rows, matrices[g], out, biases[g], relu)
                    if h is not None:
                        right = h[..., of_group]
                        sums[g] = kernel_products(right, slides, block, rows, sums.get(g))
                    continue
                matrix = _matrix(columns[g], block, rows, pointwise)
                if z is not None:
                    _multiply(matrix, matrices[g], z[..., of_group])
                if h is not None:
                    right = h[..., of_group].reshape(len(matrix), -1)
                    _add(sums, g, dot_over_rows(matrix, right))
            if h is not None and ones and pointwise and not direct:
                _add(sums, "bias", column_sums(h))
            if z is not None and saved is not None:
                added = None if row or direct else bias
                saved[number] = z if relu else finish_block(z, added, pair)
        return sums

    return _total(map_blocks(share, shares_of(len(units)), shape.work(_images(units))))


def _multiply(matrix: Array, kernel: Array, out: Array) -> None:
    """out = matrix @ kernel, straight into out where it is one piece of memory."""
    if out.flags.c_contiguous:
        dot(matrix, kernel, out.reshape(len(matrix), -1))
    else:
        out[...] = dot(matrix, kernel).reshape(out.shape)


def gathered(shape: Convolution, sums: Sums, ones: bool) -> tuple[Array, Array | None]:
    """The gradients of kernel and bias from the sums of `gather`."""
    if not sums:  # an empty batch
        empty = np.zeros((shape.taps * shape.channels // shape.groups + 1, shape.filters))
        sums = dict(enumerate(np.split(empty, shape.groups, axis=1)))
    parts = [sums[g] for g in range(shape.groups)]
    count, wide = shape.taps * shape.channels // shape.groups, shape.filters // shape.groups
    bias = None
    if ones:
        bias = sums.get("bias")
        if bias is None:
            bias = np.concatenate([part[-1, :wide] for part in parts])
    parts = [part[:count, :wide] for part in parts]
    kernel = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
    return kernel.reshape(*shape.windows.kernel, shape.channels // shape.groups, -1), bias


class _Leg(NamedTuple):
    """One phase and one group of a walk over the output."""

    windows: Windows
    pixels: tuple[slice, ...]
    taps: tuple[slice, ...]
    channels: slice
    filters: slice
    matrix: Any
    identity: bool

    def place(self, images: Array) -> Array:
        """The pixels and channels of the images that it is about."""
        return images[(slice(None), *self.pixels)][..., self.channels]


def spread(
    shape: Convolution,
    blocks: Sequence[slice],
    dtype: Any,
    source: Source,
    kernel: Array | None,
    result: Source | None = None,
    finish: Callable[[int], None] | None = None,
    other: Source | None = None,
    bias: bool = False,
) -> tuple[Array | None, Array | None]:
    """Walk over windows of the output; write the input's gradient, give the kernel's and bias's.

    Args:
        shape: the convolution.
        blocks: of images.
        dtype: of all arrays.
        source: block's number, images -> those images of the output's gradient.
        kernel: of the convolution.
        result: block's number, images -> where to write the input's gradient.
        finish: called with the block's number when that is written.
        other: block's number, images -> the input, where the kernel's gradient is wanted. It comes
            from the same columns, unless they are much longer than those of the input: a "valid"
            convolution of small images meets many zeros.
        bias: whether to sum the output's gradient too.

    Returns:
        The kernel's gradient and the bias's, each None unless asked for.
    """
    walks = phases(shape.windows, shape.sizes)
    direct = all(serves(w, dtype) for w in (shape.windows, *(walk.windows for walk in walks)))
    legs = list(_legs(shape, walks, kernel, direct))
    covered = sum(math.prod(walk.windows.out) for walk in walks) == math.prod(shape.sizes)
    own = other is not None and (direct or _is_wasteful(shape, walks))
    pointwise, filters = shape.is_pointwise(), shape.filter_slices()
    whole = slice(0, shape.windows.out[0])

    def share(part: slice) -> Sums:
        columns: list[Columns] = []
        input_columns: list[Columns] = []
        sums: Sums = {}
        for number in range(part.start, part.stop):
            images = blocks[number]
            h = source(number, images)
            x = other(number, images) if other is not None else None
            dx = result(number, images) if result is not None else None
            if dx is not None and not covered:
                dx[...] = 0
            if direct and dx is not None:
                for leg in legs:
                    slides = slides_of(leg.windows, h.shape, leg.filters)
                    slides.multiply(h, slice(0, leg.windows.out[0]), leg.matrix, leg.place(dx))
            if direct and x is not None:
                for g, channels in enumerate(shape.channel_slices()):
                    slides = slides_of(shape.windows, x.shape, channels)
                    right = h[..., filters[g]]
                    sums[g] = kernel_products(right, slides, x, whole, sums.get(g))
            if not direct and not columns:
                columns = [columns_of(g.windows, h.shape, h.dtype, g.filters) for g in legs]
            for place, (leg, column) in enumerate(zip(legs, columns, strict=False)):
                for rows in column.chunks(len(h)):
                    matrix = _matrix(column, h, rows, leg.identity)
                    if dx is not None:
                        _multiply(matrix, leg.matrix, leg.place(dx)[:, rows])
                    if x is not None and not own:
                        right = leg.place(x)[:, rows]
                        _add(sums, place, dot_over_rows(matrix, right.reshape(len(matrix), -1)))
            if x is not None and own and not direct:
                input_columns = input_columns or shape.columns(x, bias)
                for g, column in enumerate(input_columns):
                    for rows in column.chunks(len(h)):
                        matrix = _matrix(column, x, rows, pointwise)
                        right = h[:, rows][..., filters[g]]
                        _add(sums, g, dot_over_rows(matrix, right.reshape(len(matrix), -1)))
            if bias and (not own or (pointwise and not direct)):
                _add(sums, "bias", column_sums(h))
            if finish is not None:
                finish(number)
        return sums

    images = _images([(block, block) for block in blocks])
    sums = _total(map_blocks(share, shares_of(len(blocks)), 2 * shape.work(images)))
    if own:
        return gathered(shape, sums, bias)
    gradient = None
    if other is not None:
        per_channel, per_filter = shape.channels // shape.groups, shape.filters // shape.groups
        dtype = next(iter(sums.values())).dtype if sums else np.float32
        gradient = np.zeros((*shape.windows.kernel, per_channel, shape.filters), dtype)
        for place, leg in enumerate(legs):
            if place in sums:
                part = sums[place].reshape(*leg.windows.kernel, per_filter, per_channel)
                gradient[leg.taps][..., leg.filters] = np.swapaxes(part, -1, -2)
    if bias and not sums:  # an empty batch
        return gradient, np.zeros(shape.filters)
    return gradient, sums.get("bias")


def _legs(
    shape: Convolution, walks: Sequence[Phase], kernel: Array | None, direct: bool
) -> Iterator[_Leg]:
    for pixels, taps, windows in walks:
        identity = windows.is_identity(shape.windows.out)
        for c, f in zip(shape.channel_slices(), shape.filter_slices(), strict=True):
            matrix = None
            if kernel is not None:
                flipped = np.swapaxes(kernel[taps], -1, -2)[..., f, :]
                matrix = np.ascontiguousarray(flipped).reshape(-1, kernel.shape[-2])
                matrix = panels(matrix) if direct else matrix
            yield _Leg(windows, pixels, taps, c, f, matrix, identity)


def _is_wasteful(shape: Convolution, walks: Sequence[Phase]) -> bool:
    """Whether windows of the output hold many more elements than windows of the input."""
    there = sum(math.prod(walk.windows.out) * math.prod(walk.windows.kernel) for walk in walks)
    here = math.prod(shape.windows.out) * shape.taps
    return there > 1.25 * here


def _images(units: Sequence[tuple[slice, slice]]) -> int:
    return units[-1][0].stop if units else 0


def _add(sums: Sums, key: Any, part: Array) -> None:
    if key in sums:
        sums[key] += part
    else:
        sums[key] = part


def _total(parts: Sequence[Sums]) -> Sums:
    """The sums of all shares, in their order."""
    total: Sums = {}
    for sums in parts:
        for key, part in sums.items():
            _add(total, key, part)
    return total
