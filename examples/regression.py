"""Predict the progress of diabetes a year ahead from ten measurements (scikit-learn's data).

    python examples/regression.py

A small network with dropout and early stopping beside a linear model.
"""

from __future__ import annotations

import argparse

from sklearn.datasets import load_diabetes
from sklearn.linear_model import LinearRegression
from sklearn.metrics import r2_score
from sklearn.model_selection import train_test_split

import picodl
from picodl import callbacks, layers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=300)
    options = parser.parse_args()

    x, y = load_diabetes(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.2, random_state=0)
    mean, scale = y_train.mean(), y_train.std()  # targets of about unit size train best

    picodl.utils.set_random_seed(0)
    inputs = layers.Normalization()
    inputs.adapt(x_train)
    model = picodl.Sequential(
        [
            picodl.Input((10,)),
            inputs,
            layers.Dense(32, activation="relu", kernel_regularizer="l2"),
            layers.Dropout(0.2),
            layers.Dense(1),
        ]
    )
    model.compile("adam", loss="huber", metrics=["mae"])
    history = model.fit(
        x_train,
        (y_train - mean) / scale,
        epochs=options.epochs,
        validation_split=0.2,
        callbacks=[callbacks.EarlyStopping(patience=20, restore_best_weights=True)],
        verbose=0,
    )
    predicted = model.predict(x_test, verbose=0)[:, 0] * scale + mean
    linear = LinearRegression().fit(x_train, y_train).predict(x_test)
    print(f"trained for {len(history.epoch)} epochs")
    print(f"R2 of the network {r2_score(y_test, predicted):.3f}")
    print(f"R2 of a line      {r2_score(y_test, linear):.3f}")


if __name__ == "__main__":
    main()
