"""The loss of sequences whose labels have no known places in time."""

from __future__ import annotations

from typing import Any

import numpy as np

from picodl.losses.base import LossFunctionWrapper, loss_function
from picodl.ops.ctc import ctc_loss
from picodl.ops.labels import whole_numbers
from picodl.tensor import Tensor, as_array
from picodl.typing import Array


@loss_function
def ctc(y_true: Array, y_pred: Tensor) -> Tensor:
    """The values of the loss `CTC`: y_true (batch, labels), y_pred (batch, steps, classes) ->
    (batch,)."""
    labels = whole_numbers("ctc", np.asarray(y_true))
    if labels.ndim != 2 or y_pred.ndim != 3 or len(labels) != len(y_pred):
        raise ValueError(
            "ctc: expected labels (y_true) of shape (batch, labels) and logits (y_pred) of shape "
            f"(batch, steps, classes); received {labels.shape} and {y_pred.shape}."
        )
    steps = np.full(len(labels), y_pred.shape[1])
    if y_pred.mask is not None:
        mask = as_array(y_pred.mask).astype(bool)
        steps = mask.sum(1)
        if (mask != (np.arange(mask.shape[1]) < steps[:, None])).any():
            raise ValueError(
                "ctc: the mask of the predictions (y_pred) may only leave out steps at the end."
            )
    return ctc_loss(labels, y_pred, np.count_nonzero(labels, axis=1), steps)


ctc.reads_mask = True


class CTC(LossFunctionWrapper):
    """-log of the probability that logits, step by step, read as the labels; see `ops.ctc_loss`.

    Args: reduction, name, dtype: see `Loss`.

    Shapes: y_true (batch, labels), class numbers from 1, padded with 0 at the end; y_pred (batch,
    steps, classes), logits in which class 0 is the blank. A mask of y_pred says how many steps each
    sample has.

    Reference: Graves et al., 2006, "Connectionist Temporal Classification".
    """

    def __init__(
        self,
        reduction: str | None = "sum_over_batch_size",
        name: str | None = "ctc",
        dtype: Any = None,
    ) -> None:
        super().__init__(ctc, reduction, name, dtype)
