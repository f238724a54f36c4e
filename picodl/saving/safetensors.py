"""`.safetensors`: the weights alone, as a header in JSON and the bytes of the arrays.

The layout: eight bytes with the length of the header, the header {name: {"dtype", "shape",
"data_offsets"}}, then the data, without holes or overlap. Names are the paths of `.weights.h5`;
"__metadata__" holds the checksum of each array (see `checksum`), compared where it is there.
"""

from __future__ import annotations

import json
import math
import os
from typing import Any

import numpy as np

from picodl.saving.checksum import checksum
from picodl.saving.files import FileError
from picodl.saving.items import Item, assign_all, fill
from picodl.saving.layout import places
from picodl.saving.limits import MIB, parse_json
from picodl.saving.weights_h5 import weight_pairs
from picodl.typing import Array

_DTYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1",
}  # fmt: skip
_NAMES = {np.dtype(code): name for name, code in _DTYPES.items()}


def write_weights(stream: Any, model: Any) -> None:
    """Write a model's weights to a binary file."""
    write_arrays(stream, {path: a for place in places(model) for path, a in place.values()})


def write_arrays(stream: Any, arrays: dict[str, Array]) -> None:
    """Write named arrays to a binary file."""
    sums = {f"crc32:{name}": str(checksum(name, array)) for name, array in arrays.items()}
    header: dict[str, Any] = {"__metadata__": {"format": "picodl", **sums}}
    end = 0
    for name, array in arrays.items():
        start, end = end, end + array.nbytes
        dtype = _NAMES[array.dtype.newbyteorder("<")]
        entry = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [start, end]}
        header[name] = entry
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    stream.write(len(text).to_bytes(8, "little"))
    stream.write(text)
    for array in arrays.values():
        little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        stream.write(little.reshape(-1).view(np.uint8).data)


class Entry:
    """An array of the file; an `Item`."""

    def __init__(self, file: Any, name: str, entry: Any, base: int, wanted: Any = None) -> None:
        try:
            code, shape, (start, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
            self.bfloat16 = code == "BF16"
            stored = np.dtype("<u2") if self.bfloat16 else np.dtype(_DTYPES[code])
            size = stored.itemsize * math.prod(shape)
            good = all(type(n) is int and n >= 0 for n in [*shape, start, end])
        except (TypeError, KeyError, ValueError) as error:
            raise FileError(f"{name} has a damaged entry in the header: {error}") from error
        if not good or end - start != size:
            raise FileError(f"{name}: shape {shape} of {code} does not fill the bytes it is given.")
        self.file, self.name, self.shape = file, name, tuple(shape)
        self.stored, self.start, self.end, self.base = stored, start, end, base
        self.wanted = wanted
        self.dtype = np.dtype(np.float32) if self.bfloat16 else stored

    def read(self, out: Array) -> None:
        """Read the values."""
        values = np.empty(self.shape, self.stored) if self.bfloat16 else out
        self.file.seek(self.base + self.start)
        if fill(self.file, values) != self.end - self.start:
            raise FileError(f"{self.name} is cut off.")
        if self.wanted is not None and str(checksum(self.name, values)) != self.wanted:
            raise FileError(f"{self.name} does not match its checksum: the file is damaged.")
        if self.bfloat16:
            out.view(np.uint32)[...] = values.astype(np.uint32) << 16


def read_entries(file: Any) -> dict[str, Entry]:
    """The arrays of a file by name, none of them read yet.

    Raises:
        FileError: if the header is damaged, or the data have holes or overlap.
    """
    size = os.fstat(file.fileno()).st_size
    file.seek(0)
    length = int.from_bytes(file.read(8), "little")
    if length > min(100 * MIB, size - 8):
        raise FileError(f"its header claims {length} bytes, more than there are.")
    header = parse_json(file.read(length), "the header")
    if not isinstance(header, dict):
        raise FileError("its header is not a JSON object.")
    notes = header.pop("__metadata__", None)
    notes = notes if isinstance(notes, dict) else {}
    found = {
        name: Entry(file, name, entry, 8 + length, notes.get(f"crc32:{name}"))
        for name, entry in header.items()
    }
    at = 0
    for entry in sorted(found.values(), key=lambda e: (e.start, e.end)):
        if entry.start != at:
            raise FileError(f"{entry.name} leaves a hole or overlaps with another array.")
        at = entry.end
    if at != size - 8 - length:
        raise FileError(f"it holds {size - 8 - length} bytes of data, its header describes {at}.")
    return found


def read_weights(file: Any, model: Any, skip_mismatch: bool = False) -> None:
    """Set a model's weights from a file; all or nothing.

    Raises:
        FileError: if something does not fit.
    """
    found: dict[str, Item] = dict(read_entries(file))
    size = os.fstat(file.fileno()).st_size
    assign_all(weight_pairs(model, found, size, skip_mismatch))
