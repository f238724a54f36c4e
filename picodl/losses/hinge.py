"""Losses of margins: right answers by a distance of at least 1."""

from __future__ import annotations

from typing import Any

from picodl import ops
from picodl.losses.base import LossFunctionWrapper, loss_function, matched
from picodl.tensor import Tensor


@loss_function
def hinge(y_true: Tensor, y_pred: Tensor) -> Tensor:
    """The values of the loss `Hinge`: (..., n) -> (...)."""
    t, p = matched("hinge", y_true, y_pred)
    return ops.mean(ops.relu(1 - _signs(t) * p), -1)


@loss_function
def squared_hinge(y_true: Tensor, y_pred: Tensor) -> Tensor:
    """The values of the loss `SquaredHinge`: (..., n) -> (...)."""
    t, p = matched("squared_hinge", y_true, y_pred)
    return ops.mean(ops.square(ops.relu(1 - _signs(t) * p)), -1)


@loss_function
def categorical_hinge(y_true: Tensor, y_pred: Tensor) -> Tensor:
    """The values of the loss `CategoricalHinge`: (..., classes) -> (...)."""
    t, p = matched("categorical_hinge", y_true, y_pred)
    wrong = ops.max((1 - t) * p, -1)
    return ops.relu(wrong - ops.sum(t * p, -1) + 1)


def _signs(t: Tensor) -> Tensor:
    """Targets 0 and 1 as -1 and 1; others as they are."""
    labels = t.data
    return 2 * t - 1 if ((labels == 0) | (labels == 1)).all() else t


class Hinge(LossFunctionWrapper):
    """max(1 - y_true y_pred, 0), the mean over the last axis, for targets -1 and 1 (or 0 and 1).

    Args: reduction, name, dtype: see `Loss`.
    """

    def __init__(
        self,
        reduction: str | None = "sum_over_batch_size",
        name: str | None = "hinge",
        dtype: Any = None,
    ) -> None:
        super().__init__(hinge, reduction, name, dtype)


class SquaredHinge(LossFunctionWrapper):
    """max(1 - y_true y_pred, 0)^2, the mean over the last axis, for targets -1 and 1 (or 0 and 1).

    Args: reduction, name, dtype: see `Loss`.
    """

    def __init__(
        self,
        reduction: str | None = "sum_over_batch_size",
        name: str | None = "squared_hinge",
        dtype: Any = None,
    ) -> None:
        super().__init__(squared_hinge, reduction, name, dtype)


class CategoricalHinge(LossFunctionWrapper):
    """max(w - r + 1, 0) with r the score of the one-hot target's class and w the best other one.

    w is max((1 - y_true) y_pred), so it is at least 0.

    Args: reduction, name, dtype: see `Loss`.
    """

    def __init__(
        self,
        reduction: str | None = "sum_over_batch_size",
        name: str | None = "categorical_hinge",
        dtype: Any = None,
    ) -> None:
        super().__init__(categorical_hinge, reduction, name, dtype)
