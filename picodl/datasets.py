"""Data sets to begin with: small ones that scikit-learn brings or makes, large ones from files.

Each has `load_data()`, which gives (x_train, y_train), (x_test, y_test) ready for fit: float32
features, integer labels or float32 targets. Nothing is ever downloaded.

>>> (x_train, y_train), (x_test, y_test) = digits.load_data()
>>> x_train.shape, x_test.shape
((1437, 64), (360, 64))
"""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from picodl.typing import Array

Split: TypeAlias = tuple[tuple[Array, Array], tuple[Array, Array]]
_IDX_TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


class Bundled:
    """A data set that is part of scikit-learn.

    Args:
        name: of the loader in sklearn.datasets, such as "load_iris".
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def load_data(self, test_split: float = 0.2, seed: int = 113) -> Split:
        """The data, shuffled and split; the same for the same seed, classes evenly.

        Args:
            test_split: fraction of the samples for the test.
            seed: of the shuffling.
        """
        from sklearn import datasets

        bunch = getattr(datasets, self.name)()
        return _split(bunch.data, bunch.target, test_split, seed)

    def __repr__(self) -> str:
        return f"<data set {self.name.removeprefix('load_')}>"


class Generated:
    """A data set that scikit-learn makes from random numbers.

    Args:
        name: of the maker in sklearn.datasets, such as "make_moons".
        **defaults: arguments of the maker.
    """

    def __init__(self, name: str, **defaults: Any) -> None:
        self.name = name
        self.defaults = defaults

    def load_data(
        self, n_samples: int = 1000, test_split: float = 0.2, seed: int = 113, **options: Any
    ) -> Split:
        """New samples, split; the same for the same seed.

        Args:
            n_samples: of both parts together.
            test_split: fraction of the samples for the test.
            seed: of the samples and of the split.
            **options: further arguments of the maker, such as noise.
        """
        from sklearn import datasets

        options = {**self.defaults, **options}
        x, y = getattr(datasets, self.name)(n_samples, random_state=seed, **options)[:2]
        return _split(x, y, test_split, seed)

    def __repr__(self) -> str:
        return f"<data set {self.name.removeprefix('make_')}>"


class Stored:
    """Images that the user has in files: one .npz, or a folder of IDX files.

    Args:
        name: in messages.
        npz: usual name of the .npz file.
        folder: usual name of the folder.
        origin: where the files can be had.
    """

    def __init__(self, name: str, npz: str, folder: str, origin: str) -> None:
        self.name = name
        self.npz = npz
        self.folder = folder
        self.origin = origin

    def load_data(self, path: str | os.PathLike[str] | None = None) -> Split:
        """The images (n, height, width) and labels (n,) as uint8, as they are in the files.

        Args:
            path: an .npz with x_train, y_train, x_test, y_test, or a folder with
                train-images-idx3-ubyte and the three others, gzipped or not. By default they are
                looked for in ~/.keras/datasets, where Keras keeps its own.

        Raises:
            FileNotFoundError: if there is no such file; nothing is downloaded.
            ValueError: for a file of another kind.
        """
        home = Path.home() / ".keras" / "datasets"
        places = [home / self.npz, home / self.folder] if path is None else [Path(path)]
        for place in places:
            if place.is_dir():
                return self._from_folder(place)
            if place.is_file():
                return _from_npz(place)
        raise FileNotFoundError(
            f"{self.name} was not found at {' or '.join(map(str, places))}. picodl downloads "
            f"nothing: get the files from {self.origin} and pass their path to load_data()."
        )

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


def _from_npz(path: Path) -> Split:
    names = ("x_train", "y_train", "x_test", "y_test")
    with np.load(path, allow_pickle=False) as archive:
        missing = [name for name in names if name not in archive.files]
        if missing:
            raise ValueError(
                f"{path} must hold {', '.join(names)}; it lacks {', '.join(missing)}, and has "
                f"{', '.join(archive.files)}."
            )
        x_train, y_train, x_test, y_test = (archive[name] for name in names)
    return (x_train, y_train), (x_test, y_test)


def _split(x: Any, y: Any, test_split: float, seed: int) -> Split:
    from sklearn.model_selection import train_test_split

    x = np.asarray(x, np.float32)
    labels = np.asarray(y).dtype.kind in "iu"
    y = np.asarray(y, np.int64 if labels else np.float32)
    parts = train_test_split(
        x, y, test_size=test_split, random_state=seed, stratify=y if labels else None
    )
    x_train, x_test, y_train, y_test = parts
    return (x_train, y_train), (x_test, y_test)


digits = Bundled("load_digits")
iris = Bundled("load_iris")
wine = Bundled("load_wine")
breast_cancer = Bundled("load_breast_cancer")
diabetes = Bundled("load_diabetes")
moons = Generated("make_moons", noise=0.2)
circles = Generated("make_circles", noise=0.1, factor=0.5)
blobs = Generated("make_blobs", centers=3)
mnist = Stored("MNIST", "mnist.npz", "mnist", "http://yann.lecun.com/exdb/mnist")
fashion_mnist = Stored(
    "Fashion-MNIST",
    "fashion-mnist.npz",
    "fashion-mnist",
    "https://github.com/zalandoresearch/fashion-mnist",
)
