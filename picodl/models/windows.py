"""Batches of stored data: read in order, window by window, and shuffled inside the windows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from picodl import tree
from picodl.models.arrays import WINDOW_BYTES, Sparse, Stored
from picodl.models.data import ArrayBatches
from picodl.models.prefetch import prefetch


def window_rows(data: Any, batch_size: int) -> int:
    """How many samples are read at a time: about WINDOW_BYTES, whole batches, at least one."""
    row = sum(
        leaf.nbytes // max(len(leaf), 1) for leaf in _leaves(data) if isinstance(leaf, Stored)
    )
    return batch_size * max(1, WINDOW_BYTES // max(row * batch_size, 1))


def stored_batches(
    batches: ArrayBatches, number: int, first: int, last: int
) -> Iterator[tuple[Any, Any, Any]]:
    """The batches from first to last of a pass, with the next window read in a thread.

    Shuffling permutes the windows (numpy's default_rng(number + 1)) and the samples in each; with
    one window that is the order of data in memory.
    """
    size = batches.batch_size or 1
    count = len(_leaves(batches.data)[0])
    rows = window_rows(batches.data, size)
    windows = math.ceil(count / rows)
    rng = np.random.default_rng(number + 1)
    shuffled = batches.shuffle is True
    order = rng.permutation(windows) if shuffled and windows > 1 else range(windows)
    plan = []  # (start, stop, permutation, first batch, last batch) of the windows that are needed
    at = 0
    for window in order:
        start, stop = int(window) * rows, min(int(window) * rows + rows, count)
        inside = math.ceil((stop - start) / size)
        permutation = rng.permutation(stop - start) if shuffled else None
        if batches.shuffle == "batch":
            permutation = batches.order(number + start // size, stop - start)
        if at + inside > first and at < last:
            plan.append((start, stop, permutation, max(first - at, 0), min(last - at, inside)))
        at += inside

    def read() -> Iterator[Any]:
        for start, stop, *rest in plan:
            yield (_read(batches.data, start, stop), *rest)

    for (x, y, sample_weight), permutation, begin, end in prefetch(read(), 1):
        for i in range(begin, end):
            part = slice(i * size, (i + 1) * size)
            index: Any = part if permutation is None else permutation[part]
            yield _at(x, index), _at(y, index), _at(sample_weight, index)


def _leaves(data: Any) -> list[Any]:
    return [leaf for leaf in tree.flatten(data) if leaf is not None]


def _read(data: Any, start: int, stop: int) -> Any:
    def rows(leaf: Any) -> Any:
        if leaf is None:
            return None
        if isinstance(leaf, Stored):
            return leaf.read(start, stop)
        return leaf.part(start, stop) if isinstance(leaf, Sparse) else leaf[start:stop]

    return tree.map_structure(rows, data)


def _at(structure: Any, index: Any) -> Any:
    if structure is None:
        return None
    return tree.map_structure(lambda leaf: None if leaf is None else leaf[index], structure)
