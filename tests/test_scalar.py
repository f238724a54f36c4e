import copy
import math
import pickle
import random

import numpy as np
import pytest

from picodl.scalar import (
    MLP,
    SGD,
    Adam,
    Layer,
    Neuron,
    Value,
    clip_gradients,
    clip_norm,
    cross_entropy,
    softmax,
)


def check_slopes(function, *numbers, eps=1e-6):
    """Every gradient of function(*values) against a central difference."""
    values = [Value(x) for x in numbers]
    function(*values).backward()
    for i, v in enumerate(values):
        plus, minus = (
            function(*[Value(x + s * eps * (i == j)) for j, x in enumerate(numbers)]).data
            for s in (1, -1)
        )
        assert v.grad == pytest.approx((plus - minus) / (2 * eps), rel=1e-6, abs=1e-7)


@pytest.mark.parametrize(
    "function, numbers",
    [
        (lambda x, y: x + y, (2.0, -3.0)),
        (lambda x: x + 4, (2.0,)),
        (lambda x: 4 + x, (2.0,)),
        (lambda x, y: x - y, (2.0, -3.0)),
        (lambda x: 1.5 - x, (2.0,)),
        (lambda x, y: x * y, (2.0, -3.0)),
        (lambda x: 3 * x, (2.0,)),
        (lambda x, y: x / y, (2.0, -3.0)),
        (lambda x: 1 / x, (-2.0,)),
        (lambda x: x / 7, (2.0,)),
        (lambda x: x**2, (-1.5,)),
        (lambda x: x**-3, (1.5,)),
        (lambda x: x**0.5, (2.25,)),
        (lambda x: x**0, (0.0,)),
        (lambda x: x**1, (0.0,)),
        (lambda x, y: x**y, (1.5, 2.5)),
        (lambda x: 2**x, (1.5,)),
        (lambda x: -x, (2.0,)),
        (lambda x: x.exp(), (0.7,)),
        (lambda x: x.log(), (0.7,)),
        (lambda x: x.relu(), (0.7,)),
        (lambda x: x.relu(), (-0.7,)),
        (lambda x: x.tanh(), (0.7,)),
        (lambda x: x.sigmoid(), (0.7,)),
        (lambda x: x.sigmoid(), (-30.0,)),
        (lambda x: x * x + x, (3.0,)),
        (lambda x, y: (x * y).tanh() * x + y * y, (0.3, 0.8)),
        (lambda x, y, z: softmax([x, y, z])[1] * 3 + softmax([x, y, z])[0], (1.0, 2.0, -1.0)),
        (lambda x, y, z: cross_entropy([x, y, z], 2), (1.0, 2.0, -1.0)),
    ],
)
def test_slopes_match_differences(function, numbers):
    check_slopes(function, *numbers)


@pytest.mark.parametrize("activation", ["tanh", "relu", "sigmoid", "linear"])
def test_neuron_is_one_node_with_the_slopes_of_the_written_out_sum(activation):
    neuron = Neuron(3, activation, random.Random(4))
    x = [Value(v) for v in (0.5, -1.0, 2.0)]
    neuron(x).backward()
    fused = [v.grad for v in [*x, *neuron.parameters()]]
    for v in [*x, *neuron.parameters()]:
        v.grad = 0.0
    z = sum((w * v for w, v in zip(neuron.w, x, strict=True)), neuron.b)
    (z if activation == "linear" else getattr(z, activation)()).backward()
    assert fused == pytest.approx([v.grad for v in [*x, *neuron.parameters()]])


def test_gradients_add_up_over_calls_but_not_inside_the_graph():
    x = Value(3.0)
    y = x * x
    z = y * 2
    z.backward()
    z.backward()
    assert (x.grad, y.grad, z.grad) == (24.0, 2.0, 1.0)
    leaf = Value(1.0)
    leaf.backward()
    assert leaf.grad == 1.0


def test_long_chain_needs_no_recursion():
    x = y = Value(1.0)
    for _ in range(100_000):
        y = y + 1.0
    y.backward()
    assert x.grad == 1.0
    del y


