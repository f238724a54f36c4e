"""Layers, under Keras's names."""

from picodl.layers.activation import ELU, GELU, LeakyReLU, PReLU, ReLU, Softmax
from picodl.layers.base import Layer
from picodl.layers.core import Activation, Identity, Input, InputLayer, Lambda, Wrapper
from picodl.layers.dense import Dense, Linear
from picodl.layers.input_spec import InputSpec
from picodl.layers.regularization import (
    ActivityRegularization,
    AlphaDropout,
    Dropout,
    GaussianDropout,
    GaussianNoise,
)
from picodl.layers.reshaping import Flatten, Reshape
from picodl.layers.scaling import Normalization, Rescaling

__all__ = [
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
]
