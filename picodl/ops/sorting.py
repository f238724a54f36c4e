"""Order: sorting, ranks, quantiles, searching, counting."""

from __future__ import annotations

import builtins
import math
from typing import Any

import numpy as np

from picodl.ops.core import Array, Numeric, normalize_axis, op
from picodl.ops.indexing import take, take_along_axis
from picodl.ops.reduce import kept_shape
from picodl.ops.shape import moveaxis
from picodl.tensor import Tensor, record
from picodl.typing import Axis

# -------------------------------------------------------------------- sorting


@op
def sort(x: Numeric, axis: int | None = -1) -> Tensor:
    """The elements in ascending order along an axis; of the flattened x for None.

    Gradient: dx = g, put back where the elements came from.
    """
    if axis is None:
        return sort(x.reshape(-1))
    return take_along_axis(x, np.argsort(x.data, axis, kind="stable"), axis)


@op
def argsort(x: Numeric, axis: int | None = -1) -> Tensor:
    """The indices that sort along an axis, equal ones in order; int32. Not differentiable."""
    return record(np.argsort(x.data, axis, kind="stable").astype(np.int32))


@op
def argpartition(x: Numeric, kth: int, axis: int | None = -1) -> Tensor:
    """Indices that put the kth smallest in its place, the smaller before. Not differentiable."""
    return record(np.argpartition(x.data, kth, axis).astype(np.int32))


@op
def top_k(x: Numeric, k: int, sorted: bool = True, is_stable: bool = True) -> tuple[Tensor, Tensor]:
    """The k largest elements of the last axis, from the largest down, and where they stand (int32).

    Args:
        x: the array.
        k: how many.
        sorted: accepted; they always are.
        is_stable: accepted; of equal elements the first comes first.

    Gradient: dx = g of the values, put back where they came from.
    """
    n = x.data.shape[-1] if x.data.ndim else 0
    if not 0 <= k <= n:
        raise ValueError(f"top_k cannot take k={k} of the last axis of shape {x.data.shape}.")
    # argsort of the reversed axis, read backwards, keeps equal elements in order
    order = n - 1 - np.argsort(x.data[..., ::-1], -1, kind="stable")[..., ::-1][..., :k]
    return take_along_axis(x, order, -1), record(order.astype(np.int32))


@op
def in_top_k(targets: Array, predictions: Tensor, k: int) -> Tensor:
    """Whether the class of each target is among the k with the highest predictions.

    A class counts if fewer than k are strictly higher; nan and infinite predictions of the target
    never do. Not differentiable.

    Shapes: targets (batch,), predictions (batch, classes) -> (batch,).
    """
    p, ids = predictions.data, np.asarray(targets).astype(np.int64)
    if p.ndim != 2 or ids.shape != p.shape[:1]:
        raise ValueError(
            f"in_top_k expects targets (batch,) and predictions (batch, classes); received "
            f"{ids.shape} and {p.shape}."
        )
    if ids.size and not 0 <= ids.min() <= ids.max() < p.shape[1]:
        raise ValueError(
            f"in_top_k: targets must be class numbers from 0 to {p.shape[1] - 1}; they go from "
            f"{ids.min()} to {ids.max()}."
        )
    own = np.take_along_axis(p, ids[:, None], 1)
    return record(((p > own).sum(1) < k) & np.isfinite(own[:, 0]))


# -------------------------------------------------------------------- order statistics

METHODS = ("linear", "lower", "higher", "midpoint", "nearest")


@op
def quantile(
    x: Tensor, q: Array, axis: Axis = None, method: str = "linear", keepdims: bool = False
) -> Tensor:
    """The value below which a fraction q of the elements lies; nan if any is nan.

    Args:
        x: the array.
        q: a fraction from 0 to 1, or several.
        axis: Defaults to None, all.
        method: what to take between two elements: "linear", "lower", "higher", "midpoint" or
            "nearest".
        keepdims: whether reduced axes stay with size 1.

    Shapes: the shape of q, then that of the reduction.

    Gradient: g to the one or two elements the value lies between, in proportion.
    """
    rows, n = _rows(x, axis)
    fractions = np.asarray(q, np.float64)
    if fractions.size and not 0 <= fractions.min() <= fractions.max() <= 1:
        raise ValueError(f"quantile: q must be fractions from 0 to 1; received {q}.")
    if n == 0:
        raise ValueError(f"quantile over axis {axis} of an array of shape {x.data.shape} is empty.")
    y = _interpolate(sort(rows), fractions * (n - 1), method)
    bad = np.isnan(rows.data).any(-1)
    if bad.any():
        y = np.where(bad.reshape(bad.shape + (1,) * fractions.ndim), np.nan, y)
    return _arranged(y, x, axis, fractions.ndim, keepdims)


