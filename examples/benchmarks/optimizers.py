"""One step of each optimizer beside torch.optim, on 17k, 700k and 10M weights.

PyTorch steps in each way it has: its default, `foreach=True` and, where there is one, `fused=True`.
Contenders take turns; the best of many steps counts. Printed are ratios, PyTorch / picodl: above 1
means that picodl is faster. Both use their default number of threads (see --threads).

    python examples/benchmarks/optimizers.py [--sizes 17k,700k,10M] [--only Adam,SGD] [--short]
"""

from __future__ import annotations

import argparse
import inspect
import itertools
import os
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from picodl import Variable, optimizers, parallel

SIZES = {  # the layers of a perceptron
    "17k": [64, 128, 64, 10],
    "700k": [784, 512, 512, 64, 10],
    "10M": [3072, 3072, 192, 10],
}
TURN = 0.2  # seconds that a contender steps in each round
CASES: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "SGD": ({}, "SGD", {"lr": 0.01}),
    "SGD, momentum": ({"momentum": 0.9}, "SGD", {"lr": 0.01, "momentum": 0.9}),
    "RMSprop": ({}, "RMSprop", {}),
    "Adam": ({}, "Adam", {}),
    "Adam, clipped": ({"global_clipnorm": 1.0}, "Adam", {}),
    "AdamW": ({}, "AdamW", {"weight_decay": 0.004}),
    "Adamax": ({}, "Adamax", {}),
    "Nadam": ({}, "NAdam", {}),
    "Adagrad": ({}, "Adagrad", {}),
    "Adadelta": ({}, "Adadelta", {}),
    "Adafactor": ({}, "Adafactor", {}),
    "Muon": ({}, "Muon", {}),
    "Lamb": ({}, "", {}),
    "Lion": ({}, "", {}),
    "Ftrl": ({}, "", {}),
    "ScheduleFreeAdamW": ({}, "", {}),
}


def make_arrays(widths: list[int]) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    shapes = [s for n, m in itertools.pairwise(widths) for s in ((n, m), (m,))]
    return [tuple(rng.normal(size=s).astype("float32") for _ in range(2)) for s in shapes]  # type: ignore


def picodl_step(case: str, arrays: list[Any]) -> Callable[[], None]:
    options = CASES[case][0]
    optimizer = getattr(optimizers, case.split(",")[0])(**options)
    weights = [Variable(w) for w, _ in arrays]
    for variable, (_, g) in zip(weights, arrays, strict=True):
        variable.grad = g
    return lambda: optimizer.update(weights)


def torch_steps(case: str, arrays: list[Any]) -> dict[str, Callable[[], None]]:
    """A step in each of PyTorch's ways; empty where it has no such optimizer."""
    import torch

    _, name, options = CASES[case]
    cls = getattr(torch.optim, name, None)
    if not name or cls is None:
        return {}
    known = inspect.signature(cls).parameters
    found = {}
    for way in WAYS:
        if way != "default" and way not in known:
            continue
        weights = [torch.nn.Parameter(torch.from_numpy(w.copy())) for w, _ in arrays]
        for weight, (_, g) in zip(weights, arrays, strict=True):
            weight.grad = torch.from_numpy(g.copy())
        if name == "Muon":  # matrices only
            weights = [w for w in weights if w.ndim == 2]
        try:
            optimizer = cls(weights, **options, **({} if way == "default" else {way: True}))
            optimizer.step()
        except (RuntimeError, ValueError):  # not on this device
            continue
        clip = case.endswith("clipped")

        def step(optimizer: Any = optimizer, weights: Any = weights, clip: bool = clip) -> None:
            if clip:
                torch.nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()

        found[way] = step
    return found


def best_of(contenders: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """Microseconds of the fastest step of each, measured in turns."""
    best = dict.fromkeys(contenders, float("inf"))
    for _ in range(rounds):
        for name, step in contenders.items():
            time.sleep(0.02)  # the other side's threads wait for work in a busy loop for a while
            step()
            start = begun = time.perf_counter()
            while start - begun < TURN:
                step()
                end = time.perf_counter()
                best[name] = min(best[name], 1e6 * (end - start))
                start = end
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sizes", default=",".join(SIZES))
    parser.add_argument("--only", default="", help="names of optimizers, with commas between")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, help="for both; default: what each chooses")
    parser.add_argument("--short", action="store_true", help="a quick look: one round")
    given = parser.parse_args()
    rounds = 1 if given.short else given.rounds
    chosen = [c for c in CASES if not given.only or c.split(",")[0] in given.only.split(",")]
    try:
        import torch

        if given.threads:
            torch.set_num_threads(given.threads)
        print(f"PyTorch {torch.__version__} with {torch.get_num_threads()} threads", end="; ")
    except ImportError:
        print("PyTorch is not installed: picodl alone", end="; ")
        torch = None
    if given.threads:
        parallel.set_threads(given.threads)
    print(f"numpy {np.__version__}, picodl with {parallel.threads()} threads")
    for size in given.sizes.split(","):
        arrays = make_arrays(SIZES[size])
        count = sum(w.size for w, _ in arrays)
        print(f"\n{size} ({count:,} weights in {len(arrays)} arrays); PyTorch / picodl")
        print(f"{'':20}{'picodl, us':>12}{'default':>10}{'foreach':>10}{'fused':>10}")
        for case in chosen:
            contenders = {"picodl": picodl_step(case, arrays)}
            if torch is not None:
                contenders |= torch_steps(case, arrays)
            best = best_of(contenders, rounds)
            mine = best.pop("picodl")
            ways = [f"{best[w] / mine:.2f}" if w in best else "-" for w in WAYS]
            print(f"{case:20}{mine:12.1f}" + "".join(f"{r:>10}" for r in ways), flush=True)


WAYS = ("default", "foreach", "fused")

if __name__ == "__main__":
    main()
