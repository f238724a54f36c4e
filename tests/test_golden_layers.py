"""Every layer against Keras in float64: outputs, masks, losses, states and gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from picodl import activations, initializers, layers, models, ops, regularizers, tree
from picodl.tensor import Tensor
from tests.goldens import Case, close, make, names

FILE = "layers.h5"
CASES = [name for name in names(FILE) if hasattr(layers, name.split("/")[0])]
SPACES = [layers, initializers, regularizers, models]
# the key bias of attention has a gradient that is zero but for rounding: compared absolutely
ZERO = 1e-12


def outputs_of(layer: Any, case: Case, inputs: list[Any], options: dict[str, Any]) -> list[Any]:
    mode = case["mode"]
    if mode == "list":
        found = layer(list(inputs), **options)
    elif mode == "args":
        found = layer(*inputs, **options)
    elif mode == "rnn_state":
        found = layer(inputs[0], initial_state=list(inputs[1:]), **options)
    else:
        found = layer(inputs[0], **options)
    return [y for y in tree.flatten(found) if y is not None]


def call_options(case: Case) -> dict[str, Any]:
    options = dict(case["call"])
    for path, array in case.under("call").items():
        key, _, number = path.partition("/")
        if number:
            listed = options.setdefault(key, [])
            listed.extend([None] * (int(number) + 1 - len(listed)))
            listed[int(number)] = array
        else:
            options[key] = array
    return options


@pytest.mark.filterwarnings("ignore:.*does not support masking")
@pytest.mark.parametrize("name", CASES)
def test_layer_matches_keras(name: str, float64: None) -> None:
    case = Case(FILE, name)
    tolerance = 1e-9
    near = [d for d in case["agreement"].values() if isinstance(d, float) and d <= 1e-6]
    tolerance = max([tolerance, *(3 * d for d in near)])
    layer = make({"class": case["class"], "config": case["config"]}, SPACES)
    inputs, options = case.listed("inputs"), call_options(case)
    if "adapt" in case.arrays:
        layer.adapt(case.arrays["adapt"])
    calls = int(case["calls"])
    outputs_of(layer, case, inputs if calls == 1 else inputs[:1], options)
    weights = layer.weights
    assert [w.shape for w in weights] == [a.shape for a in case.listed("weights")]
    for weight, value in zip(weights, case.listed("weights"), strict=True):
        if "adapt" in case.arrays:
            close(weight.data, value)
        else:
            weight.assign(value)
    if "losses" in case.arrays:
        outputs_of(layer, case, inputs, options)
        close(sum(float(v) for v in layer.losses), case.arrays["losses"])
    if calls > 1:
        layer.reset_state()
        found = [y for x in inputs for y in outputs_of(layer, case, [x], options)]
    else:
        inputs = [Tensor(x, requires_grad=x.dtype.kind == "f") for x in inputs]
        found = outputs_of(layer, case, inputs, options)
    for i, (y, expected) in enumerate(zip(found, case.listed("outputs"), strict=True)):
        close(y.data, expected, tolerance, case.agreed(f"outputs/{i}"))
    for i, mask in case.under("output_masks").items():
        np.testing.assert_array_equal(np.asarray(found[int(i)].mask, bool), mask)
    if not case.under("upstream"):
        return
    for i, value in case.under("weights_after").items():
        close(weights[int(i)].data, value, tolerance)
    total = sum(
        (ops.sum(y * u) for y, u in zip(found, case.listed("upstream"), strict=True)), Tensor(0.0)
    )
    if total.requires_grad:
        total.backward()
    for i, expected in case.under("input_grads").items():
        grad = inputs[int(i)].grad
        grad = np.zeros(expected.shape) if grad is None else grad
        close(grad, expected, tolerance, case.agreed(f"input_grads/{i}"))
    grads = case.under("weight_grads")
    largest = max((np.abs(g).max(initial=0) for g in grads.values()), default=0)
    for i, expected in grads.items():
        grad = weights[int(i)].grad
        grad = np.zeros(expected.shape) if grad is None else grad
        if np.abs(expected).max(initial=0) < 1e-6 * largest:
            assert np.abs(grad).max(initial=0) <= max(1e-6 * largest, ZERO)
        else:
            close(grad, expected, tolerance, case.agreed(f"weight_grads/{i}"))


# Keras 3.15 sums the wrong numbers in sparsemax, whose rows must add up to 1; hard_sigmoid's
# gradient was taken from PyTorch, which uses a 1/6 rounded to float32
OTHERWISE = ("sparsemax", "hard_sigmoid/generic", "relu_threshold=1.0/extreme")
ACTIVATIONS = [n for n in names("activations.h5") if not n.startswith(OTHERWISE)]


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_matches_keras(name: str, request: pytest.FixtureRequest) -> None:
    case = Case("activations.h5", name)
    x = case.arrays["inputs/0"]
    if x.dtype == np.float64:
        request.getfixturevalue("float64")
    tolerance = 1e-9 if x.dtype == np.float64 else 1e-5
    t = Tensor(x, requires_grad=True)
    with np.errstate(all="ignore"):
        y = getattr(activations, case["function"])(t, **case["config"])
        expected = case.arrays["outputs/0"]
        known = ~np.isnan(expected) | np.isnan(x).any()  # NaN out of no NaN: nothing to imitate
        close(y.data, expected, tolerance, case.agreed("outputs/0") & known)
        if case.under("upstream"):
            y.backward(case.arrays["upstream/0"])
            where = case.agreed("input_grads/0")
            close(t.grad, case.arrays["input_grads/0"], tolerance, where)
    assert y.dtype == x.dtype


@pytest.mark.parametrize("axis", [-1, 0])
def test_sparsemax_sums_to_one_and_is_the_nearest_point(axis: int) -> None:
    z = np.random.default_rng(0).normal(size=(4, 5)) * 2
    y = activations.sparsemax(z, axis=axis)
    np.testing.assert_allclose(y.sum(axis), 1)
    assert (y >= 0).all() and (y == 0).any()
    # the projection onto the simplex: moving along it increases the distance
    for direction in np.eye(5 if axis == -1 else 4):
        other = np.moveaxis(np.zeros_like(y), axis, -1) + direction
        nearer = 0.99 * np.moveaxis(y, axis, -1) + 0.01 * other
        target = np.moveaxis(z, axis, -1)
        own = np.square(np.moveaxis(y, axis, -1) - target).sum(-1)
        assert (np.square(nearer - target).sum(-1) >= own - 1e-12).all()
