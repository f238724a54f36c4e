"""profile(): the time and the memory of each layer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from picodl import tree
from picodl.diagnostics.watching import Watcher, as_batch, build, on_a_copy, path_of, require_loss
from picodl.models.summary import bytes_text, table
from picodl.tensor import Tensor, gradients, no_grad

_LOSS = "(loss)"


class LayerProfile(NamedTuple):
    """What one layer takes: times and weights are its own, without those of layers called inside.

    Attributes:
        path: the layer's name behind those of the layers and models it was called in.
        kind: its class.
        depth: how many layers it is called in; 0 for the model, and for the loss.
        calls: how often it is called.
        shape: of its output; a list or dict of shapes for several.
        forward: seconds of the forward pass, all calls together.
        backward: seconds of the backward pass; None if there was none.
        share: of the time of the whole, in percent.
        output_bytes: of what its calls give.
        weight_bytes: of its weights, states included.
    """

    path: str
    kind: str
    depth: int
    calls: int
    shape: Any
    forward: float
    backward: float | None
    share: float
    output_bytes: int
    weight_bytes: int


@dataclass
class Profile:
    """The rows of a profile, in the order in which the layers were first called.

    Attributes:
        name: of the model.
        samples: in the batch.
        rows: the model, its layers, and with targets the loss. Their times add up to the whole.
    """

    name: str
    samples: int
    rows: list[LayerProfile]

    @property
    def forward(self) -> float:
        """Seconds of the forward pass, the loss included where there is one."""
        return sum(row.forward for row in self.rows)

    @property
    def backward(self) -> float | None:
        """Seconds of the backward pass; None if there was none."""
        parts = [row.backward for row in self.rows if row.backward is not None]
        return sum(parts) if parts else None

    def __str__(self) -> str:
        header = ["Layer (type)", "Output Shape", "Output", "Weights"]
        header += ["Forward", "Backward", "Share"]
        cells = [
            [
                "  " * r.depth + f"{r.path.rpartition('/')[2]} ({r.kind})"
                + (f" x{r.calls}" if r.calls > 1 else ""),
                "" if r.shape is None else str(r.shape),
                bytes_text(r.output_bytes) if r.output_bytes else "",
                bytes_text(r.weight_bytes) if r.weight_bytes else "",
                _seconds(r.forward),
                _seconds(r.backward),
                f"{r.share:.1f}%",
            ]
            for r in self.rows
        ]  # fmt: skip
        if self.backward is None:
            for line in (header, *cells):
                del line[5]
        widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
        whole = f"forward {_seconds(self.forward)}"
        if self.backward is not None:
            whole += f", backward {_seconds(self.backward)}"
        title = f'Profile of "{self.name}" on {self.samples} samples: {whole}'
        return f"{title}\n{table(header, cells, widths, range(2, len(header)))}"


def profile(model: Any, x: Any, y: Any = None, repeats: int = 10) -> Profile:
    """Time every layer of a model on one batch, and count the bytes of its output and weights.

    Without targets it is a prediction: layers run as in inference and nothing is recorded. With
    targets it is a training step without the optimizer: forward, the compiled loss, backward. Every
    moment is charged to the one layer that is at work, so the times add up to the whole; in the
    backward pass to the layer whose op is being differentiated. The batch is run once to warm up;
    the fastest of the repeats counts, as a whole. Watching adds some 3 microseconds to each call.

    Args:
        model: a model or layer. It stays as it is.
        x: the batch: an array, or a list or dict of arrays.
        y: targets; the model must be compiled then.
        repeats: how often to run it.

    Returns:
        A Profile, which prints as a table.

    Raises:
        ValueError: for an empty batch, data of different lengths, no repeats, or targets without a
            compiled loss.
        TypeError: for what is no model or no data.

    >>> from picodl import Input, Sequential, layers
    >>> model = Sequential([Input((4,)), layers.Dense(8, name="a"), layers.Dense(1, name="b")])
    >>> found = profile(model, np.ones((32, 4)))
    >>> [(row.path, row.shape, row.weight_bytes) for row in found.rows[1:]]
    [('a', (32, 8), 160), ('b', (32, 1), 36)]
    """
    if isinstance(repeats, bool) or not isinstance(repeats, int) or repeats < 1:
        raise ValueError(
            f"profile: repeats must be an integer of at least 1; received {repeats!r}."
        )
    with on_a_copy("profile", model) as copy:
        if y is not None:
            require_loss("profile", model)
        x, y = as_batch("profile", copy, x, y)
        build(copy, x)
        first = _Inventory()
        with first.watching(copy), no_grad():
            copy(x, training=y is not None)
        clock = _Clock(copy, x, y)
        with clock.watching(copy):
            clock.run()
            best = min((clock.run() for _ in range(repeats)), key=lambda run: run.total)
    return Profile(model.name, len(tree.flatten(x)[0]), _rows(copy, first, best, y is not None))


# -------------------------------------------------------------------- what is called


class _Inventory(Watcher):
    """Which layers are called, how often, and what they give."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[int, tuple[Any, str, int]] = {}  # (layer, path, depth) in order of calls
        self.calls: dict[int, int] = defaultdict(int)
        self.shapes: dict[int, Any] = {}
        self.sizes: dict[int, int] = defaultdict(int)

    def enter(self, layer: Any, inputs: Any) -> None:
        key = id(layer)
        self.calls[key] += 1
        if key not in self.seen:
            self.seen[key] = layer, path_of(self.stack), len(self.stack) - 1

    def leave(self, layer: Any, outputs: Any) -> None:
        arrays = [y.data if isinstance(y, Tensor) else np.asarray(y) for y in tree.flatten(outputs)]
        self.shapes[id(layer)] = tree.map_structure(np.shape, outputs)
        self.sizes[id(layer)] += sum(a.nbytes for a in arrays)

    def weights(self, model: Any) -> dict[int, int]:
        """Bytes by layer: of each weight once, for the innermost called layer that holds it."""
        holder = {id(p): (p.data.nbytes, id(model)) for p in model.parameters()}
        for layer, _, _ in sorted(self.seen.values(), key=lambda entry: entry[2]):
            holder |= {id(p): (p.data.nbytes, id(layer)) for p in layer.parameters()}
        sizes: dict[int, int] = defaultdict(int)
        for size, key in holder.values():
            sizes[key] += size
        return sizes


