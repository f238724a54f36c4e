"""What compile() was given, resolved for the outputs of a model: losses, weights and metrics."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from picodl import losses, metrics, naming, tree
from picodl.models.state import shape_text
from picodl.tensor import Tensor
from picodl.typing import Array

_BY_SHAPE = ("accuracy", "acc", "crossentropy", "ce")


class CompiledLoss:
    """The loss of a model: one Loss per output, weighted and added up.

    Args:
        loss: name, function or Loss; for several outputs a list or a dict by output name, with None
            for outputs without a loss. A list for one of several outputs is added up.
        loss_weights: one number per output, as a list or dict.

    Raises:
        ValueError: for an unknown name.
    """

    def __init__(self, loss: Any, loss_weights: Any = None) -> None:
        self.given = loss
        self.loss_weights = loss_weights
        for identifier in tree.flatten(loss):
            if isinstance(identifier, str) and identifier.lower() not in _BY_SHAPE:
                losses.get(identifier)  # an unknown name is an error at once
        self.names: list[str] = []
        self.places: list[int] = []  # of the outputs with a loss
        self.parts: list[tuple[int, Any, float]] = []  # (place of the output, Loss, weight)
        self.built = False

    def build(self, y_true: Any, y_pred: Any, output_names: Sequence[str] | None) -> None:
        """Resolve for outputs like these.

        Raises:
            ValueError: if the losses do not fit the outputs.
        """
        outputs = tree.flatten(y_pred)
        self.names = names_of(y_pred, output_names)
        given = _loss_lists(self.given, y_pred, self.names)
        self.places = [place for place, entries in enumerate(given) if entries]
        targets = self._targets(y_true, y_pred)
        weights = _by_output(self.loss_weights, y_pred, self.names, "loss_weights", spread=True)
        self.parts = []
        for place, entries in enumerate(given):
            for identifier in entries:
                loss = _loss_object(identifier, targets[place], outputs[place])
                _warn_of_single_unit(loss, outputs[place])
                weight = 1.0 if weights[place] is None else float(weights[place])
                self.parts.append((place, loss, weight))
        self.built = True

    def _targets(self, y_true: Any, y_pred: Any) -> list[Any]:
        """The targets of each output; those without a loss may be left out."""
        if not isinstance(y_true, dict) and len(self.places) < len(self.names):
            flat = tree.flatten(y_true)
            if len(flat) == len(self.places):
                found = dict(zip(self.places, flat, strict=True))
                return [found.get(place) for place in range(len(self.names))]
        return _by_output(y_true, y_pred, self.names, "y")

    def __call__(
        self, y_true: Any, y_pred: Any, sample_weight: Any = None
    ) -> tuple[Any, list[Any]]:
        """The weighted total, and the loss of each output."""
        total: Any = None
        if len(self.parts) == 1 and isinstance(y_pred, Tensor) and not tree.is_nested(y_true):
            _, loss, weight = self.parts[0]
            if tree.is_nested(sample_weight):
                sample_weight = tree.flatten(sample_weight)[0]
            total = loss(y_true, y_pred, sample_weight)
            return (total if weight == 1 else total * weight), [total]
        outputs = tree.flatten(y_pred)
        targets = self._targets(y_true, y_pred)
        weights = _by_output(sample_weight, y_pred, self.names, "sample_weight", spread=True)
        values = []
        for place, loss, weight in self.parts:
            if targets[place] is None:
                raise ValueError(
                    f"The output {self.names[place]!r} has a loss, but y holds no targets for it."
                )
            part = loss(targets[place], outputs[place], weights[place])
            values.append(part)
            part = part if weight == 1 else part * weight
            total = part if total is None else total + part
        return total, values


class CompiledMetrics:
    """The metrics of a model, with the names they are logged under.

    Args:
        given, weighted: what compile() got as metrics and weighted_metrics.

    Raises:
        ValueError: for an unknown name.
    """

    def __init__(self, given: Any = None, weighted: Any = None) -> None:
        self.given = given
        self.weighted = weighted
        for identifier in tree.flatten([given, weighted]):
            if isinstance(identifier, str) and identifier.lower() not in _BY_SHAPE:
                metrics.get(identifier)
        self.parts: list[tuple[str, int, Any, bool]] = []  # (log name, output, metric, weighted)
        self.shapes: Any = None  # of the targets and outputs it was built for, as texts
        self.built = given is None and weighted is None

    def build(self, y_true: Any, y_pred: Any, output_names: Sequence[str] | None) -> None:
        """Resolve for outputs like these.

        Raises:
            ValueError: if the metrics do not fit the outputs.
        """
        outputs = tree.flatten(y_pred)
        names = names_of(y_pred, output_names)
        targets = _by_output(y_true, y_pred, names, "y")
        taken: set[str] = set()
        for is_weighted, given in ((False, self.given), (True, self.weighted)):
            for place, entries in enumerate(_metric_lists(given, y_pred, names)):
                for identifier in entries:
                    metric, name = _metric_object(identifier, targets[place], outputs[place])
                    prefix = f"{names[place]}_" if len(outputs) > 1 else ""
                    if is_weighted and prefix + name in taken:
                        name = f"weighted_{name}"
                    name = prefix + name
                    self.parts.append((_unique(name, taken), place, metric, is_weighted))
        self.names = names
        self.shapes = [tree.map_structure(shape_text, part) for part in (y_true, y_pred)]
        self.built = True

    def update(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Feed one batch; a mask on the predictions leaves elements out."""
        if isinstance(y_pred, Tensor) and not tree.is_nested(y_true):
            outputs, targets, weights = [y_pred], [y_true], tree.flatten(sample_weight)[:1]
        else:
            outputs = tree.flatten(y_pred)
            targets = _by_output(y_true, y_pred, self.names, "y")
            weights = _by_output(sample_weight, y_pred, self.names, "sample_weight", spread=True)
        for _, place, metric, is_weighted in self.parts:
            output = outputs[place]
            weight = weights[place] if is_weighted else None
            mask = getattr(output, "mask", None)
            if mask is not None:
                weight = _masked(weight, mask)
            metric.update_state(targets[place], output.data, weight)

    def result(self) -> dict[str, Any]:
        """The running values by log name."""
        found: dict[str, Any] = {}
        for name, _, metric, _ in self.parts:
            value = metric.result()
            if isinstance(value, dict):
                found.update(value)
            else:
                found[name] = as_number(value)
        return found

    def reset_state(self) -> None:
        """Start all of them again."""
        for _, _, metric, _ in self.parts:
            metric.reset_state()


