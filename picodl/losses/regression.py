"""Losses of numbers: squared, absolute, relative and logarithmic errors, and directions."""

from __future__ import annotations

import math
from typing import Any

from picodl import config, ops
from picodl.losses.base import LossFunctionWrapper, loss_function, matched
from picodl.ops.loss import huber_error, squared_error
from picodl.tensor import Tensor

# -------------------------------------------------------------------- values per sample


@loss_function
def mean_squared_error(y_true: Tensor, y_pred: Tensor) -> Tensor:
    """The values of the loss `MeanSquaredError`: (..., n) -> (...)."""
    return squared_error(*matched("mean_squared_error", y_true, y_pred))


@loss_function
def mean_absolute_error(y_true: Tensor, y_pred: Tensor) -> Tensor:
    """The values of the loss `MeanAbsoluteError`: (..., n) -> (...)."""
    t, p = matched("mean_absolute_error", y_true, y_pred)
    return ops.mean(ops.abs(p - t), -1)


@loss_function
def mean_absolute_percentage_error(y_true: Tensor, y_pred: Tensor) -> Tensor:
    """The values of the loss `MeanAbsolutePercentageError`: (..., n) -> (...)."""
    t, p = matched("mean_absolute_percentage_error", y_true, y_pred)
    return 100 * ops.mean(ops.abs((p - t) / ops.maximum(ops.abs(t), config.epsilon())), -1)


@loss_function
def mean_squared_logarithmic_error(y_true: Tensor, y_pred: Tensor) -> Tensor:
    """The values of the loss `MeanSquaredLogarithmicError`: (..., n) -> (...)."""
    t, p = matched("mean_squared_logarithmic_error", y_true, y_pred)
    t, p = (ops.log(ops.maximum(x, config.epsilon()) + 1) for x in (t, p))
    return ops.mean(ops.square(p - t), -1)


@loss_function
def huber(y_true: Tensor, y_pred: Tensor, delta: float = 1.0) -> Tensor:
    """The values of the loss `Huber`: (..., n) -> (...)."""
    return huber_error(*matched("huber", y_true, y_pred), delta)


@loss_function
def log_cosh(y_true: Tensor, y_pred: Tensor) -> Tensor:
    """The values of the loss `LogCosh`: (..., n) -> (...)."""
    t, p = matched("log_cosh", y_true, y_pred)
    e = p - t
    return ops.mean(e + ops.softplus(-2 * e) - math.log(2), -1)


@loss_function
def cosine_similarity(y_true: Tensor, y_pred: Tensor, axis: int = -1) -> Tensor:
    """The values of the loss `CosineSimilarity`: the given axis is gone."""
    t, p = matched("cosine_similarity", y_true, y_pred)
    return -ops.sum(_unit(t, axis) * _unit(p, axis), axis)


def _unit(x: Tensor, axis: int) -> Any:
    norm = ops.sqrt(ops.sum(ops.square(x), axis, keepdims=True))
    return x / ops.maximum(norm, config.epsilon())


@loss_function
def quantile(y_true: Tensor, y_pred: Tensor, quantile: Any = 0.5) -> Tensor:
    """The values of the loss `Quantile`: (..., n) -> (...)."""
    if isinstance(quantile, (list, tuple)):
        q: Any = Tensor(list(quantile), dtype=y_pred.dtype)
        if y_pred.ndim == 0 or y_pred.shape[-1] != len(quantile):
            raise ValueError(
                f"quantile: predictions (y_pred) need one column for each of the {len(quantile)} "
                f"quantiles along their last axis; received shape {y_pred.shape}."
            )
        if y_true.shape == y_pred.shape[:-1]:
            y_true = ops.expand_dims(y_true, -1)
        if y_true.shape != (*y_pred.shape[:-1], 1):
            raise ValueError(
                f"quantile: targets (y_true) of shape {y_true.shape} do not fit predictions "
                f"(y_pred) of shape {y_pred.shape}; expected {y_pred.shape[:-1]}."
            )
        t, p = y_true, y_pred
    else:
        q = quantile
        t, p = matched("quantile", y_true, y_pred)
    e = t - p
    return ops.mean(ops.maximum(q * e, (q - 1) * e), -1)


