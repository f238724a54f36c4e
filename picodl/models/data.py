"""From what the user passes as data to batches: arrays here, iterables in streams.py."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np

from picodl import config, tree
from picodl.models.arrays import Sparse, Stored, Strings, as_leaf, is_numbers, part_of
from picodl.models.pydataset import PyDataset
from picodl.models.weights import check_class_weight, class_weights
from picodl.typing import Array


class Batches:
    """Batches of (x, y, sample_weight), epoch after epoch; None stands for what is absent.

    Attributes:
        steps: number of batches in an epoch, None if unknown.
        samples: number of samples in an epoch, None if unknown.
        batch_size: samples in a batch, None if unknown.
    """

    steps: int | None = None
    samples: int | None = None
    batch_size: int | None = None

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[Any, Any, Any]]:
        """The batches of an epoch.

        Args:
            epoch: its number, from 0 in this fit; it decides the order.
            start: batches to leave out at the beginning.
        """
        raise NotImplementedError

    def has_more(self) -> bool:
        """Whether there is data for another epoch; warns if there is none."""
        return True

    def on_epoch_end(self) -> None:
        """Called after each epoch of fit."""

    def close(self) -> None:
        """Called after the last epoch, also when an exception ends it."""


class ArrayBatches(Batches):
    """Batches out of arrays, in memory or stored.

    Args:
        x, y, sample_weight: arrays or structures of arrays, all of one length.
        batch_size: samples in a batch; the last one may be smaller.
        steps: batches in an epoch; the next epoch goes on where one ended. None for all.
        shuffle: False, True, or "batch" to permute inside each batch only.
    """

    def __init__(
        self, x: Any, y: Any, sample_weight: Any, batch_size: int, steps: int | None, shuffle: Any
    ) -> None:
        self.data = (x, y, sample_weight)
        leaves = [leaf for leaf in tree.flatten(self.data) if leaf is not None]
        self._count = len(leaves[0])
        self._per_pass = max(1, math.ceil(self._count / batch_size))
        self._asked = steps
        self.batch_size = batch_size
        self.steps = self._per_pass if steps is None else steps
        self.samples = min(self._count, self.steps * batch_size)
        self.shuffle = shuffle
        self._stored = [leaf for leaf in leaves if isinstance(leaf, Stored)]
        self._reading: Any = lambda: None  # the batches of stored data that a thread may be reading

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[Any, Any, Any]]:
        number, first, last = self._place(epoch)
        if self._asked is not None and last - first < self._asked:
            from picodl.models.streams import warn_of_end

            warn_of_end(last - first, self._asked)
        if self._stored:
            from picodl.models.windows import stored_batches

            self.close()
            reading = stored_batches(self, number, first + start, last)
            self._reading = weakref.ref(reading)
            return reading
        return self._batches(number, first + start, last)

    def close(self) -> None:
        reading = self._reading()
        if reading is not None:
            reading.close()

    def _place(self, epoch: int) -> tuple[int, int, int]:
        """(pass over the data, its first batch, the batch behind the last) of an epoch."""
        if self._asked is None:
            return epoch, 0, self._per_pass
        number = first = 0
        for _ in range(epoch):
            first += self._asked
            if first >= self._per_pass:
                number, first = number + 1, 0
        return number, first, min(first + self._asked, self._per_pass)

    def order(self, number: int, count: int) -> Array | None:
        """The permutation of count samples in a pass: numpy's default_rng(number + 1)."""
        if self.shuffle is True:
            return np.random.default_rng(number + 1).permutation(count)
        if self.shuffle == "batch":
            size = self.batch_size
            assert size is not None
            parts = [
                start + np.random.default_rng(number + 1 + i).permutation(min(size, count - start))
                for i, start in enumerate(range(0, count, size))
            ]
            return np.concatenate(parts)
        return None

    def _batches(self, number: int, first: int, last: int) -> Iterator[tuple[Any, Any, Any]]:
        x, y, sample_weight = self.data
        size = self.batch_size or 1
        order = self.order(number, self._count)
        plain = all(leaf is None or type(leaf) is np.ndarray for leaf in self.data)
        for i in range(first, last):
            rows = slice(i * size, (i + 1) * size)
            if not plain:
                yield take(x, rows, order), take(y, rows, order), take(sample_weight, rows, order)
            elif order is None:
                yield (
                    x[rows],
                    None if y is None else y[rows],
                    None if sample_weight is None else sample_weight[rows],
                )
            else:
                index = order[rows]
                yield (
                    x.take(index, 0),
                    None if y is None else y.take(index, 0),
                    None if sample_weight is None else sample_weight.take(index, 0),
                )


