"""Train XOR on single numbers: the scalar engine from the first Value to the learned network.

Part one is the plain loop: forward, zero the gradients, backward, step. Part two goes on until the
loss is below 0.01, once by gradient descent and once by Adam.

    python examples/xor_scalar.py
    python examples/xor_scalar.py --draw graph    # graph.svg: every value and gradient (graphviz)
"""

from __future__ import annotations

import argparse
import random

from picodl import visualize
from picodl.scalar import MLP, SGD, Adam, Value

xs = [
    [Value(0.0), Value(0.0)],
    [Value(0.0), Value(1.0)],
    [Value(1.0), Value(0.0)],
    [Value(1.0), Value(1.0)],
]
ys = [Value(0.0), Value(1.0), Value(1.0), Value(0.0)]


def plain_loop(epochs: int = 100) -> MLP:
    """A hundred epochs written out."""
    model = MLP(2, [4, 1])

    for epoch in range(epochs):
        # Forward pass
        ypred = [model(x) for x in xs]
        loss = sum((yout - ygt) ** 2 for ygt, yout in zip(ys, ypred, strict=True))

        # Backward pass
        for p in model.parameters():
            p.grad = 0.0  # gradients add up: without this line the steps grow and grow
        loss.backward()

        # Update weights
        learning_rate = 0.05
        for p in model.parameters():
            p.data -= learning_rate * p.grad

        if epoch % 10 == 0:
            print(f"Epoch {epoch}, Loss: {loss.data}")
    return model


def epochs_needed(optimizer: type[SGD], seed: int, target: float = 0.01, limit: int = 2000) -> int:
    """How many epochs a new network takes to bring the loss below the target."""
    model = MLP(2, [4, 1], seed=seed)
    rule = optimizer(model.parameters(), lr=0.05)
    for epoch in range(limit):
        predicted = [model(x) for x in xs]
        loss = sum((p - y) ** 2 for p, y in zip(predicted, ys, strict=True))
        if loss.data < target:
            return epoch
        rule.zero_grad()
        loss.backward()
        rule.step()
    return limit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20, help="how many random starts")
    parser.add_argument("--draw", help="draw the graph of the first loss into this file, as SVG")
    options = parser.parse_args()
    seeds = options.seeds

    random.seed(1)
    if options.draw:
        model = MLP(2, [4, 1])
        loss = sum((model(x) - y) ** 2 for x, y in zip(xs, ys, strict=True))
        loss.backward()
        visualize.draw_dot(loss).render(options.draw, cleanup=True)
    model = plain_loop()
    for x, y in zip(xs, ys, strict=True):
        print([int(v.data) for v in x], "->", f"{model(x).data:.2f}", "should be", int(y.data))

    print(f"\nEpochs until the loss is below 0.01, learning rate 0.05, {seeds} random starts:")
    for optimizer in (SGD, Adam):
        counts = sorted(epochs_needed(optimizer, seed) for seed in range(seeds))
        print(f"  {optimizer.__name__:5} median {counts[seeds // 2]:4}, most {counts[-1]:4}")


if __name__ == "__main__":
    main()
