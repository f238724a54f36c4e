"""Layers that change their input in training only: dropout and noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from picodl import ops, random, regularizers
from picodl.layers.activation import not_negative
from picodl.layers.base import Layer
from picodl.layers.checks import fraction, int_of
from picodl.typing import Config


class RandomLayer(Layer):
    """The base of layers that draw random numbers in training.

    Args:
        seed: an integer repeats the draws; None takes the next automatic seed.
    """

    built = True
    supports_masking = True

    def __init__(self, seed: int | None = None, draws: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.seed = seed
        self.seed_generator = random.SeedGenerator(seed) if draws else None

    def rng(self) -> np.random.Generator:
        """The generator of the next draw."""
        return random.generator(self.seed_generator)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape

    def get_config(self) -> Config:
        return {**super().get_config(), "seed": self.seed}


class Dropout(RandomLayer):
    """Set a fraction of the inputs to 0 in training and scale the others up by 1 / (1 - rate).

    Args:
        rate: the fraction to drop, from 0 to 1.
        noise_shape: the shape of the mask, broadcast over the input; None entries take its size.
        seed: of the draws.

    Raises:
        ValueError: for a rate outside 0 to 1.

    Reference: Srivastava et al., 2014, "Dropout: A Simple Way to Prevent Neural Networks from
    Overfitting", JMLR 15.
    """

    def __init__(
        self,
        rate: float,
        noise_shape: Sequence[int | None] | None = None,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        draws = isinstance(rate, (int, float)) and rate > 0
        super().__init__(seed, draws, **kwargs)
        self.rate = fraction(self, "rate", rate)
        self.noise_shape = _noise_shape(self, noise_shape)

    def call(self, inputs: Any, training: bool = False) -> Any:
        if not training or self.rate == 0:
            return inputs
        return ops.dropout(inputs, self.rate, self.rng(), self.mask_shape(inputs))

    def mask_shape(self, inputs: Any) -> Sequence[int | None] | None:
        """The shape of the mask for these inputs; None for theirs."""
        return self.noise_shape

    def get_config(self) -> Config:
        return {**super().get_config(), "rate": self.rate, "noise_shape": self.noise_shape}


def _noise_shape(layer: Layer, shape: Any) -> tuple[int | None, ...] | None:
    if shape is None:
        return None
    listed = isinstance(shape, (list, tuple))
    if not listed or any(n is not None and (int_of(n) is None or n < 1) for n in shape):
        raise ValueError(
            f'{type(layer).__name__} layer "{layer.name}": noise_shape must list positive '
            f"integers, or None for the input's size; received {shape!r}."
        )
    return tuple(shape)


class GaussianNoise(RandomLayer):
    """Add normal noise of the given standard deviation in training.

    Args:
        stddev: the standard deviation, not negative.
        seed: of the draws.
    """

    def __init__(self, stddev: float, seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(seed, **kwargs)
        self.stddev = not_negative(self, "stddev", stddev)

    def call(self, inputs: Any, training: bool = False) -> Any:
        if not training or self.stddev == 0:
            return inputs
        return inputs + self.stddev * _normal(self.rng(), inputs)

    def get_config(self) -> Config:
        return {**super().get_config(), "stddev": self.stddev}


class GaussianDropout(RandomLayer):
    """Multiply by normal noise of mean 1 and deviation sqrt(rate / (1 - rate)) in training.

    Args:
        rate: as in Dropout, at least 0 and less than 1.
        seed: of the draws.
    """

    def __init__(self, rate: float, seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(seed, **kwargs)
        self.rate = fraction(self, "rate", rate)
        if self.rate == 1:
            raise ValueError(
                f'GaussianDropout layer "{self.name}": rate must be less than 1; received {rate!r}.'
            )

    def call(self, inputs: Any, training: bool = False) -> Any:
        if not training or self.rate == 0:
            return inputs
        stddev = math.sqrt(self.rate / (1 - self.rate))
        return inputs * (1 + stddev * _normal(self.rng(), inputs))

    def get_config(self) -> Config:
        return {**super().get_config(), "rate": self.rate}


# the value that selu takes far below 0, negated scale * alpha
_ALPHA_PRIME = -1.7580993408473766


class AlphaDropout(RandomLayer):
    """Dropout that keeps mean and variance of selu outputs: dropped elements take selu's floor.

    Args:
        rate: the fraction to drop, from 0 to 1.
        noise_shape: as in Dropout.
        seed: of the draws.

    Reference: Klambauer et al., 2017, "Self-Normalizing Neural Networks", arXiv:1706.02515.
    """

    def __init__(
        self,
        rate: float,
        noise_shape: Sequence[int | None] | None = None,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(seed, **kwargs)
        self.rate = fraction(self, "rate", rate)
        self.noise_shape = _noise_shape(self, noise_shape)

    def call(self, inputs: Any, training: bool = False) -> Any:
        if not training or self.rate == 0:
            return inputs
        noise = self.noise_shape or (None,) * inputs.ndim
        shape = [inputs.shape[i] if n is None else n for i, n in enumerate(noise)]
        keep, p = ops.noise.keep_mask(shape, self.rate, self.rng())
        rate = 1 - p
        if rate == 1:
            return inputs * 0
        a = ((1 - rate) * (1 + rate * _ALPHA_PRIME**2)) ** -0.5
        b = -a * _ALPHA_PRIME * rate
        kept = keep.astype(inputs.dtype)
        return (inputs * kept + _ALPHA_PRIME * (1 - kept)) * a + b

    def get_config(self) -> Config:
        return {**super().get_config(), "rate": self.rate, "noise_shape": self.noise_shape}


class ActivityRegularization(Layer):
    """Pass the input on and add l1 * sum(|x|) + l2 * sum(x^2) over the batch size to the loss.

    Args:
        l1, l2: the factors, not negative.
    """

    built = True
    supports_masking = True

    def __init__(self, l1: float = 0.0, l2: float = 0.0, **kwargs: Any) -> None:
        super().__init__(activity_regularizer=regularizers.L1L2(l1, l2), **kwargs)
        self.l1 = l1
        self.l2 = l2

    def call(self, inputs: Any) -> Any:
        return inputs

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape

    def get_config(self) -> Config:
        base = super().get_config()
        base.pop("activity_regularizer", None)
        return {**base, "l1": self.l1, "l2": self.l2}


def _normal(rng: np.random.Generator, like: Any) -> Any:
    draw = rng.standard_normal(like.shape, np.float64 if like.dtype == np.float64 else np.float32)
    return np.asarray(draw, like.dtype)
