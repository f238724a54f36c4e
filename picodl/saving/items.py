"""Arrays in files: what they are called and how large they are, before anything is read."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from picodl.config import thread
from picodl.saving.files import FileError
from picodl.saving.limits import MIB
from picodl.saving.own_state import Loader, undone_by_errors
from picodl.typing import Array


class Item(Protocol):
    """An array in a file.

    Attributes:
        name: where it is in the file.
        shape: as declared.
        dtype: the numpy dtype of the stored values.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def read(self, out: Array) -> None:
        """Read the values into an array of the item's own shape and dtype, and check them."""


class Zeros:
    """An `Item` that no file holds: zeros in the shape of a variable."""

    name = "zeros"

    def __init__(self, variable: Variable) -> None:
        self.shape, self.dtype = variable.data.shape, variable.data.dtype

    def read(self, out: Array) -> None:
        out[...] = 0


class Variable(Protocol):
    """What is filled: a Parameter, or any Tensor."""

    data: Array


def misfit(item: Item, variable: Variable, label: str) -> str:
    """Why an item cannot be the values of a variable; "" if it can.

    Only what the file declares is looked at.

    Raises:
        FileError: for data that cannot be weights at all.
    """
    shape, needed = tuple(item.shape), tuple(variable.data.shape)
    if shape != needed:
        return f"{item.name} has shape {shape}, the model's {label} needs {needed}"
    floats = (item.dtype.kind == "f", variable.data.dtype.kind == "f")
    if item.dtype.kind not in "fiu" or floats == (True, False):
        return f"{item.name} holds {item.dtype}, the model's {label} needs {variable.data.dtype}"
    return ""


def read_values(item: Item, dtype: np.dtype[Any], out: Array | None = None) -> Array:
    """The values of an item as an array of the given dtype.

    Args:
        item: already checked for its shape.
        dtype: what the values become.
        out: an array of that dtype to write into.

    Raises:
        FileError: if the values do not fit into the dtype.
    """
    own = item.dtype.newbyteorder("=")
    if own == dtype and out is not None and out.flags.c_contiguous:
        item.read(out)
        return out
    values = np.empty(item.shape, own)
    item.read(values)
    if own != dtype:
        values = _convert(values, dtype, item.name)
    if out is None:
        return values
    out[...] = values
    return out


def _convert(values: Array, dtype: np.dtype[Any], name: str) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):
        new = values.astype(dtype)
    if values.dtype.kind == "f":
        fits = dtype.kind == "f" and np.isfinite(values).sum() == np.isfinite(new).sum()
    else:  # an integer that does not come back has lost digits
        with np.errstate(invalid="ignore"):
            fits = bool((new.astype(values.dtype) == values).all())
    if not fits:
        raise FileError(f"{name} holds {values.dtype} values that do not fit into {dtype}.")
    return new


def assign_all(pairs: Sequence[tuple[Variable, Item, str]]) -> None:
    """Set variables from items, all of them or, when anything is wrong, none.

    Everything is read and checked before the first variable changes. Layers that load their
    variables themselves come first, and what they did is undone if one fails. Arrays are kept
    between the two passes only as far as they take no more memory than the largest; the others are
    read again.

    Args:
        pairs: variable, item, and what the variable is called in messages; or a Loader with the
            items it takes.

    Raises:
        FileError: if an item does not fit or cannot be read.
    """
    loaders = [(first, second) for first, second, _ in pairs if isinstance(first, Loader)]
    pairs = [pair for pair in pairs if not isinstance(pair[0], Loader)]
    for variable, item, label in pairs:
        problem = misfit(item, variable, label)
        if problem:
            raise FileError(f"{problem}.")
    bad = _read_and_assign(pairs, loaders)
    if bad:
        warnings.warn(
            f"The file holds NaN for {', '.join(bad[:5])}"
            + (f" and {len(bad) - 5} more" if len(bad) > 5 else "")
            + ": they were loaded as they are.",
            stacklevel=4,
        )


