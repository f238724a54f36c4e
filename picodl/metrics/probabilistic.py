"""Running means of cross-entropies, divergences and margins."""

from __future__ import annotations

from typing import Any

import numpy as np

from picodl import losses
from picodl.losses.base import check_fraction, spread
from picodl.metrics.base import MeanMetricWrapper, plain, with_mask


class BinaryCrossentropy(MeanMetricWrapper):
    """The mean of -(t log p + (1 - t) log(1 - p)).

    Args:
        name, dtype: see `Metric`.
        from_logits, label_smoothing: see the loss of this name.
    """

    direction = "down"

    def __init__(
        self,
        name: str | None = "binary_crossentropy",
        dtype: Any = None,
        from_logits: bool = False,
        label_smoothing: float = 0,
    ) -> None:
        check_fraction("label_smoothing", label_smoothing)
        super().__init__(
            losses.binary_crossentropy,
            name,
            dtype,
            from_logits=from_logits,
            label_smoothing=label_smoothing,
        )


class CategoricalCrossentropy(MeanMetricWrapper):
    """The mean of -sum(t log p) over the classes.

    Args:
        name, dtype: see `Metric`.
        from_logits, label_smoothing, axis: see the loss of this name.
    """

    direction = "down"

    def __init__(
        self,
        name: str | None = "categorical_crossentropy",
        dtype: Any = None,
        from_logits: bool = False,
        label_smoothing: float = 0,
        axis: int = -1,
    ) -> None:
        check_fraction("label_smoothing", label_smoothing)
        super().__init__(
            losses.categorical_crossentropy,
            name,
            dtype,
            from_logits=from_logits,
            label_smoothing=label_smoothing,
            axis=axis,
        )


class SparseCategoricalCrossentropy(MeanMetricWrapper):
    """The mean of -log p of the class whose number is the target.

    Args:
        name, dtype: see `Metric`.
        from_logits, ignore_class, axis: see the loss of this name.
    """

    direction = "down"

    def __init__(
        self,
        name: str | None = "sparse_categorical_crossentropy",
        dtype: Any = None,
        from_logits: bool = False,
        ignore_class: int | None = None,
        axis: int = -1,
    ) -> None:
        super().__init__(
            losses.sparse_categorical_crossentropy,
            name,
            dtype,
            from_logits=from_logits,
            ignore_class=ignore_class,
            axis=axis,
        )

    def update_state(  # type: ignore[override]
        self, y_true: Any, y_pred: Any, sample_weight: Any = None
    ) -> None:
        """Take in a batch.

        Raises:
            ValueError: if shapes or weights do not fit, or a label is out of range.
        """
        t = plain(y_true)
        values = plain(self.fn(t, plain(y_pred), **self.kwargs))
        weight = with_mask(y_pred, sample_weight)
        ignored = self.kwargs["ignore_class"]
        if ignored is not None:
            counted = (t != ignored).reshape(values.shape)
            given = 1.0 if weight is None else spread(weight, values.shape, "sample_weight")
            weight = np.multiply(counted, given)
        self.add(values, weight)


class KLDivergence(MeanMetricWrapper):
    """The mean of sum(y_true log(y_true / y_pred)).

    Args: name, dtype: see `Metric`.
    """

    direction = "down"

    def __init__(self, name: str | None = "kl_divergence", dtype: Any = None) -> None:
        super().__init__(losses.kl_divergence, name, dtype)


class Poisson(MeanMetricWrapper):
    """The mean of y_pred - y_true log(y_pred).

    Args: name, dtype: see `Metric`.
    """

    direction = "down"

    def __init__(self, name: str | None = "poisson", dtype: Any = None) -> None:
        super().__init__(losses.poisson, name, dtype)


class Hinge(MeanMetricWrapper):
    """The mean of max(1 - y_true y_pred, 0).

    Args: name, dtype: see `Metric`.
    """

    direction = "down"

    def __init__(self, name: str | None = "hinge", dtype: Any = None) -> None:
        super().__init__(losses.hinge, name, dtype)


class SquaredHinge(MeanMetricWrapper):
    """The mean of max(1 - y_true y_pred, 0)^2.

    Args: name, dtype: see `Metric`.
    """

    direction = "down"

    def __init__(self, name: str | None = "squared_hinge", dtype: Any = None) -> None:
        super().__init__(losses.squared_hinge, name, dtype)


class CategoricalHinge(MeanMetricWrapper):
    """The mean of the loss `CategoricalHinge`.

    Args: name, dtype: see `Metric`.
    """

    direction = "down"

    def __init__(self, name: str | None = "categorical_hinge", dtype: Any = None) -> None:
        super().__init__(losses.categorical_hinge, name, dtype)
