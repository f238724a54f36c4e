"""Callbacks that write the logs down: CSV and JSON lines files, Python's logging."""

from __future__ import annotations

import csv
import io
import json
import logging as py_logging
import math
import os
import time
import warnings
from datetime import UTC, datetime
from typing import Any

import numpy as np

from picodl.callbacks.base import Callback, Logs
from picodl.callbacks.learning_rate import rates_of


class LogFile:
    """A text file that grows by whole lines, each written with one call.

    Args:
        path: the file; its folder must exist.
        append: keep the lines it has, but for a torn one at the end. Otherwise the file is emptied
            when the first line is written.
    """

    def __init__(self, path: str, append: bool) -> None:
        self.path = path
        self._file = open(path, "a+b", buffering=0)  # noqa: SIM115
        self._fresh = not append
        if append:
            self.cut(self._whole_lines())

    def _whole_lines(self) -> int:
        """The position behind the last line that is complete."""
        end = self._file.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - 4096)
            self._file.seek(start)
            found = self._file.read(end - start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            end = start
        return 0

    def first_line(self) -> str:
        """The first line, or "" if there is none or it will be overwritten."""
        if self._fresh:
            return ""
        self._file.seek(0)
        return self._file.readline().decode()

    def write(self, line: str) -> None:
        """Append a line, its end included."""
        if self._fresh:
            self._fresh = False
            self._file.truncate(0)
        self._file.write(line.encode())

    def length(self) -> int:
        """The length in bytes."""
        return 0 if self._fresh else self._file.seek(0, os.SEEK_END)

    def cut(self, length: int) -> None:
        """Forget what was written behind this length, and keep what stands before it."""
        self._fresh = False
        if self._file.seek(0, os.SEEK_END) > length:
            self._file.truncate(length)

    def close(self) -> None:
        self._file.close()


class _FileLogger(Callback):
    """What the loggers to a file share: opening, resuming and closing it."""

    def __init__(self, filename: str | os.PathLike[str], append: bool) -> None:
        super().__init__()
        self.filename = os.fspath(filename)
        self.append = append
        self._file: LogFile | None = None

    def on_train_begin(self, logs: Logs | None = None) -> None:
        self.release()
        self._file = LogFile(self.filename, self.append)

    def on_train_end(self, logs: Logs | None = None) -> None:
        self.release()

    def release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def get_state(self) -> dict[str, Any]:
        return {} if self._file is None else {"length": self._file.length()}

    def set_state(self, state: dict[str, Any]) -> None:
        if self._file is not None and "length" in state:
            self._file.cut(state["length"])


class CSVLogger(_FileLogger):
    """Write the logs of each epoch as a row of a CSV file.

    The columns are "epoch" (from 0) and the sorted keys of the logs. Rows are on the disk when the
    epoch ends. When a training is resumed by `BackupAndRestore`, rows of epochs that run again are
    cut off first, so none is there twice.

    Args:
        filename: the file; its folder must exist.
        separator: between the values.
        append: continue a file that exists, under its header.

    Raises:
        FileNotFoundError: when fit begins, if the folder does not exist.
    """

    def __init__(
        self, filename: str | os.PathLike[str], separator: str = ",", append: bool = False
    ) -> None:
        super().__init__(filename, append)
        self.sep = separator
        self.keys: list[str] | None = None

    def on_train_begin(self, logs: Logs | None = None) -> None:
        super().on_train_begin(logs)
        self.keys = None

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        if self._file is None:
            return
        logs = logs or {}
        if self.keys is None:
            self.keys = self._header(logs)
        unknown = sorted(set(logs) - set(self.keys) - {"epoch"})
        if unknown:
            warnings.warn(
                f"CSVLogger: {self.filename!r} has no column for {', '.join(unknown)}; "
                "they are left out. Log to another file to have them.",
                stacklevel=2,
            )
        row = [epoch, *(_cell(logs[key]) if key in logs else "NA" for key in self.keys)]
        self._file.write(self._line(row))

    def _header(self, logs: Logs) -> list[str]:
        """The columns after "epoch": those the file has, or new ones, which are written."""
        assert self._file is not None
        first = self._file.first_line()
        if first:
            columns = next(csv.reader([first], delimiter=self.sep))
            if columns[:1] != ["epoch"]:
                raise ValueError(
                    f"CSVLogger: {self.filename!r} does not begin with a header whose first column "
                    f'is "epoch" (separator {self.sep!r}); received {columns[:3]}. Log to another '
                    "file, or pass append=False to replace this one."
                )
            return columns[1:]
        keys = sorted(logs)
        if not any(key.startswith("val_") for key in keys):
            keys += [f"val_{key}" for key in keys if key != "learning_rate"]
        self._file.write(self._line(["epoch", *keys]))
        return keys

    def _line(self, values: list[Any]) -> str:
        text = io.StringIO()
        csv.writer(text, delimiter=self.sep).writerow(values)
        return text.getvalue()


class JSONLinesLogger(_FileLogger):
    """Write one line of JSON for each epoch, which can be read without the others.

    Keys: "time" (UTC), "epoch" (from 0), "seconds" (of the epoch), "steps", "samples_per_second"
    (of training, without validation), "learning_rate", and "logs". A number that is not finite is
    written as the text "nan", "inf" or "-inf".

    Args:
        filename: the file; its folder must exist.
        append: continue a file that exists.

    Raises:
        FileNotFoundError: when fit begins, if the folder does not exist.
    """

    def __init__(self, filename: str | os.PathLike[str], append: bool = False) -> None:
        super().__init__(filename, append)
        self._watch = Stopwatch()

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        self._watch.start()

    def on_test_begin(self, logs: Logs | None = None) -> None:
        self._watch.pause()

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        if self._file is None:
            return
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "epoch": epoch,
            "seconds": round(self._watch.seconds, 6),
            "steps": self.params.get("steps"),
            "samples_per_second": self._watch.rate(self.params.get("samples")),
            **rates_of(self.model),
            "logs": {key: _json_value(value) for key, value in (logs or {}).items()},
        }
        self._file.write(json.dumps(line) + "\n")


