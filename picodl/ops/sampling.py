"""Values of images and other arrays at fractional coordinates."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from picodl import config
from picodl.ops.core import cast, op
from picodl.ops.indexing import where
from picodl.ops.shape import expand_dims, squeeze
from picodl.tensor import Tensor


def image_axes(images: Tensor, data_format: str | None, name: str) -> tuple[int, int, int]:
    """The axes of height, width and channels, counted from the end."""
    if images.data.ndim not in (3, 4):
        raise ValueError(
            f"{name} takes an image (3 axes) or a batch of them (4); received shape "
            f"{images.data.shape}."
        )
    last = config.standardize_data_format(data_format) == "channels_last"
    return (-3, -2, -1) if last else (-2, -1, -3)


FILL_MODES = ("constant", "nearest", "wrap", "mirror", "reflect")


@op
def map_coordinates(
    inputs: Tensor,
    coordinates: Tensor,
    order: int,
    fill_mode: str = "constant",
    fill_value: float = 0.0,
) -> Tensor:
    """The values of an array at fractional places; of integers as floats.

    Args:
        inputs: the array.
        coordinates: the places, a row per axis of the array.
        order: 0 for the nearest element, 1 for linear interpolation.
        fill_mode: what lies outside: "constant" fill_value, "nearest" the edge, "wrap" the array
            again, "mirror" (without the edge) or "reflect" (with it) its mirror image.
        fill_value: Defaults to 0.

    Shapes: inputs with n axes, coordinates (n, ...) -> (...).

    Gradient: to the neighbours, g times their weights; to the coordinates, g times the slope
    between the neighbours (order 1).
    """
    if coordinates.data.ndim < 2 or len(coordinates.data) != inputs.data.ndim:
        raise ValueError(
            f"map_coordinates needs coordinates (n, ...) with one row per axis of inputs of shape "
            f"{inputs.data.shape}; received {coordinates.data.shape}."
        )
    rows = [coordinates[i] for i in range(inputs.data.ndim)]
    y = _sample(inputs, (), rows, order, fill_mode, fill_value)
    return cast(y, inputs.data.dtype)


def _sample(
    x: Tensor, lead: tuple[Any, ...], places: list[Tensor], order: int, mode: str, fill: float
) -> Tensor:
    """x[lead] at places along its next axes."""
    if mode not in FILL_MODES:
        raise ValueError(f"fill_mode must be one of {', '.join(FILL_MODES)}; received {mode!r}.")
    if order not in (0, 1):
        raise ValueError(f"order must be 0 (nearest) or 1 (linear); received {order!r}.")
    sizes = x.data.shape[len(lead) : len(lead) + len(places)]
    trailing = (1,) * (x.data.ndim - len(lead) - len(places))
    if order == 0:
        low = [_nearest(p.data) for p in places]
        corners: Any = [(low, None)]
    else:
        low = [np.floor(p.data).astype(np.int64) for p in places]
        parts = [p - f for p, f in zip(places, low, strict=True)]
        corners = []
        for ends in itertools.product((0, 1), repeat=len(places)):
            weight: Any = None
            for end, part in zip(ends, parts, strict=True):
                factor = part if end else 1 - part
                weight = factor if weight is None else weight * factor
            corners.append(([f + e for f, e in zip(low, ends, strict=True)], weight))
    total: Any = None
    for ids, weight in corners:
        inside = np.ones((), bool)
        if mode == "constant":
            for i, n in zip(ids, sizes, strict=True):
                inside = inside & (i >= 0) & (i < n)
        key = tuple(_folded(i, n, mode) for i, n in zip(ids, sizes, strict=True))
        picked = x[(*lead, *key)]
        if not inside.all():
            picked = where(inside.reshape(inside.shape + trailing), picked, fill)
        if weight is not None:
            picked = picked * weight.reshape(tuple(weight.shape) + trailing)
        total = picked if total is None else total + picked
    return total


def _nearest(place: Any) -> Any:
    """The nearest whole number; halves away from 0, as Keras does."""
    return np.copysign(np.floor(np.abs(place) + 0.5), place).astype(np.int64)


def _folded(i: Any, n: int, mode: str) -> Any:
    """Positions outside an axis of size n brought back inside."""
    if mode == "wrap":
        return i % n
    if mode == "mirror" and n > 1:
        i = np.abs(i) % (2 * n - 2)
        return np.minimum(i, 2 * n - 2 - i)
    if mode == "reflect":
        i = i % (2 * n)
        return np.minimum(i, 2 * n - 1 - i)
    return np.clip(i, 0, n - 1)


@op
def affine_transform(
    images: Tensor,
    transform: Tensor,
    interpolation: str = "bilinear",
    fill_mode: str = "constant",
    fill_value: float = 0,
    data_format: str | None = None,
) -> Tensor:
    """Images turned, sheared, scaled or moved: the pixel (x, y) of the result comes from (u, v).

    With a transform (a0, a1, a2, b0, b1, b2, c0, c1) and k = c0 x + c1 y + 1,
    u = (a0 x + a1 y + a2) / k and v = (b0 x + b1 y + b2) / k.

    Args:
        images: one or a batch.
        transform: 8 numbers, or a row of them per image.
        interpolation: "nearest" or "bilinear".
        fill_mode, fill_value: see `map_coordinates`.
        data_format: Defaults to `config.image_data_format()`.

    Gradient: to the images and, if bilinear, to the transform; see `map_coordinates`.
    """
    channels = image_axes(images, data_format, "affine_transform")[2]
    if interpolation not in ("nearest", "bilinear"):
        raise ValueError(
            f'interpolation must be "nearest" or "bilinear"; received {interpolation!r}.'
        )
    batched = images.data.ndim == 4
    x = images if batched else expand_dims(images, 0)
    x = x if channels == -1 else x.transpose(0, 2, 3, 1)
    t = transform if transform.data.ndim == 2 else expand_dims(transform, 0)
    if t.data.ndim != 2 or t.data.shape[1] != 8 or t.data.shape[0] not in (1, len(x.data)):
        raise ValueError(
            f"affine_transform needs 8 numbers per image; received transform of shape "
            f"{transform.data.shape} for images of shape {images.data.shape}."
        )
    n, h, w, _ = x.data.shape
    down, right = np.arange(h)[:, None], np.arange(w)[None, :]
    a0, a1, a2, b0, b1, b2, c0, c1 = (t[:, i].reshape(-1, 1, 1) for i in range(8))
    places = [b0 * right + b1 * down + b2, a0 * right + a1 * down + a2]
    if c0.data.any() or c1.data.any() or t.requires_grad:
        k = c0 * right + c1 * down + 1.0
        places = [p / k for p in places]
    places = [np.broadcast_to(p, (n, h, w)) for p in places]
    lead = (np.arange(n)[:, None, None],)
    order = 0 if interpolation == "nearest" else 1
    y = _sample(x, lead, places, order, fill_mode, fill_value)
    y = y if channels == -1 else y.transpose(0, 3, 1, 2)
    return cast(y if batched else squeeze(y, 0), images.data.dtype)
