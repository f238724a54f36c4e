"""Mistakes that ops name: what was expected, what came."""

from __future__ import annotations

import numpy as np
import pytest

from picodl import ops
from picodl.tensor import Tensor

A = np.ones((3, 4))
IMAGE = np.ones((1, 4, 4, 3))

MISTAKES = [
    (lambda: ops.sum(A, axis=2), ValueError, "axis 2 is out of"),
    (lambda: ops.max(A[:0]), ValueError, "is empty"),
    (lambda: ops.transpose(A, (0, 2)), ValueError, "axis 2 is out of range"),
    (lambda: ops.take(A, [3], 0), IndexError, "out of bounds"),
    (lambda: ops.take(A, [0.5], 0), TypeError, "whole numbers"),
    (lambda: ops.take_along_axis(A, [0], 0), ValueError, "2 axes"),
    (lambda: Tensor(A)[0.5], IndexError, "valid indices"),
    (lambda: ops.where(A > 0, A), ValueError, "both x1 and x2"),
    (lambda: ops.one_hot([0], 3, sparse=True), ValueError, "sparse=False"),
    (lambda: ops.scatter([[3]], [1.0], (3,)), IndexError, "out of range"),
    (lambda: ops.scatter_update(A, [[0, 0]], [1.0], "mean"), ValueError, "reduction must be"),
    (lambda: ops.slice(A, (2, 2), (2, 2)), ValueError, "does not lie inside"),
    (lambda: ops.select([A > 0], []), ValueError, "1 conditions for 0"),
    (lambda: ops.split(A, 3, axis=1), ValueError, "axis 1 of size 4 into 3 equal"),
    (lambda: ops.unstack(A, 2), ValueError, "expected 2 parts"),
    (lambda: ops.pad(A, -1), ValueError, "must not be negative"),
    (lambda: ops.pad(A, 1, "mean"), ValueError, "mode must be"),
    (lambda: ops.pad(A, 1, "edge", 0.0), ValueError, "goes with"),
    (lambda: ops.meshgrid(A[0], indexing="x"), ValueError, "indexing must be"),
    (lambda: ops.diag(np.ones((1, 1, 1))), ValueError, "a vector or a matrix"),
    (lambda: ops.average(A, 0, np.ones(4)), ValueError, "weights must have the shape"),
    (lambda: ops.bitwise_and(A, A), TypeError, "works on integers"),
    (lambda: ops.ldexp(A, A), TypeError, "integers x2"),
    (lambda: ops.top_k(A, 5), ValueError, "k=5 of the last axis"),
    (lambda: ops.in_top_k([9], A[:1], 1), ValueError, "from 0 to 3"),
    (lambda: ops.quantile(A, 1.5), ValueError, "fractions from 0 to 1"),
    (lambda: ops.quantile(A, 0.5, method="mean"), ValueError, "method must be one of"),
    (lambda: ops.searchsorted(A[0], A, "middle"), ValueError, "side must be"),
    (lambda: ops.bincount([-1, 2]), ValueError, "whole numbers from 0"),
    (lambda: ops.histogram(A, 0), ValueError, "positive integer"),
    (lambda: ops.segment_sum(A, [0, 1, 5], 3), ValueError, "go up to 5"),
    (lambda: ops.segment_sum(A, [0, 1]), ValueError, "one per row"),
    (lambda: ops.tensordot(A, A[:2]), ValueError, "cannot pair axes"),
    (lambda: ops.cross(A, A), ValueError, "2 or 3 elements"),
    (lambda: ops.correlate(A, A), ValueError, "takes vectors"),
    (lambda: ops.correlate(A[0], A[0], "all"), ValueError, "mode must be"),
    (lambda: ops.psnr(A, A[0], 1.0), ValueError, "one shape"),
    (lambda: ops.inv(A), ValueError, r"square matrices .*\(3, 4\)"),
    (lambda: ops.inv(np.ones((2, 2))), ValueError, "inv failed.*[Ss]ingular"),
    (lambda: ops.solve(np.ones((2, 2)), np.ones(2)), ValueError, "solve failed"),
    (lambda: ops.cholesky(-np.eye(2)), ValueError, "cholesky failed.*positive definite"),
    (lambda: ops.qr(A, "raw"), ValueError, "reduced"),
    (lambda: ops.norm(np.ones((2, 2, 2)), 3), ValueError, "needs an axis"),
    (lambda: ops.norm(A, 3, (0, 1)), ValueError, "knows no ord=3"),
    (lambda: ops.einsum("ii->i", A), ValueError, "'i' is repeated"),
    (lambda: ops.normalize(A, order=0), ValueError, "order of at least 1"),
    (lambda: ops.depth_to_space(IMAGE, 2), ValueError, "multiple of 4 channels"),
    (lambda: ops.space_to_depth(IMAGE, 3), ValueError, "multiples of it"),
    (lambda: ops.unfold(IMAGE, 9), ValueError, "does not fit"),
    (lambda: ops.fold(np.ones((1, 4, 5)), (4, 4), 2), ValueError, "takes columns of shape"),
    (lambda: ops.rearrange(A, "a b"), ValueError, "needs an arrow"),
    (lambda: ops.rearrange(A, "a b -> a c"), ValueError, "exactly once on both sides"),
    (lambda: ops.rearrange(A, "(a c) b -> a b c"), ValueError, "leaves the sizes"),
    (lambda: ops.rearrange(A, "(a c) b -> a b c", a=2), ValueError, "does not fit an axis of"),
    (lambda: ops.rearrange(A, "a b c -> a b c"), ValueError, "has 3 axes"),
    (lambda: ops.map(lambda x: x, A[:0]), ValueError, "at least one element"),
    (lambda: ops.scan(lambda c, x: (c, x), A), ValueError, "needs xs, or length"),
    (lambda: ops.image.resize(A, (2, 2)), ValueError, "takes an image"),
    (lambda: ops.image.resize(IMAGE, (0, 2)), ValueError, "must be positive"),
    (lambda: ops.image.resize(IMAGE, (2, 2), "area"), ValueError, "interpolation must be one"),
    (
        lambda: ops.image.pad_images(IMAGE, 1),
        ValueError,
        "exactly two of top_padding",
    ),
    (lambda: ops.image.crop_images(IMAGE, 2, 2, 2, 2), ValueError, "cannot take 2 and 2"),
    (
        lambda: ops.image.pad_images(IMAGE, 1, 1, target_height=3, target_width=9),
        ValueError,
        "must not be negative",
    ),
    (lambda: ops.image.rgb_to_hsv(IMAGE[..., :2]), ValueError, "takes 3 channels"),
    (lambda: ops.image.map_coordinates(A, A, 1), ValueError, "one row per axis"),
    (lambda: ops.image.map_coordinates(A, A[:2], 2), ValueError, "order must be 0"),
    (lambda: ops.image.affine_transform(IMAGE, np.ones(6)), ValueError, "8 numbers per image"),
    (lambda: ops.ctc_decode(A, [1]), ValueError, "batch, steps, classes"),
    (lambda: ops.convert_to_tensor("a"), TypeError, "Expected numbers"),
]


