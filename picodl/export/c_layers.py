"""How each layer is written in C: which kernel with which numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from picodl.export import c_kernels
from picodl.export.c_recurrent import bidirectional, permute_call, recurrent, scale_call
from picodl.export.c_writer import Writer, literal
from picodl.export.geometry import (
    as_image,
    channels_last,
    padding_before,
    per_axis,
    transposed_window,
    window,
)
from picodl.export.plan import Call, Value, normalisation_factors

Emitter = Callable[[Call, Writer], None]


def _activate(call: Call, writer: Writer, kind: str | None = None, source: str = "") -> None:
    """Apply an activation to what is in the output's place (or to source)."""
    kind = call.activation if kind is None else kind
    target, value = writer.place(call.output), call.output
    source = source or target
    rows_of = max(1, value.size // value.shape[-1]) if value.shape else 1
    if kind == "linear":
        if source != target:
            writer.call("join", source, 1, value.size, value.size, target)
    elif kind in ("softmax", "log_softmax"):
        writer.call(kind, source, rows_of, value.size // rows_of, target)
    else:
        kind = {"swish": "silu", "hard_swish": "hard_silu"}.get(kind, kind)
        if kind not in c_kernels.SCALARS:
            raise ValueError(
                f'The layer "{call.name}" has the activation {kind!r}, which cannot be exported to '
                f"C. These can: softmax, log_softmax, {', '.join(sorted(c_kernels.SCALARS))}."
            )
        writer.call("apply", writer.function(kind), source, value.size, target)


def _dense(call: Call, w: Writer) -> None:
    kernel = call.weights["kernel"]
    n, m = kernel.shape
    k, scale, suffix = w.kernel(f"{call.name}_kernel", kernel)
    bias = w.array(f"{call.name}_bias", call.weights.get("bias"))
    rows = call.inputs[0].size // n
    w.call(
        f"dense_{suffix}", w.place(call.inputs[0]), rows, n, m, k, scale, bias, w.place(call.output)
    )
    _activate(call, w)


# -------------------------------------------------------------------- convolution and pooling


def _conv(call: Call, w: Writer) -> None:
    layer, kernel = call.layer, call.weights["kernel"]
    g = window(call, layer.kernel_size, layer.dilation_rate)
    k, scale, suffix = w.kernel(f"{call.name}_kernel", kernel)
    bias = w.array(f"{call.name}_bias", call.weights.get("bias"))
    w.call(
        f"conv_{suffix}", w.place(call.inputs[0]), *g["x"], k, scale, bias, *g["kernel"],
        kernel.shape[-1], *g["strides"], *g["before"], *g["dilation"], layer.groups,
        w.place(call.output), *g["out"],
    )  # fmt: skip
    _activate(call, w)


def _conv_transpose(call: Call, w: Writer) -> None:
    g, kernel = transposed_window(call), call.weights["kernel"]
    arrays = (
        w.array(f"{call.name}_kernel", kernel),
        w.array(f"{call.name}_bias", call.weights.get("bias")),
    )
    w.call(
        "conv_transpose", w.place(call.inputs[0]), *g["x"], *arrays, *g["kernel"],
        kernel.shape[-2], *g["strides"], *g["before"], *g["dilation"], w.place(call.output),
        *g["out"],
    )  # fmt: skip
    _activate(call, w)


def _depthwise_into(call: Call, w: Writer, kernel: Any, bias: str, target: str) -> None:
    layer = call.layer
    g = window(call, layer.kernel_size, layer.dilation_rate)
    k, scale, suffix = w.depthwise_kernel(f"{call.name}_kernel", kernel)
    w.call(
        f"depthwise_{suffix}", w.place(call.inputs[0]), *g["x"], k, scale, bias, *g["kernel"],
        kernel.shape[-1], *g["strides"], *g["before"], *g["dilation"], target, *g["out"],
    )  # fmt: skip


def _depthwise(call: Call, w: Writer) -> None:
    bias = w.array(f"{call.name}_bias", call.weights.get("bias"))
    _depthwise_into(call, w, call.weights["kernel"], bias, w.place(call.output))
    _activate(call, w)


def _separable(call: Call, w: Writer) -> None:
    pointwise = call.weights["pointwise_kernel"]
    n, m = pointwise.shape[-2:]
    rows = call.output.size // m
    middle = w.scratch(rows * n)
    _depthwise_into(call, w, call.weights["depthwise_kernel"], "0", middle)
    k, scale, suffix = w.kernel(f"{call.name}_pointwise", pointwise.reshape(n, m))
    bias = w.array(f"{call.name}_bias", call.weights.get("bias"))
    w.call(f"dense_{suffix}", middle, rows, n, m, k, scale, bias, w.place(call.output))
    _activate(call, w)


def _pool(kernel: str) -> Emitter:
    def emit(call: Call, w: Writer) -> None:
        g = window(call, call.layer.pool_size)
        w.call(
            kernel, w.place(call.inputs[0]), *g["x"], *g["kernel"], *g["strides"], *g["before"],
            w.place(call.output), *g["out"],
        )  # fmt: skip

    return emit


def _global_pool(kernel: str) -> Emitter:
    def emit(call: Call, w: Writer) -> None:
        channels_last(call)
        h, width, c = as_image(call.inputs[0].shape)
        source, target = w.place(call.inputs[0]), w.place(call.output)
        w.call(kernel, source, h, width, c, h, width, 1, 1, 0, 0, target, 1, 1)

    return emit


def _spread(call: Call, w: Writer) -> None:
    """UpSampling (nearest), ZeroPadding and Cropping move pixels; nothing is computed."""
    layer, rank = call.layer, len(call.output.shape) - 1
    channels_last(call)
    repeat, top, left = (1, 1), 0, 0
    if call.kind.startswith("UpSampling"):
        if getattr(layer, "interpolation", "nearest") != "nearest":
            raise ValueError(
                f'The layer "{call.name}" interpolates by {layer.interpolation!r}; only "nearest" '
                "can be exported."
            )
        repeat = per_axis(layer.size, rank)
    else:
        top, left = padding_before(call)
    h, width, c = as_image(call.inputs[0].shape)
    oh, ow, _ = as_image(call.output.shape)
    w.call(
        "spread", w.place(call.inputs[0]), h, width, c, *repeat, top, left, w.place(call.output),
        oh, ow,
    )  # fmt: skip


# -------------------------------------------------------------------- sequences


def _embedding(call: Call, w: Writer) -> None:
    if call.layer.mask_zero:
        raise ValueError(
            f'The layer "{call.name}" makes masks (mask_zero=True), which cannot be exported.'
        )
    table = call.weights["embeddings"]
    k, scale, suffix = w.kernel(f"{call.name}_embeddings", table)
    source, target = call.inputs[0], w.place(call.output)
    w.checked_call(
        f"embedding_{suffix}", w.place(source), source.size, k, scale, *table.shape, target
    )


def _permute(call: Call, w: Writer) -> None:
    shape, dims = call.inputs[0].shape, [d - 1 for d in call.layer.dims]
    if len(shape) > 4:
        raise ValueError(f'The layer "{call.name}" permutes {len(shape)} axes; up to 4 work.')
    strides = [int(np.prod(shape[i + 1 :], dtype=np.int64)) for i in range(len(shape))]
    permute_call(
        w, w.place(call.inputs[0]), [shape[d] for d in dims], [strides[d] for d in dims],
        w.place(call.output),
    )  # fmt: skip


def _repeat(call: Call, w: Writer) -> None:
    n, size = call.output.shape
    permute_call(w, w.place(call.inputs[0]), (n, size), (0, 1), w.place(call.output))


# -------------------------------------------------------------------- elementwise


def _batch_norm(call: Call, w: Writer) -> None:
    scale, shift = normalisation_factors(call)
    _channels(call, w, scale, shift)


def _channels(call: Call, w: Writer, scale: Any, shift: Any) -> None:
    c = len(scale)
    factors = w.array(f"{call.name}_scale", scale), w.array(f"{call.name}_shift", shift)
    rows = call.output.size // c
    w.call("scale_shift", w.place(call.inputs[0]), rows, c, *factors, w.place(call.output))


def _rescaling(call: Call, w: Writer) -> None:
    scale, shift = (np.ravel(v).astype(np.float64) for v in (call.layer.scale, call.layer.offset))
    n = max(len(scale), len(shift))
    _channels(call, w, np.broadcast_to(scale, n), np.broadcast_to(shift, n))


def _normalize(call: Call, w: Writer) -> None:
    """Layer, RMS and group normalisation."""
    layer, shape = call.layer, call.output.shape
    axis = layer.axis if isinstance(layer.axis, int) else list(layer.axis)
    if axis not in (-1, [-1], len(shape), [len(shape)]):
        raise ValueError(
            f'The layer "{call.name}" normalises axis {axis}; only the last one can be exported.'
        )
    gamma = w.array(f"{call.name}_gamma", call.weights.get("gamma", call.weights.get("scale")))
    beta = w.array(f"{call.name}_beta", call.weights.get("beta"))
    c = shape[-1]
    groups, rows, times = 1, 1, call.output.size // c
    if call.kind == "GroupNormalization":
        groups, rows, times = layer.groups, times, 1
    w.call(
        "normalize", w.place(call.inputs[0]), times, rows, c, groups,
        int(call.kind != "RMSNormalization"), gamma, beta, literal(layer.epsilon),
        w.place(call.output),
    )  # fmt: skip


def _activation(call: Call, w: Writer) -> None:
    _activate(call, w, source=w.place(call.inputs[0]))


def _relu(call: Call, w: Writer) -> None:
    layer, size = call.layer, call.output.size
    limit = "INFINITY" if layer.max_value is None else literal(layer.max_value)
    w.call(
        "clamped_relu", w.place(call.inputs[0]), size, literal(layer.negative_slope),
        literal(layer.threshold), limit, w.place(call.output),
    )  # fmt: skip


def _leaky(call: Call, w: Writer) -> None:
    slope = call.weights.get("alpha", call.weights.get("negative_slope"))
    c = call.output.shape[-1]
    if slope is None:
        slope = np.array([call.layer.negative_slope])
    elif slope.size not in (1, c) or (slope.size > 1 and slope.shape[-1] != c):
        slope = np.broadcast_to(slope, call.output.shape)
        c = call.output.size
    name = w.array(f"{call.name}_slope", slope)
    each = int(slope.size > 1)
    rows = call.output.size // c
    w.call("leaky", w.place(call.inputs[0]), rows, c, name, each, w.place(call.output))


def _elu(call: Call, w: Writer) -> None:
    size, alpha = call.output.size, literal(call.layer.alpha)
    w.call("scaled_elu", w.place(call.inputs[0]), size, alpha, w.place(call.output))


def _softmax(call: Call, w: Writer) -> None:
    if call.layer.axis not in (-1, len(call.output.shape)):
        raise ValueError(
            f'The layer "{call.name}" works on axis {call.layer.axis}; only the last one can be '
            "exported."
        )
    _activate(call, w, "softmax", w.place(call.inputs[0]))


# -------------------------------------------------------------------- several inputs


def _merge(kernel: str, average: bool = False) -> Emitter:
    def emit(call: Call, w: Writer) -> None:
        if any(not isinstance(v, Value) for v in call.inputs):
            _with_number(call, w)
            return
        if any(v.shape != call.output.shape for v in call.inputs):
            raise ValueError(
                f'"{call.name}" ({call.kind}) joins values of different shapes, which cannot be '
                "exported to C."
            )
        size, target = call.output.size, w.place(call.output)
        source = w.place(call.inputs[0])
        for other in call.inputs[1:]:
            w.call(kernel, source, w.place(other), size, target)
            source = target
        if average:
            scale_call(w, target, size, 1 / len(call.inputs), 0.0, target)

    return emit


def _with_number(call: Call, w: Writer) -> None:
    """Arithmetic of a value and a number, as a scale and a shift."""
    first, second = call.inputs
    value, number = (first, second) if isinstance(first, Value) else (second, first)
    number = float(number)
    factors = {"add": (1.0, number), "multiply": (number, 0.0)}
    if value is first:
        factors["subtract"] = (1.0, -number)
        factors["divide"] = (1.0 / number if number else np.inf, 0.0)
    else:
        factors["subtract"] = (-1.0, number)
    if call.kind not in factors or not np.isfinite(factors[call.kind]).all():
        raise ValueError(
            f'The op "{call.name}" with the number {number:g} cannot be exported to C.'
        )
    scale_call(w, w.place(value), call.output.size, *factors[call.kind], w.place(call.output))


def _concatenate(call: Call, w: Writer) -> None:
    axis = call.layer.axis
    axis = axis - 1 if axis > 0 else axis + len(call.output.shape)
    rows = int(np.prod(call.output.shape[:axis], dtype=np.int64))
    whole, start = call.output.size // rows, 0
    for value in call.inputs:
        n = value.size // rows
        target = w.place(call.output) + (f" + {start}" if start else "")
        w.call("join", w.place(value), rows, n, whole, target)
        start += n


EMITTERS: dict[str, Emitter] = {
    "Activation": _activation,
    "Add": _merge("merge_add"),
    "Average": _merge("merge_add", average=True),
    "AveragePooling1D": _pool("average_pool"),
    "AveragePooling2D": _pool("average_pool"),
    "BatchNormalization": _batch_norm,
    "Bidirectional": bidirectional,
    "Concatenate": _concatenate,
    "Conv1D": _conv,
    "Conv1DTranspose": _conv_transpose,
    "Conv2D": _conv,
    "Conv2DTranspose": _conv_transpose,
    "Cropping1D": _spread,
    "Cropping2D": _spread,
    "Dense": _dense,
    "DepthwiseConv1D": _depthwise,
    "DepthwiseConv2D": _depthwise,
    "ELU": _elu,
    "Embedding": _embedding,
    "GRU": recurrent,
    "GroupNormalization": _normalize,
    "GlobalAveragePooling1D": _global_pool("average_pool"),
    "GlobalAveragePooling2D": _global_pool("average_pool"),
    "GlobalMaxPooling1D": _global_pool("max_pool"),
    "GlobalMaxPooling2D": _global_pool("max_pool"),
    "LSTM": recurrent,
    "LayerNormalization": _normalize,
    "LeakyReLU": _leaky,
    "Linear": _dense,
    "MaxPooling1D": _pool("max_pool"),
    "MaxPooling2D": _pool("max_pool"),
    "Maximum": _merge("merge_maximum"),
    "Minimum": _merge("merge_minimum"),
    "Multiply": _merge("merge_multiply"),
    "PReLU": _leaky,
    "Permute": _permute,
    "RMSNormalization": _normalize,
    "ReLU": _relu,
    "RepeatVector": _repeat,
    "Rescaling": _rescaling,
    "SeparableConv1D": _separable,
    "SeparableConv2D": _separable,
    "SimpleRNN": recurrent,
    "Softmax": _softmax,
    "Subtract": _merge("merge_subtract"),
    "UpSampling1D": _spread,
    "UpSampling2D": _spread,
    "ZeroPadding1D": _spread,
    "ZeroPadding2D": _spread,
    **{op: _merge(f"merge_{op}") for op in c_kernels.MERGES},
}
