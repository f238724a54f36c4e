"""What a loss expects of outputs and targets, as far as their values tell."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from picodl.losses import CrossEntropyLoss
from picodl.typing import Array

_BINARY = ("binary_crossentropy", "binary_focal_crossentropy")
_CLASSES = (
    "categorical_crossentropy",
    "categorical_focal_crossentropy",
    "categorical_generalized_cross_entropy",
    "sparse_categorical_crossentropy",
    "kl_divergence",
)
_CLASS_NUMBERS = ("sparse_categorical_crossentropy", "categorical_generalized_cross_entropy")
_ERRORS = (
    "mean_squared_error",
    "mean_absolute_error",
    "mean_absolute_percentage_error",
    "mean_squared_logarithmic_error",
    "huber",
    "log_cosh",
)
RANGES = {  # of what ends in an activation
    "sigmoid": (0.0, 1.0),
    "hard_sigmoid": (0.0, 1.0),
    "softmax": (0.0, 1.0),
    "tanh": (-1.0, 1.0),
    "hard_tanh": (-1.0, 1.0),
    "softsign": (-1.0, 1.0),
    "relu": (0.0, np.inf),
    "relu6": (0.0, 6.0),
    "softplus": (0.0, np.inf),
    "exponential": (0.0, np.inf),
}
_PROBABILITIES = ("sigmoid", "hard_sigmoid", "softmax")
_NEAR = 1e-3  # how far from 1 probabilities may add up


def misfits(loss: Any, y: Array, output: Array, activation: str) -> Iterator[tuple[str, str]]:
    """What does not fit a loss, as pairs of what was found and what to do.

    Args:
        loss: a Loss.
        y, output: targets and outputs that the loss took, finite.
        activation: the name of the activation that made the outputs; "" if it is not known.
    """
    name = getattr(getattr(loss, "fn", None), "__name__", "")
    options = getattr(loss, "kwargs", {})
    logits = bool(options.get("from_logits", False))
    if isinstance(loss, CrossEntropyLoss):
        name, logits = "categorical_crossentropy", True
        y = y if y.shape == output.shape else output[:0]  # class numbers are checked by the loss
    axis = options.get("axis", -1)
    if name in _BINARY or name in _CLASSES:
        yield from _of_probabilities(name, logits, axis, output, activation)
    if name in _BINARY or name == "kl_divergence":
        yield from _outside("targets", y, 0, 1, "Scale them, or label the classes 0 and 1.")
    elif name in _CLASSES and name not in _CLASS_NUMBERS:
        yield from _outside("targets", y, 0, 1, "Make them one-hot, or use class numbers.")
        if y.shape == output.shape and _adds_up(y, axis) is False:
            yield (
                "the targets of a sample do not add up to 1",
                "Make them one-hot or probabilities; where several classes are true at once, use "
                "sigmoids and BinaryCrossentropy.",
            )
    elif name == "poisson":
        yield from _outside("outputs", output, 0, np.inf, 'End in activation="softplus".')
        yield from _outside("targets", y, 0, np.inf, "The Poisson loss is for counts.")
    elif name in _ERRORS and activation in RANGES and y.size:
        low, high = RANGES[activation]
        if y.min() < low or y.max() > high:
            yield (
                f"the outputs end in {activation} and lie in {_range(low, high)}, but the targets "
                f"go from {y.min():.4g} to {y.max():.4g}",
                "Leave the activation of the last layer out, or scale the targets.",
            )


def _of_probabilities(
    name: str, logits: bool, axis: int, output: Array, activation: str
) -> Iterator[tuple[str, str]]:
    binary = name in _BINARY
    inside = bool(output.size) and bool((output >= 0).all() and (output <= 1 + 1e-6).all())
    if logits:
        added = not binary and inside and output.shape[axis] > 1 and _adds_up(output, axis)
        if activation in _PROBABILITIES or added:
            made = f"made by {activation}" if activation in _PROBABILITIES else "they add up to 1"
            yield (
                f"the outputs are probabilities ({made}), but the loss has from_logits=True",
                "Leave the activation of the last layer out, or set from_logits=False.",
            )
        return
    if not inside:
        end = "sigmoid" if binary else "softmax"
        yield (
            f"the loss expects probabilities, but the outputs go from {output.min():.4g} to "
            f"{output.max():.4g}",
            f'Set from_logits=True in the loss, or end in activation="{end}".',
        )
    elif not binary and output.shape[axis] > 1 and not _adds_up(output, axis):
        yield (
            "the loss expects probabilities of classes, but those of a sample do not add up to 1",
            'End in activation="softmax"; where several classes are true at once, use '
            "BinaryCrossentropy.",
        )


def _adds_up(p: Array, axis: int) -> bool:
    """Whether probabilities add up to 1 along an axis."""
    return bool((np.abs(p.sum(axis, dtype=np.float64) - 1) < _NEAR).all())


def _outside(
    what: str, a: Array, low: float, high: float, advice: str
) -> Iterator[tuple[str, str]]:
    if a.size and (a.min() < low or a.max() > high):
        yield (
            f"the {what} go from {a.min():.4g} to {a.max():.4g}, the loss expects "
            f"{_range(low, high)}",
            advice,
        )


def _range(low: float, high: float) -> str:
    return f"{low:g} and more" if high == np.inf else f"{low:g} to {high:g}"
