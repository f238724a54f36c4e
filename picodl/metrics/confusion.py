"""True and false positives and negatives at thresholds, and what is made of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from picodl.losses.base import spread
from picodl.metrics.accuracies import check_k, matched
from picodl.metrics.base import Metric, plain, with_mask
from picodl.typing import Array, Config


class CountingMetric(Metric):
    """Base class of what is made of true and false positives and negatives at thresholds."""

    counts: Array  # tp, fp, tn, fn at each threshold; of AUC with several labels for each label

    @property
    def true_positives(self) -> Array:
        """The weight so far of targets 1 predicted so, at each threshold."""
        return self.counts[0]

    @property
    def false_positives(self) -> Array:
        """The weight so far of targets 0 predicted 1, at each threshold."""
        return self.counts[1]

    @property
    def true_negatives(self) -> Array:
        """The weight so far of targets 0 predicted so, at each threshold."""
        return self.counts[2]

    @property
    def false_negatives(self) -> Array:
        """The weight so far of targets 1 predicted 0, at each threshold."""
        return self.counts[3]


class ConfusionMetric(CountingMetric):
    """Base class: counts at the thresholds a user gives; a subclass defines `result`.

    Args:
        thresholds: a prediction above it counts as positive. A number between 0 and 1, or a list
            of them for one value each.
        top_k: only the k largest predictions of a sample count as positive, whatever they are.
        class_id: the one class, along the last axis, that counts.
        dtype, name: see `Metric`.
    """

    default_threshold = 0.5

    def __init__(
        self,
        thresholds: Any = None,
        top_k: int | None = None,
        class_id: int | None = None,
        dtype: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__(dtype, name)
        self.thresholds = check_thresholds(self, thresholds)
        self.top_k = top_k if top_k is None else check_k(self, top_k)
        self.class_id = class_id
        default = -np.inf if top_k is not None else self.default_threshold
        given = default if self.thresholds is None else self.thresholds
        self._limits = np.atleast_1d(np.asarray(given, np.float64))
        self.reset_state()

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Take in a batch.

        Raises:
            ValueError: if shapes or weights do not fit.
        """
        t, p = matched(self.name, y_true, y_pred)
        w = with_mask(y_pred, sample_weight)
        if w is not None:
            w = spread(w, t.shape, "sample_weight")
        if self.top_k is not None:
            p = only_top_k(p, self.top_k)
        if self.class_id is not None:
            check_class(self, self.class_id, t)
            t, p = t[..., self.class_id], p[..., self.class_id]
            w = w if w is None else w[..., self.class_id]
        self.counts = self.counts + counts_at(self._limits, t, p, w)

    def reset_state(self) -> None:
        """Start anew."""
        self.counts = np.zeros((4, len(self._limits)))

    def _given(self, value: Array) -> Any:
        """One number for one threshold, else an array."""
        return float(value[0]) if len(value) == 1 else value

    def get_config(self) -> Config:
        """The arguments that make the same metric again."""
        return {**super().get_config(), "thresholds": self.thresholds}


def counts_at(limits: Array, t: Array, p: Array, w: Array | None) -> Array:
    """The weights of (tp, fp, tn, fn) at each limit: all predictions as one list.

    Shapes: limits (n,), the others all alike -> (4, n).
    """
    positive = (t != 0).reshape(-1)
    flat = (p if p.dtype.kind == "f" else p.astype(np.float64)).reshape(-1)
    weights = None if w is None else w.reshape(-1).astype(np.float64)
    order = np.argsort(limits, kind="stable")
    n = len(limits)
    above = _limits_below(flat, limits[order].astype(flat.dtype, copy=False))
    bins = np.bincount(above + (n + 1) * positive, weights, 2 * (n + 1)).reshape(2, n + 1)
    over = np.cumsum(bins[:, ::-1], 1)[:, ::-1]
    total, over = over[:, :1], over[:, 1:]
    counts = np.empty((4, n))
    counts[:, order] = [over[1], over[0], (total - over)[0], (total - over)[1]]
    return counts


def _limits_below(p: Array, limits: Array) -> Array:
    """How many of the sorted limits each prediction exceeds.

    For many predictions between 0 and 1 a table of narrow cells says how many limits lie before the
    cell, and the next limit is compared: 10 times faster than a search, and as exact.
    """
    cells = 4096  # a power of 2: p * cells is exact
    if p.size > cells and len(limits) > 8 and p.min() >= 0 and p.max() <= 1:
        before = np.searchsorted(limits, np.arange(cells + 2) / cells, side="left")
        if np.diff(before).max() <= 1:
            following = np.append(limits, limits.dtype.type(np.inf))[before]
            cell = (p * cells).astype(np.intp)
            return before[cell] + (p > following[cell])
    return np.searchsorted(limits, p, side="left")


