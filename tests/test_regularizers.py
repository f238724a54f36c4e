"""Regularizers and constraints: Keras's values and gradients, configs, messages."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest

from picodl import constraints, regularizers
from picodl.module import Parameter
from picodl.tensor import Tensor
from picodl.testing import gradcheck

GOLDEN = Path(__file__).parent / "golden" / "regularizers_constraints.h5"
REGULARIZERS = [regularizers.L1(0.3), regularizers.L2(0.2), regularizers.L1L2(0.1, 0.2)]
REGULARIZERS += [regularizers.OrthogonalRegularizer(0.1, mode) for mode in ("rows", "columns")]
CONSTRAINTS = [constraints.MaxNorm(1.0), constraints.MinMaxNorm(0.5, 0.9, 0.6, 1)]
CONSTRAINTS += [constraints.NonNeg(), constraints.UnitNorm([0, 1])]


def golden_names():
    names = []
    with h5py.File(GOLDEN, "r") as f:
        f.visit(names.append)
        return [n for n in names if "note" in f[n].attrs]


@pytest.mark.parametrize("name", golden_names())
def test_values_and_gradients_are_keras(name):
    with h5py.File(GOLDEN, "r") as f:
        case = f[name]
        module = regularizers if case.attrs["kind"] == "regularizer" else constraints
        made = getattr(module, case.attrs["class"])(**json.loads(case.attrs["config"]))
        x = Tensor(case["inputs/0"][()], requires_grad=True)
        y = made(x)
        np.testing.assert_allclose(y.data, case["outputs/0"][()], rtol=1e-9, atol=1e-12)
        if "input_grads" in case:
            y.backward(case["upstream/0"][()])
            expected = case["input_grads/0"][()]
            np.testing.assert_allclose(x.grad, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("made", REGULARIZERS, ids=lambda made: type(made).__name__)
def test_gradients_of_both_orders(made):
    x = np.random.default_rng(0).normal(size=(4, 3))
    gradcheck(made, x)
    gradcheck(made, x, second=True)


@pytest.mark.parametrize("made", REGULARIZERS + CONSTRAINTS, ids=lambda made: type(made).__name__)
def test_arrays_give_arrays_of_their_dtype(made):
    x = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")
    y = made(x)
    assert isinstance(y, np.ndarray) and y.dtype == np.float32
    assert made(Parameter(x)).dtype == np.float32


@pytest.mark.parametrize("made", REGULARIZERS + CONSTRAINTS, ids=lambda made: type(made).__name__)
def test_config_round_trip(made):
    module = regularizers if isinstance(made, regularizers.Regularizer) else constraints
    config = json.loads(json.dumps(module.serialize(made)))
    again = module.deserialize(config)
    assert type(again) is type(made) and again.get_config() == made.get_config()
    assert type(module.get(type(made).__name__)) is type(made)


def test_one_row_is_orthogonal_to_nothing():
    assert float(regularizers.OrthogonalRegularizer()(np.ones((1, 3)))) == 0


def test_a_zero_row_gives_no_nan():
    x = Tensor(np.zeros((2, 3)), requires_grad=True)
    regularizers.OrthogonalRegularizer()(x).backward()
    assert np.isfinite(x.grad).all()
    assert np.isfinite(constraints.UnitNorm()(np.zeros((2, 3)))).all()


@pytest.mark.parametrize("name", ["l1", "l2", "l1l2", "l1_l2", "L1L2", "orthogonal_regularizer"])
def test_regularizer_names(name):
    assert isinstance(regularizers.get(name), regularizers.Regularizer)


@pytest.mark.parametrize("name", ["max_norm", "min_max_norm", "non_neg", "unit_norm", "NonNeg"])
def test_constraint_names(name):
    assert isinstance(constraints.get(name), constraints.Constraint)
    assert isinstance(getattr(constraints, name)(), constraints.Constraint)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: regularizers.L2(-1.0), "L2: l2 must be a number that is not negative"),
        (lambda: regularizers.L1("x"), "L1: l1 must be a number"),
        (lambda: regularizers.L1L2(0.1, float("nan")), "L1L2: l2 must be a number"),
        (lambda: regularizers.OrthogonalRegularizer(mode="diagonals"), "rows"),
        (lambda: regularizers.OrthogonalRegularizer()(np.ones(3)), r"matrix.*\(3,\)"),
        (lambda: regularizers.get("l3"), "Unknown regularizer"),
        (lambda: constraints.get("max_nrm"), r"Did you mean .MaxNorm."),
    ],
)
def test_messages(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_the_base_of_constraints_changes_nothing():
    w = np.array([-1.0, 2.0])
    assert constraints.Constraint()(w) is w
