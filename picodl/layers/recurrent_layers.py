"""SimpleRNN, LSTM and GRU: an RNN around the cell of the same name."""

from __future__ import annotations

from typing import Any

from picodl.layers.input_spec import InputSpec
from picodl.layers.recurrent import RNN
from picodl.layers.recurrent_cells import GRUCell, LSTMCell, RecurrentCell, SimpleRNNCell
from picodl.typing import Config


class _CellLayer(RNN):
    """An RNN that makes its cell itself.

    Args:
        cell: the class of the cell.
        arguments: for the cell.
        options: for RNN.
        kwargs: for every layer.
    """

    cell: RecurrentCell

    def __init__(
        self,
        cell: type[RecurrentCell],
        arguments: Config,
        options: Config,
        activity_regularizer: Any,
        kwargs: Config,
    ) -> None:
        for ignored in ("implementation", "use_cudnn", "time_major"):
            kwargs.pop(ignored, None)
        zero = kwargs.pop("zero_output_for_mask", False)
        common = {key: kwargs[key] for key in ("dtype", "trainable") if key in kwargs}
        inner = cell(**arguments, name=CELL_NAMES[cell], **common)
        super().__init__(
            inner,
            **options,
            zero_output_for_mask=zero,
            activity_regularizer=activity_regularizer,
            **kwargs,
        )
        self.input_spec = InputSpec(ndim=3)

    def __getattr__(self, name: str) -> Any:
        """What the cell was made with, such as units, activation, dropout."""
        cell = vars(self).get("cell")
        if cell is not None and name in vars(cell) and name in cell.settings():
            return vars(cell)[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def get_config(self) -> Config:
        config = super().get_config()
        del config["cell"]
        return {**config, **self.cell.settings()}


CELL_NAMES: dict[type, str] = {
    SimpleRNNCell: "simple_rnn_cell",
    LSTMCell: "lstm_cell",
    GRUCell: "gru_cell",
}


class SimpleRNN(_CellLayer):
    """h_t = activation(x_t @ kernel + bias + h_(t-1) @ recurrent_kernel), over a sequence.

    Args:
        units: the size of the state and of the output.
        activation: name or function. Defaults to "tanh".
        use_bias: whether to add a bias.
        kernel_initializer, recurrent_initializer, bias_initializer: first values of the weights.
        kernel_regularizer, recurrent_regularizer, bias_regularizer: penalties on the weights.
        activity_regularizer: penalty on the outputs.
        kernel_constraint, recurrent_constraint, bias_constraint: applied after each update.
        dropout, recurrent_dropout: fractions of the inputs and of h to drop in training; one mask
            serves all steps.
        return_sequences, return_state, go_backwards, stateful, unroll, zero_output_for_mask: see
            RNN.
        seed: of the dropout.

    Weights: kernel (n, units), recurrent_kernel (units, units), bias (units,).
    Shapes: (batch, T, n) -> (batch, units), or (batch, T, units) with return_sequences.
    Reference: Elman, 1990, "Finding Structure in Time", Cognitive Science 14.
    """

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
        activity_regularizer: Any = None,
        kernel_constraint: Any = None,
        recurrent_constraint: Any = None,
        bias_constraint: Any = None,
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        return_sequences: bool = False,
        return_state: bool = False,
        go_backwards: bool = False,
        stateful: bool = False,
        unroll: bool = False,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        arguments = {
            "units": units,
            "activation": activation,
            "use_bias": use_bias,
            "kernel_initializer": kernel_initializer,
            "recurrent_initializer": recurrent_initializer,
            "bias_initializer": bias_initializer,
            "kernel_regularizer": kernel_regularizer,
            "recurrent_regularizer": recurrent_regularizer,
            "bias_regularizer": bias_regularizer,
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
            "unroll": unroll,
        }
        super().__init__(SimpleRNNCell, arguments, options, activity_regularizer, kwargs)


class LSTM(_CellLayer):
    """Long short-term memory over a sequence; see `ops.lstm` for the formula.

    Args:
        units: the size of the state and of the output.
        activation: name or function. Defaults to "tanh".
        recurrent_activation: of the gates. Defaults to "sigmoid".
        unit_forget_bias: start with ones as the bias of the forget gate.
        use_bias: whether to add a bias.
        kernel_initializer, recurrent_initializer, bias_initializer: first values of the weights.
        kernel_regularizer, recurrent_regularizer, bias_regularizer: penalties on the weights.
        activity_regularizer: penalty on the outputs.
        kernel_constraint, recurrent_constraint, bias_constraint: applied after each update.
        dropout, recurrent_dropout: fractions of the inputs and of h to drop in training; one mask
            serves all steps.
        return_sequences, return_state, go_backwards, stateful, unroll, zero_output_for_mask: see
            RNN.
        seed: of the dropout.

    Weights: kernel (n, 4 units), recurrent_kernel (units, 4 units), bias (4 units,); the gates
        stand as i, f, c, o.
    Shapes: (batch, T, n) -> (batch, units), or (batch, T, units) with return_sequences.
    Reference: Hochreiter and Schmidhuber, 1997, "Long Short-Term Memory", Neural Computation 9.

    >>> import numpy as np
    >>> x = np.ones((2, 5, 3))
    >>> LSTM(4)(x).shape, LSTM(4, return_sequences=True)(x).shape
    ((2, 4), (2, 5, 4))
    """

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
        unroll: bool = False,
        **kwargs: Any,
    ) -> None:
        arguments = {
            "units": units,
            "activation": activation,
            "recurrent_activation": recurrent_activation,
            "use_bias": use_bias,
            "kernel_initializer": kernel_initializer,
            "recurrent_initializer": recurrent_initializer,
            "bias_initializer": bias_initializer,
            "kernel_regularizer": kernel_regularizer,
            "recurrent_regularizer": recurrent_regularizer,
            "bias_regularizer": bias_regularizer,
            "kernel_constraint": kernel_constraint,
            "recurrent_constraint": recurrent_constraint,
            "bias_constraint": bias_constraint,
            "dropout": dropout,
            "recurrent_dropout": recurrent_dropout,
            "seed": seed,
            "unit_forget_bias": unit_forget_bias,
        }
        options = {
            "return_sequences": return_sequences,
            "return_state": return_state,
            "go_backwards": go_backwards,
            "stateful": stateful,
            "unroll": unroll,
        }
        super().__init__(LSTMCell, arguments, options, activity_regularizer, kwargs)


