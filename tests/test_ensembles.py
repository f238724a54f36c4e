"""Cross-validation, ensembles, dropout at prediction, calibration."""

from __future__ import annotations

import numpy as np
import pytest

import picodl
from picodl import layers as L
from picodl.ensembles import (
    Ensemble,
    TemperatureScaling,
    cross_validate,
    expected_calibration_error,
    mc_dropout,
)

RNG = np.random.default_rng(0)


def classifier(*more):
    picodl.utils.set_random_seed(1)
    model = picodl.Sequential([L.Input((4,)), L.Dense(16, "relu"), *more, L.Dense(3)])
    loss = picodl.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(picodl.optimizers.Adam(0.02), loss, metrics=["accuracy"])
    return model


@pytest.fixture(scope="module")
def iris():
    (x, y), (x_test, y_test) = picodl.datasets.iris.load_data()
    mean, std = x.mean(0), x.std(0)
    return (x - mean) / std, y, (x_test - mean) / std, y_test


def test_cross_validation_trains_each_fold_on_the_others(iris):
    x, y, x_test, y_test = iris
    model = classifier()
    before = model.get_weights()
    found = cross_validate(model, x, y, folds=4, seed=0, epochs=30, batch_size=16)
    assert sorted(found.scores) == ["accuracy", "loss"]
    assert found.scores["accuracy"].shape == (4,) and found.scores["accuracy"].mean() > 0.9
    assert (found.predictions.argmax(1) == y).mean() == pytest.approx(
        found.scores["accuracy"].mean(), abs=0.01
    )
    assert [len(h.history["loss"]) for h in found.histories] == [30] * 4
    assert str(found).startswith("4 folds: ") and "accuracy 0.9" in str(found)
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    firsts = [m.get_weights()[0] for m in found.models]
    assert not np.array_equal(firsts[0], firsts[1])
    assert (found.ensemble.predict(x_test).argmax(1) == y_test).mean() > 0.9


def test_folds_hold_every_sample_once_and_classes_evenly():
    seen = []
    x = np.arange(30, dtype="f").reshape(30, 1)
    y = np.repeat([0, 1], [24, 6])
    model = picodl.Sequential([L.Input((1,)), L.Dense(1, use_bias=False)])
    model.compile("sgd", loss="mse")

    class Recorder(picodl.callbacks.Callback):
        def on_train_begin(self, logs=None):
            seen.append(self.params["steps"])

    found = cross_validate(model, x, y[:, None], folds=3, batch_size=1, callbacks=[Recorder()])
    assert seen == [20, 20, 20]
    for m in found.models:  # each sample was predicted by one of the models
        assert m.get_weights()[0].shape == (1, 1)
    rates = found.predictions[1:, 0] / x[1:, 0]
    own = np.sort([float(m.get_weights()[0][0, 0]) for m in found.models])
    counts = [np.isclose(rates, w, rtol=1e-5).sum() for w in own]
    assert sum(counts) == 29 and max(counts) - min(counts) <= 1


def test_cross_validation_of_several_inputs():
    a, b = L.Input((2,), name="a"), L.Input((3,), name="b")
    model = picodl.Model({"a": a, "b": b}, L.Dense(1)(L.Concatenate()([a, b])))
    model.compile("sgd", loss="mse")
    data = {"a": RNG.normal(size=(12, 2)), "b": RNG.normal(size=(12, 3))}
    found = cross_validate(model, data, RNG.normal(size=(12, 1)), folds=2)
    assert found.predictions.shape == (12, 1) and np.isfinite(found.scores["loss"]).all()


def test_cross_validation_refuses():
    model = picodl.Sequential([L.Input((1,)), L.Dense(1)])
    with pytest.raises(ValueError, match="compile the model"):
        cross_validate(model, np.ones((4, 1)), np.ones(4))
    model.compile("sgd", loss="mse")
    for folds in (1, 5, 2.5, True):
        with pytest.raises(ValueError, match="from 2 to the number of samples, 4"):
            cross_validate(model, np.ones((4, 1)), np.ones(4), folds=folds)


