"""The variables of a model as nested dicts by their paths, to be looked at, kept or moved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from picodl.naming import suggest
from picodl.tensor import Tensor

_FORMATS: dict[str, Callable[[Any], Any]] = {
    "backend_tensor": lambda v: Tensor(v.data.copy()),
    "numpy_array": lambda v: v.data.copy(),
}


def get_state_tree(model: Any, value_format: str = "backend_tensor") -> dict[str, Any]:
    """{kind: nested dicts along the paths of the variables}, with copies of their values.

    The kinds are trainable_variables, non_trainable_variables and optimizer_variables; metrics keep
    plain numbers, so metrics_variables is empty.

    Args:
        model: any model.
        value_format: "backend_tensor" or "numpy_array".

    Raises:
        ValueError: for another format, or if two variables have one path.
    """
    if value_format not in _FORMATS:
        raise ValueError(
            f"value_format must be 'backend_tensor' or 'numpy_array'; received {value_format!r}."
        )
    tree: dict[str, Any] = {}
    for kind, variables in _kinds(model).items():
        nested: dict[str, Any] = {}
        tree[kind] = nested
        for path, variable in _by_path(variables).items():
            *folders, name = path.split("/")
            place = nested
            for folder in folders:
                place = place.setdefault(folder, {})
            place[name] = _FORMATS[value_format](variable)
    return tree


def set_state_tree(model: Any, state_tree: dict[str, Any]) -> None:
    """Set the variables that a tree names, all of them or none.

    Args:
        model: any model.
        state_tree: as `get_state_tree` gives it; kinds and variables may be left out.

    Raises:
        ValueError: for a kind, a path or a shape that the model does not have.
    """
    kinds = _kinds(model)
    found: list[tuple[Any, Any]] = []
    for kind, nested in state_tree.items():
        if kind not in kinds:
            raise ValueError(
                f"set_state_tree: unknown kind {kind!r}.{suggest(kind, list(kinds))} Known are "
                f"{', '.join(kinds)}."
            )
        own = _by_path(kinds[kind])
        for path, value in _flat(nested):
            if path not in own:
                raise ValueError(
                    f'set_state_tree: model "{model.name}" has no variable {path!r} among its '
                    f"{kind}.{suggest(path, list(own))}"
                )
            new = value.data if isinstance(value, Tensor) else np.asarray(value)
            if new.shape != own[path].data.shape:
                raise ValueError(
                    f"set_state_tree: the variable {path!r} has shape {own[path].data.shape}, but "
                    f"received shape {new.shape}."
                )
            found.append((own[path], new))
    for variable, new in found:
        variable.assign(new)


def _kinds(model: Any) -> dict[str, list[Any]]:
    optimizer = model.optimizer
    return {
        "trainable_variables": model.trainable_variables,
        "non_trainable_variables": model.non_trainable_variables,
        "optimizer_variables": [] if optimizer is None else list(optimizer.variables),
        "metrics_variables": [],
    }


def _by_path(variables: list[Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for variable in variables:
        path = getattr(variable, "path", "") or f"variable_{len(found)}"
        if path in found:
            raise ValueError(
                f"Two variables have the path {path!r}. Give the layers they belong to different "
                "names."
            )
        found[path] = variable
    return found


def _flat(nested: dict[str, Any], before: str = "") -> Any:
    for name, value in nested.items():
        path = f"{before}/{name}" if before else name
        if isinstance(value, dict):
            yield from _flat(value, path)
        else:
            yield path, value
