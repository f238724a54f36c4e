"""Where the files of data sets lie, how they can be had, and arrays in .npz files."""

from __future__ import annotations

import io
import math
import os
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from picodl.datasets.pickled import Pickled, read_pickled
from picodl.saving.archive import Archive
from picodl.saving.files import FileError, loading
from picodl.saving.limits import MIB
from picodl.typing import Array

Split: TypeAlias = tuple[tuple[Array, Array], tuple[Array, Array]]
Place: TypeAlias = str | os.PathLike[str]
KERAS = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/"
_ARRAY_BYTES = 1024 * MIB  # of an array of numbers
_TEXT_BYTES = 64 * MIB  # of a list of texts; it takes some ten times as much memory


class Source:
    """A file of Keras's cache, and how to get it.

    Args:
        name: of the file, or of the folder it is unpacked to.
        origin: URL.
        file_hash: SHA-256 or MD5 of what is downloaded; None if Keras knows none.
        extract: whether it is an archive to be unpacked.
        cache_subdir: folder of the cache.
    """

    def __init__(
        self,
        name: str,
        origin: str,
        file_hash: str | None = None,
        extract: bool = False,
        cache_subdir: str = "datasets",
    ) -> None:
        self.name = name
        self.options: dict[str, Any] = {"origin": origin}
        if file_hash is not None:
            self.options["file_hash"] = file_hash
        if extract:
            self.options["extract"] = True
        if cache_subdir != "datasets":
            self.options["cache_subdir"] = cache_subdir

    def find(self, path: Place | None = None, download: bool = False) -> Path:
        """The file, which is downloaded only with download=True and if it is not there.

        Args:
            path: where it is. A bare name is looked for in the cache, as in Keras, and then in the
                working folder. Defaults to the name that Keras gives it.
        """
        places = places_of(self.name if path is None else path)
        found = next((place for place in places if place.is_file()), None)
        return found or self.get(places, download, places[0].name)

    def get(self, places: list[Path], download: bool, name: str = "") -> Path:
        """Download it into the cache, or say how that is done.

        Args:
            places: where it was looked for.
            download: do it.
            name: to give it there. Defaults to the name that Keras gives it.

        Raises:
            FileNotFoundError: without download, with the command.
            ValueError: for download when only a place outside the cache will do.
        """
        name = name or self.name
        if not download:
            raise FileNotFoundError(
                f"{self.name} was not found at {' or '.join(map(str, places))}. Nothing is "
                f"downloaded unasked: get it with {self.command(name)}, or pass download=True, or "
                f"the path of a file that you have."
            )
        if not places[0].is_relative_to(cache()):
            raise ValueError(
                f"download=True puts {self.name} into {cache()}, but it was looked for at "
                f"{places[0]}; leave out path, or put the file there yourself."
            )
        from picodl.downloads import get_file

        return Path(get_file(name, **self.options))

    def command(self, name: str) -> str:
        """The call that downloads it."""
        options = "".join(f", {key}={value!r}" for key, value in self.options.items())
        return f"picodl.utils.get_file({name!r}{options})"


def cache() -> Path:
    """Keras's folder of data sets: $KERAS_HOME/datasets, else ~/.keras/datasets."""
    from picodl.downloads import keras_home

    return Path(keras_home()) / "datasets"


def places_of(path: Place) -> list[Path]:
    """Where a file may be: a bare name in the cache and then in the working folder."""
    name = os.fspath(path)
    own = Path(name).expanduser()
    return [cache() / name, own] if name == os.path.basename(name) else [own]


def read_npz(path: Path, *names: str) -> list[Any]:
    """Arrays of an .npz file, by name; one of objects becomes a list of lists of integers.

    Nothing is unpickled.

    Raises:
        FileError: a ValueError that names the file, for one that lacks an array, is damaged, or
            holds anything but numbers and lists of them.
    """
    with loading(str(path)), open(path, "rb") as file:
        archive = Archive(file)
        missing = [name for name in names if f"{name}.npy" not in archive]
        if missing:
            held = ", ".join(name.removesuffix(".npy") for name in archive.names())
            raise FileError(
                f"{path} must hold {', '.join(names)}; it lacks {', '.join(missing)}, and has "
                f"{held or 'nothing'}."
            )
        return [_array(archive, name) for name in names]


def _array(archive: Archive, name: str) -> Any:
    data = archive.read(f"{name}.npy", _ARRAY_BYTES)
    stream = io.BytesIO(data)
    wide = np.lib.format.read_magic(stream) != (1, 0)
    header = np.lib.format.read_array_header_2_0 if wide else np.lib.format.read_array_header_1_0
    shape, fortran, dtype = header(stream)
    rest = memoryview(data)[stream.tell() :]
    if dtype.kind == "O":
        if len(data) > _TEXT_BYTES:
            raise FileError(f"{name} unpacks to more than {_TEXT_BYTES // MIB} MiB of lists.")
        return sequences(read_pickled(bytes(rest)), name, len(rest))
    if dtype.kind not in "fiub" or len(rest) != math.prod(shape) * dtype.itemsize:
        raise FileError(f"{name} holds {len(rest)} bytes for {dtype} data of shape {shape}.")
    values = np.frombuffer(rest, dtype).reshape(shape, order="F" if fortran else "C")
    return values.astype(dtype.newbyteorder("="))


def sequences(value: Any, name: str, size: int) -> list[list[int]]:
    """The lists in a pickled array of objects.

    Args:
        value: what `read_pickled` gives.
        name: in messages.
        size: bytes of the pickle, more than it has numbers if none is there twice.

    Raises:
        FileError: for anything but lists, or arrays, of integers.
    """
    if not isinstance(value, Pickled) or not isinstance(value.value, tuple):
        raise FileError(f"{name} is no array of lists.")
    found, total = [], 0
    for item in value.value[1]:
        if isinstance(item, Pickled) and isinstance(item.value, np.ndarray):
            array = item.value
            item = array.tolist() if array.ndim == 1 and array.dtype.kind in "iu" else None
        total += len(item) if type(item) is list else 0
        plain = type(item) is list and total <= size and {type(n) for n in item} <= {int}
        if not plain or (item and max(max(item), -min(item)) >= 1 << 31):
            raise FileError(f"{name} must hold lists of integers of 32 bits, and nothing else.")
        found.append(item)
    return found


def shuffled(generator: np.random.RandomState, count: int) -> Array:
    """The numbers from 0 to count - 1 in the order that Keras gives them."""
    order = np.arange(count)
    generator.shuffle(order)
    return order


def check_split(test_split: float) -> None:
    """Raise a ValueError unless it is a fraction."""
    if not 0 <= test_split < 1:
        raise ValueError(
            f"test_split must be a fraction from 0 to 1, less than 1; received {test_split!r}."
        )
