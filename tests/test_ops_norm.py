"""Normalisation against its formulas, and its gradients against differences."""

from __future__ import annotations

import numpy as np
import pytest

from picodl import ops, parallel
from picodl.tensor import Tensor
from picodl.testing import gradcheck

rng = np.random.default_rng(0)
SHAPES = [(5, 3), (4, 6, 5, 2), (3, 4, 4, 16), (2, 3, 70), (1, 1)]


def weights(n):
    return rng.normal(size=n), rng.normal(size=n)


@pytest.mark.parametrize("shape", SHAPES)
def test_normalize_batch(shape):
    x, (gamma, beta) = rng.normal(2, 3, size=shape), weights(shape[-1])
    axes = tuple(range(len(shape) - 1))
    y, mean, variance = ops.normalize_batch(x, gamma, beta)
    np.testing.assert_allclose(mean, x.mean(axes))
    np.testing.assert_allclose(variance, x.var(axes), atol=1e-12)
    expected = (x - x.mean(axes)) / np.sqrt(x.var(axes) + 1e-3) * gamma + beta
    np.testing.assert_allclose(y, expected, atol=1e-9)
    for second in (False, True):
        gradcheck(lambda x, a, b: ops.normalize_batch(x, a, b)[0], x, gamma, beta, second=second)
        gradcheck(lambda x: ops.normalize_batch(x)[0], x, second=second)
        gradcheck(lambda x, b: ops.normalize_batch(x, None, b)[0], x, beta, second=second)


@pytest.mark.parametrize("shape", SHAPES)
def test_batch_normalization_with_given_statistics(shape):
    x, (gamma, beta) = rng.normal(2, 3, size=shape), weights(shape[-1])
    mean, variance = rng.normal(size=shape[-1]), rng.uniform(1, 2, shape[-1])
    y = ops.batch_normalization(x, mean, variance, -1, beta, gamma, 0.01)
    np.testing.assert_allclose(y, (x - mean) / np.sqrt(variance + 0.01) * gamma + beta)
    inputs = (x, mean, variance, beta, gamma)
    for second in (False, True):
        gradcheck(
            lambda x, m, v, o, s: ops.batch_normalization(x, m, v, -1, o, s), *inputs, second=second
        )
    first = ops.batch_normalization(np.moveaxis(x, -1, 0), mean, variance, 0, beta, gamma, 0.01)
    np.testing.assert_allclose(np.moveaxis(first, 0, -1), y)


@pytest.mark.parametrize("shape", SHAPES)
def test_layer_and_rms_normalization(shape):
    x, (gamma, beta) = rng.normal(2, 3, size=shape), weights(shape[-1])
    y = ops.layer_normalization(x, gamma, beta, epsilon=1e-3)
    d = x - x.mean(-1, keepdims=True)
    np.testing.assert_allclose(y, d / np.sqrt(x.var(-1, keepdims=True) + 1e-3) * gamma + beta)
    y = ops.rms_normalization(x, gamma, epsilon=1e-3)
    mean_square = (x * x).mean(-1, keepdims=True)
    np.testing.assert_allclose(y, x / np.sqrt(mean_square + 1e-3) * gamma)
    for second in (False, True):
        gradcheck(
            lambda x, a, b: ops.layer_normalization(x, a, b, -1, 1e-3),
            x,
            gamma,
            beta,
            second=second,
        )
        gradcheck(lambda x: ops.layer_normalization(x, epsilon=1e-3), x, second=second)
        gradcheck(lambda x, a: ops.rms_normalization(x, a, -1, 1e-3), x, gamma, second=second)


