"""First and second derivatives of every op in the table, and the manners of all ops."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from picodl import tree
from picodl.tensor import Tensor
from picodl.testing import gradcheck
from tests.ops_table import CASES

IDS = [f"{case.name}-{i}" for i, case in enumerate(CASES)]


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_first_derivative(case):
    gradcheck(case.function, *case.arrays)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_second_derivative_is_right_or_refused(case):
    if case.flat:
        with pytest.raises(NotImplementedError, match="has no second derivative"):
            gradcheck(case.function, *case.arrays, second=True)
    else:
        gradcheck(case.function, *case.arrays, second=True, tolerance=1e-5)


def run(case, arrays):
    """The function on tensors and its gradients for an upstream of ones."""
    tensors = [Tensor(a, requires_grad=a.dtype.kind == "f") for a in arrays]
    outputs = [y for y in tree.flatten(case.function(*tensors)) if isinstance(y, Tensor)]
    floats = [y for y in outputs if y.requires_grad]
    for y in floats:
        y.backward(retain_graph=True)
    return outputs, [t.grad for t in tensors]


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_float32_stays_and_inputs_are_unchanged(case):
    arrays = [np.asarray(a, "f") for a in case.arrays]
    before = [a.copy() for a in arrays]
    for a in arrays:
        a.flags.writeable = False
    with np.errstate(all="ignore"):
        outputs, gradients = run(case, arrays)
    for a, b in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(a, b)
    wanted = np.float64 if case.name == "cast" else np.float32
    assert {y.dtype for y in outputs if y.dtype.kind == "f"} <= {np.dtype(wanted)}
    for a, g in zip(arrays, gradients, strict=True):
        if g is not None:
            assert (g.shape, g.dtype) == (a.shape, a.dtype)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_views_give_what_copies_give(case):
    """Negative strides and arrays that are not contiguous."""
    views = []
    for a in map(np.asarray, case.arrays):
        wide = np.zeros((*a.shape, 2), a.dtype)
        wide[..., 0] = a[tuple(slice(None, None, -1) for _ in a.shape)]
        views.append(wide[..., 0][tuple(slice(None, None, -1) for _ in a.shape)])
    outputs, gradients = run(case, views)
    expected, expected_gradients = run(case, [np.ascontiguousarray(v) for v in views])
    for y, z in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(y.data, z.data, rtol=1e-12, atol=1e-12)
    for g, h in zip(gradients, expected_gradients, strict=True):
        if g is not None:
            np.testing.assert_allclose(g, h, rtol=1e-9, atol=1e-12)


STEEP = {
    "sqrt": 0.0,
    "rsqrt": 0.0,
    "log": 0.0,
    "log1p": -1.0,
    "reciprocal": 0.0,
    "cbrt": 0.0,
    "arcsin": 1.0,
    "arccos": 1.0,
    "arccosh": 1.0,
    "arctanh": 1.0,
    "erfinv": 1.0,
    "exp": 1e4,
    "exp2": 1e4,
    "expm1": 1e4,
    "sinh": 1e4,
    "cosh": 1e4,
}


@pytest.mark.parametrize("name", STEEP)
def test_zero_from_above_wins_over_an_infinite_slope(name):
    from picodl import ops

    x = Tensor(np.array([STEEP[name], 1.5 if name == "arccosh" else 0.5]), requires_grad=True)
    with np.errstate(all="ignore"):
        y = ops.where(np.array([False, True]), getattr(ops, name)(x), 0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        y.sum().backward()
    assert x.grad[0] == 0
    assert np.isfinite(x.grad).all()


def test_zero_from_above_does_not_hide_the_second_derivative():
    """d/dx of (sqrt(x) - 2)^2 has slope 2 / (4 x) at x = 4, where the gradient is 0."""
    gradcheck(lambda x: (x**0.5 - 2) ** 2, np.array([4.0]), second=True)
    from picodl import ops

    gradcheck(lambda x: (ops.sqrt(x) - 2) ** 2, np.array([4.0]), second=True)
    gradcheck(lambda x: (1 / x - 0.25) ** 2, np.array([4.0]), second=True)


def test_ties_share_evenly():
    from picodl import ops

    x = Tensor(np.array([1.0, 3.0, 3.0, 2.0]), requires_grad=True)
    ops.max(x).backward()
    np.testing.assert_array_equal(x.grad, [0, 0.5, 0.5, 0])
    a, b = (Tensor(np.array([1.0, 2.0]), requires_grad=True) for _ in range(2))
    ops.maximum(a, b).sum().backward()
    np.testing.assert_array_equal(a.grad, [0.5, 0.5])
    np.testing.assert_array_equal(b.grad, [0.5, 0.5])


def test_logarithms_of_sums_of_infinities():
    from picodl import ops

    inf = np.inf
    x = Tensor(
        np.array([[0.0, inf, 1.0], [-inf, -inf, -inf], [-inf, 0.0, 0.0]]), requires_grad=True
    )
    y = ops.logsumexp(x, axis=1)
    np.testing.assert_array_equal(y.data[:2], [inf, -inf])
    y.backward(np.ones(3))
    np.testing.assert_allclose(x.grad, [[0, 1, 0], [0, 0, 0], [0, 0.5, 0.5]])
    a, b = (Tensor(np.array(v), requires_grad=True) for v in ([inf, -inf, 0], [0.0, -inf, inf]))
    ops.logaddexp(a, b).backward(np.ones(3))
    np.testing.assert_array_equal(a.grad, [1, 0, 0])
    np.testing.assert_array_equal(b.grad, [0, 0, 1])


def test_backward_does_not_warn():
    from picodl import ops

    x = Tensor(np.array([np.inf, 1e300, 0.0]), requires_grad=True)
    with np.errstate(all="ignore"):
        y = ops.sum(ops.sin(x) * ops.square(x) / x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        y.backward()
