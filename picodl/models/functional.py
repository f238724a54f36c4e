"""Functional models, and their configs in Keras's form."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from typing import Any

from picodl import ops, tree
from picodl.layers.core import InputLayer
from picodl.models import operations
from picodl.models.graph import Graph, Node, Slot
from picodl.models.model import Model
from picodl.operation import Operation
from picodl.symbolic import Symbol
from picodl.typing import Config


class Functional(Model):
    """What `Model(inputs, outputs)` makes."""


# -------------------------------------------------------------------- writing


def graph_config(graph: Graph) -> Config:
    """The layers with their inbound nodes, the inputs and the outputs."""
    from picodl.saving import serialization

    made_by: dict[int, tuple[str, int, int]] = {}  # slot -> (layer, call, result)
    calls: dict[int, tuple[Any, str, list[Node]]] = {}
    names: set[str] = {layer.name for layer in graph.layers}
    names |= {n.name for n in graph.nodes if isinstance(n.call, Operation)}
    for number, source in zip(graph.input_slots, graph.sources, strict=True):
        calls[id(source)] = (source, source.name, [])
        made_by[number] = (source.name, 0, 0)
    for node in graph.nodes:
        own_name = isinstance(node.call, Operation)
        key = id(node.call) if own_name else id(node)
        name = node.name if own_name else _free_name(node.name, names)
        _, name, nodes = calls.setdefault(key, (node.call, name, []))
        for index, number in enumerate(node.outputs):
            made_by[number] = (name, len(nodes), index)
        nodes.append(node)

    specs = {
        n: s
        for node in graph.nodes
        for n, s in zip(node.outputs, tree.flatten(node.specs), strict=True)
    }

    def tensor(slot: Slot) -> Config:
        spec = specs.get(slot.number)
        shape = spec.shape if spec else graph.sources[slot.number].batch_shape
        dtype = spec.dtype if spec else graph.sources[slot.number].dtype
        return {
            "class_name": "__keras_tensor__",
            "config": {
                "shape": list(shape),
                "dtype": dtype,
                "keras_history": list(made_by[slot.number]),
            },
        }

    def serialize(structure: Any) -> Any:
        if isinstance(structure, Slot):
            return tensor(structure)
        if isinstance(structure, (list, tuple)):
            return [serialize(part) for part in structure]
        if isinstance(structure, dict):
            return {key: serialize(part) for key, part in structure.items()}
        return serialization.serialize_keras_object(structure)

    entries = []
    order = {id(layer): i for i, layer in enumerate(graph.layers)}
    for key in sorted(calls, key=lambda k: order.get(k, len(order))):
        call, name, nodes = calls[key]
        if isinstance(call, Operation):
            entry = serialization.serialize_keras_object(call)
            given = [(node.args, node.kwargs) for node in nodes]
        else:
            args = _plain_keys(nodes[0])
            entry, *given = operations.entry_of(call, name, args, nodes[0].kwargs, _holds_slot)
            entry["config"] = serialize(entry["config"])
        inbound = [{"args": serialize(args), "kwargs": serialize(kwargs)} for args, kwargs in given]
        entries.append({**entry, "name": name, "inbound_nodes": inbound})

    def address(numbers: list[int], structure: Any) -> Any:
        flat = [list(made_by[n]) for n in numbers]
        return flat[0] if isinstance(structure, Symbol) else tree.pack_sequence_as(structure, flat)

    return {
        "layers": entries,
        "input_layers": address(graph.input_slots, graph.inputs),
        "output_layers": address(graph.output_slots, graph.outputs),
    }


def _plain_keys(node: Node) -> Any:
    """The arguments of a node; a tuple of integers as an index gets an Ellipsis, so that JSON,
    which knows no tuples, does not turn it into an array of indices."""
    if getattr(node.call, "__name__", "") != "get_item" or not isinstance(node.args[1], tuple):
        return node.args
    key = node.args[1]
    return (node.args[0], (*key, ...) if all(isinstance(k, int) for k in key) else key)


def _holds_slot(value: Any) -> bool:
    return any(isinstance(part, Slot) for part in tree.flatten(value))


def _free_name(name: str, taken: set[str]) -> str:
    number, candidate = 0, name
    while candidate in taken:
        number += 1
        candidate = f"{name}_{number}"
    taken.add(candidate)
    return candidate


# -------------------------------------------------------------------- reading


def functional_from_config(cls: Any, config: Config, custom_objects: Any = None) -> Any:
    """A model from `get_config()`, or from a config that Keras 2 or 3 wrote.

    Raises:
        ValueError: for a graph that cannot be connected, or an unknown layer.
    """
    from picodl.saving import registry

    with registry.custom_object_scope(custom_objects):
        names = Counter(entry_name(e) for e in config["layers"])
        if names and max(names.values()) > 1:
            raise ValueError(
                f"Two layers of the model are called {names.most_common(1)[0][0]!r}; layer names "
                "must be unique."
            )
        made = {entry_name(e): _make_layer(e) for e in config["layers"]}
        ready = deque(
            (entry_name(e), i, node)
            for e in config["layers"]
            for i, node in enumerate(_nodes_of(e))
        )
        results: dict[tuple[str, int], list[Any]] = {
            (name, 0): [layer.output]
            for name, layer in made.items()
            if isinstance(layer, InputLayer)
        }
        waiting: dict[Any, list[Any]] = {}  # by the result that is missing
        while ready:
            item = ready.popleft()
            missing = _connect(item, made, results)
            if missing is not None:
                waiting.setdefault(missing, []).append(item)
            else:
                ready.extend(waiting.pop(item[:2], ()))
        if waiting:
            missing, late = next(iter(waiting.items()))
            raise ValueError(
                f"The graph of the model {config.get('name')!r} cannot be connected: "
                f"{late[0][0]!r} needs {missing[0]!r}, which is never made (a missing layer, or a "
                "cycle)."
            )
        target = Functional if cls is Model else cls
        options = {} if target is Functional else {**config}  # a subclass has arguments of its own
        for key in ("layers", "input_layers", "output_layers", "trainable", "dtype"):
            options.pop(key, None)
        if config.get("name") is not None:
            options["name"] = config["name"]
        trainable = config.get("trainable", True)
        model = target(
            inputs=_addressed(config["input_layers"], results),
            outputs=_addressed(config["output_layers"], results),
            **options,
        )
        if trainable is False:
            model.trainable = False
        return model


def entry_name(entry: Config) -> str:
    """The name of a layer's entry."""
    return str(entry.get("name") or entry["config"]["name"])