@pytest.mark.parametrize("axis", [1, (1, 3), (2, 3), (-1, 1)])
def test_layer_normalization_over_other_axes(axis):
    x = rng.normal(size=(2, 3, 4, 5))
    axes = tuple(sorted(a % 4 for a in np.atleast_1d(axis)))
    gamma = rng.normal(size=[x.shape[a] for a in axes])
    apart = [n if a in axes else 1 for a, n in enumerate(x.shape)]
    d = x - x.mean(axes, keepdims=True)
    expected = d / np.sqrt(x.var(axes, keepdims=True) + 1e-3) * gamma.reshape(apart)
    y = ops.layer_normalization(x, gamma, axis=axis, epsilon=1e-3)
    np.testing.assert_allclose(y, expected)
    gradcheck(lambda x, a: ops.layer_normalization(x, a, None, axis, 1e-3), x, gamma)


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
def test_group_normalization(groups):
    x, (gamma, beta) = rng.normal(size=(3, 4, 5, 6)), weights(6)
    apart = x.reshape(3, 20, groups, -1)
    d = apart - apart.mean((1, 3), keepdims=True)
    normal = (d / np.sqrt(apart.var((1, 3), keepdims=True) + 1e-3)).reshape(x.shape)
    y = ops.group_normalization(x, groups, gamma, beta)
    np.testing.assert_allclose(y, normal * gamma + beta)
    for second in (False, True):
        gradcheck(
            lambda x, a, b: ops.group_normalization(x, groups, a, b), x, gamma, beta, second=second
        )
        gradcheck(lambda x: ops.group_normalization(x, groups), x, second=second)


def test_a_large_mean_costs_no_digits():
    x = (rng.normal(size=(64, 16, 16, 16)) * 0.01 + 1000).astype(np.float32)
    _, mean, variance = ops.normalize_batch(x)
    exact = x.astype(np.float64)
    np.testing.assert_allclose(mean, exact.mean((0, 1, 2)), rtol=1e-6)
    np.testing.assert_allclose(variance, exact.var((0, 1, 2)), rtol=1e-3)


@pytest.mark.parametrize(
    "op",
    [
        lambda x: ops.normalize_batch(x)[0],
        lambda x: ops.layer_normalization(x, epsilon=1e-3),
        lambda x: ops.rms_normalization(x, epsilon=1e-3),
        lambda x: ops.group_normalization(x, 2),
    ],
)
def test_small_floats(op):
    x = rng.normal(size=(64, 40, 4)) * 50
    for dtype, tolerance in ((np.float32, 1e-5), (np.float16, 5e-3)):
        t = Tensor(x.astype(dtype), requires_grad=True)
        y = op(t)
        assert y.dtype == dtype
        np.testing.assert_allclose(y.data, op(x), rtol=tolerance, atol=tolerance)
        y.backward(np.ones_like(y.data))
        assert t.grad.dtype == dtype and np.isfinite(t.grad).all()


def test_numbers_do_not_depend_on_threads():
    x = rng.normal(size=(64, 24, 24, 16)).astype(np.float32)
    found = []
    for threads in (1, 3):
        parallel.set_threads(threads)
        t = Tensor(x, requires_grad=True)
        with parallel.blas_single_thread():
            y, *statistics = ops.normalize_batch(t)
            y.backward(x)
        found.append([y.data, t.grad, *(s.data for s in statistics)])
    parallel.set_threads(None)
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


def test_groups_must_divide_the_channels():
    with pytest.raises(ValueError, match="6 channels do not divide into 4 groups"):
        ops.group_normalization(np.ones((2, 6)), 4)


@pytest.mark.parametrize(
    "op",
    [
        lambda x, w: ops.normalize_batch(x, w, w)[0],
        lambda x, w: ops.batch_normalization(x, w, w, -1, w, w),
        lambda x, w: ops.layer_normalization(x, w, w),
        lambda x, w: ops.rms_normalization(x, w),
        lambda x, w: ops.group_normalization(x, 2, w, w),
    ],
)
def test_empty_batches_pass(op):
    x = Tensor(np.zeros((0, 3, 4), np.float32), requires_grad=True)
    w = Tensor(np.ones(4, np.float32), requires_grad=True)
    y = op(x, w)
    assert y.shape == (0, 3, 4)
    y.backward(y.data)
    assert x.grad is None or x.grad.shape == x.shape
    assert w.grad is None or w.grad.tolist() == [0, 0, 0, 0]
