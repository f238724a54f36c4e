"""picodl: deep learning in plain Python on numpy.

Keras's API, an autograd engine that reads in an evening, and training that is fast on a CPU.
Everything here is imported when it is first used, so that `import picodl` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from picodl import config as config  # settings must be there before anything else

if TYPE_CHECKING:
    from picodl import activations, backend, callbacks, compiled, constraints, datasets
    from picodl import diagnostics, distillation, dtype_policies, ensembles, export
    from picodl import initializers
    from picodl import layers, losses, metrics, mixed_precision, models, ops, optimizers
    from picodl import preprocessing
    from picodl import random, regularizers
    from picodl import saving, scalar, tensor, testing, tree, utils, visualize, wrappers
    from picodl.config import DTypePolicy, device
    from picodl.gradient import grad, jacobian, per_sample_grad, value_and_grad
    from picodl.initializers import Initializer
    from picodl.inspection import explain
    from picodl.layers import Input, InputSpec, Layer
    from picodl.losses import Loss
    from picodl.metrics import Metric
    from picodl.models import Function, Functional, Model, Sequential
    from picodl.module import Module, Variable
    from picodl.naming import name_scope
    from picodl.operation import Operation
    from picodl.ops import custom_gradient
    from picodl.optimizers import Optimizer
    from picodl.population import Population
    from picodl.regularizers import Regularizer
    from picodl.stand_in import as_keras
    from picodl.stateless import StatelessScope
    from picodl.symbolic import KerasTensor
    from picodl.tensor import Tensor, enable_grad, no_grad

__version__ = "0.1.0"

_MODULES = [
    "activations", "backend", "callbacks", "compiled", "config", "constraints", "datasets",
    "diagnostics", "distillation", "dtype_policies", "ensembles", "export", "initializers",
    "layers", "losses", "metrics", "mixed_precision", "models", "naming", "ops", "optimizers",
    "parallel", "preprocessing", "random", "regularizers", "saving", "scalar", "tensor", "testing",
    "tree", "utils", "visualize", "wrappers",
]  # fmt: skip
_NAMES = {
    "config": "DTypePolicy device",
    "gradient": "grad jacobian per_sample_grad value_and_grad",
    "initializers": "Initializer",
    "inspection": "explain",
    "layers": "Input InputSpec Layer",
    "losses": "Loss",
    "metrics": "Metric",
    "models": "Function Functional Model Sequential",
    "module": "Module Variable",
    "naming": "name_scope",
    "operation": "Operation",
    "ops": "custom_gradient",
    "optimizers": "Optimizer",
    "population": "Population",
    "regularizers": "Regularizer",
    "stand_in": "as_keras",
    "stateless": "StatelessScope",
    "symbolic": "KerasTensor",
    "tensor": "Tensor enable_grad no_grad",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "DTypePolicy", "Function", "Functional", "Initializer", "Input", "InputSpec", "KerasTensor",
    "Layer", "Loss", "Metric", "Model", "Module", "Operation", "Optimizer", "Population",
    "Regularizer", "Sequential", "StatelessScope", "Tensor", "Variable", "activations", "as_keras",
    "backend", "callbacks", "config", "constraints", "custom_gradient", "datasets", "device",
    "diagnostics", "distillation", "dtype_policies", "enable_grad", "ensembles", "explain",
    "export", "grad", "initializers", "jacobian", "layers", "losses", "metrics", "mixed_precision",
    "models", "name_scope", "no_grad", "ops", "optimizers", "per_sample_grad", "preprocessing",
    "random", "regularizers", "saving", "scalar", "tensor", "testing", "tree", "utils",
    "value_and_grad", "version", "visualize", "wrappers",
]  # fmt: skip


def version() -> str:
    """The version of picodl."""
    return __version__


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"picodl.{name}")
    if name in _HOME:
        found = getattr(importlib.import_module(f"picodl.{_HOME[name]}"), name)
        globals()[name] = found
        return found
    raise AttributeError(f"module 'picodl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
