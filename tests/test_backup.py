"""A training that ends too early is resumed and ends as if it had not."""

from __future__ import annotations

import csv
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import picodl
from picodl import callbacks as C
from picodl import layers
from picodl.callbacks.backup import read_state, write_state

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 6)).astype("float32")
Y = (X[:, :1] + RNG.normal(size=(40, 1)) > 0).astype("float32")


class Stop(C.Callback):
    """Raises at the given epoch, or at the given batch of it."""

    def __init__(self, epoch: int, batch: int | None = None) -> None:
        super().__init__()
        self.at = (epoch, batch)
        self.epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch
        if self.at == (epoch, None):
            raise RuntimeError("power cut")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.at == (self.epoch, batch):
            raise RuntimeError("power cut")


def run(folder: Path, *extra: Any, before: list[Any] | None = None, freq: Any = "epoch") -> Any:
    """A fit with everything that has a state; the model and its history."""
    picodl.utils.set_random_seed(5)
    model = picodl.Sequential(
        [
            picodl.Input((6,)),
            layers.Dense(8, "relu"),
            layers.Dropout(0.4),
            layers.Dense(1, "sigmoid"),
        ]
    )
    schedule = picodl.optimizers.schedules.ExponentialDecay(0.02, 7, 0.9)
    model.compile(
        picodl.optimizers.Adam(schedule, use_ema=True),
        loss="binary_crossentropy",
        metrics=["accuracy", "auc"],
    )
    folder.mkdir(exist_ok=True)
    history = model.fit(
        X, Y, epochs=8, batch_size=9, validation_split=0.2, verbose=0,
        callbacks=[
            *(before or []),
            C.CSVLogger(folder / "log.csv", append=True),
            C.EarlyStopping("loss", patience=50, restore_best_weights=True),
            C.ModelCheckpoint(
                folder / "best.weights.h5", "loss", save_best_only=True, save_weights_only=True
            ),
            C.BackupAndRestore(folder / "backup", save_freq=freq),
            *extra,
        ],
    )  # fmt: skip
    return model, history


def same(a: Any, b: Any) -> bool:
    pairs = zip(a.get_weights(), b.get_weights(), strict=True)
    return all(x.tobytes() == y.tobytes() for x, y in pairs)


@pytest.mark.parametrize(
    ("freq", "stops"),
    [("epoch", [(3, None)]), ("epoch", [(0, 1), (4, 2)]), (2, [(2, 2), (5, 0)]), (4, [(3, 3)])],
)
def test_resumed_run_equals_an_unbroken_one(tmp_path: Path, freq: Any, stops: Any) -> None:
    whole, _ = run(tmp_path / "whole", freq=freq)
    for stop in stops:
        with pytest.raises(RuntimeError, match="power cut"):
            run(tmp_path / "cut", Stop(*stop), freq=freq)
        np.random.seed(99)  # a new process would not have the old generators either
        random.seed(99)
    resumed, history = run(tmp_path / "cut", freq=freq)
    assert same(whole, resumed)
    logs = [(tmp_path / name / "log.csv").read_text() for name in ("whole", "cut")]
    assert logs[0] == logs[1]
    assert history.epoch[-1] == 7 and len(history.epoch) < 8
    files = [(tmp_path / name / "best.weights.h5").read_bytes() for name in ("whole", "cut")]
    assert len(files[0]) == len(files[1])
    assert not (tmp_path / "cut" / "backup").exists()


