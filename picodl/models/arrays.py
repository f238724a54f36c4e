"""What people have data in, as arrays: lists, frames, tensors of others, sparse and stored data."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from picodl import config
from picodl.tensor import Tensor
from picodl.typing import Array

Strings: TypeAlias = bool | Callable[[], bool]  # whether strings are welcome, if anybody asks
WINDOW_BYTES = 32 << 20  # how much of stored data is held in memory at a time


class Stored:
    """Rows of an array that lies in a file, read when they are asked for.

    Args:
        source: an h5py dataset or a numpy memmap.
        start, stop: which of its rows.
    """

    def __init__(self, source: Any, start: int = 0, stop: int | None = None) -> None:
        self.source = source
        self.start = start
        self.stop = len(source) if stop is None else stop
        self.shape = (self.stop - start, *source.shape[1:])
        self.dtype = source.dtype

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def nbytes(self) -> int:
        """Size in bytes of all rows."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def part(self, start: int, stop: int) -> Stored:
        """The rows from start to stop, unread."""
        return Stored(self.source, self.start + start, self.start + stop)

    def read(self, start: int, stop: int) -> Array:
        """The rows from start to stop, in memory."""
        rows = self.source[self.start + start : self.start + stop]
        return as_floatx(np.array(rows) if isinstance(rows, np.memmap) else rows)