@pytest.mark.parametrize("i", range(len(MISTAKES)))
def test_mistake_is_named(i):
    call, error, text = MISTAKES[i]
    with pytest.raises(error, match=text):
        call()


LOGITS = np.zeros((1, 3, 4))


@pytest.mark.parametrize(
    ("labels", "length", "steps", "text"),
    [
        ([[1, 1, 2]], [3], [3], "3 labels, 1 equal to the one before; they need 4 steps"),
        ([[0, 1, 2]], [3], [3], "the label 0 is mask_index"),
        ([[1, 7, 2]], [3], [3], "from 0 to 3"),
        ([[1, 2, 3]], [4], [3], "target_length must be 1 numbers from 0 to 3"),
        ([[1, 2, 3]], [1], [4], "output_length"),
    ],
)
def test_ctc_loss_names_impossible_labels(labels, length, steps, text):
    with pytest.raises(ValueError, match=text):
        ops.ctc_loss(np.array(labels), LOGITS, np.array(length), np.array(steps))


def test_gradients_that_do_not_exist_are_refused():
    x = Tensor(A, requires_grad=True)
    with pytest.raises(NotImplementedError, match="m >= n in mode reduced"):
        ops.qr(x)
    with pytest.raises(NotImplementedError, match="full_matrices=False"):
        ops.svd(x)
    with pytest.raises(NotImplementedError, match="order x1"):
        ops.gammainc(x, 2.0).sum().backward()
    singular = Tensor(np.ones((2, 2)), requires_grad=True)
    y = ops.det(singular)
    with pytest.raises(NotImplementedError, match="singular"):
        y.backward(create_graph=True)


def test_numpy_errors_say_which_op_it_was():
    with pytest.raises(ValueError, match="same shape") as caught:
        ops.stack([np.ones(2), Tensor(np.ones(3))])
    assert caught.value.__notes__ == ["in picodl.ops.stack of shapes (2,), (3,)"]
    with pytest.raises(ValueError, match="size not equal to one") as caught:
        ops.squeeze(Tensor(A), 0)
    assert caught.value.__notes__ == ["in picodl.ops.squeeze of shapes (3, 4)"]
