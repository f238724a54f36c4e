"""Images mixed with others of their batch, and images with a part erased, in training only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from picodl import ops, random
from picodl.layers.augmentation import RandomImageLayer, per_image, value_bounds
from picodl.layers.base import Layer
from picodl.layers.image import named_images, row_axis
from picodl.typing import Array, Config


class MixingLayer(RandomImageLayer):
    """The base of layers that mix each image of a batch with another one, and its label alike.

    They take a dict {"images": ..., "labels": ...} or a pair (images, labels) and give the same,
    or images alone, which are mixed without their labels. A single image stays as it is.

    Args:
        seed, data_format: see `RandomImageLayer`.

    Shapes: images (batch, height, width, n), labels (batch, ..., classes) as one-hot numbers or
        probabilities.
    """

    def call(self, data: Any, training: bool = True) -> Any:
        if isinstance(data, dict):
            images, labels = self.mix(named_images(self, data), data.get("labels"), training)
            mixed = {**data, "images": images}
            return mixed if labels is None else {**mixed, "labels": labels}
        if isinstance(data, (list, tuple)):
            if len(data) != 2:
                raise ValueError(
                    f'{type(self).__name__} layer "{self.name}" expects a pair (images, labels); '
                    f"received {len(data)} entries."
                )
            pair = self.mix(data[0], data[1], training)
            return list(pair) if isinstance(data, list) else pair
        return self.mix(data, None, training)[0]

    def mix(self, images: Any, labels: Any, training: bool) -> tuple[Any, Any]:
        """Images and labels, mixed in training."""
        row = row_axis(self, images.shape, self.data_format)
        images = ops.cast(images, self.compute_dtype)
        if not training or len(images.shape) == 3:
            return images, labels
        if labels is not None:
            _check_labels(self, labels, images.shape[0])
        mixed, share, order = self.mix_images(images, row)
        if labels is not None:
            share = share.reshape(-1, *[1] * (len(labels.shape) - 1))
            labels = _blend(ops.cast(labels, self.compute_dtype), share, order)
        return mixed, labels

    def mix_images(self, x: Any, row: int) -> tuple[Any, Array, Array]:
        """The mixed images, how much of each is its own, and the order of the others."""
        raise NotImplementedError

    def order(self, n: int) -> Array:
        """The other image of each."""
        order: Array = np.asarray(random.shuffle(np.arange(n), seed=self.seed_generator))
        return order


class MixUp(MixingLayer):
    """Weighted means of two images and of their labels, y = t x + (1 - t) x', t ~ Beta(a, a).

    Args:
        alpha: the a of the distribution: near 0 most images stay almost as they are, at 1 every
            weight is as likely.
        data_format, seed: see `RandomImageLayer`.

    Raises:
        ValueError: for an alpha that is not positive; in a call for labels that are class codes.

    Reference: Zhang et al., 2018, "mixup: Beyond Empirical Risk Minimization", arXiv:1710.09412.

    >>> import numpy as np
    >>> batch = {"images": np.ones((4, 8, 8, 3), "f"), "labels": np.eye(4, dtype="f")}
    >>> mixed = MixUp(seed=0)(batch, training=True)
    >>> mixed["images"].shape, mixed["labels"].sum(axis=1).numpy()
    ((4, 8, 8, 3), array([1., 1., 1., 1.], dtype=float32))
    """

    def __init__(
        self,
        alpha: float = 0.2,
        data_format: str | None = None,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(seed, data_format, **kwargs)
        if isinstance(alpha, bool) or not isinstance(alpha, (int, float)) or not alpha > 0:
            raise ValueError(
                f'MixUp layer "{self.name}": alpha must be a positive number; received {alpha!r}.'
            )
        self.alpha = alpha

    def mix_images(self, x: Any, row: int) -> tuple[Any, Array, Array]:
        n = x.shape[0]
        order = self.order(n)
        share = random.beta((n,), self.alpha, self.alpha, self.compute_dtype, self.seed_generator)
        return _blend(x, per_image(share), order), share, order

    def get_config(self) -> Config:
        return {**super().get_config(), "alpha": self.alpha}


class CutMix(MixingLayer):
    """A box of another image pasted into each; the labels are mixed by the box's area.

    Args:
        factor: the range of a number a, drawn once for a batch: (low, high) within 0 to 1, or f
            for (0, f). The area outside of each box is drawn from Beta(a, a).
        seed, data_format: see `RandomImageLayer`.

    Raises:
        ValueError: for a factor outside 0 to 1; in a call for labels that are class codes.

    Reference: Yun et al., 2019, "CutMix: Regularization Strategy to Train Strong Classifiers with
    Localizable Features", arXiv:1905.04899.
    """

    def __init__(
        self,
        factor: float | Sequence[float] = 1.0,
        seed: int | None = None,
        data_format: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(seed, data_format, **kwargs)
        self.factor = _fractions(self, "factor", factor)

    def mix_images(self, x: Any, row: int) -> tuple[Any, Array, Array]:
        n, dtype, seed = x.shape[0], self.compute_dtype, self.seed_generator
        a = random.uniform((), *self.factor, dtype, seed) + 1e-6
        side = np.sqrt(1 - random.beta((n,), a, a, dtype, seed))
        inside, area = _boxes(self, x, row, side, side)
        order = self.order(n)
        return ops.where(inside, ops.take(x, order, axis=0), x), 1 - area, order

    def get_config(self) -> Config:
        return {**super().get_config(), "factor": self.factor}


class RandomErasing(RandomImageLayer):
    """A box of each image filled with noise or a colour.

    Args:
        factor: the range of the probability that an image changes: (low, high) within 0 to 1, or
            f for (0, f).
        scale: the range that the squares of the box's height and width are drawn from, as fractions
            of the image's: (low, high) within 0 to 1, or f for (0, f).
        fill_value: a number, or one for each channel. Defaults to noise with the standard deviation
            of the highest value.
        value_range: (lowest, highest) value of the images; the filling is clipped to it.
        seed, data_format: see `RandomImageLayer`.

    Raises:
        ValueError: for factor or scale outside 0 to 1, or a fill_value that does not fit.

    Reference: Zhong et al., 2020, "Random Erasing Data Augmentation", arXiv:1708.04896.
    """

    def __init__(
        self,
        factor: float | Sequence[float] = 1.0,
        scale: float | Sequence[float] = (0.02, 0.33),
        fill_value: float | Sequence[float] | None = None,
        value_range: Sequence[float] = (0, 255),
        seed: int | None = None,
        data_format: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(seed, data_format, **kwargs)
        self.factor = _fractions(self, "factor", factor)
        self.scale = _fractions(self, "scale", scale)
        colour = fill_value if isinstance(fill_value, (list, tuple)) else (fill_value,)
        numbers = [v for v in colour if isinstance(v, (int, float)) and not isinstance(v, bool)]
        if fill_value is not None and (not numbers or len(numbers) < len(colour)):
            raise ValueError(
                f'RandomErasing layer "{self.name}": fill_value must be None, a number or one for '
                f"each channel; received {fill_value!r}."
            )
        self.fill_value = fill_value
        self.value_range = value_bounds(self, value_range)

    def change_batch(self, x: Any, row: int) -> Any:
        n, dtype, seed = x.shape[0], self.compute_dtype, self.seed_generator
        wide, tall = np.sqrt(random.uniform((n, 2), *self.scale, dtype, seed)).T
        inside, _ = _boxes(self, x, row, wide, tall)
        likely = random.uniform((n,), *self.factor, dtype, seed)
        erased = random.uniform((n,), 0.0, 1.0, dtype, seed) < likely
        return ops.where(inside & per_image(erased), self.filling(x, row), x)

    def filling(self, x: Any, row: int) -> Array:
        """What the boxes show."""
        low, high = self.value_range
        value = self.fill_value
        if value is None:
            noise = random.normal(x.shape, dtype=self.compute_dtype, seed=self.seed_generator)
            return np.clip(noise * high, low, high)
        colour = np.clip(np.asarray(value, self.compute_dtype), low, high)
        channels = x.shape[-1 if row == -3 else 1]
        if colour.ndim and len(colour) != channels:
            raise ValueError(
                f'RandomErasing layer "{self.name}": fill_value has {len(colour)} numbers for '
                f"images of {channels} channels. Pass one number, or one for each channel."
            )
        return colour.reshape(-1, 1, 1) if colour.ndim and row == -2 else colour

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "factor": self.factor,
            "scale": self.scale,
            "fill_value": self.fill_value,
            "value_range": self.value_range,
        }


# -------------------------------------------------------------------- shared


def _blend(x: Any, share: Array, order: Array) -> Any:
    return share * x + (1 - share) * ops.take(x, order, axis=0)


def _boxes(layer: Any, x: Any, row: int, wide: Array, tall: Array) -> tuple[Array, Array]:
    """Which pixels lie in a box anywhere in each image, and its area as a fraction.

    Args: `wide` and `tall` are the box's sides as fractions of the image's.
    """
    # as in Keras, a pixel counts by its upper left corner: the first row and column lie in no box
    # but a full one, and the area is that of the box before it is cut to whole pixels
    inside: Any = True
    for side, axis in ((wide, row % 4 + 1), (tall, row % 4)):
        size = x.shape[axis]
        length = side * size
        at = random.uniform(side.shape, 0.0, 1.0, length.dtype, layer.seed_generator)
        start = per_image(at * (size - length))
        pixels = np.arange(size).reshape(-1, *[1] * (3 - axis))
        inside = inside & (pixels >= start) & (pixels < start + per_image(length))
    return inside, wide * tall


def _fractions(layer: Layer, argument: str, value: Any) -> tuple[float, float]:
    """(low, high) of a range within 0 to 1: a pair, or one number f for (0, f).

    Raises:
        ValueError: naming the layer, for anything else.
    """
    pair = (0.0, value) if isinstance(value, (int, float)) else value
    pair = tuple(pair) if isinstance(pair, (list, tuple)) else ()
    numbers = [v for v in pair if isinstance(v, (int, float)) and not isinstance(v, bool)]
    if len(pair) != 2 or len(numbers) != 2 or not all(0 <= v <= 1 for v in numbers):
        raise ValueError(
            f'{type(layer).__name__} layer "{layer.name}": {argument} must be a number from 0 to 1 '
            f"or a pair of them; received {value!r}."
        )
    return float(min(pair)), float(max(pair))


def _check_labels(layer: Layer, labels: Any, n: int) -> None:
    """Refuse labels that cannot be mixed: another number of them, or the codes of classes."""
    name = f'{type(layer).__name__} layer "{layer.name}"'
    shape = tuple(labels.shape)
    if len(shape) < 2 or shape[0] != n:
        raise ValueError(
            f"{name} expects one-hot labels of shape ({n}, classes) for {n} images, but received "
            f"shape {shape}. See ops.one_hot, or reshape single numbers to ({n}, 1)."
        )
    codes = np.asarray(labels)
    if shape[-1] == 1 and codes.dtype.kind in "iu" and codes.size and codes.max() > 1:
        raise ValueError(
            f"{name} cannot mix the codes of classes: received integers up to {codes.max()}. Pass "
            "one-hot labels, as from ops.one_hot."
        )
