"""Checks of constructor arguments and input shapes, with messages that name the layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from picodl.naming import suggest


def positive_integer(layer: Any, argument: str, value: Any, least: int = 1) -> int:
    """The value as int.

    Raises:
        ValueError: naming the layer and the argument, unless it is an integer of at least `least`.
    """
    if isinstance(value, bool) or int_of(value) is None or int(value) < least:
        raise ValueError(
            f'{type(layer).__name__} layer "{layer.name}": {argument} must be an integer of at '
            f"least {least}; received {value!r}."
        )
    return int(value)


def int_of(value: Any) -> int | None:
    """The value as int if it is a Python or numpy integer, else None."""
    try:
        return int(value.__index__())
    except AttributeError:
        return None


def known_axis(layer: Any, input_shape: Any, axis: int = -1) -> int:
    """The size of an axis of the input.

    Raises:
        ValueError: naming the layer, if the input has no such axis or its size is not known.
    """
    if not isinstance(input_shape, tuple) or len(input_shape) < 2:
        raise ValueError(
            f'{type(layer).__name__} layer "{layer.name}" expects one input of rank 2 or more, but '
            f"received shape {input_shape}. Give the data a batch axis: shape (batch, features)."
        )
    size = input_shape[axis]
    if size is None:
        raise ValueError(
            f'{type(layer).__name__} layer "{layer.name}" needs to know axis {axis} of its input, '
            f"but received shape {input_shape}. Give the size in Input(shape)."
        )
    return size


def fraction(layer: Any, argument: str, value: Any, top: float = 1.0) -> float:
    """The value as float.

    Raises:
        ValueError: naming the layer and the argument, unless it is a number from 0 to `top`.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= top:
        raise ValueError(
            f'{type(layer).__name__} layer "{layer.name}": {argument} must be a number from 0 to '
            f"{top:g}; received {value!r}."
        )
    return float(value)


def choice(layer: Any, argument: str, value: Any, allowed: Sequence[str]) -> str:
    """The value itself.

    Raises:
        ValueError: naming the layer and the argument, unless it is one of those allowed.
    """
    if value not in allowed:
        raise ValueError(
            f'{type(layer).__name__} layer "{layer.name}": {argument} must be one of '
            f"{', '.join(map(repr, allowed))}; received {value!r}.{suggest(value, allowed)}"
        )
    return value


def sizes(layer: Any, argument: str, value: Any, rank: int, least: int = 1) -> tuple[int, ...]:
    """The value as one int per spatial axis.

    Raises:
        ValueError: naming the layer and the argument, unless it is an integer or `rank` of them, of
            at least `least`.
    """
    parts = (value,) * rank if int_of(value) is not None else value
    if (
        not isinstance(parts, (tuple, list))
        or len(parts) != rank
        or any(isinstance(n, bool) or int_of(n) is None or int(n) < least for n in parts)
    ):
        many = "" if rank == 1 else f" or {rank} of them"
        raise ValueError(
            f'{type(layer).__name__} layer "{layer.name}": {argument} must be an integer of at '
            f"least {least}{many}; received {value!r}."
        )
    return tuple(int(n) for n in parts)


def lower(value: Any) -> Any:
    """A string in lower case, anything else as it is: names such as "SAME" are accepted."""
    return value.lower() if isinstance(value, str) else value
