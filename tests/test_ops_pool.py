"""Pooling against a loop over windows, and its gradients against differences."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from picodl import ops
from picodl.ops.pool import adaptive_bounds, pooling_of
from picodl.tensor import Tensor
from picodl.testing import gradcheck

rng = np.random.default_rng(0)


def by_windows(x, p, function):
    """function over each window, without what lies outside."""
    wide = np.pad(x, [(0, 0), *p.pads, (0, 0)], constant_values=np.nan)
    y = np.zeros((len(x), *p.out, x.shape[-1]))
    for o in itertools.product(*map(range, p.out)):
        ranges = (slice(i * s, i * s + k) for i, s, k in zip(o, p.strides, p.size, strict=True))
        y[(slice(None), *o)] = function(wide[(slice(None), *ranges)], tuple(range(1, x.ndim - 1)))
    return y


@st.composite
def poolings(draw):
    rank = draw(st.integers(1, 3))
    several = lambda values: tuple(draw(values) for _ in range(rank))  # noqa: E731
    sizes, size = several(st.integers(1, 7)), several(st.integers(1, 4))
    strides = draw(st.none() | st.just(several(st.integers(1, 4))))
    padding = draw(st.sampled_from(["valid", "same"]))
    assume(padding == "same" or all(n >= k for n, k in zip(sizes, size, strict=True)))
    return sizes, size, strides, padding


@settings(max_examples=1000, deadline=None)
@given(poolings())
def test_pooling_equals_the_loop_over_windows(where):
    sizes, *options = where
    shape = (2, *sizes, 3)
    n = int(np.prod(shape))
    x = rng.permutation(n).reshape(shape) / n - 0.5  # no two equal: a maximum has no slope there
    p = pooling_of(sizes, *options)
    np.testing.assert_array_equal(ops.max_pool(x, *options), by_windows(x, p, np.nanmax))
    np.testing.assert_allclose(
        ops.average_pool(x, *options), by_windows(x, p, np.nanmean), atol=1e-12
    )
    gradcheck(lambda x: ops.max_pool(x, *options), x)
    gradcheck(lambda x: ops.average_pool(x, *options), x)


@pytest.mark.parametrize("op", [ops.max_pool, ops.average_pool])
@pytest.mark.parametrize("options", [(2,), (3, 2, "same"), ((2, 3), 1)])
def test_second_derivatives(op, options):
    gradcheck(lambda x: op(x, *options) ** 2, rng.normal(size=(2, 5, 6, 2)), second=True)


def test_the_first_of_equal_elements_gets_the_gradient():
    x = Tensor(np.zeros((1, 4, 4, 1)), requires_grad=True)
    ops.max_pool(x, 2).backward()
    assert x.grad[0, :, :, 0].tolist() == [[1, 0, 1, 0], [0] * 4, [1, 0, 1, 0], [0] * 4]
    x = Tensor(np.array([[1.0, 5], [5, 3]]).reshape(1, 2, 2, 1), requires_grad=True)
    ops.max_pool(x, 2).backward()
    assert x.grad.ravel().tolist() == [0, 1, 0, 0]
    x = Tensor(np.zeros((1, 3, 1)), requires_grad=True)
    ops.max_pool(x, 2, 1).backward()
    assert x.grad.ravel().tolist() == [1, 1, 0]


def test_padding_never_wins_and_never_counts():
    x = np.array([-3.0, -2, -5]).reshape(1, 3, 1)
    assert ops.max_pool(x, 2, 2, "same").ravel().tolist() == [-2, -5]
    assert ops.average_pool(np.array([10.0, 20]).reshape(1, 2, 1), 3, 2, "same").ravel() == [15]


def test_channels_first_is_the_same_transposed():
    x = rng.normal(size=(2, 5, 6, 3))
    for op in (ops.max_pool, ops.average_pool):
        y = op(np.moveaxis(x, -1, 1), 2, 2, "same", "channels_first")
        np.testing.assert_allclose(np.moveaxis(y, 1, -1), op(x, 2, 2, "same"))


@pytest.mark.parametrize("out", [1, 2, 3, 5])
def test_adaptive_pooling(out):
    x = rng.normal(size=(2, 7, 5, 3))
    bounds = [adaptive_bounds(n, out) for n in (7, 5)]
    mean, largest = ops.adaptive_average_pool(x, out), ops.adaptive_max_pool(x, out)
    for i, j in itertools.product(range(out), range(out)):
        (a, b), (c, d) = bounds[0][i], bounds[1][j]
        np.testing.assert_allclose(mean[:, i, j], x[:, a:b, c:d].mean((1, 2)))
        np.testing.assert_array_equal(largest[:, i, j], x[:, a:b, c:d].max((1, 2)))
    gradcheck(lambda x: ops.adaptive_average_pool(x, out), x)
    gradcheck(lambda x: ops.adaptive_max_pool(x, out), x)


def test_float32_stays_and_empty_batches_pass():
    for op in (ops.max_pool, ops.average_pool):
        x = Tensor(np.ones((0, 4, 4, 2), np.float32), requires_grad=True)
        y = op(x, 2, padding="same")
        y.backward(y.data)
        assert y.shape == (0, 2, 2, 2) and y.dtype == np.float32
        assert x.grad.shape == x.shape and x.grad.dtype == np.float32


@pytest.mark.parametrize(
    "options, message",
    [
        ((5,), r"size \(5, 5\) do not fit into inputs of size \(3, 3\)"),
        ((2, 0), "strides .* at least 1"),
        (((2, 2, 2),), "pool_size must be an int or 2 ints"),
        ((2, 1, "full"), '"valid" or "same"'),
    ],
)
def test_bad_windows_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        ops.max_pool(np.ones((1, 3, 3, 1)), *options)


def test_pooled_symbols_keep_varying_sizes():
    import picodl

    images = picodl.Input((None, None, 3))
    assert ops.max_pool(images, 2).shape == (None, None, None, 3)
    assert ops.average_pool(images, 5, 4).shape == (None, None, None, 3)
    assert ops.conv(images, np.ones((7, 7, 3, 2)), 4).shape == (None, None, None, 2)
