"""Where a token stands: learned, sinusoidal and rotary positions, and attention by distance."""

from __future__ import annotations

from typing import Any

import numpy as np

from picodl import initializers, ops
from picodl.config import thread
from picodl.layers.base import Layer
from picodl.layers.checks import known_axis, positive_integer
from picodl.layers.embedding import Embedding
from picodl.layers.input_spec import InputSpec
from picodl.typing import Array, Config, Shape


class PositionEmbedding(Layer):
    """A learned vector for each place of a sequence: the first T of `sequence_length` vectors.

    Args:
        sequence_length: the most places.
        initializer: first values. Defaults to "glorot_uniform".

    Call: (inputs, start_index=0): the place of the first step. Add the result to the inputs.

    Weights: position_embeddings (sequence_length, n).
    Shapes: (batch, T, n) -> same.

    >>> PositionEmbedding(10)(np.zeros((2, 4, 3))).shape
    (2, 4, 3)
    """

    supports_masking = True

    def __init__(
        self, sequence_length: int, initializer: Any = "glorot_uniform", **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.sequence_length = positive_integer(self, "sequence_length", sequence_length)
        self.initializer = initializers.get(initializer)

    def build(self, input_shape: Shape) -> None:
        self.position_embeddings = self.add_weight(
            (self.sequence_length, known_axis(self, input_shape)),
            self.initializer,
            name="position_embeddings",
        )

    def call(self, inputs: Any, start_index: int = 0) -> Any:
        start = start_index + _steps_before()
        steps = inputs.shape[1]
        if start + steps > self.sequence_length:
            raise ValueError(
                f'PositionEmbedding layer "{self.name}" has {self.sequence_length} places, but '
                f"received inputs of shape {tuple(inputs.shape)} that start at place {start}. Pass "
                "shorter sequences, or make a layer with a larger sequence_length."
            )
        return ops.broadcast_to(self.position_embeddings[start : start + steps], inputs.shape)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "sequence_length": self.sequence_length,
            "initializer": initializers.serialize(self.initializer),
        }


