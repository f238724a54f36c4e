"""Diagonals and triangles of matrices."""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np

from picodl.ops.core import Numeric, normalize_axis, op
from picodl.ops.shape import reshape
from picodl.tensor import Tensor, record

_ALL = builtins.slice(None)


@op
def diagonal(x: Numeric, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    """The elements on a diagonal of two axes, as the last axis of the result.

    Gradient: dx = zeros with g on the diagonal.
    """
    shape = x.data.shape
    (a, b) = normalize_axis((axis1, axis2), len(shape))
    n = builtins.min(shape[a] + builtins.min(offset, 0), shape[b] - builtins.max(offset, 0))
    steps = np.arange(builtins.max(n, 0))
    others = tuple(i for i in range(len(shape)) if i not in (a, b))
    key = (_ALL,) * len(others) + (
        steps - builtins.min(offset, 0),
        steps + builtins.max(offset, 0),
    )
    return x.transpose((*others, a, b))[key]


@op
def diag(x: Numeric, k: int = 0) -> Tensor:
    """The k-th diagonal of a matrix, or the matrix with a vector on its k-th diagonal.

    Gradient: dx = g on the diagonal.
    """
    if x.data.ndim == 2:
        return diagonal(x, k)
    if x.data.ndim != 1:
        raise ValueError(f"diag takes a vector or a matrix; received shape {x.data.shape}.")
    n = len(x.data)
    size = n + builtins.abs(k)
    rows, columns = np.arange(n) - builtins.min(k, 0), np.arange(n) + builtins.max(k, 0)

    def backward(g: Any) -> Any:
        return (g[rows, columns],)

    return record(np.diag(x.data, k).reshape(size, size), (x,), backward)


def diagflat(x: Any, k: int = 0) -> Any:
    """The matrix with the flattened x on its k-th diagonal; see `diag`."""
    return diag(reshape(x, -1), k)


def _triangle(name: str, forward: Any, where: str) -> Any:
    def function(x: Numeric, k: int = 0) -> Tensor:
        def backward(g: Any) -> Any:
            return (forward(g, k),)

        backward.__qualname__ = name
        return record(forward(x.data, k), (x,), backward)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"""x with zeros {where} the k-th diagonal of the last two axes.

    Gradient: dx = g with the same zeros.
    """
    return op(function)


tril = _triangle("tril", np.tril, "above")
triu = _triangle("triu", np.triu, "below")


@op
def trace(x: Numeric, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    """The sum of a diagonal of two axes.

    Gradient: dx = zeros with g on the diagonal.
    """
    return diagonal(x, offset, axis1, axis2).sum(-1)
