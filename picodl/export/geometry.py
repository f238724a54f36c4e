"""Sizes, strides and paddings of layers with sliding windows; sequences are images of one row."""

from __future__ import annotations

from typing import Any

from picodl.export.plan import Call
from picodl.ops.conv_plan import transposed_axis


def as_image(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """(h, width, channels); a sequence is an image of one row."""
    return (1, *shape) if len(shape) == 2 else shape  # type: ignore[return-value]


def per_axis(value: Any, rank: int) -> tuple[int, int]:
    """A window's height and width; one dimension is a single row."""
    values = (value,) * rank if isinstance(value, int) else tuple(value)
    return (1, values[0]) if rank == 1 else (values[0], values[1])


def window(call: Call, size: Any, dilation: Any = 1) -> dict[str, Any]:
    """The numbers of a sliding window: input and output sizes, kernel, strides, padding."""
    layer, rank = call.layer, len(call.output.shape) - 1
    channels_last(call)
    (h, width, c), (oh, ow, _) = as_image(call.inputs[0].shape), as_image(call.output.shape)
    kernel, strides = per_axis(size, rank), per_axis(layer.strides or size, rank)
    spread = per_axis(dilation, rank)
    before, after = [], []
    for n, out, k, s, d in zip((h, width), (oh, ow), kernel, strides, spread, strict=True):
        reach = (k - 1) * d + 1
        padding = {"same": max((out - 1) * s + reach - n, 0) // 2, "causal": reach - 1}
        before.append(padding.get(layer.padding, 0) if k > 1 or layer.padding == "same" else 0)
        after.append(max((out - 1) * s + reach - n - before[-1], 0))
    return {
        "x": (h, width, c), "kernel": kernel, "strides": strides, "before": before, "after": after,
        "dilation": spread, "out": (oh, ow),
    }  # fmt: skip


def transposed_window(call: Call) -> dict[str, Any]:
    """The same for a transposed convolution; `before` is what is cut off in front."""
    layer, rank = call.layer, len(call.output.shape) - 1
    channels_last(call)
    (h, width, c), (oh, ow, _) = as_image(call.inputs[0].shape), as_image(call.output.shape)
    kernel, strides = per_axis(layer.kernel_size, rank), per_axis(layer.strides, rank)
    spread = per_axis(layer.dilation_rate, rank)
    extras = layer.output_padding or (None,) * rank
    before = [
        transposed_axis(n, k, s, d, layer.padding, p)[1]
        for n, k, s, d, p in zip(
            (h, width)[-rank:], kernel[-rank:], strides[-rank:], spread[-rank:], extras, strict=True
        )
    ]
    before = [0] * (2 - rank) + before
    return {
        "x": (h, width, c), "kernel": kernel, "strides": strides, "before": before,
        "dilation": spread, "out": (oh, ow),
    }  # fmt: skip


def padding_before(call: Call) -> tuple[int, int]:
    """What ZeroPadding adds above and to the left; Cropping takes it away, as a negative number."""
    padding = call.kind.startswith("ZeroPadding")
    rank = len(call.output.shape) - 1
    amount = call.layer.padding if padding else call.layer.cropping
    sides = list(amount) if rank > 1 or isinstance(amount[0], (tuple, list)) else [amount]
    first = [side[0] if isinstance(side, (tuple, list)) else side for side in sides]
    top, left = (0, first[0]) if rank == 1 else (first[0], first[1])
    return (top, left) if padding else (-top, -left)


def channels_last(call: Call) -> None:
    """Refuse a layer whose channels come first.

    Raises:
        ValueError: naming the layer.
    """
    if getattr(call.layer, "data_format", "channels_last") != "channels_last":
        raise ValueError(
            f'The layer "{call.name}" has channels first; only channels_last can be exported.'
        )
