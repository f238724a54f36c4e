"""The whole state of a training as plain numbers and arrays: what a resumed run must have."""

from __future__ import annotations

import random as python_random
from typing import Any

import numpy as np

from picodl import random, tree
from picodl.saving.own_state import kept_by, saves_its_own, undone_by_errors
from picodl.typing import Array

_TOTALS = ("_total", "_samples", "_output_totals", "_saw_nan", "stop_training")


def get_training_state(model: Any) -> dict[str, Any]:
    """Weights, layer states, optimizer, running metrics and random generators of a model.

    Returns:
        A dict of numbers, strings, None, arrays, and lists and dicts of these.
    """
    optimizer = model.optimizer
    if optimizer is not None and model.built:
        optimizer.build(model.trainable_weights)
    return {
        "weights": {path: p.data.copy() for path, p in model.named_parameters()},
        "own": [[path, list(kept_by(layer).items())] for path, layer in _keepers(model).items()],
        "optimizer": None if optimizer is None else [v.data.copy() for v in optimizer.variables],
        "generators": {
            "model": [_generator_state(g) for g in _generators(model)],
            "picodl": random.get_state(),
            "python": python_random.getstate(),
            "numpy": np.random.get_state(legacy=False),
        },
        "totals": {name: getattr(model, name) for name in _TOTALS},
        "metrics": _metrics_state(model),
    }


def set_training_state(model: Any, state: dict[str, Any]) -> None:
    """Take up what `get_training_state` gave; nothing is changed if it does not fit the model.

    Raises:
        ValueError: for the state of another model or optimizer.
    """
    parameters = dict(model.named_parameters())
    weights = state["weights"]
    _same_arrays("weights", {path: p.data for path, p in parameters.items()}, weights)
    optimizer = model.optimizer
    slots: list[Array] = []
    if optimizer is not None and state["optimizer"] is not None:
        optimizer.build(model.trainable_weights)
        slots = state["optimizer"]
        own = {f"variable {i}": v.data for i, v in enumerate(optimizer.variables)}
        _same_arrays("optimizer", own, {f"variable {i}": a for i, a in enumerate(slots)})
    keepers = _keepers(model)
    with undone_by_errors(keepers.values()):
        for path, arrays in state.get("own", []):
            keepers[path].load_own_variables(dict(arrays))
    for path, parameter in parameters.items():
        parameter.data[...] = weights[path]
    if slots:
        optimizer.set_weights(slots)
    generators = state["generators"]
    for generator, words in zip(_generators(model), generators["model"], strict=True):
        if isinstance(generator, np.random.Generator):
            generator.bit_generator.state = words
        else:
            generator.set_state(words)
    random.set_state(generators["picodl"])
    version, words, gauss = generators["python"]
    python_random.setstate((version, tuple(words), gauss))
    np.random.set_state(generators["numpy"])
    for name, value in state["totals"].items():
        setattr(model, name, value)
    _set_metrics_state(model, state["metrics"])


def _keepers(model: Any) -> dict[str, Any]:
    """The layers that keep more in files than their weights, by path."""
    return {path: layer for path, layer in model.named_modules() if saves_its_own(layer)}


def _generators(model: Any) -> list[Any]:
    """The seed generators, and generators of numpy, in attributes of the model and its layers."""
    found: dict[int, Any] = {}
    for module in model.modules():
        for part in vars(module).values():
            for leaf in tree.flatten(part) if tree.is_nested(part) else (part,):
                if isinstance(leaf, (random.SeedGenerator, np.random.Generator)):
                    found[id(leaf)] = leaf
    return list(found.values())


def _generator_state(generator: Any) -> Any:
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.get_state()


def _metrics_state(model: Any) -> dict[str, Any]:
    compiled = model._compiled_metrics
    return {
        "shapes": None if compiled is None else compiled.shapes,
        "values": [metric.get_state() for metric in model.metrics],
    }


def _set_metrics_state(model: Any, state: dict[str, Any]) -> None:
    compiled, shapes = model._compiled_metrics, state["shapes"]
    if compiled is not None and not compiled.built and shapes is not None:
        targets, outputs = (tree.map_structure(_like, part) for part in shapes)
        compiled.build(targets, outputs, model.output_names)
    for metric, values in zip(model.metrics, state["values"], strict=True):
        metric.set_state(values)


class Resumed:
    """A training that goes on from a saved state.

    Args:
        state: dict with "position" (epoch, batch), "model" (see `get_training_state`), "callbacks"
            ([class name, state] of each), "event" (the hook during which it was saved: name,
            number, logs; None for the begin) and "waiting" (which callbacks had not had that hook).

    Raises:
        ValueError: if the model is not built yet, or not the one of the state.
    """

    def __init__(self, model: Any, state: dict[str, Any]) -> None:
        if not model.built:
            raise ValueError(
                f'Model "{model.name}" must be built before its training can be resumed: begin it '
                "with an Input, or call model.build(input_shape)."
            )
        self.model = model
        self.state = state
        self.epoch, self.batch = state["position"]

    def restore(self, listeners: Any, repeat: bool = True) -> None:
        """Put everything back; with repeat, also run the hook that callbacks were waiting for."""
        set_training_state(self.model, self.state["model"])
        found = listeners.restore(self.state["callbacks"])
        if not repeat or self.state["event"] is None:
            return
        hook, number, logs = self.state["event"]
        for place in self.state["waiting"]:
            callback = found[place]
            if callback is not None and callback.repeats:
                getattr(callback, hook)(number, logs)


def shape_text(x: Any) -> str | None:
    """The shape of an array as text, which a file can hold as a leaf."""
    return None if x is None else ",".join(map(str, np.shape(x)))


def _like(text: str | None) -> Array | None:
    """An array without memory of the shape in a text."""
    if text is None:
        return None
    shape = tuple(int(n) for n in text.split(",") if n)
    return np.broadcast_to(np.zeros((), np.float32), shape)


def _same_arrays(what: str, own: dict[str, Array], saved: dict[str, Array]) -> None:
    shapes = {name: a.shape for name, a in own.items()}
    others = {name: a.shape for name, a in saved.items()}
    if shapes != others:
        wrong = next(
            (name for name in [*shapes, *others] if shapes.get(name) != others.get(name)), ""
        )
        raise ValueError(
            f"The saved state is of another {what}: {wrong} has the shape {shapes.get(wrong)} here "
            f"and {others.get(wrong)} there. Resume with the same model and optimizer, or delete "
            "the backup to begin anew."
        )
