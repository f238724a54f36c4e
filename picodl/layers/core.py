"""Inputs, and layers without weights that pass on or apply a function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from picodl import activations, config
from picodl.layers.base import Layer
from picodl.layers.shapes import as_shape
from picodl.symbolic import Spec, Step, Symbol
from picodl.typing import Config, Shape


class InputLayer(Layer):
    """The place where data enters a model; made by `Input`.

    Args:
        shape: of one sample, without the batch axis; None for sizes that vary.
        batch_size: the number of samples, if it is fixed.
        dtype: of the data. Defaults to floatx.
        sparse, ragged: accepted when False.
        batch_shape: shape and batch_size in one.
        input_tensor: not supported.
        optional: whether None may be passed.
    """

    built = True
    warns_of_dropped_masks = False

    def __init__(
        self,
        shape: Sequence[int | None] | None = None,
        batch_size: int | None = None,
        dtype: Any = None,
        sparse: bool | None = None,
        ragged: bool | None = None,
        batch_shape: Sequence[int | None] | None = None,
        input_tensor: Any = None,
        optional: bool = False,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        if batch_shape is None:
            batch_shape = kwargs.pop("batch_input_shape", None)  # the key of Keras 2
        super().__init__(name=name)
        if sparse or ragged:
            raise ValueError(f'Input "{self.name}": picodl has no sparse or ragged tensors.')
        if input_tensor is not None:
            whole = _shape_of(self, input_tensor, shape, batch_size, batch_shape, dtype)
            shape, batch_size, batch_shape, dtype = None, None, whole, input_tensor.dtype
        for given in (shape, batch_shape):
            if given is not None and not isinstance(given, (list, tuple)):
                raise TypeError(
                    f'Input "{self.name}": the shape is a tuple, such as ({given!r},); received '
                    f"{given!r}."
                )
        if batch_shape is not None and (shape is not None or batch_size is not None):
            raise ValueError(
                f'Input "{self.name}": pass batch_shape alone, or shape with or without batch_size.'
            )
        if shape is None and batch_shape is None:
            raise ValueError(f'Input "{self.name}" needs a shape, such as Input((28, 28, 1)).')
        whole = as_shape(batch_shape) if batch_shape is not None else (batch_size, *as_shape(shape))
        for size in whole:
            if size is not None and (not isinstance(size, int) or size < 0):
                raise ValueError(
                    f'Input "{self.name}": sizes must be positive integers or None; received '
                    f"shape {whole}."
                )
        self.batch_shape: Shape = whole
        self.data_dtype = str(dtype) if isinstance(dtype, str) else dtype_name(dtype)
        self.optional = optional
        step = Step(self, (), {}, self.name)
        if input_tensor is None:
            symbol = step.give(Spec(self.batch_shape, self.data_dtype))
        else:  # from here on it stands for data, wherever it came from
            symbol = step.outputs = input_tensor
            symbol.step, symbol.index = step, 0
        symbol.optional = optional
        self._steps = [step]

    @property
    def dtype(self) -> str:
        return self.data_dtype

    def call(self) -> Any:
        raise RuntimeError(f'Input "{self.name}" is where data enters a model; it is not called.')

    def compute_output_shape(self) -> Shape:
        return self.batch_shape

    def get_config(self) -> Config:
        return {
            "batch_shape": self.batch_shape,
            "dtype": self.data_dtype,
            "sparse": False,
            "ragged": False,
            "name": self.name,
            "optional": self.optional,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        step = Step(self, (), {}, self.name)
        step.give(Spec(self.batch_shape, self.data_dtype)).optional = self.optional
        self._steps = [step]


def _shape_of(
    layer: Layer, tensor: Any, shape: Any, batch_size: Any, batch_shape: Any, dtype: Any
) -> Shape:
    """The shape of a symbol that an Input takes over.

    Raises:
        ValueError: for anything but a symbol, and if what else is given differs from it.
    """
    if not isinstance(tensor, Symbol):
        raise ValueError(
            f'Input "{layer.name}": tensor must be a symbol (KerasTensor); received a '
            f"{type(tensor).__name__}."
        )
    found = tensor.shape
    for name, given, own in (
        ("shape", None if shape is None else as_shape(shape), found[1:]),
        ("batch_size", batch_size, found[0] if found else None),
        ("batch_shape", None if batch_shape is None else as_shape(batch_shape), found),
        ("dtype", None if dtype is None else dtype_name(dtype), tensor.dtype),
    ):
        if given not in (None, own):
            raise ValueError(
                f'Input "{layer.name}": {name}={given!r} differs from that of the tensor, {own!r}.'
            )
    return found


def dtype_name(dtype: Any) -> str:
    """The name of a dtype or dtype policy; floatx for None."""
    if dtype is None:
        return config.floatx()
    if isinstance(dtype, dict):
        return str(dtype["config"]["name"])
    return str(getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or dtype)


def Input(
    shape: Sequence[int | None] | None = None,
    batch_size: int | None = None,
    dtype: Any = None,
    sparse: bool | None = None,
    ragged: bool | None = None,
    batch_shape: Sequence[int | None] | None = None,
    name: str | None = None,
    tensor: Any = None,
    optional: bool = False,
) -> Any:
    """A symbol for the data that a model will be called on.

    Args:
        shape: of one sample, without the batch axis; None for sizes that vary.
        batch_size: the number of samples, if it is fixed.
        dtype: of the data. Defaults to floatx.
        sparse, ragged: accepted when they say nothing.
        batch_shape: shape and batch_size in one.
        tensor: a symbol to be the input, such as `KerasTensor(shape)`, instead of a new one.
        name: of the input.
        optional: whether None may be passed.

    >>> Input((3,), name="x").shape
    (None, 3)
    """
    layer = InputLayer(
        shape, batch_size, dtype, sparse, ragged, batch_shape, tensor, optional, name
    )
    return layer.output


class Identity(Layer):
    """y = x."""

    built = True
    supports_masking = True

    def call(self, inputs: Any) -> Any:
        return inputs

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape


class Activation(Layer):
    """y = activation(x).

    Args:
        activation: name or function.
    """

    built = True
    supports_masking = True

    def __init__(self, activation: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.activation = activations.get(activation)

    def call(self, inputs: Any) -> Any:
        return self.activation(inputs)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape

    def get_config(self) -> Config:
        return {**super().get_config(), "activation": activations.serialize(self.activation)}


class Lambda(Layer):
    """y = function(x, **arguments): any function of picodl.ops as a layer without weights.

    A model with a Lambda saves the function's name only, never its code. To load it, pass the
    function in custom_objects under that name; a nameless `lambda` cannot be loaded, so prefer
    `def`, or a Layer class of your own.

    Args:
        function: takes the input (and mask= and training=, if it has such arguments).
        output_shape: the shape of one sample of the result, or a function of the input shape. By
            default it is found by trying the function out.
        mask: the mask of the result, or a function of (inputs, mask).
        arguments: further keyword arguments for the function.
    """

    built = True

    def __init__(
        self,
        function: Callable[..., Any],
        output_shape: Any = None,
        mask: Any = None,
        arguments: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not callable(function):
            raise TypeError(
                f'Lambda layer "{self.name}" needs a function; received '
                f"{type(function).__name__} {function!r}."
            )
        self.function = function
        self.output_shape = as_shape(output_shape)
        self.mask = mask
        self.supports_masking = mask is not None
        self.arguments = dict(arguments or {})
        names = inspect.signature(function).parameters
        self._takes = {name for name in ("mask", "training") if name in names}

    def call(self, inputs: Any, mask: Any = None, training: bool = False) -> Any:
        given = {"mask": mask, "training": training}
        return self.function(inputs, **self.arguments, **{k: given[k] for k in self._takes})

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        return self.mask(inputs, mask) if callable(self.mask) else self.mask

    def compute_output_shape(self, input_shape: Any) -> Any:
        if self.output_shape is None:
            return super().compute_output_shape(input_shape)
        if callable(self.output_shape):
            return tuple(self.output_shape(input_shape))
        first = input_shape if isinstance(input_shape, tuple) else next(iter(input_shape))
        return (first[0], *self.output_shape)

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        if self.output_shape is None:
            return self._infer(args, kwargs)
        return super().compute_output_spec(*args, **kwargs)

    def get_config(self) -> Config:
        from picodl.saving import serialization

        optional = {"output_shape": self.output_shape, "mask": self.mask}
        return {
            **super().get_config(),
            "function": serialization.serialize_keras_object(self.function),
            "arguments": self.arguments,
            **{
                key: serialization.serialize_keras_object(value)
                for key, value in optional.items()
                if value is not None
            },
        }

    @classmethod
    def from_config(cls, config: Config) -> Any:
        from picodl.saving import serialization

        function, name = config["function"], config.get("name")
        if _is_code(function) or isinstance(function, (list, str)):  # as in Keras's files
            function = serialization.registry.find_custom(name)
            if function is None:
                raise ValueError(
                    f"Lambda layer {name!r} holds code, which is never run from a file. Pass the "
                    f'function as custom_objects={{"{name}": function}}.'
                )
        elif not callable(function):
            function = serialization.deserialize_keras_object(function)
        code = ("function_type", "module", "output_shape_type", "output_shape_module")
        kept = {key: value for key, value in config.items() if key not in code}
        for key in ("output_shape", "mask"):
            value = kept.get(key)
            if key == "output_shape" and _is_code(value):
                del kept[key]  # it is found by trying the function out
            elif isinstance(value, dict):
                kept[key] = serialization.deserialize_keras_object(value)
        return cls(**{**kept, "function": function})


def _is_code(value: Any) -> bool:
    return isinstance(value, dict) and value.get("class_name") == "__lambda__"


class Wrapper(Layer):
    """The base of layers that hold another layer.

    Args:
        layer: the layer inside.
    """

    def __init__(self, layer: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not isinstance(layer, Layer):
            raise TypeError(
                f'{type(self).__name__} layer "{self.name}" wraps a layer; received '
                f"{type(layer).__name__} {layer!r}."
            )
        self.layer = layer

    def build(self, input_shape: Any = None) -> None:
        if not self.layer.built:
            self.layer.build(input_shape)

    def get_config(self) -> Config:
        from picodl.saving import serialization

        layer = serialization.serialize_keras_object(self.layer)
        return {**super().get_config(), "layer": layer}

    @classmethod
    def from_config(cls, config: Config) -> Any:
        from picodl.saving import serialization

        layer = config["layer"]
        if isinstance(layer, dict):
            layer = serialization.deserialize_keras_object(layer)
        return super().from_config({**config, "layer": layer})
