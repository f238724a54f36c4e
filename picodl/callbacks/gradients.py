"""GradientMonitor: see in words whether gradients reach all layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from picodl.callbacks.base import Callback, Logs
from picodl.callbacks.progress import write_line
from picodl.typing import Array


class GradientMonitor(Callback):
    """Watch the gradients of each layer and say what is wrong with them.

    It sees the steps that `Model.minimize` makes: those of fit, and of a train_step that calls it.
    At the end of an epoch it names layers whose gradients vanish or explode, and units that got no
    gradient at all in the batches looked at: dead ones, such as a ReLU that is never positive.

    Args:
        every: batches between two looks.
        vanishing: a layer's gradient is said to vanish when its norm is below this fraction of the
            largest layer's.
        exploding: a gradient norm above this is said to explode; so does one that is not finite.
        verbose: 1 writes each finding when it is new.

    Attributes:
        norms: for each layer the mean gradient norm of each epoch.
        dead_units: for each layer with dead units, (dead, all) in the last epoch.
        findings: what was found in the last epoch, a list of sentences.

    Raises:
        ValueError: unless every is positive.
    """

    def __init__(
        self,
        every: int = 10,
        vanishing: float = 1e-5,
        exploding: float = 1e3,
        verbose: int = 1,
    ) -> None:
        super().__init__()
        if not isinstance(every, int) or every < 1:
            raise ValueError(
                f"GradientMonitor: every must be a positive number of batches; received {every!r}."
            )
        self.every = every
        self.vanishing = vanishing
        self.exploding = exploding
        self.verbose = verbose
        self.norms: dict[str, list[float]] = {}
        self.dead_units: dict[str, tuple[int, int]] = {}
        self.findings: list[str] = []
        self._told: set[tuple[str, str]] = set()
        self._begin()

    def _begin(self) -> None:
        self._seen = 0
        self._looks = 0
        self._sums: dict[str, float] = {}
        self._alive: dict[str, Array] = {}

    def on_train_begin(self, logs: Logs | None = None) -> None:
        self.norms = {}
        self.findings = []
        self._told = set()
        self.model.gradient_watcher = self._watch

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        self._begin()

    def release(self) -> None:
        self.model.gradient_watcher = None

    def _watch(self, parameters: Sequence[Any]) -> None:
        """Look at the gradients that a step is about to use."""
        self._seen += 1
        if self._seen % self.every != 1 % self.every:
            return
        self._looks += 1
        squares: dict[str, float] = {}
        for parameter in parameters:
            layer, name = self._place(parameter)
            g = parameter.grad
            flat = g.reshape(-1)
            squares[layer] = squares.get(layer, 0.0) + float(flat.dot(flat))
            if (name == "kernel" and g.ndim > 1) or (name == "bias" and g.ndim == 1):
                alive = (g != 0).any(axis=tuple(range(g.ndim - 1)))
                before = self._alive.get(layer)
                if before is None or before.shape == alive.shape:
                    self._alive[layer] = alive if before is None else before | alive
        for layer, square in squares.items():
            self._sums[layer] = self._sums.get(layer, 0.0) + math.sqrt(square)

    def _place(self, parameter: Any) -> tuple[str, str]:
        """(layer, name) of a parameter, the model's own name left out."""
        path = str(getattr(parameter, "path", "")).removeprefix(f"{self.model.name}/")
        layer, _, name = path.rpartition("/")
        return layer or path, name

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        means = {layer: total / self._looks for layer, total in self._sums.items()}
        for layer, mean in means.items():
            self.norms.setdefault(layer, []).append(mean)
        self.dead_units = {
            layer: (int(np.count_nonzero(~alive)), alive.size)
            for layer, alive in self._alive.items()
            if not alive.all()
        }
        found = self._judge(means)
        self.findings = list(found.values())
        for finding, sentence in found.items():
            if self.verbose and finding not in self._told:
                write_line(f"Epoch {epoch + 1}: {sentence}")
        self._told |= set(found)

    def _judge(self, means: dict[str, float]) -> dict[tuple[str, str], str]:
        """The findings, each under the layer and what is wrong with it."""
        found: dict[tuple[str, str], str] = {}
        finite = [mean for mean in means.values() if math.isfinite(mean)]
        largest = max(finite, default=0.0)
        for layer, mean in means.items():
            if not math.isfinite(mean):
                found[layer, "not finite"] = (
                    f"the gradient of layer {layer} is not finite: look for log(0), a division by "
                    "0, or too large a learning rate."
                )
            elif mean > self.exploding:
                found[layer, "explodes"] = (
                    f"the gradient of layer {layer} explodes: its norm is {mean:.3g}. "
                    "Try a smaller learning rate, clipnorm in the optimizer, or smaller inputs."
                )
            elif mean < self.vanishing * largest:
                found[layer, "vanishes"] = (
                    f"the gradient of layer {layer} vanishes: its norm is {mean:.3g}, the largest "
                    f"layer's is {largest:.3g}. Try ReLU or GELU, normalization, skip connections."
                )
        for layer, (dead, count) in self.dead_units.items():
            found[layer, "dead"] = (
                f"{dead} of the {count} units of layer {layer} are dead: no gradient reached them "
                f"in the {self._looks} batches looked at."
            )
        return found

    def report(self) -> str:
        """The mean gradient norm of each layer in the last epoch, and the findings, as text."""
        width = max(map(len, self.norms), default=0)
        lines = [f"{layer:<{width}}  {norms[-1]:.4g}" for layer, norms in self.norms.items()]
        return "\n".join([*lines, *self.findings])
