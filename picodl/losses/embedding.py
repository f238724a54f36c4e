"""Losses of distances: embeddings of the same class close together, others apart."""

from __future__ import annotations

from typing import Any

import numpy as np

from picodl import ops
from picodl.losses.base import LossFunctionWrapper, loss_function, matched
from picodl.tensor import Tensor
from picodl.typing import Array

_MINING = ("semi_hard", "hard")


@loss_function
def circle(
    y_true: Array,
    y_pred: Tensor,
    ref_labels: Array | None = None,
    ref_embeddings: Tensor | None = None,
    remove_diagonal: bool = True,
    gamma: float = 80.0,
    margin: float = 0.4,
) -> Tensor:
    """The values of the loss `Circle`, one per anchor: (batch, size) -> (batch,).

    Args:
        y_true: class numbers.
        y_pred: embeddings of length 1.
        ref_labels, ref_embeddings: what the batch is compared with. Defaults to the batch itself.
        remove_diagonal: whether row i of y_pred is row i of the references and left out.
        gamma, margin: see `Circle`.

    Raises:
        ValueError: for shapes that do not fit.
    """
    labels = _labels("circle", y_true, y_pred)
    others = labels if ref_labels is None else np.ravel(ref_labels)
    references = y_pred if ref_embeddings is None else ref_embeddings
    same = labels[:, None] == others[None, :]
    different = ~same
    if remove_diagonal:
        same = same & (np.eye(*same.shape) == 0)
    s = ops.matmul(y_pred, ops.transpose(references))
    far, near = ops.relu(1 + margin - s), ops.relu(s + margin)
    positive = _log_sum_exp_where(same, -gamma * far * (s - (1 - margin)))
    negative = _log_sum_exp_where(different, gamma * near * (s - margin))
    return ops.softplus(positive + negative)


def _log_sum_exp_where(where: Array, x: Tensor) -> Tensor:
    """log(sum(exp(x))) over the places of each row that count; -1e9 where none does."""
    return ops.logsumexp(ops.where(where, x, -1e9), -1)


@loss_function
def triplet(
    y_true: Array, y_pred: Tensor, margin: float = 1.0, mining: str = "semi_hard"
) -> Tensor:
    """The values of the loss `Triplet`, one per anchor: (batch, size) -> (batch,)."""
    labels = _labels("triplet", y_true, y_pred)
    same = labels[:, None] == labels[None, :]
    positive = same & (np.eye(len(labels)) == 0)
    counts = _has_triplet(labels)
    if not counts.any():
        return ops.sum(y_pred, 1) * 0
    d = _distances(y_pred)
    away = d.data
    if mining == "hard":
        rows = np.arange(len(labels))
        p, n = np.where(positive, away, -1).argmax(1), np.where(same, np.inf, away).argmin(1)
        return ops.where(counts, ops.relu(d[rows, p] - d[rows, n] + margin), 0.0)
    # for the pair (anchor a, positive b): the nearest negative beyond b, or the farthest of all
    beyond = ~same[:, None, :] & (away[:, None, :] > away[:, :, None])
    nearest = np.where(beyond, away[:, None, :], np.inf).argmin(2)
    farthest = np.where(same, -1, away).argmax(1)[:, None]
    n = np.where(beyond.any(2), nearest, farthest)
    rows = np.arange(len(labels))[:, None]
    values = ops.where(positive & counts[:, None], ops.relu(d - d[rows, n] + margin), 0.0)
    return ops.sum(values, 1) / np.maximum(positive.sum(1), 1).astype(y_pred.dtype)


def _has_triplet(labels: Array) -> Array:
    """Whether an anchor has a positive and a negative."""
    same = labels[:, None] == labels[None, :]
    return (same.sum(1) > 1) & (~same).any(1)


def _distances(x: Tensor) -> Tensor:
    """Euclidean distances of all pairs of rows; where one is 0, so is its gradient."""
    squares = ops.sum(ops.square(ops.expand_dims(x, 1) - ops.expand_dims(x, 0)), -1)
    same = squares.data == 0
    return ops.where(same, 0.0, ops.sqrt(ops.where(same, 1.0, squares)))


@loss_function
def contrastive(y_true: Tensor, y_pred: Tensor, margin: float = 1.0) -> Tensor:
    """The values of the loss `Contrastive`: (..., n) -> (...)."""
    t, d = matched("contrastive", y_true, y_pred)
    return ops.mean(t * ops.square(d) + (1 - t) * ops.square(ops.relu(margin - d)), -1)


