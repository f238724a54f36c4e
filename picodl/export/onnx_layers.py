"""How each layer is written in ONNX operators of opset 17."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from picodl.export.geometry import (
    as_image,
    channels_last,
    padding_before,
    per_axis,
    transposed_window,
    window,
)
from picodl.export.onnx_recurrent import bidirectional, recurrent
from picodl.export.plan import Call, Value, normalisation_factors

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


def _conv_transpose(call: Call, b: Builder) -> None:
    g, kernel = transposed_window(call), call.weights["kernel"]
    sizes = zip(g["x"], g["out"], g["kernel"], g["strides"], g["dilation"], strict=False)
    before, after, extra = list(g["before"]), [], []
    for cut, (n, out, k, s, d) in zip(before, sizes, strict=True):
        surplus = (n - 1) * s + (k - 1) * d + 1 - cut - out
        after.append(max(surplus, 0))
        extra.append(max(-surplus, 0))
    inputs = [b.get_planar(call.inputs[0]), b.array(np.moveaxis(kernel, (-1, -2), (0, 1)))]
    if "bias" in call.weights:
        inputs.append(b.array(call.weights["bias"]))
    y = b.node(
        "ConvTranspose",
        inputs,
        kernel_shape=_spatial(call, g["kernel"]),
        strides=_spatial(call, g["strides"]),
        dilations=_spatial(call, g["dilation"]),
        pads=_spatial(call, before) + _spatial(call, after),
        output_padding=_spatial(call, extra),
    )
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


# -------------------------------------------------------------------- shapes and elementwise


def _embedding(call: Call, b: Builder) -> None:
    if call.layer.mask_zero:
        raise ValueError(
            f'The layer "{call.name}" makes masks (mask_zero=True), which cannot be exported.'
        )
    ids = b.node("Cast", [b.get(call.inputs[0])], to=b.onnx.TensorProto.INT64)
    b.set(call.output, b.node("Gather", [b.array(call.weights["embeddings"]), ids]))


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


def _rms_norm(call: Call, b: Builder) -> None:
    if call.layer.axis not in (-1, [-1], len(call.output.shape), [len(call.output.shape)]):
        raise ValueError(
            f'The layer "{call.name}" normalises axis {call.layer.axis}; only the last one can be '
            "exported."
        )
    x = b.get(call.inputs[0])
    mean = b.node("ReduceMean", [b.node("Mul", [x, x])], axes=[-1], keepdims=1)
    root = b.node("Sqrt", [b.node("Add", [mean, b.array(call.layer.epsilon)])])
    y = b.node("Mul", [b.node("Div", [x, root]), b.array(call.weights["scale"])])
    b.set(call.output, y)


def _group_norm(call: Call, b: Builder) -> None:
    layer, shape = call.layer, call.output.shape
    if layer.axis not in (-1, len(shape)):
        raise ValueError(
            f'The layer "{call.name}" normalises axis {layer.axis}; only the last one can be '
            "exported."
        )
    c, rest = shape[-1], int(np.prod(shape[:-1], dtype=np.int64))
    split = [-1, rest, layer.groups, c // layer.groups]
    x = b.node("Reshape", [b.get(call.inputs[0]), b.array(split, np.int64)])
    d = b.node("Sub", [x, b.node("ReduceMean", [x], axes=[1, 3], keepdims=1)])
    variance = b.node("ReduceMean", [b.node("Mul", [d, d])], axes=[1, 3], keepdims=1)
    y = b.node("Div", [d, b.node("Sqrt", [b.node("Add", [variance, b.array(layer.epsilon)])])])
    y = b.node("Reshape", [y, b.array([-1, *shape], np.int64)])
    if "gamma" in call.weights:
        y = b.node("Mul", [y, b.array(call.weights["gamma"])])
    if "beta" in call.weights:
        y = b.node("Add", [y, b.array(call.weights["beta"])])
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
    "Bidirectional": bidirectional,
    "Concatenate": _concatenate,
    "Conv1D": _conv,
    "Conv1DTranspose": _conv_transpose,
    "Conv2D": _conv,
    "Conv2DTranspose": _conv_transpose,
    "Cropping1D": _cropping,
    "Cropping2D": _cropping,
    "Dense": _dense,
    "DepthwiseConv1D": _depthwise,
    "DepthwiseConv2D": _depthwise,
    "ELU": _elu,
    "Embedding": _embedding,
    "GRU": recurrent,
    "GroupNormalization": _group_norm,
    "GlobalAveragePooling1D": _global_pool("ReduceMean"),
    "GlobalAveragePooling2D": _global_pool("ReduceMean"),
    "GlobalMaxPooling1D": _global_pool("ReduceMax"),
    "GlobalMaxPooling2D": _global_pool("ReduceMax"),
    "LSTM": recurrent,
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
    "RMSNormalization": _rms_norm,
    "ReLU": _relu,
    "RepeatVector": _repeat,
    "Rescaling": _rescaling,
    "SeparableConv1D": _separable,
    "SeparableConv2D": _separable,
    "SimpleRNN": recurrent,
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
