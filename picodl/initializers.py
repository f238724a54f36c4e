"""First values of weights: constants, random draws scaled by the number of inputs and outputs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from picodl import config, random
from picodl.families import Family
from picodl.tensor import Tensor
from picodl.typing import Array, Config

# The standard deviation of a standard normal cut off at 2 standard deviations.
_TRUNCATED_STD = 0.87962566103423978


class Initializer:
    """Base class: an object called as `f(shape, dtype=None)` that gives an array.

    >>> class Halves(Initializer):
    ...     def __call__(self, shape, dtype=None):
    ...         return np.full(shape, 0.5, dtype)
    >>> Halves()((2,), "float32")
    array([0.5, 0.5], dtype=float32)
    """

    def __call__(self, shape: Sequence[int], dtype: Any = None) -> Any:
        """The values.

        Raises:
            NotImplementedError: unless a subclass defines it.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define __call__(shape, dtype).")

    def get_config(self) -> Config:
        """The arguments that make the same initializer again."""
        return {}

    @classmethod
    def from_config(cls, config: Config) -> Any:
        """The initializer of a config."""
        return cls(**config)

    def clone(self) -> Any:
        """A new initializer of the same config."""
        return self.from_config(self.get_config())


class Zeros(Initializer):
    """0 everywhere."""

    def __call__(self, shape: Sequence[int], dtype: Any = None) -> Array:
        return np.zeros(_shape(shape), _dtype(dtype))


class Ones(Initializer):
    """1 everywhere."""

    def __call__(self, shape: Sequence[int], dtype: Any = None) -> Array:
        return np.ones(_shape(shape), _dtype(dtype))


class Constant(Initializer):
    """The given value everywhere.

    Args:
        value: a number, or numbers that broadcast to the shape. Defaults to 0.

    Raises:
        ValueError: when called, if the value does not broadcast to the shape.
    """

    def __init__(self, value: Any = 0.0) -> None:
        self.value = value

    def __call__(self, shape: Sequence[int], dtype: Any = None) -> Array:
        value = np.asarray(self.value)
        try:
            return np.broadcast_to(value, _shape(shape)).astype(_dtype(dtype))
        except ValueError:
            raise ValueError(
                f"Constant: values of shape {value.shape} do not broadcast to a weight of shape "
                f"{_shape(shape)}."
            ) from None

    def get_config(self) -> Config:
        return {"value": np.asarray(self.value).tolist()}


class Values(Initializer):
    """The given array itself, for a weight of exactly its shape.

    `get` makes it of an array that is passed as an initializer.

    Args:
        value: the array.

    Raises:
        ValueError: when called with another shape.
    """

    def __init__(self, value: Any) -> None:
        self.value = np.asarray(value)

    def __call__(self, shape: Sequence[int], dtype: Any = None) -> Array:
        if self.value.shape != _shape(shape):
            raise ValueError(
                f"The array given as initializer has shape {self.value.shape}, but the weight has "
                f"shape {_shape(shape)}. Pass an array of the weight's shape."
            )
        return self.value.astype(_dtype(dtype))

    def get_config(self) -> Config:
        return {"value": self.value.tolist()}


class Identity(Initializer):
    """gain on the diagonal, 0 elsewhere; for weights of rank 2.

    Args:
        gain: the number on the diagonal. Defaults to 1.

    Raises:
        ValueError: when called with a shape that is not of rank 2.
    """

    def __init__(self, gain: float = 1.0) -> None:
        self.gain = gain

    def __call__(self, shape: Sequence[int], dtype: Any = None) -> Array:
        shape = _shape(shape)
        if len(shape) != 2:
            raise ValueError(
                f"Identity makes matrices; received shape {shape} of rank {len(shape)}."
            )
        return np.eye(*shape, dtype=_dtype(dtype)) * self.gain

    def get_config(self) -> Config:
        return {"gain": self.gain}


