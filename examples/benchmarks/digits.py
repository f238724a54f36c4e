"""picodl beside its peers on the Digits network: training, latency, and the cost of fit().

    python examples/benchmarks/digits.py [--rounds 5]

Every library that is installed trains the same 64-128-64-10 GELU network with AdamW on the same
split, batch 32, 20 epochs, in alternating rounds; printed are ratios, peer / picodl: above 1 means
that picodl is faster. The best of the rounds counts. Latency is that of one forward pass.

picodl computes with its compiled kernels where there is a C compiler, and builds them first; with
PICODL_COMPILED=0 in the environment numpy computes alone.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import os
import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

import picodl
from picodl import layers, losses, optimizers
from picodl.tensor import gradients

EPOCHS, BATCH = 20, 32
Trainer = Callable[[], None]


def picodl_model() -> picodl.Sequential:
    model = picodl.Sequential(
        [
            picodl.Input((64,)),
            layers.Dense(128, activation="gelu"),
            layers.Dense(64, activation="gelu"),
            layers.Dense(10),
        ]
    )
    loss = losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizers.AdamW(0.001), loss)
    return model


def picodl_trainer(x: np.ndarray, y: np.ndarray) -> Trainer:
    return lambda: picodl_model().fit(x, y, batch_size=BATCH, epochs=EPOCHS, verbose=0) and None


def torch_model() -> object:
    from torch import nn

    return nn.Sequential(
        nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64), nn.GELU(), nn.Linear(64, 10)
    )


def torch_trainer(x: np.ndarray, y: np.ndarray, fused: bool, threads: int | None) -> Trainer:
    import torch

    xt, yt = torch.from_numpy(x), torch.from_numpy(y)
    default = torch.get_num_threads()

    def train() -> None:
        torch.set_num_threads(threads or default)
        model = torch_model()
        options = {"fused": True} if fused else {}
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.001, weight_decay=0.004, **options)
        loss_fn = torch.nn.CrossEntropyLoss()
        for _ in range(EPOCHS):
            order = torch.randperm(len(xt))
            total = 0.0
            for i in range(0, len(xt), BATCH):
                index = order[i : i + BATCH]
                optimizer.zero_grad(set_to_none=True)
                loss = loss_fn(model(xt[index]), yt[index])
                loss.backward()
                optimizer.step()
                total += loss.item()
        torch.set_num_threads(default)

    return train


def keras_model() -> object:
    import keras

    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(128, activation="gelu"),
            keras.layers.Dense(64, activation="gelu"),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(0.001), loss)
    return model


def keras_trainer(x: np.ndarray, y: np.ndarray) -> Trainer:
    def train() -> None:
        model = keras_model()
        model.fit(x, y, batch_size=BATCH, epochs=1, verbose=0)  # builds and traces
        start = time.perf_counter()
        model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, verbose=0)
        train.warm = time.perf_counter() - start

    return train


def sklearn_trainer(x: np.ndarray, y: np.ndarray) -> Trainer:
    def train() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            MLPClassifier(
                (128, 64), batch_size=BATCH, max_iter=EPOCHS, n_iter_no_change=EPOCHS, tol=0
            ).fit(x, y)

    return train


def seconds(train: Trainer) -> float:
    start = time.perf_counter()
    train()
    return getattr(train, "warm", None) or time.perf_counter() - start


def best_us(call: Callable[[], object], repeats: int = 7, number: int = 300) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(number):
            call()
        times.append((time.perf_counter() - start) / number * 1e6)
    return min(times)


def forward_passes(x: np.ndarray) -> dict[str, Callable[[np.ndarray], Callable[[], object]]]:
    """For each library what makes a call out of rows; all networks have the same sizes."""
    model = picodl_model()
    found = {"picodl": lambda rows: partial(model, rows)}
    if importlib.util.find_spec("torch"):
        import torch

        peer = torch_model().eval()
        found["PyTorch"] = lambda rows: partial(peer, torch.from_numpy(rows))
    if importlib.util.find_spec("keras") and importlib.util.find_spec("tensorflow"):
        network = keras_model()
        found["Keras on TensorFlow"] = lambda rows: partial(network, rows)
        found["Keras, predict_on_batch"] = lambda rows: partial(network.predict_on_batch, rows)
    fitted = MLPClassifier((128, 64), max_iter=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted.fit(x, np.arange(len(x)) % 10)
    found["scikit-learn, predict_proba"] = lambda rows: partial(fitted.predict_proba, rows)
    if importlib.util.find_spec("jax"):
        found["JAX, compiled"] = jax_pass()
    return found


def jax_pass() -> Callable[[np.ndarray], Callable[[], object]]:
    import jax

    sizes, rng = (64, 128, 64, 10), np.random.default_rng(0)
    pairs = itertools.pairwise(sizes)
    weights = [(rng.normal(size=s).astype("f"), np.zeros(s[1], "f")) for s in pairs]

    def network(weights: list[tuple[object, object]], x: object) -> object:
        for i, (w, b) in enumerate(weights):
            x = x @ w + b
            x = jax.nn.gelu(x, approximate=False) if i < len(weights) - 1 else x
        return x

    compiled, weights = jax.jit(network), jax.device_put(weights)

    def run(x: object) -> None:
        compiled(weights, x).block_until_ready()

    return lambda rows: partial(run, jax.device_put(rows))


def latency(x: np.ndarray) -> None:
    """One forward pass without gradients: no_grad() here, inference_mode() in PyTorch."""
    passes = forward_passes(x)
    print("\nlatency of a forward pass, microseconds, and times that of picodl")
    for n in (1, 128):
        rows, own = x[:n].copy(), 0.0
        for name, make in passes.items():
            with picodl.no_grad(), inference_mode():
                time_us = best_us(make(rows))
            own = own or time_us
            print(f"  {n:3} rows  {name:28} {time_us:8.1f}  ratio {time_us / own:6.2f}")


def inference_mode() -> contextlib.AbstractContextManager[object]:
    if not importlib.util.find_spec("torch"):
        return contextlib.nullcontext()
    import torch

    return torch.inference_mode()


def cost_of_fit(x: np.ndarray, y: np.ndarray) -> None:
    """How much slower a batch of fit() is than the same engine calls in a bare loop."""
    steps = len(x) // BATCH
    x, y = x[: steps * BATCH], y[: steps * BATCH]
    batches = [(x[i : i + BATCH].copy(), y[i : i + BATCH].copy()) for i in range(0, len(x), BATCH)]
    loss_fn = losses.SparseCategoricalCrossentropy(from_logits=True)

    def bare() -> float:
        model, optimizer = picodl_model(), optimizers.AdamW(0.001)
        start = time.perf_counter()
        with picodl.parallel.blas_single_thread():
            for _ in range(EPOCHS):
                for xb, yb in batches:
                    loss = loss_fn(yb, model(xb, training=True))
                    leaves = []
                    for leaf, g in gradients([loss], [None]):
                        leaf.grad = g
                        leaves.append(leaf)
                    optimizer.update(leaves)
        return (time.perf_counter() - start) / (EPOCHS * steps) * 1e6

    def fitted() -> float:
        model = picodl_model()
        start = time.perf_counter()
        model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, verbose=0)
        return (time.perf_counter() - start) / (EPOCHS * steps) * 1e6

    pairs = [(fitted(), bare()) for _ in range(9)]
    best = [min(column) for column in zip(*pairs, strict=True)]
    print(f"\na batch in fit() {best[0]:.0f} us, in a bare loop {best[1]:.0f} us")
    print(f"  difference {statistics.median(a - b for a, b in pairs):.0f} us (median of 9 pairs)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    picodl.compiled.build_once()
    print("picodl with", "compiled kernels" if picodl.compiled.is_enabled() else "numpy alone")
    x, y = load_digits(return_X_y=True)
    x, _, y, _ = train_test_split((x / 16).astype("float32"), y, test_size=0.2, random_state=0)

    trainers = {"picodl": picodl_trainer(x, y), "scikit-learn MLPClassifier": sklearn_trainer(x, y)}
    if importlib.util.find_spec("torch"):
        trainers["PyTorch, defaults"] = torch_trainer(x, y, False, None)
        trainers["PyTorch, one thread, fused"] = torch_trainer(x, y, True, 1)
    if importlib.util.find_spec("keras") and importlib.util.find_spec("tensorflow"):
        trainers["Keras on TensorFlow"] = keras_trainer(x, y)

    times: dict[str, list[float]] = {name: [] for name in trainers}
    for train in trainers.values():
        train()  # warm
    for r in range(options.rounds):
        for name in list(trainers)[:: 1 if r % 2 == 0 else -1]:
            times[name].append(seconds(trainers[name]))
    own = min(times["picodl"])
    print(f"training the Digits network, {EPOCHS} epochs, best of {options.rounds} rounds")
    for name, found in times.items():
        print(f"  {name:28} {min(found):7.3f} s  ratio {min(found) / own:5.2f}")
    latency(x)
    cost_of_fit(x, y)


if __name__ == "__main__":
    main()
