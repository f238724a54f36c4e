"""Random changes of images, in training only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from picodl import config, ops
from picodl.layers.base import Layer
from picodl.layers.checks import choice
from picodl.layers.image import CenterCrop, named_images, row_axis
from picodl.layers.regularization import RandomLayer
from picodl.ops.image import affine_transform
from picodl.typing import Array, Config


class RandomImageLayer(RandomLayer):
    """The base of layers that change each image of a batch at random, in training only.

    Called directly, without `training`, they are active. They take images, one image, or a dict
    {"images": ..., "labels": ...} and give the same; integers become floating numbers.

    Args:
        seed: an integer repeats the draws; None takes the next automatic seed.
        data_format: "channels_last" or "channels_first". Defaults to the global setting.
    """

    supports_masking = False

    def __init__(
        self, seed: int | None = None, data_format: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(seed, **kwargs)
        self.data_format = config.standardize_data_format(data_format)

    def call(self, data: Any, training: bool = True) -> Any:
        if isinstance(data, dict):
            images = self.change_images(named_images(self, data), training)
            return {**data, "images": images}
        return self.change_images(data, training)

    def change_images(self, x: Any, training: bool) -> Any:
        """One image or a batch, changed in training."""
        row = row_axis(self, x.shape, self.data_format)
        x = ops.cast(x, self.compute_dtype)
        if not training:
            return x
        if len(x.shape) == 3:
            return self.change_batch(ops.expand_dims(x, 0), row)[0]
        return self.change_batch(x, row)

    def change_batch(self, x: Any, row: int) -> Any:
        """A changed batch, by draws that follow one another."""
        return self.change(x, row, self.rng())

    def change(self, x: Any, row: int, rng: np.random.Generator) -> Any:
        """A changed batch; `row` is the axis of the rows, the next one that of the columns."""
        raise NotImplementedError

    def get_config(self) -> Config:
        return {**super().get_config(), "data_format": self.data_format}


def per_image(values: Any) -> Array:
    """One number per image, to be multiplied with a batch."""
    return np.asarray(values).reshape(-1, 1, 1, 1)


def _drawn(rng: np.random.Generator, bounds: Any, n: int) -> Array:
    """A number between the bounds for each image."""
    return bounds[0] + (bounds[1] - bounds[0]) * rng.random(n)


def _range(layer: Layer, argument: str, value: Any, lowest: float = -math.inf) -> Any:
    """(low, high) of a factor: a pair in either order, or one number f for (-|f|, |f|).

    Raises:
        ValueError: naming the layer, for anything else.
    """
    pair = value if isinstance(value, (list, tuple)) else (value, value)
    numbers = [v for v in pair if isinstance(v, (int, float)) and not isinstance(v, bool)]
    if pair is not value and numbers:
        numbers = [-abs(value), abs(value)]
    if len(pair) != 2 or len(numbers) != 2 or min(numbers) < lowest:
        raise ValueError(
            f'{type(layer).__name__} layer "{layer.name}": {argument} must be a number or a pair '
            f"(low, high); received {value!r}."
        )
    return tuple(sorted(float(v) for v in numbers))


def value_bounds(layer: Layer, value: Any) -> Any:
    """(lowest, highest) value of the images.

    Raises:
        ValueError: naming the layer, for anything else.
    """
    pair = tuple(value) if isinstance(value, (list, tuple)) else ()
    if len(pair) != 2 or not pair[0] < pair[1]:
        raise ValueError(
            f'{type(layer).__name__} layer "{layer.name}": value_range must be a pair (lowest, '
            f"highest); received {value!r}."
        )
    return pair


class RandomFlip(RandomImageLayer):
    """Images mirrored with probability one half.

    Args:
        mode: "horizontal", "vertical" or "horizontal_and_vertical".
        seed, data_format: see `RandomImageLayer`.
    """

    def __init__(
        self,
        mode: str = "horizontal_and_vertical",
        seed: int | None = None,
        data_format: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(seed, data_format, **kwargs)
        modes = ("horizontal", "vertical", "horizontal_and_vertical")
        self.mode = choice(self, "mode", mode, modes)

    def change(self, x: Any, row: int, rng: np.random.Generator) -> Any:
        for word, axis in (("horizontal", row + 1), ("vertical", row)):
            if word in self.mode:
                turned = per_image(rng.random(x.shape[0]) < 0.5)
                x = ops.where(turned, ops.flip(x, axis % 4), x)
        return x

    def get_config(self) -> Config:
        return {**super().get_config(), "mode": self.mode}


class RandomCrop(RandomImageLayer):
    """A random part of each image in training, its middle otherwise.

    Args:
        height, width: of the output, in pixels. Smaller images are scaled up.
        seed, data_format: see `RandomImageLayer`.
    """

    def __init__(
        self,
        height: int,
        width: int,
        seed: int | None = None,
        data_format: str | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(seed, data_format, name=name, **kwargs)
        self.middle = CenterCrop(height, width, self.data_format)
        self.height, self.width = self.middle.height, self.middle.width

    def change_images(self, x: Any, training: bool) -> Any:
        row = row_axis(self, x.shape, self.data_format)
        down, right = x.shape[row] - self.height, x.shape[row + 1] - self.width
        if not training or down < 0 or right < 0:
            return self.middle(ops.cast(x, self.compute_dtype))
        return super().change_images(x, training)

    def change(self, x: Any, row: int, rng: np.random.Generator) -> Any:
        n, down, right = x.shape[0], x.shape[row] - self.height, x.shape[row + 1] - self.width
        tops, lefts = rng.integers(0, down + 1, n), rng.integers(0, right + 1, n)
        places = [np.arange(n).reshape(-1, 1, 1)]
        places.append(tops.reshape(-1, 1, 1) + np.arange(self.height).reshape(1, -1, 1))
        places.append(lefts.reshape(-1, 1, 1) + np.arange(self.width))
        if row == -3:
            return x[tuple(places)]
        return ops.transpose(ops.transpose(x, (0, 2, 3, 1))[tuple(places)], (0, 3, 1, 2))

    def compute_output_shape(self, input_shape: Any) -> Any:
        return self.middle.compute_output_shape(input_shape)

    def get_config(self) -> Config:
        return {**super().get_config(), "height": self.height, "width": self.width}


# -------------------------------------------------------------------- turned, moved, scaled


class RandomTransform(RandomImageLayer):
    """The base of layers that turn, move or scale each image about its middle.

    Args:
        fill_mode: what lies outside: "reflect" (mirrored), "wrap", "nearest" or "constant".
        interpolation: "bilinear" or "nearest".
        seed, data_format: see `RandomImageLayer`.
        fill_value: for the mode "constant".
    """

    def __init__(
        self,
        fill_mode: str,
        interpolation: str,
        seed: int | None,
        fill_value: float,
        data_format: str | None,
        **kwargs: Any,
    ) -> None:
        super().__init__(seed, data_format, **kwargs)
        modes = ("reflect", "wrap", "constant", "nearest")
        self.fill_mode = choice(self, "fill_mode", fill_mode, modes)
        self.interpolation = choice(self, "interpolation", interpolation, ("nearest", "bilinear"))
        self.fill_value = fill_value

    def change(self, x: Any, row: int, rng: np.random.Generator) -> Any:
        n, height, width = x.shape[0], x.shape[row], x.shape[row + 1]
        transform = np.zeros((n, 8), x.dtype)
        transform[:, [0, 4]] = 1
        self.draw(transform, n, height, width, rng)
        return affine_transform(
            x, transform, self.interpolation, self.fill_mode, self.fill_value, self.data_format
        )

    def draw(self, transform: Array, n: int, h: int, w: int, rng: np.random.Generator) -> None:
        """Write the eight numbers of each image's transform; see `ops.image.affine_transform`."""
        raise NotImplementedError

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "fill_mode": self.fill_mode,
            "interpolation": self.interpolation,
            "fill_value": self.fill_value,
        }