class RandomInitializer(Initializer):
    """Base class of random ones: the seed is fixed when the object is made.

    So an object gives the same values whenever it is called, and two objects made without a seed
    give different ones. The values are those of Keras's NumPy backend.

    Args:
        seed: an integer, or a `SeedGenerator` (each call then draws anew). None draws one from
            picodl's stream of seeds, which `set_random_seed` starts.

    Raises:
        ValueError: for a seed of another kind.
    """

    def __init__(self, seed: Any = None) -> None:
        self._given_seed = seed
        if seed is None:
            seed = random.next_seed()
        elif isinstance(seed, dict):
            self._given_seed = seed = random.SeedGenerator.from_config(seed["config"])
        elif not isinstance(seed, random.SeedGenerator):
            if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
                raise ValueError(
                    f"{type(self).__name__}: seed must be a non-negative integer, a SeedGenerator "
                    f"or None; received {seed!r}."
                )
            seed = int(seed)
        self.seed = seed

    def get_config(self) -> Config:
        seed = self._given_seed
        if not isinstance(seed, random.SeedGenerator):
            return {"seed": seed}
        generator = {"module": "keras.random", "class_name": "SeedGenerator"}
        return {"seed": {**generator, "config": seed.get_config(), "registered_name": None}}


class RandomNormal(RandomInitializer):
    """Normally distributed.

    Args:
        mean: of the distribution. Defaults to 0.
        stddev: its standard deviation. Defaults to 0.05.
        seed: see `RandomInitializer`.

    >>> RandomNormal(seed=7)((3,))
    array([ 6.1507671e-05,  1.4937277e-02, -1.3706893e-02], dtype=float32)
    """

    def __init__(self, mean: float = 0.0, stddev: float = 0.05, seed: Any = None) -> None:
        self.mean = mean
        self.stddev = stddev
        super().__init__(seed)

    def __call__(self, shape: Sequence[int], dtype: Any = None) -> Array:
        return random.normal(_shape(shape), self.mean, self.stddev, dtype, self.seed)

    def get_config(self) -> Config:
        return {"mean": self.mean, "stddev": self.stddev, **super().get_config()}


class RandomUniform(RandomInitializer):
    """Uniformly distributed between two limits.

    Args:
        minval: the lower limit. Defaults to -0.05.
        maxval: the upper limit. Defaults to 0.05.
        seed: see `RandomInitializer`.
    """

    def __init__(self, minval: float = -0.05, maxval: float = 0.05, seed: Any = None) -> None:
        self.minval = minval
        self.maxval = maxval
        super().__init__(seed)

    def __call__(self, shape: Sequence[int], dtype: Any = None) -> Array:
        return random.uniform(_shape(shape), self.minval, self.maxval, dtype, self.seed)

    def get_config(self) -> Config:
        return {"minval": self.minval, "maxval": self.maxval, **super().get_config()}


class TruncatedNormal(RandomNormal):
    """Normally distributed; values beyond two standard deviations are drawn again.

    The standard deviation of the values is 0.88 of `stddev`. Arguments: see `RandomNormal`.
    """

    def __call__(self, shape: Sequence[int], dtype: Any = None) -> Array:
        shape = _shape(shape)
        return random.truncated_normal(shape, self.mean, self.stddev, dtype, self.seed)


