"""How often predictions are right."""

from __future__ import annotations

from typing import Any

import numpy as np

from picodl.losses.base import same_rank
from picodl.metrics.base import MeanMetricWrapper, Metric, plain
from picodl.typing import Array

# -------------------------------------------------------------------- right or not, one by one


def accuracy(y_true: Any, y_pred: Any) -> Array:
    """Whether prediction and target are equal, elementwise.

    Raises:
        ValueError: if the shapes differ.
    """
    t, p = matched("accuracy", y_true, y_pred)
    return t == p


def binary_accuracy(y_true: Any, y_pred: Any, threshold: float = 0.5) -> Array:
    """Whether (prediction > threshold) is the target, elementwise.

    Raises:
        ValueError: if the shapes differ.
    """
    t, p = matched("binary_accuracy", y_true, y_pred)
    return t == (p > threshold)


def categorical_accuracy(y_true: Any, y_pred: Any) -> Array:
    """Whether target and prediction are largest in the same place: (..., classes) -> (...).

    Raises:
        ValueError: if the shapes differ.
    """
    t, p = matched("categorical_accuracy", y_true, y_pred)
    return t.argmax(-1) == p.argmax(-1)


def sparse_categorical_accuracy(y_true: Any, y_pred: Any) -> Array:
    """Whether the prediction is largest at the target's class number: (..., classes) -> (...).

    Raises:
        ValueError: if the shapes do not fit.
    """
    p = plain(y_pred)
    return _numbers("sparse_categorical_accuracy", y_true, p) == p.argmax(-1)


def top_k_categorical_accuracy(y_true: Any, y_pred: Any, k: int = 5) -> Array:
    """Whether the target's largest place is among the k largest predictions, for each sample.

    Raises:
        ValueError: if the shapes differ.
    """
    t, p = matched("top_k_categorical_accuracy", y_true, y_pred)
    return sparse_top_k_categorical_accuracy(t.argmax(-1), p, k)


def sparse_top_k_categorical_accuracy(
    y_true: Any, y_pred: Any, k: int = 5, from_sorted_ids: bool = False
) -> Array:
    """Whether fewer than k predictions are larger than that of the target's class, for each sample.

    Args:
        y_true: class numbers.
        y_pred: a score for each class, or with from_sorted_ids class numbers, best first.
        k: how many count.
        from_sorted_ids: what y_pred holds.

    Raises:
        ValueError: if the shapes do not fit.
    """
    p = plain(y_pred)
    t = _numbers("sparse_top_k_categorical_accuracy", y_true, p)[..., None]
    if from_sorted_ids:
        return (p[..., :k] == t).any(-1)
    known = (t >= 0) & (t < p.shape[-1])
    score = np.take_along_axis(p, np.where(known, t, 0).astype(np.intp), -1)
    return ((p > score).sum(-1) < k) & (known & np.isfinite(score))[..., 0]


def matched(name: str, y_true: Any, y_pred: Any) -> tuple[Array, Array]:
    """Targets and predictions in one shape: (batch,) and (batch, 1) are aligned.

    Raises:
        ValueError: if the shapes differ otherwise.
    """
    t, p = plain(y_true), plain(y_pred)
    if t.shape != p.shape:
        t, p = same_rank(t, p)
        if t.shape != p.shape:
            raise ValueError(
                f"{name}: targets (y_true) of shape {np.shape(y_true)} do not fit predictions "
                f"(y_pred) of shape {np.shape(y_pred)}. Give both the same shape."
            )
    return t, p


def _numbers(name: str, y_true: Any, p: Array) -> Array:
    """Class numbers of the shape of the predictions without their last axis."""
    t = plain(y_true)
    if t.ndim and t.shape == (*p.shape[:-1], 1):
        return t[..., 0]
    if p.ndim == 0 or t.shape != p.shape[:-1]:
        hint = " One-hot targets belong to CategoricalAccuracy." if t.shape == p.shape else ""
        raise ValueError(
            f"{name}: class numbers (y_true) of shape {t.shape} do not fit predictions (y_pred) of "
            f"shape {p.shape}; expected {p.shape[:-1]}.{hint}"
        )
    return t


