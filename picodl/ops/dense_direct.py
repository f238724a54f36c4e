"""The products of small dense layers by the compiled kernels: few calls for all that happens."""

from __future__ import annotations

from typing import Any

import numpy as np

from picodl import compiled
from picodl.ops.activation import Pair
from picodl.ops.activation_gelu import gelu_pair
from picodl.typing import Array

_MOST = 1 << 22  # multiplications; larger products are for a BLAS, which keeps to the cache
_FEW = 8  # rows from which on the kernels pay


def forward(rows: Array, w: Array, b: Array | None, function: Pair) -> tuple[Array, Any] | None:
    """What function.forward gives for rows @ w + b; None if the kernels do not take the arrays.

    Args:
        rows: (n, k).
        w: (k, m).
        b: (m,), or None.
        function: the activation.
    """
    if not _serves(rows, w):
        return None
    (n, k), m = rows.shape, w.shape[1]
    z = np.empty((n, m), np.float32)
    if function is gelu_pair:
        s, y = np.empty_like(z), np.empty_like(z)
        if compiled.run("dense_gelu", rows, w, b, z, s, y, n, k, m):
            return y, (z, s)
    elif compiled.run("dense", rows, w, b, z, n, k, m):
        return function.forward(z)
    return None


def back(
    rows: Array, w: Array, g: Array, function: Pair, saved: Any, need_x: bool
) -> tuple[Any, Array, Array] | None:
    """The gradients of rows (None if not needed), w and b; None if the kernels do not take them.

    Args:
        rows, w, function: as above.
        g: the gradient of what `forward` gave.
        saved: what it gave besides.
    """
    (n, k), m = rows.shape, w.shape[1]
    if not _serves(rows, w) or (need_x and k % compiled.kernels.vector):
        return None
    dw = np.zeros((k + 1, m), np.float32)
    dx = turned = None
    if need_x:
        dx, turned = np.empty((n, k), np.float32), np.empty((m, k), np.float32)
    if function is gelu_pair:
        h = np.empty((n, m), np.float32)
        run = compiled.run("dense_gelu_back", rows, w, g, *saved, h, dw, dx, turned, n, k, m)
    else:
        h = function.backward(g, saved)
        run = compiled.run("dense_back", rows, w, h, dw, dx, turned, n, k, m)
    return (dx, dw[:k], dw[k]) if run else None


def _serves(rows: Array, w: Array) -> bool:
    kernels = compiled.kernels
    return (
        kernels is not None
        and w.shape[1] % kernels.vector == 0
        and len(rows) >= _FEW
        and 0 < rows.size * w.shape[1] <= _MOST
    )
