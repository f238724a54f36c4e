"""Train on an HDF5 data set that is larger than the memory the script allows itself.

    python examples/out_of_core.py [--megabytes 400] [--cap 200]

fit reads the file in order, window by window, and shuffles inside the windows, so memory stays the
same however large the file is. The cap is enforced by the operating system where it can be.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import h5py
import numpy as np

import picodl
from picodl import layers

FEATURES = 128


def write(path: Path, megabytes: int) -> int:
    """Samples whose label is decided by ten of the features, written in pieces."""
    samples = megabytes * 2**20 // (4 * FEATURES)
    rng = np.random.default_rng(0)
    direction = rng.normal(size=10).astype("float32")
    with h5py.File(path, "w") as file:
        x = file.create_dataset("x", (samples, FEATURES), "float32")
        y = file.create_dataset("y", (samples,), "uint8")
        for start in range(0, samples, 20_000):
            part = rng.normal(size=(min(20_000, samples - start), FEATURES)).astype("float32")
            x[start : start + len(part)] = part
            y[start : start + len(part)] = part[:, :10] @ direction > 0
    return samples


def cap_memory(megabytes: int) -> bool:
    """Let the process have that much more address space than it has now; 0 sets no cap."""
    if not megabytes:
        return False
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except (ImportError, OSError):
        return False
    size = pages * resource.getpagesize() + megabytes * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=400, help="size of the file")
    parser.add_argument("--cap", type=int, default=200, help="megabytes training may take")
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()

    picodl.utils.set_random_seed(0)
    model = picodl.Sequential(
        [
            picodl.Input((FEATURES,)),
            layers.Dense(32, activation="relu"),
            layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile("adam", loss="binary_crossentropy", metrics=["accuracy"])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.h5"
        samples = write(path, options.megabytes)
        model.fit(np.zeros((256, FEATURES), "float32"), np.zeros(256), verbose=0)  # warm
        capped = cap_memory(options.cap)
        print(
            f"{samples} samples, {options.megabytes} MB; training may take {options.cap} MB"
            + ("" if capped else " (not enforced here)")
        )
        with h5py.File(path) as file:
            start = time.perf_counter()
            history = model.fit(
                file["x"], file["y"], batch_size=256, epochs=options.epochs,
                validation_split=0.1, verbose=2,
            )  # fmt: skip
            seconds = time.perf_counter() - start
    rate = samples * 0.9 * len(history.epoch) / seconds
    print(f"validation accuracy {history.history['val_accuracy'][-1]:.1%}, {rate:,.0f} samples/s")


if __name__ == "__main__":
    main()