# -------------------------------------------------------------------- metrics


class Accuracy(MeanMetricWrapper):
    """How often prediction and target are equal.

    Args: name, dtype: see `Metric`.
    """

    direction = "up"

    def __init__(self, name: str | None = "accuracy", dtype: Any = None) -> None:
        super().__init__(accuracy, name, dtype)


class BinaryAccuracy(MeanMetricWrapper):
    """How often (prediction > threshold) is the target.

    Args:
        name, dtype: see `Metric`.
        threshold: between the two answers.
    """

    direction = "up"

    def __init__(
        self, name: str | None = "binary_accuracy", dtype: Any = None, threshold: float = 0.5
    ) -> None:
        if not isinstance(threshold, (int, float)) or not 0 <= threshold <= 1:
            raise ValueError(
                f"BinaryAccuracy: threshold must lie between 0 and 1; received {threshold!r}."
            )
        super().__init__(binary_accuracy, name, dtype, threshold=threshold)


class CategoricalAccuracy(MeanMetricWrapper):
    """How often the prediction is largest at the class of a one-hot target.

    Args: name, dtype: see `Metric`.
    """

    direction = "up"

    def __init__(self, name: str | None = "categorical_accuracy", dtype: Any = None) -> None:
        super().__init__(categorical_accuracy, name, dtype)


class SparseCategoricalAccuracy(MeanMetricWrapper):
    """How often the prediction is largest at the class whose number is the target.

    Args: name, dtype: see `Metric`.

    >>> SparseCategoricalAccuracy()(np.array([0, 2]), np.array([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3]]))
    0.5
    """

    direction = "up"

    def __init__(self, name: str | None = "sparse_categorical_accuracy", dtype: Any = None) -> None:
        super().__init__(sparse_categorical_accuracy, name, dtype)


class TopKCategoricalAccuracy(MeanMetricWrapper):
    """How often the class of a one-hot target is among the k largest predictions.

    Args:
        k: how many count.
        name, dtype: see `Metric`.
    """

    direction = "up"

    def __init__(
        self, k: int = 5, name: str | None = "top_k_categorical_accuracy", dtype: Any = None
    ) -> None:
        super().__init__(top_k_categorical_accuracy, name, dtype, k=check_k(self, k))


class SparseTopKCategoricalAccuracy(MeanMetricWrapper):
    """How often the class whose number is the target is among the k largest predictions.

    Args:
        k: how many count.
        name, dtype: see `Metric`.
        from_sorted_ids: whether predictions are class numbers, best first, in place of scores.
    """

    direction = "up"

    def __init__(
        self,
        k: int = 5,
        name: str | None = "sparse_top_k_categorical_accuracy",
        dtype: Any = None,
        from_sorted_ids: bool = False,
    ) -> None:
        super().__init__(
            sparse_top_k_categorical_accuracy,
            name,
            dtype,
            k=check_k(self, k),
            from_sorted_ids=from_sorted_ids,
        )


def check_k(metric: Metric, k: Any) -> int:
    """A positive whole number.

    Raises:
        ValueError: for anything else.
    """
    if not isinstance(k, (int, np.integer)) or k < 1:
        raise ValueError(f"{type(metric).__name__}: k must be a positive integer; received {k!r}.")
    return int(k)


def accuracy_for(y_true_shape: Any, y_pred_shape: Any) -> type[MeanMetricWrapper]:
    """The class that "accuracy" stands for, by the shapes of targets and predictions.

    >>> accuracy_for((32,), (32, 10)).__name__, accuracy_for((32, 1), (32, 1)).__name__
    ('SparseCategoricalAccuracy', 'BinaryAccuracy')
    """
    t, p = tuple(y_true_shape), tuple(y_pred_shape)
    if not p or p[-1] == 1:
        return BinaryAccuracy
    if len(t) < len(p) or t[-1] == 1:
        return SparseCategoricalAccuracy
    return CategoricalAccuracy
