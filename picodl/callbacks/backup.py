"""BackupAndRestore: a training that was killed goes on as if nothing had happened."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from picodl.callbacks.base import Callback, Logs
from picodl.callbacks.checkpoint import check_save_freq
from picodl.saving.files import FileError, as_path, atomic_write, loading
from picodl.saving.hdf5 import open_hdf5, write_dataset
from picodl.typing import Array

LATEST, PREVIOUS, METADATA = "latest.h5", "previous.h5", "training_metadata.json"


class BackupAndRestore(Callback):
    """Save the whole state of a training again and again; the next fit goes on from there.

    The state is weights, optimizer, random generators (those of the model, of picodl, Python's and
    numpy's global ones), running metrics, the position (epoch and batch) and what the other
    callbacks remember. It is one file, which appears whole or not at all; the one before it is kept
    too, and used when the latest cannot be read. So a run that was killed and started again ends
    with the same weights, bit for bit, and the same logs. Data from a generator cannot be put back
    to its place: batches before the position are drawn again and left out.

    Callbacks listed after this one have not seen the end of the epoch (or batch) when the backup
    is written; a resumed run calls that hook of theirs again.

    Args:
        backup_dir: folder for the backup, made if needed. One folder serves one training.
        save_freq: "epoch", or a number of batches.
        double_checkpoint: accepted for Keras's sake: two states are always kept.
        delete_checkpoint: delete the backup when fit ends as planned.

    Raises:
        ValueError: when fit begins, for a backup of another model; for an unknown save_freq.
    """

    lazy_logs = True

    def __init__(
        self,
        backup_dir: str | os.PathLike[str],
        save_freq: str | int = "epoch",
        double_checkpoint: bool = False,
        delete_checkpoint: bool = True,
    ) -> None:
        super().__init__()
        self.backup_dir = as_path(backup_dir, "BackupAndRestore: backup_dir")
        self.save_freq = check_save_freq("BackupAndRestore", save_freq)
        self.double_checkpoint = double_checkpoint
        self.delete_checkpoint = delete_checkpoint
        self._siblings: Sequence[Callback] = ()
        self._epoch = 0
        self._batches = 0
        self._begun = False  # whether there is a backup of this fit

    def set_siblings(self, callbacks: Sequence[Callback]) -> None:
        self._siblings = callbacks

    def release(self) -> None:
        self._siblings = ()

    def on_train_begin(self, logs: Logs | None = None) -> None:
        self._batches = 0
        self._begun = False
        os.makedirs(self.backup_dir, exist_ok=True)
        state = self._read()
        if state is not None:
            self._begun = True
            self.model.resume_training(state)

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        self._epoch = epoch
        if not self._begun:  # so that what is logged before the first backup is cut off too
            self._save((epoch, 0), None)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.save_freq == "epoch":
            return
        self._batches += 1
        if self._batches % int(self.save_freq) == 0:
            logs = logs() if callable(logs) else logs
            self._save((self._epoch, batch + 1), ("on_train_batch_end", batch, logs))

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        if self.save_freq == "epoch":
            self._save((epoch + 1, 0), ("on_epoch_end", epoch, logs))

    def on_train_end(self, logs: Logs | None = None) -> None:
        if self.delete_checkpoint:
            for name in (METADATA, PREVIOUS, LATEST):
                with suppress(FileNotFoundError):
                    os.remove(os.path.join(self.backup_dir, name))
            with suppress(OSError):
                os.rmdir(self.backup_dir)

    def get_state(self) -> dict[str, Any]:
        return {"batches": self._batches}

    def set_state(self, state: dict[str, Any]) -> None:
        self._batches = state["batches"]

    def _save(self, position: tuple[int, int], event: tuple[str, int, Logs | None] | None) -> None:
        self._begun = True
        place = list(self._siblings).index(self)
        state = {
            "position": position,
            "model": self.model.get_training_state(),
            "callbacks": [[type(c).__name__, c.get_state()] for c in self._siblings],
            "event": event,
            "waiting": list(range(place + 1, len(self._siblings))),
        }
        latest = os.path.join(self.backup_dir, LATEST)
        with suppress(FileNotFoundError):
            os.replace(latest, os.path.join(self.backup_dir, PREVIOUS))
        write_state(latest, state)
        epoch, batch = position
        text = json.dumps({"epoch": epoch, "batch": batch}).encode()
        with open(os.path.join(self.backup_dir, METADATA), "wb", buffering=0) as file:
            file.write(text)

    def _read(self) -> dict[str, Any] | None:
        """The newest state that can be read; a damaged file is reported and set aside."""
        for name in (LATEST, PREVIOUS):
            path = os.path.join(self.backup_dir, name)
            if not os.path.exists(path):
                continue
            try:
                return read_state(path)
            except FileError as error:
                aside = f"{path}.damaged"
                os.replace(path, aside)
                warnings.warn(
                    f"BackupAndRestore: {error} It was renamed to {aside!r}; the training goes on "
                    "from the backup before it, or from the beginning.",
                    stacklevel=2,
                )
        return None


def write_state(path: str, state: Any) -> None:
    """Write numbers, strings, None, arrays, and lists and dicts of these as one HDF5 file."""
    import h5py

    arrays: list[Array] = []
    text = json.dumps(_without_arrays(state, arrays)).encode()
    with atomic_write(path) as stream, h5py.File(stream, "w") as file:
        write_dataset(file, "state", np.frombuffer(text, np.uint8), "state")
        for number, array in enumerate(arrays):
            write_dataset(file, f"array_{number}", array, f"array_{number}")


def read_state(path: str) -> Any:
    """What `write_state` wrote; tuples have become lists.

    Raises:
        FileError: for a damaged file, or another kind of file.
    """
    with loading(path), open(path, "rb") as stream, open_hdf5(stream) as file:

        def array(name: str) -> Array:
            dataset: Any = file.get(name)
            if dataset is None:
                raise FileError(f"{path} is no backup of a training: it has no {name!r}.")
            values = np.empty(dataset.shape, dataset.dtype)
            dataset.read(values)
            return values

        return _with_arrays(json.loads(array("state").tobytes()), array)


def _without_arrays(part: Any, arrays: list[Array]) -> Any:
    if isinstance(part, dict):
        return {key: _without_arrays(value, arrays) for key, value in part.items()}
    if isinstance(part, (list, tuple)):
        return [_without_arrays(value, arrays) for value in part]
    if isinstance(part, np.ndarray):
        if part.dtype.kind not in "fiub":
            raise TypeError(f"A backup can hold arrays of numbers; received dtype {part.dtype}.")
        arrays.append(part.view(np.uint8) if part.dtype.kind == "b" else part)
        return {"array": len(arrays) - 1, "bool": part.dtype.kind == "b"}
    return part.item() if isinstance(part, np.generic) else part


def _with_arrays(part: Any, array: Any) -> Any:
    if isinstance(part, dict):
        if set(part) == {"array", "bool"}:
            values = array(f"array_{part['array']}")
            return values.view(np.bool_) if part["bool"] else values
        return {key: _with_arrays(value, array) for key, value in part.items()}
    if isinstance(part, list):
        return [_with_arrays(value, array) for value in part]
    return part
