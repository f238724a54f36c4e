"""Dtype policies: float64 from end to end, and float16 between layers with float32 weights."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import picodl
from picodl import config, layers
from picodl.optimizers import LossScaleOptimizer

rng = np.random.default_rng(0)
X = rng.normal(size=(64, 8)).astype("float32")
Y = X[:, :2].sum(1, keepdims=True)


@pytest.fixture
def mixed() -> Iterator[None]:
    config.set_dtype_policy("mixed_float16")
    yield
    config.set_dtype_policy(None)


def model() -> picodl.Sequential:
    return picodl.Sequential(
        [picodl.Input((8,)), layers.Dense(16, activation="relu"), layers.Dense(1)]
    )


def test_mixed_precision_trains_with_a_scaled_loss(mixed: None) -> None:
    net = model()
    assert net.predict(X, verbose=0).dtype == np.float16
    assert {w.dtype for w in net.weights} == {np.dtype("float32")}
    net.compile(picodl.optimizers.Adam(0.01), "mse", metrics=["mae"])
    assert isinstance(net.optimizer, LossScaleOptimizer)
    losses = net.fit(X, Y, epochs=30, verbose=0).history["loss"]
    assert losses[-1] < 0.3 * losses[0]


def test_mixed_precision_follows_float32(mixed: None) -> None:
    half = model()
    config.set_dtype_policy(None)
    full = model()
    full.set_weights(half.get_weights())
    np.testing.assert_allclose(half.predict(X, verbose=0), full.predict(X, verbose=0), atol=2e-2)


def test_policies_go_by_name_and_by_config() -> None:
    policies = picodl.dtype_policies
    assert policies.get(None).name == "float32"
    half = policies.get("mixed_float16")
    assert policies.get(half) is half
    found = policies.serialize(half)
    assert found["class_name"] == "DTypePolicy" and policies.deserialize(found) == half
    assert policies.get(found) == half
    with pytest.raises(ValueError, match="Unknown dtype policy"):
        policies.get("float8")


def test_half_precision_has_the_older_names_of_keras(mixed: None) -> None:
    names = picodl.mixed_precision
    assert names.global_policy() == names.Policy("mixed_float16")
    names.set_global_policy("float32")
    assert names.global_policy() == config.dtype_policy() == names.Policy("float32")
    assert names.LossScaleOptimizer is picodl.optimizers.LossScaleOptimizer


def test_float64_end_to_end(float64: None) -> None:
    net = model()
    net.compile("adam", "mse")
    net.fit(X.astype("float64"), Y.astype("float64"), verbose=0)
    assert net.predict(X, verbose=0).dtype == np.float64
    assert {w.dtype for w in net.weights} == {np.dtype("float64")}


def test_bfloat16_is_refused_and_unknown_policies_are_named() -> None:
    with pytest.raises(ValueError, match="bfloat16, which numpy does not have"):
        config.set_dtype_policy("mixed_bfloat16")
    with pytest.raises(ValueError, match="Unknown dtype policy 'float31'"):
        layers.Dense(1, dtype="float31")


def test_layers_that_do_not_cast_their_input_give_what_the_policy_says(mixed: None) -> None:
    ids = np.array([[0, 2]])
    assert layers.Embedding(3, 4)(ids).dtype == np.float16
    table = layers.ReversibleEmbedding(3, 4)
    vectors = table(ids)
    assert vectors.dtype == np.float16
    assert table(vectors, reverse=True).dtype == np.float16
    assert layers.ReversibleEmbedding(3, 4, reverse_dtype="float32")(
        vectors, reverse=True
    ).dtype == np.dtype("float32")
    large = np.linspace(1, 2, 16, dtype="f").reshape(2, 8) * 70000  # more than float16 can hold
    for layer in (layers.LayerNormalization(), layers.GroupNormalization(2)):
        y = layer(large)
        assert y.dtype == np.float16
        assert np.isfinite(y.numpy()).all()


def test_the_policy_of_a_layer_can_be_set_before_it_is_built() -> None:
    layer = layers.Dense(2)
    layer.dtype_policy = "mixed_float16"
    assert layer.dtype_policy == picodl.DTypePolicy("mixed_float16")
    assert layer(X).dtype == np.float16
    assert layer.kernel.dtype == np.float32
    layer = layers.Dense(2)
    layer.dtype_policy = picodl.DTypePolicy("float64")
    assert layer(X).dtype == np.float64
