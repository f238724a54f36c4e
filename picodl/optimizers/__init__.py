"""Rules that change weights by their gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from picodl.families import Family
from picodl.optimizers import schedules
from picodl.optimizers.adagrad import Adadelta, Adagrad, Ftrl
from picodl.optimizers.adam import Adam, AdamW
from picodl.optimizers.adamax import Adamax, Nadam
from picodl.optimizers.base import Optimizer
from picodl.optimizers.lamb import Adafactor, Lamb
from picodl.optimizers.lbfgs import LBFGS
from picodl.optimizers.lion import Lion
from picodl.optimizers.muon import Muon
from picodl.optimizers.rmsprop import RMSprop
from picodl.optimizers.schedule_free import ScheduleFreeAdamW
from picodl.optimizers.sgd import SGD
from picodl.optimizers.wrappers import LossScaleOptimizer, MultiOptimizer, OptimizerMap

__all__ = [
    "Optimizer",
    "SGD",
    "RMSprop",
    "Adam",
    "AdamW",
    "Adamax",
    "Nadam",
    "Adagrad",
    "Adadelta",
    "Ftrl",
    "Lion",
    "Lamb",
    "Adafactor",
    "Muon",
    "ScheduleFreeAdamW",
    "LBFGS",
    "LossScaleOptimizer",
    "MultiOptimizer",
    "OptimizerMap",
    "schedules",
    "get",
    "serialize",
    "deserialize",
]

_members: list[type] = [SGD, RMSprop, Adam, AdamW, Adamax, Nadam, Adagrad, Adadelta, Ftrl]
_members += [Lion, Lamb, Adafactor, Muon, ScheduleFreeAdamW]
_others: list[type] = [LBFGS, LossScaleOptimizer, MultiOptimizer, OptimizerMap]
_family = Family("optimizer", "keras.optimizers", Optimizer, _members + _others, any_case=True)


def get(identifier: Any) -> Any:
    """The optimizer for a name (in any case), a config or a class; an optimizer is itself.

    Raises:
        TypeError: for anything else.
        ValueError: for an unknown name; the nearest known one is suggested.

    >>> get("Adam").beta_1
    0.9
    """
    found = _family.get(identifier)
    if found is not None and not isinstance(found, Optimizer):
        raise TypeError(f"Expected an optimizer; received {identifier!r}.")
    return found


def serialize(optimizer: Any) -> Any:
    """The config of an optimizer, as Keras writes it."""
    return _family.serialize(optimizer)


def deserialize(config: Any, custom_objects: Mapping[str, Any] | None = None) -> Any:
    """The optimizer of a config, without state."""
    return _family.deserialize(config, custom_objects)