@loss_function
def gaussian_nll(
    y_true: Tensor,
    y_pred: Tensor,
    full: bool = False,
    eps: float = 1e-6,
    log_variance: bool = False,
) -> Tensor:
    """The values of the loss `GaussianNLL`: y_true (..., n), y_pred (..., 2 n) -> (...)."""
    if y_true.ndim == y_pred.ndim - 1:
        y_true = ops.expand_dims(y_true, -1)
    n = y_true.shape[-1] if y_true.ndim else 0
    if n == 0 or y_pred.shape != (*y_true.shape[:-1], 2 * n):
        raise ValueError(
            f"gaussian_nll: for targets (y_true) of shape {y_true.shape} predictions (y_pred) hold "
            f"the means, then the variances; expected {(*y_true.shape[:-1], 2 * n)}, received "
            f"{y_pred.shape}."
        )
    mean, spread = y_pred[..., :n], y_pred[..., n:]
    if log_variance:
        value = spread + ops.square(y_true - mean) * ops.exp(-spread)
    else:
        if spread.data.size and spread.data.min() < 0:
            raise ValueError(
                f"gaussian_nll: received a negative variance, {spread.data.min():g}. Put a "
                "softplus on it, or predict its logarithm and pass log_variance=True."
            )
        variance = ops.maximum(spread, eps)
        value = ops.log(variance) + ops.square(y_true - mean) / variance
    return ops.mean(0.5 * value + (0.5 * math.log(2 * math.pi) if full else 0.0), -1)


# -------------------------------------------------------------------- losses


class MeanSquaredError(LossFunctionWrapper):
    """The mean over the last axis of (y_pred - y_true)^2.

    Args: reduction, name, dtype: see `Loss`.

    >>> import numpy as np
    >>> float(MeanSquaredError()(np.array([[0.0, 1.0]]), np.array([[1.0, 3.0]])))
    2.5
    """

    def __init__(
        self,
        reduction: str | None = "sum_over_batch_size",
        name: str | None = "mean_squared_error",
        dtype: Any = None,
    ) -> None:
        super().__init__(mean_squared_error, reduction, name, dtype)


MSE = MeanSquaredError  # the mean, where some libraries give the sum


class MeanAbsoluteError(LossFunctionWrapper):
    """The mean over the last axis of |y_pred - y_true|.

    Args: reduction, name, dtype: see `Loss`.
    """

    def __init__(
        self,
        reduction: str | None = "sum_over_batch_size",
        name: str | None = "mean_absolute_error",
        dtype: Any = None,
    ) -> None:
        super().__init__(mean_absolute_error, reduction, name, dtype)


class MeanAbsolutePercentageError(LossFunctionWrapper):
    """The mean over the last axis of 100 |y_pred - y_true| / max(|y_true|, eps), in percent.

    eps is `config.epsilon()`.

    Args: reduction, name, dtype: see `Loss`.
    """

    def __init__(
        self,
        reduction: str | None = "sum_over_batch_size",
        name: str | None = "mean_absolute_percentage_error",
        dtype: Any = None,
    ) -> None:
        super().__init__(mean_absolute_percentage_error, reduction, name, dtype)


class MeanSquaredLogarithmicError(LossFunctionWrapper):
    """The mean over the last axis of (log(1 + y_pred) - log(1 + y_true))^2.

    Values below `config.epsilon()` count as that.

    Args: reduction, name, dtype: see `Loss`.
    """

    def __init__(
        self,
        reduction: str | None = "sum_over_batch_size",
        name: str | None = "mean_squared_logarithmic_error",
        dtype: Any = None,
    ) -> None:
        super().__init__(mean_squared_logarithmic_error, reduction, name, dtype)