class RandomRotation(RandomTransform):
    """Images turned by a random angle.

    Args:
        factor: the range of the angle as a fraction of a full turn, positive against the clock: a
            pair (low, high), or f for (-f, f).
        fill_mode, interpolation, seed, fill_value, data_format: see `RandomTransform`.
    """

    def __init__(
        self,
        factor: float | Sequence[float],
        fill_mode: str = "reflect",
        interpolation: str = "bilinear",
        seed: int | None = None,
        fill_value: float = 0.0,
        data_format: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(fill_mode, interpolation, seed, fill_value, data_format, **kwargs)
        self.factor = _range(self, "factor", factor)

    def draw(self, transform: Array, n: int, h: int, w: int, rng: np.random.Generator) -> None:
        angle = 2 * math.pi * _drawn(rng, self.factor, n)
        cos, sin = np.cos(angle), np.sin(angle)
        x, y = (w - 1) / 2, (h - 1) / 2
        transform[:, 0], transform[:, 1], transform[:, 2] = cos, -sin, x - cos * x + sin * y
        transform[:, 3], transform[:, 4], transform[:, 5] = sin, cos, y - sin * x - cos * y

    def get_config(self) -> Config:
        return {**super().get_config(), "factor": self.factor}


class RandomTranslation(RandomTransform):
    """Images moved by a random distance.

    Args:
        height_factor: the range of the way down as a fraction of the height: a pair (low, high), or
            or f for (-f, f).
        width_factor: of the way to the right, as a fraction of the width.
        fill_mode, interpolation, seed, fill_value, data_format: see `RandomTransform`.
    """

    def __init__(
        self,
        height_factor: float | Sequence[float],
        width_factor: float | Sequence[float],
        fill_mode: str = "reflect",
        interpolation: str = "bilinear",
        seed: int | None = None,
        fill_value: float = 0.0,
        data_format: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(fill_mode, interpolation, seed, fill_value, data_format, **kwargs)
        self.height_factor = _range(self, "height_factor", height_factor)
        self.width_factor = _range(self, "width_factor", width_factor)

    def draw(self, transform: Array, n: int, h: int, w: int, rng: np.random.Generator) -> None:
        transform[:, 5] = -h * _drawn(rng, self.height_factor, n)
        transform[:, 2] = -w * _drawn(rng, self.width_factor, n)

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "height_factor": self.height_factor,
            "width_factor": self.width_factor,
        }


class RandomZoom(RandomTransform):
    """Images scaled about their middle by a random factor.

    Args:
        height_factor: the range of the height's change: 0.2 shows 1.2 times the height (zooms out),
            -0.2 zooms in; a pair (low, high), or f for (-f, f).
        width_factor: of the width's change. Defaults to the height's, image by image.
        fill_mode, interpolation, seed, fill_value, data_format: see `RandomTransform`.
    """

    def __init__(
        self,
        height_factor: float | Sequence[float],
        width_factor: float | Sequence[float] | None = None,
        fill_mode: str = "reflect",
        interpolation: str = "bilinear",
        seed: int | None = None,
        fill_value: float = 0.0,
        data_format: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(fill_mode, interpolation, seed, fill_value, data_format, **kwargs)
        self.height_factor = _range(self, "height_factor", height_factor, -1)
        self.width_factor = None
        if width_factor is not None:
            self.width_factor = _range(self, "width_factor", width_factor, -1)

    def draw(self, transform: Array, n: int, h: int, w: int, rng: np.random.Generator) -> None:
        tall = 1 + _drawn(rng, self.height_factor, n)
        wide = tall if self.width_factor is None else 1 + _drawn(rng, self.width_factor, n)
        transform[:, 0], transform[:, 2] = wide, (w - 1) / 2 * (1 - wide)
        transform[:, 4], transform[:, 5] = tall, (h - 1) / 2 * (1 - tall)

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "height_factor": self.height_factor,
            "width_factor": self.width_factor,
        }


# -------------------------------------------------------------------- brighter and darker


class RandomTone(RandomImageLayer):
    """The base of layers that change the values of each image and keep them in a range.

    Args:
        value_range: (lowest, highest) value of the images.
        seed: see `RandomImageLayer`.
    """

    def __init__(self, value_range: Sequence[float], seed: int | None, **kwargs: Any) -> None:
        super().__init__(seed, **kwargs)
        self.value_range = value_bounds(self, value_range)

    def get_config(self) -> Config:
        found = {**super().get_config(), "value_range": self.value_range}
        del found["data_format"]
        return found


class RandomBrightness(RandomTone):
    """A random number added to each image.

    Args:
        factor: its range as a fraction of the range of values: a pair (low, high) within -1 to 1,
            or f for (-f, f).
        value_range: (lowest, highest) value of the images.
        seed: see `RandomImageLayer`.
    """

    def __init__(
        self,
        factor: float | Sequence[float],
        value_range: Sequence[float] = (0, 255),
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(value_range, seed, **kwargs)
        self.factor = _range(self, "factor", factor, -1)

    def change(self, x: Any, row: int, rng: np.random.Generator) -> Any:
        low, high = self.value_range
        added = (high - low) * _drawn(rng, self.factor, x.shape[0])
        return ops.clip(x + per_image(added.astype(x.dtype)), low, high)

    def get_config(self) -> Config:
        return {**super().get_config(), "factor": self.factor}


class RandomContrast(RandomTone):
    """The distances of each image's values from their mean per channel, times a random number.

    Args:
        factor: its range around 1: (low, high) for 1 - low to 1 + high, or f for both.
        value_range: (lowest, highest) value of the images.
        seed: see `RandomImageLayer`.
    """

    def __init__(
        self,
        factor: float | Sequence[float],
        value_range: Sequence[float] = (0, 255),
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(value_range, seed, **kwargs)
        pair = factor if isinstance(factor, (list, tuple)) else (factor, factor)
        numbers = [v for v in pair if isinstance(v, (int, float)) and v >= 0]
        if len(pair) != 2 or len(numbers) != 2:
            raise ValueError(
                f'RandomContrast layer "{self.name}": factor must be a number of at least 0 or a '
                f"pair of them; received {factor!r}."
            )
        self.factor = tuple(float(v) for v in pair)

    def change(self, x: Any, row: int, rng: np.random.Generator) -> Any:
        low, high = self.factor
        times = _drawn(rng, (1 - low, 1 + high), x.shape[0])
        mean = ops.mean(x, (row % 4, row % 4 + 1), keepdims=True)
        changed = (x - mean) * per_image(times.astype(x.dtype)) + mean
        return ops.clip(changed, *self.value_range)

    def get_config(self) -> Config:
        return {**super().get_config(), "factor": self.factor}
