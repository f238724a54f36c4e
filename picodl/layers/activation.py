"""Activations as layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from picodl import activations, constraints, initializers, ops, regularizers
from picodl.layers.base import Layer
from picodl.typing import Config, Shape


class _Elementwise(Layer):
    """A layer without weights whose output has the shape of its input."""

    built = True
    supports_masking = True

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape


class ReLU(_Elementwise):
    """max(x, 0), with an optional ceiling, slope below and threshold (see `activations.relu`).

    Args:
        max_value: the ceiling; None for none.
        negative_slope: the slope below the threshold.
        threshold: where the ramp begins.

    Raises:
        ValueError: for a negative argument.
    """

    def __init__(
        self,
        max_value: float | None = None,
        negative_slope: float = 0.0,
        threshold: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.max_value = not_negative(self, "max_value", max_value, optional=True)
        self.negative_slope = not_negative(self, "negative_slope", negative_slope)
        self.threshold = not_negative(self, "threshold", threshold)

    def call(self, inputs: Any) -> Any:
        return activations.relu(inputs, self.negative_slope, self.max_value, self.threshold)

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "max_value": self.max_value,
            "negative_slope": self.negative_slope,
            "threshold": self.threshold,
        }


class LeakyReLU(_Elementwise):
    """x for x > 0, else negative_slope * x.

    Args:
        negative_slope: defaults to 0.3.
    """

    def __init__(self, negative_slope: float = 0.3, **kwargs: Any) -> None:
        if "alpha" in kwargs:  # the argument of Keras 2
            negative_slope = kwargs.pop("alpha")
        super().__init__(**kwargs)
        self.negative_slope = not_negative(self, "negative_slope", negative_slope)

    def call(self, inputs: Any) -> Any:
        return ops.leaky_relu(inputs, self.negative_slope)

    def get_config(self) -> Config:
        return {**super().get_config(), "negative_slope": self.negative_slope}


class ELU(_Elementwise):
    """x for x > 0, else alpha * (exp(x) - 1).

    Args:
        alpha: the depth reached far below 0.
    """

    def __init__(self, alpha: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.alpha = not_negative(self, "alpha", alpha)

    def call(self, inputs: Any) -> Any:
        return ops.elu(inputs, self.alpha)

    def get_config(self) -> Config:
        return {**super().get_config(), "alpha": self.alpha}


class GELU(_Elementwise):
    """x times the normal distribution function of x.

    Args:
        approximate: use the tanh approximation.
    """

    def __init__(self, approximate: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.approximate = approximate

    def call(self, inputs: Any) -> Any:
        return ops.gelu(inputs, self.approximate)

    def get_config(self) -> Config:
        return {**super().get_config(), "approximate": self.approximate}


class PReLU(_Elementwise):
    """x for x > 0, else alpha * x with one trained alpha per feature.

    Args:
        alpha_initializer, alpha_regularizer, alpha_constraint: of the weight alpha.
        shared_axes: axes (1 is the first after the batch) along which alpha is shared.

    Weights: alpha, of the input's shape without the batch axis; 1 on the shared axes.
    """

    def __init__(
        self,
        alpha_initializer: Any = "Zeros",
        alpha_regularizer: Any = None,
        alpha_constraint: Any = None,
        shared_axes: int | Sequence[int] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.alpha_initializer = initializers.get(alpha_initializer)
        self.alpha_regularizer = regularizers.get(alpha_regularizer)
        self.alpha_constraint = constraints.get(alpha_constraint)
        axes = [shared_axes] if isinstance(shared_axes, int) else shared_axes
        self.shared_axes = None if axes is None else list(axes)

    def build(self, input_shape: Shape) -> None:
        shape = list(input_shape[1:])
        for axis in self.shared_axes or ():
            shape[axis - 1] = 1
        self.alpha = self.add_weight(
            tuple(shape),
            self.alpha_initializer,
            regularizer=self.alpha_regularizer,
            constraint=self.alpha_constraint,
            name="alpha",
        )

    def call(self, inputs: Any) -> Any:
        return ops.relu(inputs) - self.alpha * ops.relu(-inputs)

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "alpha_initializer": initializers.serialize(self.alpha_initializer),
            "alpha_regularizer": regularizers.serialize(self.alpha_regularizer),
            "alpha_constraint": constraints.serialize(self.alpha_constraint),
            "shared_axes": self.shared_axes,
        }


class Softmax(_Elementwise):
    """exp(x) / sum(exp(x)) over the axis; masked places get 0.

    Args:
        axis: an axis or several.
    """

    def __init__(self, axis: int | Sequence[int] = -1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.axis = axis

    def call(self, inputs: Any, mask: Any = None) -> Any:
        if mask is None:
            return ops.softmax(inputs, self.axis)
        keep = np.asarray(mask, dtype=bool)
        if np.broadcast_shapes(keep.shape, inputs.shape) != inputs.shape:
            raise ValueError(
                f'Softmax layer "{self.name}" expects a mask that broadcasts to its input of shape '
                f"{inputs.shape}, but received {keep.shape}."
            )
        lowest = -3e4 if inputs.dtype == np.float16 else -1e9
        y = ops.softmax(ops.where(keep, inputs, lowest), self.axis)
        return ops.where(keep, y, 0.0)

    def get_config(self) -> Config:
        return {**super().get_config(), "axis": self.axis}


def not_negative(layer: Layer, argument: str, value: Any, optional: bool = False) -> Any:
    """The value as float.

    Raises:
        ValueError: naming the layer and the argument, for a negative number or no number.
    """
    if optional and value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
        raise ValueError(
            f'{type(layer).__name__} layer "{layer.name}": {argument} must be a number that is not '
            f"negative; received {value!r}."
        )
    return float(value)
