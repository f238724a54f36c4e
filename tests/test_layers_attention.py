"""Attention, positions, transformer blocks, and generation with them."""

import numpy as np
import pytest

import picodl
from picodl import initializers, layers
from picodl.layers import head_attention
from picodl.layers.transformer import AlibiAttention
from picodl.models import generation
from picodl.models.generation import generate
from picodl.tensor import Tensor
from picodl.testing import gradcheck

rng = np.random.default_rng(0)
X = rng.normal(size=(2, 5, 8)).astype("float32")


def test_scores_are_the_ones_used():
    layer = layers.MultiHeadAttention(2, 4)
    y, scores = layer(X, X, return_attention_scores=True, use_causal_mask=True)
    np.testing.assert_allclose(y.data, layer(X, X, use_causal_mask=True).data, atol=1e-6)
    np.testing.assert_allclose(scores.data.sum(-1), 1, atol=1e-6)
    assert (np.triu(scores.data[0, 0], 1) == 0).all()


def test_masks_of_the_inputs_are_found():
    ids = np.array([[1, 2, 3, 0, 0]])
    embedding = layers.Embedding(5, 8, mask_zero=True)
    attention = layers.MultiHeadAttention(2, 4)
    x = embedding(ids)
    y = attention(x, x)
    short = embedding(ids[:, :3])
    np.testing.assert_allclose(y.data[:, :3], attention(short, short).data, atol=1e-6)
    assert y.mask.tolist() == [[True, True, True, False, False]]


def test_dropout_and_seed():
    layer = layers.MultiHeadAttention(2, 4, dropout=0.5, seed=1)
    y = layer(X, X)
    np.testing.assert_array_equal(y.data, layer(X, X).data)
    assert np.abs(layer(X, X, training=True).data - y.data).max() > 1e-4


def test_sliding_window_and_gate():
    narrow = layers.MultiHeadAttention(2, 4, sliding_window=1)
    y = narrow(X, X)
    changed = X.copy()
    changed[:, 0] += 1
    np.testing.assert_allclose(narrow(changed, changed).data[:, 1:], y.data[:, 1:], atol=1e-6)
    gated = layers.MultiHeadAttention(2, 4, use_gate=True)
    assert gated(X, X).shape == X.shape
    assert [w.path.split("/")[-2] for w in gated.weights][4:6] == ["gate", "gate"]


def test_fully_masked_queries_stay_finite():
    x = Tensor(X, requires_grad=True)
    for layer in (layers.MultiHeadAttention(2, 4), layers.MultiHeadAttention(2, 4, dropout=0.1)):
        y = layer(x, x, value_mask=np.zeros((2, 5), bool))
        y.sum().backward()
        assert np.isfinite(y.data).all() and np.isfinite(x.grad).all()
    value = rng.normal(size=(2, 5, 8)).astype("float32")
    y = layers.Attention()([X, value], mask=[None, np.zeros((2, 5), bool)])
    np.testing.assert_allclose(
        y.data, np.broadcast_to(value.mean(1, keepdims=True), y.shape), atol=1e-5
    )


def test_messages_name_layer_and_shapes():
    layer = layers.MultiHeadAttention(2, 4, name="heads")
    with pytest.raises(
        ValueError, match=r'"heads": key and value must have the same length.*4, 8.*5, 8'
    ):
        layer(X, X, X[:, :4])
    with pytest.raises(ValueError, match=r'"heads": value_mask must have the shape \(2, 5\)'):
        layer(X, X, value_mask=np.ones((2, 4), bool))
    with pytest.raises(ValueError, match=r"attention_mask of shape .*\(2, 5, 5\).*\(2, 1, 5, 4\)"):
        layer(X, X, attention_mask=np.ones((2, 5, 4), bool))
    with pytest.raises(ValueError, match="key and value must have the same length"):
        layers.Attention()([X, X, X[:, :4]])
    with pytest.raises(ValueError, match="num_query_heads must be a multiple"):
        layers.GroupQueryAttention(4, 3, 2)
    with pytest.raises(ValueError, match="multiple of num_heads=3"):
        layers.TransformerEncoder(8, 3)(X)