def _rows(model: Any, first: _Inventory, run: _Run, trained: bool) -> list[LayerProfile]:
    sizes = first.weights(model)
    rows = [
        LayerProfile(
            path,
            type(layer).__name__,
            depth,
            first.calls[key],
            first.shapes.get(key),
            run.forward[key],
            run.backward[key] if trained else None,
            100 * (run.forward[key] + run.backward[key]) / run.total,
            first.sizes[key],
            sizes[key],
        )
        for key, (layer, path, depth) in first.seen.items()
    ]
    if trained:
        forward, backward = run.forward[0], run.backward[0]
        share = 100 * (forward + backward) / run.total
        rows.append(LayerProfile(_LOSS, "loss", 0, 1, None, forward, backward, share, 0, 0))
    return rows


# -------------------------------------------------------------------- the clock


class _Run(NamedTuple):
    """Seconds by the id of the layer in charge, 0 for the loss, of one run."""

    forward: dict[int, float]
    backward: dict[int, float]

    @property
    def total(self) -> float:
        return sum(self.forward.values()) + sum(self.backward.values())


class _Clock(Watcher):
    """Runs a batch and charges every moment to the layer in charge.

    Args:
        model: the copy to run.
        x: the inputs.
        y: targets, or None.
    """

    def __init__(self, model: Any, x: Any, y: Any) -> None:
        super().__init__()
        self._batch = model, x, y
        self._trains = y is not None
        self._outside = 0 if self._trains else id(model)
        self._spent: dict[int, float] = defaultdict(float)
        self._key, self._since = 0, 0.0

    def run(self) -> _Run:
        """Run the batch once."""
        model, x, y = self._batch
        self._marks.clear()
        self._owners.clear()
        backward: dict[int, float] = defaultdict(float)
        forward = self._start(id(model))
        with nullcontext() if self._trains else no_grad():
            y_pred = model(x, training=self._trains)
            loss = model.compute_loss(x, y, y_pred) if self._trains else None
        self._charge(self._outside)
        del y_pred
        if isinstance(loss, Tensor) and loss.requires_grad:
            self.wrap_backward(loss, self._timed)
            backward = self._start(0)
            gradients([loss], [None])
            self._charge(0)
        return _Run(forward, backward)

    def _start(self, key: int) -> dict[int, float]:
        self._spent, self._key = defaultdict(float), key
        self._since = perf_counter()
        return self._spent

    def in_charge(self, owner: Any) -> None:
        if self._trains:  # else there is no graph to find the owners of
            super().in_charge(owner)
        self._charge(self._outside if owner is None else id(owner))

    def _charge(self, key: int) -> None:
        """The time since the last change goes to who was in charge; from now on it is another."""
        now = perf_counter()
        self._spent[self._key] += now - self._since
        self._key, self._since = key, now

    def _timed(self, closure: Any, owner: Any) -> Callable[[Any], Any]:
        key = 0 if owner is None else id(owner)

        def backward(g: Any) -> Any:
            self._charge(key)  # until the next op begins: what the engine does with the result
            return closure(g)

        return backward


def _seconds(time: float | None) -> str:
    if time is None:
        return ""
    for unit, size in (("us", 1e-6), ("ms", 1e-3)):
        if time < 999.5 * size:
            return f"{time / size:.3g} {unit}"
    return f"{time:.3g} s"