def test_whole_numbers_as_targets_of_a_regression():
    model = picodl.Sequential([L.Input((1,)), L.Dense(1)])
    model.compile("sgd", loss="mse")
    found = cross_validate(model, np.ones((6, 1)), np.arange(6), folds=3)
    assert found.predictions.shape == (6, 1)
    with pytest.raises(ValueError, match="7 rows of x, but 6 targets"):
        cross_validate(model, np.ones((7, 1)), np.arange(6))


def test_ensemble_is_the_mean_of_its_models(iris):
    models = [classifier(), picodl.models.clone_model(classifier())]
    x = iris[0][:5]
    each = [m.predict(x, verbose=0) for m in models]
    mean, std = Ensemble(models).predict(x, return_std=True)
    np.testing.assert_allclose(mean, (each[0] + each[1]) / 2, rtol=1e-6)
    np.testing.assert_allclose(std, np.abs(each[0] - each[1]) / 2, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(Ensemble(models).predict_each(x, batch_size=2)[1], each[1])
    with pytest.raises(ValueError, match="at least one model"):
        Ensemble([])


def test_mc_dropout_has_the_mean_and_spread_of_dropout():
    picodl.utils.set_random_seed(0)
    model = picodl.Sequential(
        [L.Input((1,)), L.Dropout(0.25), L.Dense(1, use_bias=False, kernel_initializer="ones")]
    )
    mean, std = mc_dropout(model, np.full((3, 1), 3.0), samples=4000, batch_size=2)
    np.testing.assert_allclose(mean, 3, rtol=0.05)  # 4 with probability 3/4, else 0
    np.testing.assert_allclose(std, np.sqrt(3), rtol=0.05)
    assert mc_dropout(model, np.ones((2, 1)), samples=2, return_std=False).shape == (2, 1)
    with pytest.raises(ValueError, match="at least 1"):
        mc_dropout(model, np.ones((2, 1)), samples=0)


def test_mc_dropout_leaves_batch_normalization_alone(iris):
    model = classifier(L.BatchNormalization())
    model.fit(iris[0], iris[1], epochs=2, verbose=0)
    before = model.get_weights()
    mean, std = mc_dropout(model, iris[0][:7], samples=3)
    np.testing.assert_allclose(mean, model.predict(iris[0][:7], verbose=0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(std, 0, atol=1e-6)
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    assert model.layers[1].trainable and len(model.trainable_weights) == 6


def test_temperature_scaling_finds_the_temperature():
    rng = np.random.default_rng(3)
    true = rng.normal(size=(20000, 4)) * 2
    p = np.exp(true) / np.exp(true).sum(1, keepdims=True)
    labels = (p.cumsum(1) > rng.random((len(p), 1))).argmax(1)
    overconfident = true * 3
    scaling = TemperatureScaling().fit(overconfident, labels[:, None])
    assert scaling.temperature == pytest.approx(3, rel=0.05)
    calibrated = scaling.predict(overconfident)
    np.testing.assert_allclose(calibrated.sum(1), 1)
    raw = TemperatureScaling().predict(overconfident)
    assert expected_calibration_error(labels, calibrated) < 0.02
    assert expected_calibration_error(labels, raw) > 0.05
    np.testing.assert_array_equal(calibrated.argmax(1), overconfident.argmax(1))


def test_calibration_refuses_what_are_no_class_numbers():
    z = np.zeros((3, 2))
    for call in (TemperatureScaling().fit, lambda p, y: expected_calibration_error(y, p)):
        for labels, message in (
            ([0, 1], r"shape \(2,\)"), ([0], r"shape \(1,\)"), ([0, 1, 2], "0 to 1"),
            ([0, -1, 0], "0 to 1"), ([0, 0.5, 1], "whole numbers"),
        ):  # fmt: skip
            with pytest.raises(ValueError, match=message):
                call(z, labels)
        with pytest.raises(ValueError, match="at least"):
            call(np.zeros((0, 2)), [])


def test_expected_calibration_error_by_hand():
    p = np.array([[0.9, 0.1], [0.9, 0.1], [0.4, 0.6], [1.0, 0.0]])
    # the last bin holds 0.9, 0.9 and 1.0, of which two are right; 0.6 is wrong
    error = expected_calibration_error([0, 1, 0, 0], p, bins=10)
    assert error == pytest.approx((0.8 + 0.6) / 4)
