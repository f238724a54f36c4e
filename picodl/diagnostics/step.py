"""The one step of a dry run, and what there is to see of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from picodl import optimizers, tree
from picodl.diagnostics.expectations import RANGES
from picodl.diagnostics.watching import Watcher, path_of
from picodl.layers.activation import ReLU, Softmax
from picodl.tensor import Tensor
from picodl.typing import Array

_FOUND = ("is NaN", "expected probabilities")  # in warnings of what a dry run looks for anyway


class Step(Watcher):
    """Runs one step of a model, which is a copy, and keeps what there is to see."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.loss: float | None = None
        self.notes: list[str] = []
        self.weights_before: list[Any] = []  # those not finite
        self.refused: Exception | None = None  # what the loss raised
        self.warnings: list[str] = []
        self.batch: tuple[Any, Any] | None = None  # targets and outputs that the loss took
        self.makers: dict[int, tuple[Tensor, Any, str]] = {}  # outputs, their layers and paths
        self.made_by: list[str] = []  # the ops that made the outputs
        self.first_bad: tuple[str, bool] | None = None  # path of a layer, whether its input was bad
        self.first_bad_gradient: str | None = None
        self.gradients: dict[int, Array] | None = None
        self.data: dict[str, Array] = {}  # what layers with weights take that no weight made
        self.dead: dict[str, Array] = {}  # which units are 0 for the whole batch
        self._paths: dict[int, str] = {}  # of the layers that were called
        self._frozen_met = False
        self._frames: list[list[Any]] = []  # inputs of a call, and whether it calls other layers

    def run(self, x: Any, y: Any) -> None:
        """Make the step."""
        model = self.model
        if getattr(model.optimizer, "uses_closure", False):
            self.notes.append(f"{type(model.optimizer).__name__} was not run, plain gradients were")
            model.optimizer = optimizers.SGD(0.0)
        self.weights_before = [w for w in model.weights if not finite(w.data)]
        minimize, compute_loss = model.minimize, model.compute_loss

        def watched_loss(
            x: Any = None, y: Any = None, y_pred: Any = None, *a: Any, **k: Any
        ) -> Any:
            self.batch = y, y_pred
            self.made_by = [getattr(t, "op", "") for t in tree.flatten(y_pred)]
            try:
                return compute_loss(x, y, y_pred, *a, **k)
            except (ValueError, TypeError) as error:
                self.refused = error
                raise

        def watched_minimize(loss: Any) -> None:
            if isinstance(loss, Tensor):
                self.loss = float(loss)
                if loss.requires_grad:
                    self.wrap_backward(loss, self._looked_at)
            self.gradients = {}
            minimize(loss)

        def take(leaves: Any) -> None:
            self.gradients = {id(leaf): leaf.grad for leaf in leaves}

        vars(model).update(minimize=watched_minimize, compute_loss=watched_loss)
        model.gradient_watcher = take
        with self.watching(model), warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                model.train_on_batch(x, y)
            except (ValueError, TypeError) as error:
                if error is not self.refused or y is None:
                    raise
        told = (str(w.message) for w in said if issubclass(w.category, UserWarning))
        self.warnings = [t for t in dict.fromkeys(told) if not any(part in t for part in _FOUND)]
        if self.gradients is None and self.refused is None:
            self.notes.append("gradients were not seen: the train_step does not call minimize()")

    # ---------------------------------------------------------------- while it runs

    def enter(self, layer: Any, inputs: Any) -> None:
        if self._frames:
            self._frames[-1][1] = True
        self._frames.append([inputs, False])

    def leave(self, layer: Any, outputs: Any) -> None:
        inputs, calls_others = self._frames.pop()
        path = self._paths[id(layer)] = path_of(self.stack)
        found = [t for t in tree.flatten(outputs) if isinstance(t, Tensor)]
        given = [t for t in tree.flatten(inputs) if isinstance(t, Tensor)]
        if self.first_bad is None and not all(finite(t.data) for t in found):
            self.first_bad = path, not all(finite(t.data) for t in given)
        for t in found:
            self.makers.setdefault(id(t), (t, layer, path))  # the innermost layer that gives it
        if not calls_others and any(True for _ in layer.parameters()):
            self._look_at_data(layer, path, given)
        if found and ends_in(layer, found[0].data) in ("relu", "relu6"):
            self._count_dead(layer, path, found[0].data)

    def _look_at_data(self, layer: Any, path: str, given: list[Tensor]) -> None:
        """Keep what a layer with weights is given, if no layer with weights made it."""
        kind = type(layer).__name__
        if "Normalization" in kind:
            return
        if kind == "Embedding" or not layer.trainable_weights:
            self._frozen_met = True  # what it makes does not show that a weight made it
        elif given and not (self._frozen_met or given[0].requires_grad or path in self.data):
            data = given[0].data
            if data.dtype.kind == "f" or hasattr(layer, "kernel"):  # else integers may be ids
                self.data[path] = data

    def _count_dead(self, layer: Any, path: str, y: Array) -> None:
        first = getattr(layer, "data_format", "") == "channels_first" and y.ndim > 2
        axis = 1 if first else y.ndim - 1
        dead = (y == 0).all(axis=tuple(i for i in range(y.ndim) if i != axis))
        before = self.dead.get(path)
        together = before is not None and before.shape == dead.shape
        self.dead[path] = dead & before if together else dead

    def _looked_at(self, closure: Any, owner: Any) -> Callable[[Any], Any]:
        where = "the loss" if owner is None else self._paths[id(owner)]

        def backward(g: Any) -> Any:
            parts = list(closure(g))
            sound = all(finite(part) for part in parts if part is not None)
            if self.first_bad_gradient is None and not sound and finite(g):
                self.first_bad_gradient = where
            return parts

        return backward


def finite(a: Any) -> bool:
    """Whether an array holds no NaN and no infinity."""
    return a.dtype.kind != "f" or bool(np.isfinite(a).all())


def ends_in(layer: Any, y: Array) -> str:
    """The name of the activation that a layer ends in, as far as its outputs bear it out."""
    if isinstance(layer, ReLU):
        name = "" if layer.negative_slope else "relu"
    elif isinstance(layer, Softmax):
        name = "softmax"
    else:
        name = getattr(getattr(layer, "activation", None), "__name__", "")
    low, high = RANGES.get(name, (1.0, 0.0))
    return name if y.size and low <= y.min() and y.max() <= high + 1e-6 else ""
