"""TensorBoard: event files for the curves and histograms of a training."""

from __future__ import annotations

import os
import warnings
from typing import Any

import numpy as np

from picodl.callbacks.base import Callback, Logs
from picodl.callbacks.event_files import EventFile
from picodl.callbacks.learning_rate import rates_of
from picodl.callbacks.logging import Stopwatch
from picodl.typing import Array


class TensorBoard(Callback):
    """Write event files that TensorBoard shows: scalars, histograms and images of the weights.

    Writing needs no other package; to look at the files, install the extra "tensorboard" and run
    `tensorboard --logdir logs`. Each fit writes new files, which continue the curves of the folder.

    Args:
        log_dir: folder; training goes to its folder train, validation to validation.
        histogram_freq: epochs between two histograms of the weights; 0 for none.
        write_graph: also write the model's summary, as text.
        write_images: with the histograms, also kernels as pictures.
        write_steps_per_second: also write how many batches were trained in a second of the epoch.
        update_freq: "epoch"; or "batch", or a number of batches, to write the running values of
            training after so many batches too.
        profile_batch, embeddings_freq, embeddings_metadata: not supported; a warning if they are
            asked for.

    Raises:
        ValueError: for an unknown update_freq.
    """

    lazy_logs = True

    def __init__(
        self,
        log_dir: str | os.PathLike[str] = "logs",
        histogram_freq: int = 0,
        write_graph: bool = True,
        write_images: bool = False,
        write_steps_per_second: bool = False,
        update_freq: str | int = "epoch",
        profile_batch: Any = 0,
        embeddings_freq: int = 0,
        embeddings_metadata: Any = None,
    ) -> None:
        super().__init__()
        self.log_dir = os.fspath(log_dir)
        self.histogram_freq = histogram_freq
        self.write_graph = write_graph
        self.write_images = write_images
        self.write_steps_per_second = write_steps_per_second
        self.update_freq = _batches_between(update_freq)
        if profile_batch or embeddings_freq or embeddings_metadata:
            warnings.warn(
                "TensorBoard: profile_batch and embeddings are not supported and are ignored.",
                stacklevel=2,
            )
        self._files: dict[str, EventFile] = {}
        self._watch = Stopwatch()
        self._steps = 0  # batches trained in all
        self._in_epoch = 0

    def on_train_begin(self, logs: Logs | None = None) -> None:
        if self.write_graph and self.model.built:
            lines: list[str] = []
            self.model.summary(print_fn=lines.append)
            text = "\n".join(lines).replace("\n", "\n    ")
            self._file("train").text("model", "    " + text, 0)

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        self._watch.start()
        self._in_epoch = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._steps += 1
        self._in_epoch = batch + 1
        if self.update_freq and self._steps % self.update_freq == 0:
            logs = logs() if callable(logs) else logs
            for key, value in (logs or {}).items():
                self._scalar("train", f"batch_{key}", value, self._steps)
            if self.write_steps_per_second:
                rate = self._watch.rate(self._in_epoch)
                self._scalar("train", "batch_steps_per_second", rate, self._steps)

    def on_test_begin(self, logs: Logs | None = None) -> None:
        self._watch.pause()

    def on_test_end(self, logs: Logs | None = None) -> None:
        iterations = getattr(self.model.optimizer, "iterations", None)
        if iterations is not None:
            for key, value in (logs or {}).items():
                name = f"evaluation_{key}_vs_iterations"
                self._scalar("validation", name, value, int(iterations))

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        for key, value in (logs or {}).items():
            part = "validation" if key.startswith("val_") else "train"
            self._scalar(part, f"epoch_{key.removeprefix('val_')}", value, epoch)
        for key, value in rates_of(self.model).items():
            if key not in (logs or {}):
                self._scalar("train", f"epoch_{key}", value, epoch)
        if self.write_steps_per_second:
            rate = self._watch.rate(self._in_epoch)
            self._scalar("train", "epoch_steps_per_second", rate, epoch)
        if self.histogram_freq and epoch % self.histogram_freq == 0:
            self._write_weights(epoch)
        for file in self._files.values():
            file.flush()

    def release(self) -> None:
        for file in self._files.values():
            file.close()
        self._files = {}

    def get_state(self) -> dict[str, Any]:
        return {"steps": self._steps}

    def set_state(self, state: dict[str, Any]) -> None:
        self._steps = state["steps"]

    def _file(self, part: str) -> EventFile:
        if part not in self._files:
            self._files[part] = EventFile(os.path.join(self.log_dir, part))
        return self._files[part]

    def _scalar(self, part: str, name: str, value: Any, step: int) -> None:
        if np.ndim(value) == 0:
            self._file(part).scalar(name, float(value), step)

    def _write_weights(self, epoch: int) -> None:
        file = self._file("train")
        for weight in self.model.weights:
            values = weight.numpy()
            if not np.isfinite(values).all():
                warnings.warn(
                    f"TensorBoard: {weight.path} holds NaN or infinity; its histogram is left out.",
                    stacklevel=2,
                )
                continue
            file.histogram(f"{weight.path}/histogram", values, epoch)
            if self.write_images and values.ndim == 2 and values.size:
                file.image(f"{weight.path}/image", _as_picture(values), epoch)


def _batches_between(update_freq: Any) -> int:
    if update_freq in ("epoch", "batch"):
        return 0 if update_freq == "epoch" else 1
    if isinstance(update_freq, int) and update_freq > 0:
        return update_freq
    raise ValueError(
        'TensorBoard: update_freq must be "epoch", "batch" or a positive number of batches; '
        f"received {update_freq!r}."
    )


def _as_picture(values: Array) -> Array:
    """The values from the lowest, in black, to the highest, in white."""
    grey = values.astype(np.float64)
    grey -= grey.min()
    grey *= 255 / (grey.max() or 1.0)
    return grey.astype(np.uint8)
