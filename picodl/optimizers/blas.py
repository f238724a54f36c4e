"""y = a * x + b * y in one pass, where numpy takes three.

The BLAS library that numpy comes with has it (axpby), but numpy does not pass it on. It is called
for large blocks only: there it halves the cost of such a sum. Without it numpy computes the same.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from picodl.blas import libraries
from picodl.typing import Array

SMALL = 1 << 15  # elements; up to here the two ways cost about the same
_TYPES = {"f": ("s", ctypes.c_float), "d": ("d", ctypes.c_double)}
_LAYOUTS = (  # of names and of integers, as OpenBLAS and MKL are built
    ("scipy_cblas_{}axpby64_", ctypes.c_int64),
    ("cblas_{}axpby64_", ctypes.c_int64),
    ("cblas_{}axpby_64", ctypes.c_int64),
    ("scipy_cblas_{}axpby", ctypes.c_int),
    ("cblas_{}axpby", ctypes.c_int),
)
_Buffer = ctypes.c_char * 0
_functions: dict[str, Any] = {}


def add_scaled(y: Array, b: Any, x: Array, a: Any, scratch: Array) -> None:
    """Set y to b * y + a * x.

    Args:
        y, x, scratch: arrays of one shape; y is contiguous, scratch may be x, and x is not y (BLAS
            would take four times as long).
        b, a: numbers; None for a b of 1.
    """
    n = y.size
    if n > SMALL and x.dtype is y.dtype and x.flags.c_contiguous:
        kind = y.dtype.char
        function = _functions[kind] if kind in _functions else _load(kind)
        if function is not None:
            function(n, a, _address(x), 1, 1.0 if b is None else b, _address(y), 1)
            return
    np.multiply(x, a, out=scratch)
    if b is not None:
        y *= b
    y += scratch


def _address(x: Array) -> Any:
    """Where an array's elements are, as ctypes takes it."""
    try:
        return _Buffer.from_buffer(x)  # type: ignore[arg-type]
    except TypeError:  # read-only
        return x.__array_interface__["data"][0]


def _load(kind: str) -> Callable[..., None] | None:
    """The function for a dtype from a BLAS in this process, tried out on a few numbers; or None."""
    _functions[kind] = None
    if kind not in _TYPES:
        return None
    letter, number = _TYPES[kind]
    for library in libraries():
        if library.get("internal_api") not in ("openblas", "mkl"):
            continue
        try:
            functions = ctypes.CDLL(library["filepath"])
        except OSError:
            continue
        for name, integer in _LAYOUTS:
            function = getattr(functions, name.format(letter), None)
            if function is not None:
                pointer = ctypes.c_void_p
                function.restype = None
                function.argtypes = [integer, number, pointer, integer, number, pointer, integer]
                if _is_right(function, kind):
                    _functions[kind] = function
                    return function
    return None


def _is_right(function: Any, kind: str) -> bool:
    x, y = np.arange(40, dtype=kind), np.ones(40, kind)
    function(40, 0.5, x.ctypes.data, 1, 2.0, y.ctypes.data, 1)
    return np.array_equal(y, 0.5 * np.arange(40) + 2)
