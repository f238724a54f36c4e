"""Checks of class numbers and of the axis they belong to."""

from __future__ import annotations

import numpy as np

from picodl.typing import Array


def class_numbers(name: str, target: Array, shape: tuple[int, ...], classes: int) -> Array:
    """The target of the loss of that name as whole numbers from 0 to classes - 1 in a shape.

    Raises:
        TypeError: for data that is not numeric.
        ValueError: for another shape, fractions, or a number out of range.
    """
    t = np.asarray(target)
    if t.shape != shape:
        if t.shape != (*shape, 1):
            hint = (
                " One-hot targets belong to CategoricalCrossentropy."
                if t.shape == (*shape, classes)
                else ""
            )
            raise ValueError(
                f"{name}: expected class numbers (targets) of shape {shape} for predictions of "
                f"{classes} classes; received targets of shape {t.shape}.{hint}"
            )
        t = t.reshape(shape)
    ids = whole_numbers(name, t)
    if (
        ids.size and np.maximum.reduce(ids.view(np.uintp), None) >= classes
    ):  # negative ones are huge in this view
        hint = " One output unit: BinaryCrossentropy takes labels 0 and 1." if classes == 1 else ""
        raise ValueError(
            f"{name}: labels (targets) must lie in the range 0 to {classes - 1} for predictions of "
            f"{classes} classes; received labels from {ids.min()} to {ids.max()}.{hint} To leave "
            "padding out, use ignore_class or a sample_weight of 0 with a valid label."
        )
    return ids


def whole_numbers(name: str, labels: Array) -> Array:
    """The labels of the loss or metric of that name, as intp.

    Raises:
        TypeError: for data that is not numeric.
        ValueError: for fractions, NaN and infinities.
    """
    kind = labels.dtype.kind
    if kind in "iub":
        return labels.astype(np.intp, copy=False)
    if kind != "f":
        raise TypeError(f"{name}: labels (targets) must be numbers; received dtype {labels.dtype}.")
    with np.errstate(invalid="ignore"):
        ids = labels.astype(np.intp)
    if not np.array_equal(ids, labels):
        odd = labels[ids != labels].flat[0]
        raise ValueError(
            f"{name}: labels (targets) must be whole numbers; received {odd}. Probabilities of "
            "classes belong to CategoricalCrossentropy."
        )
    return ids


def class_axis(shape: tuple[int, ...], axis: int, name: str) -> int:
    """The axis of the classes counted from the left.

    Raises:
        ValueError: if there is none, or no class along it.
    """
    ndim = len(shape)
    if not -ndim <= axis < ndim or shape[axis] == 0:
        raise ValueError(
            f"{name} needs predictions with classes along axis {axis}; received shape {shape}."
        )
    return axis % ndim
