"""Hooks: which are called, in which order, with what; stopping, checkpoints, learning rates."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import picodl
from picodl import callbacks as C
from picodl import layers
from picodl.callbacks.base import HOOKS, CallbackList

X = np.full((6, 1), 2.0, "float32")
Y = np.zeros((6, 1), "float32")


def net(rate: float = 0.0, metrics: Any = None) -> Any:
    model = picodl.Sequential([picodl.Input((1,)), layers.Dense(1, use_bias=False)])
    model.compile(picodl.optimizers.SGD(rate), loss="mse", metrics=metrics)
    return model


class Drive(C.Callback):
    """Puts a weight in place before each epoch, so that loss = weight ** 2 is known."""

    def __init__(self, values: list[float]) -> None:
        super().__init__()
        self.values = values

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.model.set_weights([np.array([[self.values[epoch] / 2]], "float32")])


def drive(values: list[float], *callbacks: Any, **options: Any) -> Any:
    """The model and history of a fit whose epochs have the losses values ** 2."""
    model = net()
    options = {"epochs": len(values), "verbose": 0, **options}
    history = model.fit(X, Y, callbacks=[Drive(values), *callbacks], **options)
    return model, history


class Spy(C.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []


def _spying(hook: str) -> Any:
    def method(self: Spy, *args: Any) -> None:
        self.calls.append((hook.removeprefix("on_"), *args))

    return method


for _hook in HOOKS:
    if _hook not in ("on_batch_begin", "on_batch_end"):
        setattr(Spy, _hook, _spying(_hook))


def test_fit_calls_hooks_in_order() -> None:
    spy = Spy()
    net().fit(X, Y, batch_size=4, epochs=1, validation_data=(X, Y), callbacks=[spy], verbose=0)
    names = [call[0] for call in spy.calls]
    batches = ["train_batch_begin", "train_batch_end"] * 2
    tests = ["test_begin", *["test_batch_begin", "test_batch_end"] * 2, "test_end"]
    expected = ["train_begin", "epoch_begin", *batches, *tests, "epoch_end", "train_end"]
    assert names == expected
    assert [c[1] for c in spy.calls if c[0] == "train_batch_end"] == [0, 1]
    ends = [c for c in spy.calls if c[0] == "epoch_end"]
    assert ends[0][1] == 0 and list(ends[0][2]) == ["loss", "val_loss"]


def test_evaluate_and_predict_call_their_hooks() -> None:
    spy = Spy()
    model = net()
    model.evaluate(X, Y, batch_size=4, callbacks=[spy], verbose=0)
    model.predict(X, batch_size=4, callbacks=[spy], verbose=0)
    names = [call[0] for call in spy.calls]
    assert names == [
        "test_begin", *["test_batch_begin", "test_batch_end"] * 2, "test_end",
        "predict_begin", *["predict_batch_begin", "predict_batch_end"] * 2, "predict_end",
    ]  # fmt: skip
    outputs = [c[2]["outputs"] for c in spy.calls if c[0] == "predict_batch_end"]
    assert [o.shape for o in outputs] == [(4, 1), (2, 1)]


def test_older_batch_hooks_are_called() -> None:
    class Old(C.Callback):
        seen = 0

        def on_batch_end(self, batch: int, logs: Any = None) -> None:
            assert logs["loss"] == 1.0
            self.seen += 1

    old = Old()
    drive([1.0], old, batch_size=2)
    assert old.seen == 3


def test_hooks_that_nobody_overrides_cost_nothing() -> None:
    class EpochOnly(C.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            pass

    both = CallbackList([EpochOnly(), C.History()])
    assert not both.has_train_batch_hooks and not both.has_predict_batch_hooks

    def never() -> Any:
        raise AssertionError("the logs were computed for nobody")

    both.on_train_batch_end(0, never)
    lazy = CallbackList([C.ModelCheckpoint("x.keras", save_freq=100), C.TimeStopping(9)])
    lazy.on_train_begin()
    lazy.on_train_batch_end(0, never)


def test_logs_are_one_dict_for_all() -> None:
    class Adds(C.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            logs["extra"] = 7.0

    _, history = drive([1.0, 2.0], Adds())
    assert history.history == {"loss": [1.0, 4.0], "extra": [7.0, 7.0]}
    assert history.epoch == [0, 1] and history.params["epochs"] == 2


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("EarlyStopping", "list of Callback instances.*EarlyStopping"),
        ([print], "received <built-in function print>"),
        ([C.History], r"pass an instance, History\(\.\.\.\)"),
        ([C.History(), 3], "received 3 of type int"),
    ],
)
def test_what_is_no_callback_is_refused(given: Any, told: str) -> None:
    with pytest.raises(TypeError, match=told):
        net().fit(X, Y, callbacks=given, verbose=0)


def test_exception_in_a_callback_releases_all_and_leaves_the_model_usable(tmp_path: Path) -> None:
    class Fails(C.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            raise KeyboardInterrupt

    log = C.CSVLogger(tmp_path / "log.csv")
    model = net(0.1)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, Y, callbacks=[log, Fails()], verbose=0, epochs=3)
    assert log._file is None
    assert (tmp_path / "log.csv").read_text().splitlines()[0] == "epoch,loss,val_loss"
    assert len(model.fit(X, Y, verbose=0).epoch) == 1


# ---------------------------------------------------------------- LambdaCallback


def test_lambda_callback() -> None:
    seen: list[Any] = []
    callback = C.LambdaCallback(
        on_epoch_end=lambda epoch, logs: seen.append((epoch, logs["loss"])),
        on_train_batch_end=lambda batch, logs: seen.append(batch),
        on_test_begin=lambda logs: seen.append("test"),
    )
    drive([2.0], callback, validation_data=(X, Y))
    assert seen == [0, "test", (0, 4.0)]
    with pytest.raises(TypeError, match=r"Did you mean .on_epoch_end"):
        C.LambdaCallback(on_epoch_ends=print)
    with pytest.raises(TypeError, match="on_epoch_end must be callable; received 3"):
        C.LambdaCallback(on_epoch_end=3)  # type: ignore[arg-type]


# ---------------------------------------------------------------- stopping


@pytest.mark.parametrize(
    ("values", "options", "epochs", "best"),
    [
        ([3, 2, 1, 4, 2.5], {"patience": 10}, 5, 2),
        ([3, 1, 2, 2, 0, 0], {"patience": 2}, 4, 1),
        ([3, 3, 3], {"patience": 0}, 2, 0),
        ([3, 3, 3], {"patience": 1}, 2, 0),
        ([1, 2, 3], {"patience": 0, "mode": "max"}, 3, 2),
        ([3, 2.99, 2.98], {"patience": 1, "min_delta": 1.0}, 2, 0),
        ([3, 2.8, 2.6, 2.4], {"patience": 1, "baseline": 0.1}, 4, 3),
        ([1, 5, 5, 5, 4, 5], {"patience": 2, "start_from_epoch": 3}, 6, 4),
        ([math.nan, 3, 2, 2], {"patience": 2}, 4, 2),
    ],
)
def test_early_stopping(values: list[float], options: Any, epochs: int, best: int) -> None:
    stopping = C.EarlyStopping("loss", restore_best_weights=True, **options)
    if math.isnan(values[0]):
        with pytest.warns(UserWarning, match="NaN"):
            model, history = drive(values, stopping)
    else:
        model, history = drive(values, stopping)
    assert len(history.epoch) == epochs
    assert stopping.best_epoch == best
    assert stopping.stopped_epoch == (0 if epochs == len(values) else epochs - 1)
    assert model.get_weights()[0][0, 0] == np.float32(values[best] / 2)


def test_early_stopping_can_watch_what_a_subclass_gives() -> None:
    class Squared(C.EarlyStopping):
        def get_monitor_value(self, logs: Any) -> Any:
            value = super().get_monitor_value(logs)
            return None if value is None else value**2

    stopping = Squared("loss", patience=1)
    assert stopping.get_monitor_value({"loss": 3.0}) == 9
    assert len(drive([2, 1, 1, 1], stopping)[1].epoch) == 3 and stopping.best == 1
    with pytest.warns(UserWarning, match="'loss' is not available"):
        assert stopping.get_monitor_value(None) is None


def test_early_stopping_forgets_the_fit_before() -> None:
    stopping = C.EarlyStopping("loss", patience=1)
    assert len(drive([1, 1, 1], stopping)[1].epoch) == 2
    assert len(drive([5, 4, 3], stopping)[1].epoch) == 3


def test_monitor_that_does_not_exist_warns_with_what_there_is() -> None:
    with pytest.warns(UserWarning, match="'val_loss' is not available.*hold loss.*validation data"):
        drive([1.0], C.EarlyStopping())


def test_direction_of_a_metric() -> None:
    def oddity(y_true: Any, y_pred: Any) -> Any:
        return y_pred - y_true

    model = net(metrics=["mae", oddity])
    model.fit(X, Y, epochs=2, callbacks=[C.EarlyStopping("mae", patience=3)], verbose=0)
    with pytest.raises(ValueError, match=r"oddity. should grow or shrink"):
        model.fit(X, Y, epochs=2, callbacks=[C.EarlyStopping("oddity")], verbose=0)
    with pytest.warns(UserWarning, match='mode must be "auto", "min" or "max"'):
        C.EarlyStopping("loss", mode="upwards")


@pytest.mark.parametrize("value", [-1, 1.5, "2"])
def test_patience_must_be_a_count(value: Any) -> None:
    for kind in (C.EarlyStopping, C.ReduceLROnPlateau):
        with pytest.raises(ValueError, match="patience must be an integer >= 0"):
            kind("loss", patience=value)


def test_terminate_on_nan(capsys: Any) -> None:
    y = Y.copy()
    y[3] = np.nan
    spy = Spy()
    model = net(0.01)
    with pytest.warns(UserWarning, match="NaN"):
        model.fit(
            X, y, batch_size=2, epochs=3, shuffle=False,
            callbacks=[spy, C.TerminateOnNaN()], verbose=0,
        )  # fmt: skip
    assert [c[1] for c in spy.calls if c[0] == "train_batch_end"] == [0, 1]
    assert "Batch 1: the loss is nan" in capsys.readouterr().out
    with pytest.warns(UserWarning, match="NaN"), pytest.raises(RuntimeError, match="Batch 0"):
        model.fit(X, y, callbacks=[C.TerminateOnNaN(raise_error=True)], verbose=0)


def test_time_stopping() -> None:
    stopping = C.TimeStopping(1e-6)
    _, history = drive([1.0] * 4, stopping)
    assert history.epoch == [0] and stopping.stopped_epoch == 0
    with pytest.raises(ValueError, match="seconds must be positive"):
        C.TimeStopping(0)


# ---------------------------------------------------------------- learning rate


def test_reduce_lr_on_plateau() -> None:
    model = net(1.0)
    plateau = C.ReduceLROnPlateau("loss", factor=0.1, patience=2)
    history = model.fit(
        X * 0, Y + 1, epochs=5, callbacks=[plateau], verbose=0
    )  # the loss is 1 whatever happens
    np.testing.assert_allclose(history.history["learning_rate"], [1, 1, 1, 0.1, 0.1], rtol=1e-6)
    cool = C.ReduceLROnPlateau("loss", factor=0.5, patience=1, cooldown=2, min_lr=0.3)
    model.optimizer.learning_rate = 1.0
    rates = model.fit(X * 0, Y + 1, epochs=8, callbacks=[cool], verbose=0).history["learning_rate"]
    np.testing.assert_allclose(rates, [1, 1, 0.5, 0.5, 0.3, 0.3, 0.3, 0.3], rtol=1e-6)
    assert not plateau.in_cooldown()
    cool.cooldown_counter = 1
    assert cool.in_cooldown()
    with pytest.raises(ValueError, match="factor must be"):
        C.ReduceLROnPlateau(factor=1.0)


@pytest.mark.parametrize(
    "schedule", [lambda epoch, rate: rate * 0.5, lambda epoch: 0.5 ** (epoch + 1)]
)
def test_learning_rate_scheduler(schedule: Any) -> None:
    model = net(1.0)
    history = model.fit(
        X, Y, epochs=3, callbacks=[C.LearningRateScheduler(schedule)], verbose=0
    ).history
    np.testing.assert_allclose(history["learning_rate"], [0.5, 0.25, 0.125])


def test_learning_rate_scheduler_wants_numbers() -> None:
    with pytest.raises(TypeError, match=r"must return the learning rate as a number.*'fast'"):
        drive([1.0], C.LearningRateScheduler(lambda epoch: "fast"))  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeError, match="schedule must be a function"):
        C.LearningRateScheduler(0.1)  # type: ignore[arg-type]


def test_swap_ema_weights_evaluates_the_averages_and_swaps_back() -> None:
    def trained(*callbacks: Any) -> Any:
        model = picodl.Sequential([picodl.Input((1,)), layers.Dense(1, use_bias=False)])
        model.set_weights([np.ones((1, 1), "float32")])
        optimizer = picodl.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5)
        model.compile(optimizer, loss="mse")
        history = model.fit(
            X, Y, batch_size=3, epochs=2, validation_data=(X, Y), callbacks=callbacks, verbose=0
        )
        return model, history.history

    plain, log = trained()
    swapped, log_averages = trained(C.SwapEMAWeights())
    assert log["loss"] == log_averages["loss"]
    assert all(a > b for a, b in zip(log_averages["val_loss"], log["val_loss"], strict=True))
    np.testing.assert_array_equal(plain.get_weights()[0], swapped.get_weights()[0])
    before = swapped.get_weights()[0].copy()
    swapped.predict(X, callbacks=[C.SwapEMAWeights()], verbose=0)
    np.testing.assert_array_equal(swapped.get_weights()[0], before)
    with pytest.raises(ValueError, match="use_ema=True"):
        drive([1.0], C.SwapEMAWeights())


# ---------------------------------------------------------------- checkpoints


def test_checkpoint_names_and_best_only(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "{epoch:02d}-{loss:.0f}.weights.h5"
    best = C.ModelCheckpoint(path, "loss", save_best_only=True, save_weights_only=True)
    drive([3, 4, 1, 2], best)
    assert sorted(os.listdir(tmp_path / "deep")) == ["01-9.weights.h5", "03-1.weights.h5"]
    assert best.best == 1.0
    model = net()
    model.load_weights(tmp_path / "deep" / "03-1.weights.h5")
    assert model.get_weights()[0][0, 0] == 0.5


def test_checkpoint_by_batches_and_threshold(tmp_path: Path) -> None:
    by_batch = C.ModelCheckpoint(tmp_path / "{epoch}-{batch}.keras", save_freq=2)
    none = C.ModelCheckpoint(
        tmp_path / "none.keras", "loss", save_best_only=True, initial_value_threshold=0.5
    )
    drive([1, 1], by_batch, none, batch_size=2)
    assert sorted(os.listdir(tmp_path)) == ["1-2.keras", "2-1.keras", "2-3.keras"]


def test_checkpoint_bad_arguments(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must end in '.weights.h5'"):
        C.ModelCheckpoint("m.keras", save_weights_only=True)
    with pytest.raises(ValueError, match=r"must end in '.keras' or '.h5'"):
        C.ModelCheckpoint("m.txt")
    with pytest.raises(ValueError, match=r"save_freq must be .*'never'"):
        C.ModelCheckpoint("m.keras", save_freq="never")
    with pytest.raises(KeyError, match=r"zzz.*not available"):
        drive([1.0], C.ModelCheckpoint(tmp_path / "{zzz}.keras"))


# -------------------------------------------------------------------- several optimizers, stopping


def composed(**rates: float) -> Any:
    """A model of two layers whose optimizers have rates of their own."""
    parts = {f"{name}/.*": picodl.optimizers.SGD(rate, name=name) for name, rate in rates.items()}
    rest = picodl.optimizers.SGD(1.0, name="rest")
    optimizer = picodl.optimizers.MultiOptimizer(picodl.optimizers.OptimizerMap(rest, parts))
    model = picodl.Sequential([picodl.Input((1,)), layers.Dense(1, name="a")])
    model.compile(optimizer, loss="mse")
    return model


def test_rates_of_several_optimizers_are_scheduled_and_logged() -> None:
    model = composed(a=0.1)
    scheduler = C.LearningRateScheduler(lambda epoch, rate: rate / 2)
    history = model.fit(X, Y, epochs=2, verbose=0, callbacks=[scheduler]).history
    np.testing.assert_allclose(history["learning_rate_a"], [0.05, 0.025])
    np.testing.assert_allclose(history["learning_rate_rest"], [0.5, 0.25])
    assert "learning_rate" not in history


def test_rates_of_several_optimizers_are_lowered_on_a_plateau() -> None:
    model = composed(a=0.1)
    plateau = C.ReduceLROnPlateau("loss", factor=0.5, patience=1, mode="max", min_lr=0.08)
    plateau.set_model(model)
    plateau.on_train_begin()
    for epoch in range(2):
        plateau.on_epoch_end(epoch, {"loss": 1.0})
    rates = {part.name: float(part.learning_rate) for part in model.optimizer.optimizers}
    assert rates == pytest.approx({"a": 0.08, "rest": 0.5})


def test_evaluate_and_predict_can_be_stopped() -> None:
    class Stop(C.Callback):
        def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.stop_evaluating = batch == 1

        def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.stop_predicting = batch == 1

    model = net()
    seen: list[str] = []
    counter = C.LambdaCallback(
        on_test_batch_begin=lambda batch, logs: seen.append("test"),
        on_predict_batch_begin=lambda batch, logs: seen.append("predict"),
    )
    for _ in range(2):
        model.evaluate(X, Y, batch_size=1, verbose=0, callbacks=[Stop(), counter])
        assert model.predict(X, batch_size=1, verbose=0, callbacks=[Stop(), counter]).shape == (
            2,
            1,
        )
    assert seen == 2 * ["test", "test", "predict", "predict"]


@pytest.mark.parametrize("early", [False, True])
def test_averages_swapped_at_the_end_of_an_epoch_are_the_final_weights(early: bool) -> None:
    class Keep(C.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.kept = self.model.get_weights()
            self.model.stop_training = early

    model = net()
    model.compile(picodl.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5), loss="mse")
    keep = Keep()
    model.fit(X, Y, epochs=2, verbose=0, callbacks=[C.SwapEMAWeights(swap_on_epoch=True), keep])
    np.testing.assert_array_equal(model.get_weights()[0], keep.kept[0])


def test_monitor_op_compares_in_the_direction_of_the_metric() -> None:
    stopping = C.EarlyStopping("accuracy")
    assert stopping.monitor_op is None
    assert stopping.improves(0.5, 0.25) and stopping.monitor_op(0.5, 0.25)
    assert not C.EarlyStopping("x", mode="min").monitor_op(0.5, 0.25)
