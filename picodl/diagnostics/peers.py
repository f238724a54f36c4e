"""The counterparts of a model in `compare`: a function, and a model of Keras."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from picodl import tree
from picodl.typing import Array


@dataclass
class Results:
    """What a counterpart computes.

    Attributes:
        outputs: its outputs, flat.
        layers: the output of each of the model's layers, as far as it is known.
        loss: its own loss.
        gradients: of the loss, by the place of the weight in the model's `weights`, in its layout.
    """

    outputs: list[Array]
    layers: list[Array | None] = field(default_factory=list)
    loss: float | None = None
    gradients: dict[int, Array] = field(default_factory=dict)


class Peer:
    """A function of arrays.

    Attributes:
        label: what it is, for messages.
        notes: what was not compared, and why.
        differentiates: whether it can give gradients.
        has_loss: whether it computes a loss of its own, penalties of weights and layers included.
    """

    label = "the function"
    differentiates = False
    has_loss = False

    def __init__(self, other: Any) -> None:
        self.other = other
        self.notes: list[str] = []
        self.model: Any = None

    def meet(self, model: Any, copy: Any, x: Any) -> None:
        """See the model, a copy of it to try things on, and the inputs.

        Raises:
            ValueError: if they do not fit.
        """
        self.model = model

    def take_weights(self) -> None:
        """Take the model's weights over.

        Raises:
            ValueError: if they do not fit; then none is changed.
        """

    def run(self, x: Any, y: Any, upstream: list[Array | None] | None, kinds: list[str]) -> Results:
        """Compute.

        Args:
            x: the inputs.
            y: targets, or None.
            upstream: the gradient of the model's loss by each output, or None.
            kinds: the classes of the model's layers.
        """
        if y is not None:
            self.notes.append("a function: neither loss nor gradients are compared")
        return Results([to_array(part) for part in tree.flatten(self.other(x))])


class KerasPeer(Peer):
    """A model of Keras 3."""

    differentiates = True

    def __init__(self, other: Any) -> None:
        super().__init__(other)
        self.keras = imported("keras")
        self.backend = self.keras.backend.backend()
        self.label = f"Keras ({self.backend})"
        self.has_loss = bool(getattr(other, "compiled", False) and other.loss is not None)

    def meet(self, model: Any, copy: Any, x: Any) -> None:
        super().meet(model, copy, x)
        if not self.other.built:
            self.other(x, training=False)

    def take_weights(self) -> None:
        own, theirs = self.model.weights, self.other.weights
        if len(own) != len(theirs):
            raise ValueError(
                f'compare: "{self.model.name}" has {len(own)} weights, the Keras model '
                f'"{self.other.name}" {len(theirs)}. Make it of the same layers.'
            )
        for mine, other in zip(own, theirs, strict=True):
            if mine.data.shape != tuple(other.shape):
                raise ValueError(
                    f"compare: {mine.path} has shape {mine.data.shape}, but the weight in its "
                    f"place in Keras, {other.path}, has {tuple(other.shape)}. Make it of the same "
                    "layers in the same order."
                )
        pairs = [(a.name, b.name) for a, b in zip(own, theirs, strict=True) if a.name != b.name]
        if pairs:
            told = ", ".join(f"{a} with {b}" for a, b in dict.fromkeys(pairs))
            self.notes.append(f"weights are paired by their order, these by other names: {told}")
        self.other.set_weights([w.data for w in own])

    def run(self, x: Any, y: Any, upstream: list[Array | None] | None, kinds: list[str]) -> Results:
        if y is None or not self._pairs():
            results = Results([to_array(t) for t in tree.flatten(self.other(x, training=False))])
        elif self.backend == "tensorflow":
            results = self._with_tensorflow(x, y, upstream)
        elif self.backend == "torch":
            results = self._with_torch(x, y, upstream)
        else:
            results = Results([to_array(t) for t in tree.flatten(self.other(x, training=False))])
            if self.has_loss:
                results.loss = float(to_array(self._loss(x, y, self.other(x, training=False))))
            else:
                self._no_loss()
            self.notes.append(
                f"gradients are not compared with Keras on {self.backend}: set KERAS_BACKEND to "
                "tensorflow or torch"
            )
        results.layers = self._layers(x, kinds)
        return results

    def _pairs(self) -> list[tuple[int, Any]]:
        """(place in the model's weights, variable of Keras) of what both train."""
        own = [(i, w) for i, w in enumerate(self.model.weights) if w.requires_grad]
        theirs = self.other.trainable_weights
        if [w.data.shape for _, w in own] != [tuple(v.shape) for v in theirs]:
            self.notes.append(
                "losses and gradients are not compared: the trainable weights are not the same"
            )
            return []
        return [(i, v) for (i, _), v in zip(own, theirs, strict=True)]

    def _loss(self, x: Any, y: Any, y_pred: Any) -> Any:
        tensors = tree.map_structure(self.keras.ops.convert_to_tensor, y)
        return self.other.compute_loss(x=x, y=tensors, y_pred=y_pred, training=False)

    def _no_loss(self) -> None:
        self.notes.append("the Keras model is not compiled: losses are not compared")

    def _with_tensorflow(self, x: Any, y: Any, upstream: list[Array | None] | None) -> Results:
        tf = imported("tensorflow")
        pairs, loss = self._pairs(), None
        variables = [v.value for _, v in pairs]
        with tf.GradientTape() as tape:
            y_pred = self.other(x, training=False)
            if self.has_loss:
                loss = self._loss(x, y, y_pred)
        flat = tree.flatten(y_pred)
        if self.has_loss:
            found = tape.gradient(loss, variables)
        else:
            self._no_loss()
            ends = [(t, g) for t, g in zip(flat, upstream or (), strict=True) if g is not None]
            found = tape.gradient(
                [t for t, _ in ends],
                variables,
                output_gradients=[tf.cast(g, t.dtype) for t, g in ends],
            )
        gradients = {
            i: to_array(tf.convert_to_tensor(g))
            for (i, _), g in zip(pairs, found, strict=True)
            if g is not None
        }
        number = None if loss is None else float(to_array(loss))
        return Results([to_array(t) for t in flat], loss=number, gradients=gradients)

    def _with_torch(self, x: Any, y: Any, upstream: list[Array | None] | None) -> Results:
        torch = imported("torch")
        pairs, loss = self._pairs(), None
        variables = [v.value for _, v in pairs]
        with torch.enable_grad():
            y_pred = self.other(x, training=False)
            if self.has_loss:
                loss = self._loss(x, y, y_pred)
        flat = tree.flatten(y_pred)
        if loss is None:
            self._no_loss()
        found = torch_gradients(torch, loss, flat, upstream, variables)
        gradients = {
            i: to_array(g) for (i, _), g in zip(pairs, found, strict=True) if g is not None
        }
        number = None if loss is None else float(to_array(loss))
        return Results([to_array(t) for t in flat], loss=number, gradients=gradients)

    def _layers(self, x: Any, kinds: list[str]) -> list[Array | None]:
        """The output of each layer, where the layers are of the same kinds in the same order."""
        layers = [m for m in self.other.layers if type(m).__name__ != "InputLayer"]
        if [type(m).__name__ for m in layers] != kinds:
            self.notes.append("layers are not compared one by one: they are of other kinds")
            return []
        try:
            outputs = [m.output for m in layers]
            inputs = self.other.inputs
            inputs = inputs[0] if len(inputs) == 1 else self.other.input
            inside = self.keras.Model(inputs, outputs)
        except (AttributeError, ValueError) as error:
            self.notes.append(
                "layers are not compared one by one: Keras does not give their outputs "
                f"({type(error).__name__})"
            )
            return []
        values = inside(x, training=False)
        values = [values] if len(outputs) == 1 and not isinstance(values, list) else values
        return [None if isinstance(v, (list, tuple, dict)) else to_array(v) for v in values]


def imported(library: str) -> Any:
    """A library that is not one of picodl's own.

    Raises:
        ImportError: naming what to install.
    """
    try:
        return importlib.import_module(library)
    except ImportError as error:
        raise ImportError(
            f"compare needs {library} for this counterpart: pip install {library} (keras and torch "
            "come with pip install 'picodl[bench]')."
        ) from error


def torch_gradients(
    torch: Any,
    loss: Any,
    outputs: Sequence[Any],
    upstream: Sequence[Array | None] | None,
    variables: Sequence[Any],
) -> Sequence[Any]:
    """The gradients of a loss, or what goes down from the outputs where there is none."""
    if loss is not None:
        return torch.autograd.grad(loss, variables, allow_unused=True)
    pairs = zip(outputs, upstream or (), strict=True)
    ends = [(t, g) for t, g in pairs if g is not None and t.requires_grad]
    return torch.autograd.grad(
        [t for t, _ in ends],
        variables,
        [torch.as_tensor(np.ascontiguousarray(g), dtype=t.dtype, device=t.device) for t, g in ends],
        allow_unused=True,
    )


def to_array(value: Any) -> Array:
    """A tensor of any library as an array."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    return np.asarray(value)
