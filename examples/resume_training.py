"""Kill a training again and again: it goes on where it was and ends with the very same weights.

    python examples/resume_training.py [--kills 3]

A child process trains with BackupAndRestore and is killed without warning; the next one goes on.
In the end its weights and its log are compared, bit for bit, with those of an unbroken run.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import picodl
from picodl import callbacks, layers


def train(folder: Path, epochs: int) -> None:
    """What a user's script does: the same lines at the first start and at every restart."""
    picodl.utils.set_random_seed(0)
    (x, y), _ = picodl.datasets.digits.load_data()
    model = picodl.Sequential(
        [
            picodl.Input((64,)),
            layers.Rescaling(1 / 16),
            layers.Dense(128, activation="relu"),
            layers.Dropout(0.3),
            layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile("adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(
        x, y, epochs=epochs, verbose=0,
        callbacks=[
            callbacks.CSVLogger(folder / "log.csv", append=True),
            callbacks.BackupAndRestore(folder / "backup", save_freq=20),  # every 20 batches
        ],
    )  # fmt: skip
    np.savez(folder / "weights.npz", *model.get_weights())


def start(folder: Path, epochs: int) -> subprocess.Popen:
    folder.mkdir(exist_ok=True)
    command = [sys.executable, __file__, "--train", str(folder), "--epochs", str(epochs)]
    return subprocess.Popen(command)


def epochs_logged(folder: Path) -> int:
    log = folder / "log.csv"
    return max(len(log.read_text().splitlines()) - 1, 0) if log.exists() else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--train", type=Path, help="be the child that trains in this folder")
    options = parser.parse_args()
    if options.train:
        train(options.train, options.epochs)
        return

    with tempfile.TemporaryDirectory() as folder:
        unbroken, broken = Path(folder) / "unbroken", Path(folder) / "broken"
        if start(unbroken, options.epochs).wait():
            raise SystemExit("The unbroken training failed; see its error above.")
        kills = 0
        while not (broken / "weights.npz").exists():
            child = start(broken, options.epochs)
            if kills < options.kills:
                wanted = (kills + 1) * options.epochs // (options.kills + 1)
                while epochs_logged(broken) < wanted and child.poll() is None:
                    time.sleep(0.002)
                child.kill()
                kills += 1
                print(f"killed with {epochs_logged(broken)} epochs in the log")
            child.wait()
        with (
            np.load(unbroken / "weights.npz") as one,
            np.load(broken / "weights.npz") as other,
        ):
            same = all(one[name].tobytes() == other[name].tobytes() for name in one.files)
        logs = [(run / "log.csv").read_text() for run in (unbroken, broken)]
    print(
        f"after {kills} kills: weights {'equal' if same else 'DIFFER'}, bit for bit; "
        f"logs {'equal' if logs[0] == logs[1] else 'DIFFER'}"
    )
    if not same or logs[0] != logs[1]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
