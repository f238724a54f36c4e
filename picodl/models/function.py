"""Function: what lies between symbols, as something to call that is no model."""

from __future__ import annotations

from typing import Any

from picodl import symbolic, tree
from picodl.layers.shapes import map_shapes
from picodl.models.graph import Graph
from picodl.operation import Operation
from picodl.symbolic import Symbol
from picodl.tensor import Tensor


class Function(Operation):
    """The computation that leads from some symbols to others; the layers in it are shared.

    Called on data it gives Tensors; called on symbols, it repeats its steps on them, so that a
    model that is made of these finds the layers inside.

    Args:
        inputs, outputs: a symbol, or a structure of symbols.
        name: shown in messages.

    Raises:
        ValueError: if an output does not depend on the inputs alone.
        TypeError: for anything else than symbols.

    >>> import numpy as np, picodl
    >>> a, b = picodl.Input((2,)), picodl.Input((2,))
    >>> f = Function([a, b], a * b + 1.0)
    >>> f([np.ones((1, 2)), np.full((1, 2), 3.0)]).numpy()
    array([[4., 4.]])
    """

    def __init__(self, inputs: Any, outputs: Any, name: str | None = None) -> None:
        super().__init__(name)
        self._graph = Graph(inputs, outputs, self.name)

    @property
    def inputs(self) -> list[Symbol]:
        """The input symbols as a flat list."""
        return tree.flatten(self._graph.inputs)

    @property
    def outputs(self) -> list[Symbol]:
        """The output symbols as a flat list."""
        return tree.flatten(self._graph.outputs)

    @property
    def operations(self) -> list[Any]:
        """The layers, operations and ops in it, each once, inputs first, then in order."""
        return list({id(call): call for call, _, _ in self._graph.calls()}.values())

    def __call__(self, inputs: Any) -> Any:
        """The outputs for data or symbols in the structure of the inputs, or a list, or a dict by
        name.

        Raises:
            ValueError: if there are too many or too few, or of another shape.
        """
        if not symbolic.is_symbolic(inputs):
            inputs = tree.map_structure(lambda x: x if x is None else Tensor(x), inputs)
        return self.call(inputs)

    def call(self, inputs: Any) -> Any:
        return self._graph.run(inputs)

    def compute_output_spec(self, inputs: Any) -> Any:
        return self._graph.specs(inputs)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The shapes of the outputs for inputs of these shapes."""
        if isinstance(input_shape, dict):  # inputs in a dict stand in the order of their names
            input_shape = dict(sorted(input_shape.items()))
        dtypes = iter([source.dtype for source in self._graph.sources])
        symbols = map_shapes(lambda s: Symbol(s, next(dtypes, "float32")), input_shape)
        return tree.map_structure(lambda spec: spec.shape, self._graph.specs(symbols))
