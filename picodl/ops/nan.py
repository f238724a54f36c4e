"""Reductions that pass over nan, as if those elements were not there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from picodl.ops.core import Array, Numeric, normalize_axis, op
from picodl.ops.elementwise import divide
from picodl.ops.functions import sqrt
from picodl.ops.indexing import where
from picodl.ops.reduce import cumprod, cumsum, max, min, prod, sum
from picodl.ops.sorting import METHODS, _arranged, _rows, sort, take_along_axis
from picodl.tensor import Tensor, record
from picodl.typing import Axis


def _filled(x: Tensor, fill: float) -> Tensor:
    """x with a number in the place of nan; nothing flows back to there."""
    return where(np.isnan(x.data), fill, x) if x.data.dtype.kind == "f" else x


def _count(x: Tensor, axis: Axis, keepdims: bool) -> Any:
    """How many elements are no nan, in x's dtype."""
    axes = normalize_axis(axis, x.data.ndim)
    found = (~np.isnan(x.data)).sum(axes, keepdims=keepdims)
    return np.asarray(found, x.data.dtype)


def _reduction(name: str, reduce: Callable[..., Any], fill: float, word: str) -> Any:
    def function(x: Numeric, axis: Axis = None, keepdims: bool = False) -> Tensor:
        return reduce(_filled(x, fill), axis, keepdims)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"""The {word} over axes of the elements that are no nan.

    Gradient: that of the {word}; nothing to nan.
    """
    return op(function)


nansum = _reduction("nansum", sum, 0.0, "sum")
nanprod = _reduction("nanprod", prod, 1.0, "product")


def _extremum(name: str, reduce: Callable[..., Any], fill: float, word: str) -> Any:
    def function(x: Numeric, axis: Axis = None, keepdims: bool = False) -> Tensor:
        y = reduce(_filled(x, fill), axis, keepdims)
        if x.data.dtype.kind != "f":
            return y
        return where(_count(x, axis, keepdims) == 0, np.nan, y)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"""The {word} element over axes that is no nan; nan if there is none.

    Gradient: g to the {word}; equal ones share it evenly.
    """
    return op(function)


nanmax = _extremum("nanmax", max, -np.inf, "largest")
nanmin = _extremum("nanmin", min, np.inf, "smallest")


@op
def nanmean(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The mean over axes of the elements that are no nan; nan if there is none.

    Gradient: dx = g / n for the n elements that count, 0 to nan.
    """
    total = sum(_filled(x, 0.0), axis, keepdims)
    n = _count(x, axis, keepdims)
    return where(n == 0, np.nan, divide(total, np.where(n == 0, 1, n)))


@op
def nanvar(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The variance over axes of the elements that are no nan; nan if there is none.

    Gradient: dx = g * 2 (x - mean) / n for the n elements that count, 0 to nan.
    """
    centre = where(_count(x, axis, True) == 0, 0.0, nanmean(x, axis, True))
    off = where(np.isnan(x.data), 0.0, _filled(x, 0.0) - centre)
    n = _count(x, axis, keepdims)
    total = sum(off * off, axis, keepdims)
    return where(n == 0, np.nan, divide(total, np.where(n == 0, 1, n)))


@op
def nanstd(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The standard deviation over axes of the elements that are no nan; the root of `nanvar`.

    Gradient: dx = g * (x - mean) / (n y) for the n elements that count, 0 where y is 0.
    """
    square = nanvar(x, axis, keepdims)
    flat = square.data == 0
    if not flat.any():
        return sqrt(square)
    return where(flat, 0.0, sqrt(where(flat, 1.0, square)))


@op
def nancumsum(x: Numeric, axis: int | None = None, dtype: Any = None) -> Tensor:
    """The running sum that counts nan as 0; see `cumsum`."""
    return cumsum(_filled(x, 0.0), axis, dtype)


@op
def nancumprod(x: Numeric, axis: int | None = None, dtype: Any = None) -> Tensor:
    """The running product that counts nan as 1; see `cumprod`."""
    return cumprod(_filled(x, 1.0), axis, dtype)


@op
def nanargmax(x: Numeric, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Where the largest element that is no nan stands; -1 if there is none. Not differentiable."""
    return _position(x, axis, keepdims, np.argmax, -np.inf)


@op
def nanargmin(x: Numeric, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Where the smallest element that is no nan stands; -1 if there is none. Not differentiable."""
    return _position(x, axis, keepdims, np.argmin, np.inf)


def _position(
    x: Tensor, axis: int | None, keepdims: bool, find: Callable[..., Any], fill: float
) -> Tensor:
    a = x.data
    if a.dtype.kind != "f":
        return record(find(a, axis, keepdims=keepdims).astype(np.int32))
    missing = np.isnan(a)
    filled = np.where(missing, fill, a)
    if axis is None:
        a, missing, filled = (part.reshape(-1) for part in (a, missing, filled))
    place = find(filled, axis or 0, keepdims=True)
    wrong = np.take_along_axis(missing, place, axis or 0)  # the others are infinite as well
    if wrong.any():
        real = np.argmax((filled == fill) & ~missing, axis or 0, keepdims=True)
        place = np.where(wrong, real, place)
    place = np.where(missing.all(axis or 0, keepdims=True), -1, place).astype(np.int32)
    if axis is not None:
        return record(place if keepdims else place.squeeze(axis))
    return record(place.reshape((1,) * x.data.ndim if keepdims else ()))


@op
def nanquantile(
    x: Tensor, q: Array, axis: Axis = None, method: str = "linear", keepdims: bool = False
) -> Tensor:
    """`quantile` of the elements that are no nan; nan if there is none.

    Gradient: g to the one or two elements the value lies between, in proportion.
    """
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}; received {method!r}.")
    rows, _ = _rows(x, axis)
    fractions = np.asarray(q, np.float64)
    if fractions.size and not 0 <= fractions.min() <= fractions.max() <= 1:
        raise ValueError(f"nanquantile: q must be fractions from 0 to 1; received {q}.")
    n = (~np.isnan(rows.data)).sum(-1)[..., None]
    place = fractions.reshape(-1) * np.maximum(n - 1, 0)  # nan is sorted behind the rest
    low, high = np.floor(place).astype(np.int64), np.ceil(place).astype(np.int64)
    if method == "lower":
        high = low
    elif method == "higher":
        low = high
    elif method == "nearest":
        low = high = np.rint(place).astype(np.int64)
    part = np.where(low == high, 0.0, place - low if method == "linear" else 0.5)
    part = part.astype(x.data.dtype)
    ordered = _filled(sort(rows), 0.0)
    below, above = take_along_axis(ordered, low, -1), take_along_axis(ordered, high, -1)
    y = where(part == 0, below, below * (1 - part) + above * part)
    y = where(np.broadcast_to(n == 0, y.shape), np.nan, y)
    y = y.reshape((*y.shape[:-1], *fractions.shape))
    return _arranged(y, x, axis, fractions.ndim, keepdims)


@op
def nanpercentile(
    x: Tensor, q: Array, axis: Axis = None, method: str = "linear", keepdims: bool = False
) -> Tensor:
    """`nanquantile` with q from 0 to 100."""
    return nanquantile(x, np.asarray(q) / 100, axis, method, keepdims)


@op
def nanmedian(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The median of the elements that are no nan; see `nanquantile`."""
    return nanquantile(x, 0.5, axis, "linear", keepdims)
