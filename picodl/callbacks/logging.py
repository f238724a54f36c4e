"""Callbacks that write the logs down: CSV and JSON lines files, Python's logging."""

from __future__ import annotations

import csv
import io
import os
import warnings
from typing import Any

import numpy as np

from picodl.callbacks.base import Callback, Logs


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


def _cell(value: Any) -> Any:
    if isinstance(value, str):
        return value
    if np.ndim(value):
        return str(np.asarray(value).tolist())
    return value.item() if isinstance(value, (np.generic, np.ndarray)) else value
