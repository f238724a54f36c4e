"""Operations on images (batch, height, width, channels), or without the batch: `ops.image`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from picodl import config
from picodl.ops.core import Numeric, cast, op, saturate_cast
from picodl.ops.elementwise import absolute, clip, maximum, minimum, mod, round
from picodl.ops.indexing import take, where
from picodl.ops.linear import matmul
from picodl.ops.patches import _pair, _windows
from picodl.ops.sampling import affine_transform, image_axes, map_coordinates
from picodl.ops.shape import expand_dims, pad, split, squeeze, stack
from picodl.tensor import Tensor

__all__ = [
    "affine_transform",
    "crop_images",
    "extract_patches",
    "hsv_to_rgb",
    "map_coordinates",
    "pad_images",
    "resize",
    "rgb_to_grayscale",
    "rgb_to_hsv",
]

# -------------------------------------------------------------------- size

INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos3", "lanczos5")


@op
def resize(
    images: Numeric,
    size: Sequence[int],
    interpolation: str = "bilinear",
    antialias: bool = False,
    crop_to_aspect_ratio: bool = False,
    pad_to_aspect_ratio: bool = False,
    fill_mode: str = "constant",
    fill_value: float = 0.0,
    data_format: str | None = None,
) -> Tensor:
    """Images scaled to another height and width; pixels are squares, their values at the centres.

    Images of integers stay so: what is between is rounded and kept within the range of their dtype.

    Args:
        images: one or a batch.
        size: (height, width).
        interpolation: "nearest", "bilinear", "bicubic", "lanczos3" or "lanczos5".
        antialias: widen the kernel when shrinking, so that every pixel counts.
        crop_to_aspect_ratio: cut the middle out first, in the shape of the new size.
        pad_to_aspect_ratio: pad to that shape first.
        fill_mode: "constant".
        fill_value: what to pad with.
        data_format: Defaults to `config.image_data_format()`.

    Gradient: of the weighted sums that the pixels are.

    Reference: Keys, 1981, "Cubic convolution interpolation for digital image processing" (with
    a = -0.5).
    """
    rows, columns, _ = image_axes(images, data_format, "resize")
    if interpolation not in INTERPOLATIONS:
        raise ValueError(
            f"interpolation must be one of {', '.join(INTERPOLATIONS)}; received {interpolation!r}."
        )
    if fill_mode != "constant":
        raise ValueError(f'fill_mode must be "constant"; received {fill_mode!r}.')
    if crop_to_aspect_ratio and pad_to_aspect_ratio:
        raise ValueError("Pass crop_to_aspect_ratio or pad_to_aspect_ratio, not both.")
    height, width = (int(n) for n in size)
    if height < 1 or width < 1:
        raise ValueError(f"size must be positive; received {tuple(size)}.")
    if crop_to_aspect_ratio or pad_to_aspect_ratio:
        h, w = images.data.shape[rows], images.data.shape[columns]
        fit_h, fit_w = int(w * height / width), int(h * width / height)
        if crop_to_aspect_ratio:
            new = max(min(h, fit_h), 1), max(min(w, fit_w), 1)
            starts = (h - new[0]) // 2, (w - new[1]) // 2
            key: list[Any] = [slice(None)] * images.data.ndim
            key[rows] = slice(starts[0], starts[0] + new[0])
            key[columns] = slice(starts[1], starts[1] + new[1])
            images = images[tuple(key)]
        else:
            before = (max(h, fit_h) - h) // 2, (max(w, fit_w) - w) // 2
            border = [(0, 0)] * images.data.ndim
            border[rows], border[columns] = (before[0],) * 2, (before[1],) * 2
            images = pad(images, border, constant_values=fill_value)
    kind = images.data.dtype
    between = kind.kind == "f" or interpolation == "nearest"
    y = images if between else cast(images, config.floatx())
    for axis, n in ((rows, height), (columns, width)):
        y = _scaled(y, axis % y.data.ndim, n, interpolation, antialias)
    return y if between else saturate_cast(round(y), kind)


def _scaled(x: Tensor, axis: int, size: int, interpolation: str, antialias: bool) -> Tensor:
    """x with another size along an axis."""
    n = x.data.shape[axis]
    if n == size:
        return x
    if interpolation == "nearest":
        return take(x, np.floor((np.arange(size) + 0.5) * (n / size)).astype(np.int64), axis)
    weights = resize_weights(n, size, interpolation, antialias).astype(x.data.dtype)
    shape = x.data.shape
    if axis == len(shape) - 1:
        return matmul(x, weights.T)
    inner = math.prod(shape[axis + 1 :])
    y = matmul(weights, x.reshape(-1, n, inner))
    return y.reshape(*shape[:axis], size, *shape[axis + 1 :])


def resize_weights(n: int, size: int, interpolation: str, antialias: bool) -> Any:
    """The (size, n) matrix that resamples n values at the centres of size intervals."""
    step = n / size
    place = (np.arange(size) + 0.5) * step - 0.5
    reach = max(step, 1.0) if antialias else 1.0
    x = np.abs(place[:, None] - np.arange(n)) / reach
    if interpolation == "bilinear":
        w = np.maximum(0, 1 - x)
    elif interpolation == "bicubic":
        near = ((1.5 * x - 2.5) * x) * x + 1
        far = ((-0.5 * x + 2.5) * x - 4) * x + 2
        w = np.where(x < 1, near, np.where(x < 2, far, 0))
    else:
        radius = 3 if interpolation == "lanczos3" else 5
        w = np.where(x <= radius, np.sinc(x) * np.sinc(x / radius), 0)
    return w / w.sum(1, keepdims=True)


@op
def pad_images(
    images: Numeric,
    top_padding: int | None = None,
    left_padding: int | None = None,
    bottom_padding: int | None = None,
    right_padding: int | None = None,
    target_height: int | None = None,
    target_width: int | None = None,
    data_format: str | None = None,
) -> Tensor:
    """Images with zeros around them; of the two paddings and the target size of each axis pass two.

    Gradient: dx = g without the border.
    """
    rows, columns, _ = image_axes(images, data_format, "pad_images")
    border = [(0, 0)] * images.data.ndim
    for axis, before, after, target, names in (
        (rows, top_padding, bottom_padding, target_height, ("top", "bottom", "height")),
        (columns, left_padding, right_padding, target_width, ("left", "right", "width")),
    ):
        n = images.data.shape[axis]
        first, second = _ends(before, after, None if target is None else target - n, names, "pad")
        border[axis] = (first, second)
    return pad(images, border)


@op
def crop_images(
    images: Numeric,
    top_cropping: int | None = None,
    left_cropping: int | None = None,
    bottom_cropping: int | None = None,
    right_cropping: int | None = None,
    target_height: int | None = None,
    target_width: int | None = None,
    data_format: str | None = None,
) -> Tensor:
    """Images without their edges; of the two croppings and the target size of each axis pass two.

    Gradient: dx = zeros with g inside.
    """
    rows, columns, _ = image_axes(images, data_format, "crop_images")
    key: list[Any] = [slice(None)] * images.data.ndim
    for axis, before, after, target, names in (
        (rows, top_cropping, bottom_cropping, target_height, ("top", "bottom", "height")),
        (columns, left_cropping, right_cropping, target_width, ("left", "right", "width")),
    ):
        n = images.data.shape[axis]
        first, second = _ends(before, after, None if target is None else n - target, names, "crop")
        if first + second >= n:
            raise ValueError(
                f"crop_images cannot take {first} and {second} off an axis of size {n}."
            )
        key[axis] = slice(first, n - second)
    return images[tuple(key)]


def _ends(
    before: int | None, after: int | None, total: int | None, names: Sequence[str], does: str
) -> tuple[int, int]:
    """Both ends, from the two of (before, after, total) that were given."""
    if sum(part is None for part in (before, after, total)) != 1:
        what = f"{does}ding" if does == "pad" else f"{does}ping"
        raise ValueError(
            f"{does}_images needs exactly two of {names[0]}_{what}, {names[1]}_{what} and "
            f"target_{names[2]}."
        )
    first = total - after if before is None else before  # type: ignore[operator]
    second = total - before if after is None else after  # type: ignore[operator]
    if first < 0 or second < 0:
        raise ValueError(
            f"{does}_images: the {names[0]} and {names[1]} ends come to {first} and {second}, but "
            "must not be negative."
        )
    return int(first), int(second)


# -------------------------------------------------------------------- colour


def _colours(images: Tensor, data_format: str | None, name: str) -> int:
    axis = image_axes(images, data_format, name)[2]
    if images.data.shape[axis] != 3:
        raise ValueError(f"{name} takes 3 channels; received shape {images.data.shape}.")
    return axis


@op
def rgb_to_grayscale(images: Numeric, data_format: str | None = None) -> Tensor:
    """One channel of brightness, 0.2989 red + 0.587 green + 0.114 blue.

    Gradient: dx = g times these weights.
    """
    axis = image_axes(images, data_format, "rgb_to_grayscale")[2]
    if images.data.shape[axis] == 1:
        return images
    _colours(images, data_format, "rgb_to_grayscale")
    kind = images.data.dtype
    red, green, blue = split(images if kind.kind == "f" else cast(images, config.floatx()), 3, axis)
    grey = 0.2989 * red + 0.5870 * green + 0.1140 * blue
    return grey if kind.kind == "f" else cast(grey, kind)


@op
def rgb_to_hsv(images: Tensor, data_format: str | None = None) -> Tensor:
    """Hue (from 0 to 1, from red over green and blue back to red), saturation and value.

    Gradient: that of the formula; to grey only from the value.
    """
    axis = _colours(images, data_format, "rgb_to_hsv")
    red, green, blue = (squeeze(part, axis) for part in split(images, 3, axis))
    top = maximum(maximum(red, green), blue)
    span = top - minimum(minimum(red, green), blue)
    r, g, most, wide = (part.data for part in (red, green, top, span))
    grey, dark = wide <= 0, most <= 0
    saturation = where(dark, 0.0, span / where(dark, 1.0, top))
    sixth = 6.0 * where(grey, 1.0, span)
    from_red = (green - blue) / sixth
    from_red = from_red + (from_red.data < 0)
    hue = where(
        most == r,
        from_red,
        where(
            most == g,
            (blue - red) / sixth + 2.0 / 6.0,
            (red - green) / sixth + 4.0 / 6.0,
        ),
    )
    return stack([where(grey, 0.0, hue), saturation, top], axis)


@op
def hsv_to_rgb(images: Tensor, data_format: str | None = None) -> Tensor:
    """Red, green and blue from hue, saturation and value; the inverse of `rgb_to_hsv`.

    Gradient: that of the piecewise linear formula.
    """
    axis = _colours(images, data_format, "hsv_to_rgb")
    hue, saturation, value = (squeeze(part, axis) for part in split(images, 3, axis))
    turn = mod(hue, 1.0) * 6.0
    shades = (
        clip(absolute(turn - 3.0) - 1.0, 0.0, 1.0),
        clip(2.0 - absolute(turn - 2.0), 0.0, 1.0),
        clip(2.0 - absolute(turn - 4.0), 0.0, 1.0),
    )
    return stack([value * (1.0 - saturation + saturation * s) for s in shades], axis)


# -------------------------------------------------------------------- patches


@op
def extract_patches(
    images: Numeric,
    size: Any,
    strides: Any = None,
    dilation_rate: Any = 1,
    padding: str = "valid",
    data_format: str | None = None,
) -> Tensor:
    """Patches of images, each as one vector of its pixels' channels.

    Args:
        images: one or a batch.
        size: a number, or (height, width).
        strides: from patch to patch. Defaults to the size: side by side.
        dilation_rate: from pixel to pixel in a patch. Defaults to 1.
        padding: "valid", or "same" to pad with zeros so that ceil(size / stride) patches fit.
        data_format: Defaults to `config.image_data_format()`.

    Shapes: (batch, h, w, c) -> (batch, rows, columns, height * width * c).

    Gradient: each pixel gets the sum over the patches it is in.
    """
    channels = image_axes(images, data_format, "extract_patches")[2]
    padding = str(padding).lower()
    if padding not in ("valid", "same"):
        raise ValueError(f'padding must be "valid" or "same"; received {padding!r}.')
    batched = images.data.ndim == 4
    x = images if batched else expand_dims(images, 0)
    x = x if channels == -1 else x.transpose(0, 2, 3, 1)
    k, d = _pair(size, "size"), _pair(dilation_rate, "dilation_rate")
    s = k if strides is None else _pair(strides, "strides")
    if padding == "same":
        border = []
        for i in (0, 1):
            n = x.data.shape[1 + i]
            total = max((-(-n // s[i]) - 1) * s[i] + (k[i] - 1) * d[i] + 1 - n, 0)
            border.append((total // 2, total - total // 2))
        x = pad(x, [(0, 0), *border, (0, 0)])
    i, j, _, (oh, ow) = _windows(x.data.shape[1:3], k, d, 0, s)
    patches = x[:, i, j].transpose(0, 3, 4, 1, 2, 5)
    y = patches.reshape(len(x.data), oh, ow, k[0] * k[1] * x.data.shape[-1])
    y = y if channels == -1 else y.transpose(0, 3, 1, 2)
    return y if batched else squeeze(y, 0)