class GRU(_CellLayer):
    """Gated recurrent unit over a sequence; see `ops.gru` for the formula.

    Args:
        units: the size of the state and of the output.
        activation: name or function. Defaults to "tanh".
        recurrent_activation: of the gates. Defaults to "sigmoid".
        reset_after: apply the reset gate after the product with the recurrent kernel.
        use_bias: whether to add a bias.
        kernel_initializer, recurrent_initializer, bias_initializer: first values of the weights.
        kernel_regularizer, recurrent_regularizer, bias_regularizer: penalties on the weights.
        activity_regularizer: penalty on the outputs.
        kernel_constraint, recurrent_constraint, bias_constraint: applied after each update.
        dropout, recurrent_dropout: fractions of the inputs and of h to drop in training; one mask
            serves all steps.
        return_sequences, return_state, go_backwards, stateful, unroll, zero_output_for_mask: see
            RNN.
        seed: of the dropout.

    Weights: kernel (n, 3 units), recurrent_kernel (units, 3 units), bias (2, 3 units), or
        (3 units,) with reset_after=False; the gates stand as z, r, n.
    Shapes: (batch, T, n) -> (batch, units), or (batch, T, units) with return_sequences.
    Reference: Cho et al., 2014, "Learning Phrase Representations using RNN Encoder-Decoder for
    Statistical Machine Translation", arXiv:1406.1078.
    """

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
        unroll: bool = False,
        reset_after: bool = True,
        **kwargs: Any,
    ) -> None:
        arguments = {
            "units": units,
            "activation": activation,
            "recurrent_activation": recurrent_activation,
            "use_bias": use_bias,
            "kernel_initializer": kernel_initializer,
            "recurrent_initializer": recurrent_initializer,
            "bias_initializer": bias_initializer,
            "kernel_regularizer": kernel_regularizer,
            "recurrent_regularizer": recurrent_regularizer,
            "bias_regularizer": bias_regularizer,
            "kernel_constraint": kernel_constraint,
            "recurrent_constraint": recurrent_constraint,
            "bias_constraint": bias_constraint,
            "dropout": dropout,
            "recurrent_dropout": recurrent_dropout,
            "seed": seed,
            "reset_after": reset_after,
        }
        options = {
            "return_sequences": return_sequences,
            "return_state": return_state,
            "go_backwards": go_backwards,
            "stateful": stateful,
            "unroll": unroll,
        }
        super().__init__(GRUCell, arguments, options, activity_regularizer, kwargs)
