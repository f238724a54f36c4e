"""Learning-rate schedules: Keras's values, PyTorch's one cycle, configs, messages."""

from __future__ import annotations

import json
import math
from pathlib import Path

import h5py
import numpy as np
import pytest

from picodl.optimizers import schedules
from picodl.tensor import Tensor

GOLDEN = Path(__file__).parent / "golden" / "schedules.h5"
EXAMPLES = [
    schedules.ExponentialDecay(0.1, 10, 0.5, staircase=True),
    schedules.InverseTimeDecay(0.1, 10, 0.5),
    schedules.PiecewiseConstantDecay([2, 5], [1.0, 0.5, 0.1]),
    schedules.PolynomialDecay(0.1, 10, cycle=True),
    schedules.CosineDecay(0.1, 10, warmup_target=0.2, warmup_steps=3),
    schedules.CosineDecayRestarts(0.1, 5),
    schedules.LinearWarmup(schedules.CosineDecay(0.1, 10), 4),
    schedules.LinearWarmup(0.1, 4),
    schedules.OneCycleLR(0.1, 20),
]


def golden_names():
    names = []
    with h5py.File(GOLDEN, "r") as f:
        f.visit(names.append)
        return [n for n in names if "note" in f[n].attrs]


@pytest.mark.parametrize("name", golden_names())
def test_values_are_keras(name):
    with h5py.File(GOLDEN, "r") as f:
        case = f[name]
        rate = getattr(schedules, case.attrs["class"])(**json.loads(case.attrs["config"]))
        found = [rate(int(step)) for step in case["steps"]]
        np.testing.assert_allclose(found, case["outputs/0"][()], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("rate", "expected"),
    [  # steps 0, 1, 2, 3, 5, 6, 10, 12
        (
            schedules.ExponentialDecay(0.1, 10, 0.5),
            [0.1, 0.093303, 0.087055, 0.081225, 0.070711, 0.065975, 0.05, 0.043528],
        ),
        (
            schedules.PolynomialDecay(0.1, 10),
            [0.1, 0.09001, 0.08002, 0.07003, 0.05005, 0.04006, 0.0001, 0.0001],
        ),
        (
            schedules.CosineDecayRestarts(0.1, 5),
            [0.1, 0.090451, 0.065451, 0.034549, 0.1, 0.097553, 0.05, 0.020611],
        ),
        (  # torch.optim.lr_scheduler.OneCycleLR(SGD, 0.1, 13)
            schedules.OneCycleLR(0.1, 13),
            [0.004, 0.029516, 0.078937, 0.099970, 0.087426, 0.073997, 0.011453, 4e-7],
        ),
    ],
)
def test_values_at_some_steps(rate, expected):
    found = [rate(step) for step in (0, 1, 2, 3, 5, 6, 10, 12)]
    np.testing.assert_allclose(found, expected, atol=6e-7)


@pytest.mark.parametrize("rate", EXAMPLES, ids=lambda rate: type(rate).__name__)
def test_steps_of_any_kind_give_a_finite_rate_for_ever(rate):
    for step in (0, np.int32(3), Tensor(3), 10**9):
        assert math.isfinite(rate(step)) and rate(step) >= 0


@pytest.mark.parametrize("rate", EXAMPLES, ids=lambda rate: type(rate).__name__)
def test_config_round_trip(rate):
    config = json.loads(json.dumps(schedules.serialize(rate)))
    assert config["module"] == "keras.optimizers.schedules"
    again = schedules.deserialize(config)
    assert again.get_config() == rate.get_config()
    assert [again(s) for s in range(30)] == [rate(s) for s in range(30)]


def test_periods_that_shrink_come_to_an_end():
    rate = schedules.CosineDecayRestarts(0.1, 10, t_mul=0.5, alpha=0.1)
    assert rate(10) == pytest.approx(0.1)
    assert rate(1000) == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: schedules.CosineDecay(0.1, 0), "CosineDecay: decay_steps must be greater than 0"),
        (lambda: schedules.ExponentialDecay(0.1, -1, 0.5), "decay_steps must be greater"),
        (lambda: schedules.PiecewiseConstantDecay([1], [1]), "one value more than boundaries"),
        (lambda: schedules.PiecewiseConstantDecay([2, 1], [1, 2, 3]), "boundaries must rise"),
        (lambda: schedules.OneCycleLR(0.1, 10, anneal_strategy="x"), "cos"),
        (lambda: schedules.OneCycleLR(0.1, 10, pct_start=2), "pct_start"),
        (lambda: schedules.deserialize("CosineDcay"), r"Did you mean .CosineDecay."),
    ],
)
def test_messages(make, message):
    with pytest.raises(ValueError, match=message):
        make()
