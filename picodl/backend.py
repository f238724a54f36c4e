"""Small helpers about dtypes, names and sessions, under the names of keras.backend."""

from __future__ import annotations

from typing import Any

import numpy as np

from picodl.config import (
    backend,
    device,
    epsilon,
    floatx,
    image_data_format,
    set_epsilon,
    set_floatx,
    set_image_data_format,
)
from picodl.helpers import clear_session, is_keras_tensor, standardize_dtype
from picodl.naming import get_uid
from picodl.stateless import StatelessScope, get_stateless_scope, in_stateless_scope

__all__ = [
    "StatelessScope",
    "backend",
    "clear_session",
    "device",
    "epsilon",
    "floatx",
    "get_stateless_scope",
    "get_uid",
    "image_data_format",
    "in_stateless_scope",
    "is_float_dtype",
    "is_int_dtype",
    "is_keras_tensor",
    "result_type",
    "set_epsilon",
    "set_floatx",
    "set_image_data_format",
    "standardize_dtype",
]


def is_float_dtype(dtype: Any) -> bool:
    """Whether a dtype is one of floating-point numbers."""
    return np.dtype(standardize_dtype(dtype)).kind == "f"


def is_int_dtype(dtype: Any) -> bool:
    """Whether a dtype is one of integers."""
    return np.dtype(standardize_dtype(dtype)).kind in "iu"


def result_type(*dtypes: Any) -> str:
    """The dtype that numbers of several dtypes have together.

    Python's int and float take the dtype of the others, and integers beside floats the floats';
    int beside bools alone is int32.

    >>> result_type("float32", int), result_type("int32", float), result_type("int64", "float16")
    ('float32', 'float32', 'float16')
    """
    numbers = [d for d in dtypes if d is int or d is float]  # == holds for int64 and float64 too
    kinds = [np.dtype(standardize_dtype(d)) for d in dtypes if d is not int and d is not float]
    floats = [d for d in kinds if d.kind == "f"]
    if floats:
        return np.result_type(*floats).name
    if float in numbers or not dtypes:
        return floatx()
    if numbers and all(d.kind == "b" for d in kinds):
        return "int32"
    whole = np.result_type(*kinds)
    return whole.name if whole.kind != "f" else floatx()  # uint64 and int64
