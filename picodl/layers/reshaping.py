"""Layers that give their input another shape."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from picodl import config, ops
from picodl.layers.base import Layer
from picodl.layers.checks import int_of, positive_integer
from picodl.layers.input_spec import InputSpec
from picodl.layers.shapes import as_shape
from picodl.typing import Config, Shape


class Flatten(Layer):
    """Each sample as one row.

    Args:
        data_format: with "channels_first" the channels are moved last before.

    Shapes: (batch, ...) -> (batch, product of the rest); (batch,) -> (batch, 1).
    """

    built = True

    def __init__(self, data_format: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.data_format = config.standardize_data_format(data_format)

    def call(self, inputs: Any) -> Any:
        if self.data_format == "channels_first" and inputs.ndim > 2:
            inputs = ops.transpose(inputs, (0, *range(2, inputs.ndim), 1))
        n = math.prod(inputs.shape[1:])
        return inputs if inputs.ndim == 2 else ops.reshape(inputs, (inputs.shape[0], n))

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        rest = input_shape[1:]
        return (input_shape[0], None if None in rest else math.prod(rest))  # type: ignore[arg-type]

    def get_config(self) -> Config:
        return {**super().get_config(), "data_format": self.data_format}


class Reshape(Layer):
    """Each sample in the target shape.

    Args:
        target_shape: without the batch axis; one size may be -1 and is then worked out.

    Raises:
        ValueError: if the number of elements does not fit.
    """

    built = True

    def __init__(self, target_shape: Sequence[int], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.target_shape = as_shape(target_shape)
        unknown = sum(n == -1 for n in self.target_shape)
        if unknown > 1 or any(int_of(n) is None or n < -1 for n in self.target_shape):
            raise ValueError(
                f'Reshape layer "{self.name}" expects sizes, of which one may be -1; received '
                f"target_shape={target_shape!r}."
            )

    def call(self, inputs: Any) -> Any:
        return ops.reshape(inputs, (inputs.shape[0], *self._sizes(tuple(inputs.shape))))

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (input_shape[0], *self._sizes(input_shape))

    def _sizes(self, input_shape: Shape) -> Shape:
        rest = input_shape[1:]
        if None in rest:
            return tuple(None if n == -1 else n for n in self.target_shape)
        size = math.prod(rest)  # type: ignore[arg-type]
        known = math.prod(n for n in self.target_shape if n != -1)
        fits = size == known if -1 not in self.target_shape else known and size % known == 0
        if not fits:
            raise ValueError(
                f'Reshape layer "{self.name}" cannot turn samples of shape {rest} ({size} '
                f"elements) into {self.target_shape}."
            )
        return tuple(size // known if n == -1 else n for n in self.target_shape)

    def get_config(self) -> Config:
        return {**super().get_config(), "target_shape": self.target_shape}


class Permute(Layer):
    """The axes of each sample in another order.

    Args:
        dims: for each axis of the output the axis of the input it comes from, counted from 1
            without the batch axis: (2, 1) swaps two axes.

    Raises:
        ValueError: unless dims holds 1, 2, ... each once.
    """

    built = True

    def __init__(self, dims: Sequence[int], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dims = as_shape(dims)
        if sorted(self.dims) != list(range(1, len(self.dims) + 1)):
            raise ValueError(
                f'Permute layer "{self.name}": dims must hold the numbers 1 to {len(self.dims)}, '
                f"each once; received {dims!r}. The batch axis does not count."
            )
        self.input_spec = InputSpec(ndim=len(self.dims) + 1)

    def call(self, inputs: Any) -> Any:
        return ops.transpose(inputs, (0, *self.dims))

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (input_shape[0], *(input_shape[d] for d in self.dims))

    def get_config(self) -> Config:
        return {**super().get_config(), "dims": self.dims}


class RepeatVector(Layer):
    """Each sample's vector n times, as a sequence.

    Args:
        n: the number of steps.

    Shapes: (batch, features) -> (batch, n, features).
    """

    built = True

    def __init__(self, n: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.n = positive_integer(self, "n", n)
        self.input_spec = InputSpec(ndim=2)

    def call(self, inputs: Any) -> Any:
        return ops.repeat(ops.expand_dims(inputs, 1), self.n, 1)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (input_shape[0], self.n, *input_shape[1:])

    def get_config(self) -> Config:
        return {**super().get_config(), "n": self.n}