def only_top_k(p: Array, k: int) -> Array:
    """The k largest of the last axis, the first ones of equals; -inf elsewhere."""
    best = np.argsort(-p, axis=-1, kind="stable")[..., :k]
    kept = np.full(p.shape, -np.inf, p.dtype if p.dtype.kind == "f" else np.float64)
    np.put_along_axis(kept, best, np.take_along_axis(p, best, -1), -1)
    return kept


def ratio(part: Array, whole: Array) -> Array:
    """part / whole, 0 where the whole is 0."""
    return np.divide(part, whole, out=np.zeros(np.shape(part)), where=whole != 0)


def check_class(metric: Metric, class_id: int, t: Array) -> None:
    """Refuse a class that the data does not have.

    Raises:
        ValueError: for it.
    """
    if t.ndim < 2 or not 0 <= class_id < t.shape[-1]:
        raise ValueError(
            f"{type(metric).__name__}: class_id {class_id} is not along the last axis of targets "
            f"of shape {t.shape}."
        )


def check_thresholds(metric: Metric, thresholds: Any) -> Any:
    """Thresholds as a number, a list or None.

    Raises:
        ValueError: for one outside 0..1.
    """
    if thresholds is None:
        return None
    several = isinstance(thresholds, (list, tuple, np.ndarray))
    values = [float(x) for x in (plain(thresholds).reshape(-1) if several else [thresholds])]
    if not values or not all(0 <= x <= 1 for x in values):
        raise ValueError(
            f"{type(metric).__name__}: thresholds must lie between 0 and 1; received "
            f"{thresholds!r}."
        )
    return values if several else values[0]


class TruePositives(ConfusionMetric):
    """How many targets are 1 and predicted so.

    Args:
        thresholds: see `Precision`.
        name, dtype: see `Metric`.
    """

    def __init__(self, thresholds: Any = None, name: str | None = None, dtype: Any = None) -> None:
        super().__init__(thresholds, dtype=dtype, name=name)

    def result(self) -> Any:
        """The number so far, weighted."""
        return self._given(self.counts[0])


class FalsePositives(TruePositives):
    """How many targets are 0 and predicted 1; arguments as `TruePositives`."""

    def result(self) -> Any:
        """The number so far, weighted."""
        return self._given(self.counts[1])


class TrueNegatives(TruePositives):
    """How many targets are 0 and predicted so; arguments as `TruePositives`."""

    def result(self) -> Any:
        """The number so far, weighted."""
        return self._given(self.counts[2])


class FalseNegatives(TruePositives):
    """How many targets are 1 and predicted 0; arguments as `TruePositives`."""

    def result(self) -> Any:
        """The number so far, weighted."""
        return self._given(self.counts[3])


class Precision(ConfusionMetric):
    """tp / (tp + fp): how many of those predicted positive are so; 0 if none is predicted.

    Args:
        thresholds: a prediction above it counts as positive: a number between 0 and 1, or a list
            for one value each. Defaults to 0.5, or none with top_k.
        top_k: only the k largest predictions of a sample can count as positive.
        class_id: the one class, along the last axis, that counts.
        name, dtype: see `Metric`.

    >>> metric = Precision()
    >>> metric.update_state([0, 1, 1, 1], [0.7, 0.2, 0.8, 0.9], sample_weight=[1, 0, 0, 1])
    >>> metric.result()
    0.5
    """

    direction = "up"

    def __init__(
        self,
        thresholds: Any = None,
        top_k: int | None = None,
        class_id: int | None = None,
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(thresholds, top_k, class_id, dtype, name)

    def result(self) -> Any:
        """The value so far: a number, or one per threshold."""
        tp, fp, _, _ = self.counts
        return self._given(ratio(tp, tp + fp))

    def get_config(self) -> Config:
        """The arguments that make the same metric again."""
        return {**super().get_config(), "top_k": self.top_k, "class_id": self.class_id}


class Recall(Precision):
    """tp / (tp + fn): how many of the positives are found; arguments as `Precision`."""

    def result(self) -> Any:
        """The value so far: a number, or one per threshold."""
        tp, _, _, fn = self.counts
        return self._given(ratio(tp, tp + fn))