def test_rotary_products_depend_on_the_distance_only():
    layer = layers.RotaryEmbedding()
    q, k = (np.tile(rng.normal(size=(1, 1, 6)), (1, 7, 1)).astype("float32") for _ in range(2))
    scores = layer(q).data[0] @ layer(k).data[0].T
    for offset in (-2, 0, 3):
        np.testing.assert_allclose(np.ptp(np.diagonal(scores, offset)), 0, atol=1e-5)
    gradcheck(lambda x: layers.RotaryEmbedding(dtype="float64")(x), rng.normal(size=(1, 3, 4)))


def test_alibi_slopes_are_those_of_the_paper():
    slopes = layers.AlibiBias().slopes
    eight = [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]
    np.testing.assert_allclose(slopes(8), eight)
    np.testing.assert_allclose(slopes(16)[:3], [2**-0.5, 2**-1, 2**-1.5])
    np.testing.assert_allclose(slopes(12), [*eight, 2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5])
    np.testing.assert_allclose(slopes(1), [2**-8])
    np.testing.assert_allclose(layers.AlibiBias(alibi_bias_max=4).slopes(2), [1 / 4, 1 / 16])
    with pytest.raises(ValueError, match="num_heads must be an integer of at least 1"):
        slopes(0)


@pytest.mark.parametrize("sizes", [(5, 5), (2, 5), (1, 1), (0, 3), (4, 2)])
def test_alibi_takes_slope_times_distance_off_the_scores(sizes):
    queries, keys = sizes
    layer = layers.AlibiBias()
    apart = np.abs(np.arange(keys - queries, keys)[:, None] - np.arange(keys))
    scores = rng.normal(size=(2, 3, queries, keys)).astype("float32")
    expected = scores - layer.slopes(3)[:, None, None] * apart
    np.testing.assert_allclose(layer(scores).data, expected, atol=1e-6)
    assert layer(picodl.Input((3, None, None))).shape == (None, 3, None, None)
    with pytest.raises(ValueError, match=r"rank 4.*\(3, 5, 5\)"):
        layer(np.ones((3, 5, 5)))


def plain_attention(layer, x, causal, mask=None):
    """Multi-head attention with linear biases, head by head in plain numpy."""
    w, b, wk, bk, wv, bv, wo, bo = layer.get_weights()
    y = np.zeros_like(x)
    apart = np.abs(np.arange(x.shape[1])[:, None] - np.arange(x.shape[1]))
    for h, slope in enumerate(layers.AlibiBias().slopes(w.shape[1])):
        q, k, v = x @ w[:, h] + b[h], x @ wk[:, h] + bk[h], x @ wv[:, h] + bv[h]
        s = q @ k.transpose(0, 2, 1) / w.shape[2] ** 0.5 - slope * apart
        hidden = np.triu(np.ones_like(s), 1) * causal
        if mask is not None:
            hidden = hidden + ~mask[:, None, :]
        s = np.exp(np.where(hidden > 0, -np.inf, s))
        y += s / s.sum(-1, keepdims=True) @ v @ wo[h]
    return y + bo


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads", [2, 3])
def test_alibi_attention_is_that_of_plain_numpy(causal, heads, float64):
    layer = AlibiAttention(heads, 4)
    x = rng.normal(size=(2, 6, 5))
    layer(x, x)
    for weight in layer.weights:
        weight.assign(rng.normal(size=weight.shape))
    options = {"use_causal_mask": causal}
    y, _ = layer(x, x, return_attention_scores=True, **options)
    np.testing.assert_allclose(y.data, plain_attention(layer, x, causal), atol=1e-10)
    np.testing.assert_allclose(layer(x, x, **options).data, y.data, atol=1e-10)
    mask = np.array([[1, 1, 1, 1, 0, 0], [1, 0, 1, 1, 1, 0]], bool)
    masked = layer(x, x, value_mask=mask, **options)
    np.testing.assert_allclose(masked.data, plain_attention(layer, x, causal, mask), atol=1e-10)
    gradcheck(lambda x: layer(x, x, value_mask=mask, **options), x)
    gradcheck(lambda x: layer(x, x, **options), x, second=True, tolerance=1e-5)


