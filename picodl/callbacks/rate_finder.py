"""A search for the learning rate: a short training in which it rises from batch to batch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from picodl.callbacks.base import Callback, Logs
from picodl.typing import Array


class LearningRateFinder(Callback):
    """Raise the learning rate from batch to batch and record the loss of each.

    The training ends after num_steps batches, or when the loss has grown far beyond its best, and
    leaves weights and optimizer as they were. `suggestion` is then the rate at which the loss fell
    fastest; `picodl.visualize.plot_learning_rates` draws the curve.

    Args:
        min_lr: the first rate. Defaults to 1e-6.
        max_lr: the last rate. Defaults to 10.
        num_steps: how many batches. Defaults to 100.
        smoothing: how much of the curve before is kept in each step, from 0 to 1. Defaults to 0.9.
        divergence: the loss over its best that ends the training. Defaults to 4.

    Raises:
        ValueError: for numbers out of range; when training begins, if the model is not built.
        TypeError: when training begins, if the learning rate cannot be set (a schedule).

    Attributes:
        learning_rates, losses: the rate and the loss of each batch.

    Reference: Smith, 2017, "Cyclical Learning Rates for Training Neural Networks",
    arXiv:1506.01186, section 3.3.
    """

    def __init__(
        self,
        min_lr: float = 1e-6,
        max_lr: float = 10.0,
        num_steps: int = 100,
        smoothing: float = 0.9,
        divergence: float = 4.0,
    ) -> None:
        super().__init__()
        if not 0 < min_lr < max_lr:
            raise ValueError(
                "LearningRateFinder needs 0 < min_lr < max_lr; received "
                f"min_lr={min_lr!r}, max_lr={max_lr!r}."
            )
        if num_steps < 10 or not 0 <= smoothing < 1 or not divergence > 1:
            raise ValueError(
                "LearningRateFinder needs num_steps of at least 10, a smoothing from 0 to 1 and a "
                f"divergence above 1; received {num_steps!r}, {smoothing!r}, {divergence!r}."
            )
        self.min_lr = min_lr
        self.max_lr = max_lr
        self.num_steps = int(num_steps)
        self.smoothing = smoothing
        self.divergence = divergence
        self.learning_rates: list[float] = []
        self.losses: list[float] = []
        self._before: tuple[list[Array], list[Array]] | None = None

    def run(self, model: Any, x: Any, y: Any = None, **fit: Any) -> LearningRateFinder:
        """Search with `model.fit(x, y, ...)`; returns the finder.

        Args:
            model: a built and compiled model; it is left as it was.
            x, y: the data, as for fit.
            fit: more arguments of fit, such as batch_size.
        """
        model.fit(x, y, **{"epochs": self.num_steps, "verbose": 0, "callbacks": [self], **fit})
        return self

    def on_train_begin(self, logs: Logs | None = None) -> None:
        model, optimizer = self.model, self.model.optimizer
        if not model.built:
            raise ValueError(
                f'LearningRateFinder: model "{model.name}" is not built yet, so its weights cannot '
                "be kept. Give it an Input, or call it on a batch first."
            )
        optimizer.build(model.trainable_weights)
        weights = [w.data.copy() for w in model.weights]
        self._before = weights, [v.data.copy() for v in optimizer.variables]
        self.learning_rates, self.losses = [], []
        optimizer.learning_rate = self.min_lr

    def on_train_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        done = len(self.losses) / (self.num_steps - 1)
        rate = self.min_lr * (self.max_lr / self.min_lr) ** done
        self.model.optimizer.learning_rate = rate
        self.learning_rates.append(rate)
        self.model.reset_metrics()  # so that the logs are those of this batch alone

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        self.losses.append(float((logs or {})["loss"]))
        smooth = self.smoothed()
        lost = not math.isfinite(smooth[-1]) or smooth[-1] > self.divergence * smooth.min()
        if lost or len(self.losses) >= self.num_steps:
            self.model.stop_training = True

    def release(self) -> None:
        if self._before is None:
            return
        weights, slots = self._before
        self._before = None
        for w, value in zip(self.model.weights, weights, strict=True):
            w.data[...] = value
        self.model.optimizer.set_weights(slots)

    def smoothed(self) -> Array:
        """The losses, each averaged with those before it."""
        average, found = 0.0, []
        for i, loss in enumerate(self.losses, 1):
            average = self.smoothing * average + (1 - self.smoothing) * loss
            found.append(average / (1 - self.smoothing**i))
        return np.array(found)

    @property
    def suggestion(self) -> float:
        """The rate at which the smoothed loss falls fastest, on its last way down from the start.

        Raises:
            ValueError: before a search, or if the loss never fell.
        """
        smooth = self.smoothed()
        smooth = smooth[np.isfinite(smooth)]
        lowest = int(smooth.argmin()) if len(smooth) else 0
        if lowest < 2:
            raise ValueError(
                "LearningRateFinder has no suggestion: the loss did not fall. Search first, with a "
                "smaller min_lr or more steps."
            )
        # while the loss only trembles, its steepest fall is chance: begin where a tenth is done
        plateau = np.median(smooth[: max(3, lowest // 4)])
        level = plateau - 0.1 * (plateau - smooth[lowest])
        above = np.flatnonzero(smooth[:lowest] >= level)
        begin = int(above[-1]) if len(above) else 0
        slopes = np.gradient(smooth[: lowest + 1])[begin:]
        return self.learning_rates[begin + int(slopes.argmin())]
