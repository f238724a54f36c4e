"""Convolutions, with bias and activation fused, and transposed convolutions.

Windows, blocks and products lie in `convolution`; here are the ops and their derivatives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from picodl import config
from picodl.ops.activation import Pair, linear_pair, relu_pair
from picodl.ops.conv_plan import Convolution, paired_kernel, plan_of, unpaired_kernel
from picodl.ops.convolution import (
    Source,
    column_sums,
    gather,
    gathered,
    spread,
)
from picodl.ops.core import op
from picodl.ops.shape import moveaxis, reshape
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
    plan = plan_of(inputs.shape, kernel.shape, strides, padding, dilation_rate)
    if 1 < plan.groups == plan.channels:
        from picodl.ops.depthwise import depthwise_conv

        apart = (*plan.windows.kernel, plan.groups, plan.filters // plan.groups)
        rest = (strides, padding, "channels_last", dilation_rate, bias, pair)
        return depthwise_conv(inputs, reshape(kernel, apart), *rest)
    if bias is None and pair is None:
        return correlate(inputs, kernel, plan)
    return _fused(inputs, kernel, bias, plan, pair)


def ready(*arrays: Array) -> list[Array]:
    """C-contiguous arrays of one dtype."""
    dtype = np.result_type(*arrays)
    return [np.ascontiguousarray(a, dtype) for a in arrays]


# -------------------------------------------------------------------- conv


def correlate(x: Tensor, kernel: Tensor, plan: Convolution) -> Tensor:
    """y = x * w alone: linear in both, so that its derivatives are its two companions below."""
    a, w = ready(x.data, kernel.data)
    units = plan.units(len(a), a.dtype, x.requires_grad)

    def backward(g: Any) -> Any:
        if isinstance(g, Tensor):
            from picodl.ops.conv_transpose import input_gradient

            dx = input_gradient(g, kernel, plan) if x.requires_grad else None
            return dx, kernel_gradient(x, g, plan) if kernel.requires_grad else None
        source = _activation_gradient(None, ready(g)[0], [], units, plan)
        return _gradients(a, w, plan, units, source, x.requires_grad, kernel.requires_grad, False)[
            :2
        ]

    backward.__qualname__ = "conv"
    return record(_forward(a, w, None, plan, None, units)[0], (x, kernel), backward)


def kernel_gradient(x: Tensor, h: Tensor, plan: Convolution) -> Tensor:
    """The kernel's gradient of a convolution, as a function of input and output's gradient."""
    a, g = ready(x.data, h.data)
    units = plan.units(len(a), a.dtype)
    source = _activation_gradient(None, g, [], units, plan)
    dw = _gradients(a, None, plan, units, source, False, True, False)[1]

    def backward(u: Any) -> Any:
        from picodl.ops.conv_transpose import input_gradient, transposed

        if isinstance(u, Tensor):
            dx = input_gradient(h, u, plan) if x.requires_grad else None
            return dx, correlate(x, u, plan) if h.requires_grad else None
        v = ready(u)[0]
        parts = (transposed(g, v, None, plan, None)[0], _forward(a, v, None, plan, None, units)[0])
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
    a, w, *b = ready(*(t.data for t in inputs))
    paired = (
        not x.requires_grad and pair in (None, linear_pair, relu_pair) and plan.pairs_pay(a.dtype)
    )
    walk = plan.in_pairs() if paired else plan
    if paired:
        w, b = paired_kernel(w), [np.tile(part, 2) for part in b]
    units = walk.units(len(a), a.dtype, x.requires_grad)
    y, saved = _forward(a, w, b[0] if b else None, walk, pair, units)

    def backward(g: Any) -> Any:
        g = ready(g)[0].reshape(len(a), *walk.windows.out, walk.filters)
        source = _activation_gradient(pair, g, saved, units, walk)
        needs_bias = bias is not None and bias.requires_grad
        needs = (x.requires_grad, kernel.requires_grad, needs_bias)
        dx, dw, db = _gradients(a, w, walk, units, source, *needs)
        if paired:
            dw = None if dw is None else unpaired_kernel(dw)
            db = None if db is None else db.reshape(2, -1).sum(0)
        return (dx, dw, db)[: len(inputs)]

    def composed(x: Any, kernel: Any, bias: Any = None) -> Any:
        z = correlate(x, kernel, plan)
        z = z if bias is None else z + bias
        return z if pair is None else pair.composed(z)

    backward.__qualname__ = "conv"
    y = y.reshape(len(a), *plan.windows.out, plan.filters)
    return record(y, inputs, backward, composed)


def _forward(
    a: Array, w: Array, b: Array | None, plan: Convolution, pair: Pair | None, units: Sequence[Any]
) -> tuple[Array, list[Any]]:
    """f(a * w + b), and what the activation saved of each unit."""
    y = np.empty((len(a), *plan.windows.out, plan.filters), a.dtype)
    saved: list[Any] = [None] * len(units)

    gather(plan, units, a.dtype, lambda number, images: a[images], w, b, pair, y, saved)
    return y, saved


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
            a.dtype,
            source,
            w,
            lambda number, images: dx[images],
            other=(lambda number, images: a[images]) if needs_w else None,
            bias=needs_b,
        )
        return dx, dw, db
    if not needs_w:
        return None, None, _bias_gradient(source, units, plan) if needs_b else None
    sums = gather(
        plan, units, a.dtype, lambda number, images: a[images], gradient=source, ones=needs_b
    )
    return None, *gathered(plan, sums, needs_b)


def _bias_gradient(source: Source, units: Sequence[Any], plan: Convolution) -> Array:
    whole = _whole_images(units, plan)
    blocks = [images for images, _ in units] if whole else blocks_of(units[-1][0].stop, 1)
    work = plan.work(len(blocks)) / 10
    return sum_blocks(lambda i: column_sums(source(i, blocks[i])), range(len(blocks)), work)