def test_alibi_goes_on_to_longer_sequences():
    encoder = layers.TransformerEncoder(16, 2, alibi=True)
    encoder(X)
    long = rng.normal(size=(1, 70, 8)).astype("float32")
    y = encoder(long).data
    assert np.isfinite(y).all()
    mirrored = encoder(long[:, ::-1]).data[:, ::-1]  # only distances count, not their direction
    np.testing.assert_allclose(mirrored, y, atol=1e-5)
    decoder = layers.TransformerDecoder(16, 2, alibi=True)
    np.testing.assert_allclose(decoder(long).data[:, :5], decoder(long[:, :5]).data, atol=1e-5)
    assert np.abs(decoder(long).data - decoder(long, use_causal_mask=False).data).max() > 1e-3


def test_alibi_blocks_come_back_from_config_and_file(tmp_path):
    source = picodl.Input((None, 8))
    y = layers.TransformerEncoder(16, 2, alibi=True)(source)
    model = picodl.Model(source, layers.TransformerDecoder(16, 2, alibi=True)(y, y))
    model.save(tmp_path / "model.keras")
    again = picodl.models.load_model(tmp_path / "model.keras")
    assert [layer.alibi for layer in again.layers[1:]] == [True, True]
    np.testing.assert_array_equal(again(X).data, model(X).data)
    assert type(again.layers[2].cross_attention) is layers.MultiHeadAttention
    with pytest.raises(ValueError, match='"both" received rotary=True and alibi=True'):
        layers.TransformerEncoder(8, 2, rotary=True, alibi=True, name="both")


@pytest.mark.parametrize(
    "options", [{}, {"normalize_first": True, "rotary": True}, {"alibi": True, "dropout": 0.1}]
)
def test_encoder_ignores_padding_and_decoder_the_future(options):
    mask = np.array([[1, 1, 1, 0, 0]] * 2, bool)
    encoder = layers.TransformerEncoder(16, 2, **options)
    y = encoder(X, padding_mask=mask)
    changed = X.copy()
    changed[:, 3:] += 5
    np.testing.assert_allclose(
        encoder(changed, padding_mask=mask).data[:, :3], y.data[:, :3], atol=1e-5
    )
    decoder = layers.TransformerDecoder(16, 2, **options)
    y = decoder(X)
    np.testing.assert_allclose(decoder(changed).data[:, :3], y.data[:, :3], atol=1e-5)
    crossed = layers.TransformerDecoder(16, 2, **options)
    assert crossed(X, X[:, :3]).shape == X.shape
    with pytest.raises(ValueError, match="was built with an encoder_sequence"):
        crossed(X)


def language_model(kind):
    source = picodl.Input((None,), dtype="int32")
    if kind == "positions":
        x = layers.TokenAndPositionEmbedding(11, 40, 8)(source)
    else:
        x = layers.Embedding(11, 8)(source)
    if kind == "sine":
        x = x + layers.SinePositionEncoding()(x)
    if kind in ("positions", "sine", "rotary", "alibi"):
        x = layers.TransformerDecoder(16, 2, rotary=kind == "rotary", alibi=kind == "alibi")(x)
    elif kind == "recurrent":
        x = layers.GRU(8, return_sequences=True)(layers.LSTM(8, return_sequences=True)(x))
    else:
        x = layers.Bidirectional(layers.LSTM(4, return_sequences=True))(x)
    model = picodl.Model(source, layers.Dense(11)(x))
    for weight in model.weights:
        weight.assign(rng.normal(size=weight.shape) * 0.7)
    return model


