"""Transfer learning: train on the digits 0-4, freeze, and learn 5-9 from a few examples.

    python examples/transfer.py

Only the last layer is trained at first; then everything. With few steps, features that were learnt
on other digits are a better start than random ones.
"""

from __future__ import annotations

import argparse

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import picodl
from picodl import layers, losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=5, help="per stage")
    parser.add_argument("--examples", type=int, default=100, help="how many of 5-9 to learn from")
    options = parser.parse_args()
    picodl.utils.set_random_seed(0)

    digits = load_digits()
    x, y = (digits.data / 16).astype("float32").reshape(-1, 8, 8, 1), digits.target
    low, high = y < 5, y >= 5
    few, many, few_labels, labels = train_test_split(
        x[high], y[high] - 5, train_size=options.examples, random_state=0, stratify=y[high]
    )
    loss = losses.SparseCategoricalCrossentropy(from_logits=True)

    def train(model: picodl.Model, epochs: int, name: str) -> None:
        model.compile("adam", loss, metrics=["accuracy"])
        model.fit(few, few_labels, epochs=epochs, verbose=0)
        _, accuracy = model.evaluate(many, labels, verbose=0)
        count = sum(w.size for w in model.trainable_weights)
        print(f"{name:36} {count:6,} trained weights, test accuracy {accuracy:.1%}")

    features = picodl.Sequential(
        [
            picodl.Input((8, 8, 1)),
            layers.Conv2D(16, 3, activation="relu"),
            layers.Conv2D(32, 3, activation="relu"),
            layers.Flatten(),
        ],
        name="features",
    )
    scratch = picodl.Sequential([picodl.models.clone_model(features), layers.Dense(5)])
    train(scratch, 2 * options.epochs, f"from scratch, {options.examples} examples")

    first = picodl.Sequential([features, layers.Dropout(0.5), layers.Dense(5)])
    first.compile("adam", loss)
    first.fit(x[low], y[low], epochs=15, verbose=0)

    features.trainable = False
    before = features.get_weights()
    model = picodl.Sequential([features, layers.Dense(5)])
    train(model, options.epochs, "features of 0-4, new last layer")
    assert all(map(np.array_equal, before, features.get_weights()))

    features.trainable = True  # in effect from the next step on
    train(model, options.epochs, "then everything")


if __name__ == "__main__":
    main()
