"""Attention with heads: MultiHeadAttention and GroupQueryAttention."""

from __future__ import annotations

from typing import Any

import numpy as np

from picodl import ops
from picodl.config import thread
from picodl.layers.checks import positive_integer
from picodl.layers.head_attention import HeadAttention
from picodl.typing import Config, Shape


class MultiHeadAttention(HeadAttention):
    """y = sum over heads of softmax(q @ k^T / sqrt(key_dim)) @ v, projected back.

    q, k and v are projections of query, key and value, for each head its own.

    Args:
        num_heads: the number of heads.
        key_dim: the size of a head of query and key.
        value_dim: the size of a head of the values. Defaults to key_dim.
        dropout: fraction of the scores to drop in training.
        use_bias: whether the projections have biases.
        output_shape: the last sizes of the output. Defaults to the query's last axis.
        attention_axes: the axes attended over. Defaults to all but the first and the last.
        sliding_window: w: a query looks at keys less than w steps away.
        flash_attention: accepted; there is one way of computing it.
        kernel_initializer, bias_initializer, kernel_regularizer, bias_regularizer,
        activity_regularizer, kernel_constraint, bias_constraint: of the projections.
        use_gate: multiply the heads' outputs by sigmoid(query @ gate).
        seed: of the dropout.

    Call: (query, value, key=None, query_mask=None, value_mask=None, key_mask=None,
        attention_mask=None, return_attention_scores=False, training=False, use_causal_mask=False);
        key defaults to value. Masks are True where there is something to look at; those of the
        inputs are found by themselves (and the query's is always its own: query_mask is ignored).

    Weights: query, key, value (kernel (n, heads, size) and bias (heads, size) each),
        attention_output (kernel (heads, size, n), bias (n,)).
    Shapes: query (batch, T, n), value (batch, S, m) -> (batch, T, n); with
        return_attention_scores also (batch, heads, T, S). With other axes: (batch, others,
        heads, attended axes of the query, of the key).
    Reference: Vaswani et al., 2017, "Attention Is All You Need", arXiv:1706.03762.

    >>> x = np.ones((2, 5, 8))
    >>> MultiHeadAttention(num_heads=2, key_dim=4)(x, x, use_causal_mask=True).shape
    (2, 5, 8)
    """

    saved_names = {"gate_dense": "_gate_dense"}  # its name in Keras, and so in weight files

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        dropout: float = 0.0,
        use_bias: bool = True,
        output_shape: Any = None,
        attention_axes: Any = None,
        sliding_window: int | None = None,
        flash_attention: bool | None = None,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: Any = None,
        bias_constraint: Any = None,
        use_gate: bool = False,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        settings = {
            "kernel_initializer": kernel_initializer,
            "bias_initializer": bias_initializer,
            "kernel_regularizer": kernel_regularizer,
            "bias_regularizer": bias_regularizer,
            "activity_regularizer": activity_regularizer,
            "kernel_constraint": kernel_constraint,
            "bias_constraint": bias_constraint,
        }
        shapes = [kwargs.pop(f"{name}_shape", None) for name in ("query", "value", "key")]
        super().__init__(dropout, use_bias, sliding_window, use_gate, seed, settings, kwargs)
        self.num_heads = positive_integer(self, "num_heads", num_heads)
        self.key_dim = positive_integer(self, "key_dim", key_dim)
        value_dim = key_dim if value_dim is None else value_dim
        self.value_dim = positive_integer(self, "value_dim", value_dim)
        self.output_sizes = (
            None
            if output_shape is None
            else (output_shape,)
            if isinstance(output_shape, int)
            else tuple(output_shape)
        )
        axes = (attention_axes,) if isinstance(attention_axes, int) else attention_axes
        self.attention_axes = None if axes is None else tuple(axes)
        self.flash_attention = flash_attention
        if shapes[0] is not None and shapes[1] is not None:  # as files of older Keras have them
            self.build(*shapes)

    def build(self, query_shape: Shape, value_shape: Shape, key_shape: Any = None) -> None:
        key_shape = value_shape if key_shape is None else key_shape
        rank = len(query_shape)
        output = self.output_sizes or (query_shape[-1],)
        self.query_dense = self._projection("query", self.num_heads, self.key_dim, rank)
        self.query_dense.build(query_shape)
        self.key_dense = self._projection("key", self.num_heads, self.key_dim, rank)
        self.key_dense.build(key_shape)
        if self.use_gate:
            self.gate_dense = self._projection("gate", self.num_heads, self.value_dim, rank, True)
            self.gate_dense.build(query_shape)
        self.value_dense = self._projection("value", self.num_heads, self.value_dim, rank)
        self.value_dense.build(value_shape)
        self.output_dense = self._back_projection(output, rank)
        self.output_dense.build((*query_shape[:-1], self.num_heads, self.value_dim))

    def call(
        self,
        query: Any,
        value: Any,
        key: Any = None,
        query_mask: Any = None,
        value_mask: Any = None,
        key_mask: Any = None,
        attention_mask: Any = None,
        return_attention_scores: bool = False,
        training: bool = False,
        use_causal_mask: bool = False,
    ) -> Any:
        key = value if key is None else key
        query_mask = getattr(query, "mask", None)  # as in Keras, which takes no other
        self._check_lengths(query, value, key)
        q, k, v = self._projected(query, key, value)
        scale = 1 / self.key_dim**0.5
        if len(query.shape) == 3:
            q, k = self.placed(q, k)
            before = 0
            if thread.decoding is not None and use_causal_mask and value is query:
                k, v, value_mask, before = self._remembered(k, v, value_mask)
            mask = self._mask(
                query, value, query_mask, value_mask, key_mask, attention_mask, use_causal_mask,
                before,
            )  # fmt: skip
            y, scores = self._attend(q, k, v, mask, scale, return_attention_scores, training)
        else:
            masks = (query_mask, value_mask, key_mask)
            y, scores = self._attend_over_axes(
                q, k, v, masks, attention_mask, use_causal_mask, scale, training
            )
        if self.use_gate:
            y = y * self.gate_dense(query)
        y = self.output_dense(y)
        return (y, scores) if return_attention_scores else y

    def placed(self, query: Any, key: Any) -> tuple[Any, Any]:
        """The heads of query and key, to be changed by the places they stand at in a subclass."""
        return query, key

    def _attend_over_axes(
        self,
        q: Any,
        k: Any,
        v: Any,
        masks: tuple[Any, Any, Any],
        attention_mask: Any,
        causal: bool,
        scale: float,
        training: bool,
    ) -> tuple[Any, Any]:
        """Attention for inputs of any rank: the other axes join the batch."""
        rank = len(q.shape) - 1
        axes = self.attention_axes or tuple(range(1, rank - 1))
        axes = tuple(a % rank for a in axes)
        others = [a for a in range(rank - 1) if a not in axes]
        order = [*others, *axes, rank - 1, rank]

        def joined(x: Any) -> Any:
            x = ops.transpose(x, order[: len(x.shape)])
            outside, inside = x.shape[: len(others)], x.shape[len(others) : rank - 1]
            return ops.reshape(
                x, (int(np.prod(outside)), int(np.prod(inside)), *x.shape[rank - 1 :])
            )

        def spread(mask: Any, x: Any) -> Any:
            """A mask of the places, or of those along the only axis that is attended over."""
            places = tuple(x.shape[: rank - 1])
            if mask is None:
                return None
            mask = np.asarray(mask).astype(bool)
            if len(axes) == 1 and mask.shape == (places[0], places[axes[0]]):
                aligned = [n if a in (0, *axes) else 1 for a, n in enumerate(places)]
                mask = np.broadcast_to(mask.reshape(aligned), places)
            if mask.shape != places:
                raise ValueError(
                    f'MultiHeadAttention layer "{self.name}" expects masks of shape {places}, or '
                    f"(batch, T) with one attention axis, but received {mask.shape}."
                )
            return joined(mask)

        flat = [joined(x) for x in (q, k, v)]
        batch, queries, keys = flat[0].shape[0], flat[0].shape[1], flat[1].shape[1]
        if attention_mask is not None:
            mask = np.asarray(attention_mask).astype(bool)
            mask = mask.reshape(mask.shape[0], -1, queries, keys)
            mask = np.broadcast_to(mask, (q.shape[0], batch // q.shape[0], queries, keys))
            attention_mask = mask.reshape(batch, 1, queries, keys)
        of_query, of_value, of_key = (spread(m, x) for m, x in zip(masks, (q, v, k), strict=True))
        whole = self._mask(flat[0], flat[1], of_query, of_value, of_key, attention_mask, causal)
        # scores in any case: with them a query that may look at nothing gives 0, as in Keras
        y, scores = self._attend(flat[0], flat[1], flat[2], whole, scale, True, training)
        sizes = [q.shape[a] for a in order[: rank - 1]]
        y = ops.reshape(y, (*sizes, *y.shape[2:]))
        back = sorted(range(len(order)), key=order.__getitem__)
        attended = [x.shape[a] for x in (q, k) for a in axes]
        scores = ops.reshape(scores, (*sizes[: len(others)], self.num_heads, *attended))
        return ops.transpose(y, back), scores

    def compute_output_shape(
        self, query_shape: Shape, value_shape: Shape, key_shape: Any = None
    ) -> Shape:
        return (*query_shape[:-1], *(self.output_sizes or (query_shape[-1],)))

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
            "output_shape": self.output_sizes,
            "attention_axes": self.attention_axes,
            "flash_attention": self.flash_attention,
        }


class GroupQueryAttention(HeadAttention):
    """Multi-head attention in which several query heads share a head of key and value.

    Args:
        head_dim: the size of a head.
        num_query_heads: the number of query heads, a multiple of num_key_value_heads.
        num_key_value_heads: the number of heads of key and value.
        dropout, use_bias, sliding_window, flash_attention, all others: see MultiHeadAttention.

    Call, Shapes, Weights: see MultiHeadAttention.
    Reference: Ainslie et al., 2023, "GQA: Training Generalized Multi-Query Transformer Models from
    Multi-Head Checkpoints", arXiv:2305.13245.
    """

    # the names of class and attributes in Keras, which stand in weight files
    saved_class = "GroupedQueryAttention"
    saved_names = {
        f"{name}_dense": f"_{name}_dense" for name in ("query", "key", "value", "gate", "output")
    }

    def __init__(
        self,
        head_dim: int,
        num_query_heads: int,
        num_key_value_heads: int,
        dropout: float = 0.0,
        use_bias: bool = True,
        sliding_window: int | None = None,
        flash_attention: bool | None = None,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: Any = None,
        bias_constraint: Any = None,
        use_gate: bool = False,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        settings = {
            "kernel_initializer": kernel_initializer,
            "bias_initializer": bias_initializer,
            "kernel_regularizer": kernel_regularizer,
            "bias_regularizer": bias_regularizer,
            "activity_regularizer": activity_regularizer,
            "kernel_constraint": kernel_constraint,
            "bias_constraint": bias_constraint,
        }
        super().__init__(dropout, use_bias, sliding_window, use_gate, seed, settings, kwargs)
        self.head_dim = positive_integer(self, "head_dim", head_dim)
        self.num_query_heads = positive_integer(self, "num_query_heads", num_query_heads)
        self.num_key_value_heads = positive_integer(
            self, "num_key_value_heads", num_key_value_heads
        )
        if self.num_query_heads % self.num_key_value_heads:
            raise ValueError(
                f'GroupQueryAttention layer "{self.name}": num_query_heads must be a multiple of '
                f"num_key_value_heads; received {num_query_heads} and {num_key_value_heads}."
            )
        self.flash_attention = flash_attention

    def build(self, query_shape: Shape, value_shape: Shape, key_shape: Any = None) -> None:
        key_shape = value_shape if key_shape is None else key_shape
        queries, shared, size = self.num_query_heads, self.num_key_value_heads, self.head_dim
        self.query_dense = self._projection("query", queries, size, 3)
        self.query_dense.build(query_shape)
        self.key_dense = self._projection("key", shared, size, 3)
        self.key_dense.build(key_shape)
        if self.use_gate:
            self.gate_dense = self._projection("gate", queries, size, 3, True)
            self.gate_dense.build(query_shape)
        self.value_dense = self._projection("value", shared, size, 3)
        self.value_dense.build(value_shape)
        self.output_dense = self._back_projection((int(query_shape[-1] or 0),), 3)
        self.output_dense.build((*query_shape[:-1], queries, size))

    def call(
        self,
        query: Any,
        value: Any,
        key: Any = None,
        query_mask: Any = None,
        value_mask: Any = None,
        key_mask: Any = None,
        attention_mask: Any = None,
        return_attention_scores: bool = False,
        training: bool = False,
        use_causal_mask: bool = False,
    ) -> Any:
        key = value if key is None else key
        self._check_lengths(query, value, key)
        q, k, v = self._projected(query, key, value)
        before = 0
        if thread.decoding is not None and use_causal_mask and value is query:
            k, v, value_mask, before = self._remembered(k, v, value_mask)
        mask = self._mask(
            query, value, query_mask, value_mask, key_mask, attention_mask, use_causal_mask, before
        )
        scale = 1 / self.head_dim**0.5
        y, scores = self._attend(q, k, v, mask, scale, return_attention_scores, training)
        if self.use_gate:
            y = y * self.gate_dense(query)
        y = self.output_dense(y)
        return (y, scores) if return_attention_scores else y

    def compute_output_shape(
        self, query_shape: Shape, value_shape: Shape, key_shape: Any = None
    ) -> Shape:
        return query_shape

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "head_dim": self.head_dim,
            "num_query_heads": self.num_query_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "flash_attention": self.flash_attention,
        }
