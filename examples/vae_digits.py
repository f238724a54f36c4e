"""A variational autoencoder on digits, with a sampling layer that adds the KL term to the loss.

    python examples/vae_digits.py [--picture vae.png]

Reference: Kingma and Welling, 2013, "Auto-Encoding Variational Bayes", arXiv:1312.6114.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

import picodl
from picodl import layers, ops

CODE = 2


class Sampling(layers.Layer):
    """Draw z from N(mean, exp(log_variance)), and add KL(N(mean, variance) || N(0, 1)) to the loss.

    Shapes: two of (batch, n) -> (batch, n).
    """

    def __init__(self, seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.seed_generator = picodl.random.SeedGenerator(seed)

    def call(self, inputs: Any, training: bool = False) -> Any:
        mean, log_variance = inputs
        kl = -0.5 * (1 + log_variance - ops.square(mean) - ops.exp(log_variance))
        self.add_loss(ops.mean(ops.sum(kl, axis=-1)))
        if not training:
            return mean
        noise = picodl.random.normal(mean.shape, seed=self.seed_generator)
        return mean + ops.exp(0.5 * log_variance) * noise

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape[0]


def reconstruction(y_true: Any, y_pred: Any) -> Any:
    """Cross-entropy of the pixels, summed over the picture."""
    y_pred = ops.clip(y_pred, 1e-6, 1 - 1e-6)
    return -ops.sum(y_true * ops.log(y_pred) + (1 - y_true) * ops.log(1 - y_pred), axis=-1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--picture", help="file for a picture of the code plane (viz extra)")
    options = parser.parse_args()
    picodl.utils.set_random_seed(0)
    x = (load_digits().data / 16).astype("float32")

    inputs = picodl.Input((64,))
    hidden = layers.Dense(128, activation="relu")(inputs)
    mean, log_variance = layers.Dense(CODE)(hidden), layers.Dense(CODE)(hidden)
    decoder = picodl.Sequential(
        [
            picodl.Input((CODE,)),
            layers.Dense(128, activation="relu"),
            layers.Dense(64, activation="sigmoid"),
        ],
        name="decoder",
    )
    vae = picodl.Model(inputs, decoder(Sampling(seed=0)([mean, log_variance])), name="vae")
    vae.compile("adam", loss=reconstruction)
    history = vae.fit(x, x, batch_size=64, epochs=options.epochs, verbose=0).history
    print(f"loss (reconstruction + KL) {history['loss'][0]:.2f} -> {history['loss'][-1]:.2f}")

    side = np.linspace(-2, 2, 10, dtype="float32")
    plane = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, CODE)
    made = decoder.predict(plane, verbose=0)
    low, high = made.min(), made.max()
    print(f"decoded {len(made)} points of the plane into pictures from {low:.2f} to {high:.2f}")
    if options.picture:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot

        grid = made.reshape(10, 10, 8, 8).transpose(0, 2, 1, 3).reshape(80, 80)
        pyplot.imsave(options.picture, grid, cmap="gray_r", vmin=0, vmax=1)
        print(f"the plane of codes is in {options.picture}")


if __name__ == "__main__":
    main()
