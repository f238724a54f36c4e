"""History: what fit returns."""

from __future__ import annotations

from picodl.callbacks.base import Callback, Logs


class History(Callback):
    """The logs of all epochs; fit adds one by itself and returns it.

    Attributes:
        epoch: the numbers of the epochs that this fit ran, from 0.
        history: one list of floats for each key of the logs.

    >>> history = History()
    >>> history.on_train_begin()
    >>> history.on_epoch_end(0, {"loss": 0.5})
    >>> history.epoch, history.history
    ([0], {'loss': [0.5]})
    """

    repeats = False

    def __init__(self) -> None:
        super().__init__()
        self.epoch: list[int] = []
        self.history: dict[str, list[float]] = {}

    def on_train_begin(self, logs: Logs | None = None) -> None:
        self.epoch = []

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        self.epoch.append(epoch)
        for key, value in (logs or {}).items():
            self.history.setdefault(key, []).append(value)
