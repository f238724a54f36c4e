"""Low-rank adaptations of Dense, EinsumDense and Embedding."""

from __future__ import annotations

import numpy as np
import pytest

from picodl import Input, Model, Sequential, layers, models, testing

CASES = [
    (lambda **k: layers.Dense(4, activation="tanh", **k), np.ones((2, 3), "float32"), "kernel"),
    (
        lambda **k: layers.EinsumDense("abc,cde->abde", (None, 2, 4), bias_axes="de", **k),
        np.ones((2, 5, 3), "float32"),
        "kernel",
    ),
    (lambda **k: layers.Embedding(6, 4, **k), np.array([[1, 2], [5, 1]]), "embeddings"),
]


def _disturb(layer, table):
    """Let the adaptation change something."""
    b = getattr(layer, f"lora_{table}_b")
    b.assign(np.random.default_rng(0).normal(size=b.shape))


@pytest.mark.parametrize(("make", "x", "table"), CASES)
def test_an_adaptation_starts_without_effect_and_adds_a_product_of_low_rank(make, x, table):
    layer = make()
    before = layer(x).numpy()
    own = len(layer.weights)
    layer.enable_lora(2, lora_alpha=6)
    np.testing.assert_array_equal(layer(x).numpy(), before)
    assert len(layer.weights) == own + 2
    frozen = [w.name for w in layer.non_trainable_weights]
    assert frozen == [table]
    _disturb(layer, table)
    a, b = getattr(layer, f"lora_{table}_a").data, getattr(layer, f"lora_{table}_b").data
    assert a.shape[-1] == b.shape[0] == 2
    plain = make()
    plain(x)
    plain.set_weights(
        [getattr(layer, table).data + 3 * (a @ b), *[w.data for w in layer.weights[1:own]]]
    )
    np.testing.assert_allclose(layer(x).numpy(), plain(x).numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("make", "x", "table"), CASES)
@pytest.mark.parametrize("ending", [".weights.h5", ".npz", ".safetensors"])
def test_files_hold_the_merged_table_for_layers_with_and_without_adaptation(
    make, x, table, ending, tmp_path
):
    adapted = Sequential([Input(x.shape[1:], dtype=x.dtype.name), make(lora_rank=2)])
    plain = Sequential([Input(x.shape[1:], dtype=x.dtype.name), make()])
    _disturb(adapted.layers[-1], table)
    expected = adapted.predict(x, verbose=0)
    path = str(tmp_path / f"w{ending}")
    adapted.save_weights(path)
    plain.load_weights(path)
    np.testing.assert_allclose(plain.predict(x, verbose=0), expected, rtol=1e-5, atol=1e-6)
    _disturb(adapted.layers[-1], table)
    adapted.load_weights(path)
    np.testing.assert_allclose(adapted.predict(x, verbose=0), expected, rtol=1e-5, atol=1e-6)
    assert not getattr(adapted.layers[-1], f"lora_{table}_b").data.any()
    assert getattr(adapted.layers[-1], f"lora_{table}_a").data.any()  # goes on learning


def test_only_the_adaptation_is_trained():
    layer = layers.Dense(1, lora_rank=1, use_bias=False)
    model = Sequential([Input((3,)), layer])
    kernel = layer.kernel.numpy()
    model.compile("adam", "mse")
    x = np.random.default_rng(0).normal(size=(32, 3)).astype("float32")
    history = model.fit(x, x.sum(1), epochs=30, verbose=0).history["loss"]
    assert history[-1] < history[0]
    np.testing.assert_array_equal(layer.kernel.numpy(), kernel)


def test_a_whole_model_and_a_config_keep_the_adaptation(tmp_path):
    x = np.ones((2, 3), "float32")
    model = Sequential([Input((3,)), layers.Dense(4, lora_rank=2, lora_alpha=4)])
    _disturb(model.layers[0], "kernel")
    path = str(tmp_path / "m.keras")
    model.save(path)
    loaded = models.load_model(path)
    assert (loaded.layers[0].lora_rank, loaded.layers[0].lora_alpha) == (2, 4)
    np.testing.assert_allclose(
        loaded.predict(x, verbose=0), model.predict(x, verbose=0), rtol=1e-5, atol=1e-6
    )
    assert "lora_rank" not in layers.Dense(4).get_config()


def test_an_adapted_product_has_exact_gradients():
    layer = layers.Dense(2, activation="tanh", dtype="float64")
    layer.build((None, 3))
    layer.enable_lora(2)
    _disturb(layer, "kernel")
    testing.gradcheck(layer, np.random.default_rng(0).normal(size=(4, 3)))


def test_a_tied_table_is_adapted_both_ways():
    layer = layers.ReversibleEmbedding(5, 3)
    layer(np.array([[1]]))
    layer.enable_lora(1)
    _disturb(layer, "embeddings")
    vectors = layer(np.arange(5)[None]).numpy()[0]
    x = np.ones((1, 2, 3), "float32")
    np.testing.assert_allclose(layer(x, reverse=True).numpy(), x @ vectors.T, rtol=1e-5)


def test_the_adaptation_of_a_layer_inside_attention():
    x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype("float32")
    inputs = Input((3, 4))
    attention = layers.MultiHeadAttention(2, 2)
    model = Model(inputs, attention(inputs, inputs))
    before = model.predict(x, verbose=0)
    for name in ("_query_dense", "query_dense"):
        part = getattr(attention, name, None)
        if part is not None:
            break
    part.enable_lora(1)
    np.testing.assert_allclose(model.predict(x, verbose=0), before, rtol=1e-5)
    part.lora_kernel_b.assign(np.full(part.lora_kernel_b.shape, 2.0))
    assert not np.allclose(model.predict(x, verbose=0), before)


def test_what_cannot_be_adapted_is_refused():
    with pytest.raises(ValueError, match="no weights to adapt yet"):
        layers.Dense(2, name="d").enable_lora(1)
    with pytest.raises(ValueError, match="kernel_constraint does not go"):
        layers.Dense(2, kernel_constraint="non_neg", lora_rank=1)
    with pytest.raises(ValueError, match="lora_rank must be an integer of at least 1"):
        layers.Dense(2, lora_rank=0)
    layer = layers.Dense(2, lora_rank=1)
    layer.build((None, 3))
    with pytest.raises(ValueError, match="adapted already, with rank 1"):
        layer.enable_lora(2)
