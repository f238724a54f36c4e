"""Recurrent layers beyond the goldens: states, dropout, own cells, messages, varying lengths."""

import numpy as np
import pytest

import picodl
from picodl import layers, ops
from picodl.tensor import Tensor
from picodl.testing import gradcheck

rng = np.random.default_rng(0)
X = rng.normal(size=(3, 5, 2)).astype("float32")
KINDS = [layers.SimpleRNN, layers.LSTM, layers.GRU]


class PlainLSTM(layers.LSTMCell):
    """The same cell with a call of its own, so that it runs step by step."""

    def call(self, inputs, states, training=False):
        return super().call(inputs, states, training=training)


def test_a_users_cell_runs_step_by_step_and_agrees():
    fused = layers.RNN(layers.LSTMCell(4), return_sequences=True, return_state=True)
    plain = layers.RNN(PlainLSTM(4), return_sequences=True, return_state=True)
    mask = np.array([[1, 1, 0, 1, 0], [0, 1, 1, 1, 1], [0, 0, 0, 0, 0]], bool)
    for options in ({}, {"mask": mask}):
        ys = fused(X, **options)
        plain(X)
        plain.set_weights(fused.get_weights())
        for a, b in zip(ys, plain(X, **options), strict=True):
            np.testing.assert_allclose(a.data, b.data, atol=1e-6)


