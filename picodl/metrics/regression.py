"""Running means of losses of numbers, and the coefficient of determination."""

from __future__ import annotations

from typing import Any

from picodl import losses
from picodl.metrics.base import MeanMetricWrapper


class MeanSquaredError(MeanMetricWrapper):
    """The mean of (y_pred - y_true)^2.

    Args: name, dtype: see `Metric`.
    """

    direction = "down"

    def __init__(self, name: str | None = "mean_squared_error", dtype: Any = None) -> None:
        super().__init__(losses.mean_squared_error, name, dtype)


class RootMeanSquaredError(MeanSquaredError):
    """The square root of the mean of (y_pred - y_true)^2.

    Args: name, dtype: see `Metric`.
    """

    def __init__(self, name: str | None = "root_mean_squared_error", dtype: Any = None) -> None:
        super().__init__(name, dtype)

    def result(self) -> float:
        """The root of the mean so far."""
        return super().result() ** 0.5


class MeanAbsoluteError(MeanMetricWrapper):
    """The mean of |y_pred - y_true|.

    Args: name, dtype: see `Metric`.
    """

    direction = "down"

    def __init__(self, name: str | None = "mean_absolute_error", dtype: Any = None) -> None:
        super().__init__(losses.mean_absolute_error, name, dtype)