class VarianceScaling(RandomInitializer):
    """Random with variance scale / fan, so that signals keep their size from layer to layer.

    Args:
        scale: what the variance is multiplied with. Defaults to 1.
        mode: "fan_in", "fan_out" or "fan_avg", the mean of both. Defaults to "fan_in".
        distribution: "truncated_normal" (or "normal": cut at two standard deviations, the variance
            corrected for the cut), "untruncated_normal" or "uniform".
        seed: see `RandomInitializer`.
        input_axes: the axes of the weight that count inputs; None for Keras's rule (see
            `compute_fans`).
        output_axes: the axes that count outputs; needed where `input_axes` is given.

    Raises:
        ValueError: for a scale that is not positive, or an unknown mode or distribution.
    """

    def __init__(
        self,
        scale: float = 1.0,
        mode: str = "fan_in",
        distribution: str = "truncated_normal",
        seed: Any = None,
        input_axes: Sequence[int] | None = None,
        output_axes: Sequence[int] | None = None,
    ) -> None:
        if not scale > 0:
            raise ValueError(f"{type(self).__name__}: scale must be positive; received {scale!r}.")
        _choose(self, "mode", mode, ("fan_in", "fan_out", "fan_avg"))
        distribution = str(distribution).lower()
        if distribution == "normal":
            distribution = "truncated_normal"
        known = ("truncated_normal", "untruncated_normal", "uniform")
        _choose(self, "distribution", distribution, known)
        self.scale = scale
        self.mode = mode
        self.distribution = distribution
        self.input_axes = input_axes
        self.output_axes = output_axes
        super().__init__(seed)

    def __call__(self, shape: Sequence[int], dtype: Any = None) -> Array:
        shape = _shape(shape)
        fan_in, fan_out = compute_fans(shape, self.input_axes, self.output_axes)
        fan = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}[self.mode]
        variance = self.scale / max(1.0, fan)
        if self.distribution == "uniform":
            limit = math.sqrt(3.0 * variance)
            return random.uniform(shape, -limit, limit, dtype, self.seed)
        if self.distribution == "untruncated_normal":
            return random.normal(shape, 0.0, math.sqrt(variance), dtype, self.seed)
        stddev = math.sqrt(variance) / _TRUNCATED_STD
        return random.truncated_normal(shape, 0.0, stddev, dtype, self.seed)

    def get_config(self) -> Config:
        return {
            "scale": self.scale,
            "mode": self.mode,
            "distribution": self.distribution,
            **super().get_config(),
            "input_axes": self.input_axes,
            "output_axes": self.output_axes,
        }


class _Scaled(VarianceScaling):
    """A VarianceScaling of fixed settings: `settings` holds scale, mode and distribution."""

    settings: tuple[float, str, str]

    def __init__(
        self,
        seed: Any = None,
        input_axes: Sequence[int] | None = None,
        output_axes: Sequence[int] | None = None,
    ) -> None:
        super().__init__(*self.settings, seed, input_axes, output_axes)

    def get_config(self) -> Config:
        return {k: super(_Scaled, self).get_config()[k] for k in _SCALED_ARGUMENTS}


_SCALED_ARGUMENTS = ("seed", "input_axes", "output_axes")


class GlorotUniform(_Scaled):
    """Uniform within +-sqrt(6 / (fan_in + fan_out)). Arguments: see `VarianceScaling`.

    Reference: Glorot and Bengio, 2010, "Understanding the difficulty of training deep feedforward
    neural networks".
    """

    settings = (1.0, "fan_avg", "uniform")


class GlorotNormal(_Scaled):
    """Truncated normal of variance 2 / (fan_in + fan_out). Arguments: see `VarianceScaling`."""

    settings = (1.0, "fan_avg", "truncated_normal")


class HeUniform(_Scaled):
    """Uniform within +-sqrt(6 / fan_in), for relu. Arguments: see `VarianceScaling`.

    Reference: He et al., 2015, "Delving Deep into Rectifiers", arXiv:1502.01852.
    """

    settings = (2.0, "fan_in", "uniform")


class HeNormal(_Scaled):
    """Truncated normal of variance 2 / fan_in, for relu. Arguments: see `VarianceScaling`."""

    settings = (2.0, "fan_in", "truncated_normal")


class LecunUniform(_Scaled):
    """Uniform within +-sqrt(3 / fan_in), for selu. Arguments: see `VarianceScaling`.

    Reference: LeCun et al., 1998, "Efficient BackProp".
    """

    settings = (1.0, "fan_in", "uniform")


class LecunNormal(_Scaled):
    """Truncated normal of variance 1 / fan_in, for selu. Arguments: see `VarianceScaling`."""

    settings = (1.0, "fan_in", "truncated_normal")


