"""The products of dense layers by the compiled kernels: few calls for all that happens."""

from __future__ import annotations

from typing import Any

import numpy as np

from picodl import compiled
from picodl.compiled.walk import RELU
from picodl.ops.activation import Pair, relu_pair, works_in_place
from picodl.ops.activation_gelu import gelu_pair
from picodl.parallel import map_blocks, shares_of
from picodl.typing import Array

_MOST = 1 << 20  # weights; larger matrices are for a BLAS, which keeps to the cache
_FEW = 8  # rows from which on the kernels pay
_LEAST = 1 << 19  # multiplications from which on they do without an activation's passes to save


def forward(
    rows: Array, w: Array, b: Array | None, function: Pair, out: Array | None = None
) -> tuple[Array, Any] | None:
    """What function.forward gives for rows @ w + b; None if the kernels do not take the arrays.

    Args:
        rows: (n, k).
        w: (k, m).
        b: (m,), or None.
        function: the activation.
        out: where the values go if that saves a copy, C-contiguous.
    """
    (n, k), m = rows.shape, w.shape[1]
    if not serves(rows, w, function) or (b is not None and b.shape != (m,)):
        return None
    if function is gelu_pair:
        z, s = np.empty((n, m), np.float32), np.empty((n, m), np.float32)
        y = np.empty_like(z) if out is None else out
        if compiled.run("dense_gelu", rows, w, b, z, s, y, n, k, m):
            return y, (z, s)
        return None
    z = np.empty((n, m), np.float32) if out is None or not works_in_place(function) else out
    relu = function is relu_pair
    if not compiled.run("dense", rows, w, b, z, n, k, m, RELU if relu else 0):
        return None
    return (z, z) if relu else function.forward(z)


def back(
    rows: Array, w: Array, g: Array, function: Pair, saved: Any, need_x: bool, out: Any = None
) -> tuple[Any, Array, Array] | None:
    """The gradients of rows (None if not needed), w and b; None if the kernels do not take them.

    Args:
        rows, w, function: as above.
        g: the gradient of what `forward` gave.
        saved: what it gave besides.
        out: where the gradient of rows goes, C-contiguous; None for a new array.
    """
    (n, k), m = rows.shape, w.shape[1]
    if (
        not serves(rows, w, function)
        or g.shape != (n, m)
        or (need_x and k % compiled.kernels.vector)
    ):
        return None
    dw = np.empty((k + 1, m), np.float32)
    dx = turned = None
    if need_x:
        dx = np.empty((n, k), np.float32) if out is None else out
        turned = np.empty((m, k), np.float32)
    if function is gelu_pair:
        h = np.empty((n, m), np.float32)
        run = compiled.run("dense_gelu_back", rows, w, g, *saved, h, dw, dx, turned, n, k, m)
    else:
        h = function.backward(g, saved)
        run = compiled.run("dense_back", rows, w, h, dw, dx, turned, n, k, m, 0, k)
    return (dx, dw[:k], dw[k]) if run else None


def spreads(rows: Array, w: Array, b: Array | None, function: Pair) -> bool:
    """Whether `affine` takes such arrays."""
    return (
        serves(rows, w, function)
        and len(rows) >= 2 * _FEW
        and w.shape[0] % compiled.kernels.vector == 0
        and (b is None or (b.dtype == np.float32 and b.shape == w.shape[1:]))
        and all(a.dtype == np.float32 and a.flags.c_contiguous for a in (rows, w))
    )


def affine(
    rows: Array, w: Array, b: Array | None, function: Pair, work: float
) -> tuple[Array, Any]:
    """`picodl.ops.linear.affine` on threads: the rows forward, the weights' rows on the way back.

    Args: work: microseconds that the product takes on one thread.
    """
    (n, k), m = rows.shape, w.shape[1]
    vector = compiled.kernels.vector
    blocks = shares_of(n, max(2, min(8, n // 64)))
    y = np.empty((n, m), np.float32)

    def forwards(s: slice) -> Any:
        out = y[s]
        found = forward(rows[s], w, b, function, out)
        if found is None:
            raise RuntimeError("The compiled kernels were switched off in the middle of an op.")
        value, saved = found
        if value is not out:
            out[...] = value
        return saved

    kept = map_blocks(forwards, blocks, work)

    def back(g: Array, need_x: bool, need_w: bool) -> tuple[Any, Any, Any]:
        h = np.empty((n, m), np.float32)

        def slopes(place: int) -> None:
            h[blocks[place]] = function.backward(g[blocks[place]], kept[place])

        map_blocks(slopes, range(len(blocks)), n * m * 1e-3)
        if compiled.kernels is None:  # switched off since
            return h.dot(w.T), rows.T.dot(h), h.sum(axis=0)
        dw = np.empty((k + 1, m), np.float32) if need_w or b is not None else None
        dx = np.empty((n, k), np.float32) if need_x else None

        def part(s: slice) -> None:
            first, stop = vector * s.start, vector * s.stop
            room = np.empty(m * (stop - first), np.float32)
            compiled.call("dense_back", rows, w, h, dw, dx, room, n, k, m, first, stop)

        map_blocks(part, shares_of(k // vector, 4), 2 * work)
        return dx, None if dw is None else dw[:k], None if dw is None or b is None else dw[k]

    return y, back


def serves(rows: Array, w: Array, function: Pair) -> bool:
    """Whether the kernels take arrays of these shapes, and gain by it."""
    kernels = compiled.kernels
    return (
        kernels is not None
        and rows.shape[1] == w.shape[0]
        and w.shape[1] % kernels.vector == 0
        and len(rows) >= _FEW
        and 0 < w.size <= _MOST
        and (function is gelu_pair or len(rows) * w.size >= _LEAST)
    )