@pytest.mark.parametrize(
    "kind", ["positions", "sine", "rotary", "alibi", "recurrent", "looks ahead"]
)
def test_generation_step_by_step_is_that_of_whole_sequences(kind):
    model = language_model(kind)
    prompt = np.array([[1, 2, 3], [4, 5, 6]])
    for options in ({"temperature": 0}, {"seed": 3}, {"top_k": 4, "top_p": 0.9, "seed": 1}):
        y = generate(model, prompt, 12, **options)
        assert y.shape == (2, 15)
        np.testing.assert_array_equal(y, generate(model, prompt, 12, use_cache=False, **options))
    steps = generation._Steps(model, None, None, True)
    steps.logits(y[:, :3])
    logits = steps.logits(y[:, :4])
    np.testing.assert_allclose(logits, model(y[:, :4]).data[:, -1], rtol=1e-4, atol=1e-5)
    assert (steps.decoding is None) == (kind == "looks ahead")


def test_generation_keeps_to_the_context_and_to_the_end():
    model = language_model("positions")
    assert generate(model, [1, 2], 50, context=40, temperature=0).shape == (52,)
    logits = np.zeros((1, 1, 4))
    logits[..., 2] = 9

    def always_two(ids):
        return np.broadcast_to(logits, (*ids.shape, 4))

    assert generate(always_two, [0], 9, temperature=0, end_id=2).tolist() == [0, 2]
    with pytest.raises(ValueError, match="at least 1; received shape"):
        generate(model, [], 3)
    with pytest.raises(ValueError, match="top_p must be above 0"):
        generate(model, [1], 3, top_p=0.0)


def test_sampling_follows_the_probabilities():
    p = np.array([0.5, 0.3, 0.15, 0.05])
    logits = np.tile(np.log(p), (4000, 1))
    generator = np.random.default_rng(0)
    whole = np.bincount(generation._chooser(1.0, None, None, generator)(logits), minlength=4) / 4000
    np.testing.assert_allclose(whole, p, atol=0.03)
    best = generation._chooser(1.0, 2, None, generator)(logits)
    np.testing.assert_allclose(np.bincount(best, minlength=4)[:2] / 4000, p[:2] / 0.8, atol=0.03)
    assert set(generation._chooser(1.0, None, 0.6, generator)(logits)) == {0, 1}


def test_weights_stand_in_files_where_keras_has_them(tmp_path):
    import h5py

    source = picodl.Input((5, 8))
    y = layers.MultiHeadAttention(2, 4, use_gate=True)(source, source)
    model = picodl.Model(source, layers.GroupQueryAttention(4, 4, 2)(y, y))
    model.save_weights(tmp_path / "m.weights.h5")
    with h5py.File(tmp_path / "m.weights.h5") as file:
        assert {"query_dense", "key_dense", "value_dense", "_gate_dense", "output_dense"} <= set(
            file["layers/multi_head_attention"]
        )
        assert "_query_dense" in file["layers/grouped_query_attention"]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("value_dim", [3, 5])
@pytest.mark.parametrize("grouped", [True, False])
def test_one_projection_for_all_gives_what_three_give(grouped, value_dim, bias, monkeypatch):
    if grouped:
        layer = layers.GroupQueryAttention(3, 4, 2, use_bias=bias)
    else:
        layer = layers.MultiHeadAttention(2, 3, value_dim, use_bias=bias)
    x = Tensor(rng.normal(size=(2, 7, 6)).astype("float32"), requires_grad=True)
    layer(x, x)
    for weight in layer.weights:
        weight.assign(rng.normal(size=weight.shape))
    found = []
    for least in (0, 1 << 40):
        monkeypatch.setattr(head_attention, "_JOINED", least)
        y = layer(x, x)
        x.zero_grad()
        layer.zero_grad()
        (y * y).sum().backward()
        found.append([y.data, x.grad, *(w.grad for w in layer.trainable_weights)])
    assert len(found[0]) == (10 if bias else 6)
    largest = max(np.abs(one).max() for one in found[0])  # some gradients are 0 but for rounding
    for one, three in zip(*found, strict=True):
        np.testing.assert_allclose(one, three, rtol=1e-4, atol=2e-6 * largest)


