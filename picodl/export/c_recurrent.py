"""Recurrent layers in C: one call runs a whole sequence."""

from __future__ import annotations

from typing import Any

import numpy as np

from picodl.export import c_kernels
from picodl.export.c_writer import Writer
from picodl.export.plan import Call, activation_name

_CELLS = {"SimpleRNN": ("simple_rnn", 1, 3), "LSTM": ("lstm", 4, 10), "GRU": ("gru", 3, 7)}


def recurrent(call: Call, w: Writer) -> None:
    """Write the loop over time of an LSTM, GRU or SimpleRNN."""
    if getattr(call.layer, "stateful", False):
        raise ValueError(f'The layer "{call.name}" is stateful, which cannot be exported.')
    _run_cell(call, w, call.layer, w.place(call.output), call.name)


def _run_cell(call: Call, w: Writer, layer: Any, target: str, name: str, offset: int = 0) -> None:
    """One recurrent layer from the call's input into target, with scratch from an offset."""
    kernel_name, gates, places = _CELLS[type(layer).__name__]
    steps, n = call.inputs[0].shape
    cell = layer.cell
    arrays = {
        key: getattr(cell, key).data
        for key in ("kernel", "recurrent_kernel", "bias")
        if getattr(cell, key, None) is not None
    }
    m = arrays["kernel"].shape[1] // gates
    k, ks, suffix = w.kernel(f"{name}_kernel", arrays["kernel"])
    r, rs, _ = w.kernel(f"{name}_recurrent", arrays["recurrent_kernel"])
    bias = arrays.get("bias")
    both = bias if bias is not None and bias.ndim == 2 else (bias, None)
    biases = [w.array(f"{name}_bias", both[0])]
    if gates == 3:
        biases.append(w.array(f"{name}_recurrent_bias", both[1]))
        biases.append(str(int(bool(cell.reset_after))))
    functions = [activation_name(cell.activation, name)]
    if gates > 1:
        functions.append(activation_name(cell.recurrent_activation, name))
    for function in functions:
        if function not in c_kernels.SCALARS:
            raise ValueError(f'The layer "{name}" has the activation {function!r}: not in C.')
    work = w.scratch(offset + places * m)
    if offset:
        work += f" + {offset}"
    w.call(
        f"{kernel_name}_{suffix}", w.place(call.inputs[0]), steps, n, m, k, ks, r, rs, *biases,
        *[w.function(f) for f in functions], int(bool(layer.go_backwards)),
        int(bool(layer.return_sequences)), work, target,
    )  # fmt: skip


def bidirectional(call: Call, w: Writer) -> None:
    """Write both directions and what merges them."""
    layer, mode = call.layer, call.layer.merge_mode
    if mode not in ("concat", "sum", "mul", "ave"):
        raise ValueError(
            f'The layer "{call.name}" has merge_mode {mode!r}, which cannot be exported.'
        )
    m = call.output.shape[-1] // (2 if mode == "concat" else 1)
    rows = call.output.size // call.output.shape[-1]
    parts = [(0, "forward", layer.forward_layer), (rows * m, "backward", layer.backward_layer)]
    for start, name, part in parts:
        w.scratch(2 * rows * m)
        place = f"scratch + {start}" if start else "scratch"
        _run_cell(call, w, part, place, f"{call.name}_{name}", 2 * rows * m)
    forward, backward = "scratch", f"scratch + {rows * m}"
    if layer.return_sequences:  # the second one saw the sequence backwards: turn it round
        turned = f"scratch + {2 * rows * m}"
        w.scratch(3 * rows * m)
        permute_call(w, f"{backward} + {(rows - 1) * m}", (rows, m), (-m, 1), turned)
        backward = turned
    target = w.place(call.output)
    if mode == "concat":
        w.call("join", forward, rows, m, 2 * m, target)
        w.call("join", backward, rows, m, 2 * m, f"{target} + {m}")
    else:
        kernel = "merge_multiply" if mode == "mul" else "merge_add"
        w.call(kernel, forward, backward, rows * m, target)
        if mode == "ave":
            scale_call(w, target, rows * m, 0.5, 0.0, target)


def scale_call(w: Writer, source: str, size: int, scale: float, shift: float, target: str) -> None:
    """Write target = scale * source + shift, by the element."""
    factors = [w.array(name, np.array([v])) for name, v in (("factor", scale), ("offset", shift))]
    w.call("scale_shift", source, size, 1, *factors, target)


def permute_call(w: Writer, source: str, sizes: Any, strides: Any, target: str) -> None:
    """Write a copy in another order of axes: sizes and source strides, up to four of each."""
    missing = 4 - len(sizes)
    size = ", ".join(map(str, (*(1,) * missing, *sizes)))
    stride = ", ".join(map(str, (*(0,) * missing, *strides)))
    w.call("permute", source, f"(const int[]){{{size}}}", f"(const int[]){{{stride}}}", target)
