"""Recurrent layers in ONNX operators: the same cells with their gates in another order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from picodl.export.plan import Call, activation_name

if TYPE_CHECKING:
    from picodl.export.onnx_graph import Builder

# ONNX's name, and where each of ONNX's gates stands in Keras's order
_CELLS = {"SimpleRNN": ("RNN", [0]), "LSTM": ("LSTM", [0, 3, 1, 2]), "GRU": ("GRU", [0, 1, 2])}
_CELL_FUNCTIONS = {"tanh": "Tanh", "sigmoid": "Sigmoid", "relu": "Relu"}


def recurrent(call: Call, b: Builder) -> None:
    """Add the operator of an LSTM, GRU or SimpleRNN."""
    layer = call.layer
    if getattr(layer, "stateful", False):
        raise ValueError(f'The layer "{call.name}" is stateful, which cannot be exported.')
    y = _sequence(call, b, layer, call.name)
    if layer.return_sequences and layer.go_backwards:  # Keras gives them in the order of its steps
        y = _reverse(b, y)
    b.set(call.output, y)


def _sequence(call: Call, b: Builder, layer: Any, name: str) -> str:
    """The result of a recurrent layer, sequences in the order of the input."""
    operator, order = _CELLS[type(layer).__name__]
    cell, gates = layer.cell, len(order)
    m = cell.recurrent_kernel.shape[0]

    def blocks(array: Any) -> Any:
        """(..., gates * m) as rows of ONNX's order of gates."""
        parts = np.split(array, gates, axis=-1)
        return np.concatenate([parts[i] for i in order], axis=-1)

    kernel, recurrent = (blocks(w.data).T[None] for w in (cell.kernel, cell.recurrent_kernel))
    bias = cell.bias.data if getattr(cell, "bias", None) is not None else np.zeros(gates * m)
    both = bias if bias.ndim == 2 else np.stack([bias, np.zeros_like(bias)])
    inputs = [
        b.node("Transpose", [b.get(call.inputs[0])], perm=[1, 0, 2]),
        b.array(kernel),
        b.array(recurrent),
        b.array(np.concatenate([blocks(both[0]), blocks(both[1])])[None]),
    ]
    act = _cell_function(cell.activation, name)
    functions = [act]
    if gates > 1:
        functions.insert(0, _cell_function(cell.recurrent_activation, name))
    if gates == 4:
        functions.append(act)
    attributes: dict[str, Any] = {"hidden_size": m, "activations": functions}
    attributes["direction"] = "reverse" if layer.go_backwards else "forward"
    if gates == 3:
        attributes["linear_before_reset"] = int(bool(cell.reset_after))
    every, last = b.many(operator, inputs, 2, **attributes)
    if layer.return_sequences:  # (steps, 1, batch, m)
        y = b.node("Squeeze", [every, b.array([1], np.int64)])
        return b.node("Transpose", [y], perm=[1, 0, 2])
    return b.node("Squeeze", [last, b.array([0], np.int64)])


def _cell_function(activation: Any, name: str) -> str:
    kind = activation_name(activation, name)
    if kind not in _CELL_FUNCTIONS:
        raise ValueError(
            f'The layer "{name}" has the activation {kind!r}; recurrent layers in ONNX can have '
            f"{', '.join(_CELL_FUNCTIONS)}."
        )
    return _CELL_FUNCTIONS[kind]


def _reverse(b: Builder, x: str) -> str:
    """x with its second axis turned round."""
    numbers = [b.array([v], np.int64) for v in (-1, np.iinfo(np.int64).min, 1, -1)]
    return b.node("Slice", [x, *numbers])


def bidirectional(call: Call, b: Builder) -> None:
    """Add both directions and what merges them."""
    layer = call.layer
    operators = {"sum": "Add", "mul": "Mul", "ave": "Mean"}
    parts = [
        _sequence(call, b, part, f"{call.name}_{which}")
        for which, part in (("forward", layer.forward_layer), ("backward", layer.backward_layer))
    ]
    if layer.merge_mode == "concat":
        b.set(call.output, b.node("Concat", parts, axis=-1))
    elif layer.merge_mode in operators:
        b.set(call.output, b.node(operators[layer.merge_mode], parts))
    else:
        raise ValueError(
            f'The layer "{call.name}" has merge_mode {layer.merge_mode!r}, which cannot be '
            "exported."
        )
