"""Masks that layers take, join and pass on."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from picodl import initializers, layers, ops
from picodl.layers import Layer

FIRST = np.array([[[0, 0], [1, 2], [0, 0], [3, 4]]], "f")
SECOND = np.array([[[0, 0], [0, 0], [-1, -2], [-3, -4]]], "f")
ONE, BOTH = [[0, 1, 0, 1]], [[0, 1, 1, 1]]


@pytest.mark.parametrize(
    ("kind", "of_one", "of_both"),
    [
        (layers.Add, [0, 1, -1, 0], [0, 1, -1, 0]),
        (layers.Average, [0, 0.5, -0.5, 0], [0, 0.5, -0.5, 0]),
        (layers.Subtract, [0, 1, 1, 6], [0, 1, 1, 6]),
        (layers.Multiply, [0, 0, -1, -9], [0, 1, -1, -9]),
        (layers.Maximum, [0, 1, -1, 3], [0, 1, -1, 3]),
        (layers.Minimum, [0, 0, -1, -3], [0, 1, -1, -3]),
    ],
)
def test_merged_values_and_masks(kind, of_one, of_both):
    mask = layers.Masking()
    y = kind()([mask(FIRST), SECOND])
    assert y.numpy()[0, :, 0].tolist() == of_one
    assert y.mask is None
    y = kind()([mask(FIRST), mask(SECOND)])
    assert y.numpy()[0, :, 0].tolist() == of_both
    np.testing.assert_array_equal(y.mask, BOTH)


@pytest.mark.parametrize("kind", [layers.Multiply, layers.Maximum, layers.Minimum])
def test_gradients_of_masked_merges_go_to_the_steps_that_count(kind):
    mask = layers.Masking()
    a, b = (ops.convert_to_tensor(x) for x in (FIRST, SECOND))
    a.requires_grad = b.requires_grad = True
    ops.sum(kind()([mask(a), mask(b)])).backward()
    assert not a.grad[0, [0, 2]].any()
    assert not b.grad[0, [0, 1]].any()
    assert a.grad[0, 1].all() and b.grad[0, 2].all()


def test_concatenated_masks():
    mask = layers.Masking()
    pair = [mask(FIRST), SECOND]
    np.testing.assert_array_equal(layers.Concatenate(axis=1)(pair).mask, [[0, 1, 0, 1, 1, 1, 1, 1]])
    np.testing.assert_array_equal(layers.Concatenate()(pair).mask, [[1, 1, 1, 1]])
    np.testing.assert_array_equal(layers.Concatenate()([mask(FIRST), mask(SECOND)]).mask, BOTH)


def test_merging_takes_one_mask_for_each_input():
    pair = [FIRST, SECOND]
    for layer in (layers.Add(), layers.Concatenate()):
        assert layer.compute_mask(pair, mask=[None, None]) is None
        with pytest.raises(ValueError, match="takes lists of inputs and masks"):
            layer.compute_mask(pair, mask=np.ones((1, 4), bool))
        with pytest.raises(ValueError, match="one mask for each of its 2 inputs; received 1"):
            layer.compute_mask(pair, mask=[None])


def test_attention_takes_its_masks_as_a_list():
    x = np.ones((2, 3, 4), "f")
    keep = np.ones((2, 3), bool)
    for layer in (layers.Attention(), layers.AdditiveAttention()):
        assert layer.compute_mask([x, x], mask=[keep, None]) is keep
        assert layer.compute_mask([x, x]) is None
        for call in (
            lambda m, a=layer: a([x, x], mask=m),
            lambda m, a=layer: a.compute_mask([x, x], m),
        ):
            with pytest.raises(ValueError, match=r"mask=\[query_mask, value_mask\]"):
                call(keep)
            with pytest.raises(ValueError, match="but received 1 of them"):
                call([keep])


def test_names_of_the_arguments_are_those_of_keras():
    for name in layers.__all__:
        kind = getattr(layers, name)
        if not (inspect.isclass(kind) and issubclass(kind, Layer)) or kind is Layer:
            continue
        call = list(inspect.signature(kind.call).parameters)
        masks = list(inspect.signature(kind.compute_mask).parameters)
        assert call[1:2] != ["x"], name
        assert masks[1:] in (["inputs", "previous_mask"], ["inputs", "mask"]), name
        if "compute_mask" in vars(kind):
            assert masks[-1] == "mask", name
    assert layers.Dense(2)(inputs=FIRST).shape == (1, 4, 2)
    assert layers.UpSampling2D().call(inputs=ops.ones((1, 2, 2, 1))).shape == (1, 4, 4, 1)


def test_each_step_gets_its_part_of_the_mask():
    class Masked(layers.Wrapper):
        supports_masking = True

        def call(self, inputs, mask=None):
            y = self.layer(inputs)
            return y if mask is None else y * np.asarray(mask, "f")[:, None]

    x = np.arange(24, dtype="f").reshape(3, 2, 4)
    mask = np.array([[False, True], [True, False], [True, True]])
    inner = layers.Dense(1, use_bias=False, kernel_initializer=initializers.Constant(0.01))
    y = layers.TimeDistributed(Masked(inner))(x, mask=mask)
    np.testing.assert_allclose(y[..., 0], [[0, 0.22], [0.38, 0], [0.7, 0.86]], rtol=1e-5)
    plain = layers.TimeDistributed(layers.Dense(5))
    for shape in ((3, 2), (3, 2, 7)):
        assert plain(x, mask=np.ones(shape, bool)).shape == (3, 2, 5)
    for shape in ((3,), (3, 3), (4, 2, 1)):
        with pytest.raises(ValueError, match=r"expects a mask of shape \(3, 2\)"):
            plain(x, mask=np.ones(shape, bool))


def test_masks_of_softmax_fit_its_input():
    x = np.array([[1.0, 2.0, 1.0]], "f")
    np.testing.assert_allclose(layers.Softmax()(x, mask=np.array([1, 0, 1])), [[0.5, 0, 0.5]])
    for shape in ((2, 3), (1, 1, 3)):
        with pytest.raises(ValueError, match=r"broadcasts to its input of shape \(1, 3\)"):
            layers.Softmax()(x, mask=np.ones(shape))
