"""Attention without projections: the layers Attention and AdditiveAttention."""

from __future__ import annotations

from typing import Any

import numpy as np

from picodl import ops, random
from picodl.layers.base import Layer
from picodl.layers.checks import choice, fraction
from picodl.typing import Config


class Attention(Layer):
    """y = softmax(scores) @ value, with scores of each query and key.

    Args:
        use_scale: multiply the scores by a weight.
        score_mode: "dot": query @ key^T; "concat": w * sum(tanh(scale * (query + key))), with a
            weight w.
        dropout: fraction of the scores to drop in training.
        seed: of the dropout.

    Call: ([query, value] or [query, value, key], mask=[query_mask, value_mask], training=False,
        return_attention_scores=False, use_causal_mask=False). The outputs of masked queries are 0;
        a query whose keys are all masked gives the mean of the values.

    Weights: scale () with use_scale, concat_score_weight () with "concat".
    Shapes: query (batch, ..., T, n), value (batch, ..., S, m), key (batch, ..., S, n) ->
        (batch, ..., T, m); masks have these shapes without the last axis.
    Reference: Luong et al., 2015, "Effective Approaches to Attention-based Neural Machine
    Translation", arXiv:1508.04025.

    >>> x = np.ones((2, 3, 4))
    >>> Attention()([x, x]).shape
    (2, 3, 4)
    """

    supports_masking = True

    def __init__(
        self,
        use_scale: bool = False,
        score_mode: str = "dot",
        dropout: float = 0.0,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.use_scale = use_scale
        self.score_mode = choice(self, "score_mode", score_mode, ("dot", "concat"))
        self.dropout = fraction(self, "dropout", dropout)
        self.seed = seed
        self.seed_generator = random.SeedGenerator(seed) if self.dropout > 0 else None
        self.scale: Any = None
        self.concat_score_weight: Any = None

    def build(self, input_shape: Any) -> None:
        self._check_shapes(input_shape)
        if self.use_scale:
            self.scale = self.add_weight((), "ones", name="scale")
        if self.score_mode == "concat":
            self.concat_score_weight = self.add_weight((), "ones", name="concat_score_weight")

    def call(
        self,
        inputs: Any,
        mask: Any = None,
        training: bool = False,
        return_attention_scores: bool = False,
        use_causal_mask: bool = False,
    ) -> Any:
        self._check_shapes([x.shape for x in inputs])
        query, value, *more = inputs
        key = more[0] if more else value
        query_mask, value_mask = self._masks(mask, query, value)
        scores = self._scores(query, key)
        hidden = None if value_mask is None else ~value_mask[..., None, :]
        if use_causal_mask:
            later = ~np.tri(query.shape[-2], value.shape[-2], dtype=bool)
            hidden = later if hidden is None else hidden | later
        if hidden is not None:
            far = 65504.0 if self._dtype == np.float16 else 1e9
            scores = scores - hidden * np.asarray(far, self._dtype)
        weights = ops.softmax(scores, axis=-1)
        if training and self.dropout > 0:
            weights = ops.dropout(weights, self.dropout, random.generator(self.seed_generator))
        y = ops.matmul(weights, value)
        if query_mask is not None:
            y = y * query_mask[..., None]
        return (y, weights) if return_attention_scores else y

    def _scores(self, query: Any, key: Any) -> Any:
        """(batch, ..., T, S)."""
        if self.score_mode == "dot":
            scores = ops.matmul(query, ops.swapaxes(key, -2, -1))
            return scores if self.scale is None else scores * self.scale
        pairs = ops.expand_dims(query, -2) + ops.expand_dims(key, -3)
        if self.scale is not None:
            pairs = self.scale * pairs
        return self.concat_score_weight * ops.sum(ops.tanh(pairs), axis=-1)

    def _masks(self, mask: Any, query: Any, value: Any) -> tuple[Any, Any]:
        self._check_masks(mask)
        found = []
        for m, x, name in zip(
            mask or (None, None), (query, value), ("query", "value"), strict=False
        ):
            if m is not None:
                m = np.asarray(m).astype(bool)
                if m.shape != tuple(x.shape[:-1]):
                    raise ValueError(
                        f'{type(self).__name__} layer "{self.name}" expects a mask of shape '
                        f"{tuple(x.shape[:-1])} for the {name}, but received {m.shape}."
                    )
            found.append(m)
        return found[0], found[1]

    def _check_masks(self, mask: Any) -> None:
        listed = isinstance(mask, (list, tuple))
        if mask is not None and not (listed and len(mask) in (2, 3)):
            received = f"{len(mask)} of them" if listed else type(mask).__name__
            raise ValueError(
                f'{type(self).__name__} layer "{self.name}" expects mask=[query_mask, value_mask], '
                f"but received {received}."
            )

    def _check_shapes(self, shapes: Any) -> None:
        several = isinstance(shapes, (list, tuple)) and all(
            isinstance(s, (list, tuple)) for s in shapes
        )
        if not several or len(shapes) not in (2, 3):
            raise ValueError(
                f'{type(self).__name__} layer "{self.name}" expects a list of [query, value] or '
                f"[query, value, key], but received shapes {shapes}."
            )
        query, value, *more = (tuple(s) for s in shapes)
        key = more[0] if more else value
        if len(query) < 3 or len(query) != len(value) or len(value) != len(key):
            raise ValueError(
                f'{type(self).__name__} layer "{self.name}" expects inputs of shape (batch, ..., '
                f"steps, features), but received {query}, {value} and {key}."
            )
        if _differ(key[-2], value[-2]) or _differ(query[-1], key[-1]):
            raise ValueError(
                f'{type(self).__name__} layer "{self.name}": key and value must have the same '
                "length, query and key the same size; received query "
                f"{query}, value {value}, key {key}."
            )

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        self._check_masks(mask)
        return None if mask is None else mask[0]

    def compute_output_shape(self, input_shape: Any) -> Any:
        query, value, *_ = input_shape
        return (*query[:-1], value[-1])

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("return_attention_scores"):
            return self._infer(args, kwargs)
        return super().compute_output_spec(*args, **kwargs)

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "use_scale": self.use_scale,
            "score_mode": self.score_mode,
            "dropout": self.dropout,
            "seed": self.seed,
        }


class AdditiveAttention(Attention):
    """Attention with scores sum(scale * tanh(query + key)).

    Args:
        use_scale: multiply by a weight before the sum.
        dropout: fraction of the scores to drop in training.

    Call: see Attention.
    Weights: scale (n,) with use_scale.
    Shapes: see Attention; query and key have the same size.
    Reference: Bahdanau et al., 2014, "Neural Machine Translation by Jointly Learning to Align and
    Translate", arXiv:1409.0473.
    """

    def __init__(self, use_scale: bool = True, dropout: float = 0.0, **kwargs: Any) -> None:
        super().__init__(use_scale=use_scale, dropout=dropout, **kwargs)

    def build(self, input_shape: Any) -> None:
        self._check_shapes(input_shape)
        if self.use_scale:
            self.scale = self.add_weight((input_shape[0][-1],), "glorot_uniform", name="scale")

    def _scores(self, query: Any, key: Any) -> Any:
        y = ops.tanh(ops.expand_dims(query, -2) + ops.expand_dims(key, -3))
        return ops.sum(y if self.scale is None else self.scale * y, axis=-1)

    def get_config(self) -> Config:
        config = super().get_config()
        del config["score_mode"]
        return config


def _differ(a: int | None, b: int | None) -> bool:
    return a is not None and b is not None and a != b
