"""Layers, under Keras's names."""

from __future__ import annotations

from typing import Any

from picodl.layers.activation import ELU, GELU, LeakyReLU, PReLU, ReLU, Softmax
from picodl.layers.attention import GroupQueryAttention, MultiHeadAttention
from picodl.layers.base import Layer
from picodl.layers.conv_lstm import ConvLSTM1D, ConvLSTM2D
from picodl.layers.core import Activation, Identity, Input, InputLayer, Lambda, Wrapper
from picodl.layers.dense import Dense, Linear
from picodl.layers.einsum_dense import EinsumDense
from picodl.layers.embedding import Embedding, Masking, ReversibleEmbedding
from picodl.layers.input_spec import InputSpec
from picodl.layers.merging import (
    Add,
    Average,
    Concatenate,
    Dot,
    Maximum,
    Minimum,
    Multiply,
    Subtract,
    add,
    average,
    concatenate,
    dot,
    maximum,
    minimum,
    multiply,
    subtract,
)
from picodl.layers.position import (
    PositionEmbedding,
    RotaryEmbedding,
    SinePositionEncoding,
    TokenAndPositionEmbedding,
)
from picodl.layers.recurrent import RNN, StackedRNNCells
from picodl.layers.recurrent_cells import GRUCell, LSTMCell, SimpleRNNCell
from picodl.layers.recurrent_layers import GRU, LSTM, SimpleRNN
from picodl.layers.regularization import (
    ActivityRegularization,
    AlphaDropout,
    Dropout,
    GaussianDropout,
    GaussianNoise,
)
from picodl.layers.reshaping import Flatten, Reshape
from picodl.layers.scaling import Normalization, Rescaling

from picodl.layers.simple_attention import AdditiveAttention, Attention
from picodl.layers.transformer import TransformerDecoder, TransformerEncoder
from picodl.layers.wrappers import Bidirectional, TimeDistributed
from picodl.saving import registry, serialization
from picodl.typing import Config

__all__ = [
    "ConvLSTM1D",
    "ConvLSTM2D",
    "PositionEmbedding",
    "RotaryEmbedding",
    "SinePositionEncoding",
    "TokenAndPositionEmbedding",
    "TransformerDecoder",
    "TransformerEncoder",
    "AdditiveAttention",
    "Attention",
    "GroupQueryAttention",
    "MultiHeadAttention",
    "EinsumDense",
    "Embedding",
    "Masking",
    "ReversibleEmbedding",
    "RNN",
    "StackedRNNCells",
    "GRUCell",
    "LSTMCell",
    "SimpleRNNCell",
    "GRU",
    "LSTM",
    "SimpleRNN",
    "Bidirectional",
    "TimeDistributed",
    "ELU",
    "GELU",
    "Activation",
    "ActivityRegularization",
    "AlphaDropout",
    "Dense",
    "Dropout",
    "Flatten",
    "GaussianDropout",
    "GaussianNoise",
    "Identity",
    "Input",
    "InputLayer",
    "InputSpec",
    "Lambda",
    "Layer",
    "LeakyReLU",
    "Linear",
    "Normalization",
    "PReLU",
    "ReLU",
    "Rescaling",
    "Reshape",
    "Softmax",
    "Wrapper",
    "Add",
    "Average",
    "Concatenate",
    "Dot",
    "Maximum",
    "Minimum",
    "Multiply",
    "Subtract",
    "add",
    "average",
    "concatenate",
    "dot",
    "maximum",
    "minimum",
    "multiply",
    "subtract",
]


def serialize(layer: Any) -> Config:
    """The config of a layer: {"module", "class_name", "config", ...}."""
    return serialization.serialize_keras_object(layer)


def deserialize(config: Config, custom_objects: dict[str, Any] | None = None) -> Any:
    """The layer that a config describes.

    Raises:
        ValueError: for an unknown class, or a config that its class does not take.
    """
    return serialization.deserialize_keras_object(config, custom_objects, kind="layer")


registry.add_kind(
    "layer",
    "keras.layers",
    {name: globals()[name] for name in __all__ if name[0].isupper() and name != "Input"},
)
