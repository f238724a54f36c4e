"""StatelessScope and stateless_call: other values for variables, which stay as they are."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import picodl
from picodl import layers as L
from picodl.backend import StatelessScope, get_stateless_scope, in_stateless_scope
from picodl.testing import gradcheck

DATA = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


def values(weights):
    return [w.numpy() for w in weights]


def network():
    layers = [L.Dense(3, activation="tanh"), L.BatchNormalization(momentum=0.5), L.Dense(2)]
    model = picodl.Sequential([L.Input((4,)), *layers])
    rng = np.random.default_rng(0)
    model.set_weights([rng.uniform(0.5, 1, w.shape) for w in model.weights])
    return model


def test_scope_keeps_what_is_assigned():
    v, w = picodl.Variable(np.ones(2), name="v"), picodl.Variable(3.0, name="w")
    data = v.data
    with StatelessScope([(v, [5, 6])]) as scope:
        assert in_stateless_scope() and get_stateless_scope() is scope
        np.testing.assert_array_equal(picodl.ops.add(v, 1), [6, 7])
        v.assign_add([1, 1])
        w.assign(4.0)
        with StatelessScope({w: 9.0}) as inner:
            w.assign_add(1.0)
            assert float(w) == 10
        assert float(w) == 4 and float(inner.get_current_value(w)) == 10
    assert v.data is data and values([v, w]) == [pytest.approx([1, 1]), 3]
    np.testing.assert_array_equal(scope.get_current_value(v), [6, 7])
    assert float(scope.get_current_value(w)) == 4
    assert scope.get_current_value(picodl.Variable(0.0)) is None
    assert not in_stateless_scope()
    with pytest.raises(ValueError, match="no StatelessScope"):
        get_stateless_scope()


def test_scope_puts_back_after_an_error_and_takes_its_values_by_copy():
    v, given = picodl.Variable(np.zeros(2)), np.ones(2, np.float32)
    with pytest.raises(KeyError), StatelessScope([(v, given)]):
        v.assign([7, 7])
        raise KeyError
    np.testing.assert_array_equal(v, [0, 0])
    np.testing.assert_array_equal(given, [1, 1])
    assert picodl.Tensor([1.0], requires_grad=True).sum().requires_grad


def test_scope_refuses_bad_mappings_and_records_nothing():
    v = picodl.Variable(np.zeros(2), name="v")
    with pytest.raises(ValueError, match=r"v has shape \(2,\).*\(3,\)"):
        StatelessScope([(v, np.zeros(3))])
    with pytest.raises(TypeError, match="ndarray instead of a variable"):
        StatelessScope([(np.zeros(2), np.zeros(2))])
    with StatelessScope([(v, np.ones(2))]):
        y = (v * v).sum()
    with pytest.raises(RuntimeError, match="does not depend"):
        y.backward()


def test_no_optimizer_steps_inside_a_scope():
    model = network()
    model.compile("sgd", loss="mse")
    model.fit(DATA, DATA[:, :2], verbose=0)
    before = values(model.weights)
    with StatelessScope([(w, w.numpy() + 1) for w in model.weights]):
        with pytest.raises(RuntimeError, match="cannot step inside a StatelessScope"):
            model.optimizer.apply([np.ones(w.shape) for w in model.trainable_weights])
        assert float(model.optimizer.iterations) == 1
    for weight, old in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(weight, old)


def test_no_file_is_loaded_inside_a_scope(tmp_path):
    model = network()
    model.save_weights(tmp_path / "m.weights.h5")
    before = values(model.weights)
    for weight in model.weights:
        weight.assign(weight.numpy() + 1)
    with (
        StatelessScope([(w, w.numpy() + 2) for w in model.weights]),
        pytest.raises(RuntimeError, match="Loading weights inside a StatelessScope"),
    ):
        model.load_weights(tmp_path / "m.weights.h5")
    for weight, old in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(weight, old + 1)


def test_a_state_tree_goes_to_the_scope():
    model = network()
    before = values(model.weights)
    tree = model.get_state_tree("numpy_array")
    with StatelessScope([(w, w.numpy() + 2) for w in model.weights]) as scope:
        model.set_state_tree(tree)
        for weight, old in zip(model.weights, before, strict=True):
            np.testing.assert_array_equal(scope.get_current_value(weight), old)
            weight.assign(old + 3)
    for weight, old in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(weight, old)


def test_scope_belongs_to_its_thread():
    seen = []
    with StatelessScope():
        thread = threading.Thread(target=lambda: seen.append(in_stateless_scope()))
        thread.start()
        thread.join()
    assert seen == [False]


def test_scope_collects_losses():
    layer = L.Dense(2, activity_regularizer="l2")
    layer.build((None, 4))
    with StatelessScope(collect_losses=True) as scope:
        layer(DATA)
        layer(2 * DATA)
    assert len(scope.losses) == 2
    assert float(scope.losses[1]) == pytest.approx(4 * float(scope.losses[0]), rel=1e-5)


def test_scope_keeps_moving_statistics_and_weights_of_a_model():
    model = network()
    before = values(model.weights)
    with StatelessScope() as scope:
        model(DATA, training=True)
        model.set_weights([2 * w for w in before])
    for weight, old in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(weight, old)
        np.testing.assert_array_equal(scope.get_current_value(weight), 2 * old)


def test_stateless_call_equals_a_call_with_those_values():
    model, other = network(), network()
    other.set_weights([w + 0.25 for w in other.get_weights()])
    before = values(model.weights)
    y, states = model.stateless_call(
        values(other.trainable_variables),
        values(other.non_trainable_variables),
        DATA,
        training=True,
    )
    np.testing.assert_array_equal(y.numpy(), other(DATA, training=True).numpy())
    for got, expected in zip(states, other.non_trainable_variables, strict=True):
        np.testing.assert_array_equal(got, expected)
    for weight, old in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(weight, old)


def test_stateless_call_is_differentiable_in_its_values():
    layers = [L.Dense(3, activation="tanh", dtype="float64"), L.Dense(1, dtype="float64")]
    model = picodl.Sequential([L.Input((4,), dtype="float64"), *layers])
    x, ready = DATA.astype(np.float64), values(model.trainable_variables)
    gradcheck(lambda *tv: model.stateless_call(list(tv), [], x)[0], *ready)
    assert all(w.grad is None for w in model.weights)


def test_stateless_call_goes_through_a_step_of_descent():
    """The derivative of a loss after one step, with respect to the weights before it."""
    layer = L.Dense(1, use_bias=False)
    layer.build((None, 1))
    w = picodl.Tensor([[1.0]], requires_grad=True)

    def loss(weight):
        y, _ = layer.stateless_call([weight], [], np.array([[2.0]], np.float32))
        return (y * y).sum()

    first = loss(w)
    ((_, g),) = picodl.tensor.gradients([first], [None], [w], True, True)
    loss(w - 0.01 * g).backward()
    # loss = 4 w^2, w' = 0.92 w, d(4 w'^2)/dw = 8 * 0.92^2
    np.testing.assert_allclose(w.grad, [[8 * 0.92**2]], rtol=1e-5)


def test_stateless_call_finds_weights_in_containers():
    class Net(picodl.Model):
        def __init__(self):
            super().__init__()
            self.parts_ = {"a": [L.Dense(2, use_bias=False)], "b": (picodl.Variable(np.ones(2)),)}
            self.same = self.parts_["b"]

        def call(self, x):
            return self.parts_["a"][0](x) * self.parts_["b"][0] + self.same[0]

    net = Net()
    net(DATA)
    kept = dict(vars(net))
    given = [np.full(w.shape, 2.0) for w in net.trainable_variables]
    y, _ = net.stateless_call(given, [], DATA)
    expected = DATA @ np.full((4, 2), 2.0) * 2 + 2
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-6)
    assert all(vars(net)[key] is part for key, part in kept.items())


def test_stateless_call_gives_losses_and_checks_its_values():
    layer = L.Dense(2, kernel_regularizer="l2")
    with pytest.raises(ValueError, match="build the layer first"):
        layer.stateless_call([], [], DATA)
    layer.build((None, 4))
    given = [np.ones((4, 2)), np.zeros(2)]
    _, states, losses = layer.stateless_call(given, [], DATA, return_losses=True)
    assert states == [] and float(sum(losses)) == pytest.approx(0.08)
    with pytest.raises(ValueError, match="2 trainable_variables, but received 1"):
        layer.stateless_call(given[:1], [], DATA)
    with pytest.raises(ValueError, match="0 non_trainable_variables, but received 1"):
        layer.stateless_call(given, given[:1], DATA)
    with pytest.raises(ValueError, match=r"\(4, 2\).*\(2, 4\)"):
        layer.stateless_call([np.ones((2, 4)), np.zeros(2)], [], DATA)


def test_assigned_values_take_the_dtype_of_the_variable() -> None:
    weight, count = picodl.Variable([1.0, 2.0]), picodl.Variable(np.array([1, 2]))
    assert weight.assign_add(1).dtype == weight.assign(np.ones(2)).dtype == np.float32
    assert count.assign(np.array([3.0, 4.0])).dtype == count.dtype
    for value in ([0.5, 1.0], np.array([np.nan, 1.0])):
        with pytest.raises(ValueError, match="assigned fractions"):
            count.assign(value)
    np.testing.assert_array_equal(count.numpy(), [3, 4])
