"""Products by numpy's BLAS in the sizes that it computes fastest, and its libraries.

OpenBLAS first copies the operands of a product into an order of its own. For AVX-512 it also has
kernels that do without, for up to a million multiply-adds: a large product is 1.15 to 1.5 times
faster as many small ones, which one call of numpy's matmul makes.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from picodl.typing import Array

SMALL = 10**6  # multiply-adds
_LEAST = 8  # rows and columns from which on the small kernels pay
_DEPTH = 100  # rows of a partial sum from which on the sums are worth adding up
_TALL = 512  # rows of a from which on it pays to bring a transposed b into order first
_FLOATS = (np.dtype(np.float32), np.dtype(np.float64))
_WITH_SMALL_KERNELS = {"SkylakeX", "Cooperlake", "SapphireRapids"}  # as OpenBLAS names processors


@functools.cache
def libraries() -> list[dict[str, Any]]:
    """What threadpoolctl knows of the BLAS libraries in this process."""
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:
        return []
    return [one for one in ThreadpoolController().info() if one.get("user_api") == "blas"]


@functools.cache
def has_small_kernels() -> bool:
    """Whether numpy's BLAS multiplies small matrices without copying them first."""
    found = [one for one in libraries() if one.get("internal_api") == "openblas"]
    return bool(found) and all(one.get("architecture") in _WITH_SMALL_KERNELS for one in found)


def dot(a: Array, b: Array, out: Array | None = None) -> Array:
    """a @ b for matrices.

    Args:
        a, b: of one dtype, shapes (m, k) and (k, n).
        out: where to put the result; C-contiguous.

    Raises:
        ValueError: if shapes or out do not fit.
    """
    (m, k), n = a.shape, b.shape[1]
    if m * n * k <= SMALL or not _pays(a, b):
        return np.dot(a, b, out)
    size = _rows(m, SMALL // (n * k))
    if size < _LEAST or k != len(b) or (m < _TALL and not b.flags.c_contiguous):
        return np.dot(a, b, out)
    if out is None:
        out = np.empty((m, n), a.dtype)
    elif not out.flags.c_contiguous or out.shape != (m, n) or out.dtype is not a.dtype:
        return np.dot(a, b, out)  # which raises an error
    b = np.ascontiguousarray(b)  # the kernel for a transposed one is half as fast
    whole = m - m % size
    np.matmul(a[:whole].reshape(-1, size, k), b, out=out[:whole].reshape(-1, size, n))
    if whole < m:
        np.dot(a[whole:], b, out[whole:])
    return out


def dot_over_rows(a: Array, b: Array) -> Array:
    """a.T @ b for matrices with the same number of rows, (rows, m) and (rows, n).

    Partial sums over some rows each are added up; with few rows in each that takes too long.

    Raises:
        ValueError: if the numbers of rows differ.
    """
    (rows, m), n = a.shape, b.shape[1]
    few = rows * m * n <= SMALL or _DEPTH * m * n > SMALL
    if few or rows != len(b) or not _pays(a, b):
        return a.T.dot(b)
    size = _rows(rows, SMALL // (m * n))
    whole = rows - rows % size
    left = a[:whole].reshape(-1, size, m).transpose(0, 2, 1)
    total = np.add.reduce(np.matmul(left, b[:whole].reshape(-1, size, n)), axis=0)
    if whole < rows:
        total += a[whole:].T.dot(b[whole:])
    return total


def _pays(a: Array, b: Array) -> bool:
    return (
        a.dtype is b.dtype
        and a.dtype in _FLOATS
        and a.flags.c_contiguous
        and min(a.shape[1], b.shape[1]) >= _LEAST
        and has_small_kernels()
    )


@functools.lru_cache(maxsize=1024)
def _rows(m: int, most: int) -> int:
    """In how many rows each to cut m of them: a divisor if there is a large one, at most `most`."""
    divisors = [d for d in range(min(most, m), 2 * _LEAST - 1, -1) if m % d == 0]
    return divisors[0] if divisors else min(most, m)
