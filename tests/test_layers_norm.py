"""Normalisation layers: moving statistics, masks, frozen layers, messages."""

from __future__ import annotations

import numpy as np
import pytest

from picodl import initializers, layers
from picodl.tensor import Tensor

rng = np.random.default_rng(0)
X = rng.normal(3, 2, size=(16, 5)).astype(np.float32)


def test_moving_statistics_follow_the_batches():
    layer = layers.BatchNormalization(momentum=0.9)
    mean, variance = np.zeros(5), np.ones(5)
    for i in range(3):
        x = X * (i + 1)
        layer(x, training=True)
        mean = mean * 0.9 + x.mean(0) * 0.1
        variance = variance * 0.9 + x.var(0) * 0.1
    np.testing.assert_allclose(layer.moving_mean.numpy(), mean, rtol=1e-5)
    np.testing.assert_allclose(layer.moving_variance.numpy(), variance, rtol=1e-5)
    y = layer(X)
    np.testing.assert_allclose(y.data, (X - mean) / np.sqrt(variance + 1e-3), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(layer.moving_mean.numpy(), mean, rtol=1e-5)


def test_a_frozen_layer_uses_and_keeps_its_statistics():
    layer = layers.BatchNormalization()
    layer(X, training=True)
    before = layer.get_weights()
    layer.trainable = False
    y = layer(X, training=True)
    np.testing.assert_array_equal(y.data, layer(X, training=False).data)
    for a, b in zip(before, layer.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert layer.trainable_weights == []


def test_masked_steps_do_not_count_and_do_not_change_the_rest():
    x = np.concatenate([X[:, None], np.full((16, 2, 5), 99.0)], axis=1).astype(np.float32)
    mask = np.array([[True, False, False]] * 16)
    masked, plain = layers.BatchNormalization(), layers.BatchNormalization()
    t = Tensor(x, requires_grad=True)
    y = masked(t, training=True, mask=mask)
    z = plain(X, training=True)
    np.testing.assert_allclose(y.data[:, 0], z.data, rtol=1e-4, atol=1e-4)
    for a, b in zip(masked.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
    y.backward(np.ones_like(y.data))
    assert np.isfinite(t.grad).all()


@pytest.mark.parametrize("axis, shape", [(1, (4, 3, 5, 6)), (-1, (4, 5, 3)), (2, (4, 5, 3, 6))])
def test_batch_normalization_of_another_axis(axis, shape):
    x = rng.normal(2, 3, size=shape)
    y = layers.BatchNormalization(axis=axis, dtype="float64")(x, training=True).data
    rest = tuple(a for a in range(len(shape)) if a != axis % len(shape))
    expected = (x - x.mean(rest, keepdims=True)) / np.sqrt(x.var(rest, keepdims=True) + 1e-3)
    np.testing.assert_allclose(y, expected, atol=1e-9)


def test_renorm_corrects_towards_the_moving_statistics():
    layer = layers.BatchNormalization(
        renorm=True, renorm_clipping={"rmin": 0.5, "rmax": 2.0, "dmax": 1.0}, dtype="float64"
    )
    names = [w.name for w in layer.weights]
    assert names == []
    layer.build((None, 5))
    layer.renorm_mean.assign(X.mean(0) + 0.5)
    layer.renorm_stddev.assign(X.std(0) * 1.5)
    x = X.astype(np.float64)
    stddev = np.sqrt(x.var(0) + 1e-3)
    r = np.clip(stddev / layer.renorm_stddev.numpy(), 0.5, 2)
    d = np.clip((x.mean(0) - layer.renorm_mean.numpy()) / layer.renorm_stddev.numpy(), -1, 1)
    y = layer(x, training=True)
    np.testing.assert_allclose(y.data, (x - x.mean(0)) / stddev * r + d, atol=1e-9)
    assert [w.name for w in layer.weights[2:]] == [
        "moving_mean", "moving_variance", "moving_stddev", "renorm_mean", "renorm_stddev",
    ]  # fmt: skip


def test_renorm_starts_from_the_initializers_and_follows_the_standard_deviation():
    layer = layers.BatchNormalization(
        renorm=True, momentum=0.9, moving_mean_initializer="ones",
        moving_variance_initializer=initializers.Constant(4.0),
    )  # fmt: skip
    layer.build((None, 5))
    for name, value in (("moving_stddev", 2), ("renorm_stddev", 2), ("renorm_mean", 1)):
        np.testing.assert_array_equal(getattr(layer, name), np.full(5, value))
    layer(X, training=True)
    stddev = 2 * 0.9 + np.sqrt(X.var(0) + 1e-3) * 0.1
    np.testing.assert_allclose(layer.moving_stddev, stddev, rtol=1e-5)
    np.testing.assert_allclose(layer.moving_variance, stddev**2 - 1e-3, rtol=1e-5)


def test_group_normalization_with_minus_one_is_instance_normalization():
    x = rng.normal(size=(2, 4, 4, 6))
    y = layers.GroupNormalization(-1, dtype="float64")(x).data
    d = x - x.mean((1, 2), keepdims=True)
    np.testing.assert_allclose(y, d / np.sqrt(x.var((1, 2), keepdims=True) + 1e-3), atol=1e-9)


def test_spectral_normalization_brings_the_largest_singular_value_to_one():
    kernel = initializers.GlorotUniform(seed=0)
    inner = layers.Conv2D(4, 3, kernel_initializer=kernel)
    layer = layers.SpectralNormalization(inner, power_iterations=300)
    layer(rng.normal(size=(1, 5, 5, 2)), training=True)
    matrix = layer.layer.kernel.numpy().reshape(-1, 4)
    assert abs(np.linalg.svd(matrix)[1][0] - 1) < 1e-4
    kernel = layer.layer.kernel.numpy()
    layer(np.ones((1, 5, 5, 2)))
    np.testing.assert_array_equal(kernel, layer.layer.kernel.numpy())


@pytest.mark.parametrize(
    "make, message",
    [
        (
            lambda: layers.LayerNormalization(axis="last"),
            "axis must be an integer; received 'last'",
        ),
        (lambda: layers.BatchNormalization(axis=3)(X), "axis 3 does not exist .*16, 5"),
        (lambda: layers.BatchNormalization(momentum=2.0), "momentum must be a number from 0 to 1"),
        (lambda: layers.BatchNormalization(renorm_clipping={"max": 1}), "rmax, rmin and dmax"),
        (lambda: layers.BatchNormalization(renorm_clipping={"dmax": -1.0}), "dmax >= 0"),
        (lambda: layers.BatchNormalization(renorm_clipping={"rmin": 2, "rmax": 1}), "rmin <= rmax"),
        (lambda: layers.GroupNormalization(groups=2)(X), "5 channels .* groups=2"),
        (lambda: layers.SpectralNormalization(layers.ReLU())(X), "needs a layer with a kernel"),
    ],
)
def test_bad_arguments_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