def test_callbacks_listed_after_the_backup_lose_nothing(tmp_path: Path) -> None:
    def late(*extra: Any) -> Any:
        model = picodl.Sequential([picodl.Input((6,)), layers.Dense(1)])
        model.compile("sgd", loss="mse")
        log = C.CSVLogger(tmp_path / "late.csv", append=True)
        stopping = C.EarlyStopping("loss", patience=3)
        model.fit(
            X, Y, epochs=6, verbose=0,
            callbacks=[C.BackupAndRestore(tmp_path / "late"), *extra, log, stopping],
        )  # fmt: skip
        return stopping

    class StopsAfterBackup(C.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if epoch == 3:
                raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        late(StopsAfterBackup())
    late()
    with open(tmp_path / "late.csv", newline="") as file:
        assert [row["epoch"] for row in csv.DictReader(file)] == list("012345")


def test_schedules_of_callbacks_are_not_applied_twice(tmp_path: Path) -> None:
    halves = [C.LearningRateScheduler(lambda epoch, rate: rate * 0.5)]

    def train(folder: str, *extra: Any) -> Any:
        model = picodl.Sequential([picodl.Input((6,)), layers.Dense(1, kernel_initializer="zeros")])
        model.compile(picodl.optimizers.SGD(0.1), loss="mse")
        model.fit(
            X, Y, epochs=3, batch_size=8, verbose=0,
            callbacks=[C.BackupAndRestore(tmp_path / folder, save_freq=2), *halves, *extra],
        )  # fmt: skip
        return model

    whole = train("a")
    with pytest.raises(RuntimeError, match="power cut"):
        train("b", Stop(1, 3))
    assert same(whole, train("b"))


def test_damaged_backup_is_set_aside_and_the_one_before_is_used(tmp_path: Path) -> None:
    whole, _ = run(tmp_path / "whole")
    with pytest.raises(RuntimeError):
        run(tmp_path / "cut", Stop(4))
    latest = tmp_path / "cut" / "backup" / "latest.h5"
    assert json.loads((latest.parent / "training_metadata.json").read_text()) == {
        "epoch": 4,
        "batch": 0,
    }
    latest.write_bytes(latest.read_bytes()[:-700])
    with pytest.warns(UserWarning, match=r"latest\.h5.*renamed to .*damaged.*backup before it"):
        resumed, history = run(tmp_path / "cut")
    assert history.epoch == [3, 4, 5, 6, 7] and same(whole, resumed)


def test_backup_of_another_model_is_refused(tmp_path: Path) -> None:
    def fit(units: int) -> None:
        model = picodl.Sequential([picodl.Input((6,)), layers.Dense(units)])
        model.compile("adam", loss="mse")
        backup = C.BackupAndRestore(tmp_path / "b", delete_checkpoint=False)
        model.fit(X, np.ones((40, units)), epochs=1, callbacks=[backup], verbose=0)

    fit(2)
    assert sorted(os.listdir(tmp_path / "b")) == [
        "latest.h5", "previous.h5", "training_metadata.json",
    ]  # fmt: skip
    with pytest.raises(ValueError, match=r"of another weights.*delete the backup"):
        fit(3)


def test_unbuilt_model_cannot_be_resumed(tmp_path: Path) -> None:
    def fit(*extra: Any) -> None:
        model = picodl.Sequential([layers.Dense(1)])
        model.compile("sgd", loss="mse")
        backup = C.BackupAndRestore(tmp_path / "b", save_freq=2)
        model.fit(X, Y, epochs=2, batch_size=8, callbacks=[backup, *extra], verbose=0)

    with pytest.raises(RuntimeError):
        fit(Stop(1, 0))
    with pytest.raises(ValueError, match="must be built before its training can be resumed"):
        fit()


def test_state_files_hold_numbers_texts_and_arrays(tmp_path: Path) -> None:
    state = {
        "a": [1, 2.5, None, "x", True],
        "b": {"c": np.arange(3.0), "d": np.array([True, False]), "e": np.float32(0.5)},
        "inf": float("inf"),
    }
    write_state(str(tmp_path / "s.h5"), state)
    back = read_state(str(tmp_path / "s.h5"))
    assert back["a"] == state["a"] and back["inf"] == float("inf")
    assert back["b"]["e"] == 0.5 and back["b"]["d"].dtype == bool
    np.testing.assert_array_equal(back["b"]["c"], state["b"]["c"])
    with pytest.raises(TypeError, match="arrays of numbers"):
        write_state(str(tmp_path / "s.h5"), {"a": np.array(["x"])})


def test_generators_in_layers_of_ones_own_go_on(tmp_path: Path) -> None:
    class Noise(layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.rng = np.random.default_rng(4)

        def call(self, x: Any, training: bool = False) -> Any:
            return x + self.rng.normal(size=x.shape).astype("float32") if training else x

    def fit(name: str, *extra: Any) -> Any:
        dense = layers.Dense(1, kernel_initializer="zeros")
        model = picodl.Sequential([picodl.Input((6,)), Noise(), dense])
        model.compile("sgd", loss="mse")
        backup = C.BackupAndRestore(tmp_path / name)
        model.fit(X, Y, epochs=4, callbacks=[backup, *extra], verbose=0)
        return model

    whole = fit("a")
    with pytest.raises(RuntimeError, match="power cut"):
        fit("b", Stop(2))
    assert same(whole, fit("b"))


def test_generator_is_wound_forward(tmp_path: Path) -> None:
    def batches() -> Any:
        for i in range(100):
            yield X[i % 30 : i % 30 + 5], Y[i % 30 : i % 30 + 5]

    def fit(name: str, *extra: Any) -> Any:
        model = picodl.Sequential([picodl.Input((6,)), layers.Dense(1, kernel_initializer="zeros")])
        model.compile("sgd", loss="mse")
        backup = C.BackupAndRestore(tmp_path / name, save_freq=3)
        model.fit(batches(), steps_per_epoch=4, epochs=5, callbacks=[backup, *extra], verbose=0)
        return model

    whole = fit("a")
    with pytest.raises(RuntimeError, match="power cut"):
        fit("b", Stop(2, 2))
    assert same(whole, fit("b"))


SCRIPT = textwrap.dedent("""
    import sys, numpy as np, picodl
    from picodl import callbacks as C, layers
    folder = sys.argv[1]
    picodl.utils.set_random_seed(1)
    x = np.random.default_rng(0).normal(size=(200, 8)).astype("float32")
    model = picodl.Sequential([picodl.Input((8,)), layers.Dense(64, "relu"), layers.Dropout(0.3),
                               layers.Dense(1)])
    model.compile("adam", loss="mse")
    model.fit(x, x[:, :1], epochs=12, batch_size=16, verbose=0, callbacks=[
        C.CSVLogger(folder + "/log.csv", append=True),
        C.BackupAndRestore(folder + "/backup", save_freq=5)])
    np.savez(folder + "/final.npz", *model.get_weights())
""")


def test_killed_runs(tmp_path: Path) -> None:
    def start(folder: Path) -> Any:
        folder.mkdir(exist_ok=True)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.Popen([sys.executable, "-c", SCRIPT, str(folder)], env=environment)

    assert start(tmp_path / "whole").wait() == 0
    rng = random.Random(3)
    for _ in range(2):
        child = start(tmp_path / "killed")
        deadline = time.monotonic() + 20
        while not (tmp_path / "killed" / "log.csv").exists() and time.monotonic() < deadline:
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.15))
        child.send_signal(signal.SIGKILL)
        child.wait()
        if (tmp_path / "killed" / "final.npz").exists():
            break
    if not (tmp_path / "killed" / "final.npz").exists():
        assert start(tmp_path / "killed").wait() == 0
    logs = [(tmp_path / name / "log.csv").read_text() for name in ("whole", "killed")]
    assert logs[0] == logs[1]
    with (
        np.load(tmp_path / "whole" / "final.npz") as a,
        np.load(tmp_path / "killed" / "final.npz") as b,
    ):
        assert all(a[name].tobytes() == b[name].tobytes() for name in a.files)
