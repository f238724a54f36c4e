"""Densely connected layers."""

from __future__ import annotations

import inspect
from typing import Any

from picodl import activations, constraints, initializers, ops, regularizers
from picodl.layers.checks import known_axis, positive_integer
from picodl.layers.input_spec import InputSpec
from picodl.layers.lora import LowRank
from picodl.tensor import Tensor
from picodl.typing import Config, Shape

_dense: Any = inspect.unwrap(ops.dense)  # the layer holds Tensors: 1 us less than by the op


class Dense(LowRank):
    """y = activation(x @ kernel + bias), over the last axis.

    Args:
        units: the number of outputs.
        activation: name or function. Defaults to the identity.
        use_bias: whether to add a bias.
        kernel_initializer, bias_initializer: first values of the weights.
        kernel_regularizer, bias_regularizer: penalties on the weights.
        activity_regularizer: penalty on the outputs.
        kernel_constraint, bias_constraint: applied to the weights after each update.
        lora_rank, lora_alpha: freeze the kernel and train a change of this rank; see `enable_lora`.

    Weights: kernel (n, units), bias (units,).
    Shapes: (batch, ..., n) -> (batch, ..., units).

    Raises:
        ValueError: for units that are not a positive integer, and for inputs without a last axis.

    >>> import numpy as np
    >>> Dense(3, activation="relu")(np.ones((2, 5))).shape
    (2, 3)
    """

    supports_masking = True

    def __init__(
        self,
        units: int,
        activation: Any = None,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: Any = None,
        bias_constraint: Any = None,
        lora_rank: int | None = None,
        lora_alpha: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(activity_regularizer=activity_regularizer, **kwargs)
        self.units = positive_integer(self, "units", units)
        self.activation = activations.get(activation)
        self.use_bias = use_bias
        self.kernel_initializer = initializers.get(kernel_initializer)
        self.bias_initializer = initializers.get(bias_initializer)
        self.kernel_regularizer = regularizers.get(kernel_regularizer)
        self.bias_regularizer = regularizers.get(bias_regularizer)
        self.kernel_constraint = constraints.get(kernel_constraint)
        self.bias_constraint = constraints.get(bias_constraint)
        self.input_spec = InputSpec(min_ndim=2)
        self.bias: Any = None
        self._set_lora(lora_rank, lora_alpha)

    def build(self, input_shape: Shape) -> None:
        n = known_axis(self, input_shape)
        self.kernel = self.add_weight(
            (n, self.units),
            self.kernel_initializer,
            regularizer=self.kernel_regularizer,
            constraint=self.kernel_constraint,
            name="kernel",
        )
        if self.use_bias:
            self.bias = self.add_weight(
                (self.units,),
                self.bias_initializer,
                regularizer=self.bias_regularizer,
                constraint=self.bias_constraint,
                name="bias",
            )
        if self.lora_rank is not None:
            self._adapt(self.lora_rank, self.lora_alpha)
        self.input_spec = InputSpec(min_ndim=2, axes={-1: n})

    def call(self, inputs: Any) -> Any:
        pair = getattr(self.activation, "pair", None)
        kernel = self._adapted() if self.lora_enabled else self.kernel
        # forward() takes arrays too, and integers are to become floats
        ready = isinstance(inputs, Tensor) and inputs.data.dtype.kind == "f"
        dense = _dense if ready else ops.dense
        y = dense(inputs, kernel, self.bias, pair)
        return y if pair is not None or self.activation is None else self.activation(y)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (*input_shape[:-1], self.units)

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "units": self.units,
            "activation": activations.serialize(self.activation),
            "use_bias": self.use_bias,
            "kernel_initializer": initializers.serialize(self.kernel_initializer),
            "bias_initializer": initializers.serialize(self.bias_initializer),
            "kernel_regularizer": regularizers.serialize(self.kernel_regularizer),
            "bias_regularizer": regularizers.serialize(self.bias_regularizer),
            "kernel_constraint": constraints.serialize(self.kernel_constraint),
            "bias_constraint": constraints.serialize(self.bias_constraint),
            **self._lora_config(),
        }


class Linear(Dense):
    """A Dense layer that is built at once: y = x @ kernel + bias.

    Args:
        input_size: the size of the inputs' last axis.
        output_size: the number of outputs.
        activation, and all others: see Dense.

    >>> len(Linear(4, 2).weights)
    2
    """

    def __init__(
        self, input_size: int, output_size: int, activation: Any = None, **kwargs: Any
    ) -> None:
        super().__init__(output_size, activation, **kwargs)
        self.input_size = positive_integer(self, "input_size", input_size)
        self.build((None, self.input_size))

    def get_config(self) -> Config:
        config = super().get_config()
        return {"input_size": self.input_size, "output_size": config.pop("units"), **config}
