"""The graph of a functional model as one flat list of steps, run in order.

Building it looks through Symbols; afterwards nothing refers from step to step: a step names the
slots it reads and writes. That list is what is run, copied, pickled and saved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from picodl import config, symbolic, tree
from picodl.config import thread
from picodl.layers.base import Layer
from picodl.layers.core import InputLayer
from picodl.operation import Operation
from picodl.symbolic import Spec, Step, Symbol
from picodl.tensor import Tensor
from picodl.typing import Config


class Slot:
    """Where a value lies while the graph runs."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


class Node:
    """One step: what is called, with which arguments (Slots stand for values), and where to."""

    __slots__ = ("args", "call", "free", "kwargs", "name", "outputs", "simple", "specs")

    def __init__(
        self, call: Any, args: Any, kwargs: Any, outputs: list[int], specs: Any, name: str
    ) -> None:
        self.call = call
        self.args = args
        self.kwargs = kwargs
        self.outputs = outputs  # slots of the results, in the order of tree.flatten
        self.specs = specs  # the structure of the results, with Spec leaves
        self.name = name
        self.free: tuple[int, ...] = ()  # slots that nobody reads afterwards
        one = len(args) == 1 and isinstance(args[0], Slot) and not kwargs and len(outputs) == 1
        self.simple = args[0].number if one and isinstance(specs, Spec) else -1

    def reads(self) -> list[int]:
        """The slots it reads."""
        return _slots_in((self.args, self.kwargs))

    def __getstate__(self) -> Any:
        call: Any = self.call if isinstance(self.call, Operation) else self.call.__name__
        return call, self.args, self.kwargs, self.outputs, self.specs, self.name, self.free

    def __setstate__(self, state: Any) -> None:
        from picodl import ops

        call, *rest, free = state
        self.__init__(getattr(ops, call) if isinstance(call, str) else call, *rest)  # type: ignore[misc]
        self.free = free


