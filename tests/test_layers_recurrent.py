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


@picodl.saving.register_keras_serializable("tests")
class Nested(layers.Layer):
    """A cell of states (8,), [4, (2, 3)]: a running sum, a recurrence, and what it saw of pairs."""

    state_size = ((8,), [4, (2, 3)])
    output_size = 4

    def build(self, input_shape):
        self.kernel = self.add_weight((input_shape[-1], 4), name="kernel")
        self.recurrent = self.add_weight((4, 4), name="recurrent")

    def call(self, inputs, states):
        total, (h, pairs) = states
        assert isinstance(states[1], list) and pairs.shape[1:] == (2, 3)
        h = ops.tanh(inputs @ self.kernel + h @ self.recurrent + total[:, :4])
        outer = ops.reshape(h[:, :2], (-1, 2, 1)) * ops.reshape(h[:, 1:], (-1, 1, 3))
        total = total + ops.sum(inputs * inputs, axis=-1, keepdims=True)
        pairs = 0.5 * pairs + outer
        return h + ops.sum(pairs, axis=(1, 2))[:, None], [total, [h, pairs]]


def started(batch=3):
    """States to start from."""
    total, h, pairs = (rng.normal(size=(batch, *s)) for s in ((8,), (4,), (2, 3)))
    return [total, [h, pairs]]


def by_hand(weights, x, states, mask=None):
    """The outputs of all steps and the last states of Nested, in plain numpy."""
    x = x.astype("float64")  # squares of float32 would be rounded before they are summed
    kernel, recurrent = weights
    total, (h, pairs) = states
    outputs, y = [], np.zeros((len(x), 4))
    for t in range(x.shape[1]):
        keep = np.ones(len(x), bool) if mask is None else mask[:, t]
        new = np.tanh(x[:, t] @ kernel + h @ recurrent + total[:, :4])
        seen = 0.5 * pairs + new[:, :2, None] * new[:, None, 1:]
        y = np.where(keep[:, None], new + seen.sum((1, 2))[:, None], y)
        outputs.append(y)
        total = np.where(keep[:, None], total + (x[:, t] ** 2).sum(-1, keepdims=True), total)
        h = np.where(keep[:, None], new, h)
        pairs = np.where(keep[:, None, None], seen, pairs)
    return np.stack(outputs, 1), [total, [h, pairs]]


def assert_states(states, expected):
    picodl.tree.assert_same_structure(states, expected)
    for a, b in zip(picodl.tree.flatten(states), picodl.tree.flatten(expected), strict=True):
        np.testing.assert_allclose(a.data, b, atol=1e-10)


MASK = np.array([[1, 1, 0, 1, 0], [0, 1, 1, 1, 1], [0, 0, 1, 0, 0]], bool)


@pytest.mark.parametrize("mask", [None, MASK])
@pytest.mark.parametrize("back", [False, True])
def test_nested_states_are_those_of_a_loop_by_hand(back, mask, float64):
    layer = layers.RNN(Nested(), return_sequences=True, return_state=True, go_backwards=back)
    x, step = rng.normal(size=(3, 5, 2)), -1 if back else 1
    zeros = layer.get_initial_state(3)
    assert [zeros[0].shape, [s.shape for s in zeros[1]]] == [(3, 8), [(3, 4), (3, 2, 3)]]
    first = started()
    for given in (None, first, picodl.tree.flatten(first)):
        y, *states = layer(x, initial_state=given, mask=mask)
        start = picodl.tree.map_structure(lambda z: z.data, zeros) if given is None else first
        weights = layer.get_weights()
        outputs, ends = by_hand(
            weights, x[:, ::step], start, None if mask is None else mask[:, ::step]
        )
        np.testing.assert_allclose(y.data, outputs, atol=1e-10)
        assert_states(states, ends)
    shapes = layer.compute_output_shape((3, 5, 2))
    assert shapes == ((3, 5, 4), (3, 8), [(3, 4), (3, 2, 3)])
    gradcheck(
        lambda x, a, b, c: layer(x, initial_state=[a, [b, c]], mask=mask)[0],
        x, *picodl.tree.flatten(first), tolerance=1e-5,
    )  # fmt: skip
    gradcheck(lambda x: layer(x, mask=mask)[2][1], x, tolerance=1e-5)


def test_nested_states_of_a_stateful_layer_go_on_until_reset(float64):
    layer = layers.RNN(Nested(), stateful=True, return_state=True)
    assert layer.states is None
    y, *_ = layer(X)
    first = by_hand(
        layer.get_weights(), X, [np.zeros((3, 8)), [np.zeros((3, 4)), np.zeros((3, 2, 3))]]
    )
    np.testing.assert_allclose(y.data, first[0][:, -1], atol=1e-10)
    assert_states(layer.states, first[1])
    again = layer(X)
    assert_states(list(again[1:]), by_hand(layer.get_weights(), X, first[1])[1])
    layer.reset_states()
    assert layer.states is None
    np.testing.assert_array_equal(layer(X)[0].data, y.data)
    assert len(layer.weights) == 2


def test_nested_states_in_both_directions(float64):
    layer = layers.Bidirectional(
        layers.RNN(Nested(), return_sequences=True, return_state=True), merge_mode="sum"
    )
    first = [*started(), *started()]
    y, *states = layer(X, initial_state=first)
    weights = layer.get_weights()
    ahead, ends = by_hand(weights[:2], X, first[:2])
    back, back_ends = by_hand(weights[2:], X[:, ::-1], first[2:])
    np.testing.assert_allclose(y.data, ahead + back[:, ::-1], atol=1e-10)
    assert_states(states, [*ends, *back_ends])
    flat = layer(X, initial_state=picodl.tree.flatten(first))
    np.testing.assert_array_equal(flat[0].data, y.data)
    expected = ((3, 5, 4), (3, 8), [(3, 4), (3, 2, 3)], (3, 8), [(3, 4), (3, 2, 3)])
    assert layer.compute_output_shape(X.shape) == expected
    masked = layer(X, mask=MASK)
    np.testing.assert_array_equal(masked[0].mask, MASK)
    assert masked[2][1].mask is None


