"""Small models, and helpers, for the tests of files."""

from __future__ import annotations

import tracemalloc
import zipfile

import h5py
import numpy as np
import pytest

import picodl as P
from picodl import layers, saving

FORMATS = (".weights.h5", ".keras", ".h5", ".npz", ".safetensors")
MIB = 1 << 20
DATA = np.random.default_rng(0)
X = DATA.normal(size=(20, 4)).astype("float32")
Y = DATA.normal(size=(20, 3)).astype("float32")


def net(units=8, names=("a", "b"), compiled=False):
    model = P.Sequential(
        [P.Input((4,)), layers.Dense(units, "relu", name=names[0]), layers.Dense(3, name=names[1])]
    )
    if compiled:
        model.compile("adam", "mse", metrics=["mae"])
    return model


def same(a, b):
    return len(a.weights) == len(b.weights) and all(
        np.array_equal(x, y) for x, y in zip(a.get_weights(), b.get_weights(), strict=True)
    )


def save(model, path):
    write = model.save if str(path).endswith((".keras", ".h5")) else model.save_weights
    if str(path).endswith(".weights.h5"):
        write = model.save_weights
    write(path)
    return path


def structure(path):
    """What a weights file holds: path -> shape, and the names of the groups."""
    found = {}
    with h5py.File(path) as file:

        def visit(name, item):
            is_array = isinstance(item, h5py.Dataset)
            found[name] = item.shape if is_array else dict(item.attrs)

        file.visititems(visit)
    return found


def refused(path, match, limit=64 * MIB):
    """load_weights says what is wrong, takes little memory, and leaves the model as it was."""
    model = net()
    before = model.get_weights()
    tracemalloc.start()
    try:
        with pytest.raises(saving.FileError, match=match) as caught:
            model.load_weights(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert path.name in str(caught.value)
    assert peak < limit
    assert all(np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))


def rewrite(folder, change, name="bad.keras"):
    """A copy of the good archive whose members went through `change`."""
    with zipfile.ZipFile(folder / "good.keras") as source:
        members = {n: source.read(n) for n in source.namelist()}
    change(members)
    with zipfile.ZipFile(folder / name, "w") as target:
        for member, data in members.items():
            target.writestr(member, data)
    return folder / name


def model_refused(path, match, limit=64 * MIB):
    tracemalloc.start()
    try:
        with pytest.raises(saving.FileError, match=match) as caught:
            saving.load_model(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert path.name in str(caught.value) and peak < limit
