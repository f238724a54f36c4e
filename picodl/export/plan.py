"""A model as a flat list of layer calls on numbered values, the common ground of all exports."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from picodl import activations, tree
from picodl.layers import Layer
from picodl.layers.lora import LowRank
from picodl.models.graph import Node, Slot
from picodl.module import Parameter
from picodl.typing import Array

# layers that change nothing at inference, and layers that change the shape alone
_IDENTITIES = {
    "ActivityRegularization", "AlphaDropout", "Dropout", "GaussianDropout", "GaussianNoise",
    "Identity", "InputLayer", "SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D",
}  # fmt: skip
_POINTWISE = {"Activation", "Dense", "Dropout", "ELU", "LeakyReLU", "Linear", "ReLU"}
_RESHAPES = {"Flatten", "Reshape"}
_MERGES = {"Add", "Average", "Concatenate", "Maximum", "Minimum", "Multiply", "Subtract"}
_FOLDABLE = {
    "Dense", "Linear", "Conv1D", "Conv2D", "DepthwiseConv1D", "DepthwiseConv2D", "SeparableConv1D",
    "SeparableConv2D",
}  # fmt: skip


@dataclass
class Value:
    """What flows between calls: the shape of one sample, and the buffer it lies in."""

    shape: tuple[int, ...]
    buffer: int

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass
class Call:
    """One layer or op applied to values.

    Attributes:
        kind: the class name of the layer, or the name of the op.
        name: of the layer.
        layer: the layer itself; None for an op.
        inputs: the values it reads; for an op also Python numbers.
        output: the value it makes.
        weights: copies of its weights by attribute name; folding changes them.
        activation: the name of its activation.
    """

    kind: str
    name: str
    layer: Any
    inputs: list[Any]
    output: Value
    weights: dict[str, Array] = field(default_factory=dict)
    activation: str = "linear"


@dataclass
class Plan:
    """The calls in order, with the values that enter and leave."""

    name: str
    inputs: list[Value]
    input_names: list[str]
    outputs: list[Value]
    output_names: list[str]
    calls: list[Call]


def make_plan(model: Any) -> Plan:
    """The plan of a model made from Input symbols, with batch normalisation folded.

    Raises:
        ValueError: for a model without a graph, a size that is not known, or weights that are not
            finite; the message names the layer.
    """
    graph = getattr(model, "_graph", None)
    if graph is None:
        raise ValueError(
            f'"{getattr(model, "name", model)}" cannot be exported: it was not made from symbols. '
            "Give a Sequential model an Input or call it on data first; models with a call() of "
            "their own cannot be exported."
        )
    numbers = itertools.count()
    inputs = [
        Value(_known(symbol.shape[1:], f'input "{name}"'), next(numbers))
        for symbol, name in zip(model.inputs, model.input_names, strict=True)
    ]
    calls: list[Call] = []
    outputs = _expand(model, inputs, calls, numbers)
    names = [str(name) for name in getattr(model, "output_names", [])] or ["output"]
    plan = Plan(model.name, inputs, list(model.input_names), outputs, names[: len(outputs)], calls)
    _fold_normalisation(plan)
    for call in plan.calls:
        for key, array in call.weights.items():
            if not np.isfinite(array).all():
                raise ValueError(
                    f'The weight "{key}" of layer "{call.name}" is not finite; it cannot be '
                    "exported."
                )
    return plan


def _expand(model: Any, inputs: Sequence[Value], calls: list[Call], numbers: Any) -> list[Value]:
    """Append the calls of a model, those of nested models in their place."""
    graph = model._graph
    values: dict[int, Value] = dict(zip(graph.input_slots, inputs, strict=True))
    for node in graph.nodes:
        leaves = tree.flatten((node.args, node.kwargs))
        given = [values[leaf.number] if isinstance(leaf, Slot) else leaf for leaf in leaves]
        if getattr(node.call, "_graph", None) is not None:
            inside = [v for v in given if isinstance(v, Value)]
            results = _expand(node.call, inside, calls, numbers)
        else:
            results = [_append(node, given, calls, numbers)]
        values.update(zip(node.outputs, results, strict=True))
    return [values[number] for number in graph.output_slots]


def _append(node: Node, given: list[Any], calls: list[Call], numbers: Any) -> Value:
    """The call of one step; none for a layer that changes nothing or the shape alone."""
    if len(node.outputs) != 1:
        raise ValueError(
            f'The layer "{node.name}" gives {len(node.outputs)} results; layers with one result '
            "can be exported (return_state=False)."
        )
    shape = _known(tree.flatten(node.specs)[0].shape[1:], f'layer "{node.name}"')
    layer = node.call if isinstance(node.call, Layer) else None
    inner = getattr(layer, "layer", None) if type(layer).__name__ == "TimeDistributed" else None
    if type(inner).__name__ in _POINTWISE:
        layer = inner  # the same for every step by itself
    kind = kind_of(layer) if layer is not None else node.call.__name__
    inputs = [v for v in given if isinstance(v, Value)]
    if layer is None:
        return _append_op(kind, node.name, given, shape, calls, numbers)
    if node.kwargs.get("training") or (len(inputs) != 1 and kind not in _MERGES):
        raise ValueError(
            f'The layer "{node.name}" is called with training=True, a mask, a state or other '
            "inputs beside its own, which cannot be exported."
        )
    if kind in _IDENTITIES:
        return inputs[0]
    if kind in _RESHAPES:
        return Value(shape, inputs[0].buffer)
    output = Value(shape, next(numbers))
    merged = layer.merged_weights() if isinstance(layer, LowRank) else {}
    weights = {
        name: merged.get(id(weight), weight.data).copy()
        for name, weight in vars(layer).items()
        if isinstance(weight, Parameter) and not (merged and name.startswith("lora_"))
    }
    activation = activation_name(getattr(layer, "activation", None), node.name)
    calls.append(Call(kind, node.name, layer, inputs, output, weights, activation))
    return output


def _append_op(
    kind: str, name: str, given: list[Any], shape: tuple[int, ...], calls: list[Call], numbers: Any
) -> Value:
    """The call of an op: arithmetic of values and numbers, or a change of shape."""
    if kind == "reshape":
        return Value(shape, next(v for v in given if isinstance(v, Value)).buffer)
    odd = [v for v in given if not isinstance(v, (Value, int, float, np.number))]
    if odd or len(given) != 2:
        raise ValueError(
            f'The op "{name}" is not arithmetic of two values or a value and a number, and cannot '
            "be exported. Put it into a layer that can, or compute it outside of the model."
        )
    output = Value(shape, next(numbers))
    calls.append(Call(kind, name, None, given, output))
    return output


def kind_of(layer: Layer) -> str:
    """The class name of one of picodl's layers; for others with the module, since a class of the
    same name may compute something else."""
    cls = type(layer)
    own = cls.__module__.startswith("picodl.layers.")
    return cls.__name__ if own else f"{cls.__module__}.{cls.__qualname__}"


def activation_name(activation: Any, layer: str) -> str:
    """The plain name of a built-in activation.

    Raises:
        ValueError: for a function of one's own, naming the layer.
    """
    if activation is None:
        return "linear"
    name = getattr(activation, "__name__", "")
    if getattr(activations, name, None) is not activation:
        raise ValueError(
            f'The layer "{layer}" has the activation {activation!r}, which cannot be exported; '
            "built-in activations can."
        )
    return name


def _known(shape: Sequence[int | None], where: str) -> tuple[int, ...]:
    if any(n is None for n in shape):
        raise ValueError(
            f"An exported model has fixed sizes, but {where} has shape {tuple(shape)} without the "
            "batch axis. Build the model with Input sizes that are all known."
        )
    return tuple(int(n) for n in shape)  # type: ignore[arg-type]


def _fold_normalisation(plan: Plan) -> None:
    """Work batch normalisation into the weights of the layer before it, where that is possible."""
    readers: dict[int, int] = {}
    makers: dict[int, Call] = {}
    for call in plan.calls:
        for value in call.inputs:
            if isinstance(value, Value):
                readers[value.buffer] = readers.get(value.buffer, 0) + 1
        makers[call.output.buffer] = call
    for value in plan.outputs:
        readers[value.buffer] = readers.get(value.buffer, 0) + 1
    for call in list(plan.calls):
        if call.kind != "BatchNormalization":
            continue
        scale, shift = normalisation_factors(call)
        before = makers.get(call.inputs[0].buffer)
        if (
            before is None
            or before.kind not in _FOLDABLE
            or before.activation != "linear"
            or readers[call.inputs[0].buffer] != 1
            or before.output.shape != call.inputs[0].shape
        ):
            continue
        weights = before.weights
        kernel = "pointwise_kernel" if "pointwise_kernel" in weights else "kernel"
        shape = weights[kernel].shape
        depthwise = before.kind.startswith("Depthwise")
        factors = scale.reshape(shape[-2:]) if depthwise else scale
        weights[kernel] = weights[kernel] * factors
        weights["bias"] = weights.get("bias", np.zeros_like(scale)) * scale + shift
        before.output = call.output
        plan.calls.remove(call)


def normalisation_factors(call: Call) -> tuple[Array, Array]:
    """scale and shift of a BatchNormalization at inference: y = x * scale + shift.

    Raises:
        ValueError: if it normalises another axis than the last.
    """
    layer, weights = call.layer, call.weights
    axis = layer.axis if isinstance(layer.axis, int) else layer.axis[0]
    if axis not in (-1, len(call.output.shape)):
        raise ValueError(
            f'The layer "{call.name}" normalises axis {axis}; only the last axis can be exported.'
        )
    root = np.sqrt(weights["moving_variance"].astype(np.float64) + layer.epsilon)
    scale = (weights.get("gamma", 1.0) / root).astype(np.float32)
    shift = (weights.get("beta", 0.0) - weights["moving_mean"] * scale).astype(np.float32)
    return scale, np.broadcast_to(shift, scale.shape)
