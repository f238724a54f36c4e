"""picodl beside PyTorch on sequences: training steps of an LSTM, a GRU, a transformer; Embedding.

    python examples/benchmarks/sequences.py [--rounds 5]

One step is forward, loss, backward and Adam on one batch: `train_on_batch` here, the plain loop
there. PyTorch runs with its default threads and with one; the better counts. The libraries take
turns; the best of the rounds counts. Printed are milliseconds and ratios, PyTorch / picodl: above 1
means that picodl is faster.

picodl computes with its compiled kernels where there is a C compiler, and builds them first; with
PICODL_COMPILED=0 in the environment numpy computes alone.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

import picodl
from picodl import layers, ops
from picodl.tensor import Tensor

T, FEATURES, UNITS, BATCH, CLASSES = 50, 32, 128, 64, 10
VOCABULARY, LENGTH, SIZE, HEADS, BLOCKS, MIDDLE, TEXTS = 1000, 64, 64, 4, 2, 256, 32
IDS, TABLE = (64, 50), (20_000, 64)
Step = Callable[[], object]
rng = np.random.default_rng(0)


def milliseconds(step: Step, seconds: float) -> float:
    """The best time of a step, tried for so long."""
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        step()
        best = min(best, time.perf_counter() - start)
    return 1000 * best


# -------------------------------------------------------------------- picodl


def compiled(model: picodl.Model, x: np.ndarray, y: np.ndarray) -> Step:
    loss = picodl.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(picodl.optimizers.Adam(1e-3), loss)
    return lambda: model.train_on_batch(x, y)


def picodl_rnn(kind: str, steps: int) -> Step:
    layer = layers.LSTM(UNITS) if kind == "LSTM" else layers.GRU(UNITS)
    model = picodl.Sequential([picodl.Input((None, FEATURES)), layer, layers.Dense(CLASSES)])
    return compiled(model, *sequences(steps))


def picodl_transformer() -> Step:
    source = picodl.Input((LENGTH,), dtype="int32")
    x = layers.TokenAndPositionEmbedding(VOCABULARY, LENGTH, SIZE)(source)
    for _ in range(BLOCKS):
        x = layers.TransformerEncoder(MIDDLE, HEADS)(x)
    logits = layers.Dense(CLASSES)(layers.GlobalAveragePooling1D()(x))
    return compiled(picodl.Model(source, logits), *texts())


def picodl_embedding() -> Step:
    table = Tensor(rng.normal(size=TABLE).astype("float32"), requires_grad=True)
    ids = rng.integers(0, TABLE[0], IDS)
    g = np.ones((*IDS, TABLE[1]), "float32")

    def step() -> None:
        table.grad = None
        ops.embedding(table, ids).backward(g)

    return step


def sequences(steps: int) -> tuple[np.ndarray, np.ndarray]:
    x = rng.normal(size=(BATCH, steps, FEATURES)).astype("float32")
    return x, rng.integers(0, CLASSES, BATCH)


def texts() -> tuple[np.ndarray, np.ndarray]:
    return rng.integers(0, VOCABULARY, (TEXTS, LENGTH)), rng.integers(0, CLASSES, TEXTS)


# -------------------------------------------------------------------- PyTorch


def torch_step(model: object, x: np.ndarray, y: np.ndarray) -> Step:
    import torch

    optimizer = torch.optim.Adam(model.parameters(), 1e-3)  # type: ignore[attr-defined]
    inputs, targets = torch.tensor(x), torch.tensor(y)
    loss = torch.nn.CrossEntropyLoss()

    def step() -> None:
        optimizer.zero_grad()
        loss(model(inputs), targets).backward()  # type: ignore[operator]
        optimizer.step()

    return step


def torch_rnn(kind: str, steps: int) -> Step:
    from torch import nn

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = getattr(nn, kind)(FEATURES, UNITS, batch_first=True)
            self.out = nn.Linear(UNITS, CLASSES)

        def forward(self, x):  # type: ignore[no-untyped-def]
            return self.out(self.rnn(x)[0][:, -1])

    return torch_step(Classifier(), *sequences(steps))


def torch_transformer() -> Step:
    import torch
    from torch import nn

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(VOCABULARY, SIZE)
            self.places = nn.Parameter(torch.randn(LENGTH, SIZE))
            block = nn.TransformerEncoderLayer(SIZE, HEADS, MIDDLE, dropout=0.0, batch_first=True)
            self.blocks = nn.TransformerEncoder(block, BLOCKS, enable_nested_tensor=False)
            self.out = nn.Linear(SIZE, CLASSES)

        def forward(self, ids):  # type: ignore[no-untyped-def]
            return self.out(self.blocks(self.tokens(ids) + self.places).mean(dim=1))

    return torch_step(Classifier(), *texts())


def torch_embedding() -> Step:
    import torch

    table = torch.nn.Embedding(*TABLE)
    ids = torch.tensor(rng.integers(0, TABLE[0], IDS))
    g = torch.ones(*IDS, TABLE[1])

    def step() -> None:
        table.weight.grad = None
        table(ids).backward(g)

    return step


# -------------------------------------------------------------------- both


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each step in a round")
    options = parser.parse_args()
    picodl.compiled.build_once()
    print("picodl with", "compiled kernels" if picodl.compiled.is_enabled() else "numpy alone")
    workloads: dict[str, tuple[Callable[[], Step], Callable[[], Step]]] = {
        "LSTM, 50 steps": (lambda: picodl_rnn("LSTM", T), lambda: torch_rnn("LSTM", T)),
        "GRU, 50 steps": (lambda: picodl_rnn("GRU", T), lambda: torch_rnn("GRU", T)),
        "LSTM, 200 steps": (lambda: picodl_rnn("LSTM", 4 * T), lambda: torch_rnn("LSTM", 4 * T)),
        "GRU, 200 steps": (lambda: picodl_rnn("GRU", 4 * T), lambda: torch_rnn("GRU", 4 * T)),
        "transformer, 2 blocks": (picodl_transformer, torch_transformer),
        "Embedding gradient": (picodl_embedding, torch_embedding),
    }
    try:
        import torch
    except ImportError:
        torch = None
        print("PyTorch is not installed; picodl alone")
    print(f"{'step':<24}{'picodl':>9}{'PyTorch':>9}{'1 thread':>9}{'ratio':>8}")
    for name, (ours, theirs) in workloads.items():
        times: dict[str, list[float]] = {"picodl": [], "many": [], "one": []}
        mine = ours()
        step = theirs() if torch is not None else None
        threads = torch.get_num_threads() if torch is not None else 1
        for _ in range(options.rounds):
            times["picodl"].append(milliseconds(mine, options.seconds))
            if step is not None:
                times["many"].append(milliseconds(step, options.seconds))
                torch.set_num_threads(1)
                times["one"].append(milliseconds(step, options.seconds))
                torch.set_num_threads(threads)
        own = min(times["picodl"])
        line = f"{name:<24}{own:>9.2f}"
        if step is not None:
            many, one = min(times["many"]), min(times["one"])
            line += f"{many:>9.2f}{one:>9.2f}{min(many, one) / own:>8.2f}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
