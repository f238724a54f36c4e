"""Callbacks that change the learning rate, or the weights the model is looked at with."""

from __future__ import annotations

import inspect
import numbers
from collections.abc import Callable
from typing import Any

from picodl.callbacks.base import Callback, Logs
from picodl.callbacks.monitor import MonitorCallback, check_count
from picodl.callbacks.progress import write_line


class LearningRateScheduler(Callback):
    """Set the learning rate at the begin of each epoch.

    Args:
        schedule: function of (epoch, learning_rate), or of (epoch) alone, that returns the rate.
            Of a `MultiOptimizer` it is asked for the rate of each part.
        verbose: 1 writes a line for each epoch.

    Raises:
        TypeError: unless schedule is callable; in fit, if it returns no number.
    """

    def __init__(self, schedule: Callable[..., float], verbose: int = 0) -> None:
        super().__init__()
        if not callable(schedule):
            raise TypeError(
                "LearningRateScheduler: schedule must be a function of (epoch, learning_rate); "
                f"received {schedule!r}."
            )
        self.schedule = schedule
        self.verbose = verbose

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        for part in optimizers_of(self.model).values():
            self._set(part, epoch)

    def _set(self, optimizer: Any, epoch: int) -> None:
        rate = self._call(epoch, optimizer)
        if not isinstance(rate, numbers.Real) and getattr(rate, "ndim", -1) != 0:
            raise TypeError(
                "LearningRateScheduler: the schedule must return the learning rate as a number; "
                f"received {rate!r} of type {type(rate).__name__} for epoch {epoch}."
            )
        optimizer.learning_rate = float(rate)
        if self.verbose:
            write_line(f"Epoch {epoch + 1}: the learning rate is set to {float(rate)}.")

    def _call(self, epoch: int, optimizer: Any) -> Any:
        try:
            inspect.signature(self.schedule).bind(epoch, 0.0)
        except TypeError:
            return self.schedule(epoch)
        except ValueError:  # a function in C without a signature
            pass
        return self.schedule(epoch, float(optimizer.learning_rate))

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        if logs is not None:
            logs.update(rates_of(self.model))


class ReduceLROnPlateau(MonitorCallback):
    """Lower the learning rate when a value of the logs has stopped to improve.

    Args:
        monitor: key of the logs to watch.
        factor: the new rate is the old one times this; below 1.
        patience: epochs without improvement after which the rate is lowered.
        verbose: 1 writes a line when it is lowered.
        mode: "min", "max" or "auto".
        min_delta: smallest change that counts as an improvement.
        cooldown: epochs to wait after a change before counting again.
        min_lr: the rate never gets lower.

    Raises:
        ValueError: for a factor of 1 or more, or negative numbers.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        factor: float = 0.1,
        patience: int = 10,
        verbose: int = 0,
        mode: str = "auto",
        min_delta: float = 0.0001,
        cooldown: int = 0,
        min_lr: float = 0.0,
    ) -> None:
        super().__init__(monitor, mode, min_delta)
        if not 0 <= factor < 1:
            raise ValueError(
                f"ReduceLROnPlateau: factor must be at least 0 and less than 1; received {factor}."
            )
        self.factor = factor
        self.patience = check_count("ReduceLROnPlateau", "patience", patience)
        self.cooldown = check_count("ReduceLROnPlateau", "cooldown", cooldown)
        self.verbose = verbose
        self.min_lr = min_lr
        self._reset()

    def _reset(self) -> None:
        self.best: float | None = None
        self.wait = 0
        self.cooldown_counter = 0

    def on_train_begin(self, logs: Logs | None = None) -> None:
        super().on_train_begin(logs)
        self._reset()

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        logs = {} if logs is None else logs
        logs.update(rates_of(self.model))
        value = self.monitored(logs)
        if value is None:
            return
        if self.in_cooldown():
            self.cooldown_counter -= 1
            self.wait = 0
        if self.improves(value, self.best):
            self.best = value
            self.wait = 0
        elif not self.in_cooldown():
            self.wait += 1
            if self.wait >= self.patience:
                for part in optimizers_of(self.model).values():
                    self._lower(part, epoch)

    def _lower(self, optimizer: Any, epoch: int) -> None:
        rate = float(optimizer.learning_rate)
        if rate > self.min_lr:
            new = max(rate * self.factor, self.min_lr)
            optimizer.learning_rate = new
            self.cooldown_counter = self.cooldown
            self.wait = 0
            if self.verbose:
                write_line(f"Epoch {epoch + 1}: the learning rate is reduced to {new}.")

    def in_cooldown(self) -> bool:
        """Whether epochs do not count yet after a change."""
        return self.cooldown_counter > 0

    def get_state(self) -> dict[str, Any]:
        return {n: getattr(self, n) for n in ("best", "wait", "cooldown_counter")}

    def set_state(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


class SwapEMAWeights(Callback):
    """Evaluate, validate and save with the moving averages of the weights.

    The optimizer must keep averages (use_ema=True). Weights and averages are exchanged before
    evaluate and predict and back after it, also when an exception ends it.

    Args:
        swap_on_epoch: also exchange them at the end of each epoch, so that callbacks after this one
            save the averages, and back at the begin of the next.

    Raises:
        ValueError: when it begins, if the optimizer keeps no averages.
    """

    def __init__(self, swap_on_epoch: bool = False) -> None:
        super().__init__()
        self.swap_on_epoch = swap_on_epoch
        self._swapped = False

    def on_train_begin(self, logs: Logs | None = None) -> None:
        if not getattr(self.model.optimizer, "use_ema", False):
            raise ValueError(
                "SwapEMAWeights needs an optimizer that keeps averages of the weights: make it "
                "with use_ema=True."
            )

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        self._set(False)

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        self._set(self.swap_on_epoch)

    def on_test_begin(self, logs: Logs | None = None) -> None:
        self._set(True)

    def on_test_end(self, logs: Logs | None = None) -> None:
        self._set(False)

    def on_predict_begin(self, logs: Logs | None = None) -> None:
        self._set(True)

    def on_predict_end(self, logs: Logs | None = None) -> None:
        self._set(False)

    def settle(self) -> None:
        self._set(False)

    def release(self) -> None:
        self._set(False)

    def _set(self, swapped: bool) -> None:
        if swapped != self._swapped:
            optimizer = self.model.optimizer
            if not getattr(optimizer, "use_ema", False):
                self.on_train_begin()
            optimizer.swap_averages(self.model.trainable_variables)
            self._swapped = swapped

    def get_state(self) -> dict[str, Any]:
        return {"swapped": self._swapped}

    def set_state(self, state: dict[str, Any]) -> None:
        self._swapped = state["swapped"]


def optimizers_of(model: Any) -> dict[str, Any]:
    """The model's optimizer, or the parts of a `MultiOptimizer`, by the names of their rates."""
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    parts = getattr(optimizer, "optimizers", None)
    if parts is None:
        return {"learning_rate": optimizer}
    return {f"learning_rate_{part.name}": part for part in parts}


def rates_of(model: Any) -> dict[str, float]:
    """The learning rates for the next step, by the names they are logged under."""
    return {name: float(part.learning_rate) for name, part in optimizers_of(model).items()}
