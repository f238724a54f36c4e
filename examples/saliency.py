"""Ask a trained network which pixels it looked at: gradients with respect to the input.

    python examples/saliency.py
    python examples/saliency.py --picture saliency.png   # needs matplotlib

A network learns scikit-learn's digits. The gradient of a digit's score with respect to the pixels
says how much each pixel matters; times the pixel it says how much it contributed. Both are checked
by erasing pixels: the score must fall faster when the ones marked as important go first.

Reference: Simonyan, Vedaldi and Zisserman, 2013, "Deep inside convolutional networks: visualising
image classification models and saliency maps", arXiv:1312.6034.
"""

from __future__ import annotations

import argparse

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import picodl
from picodl import layers, losses, ops

SHADES = " .:-=+*#%@"


def make_model() -> picodl.Sequential:
    model = picodl.Sequential(
        [
            picodl.Input((64,)),
            layers.Dense(128, activation="relu"),
            layers.Dense(64, activation="relu"),
            layers.Dense(10),
        ]
    )
    model.compile(
        optimizer="adam",
        loss=losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def saliency(model: picodl.Sequential, x: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """The gradient of the score of each sample's class with respect to its pixels."""
    chosen = ops.one_hot(classes, 10)
    return picodl.grad(lambda x: (model(x) * chosen).sum())(x)


def falls(model: picodl.Sequential, x: np.ndarray, classes: np.ndarray, order: np.ndarray) -> float:
    """How many of the 64 pixels, erased in an order, change the answer: the mean over samples."""
    counts = np.full(len(x), 64)
    erased = x.copy()
    rows = np.arange(len(x))
    for k in range(64):
        erased[rows, order[:, k]] = 0
        changed = model.predict(erased, verbose=0).argmax(1) != classes
        counts = np.where(changed & (counts == 64), k + 1, counts)
    return float(counts.mean())


def show(image: np.ndarray) -> list[str]:
    """A picture of 8 by 8 pixels in characters."""
    scaled = np.clip(np.abs(image) / np.abs(image).max() * 9, 0, 9).astype(int).reshape(8, 8)
    return ["".join(SHADES[v] * 2 for v in row) for row in scaled]


def draw(path: str, x: np.ndarray, maps: np.ndarray) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, len(x), figsize=(1.5 * len(x), 3))
    for i, (image, values) in enumerate(zip(x, maps, strict=True)):
        axes[0, i].imshow(image.reshape(8, 8), cmap="gray_r")
        top = np.abs(values).max()
        axes[1, i].imshow(values.reshape(8, 8), cmap="RdBu_r", vmin=-top, vmax=top)
        axes[0, i].axis("off")
        axes[1, i].axis("off")
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--picture", help="write the maps to this file")
    options = parser.parse_args()

    picodl.utils.set_random_seed(0)
    digits = load_digits()
    x_train, x_test, y_train, y_test = train_test_split(
        (digits.data / 16).astype("f"), digits.target, test_size=0.2, random_state=0
    )
    model = make_model()
    model.fit(x_train, y_train, epochs=options.epochs, verbose=0)
    _, accuracy = model.evaluate(x_test, y_test, verbose=0)
    print(f"test accuracy {accuracy:.3f}")

    classes = model.predict(x_test, verbose=0).argmax(1)
    share = saliency(model, x_test, classes) * x_test  # what each pixel contributed
    first = [int(np.flatnonzero(y_test == digit)[0]) for digit in (3, 5, 8)]
    for i in first:
        print(f"\nthe {y_test[i]}, and the pixels that speak for {classes[i]}:")
        pairs = zip(show(x_test[i]), show(np.maximum(share[i], 0)), strict=True)
        print("\n".join(f"  {left}   {right}" for left, right in pairs))

    rng = np.random.default_rng(0)
    by_share = falls(model, x_test, classes, np.argsort(-share, axis=1))
    at_random = falls(model, x_test, classes, np.argsort(rng.random(share.shape), axis=1))
    print("\npixels to erase until the answer changes, on average:")
    print(f"  the most important first  {by_share:5.1f}")
    print(f"  in random order           {at_random:5.1f}")
    if options.picture:
        draw(options.picture, x_test[first], share[first])
        print(f"wrote {options.picture}")


if __name__ == "__main__":
    main()
