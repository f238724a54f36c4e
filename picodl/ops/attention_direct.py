"""Attention by the compiled kernels: scores, softmax and values of some heads in one call."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from picodl import compiled
from picodl.compiled import address
from picodl.parallel import map_blocks, shares_of
from picodl.typing import Array

_FLOPS_PER_US = 6e4
_AT_ONCE = 1 << 15  # scores
_pointer, _integer = ctypes.c_void_p, ctypes.c_int64


class _Arrays(ctypes.Structure):
    """The structure Attention of attention.c."""

    _fields_ = [
        *((name, _pointer) for name in ("query", "key", "value", "mask")),
        *((name, _pointer) for name in ("p", "inverse", "y", "dead", "keep")),
        *((name, 3 * _integer) for name in ("query_at", "key_at", "value_at")),
        ("mask_at", 4 * _integer),
        *((name, _integer) for name in ("heads", "shared", "steps", "keys", "size", "wide")),
        *((name, _integer) for name in ("zero_masked", "at_once")),
        *((name, ctypes.c_float) for name in ("scale", "factor")),
    ]


def serves(query: Array, key: Array, value: Array) -> bool:
    """Whether the kernels take such arrays, (batch, steps, heads, size)."""
    kernels = compiled.kernels
    return (
        kernels is not None
        and all(a.dtype == np.float32 and a.size > 0 for a in (query, key, value))
        and query.shape[3] % kernels.vector == 0
        and value.shape[3] % kernels.vector == 0
    )


class DirectAttention:
    """What `_Attention` does, without a bias.

    Args:
        query, key, value: as for `dot_product_attention`.
        mask: (batch, heads, T, S) or what broadcasts to it, four axes of booleans; or None.
        scale: of the scores.
        keep: what dropout leaves, (batch, heads, T, S) booleans, or None.
        probability: of being left.
        zero_masked: a query that may look at no key gives 0 instead of the mean of the values.
        keeps: whether the softmax is kept for the way back; else it is computed again.
    """

    def __init__(
        self, query: Array, key: Array, value: Array, mask: Any, scale: float, keep: Any,
        probability: float, zero_masked: bool, keeps: bool,
    ) -> None:  # fmt: skip
        self.library = compiled.kernels
        query, key, value = (_in_rows(a) for a in (query, key, value))
        batch, steps, heads, size = query.shape
        keys, shared, wide = value.shape[1:]
        full = (batch, heads, steps, keys)
        masked = None if mask is None else np.broadcast_to(mask, full)
        self.y = np.empty((batch, heads, steps, wide), np.float32)
        inverse = np.empty(full[:3], np.float32)
        p = np.empty(full, np.float32) if keeps else None
        dead = None if mask is None else np.empty(full[:3], bool)
        left = None if keep is None else np.ascontiguousarray(np.broadcast_to(keep, full), bool)
        self.kept = (query, key, value, masked, p, inverse, self.y, dead, left)
        some = min(steps, _AT_ONCE // keys + 1)
        self.arrays = _Arrays(
            *(None if a is None else a.__array_interface__["data"][0] for a in self.kept),
            *((3 * _integer)(*(step // 4 for step in a.strides[:3])) for a in (query, key, value)),
            (4 * _integer)(*(() if masked is None else masked.strides)),
            *(heads, shared, steps, keys, size, wide, zero_masked, some),
            *(scale, 1 / probability),
        )
        long_row = -(-keys // self.library.vector) * self.library.vector
        self.room = size * long_row + 2 * some * keys
        self.room_back = (size + wide) * (long_row + keys) + some * (3 * keys + wide)
        self.work = 2 * batch * heads * steps * keys * (size + wide + 20) / _FLOPS_PER_US

    def run(self) -> Array:
        """The output (batch, T, heads, v)."""
        batch, heads, steps, wide = self.y.shape
        out = np.empty((batch, steps, heads, wide), np.float32)

        def forward(pairs: slice) -> None:
            room = np.empty(self.room, np.float32)
            self.library.attention_forward(
                *(ctypes.byref(self.arrays), address(out), address(room)),
                *(pairs.start, pairs.stop),
            )

        map_blocks(forward, shares_of(batch * heads, 4), self.work)
        return out

    def back(self, g: Array, need_bias: bool = False) -> tuple[Array, Array, Array]:
        """Gradients of query, key and value; there is no bias."""
        g = np.ascontiguousarray(g, np.float32)
        query, key, value = self.kept[:3]
        d = [np.empty(a.shape, np.float32) for a in (query, key, value)]
        arrays = [address(a) for a in (g, *d)]

        def backward(pairs: slice) -> None:
            room = np.empty(self.room_back, np.float32)
            self.library.attention_backward(
                *(ctypes.byref(self.arrays), *arrays, address(room)), *(pairs.start, pairs.stop)
            )

        map_blocks(backward, shares_of(key.shape[0] * key.shape[2], 4), 2 * self.work)
        dquery, dkey, dvalue = d
        return dquery, dkey, dvalue


def _in_rows(x: Array) -> Array:
    """The array, or a copy if the elements of a head are not next to each other."""
    in_floats = x.strides[3] == 4 and not any(step % 4 for step in x.strides)
    return x if in_floats else x.copy()
