"""Transfer learning: train on the digits 0-4, freeze, and learn 5-9 from a few examples.

    python examples/transfer.py

Only the last layer is trained at first; then everything, with a small learning rate.
"""

from __future__ import annotations

import argparse

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import picodl
from picodl import layers, losses, optimizers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--examples", type=int, default=50, help="how many of 5-9 to learn from")
    options = parser.parse_args()
    picodl.utils.set_random_seed(0)

    digits = load_digits()
    x, y = (digits.data / 16).astype("float32"), digits.target
    low, high = y < 5, y >= 5
    few, many, few_labels, labels = train_test_split(
        x[high], y[high] - 5, train_size=options.examples, random_state=0, stratify=y[high]
    )
    loss = losses.SparseCategoricalCrossentropy(from_logits=True)

    features = picodl.Sequential(
        [
            picodl.Input((64,)),
            layers.Dense(128, activation="relu"),
            layers.Dense(64, activation="relu"),
        ],
        name="features",
    )
    first = picodl.Sequential([features, layers.Dense(5)])
    first.compile("adam", loss, metrics=["accuracy"])
    first.fit(x[low], y[low], epochs=options.epochs, verbose=0)

    def test(model: picodl.Model, name: str) -> None:
        _, accuracy = model.evaluate(many, labels, verbose=0)
        print(f"{name:36} test accuracy on 5-9: {accuracy:.1%}")

    scratch = picodl.models.clone_model(picodl.Sequential([features, layers.Dense(5)]))
    scratch.compile("adam", loss, metrics=["accuracy"])
    scratch.fit(few, few_labels, epochs=options.epochs, verbose=0)
    test(scratch, f"from scratch, {options.examples} examples")

    features.trainable = False
    model = picodl.Sequential([features, layers.Dense(5)])
    model.compile("adam", loss, metrics=["accuracy"])
    before = features.get_weights()
    model.fit(few, few_labels, epochs=options.epochs, verbose=0)
    assert all(map(np.array_equal, before, features.get_weights()))
    test(model, "frozen features, new last layer")

    features.trainable = True
    model.compile(optimizers.Adam(3e-4), loss, metrics=["accuracy"])
    model.fit(few, few_labels, epochs=options.epochs, verbose=0)
    test(model, "then everything, slowly")


if __name__ == "__main__":
    main()
