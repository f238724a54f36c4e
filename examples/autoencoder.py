"""A denoising autoencoder on digits: noisy pictures in, clean ones out.

python examples/autoencoder.py [--picture autoencoder.png]
"""

from __future__ import annotations

import argparse

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import picodl
from picodl import layers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--picture", help="file for a picture (viz extra)")
    options = parser.parse_args()
    picodl.utils.set_random_seed(0)

    x = (load_digits().data / 16).astype("float32")
    train, test = train_test_split(x, test_size=0.2, random_state=0)

    inputs = picodl.Input((64,), name="picture")
    hidden = layers.GaussianNoise(0.3)(inputs)
    hidden = layers.Dense(64, activation="gelu")(hidden)
    code = layers.Dense(12, name="code")(hidden)
    hidden = layers.Dense(64, activation="gelu")(code)
    model = picodl.Model(inputs, layers.Dense(64, activation="sigmoid")(hidden), name="autoencoder")
    model.compile("adam", "mse")
    model.fit(train, train, epochs=options.epochs, verbose=0, validation_data=(test, test))

    noisy = test + 0.3 * np.random.default_rng(0).normal(size=test.shape).astype("float32")
    clean = model.predict(noisy, verbose=0)
    print(f"error of the noisy pictures   {np.mean((noisy - test) ** 2):.4f}")
    print(f"error after the autoencoder   {np.mean((clean - test) ** 2):.4f}")
    encoder = picodl.Model(model.input, model.get_layer("code").output)
    print(f"a picture of 64 numbers has a code of {encoder.predict(test, verbose=0).shape[1]}")
    if options.picture:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot

        rows = [part[:10].reshape(10, 8, 8) for part in (test, noisy, clean)]
        grid = np.concatenate([np.concatenate(list(row), axis=1) for row in rows])
        pyplot.imsave(options.picture, grid, cmap="gray_r", vmin=0, vmax=1)
        print(f"real, noisy and cleaned digits are in {options.picture}")


if __name__ == "__main__":
    main()
