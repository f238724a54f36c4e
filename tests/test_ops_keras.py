"""Values of ops against those that Keras computed (float64, JAX backend)."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from picodl import config, ops, tree
from tests.keras_cases import CASES

GOLDEN = Path(__file__).parent / "golden" / "keras_ops.h5"


@pytest.fixture(scope="module")
def golden():
    with h5py.File(GOLDEN) as file:
        yield {key: [group[i][()] for i in sorted(group)] for key, group in file.items()}


@pytest.fixture(autouse=True)
def float64():
    config.set_floatx("float64")
    yield
    config.set_floatx("float32")


@pytest.mark.parametrize("i", range(len(CASES)), ids=lambda i: f"{CASES[i][0]}-{i}")
def test_value_is_that_of_keras(i, golden):
    name, args, kwargs = CASES[i]
    function = ops
    for part in name.split("."):
        function = getattr(function, part)
    found = tree.flatten(function(*args, **kwargs))
    expected = golden[f"{i:03d}"]
    assert len(found) == len(expected)
    # CTC and lists of floats are computed in float32 by Keras; antialiasing weights too
    tolerance = 1e-4 if name.startswith("ctc") else 1e-6
    for x, y in zip(found, expected, strict=True):
        assert x.shape == y.shape
        assert x.dtype.kind == y.dtype.kind
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)
