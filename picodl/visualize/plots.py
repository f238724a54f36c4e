"""Plots of weights, activations, trainings and predictions.

matplotlib (the extra "viz") is imported where it is used. Every plot is returned as a Figure that a
notebook shows by itself, and saved if `to_file` is given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from picodl.layers import Layer
from picodl.tensor import no_grad
from picodl.typing import Array


def plot_weights(model: Any, to_file: Any = None, bins: int = 50) -> Any:
    """A histogram of the values of each weight of a layer or model.

    Args:
        model: a built layer or model.
        to_file: where to save the figure.
        bins: of each histogram.

    Raises:
        ValueError: if there are no weights.
    """
    weights = list(model.parameters())
    if not weights:
        raise ValueError(f"{type(model).__name__} has no weights to plot. Build it first.")
    names = [getattr(w, "path", None) or f"weight {i}" for i, w in enumerate(weights)]
    return _histograms([w.data for w in weights], names, bins, to_file)


def plot_activations(model: Any, x: Any, to_file: Any = None, bins: int = 50) -> Any:
    """A histogram of the outputs of each layer for one batch: saturation and dead units show.

    Args:
        model: a model or any layer made of layers.
        x: the batch.
        to_file: where to save the figure.
        bins: of each histogram.
    """
    outputs = layer_outputs(model, x)
    return _histograms(list(outputs.values()), list(outputs), bins, to_file)


def layer_outputs(model: Any, x: Any) -> dict[str, Array]:
    """The output of every layer inside a model for one batch, by the layer's name.

    A layer that is called several times appears as `name`, `name (2)`, ...

    Raises:
        ValueError: if no layer was called.
    """
    outputs: dict[str, Array] = {}

    def watch(layer: Layer) -> None:
        name = "call" if type(layer).forward is Layer.forward else "forward"
        compute = getattr(layer, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            y = compute(*args, **kwargs)
            if hasattr(y, "numpy"):
                again = sum(key.split(" (")[0] == layer.name for key in outputs)
                outputs[f"{layer.name} ({again + 1})" if again else layer.name] = y.numpy()
            return y

        vars(layer)[name] = watched
        stack.callback(vars(layer).pop, name)

    with ExitStack() as stack, no_grad():
        for layer in list(model.modules()):
            if isinstance(layer, Layer) and layer is not model:
                watch(layer)
        model(x, training=False)
    if not outputs:
        raise ValueError(f"{type(model).__name__} called no layer whose output could be seen.")
    return outputs


def _histograms(arrays: Sequence[Array], names: Sequence[str], bins: int, to_file: Any) -> Any:
    columns = min(3, len(arrays))
    rows = -(-len(arrays) // columns)
    figure = _figure(4 * columns, 2.6 * rows)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for ax, values, name in zip(axes, arrays, names, strict=False):
        finite = values[np.isfinite(values)]
        ax.hist(finite.ravel(), bins=bins, color="#3182bd")
        bad = values.size - finite.size
        note = f", {bad} not finite" if bad else ""
        ax.set_title(f"{name} {values.shape}{note}", fontsize=9)
        ax.tick_params(labelsize=8)
    for ax in axes[len(arrays) :]:
        ax.set_axis_off()
    return _finish(figure, to_file)


def plot_history(history: Any, to_file: Any = None) -> Any:
    """The curves of a training: one panel for each quantity, training and validation together.

    Args:
        history: what `fit` returned, or its dict of lists.
        to_file: where to save the figure.
    """
    logs = getattr(history, "history", history)
    names = [key for key in logs if not key.startswith("val_")]
    figure = _figure(5 * len(names), 3.4)
    for ax, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        for key, color in ((name, "#3182bd"), (f"val_{name}", "#e6550d")):
            if key in logs:
                ax.plot(range(1, len(logs[key]) + 1), logs[key], label=key, color=color)
        ax.set_xlabel("epoch")
        ax.set_title(name)
        ax.legend()
    return _finish(figure, to_file)


def plot_confusion_matrix(
    y_true: Any,
    y_pred: Any,
    labels: Sequence[str] | None = None,
    normalize: bool = False,
    to_file: Any = None,
) -> Any:
    """How often each class (row) was taken for each class (column).

    Args:
        y_true, y_pred: class numbers, or one-hot rows and rows of probabilities.
        labels: the names of the classes.
        normalize: show the fraction of each row.
        to_file: where to save the figure.

    Raises:
        ValueError: if the lengths differ.
    """
    true, pred = _classes(y_true), _classes(y_pred)
    if true.shape != pred.shape:
        raise ValueError(
            f"y_true has {len(true)} samples and y_pred {len(pred)}; they must be the same."
        )
    n = max(int(true.max(initial=0)), int(pred.max(initial=0))) + 1
    n = max(n, len(labels or ()))
    matrix = np.bincount(true * n + pred, minlength=n * n).reshape(n, n).astype(np.float64)
    if normalize:
        matrix /= np.maximum(matrix.sum(1, keepdims=True), 1)
    names = list(labels) if labels is not None else [str(i) for i in range(n)]
    size = max(4.0, 0.5 * n + 1.5)
    figure = _figure(size, size)
    ax = figure.subplots()
    ax.imshow(matrix, cmap="Blues")
    ax.set_xticks(range(n), names)
    ax.set_yticks(range(n), names)
    ax.set_xlabel("predicted")
    ax.set_ylabel("true")
    for (i, j), count in np.ndenumerate(matrix):
        color = "white" if count > matrix.max() / 2 else "black"
        text = f"{count:.2f}" if normalize else f"{count:.0f}"
        ax.text(j, i, text, ha="center", va="center", color=color, fontsize=8)
    return _finish(figure, to_file)


def _classes(y: Any) -> Array:
    y = np.asarray(y)
    if y.ndim == 2 and y.shape[1] > 1:
        return y.argmax(axis=1)
    y = y.reshape(-1)
    return (y > 0.5).astype(np.int64) if y.dtype.kind == "f" and _fractional(y) else y.astype(int)


def _fractional(y: Array) -> bool:
    return bool(np.any(y != np.round(y)))


def plot_decision_boundary(
    model: Any | Callable[[Array], Any],
    x: Any,
    y: Any,
    to_file: Any = None,
    resolution: int = 200,
) -> Any:
    """The class that a model gives to each point of a plane, with the samples over it.

    Args:
        model: a model with `predict`, or a function of an array (n, 2).
        x: the samples, of shape (n, 2).
        y: their classes.
        to_file: where to save the figure.
        resolution: points along each axis.

    Raises:
        ValueError: unless the samples have two features.
    """
    x = np.asarray(x)
    if x.ndim != 2 or x.shape[1] != 2:
        raise ValueError(f"A decision boundary needs samples of shape (n, 2); received {x.shape}.")
    low, high = x.min(0), x.max(0)
    margin = 0.1 * (high - low) + 1e-6
    lines = [
        np.linspace(a, b, resolution) for a, b in zip(low - margin, high + margin, strict=True)
    ]
    points = np.stack(np.meshgrid(*lines), axis=-1).reshape(-1, 2).astype(np.float32)
    with no_grad():
        scores = model.predict(points, verbose=0) if hasattr(model, "predict") else model(points)
    scores = np.asarray(scores)
    one = scores.ndim == 1 or scores.shape[1] == 1
    shown = scores.reshape(-1) if one else scores.argmax(axis=1)
    figure = _figure(5, 5)
    ax = figure.subplots()
    ax.contourf(
        *lines, shown.reshape(resolution, resolution), levels=20, cmap="coolwarm", alpha=0.6
    )
    ax.scatter(x[:, 0], x[:, 1], c=_classes(y), cmap="coolwarm", edgecolors="black", s=20)
    return _finish(figure, to_file)


def _figure(width: float, height: float) -> Any:
    """A Figure outside of pyplot, so that none is kept open, which notebooks can show."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("Plots need matplotlib: pip install 'picodl[viz]'.") from error

    class Picture(Figure):
        def _repr_png_(self) -> bytes:
            import io

            buffer = io.BytesIO()
            self.savefig(buffer, format="png")
            return buffer.getvalue()

    return Picture(figsize=(width, height), layout="constrained")


def _finish(figure: Any, to_file: Any) -> Any:
    if to_file is not None:
        figure.savefig(to_file)
    return figure
