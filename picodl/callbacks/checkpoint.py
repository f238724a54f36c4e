"""ModelCheckpoint: keep the model on disk while it is trained."""

from __future__ import annotations

import os
from typing import Any

from picodl.callbacks.base import Logs
from picodl.callbacks.monitor import MonitorCallback
from picodl.callbacks.progress import write_line


class ModelCheckpoint(MonitorCallback):
    """Save the model or its weights after epochs or batches; files appear whole or not at all.

    Args:
        filepath: where to save; must end in ".weights.h5" if save_weights_only, else in ".keras" or
            ".h5". `{epoch}` (from 1), `{batch}` (from 1, with an integer save_freq) and the keys of
            the logs are filled in: "{epoch:02d}-{val_loss:.2f}.keras". Folders are made.
        monitor: key of the logs that says which model is best.
        verbose: 1 writes a line for each save.
        save_best_only: save only what is better than everything saved before.
        save_weights_only: save the weights instead of the whole model.
        mode: "min", "max" or "auto".
        save_freq: "epoch", or a number of batches, counted across epochs.
        initial_value_threshold: the value that the first save has to better.

    Raises:
        ValueError: for an unknown save_freq, or a filepath with another ending.
        KeyError: at a save, for a name in filepath that the logs do not have.
    """

    lazy_logs = True

    def __init__(
        self,
        filepath: str | os.PathLike[str],
        monitor: str = "val_loss",
        verbose: int = 0,
        save_best_only: bool = False,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: str | int = "epoch",
        initial_value_threshold: float | None = None,
    ) -> None:
        super().__init__(monitor, mode)
        self.filepath = os.fspath(filepath)
        self.verbose = verbose
        self.save_best_only = save_best_only
        self.save_weights_only = save_weights_only
        self.save_freq = check_save_freq("ModelCheckpoint", save_freq)
        self.initial_value_threshold = initial_value_threshold
        self.best = initial_value_threshold
        self._epoch = 0
        self._batches = 0
        endings = (".weights.h5",) if save_weights_only else (".keras", ".h5")
        if not self.filepath.endswith(endings):
            raise ValueError(
                f"ModelCheckpoint: with save_weights_only={save_weights_only} filepath must end in "
                f"{' or '.join(map(repr, endings))}; received {self.filepath!r}."
            )

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.save_freq == "epoch":
            return
        self._batches += 1
        if self._batches % int(self.save_freq) == 0:
            self._save(batch, logs() if callable(logs) else logs)

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        self._epoch = epoch

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        self._epoch = epoch
        if self.save_freq == "epoch":
            self._save(None, logs)

    def _save(self, batch: int | None, logs: Logs | None) -> None:
        logs = logs or {}
        path = self._path(batch, logs)
        where = f"Epoch {self._epoch + 1}"
        if self.save_best_only:
            value = self.monitored(logs)
            if value is not None:
                if not self.improves(value, self.best):
                    if self.verbose:
                        write_line(f"{where}: {self.monitor} did not improve from {self.best:.5f}")
                    return
                if self.verbose:
                    before = "nothing" if self.best is None else f"{self.best:.5f}"
                    where += f": {self.monitor} improved from {before} to {value:.5f}"
                self.best = value
        if self.verbose:
            write_line(f"{where}: saving model to {path}")
        folder = os.path.dirname(path)
        if folder:
            os.makedirs(folder, exist_ok=True)
        if self.save_weights_only:
            self.model.save_weights(path, overwrite=True)
        else:
            self.model.save(path, overwrite=True)

    def _path(self, batch: int | None, logs: Logs) -> str:
        names: dict[str, Any] = {"epoch": self._epoch + 1, **logs}
        if batch is not None:
            names["batch"] = batch + 1
        try:
            return self.filepath.format(**names)
        except KeyError as error:
            raise KeyError(
                f"ModelCheckpoint: filepath {self.filepath!r} holds the key {error}, which is not "
                f"available; the names to fill in are {', '.join(names)}."
            ) from None

    def get_state(self) -> dict[str, Any]:
        return {"best": self.best, "batches": self._batches}

    def set_state(self, state: dict[str, Any]) -> None:
        self.best = state["best"]
        self._batches = state["batches"]


def check_save_freq(owner: str, save_freq: Any) -> Any:
    """ "epoch" or a number of batches.

    Raises:
        ValueError: for anything else.
    """
    if save_freq == "epoch" or (isinstance(save_freq, int) and save_freq > 0):
        return save_freq
    raise ValueError(
        f'{owner}: save_freq must be "epoch" or a positive integer, a number of batches; received '
        f"{save_freq!r}."
    )
