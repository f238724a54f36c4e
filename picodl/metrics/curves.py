"""Areas under curves over all thresholds, and their points at a given constraint."""

from __future__ import annotations

from typing import Any

import numpy as np

from picodl import config
from picodl.losses.base import spread
from picodl.metrics.accuracies import matched
from picodl.metrics.base import Metric, plain, with_mask
from picodl.metrics.confusion import (
    CountingMetric,
    check_class,
    check_thresholds,
    counts_at,
    ratio,
)
from picodl.typing import Array, Config


class AUC(CountingMetric):
    """The area under the ROC curve (recall over the false positive rate), the PR curve (precision
    over recall), or the curve of precision gain over recall gain.

    With p positives and n negatives the gains are 1 - p / n * fp / tp and 1 - p / n * fn / tp: how
    far precision and recall lie between those of calling everything positive, 0, and 1.

    Predictions are counted at thresholds, so the area is as exact as these are dense;
    `EpochScoring` with scikit-learn's "roc_auc" is exact.

    Args:
        num_thresholds: how many, evenly spread over 0..1, at least 2.
        curve: "ROC", "PR" or "PRGAIN".
        summation_method: between two thresholds "interpolation" (for PR as in the reference),
            "minoring" for the lower value, "majoring" for the higher one.
        name, dtype: see `Metric`.
        thresholds: a list between 0 and 1 in place of num_thresholds.
        multi_label: whether each label (last axis) has an area of its own, which are averaged.
        num_labels: how many labels there are.
        label_weights: one weight per label: of the areas, or without multi_label of the counts.
        from_logits: whether predictions are logits.

    References: Davis and Goadrich, 2006, "The Relationship Between Precision-Recall and ROC
    Curves"; Flach and Kull, 2015, "Precision-Recall-Gain Curves: PR Analysis Done Right".

    >>> AUC(num_thresholds=3)([0, 0, 1, 1], [0.0, 0.5, 0.3, 0.9])
    0.75
    """

    direction = "up"

    def __init__(
        self,
        num_thresholds: int = 200,
        curve: str = "ROC",
        summation_method: str = "interpolation",
        name: str | None = None,
        dtype: Any = None,
        thresholds: Any = None,
        multi_label: bool = False,
        num_labels: int | None = None,
        label_weights: Any = None,
        from_logits: bool = False,
    ) -> None:
        super().__init__(dtype, name)
        if curve not in ("ROC", "PR", "PRGAIN"):
            raise ValueError(f'AUC: curve must be "ROC", "PR" or "PRGAIN"; received {curve!r}.')
        if summation_method not in ("interpolation", "minoring", "majoring"):
            raise ValueError(
                'AUC: summation_method must be "interpolation", "minoring" or "majoring"; received '
                f"{summation_method!r}."
            )
        given = check_thresholds(self, thresholds)
        self._evenly = given is None
        if given is None:
            inner = even_thresholds(self, num_thresholds, 2)[1:-1]
        else:
            inner = np.sort(np.atleast_1d(given))
        eps = config.epsilon()
        self._limits = np.array([-eps, *inner, 1 + eps])
        self.num_thresholds = len(self._limits)
        self.curve = curve
        self.summation_method = summation_method
        self.multi_label = multi_label
        self.num_labels = num_labels
        self.label_weights = None if label_weights is None else plain(label_weights).tolist()
        self.from_logits = from_logits
        self.reset_state()

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Take in a batch.

        Raises:
            ValueError: if shapes or weights do not fit, or predictions lie outside 0..1.
        """
        t, p = matched(self.name, y_true, y_pred)
        if self.from_logits:
            p = 0.5 * (np.tanh(0.5 * p) + 1)
        check_probabilities(self, p, " Pass from_logits=True for logits.")
        w = with_mask(y_pred, sample_weight)
        if w is not None:
            w = spread(w, t.shape, "sample_weight")
        if self.multi_label or self.label_weights is not None:
            self._check_labels(t)
        if self.label_weights is not None and not self.multi_label:
            w = np.asarray(self.label_weights) * (np.ones(t.shape) if w is None else w)
        if not self.multi_label:
            self.counts = self.counts + counts_at(self._limits, t, p, w)
            return
        columns = [
            counts_at(self._limits, t[:, i], p[:, i], None if w is None else w[:, i])
            for i in range(t.shape[1])
        ]
        self.counts = self.counts + np.stack(columns, 2)

    def _check_labels(self, t: Array) -> None:
        expected = self.num_labels
        if self.label_weights is not None:
            expected = len(self.label_weights)
        if t.ndim != 2 or (expected is not None and t.shape[1] != expected):
            raise ValueError(
                f"AUC with {expected or 'several'} labels expected shapes (batch, labels); "
                f"received targets of shape {t.shape}."
            )

    def result(self) -> float:
        """The area so far."""
        tp, fp, tn, fn = self.counts
        if self.curve == "PR" and self.summation_method == "interpolation":
            areas = _interpolated_pr(tp, fp, fn)
        else:
            x, y = self._curve(tp, fp, tn, fn)
            low, high = np.minimum(y[:-1], y[1:]), np.maximum(y[:-1], y[1:])
            height = {"interpolation": (low + high) / 2, "minoring": low, "majoring": high}
            areas = ((x[:-1] - x[1:]) * height[self.summation_method]).sum(0)
        if self.multi_label and len(areas) == len(self.label_weights or ()):
            return float(np.average(areas, weights=self.label_weights))
        return float(areas.mean())

    def _curve(self, tp: Array, fp: Array, tn: Array, fn: Array) -> tuple[Array, Array]:
        recall = ratio(tp, tp + fn)
        if self.curve == "ROC":
            return ratio(fp, fp + tn), recall
        if self.curve == "PR":
            return recall, ratio(tp, tp + fp)
        odds = ratio(tp + fn, tn + fp)
        found = tp > 0  # as in Keras, a recall gain below 0 counts as 0
        recall_gain = np.where(found, np.maximum(1 - odds * ratio(fn, tp), 0), 0)
        return recall_gain, np.where(found, 1 - odds * ratio(fp, tp), 1)

    def reset_state(self) -> None:
        """Start anew."""
        labels = (self.num_labels or 1,) if self.multi_label else ()
        self.counts = np.zeros((4, len(self._limits), *labels))

    @property
    def thresholds(self) -> list[float]:
        """All that are counted at: the first lies just below 0, the last just above 1."""
        return [float(x) for x in self._limits]

    def get_config(self) -> Config:
        """The arguments that make the same metric again."""
        settings = {
            **super().get_config(),
            "num_thresholds": self.num_thresholds,
            "curve": self.curve,
            "summation_method": self.summation_method,
            "multi_label": self.multi_label,
            "num_labels": self.num_labels,
            "label_weights": self.label_weights,
            "from_logits": self.from_logits,
        }
        if not self._evenly:
            settings["thresholds"] = self.thresholds[1:-1]
        return settings


def _interpolated_pr(tp: Array, fp: Array, fn: Array) -> Array:
    """The area when true and false positives grow in proportion between two thresholds."""
    p = tp + fp
    found, predicted = tp[:-1] - tp[1:], p[:-1] - p[1:]
    slope = ratio(found, np.maximum(predicted, 0))
    start = tp[1:] - slope * p[1:]
    both = (p[:-1] > 0) & (p[1:] > 0)
    growth = np.where(both, ratio(p[:-1], np.maximum(p[1:], 0)), 1.0)
    return ratio(slope * (found + start * np.log(growth)), np.maximum(tp[1:] + fn[1:], 0)).sum(0)


def even_thresholds(metric: Metric, n: Any, least: int) -> Array:
    """n numbers evenly from 0 to 1; 0.5 for one.

    Raises:
        ValueError: for fewer than the least.
    """
    if not isinstance(n, (int, np.integer)) or n < least:
        raise ValueError(
            f"{type(metric).__name__}: num_thresholds must be an integer of at least {least}; "
            f"received {n!r}."
        )
    return np.array([0.5]) if n == 1 else np.arange(n) / (n - 1)


def check_probabilities(metric: Metric, p: Array, hint: str = "") -> None:
    """Refuse predictions outside 0..1.

    Raises:
        ValueError: for them.
    """
    if p.size and not (p.min() >= -1e-6 and p.max() <= 1 + 1e-6):
        raise ValueError(
            f"{type(metric).__name__}: predictions (y_pred) must lie between 0 and 1; received "
            f"values from {p.min():g} to {p.max():g}.{hint}"
        )


# -------------------------------------------------------------------- one rate where another holds


class RateAtRate(CountingMetric):
    """Base class: the best of one rate over the thresholds at which another reaches a value.

    Args:
        value: what the other rate must reach, between 0 and 1.
        argument: what the subclass calls the value.
        num_thresholds: how many, evenly spread over 0..1.
        class_id: the one class, along the last axis, that counts.
        name, dtype: see `Metric`.
    """

    direction = "up"

    def __init__(
        self,
        value: float,
        argument: str,
        num_thresholds: int = 200,
        class_id: int | None = None,
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(dtype, name)
        if not isinstance(value, (int, float)) or not 0 <= value <= 1:
            raise ValueError(
                f"{type(self).__name__}: {argument} must lie between 0 and 1; received {value!r}."
            )
        self._limits = even_thresholds(self, num_thresholds, 1)
        self.value = value
        self.argument = argument
        setattr(self, argument, value)
        self.num_thresholds = num_thresholds
        self.class_id = class_id
        self.reset_state()

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Take in a batch.

        Raises:
            ValueError: if shapes or weights do not fit, or predictions lie outside 0..1.
        """
        t, p = matched(self.name, y_true, y_pred)
        check_probabilities(self, p)
        w = with_mask(y_pred, sample_weight)
        if w is not None:
            w = spread(w, t.shape, "sample_weight")
        if self.class_id is not None:
            check_class(self, self.class_id, t)
            t, p = t[..., self.class_id], p[..., self.class_id]
            w = w if w is None else w[..., self.class_id]
        self.counts = self.counts + counts_at(self._limits, t, p, w)

    @property
    def thresholds(self) -> list[float]:
        """All that are counted at."""
        return [float(x) for x in self._limits]

    def rates(self, tp: Array, fp: Array, tn: Array, fn: Array) -> tuple[Array, Array]:
        """The rate that is wanted and the one that must reach the value, at each threshold.

        Raises:
            NotImplementedError: unless a subclass defines it.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define rates().")

    def result(self) -> float:
        """The best value so far; 0 where the constraint is not met."""
        wanted, held = self.rates(*self.counts)
        return float(np.max(wanted, initial=0.0, where=held >= self.value))

    def reset_state(self) -> None:
        """Start anew."""
        self.counts = np.zeros((4, len(self._limits)))

    def get_config(self) -> Config:
        """The arguments that make the same metric again."""
        return {
            **super().get_config(),
            "num_thresholds": self.num_thresholds,
            "class_id": self.class_id,
            self.argument: self.value,
        }


class SensitivityAtSpecificity(RateAtRate):
    """The best tp / (tp + fn) at which tn / (tn + fp) is at least the specificity.

    Args:
        specificity: between 0 and 1.
        num_thresholds, class_id, name, dtype: see `PrecisionAtRecall`.
    """

    def __init__(
        self,
        specificity: float,
        num_thresholds: int = 200,
        class_id: int | None = None,
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(specificity, "specificity", num_thresholds, class_id, name, dtype)

    def rates(self, tp: Array, fp: Array, tn: Array, fn: Array) -> tuple[Array, Array]:
        """Sensitivity and specificity."""
        return ratio(tp, tp + fn), ratio(tn, tn + fp)


class SpecificityAtSensitivity(RateAtRate):
    """The best tn / (tn + fp) at which tp / (tp + fn) is at least the sensitivity.

    Args:
        sensitivity: between 0 and 1.
        num_thresholds, class_id, name, dtype: see `PrecisionAtRecall`.
    """

    def __init__(
        self,
        sensitivity: float,
        num_thresholds: int = 200,
        class_id: int | None = None,
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(sensitivity, "sensitivity", num_thresholds, class_id, name, dtype)

    def rates(self, tp: Array, fp: Array, tn: Array, fn: Array) -> tuple[Array, Array]:
        """Specificity and sensitivity."""
        return ratio(tn, tn + fp), ratio(tp, tp + fn)


class PrecisionAtRecall(RateAtRate):
    """The best precision tp / (tp + fp) at which the recall tp / (tp + fn) is at least the given.

    Args:
        recall: between 0 and 1.
        num_thresholds: how many thresholds are tried, evenly spread over 0..1.
        class_id: the one class, along the last axis, that counts.
        name, dtype: see `Metric`.
    """

    def __init__(
        self,
        recall: float,
        num_thresholds: int = 200,
        class_id: int | None = None,
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(recall, "recall", num_thresholds, class_id, name, dtype)

    def rates(self, tp: Array, fp: Array, tn: Array, fn: Array) -> tuple[Array, Array]:
        """Precision and recall."""
        return ratio(tp, tp + fp), ratio(tp, tp + fn)


class RecallAtPrecision(RateAtRate):
    """The best recall tp / (tp + fn) at which the precision tp / (tp + fp) is at least the given.

    Args:
        precision: between 0 and 1.
        num_thresholds, class_id, name, dtype: see `PrecisionAtRecall`.
    """

    def __init__(
        self,
        precision: float,
        num_thresholds: int = 200,
        class_id: int | None = None,
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(precision, "precision", num_thresholds, class_id, name, dtype)

    def rates(self, tp: Array, fp: Array, tn: Array, fn: Array) -> tuple[Array, Array]:
        """Recall and precision."""
        return ratio(tp, tp + fn), ratio(tp, tp + fp)
