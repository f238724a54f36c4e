"""Seeded random numbers, with the streams of Keras's NumPy backend.

Python's and numpy's global generators are neither read nor changed. An integer seed gives the same
numbers at every call, a SeedGenerator new ones at each, and no seed draws from a generator of
picodl's own, which `utils.set_random_seed` starts.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from picodl import config
from picodl.naming import auto_name
from picodl.ops.core import Numeric, op
from picodl.ops.indexing import take
from picodl.saving import registry
from picodl.tensor import Tensor, record
from picodl.typing import Array, Config

_seeds = random.Random()
_lock = threading.Lock()
_global: list[SeedGenerator] = []  # the generator of draws without a seed, made at first use


def set_seed(seed: int | None) -> None:
    """Start the stream of automatic seeds again; None starts it anywhere."""
    _seeds.seed(seed)
    _global.clear()


def get_state() -> dict[str, Any]:
    """The state of automatic seeds and of draws without a seed, for `set_state`."""
    return {"seeds": _seeds.getstate(), "global": _global[0].get_state() if _global else None}


def set_state(state: dict[str, Any]) -> None:
    """Go on from a state that `get_state` gave."""
    version, words, gauss = state["seeds"]
    _seeds.setstate((version, tuple(words), gauss))
    _global.clear()
    if state["global"] is not None:
        _global.append(SeedGenerator(0))
        _global[0].set_state(state["global"])


def next_seed() -> int:
    """The next automatic seed: a number from 1 to 1e9."""
    return _seeds.randint(1, int(1e9))


class SeedGenerator:
    """A seed and a count of the draws made with it, so that each draw is a new one.

    Args:
        seed: from 0 to 2^32 - 1. None takes the next automatic one.
        name: Defaults to a numbered "seed_generator".

    Raises:
        ValueError: for a seed that is no such integer.

    >>> generator = SeedGenerator(7)
    >>> normal((2,), seed=generator)
    array([0.00123015, 0.29874554], dtype=float32)
    >>> normal((2,), seed=generator)
    array([ 0.34736177, -2.337856  ], dtype=float32)
    """

    def __init__(self, seed: int | None = None, name: str | None = None) -> None:
        self.name = auto_name("seed_generator") if name is None else name
        self._initial_seed = seed
        self.state = np.array([next_seed() if seed is None else _checked(seed), 0], np.uint32)

    def next(self, ordered: bool = True) -> Array:
        """The seed of one draw, two integers; the state moves on.

        Args:
            ordered: count the draws; False mixes both numbers, as the global generator does.
        """
        with _lock:
            words = self.state.copy()
            if ordered:
                self.state[1] += 1
            else:
                self.state[:] = (words + 1) * 5387 % 933199  # wraps at 2^32, as in Keras
        return words

    def get_state(self) -> Array:
        """A copy of the seed and the count, for `set_state`."""
        return self.state.copy()

    def set_state(self, state: Any) -> None:
        """Go on from a state that `get_state` gave."""
        self.state[:] = np.asarray(state)

    def get_config(self) -> Config:
        return {"seed": self._initial_seed, "name": self.name}

    @classmethod
    def from_config(cls, config: Config) -> SeedGenerator:
        return cls(**config)


registry.add_kind("random", "keras.random", {"SeedGenerator": SeedGenerator})


def _checked(seed: Any) -> int:
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or not 0 <= seed < 2**32:
        raise ValueError(
            f"seed must be an integer from 0 to 2**32 - 1, a SeedGenerator or None; "
            f"received {seed!r}."
        )
    return int(seed)


def draw_seed(seed: int | SeedGenerator | None) -> Any:
    """The words that numpy's generator of one draw starts from.

    Raises:
        ValueError: for a seed of another kind.
    """
    if isinstance(seed, SeedGenerator):
        return seed.next()
    if seed is not None:
        return [_checked(seed), 0]
    with _lock:
        if not _global:
            _global.append(SeedGenerator())
    return _global[0].next(ordered=False)


def generator(seed: int | SeedGenerator | None = None) -> np.random.Generator:
    """A numpy generator for one draw."""
    return np.random.default_rng(draw_seed(seed))


def _shape(shape: Any) -> tuple[int, ...]:
    return (int(shape),) if np.ndim(shape) == 0 else tuple(int(n) for n in shape)


def _dtype(dtype: Any, kinds: str, name: str) -> np.dtype[Any]:
    """The dtype of the numbers of a distribution, which would be cut off in another kind."""
    found = np.dtype(dtype or config.floatx())
    if found.kind not in kinds:
        wanted = "an integer" if "i" in kinds else "a floating-point"
        raise ValueError(f"random.{name} draws numbers of {wanted} dtype; received {found.name}.")
    return found


# -------------------------------------------------------------------- distributions


def normal(
    shape: Sequence[int], mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = None, seed: Any = None
) -> Array:
    """Normally distributed numbers.

    Args:
        shape: of the result.
        mean: Defaults to 0.
        stddev: the standard deviation. Defaults to 1.
        dtype: Defaults to floatx.
        seed: an integer, a SeedGenerator or None.
    """
    kind = _dtype(dtype, "f", "normal")
    return generator(seed).normal(mean, stddev, _shape(shape)).astype(kind)


def uniform(
    shape: Sequence[int], minval: Any = 0.0, maxval: Any = 1.0, dtype: Any = None, seed: Any = None
) -> Array:
    """Numbers evenly distributed from minval up to, without, maxval.

    Args: as `normal`, with minval (default 0) and maxval (default 1).
    """
    kind = _dtype(dtype, "f", "uniform")
    return generator(seed).uniform(minval, maxval, _shape(shape)).astype(kind)


def truncated_normal(
    shape: Sequence[int],
    mean: float = 0.0,
    stddev: float = 1.0,
    dtype: Any = None,
    seed: Any = None,
) -> Array:
    """Normally distributed numbers; those beyond two standard deviations are drawn again.

    Args: as `normal`.
    """
    kind, rng = _dtype(dtype, "f", "truncated_normal"), generator(seed)
    shape = _shape(shape)
    size = int(np.prod(shape, dtype=np.int64))
    kept = np.empty(0)
    while len(kept) < size:
        draws = rng.normal(mean, stddev, size)
        kept = np.append(kept, draws[np.abs(draws - mean) <= 2 * stddev])
    return kept[:size].reshape(shape).astype(kind)


def randint(
    shape: Sequence[int], minval: Any, maxval: Any, dtype: Any = "int32", seed: Any = None
) -> Array:
    """Integers from minval up to, without, maxval.

    Args: as `normal`; dtype defaults to int32.
    """
    kind = _dtype(dtype, "iu", "randint")
    return generator(seed).integers(minval, maxval, _shape(shape), dtype=kind)


def beta(shape: Sequence[int], alpha: Any, beta: Any, dtype: Any = None, seed: Any = None) -> Array:
    """Numbers with density proportional to x^(alpha - 1) (1 - x)^(beta - 1) on 0 to 1.

    Args: as `normal`, with positive alpha and beta.
    """
    kind = _dtype(dtype, "f", "beta")
    return generator(seed).beta(alpha, beta, _shape(shape)).astype(kind)


def gamma(shape: Sequence[int], alpha: Any, dtype: Any = None, seed: Any = None) -> Array:
    """Numbers with density proportional to x^(alpha - 1) exp(-x), x > 0.

    Args: as `normal`, with a positive alpha.
    """
    kind = _dtype(dtype, "f", "gamma")
    return generator(seed).gamma(alpha, 1.0, _shape(shape)).astype(kind)


def binomial(
    shape: Sequence[int], counts: Any, probabilities: Any, dtype: Any = None, seed: Any = None
) -> Array:
    """How many of a number of trials succeed.

    Args: as `normal`, with counts, the number of trials, and the probabilities of success.
    """
    n = np.asarray(counts).astype(np.int64)
    numbers = generator(seed).binomial(n, probabilities, _shape(shape))
    return numbers.astype(dtype or config.floatx())


@op
def categorical(logits: Tensor, num_samples: int, dtype: Any = "int32", seed: Any = None) -> Tensor:
    """Class numbers drawn with probabilities softmax(logits). Not differentiable.

    Args:
        logits: a row per distribution.
        num_samples: draws per row.
        dtype: Defaults to int32.
        seed: an integer, a SeedGenerator or None.

    Shapes: (batch, classes) -> (batch, num_samples).
    """
    if logits.data.ndim != 2:
        raise ValueError(
            f"categorical expects logits of shape (batch, classes); received {logits.data.shape}."
        )
    rng = generator(seed)
    p = np.exp(logits.data - logits.data.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    draws = [rng.choice(p.shape[1], num_samples, p=row) for row in p]
    return record(np.array(draws).reshape(len(p), num_samples).astype(dtype))


@op
def dropout(inputs: Tensor, rate: float, noise_shape: Any = None, seed: Any = None) -> Tensor:
    """A fraction of the elements set to 0, the others divided by 1 - rate.

    Args:
        inputs: the array.
        rate: the fraction, from 0 to 1.
        noise_shape: of the mask, broadcast to the inputs; None in it stands for the inputs' size.
        seed: an integer, a SeedGenerator or None.

    Gradient: dx = g * mask / (1 - rate).

    Reference: Srivastava et al., 2014, "Dropout: a simple way to prevent neural networks from
    overfitting".
    """
    if not 0 <= rate <= 1:
        raise ValueError(f"rate must be a fraction from 0 to 1; received {rate}.")
    if rate == 0:
        return inputs
    a = inputs.data
    keep = 1.0 - rate
    if noise_shape is None:
        shape = a.shape
    else:
        shape = tuple(a.shape[i] if n is None else int(n) for i, n in enumerate(noise_shape))
    mask = generator(seed).random(shape) < keep  # the numbers of uniform(size=shape)
    scale = 1 / keep if keep else 0.0

    def backward(g: Any) -> Any:
        return (g * mask * scale,)

    y = a * mask
    y *= scale
    return record(y, (inputs,), backward)


@op
def shuffle(x: Numeric, axis: int = 0, seed: Any = None) -> Tensor:
    """The slices along an axis in random order, each kept whole.

    Gradient: dx = g, put back in order.
    """
    rng = generator(seed)
    return take(x, rng.permutation(x.data.shape[axis]), axis)
