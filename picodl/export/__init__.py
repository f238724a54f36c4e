"""Models for other runtimes: C99 source for microcontrollers, ONNX for everything else."""

from __future__ import annotations

import os
from typing import Any

__all__ = ["export_model"]


def export_model(
    model: Any, filepath: str | os.PathLike[str], format: str | None = None, **options: Any
) -> dict[str, int]:
    """Write a model as C99 source (.c, with a header beside it) or ONNX (.onnx).

    Args:
        model: a model made from Input symbols, every size known but the batch.
        filepath: where to; the ending tells the format.
        format: "c" or "onnx", if the ending does not tell.
        options: for C `quantize="int8"` and `examples=x`, see `c_source.write_c`.

    Returns:
        Sizes in bytes.

    Raises:
        ValueError: for another format, or for something that cannot be exported, by its name.
        ImportError: for ONNX without the extra "onnx".
    """
    kind = format or os.path.splitext(os.fspath(filepath))[1].removeprefix(".").lower()
    if kind == "c":
        from picodl.export.c_source import write_c

        return write_c(model, filepath, **options)
    if kind == "onnx":
        from picodl.export.onnx_graph import write_onnx

        return write_onnx(model, filepath, **options)
    raise ValueError(
        f'export writes "c" or "onnx"; received format {kind!r} for {os.fspath(filepath)!r}. Name '
        "the file net.c or net.onnx, or pass format=."
    )
