"""Penalties on weights, added to the loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from picodl import ops
from picodl.families import Family
from picodl.ops.core import op
from picodl.tensor import Tensor, record, value
from picodl.typing import Config


class Regularizer:
    """Base class: an object called as `f(x)` that gives a scalar.

    >>> class Largest(Regularizer):
    ...     def __call__(self, x):
    ...         return ops.max(ops.abs(x))
    >>> float(Largest()(np.array([1.0, -3.0])))
    3.0
    """

    def __call__(self, x: Any) -> Any:
        """The penalty.

        Raises:
            NotImplementedError: unless a subclass defines it.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define __call__(x).")

    def get_config(self) -> Config:
        """The arguments that make the same regularizer again."""
        return {}

    @classmethod
    def from_config(cls, config: Config) -> Any:
        """The regularizer of a config."""
        return cls(**config)


class L1L2(Regularizer):
    """l1 * sum(abs(x)) + l2 * sum(x**2).

    Args:
        l1: factor of the absolute values. Defaults to 0.
        l2: factor of the squares. Defaults to 0.

    Raises:
        ValueError: for a negative factor, or one that is not a number.
    """

    def __init__(self, l1: float = 0.0, l2: float = 0.0) -> None:
        self.l1 = _factor(self, "l1", 0.0 if l1 is None else l1)
        self.l2 = _factor(self, "l2", 0.0 if l2 is None else l2)

    def __call__(self, x: Any) -> Any:
        return penalty(x, self.l1, self.l2)

    def get_config(self) -> Config:
        return {"l1": self.l1, "l2": self.l2}


class L1(Regularizer):
    """l1 * sum(abs(x)).

    Args:
        l1: the factor. Defaults to 0.01.

    Raises:
        ValueError: for a negative factor, or one that is not a number.
    """

    def __init__(self, l1: float = 0.01) -> None:
        self.l1 = _factor(self, "l1", 0.01 if l1 is None else l1)

    def __call__(self, x: Any) -> Any:
        return penalty(x, self.l1, 0.0)

    def get_config(self) -> Config:
        return {"l1": self.l1}


class L2(Regularizer):
    """l2 * sum(x**2), without a factor of one half.

    Args:
        l2: the factor. Defaults to 0.01.

    Raises:
        ValueError: for a negative factor, or one that is not a number.

    >>> float(L2(0.5)(np.array([1.0, 2.0])))
    2.5
    """

    def __init__(self, l2: float = 0.01) -> None:
        self.l2 = _factor(self, "l2", 0.01 if l2 is None else l2)

    def __call__(self, x: Any) -> Any:
        return penalty(x, 0.0, self.l2)

    def get_config(self) -> Config:
        return {"l2": self.l2}


class OrthogonalRegularizer(Regularizer):
    """factor * the mean absolute cosine between two rows (or columns) of a matrix.

    Args:
        factor: the factor. Defaults to 0.01.
        mode: "rows" or "columns": which of them should be orthogonal. Defaults to "rows".

    Raises:
        ValueError: for a negative factor or an unknown mode; when called, unless x is of rank 2.
    """

    def __init__(self, factor: float = 0.01, mode: str = "rows") -> None:
        if mode not in ("rows", "columns"):
            raise ValueError(
                f'OrthogonalRegularizer: mode must be "rows" or "columns"; received {mode!r}.'
            )
        self.factor = _factor(self, "factor", factor)
        self.mode = mode

    def __call__(self, x: Any) -> Any:
        if len(x.shape) != 2:
            raise ValueError(
                f"OrthogonalRegularizer needs a matrix; received shape {tuple(x.shape)}."
            )
        rows = x if self.mode == "rows" else ops.transpose(x)
        count = rows.shape[0]
        norms = ops.sqrt(ops.sum(ops.square(rows), axis=1, keepdims=True))
        unit = ops.divide(rows, ops.maximum(norms, 1e-12))
        cosines = ops.abs(ops.matmul(unit, ops.transpose(unit)))
        others = ops.multiply(cosines, 1 - np.eye(count, dtype=str(x.dtype)))
        return ops.multiply(ops.sum(others), self.factor / max(1, count * (count - 1)))

    def get_config(self) -> Config:
        return {"factor": self.factor, "mode": self.mode}


@op
def penalty(x: Tensor, l1: float, l2: float) -> Tensor:
    """y = l1 * sum(abs(x)) + l2 * sum(x**2).

    Gradient: dx = g * (l1 * sign(x) + 2 * l2 * x), with sign(0) = 0.
    """
    flat = x.data.ravel()
    y = l2 * flat.dot(flat) if l2 else 0.0
    if l1:
        y += l1 * np.add.reduce(np.abs(flat))

    def backward(g: Any) -> Any:
        slope = (2.0 * l2) * value(x, g)
        if l1:
            slope = slope + l1 * np.sign(x.data)
        return (g * slope,)

    return record(np.asarray(y, x.data.dtype), (x,), backward)


def _factor(owner: Any, argument: str, given: Any) -> float:
    number = isinstance(given, (int, float, np.number)) and not isinstance(given, bool)
    if not number or not 0 <= given < np.inf:
        raise ValueError(
            f"{type(owner).__name__}: {argument} must be a number that is not negative; "
            f"received {given!r}."
        )
    return float(given)


# -------------------------------------------------------------------- by name

_family = Family(
    "regularizer",
    "keras.regularizers",
    Regularizer,
    [L1, L2, L1L2, OrthogonalRegularizer],
    {"l1l2": L1L2, "l1_l2": L1L2},
)


def get(identifier: Any) -> Any:
    """The regularizer for a name, a config, a class, a callable or None.

    Raises:
        TypeError: for anything else.
        ValueError: for an unknown name; the nearest known one is suggested.

    >>> get("l2").l2
    0.01
    """
    return _family.get(identifier)


def serialize(regularizer: Any) -> Any:
    """The config of a regularizer, as Keras writes it."""
    return _family.serialize(regularizer)


def deserialize(config: Any, custom_objects: Mapping[str, Any] | None = None) -> Any:
    """The regularizer of a config."""
    return _family.deserialize(config, custom_objects)


def __getattr__(name: str) -> Any:  # l1_l2 and the like: Keras's other names of the classes
    if name in _family.by_name:
        return _family.by_name[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
