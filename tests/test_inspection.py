import numpy as np
import pytest

from picodl import Input, Model, Sequential, layers, ops
from picodl.inspection import explain
from picodl.ops import custom_gradient
from picodl.tensor import Tensor, record


@pytest.fixture
def x():
    return np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)


def weight(*shape):
    return Tensor(np.random.default_rng(1).normal(size=shape).astype(np.float32), True)


def test_every_op_is_told_in_backward_order_and_checked(x):
    w, b = weight(4, 3), weight(3)
    lines = []
    reports = explain(
        lambda x: ops.mean(ops.tanh(ops.dense(x, w, b)) ** 2), x, print_fn=lines.append
    )
    assert [r.name for r in reports] == ["mean", "power", "tanh", "dense"]
    assert [r.number for r in reports] == [4, 3, 2, 1]
    assert "dx = g * (1 - y^2)" in reports[2].formula
    data, kernel, bias = reports[3].inputs
    assert data.norm is None and kernel.shape == (4, 3) and bias.shape == (3,)
    assert all(i.error < 1e-5 for r in reports for i in r.inputs if i.norm is not None)
    assert lines[-1].startswith("4 ops, 5 gradients agree with finite differences within")
    assert w.grad is None


def test_an_input_used_twice_gets_the_sum(x):
    w = weight(4)
    (report,) = explain(lambda x: w * w, x, print_fn=None)
    assert len(report.inputs) == 1
    assert report.inputs[0].norm == pytest.approx(2 * np.linalg.norm(w.data), rel=1e-6)
    assert report.inputs[0].error < 1e-5


def wrong_square(x):
    def backward(g):
        return (3 * g * x.data,)  # it should be 2

    return record(x.data * x.data, (x,), backward)


def test_a_wrong_gradient_is_found(x):
    w, lines = weight(4), []
    reports = explain(lambda x: ops.sum(wrong_square(w)), x, print_fn=lines.append)
    assert reports[1].inputs[0].error > 0.1
    assert lines[-1].startswith("FAULT: #1 wrong_square sends input a gradient that is off by")


def test_random_and_foreign_ops_are_not_judged(x):
    @custom_gradient
    def own(x):
        return x * 2, lambda *args, upstream: upstream * 2

    w = weight(4, 4)
    drop = layers.Dropout(0.5)
    reports = explain(
        lambda x: ops.sum(own(drop(ops.matmul(x, w)))), x, training=True, print_fn=None
    )
    remarks = {r.name: r.remark for r in reports}
    assert remarks["matmul"] == "" and remarks["sum"] == ""
    assert all("not checked" in remarks[r.name] for r in reports[1:3])


def test_layers_losses_and_weight_names(x):
    dense = layers.Dense(2, activation="tanh", name="head")
    y = np.zeros((6, 2), np.float32)
    reports = explain(dense, x, y, loss=lambda t, p: ops.mean((t - p) ** 2), print_fn=None)
    names = [i.name for i in reports[-1].inputs]
    assert names == ["data", "head/kernel", "head/bias"]
    assert all(i.error < 1e-4 for r in reports for i in r.inputs if i.norm is not None)


def test_messages(x):
    with pytest.raises(ValueError, match="no loss"):
        explain(layers.Dense(2), x, x)
    with pytest.raises(ValueError, match="nothing to differentiate"):
        explain(lambda x: x * 2, x)


def test_equal_maxima_are_no_fault():
    image = np.random.default_rng(0).normal(size=(2, 8, 8, 1)).astype(np.float32)
    model = Sequential([Input((8, 8, 1)), layers.ReLU(), layers.MaxPooling2D(2)])
    x = Tensor(image, requires_grad=True)
    reports = explain(model, x, print_fn=None)
    assert [r.name for r in reports] == ["max_pool", "relu"]
    assert all(i.error < 1e-6 for r in reports for i in r.inputs)


def test_networks_of_many_kinds_hold():
    parts = [
        layers.Conv2D(4, 3, activation="relu"),
        layers.BatchNormalization(),
        layers.MaxPooling2D(2),
        layers.Reshape((9, 4)),
        layers.LSTM(3, return_sequences=True),
        layers.LayerNormalization(),
        layers.GlobalAveragePooling1D(),
        layers.Dense(2, activation="softmax"),
    ]
    model = Sequential([Input((8, 8, 2)), *parts])
    model.compile("adam", loss="sparse_categorical_crossentropy")
    x = np.random.default_rng(0).normal(size=(4, 8, 8, 2)).astype(np.float32)
    for training in (False, True):
        reports = explain(model, x, np.array([0, 1, 1, 0]), training=training, print_fn=None)
        assert [r.remark for r in reports if r.remark] == []
        assert max(i.error for r in reports for i in r.inputs if i.error is not None) < 1e-4


def test_everything_a_model_minimises_is_told(x):
    a = Input((4,), name="a")
    h = layers.Dense(3, activation="tanh", kernel_regularizer="l2")(a)
    model = Model(a, {"n": layers.Dense(1)(h), "k": layers.Dense(2, activation="softmax")(h)})
    model.compile("adam", {"n": "mse", "k": "sparse_categorical_crossentropy"})
    y = {"n": np.zeros((6, 1), np.float32), "k": np.array([0, 1, 0, 1, 1, 0])}
    reports = explain(model, x, y, print_fn=None)
    assert {"squared_error", "sparse_categorical_crossentropy"} <= {r.name for r in reports}
    kernel = next(i for i in reports[-1].inputs if i.shape == (4, 3))
    assert kernel.error < 1e-4
    names = [i.name for r in reports for i in r.inputs]
    assert names.count(kernel.name) >= 2  # from the layer, and from its penalty