def _rows(x: Tensor, axis: Axis) -> tuple[Tensor, int]:
    """The reduced axes joined to one, the last; and its size."""
    axes = normalize_axis(axis, x.data.ndim)
    rest = [i for i in range(x.data.ndim) if i not in axes]
    n = math.prod([x.data.shape[i] for i in axes])
    shape = [x.data.shape[i] for i in rest]
    return x.transpose((*rest, *axes)).reshape([*shape, n]), n


def _interpolate(ordered: Tensor, place: Any, method: str) -> Any:
    """The values at fractional places of the last axis."""
    low, high = np.floor(place).astype(np.int64), np.ceil(place).astype(np.int64)
    if method == "lower":
        return take(ordered, low, -1)
    if method == "higher":
        return take(ordered, high, -1)
    if method == "nearest":
        return take(ordered, np.rint(place).astype(np.int64), -1)
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}; received {method!r}.")
    part = place - low if method == "linear" else np.where(low == high, 0.0, 0.5)
    below, above = take(ordered, low, -1), take(ordered, high, -1)
    part = part.astype(ordered.data.dtype)
    with np.errstate(invalid="ignore"):  # infinite ones are exact as they are
        between = below * (1 - part) + above * part
        off = np.clip(between.data, below.data, above.data) - between.data
    between = between + np.where(np.isnan(off), 0, off).astype(part.dtype)  # rounded out of the two
    # weights before values: an infinite neighbour of weight 0 must not make nan
    return np.where(part == 0, below, between)


def _arranged(y: Any, x: Tensor, axis: Axis, extra: int, keepdims: bool) -> Any:
    """The axes of q first, and the reduced axes back if they are kept."""
    n = y.data.ndim - extra
    y = y.transpose((*range(n, n + extra), *range(n)))
    if keepdims:
        y = y.reshape((*y.shape[:extra], *kept_shape(x.data.shape, axis)))
    return y


@op
def percentile(
    x: Tensor, q: Array, axis: Axis = None, method: str = "linear", keepdims: bool = False
) -> Tensor:
    """`quantile` with q from 0 to 100."""
    return quantile(x, np.asarray(q) / 100, axis, method, keepdims)


