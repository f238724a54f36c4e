"""LSTMs whose products are convolutions: ConvLSTM1D and ConvLSTM2D."""

from __future__ import annotations

from typing import Any

import numpy as np

from picodl import activations, constraints, initializers, ops, random, regularizers
from picodl.layers.checks import fraction, positive_integer
from picodl.layers.convolution import ConvBase
from picodl.layers.input_spec import InputSpec
from picodl.layers.recurrent import RNN
from picodl.tensor import Tensor
from picodl.typing import Config, Shape


class ConvLSTMCell(ConvBase):
    """One step: gates = conv(x) + conv(h) + bias, then as LSTMCell. Made by ConvLSTM1D and 2D.

    Args: rank: the number of spatial axes; arguments: those of ConvLSTM2D.
    """

    def __init__(self, rank: int, arguments: Config, **kwargs: Any) -> None:
        given = dict(arguments)
        self.rank = rank
        super().__init__(
            given["kernel_size"], given["strides"], given["padding"], given["data_format"],
            given["dilation_rate"], given["activation"], given["use_bias"],
            given["bias_initializer"], given["bias_regularizer"], given["bias_constraint"],
            **kwargs,
        )  # fmt: skip
        self.filters = positive_integer(self, "filters", given["filters"])
        self.recurrent_activation = activations.get(given["recurrent_activation"])
        for name in ("kernel", "recurrent"):
            for kind, family in (
                ("initializer", initializers),
                ("regularizer", regularizers),
                ("constraint", constraints),
            ):
                setattr(self, f"{name}_{kind}", family.get(given[f"{name}_{kind}"]))
        self.unit_forget_bias = given["unit_forget_bias"]
        self.dropout = fraction(self, "dropout", given["dropout"])
        self.recurrent_dropout = fraction(self, "recurrent_dropout", given["recurrent_dropout"])
        self.seed = given["seed"]
        self.seed_generator = random.SeedGenerator(self.seed)
        self.state_size = [self.filters, self.filters]

    def build(self, input_shape: Shape) -> None:
        n, f = self.channels_of(input_shape), self.filters
        self.kernel = self.add_kernel((*self.kernel_size, n, 4 * f))
        self.recurrent_kernel = self.add_kernel(
            (*self.kernel_size, f, 4 * f), "recurrent", "recurrent_kernel"
        )
        if self.use_bias:
            self.bias = self.add_weight(
                (4 * f,),
                self._first_bias,
                regularizer=self.bias_regularizer,
                constraint=self.bias_constraint,
                name="bias",
            )

    def _first_bias(self, shape: Any, dtype: Any = None) -> Any:
        if not self.unit_forget_bias:
            return self.bias_initializer(shape, dtype=dtype)
        f = self.filters
        first, rest = (np.asarray(self.bias_initializer((n,), dtype=dtype)) for n in (f, 2 * f))
        return np.concatenate([first, np.ones(f, dtype), rest])

    def call(self, inputs: Any, states: Any, training: bool = False) -> tuple[Any, list[Any]]:
        h, c = states
        if training:
            inputs, h = self._drop(inputs, self.dropout), self._drop(h, self.recurrent_dropout)
        z = ops.conv(
            inputs, self.kernel, self.strides, self.padding, self.data_format, self.dilation_rate
        )
        z = z + ops.conv(h, self.recurrent_kernel, 1, "same", self.data_format)
        if self.bias is not None:
            shape = [1] * (self.rank + 2)
            shape[self.channel_axis] = 4 * self.filters
            z = z + ops.reshape(self.bias, tuple(shape))
        i, f, g, o = ops.split(z, 4, axis=self.channel_axis)
        gate = self.recurrent_activation
        c = gate(f) * c + gate(i) * self.activation(g)
        h = gate(o) * self.activation(c)
        return h, [h, c]

    def _drop(self, x: Any, rate: float) -> Any:
        return ops.dropout(x, rate, random.generator(self.seed_generator)) if rate else x

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return self.shape_of(input_shape, self.window_sizes(input_shape), self.filters)