def test_a_cell_of_nested_states_in_a_stack(float64):
    cells = [layers.LSTMCell(3), Nested(), layers.GRUCell(2)]
    layer = layers.RNN(cells, return_sequences=True, return_state=True)
    assert layer.state_size == [[3, 3], [(8,), [4, (2, 3)]], 2]
    y, lstm, nested, gru = layer(X)
    below, *lstm_ends = layers.RNN(cells[0], return_sequences=True, return_state=True)(X)
    start = [np.zeros((3, 8)), [np.zeros((3, 4)), np.zeros((3, 2, 3))]]
    outputs, ends = by_hand(cells[1].get_weights(), below.data, start)
    above, gru_end = layers.RNN(cells[2], return_sequences=True, return_state=True)(outputs)
    np.testing.assert_allclose(y.data, above.data, atol=1e-10)
    assert_states(lstm, [s.data for s in lstm_ends])
    assert_states(nested, ends)
    np.testing.assert_allclose(gru.data, gru_end.data, atol=1e-10)
    whole = layer(X, initial_state=[lstm, nested, gru])
    flat = layer(X, initial_state=picodl.tree.flatten([lstm, nested, gru]))
    np.testing.assert_array_equal(whole[0].data, flat[0].data)
    gradcheck(lambda x: layer(x)[2][1][1], rng.normal(size=(2, 4, 2)), tolerance=1e-5)


def test_nested_states_in_models_configs_and_files(tmp_path):
    source = picodl.Input((None, 2))
    y, *states = layers.RNN([Nested(), layers.LSTMCell(4)], return_state=True)(source)
    assert [s.shape for s in states[0][1]] == [(None, 4), (None, 2, 3)]
    again = layers.RNN([Nested(), layers.LSTMCell(4)], return_sequences=True)
    model = picodl.Model(source, [y, again(source, initial_state=states)])
    expected = model.predict(X, verbose=0)
    assert [e.shape for e in expected] == [(3, 4), (3, 5, 4)]
    twin = picodl.Model.from_config(model.get_config())
    twin.set_weights(model.get_weights())
    model.save(tmp_path / "model.keras")
    loaded = picodl.models.load_model(tmp_path / "model.keras")
    for other in (twin, loaded):
        for a, b in zip(other.predict(X, verbose=0), expected, strict=True):
            np.testing.assert_array_equal(a, b)
    whole = picodl.Model(source, layers.RNN(Nested(), return_state=True)(source))
    _, _, (h, pairs) = whole.predict(X, verbose=0)
    assert (h.shape, pairs.shape) == ((3, 4), (3, 2, 3))


class Keep(layers.Layer):
    """A cell that leaves its states as they are, and says what it was given."""

    output_size = 2

    def __init__(self, state_size):
        super().__init__()
        self.state_size = state_size

    def call(self, inputs, states):
        self.given = picodl.tree.map_structure(lambda s: s.shape[1:], states)
        return inputs, states


class Sizes:
    """The shape of another library: neither list nor tuple."""

    def __iter__(self):
        return iter((2, 3))


@pytest.mark.parametrize(
    ("sizes", "given"),
    [
        (4, [(4,)]),
        ([4, 4], [(4,), (4,)]),
        ((2, 3), [(2,), (3,)]),  # as in Keras: a size for each of two states
        ([(2, 3)], [(2, 3)]),
        (((2, 3), (4,)), [(2, 3), (4,)]),
        ([[4, 5], 6], [[(4,), (5,)], (6,)]),
        ([[2, [(3, 1)]], (8,)], [[(2,), [(3, 1)]], (8,)]),
        ([([4], 5)], [([(4,)], (5,))]),
        ([{"a": 4, "b": (2, 2)}], [{"a": (4,), "b": (2, 2)}]),
        ([Sizes(), 1], [(2, 3), (1,)]),
        ([()], [()]),
    ],
)
def test_what_a_state_size_means(sizes, given):
    cell = Keep(sizes)
    layer = layers.RNN(cell, return_state=True)
    _, *states = layer(X)
    assert cell.given == given
    assert picodl.tree.map_structure(lambda s: s.shape[1:], states) == given
    spec = picodl.tree.map_structure(lambda s: s.shape[1:], list(layer(picodl.Input((5, 2)))[1:]))
    assert spec == given


@pytest.mark.parametrize("sizes", [{"a": 4}, None, "ab", [4, None], [[4, 2.5]]])
def test_a_state_size_that_says_nothing_is_refused(sizes):
    with pytest.raises(ValueError, match="state_size of the cell Keep must be an integer, or a"):
        layers.RNN(Keep(sizes))(X)


def test_a_cell_may_start_from_states_of_its_own():
    class Starts(Keep):
        def get_initial_state(self, inputs=None, batch_size=None):
            return [np.ones((batch_size, 4), "f"), (np.full((batch_size, 2, 3), 2, "f"),)]

    _, a, (b,) = layers.RNN(Starts([4, [(2, 3)]]), return_state=True)(X)
    assert (a.data == 1).all() and (b.data == 2).all()


def test_a_cell_that_loses_a_state_is_named():
    class Loses(Keep):
        def call(self, inputs, states):
            return inputs, states[:1]

    with pytest.raises(ValueError, match=r'"short": the cell Loses received 2 .* returned 1'):
        layers.RNN(Loses([4, 4]), name="short")(X)
