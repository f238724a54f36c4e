"""The states of a recurrent cell: their sizes, as a flat list and nested as the cell takes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from picodl import tree
from picodl.module import Parameter
from picodl.tensor import Tensor


def as_list(states: Any) -> list[Any]:
    """The states of a cell, or their sizes, as a list: one state alone may stand without it."""
    return list(states) if isinstance(states, (list, tuple)) else [states]


def alone_or_list(given: Any, states: list[Any]) -> Any:
    """The list of states, or the only state without it, as was given."""
    return states if isinstance(given, (list, tuple)) or len(states) != 1 else states[0]


def packed(like: list[Any], flat: list[Any]) -> list[Any]:
    """A flat list of states in the structure of others."""
    states: list[Any] = tree.pack_sequence_as(like, flat)
    return states


def first_states(cell: Any, batch_size: int, dtype: Any) -> list[Any]:
    """What the cell gives to start from; else zeros, in the structure of its state_size."""
    if hasattr(cell, "get_initial_state"):
        return as_list(cell.get_initial_state(batch_size=batch_size))
    return map_state_shapes(lambda shape: Tensor(np.zeros((batch_size, *shape), dtype)), cell)


def map_state_shapes(make: Callable[[tuple[int, ...]], Any], cell: Any) -> list[Any]:
    """make(shape) for each state of the cell, in the structure of its state_size.

    As in Keras, a list or tuple holds a size for each state. Below that a tuple of numbers is the
    shape of one state; lists, dicts and other tuples hold further states.
    """

    def made(size: Any) -> Any:
        if isinstance(size, (int, np.integer)):
            return make((int(size),))
        if isinstance(size, (list, dict)):
            return None  # go on inside
        try:
            shape = tuple(size)  # or what can be made one, such as the shape of another library
        except TypeError:
            shape = (None,)
        if all(isinstance(n, (int, np.integer)) for n in shape):
            return make(tuple(int(n) for n in shape))
        if isinstance(size, tuple):
            return None
        raise _wrong_sizes(cell)

    if isinstance(cell.state_size, dict):
        raise _wrong_sizes(cell)
    return [tree.traverse(made, size) for size in as_list(cell.state_size)]


def _wrong_sizes(cell: Any) -> ValueError:
    return ValueError(
        f"The state_size of the cell {type(cell).__name__} must be an integer, or a list with an "
        f"integer, a shape or another list for each state; received {cell.state_size!r}."
    )


def state_shapes(cell: Any) -> list[tuple[int, ...]]:
    """The shape of each state of the cell, without the batch axis, as a flat list."""
    shapes: list[tuple[int, ...]] = []

    def keep(shape: tuple[int, ...]) -> tuple[int, ...]:
        shapes.append(shape)
        return shape

    map_state_shapes(keep, cell)
    return shapes


def output_shape(cell: Any) -> tuple[int, ...]:
    """The cell's output_size, or else the shape of its first state."""
    size = getattr(cell, "output_size", None)
    if size is None:
        return state_shapes(cell)[0]
    return (int(size),) if isinstance(size, (int, np.integer)) else tuple(size)


class KeptStates:
    """The states of a stateful layer, where the walk over weights does not look."""

    def __init__(self) -> None:
        self.values: list[Parameter] | None = None

    def assign(self, arrays: list[Any]) -> None:
        """Set the states; made at first use."""
        if self.values is None:
            self.values = [
                Parameter(a, dtype=a.dtype, trainable=False, name="state") for a in arrays
            ]
            return
        for state, array in zip(self.values, arrays, strict=True):
            state.assign(array)
