"""Train a small network on scikit-learn's digits, log it, save its weights and load them again.

    python examples/digits_mlp.py              # one run
    python examples/digits_mlp.py --runs 5     # five splits and seeds: median and best accuracy

Writes digits_log.csv and digits.weights.h5 into the folder given by --out (default: here).
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import picodl
from picodl import callbacks, layers, losses, optimizers


def make_model(x_train: np.ndarray) -> picodl.Sequential:
    """Inputs standardised by a layer, then 64-128-64-10 with GELU."""
    normalization = layers.Normalization()
    normalization.adapt(x_train)
    model = picodl.Sequential(
        [
            picodl.Input((64,)),
            normalization,
            layers.Dense(128, activation="gelu"),
            layers.Dense(64, activation="gelu"),
            layers.Dense(10),
        ]
    )
    model.compile(
        optimizer=optimizers.AdamW(learning_rate=0.001),
        loss=losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def run(seed: int, epochs: int, folder: Path, verbose: int | str) -> float:
    """One training; returns the accuracy on the test split."""
    digits = load_digits()
    x_train, x_test, y_train, y_test = train_test_split(
        digits.data.astype("float32"), digits.target, test_size=0.2, random_state=seed
    )
    picodl.utils.set_random_seed(seed)
    model = make_model(x_train)
    log = callbacks.CSVLogger(folder / "digits_log.csv")
    model.fit(x_train, y_train, batch_size=32, epochs=epochs, verbose=verbose, callbacks=[log])
    loss, accuracy = model.evaluate(x_test, y_test, verbose=0)

    weights = folder / "digits.weights.h5"
    model.save_weights(weights)
    fresh = make_model(x_train)
    fresh.load_weights(weights)
    same = np.array_equal(fresh.predict(x_test, verbose=0), model.predict(x_test, verbose=0))
    if not same:
        raise SystemExit("The loaded weights predict something else.")
    print(f"seed {seed}: test loss {loss:.4f}, test accuracy {accuracy:.2%}")
    return accuracy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1, help="how many splits and seeds")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path(), help="folder for the log and weights")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    verbose = "auto" if options.runs == 1 else 0
    scores = [run(k, options.epochs, options.out, verbose) for k in range(options.runs)]
    if options.runs > 1:
        print(f"median {statistics.median(scores):.2%}, best {max(scores):.2%}")
    print(f"The log is in {options.out / 'digits_log.csv'}; loaded weights predict the same.")


if __name__ == "__main__":
    main()