class Huber(LossFunctionWrapper):
    """The mean over the last axis of e^2 / 2 where e = |y_pred - y_true| is at most delta, and of
    delta (e - delta / 2) beyond.

    Args:
        delta: where the square turns into a line.
        reduction, name, dtype: see `Loss`.

    Reference: Huber, 1964, "Robust Estimation of a Location Parameter".
    """

    def __init__(
        self,
        delta: float = 1.0,
        reduction: str | None = "sum_over_batch_size",
        name: str | None = "huber_loss",
        dtype: Any = None,
    ) -> None:
        super().__init__(huber, reduction, name, dtype, delta=delta)


class LogCosh(LossFunctionWrapper):
    """The mean over the last axis of log(cosh(y_pred - y_true)): square near 0, absolute far off.

    Args: reduction, name, dtype: see `Loss`.
    """

    def __init__(
        self,
        reduction: str | None = "sum_over_batch_size",
        name: str | None = "log_cosh",
        dtype: Any = None,
    ) -> None:
        super().__init__(log_cosh, reduction, name, dtype)


class CosineSimilarity(LossFunctionWrapper):
    """-sum(y_true y_pred) / (|y_true| |y_pred|): -1 for the same direction, 1 for the opposite one.

    The metric of that name has the other sign.

    Args:
        axis: along which the vectors lie.
        reduction, name, dtype: see `Loss`.
    """

    def __init__(
        self,
        axis: int = -1,
        reduction: str | None = "sum_over_batch_size",
        name: str | None = "cosine_similarity",
        dtype: Any = None,
    ) -> None:
        super().__init__(cosine_similarity, reduction, name, dtype, axis=axis)


class Quantile(LossFunctionWrapper):
    """The pinball loss, the mean over the last axis of max(q e, (q - 1) e), e = y_true - y_pred.

    Its minimum is the q-quantile of the targets, so several of them give prediction intervals.

    Args:
        quantile: q between 0 and 1, or a list of them: predictions then have one column for each,
            and targets one column.
        reduction, name, dtype: see `Loss`.

    Reference: Koenker and Bassett, 1978, "Regression Quantiles".

    >>> import numpy as np
    >>> loss = Quantile([0.1, 0.5, 0.9])
    >>> round(float(loss(np.array([2.0]), np.array([[1.0, 2.0, 4.0]]))), 6)
    0.1
    """

    def __init__(
        self,
        quantile: float | list[float] | tuple[float, ...] = 0.5,
        reduction: str | None = "sum_over_batch_size",
        name: str | None = "quantile",
        dtype: Any = None,
    ) -> None:
        several = isinstance(quantile, (list, tuple))
        for q in quantile if isinstance(quantile, (list, tuple)) else [quantile]:
            if not isinstance(q, (int, float)) or not 0 < q < 1:
                raise ValueError(f"Quantile: quantile must lie between 0 and 1; received {q!r}.")
        given = list(quantile) if several else quantile  # type: ignore[arg-type]
        super().__init__(_quantile, reduction, name, dtype, quantile=given)


_quantile = quantile  # the argument of the class has the function's name


class GaussianNLL(LossFunctionWrapper):
    """The mean over the last axis of (log v + (y_true - m)^2 / v) / 2: fits a mean m and its
    variance v.

    Args:
        full: whether to add the constant log(2 pi) / 2.
        eps: the least variance.
        log_variance: whether predictions hold log v in place of v, which needs no positive
            activation; eps is not used then.
        reduction, name, dtype: see `Loss`.

    Shapes: y_true (..., n), y_pred (..., 2 n): the means, then the variances.

    Reference: Nix and Weigend, 1994, "Estimating the Mean and Variance of the Target Probability
    Distribution".
    """

    def __init__(
        self,
        full: bool = False,
        eps: float = 1e-6,
        log_variance: bool = False,
        reduction: str | None = "sum_over_batch_size",
        name: str | None = "gaussian_nll",
        dtype: Any = None,
    ) -> None:
        super().__init__(
            gaussian_nll, reduction, name, dtype, full=full, eps=eps, log_variance=log_variance
        )
