"""Convolutional networks beside PyTorch: training steps, predictions, single layers, memory.

    python examples/benchmarks/cnn.py [--peer PYTHON] [--cpu] [--only cnn,resnet,layers,memory]

picodl, PyTorch with its default threads and PyTorch with one thread each have a process of their
own; they measure in turn, and the best of all rounds counts. Printed are times and ratios,
PyTorch / picodl: above 1 means that picodl is faster; PyTorch's better setting is taken. PYTHON is
an interpreter that has torch; by default this one. With --cpu all use one thread, and processor
time is taken instead of time on the wall: for a machine that has other work to do.

picodl computes with its compiled kernels where there is a C compiler, and builds them first; with
PICODL_COMPILED=0 in the environment numpy computes alone.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

BATCH, STEPS, EPOCHS = 64, 10, 2
Clock = Callable[[], float]
Cases = dict[str, tuple[Callable[[], Any], int]]  # name -> what to call, steps in a call

# name, size, channels in and out, kernel, stride
CONVOLUTIONS = [
    ("conv 3x3", 28, 1, 32, 3, 1),
    ("conv 3x3", 13, 32, 64, 3, 1),
    ("conv 3x3", 32, 3, 16, 3, 1),
    ("conv 3x3", 32, 16, 16, 3, 1),
    ("conv 3x3", 16, 32, 32, 3, 1),
    ("conv 3x3", 8, 64, 64, 3, 1),
    ("conv 3x3", 28, 32, 64, 3, 1),
    ("conv 1x1", 28, 64, 64, 1, 1),
    ("conv 3x3, stride 2", 32, 16, 32, 3, 2),
    ("conv 1x1, stride 2", 32, 16, 32, 1, 2),
]
DEPTHWISE = [("depthwise 3x3", 28, 32), ("depthwise 3x3", 14, 128)]
OTHERS = [("max pool 2x2", 26, 32), ("max pool 2x2", 11, 64), ("average pool 2x2", 26, 32)]
NORMS = [("batch norm", 32, 16), ("batch norm", 16, 32), ("batch norm", 8, 64)]


def best(function: Callable[[], Any], seconds: float, clock: Clock = time.perf_counter) -> float:
    """The shortest time of many calls, in milliseconds."""
    function()
    shortest, start = float("inf"), time.perf_counter()
    while time.perf_counter() - start < seconds:
        t = clock()
        function()
        shortest = min(shortest, clock() - t)
    return shortest * 1e3


def images(model: str, n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    shape = (28, 28, 1) if model == "cnn" else (32, 32, 3)
    return rng.random((n, *shape), dtype=np.float32), rng.integers(0, 10, n)


# -------------------------------------------------------------------- picodl


def picodl_model(name: str) -> Any:
    import picodl
    from picodl import layers as L
    from picodl import losses, optimizers

    if name == "cnn":
        model = picodl.Sequential(
            [
                picodl.Input((28, 28, 1)),
                L.Conv2D(32, 3, activation="relu"),
                L.MaxPooling2D(),
                L.Conv2D(64, 3, activation="relu"),
                L.MaxPooling2D(),
                L.Flatten(),
                L.Dense(128, activation="relu"),
                L.Dense(10),
            ]
        )
    else:

        def conv_bn(x: Any, filters: int, kernel: int, stride: int) -> Any:
            x = L.Conv2D(filters, kernel, stride, "same", use_bias=False)(x)
            return L.BatchNormalization()(x)

        inputs = picodl.Input((32, 32, 3))
        x = L.ReLU()(conv_bn(inputs, 16, 3, 1))
        for filters in (16, 32, 64):
            for block in range(2):
                stride = 2 if block == 0 and filters != 16 else 1
                y = L.ReLU()(conv_bn(x, filters, 3, stride))
                y = conv_bn(y, filters, 3, 1)
                skip = conv_bn(x, filters, 1, stride) if stride == 2 else x
                x = L.ReLU()(L.Add()([y, skip]))
        outputs = L.Dense(10)(L.GlobalAveragePooling2D()(x))
        model = picodl.Model(inputs, outputs)
    loss = losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizers.Adam(1e-3), loss)
    return model


def picodl_steps(name: str) -> Cases:
    x, y = images(name, BATCH * STEPS)
    model = picodl_model(name)

    def fit() -> None:
        model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, verbose=0, shuffle=False)

    def predict() -> None:
        model.predict(x, batch_size=BATCH, verbose=0)

    return {f"{name} step": (fit, STEPS * EPOCHS), f"{name} predict": (predict, STEPS)}


def picodl_layers() -> Cases:
    from picodl import activations, ops, parallel
    from picodl.tensor import Tensor

    found: Cases = {}
    random = np.random.default_rng(0).standard_normal

    def guarded(function: Callable[[], Any]) -> None:
        with parallel.blas_single_thread():  # as inside fit and predict
            function()

    def measure(
        key: str, op: Callable[..., Any], shape: tuple, *weights: tuple, first: bool
    ) -> None:
        x = Tensor(random(shape, dtype=np.float32), requires_grad=not first)
        w = [Tensor(random(s, dtype=np.float32), requires_grad=True) for s in weights]
        plain = [t.data for t in (x, *w)]
        found[f"{key} forward"] = lambda: guarded(lambda: op(*plain)), 1
        g = random(op(*plain).shape, dtype=np.float32)

        def both() -> None:
            op(x, *w).backward(g)
            for t in (x, *w):
                t.grad = None

        found[f"{key} both"] = lambda: guarded(both), 1

    relu = activations.relu.pair
    for name, n, c, f, k, s in CONVOLUTIONS:
        padding = "valid" if n in (13, 28) else "same"
        measure(
            f"{name}, {n}x{n}x{c} to {f}",
            lambda x, w, b, s=s, p=padding: ops.conv(x, w, s, p, bias=b, pair=relu),
            (BATCH, n, n, c),
            (k, k, c, f),
            (f,),
            first=c <= 3,
        )
    for name, n, c in DEPTHWISE:
        measure(
            f"{name}, {n}x{n}x{c}",
            lambda x, w: ops.depthwise_conv(x, w, 1, "same"),
            (BATCH, n, n, c),
            (3, 3, c, 1),
            first=False,
        )
    for name, n, c in OTHERS:
        op = ops.max_pool if name.startswith("max") else ops.average_pool
        shape = (BATCH, n, n, c)
        measure(f"{name}, {n}x{n}x{c}", lambda x, op=op: op(x, 2), shape, first=False)
    for name, n, c in NORMS:
        measure(
            f"{name}, {n}x{n}x{c}",
            lambda x, a, b: ops.normalize_batch(x, a, b)[0],
            (BATCH, n, n, c),
            (c,),
            (c,),
            first=False,
        )
    return found


# -------------------------------------------------------------------- PyTorch


def torch_model(name: str) -> Any:
    import torch.nn.functional as F
    from torch import nn

    if name == "cnn":
        return nn.Sequential(
            nn.Conv2d(1, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3), nn.ReLU(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1600, 128), nn.ReLU(), nn.Linear(128, 10),
        )  # fmt: skip

    def conv_bn(i: int, o: int, k: int, s: int) -> Any:
        return nn.Sequential(nn.Conv2d(i, o, k, s, k // 2, bias=False), nn.BatchNorm2d(o))

    class Block(nn.Module):
        def __init__(self, i: int, o: int, s: int) -> None:
            super().__init__()
            self.a, self.b = conv_bn(i, o, 3, s), conv_bn(o, o, 3, 1)
            self.skip = conv_bn(i, o, 1, s) if s != 1 else nn.Identity()

        def forward(self, x: Any) -> Any:
            return F.relu(self.b(F.relu(self.a(x))) + self.skip(x))

    parts, last = [conv_bn(3, 16, 3, 1), nn.ReLU()], 16
    for filters in (16, 32, 64):
        for block in range(2):
            parts.append(Block(last, filters, 2 if block == 0 and filters != 16 else 1))
            last = filters
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def torch_steps(name: str) -> Cases:
    import torch
    import torch.nn.functional as F

    x, y = images(name, BATCH * STEPS)
    xs = torch.from_numpy(np.ascontiguousarray(x.transpose(0, 3, 1, 2))).split(BATCH)
    ys = torch.from_numpy(y).split(BATCH)
    model = torch_model(name)
    optimizer = torch.optim.Adam(model.parameters())

    def fit() -> None:
        model.train()
        for _ in range(EPOCHS):
            for a, b in zip(xs, ys, strict=True):
                optimizer.zero_grad()
                F.cross_entropy(model(a), b).backward()
                optimizer.step()

    def predict() -> None:
        model.eval()
        with torch.no_grad():
            torch.cat([model(a) for a in xs])

    return {f"{name} step": (fit, STEPS * EPOCHS), f"{name} predict": (predict, STEPS)}


def torch_layers() -> Cases:
    import torch
    import torch.nn.functional as F

    found: Cases = {}

    def measure(
        key: str, op: Callable[..., Any], shape: tuple, *weights: tuple, first: bool
    ) -> None:
        x = torch.randn(shape, requires_grad=not first)
        w = [torch.randn(s, requires_grad=True) for s in weights]
        with torch.no_grad():
            g = torch.randn_like(op(x, *w))

        def forward() -> None:
            with torch.no_grad():
                op(x, *w)

        def both() -> None:
            op(x, *w).backward(g)
            for t in (x, *w):
                t.grad = None

        found[f"{key} forward"], found[f"{key} both"] = (forward, 1), (both, 1)

    for name, n, c, f, k, s in CONVOLUTIONS:
        padding = 0 if n in (13, 28) else k // 2
        measure(
            f"{name}, {n}x{n}x{c} to {f}",
            lambda x, w, b, s=s, p=padding: F.relu(F.conv2d(x, w, b, s, p)),
            (BATCH, c, n, n),
            (f, c, k, k),
            (f,),
            first=c <= 3,
        )
    for name, n, c in DEPTHWISE:
        measure(
            f"{name}, {n}x{n}x{c}",
            lambda x, w, c=c: F.conv2d(x, w, None, 1, 1, 1, c),
            (BATCH, c, n, n),
            (c, 1, 3, 3),
            first=False,
        )
    for name, n, c in OTHERS:
        op = F.max_pool2d if name.startswith("max") else F.avg_pool2d
        measure(f"{name}, {n}x{n}x{c}", lambda x, op=op: op(x, 2), (BATCH, c, n, n), first=False)
    for name, n, c in NORMS:
        mean, variance = torch.zeros(c), torch.ones(c)
        measure(
            f"{name}, {n}x{n}x{c}",
            lambda x, a, b, m=mean, v=variance: F.batch_norm(x, m, v, a, b, True, 0.01),
            (BATCH, c, n, n),
            (c,),
            (c,),
            first=False,
        )
    return found


# -------------------------------------------------------------------- both


def memory(library: str) -> dict[str, float]:
    """MiB that two epochs of the MNIST network's fit add to the process, data not counted."""
    x, y = images("cnn", 6400)
    if library == "picodl":
        model = picodl_model("cnn")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(2):
            model.fit(x, y, batch_size=BATCH, verbose=0)
    else:
        import torch
        import torch.nn.functional as F

        xs = torch.from_numpy(np.ascontiguousarray(x.transpose(0, 3, 1, 2))).split(BATCH)
        ys = torch.from_numpy(y).split(BATCH)
        model = torch_model("cnn")
        optimizer = torch.optim.Adam(model.parameters())
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(2):
            for a, b in zip(xs, ys, strict=True):
                optimizer.zero_grad()
                F.cross_entropy(model(a), b).backward()
                optimizer.step()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"memory added by fit": (peak - before) / 1024, "memory of the process": peak / 1024}