class _ConvLSTM(RNN):
    """An RNN around a ConvLSTMCell."""

    rank = 0
    cell: ConvLSTMCell

    def __init__(self, arguments: Config, options: Config, kwargs: Config) -> None:
        self.arguments = arguments
        common = {key: kwargs[key] for key in ("dtype", "trainable") if key in kwargs}
        cell = ConvLSTMCell(self.rank, arguments, name="conv_lstm_cell", **common)
        regularizer = arguments["activity_regularizer"]
        super().__init__(cell, **options, activity_regularizer=regularizer, **kwargs)
        self.input_spec = InputSpec(ndim=self.rank + 3)

    def __getattr__(self, name: str) -> Any:
        """What the cell was made with, such as filters, kernel_size, dropout."""
        known = vars(self)
        if "cell" in known and name in known["arguments"]:
            return getattr(known["cell"], name)
        return super().__getattr__(name)

    def build(self, sequences_shape: Shape, initial_state_shape: Any = None) -> None:
        super().build(sequences_shape)
        axis = self.cell.channel_axis
        axis = axis + 1 if axis > 0 else axis
        self.input_spec = InputSpec(ndim=self.rank + 3, axes={axis: sequences_shape[axis]})

    def _first_states(self, x: Any, initial_state: Any) -> list[Any]:
        batch, _, *rest = x.shape
        self._state_shape = self.cell.compute_output_shape((batch, *rest))
        return super()._first_states(x, initial_state)

    def get_initial_state(self, batch_size: int) -> list[Any]:
        shape = (batch_size, *self._state_shape[1:])
        return [Tensor(np.zeros(shape, self._dtype)) for _ in range(2)]

    def compute_output_shape(self, sequences_shape: Shape, initial_state_shape: Any = None) -> Any:
        batch, steps, *rest = sequences_shape
        state = self.cell.compute_output_shape((batch, *rest))
        output = (batch, steps, *state[1:]) if self.return_sequences else state
        return (output, state, state) if self.return_state else output

    def get_config(self) -> Config:
        config = super().get_config()
        del config["cell"], config["zero_output_for_mask"], config["unroll"]
        cell = self.cell
        plain = {key: self.arguments[key] for key in _PLAIN}
        return {
            **config,
            **plain,
            "data_format": cell.data_format,
            "activation": activations.serialize(cell.activation),
            "recurrent_activation": activations.serialize(cell.recurrent_activation),
            **cell.options("kernel"),
            **cell.options("recurrent"),
            **cell.options("bias"),
            "activity_regularizer": regularizers.serialize(self.activity_regularizer),
        }


_PLAIN = (
    "filters", "kernel_size", "strides", "padding", "dilation_rate", "use_bias",
    "unit_forget_bias", "dropout", "recurrent_dropout", "seed",
)  # fmt: skip


