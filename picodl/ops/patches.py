"""Blocks and patches of images, axes rearranged by name, vectors scaled to length 1."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from picodl import config
from picodl.ops.core import Numeric, op
from picodl.ops.elementwise import maximum
from picodl.ops.indexing import spread
from picodl.ops.linalg import norm
from picodl.ops.shape import pad
from picodl.tensor import Tensor, record


@op
def normalize(x: Tensor, axis: Any = -1, order: Any = 2, epsilon: float | None = None) -> Tensor:
    """x divided by its norm along an axis, or by epsilon where that is larger.

    Args:
        x: the array.
        axis: Defaults to the last.
        order: of the norm; see `norm`. Defaults to 2.
        epsilon: Defaults to `config.epsilon()`.

    Gradient: that of the quotient; where the norm is below epsilon, g / epsilon.
    """
    if isinstance(order, (int, float)) and order < 1:
        raise ValueError(f"normalize needs an order of at least 1; received {order}.")
    least = config.epsilon() if epsilon is None else epsilon
    return x / maximum(norm(x, order, axis, keepdims=True), least)


# -------------------------------------------------------------------- depth and space


def _blocks(x: Tensor, block_size: int, data_format: str, name: str) -> str:
    if x.data.ndim != 4 or block_size < 1:
        raise ValueError(
            f"{name} takes images with 4 axes and a positive block_size; received shape "
            f"{x.data.shape} and {block_size}."
        )
    return config.standardize_data_format(data_format)


@op
def depth_to_space(x: Numeric, block_size: int, data_format: str = "channels_last") -> Tensor:
    """Groups of channels laid out as blocks of pixels.

    Shapes: (batch, h, w, b * b * c) -> (batch, h * b, w * b, c), b the block size.

    Gradient: dx = space_to_depth of g.
    """
    b = int(block_size)
    last = _blocks(x, b, data_format, "depth_to_space") == "channels_last"
    channels = x.data.shape[-1 if last else 1]
    if channels % (b * b):
        raise ValueError(
            f"depth_to_space with block_size {b} needs a multiple of {b * b} channels; received "
            f"{channels}."
        )
    if last:
        n, h, w, c = x.data.shape
        y = x.reshape(n, h, w, b, b, c // (b * b)).transpose(0, 1, 3, 2, 4, 5)
        return y.reshape(n, h * b, w * b, c // (b * b))
    n, c, h, w = x.data.shape
    y = x.reshape(n, c // (b * b), b, b, h, w).transpose(0, 1, 4, 2, 5, 3)
    return y.reshape(n, c // (b * b), h * b, w * b)


@op
def space_to_depth(x: Numeric, block_size: int, data_format: str = "channels_last") -> Tensor:
    """Blocks of pixels laid out as channels; the inverse of `depth_to_space`.

    Shapes: (batch, h * b, w * b, c) -> (batch, h, w, b * b * c), b the block size.

    Gradient: dx = depth_to_space of g.
    """
    b = int(block_size)
    last = _blocks(x, b, data_format, "space_to_depth") == "channels_last"
    n, h, w, c = x.data.shape if last else (x.data.shape[i] for i in (0, 2, 3, 1))
    if h % b or w % b:
        raise ValueError(
            f"space_to_depth with block_size {b} needs height and width that are multiples of it; "
            f"received {h} and {w}."
        )
    if last:
        y = x.reshape(n, h // b, b, w // b, b, c).transpose(0, 1, 3, 2, 4, 5)
        return y.reshape(n, h // b, w // b, b * b * c)
    y = x.reshape(n, c, h // b, b, w // b, b).transpose(0, 1, 3, 5, 2, 4)
    return y.reshape(n, c * b * b, h // b, w // b)


# -------------------------------------------------------------------- sliding windows


def _pair(value: Any, name: str) -> tuple[int, int]:
    pair = (value, value) if isinstance(value, (int, np.integer)) else tuple(value)
    if len(pair) != 2:
        raise ValueError(f"{name} must be a number or a pair; received {value!r}.")
    return int(pair[0]), int(pair[1])


def _windows(
    size: tuple[int, int], kernel: Any, dilation: Any, padding: Any, stride: Any
) -> tuple[Any, Any, tuple[int, int], tuple[int, int]]:
    """Rows and columns of each tap of each window, and the kernel and the number of windows."""
    k, d = _pair(kernel, "kernel_size"), _pair(dilation, "dilation")
    p, s = _pair(padding, "padding"), _pair(stride, "stride")
    count = [(size[i] + 2 * p[i] - d[i] * (k[i] - 1) - 1) // s[i] + 1 for i in (0, 1)]
    if min(count) < 1:
        raise ValueError(
            f"A kernel of {k} with dilation {d} does not fit an image of {size} with padding {p}."
        )
    axes = [np.arange(k[i])[:, None] * d[i] + np.arange(count[i]) * s[i] for i in (0, 1)]
    rows = axes[0][:, None, :, None]
    columns = axes[1][None, :, None, :]
    return rows, columns, k, (count[0], count[1])


@op
def unfold(
    x: Tensor, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
) -> Tensor:
    """The windows of images as columns.

    Args:
        x: images, channels first.
        kernel_size, dilation, padding, stride: a number, or a pair for height and width.

    Shapes: (batch, c, h, w) -> (batch, c * kh * kw, windows).

    Gradient: dx = fold of g: each pixel gets the sum over the windows it is in.
    """
    if x.data.ndim != 4:
        raise ValueError(f"unfold takes images (batch, c, h, w); received shape {x.data.shape}.")
    n, c, h, w = x.data.shape
    rows, columns, (kh, kw), (oh, ow) = _windows((h, w), kernel_size, dilation, padding, stride)
    top, left = _pair(padding, "padding")
    wide = pad(x, ((0, 0), (0, 0), (top, top), (left, left))) if top or left else x
    return wide[:, :, rows, columns].reshape(n, c * kh * kw, oh * ow)


@op
def fold(
    x: Tensor,
    output_size: Any,
    kernel_size: Any,
    dilation: Any = 1,
    padding: Any = 0,
    stride: Any = 1,
) -> Tensor:
    """Images from columns of windows: where windows overlap they add up. The transpose of `unfold`.

    Args: as `unfold`, with output_size, height and width of the result.

    Shapes: (batch, c * kh * kw, windows) -> (batch, c, h, w).

    Gradient: dx = unfold of g.
    """
    size = _pair(output_size, "output_size")
    rows, columns, (kh, kw), (oh, ow) = _windows(size, kernel_size, dilation, padding, stride)
    if x.data.ndim != 3 or x.data.shape[1] % (kh * kw) or x.data.shape[2] != oh * ow:
        raise ValueError(
            f"fold to {size} with a kernel of {(kh, kw)} takes columns of shape (batch, c * "
            f"{kh * kw}, {oh * ow}); received {x.data.shape}."
        )
    n, c = x.data.shape[0], x.data.shape[1] // (kh * kw)
    (h, w), (top, left) = size, _pair(padding, "padding")
    key = (slice(None), slice(None), rows, columns)
    wide = (n, c, h + 2 * top, w + 2 * left)

    def backward(g: Any) -> Any:
        edge = ((0, 0), (0, 0), (top, top), (left, left))
        return (np.pad(g, edge)[key].reshape(x.data.shape),)

    y = spread(x.data.reshape(n, c, kh, kw, oh, ow), key, wide)
    return record(y[:, :, top : top + h, left : left + w], (x,), backward)


# -------------------------------------------------------------------- axes by name


@op
def rearrange(tensor: Numeric, pattern: str, **axes_lengths: int) -> Tensor:
    """Axes split, exchanged and joined by name, such as "b (h p) w -> b h (w p)".

    Args:
        tensor: the array.
        pattern: names of its axes, an arrow, and the same names in the new order. Parentheses hold
            axes that are one axis of the array; 1 is an axis of size 1, and "..." any other axes.
        axes_lengths: sizes of names inside parentheses, where they do not follow.

    Gradient: dx = g arranged back.

    Reference: Rogozhnikov, 2022, "Einops: clear and reliable tensor manipulations with
    Einstein-like notation".

    >>> rearrange(np.arange(6).reshape(2, 3), "a b -> (b a)")
    array([0, 3, 1, 4, 2, 5])
    """
    left, arrow, right = pattern.partition("->")
    if not arrow:
        raise ValueError(f"The pattern {pattern!r} needs an arrow, as in 'a b -> b a'.")
    before, after = _groups(left, pattern), _groups(right, pattern)
    shape = tensor.data.shape
    if ["..."] in before:
        place = before.index(["..."])
        extra = [f".{i}" for i in range(len(shape) - len(before) + 1)]
        before[place : place + 1] = [[name] for name in extra]
        after = [
            [name for part in group for name in (extra if part == "..." else [part])]
            if group != ["..."]
            else group
            for group in after
        ]
        if ["..."] in after:
            place = after.index(["..."])
            after[place : place + 1] = [[name] for name in extra]
    if len(before) != len(shape):
        raise ValueError(f"The pattern {pattern!r} has {len(before)} axes; received {shape}.")
    sizes = _sizes(before, shape, dict(axes_lengths), pattern)
    names = [name for group in before for name in group]
    order = [name for group in after for name in group]
    if sorted(names) != sorted(order) or len(set(names)) != len(names):
        raise ValueError(
            f"The pattern {pattern!r} must have each name exactly once on both sides of the arrow."
        )
    apart = tensor.reshape([sizes[name] for name in names])
    turned = apart.transpose([names.index(name) for name in order])
    return turned.reshape([math.prod(sizes[name] for name in group) for group in after])


def _groups(side: str, pattern: str) -> list[list[str]]:
    """The axes of one side, each a list of names; axes of size 1 are empty lists."""
    parts = re.findall(r"\(([^()]*)\)|(\.\.\.|\w+)", side)
    if re.sub(r"\([^()]*\)|\.\.\.|\w+|\s", "", side):
        raise ValueError(f"The pattern {pattern!r} cannot be read.")
    return [
        [name for name in re.findall(r"\.\.\.|\w+", inside or alone) if name != "1"]
        for inside, alone in parts
    ]


def _sizes(
    groups: list[list[str]], shape: tuple[int, ...], sizes: dict[str, int], pattern: str
) -> dict[str, int]:
    """The size of every name."""
    for group, n in zip(groups, shape, strict=True):
        unknown = [name for name in group if name not in sizes]
        known = math.prod(sizes[name] for name in group if name in sizes)
        if len(unknown) > 1:
            raise ValueError(
                f"The pattern {pattern!r} leaves the sizes of {unknown} open; pass all but one."
            )
        if (n % known if unknown and known else n != known) or (unknown and not known):
            raise ValueError(
                f"The pattern {pattern!r} with sizes {sizes} does not fit an axis of size {n}."
            )
        if unknown:
            sizes[unknown[0]] = n // known
    return sizes
