"""Recurrent cells: the weights and one step of a recurrence, and its run over sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from picodl import activations, constraints, initializers, ops, random, regularizers
from picodl.layers.base import Layer
from picodl.layers.checks import fraction, known_axis, positive_integer
from picodl.ops import noise
from picodl.ops.recurrent import composed_rnn, gru_step, lstm_step
from picodl.tensor import Tensor
from picodl.typing import Array, Config, Shape

_FUSED = {activations.tanh: "tanh", activations.relu: "relu", activations.linear: "linear"}


class RecurrentCell(Layer):
    """What the cells share: weights, dropout, and a step as a sequence of one.

    Weights: kernel (n, gates * units), recurrent_kernel (units, gates * units), bias.
    """

    gates = 1
    state_count = 1

    def __init__(
        self,
        units: int,
        activation: Any = "tanh",
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        recurrent_initializer: Any = "orthogonal",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        recurrent_regularizer: Any = None,
        bias_regularizer: Any = None,
        kernel_constraint: Any = None,
        recurrent_constraint: Any = None,
        bias_constraint: Any = None,
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs.pop("implementation", None)
        super().__init__(**kwargs)
        self.units = positive_integer(self, "units", units)
        self.activation = activations.get(activation)
        self.use_bias = use_bias
        self.kernel_initializer = initializers.get(kernel_initializer)
        self.recurrent_initializer = initializers.get(recurrent_initializer)
        self.bias_initializer = initializers.get(bias_initializer)
        self.kernel_regularizer = regularizers.get(kernel_regularizer)
        self.recurrent_regularizer = regularizers.get(recurrent_regularizer)
        self.bias_regularizer = regularizers.get(bias_regularizer)
        self.kernel_constraint = constraints.get(kernel_constraint)
        self.recurrent_constraint = constraints.get(recurrent_constraint)
        self.bias_constraint = constraints.get(bias_constraint)
        self.dropout = fraction(self, "dropout", dropout)
        self.recurrent_dropout = fraction(self, "recurrent_dropout", recurrent_dropout)
        self.seed = seed
        self.seed_generator = random.SeedGenerator(seed)
        self.state_size: Any = (
            self.units if self.state_count == 1 else [self.units] * self.state_count
        )
        self.output_size = self.units
        self.bias: Any = None

    def build(self, input_shape: Shape) -> None:
        n, u = known_axis(self, input_shape), self.units
        self.kernel = self.add_weight(
            (n, self.gates * u),
            self.kernel_initializer,
            regularizer=self.kernel_regularizer,
            constraint=self.kernel_constraint,
            name="kernel",
        )
        self.recurrent_kernel = self.add_weight(
            (u, self.gates * u),
            self.recurrent_initializer,
            regularizer=self.recurrent_regularizer,
            constraint=self.recurrent_constraint,
            name="recurrent_kernel",
        )
        if self.use_bias:
            self.bias = self.add_weight(
                self._bias_shape(),
                self._first_bias,
                regularizer=self.bias_regularizer,
                constraint=self.bias_constraint,
                name="bias",
            )

    def _bias_shape(self) -> tuple[int, ...]:
        return (self.gates * self.units,)

    def _first_bias(self, shape: Any, dtype: Any = None) -> Any:
        return self.bias_initializer(shape, dtype=dtype)

    def get_initial_state(self, batch_size: int) -> list[Any]:
        """Zeros for each state."""
        return [
            Tensor(np.zeros((batch_size, self.units), self._dtype)) for _ in range(self.state_count)
        ]

    def call(self, inputs: Any, states: Any, training: bool = False) -> tuple[Any, Any]:
        nested = isinstance(states, (list, tuple))
        before = list(states) if nested else [states]
        whole = self.sequence(ops.expand_dims(inputs, 1), before, training=training, returns="all")
        output, *new = ops.unstack(whole, axis=1)
        return output, new if nested else new[0]

    def sequence(
        self,
        x: Any,
        states: Sequence[Any],
        mask: Any = None,
        training: bool = False,
        go_backwards: bool = False,
        zero_output_for_mask: bool = False,
        returns: str = "last",
    ) -> Any:
        """Run over whole sequences; arguments and result as those of `ops.simple_rnn`.

        The dropout masks are drawn once and serve all steps.
        """
        dropout, recurrent_dropout = self._masks(x, training)
        if dropout is not None and recurrent_dropout is None:
            x, dropout = x * dropout[0][:, None, :], None
        options = (mask, dropout, recurrent_dropout, go_backwards, zero_output_for_mask, returns)
        fused = self._fused()
        if fused is not None:
            return fused(x, self.kernel, self.recurrent_kernel, self.bias, *states, *options)
        return composed_rnn(
            self._step,
            x,
            self.kernel,
            self.recurrent_kernel,
            self.bias,
            states,
            self.gates,
            *options,
        )

    def sequence_and_states(
        self,
        x: Any,
        states: Sequence[Any],
        mask: Any = None,
        training: bool = False,
        go_backwards: bool = False,
        zero_output_for_mask: bool = False,
        return_sequences: bool = False,
    ) -> tuple[Any, list[Any]]:
        """The outputs (all, or the last) and the last states."""
        whole = self.sequence(x, states, mask, training, go_backwards, zero_output_for_mask, "all")
        steps = x.shape[1]
        ends = [whole[:, steps + k] for k in range(self.state_count)]
        if return_sequences:
            return whole[:, :steps], ends
        return (whole[:, steps - 1] if steps else ends[0]), ends

    def _fused(self) -> Callable[..., Any] | None:
        """The op that runs the whole sequence, if there is one for the activations."""
        raise NotImplementedError

    def _step(self, z: Any, states: list[Any], recur: Any) -> list[Any]:
        raise NotImplementedError

    def _masks(self, x: Any, training: bool) -> tuple[Any, Any]:
        """What the inputs and h are multiplied with in training, a mask for each gate."""
        if not training or (self.dropout == 0 and self.recurrent_dropout == 0):
            return None, None
        several = self.gates if self.recurrent_dropout > 0 else 1
        dropout = self._mask((several, x.shape[0], x.shape[2]), self.dropout)
        return dropout, self._mask((self.gates, x.shape[0], self.units), self.recurrent_dropout)

    def _mask(self, shape: tuple[int, ...], rate: float) -> Array | None:
        if rate == 0:
            return None
        keep, p = noise.keep_mask(shape, rate, random.generator(self.seed_generator))
        return np.multiply(keep, 1 / p if p else 0, dtype=self._dtype)

    def get_config(self) -> Config:
        return {**super().get_config(), **self.settings()}

    def settings(self) -> Config:
        """The arguments of the constructor, without those of all layers."""
        return {
            "units": self.units,
            "activation": activations.serialize(self.activation),
            "use_bias": self.use_bias,
            "kernel_initializer": initializers.serialize(self.kernel_initializer),
            "recurrent_initializer": initializers.serialize(self.recurrent_initializer),
            "bias_initializer": initializers.serialize(self.bias_initializer),
            "kernel_regularizer": regularizers.serialize(self.kernel_regularizer),
            "recurrent_regularizer": regularizers.serialize(self.recurrent_regularizer),
            "bias_regularizer": regularizers.serialize(self.bias_regularizer),
            "kernel_constraint": constraints.serialize(self.kernel_constraint),
            "recurrent_constraint": constraints.serialize(self.recurrent_constraint),
            "bias_constraint": constraints.serialize(self.bias_constraint),
            "dropout": self.dropout,
            "recurrent_dropout": self.recurrent_dropout,
            "seed": self.seed,
        }


class SimpleRNNCell(RecurrentCell):
    """h' = activation(x @ kernel + bias + h @ recurrent_kernel).

    Args:
        units: the size of the state and of the output.
        activation: name or function. Defaults to "tanh".
        use_bias: whether to add a bias.
        kernel_initializer, recurrent_initializer, bias_initializer: first values of the weights.
        kernel_regularizer, recurrent_regularizer, bias_regularizer: penalties on the weights.
        kernel_constraint, recurrent_constraint, bias_constraint: applied after each update.
        dropout, recurrent_dropout: fractions of the inputs and of h to drop in training.
        seed: of the dropout.

    Weights: kernel (n, units), recurrent_kernel (units, units), bias (units,).
    Shapes: x (batch, n), h (batch, units) -> (batch, units), [h'].
    """

    def _fused(self) -> Callable[..., Any] | None:
        name = _FUSED.get(self.activation)
        if name is None:
            return None
        return lambda *args: ops.simple_rnn(*args, activation=name)

    def _step(self, z: Any, states: list[Any], recur: Any) -> list[Any]:
        return [self.activation(z + recur(states[0]))]


class _GatedCell(RecurrentCell):
    """A cell with gates, which have an activation of their own."""

    def __init__(
        self, units: int, activation: Any, recurrent_activation: Any, *args: Any, **kwargs: Any
    ) -> None:
        super().__init__(units, activation, *args, **kwargs)
        self.recurrent_activation = activations.get(recurrent_activation)

    def _usual(self) -> bool:
        return (
            self.activation is activations.tanh and self.recurrent_activation is activations.sigmoid
        )

    def settings(self) -> Config:
        recurrent = activations.serialize(self.recurrent_activation)
        return {**super().settings(), "recurrent_activation": recurrent}


class LSTMCell(_GatedCell):
    """Long short-term memory: c' = f * c + i * g, h' = o * activation(c').

    i, f, g, o are the parts of x @ kernel + bias + h @ recurrent_kernel, g through the activation,
    the others through the recurrent activation.

    Args:
        units: the size of the states and of the output.
        activation, recurrent_activation: names or functions. Default to "tanh" and "sigmoid".
        unit_forget_bias: start with ones as the bias of f.
        use_bias, all others: see SimpleRNNCell.

    Weights: kernel (n, 4 units), recurrent_kernel (units, 4 units), bias (4 units,).
    Shapes: x (batch, n), h and c (batch, units) -> (batch, units), [h', c'].
    Reference: Hochreiter and Schmidhuber, 1997, "Long Short-Term Memory", Neural Computation 9.
    """

    gates = 4
    state_count = 2

    def __init__(
        self,
        units: int,
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
        kernel_constraint: Any = None,
        recurrent_constraint: Any = None,
        bias_constraint: Any = None,
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            units, activation, recurrent_activation, use_bias, kernel_initializer,
            recurrent_initializer, bias_initializer, kernel_regularizer, recurrent_regularizer,
            bias_regularizer, kernel_constraint, recurrent_constraint, bias_constraint, dropout,
            recurrent_dropout, seed, **kwargs,
        )  # fmt: skip
        self.unit_forget_bias = unit_forget_bias

    def _first_bias(self, shape: Any, dtype: Any = None) -> Any:
        u = self.units
        if not self.unit_forget_bias:
            return super()._first_bias(shape, dtype)
        first, rest = (
            np.asarray(super(LSTMCell, self)._first_bias((n,), dtype)) for n in (u, 2 * u)
        )
        return np.concatenate([first, np.ones(u, dtype), rest])

    def _fused(self) -> Callable[..., Any] | None:
        return ops.lstm if self._usual() else None

    def _step(self, z: Any, states: list[Any], recur: Any) -> list[Any]:
        z = z + recur(states[0])
        return lstm_step(z, states[1], self.activation, self.recurrent_activation)

    def settings(self) -> Config:
        return {**super().settings(), "unit_forget_bias": self.unit_forget_bias}


class GRUCell(_GatedCell):
    """Gated recurrent unit: h' = z * h + (1 - z) * n; see `ops.gru` for z and n.

    Args:
        units: the size of the state and of the output.
        activation, recurrent_activation: names or functions. Default to "tanh" and "sigmoid".
        reset_after: apply the reset gate after the product with the recurrent kernel.
        use_bias, all others: see SimpleRNNCell.

    Weights: kernel (n, 3 units), recurrent_kernel (units, 3 units), bias (2, 3 units), or
        (3 units,) with reset_after=False; the gates stand as z, r, n.
    Shapes: x (batch, n), h (batch, units) -> (batch, units), [h'].
    Reference: Cho et al., 2014, arXiv:1406.1078.
    """

    gates = 3

    def __init__(
        self,
        units: int,
        activation: Any = "tanh",
        recurrent_activation: Any = "sigmoid",
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        recurrent_initializer: Any = "orthogonal",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        recurrent_regularizer: Any = None,
        bias_regularizer: Any = None,
        kernel_constraint: Any = None,
        recurrent_constraint: Any = None,
        bias_constraint: Any = None,
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        reset_after: bool = True,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            units, activation, recurrent_activation, use_bias, kernel_initializer,
            recurrent_initializer, bias_initializer, kernel_regularizer, recurrent_regularizer,
            bias_regularizer, kernel_constraint, recurrent_constraint, bias_constraint, dropout,
            recurrent_dropout, seed, **kwargs,
        )  # fmt: skip
        self.reset_after = reset_after

    def _bias_shape(self) -> tuple[int, ...]:
        wide = super()._bias_shape()
        return (2, *wide) if self.reset_after else wide

    def _fused(self) -> Callable[..., Any] | None:
        if not self._usual():
            return None
        return lambda *args: ops.gru(*args, reset_after=self.reset_after)

    def _step(self, z: Any, states: list[Any], recur: Any) -> list[Any]:
        functions = self.activation, self.recurrent_activation
        return gru_step(z, states[0], recur, self.reset_after, *functions)

    def settings(self) -> Config:
        return {**super().settings(), "reset_after": self.reset_after}
