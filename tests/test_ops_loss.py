"""The fused cross-entropies and squared error: derivatives, extremes, checks."""

from __future__ import annotations

import numpy as np
import pytest

from picodl import ops
from picodl.ops.loss import huber_error, squared_error, weighted_sum
from picodl.tensor import Tensor
from picodl.testing import gradcheck

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(4, 5)) * 2
P = np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True)
SOFT = RNG.dirichlet(np.ones(5), 4)
LABELS = np.array([0, 4, 2, 2])

CASES = {
    "squared": (squared_error, SOFT, LOGITS),
    "huber": (lambda t, p: huber_error(t, p, 0.7), SOFT, LOGITS),
    "binary logits": (lambda t, z: ops.binary_crossentropy(t, z, True), SOFT, LOGITS),
    "binary": (ops.binary_crossentropy, SOFT, P),
    "categorical logits": (lambda t, z: ops.categorical_crossentropy(t, z, True), SOFT, LOGITS),
    "categorical": (ops.categorical_crossentropy, SOFT, 3 * P),
    "categorical axis 0": (
        lambda t, z: ops.categorical_crossentropy(t, z, True, axis=0),
        SOFT,
        LOGITS,
    ),
    "sparse logits": (lambda z: ops.sparse_categorical_crossentropy(LABELS, z, True), LOGITS),
    "sparse": (lambda p: ops.sparse_categorical_crossentropy(LABELS, p), 3 * P),
    "sparse column": (
        lambda z: ops.sparse_categorical_crossentropy(LABELS[:, None], z, True),
        LOGITS,
    ),
    "sparse axis 1": (
        lambda z: ops.sparse_categorical_crossentropy(np.array([[0, 1], [2, 3]]), z, True, axis=1),
        LOGITS.reshape(2, 5, 2)[:, :4],
    ),
    "sum": (lambda v: weighted_sum(v, None, 0.25), LOGITS),
    "weighted sum": (lambda v: weighted_sum(v, SOFT.astype(v.dtype), 0.25), LOGITS),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients_match_differences(name):
    function, *inputs = CASES[name]
    gradcheck(function, *inputs)
    gradcheck(function, *inputs, second=True, tolerance=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_float32_stays_and_inputs_are_left_alone(name):
    function, *inputs = CASES[name]
    tensors = [Tensor(x.astype(np.float32), requires_grad=True) for x in inputs]
    for x in tensors:
        x.data.flags.writeable = False
    y = function(*tensors)
    g = np.ones(y.shape, np.float32)
    g.flags.writeable = False
    y.backward(g, retain_graph=True)
    first = [x.grad for x in tensors]
    assert y.dtype == np.float32 and all(dx.dtype == np.float32 for dx in first)
    for x in tensors:
        x.zero_grad()
    y.backward(g)  # a second walk over the same closures gives the same
    for x, dx in zip(tensors, first, strict=True):
        np.testing.assert_array_equal(x.grad, dx)


def test_logits_of_any_size_are_exact():
    z = np.array([[1e4, -1e4, 0.0], [-1e4, 1e4, 1e4]])
    with np.errstate(over="raise", divide="raise", invalid="raise"):
        sparse = ops.sparse_categorical_crossentropy([1, 2], z, from_logits=True)
        full = ops.categorical_crossentropy(np.eye(3)[[1, 2]], z, from_logits=True)
    np.testing.assert_allclose(sparse, [2e4, np.log(2)])
    np.testing.assert_allclose(full, sparse)
    z = Tensor([[1e4, -1e4, 1e4, -1e4]], requires_grad=True)
    y = ops.binary_crossentropy([[1.0, 1.0, 0.0, 0.0]], z, from_logits=True)
    np.testing.assert_array_equal(y.data, [[0, 1e4, 1e4, 0]])
    y.sum().backward()
    np.testing.assert_array_equal(z.grad, [[0, -1, 1, 0]])


def test_probabilities_0_and_1_are_finite():
    p = Tensor([[0.0, 1.0, 0.0, 1.0]], requires_grad=True)
    y = ops.binary_crossentropy([[0.0, 1.0, 1.0, 0.0]], p)
    np.testing.assert_allclose(y.data, [[0, 0, 16.118, 15.942]], atol=2e-7, rtol=1e-4)
    y.sum().backward()
    np.testing.assert_array_equal(p.grad, 0)  # clipped: Keras's gradient
    rows = np.zeros((2, 3), np.float32)  # nothing is predicted at all
    np.testing.assert_allclose(ops.sparse_categorical_crossentropy([0, 1], rows), 16.118, rtol=1e-4)
    np.testing.assert_allclose(ops.categorical_crossentropy(np.eye(3)[:2], rows), 16.118, rtol=1e-4)


def test_labels_of_any_number_dtype():
    expected = ops.sparse_categorical_crossentropy(LABELS, P)
    for dtype in ("uint8", "int8", "int32", "uint64", "float32", "float64"):
        found = ops.sparse_categorical_crossentropy(LABELS.astype(dtype), P)
        np.testing.assert_array_equal(found, expected)
    found = ops.sparse_categorical_crossentropy(LABELS > 1, P)
    expected = ops.sparse_categorical_crossentropy([0, 1, 1, 1], P)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("labels", "error", "match"),
    [
        ([0, -1, 1, 1], ValueError, "labels .* range 0 to 4 .* from -1 to 1"),
        ([0, 5, 1, 1], ValueError, "labels .* range 0 to 4 .* from 0 to 5"),
        (np.array([0, 2**64 - 1, 1, 1], np.uint64), ValueError, "range 0 to 4"),
        ([0, 0.5, 1, 1], ValueError, "whole numbers; received 0.5"),
        ([0, np.nan, 1, 1], ValueError, "whole numbers; received nan"),
        ([0, np.inf, 1, 1], ValueError, "whole numbers; received"),
        (
            np.eye(5)[:4],
            ValueError,
            r"\(4,\) .* \(4, 5\). One-hot .* Categorical",
        ),
        (np.zeros((4, 2), int), ValueError, r"shape \(4,\) .* received targets of shape \(4, 2\)"),
        (np.array(list("abcd")), TypeError, "numbers; received dtype <U1"),
    ],
)
def test_wrong_labels_are_refused(labels, error, match):
    with pytest.raises(error, match=match):
        ops.sparse_categorical_crossentropy(np.asarray(labels), P)


def test_wrong_targets_are_refused():
    with pytest.raises(ValueError, match=r"binary_crossentropy .*\(4, 5\); .*\(4, 1\)"):
        ops.binary_crossentropy(SOFT[:, :1], P)
    with pytest.raises(ValueError, match=r"between 0 and 1; received values from 1 to 2. .* hinge"):
        ops.binary_crossentropy([[1.0, 2.0]], [[0.5, 0.5]])
    with pytest.raises(ValueError, match=r"categorical_crossentropy .*\(4, 5\); .*\(4,\)"):
        ops.categorical_crossentropy(LABELS, P)
    with pytest.raises(ValueError, match=r"squared_error .*\(4, 5\), .* shape \(4, 1\)"):
        squared_error(SOFT[:, :1], P)
    with pytest.raises(ValueError, match=r"classes along axis -1; received shape \(4, 0\)"):
        ops.categorical_crossentropy(np.zeros((4, 0)), np.zeros((4, 0)))
    with pytest.raises(ValueError, match=r"classes along axis 2; received shape \(4, 5\)"):
        ops.sparse_categorical_crossentropy(LABELS, P, axis=2)


@pytest.mark.parametrize(
    "call",
    [
        lambda: ops.binary_crossentropy([[1.0]], [[1.5]]),
        lambda: ops.binary_crossentropy([[1.0]], [[-0.5]]),
        lambda: ops.categorical_crossentropy([[1.0, 0.0]], [[3.0, -0.5]]),
        lambda: ops.sparse_categorical_crossentropy([0], [[3.0, -0.5]]),
    ],
)
def test_raw_scores_as_probabilities_are_reported(call):
    with pytest.warns(UserWarning, match="from_logits=True"):
        call()
