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

_PART = 1 << 19  # elements of dz whose products are summed at once: they stay in the cache


def _can_serve(layer: Recurrence) -> bool:
    dropout = layer.dropout is not None or layer.recurrent_dropout is not None
    return compiled.kernels is not None and layer.dtype == np.float32 and not dropout


def _serves(layer: Any, samples: int) -> bool:
    """Whether the kernels take a block of so many samples."""
    return (
        layer.is_direct and compiled.kernels is not None and samples % compiled.kernels.vector == 0
    )


class DirectLSTM(LongShortTerm):
    """LongShortTerm whose loops are compiled where that is possible."""

    def prepare(self) -> None:
        self.is_direct = _can_serve(self)
        if self.is_direct:  # stacked and ordered at once, with the fewest copies
            u, k = self.units, self.units + 1 + len(self.kernel)
            self.spaced = _room(k, 4 * u, self.dtype)
            matrix = self.spaced[:, : 4 * u]
            gates = matrix.reshape(k, 4, u)
            for first, part in ((0, self.recurrent), (u, self.bias), (u + 1, self.kernel)):
                if part is not None:
                    part = part.reshape(-1, 4, u)
                    gates[first : first + len(part)] = part[:, self.order]
            self.turned = _turned(matrix)

    def _prepare_for_numpy(self) -> None:
        if not hasattr(self, "weights"):
            super().prepare()

    def loop(self, hx: Array, first: list[Array], rows: slice) -> tuple[Any, list[Array]]:
        u, b, steps = self.units, hx.shape[2], len(hx) - 1
        if not _serves(self, b):
            self._prepare_for_numpy()
            return super().loop(hx, first, rows)
        z = np.empty((steps, 4 * u, b), self.dtype)
        c = np.empty((steps + 1, u, b), self.dtype)
        c[0] = first[1]
        tanh_c = np.empty((steps, u, b), self.dtype)
        arrays = (self.turned, hx, z, c, tanh_c, _stale(self, rows))
        compiled.call("lstm_forward", *arrays, steps, u, hx.shape[1], b)
        return (z, c, tanh_c), [hx[-1, :u], c[-1]]

    def loop_back(
        self, kept: Any, hx: Array, g: Any, d: list[Array], rows: slice, need_x: bool
    ) -> tuple[list[Array], Any, tuple[Array, ...]]:
        z, c, tanh_c = kept
        steps, _, b = z.shape
        if not _serves(self, b):
            self._prepare_for_numpy()
            return super().loop_back(kept, hx, g, d, rows, need_x)
        u, k, vector = self.units, hx.shape[1], compiled.kernels.vector
        back = StepsBack(self.spaced, u, hx.shape, None, need_x)
        dz, sums = np.empty(z.shape, self.dtype), np.zeros((4 * u, vector), self.dtype)
        arrays = (self.spaced, z, c, tanh_c, _stale(self, rows), _steps_first(g), *d, dz, sums)
        numbers = (steps, u, b, *back.weights.shape, self.tiny)
        compiled.call("lstm_backward", *arrays, back.all, *numbers)
        total = np.zeros((4 * u, k), self.dtype)
        total[:, u] = sums.sum(axis=1)
        for some in (slice(u), slice(u + 1, k)):
            _add_products(hx[:-1, some], dz, total[:, some])
        return d, back.dx, (total.T,)


class DirectGRU(GatedUnit):
    """GatedUnit whose loops are compiled where that is possible."""

    def prepare(self) -> None:
        super().prepare()
        self.is_direct = self.reset_after and _can_serve(self)
        if self.is_direct:
            self.turned = _turned(self.of_x), _turned(self.of_h)
            self.spaced = _room(self.units, 3 * self.units, self.dtype)
            self.spaced[:, : 3 * self.units] = self.of_h[: self.units]

    def loop(self, hx: Array, first: list[Array], rows: slice) -> tuple[Any, list[Array]]:
        u, b, steps = self.units, hx.shape[2], len(hx) - 1
        if not _serves(self, b):
            return super().loop(hx, first, rows)
        z = np.empty((steps, 3 * u, b), self.dtype)
        side = np.empty((steps, u, b), self.dtype)
        arrays = (*self.turned, hx, z, side, np.empty((3 * u, b), self.dtype), _stale(self, rows))
        compiled.call("gru_forward", *arrays, steps, u, hx.shape[1], b)
        return (z, side), [hx[-1, :u]]

    def _back_after(
        self, z: Array, side: Array, hx: Array, g: Any, dh: Array, rows: slice, need_x: bool
    ) -> tuple[list[Array], Any, tuple[Array, ...]]:
        u = self.units
        steps, _, b = z.shape
        if not _serves(self, b):
            return super()._back_after(z, side, hx, g, dh, rows, need_x)
        d = np.empty((steps, 4 * u, b), self.dtype)
        arrays = (self.spaced, z, side, hx, _stale(self, rows), _steps_first(g), dh, d)
        numbers = (steps, u, hx.shape[1], b, self.spaced.shape[1], self.tiny)
        compiled.call("gru_backward", *arrays, np.empty_like(dh), *numbers)
        dx, of_x = self._inputs_back(d[:, : 3 * u], hx, rows, need_x)
        return [dh], dx, (of_x, weight_product(hx[:-1, : u + 1], d[:, u:], None))


def direct_weight_product(inputs: Array, dz: Array) -> Array:
    """`weight_product` by the kernel of convolutions."""
    total = np.zeros((dz.shape[1], inputs.shape[1]), dz.dtype)
    _add_products(inputs, dz, total)
    return total.T


def _add_products(inputs: Array, dz: Array, total: Array) -> None:
    """total += the sum of dz[t] @ inputs[t].T over t: a step's samples are one run of its sums.

    Args: total: (rows of dz, rows of inputs), neighbouring columns next to each other.
    """
    steps, k, b = inputs.shape
    kernels, address, wide = compiled.kernels, compiled.address, dz.shape[1]
    if inputs.strides[1:] != (4 * b, 4):
        inputs = np.ascontiguousarray(inputs)
    panels = np.empty((-(-k // kernels.vector), steps, b, kernels.vector), dz.dtype)
    kernels.pack_steps(address(inputs), inputs.strides[0] // 4, address(panels), steps, k, b)
    for part in blocks_of(steps, max(1, _PART // max(1, wide * b))):
        count = part.stop - part.start
        way = walk((1, wide), (0, 4 * b), (0, total.strides[0]), (count,), dz.strides[:1], b)
        kernels.convolve(
            *(byref(way), address(dz[part]), None, address(panels[0, part]), kernels.vector),
            *(steps * b * kernels.vector, None, address(total), k, MORE),
        )


def _stale(layer: Recurrence, rows: slice) -> Any:
    """The address of the samples to hold back, (T, b), or None."""
    if layer.stale is None:
        return None
    return compiled.address(np.ascontiguousarray(layer.stale[rows].T))


def _turned(x: Array) -> Array:
    """A matrix, whose rows need not follow each other, with its axes exchanged."""
    out = np.empty(x.shape[::-1], x.dtype)
    step = x.strides[0] // 4
    compiled.call("transpose", compiled.address(x), step, out, x.shape[0], *x.shape)
    return out


def _room(rows: int, columns: int, dtype: Any) -> Array:
    """Zeros in longer rows: a power of 2 would bring many of them to one place of the cache."""
    return np.zeros((rows, columns + 16), dtype)


def _steps_first(g: Any) -> Any:
    """Gradients of the outputs, (b, T, u), as (T, u, b)."""
    return None if g is None else np.ascontiguousarray(g.transpose(1, 2, 0))
