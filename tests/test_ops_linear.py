"""Many rows and large activations, worked out in blocks: the same numbers as at once."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from scipy import special

from picodl import activations, ops, parallel
from picodl.ops.activation_gelu import exact_gelu
from picodl.ops.projection import project
from picodl.tensor import Tensor
from picodl.testing import gradcheck

linear = sys.modules["picodl.ops.linear"]
activation = sys.modules["picodl.ops.activation"]
PAIRS = {
    name: function.pair
    for name in dir(activations)
    if hasattr(function := getattr(activations, name), "pair")
}


@pytest.fixture
def blocks(monkeypatch):
    """Blocks of three rows, two at least."""
    monkeypatch.setattr(linear, "_SMALL", 1)
    monkeypatch.setattr(linear, "_TALL", 4)
    monkeypatch.setattr(linear, "shares_of", lambda n, most: [slice(0, 3), slice(3, n)])


def results(pair, bias, dtype, op=ops.dense, **options):
    rng = np.random.default_rng(0)
    x = Tensor(rng.normal(size=(2, 4, 5)).astype(dtype), requires_grad=True)
    w = Tensor(rng.normal(size=(5, 6)).astype(dtype), requires_grad=True)
    b = Tensor(rng.normal(size=6).astype(dtype), requires_grad=True) if bias else None
    y = op(x, w, b, pair=pair, **options)
    y.backward(rng.normal(size=y.shape))
    return [y.data, x.grad, w.grad, *([b.grad] if bias else [])]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", PAIRS)
def test_dense_in_blocks_equals_dense(name, bias, request):
    expected = results(PAIRS[name], bias, "float32")
    request.getfixturevalue("blocks")
    for got, want in zip(results(PAIRS[name], bias, "float32"), expected, strict=True):
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("name", ["relu", "gelu", "tanh", "softmax"])
def test_dense_in_blocks_has_the_right_gradient(name, blocks):
    rng = np.random.default_rng(1)
    arrays = rng.normal(size=(7, 3)), rng.normal(size=(3, 4)), rng.normal(size=4)
    gradcheck(lambda x, w, b: ops.dense(x, w, b, PAIRS[name]), *arrays)


def test_project_in_blocks_equals_project(request):
    expected = results(PAIRS["gelu"], True, "float32", project)
    request.getfixturevalue("blocks")
    for got, want in zip(results(PAIRS["gelu"], True, "float32", project), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-6)


def test_blocks_leave_out_what_nobody_needs(blocks):
    x, w = Tensor(np.ones((5, 2), np.float32)), Tensor(np.ones((2, 3), np.float32), True)
    ops.dense(x, w).sum().backward()
    assert x.grad is None
    np.testing.assert_array_equal(w.grad, np.full((2, 3), 5))
    x, w = Tensor(np.ones((5, 2)), True), Tensor(np.ones((2, 3)))
    ops.dense(x, w).sum().backward()
    assert w.grad is None
    np.testing.assert_array_equal(x.grad, np.full((5, 2), 3))


def test_blocks_take_rows_that_do_not_lie_together(blocks):
    x = np.arange(12.0).reshape(2, 6).T
    w = np.arange(6.0).reshape(3, 2).T
    t = Tensor(x, requires_grad=True)
    y = ops.dense(t, w)
    np.testing.assert_array_equal(y.data, x @ w)
    y.sum().backward()
    np.testing.assert_array_equal(t.grad, np.ones((6, 3)) @ w.T)


@pytest.mark.parametrize("name", [name for name in PAIRS if "softmax" not in name])
def test_activation_in_parts_equals_activation(name, monkeypatch):
    rng = np.random.default_rng(2)
    z, g = rng.normal(size=(2, 5, 4)).astype("f"), rng.normal(size=(2, 5, 4)).astype("f")

    def run():
        x = Tensor(z.transpose(1, 0, 2), requires_grad=True)
        y = getattr(activations, name)(x)
        y.backward(g.transpose(1, 0, 2))
        return y.data, x.grad

    expected = run()
    monkeypatch.setattr(activation, "PART", 8)
    monkeypatch.setattr(parallel, "PART", 8)
    for got, want in zip(run(), expected, strict=True):
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(z, np.random.default_rng(2).normal(size=z.shape).astype("f"))


def test_many_rows_on_threads_give_the_numbers_of_one_thread():
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(4096, 64)).astype("f"), rng.normal(size=(64, 64)).astype("f")
    before, found = parallel.threads(), []
    for threads in (1, 2, 3):
        parallel.set_threads(threads)
        a, b = Tensor(x, requires_grad=True), Tensor(w, requires_grad=True)
        with parallel.blas_single_thread():
            ops.dense(a, b, None, PAIRS["gelu"]).sum().backward()
        found.append((a.grad, b.grad))
    parallel.set_threads(before)
    for one in found[1:]:
        for got, want in zip(one, found[0], strict=True):
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("power, log_e", [(np.exp, 1.0), (np.exp2, np.log2(np.e))])
def test_exact_gelu_in_float32(power, log_e):
    """By either of the powers that may be the faster one on a machine."""
    pair = exact_gelu(power, log_e)
    z = np.concatenate([np.linspace(-9, 9, 20001), [-1e15, -300, 300, 1e15, 1e-30, -1e-7, 0]])
    z = z.astype(np.float32)
    exact = z.astype(np.float64)
    cdf = special.ndtr(exact)
    slope = cdf + exact * np.exp(-0.5 * exact**2) / np.sqrt(2 * np.pi)
    y, saved = pair.forward(z.copy())
    np.testing.assert_allclose(y, exact * cdf, rtol=3e-7, atol=2e-7)
    np.testing.assert_allclose(pair.backward(np.ones_like(z), saved), slope, rtol=3e-7, atol=3e-7)
    near_zero = np.abs(exact) < 1e-3
    np.testing.assert_allclose(y[near_zero], (exact * cdf)[near_zero], rtol=3e-7, atol=0)
