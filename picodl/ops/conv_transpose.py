"""Transposed convolutions: the input's gradient of a convolution, as a layer of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from picodl import config
from picodl.ops.activation import Pair
from picodl.ops.conv import correlate, kernel_gradient, ready
from picodl.ops.conv_direct import serves
from picodl.ops.conv_plan import Convolution, transposed_plan_of
from picodl.ops.convolution import (
    column_sums,
    finish_block,
    gather,
    gathered,
    spread,
)
from picodl.ops.core import op
from picodl.ops.shape import moveaxis
from picodl.parallel import blocks_of
from picodl.tensor import Tensor, record
from picodl.typing import Array


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
    plan = transposed_plan_of(
        inputs.shape, kernel.shape, strides, padding, output_padding, dilation_rate
    )
    if bias is None and pair is None:
        return input_gradient(inputs, kernel, plan)
    return _fused_transpose(inputs, kernel, bias, plan, pair)


def input_gradient(x: Tensor, kernel: Tensor, plan: Convolution) -> Tensor:
    """The input's gradient of a convolution as a function of the output's: conv_transpose."""
    a, w = ready(x.data, kernel.data)

    def backward(g: Any) -> Any:
        if isinstance(g, Tensor):
            dx = correlate(g, kernel, plan) if x.requires_grad else None
            return dx, kernel_gradient(g, x, plan) if kernel.requires_grad else None
        return _transposed_gradients(a, w, plan, ready(g)[0], x.requires_grad)

    backward.__qualname__ = "conv_transpose"
    return record(transposed(a, w, None, plan, None)[0], (x, kernel), backward)


def _fused_transpose(
    x: Tensor, kernel: Tensor, bias: Tensor | None, plan: Convolution, pair: Pair | None
) -> Tensor:
    """y = f(spread of x by w + b)."""
    inputs = (x, kernel) if bias is None else (x, kernel, bias)
    a, w, *b = ready(*(t.data for t in inputs))
    y, saved = transposed(a, w, b[0] if b else None, plan, pair)

    def backward(g: Any) -> Any:
        h = ready(g)[0]
        if pair is not None:
            g, h = h, np.empty_like(h)
            blocks = _transposed_blocks(plan, a)
            for images, kept in zip(blocks, saved, strict=True):
                h[images] = pair.backward(g[images], kept)
        dx, dw = _transposed_gradients(a, w, plan, h, x.requires_grad)
        return (dx, dw) if bias is None else (dx, dw, column_sums(h))

    def composed(x: Any, kernel: Any, bias: Any = None) -> Any:
        z = input_gradient(x, kernel, plan)
        z = z if bias is None else z + bias
        return z if pair is None else pair.composed(z)

    backward.__qualname__ = "conv_transpose"
    return record(y, inputs, backward, composed)


def _transposed_blocks(plan: Convolution, a: Array) -> list[slice]:
    taps = 1 if serves(plan.windows, a.dtype) else math.prod(plan.windows.kernel)
    width = taps * max(plan.filters, plan.channels)
    return blocks_of(len(a), plan.windows.images_at_once(width, len(a)))


def transposed(
    a: Array, w: Array, b: Array | None, plan: Convolution, pair: Pair | None
) -> tuple[Array, list[Any]]:
    """f(spread of a by w + b), and what the activation saved of each block."""
    y = np.empty((len(a), *plan.sizes, plan.channels), a.dtype)
    blocks = _transposed_blocks(plan, a)
    saved: list[Any] = [None] * len(blocks)

    def finish(number: int) -> None:
        saved[number] = finish_block(y[blocks[number]], b, pair)

    spread(
        plan,
        blocks,
        a.dtype,
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
    dx = np.empty_like(a) if needs_x else None
    sums = gather(
        plan,
        plan.units(len(a), a.dtype),
        a.dtype,
        lambda number, images: h[images],
        w if needs_x else None,
        result=dx,
        gradient=lambda number, images: a[images],
    )
    return dx, gathered(plan, sums, False)[0]