def as_number(value: Any) -> Any:
    """A Python float for a single number; arrays stay arrays."""
    if isinstance(value, float):
        return value
    array = value.data if isinstance(value, Tensor) else np.asarray(value)
    return float(array) if array.ndim == 0 else array


def names_of(y_pred: Any, output_names: Sequence[str] | None) -> list[str]:
    """One name per output: the keys of a dict, the model's names, or output_1, output_2, ..."""
    if isinstance(y_pred, dict):
        return ["/".join(map(str, path)) for path, _ in tree.flatten_with_path(y_pred)]
    count = len(tree.flatten(y_pred))
    if output_names is not None and len(output_names) == count:
        return list(output_names)
    return [f"output_{i + 1}" for i in range(count)]


def _by_output(
    given: Any, y_pred: Any, names: list[str], what: str, spread: bool = False
) -> list[Any]:
    """One entry per output from a single thing, a list, or a dict by output name."""
    count = len(names)
    if isinstance(given, dict):
        flat = {"/".join(map(str, path)): v for path, v in tree.flatten_with_path(given)}
        unknown = [name for name in flat if name not in names]
        if unknown:
            raise ValueError(
                f"{what} has the key {unknown[0]!r}, but the outputs of the model are named "
                f"{', '.join(map(repr, names))}.{naming.suggest(unknown[0], names)}"
            )
        return [flat.get(name) for name in names]
    if isinstance(given, (list, tuple)):
        flat_list = tree.flatten(given)
        if len(flat_list) != count:
            raise ValueError(
                f"{what} has {len(flat_list)} entries, but the model has {count} outputs "
                f"({', '.join(map(repr, names))})."
            )
        return flat_list
    if count == 1 or spread or given is None:
        return [given] * count
    raise ValueError(
        f"The model has {count} outputs ({', '.join(map(repr, names))}), so {what} must be a list "
        f"or a dict with one entry for each; received {type(given).__name__}."
    )


def _loss_lists(given: Any, y_pred: Any, names: list[str]) -> list[list[Any]]:
    """The losses of each output, from what `_by_output` takes with lists for single outputs."""
    by_place = isinstance(given, (list, tuple)) and len(given) == len(names)
    if isinstance(given, dict) and isinstance(y_pred, dict) and set(given) <= set(y_pred):
        entries = _along(given, y_pred)
    elif isinstance(given, dict) and all(name in names for name in given):
        entries = [given.get(name) for name in names]
    else:
        entries = given if by_place else _by_output(given, y_pred, names, "loss", spread=True)
    return [[part for part in _as_list(entry) if part is not None] for entry in entries]


def _metric_lists(given: Any, y_pred: Any, names: list[str]) -> list[list[Any]]:
    """The metrics of each output, from a single one, a list, or a dict by output name."""
    count = len(names)
    if given is None:
        return [[] for _ in names]
    if isinstance(given, dict) and isinstance(y_pred, dict) and set(given) <= set(y_pred):
        return [_as_list(entry) for entry in _along(given, y_pred)]
    if isinstance(given, dict):
        for name in given:
            if name not in names:
                raise ValueError(
                    f"metrics has the key {name!r}, but the outputs of the model are named "
                    f"{', '.join(map(repr, names))}.{naming.suggest(name, names)}"
                )
        return [_as_list(given.get(name)) for name in names]
    entries = _as_list(given)
    if count == 1:
        return [tree.flatten(entries)]
    if len(entries) != count:
        raise ValueError(
            f"metrics has {len(entries)} entries, but the model has {count} outputs "
            f"({', '.join(map(repr, names))}): give a list with one entry (or list) per output, or "
            "a dict by output name."
        )
    return [_as_list(entry) for entry in entries]