class ConvLSTM2D(_ConvLSTM):
    """An LSTM over sequences of images: its products with the input and with h are convolutions.

    Args:
        filters: the number of channels of the state and of the output.
        kernel_size, strides, padding, data_format, dilation_rate: of the input's convolution, see
            Conv2D; that of h has padding "same".
        dropout, recurrent_dropout: fractions dropped in training.
        activation, recurrent_activation, use_bias, all others: see LSTM.

    Weights: kernel (k, k, n, 4 filters), recurrent_kernel (k, k, filters, 4 filters), bias.
    Shapes: (batch, T, rows, columns, n) -> (batch, rows', columns', filters), or with a T axis for
        return_sequences.
    Reference: Shi et al., 2015, "Convolutional LSTM Network: A Machine Learning Approach for
    Precipitation Nowcasting", arXiv:1506.04214.
    """

    rank = 2

    def __init__(
        self,
        filters: int,
        kernel_size: Any,
        strides: Any = 1,
        padding: str = "valid",
        data_format: str | None = None,
        dilation_rate: Any = 1,
        activation: Any = "tanh",
        recurrent_activation: Any = "sigmoid",
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        recurrent_initializer: Any = "orthogonal",
        bias_initializer: Any = "zeros",
        unit_forget_bias: bool = True,
        kernel_regularizer: Any = None,
        recurrent_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: Any = None,
        recurrent_constraint: Any = None,
        bias_constraint: Any = None,
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        seed: int | None = None,
        return_sequences: bool = False,
        return_state: bool = False,
        go_backwards: bool = False,
        stateful: bool = False,
        **kwargs: Any,
    ) -> None:
        arguments = {
            "filters": filters,
            "kernel_size": kernel_size,
            "strides": strides,
            "padding": padding,
            "data_format": data_format,
            "dilation_rate": dilation_rate,
            "activation": activation,
            "recurrent_activation": recurrent_activation,
            "use_bias": use_bias,
            "kernel_initializer": kernel_initializer,
            "recurrent_initializer": recurrent_initializer,
            "bias_initializer": bias_initializer,
            "unit_forget_bias": unit_forget_bias,
            "kernel_regularizer": kernel_regularizer,
            "recurrent_regularizer": recurrent_regularizer,
            "bias_regularizer": bias_regularizer,
            "activity_regularizer": activity_regularizer,
            "kernel_constraint": kernel_constraint,
            "recurrent_constraint": recurrent_constraint,
            "bias_constraint": bias_constraint,
            "dropout": dropout,
            "recurrent_dropout": recurrent_dropout,
            "seed": seed,
        }
        options = {
            "return_sequences": return_sequences,
            "return_state": return_state,
            "go_backwards": go_backwards,
            "stateful": stateful,
        }
        super().__init__(arguments, options, kwargs)


class ConvLSTM1D(_ConvLSTM):
    """ConvLSTM2D for sequences of rows: (batch, T, steps, n) -> (batch, steps', filters).

    Args: see ConvLSTM2D.
    Weights: kernel (k, n, 4 filters), recurrent_kernel (k, filters, 4 filters), bias.
    """

    rank = 1

    def __init__(
        self,
        filters: int,
        kernel_size: Any,
        strides: Any = 1,
        padding: str = "valid",
        data_format: str | None = None,
        dilation_rate: Any = 1,
        activation: Any = "tanh",
        recurrent_activation: Any = "sigmoid",
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        recurrent_initializer: Any = "orthogonal",
        bias_initializer: Any = "zeros",
        unit_forget_bias: bool = True,
        kernel_regularizer: Any = None,
        recurrent_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: Any = None,
        recurrent_constraint: Any = None,
        bias_constraint: Any = None,
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        seed: int | None = None,
        return_sequences: bool = False,
        return_state: bool = False,
        go_backwards: bool = False,
        stateful: bool = False,
        **kwargs: Any,
    ) -> None:
        arguments = {
            "filters": filters,
            "kernel_size": kernel_size,
            "strides": strides,
            "padding": padding,
            "data_format": data_format,
            "dilation_rate": dilation_rate,
            "activation": activation,
            "recurrent_activation": recurrent_activation,
            "use_bias": use_bias,
            "kernel_initializer": kernel_initializer,
            "recurrent_initializer": recurrent_initializer,
            "bias_initializer": bias_initializer,
            "unit_forget_bias": unit_forget_bias,
            "kernel_regularizer": kernel_regularizer,
            "recurrent_regularizer": recurrent_regularizer,
            "bias_regularizer": bias_regularizer,
            "activity_regularizer": activity_regularizer,
            "kernel_constraint": kernel_constraint,
            "recurrent_constraint": recurrent_constraint,
            "bias_constraint": bias_constraint,
            "dropout": dropout,
            "recurrent_dropout": recurrent_dropout,
            "seed": seed,
        }
        options = {
            "return_sequences": return_sequences,
            "return_state": return_state,
            "go_backwards": go_backwards,
            "stateful": stateful,
        }
        super().__init__(arguments, options, kwargs)
