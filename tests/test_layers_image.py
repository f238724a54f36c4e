"""Image layers: active in training only, seeded, and what each of them does."""

from __future__ import annotations

import numpy as np
import pytest

import picodl
from picodl import layers

rng = np.random.default_rng(0)
X = rng.uniform(0, 255, size=(6, 8, 10, 3)).astype(np.float32)
RANDOM = [
    (layers.RandomFlip, {}),
    (layers.RandomRotation, {"factor": 0.2}),
    (layers.RandomTranslation, {"height_factor": 0.3, "width_factor": 0.3}),
    (layers.RandomZoom, {"height_factor": 0.3}),
    (layers.RandomCrop, {"height": 5, "width": 6}),
    (layers.RandomContrast, {"factor": 0.5}),
    (layers.RandomBrightness, {"factor": 0.5}),
    (layers.RandomErasing, {"fill_value": (10.0, 20.0, 30.0)}),
    (layers.MixUp, {"alpha": 1.0}),
    (layers.CutMix, {}),
]


@pytest.mark.parametrize("cls, arguments", RANDOM)
def test_random_layers_change_images_in_training_only(cls, arguments):
    layer = cls(**arguments, seed=3)
    y = layer(X, training=True)
    assert y.shape == layer.compute_output_shape(X.shape) and y.dtype == np.float32
    again = cls(**arguments, seed=3)
    np.testing.assert_array_equal(again(X, training=True).data, y.data)
    assert not np.array_equal(again(X, training=True).data, y.data)  # the next draw
    rest = layer(X, training=False).data
    if cls is layers.RandomCrop:
        np.testing.assert_array_equal(rest, layers.CenterCrop(5, 6)(X).data)
    else:
        np.testing.assert_array_equal(rest, X)
    assert layer(X[0], training=True).shape == y.shape[1:]
    first = cls(**arguments, seed=3)
    if hasattr(first, "data_format") and "data_format" in first.get_config():
        first = cls(**arguments, seed=3, data_format="channels_first")
        z = first(X.transpose(0, 3, 1, 2), training=True).data
        np.testing.assert_allclose(z.transpose(0, 2, 3, 1), y.data, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize(
    "cls, arguments", [*RANDOM, (layers.CenterCrop, {"height": 5, "width": 6})]
)
def test_whole_numbers_change_as_the_same_floating_ones(cls, arguments):
    x = X.astype(np.uint8)
    layer = cls(**arguments) if cls is layers.CenterCrop else cls(**arguments, seed=4)
    twin = cls.from_config(layer.get_config())
    y = layer(x)
    np.testing.assert_array_equal(y.data, twin(x.astype(np.float32)).data)
    assert y.dtype == np.float32


def test_random_layers_rest_in_predict_and_work_in_fit():
    model = picodl.Sequential(
        [picodl.Input((8, 10, 3)), layers.RandomFlip(seed=0), layers.RandomRotation(0.1, seed=1)]
    )
    np.testing.assert_array_equal(model.predict(X, verbose=0), X)
    model.add(layers.Flatten())
    model.add(layers.Dense(1))
    model.compile("sgd", "mse")
    model.fit(X / 255, np.ones((6, 1), np.float32), verbose=0)


def test_flips_are_mirrors():
    y = layers.RandomFlip("horizontal", seed=0)(X, training=True).data
    kinds = [np.array_equal(a, b) for a, b in zip(y, X, strict=True)]
    assert 0 < sum(kinds) < 6
    for image, same, original in zip(y, kinds, X, strict=True):
        np.testing.assert_array_equal(image, original if same else original[:, ::-1])


def test_a_quarter_turn_is_exact():
    x = X[:, :8, :8]
    y = layers.RandomRotation((0.25, 0.25))(x, training=True).data
    np.testing.assert_allclose(y, np.rot90(x, 1, (1, 2)), atol=0.05)


def test_a_shift_by_whole_pixels_is_exact():
    layer = layers.RandomTranslation((0.25, 0.25), (-0.2, -0.2), "constant", fill_value=7.0)
    y = layer(X, training=True).data
    np.testing.assert_allclose(y[:, 2:, :8], X[:, :6, 2:], atol=1e-2)
    np.testing.assert_allclose(y[:, :2], 7, atol=1e-4)


def test_zoom_keeps_the_middle():
    x = X[:, :7, :7]
    y = layers.RandomZoom((-0.5, -0.5))(x, training=True).data
    np.testing.assert_allclose(y[:, 3, 3], x[:, 3, 3], atol=1e-2)
    np.testing.assert_allclose(y[:, 1, 1], x[:, 2, 2], atol=1e-2)


def test_crops_are_parts_of_the_images():
    y = layers.RandomCrop(5, 6, seed=1)(X, training=True).data
    for image, original in zip(y, X, strict=True):
        parts = [original[i : i + 5, j : j + 6] for i in range(4) for j in range(5)]
        assert any(np.array_equal(image, part) for part in parts)


def test_brightness_and_contrast_stay_in_range():
    x = X / 255
    y = layers.RandomBrightness((0.2, 0.2), (0, 1))(x, training=True).data
    np.testing.assert_allclose(y, np.clip(x + 0.2, 0, 1), atol=1e-6)
    y = layers.RandomContrast((0, 0.5), (0, 1), seed=0)(x, training=True).data
    assert y.min() >= 0 and y.max() <= 1
    mean = x.mean((1, 2), keepdims=True)
    inside = (y > 0) & (y < 1)
    ratio = ((y - mean) / (x - mean))[inside & (np.abs(x - mean) > 0.1)]
    assert ratio.min() > 0.99 and ratio.max() < 1.51


def test_a_range_may_be_given_in_either_order():
    layer = layers.RandomZoom((-0.4, -0.5), width_factor=0.3)
    assert layer.height_factor == (-0.5, -0.4) and layer.width_factor == (-0.3, 0.3)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: layers.RandomFlip("diagonal"), "mode must be one of"),
        (lambda: layers.RandomRotation("far"), "factor must be a number or a pair"),
        (lambda: layers.RandomZoom((0.5, 0.1, 0)), "height_factor must be"),
        (lambda: layers.RandomContrast(-1), "factor must be a number of at least 0"),
        (lambda: layers.RandomBrightness(0.1, (1, 0)), "value_range must be a pair"),
        (lambda: layers.Resizing(0, 3), "height must be"),
        (lambda: layers.RandomFlip()(np.ones((2, 3)), training=True), "expects an image"),
    ],
)
def test_bad_arguments_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_the_sign_of_a_single_factor_does_not_matter():
    for make in (layers.RandomRotation, layers.RandomZoom):
        y = [np.asarray(make(f, seed=3)(X, training=True)) for f in (0.2, -0.2)]
        np.testing.assert_array_equal(*y)
