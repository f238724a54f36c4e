"""The training loop by hand: zero_grad, forward, loss, backward, step.

    python examples/manual_loop.py

Everything that fit() does in one call, written out.
"""

from __future__ import annotations

import argparse

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import picodl
from picodl import layers, losses, optimizers


class Net(picodl.Module):
    """A module finds its parameters in its attributes; forward says what it computes."""

    def __init__(self) -> None:
        self.hidden = layers.Linear(64, 128, activation="gelu")
        self.output = layers.Linear(128, 10)

    def forward(self, x: np.ndarray) -> picodl.Tensor:
        return self.output(self.hidden(x))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()

    digits = load_digits()
    x_train, x_test, y_train, y_test = train_test_split(
        digits.data.astype("float32") / 16, digits.target, test_size=0.2, random_state=0
    )
    picodl.utils.set_random_seed(0)
    net = Net()
    loss_fn = losses.CrossEntropyLoss()
    optimizer = optimizers.AdamW(learning_rate=0.001)
    order = np.random.default_rng(0)

    for epoch in range(options.epochs):
        total = 0.0
        for batch in np.array_split(order.permutation(len(x_train)), len(x_train) // 32):
            net.zero_grad()
            predicted = net.forward(x_train[batch])
            loss = loss_fn.loss(predicted, y_train[batch])
            loss.backward()
            optimizer.step(net)
            total += float(loss) * len(batch)
        print(f"epoch {epoch + 1}: loss {total / len(x_train):.4f}")

    with picodl.no_grad():
        accuracy = np.mean(net.forward(x_test).numpy().argmax(axis=1) == y_test)
    size = sum(parameter.data.size for parameter in net.params())
    print(f"{size:,} parameters, test accuracy {accuracy:.2%}")


if __name__ == "__main__":
    main()
