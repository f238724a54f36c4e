"""Layers that say themselves what files keep of them: save_own_variables and load_own_variables."""

from __future__ import annotations

import math
import warnings
from collections import UserDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from picodl.layers.weights import WeightedModule
from picodl.saving.files import FileError
from picodl.saving.limits import MIB
from picodl.tensor import Tensor
from picodl.typing import Array

_FREE = 64 * MIB  # what such layers may take of memory, however small the file is


def saves_its_own(owner: Any) -> bool:
    """Whether a layer's class overrides save_own_variables."""
    save = WeightedModule.save_own_variables
    return isinstance(owner, WeightedModule) and type(owner).save_own_variables is not save


def keeps_its_own(owner: Any) -> bool:
    """Whether a layer's class overrides save_own_variables or load_own_variables."""
    load = WeightedModule.load_own_variables
    return saves_its_own(owner) or (
        isinstance(owner, WeightedModule) and type(owner).load_own_variables is not load
    )


class Store(UserDict[str, Array]):
    """A dict of arrays for a layer to put its state in; it takes copies, of plain numbers only."""

    def __setitem__(self, name: str, value: Any) -> None:
        if not isinstance(name, str) or not name.isprintable() or "/" in name:
            raise ValueError(
                f"the name of an array in a file must be a string without '/'; received {name!r}."
            )
        if name in ("", ".", ".."):
            raise ValueError(f"an array in a file cannot be called {name!r}.")
        array = np.array(value.data if isinstance(value, Tensor) else value)
        if array.dtype.kind not in "fiu" or array.dtype.itemsize > 8:
            raise TypeError(
                f"the array {name!r} is of dtype {array.dtype}; files hold floating and integer "
                "numbers of at most 64 bits. Convert it, for example booleans to uint8."
            )
        self.data[name] = array


def kept_by(owner: Any) -> dict[str, Array]:
    """What a layer's save_own_variables keeps, by name."""
    store = Store()
    try:
        owner.save_own_variables(store)
    except Exception as error:
        error.add_note(f'in save_own_variables of {type(owner).__name__} layer "{owner.name}"')
        raise
    return store.data


def stands_in(path: str, group: str) -> bool:
    """Whether a path leads to something directly in a group."""
    return path.rpartition("/")[0] == group


def check_sizes(groups: Iterable[Mapping[str, Any]], size: int) -> None:
    """See that arrays whose size no model vouches for do not unpack to more than their file.

    Args:
        groups: name -> item.
        size: of the file, in bytes.

    Raises:
        FileError: if they do, and take more than 64 MiB.
    """
    items = [item for group in groups for item in group.values()]
    sizes = [item.dtype.itemsize * math.prod(item.shape) for item in items]
    if sum(sizes) > max(size, _FREE):
        largest = items[sizes.index(max(sizes))]
        raise FileError(
            f"{largest.name} and the other arrays that layers load themselves take {sum(sizes)} "
            f"bytes, but the file has {size}: more than it can hold is refused."
        )
    for item in items:
        if item.dtype.kind not in "fiu":
            raise FileError(f"{item.name} holds {item.dtype}, which are not plain numbers.")


class Loader:
    """A layer that loads its variables itself.

    Args:
        owner: the layer.
        variables: (variable, label) of those it holds.
        skip: whether it keeps its state, with a warning, when it does not take the arrays.

    Attributes:
        store: the arrays the file has for it, by name.
    """

    def __init__(self, owner: Any, variables: list[tuple[Any, str]], skip: bool) -> None:
        self.owner, self.variables, self.skip = owner, variables, skip
        self.store: dict[str, Array] = {}

    def load(self) -> None:
        """Hand the arrays to the layer.

        Raises:
            FileError: if it does not take them.
        """
        store, self.store = self.store, {}
        names = ", ".join(list(store)[:8]) + (", ..." if len(store) > 8 else "")
        try:
            with undone_by_errors([self.owner]):
                self.owner.load_own_variables(store)
        except Exception as error:
            said = (
                f'layer "{self.owner.name}" ({type(self.owner).__name__}) did not load its '
                f"variables: {type(error).__name__}: {str(error).rstrip('.')}; the file holds "
                f"for it: {names or 'nothing'}."
            )
            if not self.skip:
                raise FileError(said) from error
            warnings.warn(f"load_weights left out what does not fit: {said}", stacklevel=7)


@contextmanager
def undone_by_errors(owners: Iterable[Any]) -> Iterator[None]:
    """Give layers their weights, arrays and attributes back if an error comes out of the block."""
    modules = {id(module): module for owner in owners for module in owner.modules()}
    attributes = [(module, dict(vars(module))) for module in modules.values()]
    weights = {id(p): p for module in modules.values() for p in module.parameters()}
    data = [(p, p.data) for p in weights.values()]
    arrays = [a for _, a in data]
    arrays += [a for _, held in attributes for a in held.values() if isinstance(a, np.ndarray)]
    copies = [(array, array.copy()) for array in arrays if array.flags.writeable]
    try:
        yield
    except BaseException:
        for module, held in attributes:
            vars(module).clear()
            vars(module).update(held)
        for parameter, array in data:
            parameter.data = array
        for array, values in copies:
            array[...] = values
        raise
