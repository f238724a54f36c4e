"""Limits on weights, imposed after each step of an optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from picodl import config, ops
from picodl.families import Family
from picodl.typing import Axis, Config


class Constraint:
    """Base class: an object called as `f(w)` that gives the weights to use in place of w; here w.

    >>> class AtMostOne(Constraint):
    ...     def __call__(self, w):
    ...         return ops.minimum(w, 1.0)
    """

    def __call__(self, w: Any) -> Any:
        """The constrained weights."""
        return w

    def get_config(self) -> Config:
        """The arguments that make the same constraint again."""
        return {}

    @classmethod
    def from_config(cls, config: Config) -> Any:
        """The constraint of a config."""
        return cls(**config)


class MaxNorm(Constraint):
    """w * clip(norm, 0, max_value) / (epsilon + norm): norms of at most max_value.

    Args:
        max_value: the largest norm. Defaults to 2.
        axis: the axes a norm is taken over: 0 for the inputs of each unit of a Dense layer,
            [0, 1, 2] for a Conv2D kernel. Defaults to 0.

    Reference: Srivastava et al., 2014, "Dropout: A Simple Way to Prevent Neural Networks from
    Overfitting".
    """

    def __init__(self, max_value: float = 2, axis: Axis = 0) -> None:
        self.max_value = max_value
        self.axis = axis

    def __call__(self, w: Any) -> Any:
        norms = _norms(w, self.axis)
        wanted = ops.clip(norms, 0, self.max_value)
        return ops.multiply(w, ops.divide(wanted, ops.add(norms, config.epsilon())))

    def get_config(self) -> Config:
        return {"max_value": self.max_value, "axis": self.axis}


class MinMaxNorm(Constraint):
    """Norms pulled between two limits: rate * clip(norm, min, max) + (1 - rate) * norm.

    Args:
        min_value: the smallest norm. Defaults to 0.
        max_value: the largest norm. Defaults to 1.
        rate: how much of the way a norm outside goes in one step, from 0 to 1. Defaults to 1.
        axis: the axes a norm is taken over; see `MaxNorm`.
    """

    def __init__(
        self,
        min_value: float = 0.0,
        max_value: float = 1.0,
        rate: float = 1.0,
        axis: Axis = 0,
    ) -> None:
        self.min_value = min_value
        self.max_value = max_value
        self.rate = rate
        self.axis = axis

    def __call__(self, w: Any) -> Any:
        norms = _norms(w, self.axis)
        inside = ops.clip(norms, self.min_value, self.max_value)
        wanted = ops.add(ops.multiply(inside, self.rate), ops.multiply(norms, 1 - self.rate))
        return ops.multiply(w, ops.divide(wanted, ops.add(norms, config.epsilon())))

    def get_config(self) -> Config:
        return {
            "min_value": self.min_value,
            "max_value": self.max_value,
            "rate": self.rate,
            "axis": self.axis,
        }


class NonNeg(Constraint):
    """max(w, 0).

    >>> import numpy as np
    >>> NonNeg()(np.array([-1.0, 2.0]))
    array([0., 2.])
    """

    def __call__(self, w: Any) -> Any:
        return ops.maximum(w, 0)


class UnitNorm(Constraint):
    """w / (epsilon + norm): norms of 1.

    Args:
        axis: the axes a norm is taken over; see `MaxNorm`.
    """

    def __init__(self, axis: Axis = 0) -> None:
        self.axis = axis

    def __call__(self, w: Any) -> Any:
        return ops.divide(w, ops.add(_norms(w, self.axis), config.epsilon()))

    def get_config(self) -> Config:
        return {"axis": self.axis}


def _norms(w: Any, axis: Axis) -> Any:
    return ops.sqrt(ops.sum(ops.square(w), axis=axis, keepdims=True))


# -------------------------------------------------------------------- by name

_family = Family(
    "constraint", "keras.constraints", Constraint, [MaxNorm, MinMaxNorm, NonNeg, UnitNorm]
)


def get(identifier: Any) -> Any:
    """The constraint for a name, a config, a class, a callable or None.

    Raises:
        TypeError: for anything else.
        ValueError: for an unknown name; the nearest known one is suggested.

    >>> get("max_norm").max_value
    2
    """
    return _family.get(identifier)


def serialize(constraint: Any) -> Any:
    """The config of a constraint, as Keras writes it."""
    return _family.serialize(constraint)


def deserialize(config: Any, custom_objects: Mapping[str, Any] | None = None) -> Any:
    """The constraint of a config."""
    return _family.deserialize(config, custom_objects)


def __getattr__(name: str) -> Any:  # max_norm and the like: Keras's other names of the classes
    if name in _family.by_name:
        return _family.by_name[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
