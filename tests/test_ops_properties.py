"""Laws that ops obey for any shapes, axes and keys."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from picodl import ops
from picodl.tensor import Tensor
from picodl.testing import gradcheck
from tests.strategies import array_and_axis, array_and_key, arrays, broadcastable, seeds

quick = settings(max_examples=30, deadline=None)


@quick
@given(array_and_axis(several=True), st.booleans())
@pytest.mark.parametrize("name", ["sum", "mean", "var", "std", "max", "min", "prod", "ptp"])
def test_reductions_are_those_of_numpy(name, pair, keepdims):
    a, axis = pair
    found = getattr(ops, name)(a, axis, keepdims)
    np.testing.assert_allclose(
        found, getattr(np, name)(a, axis=axis, keepdims=keepdims), atol=1e-12
    )
    gradcheck(lambda x: getattr(ops, name)(x, axis, keepdims) * 0.1, a, tolerance=1e-5)


@quick
@given(array_and_key())
def test_get_item_is_that_of_numpy(pair):
    a, key = pair
    np.testing.assert_array_equal(ops.get_item(a, key), a[key])
    gradcheck(lambda x: x[key] ** 2, a)


@quick
@given(array_and_key())
def test_gradient_of_get_item_adds_up(pair):
    a, key = pair
    x = Tensor(a, requires_grad=True)
    y = x[key]
    y.backward(np.ones(y.shape))
    expected = np.zeros(a.shape)
    np.add.at(expected, key, 1.0)
    np.testing.assert_array_equal(x.grad, expected)


@quick
@given(broadcastable(3))
def test_where_and_arithmetic_broadcast(parts):
    a, b, c = parts
    np.testing.assert_allclose(ops.where(a > 0, b, c), np.where(a > 0, b, c))
    gradcheck(lambda x, y, z: ops.where(a > 0, x * y, y - z), a, b, c)


@quick
@given(array_and_axis(), st.data())
def test_concatenate_undoes_split(pair, data):
    a, axis = pair
    n = a.shape[axis]
    cuts = sorted(data.draw(st.lists(st.integers(0, n), max_size=3)))
    parts = ops.split(a, cuts, axis)
    np.testing.assert_array_equal(ops.concatenate(parts, axis), a)
    np.testing.assert_array_equal(ops.stack(ops.unstack(a, axis=axis), axis), a)


@quick
@given(array_and_axis(), st.integers(-7, 7))
def test_flip_roll_and_transpose_undo_themselves(pair, shift):
    a, axis = pair
    np.testing.assert_array_equal(ops.flip(ops.flip(a, axis), axis), a)
    np.testing.assert_array_equal(ops.roll(ops.roll(a, shift, axis), -shift, axis), a)
    np.testing.assert_array_equal(ops.moveaxis(ops.moveaxis(a, axis, 0), 0, axis), a)
    np.testing.assert_array_equal(ops.transpose(ops.transpose(a)), a)


@quick
@given(array_and_axis())
def test_sorting_is_that_of_numpy(pair):
    a, axis = pair
    np.testing.assert_array_equal(ops.sort(a, axis), np.sort(a, axis))
    np.testing.assert_array_equal(ops.argmax(a, axis), np.argmax(a, axis))
    values, places = ops.top_k(a, a.shape[-1])
    np.testing.assert_array_equal(np.take_along_axis(a, places, -1), values)
    np.testing.assert_array_equal(values, np.sort(a)[..., ::-1])


@quick
@given(arrays(), st.floats(0, 1))
@example(np.array([0.1968752, 0.1968752]), 0.19687520691340415)
def test_quantile_lies_between_the_extremes(a, q):
    value = ops.quantile(a, q)
    assert a.min() <= value <= a.max()
    np.testing.assert_allclose(value, np.quantile(a, q), atol=1e-12)


@quick
@given(arrays(shape=(4, 3)), arrays(shape=(4, 3)))
def test_cdist_is_a_distance(a, b):
    d = ops.cdist(a, b)
    np.testing.assert_allclose(d, np.linalg.norm(a[:, None] - b, axis=-1), atol=1e-12)
    np.testing.assert_allclose(np.diag(ops.cdist(a, a)), 0)


@quick
@given(arrays(shape=(2, 4, 6, 8)), st.sampled_from(["channels_last", "channels_first"]))
def test_space_to_depth_undoes_depth_to_space(x, form):
    there = ops.depth_to_space(x, 2, form)
    np.testing.assert_array_equal(ops.space_to_depth(there, 2, form), x)


@quick
@given(seeds, st.integers(1, 3), st.integers(1, 2), st.integers(0, 2), st.integers(1, 3))
def test_fold_is_the_transpose_of_unfold(seed, kernel, dilation, padding, stride):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(2, 3, 7, 8))
    columns = ops.unfold(x, kernel, dilation, padding, stride)
    y = rng.normal(size=columns.shape)
    back = ops.fold(y, (7, 8), kernel, dilation, padding, stride)
    np.testing.assert_allclose((columns * y).sum(), (x * back).sum())


@quick
@given(arrays(shape=(3, 4)), st.integers(1, 9), st.integers(1, 9))
def test_resize_keeps_constants_and_the_mean_of_whole_multiples(a, h, w):
    flat = np.full((5, 6, 2), a[0, 0])
    for method in ("nearest", "bilinear", "bicubic", "lanczos3"):
        np.testing.assert_allclose(ops.image.resize(flat, (h, w), method), a[0, 0], atol=1e-12)


@quick
@given(seeds)
def test_hsv_undoes_rgb(seed):
    x = np.random.default_rng(seed).random((4, 4, 3))
    np.testing.assert_allclose(ops.image.hsv_to_rgb(ops.image.rgb_to_hsv(x)), x, atol=1e-12)
