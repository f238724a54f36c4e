"""How each layer is written in ONNX operators of opset 17."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from picodl.export.geometry import as_image, channels_last, padding_before, per_axis, window
from picodl.export.plan import Call, Value, activation_name, normalisation_factors

if TYPE_CHECKING:
    from picodl.export.onnx_graph import Builder

Emitter = Callable[[Call, "Builder"], None]

_OPERATORS: dict[str, tuple[str, dict[str, Any]]] = {
    "relu": ("Relu", {}),
    "sigmoid": ("Sigmoid", {}),
    "tanh": ("Tanh", {}),
    "elu": ("Elu", {}),
    "celu": ("Celu", {}),
    "selu": ("Selu", {}),
    "softplus": ("Softplus", {}),
    "softsign": ("Softsign", {}),
    "exponential": ("Exp", {}),
    "hard_sigmoid": ("HardSigmoid", {"alpha": 1 / 6, "beta": 0.5}),
    "hard_silu": ("HardSwish", {}),
    "leaky_relu": ("LeakyRelu", {"alpha": 0.2}),
    "softmax": ("Softmax", {"axis": -1}),
    "log_softmax": ("LogSoftmax", {"axis": -1}),
}


def _activate(b: Builder, x: str, kind: str, layer: str, axis: int = -1) -> str:
    """The activation of x; axis is where the channels are."""
    kind = {"swish": "silu", "hard_swish": "hard_silu"}.get(kind, kind)
    if kind == "linear":
        return x
    if kind in _OPERATORS:
        operator, attributes = _OPERATORS[kind]
        if "axis" in attributes:
            attributes = {"axis": axis}
        return b.node(operator, [x], **attributes)
    if kind == "silu":
        return b.node("Mul", [x, b.node("Sigmoid", [x])])
    if kind == "mish":
        return b.node("Mul", [x, b.node("Tanh", [b.node("Softplus", [x])])])
    if kind == "relu6":
        return b.node("Clip", [x, b.array(0.0), b.array(6.0)])
    if kind == "gelu":
        inner = b.node("Erf", [b.node("Mul", [x, b.array(0.5**0.5)])])
        half = b.node("Mul", [x, b.array(0.5)])
        return b.node("Mul", [half, b.node("Add", [inner, b.array(1.0)])])
    raise ValueError(
        f'The layer "{layer}" has the activation {kind!r}, which cannot be exported to ONNX.'
    )


def _finish(call: Call, b: Builder, x: str) -> None:
    b.set(call.output, _activate(b, x, call.activation, call.name))


def _dense(call: Call, b: Builder) -> None:
    x = b.node("MatMul", [b.get(call.inputs[0]), b.array(call.weights["kernel"])])
    if "bias" in call.weights:
        x = b.node("Add", [x, b.array(call.weights["bias"])])
    _finish(call, b, x)


# -------------------------------------------------------------------- images


def _spatial(call: Call, values: Any) -> list[int]:
    """Two numbers, for rows and columns, without the row of a sequence."""
    return [int(v) for v in (values[1:] if len(call.output.shape) == 2 else values)]


def _window_attributes(call: Call, size: Any, dilation: Any = 1) -> dict[str, Any]:
    g = window(call, size, dilation)
    return {
        "kernel_shape": _spatial(call, g["kernel"]),
        "strides": _spatial(call, g["strides"]),
        "pads": _spatial(call, g["before"]) + _spatial(call, g["after"]),
        "dilations": _spatial(call, g["dilation"]),
    }


def _convolve(
    b: Builder, x: str, kernel: Any, bias: Any, groups: int, attributes: dict[str, Any]
) -> str:
    """Conv of x (batch, channels, ...) with a kernel (..., in, out)."""
    inputs = [x, b.array(np.moveaxis(kernel, (-1, -2), (0, 1)))]
    if bias is not None:
        inputs.append(b.array(bias))
    return b.node("Conv", inputs, group=groups, **attributes)


def _conv(call: Call, b: Builder) -> None:
    layer, weights = call.layer, call.weights
    x = b.get_planar(call.inputs[0])
    attributes = _window_attributes(call, layer.kernel_size, layer.dilation_rate)
    y = _convolve(b, x, weights["kernel"], weights.get("bias"), layer.groups, attributes)
    b.set_planar(call.output, _activate(b, y, call.activation, call.name, axis=1))


def _depthwise_of(call: Call, b: Builder, kernel: Any, bias: Any) -> str:
    layer = call.layer
    c, m = kernel.shape[-2:]
    grouped = kernel.reshape(*kernel.shape[:-2], 1, c * m)
    attributes = _window_attributes(call, layer.kernel_size, layer.dilation_rate)
    return _convolve(b, b.get_planar(call.inputs[0]), grouped, bias, c, attributes)


def _depthwise(call: Call, b: Builder) -> None:
    y = _depthwise_of(call, b, call.weights["kernel"], call.weights.get("bias"))
    b.set_planar(call.output, _activate(b, y, call.activation, call.name, axis=1))


def _separable(call: Call, b: Builder) -> None:
    y = _depthwise_of(call, b, call.weights["depthwise_kernel"], None)
    y = _convolve(b, y, call.weights["pointwise_kernel"], call.weights.get("bias"), 1, {})
    b.set_planar(call.output, _activate(b, y, call.activation, call.name, axis=1))


def _pool(operator: str) -> Emitter:
    def emit(call: Call, b: Builder) -> None:
        attributes = _window_attributes(call, call.layer.pool_size)
        del attributes["dilations"]
        b.set_planar(call.output, b.node(operator, [b.get_planar(call.inputs[0])], **attributes))

    return emit


def _global_pool(operator: str) -> Emitter:
    def emit(call: Call, b: Builder) -> None:
        channels_last(call)
        keep = bool(getattr(call.layer, "keepdims", False))
        axes = list(range(1, len(call.inputs[0].shape)))
        y = b.node(operator, [b.get(call.inputs[0])], axes=axes, keepdims=int(keep))
        b.set(call.output, y)

    return emit


def _zero_padding(call: Call, b: Builder) -> None:
    channels_last(call)
    h, width, _ = as_image(call.inputs[0].shape)
    oh, ow, _ = as_image(call.output.shape)
    top, left = padding_before(call)
    before, after = _spatial(call, (top, left)), _spatial(call, (oh - h - top, ow - width - left))
    pads = b.array([0, *before, 0, 0, *after, 0], np.int64)
    b.set(call.output, b.node("Pad", [b.get(call.inputs[0]), pads]))


def _cropping(call: Call, b: Builder) -> None:
    channels_last(call)
    oh, ow, _ = as_image(call.output.shape)
    start = [-v for v in _spatial(call, padding_before(call))]
    stop = [a + n for a, n in zip(start, _spatial(call, (oh, ow)), strict=True)]
    axes = list(range(1, 1 + len(start)))
    numbers = [b.array(v, np.int64) for v in (start, stop, axes)]
    b.set(call.output, b.node("Slice", [b.get(call.inputs[0]), *numbers]))


def _upsampling(call: Call, b: Builder) -> None:
    channels_last(call)
    layer = call.layer
    if getattr(layer, "interpolation", "nearest") != "nearest":
        raise ValueError(
            f'The layer "{call.name}" interpolates by {layer.interpolation!r}; only "nearest" can '
            "be exported."
        )
    size = _spatial(call, per_axis(layer.size, len(call.output.shape) - 1))
    x = b.get_planar(call.inputs[0])
    y = b.node(
        "Resize",
        [x, "", b.array([1.0, 1.0, *size])],
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
    b.set_planar(call.output, y)


# -------------------------------------------------------------------- sequences


def _embedding(call: Call, b: Builder) -> None:
    if call.layer.mask_zero:
        raise ValueError(
            f'The layer "{call.name}" makes masks (mask_zero=True), which cannot be exported.'
        )
    ids = b.node("Cast", [b.get(call.inputs[0])], to=b.onnx.TensorProto.INT64)
    b.set(call.output, b.node("Gather", [b.array(call.weights["embeddings"]), ids]))


# ONNX's name, and where each of ONNX's gates stands in Keras's order
_CELLS = {"SimpleRNN": ("RNN", [0]), "LSTM": ("LSTM", [0, 3, 1, 2]), "GRU": ("GRU", [0, 1, 2])}
_CELL_FUNCTIONS = {"tanh": "Tanh", "sigmoid": "Sigmoid", "relu": "Relu"}


def _recurrent(call: Call, b: Builder) -> None:
    layer = call.layer
    if getattr(layer, "stateful", False):
        raise ValueError(f'The layer "{call.name}" is stateful, which cannot be exported.')
    y = _sequence(call, b, layer, call.name)
    if layer.return_sequences and layer.go_backwards:  # Keras gives them in the order of its steps
        y = _reverse(b, y)
    b.set(call.output, y)


def _sequence(call: Call, b: Builder, layer: Any, name: str) -> str:
    """The result of a recurrent layer, sequences in the order of the input."""
    operator, order = _CELLS[type(layer).__name__]
    cell, gates = layer.cell, len(order)
    m = cell.recurrent_kernel.shape[0]

    def blocks(array: Any) -> Any:
        """(..., gates * m) as rows of ONNX's order of gates."""
        parts = np.split(array, gates, axis=-1)
        return np.concatenate([parts[i] for i in order], axis=-1)

    kernel, recurrent = (blocks(w.data).T[None] for w in (cell.kernel, cell.recurrent_kernel))
    bias = cell.bias.data if getattr(cell, "bias", None) is not None else np.zeros(gates * m)
    both = bias if bias.ndim == 2 else np.stack([bias, np.zeros_like(bias)])
    inputs = [
        b.node("Transpose", [b.get(call.inputs[0])], perm=[1, 0, 2]),
        b.array(kernel),
        b.array(recurrent),
        b.array(np.concatenate([blocks(both[0]), blocks(both[1])])[None]),
    ]
    act = _cell_function(cell.activation, name)
    functions = [act]
    if gates > 1:
        functions.insert(0, _cell_function(cell.recurrent_activation, name))
    if gates == 4:
        functions.append(act)
    attributes: dict[str, Any] = {"hidden_size": m, "activations": functions}
    attributes["direction"] = "reverse" if layer.go_backwards else "forward"
    if gates == 3:
        attributes["linear_before_reset"] = int(bool(cell.reset_after))
    every, last = b.many(operator, inputs, 2, **attributes)
    if layer.return_sequences:  # (steps, 1, batch, m)
        y = b.node("Squeeze", [every, b.array([1], np.int64)])
        return b.node("Transpose", [y], perm=[1, 0, 2])
    return b.node("Squeeze", [last, b.array([0], np.int64)])


