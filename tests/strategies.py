"""Hypothesis strategies shared by the tests: shapes, axes, arrays, keys, windows."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

shapes = hnp.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=5)
shapes_with_empty = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
paddings = st.sampled_from(["valid", "same"])
strides = st.integers(1, 3)
seeds = st.integers(0, 2**32 - 1)


def arrays(shape=shapes, dtype=np.float64, low=-3.0, high=3.0):
    """Arrays of finite numbers."""
    elements = st.floats(low, high, width=32, allow_subnormal=False)
    return hnp.arrays(dtype, shape, elements=elements)


def distinct_arrays(shape=shapes):
    """Arrays without two equal elements, in random order: free of ties and kinks at 0."""

    @st.composite
    def draw(d):
        size = d(shape) if not isinstance(shape, tuple) else shape
        n = int(np.prod(size))
        order = np.array(d(st.permutations(range(n)))) if n <= 60 else np.arange(n)
        return ((order - n / 2 + 0.25) / max(n, 1) * 4).reshape(size)

    return draw()


@st.composite
def array_and_axis(draw, several=False):
    """An array and an axis of it; or None or a tuple of axes too."""
    a = draw(distinct_arrays())
    axis = st.integers(-a.ndim, a.ndim - 1)
    if several:
        tuples = st.sets(st.integers(0, a.ndim - 1), min_size=1).map(lambda s: tuple(sorted(s)))
        axis = st.one_of(st.none(), axis, tuples)
    return a, draw(axis)


@st.composite
def array_and_key(draw):
    """An array and an index of it: slices, integers, None, Ellipsis, arrays of integers."""
    a = draw(distinct_arrays())
    if draw(st.booleans()):
        key = hnp.basic_indices(a.shape, allow_newaxis=True, max_dims=6)
    else:
        key = hnp.integer_array_indices(a.shape)
    return a, draw(key)


@st.composite
def broadcastable(draw, count=2):
    """Arrays whose shapes broadcast together."""
    shaped = draw(hnp.mutually_broadcastable_shapes(num_shapes=count, max_dims=3, max_side=4))
    return [draw(distinct_arrays(shape)) for shape in shaped.input_shapes]
