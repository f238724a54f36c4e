"""Images: MNIST and Fashion-MNIST, CIFAR-10 and CIFAR-100."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import numpy as np

from picodl import config
from picodl.datasets.files import KERAS, Place, Source, Split, cache, places_of, read_npz
from picodl.datasets.pickled import Pickled, read_pickled
from picodl.saving.files import FileError, loading
from picodl.typing import Array

_IDX_TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
_IDX_FILES = [
    f"{part}-{kind}-ubyte.gz"
    for part in ("train", "t10k")
    for kind in ("images-idx3", "labels-idx1")
]
_BATCH_BYTES = 256 << 20
MNIST = [
    Source(
        "mnist.npz",
        f"{KERAS}mnist.npz",
        "731c5ac602752760c8e48fbffcf8c3b850d9dc2a2aedcf2cc48468fc17b673d1",
    )
]
FASHION_MNIST = [
    Source(name, KERAS + name, cache_subdir="datasets/fashion-mnist") for name in _IDX_FILES
]


class Stored:
    """Images in files: one .npz, or a folder of IDX files.

    Args:
        name: in messages.
        npz: usual name of the .npz file.
        folder: usual name of the folder.
        sources: what Keras downloads.
    """

    def __init__(self, name: str, npz: str, folder: str, sources: list[Source]) -> None:
        self.name = name
        self.npz = npz
        self.folder = folder
        self.sources = sources

    def load_data(self, path: Place | None = None, *, download: bool = False) -> Split:
        """The images (n, height, width) and labels (n,) as uint8, as they are in the files.

        Args:
            path: an .npz with x_train, y_train, x_test, y_test, or a folder with
                train-images-idx3-ubyte and the three others, gzipped or not. A bare name is looked
                for in ~/.keras/datasets, where Keras keeps its own; so are the usual names by
                default.
            download: get the files if they are not there, from where Keras gets them.

        Raises:
            FileNotFoundError: if there is no such file, with the command that gets it.
            ValueError: for a file of another kind.
        """
        if path is None:
            places = [cache() / self.npz, cache() / self.folder]
        else:
            places = places_of(path)
        found = next((place for place in places if place.exists()), None)
        if download and path is None and len(self.sources) > 1 and found == places[1]:
            found = None  # it may lack some of them
        if found is None and not download and len(self.sources) > 1:
            commands = "".join(f"\n    {source.command(source.name)}" for source in self.sources)
            raise FileNotFoundError(
                f"{self.name} was not found at {' or '.join(map(str, places))}. Nothing is "
                f"downloaded unasked: pass download=True, or the path of files that you have, or "
                f"get them with{commands}"
            )
        if found is None:
            got = [source.get(places, download) for source in self.sources]
            found = got[0] if len(got) == 1 else got[0].parent
        return self._from_folder(found) if found.is_dir() else _from_npz(found)

    def _from_folder(self, folder: Path) -> Split:
        parts = []
        for part in ("train", "t10k"):
            images = read_idx(_existing(folder, f"{part}-images-idx3-ubyte"))
            labels = read_idx(_existing(folder, f"{part}-labels-idx1-ubyte"))
            if len(images) != len(labels):
                raise ValueError(
                    f"{folder} holds {len(images)} images but {len(labels)} labels of the part "
                    f"{part!r}."
                )
            parts.append((images, labels))
        return parts[0], parts[1]

    def __repr__(self) -> str:
        return f"<data set {self.name}>"


def _from_npz(path: Path) -> Split:
    x_train, y_train, x_test, y_test = read_npz(path, "x_train", "y_train", "x_test", "y_test")
    return (x_train, y_train), (x_test, y_test)


class Cifar10:
    """Colour photographs of 32 times 32 pixels in 10 classes: 50000 to train, 10000 to test.

    The classes: airplane, automobile, bird, cat, deer, dog, frog, horse, ship, truck.

    Reference: Krizhevsky, 2009, "Learning Multiple Layers of Features from Tiny Images".
    """

    source = Source(
        "cifar-10-batches-py-target",
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
        extract=True,
    )
    inside = "cifar-10-batches-py"

    def load_data(self, path: Place | None = None, *, download: bool = False) -> Split:
        """The images (n, 32, 32, 3) and labels (n, 1), as uint8.

        The batches are pickles of Python; they are read without unpickling, so nothing runs.

        Args:
            path: the folder with data_batch_1 to data_batch_5 and test_batch, or the one around
                it. By default it is looked for in ~/.keras/datasets, under the names of Keras.
            download: get the files if they are not there, from where Keras gets them.

        Returns: images with the channels first if `config.image_data_format()` says so.

        Raises:
            FileNotFoundError: if there is no such folder, with the command that gets it.
            ValueError: for files that hold anything else.
        """
        folder = _cifar_folder(self.source, self.inside, "test_batch", path, download)
        parts = [_read_batch(folder / f"data_batch_{i}", b"labels", 10) for i in range(1, 6)]
        x_test, y_test = _read_batch(folder / "test_batch", b"labels", 10)
        x_train, y_train = (np.concatenate(kind) for kind in zip(*parts, strict=True))
        return (x_train, y_train.astype(np.uint8)), (x_test, y_test.astype(np.uint8))

    def __repr__(self) -> str:
        return "<data set CIFAR-10>"


class Cifar100:
    """Colour photographs of 32 times 32 pixels in 100 classes, which form 20 larger ones.

    Reference: Krizhevsky, 2009, "Learning Multiple Layers of Features from Tiny Images".
    """

    source = Source(
        "cifar-100-python-target",
        "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
        extract=True,
    )
    inside = "cifar-100-python"

    def load_data(
        self, label_mode: str = "fine", path: Place | None = None, *, download: bool = False
    ) -> Split:
        """The images (n, 32, 32, 3) as uint8 and labels (n, 1) as int64.

        Args:
            label_mode: "fine" for the 100 classes, "coarse" for the 20.
            path: the folder with the files train and test, or the one around it. By default it is
                looked for in ~/.keras/datasets, under the names of Keras.
            download: get the files if they are not there, from where Keras gets them.

        Returns: images with the channels first if `config.image_data_format()` says so.

        Raises:
            FileNotFoundError: if there is no such folder, with the command that gets it.
            ValueError: for another label_mode, or files that hold anything else.
        """
        if label_mode not in ("fine", "coarse"):
            raise ValueError(f'label_mode must be "fine" or "coarse"; received {label_mode!r}.')
        folder = _cifar_folder(self.source, self.inside, "train", path, download)
        key = f"{label_mode}_labels".encode()
        classes = 100 if label_mode == "fine" else 20
        train, test = (_read_batch(folder / name, key, classes) for name in ("train", "test"))
        return train, test

    def __repr__(self) -> str:
        return "<data set CIFAR-100>"


def _cifar_folder(
    source: Source, inside: str, needed: str, path: Place | None, download: bool
) -> Path:
    outer = [source.name, inside] if path is None else [path]
    roots = [places_of(name)[0] for name in outer] if path is None else places_of(outer[0])
    places = [place for root in roots for place in (root / inside, root)]
    for place in places:
        if (place / needed).is_file():
            return place
    return source.get(places, download) / inside


def _read_batch(path: Path, key: bytes, classes: int) -> tuple[Array, Array]:
    """Images and labels (n, 1) of one file of CIFAR."""
    with loading(str(path)):
        if path.stat().st_size > _BATCH_BYTES:
            raise FileError(f"{path} is larger than any file of CIFAR.")
        batch = read_pickled(path.read_bytes())
        batch = {_key(k): v for k, v in batch.items()} if isinstance(batch, dict) else {}
        data, labels = batch.get(b"data"), batch.get(key)
        images = data.value if isinstance(data, Pickled) else None
        if not isinstance(images, np.ndarray) or images.dtype != np.uint8:
            raise FileError(f"{path} holds no images under 'data', an array of uint8.")
        if type(labels) is not list or any(type(n) is not int for n in labels):
            raise FileError(f"{path} holds no list of integers under {key.decode()!r}.")
        if labels and not 0 <= min(labels) <= max(labels) < classes:
            raise FileError(f"{path} holds labels that are not from 0 to {classes - 1}.")
        if images.shape != (len(labels), 3072):
            raise FileError(
                f"{path} must hold one row of 3072 numbers for each of its {len(labels)} labels, "
                f"but has an array of shape {images.shape}."
            )
        images = images.reshape(-1, 3, 32, 32)
        if config.image_data_format() == "channels_last":
            images = np.ascontiguousarray(images.transpose(0, 2, 3, 1))
        return images, np.array(labels, np.int64).reshape(-1, 1)


def _key(name: Any) -> bytes:
    return name.encode() if isinstance(name, str) else bytes(name)


def read_idx(path: str | os.PathLike[str]) -> Array:
    """The array in an IDX file, the format of MNIST; .gz is unpacked.

    Raises:
        ValueError: for a file of another kind, or one that is cut off.
    """
    path = os.fspath(path)
    with gzip.open(path) if path.endswith(".gz") else open(path, "rb") as file:
        head = file.read(4)
        if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in _IDX_TYPES:
            raise ValueError(f"{path} is no IDX file: it begins with {head!r}.")
        sizes = np.frombuffer(file.read(4 * head[3]), ">u4")
        dtype = np.dtype(_IDX_TYPES[head[2]])
        data = file.read()
    shape = tuple(int(n) for n in sizes)
    needed = dtype.itemsize
    for n in shape:
        needed *= n
    if len(shape) != head[3] or len(data) != needed:
        raise ValueError(
            f"{path} is damaged: its header says shape {shape} of {dtype}, {needed} bytes, but "
            f"{len(data)} follow."
        )
    values = np.frombuffer(data, dtype).reshape(shape)
    return values.astype(dtype.newbyteorder("="))


def _existing(folder: Path, name: str) -> Path:
    for candidate in (folder / name, folder / f"{name}.gz", folder / name.replace("-idx", ".idx")):
        if candidate.is_file():
            return candidate
    raise FileNotFoundError(f"{folder} holds no {name}, gzipped or not.")
