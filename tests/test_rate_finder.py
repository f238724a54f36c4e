"""The search for a learning rate: the curve, the suggestion, and nothing left behind."""

from __future__ import annotations

import numpy as np
import pytest

import picodl
from picodl import layers, optimizers
from picodl.callbacks import LearningRateFinder
from picodl.optimizers import schedules


def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(128, 4)).astype("float32")
    return x, (x @ [1.0, -2.0, 0.5, 3.0])[:, None].astype("float32")


def built_model(optimizer):
    picodl.utils.set_random_seed(0)
    model = picodl.Sequential([picodl.Input((4,)), layers.Dense(8, "tanh"), layers.Dense(1)])
    model.compile(optimizer, "mse")
    return model


def test_search_suggests_a_rate_that_trains_and_leaves_the_model_alone():
    x, y = data()
    model = built_model(optimizers.Adam(0.001, use_ema=True))
    model.fit(x, y, epochs=1, verbose=0)
    before = model.get_weights() + [v.numpy() for v in model.optimizer.variables]
    finder = LearningRateFinder(num_steps=60).run(model, x, y, batch_size=32)
    after = model.get_weights() + [v.numpy() for v in model.optimizer.variables]
    for a, b in zip(before, after, strict=True):
        np.testing.assert_array_equal(a, b)
    assert len(finder.losses) == len(finder.learning_rates) <= 60
    assert np.all(np.diff(finder.learning_rates) > 0)
    assert 1e-4 < finder.suggestion < 3
    model.optimizer.learning_rate = finder.suggestion / 3
    loss = model.fit(x, y, epochs=10, verbose=0).history["loss"]
    assert loss[-1] < loss[0] / 2


def test_search_stops_when_the_loss_diverges():
    x, y = data()
    finder = LearningRateFinder(max_lr=1e6, num_steps=100)
    finder.run(built_model(optimizers.SGD()), 100 * x, y)
    assert len(finder.losses) < 100


def test_an_exception_gives_the_weights_back():
    class Stop(picodl.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 2:
                raise KeyboardInterrupt

    x, y = data()
    model = built_model(optimizers.SGD())
    before = model.get_weights()
    with pytest.raises(KeyboardInterrupt):
        model.fit(x, y, verbose=0, callbacks=[LearningRateFinder(min_lr=0.1), Stop()])
    for a, b in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert float(model.optimizer.learning_rate) == pytest.approx(0.01)


def test_curve_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    x, y = data()
    finder = LearningRateFinder(num_steps=40).run(built_model(optimizers.SGD()), x, y)
    picodl.visualize.plot_learning_rates(finder, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").stat().st_size > 1000


def test_messages():
    x, y = data()
    with pytest.raises(ValueError, match="0 < min_lr < max_lr"):
        LearningRateFinder(min_lr=1.0, max_lr=0.1)
    with pytest.raises(ValueError, match="num_steps of at least 10"):
        LearningRateFinder(num_steps=3)
    with pytest.raises(ValueError, match="the loss did not fall"):
        _ = LearningRateFinder().suggestion
    unbuilt = picodl.Sequential([layers.Dense(1)])
    unbuilt.compile("sgd", "mse")
    with pytest.raises(ValueError, match="not built yet"):
        LearningRateFinder().run(unbuilt, x, y)
    with pytest.raises(TypeError, match="cannot be set"):
        scheduled = optimizers.SGD(schedules.ExponentialDecay(0.1, 10, 0.5))
        LearningRateFinder().run(built_model(scheduled), x, y)
