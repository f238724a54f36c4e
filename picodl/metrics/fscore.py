"""F scores: one number from precision and recall."""

from __future__ import annotations

from typing import Any

import numpy as np

from picodl import config
from picodl.losses.base import spread
from picodl.metrics.accuracies import matched
from picodl.metrics.base import Metric, with_mask
from picodl.typing import Array, Config


class FBetaScore(Metric):
    """(1 + b^2) precision recall / (b^2 precision + recall), for each class.

    Args:
        average: None for one value per class, "micro" to count all classes together, "macro" for
            the mean of the classes, "weighted" for their mean by the number of targets.
        beta: b, how many times recall counts as much as precision.
        threshold: predictions above it count. Defaults to None: the largest one of a sample counts.
        name, dtype: see `Metric`.

    Shapes: y_true (batch, classes) one-hot or several-hot, y_pred (batch, classes).

    >>> FBetaScore(average="macro")(np.eye(3), np.eye(3)[[0, 1, 1]])
    0.5555554...
    """

    direction = "up"
    counts: Array  # tp, fp, fn and targets of each class

    def __init__(
        self,
        average: str | None = None,
        beta: float = 1.0,
        threshold: float | None = None,
        name: str | None = "fbeta_score",
        dtype: Any = None,
    ) -> None:
        super().__init__(dtype, name)
        kind = type(self).__name__
        if average not in (None, "micro", "macro", "weighted"):
            raise ValueError(
                f'{kind}: average must be None, "micro", "macro" or "weighted"; received '
                f"{average!r}."
            )
        if not isinstance(beta, (int, float)) or beta <= 0:
            raise ValueError(f"{kind}: beta must be a positive number; received {beta!r}.")
        if threshold is not None and (
            not isinstance(threshold, (int, float)) or not 0 < threshold <= 1
        ):
            raise ValueError(
                f"{kind}: threshold must be None or lie between 0 and 1; received {threshold!r}."
            )
        self.average = average
        self.beta = beta
        self.threshold = threshold
        self.counts = np.zeros((4, 1))

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Take in a batch.

        Raises:
            ValueError: if shapes or weights do not fit.
        """
        t, p = matched(self.name, y_true, y_pred)
        if t.ndim != 2:
            raise ValueError(
                f"{type(self).__name__}: expected shapes (batch, classes) with one-hot targets; "
                f"received {t.shape}."
            )
        if self.threshold is None:
            hit = (p >= p.max(1, keepdims=True)) & (np.abs(p) > 1e-9) if p.size else p > 0
        else:
            hit = p > self.threshold
        t = t.astype(np.float64)
        given = with_mask(y_pred, sample_weight)
        w = 1.0 if given is None else spread(given, t.shape, "sample_weight").astype(np.float64)
        self.counts = self.counts + [
            (w * hit * t).sum(0),
            (w * hit * (1 - t)).sum(0),
            (w * ~hit * t).sum(0),
            (w * t).sum(0),
        ]

    def result(self) -> Any:
        """The score so far: a number, or one per class."""
        tp, fp, fn, targets = self.counts
        if self.average == "micro":
            tp, fp, fn = tp.sum(), fp.sum(), fn.sum()
        eps = config.epsilon()
        precision, recall = tp / (tp + fp + eps), tp / (tp + fn + eps)
        square = self.beta**2
        score = (1 + square) * precision * recall / (square * precision + recall + eps)
        if self.average == "macro":
            score = score.mean()
        elif self.average == "weighted":
            score = (score * targets).sum() / (targets.sum() + eps)
        return score if np.ndim(score) else float(score)

    def reset_state(self) -> None:
        """Start anew."""
        self.counts = np.zeros_like(self.counts)

    def get_config(self) -> Config:
        """The arguments that make the same metric again."""
        return {
            **super().get_config(),
            "average": self.average,
            "beta": self.beta,
            "threshold": self.threshold,
        }


class F1Score(FBetaScore):
    """2 precision recall / (precision + recall), for each class.

    Args: average, threshold, name, dtype: see `FBetaScore`.
    """

    def __init__(
        self,
        average: str | None = None,
        threshold: float | None = None,
        name: str | None = "f1_score",
        dtype: Any = None,
    ) -> None:
        super().__init__(average, 1.0, threshold, name, dtype)

    def get_config(self) -> Config:
        """The arguments that make the same metric again."""
        return {key: part for key, part in super().get_config().items() if key != "beta"}
