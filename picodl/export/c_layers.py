"""How each layer is written in C: which kernel with which numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from picodl.export import c_kernels
from picodl.export.c_writer import Writer, literal
from picodl.export.geometry import as_image, channels_last, padding_before, per_axis, window
from picodl.export.plan import Call, Value, activation_name, normalisation_factors

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


_CELLS = {"SimpleRNN": ("simple_rnn", 1, 3), "LSTM": ("lstm", 4, 10), "GRU": ("gru", 3, 7)}


def _recurrent(call: Call, w: Writer) -> None:
    if getattr(call.layer, "stateful", False):
        raise ValueError(f'The layer "{call.name}" is stateful, which cannot be exported.')
    _run_cell(call, w, call.layer, w.place(call.output), call.name)


def _run_cell(call: Call, w: Writer, layer: Any, target: str, name: str, offset: int = 0) -> None:
    """One recurrent layer from the call's input into target, with scratch from an offset."""
    kernel_name, gates, places = _CELLS[type(layer).__name__]
    steps, n = call.inputs[0].shape
    cell = layer.cell
    arrays = {
        key: getattr(cell, key).data
        for key in ("kernel", "recurrent_kernel", "bias")
        if getattr(cell, key, None) is not None
    }
    m = arrays["kernel"].shape[1] // gates
    k, ks, suffix = w.kernel(f"{name}_kernel", arrays["kernel"])
    r, rs, _ = w.kernel(f"{name}_recurrent", arrays["recurrent_kernel"])
    bias = arrays.get("bias")
    both = bias if bias is not None and bias.ndim == 2 else (bias, None)
    biases = [w.array(f"{name}_bias", both[0])]
    if gates == 3:
        biases.append(w.array(f"{name}_recurrent_bias", both[1]))
        biases.append(str(int(bool(cell.reset_after))))
    functions = [activation_name(cell.activation, name)]
    if gates > 1:
        functions.append(activation_name(cell.recurrent_activation, name))
    for function in functions:
        if function not in c_kernels.SCALARS:
            raise ValueError(f'The layer "{name}" has the activation {function!r}: not in C.')
    work = w.scratch(offset + places * m)
    if offset:
        work += f" + {offset}"
    w.call(
        f"{kernel_name}_{suffix}", w.place(call.inputs[0]), steps, n, m, k, ks, r, rs, *biases,
        *[w.function(f) for f in functions], int(bool(layer.go_backwards)),
        int(bool(layer.return_sequences)), work, target,
    )  # fmt: skip


def _bidirectional(call: Call, w: Writer) -> None:
    layer, mode = call.layer, call.layer.merge_mode
    if mode not in ("concat", "sum", "mul", "ave"):
        raise ValueError(
            f'The layer "{call.name}" has merge_mode {mode!r}, which cannot be exported.'
        )
    m = call.output.shape[-1] // (2 if mode == "concat" else 1)
    rows = call.output.size // call.output.shape[-1]
    parts = [(0, "forward", layer.forward_layer), (rows * m, "backward", layer.backward_layer)]
    for start, name, part in parts:
        w.scratch(2 * rows * m)
        place = f"scratch + {start}" if start else "scratch"
        _run_cell(call, w, part, place, f"{call.name}_{name}", 2 * rows * m)
    forward, backward = "scratch", f"scratch + {rows * m}"
    if layer.return_sequences:  # the second one saw the sequence backwards: turn it round
        turned = f"scratch + {2 * rows * m}"
        w.scratch(3 * rows * m)
        _permute_call(w, f"{backward} + {(rows - 1) * m}", (rows, m), (-m, 1), turned)
        backward = turned
    target = w.place(call.output)
    if mode == "concat":
        w.call("join", forward, rows, m, 2 * m, target)
        w.call("join", backward, rows, m, 2 * m, f"{target} + {m}")
    else:
        kernel = "merge_multiply" if mode == "mul" else "merge_add"
        w.call(kernel, forward, backward, rows * m, target)
        if mode == "ave":
            _scale(w, target, rows * m, 0.5, 0.0, target)