def take(structure: Any, rows: slice, order: Array | None) -> Any:
    """The same rows of every array of a structure."""
    if structure is None:
        return None
    if order is None:
        return tree.map_structure(lambda leaf: None if leaf is None else leaf[rows], structure)
    index = order[rows]
    return tree.map_structure(lambda leaf: None if leaf is None else leaf.take(index, 0), structure)


def make_batches(
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    batch_size: int | None = None,
    steps: int | None = None,
    shuffle: bool | str = False,
    class_weight: dict[int, float] | None = None,
    allow_empty: bool = False,
    strings: Strings = False,
) -> Batches:
    """Batches from everything that fit, evaluate and predict take as data.

    Args:
        x: inputs: arrays, a list, tuple or dict of arrays, or an iterable of batches.
        y, sample_weight: targets and weights as arrays; None for an iterable.
        batch_size: samples in a batch. Defaults to 32.
        steps: batches in an epoch. Defaults to all.
        shuffle: True, False or "batch".
        class_weight: {class: weight}, which becomes the sample weight.
        allow_empty: whether no samples at all are welcome: then there is one batch of none.
        strings: whether x may hold strings, or a function that says so.

    Raises:
        TypeError: for what is no data.
        ValueError: for arguments or arrays that do not fit each other; the message names them.
    """
    size = check_whole("batch_size", batch_size)
    steps = check_whole("steps_per_epoch (steps in evaluate and predict)", steps)
    if not isinstance(shuffle, (bool, np.bool_)) and shuffle != "batch":
        raise ValueError(f'shuffle must be True, False or "batch"; received {shuffle!r}.')
    check_class_weight(class_weight, sample_weight)
    if is_stream(x):
        from picodl.models.streams import stream_batches

        return stream_batches(x, y, sample_weight, steps, shuffle, class_weight, strings)
    x, y, sample_weight = as_data(x, y, sample_weight, strings=strings)
    count = _common_length(x, y, sample_weight)
    if not count and not allow_empty:
        raise ValueError("x is empty: it has 0 samples, at least 1 is needed.")
    if class_weight is not None:
        sample_weight = class_weights(class_weight, y)
    if size is None:
        size = 32 if steps is None else max(1, math.ceil(count / steps))
    return ArrayBatches(
        x, y, sample_weight, size, steps, shuffle if shuffle == "batch" else bool(shuffle)
    )


def one_batch(
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    class_weight: dict[int, float] | None = None,
    strings: Strings = False,
) -> tuple[Any, Any, Any]:
    """The arguments of train_on_batch and test_on_batch, checked as `make_batches` does."""
    check_class_weight(class_weight, sample_weight)
    x, y, sample_weight = as_data(x, y, sample_weight, strings)
    if not _common_length(x, y, sample_weight):
        raise ValueError("x is empty: it has 0 samples, at least 1 is needed.")
    if class_weight is not None:
        sample_weight = class_weights(class_weight, y)
    whole = slice(None)
    return tuple(
        tree.map_structure(
            lambda a: a if isinstance(a, np.ndarray) or a is None else _dense(a, whole), s
        )
        for s in (x, y, sample_weight)
    )


