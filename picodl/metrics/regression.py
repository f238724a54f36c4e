"""Errors of numbers, how much of their variance is explained, and correlations."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from picodl import config, losses
from picodl.losses.base import spread
from picodl.metrics.accuracies import matched
from picodl.metrics.base import Mean, MeanMetricWrapper, Metric, plain, with_mask
from picodl.typing import Array, Config


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


class MeanAbsolutePercentageError(MeanMetricWrapper):
    """The mean of 100 |y_pred - y_true| / |y_true|, in percent; see the loss of this name.

    Args: name, dtype: see `Metric`.
    """

    direction = "down"

    def __init__(
        self, name: str | None = "mean_absolute_percentage_error", dtype: Any = None
    ) -> None:
        super().__init__(losses.mean_absolute_percentage_error, name, dtype)


class MeanSquaredLogarithmicError(MeanMetricWrapper):
    """The mean of (log(1 + y_pred) - log(1 + y_true))^2.

    Args: name, dtype: see `Metric`.
    """

    direction = "down"

    def __init__(
        self, name: str | None = "mean_squared_logarithmic_error", dtype: Any = None
    ) -> None:
        super().__init__(losses.mean_squared_logarithmic_error, name, dtype)


class LogCoshError(MeanMetricWrapper):
    """The mean of log(cosh(y_pred - y_true)).

    Args: name, dtype: see `Metric`.
    """

    direction = "down"

    def __init__(self, name: str | None = "logcosh", dtype: Any = None) -> None:
        super().__init__(losses.log_cosh, name, dtype)


class MeanRelativeError(Mean):
    """The mean of |y_pred - y_true| / normalizer, 0 where the normalizer is 0.

    Args:
        normalizer: an array of the shape of the targets, or of one sample.
        name, dtype: see `Metric`.
    """

    direction = "down"

    def __init__(
        self, normalizer: Any, name: str | None = "mean_relative_error", dtype: Any = None
    ) -> None:
        super().__init__(name, dtype)
        self.normalizer = plain(normalizer)

    def update_state(  # type: ignore[override]
        self, y_true: Any, y_pred: Any, sample_weight: Any = None
    ) -> None:
        """Take in a batch.

        Raises:
            ValueError: if shapes or weights do not fit.
        """
        t, p = matched("mean_relative_error", y_true, y_pred)
        by = np.broadcast_to(self.normalizer, t.shape)
        error = np.abs(p - t)
        relative = np.divide(error, by, out=np.zeros_like(error), where=by != 0)
        self.add(relative, with_mask(y_pred, sample_weight))

    def get_config(self) -> Config:
        """The arguments that make the same metric again."""
        return {**super().get_config(), "normalizer": self.normalizer.tolist()}


# -------------------------------------------------------------------- directions, correlations


def cosine_similarity(y_true: Any, y_pred: Any, axis: int = -1) -> Array:
    """sum(y_true y_pred) / (|y_true| |y_pred|) along an axis: 1 for the same direction."""
    return -plain(losses.cosine_similarity(y_true, y_pred, axis))


def pearson_correlation(y_true: Any, y_pred: Any, axis: int = -1) -> Array:
    """The covariance over the standard deviations along an axis; 0 where one of them is 0.

    Raises:
        ValueError: if the shapes differ.

    >>> round(float(pearson_correlation([1.0, 2.0, 3.0], [2.0, 4.0, 7.0])), 4)
    0.9934
    """
    t, p = (x - x.mean(axis, keepdims=True) for x in matched("pearson_correlation", y_true, y_pred))
    norm = np.sqrt((t * t).sum(axis) * (p * p).sum(axis))
    product = (t * p).sum(axis)
    return np.divide(product, norm, out=np.zeros_like(product), where=norm != 0)


def concordance_correlation(y_true: Any, y_pred: Any, axis: int = -1) -> Array:
    """2 cov / (var of y_true + var of y_pred + (difference of the means)^2 + eps) along an axis.

    eps is `config.epsilon()`.

    Raises:
        ValueError: if the shapes differ.

    Reference: Lin, 1989, "A Concordance Correlation Coefficient to Evaluate Reproducibility".
    """
    t, p = matched("concordance_correlation", y_true, y_pred)
    shift = t.mean(axis) - p.mean(axis)
    t, p = (x - x.mean(axis, keepdims=True) for x in (t, p))
    covariance = 2 * (t * p).mean(axis)
    total = (t * t).mean(axis) + (p * p).mean(axis) + shift * shift
    return covariance / (total + config.epsilon())


class CosineSimilarity(MeanMetricWrapper):
    """The mean of sum(y_true y_pred) / (|y_true| |y_pred|): 1 for the same direction.

    Args:
        name, dtype: see `Metric`.
        axis: along which the vectors lie.
    """

    direction = "up"

    def __init__(
        self, name: str | None = "cosine_similarity", dtype: Any = None, axis: int = -1
    ) -> None:
        super().__init__(cosine_similarity, name, dtype, axis=axis)


class PearsonCorrelation(MeanMetricWrapper):
    """The mean of the correlations of y_true and y_pred, each along an axis.

    Args:
        name, dtype: see `Metric`.
        axis: along which the numbers of one correlation lie.
    """

    direction = "up"

    def __init__(
        self, name: str | None = "pearson_correlation", dtype: Any = None, axis: int = -1
    ) -> None:
        super().__init__(pearson_correlation, name, dtype, axis=axis)


class ConcordanceCorrelation(MeanMetricWrapper):
    """The mean of the concordance correlations of y_true and y_pred, each along an axis.

    Args:
        name, dtype: see `Metric`.
        axis: along which the numbers of one correlation lie.
    """

    direction = "up"

    def __init__(
        self, name: str | None = "concordance_correlation", dtype: Any = None, axis: int = -1
    ) -> None:
        super().__init__(concordance_correlation, name, dtype, axis=axis)


# -------------------------------------------------------------------- explained variance


class R2Score(Metric):
    """1 - sum((y_true - y_pred)^2) / sum((y_true - mean)^2), for each output.

    Targets that are all equal give 1 if they are hit and 0 if not.

    Args:
        class_aggregation: "uniform_average" of the outputs, "variance_weighted_average", or None
            for one value per output.
        num_regressors: the number of inputs, for the adjusted score; 0 for the plain one.
        name, dtype: see `Metric`.

    Shapes: y_true and y_pred (batch, outputs), or (batch,).
    """

    direction = "up"
    weight: Array
    mean: Array
    squares: Array  # sum of the weighted squared distances from the mean
    residual: Array  # sum of the weighted squared errors

    def __init__(
        self,
        class_aggregation: str | None = "uniform_average",
        num_regressors: int = 0,
        name: str | None = "r2_score",
        dtype: Any = None,
    ) -> None:
        super().__init__(dtype, name)
        if class_aggregation not in ("uniform_average", "variance_weighted_average", None):
            raise ValueError(
                'R2Score: class_aggregation must be "uniform_average", "variance_weighted_average" '
                f"or None; received {class_aggregation!r}."
            )
        if not isinstance(num_regressors, (int, np.integer)) or num_regressors < 0:
            raise ValueError(
                f"R2Score: num_regressors must be an integer of at least 0; received "
                f"{num_regressors!r}."
            )
        self.class_aggregation = class_aggregation
        self.num_regressors = num_regressors
        self.samples = 0
        self.weight = self.mean = self.squares = self.residual = np.zeros(1)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Take in a batch.

        Raises:
            ValueError: if shapes or weights do not fit.
        """
        t, p = matched("r2_score", y_true, y_pred)
        if t.ndim == 1:
            t, p = t[:, None], p[:, None]
        if t.ndim != 2:
            raise ValueError(f"R2Score: expected shapes (batch, outputs); received {t.shape}.")
        if not t.size:
            return
        t, p = t.astype(np.float64), p.astype(np.float64)
        given = with_mask(y_pred, sample_weight)
        w = np.ones(t.shape) if given is None else spread(given, t.shape, "sample_weight")
        # mean and squares of two groups are joined: no difference of large sums
        weight = w.sum(0)
        mean = np.divide((w * t).sum(0), weight, out=np.zeros(t.shape[1]), where=weight != 0)
        total = self.weight + weight
        share = np.divide(weight, total, out=np.zeros(t.shape[1]), where=total != 0)
        shift = mean - self.mean
        self.squares = self.squares + (w * (t - mean) ** 2).sum(0) + shift**2 * self.weight * share
        self.mean = self.mean + shift * share
        self.residual = self.residual + (w * (t - p) ** 2).sum(0)
        self.weight = total
        self.samples += t.size  # Keras takes each number of each output for a sample

    def result(self) -> Any:
        """The score so far: a number, or one per output."""
        hit = (self.residual == 0) & (self.weight > 0)
        constant = self.squares == 0
        score = 1 - self.residual / np.where(constant, 1, self.squares)
        score = np.where(constant, np.where(hit, 1.0, 0.0), score)
        if self.class_aggregation == "uniform_average":
            score = score.mean()
        elif self.class_aggregation == "variance_weighted_average":
            weights = self.squares.sum()
            score = (score * self.squares).sum() / weights if weights else score.mean()
        if self.num_regressors and self.samples:
            rest = self.samples - self.num_regressors - 1
            if rest > 0:
                score = 1 - (1 - score) * (self.samples - 1) / rest
            else:
                warnings.warn(
                    f"R2Score: the targets are too few for {self.num_regressors} regressors; this "
                    "is the score without adjustment.",
                    stacklevel=2,
                )
        return score if np.ndim(score) else float(score)

    def reset_state(self) -> None:
        """Start anew."""
        self.samples = 0
        self.weight = self.mean = self.squares = self.residual = np.zeros_like(self.weight)

    def get_config(self) -> Config:
        """The arguments that make the same metric again."""
        return {
            **super().get_config(),
            "class_aggregation": self.class_aggregation,
            "num_regressors": self.num_regressors,
        }