def _scale(w: Writer, source: str, size: int, scale: float, shift: float, target: str) -> None:
    factors = [w.array(name, np.array([v])) for name, v in (("factor", scale), ("offset", shift))]
    w.call("scale_shift", source, size, 1, *factors, target)


def _permute_call(w: Writer, source: str, sizes: Any, strides: Any, target: str) -> None:
    missing = 4 - len(sizes)
    size = ", ".join(map(str, (*(1,) * missing, *sizes)))
    stride = ", ".join(map(str, (*(0,) * missing, *strides)))
    w.call("permute", source, f"(const int[]){{{size}}}", f"(const int[]){{{stride}}}", target)


def _permute(call: Call, w: Writer) -> None:
    shape, dims = call.inputs[0].shape, [d - 1 for d in call.layer.dims]
    if len(shape) > 4:
        raise ValueError(f'The layer "{call.name}" permutes {len(shape)} axes; up to 4 work.')
    strides = [int(np.prod(shape[i + 1 :], dtype=np.int64)) for i in range(len(shape))]
    _permute_call(
        w, w.place(call.inputs[0]), [shape[d] for d in dims], [strides[d] for d in dims],
        w.place(call.output),
    )  # fmt: skip


def _repeat(call: Call, w: Writer) -> None:
    n, size = call.output.shape
    _permute_call(w, w.place(call.inputs[0]), (n, size), (0, 1), w.place(call.output))


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


def _layer_norm(call: Call, w: Writer) -> None:
    axis = call.layer.axis if isinstance(call.layer.axis, int) else list(call.layer.axis)
    if axis not in (-1, [-1], len(call.output.shape), [len(call.output.shape)]):
        raise ValueError(
            f'The layer "{call.name}" normalises axis {axis}; only the last one can be exported.'
        )
    gamma = w.array(f"{call.name}_gamma", call.weights.get("gamma"))
    beta = w.array(f"{call.name}_beta", call.weights.get("beta"))
    c = call.output.shape[-1]
    w.call(
        "layer_norm", w.place(call.inputs[0]), call.output.size // c, c, gamma, beta,
        literal(call.layer.epsilon), w.place(call.output),
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
        if any(not isinstance(v, Value) or v.shape != call.output.shape for v in call.inputs):
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
            _scale(w, target, size, 1 / len(call.inputs), 0.0, target)

    return emit


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
    "Bidirectional": _bidirectional,
    "Concatenate": _concatenate,
    "Conv1D": _conv,
    "Conv2D": _conv,
    "Cropping1D": _spread,
    "Cropping2D": _spread,
    "Dense": _dense,
    "DepthwiseConv1D": _depthwise,
    "DepthwiseConv2D": _depthwise,
    "ELU": _elu,
    "Embedding": _embedding,
    "GRU": _recurrent,
    "GlobalAveragePooling1D": _global_pool("average_pool"),
    "GlobalAveragePooling2D": _global_pool("average_pool"),
    "GlobalMaxPooling1D": _global_pool("max_pool"),
    "GlobalMaxPooling2D": _global_pool("max_pool"),
    "LSTM": _recurrent,
    "LayerNormalization": _layer_norm,
    "LeakyReLU": _leaky,
    "Linear": _dense,
    "MaxPooling1D": _pool("max_pool"),
    "MaxPooling2D": _pool("max_pool"),
    "Maximum": _merge("merge_maximum"),
    "Minimum": _merge("merge_minimum"),
    "Multiply": _merge("merge_multiply"),
    "PReLU": _leaky,
    "Permute": _permute,
    "ReLU": _relu,
    "RepeatVector": _repeat,
    "Rescaling": _rescaling,
    "SeparableConv1D": _separable,
    "SeparableConv2D": _separable,
    "SimpleRNN": _recurrent,
    "Softmax": _softmax,
    "Subtract": _merge("merge_subtract"),
    "UpSampling1D": _spread,
    "UpSampling2D": _spread,
    "ZeroPadding1D": _spread,
    "ZeroPadding2D": _spread,
    **{op: _merge(f"merge_{op}") for op in c_kernels.MERGES},
}
