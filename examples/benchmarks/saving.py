"""Saving and loading a large model beside h5py's own writing and reading of the same arrays.

Contenders take turns; the best of many runs counts. Printed are ratios to h5py: 1 means as fast as
`h5py.File[...] = array` and `h5py.File[...][()]`, which check nothing and do not sync. "with fsync"
is h5py's writing followed by an fsync, as picodl does it. Memory is the peak of arrays that numpy
allocates, as a multiple of the weights.

    python examples/benchmarks/saving.py [--megabytes 100] [--rounds 15] [--folder DIR]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import h5py
import numpy as np

import picodl

Action = Callable[[], Any]


def build(megabytes: float) -> picodl.Sequential:
    width = int((megabytes * 1e6 / 4 / 4) ** 0.5)
    inside = [picodl.layers.Dense(width) for _ in range(4)]
    return picodl.Sequential([picodl.Input((width,)), *inside])


def h5py_write(path: str, arrays: list[Any], sync: bool = False) -> None:
    with h5py.File(path, "w") as file:
        for i, array in enumerate(arrays):
            file[str(i)] = array
    if sync:
        with open(path, "rb") as file:
            os.fsync(file.fileno())


def h5py_read(path: str) -> list[Any]:
    with h5py.File(path) as file:
        return [file[str(i)][()] for i in range(len(file))]


def turns(actions: dict[str, Action], rounds: int) -> dict[str, float]:
    """The best time of each, in seconds."""
    best = dict.fromkeys(actions, float("inf"))
    for _ in range(rounds):
        for name, action in actions.items():
            start = time.perf_counter()
            action()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def peak(action: Action) -> float:
    """Bytes that numpy holds at most above what it held before."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    kept = action()
    found = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    del kept
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--megabytes", type=float, default=100)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--folder", help="where to write; defaults to a temporary folder")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        run(build(given.megabytes), folder, given.rounds)


def run(model: picodl.Sequential, folder: str, rounds: int) -> None:
    arrays = [w.numpy() for w in model.weights]
    size = sum(a.nbytes for a in arrays)
    at = {n: os.path.join(folder, n) for n in ("x.weights.h5", "x.h5", "x.keras", "x.safetensors")}
    plain = os.path.join(folder, "plain.h5")
    print(f"{size / 1e6:.0f} MB in {len(arrays)} arrays, {os.cpu_count()} processors")

    writers: dict[str, Action] = {
        "h5py": lambda: h5py_write(plain, arrays),
        "h5py with fsync": lambda: h5py_write(plain, arrays, sync=True),
        "save_weights .weights.h5": lambda: model.save_weights(at["x.weights.h5"]),
        "save .keras": lambda: model.save(at["x.keras"]),
        "save .h5": lambda: model.save(at["x.h5"]),
        "save_weights .safetensors": lambda: model.save_weights(at["x.safetensors"]),
    }
    readers: dict[str, Action] = {
        "h5py": lambda: h5py_read(plain),
        "load_weights .weights.h5": lambda: model.load_weights(at["x.weights.h5"]),
        "load_weights .h5": lambda: model.load_weights(at["x.h5"]),
        "load_weights .safetensors": lambda: model.load_weights(at["x.safetensors"]),
        "load_model .keras": lambda: picodl.models.load_model(at["x.keras"]),
        "load_model .h5": lambda: picodl.models.load_model(at["x.h5"]),
    }
    for title, actions in (("writing", writers), ("reading", readers)):
        best = turns(actions, rounds)
        print(f"\n{title:28s} {'ms':>8s} {'times h5py':>11s} {'memory':>8s}")
        for name, seconds in best.items():
            ratio = seconds / best["h5py"]
            memory = peak(actions[name]) / size
            print(f"{name:28s} {1e3 * seconds:8.1f} {ratio:11.2f} {memory:8.2f}")
    if not all(np.array_equal(a, w.data) for a, w in zip(arrays, model.weights, strict=True)):
        raise SystemExit("the weights changed on the way")


if __name__ == "__main__":
    main()
