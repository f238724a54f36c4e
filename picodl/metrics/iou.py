"""Intersection over union: how much of a class's area and its prediction overlap."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from picodl.losses.base import spread
from picodl.metrics.accuracies import matched
from picodl.metrics.base import Metric, plain, with_mask
from picodl.ops.labels import whole_numbers
from picodl.typing import Array, Config


class IoU(Metric):
    """tp / (tp + fp + fn) of each class, the mean over the target classes that occur.

    Args:
        num_classes: how many classes there are.
        target_class_ids: those in the mean.
        name: see `Metric`.
        dtype: of the counts and the sample weights. Defaults to int32.
        ignore_class: a label whose positions do not count.
        sparse_y_true, sparse_y_pred: whether they hold class numbers; else one value per class
            along the axis, of which the largest counts.
        axis: where the classes are, if not sparse.
    """

    direction = "up"
    matrix: Array  # targets down, predictions across

    def __init__(
        self,
        num_classes: int,
        target_class_ids: Sequence[int],
        name: str | None = None,
        dtype: Any = None,
        ignore_class: int | None = None,
        sparse_y_true: bool = True,
        sparse_y_pred: bool = True,
        axis: int = -1,
    ) -> None:
        super().__init__(dtype, name)
        kind = type(self).__name__
        if not isinstance(num_classes, (int, np.integer)) or num_classes < 1:
            raise ValueError(
                f"{kind}: num_classes must be a positive integer; received {num_classes!r}."
            )
        ids = [int(i) for i in target_class_ids]
        if not ids or min(ids) < 0 or max(ids) >= num_classes:
            raise ValueError(
                f"{kind}: target_class_ids must lie in the range 0 to {num_classes - 1}; received "
                f"{target_class_ids!r}."
            )
        self.num_classes = int(num_classes)
        self.target_class_ids = ids
        self.ignore_class = ignore_class
        self.sparse_y_true = sparse_y_true
        self.sparse_y_pred = sparse_y_pred
        self.axis = axis
        self.total_cm: Array
        self.reset_state()

    @property
    def dtype(self) -> str:
        """The dtype asked for, else int32: counts."""
        return self._dtype or "int32"

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Take in a batch.

        Raises:
            ValueError: if shapes or weights do not fit, or a label is out of range.
        """
        t, p = plain(y_true), plain(y_pred)
        if not self.sparse_y_true:
            t = t.argmax(self.axis)
        if not self.sparse_y_pred:
            p = p.argmax(self.axis)
        t, p = matched(self.name, t, p)
        given = with_mask(y_pred, sample_weight)
        w = None if given is None else self._weights(spread(given, t.shape, "sample_weight"))
        t, p = t.reshape(-1), p.reshape(-1)
        if self.ignore_class is not None:
            keep = t != self.ignore_class
            t, p, w = t[keep], p[keep], w if w is None else w[keep]
        t, p = self._numbers(t, "targets (y_true)"), self._numbers(p, "predictions (y_pred)")
        n = self.num_classes
        self.total_cm = self.total_cm + np.bincount(t * n + p, w, n * n).reshape(n, n)

    def _weights(self, w: Array) -> Array:
        """Weights in the metric's dtype, which is int32 by default, as in Keras."""
        cut = w.astype(self.dtype)
        if (cut != w).any():
            warnings.warn(
                f"{type(self).__name__} counts in {self.dtype}, so sample weights are cut to whole "
                'numbers, as in Keras. Pass dtype="float32" to keep fractions.',
                stacklevel=3,
            )
        return cut.reshape(-1)

    def _numbers(self, labels: Array, what: str) -> Array:
        ids = whole_numbers(type(self).__name__, labels)
        if ids.size and (ids.min() < 0 or ids.max() >= self.num_classes):
            raise ValueError(
                f"{type(self).__name__}: {what} must lie in the range 0 to {self.num_classes - 1}; "
                f"received values from {ids.min()} to {ids.max()}."
            )
        return ids

    def result(self) -> float:
        """The mean so far."""
        both = np.diag(self.total_cm)
        either = self.total_cm.sum(0) + self.total_cm.sum(1) - both
        shares = [both[i] / either[i] for i in self.target_class_ids if either[i] > 0]
        return float(np.mean(shares)) if shares else 0.0

    def reset_state(self) -> None:
        """Start anew."""
        self.total_cm = np.zeros((self.num_classes, self.num_classes))

    def get_config(self) -> Config:
        """The arguments that make the same metric again."""
        return {
            **super().get_config(),
            "num_classes": self.num_classes,
            "target_class_ids": self.target_class_ids,
            "ignore_class": self.ignore_class,
            "sparse_y_true": self.sparse_y_true,
            "sparse_y_pred": self.sparse_y_pred,
            "axis": self.axis,
        }

    def _config_without(self, *names: str) -> Config:
        return {key: part for key, part in IoU.get_config(self).items() if key not in names}


