"""Convolutions against a loop over windows, and their gradients against differences."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from picodl import activations, ops, parallel
from picodl.ops import windows as windows_module
from picodl.ops.windows import pads_of
from picodl.tensor import Tensor
from picodl.testing import gradcheck

rng = np.random.default_rng(0)


def by_windows(x, w, strides, padding, dilation):
    """A convolution in channels_last, one window and tap at a time."""
    rank = w.ndim - 2
    taps, per_group, filters = w.shape[:-2], w.shape[-2], w.shape[-1]
    groups = x.shape[-1] // per_group
    pads = pads_of(padding, x.shape[1:-1], taps, strides, dilation)
    x = np.pad(x, [(0, 0), *pads, (0, 0)])
    out = [
        (n - (k - 1) * d - 1) // s + 1
        for n, k, s, d in zip(x.shape[1:-1], taps, strides, dilation, strict=True)
    ]
    y = np.zeros((len(x), *out, filters))
    part = filters // groups
    for o in itertools.product(*map(range, out)):
        for t in itertools.product(*map(range, taps)):
            at = tuple(o[i] * strides[i] + t[i] * dilation[i] for i in range(rank))
            for g in range(groups):
                c, f = slice(g * per_group, (g + 1) * per_group), slice(g * part, (g + 1) * part)
                y[(slice(None), *o, f)] += x[(slice(None), *at, c)] @ w[t][:, f]
    return y


def geometry(size=st.integers(1, 7)):
    """Rank, kernel, strides, dilation, sizes, padding of one convolution."""

    @st.composite
    def draw(d):
        rank = d(st.integers(1, 3))
        several = lambda values: tuple(d(values) for _ in range(rank))  # noqa: E731
        kernel = several(st.integers(1, 4 if rank < 3 else 2))
        strides, dilation = several(st.integers(1, 3)), several(st.integers(1, 3))
        sizes, padding = several(size), d(st.sampled_from(["valid", "same"]))
        pads = pads_of(padding, sizes, kernel, strides, dilation)
        for n, k, e, (a, b) in zip(sizes, kernel, dilation, pads, strict=True):
            assume(n + a + b >= (k - 1) * e + 1)
        return kernel, strides, dilation, sizes, padding

    return draw()


@settings(max_examples=800, deadline=None)
@given(geometry(), st.sampled_from([(1, 2, 3), (2, 1, 2), (3, 1, 1), (2, 2, 1)]), st.integers(0, 2))
def test_conv_equals_the_loop_over_windows(where, groups_channels_filters, images):
    kernel, strides, dilation, sizes, padding = where
    groups, channels, filters = groups_channels_filters
    x = rng.normal(size=(images, *sizes, groups * channels))
    w = rng.normal(size=(*kernel, channels, groups * filters))
    b = rng.normal(size=groups * filters)
    expected = by_windows(x, w, strides, padding, dilation)
    y = ops.conv(x, w, strides, padding, None, dilation)
    np.testing.assert_allclose(y, expected, atol=1e-12)
    y = ops.conv(x, w, strides, padding, None, dilation, b)
    np.testing.assert_allclose(y, expected + b, atol=1e-12)


@settings(max_examples=80, deadline=None)
@given(geometry(), st.sampled_from([(1, 2, 3), (2, 2, 1), (2, 1, 2)]))
def test_conv_gradients(where, groups_channels_filters):
    kernel, strides, dilation, sizes, padding = where
    groups, channels, filters = groups_channels_filters
    x = rng.normal(size=(2, *sizes, groups * channels))
    w = rng.normal(size=(*kernel, channels, groups * filters))
    b = rng.normal(size=groups * filters)
    options = (strides, padding, None, dilation)
    gradcheck(lambda x, w: ops.conv(x, w, *options), x, w)
    gradcheck(lambda x, w, b: ops.conv(x, w, *options, b, activations.tanh.pair), x, w, b)
    gradcheck(lambda w, b: ops.conv(x, w, *options, b), w, b)
    gradcheck(lambda x: ops.conv(x, w, *options, b), x)
    gradcheck(lambda b: ops.conv(x, w, *options, b, activations.tanh.pair), b)


@settings(max_examples=80, deadline=None)
@given(geometry(), st.sampled_from(["valid", "same"]), st.booleans())
def test_conv_transpose_is_the_transpose_of_conv(where, padding, spare):
    kernel, strides, dilation, sizes, _ = where
    x, b = rng.normal(size=(2, *sizes, 2)), rng.normal(size=3)
    w = rng.normal(size=(*kernel, 3, 2))
    extra = tuple(s - 1 for s in strides) if spare else None
    assume(extra is None or padding == "valid" or all(n > 1 for n in sizes))
    options = (strides, padding, extra, None, dilation)
    y = ops.conv_transpose(x, w, *options)
    if padding == "valid":  # then <conv_transpose(x), y> = <x, conv(y)>
        back = ops.conv(y, w, strides, "valid", None, dilation)
        back = back[(slice(None), *(slice(0, n) for n in sizes))]
        assert np.isclose((y * y).sum(), (back * x).sum())
    gradcheck(lambda x, w: ops.conv_transpose(x, w, *options), x, w)
    pair = activations.tanh.pair
    gradcheck(lambda x, w, b: ops.conv_transpose(x, w, *options, b, pair), x, w, b)


def test_conv_transpose_lengths_by_hand():
    x, w = np.array([1.0, 10, 100]).reshape(1, 3, 1), np.array([1.0, 2, 3]).reshape(3, 1, 1)
    assert ops.conv_transpose(x, w, 2).ravel().tolist() == [1, 2, 13, 20, 130, 200, 300]
    assert ops.conv_transpose(x, w, 2, "same").ravel().tolist() == [1, 2, 13, 20, 130, 200]


@settings(max_examples=80, deadline=None)
@given(geometry(), st.integers(1, 2))
def test_depthwise_conv(where, multiplier):
    kernel, strides, dilation, sizes, padding = where
    x, b = rng.normal(size=(2, *sizes, 3)), rng.normal(size=3 * multiplier)
    w = rng.normal(size=(*kernel, 3, multiplier))
    options = (strides, padding, None, dilation)
    flat = w.reshape(*kernel, 1, 3 * multiplier)
    y = ops.depthwise_conv(x, w, *options)
    np.testing.assert_allclose(y, by_windows(x, flat, strides, padding, dilation), atol=1e-12)
    np.testing.assert_array_equal(y, ops.conv(x, flat, *options))
    pair = activations.tanh.pair
    gradcheck(lambda x, w, b: ops.depthwise_conv(x, w, *options, b, pair), x, w, b)
    gradcheck(lambda w: ops.depthwise_conv(x, w, *options), w)


def test_separable_conv_is_both_after_another():
    x, d = rng.normal(size=(2, 6, 5, 2)), rng.normal(size=(3, 3, 2, 2))
    p, b = rng.normal(size=(1, 1, 4, 3)), rng.normal(size=3)
    y = ops.separable_conv(x, d, p, 2, "same", None, 1, b)
    np.testing.assert_allclose(y, ops.depthwise_conv(x, d, 2, "same") @ p[0, 0] + b)
    gradcheck(lambda x, d, p, b: ops.separable_conv(x, d, p, 2, "same", None, 1, b), x, d, p, b)


@pytest.mark.parametrize(
    "op, shape",
    [
        (
            lambda x, w, b: ops.conv(x, w, 2, "same", None, 1, b, activations.tanh.pair),
            (3, 2, 2, 3),
        ),
        (lambda x, w, b: ops.conv(x, w), (2, 2, 2, 3)),
        (lambda x, w, b: ops.conv(x, w, 1, "same"), (1, 1, 2, 3)),
        (lambda x, w, b: ops.conv_transpose(x, w, 2, bias=b), (3, 2, 3, 2)),
        (lambda x, w, b: ops.conv_transpose(x, w, 2, "same"), (3, 2, 3, 2)),
        (lambda x, w, b: ops.depthwise_conv(x, w, 2, "same"), (3, 3, 2, 2)),
        (lambda x, w, b: ops.depthwise_conv(x, w, 1, dilation_rate=2), (2, 2, 2, 1)),
    ],
)
def test_second_derivatives(op, shape):
    x, w, b = rng.normal(size=(2, 5, 4, 2)), rng.normal(size=shape), rng.normal(size=3)
    gradcheck(lambda x, w, b: op(x, w, b) ** 2, x, w, b, second=True)


@pytest.mark.parametrize("name", ["relu", "gelu", "softmax", "leaky_relu", "sigmoid", "elu"])
def test_fused_activation_equals_the_op(name):
    activation = getattr(activations, name)
    x, w, b = rng.normal(size=(3, 6, 6, 2)), rng.normal(size=(3, 3, 2, 4)), rng.normal(size=4)
    g = rng.normal(size=(3, 4, 4, 4))
    for op in (
        ops.conv,
        lambda *a, **k: ops.conv_transpose(a[0], np.swapaxes(w, 2, 3), **k)[:, :4, :4],
    ):
        found = []
        for fused in (True, False):
            t = Tensor(x, requires_grad=True)
            if fused:
                y = op(t, w, bias=Tensor(b), pair=activation.pair)
            else:
                y = activation(op(t, w, bias=Tensor(b)))
            y.backward(g[: len(y.data)])
            found.append((y.data, t.grad))
        for a, c in zip(*found, strict=True):
            np.testing.assert_allclose(a, c, atol=1e-12)


def test_channels_first_is_the_same_transposed():
    x, w, b = rng.normal(size=(2, 5, 6, 3)), rng.normal(size=(3, 2, 3, 4)), rng.normal(size=4)
    first = np.moveaxis(x, -1, 1)
    for op, kernel in ((ops.conv, w), (ops.conv_transpose, np.swapaxes(w, 2, 3))):
        y = op(x, kernel, 2, "same", bias=b)
        z = op(first, kernel, 2, "same", data_format="channels_first", bias=b)
        np.testing.assert_allclose(z, np.moveaxis(y, -1, 1))
    d = w[..., :2]
    y = ops.depthwise_conv(first, d, data_format="channels_first")
    np.testing.assert_allclose(y, np.moveaxis(ops.depthwise_conv(x, d), -1, 1))


def test_large_images_go_through_in_rows(monkeypatch):
    x, w, b = rng.normal(size=(3, 11, 7, 2)), rng.normal(size=(3, 3, 2, 4)), rng.normal(size=4)

    def both():
        t = [Tensor(a, requires_grad=True) for a in (x, w, b)]
        y = ops.conv(*t[:2], 2, "same", bias=t[2], pair=activations.relu.pair)
        (y * y).sum().backward()
        return [y.data, *(a.grad for a in t)]

    whole = both()
    monkeypatch.setattr(windows_module, "COLUMNS", 100)  # two rows at a time
    for a, c in zip(whole, both(), strict=True):
        np.testing.assert_allclose(a, c, atol=1e-10)
    gradcheck(lambda x, w, b: ops.conv(x, w, 1, "same", None, 2, b, activations.tanh.pair), x, w, b)
    gradcheck(lambda w: ops.conv(x, w), w)
    t = np.swapaxes(w, 2, 3)
    gradcheck(lambda x, t: ops.conv_transpose(x[..., :2], t[..., :2], 2), x, t)


@pytest.mark.parametrize("padding", ["valid", "same"])
@pytest.mark.parametrize(
    "channels, kernel, strides", [(1, (3, 3), (2, 1)), (3, (2, 4), 1), (2, (5,), 1)]
)
def test_few_channels_go_through_in_pairs(channels, kernel, strides, padding):
    sizes = (7, 8, 9)[-len(kernel) :]
    for width in (sizes[-1], sizes[-1] + 1):
        x = rng.normal(size=(3, *sizes[:-1], width, channels))
        w, b = rng.normal(size=(*kernel, channels, 4)), rng.normal(size=4)
        steps = (strides,) * len(kernel) if isinstance(strides, int) else strides
        z = by_windows(x, w, steps, padding, (1,) * len(kernel)) + b
        for pair, expected in ((activations.relu.pair, np.maximum(z, 0)), (None, z)):
            y = ops.conv(x, w, strides, padding, bias=b, pair=pair)
            np.testing.assert_allclose(y, expected, atol=1e-12)
        gradcheck(lambda w, b: ops.conv(x, w, strides, padding, bias=b), w, b)
        gradcheck(lambda w: ops.conv(x, w, strides, padding, bias=b, pair=pair), w)
        gradcheck(lambda b: ops.conv(x, w, strides, padding, bias=b) ** 2, b, second=True)


def test_what_is_kept_between_calls_stays_small(monkeypatch):
    scratch = windows_module._scratch
    monkeypatch.setattr(windows_module, "KEPT", 1 << 20)
    w = np.ones((3, 3, 8, 8), np.float32)
    for n in range(20, 80, 2):
        ops.conv(np.ones((1, n, n, 8), np.float32), w, padding="same")
        assert scratch.kept < 3 << 20
    assert len(scratch.known) <= 64 and scratch.buffer.nbytes <= 8 * 4 * windows_module.COLUMNS


def test_numbers_do_not_depend_on_threads():
    x = rng.normal(size=(40, 24, 24, 8)).astype(np.float32)
    w = rng.normal(size=(3, 3, 8, 16)).astype(np.float32)
    found = []
    for threads in (1, 3):
        parallel.set_threads(threads)
        t = [Tensor(a, requires_grad=True) for a in (x, w)]
        with parallel.blas_single_thread():
            y = ops.conv(*t, 1, "same")
            y.backward(y.data)
        found.append([y.data, *(a.grad for a in t)])
    parallel.set_threads(None)
    for a, c in zip(*found, strict=True):
        np.testing.assert_array_equal(a, c)


def test_float32_stays_and_inputs_are_left_alone():
    arrays = [rng.normal(size=s).astype(np.float32) for s in ((2, 5, 5, 3), (3, 3, 3, 4), (4,))]
    for a in arrays:
        a.flags.writeable = False
    t = [Tensor(a, requires_grad=True) for a in arrays]
    y = ops.conv(*t[:2], bias=t[2], pair=activations.relu.pair)
    g = np.ones_like(y.data)
    g.flags.writeable = False
    y.backward(g)
    assert y.dtype == np.float32
    assert all(a.grad.dtype == np.float32 for a in t)


def test_strided_and_broadcast_gradients_are_accepted():
    x = Tensor(rng.normal(size=(2, 6, 6, 3)), requires_grad=True)
    y = ops.conv(x[:, ::2, ::-1], rng.normal(size=(2, 2, 3, 2)))
    y.mean().backward()
    assert np.isfinite(x.grad).all()


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda: ops.conv(np.ones((1, 2, 2, 1)), np.ones((3, 3, 1, 4))),
            r"size \(3, 3\).*\(2, 2\)",
        ),
        (lambda: ops.conv(np.ones((1, 5, 5, 3)), np.ones((3, 3, 2, 4))), "3 channels"),
        (lambda: ops.conv(np.ones((1, 5, 5, 4)), np.ones((3, 3, 2, 3))), "multiples of the number"),
        (lambda: ops.conv(np.ones((1, 5, 3)), np.ones((3, 3, 3, 3))), "rank 4"),
        (lambda: ops.conv(np.ones((1, 5, 3)), np.ones((3, 3, 3)), 0), "strides .* at least 1"),
        (
            lambda: ops.conv(np.ones((1, 5, 3)), np.ones((3, 3, 3)), padding="full"),
            "padding must be",
        ),
        (lambda: ops.conv_transpose(np.ones((1, 5, 3)), np.ones((3, 3, 2))), "2 channels"),
        (
            lambda: ops.conv_transpose(np.ones((1, 5, 2)), np.ones((3, 3, 2)), 2, output_padding=2),
            r"below the strides \(2,\)",
        ),
        (lambda: ops.depthwise_conv(np.ones((1, 5, 3)), np.ones((3, 2, 1))), "2 channels"),
    ],
)
def test_bad_shapes_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
