"""Group normalisation: statistics over the pixels and a group of channels of each sample."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from picodl.ops.core import cast, op
from picodl.ops.functions import rsqrt
from picodl.ops.reduce import mean as mean_of
from picodl.ops.shape import reshape
from picodl.parallel import map_blocks, parts_of
from picodl.tensor import Tensor, record
from picodl.typing import Array


@op
def group_normalization(
    x: Tensor,
    groups: int,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    epsilon: float = 0.001,
) -> Tensor:
    """y = (x - m) / sqrt(v + epsilon) * gamma + beta, m and v over pixels of a group of channels.

    Args:
        x: data with the channels last.
        groups: how many groups the channels fall into.
        gamma, beta: one number per channel. Default to 1 and 0.
        epsilon: keeps the root away from 0.

    Shapes: x (batch, ..., n), gamma (n,), beta (n,) -> (batch, ..., n).
    Raises:
        ValueError: if the channels do not divide into groups.
    Gradient, with h = g * gamma, d = x - m and i = 1 / sqrt(v + epsilon): dgamma = sum(g d i),
    dbeta = sum(g), dx = i (h - mean(h) - d i^2 mean(h d)), means over a sample's group.
    Reference: Wu and He, 2018, "Group Normalization", arXiv:1803.08494.
    """
    n = x.shape[-1]
    if groups < 1 or n % groups:
        raise ValueError(f"group_normalization: {n} channels do not divide into {groups} groups.")
    if x.dtype == np.float16:  # its sums would overflow
        y = group_normalization(cast(x, np.float32), groups, gamma, beta, epsilon)
        return cast(y, np.float16)
    pixels = math.prod(x.shape[1:-1])
    a = np.ascontiguousarray(x.data).reshape(len(x.data), pixels, n)
    blocks = parts_of(len(a), pixels * n)
    work = a.size * 1e-3
    ones = np.ones((1, pixels), a.dtype)
    size = max(1, pixels * n // groups)
    weight = 1.0 if gamma is None else gamma.data

    def group_mean(sums: Array) -> Array:
        """Sums over the pixels of each channel as means over its group, one number per channel."""
        means = sums.reshape(len(sums), groups, -1).sum(2, keepdims=True) / size
        return np.repeat(means, n // groups, axis=2).reshape(len(sums), 1, n)

    center = np.empty((len(a), 1, n), a.dtype)
    inverse = np.empty((len(a), 1, n), a.dtype)
    y = np.empty_like(a)

    def forward(block: slice) -> None:
        part, out = a[block], y[block]
        center[block] = group_mean(np.matmul(ones, part))
        d = np.subtract(part, center[block], out=out)
        inverse[block] = 1 / np.sqrt(group_mean(np.matmul(ones, d * d)) + epsilon)
        out *= inverse[block] * weight
        if beta is not None:
            out += beta.data

    map_blocks(forward, blocks, work)
    inputs = tuple(t for t in (x, gamma, beta) if t is not None)

    def backward(g: Any) -> Any:
        g = np.ascontiguousarray(g).reshape(a.shape)
        dx = np.empty_like(a)

        def back(block: slice) -> tuple[Array, Array]:
            i, up, out = inverse[block], g[block], dx[block]
            d = a[block] - center[block]
            total, slope = np.matmul(ones, up), np.matmul(ones, up * d)
            steep = i * i * i * group_mean(slope * weight)
            np.multiply(up, i * weight, out=out)
            d *= steep
            d += i * group_mean(total * weight)
            out -= d
            return (slope * i).sum((0, 1)), total.sum((0, 1))

        parts = map_blocks(back, blocks, 2 * work)
        if not parts:  # an empty batch
            return [np.zeros_like(t.data) for t in inputs]
        found: list[Any] = [dx.reshape(x.data.shape)]
        if gamma is not None:
            found.append(sum(s for s, _ in parts))
        if beta is not None:
            found.append(sum(t for _, t in parts))
        return found

    def composed(x: Any, *weights: Any) -> Any:
        apart = (len(a), math.prod(x.shape[1:-1]), groups, n // groups)
        d = reshape(x, apart)
        d = d - mean_of(d, (1, 3), keepdims=True)
        y = reshape(d * rsqrt(mean_of(d * d, (1, 3), keepdims=True) + epsilon), x.shape)
        if gamma is not None:
            y = y * weights[0]
        return y if beta is None else y + weights[-1]

    backward.__qualname__ = "group_normalization"
    return record(y.reshape(x.data.shape), inputs, backward, composed)