def _along(given: Any, y_pred: Any) -> list[Any]:
    """What stands in a structure at the place of each output; lists at single outputs stay."""
    if not tree.is_nested(y_pred):
        return [given]
    if given is None:
        return [None] * len(tree.flatten(y_pred))
    if isinstance(y_pred, dict) and isinstance(given, dict) and set(given) <= set(y_pred):
        pairs = [(given.get(key), y_pred[key]) for key in sorted(y_pred)]
    elif isinstance(given, (list, tuple)) and len(given) == len(y_pred):
        pairs = list(zip(given, y_pred, strict=True))
    else:
        raise ValueError(
            f"Losses and metrics must have the structure of the outputs; received {given!r} for "
            f"{tree.map_structure(shape_text, y_pred)}."
        )
    return [entry for pair in pairs for entry in _along(*pair)]


def _as_list(entry: Any) -> list[Any]:
    if entry is None:
        return []
    return list(entry) if isinstance(entry, (list, tuple)) else [entry]


def _loss_object(identifier: Any, y_true: Any, y_pred: Any) -> Any:
    if isinstance(identifier, str) and identifier.lower() in ("crossentropy", "ce"):
        kind = _kind_of_targets(y_true, y_pred)
        identifier = f"{kind}_crossentropy"
    loss = losses.get(identifier)
    if isinstance(loss, losses.Loss):
        return loss
    if callable(loss):
        return losses.LossFunctionWrapper(loss)
    raise TypeError(f"A loss is a name, a function or a Loss; received {type(loss).__name__}.")


def _metric_object(identifier: Any, y_true: Any, y_pred: Any) -> tuple[Any, str]:
    """The Metric and the name it is logged under."""
    if isinstance(identifier, str):
        name = identifier
        if identifier.lower() in ("accuracy", "acc"):
            kind: Any = metrics.accuracy_for(_shape(y_true), _shape(y_pred))
            return kind(), name
        if identifier.lower() in ("crossentropy", "ce"):
            identifier = f"{_kind_of_targets(y_true, y_pred)}_crossentropy"
        found = metrics.get(identifier)
        if inspect.isclass(found):
            found = found()
        return (found if isinstance(found, metrics.Metric) else _wrap(found, name)), name
    found = metrics.get(identifier) if not callable(identifier) else identifier
    if inspect.isclass(found) and issubclass(found, metrics.Metric):
        found = found()
    if isinstance(found, metrics.Metric):
        return found, found.name
    if isinstance(found, losses.Loss):
        return _wrap(found, found.name), found.name
    if not callable(found):
        raise TypeError(
            f"A metric is a name, a function or a Metric; received {type(found).__name__}."
        )
    name = getattr(found, "__name__", type(found).__name__)
    name = "lambda" if name == "<lambda>" else naming.to_snake_case(name)
    return _wrap(found, name), name


def _wrap(function: Callable[..., Any], name: str) -> Any:
    return metrics.MeanMetricWrapper(function, name=name)


def _kind_of_targets(y_true: Any, y_pred: Any) -> str:
    """binary, sparse_categorical or categorical, as 'accuracy' is resolved."""
    true, pred = _shape(y_true), _shape(y_pred)
    if pred[-1:] == (1,):
        return "binary"
    return "sparse_categorical" if len(true) < len(pred) or true[-1:] == (1,) else "categorical"


def _shape(x: Any) -> tuple[int, ...]:
    return tuple(x.shape) if hasattr(x, "shape") else np.shape(x)


def _unique(name: str, taken: set[str]) -> str:
    unique, number = name, 0
    while unique in taken:
        number += 1
        unique = f"{name}_{number}"
    taken.add(unique)
    return unique


def _masked(weight: Any, mask: Any) -> Array:
    """The mask as sample weight, times the weights given."""
    keep = np.asarray(mask, dtype=np.float32)
    if weight is None:
        return keep
    weight = np.asarray(weight)
    if weight.ndim < keep.ndim:
        weight = weight.reshape(weight.shape + (1,) * (keep.ndim - weight.ndim))
    return keep * weight


def _warn_of_single_unit(loss: Any, y_pred: Any) -> None:
    """Only losses of probabilities: elsewhere an output of 1 is a number like any other."""
    if "crossentropy" not in loss.name or _shape(y_pred)[-1:] != (1,):
        return
    if y_pred.data.size and np.all(y_pred.data == 1):
        warnings.warn(
            "The single output unit is 1 for every sample: a softmax over one unit always is, and "
            'a sigmoid of large inputs. Use activation="sigmoid" for two classes, or one unit per '
            "class, and scale the inputs.",
            stacklevel=4,
        )