@pytest.mark.parametrize("kind", [layers.Attention, layers.AdditiveAttention])
def test_further_axes_are_attended_over_one_by_one(kind):
    x = rng.normal(size=(2, 3, 5, 4)).astype("float32")
    keep = rng.random((2, 3, 5)) < 0.7
    layer = kind(use_scale=True)
    options = {"return_attention_scores": True, "use_causal_mask": True}
    y, scores = layer([x, x], mask=[keep, keep], **options)
    assert scores.shape == (2, 3, 5, 5)
    for i in range(3):
        alone, of_it = layer([x[:, i], x[:, i]], mask=[keep[:, i], keep[:, i]], **options)
        np.testing.assert_allclose(y[:, i], alone, atol=1e-6)
        np.testing.assert_allclose(scores[:, i], of_it, atol=1e-6)
    a, b = picodl.Input((3, 5, 4)), picodl.Input((3, 7, 4))
    assert kind()([a, b]).shape == (None, 3, 5, 4)
    with pytest.raises(ValueError, match=r"\(batch, ..., steps, features\)"):
        kind()([x, x[:, 0]])


@pytest.mark.parametrize("axes", [1, 2, -2, (1, 2)])
def test_scores_over_chosen_axes(axes):
    x = rng.normal(size=(2, 3, 5, 8)).astype("float32")
    layer = layers.MultiHeadAttention(2, 4, attention_axes=axes)
    y, scores = layer(x, x, return_attention_scores=True)
    np.testing.assert_allclose(y, layer(x, x), atol=1e-6)
    shapes = {
        1: (2, 5, 2, 3, 3),
        2: (2, 3, 2, 5, 5),
        -2: (2, 3, 2, 5, 5),
        (1, 2): (2, 2, 3, 5, 3, 5),
    }
    assert scores.shape == shapes[axes]
    value = np.einsum("abcx,xhv->abchv", x, layer.value_dense.kernel) + layer.value_dense.bias
    said = {1: "achbd,adchv->abchv", (1, 2): "ahbcde,adehv->abchv"}.get(axes, "abhcd,abdhv->abchv")
    mixed = np.einsum(said, scores, value)
    np.testing.assert_allclose(layer.output_dense(mixed), y, atol=1e-5)


def test_a_layer_built_for_several_shapes_comes_back_built():
    layer = layers.MultiHeadAttention(2, 4)
    layer.build((None, 5, 8), (None, 7, 6))
    config = layer.get_build_config()
    assert config == {"shapes_dict": {"query_shape": (None, 5, 8), "value_shape": (None, 7, 6)}}
    again = layers.MultiHeadAttention(2, 4)
    again.build_from_config(config)
    assert [w.shape for w in again.weights] == [w.shape for w in layer.weights]
    with pytest.raises(ValueError, match="value_dim must be an integer"):
        layers.MultiHeadAttention(2, 4, value_dim=0)