class Sparse:
    """The rows of a scipy sparse matrix, made dense batch by batch."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows if rows.format == "csr" else rows.tocsr()
        self.shape = rows.shape

    def __len__(self) -> int:
        return int(self.shape[0])

    def part(self, start: int, stop: int) -> Sparse:
        """The rows from start to stop."""
        return Sparse(self.rows[start:stop])

    def take(self, rows: Any, axis: int = 0) -> Array:
        """The chosen rows as a dense array."""
        return as_floatx(self.rows[rows].toarray())

    def __getitem__(self, rows: slice) -> Array:
        return as_floatx(self.rows[rows].toarray())


def as_floatx(x: Array) -> Array:
    """Floats in the default dtype; integers and bools, and what has that dtype, as they are."""
    if x.dtype.kind == "f" and x.dtype != config.floatx():
        return x.astype(config.floatx())
    return x if x.dtype.isnative else x.astype(x.dtype.newbyteorder("="))


def part_of(leaf: Any, start: int, stop: int) -> Any:
    """The rows from start to stop of an array or of one of the kinds above."""
    return leaf[start:stop] if isinstance(leaf, np.ndarray) else leaf.part(start, stop)


def is_numbers(value: Any) -> bool:
    """Whether a nested list holds plain numbers, so that it is one array written as a list."""
    while isinstance(value, (list, tuple)) and value:
        value = value[0]
    return isinstance(value, (bool, int, float, str, np.generic))


def _plain(value: Array, name: str) -> Array:
    """An array of a subclass of ndarray as a plain one, so that * and dot mean what they always do.

    Raises:
        ValueError: for a masked array that hides entries: computing with them would be wrong.
    """
    if type(value) is np.ndarray:
        return value
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise ValueError(
            f"{name} is a masked array with hidden entries. Fill them first, as in x.filled(0), or "
            "leave out the samples they belong to."
        )
    return np.asarray(value)


def as_leaf(value: Any, name: str, strings: Strings = False) -> Any:
    """One array of the user's as an array that a model can compute with.

    Args:
        value: an array, a list of numbers, a pandas frame or series, a scipy sparse matrix, an h5py
            dataset, a memmap, or anything that numpy can make an array of.
        name: of the argument, for messages.
        strings: whether strings are welcome.

    Returns:
        An ndarray with floats in floatx, or Stored or Sparse.

    Raises:
        TypeError: for what is no array.
        ValueError: for text, objects, ragged lists, and numbers without an axis of samples.
    """
    if isinstance(value, np.memmap) or _is_from(value, "h5py", "Dataset"):
        leaf: Any = _stored(value)
    elif isinstance(value, Tensor):
        leaf = value.data
    elif isinstance(value, np.ndarray):
        leaf = _plain(value, name)
    elif isinstance(value, (Stored, Sparse)):
        return value
    elif hasattr(value, "tocsr") and hasattr(value, "toarray"):
        leaf = Sparse(value)
    elif hasattr(value, "to_numpy") and hasattr(value, "iloc"):
        leaf = _from_pandas(value, name, strings)
    elif isinstance(value, (list, tuple)):
        leaf = _from_list(value, name)
    else:
        leaf = _from_other(value, name)
    if not leaf.shape:
        raise ValueError(
            f"{name} must be an array with the samples along its first axis; received the single "
            f"value {value!r}."
        )
    if isinstance(leaf, np.ndarray):
        _check_kind(leaf, name, strings)
        return as_floatx(leaf)
    return leaf


def _check_kind(leaf: Array, name: str, strings: Strings) -> None:
    kind = leaf.dtype.kind
    if kind in "fiub":
        return
    strings = strings() if callable(strings) else strings
    if kind == "O" and leaf.size and all(isinstance(v, str) for v in leaf.flat):
        kind = "U"
    if strings and kind in "UST":
        return
    hint = {
        "U": "Turn text into numbers first (StringLookup, TextVectorization), labels into integers "
        "(sklearn.preprocessing.LabelEncoder).",
        "O": "Fill in what is missing, and make every entry a number of one dtype: "
        'x.astype("float32").',
        "c": "Pass the real and imaginary parts as two features.",
        "M": "Turn dates into numbers first.",
    }
    kinds = {"U": "strings", "S": "strings", "T": "strings", "O": "objects", "c": "complex numbers"}
    raise ValueError(
        f"{name} must hold numbers, but received {kinds.get(kind, 'values')} of dtype {leaf.dtype} "
        f"and shape {leaf.shape}. {hint.get('U' if kind in 'ST' else kind, 'Convert them first.')}"
    )


def _stored(source: Any) -> Any:
    if not source.shape or source.dtype.kind not in "fiub":
        return np.asarray(source[()])
    stored = Stored(source)
    return stored.read(0, len(stored)) if stored.nbytes <= WINDOW_BYTES else stored


def _from_pandas(value: Any, name: str, strings: Strings) -> Array:
    strings = strings() if callable(strings) else strings
    dtypes = value.dtypes
    columns = dtypes.items() if hasattr(dtypes, "items") else [(value.name, dtypes)]
    bad = [str(column) for column, dtype in columns if getattr(dtype, "kind", "O") not in "fiub"]
    if bad and not strings and value.ndim > 1:
        raise ValueError(
            f"{name} is a DataFrame whose columns {', '.join(bad)} hold no numbers. Encode "
            "them first (pandas.get_dummies, sklearn.preprocessing.OneHotEncoder)."
        )
    array = value.to_numpy()
    if array.dtype.kind == "O" and not bad:  # extension dtypes; missing values become NaN
        array = value.to_numpy(dtype=config.floatx(), na_value=np.nan)
    return array


def _from_list(value: Any, name: str) -> Array:
    try:
        return np.asarray(value)
    except ValueError:
        raise ValueError(
            f"{name} is a ragged list: its rows differ in length, so it is no array of one shape. "
            "Make them equally long (utils.pad_sequences)."
        ) from None


def _from_other(value: Any, name: str) -> Array:
    for attribute in ("detach", "numpy"):  # tensors of other libraries
        if hasattr(value, attribute):
            value = getattr(value, attribute)()
    if isinstance(value, (bool, int, float, np.generic)) or hasattr(value, "__array__"):
        return np.asarray(value)
    raise TypeError(
        f"{name} must be an array, or a list or dict of arrays, or an iterable of batches; "
        f"received {value!r} of type {type(value).__name__}."
    )


def _is_from(value: Any, package: str, kind: str) -> bool:
    module = sys.modules.get(package)
    return module is not None and isinstance(value, getattr(module, kind))
