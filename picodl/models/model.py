"""Model: a layer that can be compiled, trained, saved and summarised."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from picodl import symbolic, tree
from picodl.layers.base import Layer
from picodl.layers.shapes import as_shape, map_shapes
from picodl.models.graph import Graph, shapes_of
from picodl.models.state_tree import get_state_tree, set_state_tree
from picodl.models.trainer import Trainer
from picodl.naming import scoped, suggest
from picodl.typing import Config


class Model(Trainer):
    """A model out of symbols, `Model(inputs, outputs)`, or out of a subclass with a `call`.

    Args:
        inputs, outputs: Symbols, or lists or dicts of them; see `Input`.
        name: defaults to "functional", or the class name in snake case, numbered.

    >>> from picodl.layers import Dense, Input
    >>> x = Input((4,))
    >>> model = Model(x, Dense(2)(x))
    >>> model.count_params()
    10
    """

    _graph: Graph | None = None

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls is Model and (args or "inputs" in kwargs):
            from picodl.models.functional import Functional

            return Functional.__new__(Functional, *args, **kwargs)
        return super().__new__(cls, *args, **kwargs)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given = dict(zip(("inputs", "outputs", "name"), args, strict=False)) | kwargs
        inputs, outputs = given.pop("inputs", None), given.pop("outputs", None)
        super().__init__(**given)
        if inputs is not None or outputs is not None:
            if inputs is None or outputs is None:
                raise ValueError(
                    f'Model "{self.name}" needs both inputs and outputs; received only one.'
                )
            self._set_graph(Graph(inputs, outputs, self.name))

    def _set_graph(self, graph: Graph) -> None:
        self._graph = graph
        self._layers = graph.layers
        self.output_names = graph.output_names
        self.built = True
        self._called = True
        self._path = scoped(self.name)
        self._build_shapes = ((graph.input_shape,), {})

    def build(self, input_shape: Any = None) -> None:
        """Build the layers inside for inputs of this shape, by running the model on zeros.

        Args:
            input_shape: with the batch axis, None where the size is open; a list or dict of shapes
                for several inputs.

        Raises:
            ValueError: if the model cannot run on such inputs.
        """
        runs = self._graph is None and getattr(type(self).build, "runs", False)
        if runs and input_shape is not None:
            symbols = map_shapes(lambda s: symbolic.Symbol(s, self._dtype.name), input_shape)
            self._infer((symbols,), {})

    build.runs = True  # type: ignore[attr-defined]  # a first call need not do it as well

    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        """Run the graph on data; subclasses without inputs and outputs override this.

        As in Keras, a list of one output comes without the list.

        Raises:
            NotImplementedError: if there is neither.
        """
        if self._graph is None:
            raise NotImplementedError(
                f"{type(self).__name__} defines neither call() nor forward(), and was not given "
                "inputs and outputs."
            )
        outputs = self._graph.run(inputs)
        return outputs[0] if self._graph.lists_one else outputs

    # ---------------------------------------------------------------- layers

    @property
    def layers(self) -> list[Layer]:
        """The layers held directly, in order; inputs of a graph included."""
        if self._graph is not None:
            return list(self._graph.layers)
        return [part for _, part in self.parts() if isinstance(part, Layer)]

    def get_layer(self, name: str | None = None, index: int | None = None) -> Layer:
        """A layer by its name or its place.

        Raises:
            ValueError: if there is no such layer.
        """
        layers = self.layers
        if (name is None) == (index is None):
            raise ValueError("get_layer() takes a name or an index.")
        if index is not None:
            if not -len(layers) <= index < len(layers):
                raise ValueError(
                    f'Model "{self.name}" has {len(layers)} layers; there is no index {index}.'
                )
            return layers[index]
        for layer in layers:
            if layer.name == name:
                return layer
        names = [layer.name for layer in layers]
        raise ValueError(
            f'Model "{self.name}" has no layer {name!r}.{suggest(name, names)} '
            f"Its layers are {', '.join(map(repr, names))}."
        )

    @property
    def inputs(self) -> list[Any]:
        """The input Symbols as a flat list."""
        return tree.flatten(self.input)

    @property
    def outputs(self) -> list[Any]:
        """The output Symbols as a flat list."""
        return tree.flatten(self.output)

    @property
    def input(self) -> Any:
        """The input Symbols in the structure they were given."""
        return self._needed_graph("input").inputs

    @property
    def output(self) -> Any:
        """The output Symbols in the structure they were given."""
        return self._needed_graph("output").outputs

    @property
    def input_shape(self) -> Any:
        """The shape (or structure of shapes) of the inputs."""
        return shapes_of(self.input)

    @property
    def output_shape(self) -> Any:
        """The shape (or structure of shapes) of the outputs."""
        return shapes_of(self.output)

    @property
    def input_names(self) -> list[str]:
        """The names of the inputs."""
        return self._needed_graph("input").input_names

    def _needed_graph(self, what: str) -> Graph:
        if self._graph is None:
            raise AttributeError(
                f'Model "{self.name}" has no {what}: it was not made from symbols. Only models of '
                "Input() symbols and built Sequential models have one."
            )
        return self._graph

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        if self._graph is None:
            return self._infer(args, kwargs)
        return self._graph.specs(args[0] if args else kwargs["inputs"])

    def compute_output_shape(self, *args: Any, **kwargs: Any) -> Any:
        """The shape of the outputs for inputs of the given shape."""
        if self._graph is None:
            return super().compute_output_shape(*args, **kwargs)
        like = tree.flatten(self._graph.inputs)
        given = args[0] if args else kwargs["input_shape"]
        shapes = [given] if len(like) == 1 else list(_shapes_in(given))
        symbols = [symbolic.Symbol(as_shape(s), i.dtype) for s, i in zip(shapes, like, strict=True)]
        packed = tree.pack_sequence_as(self._graph.inputs, symbols)
        return tree.map_structure(lambda spec: spec.shape, self._graph.specs(packed))

    # ---------------------------------------------------------------- looking at it

    def summary(
        self,
        line_length: int | None = None,
        positions: Any = None,
        print_fn: Callable[[str], Any] | None = None,
        expand_nested: bool = False,
        show_trainable: bool = False,
        layer_range: Any = None,
    ) -> None:
        """Print a table of the layers, their output shapes and numbers of weights.

        Args:
            line_length: the width in characters. Defaults to the terminal's, 88 at the most.
            positions: where the columns end, as fractions of the width.
            print_fn: receives the whole text instead of print.
            expand_nested: also list the layers of models inside.
            show_trainable: add a column that says whether a layer is trained.
            layer_range: (first, last) names of the layers to show; regular expressions.
        """
        from picodl.models.summary import summarise

        text = summarise(self, line_length, positions, expand_nested, show_trainable, layer_range)
        (print if print_fn is None else print_fn)(text)

    # ---------------------------------------------------------------- files and configs

    def save(
        self,
        filepath: Any,
        overwrite: bool = True,
        zipped: Any = None,
        include_optimizer: bool = True,
    ) -> None:
        """Save architecture, weights, compile and optimizer state to a .keras or .h5 file; see
        `saving.save_model`."""
        from picodl import saving

        saving.save_model(self, filepath, overwrite, zipped, include_optimizer)

    def save_weights(
        self, filepath: Any, overwrite: bool = True, max_shard_size: Any = None
    ) -> None:
        """Save the weights (and the optimizer's state) to a .weights.h5 file, atomically."""
        from picodl import saving

        saving.save_weights(self, filepath, overwrite=overwrite, max_shard_size=max_shard_size)

    def load_weights(self, filepath: Any, skip_mismatch: bool = False, **options: Any) -> None:
        """Load weights from a .weights.h5, .keras or .h5 file: all of them, or none on an error.

        Args:
            filepath: the file.
            skip_mismatch: leave out layers that do not fit, with a warning.
            **options: by_name=True pairs layers of a legacy .h5 file by name.
        """
        from picodl import saving

        saving.load_weights(self, filepath, skip_mismatch=skip_mismatch, **options)

    def get_state_tree(self, value_format: str = "backend_tensor") -> dict[str, Any]:
        """The variables as nested dicts along their paths; see `models.state_tree`."""
        return get_state_tree(self, value_format)

    def set_state_tree(self, state_tree: dict[str, Any]) -> None:
        """Set the variables that a tree names, all or none; see `models.state_tree`."""
        set_state_tree(self, state_tree)

    def to_json(self, **options: Any) -> str:
        """The architecture as JSON; `models.model_from_json` reads it."""
        import json

        from picodl.saving import serialization

        return json.dumps(serialization.serialize_keras_object(self), **options)

    def export(self, filepath: Any, format: str | None = None, **options: Any) -> dict[str, int]:
        """Write the model as C99 source (.c) or ONNX (.onnx); see `picodl.export.export_model`."""
        from picodl.export import export_model

        return export_model(self, filepath, format=format, **options)

    def plot(self, to_file: Any = "model.png", **options: Any) -> Any:
        """Draw the model with Graphviz; see `utils.plot_model`."""
        from picodl.visualize import plot_model

        return plot_model(self, to_file, **options)

    def get_config(self) -> Config:
        config = super().get_config()
        if self._graph is not None:
            config |= self._graph.get_config()
        return config

    @classmethod
    def from_config(cls, config: Config, custom_objects: Any = None) -> Any:
        """A new model from what get_config() gave."""
        if "input_layers" in config and "layers" in config:
            from picodl.models.functional import functional_from_config

            return functional_from_config(cls, config, custom_objects)
        return super().from_config(config)


def _shapes_in(structure: Any) -> Any:
    """The shapes in a list or dict of shapes, in the order of tree.flatten."""
    parts = [structure[k] for k in sorted(structure)] if isinstance(structure, dict) else structure
    for part in parts:
        is_shape = isinstance(part, tuple) or all(n is None or isinstance(n, int) for n in part)
        if is_shape:
            yield part
        else:
            yield from _shapes_in(part)
