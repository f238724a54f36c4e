"""Layers that scale their input by constants or by statistics of the data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from picodl import config
from picodl.layers.base import Layer
from picodl.layers.categories import batches
from picodl.layers.input_spec import InputSpec
from picodl.tensor import Tensor, as_array
from picodl.typing import Array, Config, Shape


class Rescaling(Layer):
    """y = x * scale + offset.

    Args:
        scale, offset: numbers, or arrays that broadcast over the input; with images in the global
            format "channels_first" one number for each channel is understood as such.
    """

    built = True
    supports_masking = True

    def __init__(self, scale: Any, offset: Any = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.scale = scale
        self.offset = offset

    def call(self, inputs: Any) -> Any:
        dtype = self.compute_dtype
        scale, offset = np.asarray(self.scale, dtype), np.asarray(self.offset, dtype)
        if config.image_data_format() == "channels_first" and inputs.ndim > 2:
            scale, offset = (a[:, None, None] if a.ndim == 1 else a for a in (scale, offset))
        return _as_float(inputs, dtype) * scale + offset

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape

    def get_config(self) -> Config:
        return {**super().get_config(), "scale": _plain(self.scale), "offset": _plain(self.offset)}


class Normalization(Layer):
    """y = (x - mean) / max(sqrt(variance), 1e-7), with statistics given or learnt by `adapt`.

    Args:
        axis: the axis (or axes) with statistics of their own; None for one mean of everything.
        mean, variance: the statistics, when they are known beforehand.
        invert: compute x * max(sqrt(variance), 1e-7) + mean instead.

    Weights: mean, variance and count (which stays 0, as in Keras), none of them trained; none if
    the statistics are given.

    Raises:
        ValueError: if only one of mean and variance is given.

    >>> layer = Normalization()
    >>> layer.adapt(np.array([[1.0], [3.0]], "float32"))
    >>> layer(np.array([[5.0]])).numpy()
    array([[3.]], dtype=float32)
    """

    supports_masking = True

    def __init__(
        self,
        axis: int | Sequence[int] | None = -1,
        mean: Any = None,
        variance: Any = None,
        invert: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if (mean is None) != (variance is None):
            raise ValueError(
                f'Normalization layer "{self.name}": give both mean and variance, or neither and '
                "call adapt(data)."
            )
        self.axis: tuple[int, ...] = () if axis is None else _axes(axis)
        self._axis_argument = axis
        self.input_mean = mean
        self.input_variance = variance
        self.invert = invert

    def build(self, input_shape: Shape) -> None:
        rank = len(input_shape)
        axes = tuple(a + rank if a < 0 else a for a in self.axis)
        for axis, given in zip(axes, self.axis, strict=True):
            if not 0 < axis < rank or input_shape[axis] is None:
                raise ValueError(
                    f'Normalization layer "{self.name}": axis {given} needs a known size after the '
                    f"batch axis, but received input of shape {input_shape}."
                )
        sizes = {given: input_shape[axis] for axis, given in zip(axes, self.axis, strict=True)}
        self.input_spec = InputSpec(min_ndim=2, axes=sizes) if sizes else None
        self._kept = axes
        self._shape = tuple(input_shape[a] if a in axes else 1 for a in range(rank))
        shape: Any = tuple(input_shape[a] for a in sorted(axes))
        if self.input_mean is None:
            self.adapt_mean = self.add_weight(shape, "zeros", trainable=False, name="mean")
            self.adapt_variance = self.add_weight(shape, "ones", trainable=False, name="variance")
            self.count = self.add_weight((), "zeros", dtype="int32", trainable=False, name="count")
        else:
            dtype = self.variable_dtype
            self.given_mean = np.broadcast_to(as_array(self.input_mean, dtype), shape)
            self.given_variance = np.broadcast_to(as_array(self.input_variance, dtype), shape)

    @property
    def mean(self) -> Array | None:
        """The mean, of a shape that broadcasts over the inputs; None before build."""
        return self._statistic("mean")

    @property
    def variance(self) -> Array | None:
        """The variance, of a shape that broadcasts over the inputs; None before build."""
        return self._statistic("variance")

    def _statistic(self, name: str) -> Array | None:
        if not self.built:
            return None
        adapted = self.input_mean is None
        values = getattr(self, f"adapt_{name}").data if adapted else getattr(self, f"given_{name}")
        return values.reshape(self._shape)

    def adapt(self, data: Any, batch_size: int | None = None, steps: int | None = None) -> None:
        """Learn mean and variance (of the population) from data, forgetting earlier statistics.

        Args:
            data: an array, a list of arrays, each a batch, or another iterable of batches.
            batch_size: accepted; an array is read at once.
            steps: how many batches of an iterable to read. Defaults to all.

        Raises:
            ValueError: for empty data, or if the statistics were given to the constructor.
        """
        if self.input_mean is not None:
            raise ValueError(
                f'Normalization layer "{self.name}" was given mean and variance: it cannot adapt().'
            )
        total, mean, square = 0, np.zeros(()), np.zeros(())
        for batch in _batches(data, steps):
            if batch.ndim == 1:
                batch = batch[:, None]
            if not self.built:
                self.build((None, *batch.shape[1:]))
            reduced = tuple(a for a in range(batch.ndim) if a not in self._kept)
            n = math.prod(batch.shape[a] for a in reduced)
            if n == 0:
                continue
            new = batch.mean(axis=reduced, dtype=np.float64)
            delta = new - mean
            square = square + batch.var(axis=reduced, dtype=np.float64) * n
            square = square + delta**2 * total * n / (total + n)
            mean = mean + delta * n / (total + n)
            total += n
        if total == 0:
            raise ValueError(
                f'Normalization layer "{self.name}": adapt() received no data to learn from.'
            )
        self.adapt_mean.assign(mean)
        self.adapt_variance.assign(square / total)

    def call(self, inputs: Any) -> Any:
        dtype = self.compute_dtype
        mean = self._statistic("mean").astype(dtype, copy=False)  # type: ignore[union-attr]
        variance = self._statistic("variance")
        scale = np.maximum(np.sqrt(variance), 1e-7).astype(dtype, copy=False)  # type: ignore[arg-type]
        inputs = _as_float(inputs, dtype)
        constant = isinstance(inputs, Tensor) and not inputs.requires_grad
        x = inputs.data if constant else inputs  # what is not differentiated takes no ops
        y = x * scale + mean if self.invert else (x - mean) / scale
        return Tensor(y.astype(x.dtype, copy=False)) if constant else y

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "axis": self._axis_argument,
            "invert": self.invert,
            "mean": _plain(self.input_mean),
            "variance": _plain(self.input_variance),
        }


def _axes(axis: int | Sequence[int]) -> tuple[int, ...]:
    return (axis,) if isinstance(axis, int) else tuple(axis)


def _batches(data: Any, steps: int | None) -> Any:
    rows = isinstance(data, (list, tuple)) and not any(
        isinstance(part, tuple) or getattr(part, "ndim", 0) for part in data
    )
    if rows or hasattr(data, "__array__"):
        yield as_array(np.asarray(data))
        return
    for batch in batches(data, steps):
        yield as_array(batch[0] if isinstance(batch, list) else batch)


def _as_float(x: Any, dtype: str) -> Any:
    return x if x.dtype.kind == "f" else x.astype(dtype)


def _plain(x: Any) -> Any:
    """Arrays as nested lists, for the config."""
    return x.tolist() if isinstance(x, (np.ndarray, np.generic)) else x