def split_validation(
    x: Any, y: Any, sample_weight: Any, fraction: float, strings: Strings = False
) -> tuple[tuple[Any, Any, Any], tuple[Any, Any, Any]]:
    """Cut the last fraction of the samples off: ((x, y, weights), (x, y, weights)).

    Raises:
        ValueError: unless 0 < fraction < 1, both parts have samples, and the data are arrays.
    """
    number = isinstance(fraction, (int, float, np.number)) and not isinstance(fraction, bool)
    if not number or not 0 <= fraction < 1:
        raise ValueError(
            f"validation_split must be a fraction between 0 and 1; received {fraction!r}."
        )
    if is_stream(x):
        raise ValueError(
            "validation_split needs arrays, because an iterable of batches has no end to cut off; "
            "pass validation_data instead."
        )
    data = as_data(x, y, sample_weight, strings=strings)
    count = _common_length(*data)
    at = math.floor(count * (1 - fraction))
    if not 0 < at < count:
        raise ValueError(
            f"validation_split={fraction} of {count} samples leaves {at} to train on and "
            f"{count - at} to validate with; both need at least 1."
        )
    head, tail = (
        tuple(_rows(s, start, stop) for s in data) for start, stop in ((0, at), (at, count))
    )
    return head, tail


def as_data(
    x: Any, y: Any = None, sample_weight: Any = None, strings: Strings = False
) -> tuple[Any, Any, Any]:
    """x, y and sample_weight with arrays for leaves, in the user's own structure.

    Raises:
        TypeError: for what is no array.
        ValueError: for arrays of something else than numbers.
    """
    if x is None:
        raise ValueError(
            "x is missing: expected an array, or a list or dict of arrays; received None."
        )
    x = _as_arrays(x, "x", strings)
    y = None if y is None else _as_arrays(y, "y")
    if sample_weight is not None:
        dtype = config.floatx()
        sample_weight = tree.map_structure(
            lambda w: w.astype(dtype, copy=False) if isinstance(w, np.ndarray) else w,
            _as_arrays(sample_weight, "sample_weight"),
        )
    return x, y, sample_weight


def is_stream(x: Any) -> bool:
    """Whether x yields batches rather than being data itself."""
    if isinstance(x, (np.ndarray, str, bytes, list, tuple, dict)) or hasattr(x, "shape"):
        return False
    return isinstance(x, PyDataset) or hasattr(x, "__iter__") or hasattr(x, "__next__")


def check_whole(argument: str, value: Any) -> int | None:
    """A positive integer, or None.

    Raises:
        ValueError: for anything else.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise ValueError(f"{argument} must be a positive integer; received {value!r}.")
    return int(value)


def _as_arrays(value: Any, name: str, strings: Strings = False) -> Any:
    if type(value) is np.ndarray and value.ndim and value.dtype == config.floatx():
        return value
    if isinstance(value, dict):
        return {
            k: None if v is None else _as_arrays(v, f"{name}[{k!r}]", strings)
            for k, v in value.items()
        }
    if isinstance(value, (list, tuple)) and not is_numbers(value):
        parts = [
            None if v is None else _as_arrays(v, f"{name}[{i}]", strings)
            for i, v in enumerate(value)
        ]
        if not parts:
            raise ValueError(f"{name} is empty: an empty {type(value).__name__} holds 0 samples.")
        return parts if isinstance(value, list) else tuple(parts)
    return as_leaf(value, name, strings)


def _common_length(x: Any, y: Any, sample_weight: Any) -> int:
    """The number of samples, the same in every array.

    Raises:
        ValueError: naming all lengths if they differ.
    """
    usual = type(x) is np.ndarray and type(y) is np.ndarray and sample_weight is None
    if usual and len(x) == len(y):
        return len(x)
    lengths: dict[str, int] = {}
    for name, structure in (("x", x), ("y", y), ("sample_weight", sample_weight)):
        for path, leaf in tree.flatten_with_path(structure):
            if leaf is not None:
                lengths[name + "".join(f"[{key!r}]" for key in path)] = len(leaf)
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name} has {n}" for name, n in lengths.items())
        raise ValueError(f"The arrays must have the same number of samples, but {told}.")
    if not lengths:
        raise ValueError("x is empty: it holds no array.")
    return next(iter(lengths.values()))


def _rows(structure: Any, start: int, stop: int) -> Any:
    if structure is None:
        return None
    return tree.map_structure(
        lambda leaf: None if leaf is None else part_of(leaf, start, stop), structure
    )


def _dense(leaf: Any, rows: slice) -> Array:
    return leaf[rows] if isinstance(leaf, Sparse) else leaf.read(0, len(leaf))
