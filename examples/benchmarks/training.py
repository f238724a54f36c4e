"""fit, predict and callbacks: a large epoch beside PyTorch, and what the loops themselves cost.

    python examples/benchmarks/training.py [--rounds 3] [--samples 60000]

The epoch: random data 60,000 x 784, batches of 128, a 784-512-512-10 ReLU network with dropout and
Adam. PyTorch runs with a DataLoader over a TensorDataset and with slices taken by hand, each with
its default number of threads and with one; the best of the rounds and settings counts. Printed are
ratios, PyTorch / picodl: above 1 means that picodl is faster.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Callable

import numpy as np

import picodl
from picodl import callbacks, layers, losses

BATCH = 128


def picodl_epoch(x: np.ndarray, y: np.ndarray) -> Callable[[], object]:
    model = picodl.Sequential(
        [
            picodl.Input((784,)),
            layers.Dense(512, activation="relu"),
            layers.Dropout(0.2),
            layers.Dense(512, activation="relu"),
            layers.Dropout(0.2),
            layers.Dense(10),
        ]
    )
    model.compile("adam", losses.SparseCategoricalCrossentropy(from_logits=True))
    return lambda: model.fit(x, y, batch_size=BATCH, verbose=0)


def torch_epoch(
    x: np.ndarray, y: np.ndarray, loader: bool, threads: int | None
) -> Callable[[], object]:
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    default = torch.get_num_threads()
    model = nn.Sequential(
        nn.Linear(784, 512), nn.ReLU(), nn.Dropout(0.2),
        nn.Linear(512, 512), nn.ReLU(), nn.Dropout(0.2), nn.Linear(512, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters())
    loss_fn = nn.CrossEntropyLoss()
    xt, yt = torch.from_numpy(x), torch.from_numpy(y)

    def by_hand():
        order = torch.randperm(len(xt))
        for i in range(0, len(xt), BATCH):
            index = order[i : i + BATCH]
            yield xt[index], yt[index]

    batches = DataLoader(TensorDataset(xt, yt), BATCH, shuffle=True)

    def epoch() -> None:
        torch.set_num_threads(threads or default)
        model.train()
        total = 0.0
        for a, b in batches if loader else by_hand():
            optimizer.zero_grad(set_to_none=True)
            loss = loss_fn(model(a), b)
            loss.backward()
            optimizer.step()
            total += loss.item()
        torch.set_num_threads(default)

    return epoch


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def large_epoch(samples: int, rounds: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(samples, 784)).astype("float32")
    y = rng.integers(0, 10, samples)
    runs = {"picodl fit": picodl_epoch(x, y)}
    if importlib.util.find_spec("torch"):
        for loader, name in ((True, "PyTorch, DataLoader"), (False, "PyTorch, slices by hand")):
            runs[f"{name}, default threads"] = torch_epoch(x, y, loader, None)
            runs[f"{name}, one thread"] = torch_epoch(x, y, loader, 1)
    times: dict[str, list[float]] = {name: [] for name in runs}
    for r in range(rounds):
        for name in list(runs)[:: 1 if r % 2 == 0 else -1]:
            times[name].append(seconds(runs[name]))
    own = min(times["picodl fit"])
    print(f"an epoch over {samples} x 784, best of {rounds} rounds")
    for name, found in times.items():
        print(f"  {name:40} {min(found):6.2f} s  ratio {min(found) / own:5.2f}")


class EpochsOnly(callbacks.Callback):
    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        pass


def cost_of_loops(repeats: int) -> None:
    model = picodl.Sequential(
        [
            picodl.Input((64,)),
            layers.Dense(128, activation="gelu"),
            layers.Dense(64, activation="gelu"),
            layers.Dense(10),
        ]
    )
    model.compile("adam", losses.SparseCategoricalCrossentropy(from_logits=True))
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(6400, 64)).astype("float32"), rng.integers(0, 10, 6400)
    row = x[:1].copy()

    def call(rows: np.ndarray) -> None:
        with picodl.no_grad():
            model(rows)

    def forward() -> None:
        with picodl.parallel.blas_single_thread():
            for i in range(0, len(x), 32):
                call(x[i : i + 32])

    print("\none row, microseconds")
    report("model(x)", lambda: call(row), 30 * repeats, 1)
    report("predict(x, verbose=0)", lambda: model.predict(row, verbose=0), 30 * repeats, 1)
    print("\n6,400 rows in batches of 32, microseconds a batch")
    report("model(batch) in a loop", forward, repeats, 200)
    report("predict", lambda: model.predict(x, verbose=0), repeats, 200)
    report("evaluate", lambda: model.evaluate(x, y, verbose=0), repeats, 200)
    report("fit", lambda: model.fit(x, y, verbose=0), repeats, 200)
    five = [EpochsOnly() for _ in range(5)]
    report("fit, 5 callbacks", lambda: model.fit(x, y, callbacks=five, verbose=0), repeats, 200)


def report(name: str, call: Callable[[], object], repeats: int, parts: int) -> None:
    print(f"  {name:24} {min(seconds(call) for _ in range(repeats)) * 1e6 / parts:7.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--samples", type=int, default=60_000)
    options = parser.parse_args()
    large_epoch(options.samples, options.rounds)
    cost_of_loops(10 * options.rounds)


if __name__ == "__main__":
    main()
