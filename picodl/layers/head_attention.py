"""What attention layers with heads share: projections, masks, dropout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from picodl import constraints, initializers, ops, random, regularizers
from picodl.config import thread
from picodl.layers.base import Layer
from picodl.layers.checks import fraction, positive_integer
from picodl.layers.einsum_dense import EinsumDense
from picodl.ops import noise
from picodl.ops.attention import attention, attention_scores
from picodl.ops.projection import project
from picodl.typing import Array, Config


class _Projection(EinsumDense):
    """An EinsumDense in an attention layer, which looks after the masks itself."""

    warns_of_dropped_masks = False


# elements of the input from which on one product is faster than three
_JOINED = 1 << 14


def _alike(layers: Sequence[EinsumDense], x: Any) -> bool:
    """Whether such projections of x can be one."""
    first = layers[0].kernel.shape
    return x.ndim == 3 and all(
        layer.kernel.shape[::2] == first[::2]
        and not layer.lora_enabled
        and layer._dtype is x.data.dtype
        for layer in layers
    )


class HeadAttention(Layer):
    """What the attention layers with heads share: projections, masks, dropout."""

    supports_masking = True

    def __init__(
        self,
        dropout: float,
        use_bias: bool,
        sliding_window: int | None,
        use_gate: bool,
        seed: int | None,
        settings: Config,
        kwargs: Config,
    ) -> None:
        super().__init__(activity_regularizer=settings.pop("activity_regularizer"), **kwargs)
        self.dropout = fraction(self, "dropout", dropout)
        self.use_bias = use_bias
        if sliding_window is not None:
            sliding_window = positive_integer(self, "sliding_window", sliding_window)
        self.sliding_window = sliding_window
        self.use_gate = use_gate
        self.seed = seed
        self.seed_generator = random.SeedGenerator(seed) if self.dropout > 0 else None
        self.kernel_initializer = initializers.get(settings["kernel_initializer"])
        self.bias_initializer = initializers.get(settings["bias_initializer"])
        self.kernel_regularizer = regularizers.get(settings["kernel_regularizer"])
        self.bias_regularizer = regularizers.get(settings["bias_regularizer"])
        self.kernel_constraint = constraints.get(settings["kernel_constraint"])
        self.bias_constraint = constraints.get(settings["bias_constraint"])

    def _projection(self, name: str, heads: int, size: int, rank: int, gate: bool = False) -> Any:
        """A layer from (..., n) to (..., heads, size)."""
        before = "abcdefgh"[: rank - 1]
        return _Projection(
            f"{before}x,xyz->{before}yz",
            output_shape=(*[None] * (rank - 2), heads, size),
            bias_axes="yz" if self.use_bias else None,
            activation="sigmoid" if gate else None,
            name=name,
            **self._common(),
        )

    def _back_projection(self, shape: tuple[int, ...], rank: int) -> Any:
        """A layer from (..., heads, size) to (..., *shape)."""
        before, after = "abcdefgh"[: rank - 1], "pqrstuvw"[: len(shape)]
        return _Projection(
            f"{before}yz,yz{after}->{before}{after}",
            output_shape=(*[None] * (rank - 2), *shape),
            bias_axes=after if self.use_bias else None,
            name="attention_output",
            **self._common(),
        )

    def _common(self) -> Config:
        """The settings of the projections; each gets initializers of its own, as in Keras."""
        return {
            "kernel_initializer": _renewed(self.kernel_initializer),
            "bias_initializer": _renewed(self.bias_initializer),
            "kernel_regularizer": self.kernel_regularizer,
            "bias_regularizer": self.bias_regularizer,
            "kernel_constraint": self.kernel_constraint,
            "bias_constraint": self.bias_constraint,
            "dtype": self.dtype_policy,
        }

    def _projected(self, query: Any, key: Any, value: Any) -> list[Any]:
        """Query, key and value as heads; by one product where they are the same."""
        parts = [self.query_dense, self.key_dense, self.value_dense]
        if not (query is key is value and query.data.size >= _JOINED and _alike(parts, query)):
            pairs = zip(parts, (query, key, value), strict=True)
            return [layer(x) for layer, x in pairs]
        kernel = ops.concatenate([layer.kernel for layer in parts], axis=1)
        bias = ops.concatenate([layer.bias for layer in parts]) if self.use_bias else None
        ends = np.cumsum([layer.kernel.shape[1] for layer in parts])[:-1]
        return list(ops.split(project(query, kernel, bias), [int(n) for n in ends], axis=2))

    def _mask(
        self,
        query: Any,
        value: Any,
        query_mask: Any,
        value_mask: Any,
        key_mask: Any,
        attention_mask: Any,
        causal: bool,
        before: int = 0,
    ) -> Any:
        """All masks in one, (batch or 1, 1 or heads, T, S); None where nothing is hidden.

        Args: before: how many keys stand before the first query's own place.
        """
        queries, keys = query.shape[1], value.shape[1] + before
        parts: list[Array] = []
        for mask, name, length in (
            (query_mask, "query_mask", queries),
            (value_mask, "value_mask", keys),
            (key_mask, "key_mask", keys),
        ):
            if mask is not None:
                mask = np.asarray(mask).astype(bool)
                if mask.shape != (query.shape[0], length):
                    raise ValueError(
                        f'{type(self).__name__} layer "{self.name}": {name} must have the shape '
                        f"{(query.shape[0], length)}, but received {mask.shape}."
                    )
                parts.append(mask[:, None, :, None] if name[0] == "q" else mask[:, None, None, :])
        if causal:
            parts.append(np.tri(queries, keys, before, dtype=bool)[None, None])
        if self.sliding_window is not None:
            apart = np.abs(np.arange(before, before + queries)[:, None] - np.arange(keys))
            parts.append((apart < self.sliding_window)[None, None])
        if attention_mask is not None:
            parts.append(
                self._checked(np.asarray(attention_mask).astype(bool), query, queries, keys)
            )
        if not parts:
            return None
        whole = parts[0]
        for part in parts[1:]:
            whole = whole & part
        return whole

    def _checked(self, mask: Array, query: Any, queries: int, keys: int) -> Array:
        """The attention mask with a heads axis."""
        expected = f"(batch, T, S) = {(query.shape[0], queries, keys)}"
        if mask.ndim == 2:
            mask = mask[None]
        mask = mask[:, None] if mask.ndim == 3 else mask
        if mask.ndim != 4 or mask.shape[2] not in (1, queries) or mask.shape[3] not in (1, keys):
            raise ValueError(
                f'{type(self).__name__} layer "{self.name}" expects an attention_mask of shape '
                f"{expected}, or with an axis of heads, but received {mask.shape}."
            )
        if mask.shape[0] not in (1, query.shape[0]):
            raise ValueError(
                f'{type(self).__name__} layer "{self.name}" expects an attention_mask of shape '
                f"{expected}, but its first axis is {mask.shape[0]}."
            )
        return mask

    def _remembered(self, key: Any, value: Any, value_mask: Any) -> tuple[Any, Any, Any, int]:
        """Keys, values and mask of all steps so far, and how many there were before these: inside
        `generate()` a layer sees the new tokens only."""
        memory = thread.decoding.of(self)
        if "key" not in memory:
            memory.update(key=key, value=value, mask=value_mask)
            return key, value, value_mask, 0
        before = memory["key"].shape[1]
        memory["key"] = ops.concatenate([memory["key"], key], axis=1)
        memory["value"] = ops.concatenate([memory["value"], value], axis=1)
        if value_mask is not None and memory["mask"] is not None:
            memory["mask"] = np.concatenate([memory["mask"], value_mask], axis=1)
        return memory["key"], memory["value"], memory["mask"], before

    def _attend(
        self,
        query: Any,
        key: Any,
        value: Any,
        mask: Any,
        scale: float,
        scores: bool,
        training: bool,
    ) -> tuple[Any, Any]:
        """The heads' outputs (batch, T, heads, v), and the scores if asked for.

        A query that may look at nothing gives the mean of the values; with dropout or scores it
        gives zeros, as in Keras, which then takes another way.
        """
        zero = self.dropout > 0 or scores or self.sliding_window is not None
        keep, p = None, 1.0
        if training and self.dropout > 0:
            shape = (query.shape[0], query.shape[2], query.shape[1], key.shape[1])
            keep, p = noise.keep_mask(shape, self.dropout, random.generator(self.seed_generator))
        bias = self.score_bias(query.shape[1], key.shape[1])
        if not scores:
            y = attention(query, key, value, bias, mask, scale, None, keep, p, zero)
            return y, None
        factor = None if keep is None else keep / np.asarray(p or 1, self._dtype)
        return attention_scores(query, key, value, bias, mask, scale, None, factor, zero)

    def score_bias(self, queries: int, keys: int) -> Any:
        """What a subclass adds to the scores, of a shape that broadcasts to (batch, heads, T, S):
        the queries stand at the last of the keys' places."""
        return None

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("return_attention_scores"):
            return self._infer(args, kwargs)
        return super().compute_output_spec(*args, **kwargs)

    def _check_lengths(self, query: Any, value: Any, key: Any) -> None:
        if key.shape[1:-1] != value.shape[1:-1] or key.shape[0] != value.shape[0]:
            raise ValueError(
                f'{type(self).__name__} layer "{self.name}": key and value must have the same '
                f"length, but received shapes {tuple(key.shape)} and {tuple(value.shape)}."
            )
        if query.shape[0] != value.shape[0] or len(query.shape) != len(value.shape):
            raise ValueError(
                f'{type(self).__name__} layer "{self.name}": query and value must have the same '
                f"rank and batch size, but received shapes {tuple(query.shape)} and "
                f"{tuple(value.shape)}."
            )

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "dropout": self.dropout,
            "use_bias": self.use_bias,
            "sliding_window": self.sliding_window,
            "use_gate": self.use_gate,
            "kernel_initializer": initializers.serialize(self.kernel_initializer),
            "bias_initializer": initializers.serialize(self.bias_initializer),
            "kernel_regularizer": regularizers.serialize(self.kernel_regularizer),
            "bias_regularizer": regularizers.serialize(self.bias_regularizer),
            "activity_regularizer": regularizers.serialize(self.activity_regularizer),
            "kernel_constraint": constraints.serialize(self.kernel_constraint),
            "bias_constraint": constraints.serialize(self.bias_constraint),
            "seed": self.seed,
        }


def _renewed(initializer: Any) -> Any:
    """A new initializer of the same config, with a seed of its own where none was given."""
    if hasattr(initializer, "get_config"):
        return type(initializer)(**initializer.get_config())
    return initializer