@pytest.mark.parametrize(
    ("equation", "output_shape", "first"),
    [
        ("abc,cde->abde", (None, 3, 4), [-0.47845113, -0.30390504, 0.3478818]),
        ("abcd,cde->abe", (None, 7), [-0.46569014, -0.29579946, 0.33860326]),
    ],
)
def test_kernels_of_einsum_dense_are_scaled_by_the_inputs_of_a_unit(equation, output_shape, first):
    shape = (2, 5, 6) if equation.startswith("abc,") else (2, 5, 3, 4)
    initializer = initializers.GlorotUniform(seed=3)
    layer = layers.EinsumDense(equation, output_shape, kernel_initializer=initializer)
    layer.build(shape)
    np.testing.assert_allclose(layer.kernel.data.ravel()[:3], first, rtol=1e-6)  # Keras 3.15
    assert initializer.input_axes is None  # the one in the config stays as it was given
    axes = {"input_axes": [0], "output_axes": [1]}
    chosen = layers.EinsumDense(
        equation, output_shape, kernel_initializer=initializers.GlorotUniform(seed=3, **axes)
    )
    chosen.build(shape)
    n, m = chosen.kernel.shape[:2]
    assert np.abs(chosen.kernel.data).max() <= np.sqrt(6 / (n + m))


def test_queries_of_many_heads_start_as_large_as_a_dense_layers():
    layer = layers.MultiHeadAttention(8, 16, kernel_initializer="lecun_normal")
    layer.build((None, 10, 32), (None, 10, 32))
    assert layer.weights[0].data.std() == pytest.approx(32**-0.5, rel=0.1)


@pytest.mark.parametrize("axis", [1, 2])
def test_masks_and_windows_hold_along_the_chosen_axis(axis):
    x = rng.normal(size=(2, 3, 5, 8)).astype("float32")
    steps, others = x.shape[axis], x.shape[3 - axis]
    keep = rng.random((2, steps)) < 0.6
    keep[0] = False  # nothing to look at
    both = np.stack([keep] * others, 3 - axis)
    layer = layers.MultiHeadAttention(2, 4, attention_axes=axis, sliding_window=2)
    y = layer(x, x, value_mask=keep, use_causal_mask=True)
    np.testing.assert_array_equal(y, layer(x, x, key_mask=both, use_causal_mask=True))
    alone = layers.MultiHeadAttention(2, 4, sliding_window=2)
    alone.build((2, steps, 8), (2, steps, 8))
    alone.set_weights(layer.get_weights())
    for i in range(others):
        part = x.take(i, 3 - axis)
        expected = alone(part, part, value_mask=keep, use_causal_mask=True)
        np.testing.assert_allclose(y.numpy().take(i, 3 - axis), expected, atol=1e-6)
    with pytest.raises(ValueError, match=r"expects masks of shape \(2, 3, 5\)"):
        layer(x, x, value_mask=np.ones((2, 4), bool))


class AlibiGroups(layers.GroupQueryAttention):
    def score_bias(self, queries, keys):
        return layers.AlibiBias().bias(self.num_query_heads, queries, keys)


@pytest.mark.parametrize("shared", [4, 2, 1])
@pytest.mark.parametrize("causal", [False, True])
def test_biases_of_the_scores_act_on_shared_heads_too(shared, causal, float64):
    groups, heads = AlibiGroups(3, 4, shared), AlibiAttention(4, 3)
    x = rng.normal(size=(2, 6, 5))
    groups(x, x), heads(x, x)
    weights = [rng.normal(size=weight.shape) for weight in groups.weights]
    groups.set_weights(weights)
    axis = {2: 0, 3: 1}
    for place in range(2, 6):  # key and value, for each query head that shares them
        weights[place] = weights[place].repeat(4 // shared, axis[weights[place].ndim])
    heads.set_weights(weights)
    for scores in (False, True):
        options = {"use_causal_mask": causal, "return_attention_scores": scores}
        found, expected = (picodl.tree.flatten(f(x, x, **options)) for f in (groups, heads))
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a.data, b.data, atol=1e-10)


def test_the_projections_are_attributes_once_built():
    x = np.ones((2, 3, 8), "float32")
    layer = layers.MultiHeadAttention(2, 4)
    layer(x, x)
    parts = [layer.query_dense, layer.key_dense, layer.value_dense, layer.output_dense]
    assert [part.kernel.shape for part in parts] == [(8, 2, 4)] * 3 + [(2, 4, 8)]
