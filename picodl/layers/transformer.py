"""Blocks of transformers: attention and a feed-forward net, each with a way around and a norm."""

from __future__ import annotations

from typing import Any

from picodl import activations, initializers
from picodl.layers.attention import MultiHeadAttention
from picodl.layers.base import Layer
from picodl.layers.checks import fraction, known_axis, positive_integer
from picodl.layers.dense import Dense
from picodl.layers.normalization import LayerNormalization
from picodl.layers.position import AlibiBias, RotaryEmbedding
from picodl.layers.regularization import Dropout
from picodl.typing import Array, Config, Shape


class RotaryAttention(MultiHeadAttention):
    """MultiHeadAttention that turns query and key by their places.

    Args: see MultiHeadAttention; key_dim must be even.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.rotary = RotaryEmbedding(name="rotary", dtype=self.dtype_policy)

    def placed(self, query: Any, key: Any) -> tuple[Any, Any]:
        return self.rotary(query), self.rotary(key)


class AlibiAttention(MultiHeadAttention):
    """MultiHeadAttention that looks less at what is further away: see AlibiBias.

    Args: see MultiHeadAttention.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.alibi = AlibiBias(name="alibi", dtype=self.dtype_policy)

    def score_bias(self, queries: int, keys: int) -> Array:
        return self.alibi.bias(self.num_heads, queries, keys)


class _Block(Layer):
    """What both blocks share: the settings, and a part with its dropout, sum and norm."""

    supports_masking = True

    def __init__(
        self,
        intermediate_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        activation: Any = "relu",
        layer_norm_epsilon: float = 1e-5,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        normalize_first: bool = False,
        rotary: bool = False,
        alibi: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.intermediate_dim = positive_integer(self, "intermediate_dim", intermediate_dim)
        self.num_heads = positive_integer(self, "num_heads", num_heads)
        self.dropout = fraction(self, "dropout", dropout)
        self.activation = activations.get(activation)
        self.layer_norm_epsilon = layer_norm_epsilon
        self.kernel_initializer = initializers.get(kernel_initializer)
        self.bias_initializer = initializers.get(bias_initializer)
        self.normalize_first = normalize_first
        if rotary and alibi:
            raise ValueError(
                f'{type(self).__name__} layer "{self.name}" received rotary=True and alibi=True; '
                "choose one of them."
            )
        self.rotary = rotary
        self.alibi = alibi

    def _self_attention(self, shape: Shape) -> Any:
        kind = MultiHeadAttention
        if self.rotary or self.alibi:
            kind = RotaryAttention if self.rotary else AlibiAttention
        return self._attention(kind, "self_attention", shape, shape)

    def _attention(
        self, kind: type[MultiHeadAttention], name: str, shape: Shape, value_shape: Shape
    ) -> Any:
        size = known_axis(self, shape)
        if size % self.num_heads:
            raise ValueError(
                f'{type(self).__name__} layer "{self.name}": the input\'s last axis must be a '
                f"multiple of num_heads={self.num_heads}; received shape {shape}."
            )
        layer = kind(
            self.num_heads, size // self.num_heads, dropout=self.dropout, **self._weights(name)
        )
        layer.build(shape, value_shape)
        return layer

    def _weights(self, name: str) -> Config:
        return {
            "kernel_initializer": type(self.kernel_initializer)(
                **self.kernel_initializer.get_config()
            ),
            "bias_initializer": self.bias_initializer,
            "name": name,
            "dtype": self.dtype_policy,
        }

    def _norm(self, name: str, shape: Shape) -> Any:
        norm = LayerNormalization(
            epsilon=self.layer_norm_epsilon, name=name, dtype=self.dtype_policy
        )
        norm.build(shape)
        return norm

    def _build_feed_forward(self, shape: Shape) -> None:
        size = known_axis(self, shape)
        self.feedforward_intermediate = Dense(
            self.intermediate_dim, self.activation, **self._weights("feedforward_intermediate")
        )
        self.feedforward_intermediate.build(shape)
        self.feedforward_output = Dense(size, **self._weights("feedforward_output"))
        self.feedforward_output.build((*shape[:-1], self.intermediate_dim))
        self.feedforward_norm = self._norm("feedforward_norm", shape)
        self.dropout_layer = Dropout(self.dropout, name="dropout") if self.dropout else None

    def _around(self, x: Any, part: Any, norm: Any, training: bool) -> Any:
        """x + part(x), with dropout, and the norm before or after."""
        y = part(norm(x) if self.normalize_first else x)
        if self.dropout_layer is not None:
            y = self.dropout_layer(y, training=training)
        y = x + y
        return y if self.normalize_first else norm(y)

    def _feed_forward(self, x: Any) -> Any:
        return self.feedforward_output(self.feedforward_intermediate(x))

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "intermediate_dim": self.intermediate_dim,
            "num_heads": self.num_heads,
            "dropout": self.dropout,
            "activation": activations.serialize(self.activation),
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "kernel_initializer": initializers.serialize(self.kernel_initializer),
            "bias_initializer": initializers.serialize(self.bias_initializer),
            "normalize_first": self.normalize_first,
            "rotary": self.rotary,
            "alibi": self.alibi,
        }


