"""Functions of `picodl.utils`: seeds, labels, batches, splits, symbolic values."""

from __future__ import annotations

import gc
import random as python_random
from typing import Any

import numpy as np

from picodl import naming, random, tree
from picodl.config import floatx
from picodl.models.pydataset import PyDataset
from picodl.symbolic import Step, Symbol
from picodl.tensor import Tensor, as_array
from picodl.typing import Array


def set_random_seed(seed: int) -> None:
    """Make what follows repeat: seeds picodl, and Python's and numpy's global generators.

    The global ones are seeded for the user's own code: picodl draws from generators of its own.

    Raises:
        ValueError: unless seed is an integer from 0 to 2^32 - 1.
    """
    whole = isinstance(seed, (int, np.integer)) and not isinstance(seed, bool)
    if not whole or not 0 <= seed < 2**32:
        raise ValueError(
            f"set_random_seed: seed must be an integer from 0 to 2**32 - 1; received {seed!r}."
        )
    seed = int(seed)
    python_random.seed(seed)
    np.random.seed(seed)
    random.set_seed(seed)


def clear_session(free_memory: bool = True) -> None:
    """Start the automatic names again: the next Dense is "dense" once more.

    Args:
        free_memory: also run Python's garbage collector.
    """
    naming.reset_names()
    if free_memory:
        gc.collect()


def to_categorical(x: Any, num_classes: int | None = None) -> Array:
    """One-hot rows for integer labels.

    Args:
        x: labels of any shape; a last axis of size 1 is dropped.
        num_classes: length of a row. Defaults to the largest label + 1.

    Raises:
        ValueError: for labels that are no integers from 0 to num_classes - 1.

    >>> to_categorical([0, 2])
    array([[1., 0., 0.],
           [0., 0., 1.]], dtype=float32)
    """
    labels = x.data if isinstance(x, Tensor) else np.asarray(x)
    kind = labels.dtype.kind
    if kind not in "iubf" or (kind == "f" and (labels != np.floor(labels)).any()):
        raise ValueError(
            f"to_categorical: the labels x must be integers; received dtype {labels.dtype}. "
            "Encode names as integers first (sklearn.preprocessing.LabelEncoder)."
        )
    labels = labels.astype(np.int64)
    if labels.ndim > 1 and labels.shape[-1] == 1:
        labels = labels[..., 0]
    largest = int(labels.max()) if labels.size else -1
    classes = largest + 1 if num_classes is None else int(num_classes)
    if labels.size and (labels.min() < 0 or largest >= classes):
        wrong = int(labels.min()) if labels.min() < 0 else largest
        raise ValueError(
            f"to_categorical: the labels x must lie from 0 to {classes - 1} (num_classes is "
            f"{classes}); received the label {wrong}."
        )
    rows = np.zeros((labels.size, classes), floatx())
    rows[np.arange(labels.size), labels.reshape(-1)] = 1
    return rows.reshape(*labels.shape, classes)


def normalize(x: Any, axis: int = -1, order: int = 2) -> Array:
    """x divided by its norm along an axis; where the norm is 0, x stays 0.

    >>> normalize(np.array([[3.0, 4.0], [0.0, 0.0]])).tolist()
    [[0.6, 0.8], [0.0, 0.0]]
    """
    array = np.asarray(as_array(x))
    norm = np.linalg.norm(array, order, axis, keepdims=True)
    return array / np.where(norm == 0, 1, norm).astype(norm.dtype)


def pack_x_y_sample_weight(x: Any, y: Any = None, sample_weight: Any = None) -> Any:
    """The tuple that a data set yields: (x,), (x, y) or (x, y, sample_weight); a lone array as is.

    >>> pack_x_y_sample_weight([1], [2])
    ([1], [2])
    """
    if y is None and sample_weight is None:
        return (x,) if isinstance(x, (list, tuple)) else x
    return (x, y) if sample_weight is None else (x, y, sample_weight)


def unpack_x_y_sample_weight(data: Any) -> tuple[Any, Any, Any]:
    """x, y and sample_weight of what a data set yields; None for what is absent.

    Raises:
        ValueError: for a tuple of more than three.

    >>> unpack_x_y_sample_weight(("x", "y"))
    ('x', 'y', None)
    """
    if isinstance(data, list):
        data = tuple(data)
    if not isinstance(data, tuple):
        return data, None, None
    if not 1 <= len(data) <= 3:
        raise ValueError(
            "Expected data in the form x, (x,), (x, y) or (x, y, sample_weight); received a tuple "
            f"of {len(data)}."
        )
    return (*data, None, None)[:3]


