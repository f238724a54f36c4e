"""Optimizers: Keras's trajectories, flat against per parameter, state, names."""

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

from picodl import config, optimizers
from picodl.module import Parameter
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