@op
def median(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The middle element, or the mean of both middle ones; see `quantile`."""
    return quantile(x, 0.5, axis, "linear", keepdims)


# -------------------------------------------------------------------- searching and counting


@op
def searchsorted(sorted_sequence: Numeric, values: Numeric, side: str = "left") -> Tensor:
    """Where values would go to keep a sorted vector sorted; int32. Not differentiable."""
    if side not in ("left", "right"):
        raise ValueError(f'side must be "left" or "right"; received {side!r}.')
    found = np.searchsorted(
        sorted_sequence.data, values.data, "left" if side == "left" else "right"
    )
    return record(np.asarray(found, np.int32))


@op
def digitize(x: Numeric, bins: Array) -> Tensor:
    """The number of the bin each element lies in; int32. Not differentiable.

    Args:
        x: the array.
        bins: ascending edges; bin i goes from edge i - 1 up to, without, edge i.
    """
    return record(np.asarray(np.digitize(x.data, np.asarray(bins)), np.int32))


@op
def bincount(
    x: Array, weights: Numeric | None = None, minlength: int = 0, sparse: bool = False
) -> Tensor:
    """How often each whole number occurs, or the sum of the weights that go with it.

    Args:
        x: whole numbers from 0; a row per result if it has two axes.
        weights: of x's shape.
        minlength: the least length of the result.
        sparse: must be False.

    Gradient: dweights = g at the numbers.
    """
    if sparse:
        raise ValueError("picodl has no sparse tensors; leave sparse=False.")
    ids = np.asarray(x)
    if ids.dtype.kind not in "iub" or (ids.size and ids.min() < 0):
        raise ValueError("bincount counts whole numbers from 0.")
    n = builtins.max(int(ids.max()) + 1 if ids.size else 0, int(minlength))
    if ids.ndim not in (1, 2):
        raise ValueError(f"bincount takes a vector or rows; received shape {ids.shape}.")
    rows = ids.reshape(-1, ids.shape[-1])
    flat = (rows + n * np.arange(len(rows))[:, None]).reshape(-1).astype(np.int64)
    shape = (*ids.shape[:-1], n)
    if weights is None:
        counts = np.bincount(flat, minlength=n * len(rows))
        return record(counts.reshape(shape).astype(np.int32))
    sums = np.bincount(flat, weights.data.reshape(-1), n * len(rows)).reshape(shape)

    def backward(g: Any) -> Any:
        return (g.reshape(-1)[flat].reshape(ids.shape),)

    return record(sums.astype(weights.data.dtype), (weights,), backward)


def histogram(x: Any, bins: int = 10, range: Any = None) -> Any:
    """How many elements lie in each of some even bins, and the edges of these.

    Args:
        x: the array.
        bins: how many. Defaults to 10.
        range: a pair, the outer edges. Defaults to the least and largest element.

    Not differentiable.
    """
    return _histogram(x, bins, range)


@op
def _histogram(x: Numeric, bins: int, span: Any) -> tuple[Tensor, Tensor]:
    if isinstance(bins, bool) or not isinstance(bins, (int, np.integer)) or bins < 1:
        raise ValueError(f"bins must be a positive integer; received {bins!r}.")
    counts, edges = np.histogram(x.data, int(bins), span)
    kind = x.data.dtype if x.data.dtype.kind == "f" else np.float32
    return record(counts.astype(np.int32)), record(edges.astype(kind))


@op
def unique(
    x: Numeric,
    sorted: bool = True,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
    size: int | None = None,
    fill_value: Any = None,
) -> Any:
    """The different elements, or slices along an axis; no nan is like another.

    Args:
        x: the array.
        sorted: ascending; else in order of first occurrence.
        return_index: also where each first stands.
        return_inverse: also which of them stands in each place of x.
        return_counts: also how often each occurs.
        axis: compare slices along it. Defaults to None, elements.
        size: cut or fill the result to this length.
        fill_value: what to fill with. Defaults to the least element.

    Gradient: g to the first occurrence of each.
    """
    flat = x.reshape(-1) if axis is None else moveaxis(x, axis, 0)
    places = 0 if flat.data.ndim > 1 else None
    _, index, inverse, counts = np.unique(flat.data, True, True, True, axis=places, equal_nan=False)
    inverse = inverse.reshape(-1)
    if not sorted:
        order = np.argsort(index)
        rank = np.argsort(order)
        index, counts, inverse = index[order], counts[order], rank[inverse]
    values = take(flat, index, 0)
    if size is not None:
        values, index, counts = _resized(values, index, counts, size, fill_value)
    results: list[Any] = [values if axis is None else moveaxis(values, 0, axis)]
    if return_index:
        results.append(record(index.astype(np.int32)))
    if return_inverse:
        shape = x.data.shape if axis is None else inverse.shape
        results.append(record(inverse.reshape(shape).astype(np.int32)))
    if return_counts:
        results.append(record(counts.astype(np.int32)))
    return results[0] if len(results) == 1 else tuple(results)


def _resized(values: Tensor, index: Any, counts: Any, size: int, fill: Any) -> Any:
    """The unique values cut or filled to a length; what is filled counts 0."""
    n = len(index)
    if size <= n:
        return values[:size], index[:size], counts[:size]
    missing = np.full((size - n, *values.shape[1:]), 0 if fill is None else fill, values.dtype)
    if fill is None and n:
        missing[:] = values.data.min(0)
    first = index[:1] if n else np.zeros(1, index.dtype)
    return (
        np.concatenate([values, missing]),
        np.concatenate([index, np.repeat(first, size - n)]),
        np.concatenate([counts, np.zeros(size - n, counts.dtype)]),
    )
