"""What the callbacks share that watch one value of the logs: its direction, the best so far."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from picodl.callbacks.base import Callback, Logs

_UP = {
    "accuracy", "acc", "binary_accuracy", "categorical_accuracy", "sparse_categorical_accuracy",
    "top_k_categorical_accuracy", "sparse_top_k_categorical_accuracy", "precision", "recall", "auc",
    "f1_score", "fbeta_score", "r2_score", "mean_io_u", "io_u", "binary_io_u", "cosine_similarity",
}  # fmt: skip


class MonitorCallback(Callback):
    """Base class of callbacks that watch one value of the logs.

    Args:
        monitor: key of the logs, such as "val_loss".
        mode: "min", "max", or "auto": losses go down, metrics as they say themselves.
        min_delta: smallest change that counts as an improvement.

    Attributes:
        best: the best value so far; None before the first. NaN is never the best.
    """

    def __init__(self, monitor: str = "val_loss", mode: str = "auto", min_delta: float = 0) -> None:
        super().__init__()
        name = type(self).__name__
        if not isinstance(monitor, str):
            raise TypeError(f"{name}: monitor must be a key of the logs; received {monitor!r}.")
        if mode not in ("auto", "min", "max"):
            warnings.warn(
                f'{name}: mode must be "auto", "min" or "max"; received {mode!r}, "auto" is used.',
                stacklevel=3,
            )
            mode = "auto"
        self.monitor = monitor
        self.mode = mode
        self.min_delta = abs(min_delta)
        self.best: float | None = None
        self._upward: bool | None = None if mode == "auto" else mode == "max"

    def on_train_begin(self, logs: Logs | None = None) -> None:
        self._upward = None if self.mode == "auto" else self.mode == "max"

    @property
    def monitor_op(self) -> Callable[[Any, Any], Any] | None:
        """What says whether a value is better than another, np.less or np.greater; None while the
        direction of mode="auto" is open."""
        return None if self._upward is None else np.greater if self._upward else np.less

    def monitored(self, logs: Logs | None) -> float | None:
        """The value in the logs; a missing one is warned about and gives None."""
        value = (logs or {}).get(self.monitor)
        if value is None:
            keys = ", ".join(sorted(logs or {})) or "nothing"
            hint = " Pass validation data to fit." if self.monitor.startswith("val_") else ""
            warnings.warn(
                f"{type(self).__name__}: the metric {self.monitor!r} is not available, the logs "
                f"hold {keys}.{hint}",
                stacklevel=2,
            )
            return None
        if np.ndim(value):
            raise ValueError(
                f"{type(self).__name__}: {self.monitor!r} has {np.size(value)} values; a single "
                "number is needed to compare epochs. Give the metric an average."
            )
        return float(value)

    def improves(self, value: float, best: float | None) -> bool:
        """Whether the value is better than the best one by more than min_delta.

        Raises:
            ValueError: if nobody knows the direction of the metric.
        """
        if math.isnan(value):
            return False
        if best is None:
            return True
        if self._upward is None:
            self._upward = self._find_direction()
        return value - self.min_delta > best if self._upward else value + self.min_delta < best

    def _find_direction(self) -> bool:
        """Whether larger values of the monitored metric are better."""
        name = self.monitor.removeprefix("val_")
        if name == "loss" or name.endswith("_loss"):
            return False
        compiled = getattr(self.model, "_compiled_metrics", None)
        named = [(part[0], part[2]) for part in compiled.parts] if compiled is not None else []
        for metric in getattr(self.model, "metrics", ()):
            named.append((metric.name, metric))
        for own, metric in named:
            if name == own and metric.direction in ("up", "down"):
                return bool(metric.direction == "up")
        if name in _UP:
            return True
        raise ValueError(
            f"{type(self).__name__}: nobody knows whether {self.monitor!r} should grow or shrink. "
            'Pass mode="max" or mode="min".'
        )


def check_count(owner: str, name: str, value: Any) -> int:
    """A whole number that is not negative.

    Raises:
        ValueError: for anything else.
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 0:
        raise ValueError(f"{owner}: {name} must be an integer >= 0; received {value!r}.")
    return int(value)
