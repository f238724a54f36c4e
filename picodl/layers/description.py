"""A layer as a config: what is needed to make an equal one."""

from __future__ import annotations

import inspect
from typing import Any

from picodl import regularizers, tree
from picodl.layers.shapes import as_shape
from picodl.layers.weights import WeightedModule
from picodl.operation import Operation, plain_arguments
from picodl.symbolic import Symbol
from picodl.typing import Config

# keys that other versions of Keras write and that mean nothing here
_FOREIGN_KEYS = {
    "quantization_config", "lora_rank", "lora_alpha", "gptq_unpacked_column_size", "synchronized",
    "rms_scaling", "time_major", "implementation", "use_cudnn", "vocabulary_size",
    "oov_method", "batch_input_shape", "use_legacy_format", "registered_name",
}  # fmt: skip


class DescribedModule(WeightedModule, Operation):
    """The part of Layer that tells about it, and that writes and reads configs."""

    activity_regularizer: Any
    _path: str | None = None
    _build_shapes: tuple[tuple[Any, ...], dict[str, Any]]

    build: Any

    @property
    def path(self) -> str | None:
        """The names of the layers it was built in and its own, as "model/block/dense"; None before,
        and for layers that have nothing to build."""
        return self._path

    @property
    def metrics(self) -> list[Any]:
        """The Metric objects in attributes of this layer and of those inside."""
        from picodl.metrics.base import own_metrics

        return own_metrics(self)

    @property
    def metrics_variables(self) -> list[Any]:
        """The variables of `metrics`; those that come with picodl keep plain numbers instead."""
        return [variable for metric in self.metrics for variable in metric.variables]

    def symbolic_call(self, *args: Any, **kwargs: Any) -> Any:
        """Symbols like those a call on symbols gives, without recording one."""
        spec = self.compute_output_spec(*args, **kwargs)
        return tree.map_structure(lambda leaf: Symbol(leaf.shape, leaf.dtype), spec)

    def get_config(self) -> Config:
        """What is needed to make an equal layer: `type(layer).from_config(config)`.

        Raises:
            NotImplementedError: for a class whose constructor takes arguments that are not plain
                numbers, strings and lists, and that does not override this method.
        """
        base: Config = {
            "name": self.name,
            "trainable": self._trainable,
            "dtype": {
                "module": "keras",
                "class_name": "DTypePolicy",
                "config": {"name": self.dtype_policy.name},
                "registered_name": None,
            },
        }
        if self.activity_regularizer is not None:
            base["activity_regularizer"] = regularizers.serialize(self.activity_regularizer)
        if type(self).get_config is DescribedModule.get_config and self._auto_config is not None:
            base = {**plain_arguments(self), **base}
        return base

    @classmethod
    def from_config(cls, config: Config) -> Any:
        """A new layer from what `get_config` gave."""
        accepted = inspect.signature(cls.__init__).parameters
        return cls(**{k: v for k, v in config.items() if k in accepted or k not in _FOREIGN_KEYS})

    def get_build_config(self) -> Config | None:
        """The shapes the layer was built for, or None before."""
        if not self.built or "_build_shapes" not in vars(self):
            return None
        shapes, named = self._build_shapes
        if named or len(shapes) > 1:
            names = list(inspect.signature(type(self).build).parameters)[1:]
            return {"shapes_dict": {**dict(zip(names, shapes, strict=False)), **named}}
        return {"input_shape": shapes[0]} if shapes else None

    def build_from_config(self, config: Config) -> None:
        """Build for the shapes that `get_build_config` gave."""
        if config and not self.built:
            if "shapes_dict" in config:
                self.build(**{k: as_shape(s) for k, s in config["shapes_dict"].items()})
            elif config.get("input_shape") is not None:
                self.build(as_shape(config["input_shape"]))
