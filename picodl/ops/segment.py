"""Sums, extrema and products over groups of rows that have the same id."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from picodl.ops.core import Array, Numeric, op
from picodl.ops.indexing import spread, take
from picodl.ops.reduce import max, min, prod
from picodl.tensor import Tensor, record


def _segments(
    data: Tensor, segment_ids: Any, num_segments: int | None, name: str
) -> tuple[Any, Any, int]:
    """The rows that count, their ids and the number of groups."""
    ids = np.asarray(segment_ids)
    if ids.ndim != 1 or ids.dtype.kind not in "iu" or data.data.shape[:1] != ids.shape:
        raise ValueError(
            f"{name} needs a vector of integer ids, one per row of data of shape "
            f"{data.data.shape}; received {ids.dtype} ids of shape {ids.shape}."
        )
    top = int(ids.max()) + 1 if ids.size else 0
    if num_segments is None:
        num_segments = top
    elif top > num_segments:
        raise ValueError(
            f"{name}: ids go up to {top - 1}, but num_segments={num_segments} allows ids from 0 to "
            f"{num_segments - 1}."
        )
    rows = np.flatnonzero(ids >= 0)
    return rows, ids[rows], int(num_segments)


@op
def segment_sum(
    data: Numeric, segment_ids: Array, num_segments: int | None = None, sorted: bool = False
) -> Tensor:
    """The sum of the rows with each id.

    Args:
        data: rows along the first axis.
        segment_ids: an integer per row; rows with negative ids are left out.
        num_segments: Defaults to the largest id plus 1.
        sorted: accepted; it makes no difference here.

    Shapes: (n, ...) -> (num_segments, ...).

    Gradient: of each row g of its group.
    """
    rows, ids, n = _segments(data, segment_ids, num_segments, "segment_sum")
    shape = (n, *data.data.shape[1:])
    all_rows = len(rows) == len(data.data)

    def backward(g: Any) -> Any:
        parts = g[ids]
        return (parts if all_rows else spread(parts, rows, data.data.shape),)

    picked = data.data if all_rows else data.data[rows]
    return record(spread(picked, ids, shape), (data,), backward)


def _padded(name: str, reduce: Callable[..., Any], fill: Any, word: str, flow: str) -> Any:
    """A reduction over groups laid side by side, the short ones filled up."""

    def function(
        data: Numeric, segment_ids: Array, num_segments: int | None = None, sorted: bool = False
    ) -> Tensor:
        rows, ids, n = _segments(data, segment_ids, num_segments, name)
        order = np.argsort(ids, kind="stable")
        counts = np.bincount(ids, minlength=n)
        starts = np.cumsum(counts) - counts
        place = np.arange(len(ids)) - np.repeat(starts, counts)
        table = np.full((n, int(counts.max(initial=0)) + 1), len(data.data))
        table[ids[order], place] = rows[order]
        dtype = data.data.dtype
        empty = np.full((1, *data.data.shape[1:]), fill(dtype), dtype)
        return reduce(take(np.concatenate([data, empty]), table, 0), 1)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"""The {word} of the rows with each id; {fill.__doc__} for an id without.

    Args: as `segment_sum`.

    Gradient: {flow}.
    """
    return op(function)


def _lowest(dtype: Any) -> Any:
    """the lowest value there is"""
    return -np.inf if dtype.kind == "f" else np.iinfo(dtype).min


def _highest(dtype: Any) -> Any:
    """the highest value there is"""
    return np.inf if dtype.kind == "f" else np.iinfo(dtype).max


def _one(dtype: Any) -> Any:
    """1"""
    return 1


_SHARE = "g to the row that has it; equal ones share it evenly"
segment_max = _padded("segment_max", max, _lowest, "maximum", _SHARE)
segment_min = _padded("segment_min", min, _highest, "minimum", _SHARE)
segment_prod = _padded(
    "segment_prod", prod, _one, "product", "of each row, g times the product of its group's others"
)