def _read_and_assign(pairs: Sequence[tuple[Variable, Item, str]], loaders: Any) -> list[str]:
    spare = max([16 * MIB, *(variable.data.nbytes for variable, _, _ in pairs)])
    kept: dict[int, Array] = {}
    bad: list[str] = []
    for number, (variable, item, label) in enumerate(pairs):
        if not variable.data.flags.writeable:
            continue  # laid out without memory: nothing to lose
        if _in_one_piece(item, variable):
            if item.scan():  # type: ignore[attr-defined]
                bad.append(label)
            continue
        values = read_values(item, variable.data.dtype)
        _note_nan(values, label, bad)
        if values.nbytes <= spare:
            spare -= values.nbytes
            kept[number] = values
    for loader, items in loaders:
        loader.store = {n: read_values(i, i.dtype.newbyteorder("=")) for n, i in items.items()}
    with undone_by_errors([loader.owner for loader, _ in loaders]):
        for loader, _ in loaders:
            loader.load()
            for variable, label in loader.variables:
                _note_nan(variable.data, label, bad)
        for number, (variable, item, label) in enumerate(pairs):
            if not variable.data.flags.writeable:
                variable.data = _fresh(item, variable, label, bad)
            elif _in_one_piece(item, variable):
                item.copy_to(variable.data)  # type: ignore[attr-defined]
            elif number in kept:
                variable.data[...] = kept.pop(number)
            else:
                read_values(item, variable.data.dtype, out=variable.data)
    return bad


def _in_one_piece(item: Item, variable: Variable) -> bool:
    """Whether an item can be looked at without memory, and read straight to its place."""
    whole = getattr(item, "in_one_piece", None)
    return whole is not None and variable.data.flags.c_contiguous and whole(variable.data.dtype)


def _fresh(item: Item, variable: Variable, label: str, bad: list[str]) -> Array:
    dtype = variable.data.dtype
    if getattr(item, "in_one_piece", None) and item.in_one_piece(dtype):  # type: ignore[attr-defined]
        values = np.empty(item.shape, dtype)
        if item.scan(values):  # type: ignore[attr-defined]
            bad.append(label)
        return values
    values = read_values(item, dtype)
    _note_nan(values, label, bad)
    return values


def _note_nan(values: Array, label: str, bad: list[str]) -> None:
    if values.dtype.kind == "f" and values.size and np.isnan(values.min()):
        bad.append(label)


def fill(file: Any, out: Array) -> int:
    """Read bytes into a contiguous array until it is full or the file ends; how many there were."""
    buffer = memoryview(np.atleast_1d(out).reshape(-1).view(np.uint8).data)
    done = 0
    while done < len(buffer):
        count = file.readinto(buffer[done : done + 16 * MIB])
        if not count:
            break
        done += count
    return done


def without_memory(build: Callable[[], Any]) -> tuple[Any, list[Any]]:
    """What `build` gives, with the parameters it made laid out without memory.

    Returns: the result, and the (parameter, initializer) pairs.
    """
    before, thread.unmade = thread.unmade, []
    try:
        return build(), thread.unmade
    finally:
        thread.unmade = before


def make_rest(unmade: Iterable[tuple[Any, Any]], room: int = 0) -> None:
    """Give the parameters that no file had values for their initial ones.

    Args:
        unmade: what `without_memory` gave.
        room: bytes that they may take in any case.

    Raises:
        FileError: if they are too large to be states of a model that fits its file.
    """
    rest = [pair for pair in unmade if not pair[0].data.flags.writeable]
    size = sum(parameter.data.size * parameter.data.itemsize for parameter, _ in rest)
    if size > max(256 * MIB, room):
        raise FileError(
            f"{rest[0][0].path} and others ask for {size // MIB} MiB that the file does not hold."
        )
    for parameter, initializer in rest:
        shape, dtype = parameter.data.shape, parameter.data.dtype
        parameter.data = np.array(initializer(shape, dtype=dtype.name), dtype)
