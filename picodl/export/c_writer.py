"""Collects the statements, weights and kernels of an exported network."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from picodl.export.plan import Value
from picodl.typing import Array


class Writer:
    """What a layer's emitter writes to: statements, weights, and the kernels it needs.

    Args:
        quantize: None, or "int8" to store kernels in 8 bits with one scale for each output.
    """

    def __init__(self, quantize: str | None) -> None:
        self.quantize = quantize
        self.kernels: set[str] = set()
        self.data: list[str] = []
        self.statements: list[str] = []
        self.places: dict[int, str] = {}
        self.scratch_size = 0
        self.stored = 0  # bytes of weights
        self._names: set[str] = set()

    def place(self, value: Value) -> str:
        """The C expression of a value's buffer."""
        return self.places[value.buffer]

    def scratch(self, size: int) -> str:
        """A piece of memory for the current call alone."""
        self.scratch_size = max(self.scratch_size, size)
        return "scratch"

    def call(self, kernel: str, *arguments: Any) -> None:
        """A statement that calls a kernel."""
        self.kernels.add(kernel)
        self.statements.append(f"{kernel}({', '.join(map(str, arguments))});")

    def checked_call(self, kernel: str, *arguments: Any) -> None:
        """A call whose result other than 0 ends the prediction."""
        self.call(kernel, *arguments)
        self.statements[-1] = f"if ({self.statements[-1][:-1]}) return 1;"

    def function(self, activation: str) -> str:
        """The C function of a scalar activation."""
        self.kernels.add(f"f_{activation}")
        return f"f_{activation}"

    def array(self, name: str, array: Array | None) -> str:
        """The identifier of a float array; 0 for None."""
        if array is None:
            return "0"
        flat = np.asarray(array, np.float32).ravel()
        self.stored += flat.nbytes
        return self._write(name, "float", [literal(v) for v in flat])

    def kernel(self, name: str, array: Array) -> tuple[str, str, str]:
        """(identifier, identifier of the scales or 0, suffix of the kernels that read it)."""
        if self.quantize is None:
            return self.array(name, array), "0", "f32"
        rows = array.reshape(-1, array.shape[-1])
        return self._quantized(name, rows)

    def depthwise_kernel(self, name: str, array: Array) -> tuple[str, str, str]:
        """The same for a kernel whose last two axes are the output."""
        if self.quantize is None:
            return self.array(name, array), "0", "f32"
        return self._quantized(name, array.reshape(-1, array.shape[-2] * array.shape[-1]))

    def _quantized(self, name: str, rows: Array) -> tuple[str, str, str]:
        scale = np.maximum(np.abs(rows).max(axis=0), 1e-30).astype(np.float32) / np.float32(127)
        whole = np.clip(np.round(rows / scale), -127, 127).astype(np.int8)
        self.stored += whole.size
        identifier = self._write(name, "int8_t", [str(v) for v in whole.ravel()])
        return identifier, self.array(f"{name}_scale", scale), "i8"

    def _write(self, name: str, c_type: str, words: list[str]) -> str:
        base = identifier = "w_" + re.sub(r"[^0-9A-Za-z_]", "_", name)
        number = 1
        while identifier in self._names:
            number += 1
            identifier = f"{base}_{number}"
        self._names.add(identifier)
        lines, line = [], "   "
        for word in words:
            if len(line) + len(word) > 96:
                lines.append(line)
                line = "   "
            line += f" {word},"
        body = "\n".join([*lines, line])
        self.data.append(f"static const {c_type} {identifier}[{len(words)}] = {{\n{body}\n}};\n")
        return identifier


def literal(value: Any) -> str:
    """A number as a C float constant that reads back to the same float32."""
    text = str(np.float32(value))
    return f"{text}f" if any(c in text for c in ".e") else f"{text}.0f"