def _cell_function(activation: Any, name: str) -> str:
    kind = activation_name(activation, name)
    if kind not in _CELL_FUNCTIONS:
        raise ValueError(
            f'The layer "{name}" has the activation {kind!r}; recurrent layers in ONNX can have '
            f"{', '.join(_CELL_FUNCTIONS)}."
        )
    return _CELL_FUNCTIONS[kind]


def _reverse(b: Builder, x: str) -> str:
    """x with its second axis turned round."""
    numbers = [b.array([v], np.int64) for v in (-1, np.iinfo(np.int64).min, 1, -1)]
    return b.node("Slice", [x, *numbers])


def _bidirectional(call: Call, b: Builder) -> None:
    layer = call.layer
    operators = {"sum": "Add", "mul": "Mul", "ave": "Mean"}
    parts = [
        _sequence(call, b, part, f"{call.name}_{which}")
        for which, part in (("forward", layer.forward_layer), ("backward", layer.backward_layer))
    ]
    if layer.merge_mode == "concat":
        b.set(call.output, b.node("Concat", parts, axis=-1))
    elif layer.merge_mode in operators:
        b.set(call.output, b.node(operators[layer.merge_mode], parts))
    else:
        raise ValueError(
            f'The layer "{call.name}" has merge_mode {layer.merge_mode!r}, which cannot be '
            "exported."
        )


