"""Layers, under Keras's names."""

from __future__ import annotations

from typing import Any

from picodl.layers.activation import ELU, GELU, LeakyReLU, PReLU, ReLU, Softmax
from picodl.layers.attention import GroupQueryAttention, MultiHeadAttention
from picodl.layers.augmentation import (
    RandomBrightness,
    RandomContrast,
    RandomCrop,
    RandomFlip,
    RandomRotation,
    RandomTranslation,
    RandomZoom,
)
from picodl.layers.base import Layer
from picodl.layers.categories import CategoryEncoding, Discretization
from picodl.layers.conv_lstm import ConvLSTM1D, ConvLSTM2D
from picodl.layers.convolution import Conv1D, Conv2D, Conv3D
from picodl.layers.convolution_depthwise import (
    DepthwiseConv1D,
    DepthwiseConv2D,
    SeparableConv1D,
    SeparableConv2D,
)
from picodl.layers.convolution_transpose import Conv1DTranspose, Conv2DTranspose, Conv3DTranspose
from picodl.layers.core import Activation, Identity, Input, InputLayer, Lambda, Wrapper
from picodl.layers.dense import Dense, Linear
from picodl.layers.einsum_dense import EinsumDense
from picodl.layers.embedding import Embedding, Masking, ReversibleEmbedding
from picodl.layers.hashing import HashedCrossing, Hashing
from picodl.layers.image import CenterCrop, Resizing
from picodl.layers.input_spec import InputSpec
from picodl.layers.lookup import IntegerLookup, StringLookup
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
from picodl.layers.mixing import CutMix, MixUp, RandomErasing
from picodl.layers.pipeline import Pipeline
from picodl.layers.position import (
    AlibiBias,
    PositionEmbedding,
    RotaryEmbedding,
    SinePositionEncoding,
    TokenAndPositionEmbedding,
)
from picodl.layers.normalization import (
    BatchNormalization,
    GroupNormalization,
    LayerNormalization,
    RMSNormalization,
    UnitNormalization,
)
from picodl.layers.pooling import (
    AdaptiveAveragePooling1D,
    AdaptiveAveragePooling2D,
    AdaptiveMaxPooling1D,
    AdaptiveMaxPooling2D,
    AveragePooling1D,
    AveragePooling2D,
    AveragePooling3D,
    GlobalAveragePooling1D,
    GlobalAveragePooling2D,
    GlobalAveragePooling3D,
    GlobalMaxPooling1D,
    GlobalMaxPooling2D,
    GlobalMaxPooling3D,
    MaxPooling1D,
    MaxPooling2D,
    MaxPooling3D,
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
from picodl.layers.resampling import (
    Cropping1D,
    Cropping2D,
    Cropping3D,
    Padding1D,
    Padding2D,
    Padding3D,
    UpSampling1D,
    UpSampling2D,
    UpSampling3D,
    ZeroPadding1D,
    ZeroPadding2D,
    ZeroPadding3D,
)
from picodl.layers.reshaping import Flatten, Permute, RepeatVector, Reshape
from picodl.layers.scaling import Normalization, Rescaling

from picodl.layers.simple_attention import AdditiveAttention, Attention
from picodl.layers.text import TextVectorization
from picodl.layers.transformer import TransformerDecoder, TransformerEncoder
from picodl.layers.spatial_dropout import SpatialDropout1D, SpatialDropout2D, SpatialDropout3D
from picodl.layers.spectral import SpectralNormalization
from picodl.layers.wrappers import Bidirectional, TimeDistributed
from picodl.saving import registry, serialization
from picodl.typing import Config

# the names that Keras also gives to these classes
Convolution1D, Convolution2D, Convolution3D = Conv1D, Conv2D, Conv3D
Convolution1DTranspose, Convolution2DTranspose = Conv1DTranspose, Conv2DTranspose
Convolution3DTranspose = Conv3DTranspose
SeparableConvolution1D, SeparableConvolution2D = SeparableConv1D, SeparableConv2D
MaxPool1D, MaxPool2D, MaxPool3D = MaxPooling1D, MaxPooling2D, MaxPooling3D
AvgPool1D, AvgPool2D, AvgPool3D = AveragePooling1D, AveragePooling2D, AveragePooling3D
GlobalMaxPool1D, GlobalMaxPool2D = GlobalMaxPooling1D, GlobalMaxPooling2D
GlobalMaxPool3D = GlobalMaxPooling3D
GlobalAvgPool1D, GlobalAvgPool2D = GlobalAveragePooling1D, GlobalAveragePooling2D
GlobalAvgPool3D = GlobalAveragePooling3D

__all__ = [
    "CategoryEncoding",
    "Discretization",
    "HashedCrossing",
    "Hashing",
    "IntegerLookup",
    "StringLookup",
    "TextVectorization",
    "Conv1D",
    "Conv2D",
    "Conv3D",
    "DepthwiseConv1D",
    "DepthwiseConv2D",
    "SeparableConv1D",
    "SeparableConv2D",
    "Conv1DTranspose",
    "Conv2DTranspose",
    "Conv3DTranspose",
    "CenterCrop",
    "CutMix",
    "MixUp",
    "Pipeline",
    "RandomBrightness",
    "RandomContrast",
    "RandomCrop",
    "RandomErasing",
    "RandomFlip",
    "RandomRotation",
    "RandomTranslation",
    "RandomZoom",
    "Resizing",
    "BatchNormalization",
    "GroupNormalization",
    "LayerNormalization",
    "RMSNormalization",
    "UnitNormalization",
    "AdaptiveAveragePooling1D",
    "AdaptiveAveragePooling2D",
    "AdaptiveMaxPooling1D",
    "AdaptiveMaxPooling2D",
    "AveragePooling1D",
    "AveragePooling2D",
    "AveragePooling3D",
    "GlobalAveragePooling1D",
    "GlobalAveragePooling2D",
    "GlobalAveragePooling3D",
    "GlobalMaxPooling1D",
    "GlobalMaxPooling2D",
    "GlobalMaxPooling3D",
    "MaxPooling1D",
    "MaxPooling2D",
    "MaxPooling3D",
    "Cropping1D",
    "Cropping2D",
    "Cropping3D",
    "Padding1D",
    "Padding2D",
    "Padding3D",
    "UpSampling1D",
    "UpSampling2D",
    "UpSampling3D",
    "ZeroPadding1D",
    "ZeroPadding2D",
    "ZeroPadding3D",
    "Permute",
    "RepeatVector",
    "SpatialDropout1D",
    "SpatialDropout2D",
    "SpatialDropout3D",
    "SpectralNormalization",
    "Convolution1D",
    "Convolution2D",
    "Convolution3D",
    "Convolution1DTranspose",
    "Convolution2DTranspose",
    "Convolution3DTranspose",
    "SeparableConvolution1D",
    "SeparableConvolution2D",
    "MaxPool1D",
    "MaxPool2D",
    "MaxPool3D",
    "AvgPool1D",
    "AvgPool2D",
    "AvgPool3D",
    "GlobalMaxPool1D",
    "GlobalMaxPool2D",
    "GlobalMaxPool3D",
    "GlobalAvgPool1D",
    "GlobalAvgPool2D",
    "GlobalAvgPool3D",
    "ConvLSTM1D",
    "ConvLSTM2D",
    "AlibiBias",
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
