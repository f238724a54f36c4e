"""Copies of models, with new weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from picodl import tree
from picodl.layers.base import Layer
from picodl.layers.core import InputLayer
from picodl.models.graph import Graph, _substitute
from picodl.models.model import Model
from picodl.models.sequential import Sequential
from picodl.symbolic import Symbol


def clone_model(
    model: Any,
    input_tensors: Any = None,
    clone_function: Callable[[Any], Any] | None = None,
    call_function: Callable[..., Any] | None = None,
    recursive: bool = False,
) -> Any:
    """A model of the same architecture with new layers and newly initialised weights.

    Args:
        model: Sequential, functional, or a subclass with a get_config().
        input_tensors: Symbols to build the new model on.
        clone_function: layer -> new layer. Defaults to making it again from its config.
        call_function: (layer, *args, **kwargs) -> result, instead of calling the layer.
        recursive: apply clone_function inside models that are layers, too.

    Returns:
        The new model, compiled like the old one with an optimizer and metrics of its own.

    Raises:
        ValueError: for arguments that a model without a graph cannot honour.

    >>> from picodl.layers import Dense, Input
    >>> a = Sequential([Input((2,)), Dense(1)])
    >>> clone_model(a).count_params()
    3
    """

    copy = _clone(model, input_tensors, clone_function, call_function, recursive)
    copy.compile_like(model)
    return copy


def _clone(
    model: Any, input_tensors: Any, clone_function: Any, call_function: Any, recursive: bool
) -> Any:
    def clone(layer: Any) -> Any:
        if isinstance(layer, Model) and recursive and (layer._graph is not None or _is_list(layer)):
            return _clone(layer, None, clone_function, call_function, True)
        if clone_function is None:
            return type(layer).from_config(layer.get_config())
        return clone_function(layer)

    if _is_list(model):
        return _clone_sequential(model, input_tensors, clone)
    if model._graph is None:
        if clone_function is not None or input_tensors is not None:
            raise ValueError(
                f'Model "{model.name}" has no graph: clone_model can only make it again from its '
                "config, without input_tensors and clone_function."
            )
        return type(model).from_config(model.get_config())
    return _clone_graph(model, input_tensors, clone, call_function)


def _is_list(model: Any) -> bool:
    return isinstance(model, Sequential)


def _clone_sequential(model: Any, input_tensors: Any, clone: Callable[[Any], Any]) -> Any:
    copy = type(model)(name=model.name)
    if input_tensors is not None:
        copy._append(tree.flatten(input_tensors)[0])
    elif model._source is not None:
        copy._append(InputLayer.from_config(model._source.get_config()))
    for layer in model._layers:
        copy._append(clone(layer))
    copy._connect()
    copy.trainable = model.trainable
    return copy


def _clone_graph(
    model: Any, input_tensors: Any, clone: Callable[[Any], Any], call_function: Any
) -> Any:
    graph: Graph = model._graph
    if input_tensors is None:
        flat = [InputLayer.from_config(s.get_config()).output for s in graph.sources]
    else:
        flat = tree.flatten(input_tensors)
        if len(flat) != len(graph.sources):
            raise ValueError(
                f'Model "{model.name}" has {len(graph.sources)} inputs, but received '
                f"{len(flat)} input_tensors."
            )
    symbols: dict[int, Symbol] = dict(zip(graph.input_slots, flat, strict=True))
    made: dict[int, Any] = {}
    for node in graph.nodes:
        args, kwargs = _substitute((node.args, node.kwargs), lambda slot: symbols[slot.number])
        if isinstance(node.call, Layer):
            if id(node.call) not in made:
                made[id(node.call)] = clone(node.call)
            call = made[id(node.call)]
        else:
            call = node.call
        if call_function is not None and isinstance(call, Layer):
            result = call_function(call, *args, **kwargs)
        else:
            result = call(*args, **kwargs)
        symbols.update(zip(node.outputs, tree.flatten(result), strict=True))
    inputs = tree.pack_sequence_as(graph.inputs, flat)
    outputs = tree.pack_sequence_as(graph.outputs, [symbols[n] for n in graph.output_slots])
    return type(model)(inputs=inputs, outputs=outputs, name=model.name)