def split_dataset(
    dataset: Any,
    left_size: float | None = None,
    right_size: float | None = None,
    shuffle: bool = False,
    seed: int | None = None,
    preferred_backend: str | None = None,
) -> tuple[Any, Any]:
    """Cut data in two.

    Args:
        dataset: an array, or a list, tuple or dict of arrays of one length, which keep their
            structure; or an iterable, which gives two lists of its items.
        left_size, right_size: a fraction, or a number of samples, from the front and from what
            follows. One of them is enough.
        shuffle: permute the samples first.
        seed: of the permutation.
        preferred_backend: accepted; the parts are arrays or lists.

    Raises:
        ValueError: for sizes that are missing, or that do not fit the data.

    >>> split_dataset(np.arange(5), left_size=0.6)
    (array([0, 1, 2]), array([3, 4]))
    """
    arrays = hasattr(dataset, "shape") or isinstance(dataset, (list, tuple, dict))
    if arrays:
        data = tree.map_structure(lambda a: np.asarray(as_array(a)), dataset)
        lengths = {len(leaf) for leaf in tree.flatten(data)}
        if len(lengths) != 1:
            raise ValueError(
                f"split_dataset: the arrays must have one length; received lengths {lengths}."
            )
        count = lengths.pop()
    else:
        items = [dataset[i] for i in range(len(dataset))] if _is_indexed(dataset) else list(dataset)
        count = len(items)
    left, right = _split_sizes(count, left_size, right_size)
    order = np.arange(count)
    if shuffle:
        order = np.random.default_rng(seed).permutation(count)
    parts = (order[:left], order[left : left + right])
    if not arrays:
        return [items[i] for i in parts[0]], [items[i] for i in parts[1]]
    first, second = (tree.map_structure(lambda leaf, rows=rows: leaf[rows], data) for rows in parts)
    return first, second


def _is_indexed(dataset: Any) -> bool:
    return isinstance(dataset, PyDataset) and hasattr(dataset, "__len__")


def _split_sizes(count: int, left: float | None, right: float | None) -> tuple[int, int]:
    def size(name: str, value: Any) -> int | None:
        if value is None:
            return None
        if isinstance(value, float) and 0 < value < 1:
            return round(value * count)
        if isinstance(value, (int, np.integer)) and not isinstance(value, bool) and value > 0:
            return int(value)
        raise ValueError(
            f"split_dataset: {name} must be a fraction between 0 and 1 or a number of samples; "
            f"received {value!r}."
        )

    first, second = size("left_size", left), size("right_size", right)
    if first is None and second is None:
        raise ValueError("split_dataset: give left_size or right_size.")
    first = count - (second or 0) if first is None else first
    second = count - first if second is None else second
    if first < 1 or second < 1 or first + second > count:
        raise ValueError(
            f"split_dataset: {count} samples cannot be split into {first} and {second}; both parts "
            "need at least 1."
        )
    return first, second


def is_keras_tensor(x: Any) -> bool:
    """Whether x is symbolic, as `Input` returns it: a value of a model that is being built."""
    return isinstance(x, Symbol)


def get_source_inputs(tensor: Any) -> list[Symbol]:
    """The inputs that a symbolic value (or several) was computed from, in the order met."""
    found: dict[int, Symbol] = {}
    seen: set[int] = set()
    waiting: list[Any] = list(reversed(tree.flatten(tensor)))
    while waiting:
        symbol = waiting.pop()
        step: Step | None = symbol.step
        if step is None or not step.inputs:
            found[id(symbol)] = symbol
        elif id(step) not in seen:
            seen.add(id(step))
            waiting.extend(reversed(step.inputs))
    return list(found.values())


def standardize_dtype(dtype: Any) -> str:
    """The name of a dtype given as None (floatx), a name, a Python or numpy type, or a dtype.

    Raises:
        ValueError: for what is no dtype.

    >>> standardize_dtype(np.float64), standardize_dtype(None), standardize_dtype(bool)
    ('float64', 'float32', 'bool')
    """
    if dtype is None:
        return floatx()
    name = getattr(dtype, "__name__", None) or getattr(dtype, "name", None) or str(dtype)
    name = {"int": "int32", "float": floatx(), "bool_": "bool"}.get(name, name)
    try:
        return np.dtype(name.removeprefix("torch.")).name
    except TypeError:
        raise ValueError(f"Unknown dtype {dtype!r}.") from None