class TransformerEncoder(_Block):
    """Self-attention, then a feed-forward net: x = norm(x + attention(x)), x = norm(x + net(x)).

    Args:
        intermediate_dim: the size of the feed-forward net's middle.
        num_heads: the number of heads; the input's last axis must be a multiple of it.
        dropout: fraction dropped in training, of the scores and after each part.
        activation: of the feed-forward net. Defaults to "relu".
        layer_norm_epsilon: of the norms.
        kernel_initializer, bias_initializer: first values of the weights.
        normalize_first: x + part(norm(x)) instead of norm(x + part(x)).
        rotary: turn query and key by their places (see RotaryEmbedding).
        alibi: look less at what is further away (see AlibiBias): for sequences longer than those
            of the training. Not together with rotary.

    Call: (inputs, padding_mask=None, attention_mask=None, training=False); padding_mask (batch, T)
        is True for real tokens and defaults to the mask that came with the inputs.

    Shapes: (batch, T, n) -> same.
    Reference: Vaswani et al., 2017, "Attention Is All You Need", arXiv:1706.03762.
    """

    def build(self, inputs_shape: Shape) -> None:
        self.self_attention = self._self_attention(inputs_shape)
        self.self_attention_norm = self._norm("self_attention_norm", inputs_shape)
        self._build_feed_forward(inputs_shape)

    def call(
        self,
        inputs: Any,
        padding_mask: Any = None,
        attention_mask: Any = None,
        mask: Any = None,
        training: bool = False,
    ) -> Any:
        mask = mask if padding_mask is None else padding_mask

        def attend(x: Any) -> Any:
            return self.self_attention(
                x, x, value_mask=mask, attention_mask=attention_mask, training=training
            )

        x = self._around(inputs, attend, self.self_attention_norm, training)
        return self._around(x, self._feed_forward, self.feedforward_norm, training)

    def compute_output_shape(self, inputs_shape: Shape) -> Shape:
        return inputs_shape


class TransformerDecoder(_Block):
    """Causal self-attention, attention to an encoder's output if there is one, a feed-forward net.

    Args: see TransformerEncoder.

    Call: (decoder_sequence, encoder_sequence=None, decoder_padding_mask=None,
        decoder_attention_mask=None, encoder_padding_mask=None, encoder_attention_mask=None,
        training=False, use_causal_mask=True). Whether there is an encoder is settled at the first
        call.

    Shapes: (batch, T, n), (batch, S, n) -> (batch, T, n).
    Reference: Vaswani et al., 2017, "Attention Is All You Need", arXiv:1706.03762.
    """

    def build(self, decoder_sequence_shape: Shape, encoder_sequence_shape: Any = None) -> None:
        shape = decoder_sequence_shape
        self.self_attention = self._self_attention(shape)
        self.self_attention_norm = self._norm("self_attention_norm", shape)
        self.cross_attention: Any = None
        if encoder_sequence_shape is not None:
            self.cross_attention = self._attention(
                MultiHeadAttention, "cross_attention", shape, encoder_sequence_shape
            )
            self.cross_attention_norm = self._norm("cross_attention_norm", shape)
        self._build_feed_forward(shape)

    def call(
        self,
        decoder_sequence: Any,
        encoder_sequence: Any = None,
        decoder_padding_mask: Any = None,
        decoder_attention_mask: Any = None,
        encoder_padding_mask: Any = None,
        encoder_attention_mask: Any = None,
        mask: Any = None,
        training: bool = False,
        use_causal_mask: bool = True,
    ) -> Any:
        if (encoder_sequence is None) != (self.cross_attention is None):
            raise ValueError(
                f'TransformerDecoder layer "{self.name}" was built '
                f"{'without' if self.cross_attention is None else 'with'} an encoder_sequence; "
                "call it the same way each time."
            )
        own_mask = decoder_padding_mask
        if own_mask is None:
            own_mask = mask if mask is not None else getattr(decoder_sequence, "mask", None)

        def attend(x: Any) -> Any:
            return self.self_attention(
                x, x, value_mask=own_mask, attention_mask=decoder_attention_mask,
                training=training, use_causal_mask=use_causal_mask,
            )  # fmt: skip

        def attend_encoder(x: Any) -> Any:
            return self.cross_attention(
                x, encoder_sequence, value_mask=encoder_padding_mask,
                attention_mask=encoder_attention_mask, training=training,
            )  # fmt: skip

        x = self._around(decoder_sequence, attend, self.self_attention_norm, training)
        if self.cross_attention is not None:
            x = self._around(x, attend_encoder, self.cross_attention_norm, training)
        return self._around(x, self._feed_forward, self.feedforward_norm, training)

    def compute_output_shape(
        self, decoder_sequence_shape: Shape, encoder_sequence_shape: Any = None
    ) -> Shape:
        return decoder_sequence_shape
