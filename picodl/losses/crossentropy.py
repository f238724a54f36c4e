"""Losses of probabilities: cross-entropies, their focal and robust kin, divergences."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from picodl import config, ops
from picodl.losses.base import LossFunctionWrapper, check_fraction, loss_function, matched
from picodl.ops import loss as kernels
from picodl.ops.labels import class_axis, class_numbers
from picodl.tensor import Tensor
from picodl.typing import Array

# -------------------------------------------------------------------- values per sample


@loss_function
def binary_crossentropy(
    y_true: Tensor,
    y_pred: Tensor,
    from_logits: bool = False,
    label_smoothing: float = 0.0,
    axis: int = -1,
) -> Tensor:
    """The values of the loss `BinaryCrossentropy`: the mean over the given axis."""
    t, p = matched("binary_crossentropy", y_true, y_pred)
    t = smoothed(t, label_smoothing, 2)
    return kernels.binary_values(t, p, from_logits, axis)


@loss_function
def categorical_crossentropy(
    y_true: Tensor,
    y_pred: Tensor,
    from_logits: bool = False,
    label_smoothing: float = 0.0,
    axis: int = -1,
) -> Tensor:
    """The values of the loss `CategoricalCrossentropy`: the class axis is gone."""
    t, p = matched("categorical_crossentropy", y_true, y_pred)
    t = smoothed(t, label_smoothing, _classes(p, axis, "categorical_crossentropy"))
    return kernels.categorical_crossentropy(t, p, from_logits, axis)


@loss_function
def sparse_categorical_crossentropy(
    y_true: Array,
    y_pred: Tensor,
    from_logits: bool = False,
    ignore_class: int | None = None,
    axis: int = -1,
) -> Tensor:
    """The values of the loss `SparseCategoricalCrossentropy`: the class axis is gone."""
    if ignore_class is None:
        return kernels.sparse_categorical_crossentropy(y_true, y_pred, from_logits, axis)
    keep = y_true != ignore_class
    values = kernels.sparse_categorical_crossentropy(y_true * keep, y_pred, from_logits, axis)
    return ops.where(keep.reshape(values.shape), values, 0.0)


@loss_function
def binary_focal_crossentropy(
    y_true: Tensor,
    y_pred: Tensor,
    apply_class_balancing: bool = False,
    alpha: float = 0.25,
    gamma: float = 2.0,
    from_logits: bool = False,
    label_smoothing: float = 0.0,
    axis: int = -1,
) -> Tensor:
    """The values of the loss `BinaryFocalCrossentropy`: the mean over the given axis."""
    t, p = matched("binary_focal_crossentropy", y_true, y_pred)
    t = smoothed(t, label_smoothing, 2)
    values = kernels.binary_crossentropy(t, p, from_logits)
    if from_logits:
        p = ops.sigmoid(p)
    values = values * ops.power(1 - (t * p + (1 - t) * (1 - p)), gamma)
    if apply_class_balancing:
        values = values * (t * alpha + (1 - t) * (1 - alpha))
    return ops.mean(values, axis)


@loss_function
def categorical_focal_crossentropy(
    y_true: Tensor,
    y_pred: Tensor,
    alpha: float = 0.25,
    gamma: float = 2.0,
    from_logits: bool = False,
    label_smoothing: float = 0.0,
    axis: int = -1,
) -> Tensor:
    """The values of the loss `CategoricalFocalCrossentropy`: the class axis is gone."""
    t, p = matched("categorical_focal_crossentropy", y_true, y_pred)
    t = smoothed(t, label_smoothing, _classes(p, axis, "categorical_focal_crossentropy"))
    if from_logits:
        log_p = ops.log_softmax(p, axis)
        p = ops.exp(log_p)
    else:
        s = ops.sum(p, axis, keepdims=True)
        p = p / (s + (s.data == 0))
        p = ops.clip(p, config.epsilon(), 1 - config.epsilon())
        log_p = ops.log(p)
    return -alpha * ops.sum(t * log_p * ops.power(1 - p, gamma), axis)


@loss_function
def categorical_generalized_cross_entropy(y_true: Array, y_pred: Tensor, q: float = 0.5) -> Tensor:
    """The values of the loss `CategoricalGeneralizedCrossEntropy`: (..., classes) -> (...)."""
    labels = class_numbers(
        "categorical_generalized_cross_entropy", y_true, y_pred.shape[:-1], y_pred.shape[-1]
    )
    p = ops.squeeze(ops.take_along_axis(y_pred, labels[..., None], -1), -1)
    return (1 - ops.power(ops.maximum(p, config.epsilon()), q)) / q


@loss_function
def kl_divergence(y_true: Tensor, y_pred: Tensor) -> Tensor:
    """The values of the loss `KLDivergence`: (..., n) -> (...)."""
    t, p = (ops.clip(x, config.epsilon(), 1.0) for x in matched("kl_divergence", y_true, y_pred))
    return ops.sum(t * ops.log(t / p), -1)


@loss_function
def poisson(y_true: Tensor, y_pred: Tensor) -> Tensor:
    """The values of the loss `Poisson`: (..., n) -> (...)."""
    t, p = matched("poisson", y_true, y_pred)
    return ops.mean(p - t * ops.log(p + config.epsilon()), -1)


def smoothed(t: Tensor, amount: float, classes: int) -> Tensor:
    """Targets drawn towards 1 / classes by an amount between 0 and 1.

    Raises:
        ValueError: for another amount.
    """
    if not amount:
        return t
    check_fraction("label_smoothing", amount)
    return t * (1 - amount) + amount / classes


def _classes(p: Tensor, axis: int, name: str) -> int:
    """The number of classes; one alone is reported."""
    classes: int = p.shape[class_axis(p.shape, axis, name)]
    if classes == 1:
        warnings.warn(
            "A categorical cross-entropy of one class is always 0 and teaches nothing. For yes or "
            "no give the model one unit with a sigmoid, and use BinaryCrossentropy.",
            stacklevel=4,
        )
    return classes


# -------------------------------------------------------------------- losses


class BinaryCrossentropy(LossFunctionWrapper):
    """-(t log p + (1 - t) log(1 - p)), the mean over an axis: each output is a yes or no.

    Args:
        from_logits: whether predictions are logits z with p = sigmoid(z), exact at any size.
        label_smoothing: draws targets towards 1/2, a fraction from 0 to 1.
        axis: the mean is taken over.
        reduction, name, dtype: see `Loss`.

    Shapes: y_true and y_pred (batch, ..., n), targets between 0 and 1.
    """

    def __init__(
        self,
        from_logits: bool = False,
        label_smoothing: float = 0.0,
        axis: int = -1,
        reduction: str | None = "sum_over_batch_size",
        name: str | None = "binary_crossentropy",
        dtype: Any = None,
    ) -> None:
        check_fraction("label_smoothing", label_smoothing)
        super().__init__(
            binary_crossentropy,
            reduction,
            name,
            dtype,
            from_logits=from_logits,
            label_smoothing=label_smoothing,
            axis=axis,
        )


class CategoricalCrossentropy(LossFunctionWrapper):
    """-sum(t log p) over the classes, for one-hot targets or probabilities t.

    Args:
        from_logits: whether predictions are logits z with p = softmax(z), exact at any size.
        label_smoothing: draws targets towards 1 / classes, a fraction from 0 to 1.
        axis: where the classes are.
        reduction, name, dtype: see `Loss`.

    Shapes: y_true and y_pred (batch, ..., classes).
    """

    def __init__(
        self,
        from_logits: bool = False,
        label_smoothing: float = 0.0,
        axis: int = -1,
        reduction: str | None = "sum_over_batch_size",
        name: str | None = "categorical_crossentropy",
        dtype: Any = None,
    ) -> None:
        check_fraction("label_smoothing", label_smoothing)
        super().__init__(
            categorical_crossentropy,
            reduction,
            name,
            dtype,
            from_logits=from_logits,
            label_smoothing=label_smoothing,
            axis=axis,
        )


class SparseCategoricalCrossentropy(LossFunctionWrapper):
    """-log p of the class whose number is the target.

    Args:
        from_logits: whether predictions are logits z with p = softmax(z), exact at any size.
        ignore_class: a label whose positions do not count; it may lie out of range.
        axis: where the classes are.
        reduction, name, dtype: see `Loss`.

    Shapes: y_true (batch, ...) or (batch, ..., 1), y_pred (batch, ..., classes).

    >>> import numpy as np
    >>> loss = SparseCategoricalCrossentropy()
    >>> round(float(loss(np.array([1]), np.array([[0.5, 0.25, 0.25]]))), 4)
    1.3863
    """

    def __init__(
        self,
        from_logits: bool = False,
        ignore_class: int | None = None,
        reduction: str | None = "sum_over_batch_size",
        axis: int = -1,
        name: str | None = "sparse_categorical_crossentropy",
        dtype: Any = None,
    ) -> None:
        super().__init__(
            sparse_categorical_crossentropy,
            reduction,
            name,
            dtype,
            from_logits=from_logits,
            ignore_class=ignore_class,
            axis=axis,
        )

    def fused_mean(self, y_true: Array, y_pred: Tensor) -> Tensor | None:
        """The mean from logits whose classes come last."""
        a, options = y_pred.data, self.kwargs
        plain = (
            options["from_logits"] and options["ignore_class"] is None and options["axis"] == -1
            and self.reduction == "sum_over_batch_size" and self._dtype is None
        )  # fmt: skip
        if plain and y_pred.mask is None and a.ndim > 1 and a.size and a.dtype.itemsize >= 4:
            return kernels.mean_sparse_crossentropy(y_true, y_pred)
        return None

    def counted(self, y_true: Any) -> Array | None:
        """All but those of ignore_class."""
        ignored = self.kwargs["ignore_class"]
        return None if ignored is None else np.asarray(y_true) != ignored


class CrossEntropyLoss(LossFunctionWrapper):
    """Cross-entropy of logits, for class numbers or for one-hot targets: their shape decides.

    Args:
        label_smoothing: draws one-hot targets towards 1 / classes.
        reduction, name, dtype: see `Loss`.

    Shapes: y_true (batch, ...) or (batch, ..., classes), y_pred (batch, ..., classes).
    """

    def __init__(
        self,
        label_smoothing: float = 0.0,
        reduction: str | None = "sum_over_batch_size",
        name: str | None = "cross_entropy_loss",
        dtype: Any = None,
    ) -> None:
        check_fraction("label_smoothing", label_smoothing)
        super().__init__(
            categorical_crossentropy, reduction, name, dtype, label_smoothing=label_smoothing
        )

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """One value per sample."""
        smoothing = self.kwargs["label_smoothing"]
        classes = y_pred.shape[-1]
        if y_true.shape == y_pred.shape and (classes > 1 or y_true.ndim > 1):
            return categorical_crossentropy(y_true, y_pred, True, smoothing)
        if smoothing:
            labels = class_numbers("CrossEntropyLoss", y_true, y_pred.shape[:-1], classes)
            hot = np.eye(classes, dtype=y_pred.dtype)[labels]
            return categorical_crossentropy(hot, y_pred, True, smoothing)
        return sparse_categorical_crossentropy(y_true, y_pred, True)


class BinaryFocalCrossentropy(LossFunctionWrapper):
    """(1 - p_t)^gamma times the binary cross-entropy, the mean over an axis; p_t = p for target 1,
    1 - p for target 0. Easy cases count less.

    Args:
        apply_class_balancing: whether to multiply by alpha for target 1, 1 - alpha for target 0.
        alpha: see there.
        gamma: how much less easy cases count.
        from_logits, label_smoothing, axis: see `BinaryCrossentropy`.
        reduction, name, dtype: see `Loss`.

    Reference: Lin et al., 2017, "Focal Loss for Dense Object Detection", arXiv:1708.02002.
    """

    def __init__(
        self,
        apply_class_balancing: bool = False,
        alpha: float = 0.25,
        gamma: float = 2.0,
        from_logits: bool = False,
        label_smoothing: float = 0.0,
        axis: int = -1,
        reduction: str | None = "sum_over_batch_size",
        name: str | None = "binary_focal_crossentropy",
        dtype: Any = None,
    ) -> None:
        check_fraction("label_smoothing", label_smoothing)
        super().__init__(
            binary_focal_crossentropy,
            reduction,
            name,
            dtype,
            apply_class_balancing=apply_class_balancing,
            alpha=alpha,
            gamma=gamma,
            from_logits=from_logits,
            label_smoothing=label_smoothing,
            axis=axis,
        )


class CategoricalFocalCrossentropy(LossFunctionWrapper):
    """-alpha sum((1 - p)^gamma t log p) over the classes: easy cases count less.

    Args:
        alpha: a factor for all classes.
        gamma: how much less easy cases count.
        from_logits, label_smoothing, axis: see `CategoricalCrossentropy`.
        reduction, name, dtype: see `Loss`.

    Reference: Lin et al., 2017, "Focal Loss for Dense Object Detection", arXiv:1708.02002.
    """

    def __init__(
        self,
        alpha: float = 0.25,
        gamma: float = 2.0,
        from_logits: bool = False,
        label_smoothing: float = 0.0,
        axis: int = -1,
        reduction: str | None = "sum_over_batch_size",
        name: str | None = "categorical_focal_crossentropy",
        dtype: Any = None,
    ) -> None:
        check_fraction("label_smoothing", label_smoothing)
        super().__init__(
            categorical_focal_crossentropy,
            reduction,
            name,
            dtype,
            alpha=alpha,
            gamma=gamma,
            from_logits=from_logits,
            label_smoothing=label_smoothing,
            axis=axis,
        )


class CategoricalGeneralizedCrossEntropy(LossFunctionWrapper):
    """(1 - p^q) / q with p of the class whose number is the target: noisy labels pull less.

    Args:
        q: from near 0, the cross-entropy, to 1, the absolute error.
        reduction, name, dtype: see `Loss`.

    Reference: Zhang and Sabuncu, 2018, "Generalized Cross Entropy Loss for Training Deep Neural
    Networks with Noisy Labels", arXiv:1805.07836.
    """

    def __init__(
        self,
        q: float = 0.5,
        reduction: str | None = "sum_over_batch_size",
        name: str | None = "categorical_generalized_cross_entropy",
        dtype: Any = None,
    ) -> None:
        if not 0 < q < 1:
            raise ValueError(
                f"CategoricalGeneralizedCrossEntropy: q must lie between 0 and 1; received {q!r}."
            )
        super().__init__(categorical_generalized_cross_entropy, reduction, name, dtype, q=q)


class KLDivergence(LossFunctionWrapper):
    """sum(y_true log(y_true / y_pred)) over the last axis, both kept in [`config.epsilon()`, 1].

    Args: reduction, name, dtype: see `Loss`.
    """

    def __init__(
        self,
        reduction: str | None = "sum_over_batch_size",
        name: str | None = "kl_divergence",
        dtype: Any = None,
    ) -> None:
        super().__init__(kl_divergence, reduction, name, dtype)


class Poisson(LossFunctionWrapper):
    """The mean over the last axis of y_pred - y_true log(y_pred + eps), eps = `config.epsilon()`.

    Args: reduction, name, dtype: see `Loss`.
    """

    def __init__(
        self,
        reduction: str | None = "sum_over_batch_size",
        name: str | None = "poisson",
        dtype: Any = None,
    ) -> None:
        super().__init__(poisson, reduction, name, dtype)
