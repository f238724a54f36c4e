"""A loss forward and backward beside PyTorch's, and what a metric adds to a batch.

Contenders take turns; the best of many calls counts. Printed are ratios, PyTorch / picodl: above 1
means that picodl is faster. Both run with one thread.

    python examples/benchmarks/losses.py [--short]
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from picodl import Tensor, losses, metrics

SHAPES = {(32, 10): 2000, (128, 10): 2000, (1024, 1000): 20}  # with the calls in each round
LOSSES = {  # picodl's, PyTorch's function, and which targets
    "sparse cross-entropy": (
        losses.SparseCategoricalCrossentropy(from_logits=True),
        "cross_entropy",
        "labels",
    ),
    "categorical cross-entropy": (
        losses.CategoricalCrossentropy(from_logits=True),
        "cross_entropy",
        "fractions",
    ),
    "binary cross-entropy": (
        losses.BinaryCrossentropy(from_logits=True),
        "binary_cross_entropy_with_logits",
        "fractions",
    ),
    "squared error": (losses.MeanSquaredError(), "mse_loss", "fractions"),
    "absolute error": (losses.MeanAbsoluteError(), "l1_loss", "fractions"),
    "Huber": (losses.Huber(), "huber_loss", "fractions"),
}
METRICS = {
    "SparseCategoricalAccuracy": "labels",
    "CategoricalAccuracy": "fractions",
    "MeanSquaredError": "fractions",
    "SparseTopKCategoricalAccuracy": "labels",
    "F1Score": "fractions",
    "AUC": "bits",
}


def picodl_call(loss: Any, y_true: Any, logits: Any) -> Callable[[], None]:
    y_pred = Tensor(logits, requires_grad=True)

    def call() -> None:
        loss(y_true, y_pred).backward()
        y_pred.grad = None

    return call


def torch_call(name: str, y_true: Any, logits: Any) -> Callable[[], None]:
    import torch

    function = getattr(torch.nn.functional, name)
    target, y_pred = torch.from_numpy(y_true), torch.from_numpy(logits.copy()).requires_grad_()

    def call() -> None:
        function(y_pred, target).backward()
        y_pred.grad = None

    return call


def best_of(contenders: dict[str, Callable[[], Any]], rounds: int, calls: int) -> dict[str, float]:
    """Microseconds of the fastest call of each, measured in turns."""
    best = dict.fromkeys(contenders, float("inf"))
    for _ in range(rounds):
        for name, call in contenders.items():
            for _ in range(calls):
                start = time.perf_counter()
                call()
                best[name] = min(best[name], 1e6 * (time.perf_counter() - start))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--short", action="store_true", help="a quick look: one short round")
    given = parser.parse_args()
    rounds, part = (1, 10) if given.short else (given.rounds, 1)
    try:
        import torch

        torch.set_num_threads(1)
        print(f"PyTorch {torch.__version__}, numpy {np.__version__}, one thread")
    except ImportError:
        torch = None
        print(f"PyTorch is not installed: picodl alone; numpy {np.__version__}")
    rng = np.random.default_rng(0)
    for shape, calls in SHAPES.items():
        logits = rng.normal(size=shape).astype("float32")
        targets = {
            "labels": rng.integers(0, shape[1], shape[0]),
            "fractions": rng.dirichlet(np.ones(shape[1]), shape[0]).astype("float32"),
            "bits": rng.integers(0, 2, shape),
        }
        print(f"\n{shape}{'':20}{'picodl, us':>12}{'PyTorch / picodl':>20}")
        for label, (loss, name, kind) in LOSSES.items():
            contenders = {"picodl": picodl_call(loss, targets[kind], logits)}
            if torch is not None:
                contenders["torch"] = torch_call(name, targets[kind], logits)
            best = best_of(contenders, rounds, calls // part)
            ratio = f"{best['torch'] / best['picodl']:.2f}" if "torch" in best else "-"
            print(f"{label:28}{best['picodl']:12.1f}{ratio:>20}", flush=True)
        probabilities = 1 / (1 + np.exp(-logits))
        for name, kind in METRICS.items():
            update = partial(getattr(metrics, name)().update_state, targets[kind], probabilities)
            took = best_of({name: update}, rounds, calls // part)[name]
            print(f"{name:28}{took:12.1f}", flush=True)


if __name__ == "__main__":
    main()
