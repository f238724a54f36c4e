"""Layers one after the other as one layer: the steps that prepare and change data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from picodl.layers.base import Layer
from picodl.layers.signature import CallSignature
from picodl.typing import Config


class Pipeline(Layer):
    """Layers applied one after the other, also to dicts of images and labels.

    Called directly, without `training`, the layers inside that are for training only are active.

    Args:
        layers: a list of them.
        name: defaults to "pipeline", numbered.

    Raises:
        TypeError: for anything but a list of layers.

    >>> import numpy as np
    >>> from picodl.layers.augmentation import RandomFlip
    >>> from picodl.layers.scaling import Rescaling
    >>> Pipeline([RandomFlip(seed=0), Rescaling(1 / 255)])(np.ones((2, 4, 4, 3))).shape
    (2, 4, 4, 3)
    """

    warns_of_dropped_masks = False  # the layers inside do

    def __init__(self, layers: Sequence[Any], name: str | None = None) -> None:
        super().__init__(name=name)
        listed = isinstance(layers, (list, tuple))
        wrong = [e for e in layers if not isinstance(e, Layer)] if listed else [layers]
        if wrong:
            raise TypeError(
                f'Pipeline "{self.name}": layers must be a list of layers; received '
                f"{'a list with ' if listed else ''}{type(wrong[0]).__name__} {wrong[0]!r}."
            )
        self._pipeline_layers: list[Any] = list(layers)

    @property
    def layers(self) -> list[Layer]:
        """The layers in order."""
        return list(self._pipeline_layers)

    def build(self, input_shape: Any) -> None:
        for layer in self._pipeline_layers:
            if not layer.built:
                layer.build(input_shape)
            input_shape = layer.compute_output_shape(input_shape)

    def call(self, inputs: Any, training: bool = True, mask: Any = None) -> Any:
        outputs = inputs
        for layer in self._pipeline_layers:
            signature = CallSignature.of(type(layer))
            given: Config = {"training": training} if signature.training else {}
            if signature.mask and mask is not None:
                given["mask"] = mask
            outputs = layer(outputs, **given)
            mask = None  # from here on it travels on the outputs
        return outputs

    def compute_output_shape(self, input_shape: Any) -> Any:
        for layer in self._pipeline_layers:
            input_shape = layer.compute_output_shape(input_shape)
        return input_shape

    def get_config(self) -> Config:
        from picodl.saving import serialization

        found = [serialization.serialize_keras_object(layer) for layer in self._pipeline_layers]
        return {"name": self.name, "layers": found}

    @classmethod
    def from_config(cls, config: Config) -> Any:
        """A new pipeline from what `get_config` gave.

        Raises:
            ValueError: without a list of layers.
        """
        from picodl.saving import serialization

        found = config.get("layers")
        if not isinstance(found, (list, tuple)):
            raise ValueError(
                f'{cls.__name__}: the config needs "layers", a list of the configs of layers; '
                f"received {found!r}."
            )
        layers = [serialization.deserialize_keras_object(entry, kind="layer") for entry in found]
        return cls(layers, name=config.get("name"))
