"""Rows of a table: values, gradients with repeated ids, and ids that are refused."""

import numpy as np
import pytest

from picodl import ops
from picodl.ops.embedding import add_rows
from picodl.tensor import Tensor
from picodl.testing import gradcheck

TABLE = np.random.default_rng(0).normal(size=(6, 3))


@pytest.mark.parametrize("shape", [(), (4,), (2, 5), (2, 0)])
def test_picks_rows_and_adds_gradients_of_repeated_ids(shape):
    ids = np.random.default_rng(1).integers(0, 6, shape)
    np.testing.assert_array_equal(ops.embedding(TABLE, ids), TABLE[ids])
    gradcheck(lambda table: ops.embedding(table, ids), TABLE)
    gradcheck(lambda table: ops.embedding(table, ids) ** 2, TABLE, second=True)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_added_rows_keep_the_dtype(dtype):
    ids = np.array([2, 0, 2, 5])
    g = np.arange(8).reshape(4, 2).astype(dtype)
    total = add_rows(g, ids, 6)
    expected = np.zeros((6, 2), dtype)
    np.add.at(expected, ids, g)
    assert total.dtype == dtype
    np.testing.assert_array_equal(total, expected)


def test_ids_outside_the_table_are_refused():
    for ids, bad in (([0, 6], 6), ([-1, 2], -1)):
        with pytest.raises(ValueError, match=rf"ids in the range 0 to 5.*received {bad}"):
            ops.embedding(TABLE, np.array(ids))


def test_ids_with_fractions_are_refused_and_whole_floats_taken():
    with pytest.raises(TypeError, match="fractions"):
        ops.embedding(TABLE, np.array([0.5]))
    with pytest.raises(TypeError, match="fractions"):
        ops.embedding(TABLE, np.array([np.nan]))
    np.testing.assert_array_equal(ops.embedding(TABLE, np.array([2.0])), TABLE[[2]])


def test_ids_may_be_a_tensor():
    y = ops.embedding(Tensor(TABLE, requires_grad=True), Tensor(np.array([1, 1])))
    y.sum().backward()
    assert y.shape == (2, 3)
