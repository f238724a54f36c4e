"""Optimizers: Keras's trajectories, flat against per parameter, state, options, messages."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import picodl as P
from picodl import config, ops, optimizers, saving
from picodl.module import Module, Parameter
from picodl.optimizers import base, blas, flat, schedules
from picodl.tensor import Tensor

GOLDEN = Path(__file__).parent / "golden" / "optimizers.h5"
CLASSES = [c for c in vars(optimizers).values() if isinstance(c, type) and c in optimizers._members]


def golden_names():
    names = []
    with h5py.File(GOLDEN, "r") as f:
        f.visit(names.append)
        return [n for n in names if "note" in f[n].attrs]


@pytest.fixture
def float64():
    before = config.floatx()
    config.set_floatx("float64")
    yield
    config.set_floatx(before)


def make(value):
    if isinstance(value, dict) and set(value) == {"class", "config"}:
        return getattr(schedules, value["class"])(**value["config"])
    return value


def arrays(group):
    return [group[k][()] for k in sorted(group)]


def close(found, expected):
    """Equal to 1e-9 of the largest magnitude in the array."""
    atol = 1e-9 * np.abs(expected).max(initial=0) + 1e-12
    np.testing.assert_allclose(found, expected, rtol=0, atol=atol)


@pytest.mark.parametrize("name", golden_names())
def test_ten_steps_follow_keras(name, float64):
    with h5py.File(GOLDEN, "r") as f:
        case = f[name]
        options = {k: make(v) for k, v in json.loads(case.attrs["config"]).items()}
        optimizer = getattr(optimizers, case.attrs["class"])(**options)
        if "exclude_from_weight_decay" in case.attrs:
            excluded = json.loads(case.attrs["exclude_from_weight_decay"])
            optimizer.exclude_from_weight_decay(var_names=excluded)
        params, grads = arrays(case["params"]), arrays(case["grads"])
        labels = [case["params"][k].attrs["name"] for k in sorted(case["params"])]
        weights = [Parameter(p[0], name=label) for p, label in zip(params, labels, strict=True)]
        optimizer.build(weights)
        for step in range(len(grads[0])):
            rate = float(optimizer.learning_rate)
            np.testing.assert_allclose(rate, case["learning_rates"][step], rtol=1e-12)
            optimizer.apply([g[step] for g in grads], weights)
            for w, p in zip(weights, params, strict=True):
                close(w.data, p[step + 1])
        state = arrays(case["state"])
        assert [v.shape for v in optimizer.variables] == [s.shape for s in state]
        for variable, expected in zip(optimizer.variables, state, strict=True):
            close(variable.data, expected)
        if case.attrs["class"] not in ("Adafactor", "Nadam"):  # Keras gives these odd paths
            paths = [case["state"][k].attrs["path"].split("/", 1)[1] for k in sorted(case["state"])]
            assert [v.path.split("/", 1)[1] for v in optimizer.variables] == paths
        if "finalized" in case:
            optimizer.finalize_variable_values(weights)
            for w, expected in zip(weights, arrays(case["finalized"]), strict=True):
                close(w.data, expected)


def weights_and_gradients(shapes, steps, seed=0, dtype="float32"):
    rng = np.random.default_rng(seed)
    weights = [
        Parameter(rng.normal(size=s), dtype=dtype, name=f"w{i}") for i, s in enumerate(shapes)
    ]
    grads = [[rng.normal(size=s).astype(dtype) for s in shapes] for _ in range(steps)]
    for row in grads:
        for g in row:
            g.flags.writeable = False  # a gradient may be shared: nobody writes into it
    return weights, grads


OPTIONS = [
    {},
    {"weight_decay": 0.1},
    {"clipnorm": 0.5},
    {"clipvalue": 0.2},
    {"global_clipnorm": 0.7},
    {"use_ema": True, "ema_momentum": 0.7, "ema_overwrite_frequency": 2},
    {"gradient_accumulation_steps": 2},
    {"loss_scale_factor": 4.0},
    {
        "parameter_groups": [
            {"match": "w[13]", "learning_rate_multiplier": 0.1, "weight_decay": 0.2}
        ]
    },
]


def run(cls, options, shapes, present, dtype="float64", cost=None):
    """The weights after steps in which some parameters have no gradient."""
    weights, grads = weights_and_gradients(shapes, len(present), dtype=dtype)
    optimizer = cls(0.05, **options)
    if cost is not None:
        optimizer.cost = cost
    optimizer.build(weights)
    for row, flags in zip(grads, present, strict=True):
        for w, g, has in zip(weights, row, flags, strict=False):
            w.grad = g if has else None
        optimizer.update(weights)
    return weights, optimizer


@settings(max_examples=60, deadline=None)
@given(
    cls=st.sampled_from(CLASSES),
    shapes=st.lists(
        st.sampled_from([(3,), (2, 3), (1,), (), (4, 1, 2), (0, 2)]), min_size=1, max_size=5
    ),
    present=st.lists(st.lists(st.booleans(), min_size=5, max_size=5), min_size=1, max_size=5),
    options=st.sampled_from(OPTIONS),
    small=st.sampled_from([{"LARGE": 0}, {"LARGE": 4}, {"BLOCK": 2}, {"LARGE": 4, "BLOCK": 3}]),
)
def test_flat_equals_per_parameter(cls, shapes, present, options, small):
    packed, _ = run(cls, options, shapes, present)
    with pytest.MonkeyPatch.context() as patch:
        for name, size in small.items():
            patch.setattr(flat, name, size)
        patch.setattr(base, "_ALONE", 4)
        alone, _ = run(cls, options, shapes, present, cost=100.0)
    for a, b in zip(packed, alone, strict=True):
        np.testing.assert_allclose(a.data, b.data, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("cls", CLASSES)
def test_threads_and_blocks_give_the_very_same_numbers(cls):
    shapes, present = [(300, 400), (400,), (400, 300)], [[True] * 3] * 3
    plain, _ = run(cls, {}, shapes, present, "float32", cost=0.0)
    threaded, _ = run(cls, {}, shapes, present, "float32", cost=1.0)
    for a, b in zip(plain, threaded, strict=True):
        assert a.data.tobytes() == b.data.tobytes()


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("cls", CLASSES)
def test_float32_stays_float32(cls, options):
    weights, optimizer = run(cls, options, [(4, 3), (3,)], [[True] * 2] * 3, "float32")
    assert {w.data.dtype.name for w in weights} == {"float32"}
    assert {v.data.dtype.name for v in optimizer.variables[1:]} == {"float32"}
    assert optimizer.variables[0].data.dtype == np.int32
    assert all(np.isfinite(w.data).all() for w in weights)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("size", [5, blas.SMALL + 7])
def test_add_scaled_is_the_sum_with_and_without_blas(dtype, size):
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=2 * size).astype(dtype) for _ in range(2))
    x.flags.writeable = False
    for part in (x[:size], x[::2]):
        for b in (None, 0.5):
            found = y[:size].copy()
            blas.add_scaled(found, b, part, -0.25, np.empty_like(found))
            expected = (1.0 if b is None else b) * y[:size] - 0.25 * part
            close = {"float16": 1e-2, "float32": 1e-6, "float64": 1e-14}[dtype]
            np.testing.assert_allclose(found, expected, rtol=close, atol=close)


@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.1, "global_clipnorm": 0.5}])
@pytest.mark.parametrize("cls", CLASSES)
def test_blas_changes_rounding_alone(cls, options):
    shapes, present = [(20, 30), (30,)], [[True] * 2] * 4
    plain, _ = run(cls, options, shapes, present, "float64")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blas, "SMALL", 0)
        fast, _ = run(cls, options, shapes, present, "float64")
    for a, b in zip(plain, fast, strict=True):
        np.testing.assert_allclose(a.data, b.data, rtol=1e-10, atol=1e-13)


def test_dtypes_are_kept_apart():
    a, b = Parameter([1.0, 2.0]), Parameter([1.0, 2.0], dtype="float64")
    optimizer = optimizers.Adam(0.1)
    for _ in range(3):
        optimizer.apply([np.full(2, 0.5, "float32"), np.full(2, 0.5)], [a, b])
    assert a.data.dtype == np.float32 and b.data.dtype == np.float64
    np.testing.assert_allclose(a.data, b.data, rtol=1e-6)


# -------------------------------------------------------------------- what a step leaves alone


@pytest.mark.parametrize("cls", CLASSES)
def test_a_parameter_without_gradient_is_left_alone(cls):
    weights, grads = weights_and_gradients([(3,), (2, 2), (4,)], 4)
    optimizer = cls(0.1, weight_decay=0.1)
    optimizer.apply(grads[0], weights)
    before = weights[1].numpy(), [v.numpy() for v in optimizer._slots[1].values()]
    for row in grads[1:]:
        for w, g in zip(weights, row, strict=True):
            w.grad = None if w is weights[1] else g
        optimizer.update(weights)
    np.testing.assert_array_equal(weights[1].data, before[0])
    for slot, value in zip(optimizer._slots[1].values(), before[1], strict=True):
        np.testing.assert_array_equal(slot.data, value)


def test_apply_warns_once_of_missing_gradients():
    weights, grads = weights_and_gradients([(3,), (2,)], 1)
    optimizer = optimizers.SGD(0.1)
    with pytest.warns(UserWarning, match="no gradient for The variable w1"):
        optimizer.apply([grads[0][0], None], weights)
    optimizer.apply([grads[0][0], None], weights)


def test_a_gradient_that_came_early_is_not_lost_when_accumulating():
    a, b = Parameter([1.0]), Parameter([1.0])
    optimizer = optimizers.SGD(1.0, gradient_accumulation_steps=2)
    optimizer.build([a, b])
    one = np.ones(1, "float32")
    optimizer.apply([one, one], [a, b])
    optimizer.apply([one], [a])
    np.testing.assert_allclose([a.data[0], b.data[0]], [0.0, 0.5])
    assert int(optimizer.iterations) == 1


def test_a_tensor_leaf_keeps_its_makers_array_unchanged():
    for size in (3, flat.LARGE):
        mine = np.ones(size, "float32")
        w = Tensor(mine, requires_grad=True)
        optimizers.SGD(0.5).apply([np.ones(size, "float32")], [w])
        np.testing.assert_array_equal(mine, 1)
        np.testing.assert_array_equal(w.data, 0.5)


# -------------------------------------------------------------------- packing


@pytest.mark.parametrize("cls", CLASSES)
def test_weights_in_fortran_order_keep_their_slots(cls):
    rng = np.random.default_rng(0)
    value, grads = rng.normal(size=(4, 5)), rng.normal(size=(4, 4, 5))
    found = []
    for start in (value, np.asfortranarray(value)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(flat, "LARGE", 0)
            w = Parameter(start, dtype="float64")
            optimizer = cls(0.1, use_ema=True, ema_momentum=0.5)
            for g in grads:
                optimizer.apply([np.asfortranarray(g)], [w])
        found.append([w.numpy(), *(v.numpy() for v in optimizer.variables)])
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


def test_two_optimizers_may_share_a_parameter():
    w, alone = Parameter([1.0, 2.0]), Parameter([1.0, 2.0])
    other = Parameter([5.0])
    one, two, plain = optimizers.SGD(0.1), optimizers.SGD(0.1), optimizers.SGD(0.1)
    g = np.array([1.0, -1.0], "float32")
    for _ in range(3):
        one.apply([g, np.ones(1, "float32")], [w, other])
        two.apply([g], [w])
        plain.apply([g], [alone])
        plain.apply([g], [alone])
    np.testing.assert_allclose(w.data, alone.data, rtol=1e-6)


def test_an_array_replaced_by_hand_is_taken_over():
    a, b = Parameter([1.0, 2.0]), Parameter([3.0])
    optimizer = optimizers.SGD(1.0)
    g = [np.ones(2, "float32"), np.ones(1, "float32")]
    optimizer.apply(g, [a, b])
    a.data = np.array([10.0, 20.0], "float32")
    optimizer.apply(g, [a, b])
    np.testing.assert_array_equal(a.data, [9, 19])
    np.testing.assert_array_equal(b.data, [1])
    a.data = np.zeros(3, "float32")
    with pytest.raises(ValueError, match=r"had shape \(2,\).*now has \(3,\).*new optimizer"):
        optimizer.apply([np.ones(3, "float32"), g[1]], [a, b])


def test_parameters_that_come_later_get_slots_then():
    a, b = Parameter([1.0]), Parameter([1.0])
    optimizer = optimizers.SGD(0.1, momentum=0.9)
    g = np.ones(1, "float32")
    optimizer.apply([g], [a])
    optimizer.apply([g, g], [a, b])
    np.testing.assert_allclose(a.data, [1 - 0.1 - 0.19], rtol=1e-6)
    np.testing.assert_allclose(b.data, [0.9], rtol=1e-6)
    assert len(optimizer.variables) == 4


def test_a_variable_given_twice_is_refused():
    w = Parameter([1.0])
    with pytest.raises(ValueError, match="twice"):
        optimizers.SGD().apply([np.ones(1), np.ones(1)], [w, w])


# -------------------------------------------------------------------- state


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("cls", CLASSES)
def test_saved_state_resumes_bit_for_bit(cls, options):
    weights, grads = weights_and_gradients([(4, 3), (3,)], 7)
    optimizer = cls(0.05, **options)
    for row in grads[:3]:
        optimizer.apply(row, weights)
    again = [Parameter(w.numpy(), name=w.name) for w in weights]
    resumed = cls.from_config(optimizer.get_config())
    resumed.build(again)
    resumed.set_weights([v.numpy() for v in optimizer.variables])
    copies = [
        (weights, optimizer),
        (again, resumed),
        copy.deepcopy((weights, optimizer)),
        pickle.loads(pickle.dumps((weights, optimizer))),
    ]
    for row in grads[3:]:
        for held, own in copies:
            own.apply(row, held)
    for held, own in copies[1:]:
        for a, b in zip(weights, held, strict=True):
            assert a.data.tobytes() == b.data.tobytes()
        for a, b in zip(optimizer.variables, own.variables, strict=True):
            assert a.data.tobytes() == b.data.tobytes()


def test_set_weights_sets_all_or_nothing():
    weights, grads = weights_and_gradients([(4, 3), (3,)], 1)
    optimizer = optimizers.Adam()
    with pytest.raises(ValueError, match=r"adam.* has 2 variables, but received 6.*build"):
        optimizer.set_weights([0, 0.1, *[np.zeros(3)] * 4])
    optimizer.apply(grads[0], weights)
    before = [v.numpy() for v in optimizer.variables]
    wrong = [np.ones_like(b) for b in before]
    wrong[-1] = np.ones(5)
    with pytest.raises(ValueError, match=r"w1_velocity has shape \(3,\).*shape \(5,\)"):
        optimizer.set_weights(wrong)
    for variable, value in zip(optimizer.variables, before, strict=True):
        np.testing.assert_array_equal(variable.data, value)


def test_schedule_free_starts_from_weights_loaded_after_build():
    w = Parameter([0.0])
    optimizer = optimizers.ScheduleFreeAdamW(0.1)
    optimizer.build([w])
    w.assign([5.0])
    optimizer.apply([np.ones(1, "float32")], [w])
    np.testing.assert_allclose(w.data, [4.9], rtol=1e-6)


# -------------------------------------------------------------------- learning rate


def test_learning_rate_can_be_set():
    optimizer = optimizers.SGD(0.1)
    optimizer.learning_rate = 0.5
    assert float(optimizer.learning_rate) == 0.5
    optimizer.learning_rate.assign(0.25)
    w = Parameter([1.0])
    optimizer.apply([np.ones(1)], [w])
    assert w.data[0] == 0.75
    assert float(optimizers.SGD(1).learning_rate) == 1.0


def test_scheduled_learning_rate_is_read_per_step_and_not_set():
    w, optimizer = Parameter([0.0]), optimizers.SGD(schedules.PiecewiseConstantDecay([0], [1, 2]))
    seen = []
    for _ in range(3):
        seen.append(float(optimizer.learning_rate))
        optimizer.apply([np.ones(1)], [w])
    assert seen == [1, 2, 2] and w.data[0] == -5
    with pytest.raises(TypeError, match=r"PiecewiseConstantDecay.*cannot be set"):
        optimizer.learning_rate = 0.1
    assert len(optimizer.variables) == 1
    optimizer.learning_rate = schedules.ExponentialDecay(0.5, 1, 1)
    assert float(optimizer.learning_rate) == 0.5


def test_callable_learning_rate():
    rates, w = iter([1.0, 10.0]), Parameter([0.0])
    optimizer = optimizers.SGD(lambda: next(rates))
    optimizer.apply([np.ones(1)], [w])
    optimizer.apply([np.ones(1)], [w])
    assert w.data[0] == -11
    with pytest.raises(ValueError, match="lambda"):
        optimizer.get_config()


@pytest.mark.parametrize("rate", [-0.1, float("nan"), float("inf"), "fast", None, [0.1], True])
def test_bad_learning_rates_are_refused(rate):
    with pytest.raises(ValueError, match="Adam: learning_rate must be a number"):
        optimizers.Adam(rate)
    with pytest.raises(ValueError, match="Adam: learning_rate must be a number"):
        optimizers.Adam().learning_rate = rate


def test_a_schedule_that_turns_negative_is_stopped():
    optimizer = optimizers.SGD(lambda: -1.0)
    with pytest.raises(ValueError, match="learning rate of step 0 is -1"):
        optimizer.apply([np.ones(1)], [Parameter([1.0])])


# -------------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clipnorm": 1.0, "clipvalue": 1.0}, "only one of clipnorm, clipvalue, global_clipnorm"),
        ({"clipnorm": -1.0}, "clipnorm must be positive"),
        ({"weight_decay": -1.0}, "weight_decay must not be negative"),
        ({"ema_momentum": 2.0}, "ema_momentum must lie in 0..1"),
        ({"ema_overwrite_frequency": 0}, "at least 1"),
        ({"gradient_accumulation_steps": 1}, "at least 2"),
        ({"loss_scale_factor": 0.0}, "loss_scale_factor must be positive"),
        ({"learning_rat": 1.0}, "Did you mean"),
        ({"lr": 1.0}, "called learning_rate"),
        ({"decay": 1.0}, "InverseTimeDecay"),
        ({"parameter_groups": [{"match": "a", "rate": 1}]}, "no 'rate'"),
        ({"parameter_groups": [{"weight_decay": 1.0}]}, "match"),
        ({"parameter_groups": [{"match": "a", "weight_decay": -1.0}]}, "not be negative"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        optimizers.SGD(**{"learning_rate": 0.1, **options})


@pytest.mark.parametrize(
    ("cls", "options"),
    [
        (optimizers.Adam, {"beta_1": 1.5}),
        (optimizers.AdamW, {"beta_2": 1.0}),
        (optimizers.Nadam, {"beta_1": -0.1}),
        (optimizers.Adamax, {"beta_2": float("nan")}),
        (optimizers.RMSprop, {"rho": 1.0}),
        (optimizers.Adadelta, {"rho": 2.0}),
        (optimizers.Lion, {"beta_2": 1.0}),
        (optimizers.Lamb, {"beta_1": 1.0}),
        (optimizers.Muon, {"adam_beta_1": 1.0}),
        (optimizers.ScheduleFreeAdamW, {"beta_2": 1.0}),
        (optimizers.SGD, {"momentum": 1.5}),
        (optimizers.Adagrad, {"initial_accumulator_value": -1.0}),
        (optimizers.Ftrl, {"learning_rate_power": 1.0}),
    ],
)
def test_bad_arguments_of_rules_are_refused(cls, options):
    (name,) = options
    with pytest.raises(ValueError, match=f"{cls.__name__}: {name} must"):
        cls(**options)


def test_gradients_of_wrong_number_or_shape_are_refused():
    w = Parameter([1.0, 2.0], name="w")
    optimizer = optimizers.SGD()
    with pytest.raises(ValueError, match="2 gradients for 1 variables"):
        optimizer.apply([1, 2], [w])
    with pytest.raises(ValueError, match=r"shape \(2,\), but its gradient has shape \(3,\)"):
        optimizer.apply([np.ones(3)], [w])
    with pytest.raises(ValueError, match="no gradient for any"):
        optimizer.apply([None], [w])
    with pytest.raises(ValueError, match="no parameter has a gradient"):
        optimizer.step([w])


def test_constraints_hold_after_each_step():
    from picodl.constraints import NonNeg

    w = Parameter([0.1, 1.0], constraint=NonNeg())
    optimizers.SGD(1.0).apply([np.full(2, 0.5)], [w])
    np.testing.assert_allclose(w.data, [0, 0.5])


def test_weight_decay_spares_what_is_excluded():
    kernel, bias = Parameter([1.0], name="kernel"), Parameter([1.0], name="bias")
    optimizer = optimizers.AdamW(0.1, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    optimizer.apply([np.zeros(1)] * 2, [kernel, bias])
    np.testing.assert_allclose([kernel.data[0], bias.data[0]], [0.95, 1.0], rtol=1e-6)
    optimizer.exclude_from_weight_decay(var_list=[kernel])
    optimizer.apply([np.zeros(1)] * 2, [kernel, bias])
    np.testing.assert_allclose([kernel.data[0], bias.data[0]], [0.95, 0.95], rtol=1e-6)


def test_centered_rmsprop_survives_a_steady_gradient():
    w = Parameter(np.zeros(50))
    optimizer = optimizers.RMSprop(0.01, centered=True)
    for _ in range(300):
        optimizer.apply([np.linspace(1, 3000, 50, dtype="float32")], [w])
    assert np.isfinite(w.data).all()


def test_weight_decay_can_be_set_between_steps():
    w, optimizer = Parameter([1.0]), optimizers.SGD(0.1)
    optimizer.apply([np.zeros(1)], [w])
    optimizer.weight_decay = 0.5
    optimizer.apply([np.zeros(1)], [w])
    assert w.data[0] == np.float32(0.95)


def test_a_tiny_weight_decay_is_not_rounded_away():
    w = Parameter(np.linspace(1, 2, 1000))
    before = w.numpy()
    optimizer = optimizers.SGD(1e-3, weight_decay=1e-3)
    for _ in range(1000):
        optimizer.apply([np.zeros(1000, "float32")], [w])
    np.testing.assert_allclose(np.mean(1 - w.data / before), 1e-3, rtol=0.02)


def test_parameter_groups_have_rates_and_decays_of_their_own():
    class Net(Module):
        def __init__(self):
            self.w = Parameter([1.0], name="w")

    body, head = Net(), Parameter([1.0], name="head")
    free = Parameter([1.0], name="free")
    groups = [
        {"match": body, "learning_rate_multiplier": 0.1},
        {"match": ["^head$", "never"], "learning_rate": 2.0, "weight_decay": 0.0},
    ]
    optimizer = optimizers.SGD(1.0, weight_decay=0.5, parameter_groups=groups)
    again = optimizers.SGD.from_config(optimizer.get_config())
    for own in (optimizer, again):
        for w in (body.w, head, free):
            w.assign([1.0])
        own.apply([np.ones(1)] * 3, [body.w, head, free])
        found = [w.data[0] for w in (body.w, head, free)]
        np.testing.assert_allclose(found, [0.95 - 0.1, -1.0, 0.5 - 1.0], rtol=1e-6)


def test_averages_are_swapped_in_and_out():
    w = Parameter([1.0])
    optimizer = optimizers.SGD(1.0, use_ema=True, ema_momentum=0.5)
    optimizer.apply([np.ones(1)], [w])
    optimizer.apply([np.ones(1)], [w])
    assert w.data[0] == -1
    optimizer.swap_averages()
    assert w.data[0] == -0.5
    optimizer.swap_averages()
    assert w.data[0] == -1
    with pytest.raises(ValueError, match="use_ema=True"):
        optimizers.SGD().swap_averages()


def test_finalize_before_any_step_changes_nothing():
    w = Parameter([1.0])
    optimizer = optimizers.SGD(1.0, use_ema=True)
    optimizer.build([w])
    optimizer.finalize_variable_values([w])
    assert w.data[0] == 1


def test_manual_loop_updates_a_module():
    class Net(Module):
        def __init__(self):
            self.params["w"] = Tensor([1.0, 2.0], requires_grad=True)

        def forward(self, x):
            return (self.params["w"] * x).sum()

    net, optimizer = Net(), optimizers.SGD(0.5)
    for _ in range(2):
        net.zero_grad()
        net.forward(Tensor([1.0, 1.0])).backward()
        optimizer.step(net)
    np.testing.assert_array_equal(net.params["w"].data, [0, 1])
    assert int(optimizer.iterations) == 2


# -------------------------------------------------------------------- by name


@pytest.mark.parametrize("cls", CLASSES)
def test_found_by_name_in_any_case_and_read_back_from_config(cls):
    assert type(optimizers.get(cls.__name__.upper())) is cls
    optimizer = cls(learning_rate=0.25, clipnorm=2.0)
    config = optimizers.serialize(optimizer)
    assert config["module"] == "keras.optimizers" and config["class_name"] == cls.__name__
    assert json.loads(json.dumps(config)) == config
    assert optimizers.deserialize(config).get_config() == optimizer.get_config()


def test_config_holds_what_keras_writes():
    expected = {
        "name": "mine",
        "learning_rate": 0.0010000000474974513,
        "weight_decay": None,
        "clipnorm": None,
        "global_clipnorm": None,
        "clipvalue": None,
        "use_ema": False,
        "ema_momentum": 0.99,
        "ema_overwrite_frequency": None,
        "loss_scale_factor": None,
        "gradient_accumulation_steps": None,
        "beta_1": 0.9,
        "beta_2": 0.999,
        "epsilon": 1e-07,
        "amsgrad": False,
    }
    found = optimizers.Adam(name="mine").get_config()
    assert found == expected and list(found) == list(expected)


def test_a_schedule_survives_the_config():
    optimizer = optimizers.SGD(schedules.CosineDecay(0.1, 100))
    again = optimizers.deserialize(json.loads(json.dumps(optimizers.serialize(optimizer))))
    assert again.get_config() == optimizer.get_config()


def test_unknown_names_suggest_the_nearest():
    with pytest.raises(ValueError, match=r"Unknown optimizer .adm.. Did you mean .Adam"):
        optimizers.get("adm")
    with pytest.raises(TypeError, match="optimizer"):
        optimizers.get(3)


# -------------------------------------------------------------------- one's own


def test_a_rule_in_kerass_form_gets_variables():
    class Momentum(optimizers.Optimizer):
        def build(self, var_list):
            if self.built:
                return
            super().build(var_list)
            self.momenta = [self.add_variable_from_reference(v, "momentum") for v in var_list]

        def update_step(self, gradient, variable, learning_rate):
            m = self.momenta[self._get_variable_index(variable)]
            self.assign(m, ops.subtract(m * 0.9, gradient * learning_rate))
            self.assign_add(variable, m)

    weights, grads = weights_and_gradients([(4, 3), (3,)], 5)
    same = [Parameter(w.numpy()) for w in weights]
    mine, sgd = Momentum(0.1, weight_decay=0.1), optimizers.SGD(0.1, 0.9, weight_decay=0.1)
    for row in grads:
        mine.apply(row, weights)
        sgd.apply(row, same)
    for a, b in zip(weights, same, strict=True):
        np.testing.assert_allclose(a.data, b.data, rtol=1e-5, atol=1e-6)
    assert [v.path.split("/")[1] for v in mine.variables[2:]] == ["w0_momentum", "w1_momentum"]
    with pytest.raises(ValueError, match="was not there when the optimizer was built"):
        mine.apply([np.ones(1)], [Parameter([1.0])])
    held, twin = copy.deepcopy((weights, mine))
    twin.apply(grads[0], held)
    mine.apply(grads[0], weights)
    assert held[0].data.tobytes() == weights[0].data.tobytes()


@saving.register_keras_serializable("optimizers in Keras's form")
class KerasMomentum(optimizers.Optimizer):
    def __init__(self, learning_rate=0.01, momentum=0.9, name="momentum", **kwargs):
        super().__init__(learning_rate=learning_rate, name=name, **kwargs)
        self.momentum = momentum

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self.momenta = self.add_optimizer_variables(variables, "momentum")

    def update_step(self, gradient, variable, learning_rate):
        rate = ops.cast(learning_rate, variable.dtype)
        m = self.momenta[self._get_variable_index(variable)]
        self.assign(m, ops.subtract(ops.multiply(m, self.momentum), ops.multiply(gradient, rate)))
        self.assign_add(variable, m)

    def get_config(self):
        return {**super().get_config(), "momentum": self.momentum}


@saving.register_keras_serializable("optimizers in Keras's form")
class KerasLion(optimizers.Optimizer):
    def build(self, var_list):
        if self.built:
            return
        super().build(var_list)
        self._momenta = self.add_optimizer_variables(var_list, name="momentum", initializer="zeros")

    def update_step(self, gradient, variable, learning_rate):
        m = self._momenta[self._get_variable_index(variable)]
        ahead = ops.add(ops.multiply(m, 0.9), ops.multiply(gradient, 0.1))
        self.assign_sub(variable, ops.multiply(learning_rate, ops.sign(ahead)))
        self.assign(m, ops.add(ops.multiply(m, 0.99), ops.multiply(gradient, 1 - 0.99)))


@saving.register_keras_serializable("optimizers in Keras's form")
class KerasAdam(optimizers.Optimizer):
    def __init__(self, learning_rate=0.001, beta_1=0.9, beta_2=0.999, **kwargs):
        super().__init__(learning_rate, **kwargs)
        self.beta_1, self.beta_2 = beta_1, beta_2

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        names = ["momentum", "velocity"]
        self._m, self._v = self.add_optimizer_variables(variables, names)

    def update_step(self, gradient, variable, learning_rate):
        step = ops.cast(self.iterations + 1, variable.dtype)
        shares = [1 - ops.power(ops.cast(b, "float32"), step) for b in (self.beta_1, self.beta_2)]
        rate = learning_rate * ops.sqrt(shares[1]) / shares[0]
        i = self._get_variable_index(variable)
        m, v = self._m[i], self._v[i]
        self.assign_add(m, ops.multiply(ops.subtract(gradient, m), 1 - self.beta_1))
        self.assign_add(v, ops.multiply(ops.subtract(ops.square(gradient), v), 1 - self.beta_2))
        self.assign_sub(variable, ops.divide(ops.multiply(m, rate), ops.add(ops.sqrt(v), 1e-7)))

    def get_config(self):
        return {**super().get_config(), "beta_1": self.beta_1, "beta_2": self.beta_2}


@pytest.mark.parametrize(
    ("theirs", "own", "options"),
    [
        (KerasMomentum, optimizers.SGD, {"momentum": 0.8, "use_ema": True, "clipnorm": 1.0}),
        (KerasLion, optimizers.Lion, {"weight_decay": 0.1, "gradient_accumulation_steps": 2}),
        (KerasAdam, optimizers.Adam, {"beta_2": 0.99, "weight_decay": 0.01}),
    ],
)
def test_optimizers_written_for_keras_train_and_resume(theirs, own, options, tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(32, 4)).astype("float32"), rng.normal(size=(32, 1)).astype("float32")

    def fit(model):
        model.fit(x, y, epochs=3, batch_size=8, shuffle=False, verbose=0)
        return model.get_weights()

    model = P.Sequential([P.Input((4,)), P.layers.Dense(5, "tanh"), P.layers.Dense(1)])
    twin = P.models.clone_model(model)
    twin.set_weights(model.get_weights())
    model.compile(theirs(0.01, **options), "mse")
    twin.compile(own(0.01, **options), "mse")
    for a, b in zip(fit(model), fit(twin), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    model.save(tmp_path / "x.keras")
    back = saving.load_model(tmp_path / "x.keras")
    assert back.optimizer.get_config() == model.optimizer.get_config()
    for a, b in zip(fit(model), fit(back), strict=True):
        assert a.tobytes() == b.tobytes()


def test_add_optimizer_variables_takes_several_names():
    optimizer = optimizers.SGD()
    weights = [Parameter(np.zeros((2, 3)), name="a"), Parameter(np.zeros(4), name="b")]
    for weight in weights:
        weight.path = f"dense/{weight.name}"
    m, v = optimizer.add_optimizer_variables(weights, ["m", "v"], ["zeros", "ones"])
    assert [w.shape for w in v] == [(2, 3), (4,)] and v[0].numpy().all() and not m[0].numpy().any()
    found = [w.path.split("/")[1] for w in optimizer.variables[2:]]
    assert found == ["dense_a_m", "dense_a_v", "dense_b_m", "dense_b_v"]
    with pytest.raises(ValueError, match="2 names, but 1 init"):
        optimizer.add_optimizer_variables(weights, ["m", "v"], ["zeros"])


def test_averages_of_unused_parameters_stay_their_weights():
    a, b = Parameter([1.0]), Parameter([5.0])
    optimizer = optimizers.SGD(1.0, use_ema=True, ema_momentum=0.5)
    optimizer.build([a, b])
    b.assign([7.0])  # loaded after build
    a.grad = np.ones(1, "float32")
    for _ in range(3):
        optimizer.update([a, b])
    late = Parameter([3.0])
    optimizer.apply([np.zeros(1), np.zeros(1)], [a, late])
    optimizer.finalize_variable_values([a, b, late])
    assert b.data[0] == 7 and late.data[0] == 3


def test_signatures_name_all_options():
    import inspect

    found = list(inspect.signature(optimizers.Adam).parameters)
    assert found == [
        "learning_rate", "beta_1", "beta_2", "epsilon", "amsgrad", "weight_decay", "clipnorm",
        "clipvalue", "global_clipnorm", "use_ema", "ema_momentum", "ema_overwrite_frequency",
        "loss_scale_factor", "gradient_accumulation_steps", "name", "parameter_groups",
    ]  # fmt: skip


@pytest.mark.parametrize("relative", [True, False])
def test_adafactor_falls_with_the_steps_as_in_keras(relative):
    optimizer = optimizers.Adafactor(
        0.5, beta_2_decay=-0.65, epsilon_1=1e-15, epsilon_2=1e-4, clip_threshold=0.9,
        relative_step=relative,
    )  # fmt: skip
    w = Parameter(np.ones(10))
    optimizer.apply([np.full(10, 0.01, "float32")], [w])
    for _ in range(4):
        optimizer.apply([np.linspace(0.1, 1, 10, dtype="float32")], [w])
    np.testing.assert_allclose(w.data[:3], [0.05544972, 0.05476304, 0.05463547], rtol=1e-5)


def test_own_variables_go_through_a_store():
    optimizer, again = optimizers.Adam(0.1), optimizers.Adam(0.2)
    w, other = Parameter([1.0, 2.0]), Parameter([1.0, 2.0])
    optimizer.apply([np.ones(2, "float32")], [w])
    store = {}
    optimizer.save_own_variables(store)
    again.build([other])
    again.load_own_variables(store)
    for a, b in zip(optimizer.variables, again.variables, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
