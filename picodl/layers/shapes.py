"""Shapes as layers receive them: tuples of sizes, alone or in lists and dicts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from picodl.typing import Shape


def as_shape(shape: Any) -> Any:
    """Lists of sizes as tuples, also inside lists and dicts of shapes; numpy integers as int."""
    if isinstance(shape, dict):
        return {key: as_shape(s) for key, s in shape.items()}
    if isinstance(shape, (int, np.integer)):
        return (int(shape),)
    if isinstance(shape, (list, tuple)):
        if all(n is None or isinstance(n, (int, np.integer)) for n in shape):
            return tuple(n if n is None else int(n) for n in shape)
        return [as_shape(s) for s in shape]
    return shape


def map_shapes(function: Callable[[Shape], Any], shapes: Any) -> Any:
    """function(shape) for every shape in a structure of shapes."""
    if isinstance(shapes, dict):
        return {key: map_shapes(function, s) for key, s in shapes.items()}
    if isinstance(shapes, (list, tuple)):
        if all(n is None or isinstance(n, (int, np.integer)) for n in shapes) and (
            len(shapes) > 0 or isinstance(shapes, tuple)
        ):
            return function(tuple(shapes))
        return type(shapes)(map_shapes(function, s) for s in shapes)
    return shapes


def is_regular(x: Any) -> bool:
    """Whether nested lists of numbers make one array."""
    first = x
    while isinstance(first, (list, tuple)) and first:
        first = first[0]
    if not isinstance(first, (int, float, np.generic)):
        return False  # Tensors in lists keep what was recorded
    try:
        return np.asarray(x).dtype.kind in "fiub"
    except ValueError:
        return False
