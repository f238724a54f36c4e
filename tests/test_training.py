"""Training beside other things: threads, exceptions, many calls."""

from __future__ import annotations

import gc
import threading
import tracemalloc
from typing import Any

import numpy as np
import pytest

import picodl
from picodl import callbacks, layers

RNG = np.random.default_rng(0)
X = RNG.normal(size=(96, 6)).astype("float32")
Y = X[:, :1] * 2 - 1


def net() -> Any:
    picodl.utils.set_random_seed(0)
    model = picodl.Sequential(
        [picodl.Input((6,)), layers.Dense(8, "relu"), layers.Dropout(0.2), layers.Dense(1)]
    )
    model.compile("adam", loss="mse", metrics=["mae"])
    return model


def test_predict_in_threads_while_fit_runs_disturbs_nothing() -> None:
    alone = net()
    alone.fit(X, Y, batch_size=8, epochs=15, verbose=0)
    model = net()
    stop, shapes, failures = threading.Event(), set(), []

    def predict() -> None:
        while not stop.is_set():
            try:
                y = model.predict(X, batch_size=32, verbose=0)
                shapes.add((y.shape, bool(np.isfinite(y).all())))
            except Exception as error:  # shown below
                failures.append(error)

    threads = [threading.Thread(target=predict) for _ in range(3)]
    for thread in threads:
        thread.start()
    model.fit(X, Y, batch_size=8, epochs=15, verbose=0)
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures and shapes == {((96, 1), True)}
    for a, b in zip(alone.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_exception_in_a_generator_leaves_the_last_full_step(error: type[BaseException]) -> None:
    def batches(count: int) -> Any:
        for i in range(count):
            yield X[8 * i : 8 * i + 8], Y[8 * i : 8 * i + 8]
        raise error("gone")

    whole = net()
    whole.fit(X[:40], Y[:40], batch_size=8, shuffle=False, verbose=0)
    model = net()
    log = callbacks.CSVLogger("/dev/null")
    with pytest.raises(error, match="gone"):
        model.fit(batches(5), callbacks=[log], verbose=0)
    for a, b in zip(whole.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert log._file is None
    model.fit(X, Y, verbose=0)
    assert model.predict(X, verbose=0).shape == (96, 1)


def test_many_calls_keep_no_memory() -> None:
    model = net()

    def work(count: int) -> tuple[int, int]:
        for _ in range(count):
            stopping = callbacks.EarlyStopping("loss", restore_best_weights=True)
            model.fit(X, Y, callbacks=[stopping], validation_split=0.25, verbose=0)
            model.predict(X, batch_size=10, verbose=0)
            model.evaluate(X, Y, verbose=0)
            model.train_on_batch(X, Y)
        gc.collect()
        return tracemalloc.get_traced_memory()[0], len(gc.get_objects())

    tracemalloc.start()
    try:
        work(5)
        size, objects = work(5)
        later, more = work(40)
    finally:
        tracemalloc.stop()
    assert later - size < 40_000 and more - objects < 40


def test_validation_steps_and_frequency() -> None:
    model = net()
    history = model.fit(
        X, Y, epochs=4, validation_data=(X, Y), validation_freq=2, validation_batch_size=10,
        validation_steps=3, verbose=0,
    )  # fmt: skip
    assert len(history.history["val_loss"]) == 2 and len(history.history["loss"]) == 4

    def endless() -> Any:
        i = 0
        while True:
            yield np.full((2, 6), i, "float32"), np.zeros((2, 1))
            i += 1

    source = endless()
    model.fit(X, Y, epochs=3, validation_data=source, validation_steps=2, verbose=0)
    assert next(source)[0][0, 0] == 6.0  # two batches in each epoch, none lost


def test_stop_training_ends_within_the_epoch() -> None:
    class Stop(callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.stop_training = batch == 1

    seen = callbacks.LambdaCallback(on_train_batch_begin=lambda batch, logs: counted.append(batch))
    counted: list[int] = []
    history = net().fit(X, Y, batch_size=8, epochs=3, callbacks=[Stop(), seen], verbose=0)
    assert counted == [0, 1] and history.epoch == [0]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"validation_data": (X, Y[:3])}, "In validation_data: .*x has 96, y has 3"),
        ({"validation_data": (X, Y, Y, Y)}, "received a tuple of 4"),
        ({"validation_data": X}, "needs targets: pass y"),
        ({"validation_data": (X, Y), "validation_steps": 0}, "validation_steps must be a positive"),
        ({"validation_data": (X, Y), "validation_batch_size": 0}, "validation_batch_size must be"),
        ({"validation_freq": 0}, "validation_freq"),
        ({"y": None}, "needs targets: pass y"),
    ],
)
def test_bad_arguments(options: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        net().fit(X, **{"y": Y, "verbose": 0, **options})


def test_validation_data_goes_before_validation_split() -> None:
    model = net()
    history = model.fit(X, Y, validation_data=(X[:5], Y[:5]), validation_split=0.5, verbose=0)
    loss = model.evaluate(X[:5], Y[:5], verbose=0)[0]
    assert history.history["val_loss"] == [pytest.approx(loss)]
