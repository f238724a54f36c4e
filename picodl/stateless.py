"""Computing with other values than those the variables have, which stay as they are."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterable, Iterator
from typing import Any

from picodl.config import thread
from picodl.module import Module, Parameter
from picodl.tensor import Tensor, as_array, record


class StatelessScope:
    """Give variables other values inside a with block; what is assigned there stays in the scope.

    Nothing inside is recorded for `backward`, and no optimizer can step; `Layer.stateless_call` can
    be differentiated. While the block runs, other threads see its values too.

    Args:
        state_mapping: pairs (variable, value).
        collect_losses: whether to keep what layers add by `add_loss` inside, in `losses`.
        initialize_variables: accepted; variables made inside are made at once.

    Raises:
        TypeError: for a pair whose first part is no variable.
        ValueError: for a value of another shape than its variable.

    >>> v = Parameter(1.0, name="v")
    >>> with StatelessScope([(v, 5.0)]) as scope:
    ...     _ = v.assign_add(2.0)
    >>> float(scope.get_current_value(v)), float(v)
    (7.0, 1.0)
    """

    def __init__(
        self,
        state_mapping: Iterable[tuple[Any, Any]] | None = None,
        collect_losses: bool = False,
        initialize_variables: bool = True,
    ) -> None:
        self.collect_losses = collect_losses
        self.initialize_variables = initialize_variables
        self.losses: list[Any] = []
        self.state_mapping: dict[int, Any] = {}  # id of a variable -> its value here
        self._variables: dict[int, Parameter] = {}
        self._own: dict[int, Any] = {}  # the arrays they had before
        self._before: tuple[Any, bool] | None = None
        for variable, value in _pairs(state_mapping):
            self.add_update((variable, value))

    def add_update(self, update: tuple[Any, Any]) -> None:
        """Set the value that a variable has in this scope: update is (variable, value)."""
        variable, value = update
        if not isinstance(variable, Parameter):
            raise TypeError(
                "StatelessScope maps variables (Variable, layer.weights) to values; received a "
                f"{type(variable).__name__} instead of a variable."
            )
        values = fitting(variable, value).copy()
        self._variables[id(variable)] = variable
        self.state_mapping[id(variable)] = values
        if self._before is not None:
            self._own.setdefault(id(variable), variable.data)
            variable.data = values

    def get_current_value(self, variable: Any) -> Any:
        """The value a variable has in this scope, also after the block; None if it has none."""
        return self.state_mapping.get(id(variable))

    def __enter__(self) -> StatelessScope:
        self._before = (thread.stateless, thread.recording)
        thread.stateless, thread.recording = self, False
        for key, variable in self._variables.items():
            self._own[key] = variable.data
            variable.data = self.state_mapping[key]
        return self

    def __exit__(self, *error: Any) -> None:
        for key, data in self._own.items():
            variable = self._variables[key]
            self.state_mapping[key], variable.data = variable.data, data
        self._own = {}
        thread.stateless, thread.recording = self._before  # type: ignore[misc]
        self._before = None


def _pairs(mapping: Any) -> Iterable[tuple[Any, Any]]:
    """The pairs of a state mapping; a dict by variable is one too."""
    return mapping.items() if isinstance(mapping, dict) else (mapping or ())


def in_stateless_scope() -> bool:
    """Whether this thread is inside a `StatelessScope`."""
    return thread.stateless is not None


def get_stateless_scope() -> StatelessScope:
    """The innermost `StatelessScope` of this thread.

    Raises:
        ValueError: outside of any.
    """
    if thread.stateless is None:
        raise ValueError("get_stateless_scope(): there is no StatelessScope around this call.")
    return thread.stateless


def fitting(variable: Any, value: Any) -> Any:
    """A value as an array of the variable's dtype.

    Raises:
        ValueError: if the shapes differ.
    """
    array = as_array(value, variable.data.dtype)
    if array.shape != variable.data.shape:
        raise ValueError(
            f"The variable {variable.path} has shape {variable.data.shape}, but was given a value "
            f"of shape {array.shape}."
        )
    return array


@contextlib.contextmanager
def substituted(module: Module, values: Iterable[tuple[Any, Any]]) -> Iterator[list[Any]]:
    """Put other parameters in the places of a module's own inside the block; yields them.

    What is computed with them can be differentiated, also later, with respect to them and to what
    the values that are Tensors were computed from.

    Args:
        module: the module; those inside it take part.
        values: pairs (parameter, value).
    """
    stand_ins = {id(variable): _stand_in(variable, value) for variable, value in values}
    changed: list[tuple[Module, str, Any]] = []
    try:
        for inside in list(module.modules()):
            for key, part in list(vars(inside).items()):
                new = _replace(part, stand_ins)
                if new is not part:
                    vars(inside)[key] = new
                    changed.append((inside, key, part))
        yield list(stand_ins.values())
    finally:
        for inside, key, part in changed:
            vars(inside)[key] = part


def _stand_in(variable: Any, value: Any) -> Any:
    """A parameter like the given one with another value, which a gradient reaches through it."""
    like = variable.__deepcopy__({})
    like.data = fitting(variable, value).copy()
    if isinstance(value, Tensor) and value.requires_grad:
        way = record(like.data, (value,), lambda g: (g,))
        like.requires_grad, like._order = way.requires_grad, way._order
        like._inputs, like._backward = way._inputs, way._backward
    return like


def _replace(part: Any, stand_ins: dict[int, Any]) -> Any:
    """A part of a module with the parameters in it replaced; itself where there are none."""
    if isinstance(part, Tensor):
        return stand_ins.get(id(part), part)
    if isinstance(part, (list, tuple, dict)):
        items = list(part.items() if isinstance(part, dict) else enumerate(part))
        new = {key: _replace(value, stand_ins) for key, value in items}
        if any(new[key] is not value for key, value in items):
            if isinstance(part, tuple):
                make = getattr(part, "_make", type(part))  # a named tuple takes them one by one
                return make(new.values())
            copied = copy.copy(part)
            for key, value in new.items():
                copied[key] = value
            return copied
    return part
