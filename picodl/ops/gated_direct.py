"""LSTM and GRU by the compiled kernels: all steps of a block in one call.

Blocks of whole vectors of samples without dropout are served; the rest stays with numpy. What is
kept between forward and backward is the same for both.
"""

from __future__ import annotations

from ctypes import byref
from typing import Any

import numpy as np

from picodl import compiled
from picodl.compiled.walk import MORE, walk
from picodl.ops.gated_recurrence import GatedUnit, LongShortTerm
from picodl.ops.recurrence import Recurrence, StepsBack, weight_product
from picodl.parallel import blocks_of
from picodl.typing import Array

_PART = 1 << 18  # elements of dz whose products are summed at once: they stay in the cache


def _serves(layer: Recurrence, samples: int) -> bool:
    if compiled.kernels is None or layer.dtype != np.float32:
        return False
    dropout = layer.dropout is not None or layer.recurrent_dropout is not None
    return not dropout and samples % compiled.kernels.vector == 0


class DirectLSTM(LongShortTerm):
    """LongShortTerm whose loops are compiled where that is possible."""

    def loop(self, hx: Array, first: list[Array], rows: slice) -> tuple[Any, list[Array]]:
        u, b, steps = self.units, hx.shape[2], len(hx) - 1
        if not _serves(self, b):
            return super().loop(hx, first, rows)
        weights = self._columns(self.weights, self.order).T.copy()
        z = np.empty((steps, 4 * u, b), self.dtype)
        c = np.empty((steps + 1, u, b), self.dtype)
        c[0] = first[1]
        tanh_c = np.empty((steps, u, b), self.dtype)
        arrays = (weights, hx, z, c, tanh_c, _stale(self, rows))
        compiled.call("lstm_forward", *arrays, steps, u, hx.shape[1], b)
        return (z, c, tanh_c), [hx[-1, :u], c[-1]]

    def loop_back(
        self, kept: Any, hx: Array, g: Any, d: list[Array], rows: slice, need_x: bool
    ) -> tuple[list[Array], Any, tuple[Array, ...]]:
        z, c, tanh_c = kept
        steps, _, b = z.shape
        if not _serves(self, b):
            return super().loop_back(kept, hx, g, d, rows, need_x)
        ordered = self._columns(self.weights, self.order)
        back = StepsBack(ordered, self.units, hx.shape, None, need_x)
        dz, weights = np.empty(z.shape, self.dtype), _spaced(back.weights)
        arrays = (weights, z, c, tanh_c, _stale(self, rows), _steps_first(g), *d, dz, back.all)
        compiled.call("lstm_backward", *arrays, steps, self.units, b, *weights.shape, self.tiny)
        return d, back.dx, (weight_product(hx[:-1], dz, None),)


class DirectGRU(GatedUnit):
    """GatedUnit whose loops are compiled where that is possible."""

    def loop(self, hx: Array, first: list[Array], rows: slice) -> tuple[Any, list[Array]]:
        u, b, steps = self.units, hx.shape[2], len(hx) - 1
        if not (self.reset_after and _serves(self, b)):
            return super().loop(hx, first, rows)
        z = np.empty((steps, 3 * u, b), self.dtype)
        side = np.empty((steps, u, b), self.dtype)
        weights = (self.of_x.T.copy(), self.of_h.T.copy())
        arrays = (*weights, hx, z, side, np.empty((3 * u, b), self.dtype), _stale(self, rows))
        compiled.call("gru_forward", *arrays, steps, u, hx.shape[1], b)
        return (z, side), [hx[-1, :u]]

    def _back_after(
        self, z: Array, side: Array, hx: Array, g: Any, dh: Array, rows: slice, need_x: bool
    ) -> tuple[list[Array], Any, tuple[Array, ...]]:
        u = self.units
        steps, _, b = z.shape
        if not _serves(self, b):
            return super()._back_after(z, side, hx, g, dh, rows, need_x)
        d, weights = np.empty((steps, 4 * u, b), self.dtype), _spaced(self.of_h[:u])
        arrays = (weights, z, side, hx, _stale(self, rows), _steps_first(g), dh, d)
        numbers = (steps, u, hx.shape[1], b, weights.shape[1], self.tiny)
        compiled.call("gru_backward", *arrays, np.empty_like(dh), *numbers)
        dx, of_x = self._inputs_back(d[:, : 3 * u], hx, rows, need_x)
        return [dh], dx, (of_x, weight_product(hx[:-1, : u + 1], d[:, u:], None))


def direct_weight_product(inputs: Array, dz: Array) -> Array:
    """`weight_product` by the kernel of convolutions: a step's samples are one run of its sums."""
    steps, k, b = inputs.shape
    kernels, address, wide = compiled.kernels, compiled.address, dz.shape[1]
    vector = kernels.vector
    whole = k - k % vector
    panels = np.zeros((-(-k // vector), steps, b, vector), dz.dtype)
    parts = inputs[:, :whole].reshape(steps, whole // vector, vector, b)
    panels[: whole // vector] = parts.transpose(1, 0, 3, 2)
    if whole < k:
        panels[-1, ..., : k - whole] = inputs[:, whole:].transpose(0, 2, 1)
    total = np.zeros((wide, k), dz.dtype)
    for part in blocks_of(steps, max(1, _PART // max(1, wide * b))):
        count = part.stop - part.start
        way = walk((1, wide), (0, 4 * b), (0, 4 * k), (count,), dz.strides[:1], b)
        kernels.convolve(
            *(byref(way), address(dz[part]), None, address(panels[0, part]), vector),
            *(steps * b * vector, None, address(total), k, MORE),
        )
    return total.T


def _stale(layer: Recurrence, rows: slice) -> Any:
    """The address of the samples to hold back, (T, b), or None."""
    if layer.stale is None:
        return None
    return compiled.address(np.ascontiguousarray(layer.stale[rows].T))


def _spaced(weights: Array) -> Array:
    """A copy with longer rows: a power of 2 would bring many of them to one place of the cache."""
    out = np.zeros((len(weights), weights.shape[1] + 16), weights.dtype)
    out[:, : weights.shape[1]] = weights
    return out


def _steps_first(g: Any) -> Any:
    """Gradients of the outputs, (b, T, u), as (T, u, b)."""
    return None if g is None else np.ascontiguousarray(g.transpose(1, 2, 0))