class SinePositionEncoding(Layer):
    """sin(p / w^(2i/n)) and cos(p / w^(2i/n)) in turns along the features, for each place p.

    Args:
        max_wavelength: w. Defaults to 10000.

    Call: (inputs, start_index=0). Add the result to the inputs.
    Shapes: (batch, T, n) -> same.
    Reference: Vaswani et al., 2017, "Attention Is All You Need", arXiv:1706.03762.

    >>> SinePositionEncoding()(np.zeros((1, 2, 2))).numpy().round(2).tolist()
    [[[0.0, 1.0], [0.8399999737739563, 0.5400000214576721]]]
    """

    built = True
    supports_masking = True

    def __init__(self, max_wavelength: float = 10000, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.max_wavelength = max_wavelength

    def call(self, inputs: Any, start_index: int = 0) -> Any:
        _, steps, n = inputs.shape
        places = np.arange(steps)[:, None] + (start_index + _steps_before())
        column = np.arange(n)
        angles = places / self.max_wavelength ** (2 * (column // 2) / n)
        waves = np.where(column % 2 == 0, np.sin(angles), np.cos(angles)).astype(self._dtype)
        return ops.convert_to_tensor(np.broadcast_to(waves, inputs.shape))

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape

    def get_config(self) -> Config:
        return {**super().get_config(), "max_wavelength": self.max_wavelength}


class RotaryEmbedding(Layer):
    """Turn pairs of features by an angle that grows with the place.

    With x = (a, b) its halves and angles p / w^(2i/n): y = (a cos - b sin, b cos + a sin). The
    product of two turned vectors depends on how far apart they stand only.

    Args:
        max_wavelength: w. Defaults to 10000.
        scaling_factor: places are divided by it. Defaults to 1.
        sequence_axis: the axis of the places.
        feature_axis: the axis of the features, of even size.

    Call: (inputs, start_index=0). Shapes: (batch, T, ..., n) -> same.
    Reference: Su et al., 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding",
    arXiv:2104.09864.
    """

    built = True
    supports_masking = True

    def __init__(
        self,
        max_wavelength: float = 10000,
        scaling_factor: float = 1.0,
        sequence_axis: int = 1,
        feature_axis: int = -1,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.max_wavelength = max_wavelength
        self.scaling_factor = scaling_factor
        self.sequence_axis = sequence_axis
        self.feature_axis = feature_axis

    def call(self, inputs: Any, start_index: int = 0) -> Any:
        rank = len(inputs.shape)
        along, axis = self.sequence_axis % rank, self.feature_axis % rank
        n = inputs.shape[axis]
        if n % 2:
            raise ValueError(
                f'RotaryEmbedding layer "{self.name}" needs an even number of features; received '
                f"inputs of shape {tuple(inputs.shape)}."
            )
        cos, sin = self._waves(inputs.shape[along], n, start_index + _steps_before())
        shape = [1] * rank
        shape[along], shape[axis] = inputs.shape[along], n
        if axis < along:
            cos, sin = cos.T, sin.T
        a, b = ops.split(inputs, 2, axis=axis)
        turned = ops.concatenate([-b, a], axis=axis)
        return inputs * cos.reshape(shape) + turned * sin.reshape(shape)

    def _waves(self, steps: int, n: int, start: int) -> tuple[Array, Array]:
        places = (np.arange(steps) + start) / self.scaling_factor
        angles = places[:, None] / self.max_wavelength ** (np.arange(0, n, 2) / n)
        angles = np.concatenate([angles, angles], axis=1)
        return np.cos(angles).astype(self._dtype), np.sin(angles).astype(self._dtype)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "max_wavelength": self.max_wavelength,
            "scaling_factor": self.scaling_factor,
            "sequence_axis": self.sequence_axis,
            "feature_axis": self.feature_axis,
        }


class AlibiBias(Layer):
    """Take slope * distance off the scores of attention: a head looks less at what is further away.

    y[h, i, j] = x[h, i, j] - slope[h] * |i - j|, before the softmax. Nothing is learned, so a model
    trained on short sequences works on longer ones.

    Args:
        alibi_bias_max: m: the slopes of H heads are 2^(-m h / H) for h = 1 ... H if H is a power of
            two; otherwise those of the largest power below, then every second one of twice that
            power. Defaults to 8.

    Call: attention_scores. With fewer queries than keys, the queries stand at the last places.
    Shapes: (batch, heads, T, S) -> same.
    Reference: Press, Smith and Lewis, 2021, "Train Short, Test Long: Attention with Linear Biases
    Enables Input Length Extrapolation", arXiv:2108.12409.

    >>> AlibiBias()(np.zeros((1, 8, 3, 3)))[0, 0].tolist()
    [[0.0, -0.5, -1.0], [-0.5, 0.0, -0.5], [-1.0, -0.5, 0.0]]
    """

    built = True
    supports_masking = True

    def __init__(self, alibi_bias_max: float = 8, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.alibi_bias_max = alibi_bias_max
        self.input_spec = InputSpec(ndim=4)

    def slopes(self, num_heads: int) -> Array:
        """The slope of each head, (heads,).

        >>> AlibiBias().slopes(4).tolist()
        [0.25, 0.0625, 0.015625, 0.00390625]
        """
        num_heads = positive_integer(self, "num_heads", num_heads)
        power = 1 << num_heads.bit_length() - 1
        finer = np.arange(1, 2 * (num_heads - power), 2) / 2
        exponents = np.concatenate([np.arange(1, power + 1), finer])
        return 2.0 ** (-self.alibi_bias_max / power * exponents)

    def bias(self, num_heads: int, queries: int, keys: int) -> Array:
        """What is added to the scores, (1, heads, T, S); for `ops.dot_product_attention`.

        It is a view of (heads, T + S) numbers, not to be written to.
        """
        nearness = -np.abs(np.arange(-queries, keys) - (keys - queries))
        line = (self.slopes(num_heads)[:, None] * nearness).astype(self._dtype)
        return np.lib.stride_tricks.sliding_window_view(line, keys, axis=1)[None, :, :0:-1]

    def call(self, attention_scores: Any) -> Any:
        return attention_scores + self.bias(*attention_scores.shape[1:])

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape

    def get_config(self) -> Config:
        return {**super().get_config(), "alibi_bias_max": self.alibi_bias_max}


class TokenAndPositionEmbedding(Layer):
    """The sum of a token's embedding and of its place's.

    Args:
        vocabulary_size: the number of token ids.
        sequence_length: the most places.
        embedding_dim: the size of a vector.
        embeddings_initializer: first values of both tables. Defaults to "uniform".
        mask_zero: id 0 is padding.

    Shapes: (batch, T) integers -> (batch, T, embedding_dim).
    """

    def __init__(
        self,
        vocabulary_size: int,
        sequence_length: int,
        embedding_dim: int,
        embeddings_initializer: Any = "uniform",
        mask_zero: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        common: Any = {"dtype": self.dtype_policy}
        self.token_embedding = Embedding(
            vocabulary_size, embedding_dim, embeddings_initializer, mask_zero=mask_zero,
            name="token_embedding", **common,
        )  # fmt: skip
        self.position_embedding = PositionEmbedding(
            sequence_length, embeddings_initializer, name="position_embedding", **common
        )
        self.vocabulary_size = vocabulary_size
        self.sequence_length = sequence_length
        self.embedding_dim = embedding_dim
        self.embeddings_initializer = initializers.get(embeddings_initializer)
        self.mask_zero = mask_zero
        self.supports_masking = mask_zero
        self.autocast = False

    def build(self, input_shape: Shape) -> None:
        self.token_embedding.build(input_shape)
        self.position_embedding.build((*input_shape, self.embedding_dim))

    def call(self, inputs: Any, start_index: int = 0) -> Any:
        tokens = self.token_embedding(inputs)
        return tokens + self.position_embedding(tokens, start_index=start_index)

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        return self.token_embedding.compute_mask(inputs)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (*input_shape, self.embedding_dim)

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "vocabulary_size": self.vocabulary_size,
            "sequence_length": self.sequence_length,
            "embedding_dim": self.embedding_dim,
            "embeddings_initializer": initializers.serialize(self.embeddings_initializer),
            "mask_zero": self.mask_zero,
        }


def _steps_before() -> int:
    """How many steps were there before these: 0, except inside `generate()`."""
    return 0 if thread.decoding is None else thread.decoding.position
