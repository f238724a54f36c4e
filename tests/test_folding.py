"""Predicting with convolution, normalisation and activation in one gives what the layers give."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

from picodl import Input, Model, Sequential, layers
from picodl.models import folding

rng = np.random.default_rng(0)


def moved(model):
    """The model with statistics, scales and shifts that are not those of the beginning."""
    for layer in model.layers:
        for weight in layer.weights:
            low, high = (0.5, 2) if "variance" in weight.path else (-1, 1)
            weight.assign(rng.uniform(low, high, weight.shape))
    return model


def plain(model, x):
    return np.asarray(model(x, training=False))


@pytest.fixture
def folds(monkeypatch):
    """How many convolutions were run with what follows them."""
    calls = []
    conv = folding.conv

    def counted(*args):
        calls.append(args)
        return conv(*args)

    monkeypatch.setattr(folding, "conv", counted)
    return calls


AFTER = [
    [],
    [layers.ReLU],
    [lambda: layers.ReLU(6)],
    [lambda: layers.ReLU(negative_slope=0.2)],
    [lambda: layers.Activation("tanh")],
    [lambda: layers.Activation("softmax")],
    [lambda: layers.Activation(lambda x: x * 2)],
    [layers.LeakyReLU],
]


@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize("functional", [False, True])
def test_prediction_is_that_of_the_layers(after, functional):
    stack = [
        layers.Conv2D(4, 3, padding="same", strides=2),
        layers.BatchNormalization(),
        *(make() for make in after),
        layers.Conv2D(6, 2, use_bias=False, groups=2),
        layers.BatchNormalization(center=False, scale=False),
        layers.Flatten(),
    ]
    if functional:
        x = inputs = Input((9, 8, 3))
        for layer in stack:
            x = layer(x)
        model = Model(inputs, x)
    else:
        model = Sequential([Input((9, 8, 3)), *stack])
    moved(model)
    x = rng.normal(size=(5, 9, 8, 3)).astype("f")
    for predict in (model.predict, model.predict_on_batch):
        np.testing.assert_allclose(predict(x), plain(model, x), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("layer, shape", [(layers.Conv1D, (9, 3)), (layers.Conv3D, (5, 4, 4, 2))])
def test_of_any_rank(layer, shape, folds):
    model = moved(Sequential([Input(shape), layer(4, 2), layers.BatchNormalization()]))
    x = rng.normal(size=(3, *shape)).astype("f")
    np.testing.assert_allclose(model.predict(x), plain(model, x), rtol=2e-5, atol=2e-5)
    assert len(folds) == 1


def test_weights_may_change_between_predictions(folds):
    model = Sequential([Input((6, 6, 2)), layers.Conv2D(3, 3), layers.BatchNormalization()])
    x = rng.normal(size=(4, 6, 6, 2)).astype("f")
    model.compile("sgd", "mse")
    for _ in range(3):
        moved(model)
        np.testing.assert_allclose(model.predict(x), plain(model, x), rtol=2e-5, atol=2e-5)
        model.fit(x, rng.normal(size=(4, 4, 4, 3)), verbose=0)
        np.testing.assert_allclose(model.predict(x), plain(model, x), rtol=2e-5, atol=2e-5)
    assert len(folds) == 6


def test_what_others_read_is_not_folded(folds):
    inputs = Input((6, 6, 2))
    convolved = layers.Conv2D(3, 3)(inputs)
    normal = layers.BatchNormalization()(convolved)
    positive = layers.ReLU()(normal)
    x = rng.normal(size=(4, 6, 6, 2)).astype("f")
    for outputs in (
        [positive, convolved],
        layers.Add()([positive, convolved]),
        [normal, positive],
        layers.Concatenate()([normal, positive]),
    ):
        model = moved(Model(inputs, outputs))
        found, want = model.predict(x), model(x, training=False)
        if not isinstance(found, list):
            found, want = [found], [want]
        for one, other in zip(found, want, strict=True):
            np.testing.assert_allclose(one, other.data, rtol=2e-5, atol=2e-5)
    assert len(folds) == 2  # of the last two: convolution and normalisation alone


def test_layers_that_do_more_run_one_by_one(folds):
    class Doubled(layers.BatchNormalization):
        def call(self, x, training=False, mask=None):
            return 2 * super().call(x, training=training, mask=mask)

    for shape, first, second in (
        ((6, 6, 2), layers.Conv2D(3, 3, activation="relu"), layers.BatchNormalization()),
        ((6, 6, 2), layers.Conv2D(3, 3, activity_regularizer="l2"), layers.BatchNormalization()),
        ((6, 6, 2), layers.Conv2D(3, 3), layers.BatchNormalization(axis=1)),
        ((2, 6, 6), layers.Conv2D(3, 3, data_format="channels_first"), layers.BatchNormalization()),
        ((6, 6, 2), layers.Conv2D(3, 3, dtype="mixed_float16"), layers.BatchNormalization()),
        ((6, 6, 2), layers.Conv2D(3, 3), Doubled()),
        ((6, 6, 2), layers.SeparableConv2D(3, 3), layers.BatchNormalization()),
    ):
        model = moved(Sequential([Input(shape), first, second]))
        x = rng.normal(size=(4, *shape)).astype("f")
        np.testing.assert_allclose(model.predict(x), plain(model, x), rtol=2e-3, atol=2e-3)
    assert not folds


def test_only_predictions_are_folded(folds):
    model = Sequential([Input((6, 6, 2)), layers.Conv2D(3, 3), layers.BatchNormalization()])
    x, y = rng.normal(size=(4, 6, 6, 2)).astype("f"), rng.normal(size=(4, 4, 4, 3))
    model.compile("sgd", "mse")
    model.fit(x, y, verbose=0)
    model.evaluate(x, y, verbose=0)
    model(x)
    assert not folds


def test_a_part_that_is_told_to_train_does(folds):
    class Dreaming(Model):
        def __init__(self):
            super().__init__()
            self.part = Sequential([layers.Conv2D(3, 3), layers.BatchNormalization()])

        def call(self, x):
            return self.part(x, training=True)

    model = Dreaming()
    x = rng.normal(2, 1, size=(4, 6, 6, 2)).astype("f")
    np.testing.assert_allclose(model.predict(x).mean((0, 1, 2)), 0, atol=1e-5)
    assert not folds


def test_copies_predict_alike():
    inputs = Input((6, 6, 2))
    x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(3, 3)(inputs)))
    model = moved(Model(inputs, layers.Flatten()(x)))
    x = rng.normal(size=(4, 6, 6, 2)).astype("f")
    want = model.predict(x)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(other.predict(x), want)
        moved(other)
        assert np.abs(other.predict(x) - want).max() > 0.1
        np.testing.assert_array_equal(model.predict(x), want)


def test_errors_name_the_layer():
    inputs = Input((None, None, 2))
    x = layers.BatchNormalization()(layers.Conv2D(3, 3, name="first")(inputs))
    model = Model(inputs, x)
    model.predict(np.zeros((2, 6, 6, 2), "f"))
    with pytest.raises(ValueError, match="first"):
        model.predict(np.zeros((2, 2, 2, 2), "f"))