def _labels(name: str, y_true: Array, y_pred: Tensor) -> Array:
    labels = np.asarray(y_true)
    if y_pred.ndim != 2 or labels.shape not in ((len(y_pred),), (len(y_pred), 1)):
        raise ValueError(
            f"{name}: expected class numbers (y_true) of shape (batch,) and embeddings (y_pred) of "
            f"shape (batch, size); received {labels.shape} and {y_pred.shape}."
        )
    return labels.reshape(-1)


class Circle(LossFunctionWrapper):
    """log(1 + sum exp(gamma a_n (s_n - m)) sum exp(-gamma a_p (s_p - 1 + m))) for each anchor.

    s_p and s_n are its products with the embeddings of the same and of other classes, m the
    margin, a_p = max(1 + m - s_p, 0) and a_n = max(s_n + m, 0).
    Anchors without another one of their class do not count.

    Args:
        gamma: the scale.
        margin: how far from 1 and 0 the products may stay.
        remove_diagonal: whether an embedding is not compared with itself.
        reduction, name, dtype: see `Loss`.

    Shapes: y_true (batch,) class numbers, y_pred (batch, size) embeddings of length 1.

    Reference: Sun et al., 2020, "Circle Loss: A Unified Perspective of Pair Similarity
    Optimization", arXiv:2002.10857.
    """

    def __init__(
        self,
        gamma: float = 80.0,
        margin: float = 0.4,
        remove_diagonal: bool = True,
        reduction: str | None = "sum_over_batch_size",
        name: str | None = "circle",
        dtype: Any = None,
    ) -> None:
        super().__init__(
            circle,
            reduction,
            name,
            dtype,
            gamma=gamma,
            margin=margin,
            remove_diagonal=remove_diagonal,
        )

    def counted(self, y_true: Any) -> Array | None:
        """The anchors with another one of their class."""
        labels = np.asarray(y_true).reshape(-1)
        same = (labels[:, None] == labels[None, :]).sum(1)
        return same > (1 if self.kwargs["remove_diagonal"] else 0)


class Triplet(LossFunctionWrapper):
    """max(|a - p| - |a - n| + margin, 0) for an anchor a, a p of its class and an n of another.

    Triplets are found in the batch. Anchors without one do not count.

    Args:
        margin: how much farther the other class must be.
        mining: "semi_hard": each p of the anchor's class with the nearest n beyond p, or the
            farthest n if there is none, and their mean; "hard": the farthest p with the nearest n.
        reduction, name, dtype: see `Loss`.

    Shapes: y_true (batch,) class numbers, y_pred (batch, size) embeddings.

    Reference: Schroff et al., 2015, "FaceNet", arXiv:1503.03832; Hermans et al., 2017, "In Defense
    of the Triplet Loss for Person Re-Identification", arXiv:1703.07737.
    """

    def __init__(
        self,
        margin: float = 1.0,
        mining: str = "semi_hard",
        reduction: str | None = "sum_over_batch_size",
        name: str | None = "triplet",
        dtype: Any = None,
    ) -> None:
        if mining not in _MINING:
            raise ValueError(f'Triplet: mining must be "semi_hard" or "hard"; received {mining!r}.')
        super().__init__(triplet, reduction, name, dtype, margin=margin, mining=mining)

    def counted(self, y_true: Any) -> Array | None:
        """The anchors that have a triplet."""
        return _has_triplet(np.asarray(y_true).reshape(-1))


class Contrastive(LossFunctionWrapper):
    """t d^2 + (1 - t) max(margin - d, 0)^2, the mean over the last axis.

    Args:
        margin: how far apart a pair of different things must be.
        reduction, name, dtype: see `Loss`.

    Shapes: y_true (batch, ...): t, 1 for a pair of the same, 0 for different ones; y_pred: d, the
    distances of the pairs.

    Reference: Hadsell et al., 2006, "Dimensionality Reduction by Learning an Invariant Mapping".
    """

    def __init__(
        self,
        margin: float = 1.0,
        reduction: str | None = "sum_over_batch_size",
        name: str | None = "contrastive",
        dtype: Any = None,
    ) -> None:
        super().__init__(contrastive, reduction, name, dtype, margin=margin)
