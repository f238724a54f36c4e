"""The options that all optimizers share, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from picodl import optimizers
from picodl.module import Module, Parameter
from picodl.tensor import Tensor


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