@pytest.mark.parametrize("back", [False, True])
def test_stacked_cells_run_as_their_steps_do(back):
    mask = np.array([[1, 1, 0, 1, 0], [0, 1, 1, 1, 1], [0, 0, 0, 0, 0]], bool)
    fused = layers.RNN(
        [layers.LSTMCell(4), layers.GRUCell(3)], return_sequences=True, go_backwards=back
    )
    plain = layers.RNN([PlainLSTM(4), layers.GRUCell(3)], return_sequences=True, go_backwards=back)
    y = fused(X, mask=mask)
    plain(X)
    plain.set_weights(fused.get_weights())
    np.testing.assert_allclose(y.data, plain(X, mask=mask).data, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_through_a_layer_with_mask_and_state(kind, float64):
    layer = kind(3, return_sequences=True)
    x, h = rng.normal(size=(2, 4, 2)), rng.normal(size=(2, 3))
    states = [h, h[::-1].copy()] if kind is layers.LSTM else [h]
    layer(x)
    mask = np.array([[1, 1, 0, 1], [0, 1, 1, 0]], bool)
    gradcheck(lambda x, *s: layer(x, initial_state=list(s), mask=mask), x, *states)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rates", [(0.5, 0.0), (0.0, 0.5), (0.4, 0.3)])
def test_dropout_acts_in_training_only_and_repeats_with_its_seed(kind, rates):
    def make():
        return kind(4, dropout=rates[0], recurrent_dropout=rates[1], seed=1)

    one, two = make(), make()
    y = one(X)
    two(X)
    two.set_weights(one.get_weights())
    np.testing.assert_array_equal(y.data, one(X).data)
    trained = one(X, training=True).data
    assert np.abs(trained - y.data).max() > 1e-3
    np.testing.assert_array_equal(trained, two(X, training=True).data)
    assert trained.dtype == np.float32


def test_other_activations_take_the_composed_way():
    layer = layers.GRU(3, activation="softsign", recurrent_activation="hard_sigmoid")
    usual = layers.GRU(3)
    layer(X)
    usual(X)
    layer.set_weights(usual.get_weights())
    assert np.abs(layer(X).data - usual(X).data).max() > 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_stateful_layers_go_on_where_they_ended(kind):
    layer = kind(4, stateful=True, return_sequences=True)
    whole = kind(4, return_sequences=True)
    whole(X)
    layer(X)
    layer.set_weights(whole.get_weights())
    layer.reset_states()
    parts = [layer(X[:, :2]).data, layer(X[:, 2:]).data]
    np.testing.assert_allclose(np.concatenate(parts, 1), whole(X).data, atol=1e-6)
    assert len(layer.weights) == 3
    with pytest.raises(ValueError, match=r"stateful with batch size 3.*\(2, 5, 2\).*reset_states"):
        layer(X[:2])


def test_states_pass_between_encoder_and_decoder():
    encoder = layers.LSTM(4, return_state=True)
    decoder = layers.LSTM(4, return_sequences=True)
    _, *states = encoder(X)
    y = decoder(X, initial_state=states)
    y.sum().backward()
    assert encoder.weights[0].grad is not None
    source = picodl.Input((None, 2))
    _, h, c = encoder(source)
    model = picodl.Model(source, decoder(source, initial_state=[h, c]))
    np.testing.assert_allclose(model.predict(X, verbose=0), y.data, atol=1e-6)


def test_batches_of_different_lengths_in_fit_and_predict():
    model = picodl.Sequential(
        [
            picodl.Input((None, 2)),
            layers.Masking(),
            layers.Bidirectional(layers.LSTM(3, return_sequences=True)),
            layers.TimeDistributed(layers.Dense(2)),
            layers.GRU(3),
            layers.Dense(1),
        ]
    )
    model.compile("adam", "mse")
    batches = ((rng.normal(size=(4, t, 2)), np.ones((4, 1))) for t in (3, 6, 1))
    history = model.fit(batches, steps_per_epoch=3, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    assert model.predict(X, verbose=0).shape == model.predict(X[:, :1], verbose=0).shape


def test_padding_does_not_change_the_answer():
    embedding = layers.Embedding(9, 4, mask_zero=True)
    model = picodl.Sequential(
        [picodl.Input((None,), dtype="int32"), embedding, layers.Bidirectional(layers.GRU(3))]
    )
    short = model.predict(np.array([[3, 4, 5]]), verbose=0)
    for padded in ([[3, 4, 5, 0, 0]], [[0, 0, 3, 4, 5]]):
        np.testing.assert_allclose(model.predict(np.array(padded), verbose=0), short, atol=1e-6)


def test_fully_masked_rows_stay_finite_everywhere():
    x = Tensor(X, requires_grad=True)
    mask = np.zeros((3, 5), bool)
    for layer in (layers.LSTM(3), layers.Bidirectional(layers.GRU(3, return_sequences=True))):
        y = layer(x, mask=mask)
        y.sum().backward()
        assert (y.data == 0).all()
        assert all(np.isfinite(w.grad).all() for w in layer.weights)


def test_second_derivatives_through_a_layer():
    layer = layers.LSTM(3)
    x = Tensor(X, requires_grad=True)
    layer(x).sum().backward(create_graph=True)
    ops.sum(x.grad * x.grad).backward()
    assert np.isfinite(layer.weights[0].grad.data).all()


def test_messages_name_layer_and_shapes():
    with pytest.raises(ValueError, match=r'LSTM layer "lstm.*" expects input of rank 3.*\(3, 2\)'):
        layers.LSTM(4)(X[:, 0])
    with pytest.raises(
        ValueError, match=r"expects a mask of shape .*\(3, 5\), but received .*\(3, 4\)"
    ):
        layers.LSTM(4)(X, mask=np.ones((3, 4), bool))
    with pytest.raises(ValueError, match=r"initial states of shapes \[\(3, 4\)\].*\[\(3, 5\)\]"):
        layers.GRU(4)(X, initial_state=np.zeros((3, 5)))
    with pytest.raises(ValueError, match="units must be an integer of at least 1; received 0"):
        layers.LSTM(0)
    with pytest.raises(ValueError, match="stateful, so it needs to know its batch size"):
        picodl.Sequential([picodl.Input((5, 2)), layers.LSTM(4, stateful=True)])
    with pytest.raises(ValueError, match="backward_layer must go the other way"):
        layers.Bidirectional(layers.LSTM(2), backward_layer=layers.LSTM(2))
    with pytest.raises(ValueError, match="needs a recurrent layer"):
        layers.Bidirectional(layers.Dense(2))
    with pytest.raises(ValueError, match="needs a cell"):
        layers.RNN(layers.Dense(2))


def test_a_layer_shows_what_its_cell_was_made_with():
    layer = layers.GRU(4, dropout=0.2, reset_after=False)
    assert (layer.units, layer.dropout, layer.reset_after) == (4, 0.2, False)
    assert layer.activation is picodl.activations.tanh
    with pytest.raises(AttributeError, match="'GRU' object has no attribute 'filters'"):
        _ = layer.filters
