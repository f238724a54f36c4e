"""Recurrent networks over whole sequences: each an op of its own, and a loop around any step.

The fused ops run the loops of `recurrence.py` and `gated_recurrence.py`; their composed forms, out
of small ops, give second derivatives and serve other activations than tanh and sigmoid.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from picodl.config import thread
from picodl.ops.activation import relu
from picodl.ops.activation import sigmoid_op as sigmoid
from picodl.ops.core import Array, op
from picodl.ops.functions import tanh
from picodl.ops.gated_direct import DirectGRU, DirectLSTM
from picodl.ops.indexing import where
from picodl.ops.linear import matmul
from picodl.ops.recurrence import Recurrence, SimpleRecurrence
from picodl.ops.shape import concatenate, expand_dims, split, stack, unstack
from picodl.tensor import Tensor, record

Function = Callable[[Any], Any]

# what the simple recurrence computes at once: f on arrays, its slope from y, and f as an op
_SIMPLE: dict[str, tuple[Any, Any, Function]] = {
    "tanh": (np.tanh, lambda y: 1 - y * y, tanh),
    "relu": (
        lambda z, out: np.maximum(z, 0, out=out),
        lambda y: (y > 0).astype(y.dtype),
        relu,
    ),
    "linear": (lambda z, out: np.copyto(out, z), np.ones_like, lambda z: z),
}


@op
def simple_rnn(
    x: Tensor,
    kernel: Tensor,
    recurrent_kernel: Tensor,
    bias: Tensor | None = None,
    h: Tensor | None = None,
    mask: Array | None = None,
    dropout: Array | None = None,
    recurrent_dropout: Array | None = None,
    go_backwards: bool = False,
    zero_output_for_mask: bool = False,
    returns: str = "last",
    activation: str = "tanh",
) -> Tensor:
    """h_t = f(x_t @ W + b + h_(t-1) @ U) over all steps.

    Args:
        x: the sequences.
        kernel, recurrent_kernel, bias: W, U and b.
        h: the first state; zeros by default.
        mask: True where a step counts; another one changes neither state nor output.
        dropout, recurrent_dropout: what x and h are multiplied with, one mask for each gate.
        go_backwards: from the last step to the first; outputs stand in that order.
        zero_output_for_mask: a masked step puts out zeros instead of the output before it.
        returns: "last" output, "sequences" of all, or "all": sequences, then the last state as one
            more step.
        activation: "tanh", "relu" or "linear".

    Shapes: x (batch, T, n), W (n, u), U (u, u), b (u,), h (batch, u), mask (batch, T), dropout
        (1, batch, n), recurrent_dropout (1, batch, u) -> (batch, u), (batch, T, u) or
        (batch, T + 1, u).

    Raises:
        ValueError: if a shape does not fit.

    Gradient: back through time: dz_t = f'(h_t) * dh_t, dh_(t-1) = dz_t @ U.T; dW, dU and dx as one
        product each over all steps.

    Reference: Elman, 1990, "Finding Structure in Time", Cognitive Science 14.
    """
    forward, slope, function = _SIMPLE[activation]

    def step(z: Any, states: list[Any], recur: Any) -> list[Any]:
        return [function(z + recur(states[0]))]

    return _record(
        SimpleRecurrence, step, x, kernel, recurrent_kernel, bias, [h], mask, dropout,
        recurrent_dropout, go_backwards, zero_output_for_mask, returns, forward=forward,
        slope=slope,
    )  # fmt: skip


@op
def lstm(
    x: Tensor,
    kernel: Tensor,
    recurrent_kernel: Tensor,
    bias: Tensor | None = None,
    h: Tensor | None = None,
    c: Tensor | None = None,
    mask: Array | None = None,
    dropout: Array | None = None,
    recurrent_dropout: Array | None = None,
    go_backwards: bool = False,
    zero_output_for_mask: bool = False,
    returns: str = "last",
) -> Tensor:
    """Long short-term memory over all steps: c_t = f * c_(t-1) + i * g, h_t = o * tanh(c_t).

    i, f, g, o are the four parts of x_t @ W + b + h_(t-1) @ U; g through tanh, the others through
    the sigmoid.

    Args: as for `simple_rnn`; c is the first cell state, and "all" ends with the last h and c.

    Shapes: x (batch, T, n), W (n, 4u), U (u, 4u), b (4u,), h and c (batch, u), mask (batch, T),
        dropout (4, batch, n), recurrent_dropout (4, batch, u) -> (batch, u), (batch, T, u) or
        (batch, T + 2, u).

    Raises:
        ValueError: if a shape does not fit.

    Gradient: back through time with dc_t += dh_t * o * (1 - tanh(c_t)^2), dc_(t-1) = f * dc_t; the
        weights' as one product each over all steps.

    Reference: Hochreiter and Schmidhuber, 1997, "Long Short-Term Memory", Neural Computation 9.
    """

    def step(z: Any, states: list[Any], recur: Any) -> list[Any]:
        return lstm_step(z + recur(states[0]), states[1], tanh, sigmoid)

    return _record(
        DirectLSTM, step, x, kernel, recurrent_kernel, bias, [h, c], mask, dropout,
        recurrent_dropout, go_backwards, zero_output_for_mask, returns,
    )  # fmt: skip


@op
def gru(
    x: Tensor,
    kernel: Tensor,
    recurrent_kernel: Tensor,
    bias: Tensor | None = None,
    h: Tensor | None = None,
    mask: Array | None = None,
    dropout: Array | None = None,
    recurrent_dropout: Array | None = None,
    go_backwards: bool = False,
    zero_output_for_mask: bool = False,
    returns: str = "last",
    reset_after: bool = True,
) -> Tensor:
    """Gated recurrent unit over all steps: h_t = z * h_(t-1) + (1 - z) * n.

    With x_z, x_r, x_n = x_t @ W + b: z = sigmoid(x_z + h @ U_z), r = sigmoid(x_r + h @ U_r), and
    n = tanh(x_n + r * (h @ U_n + b_n)) or, with reset_after=False, n = tanh(x_n + (r * h) @ U_n).

    Args: as for `simple_rnn`; reset_after: where the reset gate r stands.

    Shapes: x (batch, T, n), W (n, 3u), U (u, 3u), b (2, 3u): of the input and of the recurrent side
        (with reset_after=False b (3u,)), h (batch, u), mask (batch, T), dropout (3, batch, n),
        recurrent_dropout (3, batch, u) -> (batch, u), (batch, T, u) or (batch, T + 1, u).

    Raises:
        ValueError: if a shape does not fit.

    Gradient: back through time; the weights' as one product each over all steps.

    Reference: Cho et al., 2014, "Learning Phrase Representations using RNN Encoder-Decoder for
    Statistical Machine Translation", arXiv:1406.1078.
    """

    def step(z: Any, states: list[Any], recur: Any) -> list[Any]:
        return gru_step(z, states[0], recur, reset_after, tanh, sigmoid)

    return _record(
        DirectGRU, step, x, kernel, recurrent_kernel, bias, [h], mask, dropout, recurrent_dropout,
        go_backwards, zero_output_for_mask, returns, reset_after=reset_after,
    )  # fmt: skip


def _record(
    kind: type[Recurrence],
    step: Any,
    x: Tensor,
    kernel: Tensor,
    recurrent_kernel: Tensor,
    bias: Tensor | None,
    states: list[Tensor | None],
    mask: Any,
    dropout: Any,
    recurrent_dropout: Any,
    go_backwards: bool,
    zero_output: bool,
    returns: str,
    **settings: Any,
) -> Tensor:
    """Run a recurrence and record it, with the composed form for second derivatives.

    Args: settings: attributes of the recurrence.
    """
    inputs = [x, kernel, recurrent_kernel, bias, *states]
    _check(kind.gates, inputs, mask)
    present = [t is not None for t in inputs]
    given = tuple(t for t in inputs if t is not None)
    options = (mask, dropout, recurrent_dropout, go_backwards, zero_output, returns)
    dtype = np.result_type(*(t.data for t in given))  # weights may be finer than what flows
    arrays: list[Any] = [None if t is None else t.data.astype(dtype, copy=False) for t in inputs]
    work = kind(arrays[0], arrays[4:], arrays[1], arrays[2], arrays[3], *options)
    vars(work).update(settings)
    y = work.run(keep=thread.recording and any(t.requires_grad for t in given))

    def backward(g: Any) -> Any:
        dx, dstates, dkernel, drecurrent, dbias = work.back(g, x.requires_grad)
        parts = (dx, dkernel, drecurrent, dbias, *dstates)
        return [part for part, there in zip(parts, present, strict=True) if there]

    def composed(*again: Tensor) -> Any:
        left = iter(again)
        x, kernel, recurrent, bias, *states = [next(left) if there else None for there in present]
        return composed_rnn(step, x, kernel, recurrent, bias, states, kind.gates, *options)

    backward.__qualname__ = {1: "simple_rnn", 3: "gru", 4: "lstm"}[kind.gates]
    return record(y, given, backward, composed)


def _check(gates: int, inputs: list[Any], mask: Any) -> None:
    shapes: list[Any] = [None if t is None else t.data.shape for t in inputs]
    x, kernel, recurrent, _, *states = shapes
    if len(x) != 3:
        raise ValueError(f"Expected sequences of shape (batch, steps, features); received {x}.")
    u = recurrent[0]
    if kernel != (x[2], gates * u) or recurrent != (u, gates * u):
        raise ValueError(
            f"Sequences of shape {x} need a kernel of shape {(x[2], gates * u)} and a recurrent "
            f"kernel of shape {(u, gates * u)}; received {kernel} and {recurrent}."
        )
    for state in states:
        if state is not None and state != (x[0], u):
            raise ValueError(f"Expected states of shape {(x[0], u)}; received {state}.")
    if mask is not None and (mask.shape != x[:2] or mask.dtype != bool):
        raise ValueError(
            f"Expected a boolean mask of shape {x[:2]} for sequences of shape {x}; received shape "
            f"{mask.shape} of dtype {mask.dtype}."
        )


# -------------------------------------------------------------------- out of small ops


def lstm_step(z: Any, c: Any, activation: Function, recurrent_activation: Function) -> list[Any]:
    """One step of an LSTM from z = x @ W + b + h @ U and c: the new [h, c]."""
    i, f, g, o = split(z, 4, axis=-1)
    c = recurrent_activation(f) * c + recurrent_activation(i) * activation(g)
    return [recurrent_activation(o) * activation(c), c]


def gru_step(
    z: Any,
    h: Any,
    recur: Any,
    reset_after: bool,
    activation: Function,
    recurrent_activation: Function,
) -> list[Any]:
    """One step of a GRU from z = x @ W + b, h and recur, which gives parts of h @ U."""
    x_z, x_r, x_n = split(z, 3, axis=-1)
    if reset_after:
        h_z, h_r, h_n = split(recur(h), 3, axis=-1)
        keep, reset = recurrent_activation(x_z + h_z), recurrent_activation(x_r + h_r)
        new = activation(x_n + reset * h_n)
    else:
        keep = recurrent_activation(x_z + recur(h, 0))
        reset = recurrent_activation(x_r + recur(h, 1))
        new = activation(x_n + recur(reset * h, 2))
    return [keep * h + (1 - keep) * new]


def composed_rnn(
    step: Any,
    x: Any,
    kernel: Any,
    recurrent_kernel: Any,
    bias: Any,
    states: Sequence[Any],
    gates: int,
    mask: Any = None,
    dropout: Any = None,
    recurrent_dropout: Any = None,
    go_backwards: bool = False,
    zero_output: bool = False,
    returns: str = "last",
) -> Any:
    """A recurrence out of small ops: step(z, states, recur) gives the new states, the first of them
    the output. The other arguments are those of `simple_rnn`."""
    kernels = split(kernel, gates, axis=-1) if dropout is not None else [kernel]
    recurrents = split(recurrent_kernel, gates, axis=-1)
    two_rows = bias is not None and len(bias.shape) == 2  # a GRU's, of input and recurrent side
    of_input, of_recurrent = unstack(bias, 2) if two_rows else (bias, None)
    parts = [
        matmul(x if dropout is None else x * dropout[k][:, None, :], w)
        for k, w in enumerate(kernels)
    ]
    z = concatenate(parts, axis=-1) if len(parts) > 1 else parts[0]
    if of_input is not None:
        z = z + of_input

    def recur(h: Any, gate: int | None = None) -> Any:
        if gate is not None:
            kept = h if recurrent_dropout is None else h * recurrent_dropout[gate]
            return matmul(kept, recurrents[gate])
        if recurrent_dropout is None:
            y = matmul(h, recurrent_kernel)
        else:
            pairs = zip(recurrent_dropout, recurrents, strict=True)
            y = concatenate([matmul(h * m, u) for m, u in pairs], axis=-1)
        return y if of_recurrent is None else y + of_recurrent

    def one(part: Any, states: list[Any]) -> tuple[Any, list[Any]]:
        new = step(part, states, recur)
        return new[0], new

    zeros = Tensor(np.zeros((x.shape[0], recurrent_kernel.shape[0]), x.dtype))
    first = [zeros if s is None else s for s in states]
    last, outputs, ends = unroll(one, z, first, mask, go_backwards, zero_output)
    if returns == "last":
        return last
    sequences = stack(outputs, axis=1)
    if returns == "sequences":
        return sequences
    return concatenate([sequences, *(expand_dims(s, 1) for s in ends)], axis=1)


def unroll(
    step: Callable[[Any, list[Any]], tuple[Any, list[Any]]],
    x: Any,
    states: list[Any],
    mask: Any = None,
    go_backwards: bool = False,
    zero_output: bool = False,
) -> tuple[Any, list[Any], list[Any]]:
    """Call step(x_t, states) -> (output, new states) for every step of a sequence.

    Args:
        step: any function of tensors; the new states have the shapes of the old ones.
        x: (batch, T, ...).
        states: the first states.
        mask: (batch, T), True where a step counts: another one keeps the states, and its output is
            the output before it (at the start: the first state, or zeros if its shape differs).
        go_backwards: from the last step to the first; outputs stand in that order.
        zero_output: a masked step puts out zeros.

    Returns:
        The last output, the list of all outputs, the last states.
    """
    parts = unstack(x, axis=1)
    masks = [None] * len(parts) if mask is None else list(np.moveaxis(np.asarray(mask), 1, 0))
    if go_backwards:
        parts, masks = parts[::-1], masks[::-1]
    outputs: list[Any] = []
    for part, keep in zip(parts, masks, strict=True):
        output, new = step(part, states)
        if keep is not None and not keep.all():
            if outputs and not zero_output:
                before = outputs[-1]
            elif zero_output or states[0].shape != output.shape:
                before = Tensor(np.zeros(output.shape, output.dtype))
            else:
                before = states[0]
            output = where(_spread(keep, output), output, before)
            new = [where(_spread(keep, n), n, s) for n, s in zip(new, states, strict=True)]
        outputs.append(output)
        states = list(new)
    return (outputs[-1] if outputs else states[0]), outputs, states


def _spread(keep: Any, like: Any) -> Any:
    """A mask (batch,) with as many axes as what it chooses from."""
    return keep.reshape(keep.shape + (1,) * (len(like.shape) - 1))
