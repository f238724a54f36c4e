"""compare(): the same network in Keras, PyTorch or any function, number by number."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from picodl import tree
from picodl.diagnostics.peers import KerasPeer, Peer, Results
from picodl.diagnostics.torch_peer import TorchPeer
from picodl.diagnostics.watching import Watcher, as_batch, build, on_a_copy, require_loss
from picodl.layers.core import InputLayer
from picodl.models.compiled import names_of
from picodl.models.summary import table
from picodl.tensor import Tensor, gradients
from picodl.typing import Array

_LEAST = 1e-3  # of the largest gradient: what a smaller one is measured by


class Difference(NamedTuple):
    """How far two arrays differ.

    Attributes:
        kind: "output", "layer", "loss" or "gradient".
        name: of the output, the layer or the weight.
        shape: of the arrays.
        absolute: the largest difference of two numbers; inf where one of them is NaN.
        relative: that, over the largest magnitude in either array. A gradient is measured by a
            thousandth of the largest gradient of all at the least, so that rounding is not.
    """

    kind: str
    name: str
    shape: tuple[int, ...]
    absolute: float
    relative: float


@dataclass
class Comparison:
    """What `compare` found.

    Attributes:
        name: of the model.
        other: what it was compared with.
        rows: layers, outputs, loss, gradients.
        tolerance: the relative difference allowed.
        notes: what was not compared, and why.
    """

    name: str
    other: str
    rows: list[Difference]
    tolerance: float
    notes: list[str]

    def __bool__(self) -> bool:
        return all(row.relative <= self.tolerance for row in self.rows)

    @property
    def worst(self) -> Difference:
        """The row with the largest relative difference."""
        return max(self.rows, key=lambda row: row.relative)

    def __str__(self) -> str:
        header = ["Compared", "Name", "Shape", "Absolute", "Relative", ""]
        cells = [
            [
                r.kind, r.name, str(r.shape), f"{r.absolute:.1e}", f"{r.relative:.1e}",
                "" if r.relative <= self.tolerance else "differs",
            ]
            for r in self.rows
        ]  # fmt: skip
        widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
        verdict = "agrees" if self else "does not agree"
        first = f'"{self.name}" {verdict} with {self.other} (tolerance {self.tolerance:g})'
        lines = [first, table(header, cells, widths, (3, 4))]
        return "\n".join([*lines, *(f"({note})" for note in self.notes)])


def compare(
    model: Any,
    other: Any,
    x: Any,
    y: Any = None,
    copy_weights: bool = True,
    loss: Callable[..., Any] | None = None,
    to_other: Callable[[Any], Any] | None = None,
    names: Mapping[str, str] | None = None,
    tolerance: float = 1e-4,
) -> Comparison:
    """Run a model and its counterpart on the same data, in inference, and say how far they differ.

    The model's weights are copied into the counterpart first, which keeps them. With Keras, layers
    are compared one by one where both models have the same kinds of layers in the same order.

    With targets, gradients of the weights are compared, too. Where the counterpart has no loss
    (PyTorch without `loss`, a Keras model that is not compiled), the gradient of this model's loss
    with respect to its outputs is handed to the counterpart's own backward pass.

    Args:
        model: a built model or layer. It stays as it is.
        other: a keras.Model or torch.nn.Module of the same architecture, or a function of arrays,
            of which the outputs alone are compared. A PyTorch module runs in its eval mode.
        x: a batch: an array, or a list or dict of arrays.
        y: targets; the model must be compiled then.
        copy_weights: False if both have the same weights already.
        loss: for PyTorch, its loss: a function of (outputs, targets).
        to_other: what makes the inputs of the counterpart out of x, such as
            `lambda x: np.moveaxis(x, -1, 1)` for PyTorch's channels_first.
        names: for PyTorch, which module is which layer; see `saving.load_torch_state_dict`.
        tolerance: the relative difference up to which they agree.

    Returns:
        A Comparison: true if all of it agrees, and a table as text.

    Raises:
        ValueError: for weights, outputs or data that do not fit each other, an empty batch, or a
            model that is not built, or not compiled where there are targets.
        TypeError: for a counterpart that cannot be called.
        ImportError: if the library of the counterpart cannot be imported.

    >>> from picodl import Input, Sequential, layers
    >>> model = Sequential([Input((2,)), layers.Dense(1)])
    >>> kernel, bias = model.get_weights()
    >>> found = compare(model, lambda x: x @ kernel + bias, np.ones((4, 2)))
    >>> bool(found), found.worst.shape
    (True, (4, 1))
    """
    with on_a_copy("compare", model) as copy:
        if y is not None:
            require_loss("compare", model)
        x, y = as_batch("compare", copy, x, y)
        if not model.built:
            raise ValueError(
                f'compare: "{model.name}" is not built, so it has no weights to compare with. Give '
                "it an Input, or call it on a batch first."
            )
        build(copy, x)
        peer = _peer_of(other, names, loss)
        given = x if to_other is None else to_other(x)
        peer.meet(model, copy, given)
        if copy_weights:
            peer.take_weights()
        own = _Own(copy, x)
        if y is not None and peer.differentiates:
            own.differentiate(x, y, peer.has_loss)
        kinds = [type(layer).__name__ for layer in own.layers]
        theirs = peer.run(given, y, own.upstream, kinds)
        rows, notes = _rows(copy, own, theirs, peer)
    return Comparison(model.name, peer.label, rows, tolerance, [*peer.notes, *notes])


def _peer_of(other: Any, names: Mapping[str, str] | None, loss: Any) -> Peer:
    """The counterpart by what it is."""
    for kind in type(other).__mro__:
        library = kind.__module__.split(".")[0]
        if library == "keras" and kind.__name__ == "Model":
            return KerasPeer(other)
        if library == "torch" and kind.__name__ == "Module":
            return TorchPeer(other, names, loss)
    if not callable(other):
        raise TypeError(
            "compare expects a keras.Model, a torch.nn.Module or a function of arrays; received "
            f"{type(other).__name__}."
        )
    return Peer(other)


class _Own(Watcher):
    """What the model computes.

    Attributes:
        layers: those called by the model itself, in order, without its inputs.
        values: what each of them gives; None unless it is called once and gives one array.
    """

    def __init__(self, model: Any, x: Any) -> None:
        super().__init__()
        self.model = model
        self._calls: dict[int, tuple[Any, list[Any]]] = {}
        with self.watching(model):
            self.y_pred = model(x, training=False)
        called = self._calls
        held = [m for m in getattr(model, "layers", ()) if not isinstance(m, InputLayer)]
        self.layers = held
        self.values: list[Array | None] = []
        for layer in held:
            outputs = called.get(id(layer), (layer, []))[1]
            single = len(outputs) == 1 and isinstance(outputs[0], Tensor)
            self.values.append(outputs[0].data if single else None)
        self.outputs = [np.asarray(t) for t in tree.flatten(self.y_pred)]
        self.loss: float | None = None
        self.upstream: list[Array | None] | None = None
        self.gradients: dict[int, Array] = {}  # by the place of the weight

    def leave(self, layer: Any, outputs: Any) -> None:
        if len(self.stack) == 2:
            self._calls.setdefault(id(layer), (layer, []))[1].append(outputs)

    def differentiate(self, x: Any, y: Any, whole: bool) -> None:
        """The loss and its gradients; whole: with the penalties of weights and layers."""
        model = self.model
        loss = model.compute_loss(x, y, self.y_pred, training=False)
        if not whole and model._compiled_loss.parts:
            loss = model._compiled_loss(y, self.y_pred)[0]
        self.loss = float(loss)
        places = {id(w): i for i, w in enumerate(model.weights)}
        tensors = tree.flatten(self.y_pred)
        found = gradients([loss], [None], tensors, retain_graph=True)
        by_output = {id(t): g for t, g in found}
        self.upstream = [by_output.get(id(t)) for t in tensors]
        for leaf, g in gradients([loss], [None]):
            if id(leaf) in places:
                self.gradients[places[id(leaf)]] = g


def _rows(model: Any, own: _Own, theirs: Results, peer: Peer) -> tuple[list[Difference], list[str]]:
    rows, notes, label = [], [], peer.label
    for layer, a, b in zip(own.layers, own.values, theirs.layers, strict=False):
        if a is not None and b is not None:
            rows.append(_difference("layer", layer.name, a, b, label))
    if len(own.outputs) != len(theirs.outputs):
        raise ValueError(
            f'compare: "{model.name}" gives {len(own.outputs)} outputs, {label} gives '
            f"{len(theirs.outputs)}. Wrap it in a function that gives the same."
        )
    names = names_of(own.y_pred, getattr(model, "output_names", None))
    for name, a, b in zip(names, own.outputs, theirs.outputs, strict=True):
        rows.append(_difference("output", name, a, b, label))
    if own.loss is not None and theirs.loss is not None:
        a, b = np.asarray(own.loss), np.asarray(theirs.loss)
        rows.append(_difference("loss", "loss", a, b, label))
    largest = max((float(np.abs(g).max(initial=0)) for g in own.gradients.values()), default=0.0)
    weights = model.weights
    for place, g in theirs.gradients.items():
        mine = own.gradients.get(place, np.zeros_like(weights[place].data))
        name = weights[place].path
        rows.append(_difference("gradient", name, mine, g, label, _LEAST * largest))
    left = [weights[i].path for i in own.gradients if i not in theirs.gradients]
    told = any("gradients are not compared" in note for note in peer.notes)
    if left and not told:
        notes.append(f"{label} has no gradients of their own for {_listed(left)}")
    return rows, notes


def _difference(
    kind: str, name: str, a: Array, b: Array, label: str, least: float = 0.0
) -> Difference:
    if a.shape != b.shape:
        raise ValueError(
            f"compare: the {kind} {name!r} has shape {a.shape} here and {b.shape} in {label}. Is "
            "the architecture the same? Wrap the counterpart in a function that gives the same "
            "layout."
        )
    a, b = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(invalid="ignore"):
        apart = np.where(a == b, 0.0, np.abs(a - b))
    absolute = float(np.where(np.isnan(apart), np.inf, apart).max(initial=0.0))
    sizes = [np.abs(v[np.isfinite(v)]).max(initial=0.0) for v in (a, b)]
    scale = max(*map(float, sizes), least)
    if absolute and not scale:
        return Difference(kind, name, a.shape, absolute, np.inf)
    return Difference(kind, name, a.shape, absolute, absolute / scale if absolute else 0.0)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
