"""A convolutional network on scikit-learn's digits as 8x8 images, with augmentation in the model.

    python examples/digits_cnn.py              # one run
    python examples/digits_cnn.py --runs 5     # five splits and seeds: median accuracy

Run k splits with random_state=k and seeds with k.
"""

from __future__ import annotations

import argparse
import statistics

from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import picodl
from picodl import layers, losses, optimizers


def make_model(steps: int) -> picodl.Sequential:
    """Small shifts in training, then two pairs of 3x3 convolutions and one pooling."""
    model = picodl.Sequential(
        [
            picodl.Input((8, 8, 1)),
            layers.Rescaling(1 / 16),
            layers.RandomTranslation(0.06, 0.06, fill_mode="constant"),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.BatchNormalization(),
            layers.Flatten(),
            layers.Dropout(0.4),
            layers.Dense(10),
        ]
    )
    model.compile(
        optimizer=optimizers.AdamW(optimizers.schedules.CosineDecay(0.002, steps)),
        loss=losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def run(seed: int, epochs: int, verbose: int | str) -> float:
    """One training; returns the accuracy on the test split."""
    digits = load_digits()
    images = digits.images[..., None].astype("float32")
    x_train, x_test, y_train, y_test = train_test_split(
        images, digits.target, test_size=0.2, random_state=seed
    )
    picodl.utils.set_random_seed(seed)
    model = make_model(epochs * -(-len(x_train) // 32))
    model.fit(x_train, y_train, batch_size=32, epochs=epochs, verbose=verbose)
    loss, accuracy = model.evaluate(x_test, y_test, verbose=0)
    print(f"seed {seed}: test loss {loss:.4f}, test accuracy {accuracy:.2%}")
    return accuracy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1, help="how many splits and seeds")
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()
    verbose = "auto" if options.runs == 1 else 0
    scores = [run(k, options.epochs, verbose) for k in range(options.runs)]
    if options.runs > 1:
        print(f"median {statistics.median(scores):.2%}, worst {min(scores):.2%}")


if __name__ == "__main__":
    main()
