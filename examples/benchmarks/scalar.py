"""One epoch of XOR on the network 2-4-1: picodl.scalar beside PyTorch eager and micrograd.

Everybody trains tanh neurons on the same four samples with the sum of squared errors and plain
gradient descent. picodl and micrograd compute number by number, PyTorch takes the four samples as
one batch. Contenders take turns; the best of many short runs counts, on one thread.

    python examples/benchmarks/scalar.py
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

X = [[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]
Y = [0.0, 1.0, 1.0, 0.0]
LEARNING_RATE = 0.05
REPEATS = 20  # epochs in one run


def picodl_epoch() -> Callable[[], float]:
    from picodl.scalar import MLP, Value

    model = MLP(2, [4, 1], seed=0)
    xs = [[Value(v) for v in x] for x in X]
    ys = [Value(y) for y in Y]

    def epoch() -> float:
        predicted = [model(x) for x in xs]
        loss = sum((p - y) ** 2 for p, y in zip(predicted, ys, strict=True))
        for p in model.parameters():
            p.grad = 0.0
        loss.backward()
        for p in model.parameters():
            p.data -= LEARNING_RATE * p.grad
        return loss.data

    return epoch


def micrograd_epoch() -> Callable[[], float]:
    import math
    import random

    from micrograd.engine import Value
    from micrograd.nn import MLP

    random.seed(0)
    model = MLP(2, [4, 1])
    xs = [[Value(v) for v in x] for x in X]
    ys = [Value(y) for y in Y]

    def tanh(x: Value) -> Value:  # micrograd has relu alone
        out = Value(math.tanh(x.data), (x,), "tanh")

        def backward() -> None:
            x.grad += (1 - out.data**2) * out.grad

        out._backward = backward
        return out

    def predict(x: list) -> Value:
        for layer in model.layers:
            x = [
                tanh(sum((w * v for w, v in zip(n.w, x, strict=True)), n.b)) for n in layer.neurons
            ]
        return x[0]

    def epoch() -> float:
        loss = sum((predict(x) - y) ** 2 for x, y in zip(xs, ys, strict=True))
        model.zero_grad()
        loss.backward()
        for p in model.parameters():
            p.data -= LEARNING_RATE * p.grad
        return loss.data

    return epoch


def torch_epoch(with_optimizer: bool) -> Callable[[], float]:
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    nn = torch.nn
    model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1), nn.Tanh())
    x, y = torch.tensor(X), torch.tensor(Y).reshape(4, 1)
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=LEARNING_RATE)

    def epoch() -> float:
        loss = ((model(x) - y) ** 2).sum()
        if with_optimizer:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        else:
            for p in parameters:
                p.grad = None
            loss.backward()
            with torch.no_grad():
                for p in parameters:
                    p.sub_(p.grad, alpha=LEARNING_RATE)
        return loss

    return epoch


CONTENDERS = {
    "picodl.scalar": picodl_epoch,
    "PyTorch, optim.SGD": lambda: torch_epoch(True),
    "PyTorch, loop over parameters": lambda: torch_epoch(False),
    "micrograd": micrograd_epoch,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200, help="runs of each contender")
    rounds = parser.parse_args().rounds

    epochs, best = {}, {}
    for name, make in CONTENDERS.items():
        try:
            epochs[name] = make()
        except ImportError as error:
            print(f"{name}: n/a ({error})")
    for _ in range(rounds):
        for name, epoch in epochs.items():
            start = time.perf_counter()
            for _ in range(REPEATS):
                epoch()
            took = (time.perf_counter() - start) / REPEATS
            best[name] = min(best.get(name, took), took)
    own = best["picodl.scalar"]
    for name, seconds in best.items():
        print(f"{name:30} {seconds * 1e6:7.1f} us an epoch   {seconds / own:5.2f} times picodl's")


if __name__ == "__main__":
    main()
