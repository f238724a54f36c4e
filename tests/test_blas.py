"""Products in small parts give what one product gives."""

from __future__ import annotations

import numpy as np
import pytest

from picodl import blas

rng = np.random.default_rng(0)


@pytest.fixture
def small(monkeypatch):
    """Parts of a thousand multiply-adds, whatever BLAS this is."""
    monkeypatch.setattr(blas, "has_small_kernels", lambda: True)
    monkeypatch.setattr(blas, "SMALL", 1000)
    monkeypatch.setattr(blas, "_LEAST", 2)
    monkeypatch.setattr(blas, "_DEPTH", 4)
    monkeypatch.setattr(blas, "_TALL", 1)
    blas._rows.cache_clear()
    yield
    blas._rows.cache_clear()


def matrices(m, k, n, dtype):
    return rng.normal(size=(m, k)).astype(dtype), rng.normal(size=(k, n)).astype(dtype)


@pytest.fixture
def parts(monkeypatch):
    """The shapes of the stacks that numpy's matmul is given."""
    seen = []
    matmul = np.matmul

    def watched(a, b, **options):
        seen.append(a.shape)
        return matmul(a, b, **options)

    monkeypatch.setattr(np, "matmul", watched)
    return seen


def test_large_products_are_cut(small, parts):
    a, b = matrices(64, 5, 6, np.float32)
    blas.dot(a, b)
    blas.dot(matrices(61, 5, 6, np.float32)[0], b)
    blas.dot_over_rows(a, np.ones((64, 6), np.float32))
    blas.dot_over_rows(np.ones((61, 5), np.float32), np.ones((61, 6), np.float32))
    assert parts == [(2, 32, 5), (1, 33, 5), (2, 5, 32), (1, 5, 33)]


def test_a_few_rows_do_not_turn_a_matrix(small, parts, monkeypatch):
    monkeypatch.setattr(blas, "_TALL", 65)
    a, b = matrices(64, 5, 6, np.float32)
    blas.dot(a, np.asfortranarray(b))
    assert not parts


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(64, 5, 6), (61, 5, 6), (7, 3, 2), (1, 40, 40), (200, 10, 1)])
def test_parts_of_rows(small, shape, dtype):
    a, b = matrices(*shape, dtype)
    want = np.dot(a, b)
    for left in (a, np.asfortranarray(a)):
        for right in (b, np.asfortranarray(b)):
            np.testing.assert_allclose(blas.dot(left, right), want, rtol=1e-4, atol=1e-5)
            out = np.full_like(want, np.nan)
            assert blas.dot(left, right, out) is out
            np.testing.assert_allclose(out, want, rtol=1e-4, atol=1e-5)
            assert out.dtype == dtype


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(64, 5, 6), (61, 5, 6), (103, 3, 3), (7, 3, 2), (9, 40, 40)])
def test_sums_over_parts_of_the_rows(small, shape, dtype):
    rows, m, n = shape
    a, b = rng.normal(size=(rows, m)).astype(dtype), rng.normal(size=(rows, n)).astype(dtype)
    np.testing.assert_allclose(blas.dot_over_rows(a, b), a.T @ b, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(blas.dot_over_rows(a[:, ::-1], b), a[:, ::-1].T @ b, rtol=1e-4)
    assert blas.dot_over_rows(a, b).dtype == dtype


def test_what_does_not_fit_is_an_error(small):
    a, b = matrices(64, 5, 6, np.float32)
    with pytest.raises(ValueError, match="shapes"):
        blas.dot(a, b[:-1])
    with pytest.raises(ValueError):
        blas.dot(a, b, np.empty((6, 64), np.float32).T)
    with pytest.raises(ValueError):
        blas.dot(a, b, np.empty((64, 6)))
    with pytest.raises(ValueError, match="shapes"):
        blas.dot_over_rows(a, a[:-1])
    with pytest.raises(ValueError, match="shapes"):
        blas.dot_over_rows(a, a[:32])  # would broadcast over a stack of two


def test_mixed_dtypes_are_left_to_numpy(small):
    a, b = matrices(64, 5, 6, np.float32)
    assert blas.dot(a, b.astype(np.float64)).dtype == np.float64
    assert blas.dot_over_rows(a, a.astype(np.float64)).dtype == np.float64
    whole = np.arange(64 * 5).reshape(64, 5)
    np.testing.assert_array_equal(blas.dot(whole, whole.T), whole @ whole.T)


def test_rows_are_a_divisor_where_there_is_a_large_one(small):
    assert blas._rows(64, 33) == 32
    assert blas._rows(61, 33) == 33
    assert blas._rows(20, 33) == 20
