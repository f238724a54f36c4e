"""Sequences and texts as batches: padding, windows over a series, files of a folder."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from typing import Any

import numpy as np

from picodl.models.pydataset import PyDataset
from picodl.typing import Array


def pad_sequences(
    sequences: Iterable[Any],
    maxlen: int | None = None,
    dtype: Any = "int32",
    padding: str = "pre",
    truncating: str = "pre",
    value: Any = 0.0,
) -> Array:
    """Sequences of different lengths as one array.

    Args:
        sequences: lists or arrays; their items may be vectors.
        maxlen: the length of the result. Defaults to that of the longest.
        dtype: of the result.
        padding: where to fill short ones up: "pre" or "post".
        truncating: where to cut long ones: "pre" or "post".
        value: what to fill up with.

    Returns:
        (number of sequences, maxlen, ...).

    Raises:
        ValueError: for other words, or sequences whose items differ in shape.

    >>> pad_sequences([[1, 2, 3], [4]], maxlen=2).tolist()
    [[2, 3], [0, 4]]
    """
    for name, word in (("padding", padding), ("truncating", truncating)):
        if word not in ("pre", "post"):
            raise ValueError(f'pad_sequences: {name} must be "pre" or "post"; received {word!r}.')
    rows = list(sequences)
    for row in rows:
        if not hasattr(row, "__len__"):
            raise ValueError(f"pad_sequences expects a list of sequences, but found {row!r} in it.")
    longest = max((len(row) for row in rows), default=0)
    maxlen = longest if maxlen is None else maxlen
    item = next((np.shape(row)[1:] for row in rows if len(row)), ())
    kind = np.dtype(object if dtype in (str, "str", object, "object") else dtype)
    if isinstance(value, str) and kind.kind not in "OUS":
        raise ValueError(f"pad_sequences: the text {value!r} does not go with dtype {dtype!r}.")
    whole = np.full((len(rows), maxlen, *item), value, dtype=kind)
    for place, row in enumerate(rows):
        if len(row) == 0 or maxlen == 0:
            continue
        part = np.asarray(row[-maxlen:] if truncating == "pre" else row[:maxlen], dtype=kind)
        if part.shape[1:] != item:
            raise ValueError(
                f"pad_sequences: the items of sequence {place} have shape {part.shape[1:]}, those "
                f"of the first one {item}."
            )
        if padding == "pre":
            whole[place, maxlen - len(part) :] = part
        else:
            whole[place, : len(part)] = part
    return whole


class _Windows(PyDataset):
    """Batches of windows over a series."""

    def __init__(self, data: Any, targets: Any, starts: Array, offsets: Array, size: int) -> None:
        super().__init__()
        self.data, self.targets = data, targets
        self.starts, self.offsets, self.size = starts, offsets, size

    def __len__(self) -> int:
        return math.ceil(len(self.starts) / self.size)

    def __getitem__(self, index: int) -> Any:
        starts = self.starts[index * self.size : (index + 1) * self.size]
        x = self.data[starts[:, None] + self.offsets]
        return x if self.targets is None else (x, self.targets[starts])


def timeseries_dataset_from_array(
    data: Any,
    targets: Any,
    sequence_length: int,
    sequence_stride: int = 1,
    sampling_rate: int = 1,
    batch_size: int | None = 128,
    shuffle: bool = False,
    seed: int | None = None,
    start_index: int | None = None,
    end_index: int | None = None,
    format: str = "tf",
) -> PyDataset:
    """Windows over a series, with the target that belongs to the start of each.

    Args:
        data: the series, steps first.
        targets: target i belongs to the window that starts at step i; None for windows alone.
        sequence_length: steps in a window.
        sequence_stride: steps from the start of one window to that of the next.
        sampling_rate: steps between two of a window.
        batch_size: windows in a batch; None for single windows without a batch axis.
        shuffle: take the windows in random order, the same in every epoch.
        seed: of that order.
        start_index, end_index: use this part of the series only.
        format: accepted; the result is a PyDataset.

    Returns:
        A data set for fit, evaluate and predict.

    Raises:
        ValueError: for numbers below 1, or a series shorter than a window.

    >>> windows = timeseries_dataset_from_array(np.arange(5), np.arange(2, 5), 2)
    >>> [part.tolist() for part in windows[0]]
    [[[0, 1], [1, 2], [2, 3]], [2, 3, 4]]
    """
    data = np.asarray(data)
    targets = None if targets is None else np.asarray(targets)
    for name, number in (
        ("sequence_length", sequence_length),
        ("sequence_stride", sequence_stride),
        ("sampling_rate", sampling_rate),
        ("batch_size", 1 if batch_size is None else batch_size),
    ):
        if number < 1:
            raise ValueError(f"{name} must be at least 1; received {number}.")
    first = 0 if start_index is None else start_index
    last = len(data) if end_index is None else end_index
    if not 0 <= first < last <= len(data):
        raise ValueError(
            f"start_index={start_index} and end_index={end_index} do not mark a part of a series "
            f"of {len(data)} steps."
        )
    count = last - first - (sequence_length - 1) * sampling_rate
    if targets is not None:
        count = min(count, min(last, len(targets)) - first)
    if count < 1:
        raise ValueError(
            f"A series of {last - first} steps (and {0 if targets is None else len(targets)} "
            f"targets) has no window of {sequence_length} steps taken every {sampling_rate}."
        )
    starts = first + np.arange(0, count, sequence_stride)
    if shuffle:
        np.random.default_rng(seed).shuffle(starts)
    offsets = np.arange(sequence_length) * sampling_rate
    if batch_size is None:
        return _Singles(data, targets, starts, offsets, 1)
    return _Windows(data, targets, starts, offsets, batch_size)


class _Singles(_Windows):
    """Windows without a batch axis."""

    def __getitem__(self, index: int) -> Any:
        batch = super().__getitem__(index)
        return batch[0] if self.targets is None else (batch[0][0], batch[1][0])


class _Texts(PyDataset):
    """Batches of texts read from files when they are asked for."""

    def __init__(
        self,
        paths: list[str],
        labels: Any,
        size: int | None,
        max_length: int | None,
        names: list[str],
    ) -> None:
        super().__init__()
        self.file_paths, self.labels, self.class_names = paths, labels, names
        self.size, self.max_length = size, max_length

    def __len__(self) -> int:
        return math.ceil(len(self.file_paths) / (self.size or 1))

    def __getitem__(self, index: int) -> Any:
        size = self.size or 1
        part = slice(index * size, (index + 1) * size)
        texts = np.array([_read(p, self.max_length) for p in self.file_paths[part]], dtype=object)
        labels = None if self.labels is None else self.labels[part]
        if self.size is None:
            return texts[0] if labels is None else (texts[0], labels[0])
        return texts if labels is None else (texts, labels)


def _read(path: str, length: int | None) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read() if length is None else file.read(length)


def text_dataset_from_directory(
    directory: Any,
    labels: Any = "inferred",
    label_mode: str | None = "int",
    class_names: Any = None,
    batch_size: int | None = 32,
    max_length: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
    validation_split: float | None = None,
    subset: str | None = None,
    follow_links: bool = False,
    format: str = "tf",
    verbose: bool = True,
) -> Any:
    """The .txt files of a folder as batches of texts and labels.

    Args:
        directory: the folder; with inferred labels it has a folder for each class.
        labels: "inferred" from the folders, a list with one for each file in the order of their
            paths, or None.
        label_mode: "int", "categorical" (one-hot), "binary" (0.0 or 1.0), or None for no labels.
        class_names: the folders to use, in this order. Defaults to all, by name.
        batch_size: texts in a batch; None for single texts.
        max_length: characters read of a text. Defaults to all.
        shuffle: mix the files, in the same order in every epoch.
        seed: of that order; needed with validation_split and shuffle.
        validation_split: the fraction, taken from the end, that is for validation.
        subset: "training", "validation" or "both", with validation_split.
        follow_links: whether to go into linked folders.
        format: accepted; the result is a PyDataset.
        verbose: print how many files were found.

    Returns:
        A data set with `class_names` and `file_paths`; for subset "both" two of them.

    Raises:
        ValueError: for settings that do not go together, or a folder without texts.
    """
    if label_mode not in ("int", "categorical", "binary", None):
        raise ValueError(
            f'label_mode must be "int", "categorical", "binary" or None; received {label_mode!r}.'
        )
    _check_split(validation_split, subset, shuffle, seed)
    inferred = isinstance(labels, str) and labels == "inferred"
    if not inferred and class_names is not None:
        raise ValueError('class_names goes with labels="inferred" only.')
    directory = os.fspath(directory)
    if inferred:
        found = sorted(
            d for d in os.listdir(directory) if os.path.isdir(os.path.join(directory, d))
        )
        names = found if class_names is None else list(class_names)
        if set(names) != set(found):
            raise ValueError(f"class_names {names} are not the folders found: {found}.")
        files = [(p, i) for i, n in enumerate(names) for p in _files(directory, n, follow_links)]
        paths, numbers = [p for p, _ in files], np.array([i for _, i in files], "int32")
    else:
        names = []
        paths = _files(directory, "", follow_links)
        numbers = np.zeros(0) if labels is None else np.asarray(labels)
        if labels is not None and len(numbers) != len(paths):
            raise ValueError(f"{len(numbers)} labels do not go with {len(paths)} files.")
    if not paths:
        raise ValueError(f"No .txt files were found in {directory!r}.")
    if label_mode == "binary" and inferred and len(names) != 2:
        raise ValueError(f'label_mode="binary" needs two classes; found {len(names)}: {names}.')
    if verbose:
        print(
            f"Found {len(paths)} files"
            + (f" belonging to {len(names)} classes." if inferred else ".")
        )
    order = np.arange(len(paths))
    if shuffle:
        np.random.default_rng(seed).shuffle(order)
    without = labels is None or label_mode is None
    coded = None if without else _coded(numbers, label_mode, len(names))

    def part(chosen: Array) -> _Texts:
        own = None if coded is None else coded[chosen]
        return _Texts([paths[i] for i in chosen], own, batch_size, max_length, names)

    if validation_split is None:
        return part(order)
    cut = len(order) - int(validation_split * len(order))
    parts = {"training": part(order[:cut]), "validation": part(order[cut:])}
    return tuple(parts.values()) if subset == "both" else parts[str(subset)]


def _check_split(split: float | None, subset: str | None, shuffle: bool, seed: int | None) -> None:
    if (split is None) != (subset is None):
        raise ValueError("validation_split and subset go together; give both or none.")
    if split is None:
        return
    if not 0 < split < 1:
        raise ValueError(f"validation_split must lie between 0 and 1; received {split}.")
    if subset not in ("training", "validation", "both"):
        raise ValueError(f'subset must be "training", "validation" or "both"; received {subset!r}.')
    if shuffle and seed is None and subset != "both":
        raise ValueError(
            "With validation_split and shuffle give a seed, so that training and validation are "
            "cut from the same order."
        )


def _files(directory: str, name: str, follow_links: bool) -> list[str]:
    """The paths of the .txt files below a folder, sorted."""
    found = []
    for folder, _, files in os.walk(os.path.join(directory, name), followlinks=follow_links):
        found += [os.path.join(folder, f) for f in files if f.lower().endswith(".txt")]
    return sorted(found)


def _coded(numbers: Array, mode: str | None, classes: int) -> Array:
    if mode == "categorical":
        return np.eye(classes or int(numbers.max()) + 1, dtype="float32")[numbers]
    return numbers.astype("float32")[:, None] if mode == "binary" else numbers.astype("int32")
