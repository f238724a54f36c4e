"""Layers that give images a fixed size."""

from __future__ import annotations

from typing import Any

from picodl import config, ops
from picodl.layers.base import Layer
from picodl.layers.checks import choice, positive_integer
from picodl.ops.image import INTERPOLATIONS, resize
from picodl.typing import Config, Shape


class ImageLayer(Layer):
    """The base of layers that give one image or a batch of them another size.

    They also take a dict {"images": ..., "labels": ...}, whose images change.

    Args:
        height, width: of the output, in pixels.
        data_format: "channels_last" or "channels_first". Defaults to the global setting.
    """

    built = True

    def __init__(
        self, height: int, width: int, data_format: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.height = positive_integer(self, "height", height)
        self.width = positive_integer(self, "width", width)
        self.data_format = config.standardize_data_format(data_format)

    def call(self, data: Any) -> Any:
        if isinstance(data, dict):
            return {**data, "images": self.resized(named_images(self, data))}
        return self.resized(data)

    def resized(self, x: Any) -> Any:
        """The images in the new size."""
        raise NotImplementedError

    def compute_output_shape(self, input_shape: Any) -> Any:
        if isinstance(input_shape, dict):
            images = self.compute_output_shape(named_images(self, input_shape))
            return {**input_shape, "images": images}
        row = row_axis(self, input_shape, self.data_format) % len(input_shape)
        return (*input_shape[:row], self.height, self.width, *input_shape[row + 2 :])

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "height": self.height,
            "width": self.width,
            "data_format": self.data_format,
        }


def row_axis(layer: Layer, shape: Shape, data_format: str) -> int:
    """The axis of the rows; that of the columns follows.

    Raises:
        ValueError: naming the layer, unless it is one image or a batch of them.
    """
    if len(shape) not in (3, 4):
        raise ValueError(
            f'{type(layer).__name__} layer "{layer.name}" expects an image (height, width, '
            f"channels) or a batch of them, but received shape {tuple(shape)}."
        )
    return -2 if data_format == "channels_first" else -3


def named_images(layer: Layer, data: dict[str, Any]) -> Any:
    """The images of a dict.

    Raises:
        ValueError: naming the layer, if there are none, or what would have to change with them.
    """
    if "images" not in data:
        raise ValueError(
            f'{type(layer).__name__} layer "{layer.name}" expects a dict with the key "images"; '
            f"received the keys {sorted(data)}."
        )
    for key in ("bounding_boxes", "segmentation_masks"):
        if key in data:
            raise ValueError(
                f'{type(layer).__name__} layer "{layer.name}" changes "images" and "labels" only, '
                f'but received "{key}" too, which would no longer fit the images. Leave it out.'
            )
    return data["images"]


class Resizing(ImageLayer):
    """Images scaled to another size.

    Args:
        height, width: of the output, in pixels.
        interpolation: "nearest", "bilinear", "bicubic", "lanczos3" or "lanczos5".
        crop_to_aspect_ratio: cut the middle out first, in the shape of the new size.
        pad_to_aspect_ratio: pad to that shape first.
        fill_mode: "constant".
        fill_value: what to pad with.
        antialias: widen the kernel when shrinking, so that every pixel counts.
        data_format: "channels_last" or "channels_first". Defaults to the global setting.

    Shapes: (batch, h, w, n) -> (batch, height, width, n), or one image.
    """

    def __init__(
        self,
        height: int,
        width: int,
        interpolation: str = "bilinear",
        crop_to_aspect_ratio: bool = False,
        pad_to_aspect_ratio: bool = False,
        fill_mode: str = "constant",
        fill_value: float = 0.0,
        antialias: bool = False,
        data_format: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(height, width, data_format, **kwargs)
        self.interpolation = choice(self, "interpolation", interpolation, INTERPOLATIONS)
        self.crop_to_aspect_ratio = crop_to_aspect_ratio
        self.pad_to_aspect_ratio = pad_to_aspect_ratio
        self.fill_mode = choice(self, "fill_mode", fill_mode, ("constant",))
        self.fill_value = fill_value
        self.antialias = antialias

    def resized(self, x: Any) -> Any:
        row_axis(self, x.shape, self.data_format)
        return resize(
            x,
            (self.height, self.width),
            interpolation=self.interpolation,
            antialias=self.antialias,
            crop_to_aspect_ratio=self.crop_to_aspect_ratio,
            pad_to_aspect_ratio=self.pad_to_aspect_ratio,
            fill_mode=self.fill_mode,
            fill_value=self.fill_value,
            data_format=self.data_format,
        )

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "interpolation": self.interpolation,
            "crop_to_aspect_ratio": self.crop_to_aspect_ratio,
            "pad_to_aspect_ratio": self.pad_to_aspect_ratio,
            "fill_mode": self.fill_mode,
            "fill_value": self.fill_value,
            "antialias": self.antialias,
        }


class CenterCrop(ImageLayer):
    """The middle of the images; images that are too small are scaled up first.

    Args:
        height, width: of the output, in pixels.
        data_format: "channels_last" or "channels_first". Defaults to the global setting.

    >>> import numpy as np
    >>> CenterCrop(2, 2)(np.arange(16.0).reshape(1, 4, 4, 1)).numpy().ravel()
    array([ 5.,  6.,  9., 10.], dtype=float32)
    """

    def resized(self, x: Any) -> Any:
        x = ops.cast(x, self.compute_dtype)
        row = row_axis(self, x.shape, self.data_format)
        down, right = x.shape[row] - self.height, x.shape[row + 1] - self.width
        if down < 0 or right < 0:
            return resize(
                x,
                (self.height, self.width),
                crop_to_aspect_ratio=True,
                data_format=self.data_format,
            )
        return _cut(x, row, down // 2, right // 2, self.height, self.width)


def _cut(x: Any, row: int, top: int, left: int, height: int, width: int) -> Any:
    rest = (slice(None),) * (-row - 2)
    return x[(..., slice(top, top + height), slice(left, left + width), *rest)]