def test_extremes_do_not_overflow():
    assert Value(1e3).tanh().data == 1.0 and Value(-1e3).tanh().data == -1.0
    assert Value(1e4).sigmoid().data == 1.0 and Value(-1e4).sigmoid().data == 0.0
    assert [y.data for y in softmax([1000.0, 0.0])] == [1.0, 0.0]
    assert cross_entropy([1000.0, 0.0], 1).data == 1000.0
    assert Value(-math.inf).relu().data == 0.0
    assert math.isnan(Value(math.nan).relu().data)


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: Value(-1.0).log(), ValueError, r"log\(-1.0\)"),
        (lambda: Value(-2.0) ** 0.5, ValueError, "must be whole"),
        (lambda: Value(-2.0) ** Value(2.0), ValueError, "no slope in its exponent"),
        (lambda: Value(1000.0).exp(), OverflowError, None),
        (lambda: Value(1.0) / 0, ZeroDivisionError, None),
        (lambda: cross_entropy([1.0, 2.0], 2), ValueError, "Label 2 is outside of the 2 logits"),
        (lambda: cross_entropy([1.0, 2.0], -1), ValueError, "Label -1"),
        (lambda: Neuron(2)([1.0, 2.0, 3.0]), ValueError, "2 inputs received 3 values"),
        (lambda: Neuron(2, "swish"), ValueError, "Choose one of linear, relu, tanh, sigmoid"),
        (lambda: MLP(2, [4, 1], ["relu"]), ValueError, "1 activations for 2 layers"),
    ],
)
def test_bad_calls_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_numpy_scalars_and_arrays_are_numbers_too():
    x = Value(2.0)
    for y in (np.float64(3.0) * x, x * np.float32(3.0), np.int64(3) * x):
        assert isinstance(y, Value) and y.data == 6.0
    assert isinstance(MLP(2, [1])(np.array([0.5, 1.0])), Value)


def test_mlp_shapes_names_and_order():
    model = MLP(3, [4, 4, 2], seed=0)
    assert [len(layer.neurons) for layer in model.layers] == [4, 4, 2]
    assert len(model.parameters()) == 16 + 20 + 10
    assert len(model([1.0, 2.0, 3.0])) == 2
    assert isinstance(MLP(1, [1, 1])([0.5]), Value)
    assert isinstance(Layer(2, 1)([0.0, 1.0]), Value)
    same = MLP(3, [4, 4, 2], seed=0)
    assert [p.data for p in model.parameters()] == [p.data for p in same.parameters()]
    random.seed(3)
    first = MLP(2, [1]).parameters()[0].data
    random.seed(3)
    assert MLP(2, [1]).parameters()[0].data == first


def test_copies_and_pickles_keep_numbers_without_the_graph():
    model = MLP(2, [3, 1], seed=0)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other([1.0, 2.0]).data == model([1.0, 2.0]).data
        other.parameters()[0].data += 1.0
        assert other.parameters()[0].data != model.parameters()[0].data


def test_clipping():
    values = [Value(0.0) for _ in range(3)]
    for v, g in zip(values, (30.0, -4.0, math.nan), strict=True):
        v.grad = g
    clip_gradients(values, 5.0)
    assert [v.grad for v in values[:2]] == [5.0, -4.0] and math.isnan(values[2].grad)
    values[0].grad, values[1].grad = 3.0, 4.0
    assert clip_norm(values[:2], 1.0) == 5.0
    assert [v.grad for v in values[:2]] == pytest.approx([0.6, 0.8])
    assert clip_norm(values[:2], 2.0) == pytest.approx(1.0)
    assert values[0].grad == pytest.approx(0.6)


def test_adam_takes_the_steps_of_its_formula():
    p = Value(1.0)
    rule = Adam([p], lr=0.1)
    expected, m, v = 1.0, 0.0, 0.0
    for t, g in enumerate((2.0, -1.0, 0.5), start=1):
        p.grad = g
        rule.step()
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        expected -= 0.1 * (m / (1 - 0.9**t)) / (math.sqrt(v / (1 - 0.999**t)) + 1e-8)
        assert p.data == pytest.approx(expected, rel=1e-12)
    rule.zero_grad()
    assert p.grad == 0.0


@pytest.mark.parametrize("optimizer, epochs", [(SGD, 600), (Adam, 200)])
def test_xor_is_learned_from_most_starts(optimizer, epochs):
    data = [([0.0, 0.0], 0.0), ([0.0, 1.0], 1.0), ([1.0, 0.0], 1.0), ([1.0, 1.0], 0.0)]
    learned = 0
    for seed in range(10):
        model = MLP(2, [4, 1], seed=seed)
        rule = optimizer(model.parameters(), lr=0.05)
        for _ in range(epochs):
            loss = sum((model(x) - y) ** 2 for x, y in data)
            model.zero_grad()
            loss.backward()
            rule.step()
        learned += loss.data < 0.01
    assert learned >= 8