def child(library: str, kinds: list[str], cpu: bool) -> None:
    """Answer each line "name seconds" on standard input with the best time in milliseconds."""
    if library == "torch1":
        import torch

        torch.set_num_threads(1)
    elif library == "picodl":
        from picodl import compiled, parallel

        compiled.build_once()
        if cpu:
            parallel.set_threads(1)
    clock = time.process_time if cpu else time.perf_counter
    if kinds == ["memory"]:
        print(json.dumps(memory(library)))
        return
    kind = "picodl" if library == "picodl" else "torch"
    cases: Cases = {}
    for what in kinds:
        make = globals()[f"{kind}_{'layers' if what == 'layers' else 'steps'}"]
        cases.update(make() if what == "layers" else make(what))
    print(json.dumps(list(cases)), flush=True)
    for line in sys.stdin:
        name, seconds = json.loads(line)
        function, count = cases[name]
        print(json.dumps(best(function, seconds, clock) / count), flush=True)


def start(python: str, library: str, kinds: list[str], cpu: bool) -> subprocess.Popen[str]:
    command = [python, __file__, "--child", library, "--only", ",".join(kinds)]
    command += ["--cpu"] if cpu else []
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)


def show(name: str, row: dict[str, float], unit: str) -> None:
    ratio = min(value for library, value in row.items() if library != "picodl") / row["picodl"]
    cells = " | ".join(f"{value:.2f}" for value in row.values())
    print(f"| {name}, {unit} | {cells} | {ratio:.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", default=sys.executable)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=0.2)
    parser.add_argument("--only", default="cnn,resnet,layers,memory")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--child")
    args = parser.parse_args()
    kinds = args.only.split(",")
    if args.child:
        child(args.child, kinds, args.cpu)
        return
    libraries = {"picodl": "picodl", "torch": "PyTorch", "torch1": "PyTorch, one thread"}
    if args.cpu:
        del libraries["torch"]
    pythons = {key: sys.executable if key == "picodl" else args.peer for key in libraries}
    print(f"| what | {' | '.join(libraries.values())} | ratio |")
    print("|---" * (len(libraries) + 2) + "|")
    timed = [kind for kind in kinds if kind != "memory"]
    if timed:
        workers = {
            library: start(pythons[library], library, timed, args.cpu) for library in libraries
        }
        names = [json.loads(worker.stdout.readline()) for worker in workers.values()]
        rows: dict[str, dict[str, float]] = {name: {} for name in names[0]}
        for _ in range(args.rounds):
            for name, row in rows.items():
                for library, worker in workers.items():
                    worker.stdin.write(json.dumps([name, args.seconds]) + "\n")
                    worker.stdin.flush()
                    time_ms = json.loads(worker.stdout.readline())
                    row[library] = min(time_ms, row.get(library, float("inf")))
        for worker in workers.values():
            worker.stdin.close()
            worker.wait()
        for name, row in rows.items():
            show(name, row, "ms")
    if "memory" in kinds:
        found = {}
        for library in libraries:
            done = start(pythons[library], library, ["memory"], args.cpu)
            found[library] = json.loads(done.communicate()[0])
        for name in found["picodl"]:
            show(name, {library: values[name] for library, values in found.items()}, "MiB")


if __name__ == "__main__":
    main()