def _make_layer(entry: Config) -> Any:
    from picodl.saving import serialization

    if operations.is_operation(entry):
        settings = serialization.deserialize_keras_object(entry.get("config") or {})
        return operations.operation_of(entry, settings)
    return serialization.deserialize_keras_object(
        {k: v for k, v in entry.items() if k not in ("inbound_nodes", "name")}, kind="layer"
    )


def _nodes_of(entry: Config) -> list[Any]:
    return list(entry.get("inbound_nodes") or [])


def _connect(item: Any, made: Mapping[str, Any], results: dict[Any, list[Any]]) -> Any:
    """Call a layer on its inputs; what is missing for that, or None."""
    name, index, node = item
    try:
        args, kwargs = _arguments(node, results)
    except _NotYet as missing:
        return missing.args
    call = made[name]
    if call is ops.get_item and isinstance(args[1], list):
        mixed = any(not isinstance(k, (int, bool)) for k in args[1])
        args = (args[0], tuple(args[1]) if mixed else args[1])
    results[name, index] = tree.flatten(call(*args, **kwargs))
    return None


class _NotYet(Exception):
    """A result that has not been made."""


def _arguments(node: Any, results: Mapping[Any, list[Any]]) -> tuple[Any, Any]:
    from picodl.saving import serialization

    def restore(part: Any) -> Any:
        if isinstance(part, dict):
            if part.get("class_name") == "__keras_tensor__":
                return _find(part["config"]["keras_history"], results)
            if "class_name" in part:
                return serialization.deserialize_keras_object(part)
            return {key: restore(p) for key, p in part.items()}
        return [restore(p) for p in part] if isinstance(part, list) else part

    if isinstance(node, dict) and "args" in node:
        return tuple(restore(a) for a in node["args"]), restore(node.get("kwargs") or {})
    return _old_arguments(node, results)


def _old_arguments(node: Any, results: Mapping[Any, list[Any]]) -> tuple[Any, Any]:
    """The form of Keras 2: [[layer, call, result, {kwargs}], ...], or one such list alone."""
    if isinstance(node, dict):
        node = list(node.values())
    entries = [node] if node and isinstance(node[0], str) else list(node)
    kwargs: dict[str, Any] = {}
    inputs = []
    for entry in entries:
        inputs.append(_find(entry[:3], results))
        if len(entry) > 3 and isinstance(entry[3], dict):
            kwargs |= {k: _old_value(v, results) for k, v in entry[3].items() if k != "name"}
    return (inputs[0] if len(inputs) == 1 else inputs,), kwargs


def _old_value(value: Any, results: Mapping[Any, list[Any]]) -> Any:
    is_address = (
        isinstance(value, (list, tuple)) and len(value) == 3 and isinstance(value[0], str)
        and all(isinstance(n, int) for n in value[1:])
    )  # fmt: skip
    return _find(value, results) if is_address else value


def _find(history: Any, results: Mapping[Any, list[Any]]) -> Any:
    name, index, result = history
    if (name, index) not in results:
        raise _NotYet(name, index)
    found = results[name, index]
    if not 0 <= result < len(found):
        raise ValueError(f"The layer {name!r} has no result number {result}.")
    return found[result]


def _addressed(structure: Any, results: Mapping[Any, list[Any]]) -> Any:
    """Symbols for ["layer", call, result], or lists and dicts of them."""
    if isinstance(structure, dict):
        return {key: _addressed(part, results) for key, part in structure.items()}
    if len(structure) == 3 and isinstance(structure[0], str):
        try:
            return _find(structure, results)
        except _NotYet:
            raise ValueError(
                f"The model names {structure[0]!r}, which is not among its layers."
            ) from None
    parts = [_addressed(part, results) for part in structure]
    if isinstance(structure, tuple):  # of get_config(); files know lists only
        return tuple(parts)
    return parts[0] if len(parts) == 1 and _single(structure) else parts


def _single(structure: Any) -> bool:
    """Keras 2 writes a single input as a list of one address, which stands for the value itself."""
    return len(structure) == 1 and isinstance(structure[0], list)
