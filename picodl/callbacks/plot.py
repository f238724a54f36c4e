"""LivePlot: the curves of a training while it runs."""

from __future__ import annotations

import os
import time
from typing import Any

from picodl.callbacks.base import Callback, Logs
from picodl.callbacks.progress import in_notebook


class LivePlot(Callback):
    """Draw the curves of the logs after each epoch: below the cell of a notebook, or into a file.

    Needs matplotlib (the extra "viz").

    Args:
        to_file: a picture that is written anew each time; None draws in a notebook only.
        interval: least number of seconds between two drawings; the last epoch is always drawn.

    Raises:
        ImportError: when it draws, without matplotlib.
    """

    def __init__(
        self, to_file: str | os.PathLike[str] | None = None, interval: float = 1.0
    ) -> None:
        super().__init__()
        self.to_file = to_file
        self.interval = interval
        self.history: dict[str, list[float]] = {}
        self._drawn = 0.0
        self._pending = False

    def on_train_begin(self, logs: Logs | None = None) -> None:
        self.history = {}
        self._drawn = 0.0

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        for key, value in (logs or {}).items():
            self.history.setdefault(key, []).append(value)
        self._pending = True
        if time.monotonic() - self._drawn >= self.interval:
            self._draw()

    def on_train_end(self, logs: Logs | None = None) -> None:
        if self._pending:
            self._draw()

    def _draw(self) -> None:
        from picodl.visualize import plot_history  # drawn by the floor above, when it is needed

        self._pending = False
        if self.to_file is not None or in_notebook():
            figure = plot_history(self.history, self.to_file)
            if in_notebook():
                from IPython.display import clear_output, display

                clear_output(wait=True)
                display(figure)
        self._drawn = time.monotonic()

    def get_state(self) -> dict[str, Any]:
        return {"history": self.history}

    def set_state(self, state: dict[str, Any]) -> None:
        self.history = state["history"]
