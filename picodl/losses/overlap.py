"""Losses of regions: how much of a mask and its prediction overlap."""

from __future__ import annotations

from typing import Any

from picodl import config, ops
from picodl.losses.base import LossFunctionWrapper, loss_function, matched
from picodl.tensor import Tensor
from picodl.typing import Axis


@loss_function
def dice(y_true: Tensor, y_pred: Tensor, axis: Axis = None) -> Tensor:
    """The values of the loss `Dice`: the given axes are gone."""
    t, p = matched("dice", y_true, y_pred)
    axis = tuple(axis) if isinstance(axis, list) else axis
    return _lack(2 * ops.sum(t * p, axis), ops.sum(t, axis) + ops.sum(p, axis))


@loss_function
def tversky(
    y_true: Tensor, y_pred: Tensor, alpha: float = 0.5, beta: float = 0.5, axis: Axis = None
) -> Tensor:
    """The values of the loss `Tversky`: the given axes are gone."""
    t, p = matched("tversky", y_true, y_pred)
    axis = tuple(axis) if isinstance(axis, list) else axis
    both = ops.sum(t * p, axis)
    missed, added = ops.sum(t * (1 - p), axis), ops.sum((1 - t) * p, axis)
    return _lack(both, both + alpha * missed + beta * added)


def _lack(part: Tensor, whole: Tensor) -> Tensor:
    """1 - part / whole, and 0 where there is nothing at all."""
    return ops.where(whole.data == 0, 0.0, 1 - part / (whole + config.epsilon()))


class Dice(LossFunctionWrapper):
    """1 - 2 sum(t p) / (sum(t) + sum(p) + eps), eps = `config.epsilon()`; 0 if all is empty.

    Args:
        reduction, name: see `Loss`.
        axis: the axes summed over. Defaults to all of them, which gives one value for the batch;
            (1, 2, 3) gives one for each picture.
        dtype: see `Loss`.

    Reference: Milletari et al., 2016, "V-Net", arXiv:1606.04797.
    """

    def __init__(
        self,
        reduction: str | None = "sum_over_batch_size",
        name: str | None = "dice",
        axis: Axis = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(dice, reduction, name, dtype, axis=axis)


class Tversky(LossFunctionWrapper):
    """1 - b / (b + alpha sum(t (1 - p)) + beta sum((1 - t) p) + eps) with b = sum(t p).

    eps is `config.epsilon()`; the loss is 0 if all is empty.

    Args:
        alpha: the weight of what was missed.
        beta: the weight of what was added, as Keras has them.
        reduction, name: see `Loss`.
        axis: the axes summed over; see `Dice`.
        dtype: see `Loss`.

    Reference: Salehi et al., 2017, "Tversky loss function for image segmentation using 3D fully
    convolutional deep networks", arXiv:1706.05721.
    """

    def __init__(
        self,
        alpha: float = 0.5,
        beta: float = 0.5,
        reduction: str | None = "sum_over_batch_size",
        name: str | None = "tversky",
        axis: Axis = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(tversky, reduction, name, dtype, alpha=alpha, beta=beta, axis=axis)