# -------------------------------------------------------------------- shapes and elementwise


def _permute(call: Call, b: Builder) -> None:
    b.set(call.output, b.node("Transpose", [b.get(call.inputs[0])], perm=[0, *call.layer.dims]))


def _repeat(call: Call, b: Builder) -> None:
    x = b.node("Unsqueeze", [b.get(call.inputs[0]), b.array([1], np.int64)])
    b.set(call.output, b.node("Tile", [x, b.array([1, call.output.shape[0], 1], np.int64)]))


def _scaled(call: Call, b: Builder, scale: Any, shift: Any) -> None:
    x = b.node("Mul", [b.get(call.inputs[0]), b.array(scale)])
    b.set(call.output, b.node("Add", [x, b.array(shift)]))


def _batch_norm(call: Call, b: Builder) -> None:
    _scaled(call, b, *normalisation_factors(call))


def _rescaling(call: Call, b: Builder) -> None:
    _scaled(call, b, call.layer.scale, call.layer.offset)


def _layer_norm(call: Call, b: Builder) -> None:
    axis = call.layer.axis if isinstance(call.layer.axis, int) else list(call.layer.axis)
    if axis not in (-1, [-1], len(call.output.shape), [len(call.output.shape)]):
        raise ValueError(
            f'The layer "{call.name}" normalises axis {axis}; only the last one can be exported.'
        )
    c = call.output.shape[-1]
    inputs = [b.get(call.inputs[0]), b.array(call.weights.get("gamma", np.ones(c)))]
    if "beta" in call.weights:
        inputs.append(b.array(call.weights["beta"]))
    y = b.node("LayerNormalization", inputs, axis=-1, epsilon=float(call.layer.epsilon))
    b.set(call.output, y)


