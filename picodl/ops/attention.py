"""Scaled dot-product attention: scores, softmax and their gradient in one op."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np

from picodl import compiled
from picodl.config import thread
from picodl.ops import attention_direct
from picodl.ops.activation import fastest_power, softmax
from picodl.ops.core import Array, op
from picodl.ops.functions import tanh
from picodl.ops.indexing import where
from picodl.ops.linear import matmul
from picodl.ops.shape import repeat, transpose
from picodl.parallel import blocks_of, map_blocks
from picodl.tensor import Tensor, record

_KEEP = 1 << 20  # scores of more elements than this are computed again on the way back
_BLOCK = 1 << 18  # scores at once: numpy calls had better be few and long
_POWER, _LOG_E = fastest_power()
_SAFE = 40.0  # exp of scores up to this size neither overflows nor loses a whole row


def dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    mask: Any = None,
    scale: float | None = None,
    is_causal: bool = False,
    flash_attention: bool | None = None,
    attn_logits_soft_cap: float | None = None,
) -> Any:
    """y = softmax(scale * query @ key^T + bias) @ value, for each head.

    Args:
        query, key, value: with the heads on axis 2; key and value may have fewer heads, each of
            which then serves several of the query's.
        bias: added to the scores.
        mask: boolean; False where a query must not look at a key. A query that may look at none
            gives the mean of the values.
        scale: Defaults to 1 / sqrt(size of a head).
        is_causal: a query looks at keys up to its own place only.
        flash_attention: accepted; there is one way of computing it.
        attn_logits_soft_cap: c: scores become c * tanh(scores / c).

    Shapes: query (batch, T, heads, h), key (batch, S, heads, h), value (batch, S, heads, v), bias
        and mask broadcast to (batch, heads, T, S) -> (batch, T, heads, v).

    Raises:
        ValueError: if a shape does not fit.

    Gradient: with p the softmax, dvalue = p^T @ g, ds = p * (g @ value^T - sum(g * y)),
    dquery = scale * ds @ key, dkey = scale * ds^T @ query, dbias = ds.

    Reference: Vaswani et al., 2017, "Attention Is All You Need", arXiv:1706.03762.
    """
    if is_causal:
        causal = causal_mask(query.shape[1], key.shape[1])
        mask = causal if mask is None else np.logical_and(np.asarray(mask), causal)
    return attention(query, key, value, bias, mask, scale, attn_logits_soft_cap)


def causal_mask(queries: int, keys: int) -> Array:
    """(queries, keys): True where a query may look: at keys up to its own place."""
    return np.tri(queries, keys, dtype=bool)


@op
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None = None,
    mask: Array | None = None,
    scale: float | None = None,
    soft_cap: float | None = None,
    keep: Array | None = None,
    keep_probability: float = 1.0,
    zero_masked: bool = False,
) -> Tensor:
    """See `dot_product_attention`.

    Args:
        keep: dropout of the scores, (batch, heads, T, S) booleans, kept with `keep_probability`.
        zero_masked: a query that may look at no key gives 0 instead of the mean of the values.
    """
    check_attention(query.shape, key.shape, value.shape)
    if scale is None:
        scale = 1 / query.shape[3] ** 0.5
    mask = _four_axes(mask, query.shape, key.shape)
    inputs = (query, key, value) if bias is None else (query, key, value, bias)

    def composed(query: Any, key: Any, value: Any, bias: Any = None) -> Any:
        factor = None if keep is None else keep / np.asarray(keep_probability, query.dtype)
        return attention_scores(
            query, key, value, bias, mask, scale, soft_cap, factor, zero_masked
        )[0]

    if soft_cap is not None:
        return composed(*inputs)
    arrays = (query.data, key.data, value.data)
    if bias is None and attention_direct.serves(*arrays):
        size = math.prod(query.shape[:3]) * key.shape[1]
        keeps = thread.recording and size <= _KEEP
        work: Any = attention_direct.DirectAttention(
            *arrays, mask, scale, keep, keep_probability, zero_masked, keeps
        )
    else:
        work = _Attention(
            *arrays, None if bias is None else bias.data, mask, scale, keep, keep_probability,
            zero_masked,
        )  # fmt: skip

    def backward(g: Any) -> Any:
        return work.back(g, bias is not None and bias.requires_grad)[: len(inputs)]

    return record(work.run(), inputs, backward, composed)


def check_attention(query: Any, key: Any, value: Any) -> None:
    """Compare the shapes of query, key and value.

    Raises:
        ValueError: naming all three if they do not belong together.
    """
    fits = (
        len(query) == len(key) == len(value) == 4
        and query[0] == key[0] == value[0]
        and key[1:3] == value[1:3]
        and query[3] == key[3]
        and key[2] > 0
        and query[2] % key[2] == 0
    )
    if not fits:
        raise ValueError(
            "Attention expects query (batch, T, heads, h), key (batch, S, heads, h) and value "
            f"(batch, S, heads, v), but received {tuple(query)}, {tuple(key)} and {tuple(value)}. "
            "Keys and values must have the same length; queries' heads a multiple of theirs."
        )


def _four_axes(mask: Any, query: Any, key: Any) -> Any:
    """The mask as booleans that broadcast to (batch, heads, T, S), with four axes."""
    if mask is None:
        return None
    mask = np.asarray(mask)
    mask = mask if mask.dtype == bool else mask.astype(bool)
    full = (query[0], query[2], query[1], key[1])
    if mask.ndim > 4 or any(
        m not in (1, n) for m, n in zip(mask.shape[::-1], full[::-1], strict=False)
    ):
        raise ValueError(
            f"Expected an attention mask that broadcasts to (batch, heads, T, S) = {full}; "
            f"received shape {mask.shape}."
        )
    return mask.reshape((1,) * (4 - mask.ndim) + mask.shape)


# some samples, some heads of key and value, and the heads of the query that share these
Block: TypeAlias = tuple[slice, tuple[slice, slice, slice], tuple[slice, slice, slice]]


class _Attention:
    """The arrays of one attention, in blocks of the batch.

    Inside, scores are (b, kv heads, group * T, S), where a group is the query heads that share a
    head of key and value. p is exp(scores), not yet divided by its row sums: the smaller output is.
    """

    def __init__(
        self, query: Array, key: Array, value: Array, bias: Any, mask: Any, scale: float,
        keep: Any, probability: float, zero_masked: bool,
    ) -> None:  # fmt: skip
        self.query, self.key, self.value = query, key, value
        self.bias = None if bias is None else bias.reshape((1,) * (4 - bias.ndim) + bias.shape)
        self.mask, self.keep = mask, keep
        self.scale, self.probability, self.zero_masked = scale, probability, zero_masked
        batch, steps, heads, _ = query.shape
        _, keys, shared, wide = value.shape
        group = heads // max(1, shared)
        self.shape = (group, steps, keys)
        size = max(1, heads * steps * keys)
        # scores of about 256k elements a block: some samples, or some heads of one sample
        samples = max(1, min(-(-batch // 2), _BLOCK // size))
        most = max(1, _BLOCK // max(1, group * steps * keys))
        some = shared if samples > 1 else min(-(-shared // 2) if batch == 1 else shared, most)
        self.blocks = [
            (rows, _heads(part, 1), _heads(part, group))
            for rows in blocks_of(batch, samples)
            for part in blocks_of(shared, some)
        ]
        self.work = batch * size * (query.shape[3] + wide + 40) / 4e4
        self.keeps = batch * size <= _KEEP
        self.saved: list[Any] = []

    def run(self) -> Array:
        """The output (batch, T, heads, v)."""
        batch, steps, heads, _ = self.query.shape
        out = np.empty((batch, steps, heads, self.value.shape[3]), self.query.dtype)

        def forward(block: Block) -> Any:
            rows, shared, own = block
            p, inverse, dead = self._scores(block)
            y = np.matmul(self._dropped(p, block), self.value[rows][shared].transpose(0, 2, 1, 3))
            y *= inverse
            out[rows][own] = self._outward(y)
            return (p if self.keeps else None, inverse, dead, y)

        self.saved = map_blocks(forward, self.blocks, self.work)
        return out

    def back(self, g: Array, need_bias: bool) -> tuple[Any, ...]:
        """Gradients of query, key, value and bias."""
        batch, steps, heads, _ = self.query.shape
        keys = self.key.shape[1]
        dquery, dkey, dvalue = (
            np.empty(a.shape, g.dtype) for a in (self.query, self.key, self.value)
        )
        dbias = np.empty((batch, heads, steps, keys), g.dtype) if need_bias else None

        def backward(place: int) -> None:
            rows, shared, own = block = self.blocks[place]
            key, value = self.key[rows][shared], self.value[rows][shared]
            p, inverse, dead, y = self.saved[place]
            if p is None:
                p, inverse, dead = self._scores(block)
            h = self._inward(g[rows][own])
            h *= inverse
            ds = np.matmul(h, value.transpose(0, 2, 3, 1))
            if self.keep is not None:
                ds *= self._keep_factor(block)
            rows_of_p, sizes = math.prod(p.shape[:-1]), (p.shape[-1], h.shape[-1])
            plain = self.keep is None and dead is None and dbias is None
            done = plain and compiled.run(
                "softmax_back", ds, p, h, y, rows_of_p, *sizes, float(self.scale)
            )
            if not done:
                ds -= np.einsum("...i,...i", h, y)[..., None]
                ds *= p
            if dead is not None:
                ds[dead] = 0
            turned = self._dropped(p, block).transpose(0, 1, 3, 2)
            dvalue[rows][shared] = np.matmul(turned, h).transpose(0, 2, 1, 3)
            if dbias is not None:
                part = dbias[rows, own[2]]
                part[...] = ds.reshape(part.shape)
            if not done:
                ds *= self.scale
            dquery[rows][own] = self._outward(np.matmul(ds, key.transpose(0, 2, 1, 3)))
            query = self._inward(self.query[rows][own])
            dkey[rows][shared] = np.matmul(ds.transpose(0, 1, 3, 2), query).transpose(0, 2, 1, 3)

        map_blocks(backward, range(len(self.blocks)), 2 * self.work)
        return dquery, dkey, dvalue, dbias

    def _scores(self, block: Block) -> tuple[Array, Array, Any]:
        """exp of the scores, 1 / its row sums, and which rows may look at nothing (or None)."""
        rows, shared, own = block
        query, key = self._inward(self.query[rows][own]), self.key[rows][shared]
        binary = self.bias is None and compiled.kernels is None
        power, unit = (_POWER, _LOG_E) if binary else (np.exp, 1.0)
        query *= np.asarray(self.scale * unit, query.dtype)
        s = np.matmul(query, key.transpose(0, 2, 3, 1))
        parts = s.reshape(*s.shape[:2], *self.shape)
        small = self.bias is None and _longest(query) * _longest(key) <= _SAFE * unit
        if self.bias is not None:
            parts += self._for_block(self.bias, block)
        hidden = None if self.mask is None else ~self._for_block(self.mask, block)
        if not small:  # else no score can be large: by Cauchy and Schwarz, q @ k <= |q| |k|
            if hidden is not None:
                np.copyto(parts, -np.inf, where=hidden)
            top = s.max(axis=-1, keepdims=True, initial=np.finfo(s.dtype).min)
            s -= top
        elif hidden is None:
            inverse = np.empty((*s.shape[:-1], 1), s.dtype)
            if compiled.run("exp_rows", s, inverse, inverse.size, s.shape[-1]):
                return s, inverse, None
        power(s, out=s)
        if hidden is not None and small:
            np.copyto(parts, 0, where=hidden)
        ones = np.ones(s.shape[-1], s.dtype)
        sums = s.reshape(-1, s.shape[-1]).dot(ones).reshape(*s.shape[:-1], 1)
        dead = None
        if hidden is not None:
            empty = sums[..., 0] == 0
            if empty.any():
                dead = empty
                s[dead] = 0 if self.zero_masked else 1
                sums[dead] = s.shape[-1]
        return s, 1 / sums, dead

    def _inward(self, x: Array) -> Array:
        """(b, T, heads, h) as (b, kv heads, group * T, h), in an array of its own."""
        group, steps, _ = self.shape
        b, _, heads, h = x.shape
        parts = x.reshape(b, steps, heads // group, group, h).transpose(0, 2, 3, 1, 4)
        return parts.copy().reshape(b, heads // group, group * steps, h)

    def _outward(self, y: Array) -> Array:
        """The reverse of `_inward`, a view where it can be."""
        group, steps, _ = self.shape
        b, shared, _, h = y.shape
        parts = y.reshape(b, shared, group, steps, h).transpose(0, 3, 1, 2, 4)
        return parts.reshape(b, steps, shared * group, h)

    def _for_block(self, a: Array, block: Block) -> Array:
        """What broadcasts to (batch, heads, T, S), for (b, kv heads, group, T, S)."""
        rows, _, (_, _, own) = block
        a = a if len(a) == 1 else a[rows]
        if a.shape[1] == 1:
            return a[:, :, None]
        a = a[:, own]
        group = self.shape[0]
        return a.reshape(a.shape[0], a.shape[1] // group, group, *a.shape[2:])

    def _keep_factor(self, block: Block) -> Array:
        rows, _, (_, _, own) = block
        group, steps, keys = self.shape
        part = self.keep[rows, own]
        part = part.reshape(part.shape[0], part.shape[1] // group, group * steps, keys)
        return part * np.asarray(1 / self.probability, self.query.dtype)

    def _dropped(self, p: Array, block: Block) -> Array:
        return p if self.keep is None else p * self._keep_factor(block)


def _heads(part: slice, group: int) -> tuple[slice, slice, slice]:
    """The index of some heads in (b, T, heads, h)."""
    return slice(None), slice(None), slice(part.start * group, part.stop * group)


def _longest(x: Array) -> float:
    """The largest Euclidean norm of the vectors along the last axis."""
    return float(np.sqrt(np.einsum("...i,...i", x, x).max(initial=0)))


def attention_scores(
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    mask: Any = None,
    scale: float = 1.0,
    soft_cap: float | None = None,
    factor: Any = None,
    zero_masked: bool = False,
) -> tuple[Any, Any]:
    """Attention out of small ops: the output and the scores (batch, heads, T, S) after the softmax.

    Args: as for `attention`; factor multiplies the scores after the softmax (dropout).
    """
    group = query.shape[2] // key.shape[2]
    if group > 1:
        key, value = repeat(key, group, axis=2), repeat(value, group, axis=2)
    s = matmul(transpose(query * scale, (0, 2, 1, 3)), transpose(key, (0, 2, 3, 1)))
    if soft_cap is not None:
        s = soft_cap * tanh(s / soft_cap)
    if bias is not None:
        s = s + bias
    if mask is not None:
        s = where(mask, s, np.asarray(np.finfo(s.dtype).min / 2, s.dtype))
    p = softmax(s, axis=-1)
    if mask is not None and zero_masked:
        p = p * mask
    dropped = p if factor is None else p * factor
    return transpose(matmul(dropped, transpose(value, (0, 2, 1, 3))), (0, 2, 1, 3)), p
