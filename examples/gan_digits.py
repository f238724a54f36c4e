"""A generative adversarial network on digits, with a train_step of its own.

    python examples/gan_digits.py [--picture digits_gan.png]

The discriminator learns to tell real digits from made ones, the generator to deceive it. Both steps
are written out: forward, loss, gradients, update.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

import picodl
from picodl import layers, losses, metrics, ops, optimizers

NOISE = 16


class GAN(picodl.Model):
    """Two networks that train against each other."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = picodl.Sequential(
            [
                picodl.Input((NOISE,)),
                layers.Dense(64, activation="relu"),
                layers.Dense(128, activation="relu"),
                layers.Dense(64, activation="sigmoid"),
            ],
            name="generator",
        )
        self.discriminator = picodl.Sequential(
            [
                picodl.Input((64,)),
                layers.Dense(128),
                layers.LeakyReLU(0.2),
                layers.Dropout(0.3),
                layers.Dense(1),
            ],
            name="discriminator",
        )
        self.d_optimizer = optimizers.Adam(1e-3, beta_1=0.5)
        self.g_optimizer = optimizers.Adam(1e-3, beta_1=0.5)
        self.loss_fn = losses.BinaryCrossentropy(from_logits=True)
        self.d_loss = metrics.Mean("d_loss")
        self.g_loss = metrics.Mean("g_loss")
        self.seed = picodl.random.SeedGenerator(0)

    def call(self, noise: Any) -> Any:
        return self.generator(noise)

    def update(self, optimizer: Any, loss: Any, network: picodl.Model) -> None:
        """One step of an optimizer for the weights of one network only."""
        self.zero_grad()
        loss.backward()
        weights = network.trainable_weights
        optimizer.apply([w.grad for w in weights], weights)

    def train_step(self, real: Any) -> dict[str, float]:
        n = len(real)
        noise = picodl.random.normal((n, NOISE), seed=self.seed)
        both = ops.concatenate([real, self.generator(noise)], axis=0)
        labels = np.repeat([0.9, 0.0], n).reshape(-1, 1).astype("float32")  # 0.9: smoothed
        loss = self.loss_fn(labels, self.discriminator(both, training=True))
        self.update(self.d_optimizer, loss, self.discriminator)
        self.d_loss.update_state(float(loss))

        noise = picodl.random.normal((n, NOISE), seed=self.seed)
        judged = self.discriminator(self.generator(noise, training=True), training=True)
        loss = self.loss_fn(np.ones((n, 1), "float32"), judged)
        self.update(self.g_optimizer, loss, self.generator)
        self.g_loss.update_state(float(loss))
        return {"d_loss": self.d_loss.result(), "g_loss": self.g_loss.result()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--picture", help="file for a picture of made digits (viz extra)")
    options = parser.parse_args()
    picodl.utils.set_random_seed(0)

    x = (load_digits().data / 16).astype("float32")
    gan = GAN()
    gan.compile()
    history = gan.fit(x, batch_size=64, epochs=options.epochs, verbose=0).history
    print(f"discriminator loss {history['d_loss'][-1]:.3f}, generator {history['g_loss'][-1]:.3f}")

    made = gan.predict(picodl.random.normal((64, NOISE), seed=1), verbose=0)
    nearest = np.sqrt(((made[:, None] - x[None]) ** 2).sum(-1)).min(1).mean()
    random = np.random.default_rng(0).random(made.shape)
    chance = np.sqrt(((random[:, None] - x[None]) ** 2).sum(-1)).min(1).mean()
    print(f"distance of made digits to the nearest real one {nearest:.2f}, of noise {chance:.2f}")
    if options.picture:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot

        grid = made.reshape(8, 8, 8, 8).transpose(0, 2, 1, 3).reshape(64, 64)
        pyplot.imsave(options.picture, grid, cmap="gray_r")
        print(f"64 made digits are in {options.picture}")


if __name__ == "__main__":
    main()