def _activation(call: Call, b: Builder) -> None:
    _finish(call, b, b.get(call.inputs[0]))


def _relu(call: Call, b: Builder) -> None:
    layer, x = call.layer, b.get(call.inputs[0])
    low = layer.threshold
    if low == 0:
        slope = float(layer.negative_slope)
        y = b.node("LeakyRelu", [x], alpha=slope) if slope else b.node("Relu", [x])
    else:
        under = b.node("Mul", [b.node("Sub", [x, b.array(low)]), b.array(layer.negative_slope)])
        y = b.node("Where", [b.node("GreaterOrEqual", [x, b.array(low)]), x, under])
    if layer.max_value is not None:
        y = b.node("Min", [y, b.array(layer.max_value)])
    b.set(call.output, y)


def _leaky(call: Call, b: Builder) -> None:
    slope = call.weights.get("alpha", call.weights.get("negative_slope"))
    slope = call.layer.negative_slope if slope is None else slope
    b.set(call.output, b.node("PRelu", [b.get(call.inputs[0]), b.array(np.atleast_1d(slope))]))


def _elu(call: Call, b: Builder) -> None:
    b.set(call.output, b.node("Elu", [b.get(call.inputs[0])], alpha=float(call.layer.alpha)))


def _softmax(call: Call, b: Builder) -> None:
    b.set(call.output, b.node("Softmax", [b.get(call.inputs[0])], axis=int(call.layer.axis)))


# -------------------------------------------------------------------- several inputs


def _merge(operator: str) -> Emitter:
    def emit(call: Call, b: Builder) -> None:
        names = [b.get(v) if isinstance(v, Value) else b.array(v) for v in call.inputs]
        y = names[0]
        for other in names[1:]:
            y = b.node(operator, [y, other])
        b.set(call.output, y)

    return emit


def _average(call: Call, b: Builder) -> None:
    b.set(call.output, b.node("Mean", [b.get(v) for v in call.inputs]))


def _concatenate(call: Call, b: Builder) -> None:
    names = [b.get(v) for v in call.inputs]
    b.set(call.output, b.node("Concat", names, axis=int(call.layer.axis)))


EMITTERS: dict[str, Emitter] = {
    "Activation": _activation,
    "Add": _merge("Add"),
    "Average": _average,
    "AveragePooling1D": _pool("AveragePool"),
    "AveragePooling2D": _pool("AveragePool"),
    "BatchNormalization": _batch_norm,
    "Bidirectional": _bidirectional,
    "Concatenate": _concatenate,
    "Conv1D": _conv,
    "Conv2D": _conv,
    "Cropping1D": _cropping,
    "Cropping2D": _cropping,
    "Dense": _dense,
    "DepthwiseConv1D": _depthwise,
    "DepthwiseConv2D": _depthwise,
    "ELU": _elu,
    "Embedding": _embedding,
    "GRU": _recurrent,
    "GlobalAveragePooling1D": _global_pool("ReduceMean"),
    "GlobalAveragePooling2D": _global_pool("ReduceMean"),
    "GlobalMaxPooling1D": _global_pool("ReduceMax"),
    "GlobalMaxPooling2D": _global_pool("ReduceMax"),
    "LSTM": _recurrent,
    "LayerNormalization": _layer_norm,
    "LeakyReLU": _leaky,
    "Linear": _dense,
    "MaxPooling1D": _pool("MaxPool"),
    "MaxPooling2D": _pool("MaxPool"),
    "Maximum": _merge("Max"),
    "Minimum": _merge("Min"),
    "Multiply": _merge("Mul"),
    "PReLU": _leaky,
    "Permute": _permute,
    "ReLU": _relu,
    "RepeatVector": _repeat,
    "Rescaling": _rescaling,
    "SeparableConv1D": _separable,
    "SeparableConv2D": _separable,
    "SimpleRNN": _recurrent,
    "Softmax": _softmax,
    "Subtract": _merge("Sub"),
    "UpSampling1D": _upsampling,
    "UpSampling2D": _upsampling,
    "ZeroPadding1D": _zero_padding,
    "ZeroPadding2D": _zero_padding,
    "add": _merge("Add"),
    "divide": _merge("Div"),
    "maximum": _merge("Max"),
    "minimum": _merge("Min"),
    "multiply": _merge("Mul"),
    "subtract": _merge("Sub"),
}
