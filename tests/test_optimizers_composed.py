"""Optimizers that wrap others or scipy: loss scaling, several at once, L-BFGS."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest

from picodl import constraints, optimizers
from picodl.module import Parameter
from picodl.optimizers import LBFGS, SGD, Adam, LossScaleOptimizer, MultiOptimizer, OptimizerMap
from picodl.tensor import Tensor


def variable(value, path):
    made = Parameter(value, name=path.split("/")[-1])
    made.path = path
    return made


ONE = np.ones(1, "float32")


# -------------------------------------------------------------------- loss scaling


def test_loss_scale_is_taken_out_again():
    w, plain = Parameter([1.0]), Parameter([1.0])
    scaled, inner = LossScaleOptimizer(Adam(0.1), initial_scale=8.0), Adam(0.1)
    for _ in range(3):
        loss = scaled.scale_loss((Tensor(w.data, requires_grad=True) * 2.0).sum())
        assert float(loss) == pytest.approx(16 * w.data[0])
        scaled.apply([16 * ONE], [w])
        inner.apply([2 * ONE], [plain])
    np.testing.assert_allclose(w.data, plain.data, rtol=1e-6)
    assert int(scaled.iterations) == 3


def test_infinite_gradients_halve_the_scale_and_leave_the_step_out():
    w = Parameter([1.0])
    optimizer = LossScaleOptimizer(SGD(1.0), initial_scale=8.0, dynamic_growth_steps=2)
    optimizer.apply([np.array([np.inf], "float32")], [w])
    assert w.data[0] == 1 and optimizer.dynamic_scale == 4 and int(optimizer.iterations) == 0
    optimizer.apply([4 * ONE], [w])
    assert w.data[0] == 0 and optimizer.dynamic_scale == 4
    optimizer.apply([4 * ONE], [w])
    assert w.data[0] == -1 and optimizer.dynamic_scale == 8


def test_loss_scale_state_and_config():
    w = Parameter([1.0])
    optimizer = LossScaleOptimizer(Adam(0.1, use_ema=True), initial_scale=4.0)
    optimizer.apply([ONE], [w])
    optimizer.learning_rate = 0.5
    assert float(optimizer.inner_optimizer.learning_rate) == 0.5 and optimizer.use_ema
    again = optimizers.deserialize(json.loads(json.dumps(optimizers.serialize(optimizer))))
    v = Parameter(w.numpy())
    again.build([v])
    again.set_weights([s.numpy() for s in optimizer.variables])
    twin_w, twin = copy.deepcopy((w, optimizer))
    for held, own in ((w, optimizer), (v, again), (twin_w, twin)):
        own.apply([3 * ONE], [held])
    assert w.data.tobytes() == v.data.tobytes() == twin_w.data.tobytes()
    with pytest.raises(ValueError, match="no clipnorm"):
        LossScaleOptimizer(Adam(), clipnorm=1.0)
    with pytest.raises(TypeError, match="Expected an optimizer"):
        LossScaleOptimizer("adam")


# -------------------------------------------------------------------- several


def test_each_variable_gets_the_optimizer_of_its_path():
    a, b, c = (variable([1.0], p) for p in ("encoder/dense/kernel", "encoder/bias", "head/kernel"))
    rules = OptimizerMap(SGD(0.1), {"encoder/.*": SGD(1.0)})
    optimizer = MultiOptimizer(rules)
    optimizer.build([a, b, c])
    optimizer.apply([ONE] * 3, [a, b, c])
    np.testing.assert_allclose([v.data[0] for v in (a, b, c)], [0, 0, 0.9], rtol=1e-6)
    optimizer.apply([ONE], [c])
    np.testing.assert_allclose([v.data[0] for v in (a, b, c)], [0, 0, 0.8], rtol=1e-6)
    assert int(optimizer.iterations) == 2
    assert [int(o.iterations) for o in optimizer.optimizers] == [1, 2]
    again = optimizers.deserialize(json.loads(json.dumps(optimizers.serialize(optimizer))))
    assert again.get_config() == optimizer.get_config()


def test_a_function_may_choose():
    parts = {"a": SGD(1.0), "b": Adam(0.1)}
    a, b = variable([1.0], "a"), variable([1.0], "b")
    optimizer = MultiOptimizer(lambda v: parts[v.path])
    optimizer.apply([ONE, ONE], [a, b])
    assert a.data[0] == 0 and optimizer.optimizers == [parts["a"], parts["b"]]
    (ca, cb), twin = copy.deepcopy(((a, b), optimizer))
    twin.apply([ONE, ONE], [ca, cb])
    optimizer.apply([ONE, ONE], [a, b])
    assert ca.data == a.data and cb.data == b.data


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: OptimizerMap("sgd"), TypeError, "Expected an optimizer"),
        (lambda: OptimizerMap(SGD(), {1: SGD()}), ValueError, "a key is a path"),
        (lambda: OptimizerMap(SGD(), {"a.*": SGD(), ".*b": SGD()})["ab"], ValueError, "several"),
        (
            lambda: MultiOptimizer(OptimizerMap(SGD(), {"a": MultiOptimizer(lambda v: None)})),
            ValueError,
            "cannot be a part",
        ),
        (lambda: MultiOptimizer(OptimizerMap(SGD())).learning_rate, AttributeError, "optimizers"),
        (lambda: MultiOptimizer(lambda v: 3).build([Parameter(1.0)]), TypeError, "received 3"),
    ],
)
def test_messages(make, error, message):
    with pytest.raises(error, match=message):
        make()


# -------------------------------------------------------------------- L-BFGS


def test_lbfgs_finds_the_least_squares_solution():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(50, 4)), rng.normal(size=50)
    w = Parameter(np.zeros(4), dtype="float64")
    optimizer = LBFGS(max_iter=100, tolerance_change=0.0)
    loss = optimizer.minimize(lambda: ((w * x).sum(1) - y).__pow__(2).mean(), [w])
    best = np.linalg.lstsq(x, y, rcond=None)[0]
    np.testing.assert_allclose(w.data, best, atol=1e-6)
    assert loss == pytest.approx(np.mean((x @ best - y) ** 2))
    assert int(optimizer.iterations) == 1


def test_lbfgs_keeps_bounds_frozen_weights_and_dtype():
    a = Parameter([1.0, 1.0], constraint=constraints.NonNeg())
    frozen, apart = Parameter([3.0], trainable=False), Parameter([7.0])
    target = np.array([-2.0, 2.0], "float32")
    optimizer = LBFGS()
    optimizer.minimize(lambda: ((a - target) ** 2).sum() + frozen.sum(), [a, frozen, apart])
    np.testing.assert_allclose(a.data, [0, 2], atol=1e-4)
    assert a.data.dtype == np.float32 and frozen.data[0] == 3 and apart.data[0] == 7


def test_lbfgs_says_what_it_needs():
    with pytest.raises(TypeError, match="evaluates the loss several times"):
        LBFGS().apply([ONE], [Parameter([1.0])])
    with pytest.raises(ValueError, match="no option clipnorm"):
        LBFGS(clipnorm=1.0)
    with pytest.raises(ValueError, match="max_iter must be at least 1"):
        LBFGS(max_iter=0)
    again = optimizers.deserialize(optimizers.serialize(LBFGS(max_iter=3)))
    assert again.max_iter == 3
    assert isinstance(optimizers.get("lbfgs"), LBFGS)


def test_lbfgs_trains_a_model_through_fit():
    import picodl
    from picodl import layers

    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3)).astype("float32")
    y = np.tanh(x @ [1.0, -2.0, 0.5])[:, None].astype("float32")
    model = picodl.Sequential([picodl.Input((3,)), layers.Dense(4, "tanh"), layers.Dense(1)])
    model.compile(LBFGS(), "mse")
    history = model.fit(x, y, batch_size=60, epochs=6, verbose=0).history["loss"]
    assert history[-1] < 1e-3 < history[0]


def test_a_float16_model_gets_one_loss_scale_and_keeps_it_in_files(tmp_path):
    import picodl
    from picodl import config, layers, models

    config.set_dtype_policy("mixed_float16")
    try:
        model = picodl.Sequential([picodl.Input((3,)), layers.Dense(1)])
        model.compile(LossScaleOptimizer(SGD(0.1), initial_scale=64.0), "mse")
        assert isinstance(model.optimizer.inner_optimizer, SGD)
        model.fit(np.ones((4, 3)), np.ones((4, 1)), verbose=0)
        model.save(tmp_path / "m.keras")
        again = models.load_model(tmp_path / "m.keras")
    finally:
        config.set_dtype_policy(None)
    assert isinstance(again.optimizer.inner_optimizer, SGD)
    assert int(again.optimizer.iterations) == 1 and again.optimizer.dynamic_scale == 64


def test_several_optimizers_swap_the_averages_of_those_that_keep_them():
    a, b = variable([1.0], "a/w"), variable([1.0], "b/w")
    averaging = SGD(0.5, use_ema=True, ema_momentum=0.5)
    optimizer = MultiOptimizer(OptimizerMap(SGD(0.5), {"a/.*": averaging}))
    assert optimizer.use_ema and not MultiOptimizer(OptimizerMap(SGD())).use_ema
    for _ in range(2):
        optimizer.apply([ONE, ONE], [a, b])
    assert (a.data[0], b.data[0]) == (0.0, 0.0)
    optimizer.swap_averages([a, b])
    assert (a.data[0], b.data[0]) == (0.25, 0.0)  # 0.5 after the first step, then half of 0
    optimizer.swap_averages([a, b])
    assert (a.data[0], b.data[0]) == (0.0, 0.0)
    with pytest.raises(ValueError, match="takes no use_ema"):
        optimizer.use_ema = True


def test_several_optimizers_inside_loss_scaling_divide_gradients_once():
    w = variable([1.0], "a/w")
    parts = MultiOptimizer(OptimizerMap(SGD(0.5)), loss_scale_factor=4.0)
    assert [part.loss_scale_factor for part in parts.optimizers] == [4.0]
    optimizer = LossScaleOptimizer(parts, initial_scale=8.0, dynamic=True)
    assert [part.loss_scale_factor for part in parts.optimizers] == [None]
    optimizer.apply([8 * ONE], [w])
    assert w.data[0] == 0.5
