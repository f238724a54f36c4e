"""Callbacks that end a training early."""

from __future__ import annotations

import math
import time
from typing import Any

from picodl.callbacks.base import Callback, Logs
from picodl.callbacks.monitor import MonitorCallback, check_count
from picodl.callbacks.progress import write_line
from picodl.typing import Array


class EarlyStopping(MonitorCallback):
    """Stop when a value of the logs has not improved for some epochs.

    Args:
        monitor: key of the logs to watch.
        min_delta: smallest change that counts as an improvement.
        patience: epochs without improvement after which training stops.
        verbose: 1 says when it stops and what it restores.
        mode: "min", "max" or "auto".
        baseline: a value to beat: epochs that do not better it do not reset the patience, unless
            they improve on the best.
        restore_best_weights: give the model the weights of the best epoch when training ends,
            stopped early or not.
        start_from_epoch: number of first epochs that are not looked at.

    Attributes:
        best, best_epoch, best_weights: the best value, its epoch, the weights after it.
        wait: epochs since the last improvement.
        stopped_epoch: the epoch after which training was stopped; 0 if it was not.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        min_delta: float = 0,
        patience: int = 0,
        verbose: int = 0,
        mode: str = "auto",
        baseline: float | None = None,
        restore_best_weights: bool = False,
        start_from_epoch: int = 0,
    ) -> None:
        super().__init__(monitor, mode, min_delta)
        self.patience = check_count("EarlyStopping", "patience", patience)
        self.verbose = verbose
        self.baseline = baseline
        self.restore_best_weights = restore_best_weights
        self.start_from_epoch = check_count("EarlyStopping", "start_from_epoch", start_from_epoch)
        self._reset()

    def _reset(self) -> None:
        self.best: float | None = None
        self.wait = 0
        self.stopped_epoch = 0
        self.best_epoch = 0
        self.best_weights: list[Array] | None = None

    def on_train_begin(self, logs: Logs | None = None) -> None:
        super().on_train_begin(logs)
        self._reset()

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        value = self.get_monitor_value(logs)
        if value is None or epoch < self.start_from_epoch:
            return
        if self.restore_best_weights and self.best_weights is None:
            self._keep_weights(epoch)
        self.wait += 1
        if self.improves(value, self.best):
            self.best = value
            self.best_epoch = epoch
            if self.restore_best_weights:
                self._keep_weights(epoch)
            if self.baseline is None or self.improves(value, self.baseline):
                self.wait = 0
            return
        if self.wait >= self.patience and epoch > 0:
            self.stopped_epoch = epoch
            self.model.stop_training = True

    def get_monitor_value(self, logs: Logs | None) -> float | None:
        """The value to compare, from the logs of an epoch; override it to watch another."""
        return self.monitored(logs)

    def _keep_weights(self, epoch: int) -> None:
        self.best_epoch = epoch
        self.best_weights = self.model.get_weights()

    def on_train_end(self, logs: Logs | None = None) -> None:
        if self.stopped_epoch > 0 and self.verbose:
            write_line(f"Epoch {self.stopped_epoch + 1}: early stopping")
        if self.restore_best_weights and self.best_weights is not None:
            if self.verbose:
                write_line(
                    "Restoring model weights from the end of the best epoch: "
                    f"{self.best_epoch + 1}."
                )
            self.model.set_weights(self.best_weights)

    def get_state(self) -> dict[str, Any]:
        names = ("best", "wait", "stopped_epoch", "best_epoch", "best_weights")
        return {name: getattr(self, name) for name in names}

    def set_state(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


class TerminateOnNaN(Callback):
    """Stop after the batch whose loss is NaN or infinite.

    Args:
        raise_error: raise an error instead of ending fit quietly.

    Raises:
        RuntimeError: at that batch, if raise_error.
    """

    def __init__(self, raise_error: bool = False) -> None:
        super().__init__()
        self.raise_error = raise_error

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        loss = (logs or {}).get("loss")
        if loss is None or math.isfinite(loss):
            return
        message = f"Batch {batch}: the loss is {loss}, training stops."
        if self.raise_error:
            raise RuntimeError(message)
        write_line(message)
        self.model.stop_training = True


class TimeStopping(Callback):
    """Stop when a budget of time is used up: after the batch during which it ends.

    Args:
        seconds: the budget, counted from the begin of fit.
        verbose: 1 says when it stops.

    Attributes:
        stopped_epoch: the epoch in which training was stopped, or None.

    Raises:
        ValueError: unless seconds is positive.
    """

    lazy_logs = True

    def __init__(self, seconds: float, verbose: int = 0) -> None:
        super().__init__()
        if not isinstance(seconds, (int, float)) or not seconds > 0:
            raise ValueError(f"TimeStopping: seconds must be positive; received {seconds!r}.")
        self.seconds = seconds
        self.verbose = verbose
        self.stopped_epoch: int | None = None
        self._epoch = 0
        self._used = 0.0
        self._start = 0.0

    def on_train_begin(self, logs: Logs | None = None) -> None:
        self.stopped_epoch = None
        self._used = 0.0
        self._start = time.monotonic()

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._spent() >= self.seconds and self.stopped_epoch is None:
            self.stopped_epoch = self._epoch
            self.model.stop_training = True

    def on_train_end(self, logs: Logs | None = None) -> None:
        if self.stopped_epoch is not None and self.verbose:
            write_line(f"Epoch {self.stopped_epoch + 1}: the {self.seconds:g} s are used up")

    def _spent(self) -> float:
        return self._used + time.monotonic() - self._start

    def get_state(self) -> dict[str, Any]:
        return {"used": self._spent()}

    def set_state(self, state: dict[str, Any]) -> None:
        self._used = state["used"]
