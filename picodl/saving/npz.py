"""`.npz`: the weights alone, as numpy's own archive, under the paths of `.weights.h5`."""

from __future__ import annotations

import ast
import re
import zipfile
from typing import Any

import numpy as np

from picodl.saving.archive import Archive
from picodl.saving.files import FileError
from picodl.saving.items import Item, assign_all, fill
from picodl.saving.layout import places
from picodl.saving.weights_h5 import weight_pairs
from picodl.typing import Array

_NUMBERED = re.compile(r"arr_(\d{1,6})")
_LONGEST_HEADER = 65536


def write_weights(stream: Any, model: Any) -> None:
    """Write a model's weights to a binary file; `numpy.load(path)["layers/dense/vars/0"]`."""
    with zipfile.ZipFile(stream, "w", allowZip64=True) as archive:
        for place in places(model):
            for path, values in place.values():
                with archive.open(f"{path}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, values, allow_pickle=False)


class Member:
    """An array of an archive; an `Item`. Only its header is read at first."""

    def __init__(self, archive: Archive, name: str) -> None:
        self.archive, self.member, self.name = archive, name, name.removesuffix(".npy")
        with archive.stream(name, None) as file:
            self.shape, self.dtype, self.fortran, self.start = _header(file, self.name)

    def read(self, out: Array) -> None:
        """Read the values; the archive's CRC is checked at their end."""
        as_stored = not self.fortran and self.dtype.isnative
        order = "F" if self.fortran else "C"
        target = out if as_stored else np.empty(self.shape, self.dtype, order=order)  # type: ignore[call-overload]
        data = target.T if self.fortran else target
        size = self.start + target.nbytes
        with self.archive.stream(self.member, size) as file:
            file.read(self.start)
            if fill(file, data) != target.nbytes or file.read(1):
                raise FileError(f"{self.name} does not hold as many bytes as its header says.")
        if target is not out:
            out[...] = target


def _header(file: Any, name: str) -> tuple[tuple[int, ...], np.dtype[Any], bool, int]:
    magic = file.read(8)
    wide = magic[6:7] >= b"\x02"
    size = int.from_bytes(file.read(4 if wide else 2), "little")
    if magic[:6] != b"\x93NUMPY" or size > _LONGEST_HEADER:
        raise FileError(f"{name} is not an array of numpy.")
    try:
        header = ast.literal_eval(file.read(size).decode("latin1"))
        shape, code, fortran = header["shape"], header["descr"], bool(header["fortran_order"])
        dtype = np.dtype(code) if isinstance(code, str) else np.dtype("V1")
        good = all(isinstance(n, int) and n >= 0 for n in shape)
    except (ValueError, TypeError, KeyError, SyntaxError, MemoryError, RecursionError) as error:
        raise FileError(f"{name} has a damaged header: {error}") from error
    if not good or dtype.kind not in "fiu" or dtype.hasobject:
        raise FileError(f"{name} holds {dtype} data of shape {shape}; weights are plain numbers.")
    return tuple(shape), dtype, fortran and len(shape) > 1, len(magic) + (4 if wide else 2) + size


def read_weights(archive: Archive, model: Any, skip_mismatch: bool = False) -> None:
    """Set a model's weights from an `.npz` file; all or nothing.

    Arrays without names (`numpy.savez(path, *model.get_weights())`) are taken in the order of
    `model.weights`.

    Raises:
        FileError: if something does not fit.
    """
    names = [name for name in archive.names() if name.endswith(".npy")]
    if not names:
        raise FileError("the archive holds no arrays (.npy), and is no saved model either.")
    if len(names) != len(set(names)):
        raise FileError("the archive holds several members of one name (duplicates).")
    found: dict[str, Item] = {m.name: m for m in (Member(archive, name) for name in names)}
    numbers = {int(m[1]): item for n, item in found.items() if (m := _NUMBERED.fullmatch(n))}
    if len(numbers) == len(found):
        order = {id(weight): i for i, weight in enumerate(model.parameters())}
        here = [(path, order[id(v)]) for place in places(model) for path, v in place.items()]
        found = {path: numbers[i] for path, i in here if i in numbers}
        found |= {f"arr_{i}": item for i, item in numbers.items() if i >= len(order)}
    assign_all(weight_pairs(model, found, archive.size, skip_mismatch))
