"""picodl: deep learning in plain Python on numpy.

Keras's API, an autograd engine that reads in an evening, and training that is fast on a CPU.
"""

from __future__ import annotations

import importlib
from typing import Any

from picodl import (
    activations,
    callbacks,
    config,
    constraints,
    initializers,
    layers,
    losses,
    metrics,
    models,
    ops,
    optimizers,
    random,
    regularizers,
    tensor,
    tree,
    utils,
)
from picodl.config import DTypePolicy
from picodl.gradient import grad, jacobian, per_sample_grad, value_and_grad
from picodl.initializers import Initializer
from picodl.layers import Input, InputSpec, Layer
from picodl.losses import Loss
from picodl.metrics import Metric
from picodl.models import Functional, Model, Sequential
from picodl.module import Module
from picodl.module import Parameter as Variable
from picodl.naming import name_scope
from picodl.ops import custom_gradient
from picodl.optimizers import Optimizer
from picodl.regularizers import Regularizer
from picodl.symbolic import Symbol as KerasTensor
from picodl.tensor import Tensor, enable_grad, no_grad

__version__ = "0.1.0"


def version() -> str:
    """The version of picodl."""
    return __version__


# imported when first used: what a training script may not need
_LAZY = ("backend", "datasets", "export", "saving", "scalar", "testing", "visualize", "wrappers")
_LAZY_NAMES = {"explain": "inspection", "Population": "population"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return importlib.import_module(f"picodl.{name}")
    if name in _LAZY_NAMES:
        return getattr(importlib.import_module(f"picodl.{_LAZY_NAMES[name]}"), name)
    raise AttributeError(f"module 'picodl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY, *_LAZY_NAMES])


__all__ = [
    "DTypePolicy", "Functional", "Initializer", "Input", "InputSpec", "KerasTensor", "Layer",
    "Loss", "Metric", "Model", "Module", "Optimizer", "Regularizer", "Sequential", "Tensor",
    "Variable", "activations", "callbacks", "config", "constraints", "custom_gradient",
    "enable_grad", "initializers", "layers", "losses", "metrics", "models", "name_scope",
    "no_grad", "ops", "optimizers", "random", "regularizers", "tensor", "tree", "utils", "version",
]  # fmt: skip
