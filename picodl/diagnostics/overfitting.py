"""overfit_batch(): a healthy model can learn one batch by heart."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from picodl.callbacks.base import Callback, Logs
from picodl.diagnostics.watching import as_batch, build, on_a_copy, require_loss
from picodl.typing import Array


@dataclass
class Overfit:
    """How the loss of one batch fell.

    Attributes:
        losses: before each step, (steps,).
        goal: the loss to reach.
        reached: whether one of the losses is not above it. The object itself is true if so.
    """

    losses: Array
    goal: float
    reached: bool

    def __bool__(self) -> bool:
        return self.reached

    def __str__(self) -> str:
        first, last, steps = self.losses[0], self.losses[-1], len(self.losses)
        said = f"The loss went from {first:.4g} to {last:.4g} in {steps} steps; "
        if self.reached:
            return f"{said}the goal, {self.goal:.4g}, is reached."
        if not math.isfinite(last):
            cause = "It is not finite: lower the learning rate, and see what dry_run() finds."
        elif last > first:
            cause = "It rose: lower the learning rate, and see whether the targets fit the loss."
        elif self.losses.min() < 0.5 * first:
            cause = "It falls, but slowly or not far: more steps, a larger learning rate, less "
            cause += "dropout and weaker penalties may do."
        else:
            cause = "It hardly falls: see what dry_run() finds, and try a larger learning rate."
        return f"{said}the goal, {self.goal:.4g}, is not reached. {cause}"


def overfit_batch(
    model: Any,
    x: Any,
    y: Any = None,
    steps: int = 1000,
    goal: float | None = None,
    verbose: int | str = 0,
) -> Overfit:
    """Train a copy of a model on one batch alone, and tell whether its loss falls to a goal.

    A model that cannot learn a few samples by heart will not learn many. The copy begins with the
    model's weights and with a fresh optimizer of the same settings. It stops where the goal is
    reached. Dropout, augmentation and penalties count: they keep the loss up.

    Args:
        model: compiled. It stays as it is.
        x, y: the batch, as for `train_on_batch`; a few dozen samples are enough.
        steps: how many to make at the most.
        goal: the loss to reach. Defaults to a tenth of the first one.
        verbose: 0 nothing, 1 a progress bar, 2 a line, "auto" 1 on a terminal; as in fit.

    Returns:
        An Overfit: the losses, and whether the goal was reached.

    Raises:
        ValueError: for a model that is not compiled, an empty batch, data of different lengths,
            steps or a goal out of range, or no goal where the first loss is not positive.

    >>> from picodl import Input, Sequential, layers
    >>> model = Sequential([Input((2,)), layers.Dense(1)])
    >>> model.compile("sgd", loss="mse")
    >>> bool(overfit_batch(model, np.eye(2), np.array([1.0, 3.0]), steps=200))
    True
    """
    if isinstance(steps, bool) or not isinstance(steps, (int, np.integer)) or steps < 1:
        raise ValueError(
            f"overfit_batch: steps must be an integer of at least 1; received {steps!r}."
        )
    number = isinstance(goal, (int, float, np.number)) and not isinstance(goal, bool)
    if goal is not None and not (number and math.isfinite(goal)):
        raise ValueError(f"overfit_batch: goal must be a finite number; received {goal!r}.")
    with on_a_copy("overfit_batch", model) as copy:
        require_loss("overfit_batch", model)
        x, y = as_batch("overfit_batch", copy, x, y)
        build(copy, x)
        copy.optimizer = type(copy.optimizer).from_config(copy.optimizer.get_config())
        losses = _Losses(None if goal is None else float(goal))
        batch = itertools.repeat((x,) if y is None else (x, y), steps)
        copy.fit(batch, steps_per_epoch=steps, verbose=verbose, callbacks=[losses])
    found = np.array(losses.seen)
    return Overfit(found, losses.goal, bool(found[-1] <= losses.goal))  # type: ignore[arg-type]


class _Losses(Callback):
    """Keeps the loss of each batch, and ends the training at the goal, or where nothing is left."""

    def __init__(self, goal: float | None) -> None:
        super().__init__()
        self.goal = goal
        self.seen: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        self.model.reset_metrics()  # so that the logs are those of this step alone

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        if "loss" not in (logs or {}):
            raise ValueError(
                f'overfit_batch: the train_step of "{self.model.name}" reports no "loss". Return '
                'a dict with the key "loss" from it.'
            )
        loss = float(logs["loss"])  # type: ignore[index]
        self.seen.append(loss)
        if self.goal is None:
            if loss <= 0:
                raise ValueError(
                    f"overfit_batch: the first loss is {loss:.4g}, so a tenth of it is no goal. "
                    "Pass goal=..., the loss to reach."
                )
            self.goal = loss / 10
        if loss <= self.goal or not math.isfinite(loss):
            self.model.stop_training = True
