"""Sequential: layers one after the other."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from picodl import naming
from picodl.config import thread
from picodl.layers.base import Layer
from picodl.layers.core import InputLayer
from picodl.layers.shapes import as_shape
from picodl.models.folding import chain
from picodl.models.graph import Graph
from picodl.models.model import Model
from picodl.symbolic import Symbol
from picodl.typing import Config


class Sequential(Model):
    """Layers that are called one after the other.

    Args:
        layers: layers, or an Input at the beginning, which builds the model at once; without it the
            model is built when it is first called.
        trainable: whether the weights are trained.
        name: defaults to "sequential", numbered.

    Raises:
        ValueError: for two layers of the same name.

    >>> from picodl.layers import Dense, Input
    >>> Sequential([Input((4,)), Dense(3, activation="relu"), Dense(1)]).count_params()
    19
    """

    _features: int | None = None  # the last size of a declared input

    def __init__(
        self, layers: Sequence[Any] | None = None, trainable: bool = True, name: str | None = None
    ) -> None:
        super().__init__(trainable=trainable, name=name)
        self._layers: list[Layer] = []
        self._source: InputLayer | None = None
        for layer in layers or ():
            self._append(layer)
        self._connect()

    # ---------------------------------------------------------------- changing

    def add(self, layer: Any, rebuild: bool = True) -> None:
        """Append a layer; `rebuild` is accepted, as building again costs nothing."""
        self._append(layer)
        self._connect()

    def pop(self, rebuild: bool = True) -> Layer:
        """Remove the last layer and return it.

        Raises:
            ValueError: if there is none.
        """
        if not self._layers:
            raise ValueError(f'Sequential "{self.name}" has no layers to remove.')
        layer = self._layers.pop()
        self._forget_graph()
        self._connect()
        return layer

    def _append(self, layer: Any) -> None:
        if isinstance(layer, Symbol) and layer.step is not None:
            layer = layer.step.call
        if isinstance(layer, InputLayer):
            if self._source is not None or self._layers:
                raise ValueError(
                    f'Sequential "{self.name}": an Input can only come first, and once.'
                )
            self._source = layer
            return
        if not isinstance(layer, Layer):
            if inspect.isclass(layer):
                raise TypeError(
                    f'Sequential "{self.name}" takes layers, but received the class '
                    f"{layer.__name__}: make an instance of it, such as {layer.__name__}(...)."
                )
            if not callable(layer):
                raise TypeError(
                    f'Sequential "{self.name}" takes layers; received {type(layer).__name__} '
                    f"{layer!r}."
                )
            from picodl.layers.core import Lambda

            layer = Lambda(layer)
        if layer is self:
            raise ValueError(f'Sequential "{self.name}" cannot be added to itself.')
        if any(layer.name == other.name for other in self._layers):
            raise ValueError(
                f'Sequential "{self.name}" already has a layer named "{layer.name}". Layer names '
                "must be unique: give one of them another name=."
            )
        if not self._layers and self._source is None:
            shape = getattr(layer, "_declared_shape", None)
            if shape is not None:
                self._source = InputLayer(batch_shape=shape)
            elif isinstance(layer, Model) and layer._graph is not None:
                symbols = layer.inputs
                if len(symbols) == 1:
                    self._source = InputLayer(batch_shape=symbols[0].shape, dtype=symbols[0].dtype)
        self._layers.append(layer)
        self._forget_graph()

    def _forget_graph(self) -> None:
        self._graph = None
        self._features = None
        self.output_names = None
        self._regularized = None
        self.built = False

    # ---------------------------------------------------------------- building

    def _connect(self) -> None:
        """Call the layers on the input symbol, once there is one."""
        if self._source is None or not self._layers or self._graph is not None:
            return
        x = self._source.output
        with naming.name_scope(self.name):
            for layer in self._layers:
                x = layer(x)
        self._graph = Graph(self._source.output, x, self.name)
        self._features = self._source.batch_shape[-1] if self._source.batch_shape else None
        self.output_names = self._graph.output_names
        self.built = self._called = True
        self._path = naming.scoped(self.name)
        self._build_shapes = ((self._source.batch_shape,), {})

    def build(self, input_shape: Any = None) -> None:
        """Build all layers for inputs of this shape (batch axis included)."""
        if self._graph is not None:
            return
        if not self._layers:
            raise ValueError(f'Sequential "{self.name}" has no layers: add some before it is used.')
        if input_shape is None:
            raise ValueError(f'Sequential "{self.name}".build() needs the shape of the inputs.')
        self._build_source(as_shape(input_shape), None)

    def _build_source(self, shape: Any, dtype: Any) -> None:
        self._source = InputLayer(batch_shape=shape, dtype=dtype)
        try:
            self._connect_in_scope()
        except BaseException:
            self._source = None
            raise

    def _connect_in_scope(self) -> None:
        # build() already runs in the scope of this model's name
        x = self._source.output  # type: ignore[union-attr]
        for layer in self._layers:
            x = layer(x)
        self._graph = Graph(self._source.output, x, self.name)  # type: ignore[union-attr]
        self.output_names = self._graph.output_names
        self._called = True

    def _build_for(self, signature: Any, args: Any, kwargs: Any) -> None:
        if self.built:
            return
        x: Any = args[0] if args else next(iter(kwargs.values()), None)
        if hasattr(x, "shape"):
            try:
                self.build((None, *x.shape[1:]))
                return
            except NotImplementedError:
                pass  # a layer that cannot tell its shapes
        if not self._layers:
            raise ValueError(f'Sequential "{self.name}" has no layers: add some before it is used.')
        self.built = self._called = True  # the layers are built when they are called

    # ---------------------------------------------------------------- running

    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        """The layers applied one after the other."""
        x, graph = inputs, self._graph
        if graph is not None and x is not None:
            if not hasattr(x, "shape"):  # in a list or dict
                (x,) = graph._arranged(x)
            elif x.ndim != graph.rank or (
                self._features is not None and x.shape[-1] != self._features and x.dtype.kind == "f"
            ):
                x = graph._fitted(0, x)  # other sizes, lengths of ids too, are the layers' affair
        for layer in chain(self._layers) if thread.folding else self._layers:
            x = layer(x)
        return x

    @property
    def layers(self) -> list[Layer]:
        """The layers in order, without the input."""
        return list(self._layers)

    # ---------------------------------------------------------------- copies and configs

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)

    def get_config(self) -> Config:
        from picodl.saving import serialization

        base = Layer.get_config(self)
        layers = [serialization.serialize_keras_object(layer) for layer in self._layers]
        config: Config = {**base, "layers": layers}
        if self._source is not None:
            config["layers"] = [serialization.serialize_keras_object(self._source), *layers]
            config["build_input_shape"] = list(self._source.batch_shape)
        return config

    @classmethod
    def from_config(cls, config: Config, custom_objects: Any = None) -> Any:
        """A new model from what get_config() gave."""
        from picodl.saving import serialization

        model = cls(name=config.get("name"))
        with serialization.registry.custom_object_scope(custom_objects):
            for entry in config["layers"]:
                layer = serialization.deserialize_keras_object(entry, kind="layer")
                model._append(layer)
        if model._source is None and config.get("build_input_shape"):
            shape = as_shape(config["build_input_shape"])
            model._source = InputLayer(batch_shape=shape)
        model._connect()
        if config.get("trainable") is False:
            model.trainable = False
        return model
