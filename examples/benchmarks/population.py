"""1,000 small networks 8-16-4 at once: picodl's Population beside PyTorch.

Every network sees a sample of its own, as in an evolution of controllers. PyTorch runs a loop over
modules (what most people write) and, for comparison, torch.func.vmap over stacked weights. One
thread, contenders take turns, best of many runs.

    python examples/benchmarks/population.py
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

N, INPUTS, HIDDEN, OUTPUTS = 1000, 8, 16, 4


def picodl_pass(x: np.ndarray) -> Callable[[], Any]:
    from picodl import layers
    from picodl.population import Population

    template = [layers.Linear(INPUTS, HIDDEN, activation="tanh"), layers.Linear(HIDDEN, OUTPUTS)]
    nets = Population(template, N, seed=0)
    return lambda: nets.predict_each(x)


def torch_modules(x: np.ndarray) -> list[Any]:
    import torch

    torch.set_num_threads(1)
    nn = torch.nn
    return [
        nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, OUTPUTS))
        for _ in range(N)
    ]


def torch_loop(x: np.ndarray) -> Callable[[], Any]:
    import torch

    nets, samples = torch_modules(x), list(torch.from_numpy(x))

    def run() -> list[Any]:
        with torch.inference_mode():
            return [net(sample) for net, sample in zip(nets, samples, strict=True)]

    return run


def torch_vmap(x: np.ndarray) -> Callable[[], Any]:
    import torch

    nets, samples = torch_modules(x), torch.from_numpy(x)
    parameters, buffers = torch.func.stack_module_state(nets)

    def one(p: Any, b: Any, sample: Any) -> Any:
        return torch.func.functional_call(nets[0], (p, b), (sample,))

    every = torch.vmap(one)

    def run() -> Any:
        with torch.inference_mode():
            return every(parameters, buffers, samples)

    return run


CONTENDERS = {
    "picodl Population": picodl_pass,
    "PyTorch, loop over modules": torch_loop,
    "PyTorch, vmap": torch_vmap,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40, help="runs of each contender")
    rounds = parser.parse_args().rounds

    x = np.random.default_rng(0).normal(size=(N, 1, INPUTS)).astype(np.float32)
    passes: dict[str, Callable[[], Any]] = {}
    best: dict[str, float] = {}
    for name, make in CONTENDERS.items():
        try:
            passes[name] = make(x)
        except ImportError as error:
            print(f"{name}: n/a ({error})")
    for _ in range(rounds):
        for name, run in passes.items():
            start = time.perf_counter()
            run()
            best[name] = min(best.get(name, 1e9), time.perf_counter() - start)
    own = best["picodl Population"]
    for name, seconds in best.items():
        rate = N / seconds / 1e6
        print(
            f"{name:28} {seconds * 1e3:8.3f} ms   {rate:6.2f} million networks/s   "
            f"{seconds / own:6.1f} times picodl's time"
        )


if __name__ == "__main__":
    main()