class LoggingCallback(Callback):
    """Pass the logs on to Python's logging: an INFO record at the end of each epoch.

    Args:
        logger: a logger or the name of one.
        level: of the records.
        every: also a record after so many batches; None for none.
    """

    lazy_logs = True

    def __init__(
        self,
        logger: str | py_logging.Logger = "picodl",
        level: int = py_logging.INFO,
        every: int | None = None,
    ) -> None:
        super().__init__()
        self.logger = py_logging.getLogger(logger) if isinstance(logger, str) else logger
        self.level = level
        self.every = every
        self._epoch = 0

    def on_train_begin(self, logs: Logs | None = None) -> None:
        steps, epochs = self.params.get("steps"), self.params.get("epochs")
        self.logger.log(self.level, "training begins: %s epochs of %s steps", epochs, steps)

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.every is not None and (batch + 1) % self.every == 0:
            logs = logs() if callable(logs) else logs
            where = f"epoch {self._epoch + 1}, batch {batch + 1}"
            self.logger.log(self.level, "%s: %s", where, _as_text(logs))

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        self.logger.log(self.level, "epoch %d: %s", epoch + 1, _as_text(logs))

    def on_train_end(self, logs: Logs | None = None) -> None:
        self.logger.log(self.level, "training ends: %s", _as_text(logs))


class Stopwatch:
    """The seconds of an epoch, and of the training in it."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        """An epoch begins."""
        self._start = time.perf_counter()
        self._training: float | None = None

    def pause(self) -> None:
        """Training gives way to validation."""
        self._training = self.seconds

    @property
    def seconds(self) -> float:
        """Since the begin of the epoch."""
        return time.perf_counter() - self._start

    def rate(self, count: int | None) -> float | None:
        """How many of count things were done in a second of training; None if unknown."""
        return (
            None if count is None else round(count / max(self._training or self.seconds, 1e-9), 1)
        )


def _as_text(logs: Logs | None) -> str:
    texts = {k: str(v) if np.ndim(v) else f"{v:.6g}" for k, v in (logs or {}).items()}
    return ", ".join(f"{key}={text}" for key, text in texts.items())


def _json_value(value: Any) -> Any:
    value = value.tolist() if isinstance(value, (np.generic, np.ndarray)) else value
    if isinstance(value, list):
        return [_json_value(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _cell(value: Any) -> Any:
    if isinstance(value, str):
        return value
    if np.ndim(value):
        return str(np.asarray(value).tolist())
    return value.item() if isinstance(value, (np.generic, np.ndarray)) else value