class Orthogonal(RandomInitializer):
    """gain * q, with q's rows or columns (whichever are fewer) orthonormal.

    Weights of higher rank are filled as a matrix with as many columns as their last axis.

    Args:
        gain: the factor. Defaults to 1.
        seed: see `RandomInitializer`.

    Raises:
        ValueError: when called with a shape of less than rank 2.

    Reference: Saxe et al., 2014, "Exact solutions to the nonlinear dynamics of learning in deep
    linear neural networks", arXiv:1312.6120.
    """

    def __init__(self, gain: float = 1.0, seed: Any = None) -> None:
        self.gain = gain
        super().__init__(seed)

    def __call__(self, shape: Sequence[int], dtype: Any = None) -> Array:
        shape, kind = _shape(shape), _dtype(dtype)
        if len(shape) < 2:
            raise ValueError(f"Orthogonal makes weights of rank 2 or more; received shape {shape}.")
        rows, columns = math.prod(shape[:-1]), shape[-1]
        size = max(rows, columns), min(rows, columns)
        exact = np.result_type(kind, np.float32)
        q, r = np.linalg.qr(random.normal(size, dtype=exact, seed=self.seed))
        q *= np.sign(np.diag(r))
        return (self.gain * (q.T if rows < columns else q).reshape(shape)).astype(kind)

    def get_config(self) -> Config:
        return {"gain": self.gain, **super().get_config()}


# -------------------------------------------------------------------- helpers


def compute_fans(
    shape: Sequence[int],
    input_axes: Sequence[int] | None = None,
    output_axes: Sequence[int] | None = None,
) -> tuple[int, int]:
    """How many inputs feed one unit of a weight, and how many units one input feeds.

    Without axes, the last two axes count inputs and outputs and those before them are a window
    that multiplies both; a vector's size stands for both.

    >>> compute_fans((3, 3, 16, 32))
    (144, 288)
    """
    if input_axes is not None and output_axes is not None:
        return (
            math.prod(shape[axis] for axis in input_axes),
            math.prod(shape[axis] for axis in output_axes),
        )
    if len(shape) < 2:
        fan = math.prod(shape)
        return fan, fan
    window = math.prod(shape[:-2])
    return window * shape[-2], window * shape[-1]


def _shape(shape: Any) -> tuple[int, ...]:
    return (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(shape)


def _dtype(dtype: Any) -> np.dtype[Any]:
    return np.dtype(dtype or config.floatx())


def _choose(owner: Any, argument: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(
            f"{type(owner).__name__}: {argument} must be one of {', '.join(known)}; "
            f"received {value!r}."
        )


# -------------------------------------------------------------------- by name

_members: tuple[type, ...] = (Zeros, Ones, Constant, Values, Identity, Orthogonal, VarianceScaling)
_members += (RandomNormal, RandomUniform, TruncatedNormal)
_members += (GlorotUniform, GlorotNormal, HeUniform, HeNormal, LecunUniform, LecunNormal)
_family = Family(
    "initializer",
    "keras.initializers",
    Initializer,
    list(_members),
    {
        "zero": Zeros,
        "zeros": Zeros,
        "one": Ones,
        "normal": RandomNormal,
        "uniform": RandomUniform,
        "IdentityInitializer": Identity,
        "OrthogonalInitializer": Orthogonal,
    },
)


def get(identifier: Any) -> Any:
    """The initializer for a name (new each time), a config, a class, a callable or an array.

    Raises:
        TypeError: for anything else.
        ValueError: for an unknown name; the nearest known one is suggested.

    >>> get("he_normal").scale
    2.0
    """
    if isinstance(identifier, (Tensor, np.ndarray, np.generic)):
        return Values(np.asarray(identifier))
    return _family.get(identifier)


def serialize(initializer: Any) -> Any:
    """The config of an initializer, as Keras writes it."""
    return _family.serialize(initializer)


def deserialize(config: Any, custom_objects: Mapping[str, Any] | None = None) -> Any:
    """The initializer of a config."""
    return _family.deserialize(config, custom_objects)


def __getattr__(
    name: str,
) -> Any:  # glorot_uniform and the like: Keras's other names of the classes
    if name in _family.by_name:
        return _family.by_name[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