class MeanIoU(IoU):
    """tp / (tp + fp + fn), the mean over all classes that occur.

    Args: as `IoU`, for all classes.

    >>> round(MeanIoU(num_classes=3)([0, 1, 2, 2], [0, 2, 2, 2]), 6)
    0.555556
    """

    def __init__(
        self,
        num_classes: int,
        name: str | None = None,
        dtype: Any = None,
        ignore_class: int | None = None,
        sparse_y_true: bool = True,
        sparse_y_pred: bool = True,
        axis: int = -1,
    ) -> None:
        every = range(num_classes) if isinstance(num_classes, int) else ()
        super().__init__(
            num_classes, every, name, dtype, ignore_class, sparse_y_true, sparse_y_pred, axis
        )

    def get_config(self) -> Config:
        """The arguments that make the same metric again."""
        return self._config_without("target_class_ids")


class BinaryIoU(IoU):
    """IoU of the two classes (prediction >= threshold) and below.

    Args:
        target_class_ids: 0, 1 or both.
        threshold: between the two classes.
        name, dtype: see `Metric`.
    """

    def __init__(
        self,
        target_class_ids: Sequence[int] = (0, 1),
        threshold: float = 0.5,
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(2, target_class_ids, name, dtype)
        self.threshold = threshold

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Take in a batch.

        Raises:
            ValueError: if shapes or weights do not fit, or a target is not 0 or 1.
        """
        weight = with_mask(y_pred, sample_weight)
        super().update_state(y_true, plain(y_pred) >= self.threshold, weight)

    def get_config(self) -> Config:
        """The arguments that make the same metric again."""
        settings = self._config_without(
            "num_classes", "ignore_class", "sparse_y_true", "sparse_y_pred", "axis"
        )
        return {**settings, "threshold": self.threshold}


class OneHotIoU(IoU):
    """`IoU` for one-hot targets, and scores of each class as predictions.

    Args: as `IoU`.
    """

    def __init__(
        self,
        num_classes: int,
        target_class_ids: Sequence[int],
        name: str | None = None,
        dtype: Any = None,
        ignore_class: int | None = None,
        sparse_y_pred: bool = False,
        axis: int = -1,
    ) -> None:
        super().__init__(
            num_classes, target_class_ids, name, dtype, ignore_class, False, sparse_y_pred, axis
        )

    def get_config(self) -> Config:
        """The arguments that make the same metric again."""
        return self._config_without("sparse_y_true")


class OneHotMeanIoU(MeanIoU):
    """`MeanIoU` for one-hot targets, and scores of each class as predictions.

    Args: as `MeanIoU`.
    """

    def __init__(
        self,
        num_classes: int,
        name: str | None = None,
        dtype: Any = None,
        ignore_class: int | None = None,
        sparse_y_pred: bool = False,
        axis: int = -1,
    ) -> None:
        super().__init__(num_classes, name, dtype, ignore_class, False, sparse_y_pred, axis)

    def get_config(self) -> Config:
        """The arguments that make the same metric again."""
        return self._config_without("target_class_ids", "sparse_y_true")