class Graph:
    """The steps from inputs to outputs.

    Args:
        inputs, outputs: structures of Symbols.
        name: of the model, for messages.

    Raises:
        ValueError: if an output does not depend on the inputs alone, or layer names repeat.
        TypeError: for anything else than Symbols.
    """

    def __init__(self, inputs: Any, outputs: Any, name: str) -> None:
        self.model_name = name
        for what, structure in (("inputs", inputs), ("outputs", outputs)):
            for leaf in tree.flatten(structure):
                if not isinstance(leaf, Symbol):
                    raise TypeError(
                        f'Model "{name}": {what} must be symbols that come from Input(); received '
                        f"{type(leaf).__name__}."
                    )
        flat = tree.flatten(inputs)
        if len({id(s) for s in flat}) != len(flat):
            raise ValueError(f'Model "{name}": the same input is given twice.')
        self.inputs, self.outputs = inputs, outputs
        self.lists_one = isinstance(outputs, (list, tuple)) and len(outputs) == 1
        # where each input lies in a dict; a list stands for one only in the order of its keys
        named = isinstance(inputs, dict)
        self.paths = [path for path, _ in tree.flatten_with_path(inputs)] if named else None
        self.takes_lists = not named or list(inputs) == sorted(inputs)
        steps = self._find_steps(flat, tree.flatten(outputs))
        self.sources = [self._source(symbol) for symbol in flat]
        # floats are cast to the dtype of an Input that asks for another than the usual one
        usual = config.floatx()
        floats = [s.dtype if s.dtype.startswith("float") else usual for s in self.sources]
        self.casts = [None if dtype == usual else dtype for dtype in floats]
        self.rank = len(self.sources[0].batch_shape) if self.sources else 0  # of the first input
        self._number_slots(flat, steps)
        self._folded_nodes: list[Node] | None = None  # made at the first prediction
        self.layers = self._order_layers(steps)
        self._check_names()

    # ---------------------------------------------------------------- building

    def _find_steps(self, inputs: list[Symbol], outputs: list[Symbol]) -> list[Step]:
        """All steps between inputs and outputs, in the order they were made."""
        ends = {id(s) for s in inputs}
        found: dict[int, Step] = {}
        stack = [s for s in outputs if id(s) not in ends]
        while stack:
            symbol = stack.pop()
            step = symbol.step
            if step is None or isinstance(step.call, InputLayer):
                raise ValueError(
                    f'Model "{self.model_name}": the outputs depend on {symbol!r}, which is not '
                    "among the inputs. Pass every Input that the outputs need."
                )
            if id(step) not in found:
                found[id(step)] = step
                stack.extend(s for s in step.inputs if id(s) not in ends)
        return sorted(found.values(), key=lambda step: step.order)

    def _source(self, symbol: Symbol) -> InputLayer:
        """The input layer of a symbol; a new one for an intermediate value."""
        step = symbol.step
        if step is not None and isinstance(step.call, InputLayer):
            return step.call
        return InputLayer(batch_shape=symbol.shape, dtype=symbol.dtype)

    def _number_slots(self, inputs: list[Symbol], steps: list[Step]) -> None:
        slots = {id(symbol): i for i, symbol in enumerate(inputs)}
        self.input_slots = list(range(len(inputs)))
        self.nodes: list[Node] = []
        for step in steps:
            results = tree.flatten(step.outputs)
            numbers = []
            for symbol in results:
                slots.setdefault(id(symbol), len(slots))
                numbers.append(slots[id(symbol)])

            def slot(symbol: Symbol) -> Slot:
                return Slot(slots[id(symbol)])

            self.nodes.append(
                Node(
                    step.call,
                    _substitute(step.args, slot),
                    _substitute(step.kwargs, slot),
                    numbers,
                    tree.map_structure(lambda s: Spec(s.shape, s.dtype), step.outputs),
                    step.name,
                )
            )
        self.output_slots = [slots[id(s)] for s in tree.flatten(self.outputs)]
        self.size = len(slots)
        self._plan_freeing()

    def _plan_freeing(self) -> None:
        last: dict[int, Node] = {}
        for node in self.nodes:
            for number in (*node.outputs, *node.reads()):
                last[number] = node
        for number in self.output_slots:
            last.pop(number, None)
        for node in self.nodes:
            node.free = tuple(number for number, at in last.items() if at is node)

    def _order_layers(self, steps: list[Step]) -> list[Layer]:
        """Keras's order: by falling distance to an output, then by the first visit from there."""
        by_output = {id(s): step for step in steps for s in tree.flatten(step.outputs)}
        sources = {id(s): layer for s, layer in zip(self._flat_inputs(), self.sources, strict=True)}
        first_visit: dict[int, int] = {}
        done: list[Step] = []
        seen: set[int] = set()
        for output in tree.flatten(self.outputs):
            stack: list[tuple[Any, bool]] = [(output, False)]
            while stack:
                item, leave = stack.pop()
                if leave:
                    done.append(item)
                    continue
                if id(item) in sources:
                    first_visit.setdefault(id(sources[id(item)]), len(first_visit))
                    continue
                step = by_output[id(item)]
                first_visit.setdefault(
                    id(step.call) if _is_layer(step) else id(step), len(first_visit)
                )
                if id(step) not in seen:
                    seen.add(id(step))
                    stack.append((step, True))
                    stack.extend((s, False) for s in reversed(step.inputs))
        depth: dict[int, int] = {}  # of steps
        of_layer: dict[int, int] = {}
        objects: dict[int, Layer] = {}
        for step in reversed(done):
            here = depth.setdefault(id(step), 0)
            if _is_layer(step):
                objects[id(step.call)] = step.call
                here = max(here, of_layer.get(id(step.call), 0))
                of_layer[id(step.call)] = depth[id(step)] = here
            for symbol in step.inputs:
                if id(symbol) in sources:
                    layer = sources[id(symbol)]
                    of_layer[id(layer)] = max(of_layer.get(id(layer), 0), here + 1)
                else:
                    parent = id(by_output[id(symbol)])
                    depth[parent] = max(depth.get(parent, 0), here + 1)
        for layer in self.sources:
            objects[id(layer)] = layer
            of_layer.setdefault(id(layer), 0)
            first_visit.setdefault(id(layer), -1)
        order = sorted(objects, key=lambda key: (-of_layer[key], first_visit[key]))
        return [objects[key] for key in order]

    def _check_names(self) -> None:
        names: set[str] = set()
        others = [n.call for n in self.nodes if isinstance(n.call, Operation)]
        for layer in {id(layer): layer for layer in (*self.layers, *others)}.values():
            if layer.name in names:
                raise ValueError(
                    f'Model "{self.model_name}" has two layers named "{layer.name}". Give each '
                    "layer a name of its own (name=...)."
                )
            names.add(layer.name)

    def _flat_inputs(self) -> list[Symbol]:
        return tree.flatten(self.inputs)

    # ---------------------------------------------------------------- looking

    @property
    def input_names(self) -> list[str]:
        return [layer.name for layer in self.sources]

    @property
    def output_names(self) -> list[str]:
        """The keys of a dict of outputs, else the names of the layers that make them."""
        if isinstance(self.outputs, dict):
            return ["/".join(map(str, p)) for p, _ in tree.flatten_with_path(self.outputs)]
        makers = {n: node.name for node in self.nodes for n in node.outputs}
        names = [
            self.sources[n].name if n < len(self.sources) else makers[n] for n in self.output_slots
        ]
        unique: list[str] = []
        for name in names:
            number, candidate = 0, name
            while candidate in unique:
                number += 1
                candidate = f"{name}_{number}"
            unique.append(candidate)
        return unique

    @property
    def input_shape(self) -> Any:
        return shapes_of(self.inputs)

    # ---------------------------------------------------------------- running

    def run(self, inputs: Any) -> Any:
        """The outputs for data in the structure of the inputs (or a list, or a dict by name)."""
        values: list[Any] = [None] * self.size
        if isinstance(self.inputs, Symbol) and isinstance(inputs, Tensor):
            values[0] = self._fitted(0, inputs)
        else:
            values[: len(self.sources)] = self._arranged(inputs)
        for node in self._folded() if thread.folding else self.nodes:
            if node.simple >= 0:
                values[node.outputs[0]] = node.call(values[node.simple])
            else:
                self._run_node(node, values)
            for number in node.free:
                values[number] = None
        if isinstance(self.outputs, Symbol):
            return values[self.output_slots[0]]
        return tree.pack_sequence_as(self.outputs, [values[n] for n in self.output_slots])

    def _folded(self) -> list[Node]:
        if self._folded_nodes is None:
            from picodl.models.folding import folded_nodes

            self._folded_nodes = folded_nodes(self.nodes, self.output_slots)
        return self._folded_nodes

    def _run_node(self, node: Node, values: list[Any]) -> None:
        def fill(slot: Slot) -> Any:
            return values[slot.number]

        result = node.call(*_substitute(node.args, fill), **_substitute(node.kwargs, fill))
        if isinstance(node.specs, Spec):
            values[node.outputs[0]] = result
        else:
            for number, part in zip(node.outputs, tree.flatten(result), strict=True):
                values[number] = part

    def _arranged(self, inputs: Any) -> list[Any]:
        """The data in the order of the inputs.

        Raises:
            ValueError: if there are too many or too few, or a name is missing.
        """
        names = self.input_names
        if isinstance(inputs, dict):
            paths = [(name,) for name in names]
            if self.paths is not None and all(key in inputs for key in self.inputs):
                paths = self.paths
            flat = [self._at(path, inputs) for path in paths]
        elif self.takes_lists:
            flat = tree.flatten(inputs)
        else:
            raise ValueError(
                f'Model "{self.model_name}" has a dict of inputs that is not in alphabetical '
                f"order, so a list could be taken for another order. Pass a dict with the keys "
                f"{', '.join(map(repr, self.inputs))}."
            )
        if len(flat) != len(self.sources):
            raise ValueError(
                f'Model "{self.model_name}" has {len(self.sources)} inputs '
                f"({', '.join(map(repr, names))}), but received {len(flat)}."
            )
        return [self._fitted(i, x) for i, x in enumerate(flat)]

    def _at(self, path: tuple[Any, ...], inputs: Any) -> Any:
        """The part of a dict of inputs; None for an optional one that is missing."""
        part = inputs
        for key in path:
            there = part if isinstance(part, dict) else range(len(part))
            if key in there:
                part = part[key]
            elif any(layer.name == key and layer.optional for layer in self.sources):
                return None
            else:
                raise ValueError(
                    f'Model "{self.model_name}" has the inputs '
                    f"{', '.join(map(repr, self.inputs if self.paths else self.input_names))}, but "
                    f"received a dict without {key!r} (keys {sorted(inputs)})."
                )
        return part

    def _fitted(self, place: int, x: Any) -> Any:
        """An input with a missing or extra last axis of size 1 put right, and its shape checked.

        Raises:
            ValueError: if the shape does not fit the input.
        """
        source = self.sources[place]
        if x is None:
            if source.optional:
                return None
            raise ValueError(
                f'Model "{self.model_name}" received None for its input "{source.name}", which is '
                "not optional. Pass data, or make it Input(..., optional=True)."
            )
        shape, wanted = x.shape, source.batch_shape
        if len(shape) != len(wanted):
            from picodl import ops

            if len(shape) == len(wanted) - 1 and wanted[-1] in (1, None):
                x = ops.expand_dims(x, -1)
            elif len(shape) == len(wanted) + 1 and shape[-1] == 1:
                x = ops.squeeze(x, -1)
            shape = x.shape
        sizes = zip(shape[1:], wanted[1:], strict=False)  # as in Keras, batches may have any size
        if len(shape) != len(wanted) or any(
            w is not None and n is not None and w != n for n, w in sizes
        ):
            raise ValueError(
                f'Model "{self.model_name}" expects shape {wanted} for its input '
                f'"{source.name}", but received shape {tuple(shape)}.'
            )
        dtype = self.casts[place]
        if dtype is not None and str(x.dtype) != dtype:
            from picodl import ops

            x = ops.cast(x, dtype)
        return x

    def specs(self, inputs: Any) -> Any:
        """Shape and dtype of the outputs for Symbols of other shapes."""
        values: list[Any] = [None] * self.size
        values[: len(self.sources)] = self._arranged(inputs)

        def fill(slot: Slot) -> Any:
            return values[slot.number]

        for node in self.nodes:
            args, kwargs = _substitute(node.args, fill), _substitute(node.kwargs, fill)
            if isinstance(node.call, Operation):
                specs = node.call.compute_output_spec(*args, **kwargs)
            else:
                specs = symbolic.infer(node.call, args, kwargs)
            for number, spec in zip(node.outputs, tree.flatten(specs), strict=True):
                values[number] = Symbol(spec.shape, spec.dtype)
        found = [Spec(values[n].shape, values[n].dtype) for n in self.output_slots]
        return tree.pack_sequence_as(self.outputs, found)

    # ---------------------------------------------------------------- copying and saving

    def __getstate__(self) -> dict[str, Any]:
        state = {**vars(self), "_folded_nodes": None}
        flat = self._flat_inputs()
        state["inputs"] = tree.pack_sequence_as(self.inputs, range(len(flat)))
        state["outputs"] = tree.pack_sequence_as(self.outputs, self.output_slots)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.restore_symbols()

    def restore_symbols(self) -> None:
        """Make the Symbols and Steps again, as if every step had just been called."""
        symbols: dict[int, Symbol] = {}
        for number, source in zip(self.input_slots, self.sources, strict=True):
            symbols[number] = source.output
        for node in self.nodes:

            def fill(slot: Slot) -> Symbol:
                return symbols[slot.number]

            args, kwargs = _substitute(node.args, fill), _substitute(node.kwargs, fill)
            step = Step(node.call, args, kwargs, node.name)
            for number, symbol in zip(
                node.outputs, tree.flatten(step.give(node.specs)), strict=True
            ):
                symbols[number] = symbol
            if isinstance(node.call, Operation):
                vars(node.call).setdefault("_steps", []).append(step)
        flat = [symbols[n] for n in self.input_slots]
        self.inputs = tree.pack_sequence_as(self.inputs, flat)
        self.outputs = tree.pack_sequence_as(self.outputs, [symbols[n] for n in self.output_slots])

    def calls(self) -> Iterator[tuple[Any, str, Node | None]]:
        """(layer or op, name, node) of every call, inputs first, then in order."""
        for source in self.sources:
            yield source, source.name, None
        for node in self.nodes:
            yield node.call, node.name, node

    def get_config(self) -> Config:
        """Layers, their calls, inputs and outputs, in Keras's form."""
        from picodl.models.functional import graph_config

        return graph_config(self)


def shapes_of(symbols: Any) -> Any:
    """The shapes of a structure of Symbols; of a list of one, its shape alone."""
    one = isinstance(symbols, (list, tuple)) and len(symbols) == 1
    return tree.map_structure(lambda s: s.shape, symbols[0] if one else symbols)


def _is_layer(step: Step) -> bool:
    return isinstance(step.call, Layer)


def _substitute(structure: Any, leaf: Callable[[Any], Any]) -> Any:
    """The structure with Symbols and Slots replaced by leaf(...), slices looked into."""
    if isinstance(structure, (Symbol, Slot)):
        return leaf(structure)
    if isinstance(structure, tuple):
        return tuple(_substitute(part, leaf) for part in structure)
    if isinstance(structure, list):
        return [_substitute(part, leaf) for part in structure]
    if isinstance(structure, dict):
        return {key: _substitute(part, leaf) for key, part in structure.items()}
    if isinstance(structure, slice):
        return slice(
            *(_substitute(p, leaf) for p in (structure.start, structure.stop, structure.step))
        )
    return structure


def _slots_in(structure: Any) -> list[int]:
    found: list[int] = []

    def note(slot: Slot) -> Slot:
        found.append(slot.number)
        return slot

    _substitute(structure, note)
    return found
