"""class_weight: a weight for each class, turned into a weight for each sample."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from picodl import config
from picodl.typing import Array


def check_class_weight(class_weight: Any, sample_weight: Any) -> None:
    """Refuse a class_weight that could not be applied.

    Raises:
        TypeError: unless it is a dict.
        ValueError: for keys that are no classes, weights that are no numbers, or a sample_weight
            beside it.
    """
    if class_weight is None:
        return
    if not isinstance(class_weight, dict):
        raise TypeError(
            f"class_weight must be a dict such as {{0: 1.0, 1: 2.0}}; received {class_weight!r}."
        )
    for key, value in class_weight.items():
        if isinstance(key, bool) or not isinstance(key, (int, np.integer)) or key < 0:
            raise ValueError(
                f"class_weight must have the integer classes for keys; received the key {key!r}."
            )
        if not isinstance(value, (int, float, np.number)) or not 0 <= value < math.inf:
            raise ValueError(
                f"class_weight must hold finite numbers of at least 0; received {value!r} for the "
                f"class {key}."
            )
    if not class_weight:
        raise ValueError("class_weight is empty; expected a dict such as {0: 1.0, 1: 2.0}.")
    if sample_weight is not None:
        raise ValueError(
            "class_weight and sample_weight cannot be combined; multiply the weights yourself and "
            "pass them as sample_weight."
        )


def class_weights(class_weight: dict[int, float], y: Any) -> Array:
    """The weight of each sample's class.

    Args:
        class_weight: {class: weight}.
        y: integer labels (n,) or (n, 1), or one-hot rows (n, classes).

    Raises:
        ValueError: for several outputs, labels that are none, and classes without a weight.

    >>> class_weights({0: 1.0, 1: 5.0}, np.array([0, 1, 1])).tolist()
    [1.0, 5.0, 5.0]
    """
    if y is None:
        raise ValueError("class_weight needs the labels in y; received no y.")
    if isinstance(y, (list, tuple, dict)):
        raise ValueError(
            "class_weight works with one output only, but y has several; pass a sample_weight for "
            "each output instead."
        )
    labels = y.read(0, len(y)) if hasattr(y, "read") else y
    if labels.ndim == 2 and labels.shape[1] > 1:
        if not np.allclose(labels.sum(1), 1, atol=1e-3) or labels.min() < 0:
            raise ValueError(
                f"class_weight needs one class for each sample: y of shape {labels.shape} must "
                "have one-hot rows. Pass sample_weight instead."
            )
        labels = labels.argmax(1)
    elif labels.ndim > 2 or (labels.ndim == 2 and labels.shape[1] != 1):
        raise ValueError(
            f"class_weight needs one class for each sample, but y has the shape {labels.shape}. "
            "Pass sample_weight instead."
        )
    classes, places = np.unique(labels, return_inverse=True)
    if (classes != np.floor(classes)).any():
        raise ValueError("class_weight needs integer labels, but y holds fractional values.")
    missing = [int(c) for c in classes if int(c) not in class_weight]
    if missing:
        raise ValueError(
            f"class_weight has no weight for the classes {', '.join(map(str, missing[:10]))} of y; "
            f"its keys are {', '.join(map(str, class_weight))}. Add the missing ones."
        )
    table = np.array([class_weight[int(c)] for c in classes], config.floatx())
    return table[places.reshape(-1)]
