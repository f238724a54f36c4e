"""Watch gradients vanish in a deep tanh network, mend it, and tame exploding ones by clipping.

    python examples/vanishing_gradients.py
    python examples/vanishing_gradients.py --draw graph.svg   # the graph, coloured by gradients

Ten layers on scikit-learn's digits. Each tanh has a slope below 1 and each small weight shrinks
what goes through it, so that almost nothing is left for the first layers: they do not learn. ReLU
passes on the whole gradient of every active unit, and weights of He's size keep it level. Large
weights do the opposite: the gradient explodes, and a step clipped to norm 1 mends that.
"""

from __future__ import annotations

import argparse
import warnings
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import picodl
from picodl import initializers, layers, losses, optimizers, visualize

DEPTH, WIDTH = 10, 32


def make_model(activation: str, kernel: Any) -> picodl.Sequential:
    hidden = [
        layers.Dense(WIDTH, activation=activation, kernel_initializer=kernel())
        for _ in range(DEPTH - 1)
    ]
    return picodl.Sequential(
        [picodl.Input((64,)), *hidden, layers.Dense(10, kernel_initializer=kernel())]
    )


def gradient_norms(model: picodl.Sequential, x: np.ndarray, y: np.ndarray) -> list[float]:
    """The norm of what arrives at each layer for one batch, as its bias receives it."""
    loss_fn = losses.SparseCategoricalCrossentropy(from_logits=True)
    model.zero_grad()
    loss_fn(y, model(x)).backward()
    norms = [float(np.linalg.norm(layer.bias.grad)) for layer in model.layers]
    model.zero_grad()
    return norms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--draw", help="a file for the graph of the vanishing network")
    options = parser.parse_args()

    digits = load_digits()
    data = (digits.data / 16).astype("float32")
    x_train, x_test, y_train, y_test = train_test_split(
        data, digits.target, test_size=0.2, random_state=0
    )

    def small() -> Any:
        return initializers.RandomNormal(stddev=0.02)

    def large() -> Any:
        return initializers.RandomNormal(stddev=0.45)

    cases = [
        ("tanh, small weights", "tanh", small, None),
        ("ReLU, He's weights", "relu", initializers.HeNormal, None),
        ("ReLU, large weights", "relu", large, None),
        ("the same, clipped", "relu", large, 1.0),
    ]
    print("gradient that arrives at layer    1 (first)          5         10   accuracy after fit")
    for name, activation, kernel, clipnorm in cases:
        picodl.utils.set_random_seed(0)
        model = make_model(activation, kernel)
        norms = gradient_norms(model, x_train[:128], y_train[:128])
        if options.draw and clipnorm is None and kernel is small:
            loss_fn = losses.SparseCategoricalCrossentropy(from_logits=True)
            visualize.draw_graph(loss_fn(y_train[:128], model(x_train[:128])), options.draw)
        model.compile(
            optimizers.SGD(0.02, momentum=0.9, global_clipnorm=clipnorm),
            losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")  # one case is meant to end in NaN
            model.fit(x_train, y_train, epochs=options.epochs, verbose=0)
            accuracy = model.evaluate(x_test, y_test, verbose=0)[1]
        first, middle, last = norms[0], norms[4], norms[-1]
        print(f"{name:30} {first:12.1e} {middle:10.1e} {last:10.1e}   {accuracy:.1%}")


if __name__ == "__main__":
    main()
