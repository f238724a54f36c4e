"""A small residual network, written as a subclassed model with blocks of its own.

    python examples/resnet_small.py [--epochs 12] [--plain]

The data is made from scikit-learn's digits: 16x16 images, each holding one digit in a random place,
size and brightness on a noisy background, so that a network has to look for it. With --plain the
same network without its shortcuts is trained, for comparison.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import picodl
from picodl import layers, losses, optimizers


class Block(layers.Layer):
    """y = relu(BN(conv(relu(BN(conv(x))))) + x); with a stride, x goes through a 1x1 convolution.

    Args:
        filters: the number of output channels.
        strides: of the first convolution.
        shortcut: whether to add x at all.

    Reference: He et al., 2016, "Deep Residual Learning for Image Recognition", arXiv:1512.03385.
    """

    def __init__(
        self, filters: int, strides: int = 1, shortcut: bool = True, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.filters, self.strides, self.shortcut = filters, strides, shortcut
        self.first = layers.Conv2D(filters, 3, strides, "same", use_bias=False)
        self.first_norm = layers.BatchNormalization()
        self.second = layers.Conv2D(filters, 3, padding="same", use_bias=False)
        self.second_norm = layers.BatchNormalization()
        self.relu = layers.ReLU()
        if strides > 1 and shortcut:
            self.skip = layers.Conv2D(filters, 1, strides, use_bias=False)
            self.skip_norm = layers.BatchNormalization()

    def call(self, x: Any) -> Any:
        y = self.relu(self.first_norm(self.first(x)))
        y = self.second_norm(self.second(y))
        if self.shortcut:
            y = y + (x if self.strides == 1 else self.skip_norm(self.skip(x)))
        return self.relu(y)


class ResNet(picodl.Model):
    """A convolution, three stages of two blocks each, the mean over the pixels, ten numbers."""

    def __init__(self, shortcut: bool = True) -> None:
        super().__init__()
        self.stem = layers.Conv2D(16, 3, padding="same", use_bias=False)
        self.stem_norm = layers.BatchNormalization()
        self.relu = layers.ReLU()
        self.blocks = [
            Block(filters, 2 if place == 0 and filters > 16 else 1, shortcut)
            for filters in (16, 32, 64)
            for place in range(2)
        ]
        self.pool = layers.GlobalAveragePooling2D()
        self.head = layers.Dense(10)

    def call(self, x: Any) -> Any:
        x = self.relu(self.stem_norm(self.stem(x)))
        for block in self.blocks:
            x = block(x)
        return self.head(self.pool(x))


def scenes(images: np.ndarray, copies: int, rng: np.random.Generator) -> np.ndarray:
    """Each 8x8 digit `copies` times somewhere on a noisy 16x16 background."""
    found = rng.uniform(0, 0.3, (copies * len(images), 16, 16, 1)).astype("float32")
    for scene, digit in zip(found, np.concatenate([images] * copies), strict=True):
        top, left = rng.integers(0, 9, 2)
        scene[top : top + 8, left : left + 8, 0] += digit / 16 * rng.uniform(0.5, 1)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--plain", action="store_true", help="leave the shortcuts out")
    options = parser.parse_args()
    picodl.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    digits = load_digits()
    x, x_test, y, y_test = train_test_split(
        digits.images, digits.target, test_size=0.2, random_state=0
    )
    x, y, x_test = scenes(x, 2, rng), np.concatenate([y] * 2), scenes(x_test, 1, rng)

    model = ResNet(not options.plain)
    steps = options.epochs * -(-len(x) // 64)
    model.compile(
        optimizer=optimizers.Adam(optimizers.schedules.CosineDecay(0.003, steps)),
        loss=losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(x, y, batch_size=64, epochs=options.epochs)
    loss, accuracy = model.evaluate(x_test, y_test, verbose=0)
    print(f"test loss {loss:.4f}, test accuracy {accuracy:.2%}, {model.count_params()} weights")


if __name__ == "__main__":
    main()
