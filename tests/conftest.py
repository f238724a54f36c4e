"""Fixtures that several test files use."""

from __future__ import annotations

import os

# what was compiled on this machine before is left alone, unless asked for
os.environ.setdefault("PICODL_COMPILED", "0")

import pytest

import picodl


@pytest.fixture
def float64():
    """Computations in float64 with fresh names, as the golden values were made."""
    picodl.naming.reset_names()
    before = picodl.config.floatx()
    picodl.config.set_floatx("float64")
    yield
    picodl.config.set_floatx(before)
