"""Convolutions, with bias and activation fused, and transposed convolutions.

Windows, blocks and products lie in `convolution`; here are the ops and their derivatives.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from picodl import config
from picodl.ops.activation import Pair
from picodl.ops.convolution import (
    Convolution,
    Source,
    add_bias,
    column_sums,
    gather,
    gathered,
    kernel_matrices,
    spread,
)
from picodl.ops.core import op
from picodl.ops.shape import moveaxis
from picodl.ops.windows import Windows, as_sizes, extent, output_sizes, pads_of
from picodl.parallel import blocks_of, map_blocks, sum_blocks
from picodl.tensor import Tensor, record
from picodl.typing import Array


@op
def conv(
    inputs: Tensor,
    kernel: Tensor,
    strides: int | Sequence[int] = 1,
    padding: Any = "valid",
    data_format: str | None = None,
    dilation_rate: int | Sequence[int] = 1,
    bias: Tensor | None = None,
    pair: Any = None,
) -> Tensor:
    """Cross-correlation y[o] = f(sum over t of x[o * stride + t * dilation - before] @ w[t] + b).

    Args:
        inputs: images, sequences or volumes.
        kernel: the taps. Fewer input channels than the inputs have make groups: group i of the
            outputs sees slice i of the channels.
        strides: distance of neighbouring windows.
        padding: "valid", "same", "causal" (zeros in front only), or a pair of numbers per axis.
        data_format: "channels_last" or "channels_first".
        dilation_rate: distance of neighbouring taps.
        bias: added to each pixel; no bias for None.
        pair: the activation's array functions (`activations.relu.pair`); None for the identity.

    Shapes: inputs (batch, *sizes, n), kernel (*k, n / groups, m), bias (m,) -> (batch, *out, m)
    with out = floor((size - (k - 1) * dilation - 1) / stride) + 1 for "valid" and
    ceil(size / stride) for "same".
    Raises:
        ValueError: if ranks or channels do not fit, or no window fits into the input.
    Gradient: with h = f'(z) * g, dx[i] = sum of h[o] @ w[t].T over all o, t that meet i;
    dw[t] = sum of x[o * stride + t * dilation - before].T @ h[o]; db = sum of h over all pixels.

    >>> conv(np.arange(5.0).reshape(1, 5, 1), np.ones((3, 1, 1))).ravel()
    array([3., 6., 9.])
    """
    if config.standardize_data_format(data_format) == "channels_first":
        x = moveaxis(inputs, 1, -1)
        y = conv(x, kernel, strides, padding, "channels_last", dilation_rate, bias, pair)
        return moveaxis(y, -1, 1)
    plan = _plan(inputs.shape, kernel.shape, strides, padding, dilation_rate)
    if bias is None and pair is None:
        return _correlate(inputs, kernel, plan)
    return _fused(inputs, kernel, bias, plan, pair)


@op
def conv_transpose(
    inputs: Tensor,
    kernel: Tensor,
    strides: int | Sequence[int] = 1,
    padding: str = "valid",
    output_padding: int | Sequence[int] | None = None,
    data_format: str | None = None,
    dilation_rate: int | Sequence[int] = 1,
    bias: Tensor | None = None,
    pair: Any = None,
) -> Tensor:
    """Transposed convolution y[i * stride + t * dilation - cut] += x[i] @ w[t].T, then f(y + b).

    Args:
        inputs: images, sequences or volumes.
        kernel: the taps, with the output's channels before the input's.
        strides: distance of what neighbouring inputs write.
        padding: "valid" (all that is written) or "same" (about size * stride of it).
        output_padding: extra elements at the end of each axis, fewer than the stride. Defaults to
            what makes "same" exactly size * stride.
        data_format: "channels_last" or "channels_first".
        dilation_rate: distance of neighbouring taps.
        bias, pair: as for `conv`.

    Shapes: inputs (batch, *sizes, n), kernel (*k, m, n), bias (m,) -> (batch, *out, m).
    Raises:
        ValueError: if ranks, channels or output_padding do not fit.
    Gradient: with h = f'(z) * g, dx = conv(h, w), dw = its kernel's gradient with x and h in
    changed roles, db = sum of h over all pixels.
    """
    if config.standardize_data_format(data_format) == "channels_first":
        x = moveaxis(inputs, 1, -1)
        arguments = (strides, padding, output_padding, "channels_last", dilation_rate, bias, pair)
        return moveaxis(conv_transpose(x, kernel, *arguments), -1, 1)
    plan = _transposed_plan(
        inputs.shape, kernel.shape, strides, padding, output_padding, dilation_rate
    )
    if bias is None and pair is None:
        return _spread(inputs, kernel, plan)
    return _fused_transpose(inputs, kernel, bias, plan, pair)


# -------------------------------------------------------------------- shapes


def _hashable(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(_hashable(v) for v in value)
    return value


def _plan(shape: Any, kernel: Any, strides: Any, padding: Any, dilation: Any) -> Convolution:
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


def _transposed_plan(
    shape: Any, kernel: Any, strides: Any, padding: Any, output_padding: Any, dilation: Any
) -> Convolution:
    rank = len(kernel) - 2
    if rank < 1 or len(shape) != rank + 2 or shape[-1] != kernel[-1]:
        raise ValueError(
            f"conv_transpose with a kernel of shape {kernel} (sizes, filters, input channels) "
            f"expects inputs of rank {rank + 2} with {kernel[-1]} channels; received {shape}."
        )
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


def _ready(*arrays: Array) -> list[Array]:
    """C-contiguous arrays of one dtype."""
    dtype = np.result_type(*arrays)
    return [np.ascontiguousarray(a, dtype) for a in arrays]


# -------------------------------------------------------------------- conv


def _correlate(x: Tensor, kernel: Tensor, plan: Convolution) -> Tensor:
    """y = x * w alone: linear in both, so that its derivatives are its two companions below."""
    a, w = _ready(x.data, kernel.data)
    units = plan.units(len(a), x.requires_grad)

    def backward(g: Any) -> Any:
        if isinstance(g, Tensor):
            dx = _spread(g, kernel, plan) if x.requires_grad else None
            return dx, _kernel_gradient(x, g, plan) if kernel.requires_grad else None
        source = _activation_gradient(None, _ready(g)[0], [], units, plan)
        return _gradients(a, w, plan, units, source, x.requires_grad, kernel.requires_grad, False)[
            :2
        ]

    backward.__qualname__ = "conv"
    return record(_forward(a, w, None, plan, None, units)[0], (x, kernel), backward)


def _kernel_gradient(x: Tensor, h: Tensor, plan: Convolution) -> Tensor:
    """The kernel's gradient of a convolution, as a function of input and output's gradient."""
    a, g = _ready(x.data, h.data)
    units = plan.units(len(a))
    source = _activation_gradient(None, g, [], units, plan)
    dw = _gradients(a, None, plan, units, source, False, True, False)[1]

    def backward(u: Any) -> Any:
        if isinstance(u, Tensor):
            dx = _spread(h, u, plan) if x.requires_grad else None
            return dx, _correlate(x, u, plan) if h.requires_grad else None
        v = _ready(u)[0]
        parts = (_transposed(g, v, None, plan, None)[0], _forward(a, v, None, plan, None, units)[0])
        return tuple(
            part if t.requires_grad else None for part, t in zip(parts, (x, h), strict=True)
        )

    backward.__qualname__ = "conv_kernel_gradient"
    return record(dw, (x, h), backward)


def _fused(
    x: Tensor, kernel: Tensor, bias: Tensor | None, plan: Convolution, pair: Pair | None
) -> Tensor:
    """y = f(x * w + b)."""
    inputs = (x, kernel) if bias is None else (x, kernel, bias)
    a, w, *b = _ready(*(t.data for t in inputs))
    units = plan.units(len(a), x.requires_grad)
    y, saved = _forward(a, w, b[0] if b else None, plan, pair, units)

    def backward(g: Any) -> Any:
        source = _activation_gradient(pair, _ready(g)[0], saved, units, plan)
        needs_bias = bias is not None and bias.requires_grad
        needs = (x.requires_grad, kernel.requires_grad, needs_bias)
        return _gradients(a, w, plan, units, source, *needs)[: len(inputs)]

    def composed(x: Any, kernel: Any, bias: Any = None) -> Any:
        z = _correlate(x, kernel, plan)
        z = z if bias is None else z + bias
        return z if pair is None else pair.composed(z)

    backward.__qualname__ = "conv"
    return record(y, inputs, backward, composed)


def _forward(
    a: Array, w: Array, b: Array | None, plan: Convolution, pair: Pair | None, units: Sequence[Any]
) -> tuple[Array, list[Any]]:
    """f(a * w + b), and what the activation saved of each unit."""
    pointwise, filters = plan.is_pointwise(), plan.filter_slices()
    matrices = kernel_matrices(w, None if pointwise else b, plan.groups)
    y = np.empty((len(a), *plan.windows.out, plan.filters), a.dtype)
    saved: list[Any] = [None] * len(units)

    def product(matrix: Array, number: int, group: int) -> None:
        z = y[units[number]]
        if plan.groups == 1:
            np.dot(matrix, matrices[0], out=z.reshape(len(matrix), -1))
        else:
            part = z[..., filters[group]]
            part[...] = matrix.dot(matrices[group]).reshape(part.shape)
        if group == plan.groups - 1:
            saved[number] = _finish(z, b if pointwise else None, pair)

    gather(plan, units, lambda number, images: a[images], product, b is not None)
    return y, saved


def _finish(z: Array, bias: Array | None, pair: Pair | None) -> Any:
    """Bias and activation on one block of the output while it is in the cache."""
    if bias is not None:
        add_bias(z, bias)
    if pair is None:
        return None
    y, saved = pair.forward(z)
    if y is not z:
        z[...] = y
    return saved


def _activation_gradient(
    pair: Pair | None, g: Array, saved: list[Any], units: Sequence[Any], plan: Convolution
) -> Source:
    """The gradient before the activation, for images that a walk over units or images asks for."""
    if pair is None:
        return lambda number, images: g[images]
    if _whole_images(units, plan):
        return lambda number, images: pair.backward(g[images], saved[number])
    h = np.empty_like(g)

    def fill(number: int) -> None:
        h[units[number]] = pair.backward(g[units[number]], saved[number])

    map_blocks(fill, range(len(units)), g.size * 1e-3)
    return lambda number, images: h[images]


def _whole_images(units: Sequence[Any], plan: Convolution) -> bool:
    return not units or units[0][1].stop == plan.windows.out[0]


def _gradients(
    a: Array,
    w: Array | None,
    plan: Convolution,
    units: Sequence[Any],
    source: Source,
    needs_x: bool,
    needs_w: bool,
    needs_b: bool,
) -> tuple[Array | None, Array | None, Array | None]:
    """The gradients of input, kernel and bias, each where it is needed."""
    if needs_x and w is not None:
        whole = _whole_images(units, plan)
        blocks = [images for images, _ in units] if whole else blocks_of(len(a), 1)
        dx = np.empty_like(a)
        dw, db = spread(
            plan,
            blocks,
            source,
            w,
            lambda number, images: dx[images],
            other=(lambda number, images: a[images]) if needs_w else None,
            bias=needs_b,
        )
        return dx, dw, db
    if not needs_w:
        return None, None, _bias_gradient(source, units, plan) if needs_b else None
    sums = gather(plan, units, lambda number, images: a[images], None, needs_b, source)
    return None, *gathered(plan, sums, needs_b)


def _bias_gradient(source: Source, units: Sequence[Any], plan: Convolution) -> Array:
    whole = _whole_images(units, plan)
    blocks = [images for images, _ in units] if whole else blocks_of(units[-1][0].stop, 1)
    work = plan.work(len(blocks)) / 10
    return sum_blocks(lambda i: column_sums(source(i, blocks[i])), range(len(blocks)), work)


# -------------------------------------------------------------------- conv_transpose


def _spread(x: Tensor, kernel: Tensor, plan: Convolution) -> Tensor:
    """The input's gradient of a convolution as a function of the output's: conv_transpose."""
    a, w = _ready(x.data, kernel.data)

    def backward(g: Any) -> Any:
        if isinstance(g, Tensor):
            dx = _correlate(g, kernel, plan) if x.requires_grad else None
            return dx, _kernel_gradient(g, x, plan) if kernel.requires_grad else None
        return _transposed_gradients(a, w, plan, _ready(g)[0], x.requires_grad)

    backward.__qualname__ = "conv_transpose"
    return record(_transposed(a, w, None, plan, None)[0], (x, kernel), backward)


def _fused_transpose(
    x: Tensor, kernel: Tensor, bias: Tensor | None, plan: Convolution, pair: Pair | None
) -> Tensor:
    """y = f(spread of x by w + b)."""
    inputs = (x, kernel) if bias is None else (x, kernel, bias)
    a, w, *b = _ready(*(t.data for t in inputs))
    y, saved = _transposed(a, w, b[0] if b else None, plan, pair)

    def backward(g: Any) -> Any:
        h = _ready(g)[0]
        if pair is not None:
            g, h = h, np.empty_like(h)
            blocks = _transposed_blocks(plan, len(a))
            for images, kept in zip(blocks, saved, strict=True):
                h[images] = pair.backward(g[images], kept)
        dx, dw = _transposed_gradients(a, w, plan, h, x.requires_grad)
        return (dx, dw) if bias is None else (dx, dw, column_sums(h))

    def composed(x: Any, kernel: Any, bias: Any = None) -> Any:
        z = _spread(x, kernel, plan)
        z = z if bias is None else z + bias
        return z if pair is None else pair.composed(z)

    backward.__qualname__ = "conv_transpose"
    return record(y, inputs, backward, composed)


def _transposed_blocks(plan: Convolution, images: int) -> list[slice]:
    taps = math.prod(plan.windows.kernel)
    return blocks_of(images, plan.windows.images_at_once(taps * max(plan.filters, plan.channels)))


def _transposed(
    a: Array, w: Array, b: Array | None, plan: Convolution, pair: Pair | None
) -> tuple[Array, list[Any]]:
    """f(spread of a by w + b), and what the activation saved of each block."""
    y = np.empty((len(a), *plan.sizes, plan.channels), a.dtype)
    blocks = _transposed_blocks(plan, len(a))
    saved: list[Any] = [None] * len(blocks)

    def finish(number: int) -> None:
        saved[number] = _finish(y[blocks[number]], b, pair)

    spread(
        plan,
        blocks,
        lambda number, images: a[images],
        w,
        lambda number, images: y[images],
        finish,
    )
    return y, saved


def _transposed_gradients(
    a: Array, w: Array, plan: Convolution, h: Array, needs_x: bool
) -> tuple[Array | None, Array]:
    """The gradients of input and kernel from one walk over windows of h."""
    matrices = kernel_matrices(w, None, plan.groups)
    units = plan.units(len(a))
    filters = plan.filter_slices()
    dx = np.empty_like(a) if needs_x else None

    def product(matrix: Array, number: int, group: int) -> None:
        if dx is not None:
            place = dx[units[number]][..., filters[group]]
            place[...] = matrix.dot(matrices[group]).reshape(place.shape)

    sums = gather(
        plan,
        units,
        lambda number, images: h[images],
        product,
        gradient=lambda number, images: a[images],
    )
    return dx, gathered(plan, sums, False)[0]
