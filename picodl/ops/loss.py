"""Losses with a derivative of their own: cross-entropies and the mean squared error.

Each compares a target with an output and keeps one value per sample; `weighted_sum` adds those up.
The classes and the checks of shapes are in picodl/losses.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from picodl import config
from picodl.ops.core import normalize_axis, op
from picodl.ops.labels import class_axis, class_numbers
from picodl.ops.linear import sum_of_columns
from picodl.tensor import Tensor, record
from picodl.typing import Array


@op
def binary_crossentropy(target: Tensor, output: Tensor, from_logits: bool = False) -> Tensor:
    """-(t log p + (1 - t) log(1 - p)), elementwise; from logits z, p = sigmoid(z).

    Args:
        target: t, between 0 and 1.
        output: probabilities p, clipped to [eps, 1 - eps] with eps = `config.epsilon()`, or logits.
        from_logits: whether output holds logits, which stay exact at any size.

    Raises:
        ValueError: if the shapes differ, or a target lies outside 0..1.

    Gradient: dz = g * (sigmoid(z) - t), or dp = g * (p - t) / (p (1 - p)), 0 where p was clipped.
    """
    return binary_values(target, output, from_logits)


def binary_values(
    target: Tensor, output: Tensor, from_logits: bool, axis: int | None = None
) -> Tensor:
    """`binary_crossentropy`, and its mean over an axis in the same step."""
    t, a = target.data, output.data
    if t.shape != a.shape:
        raise ValueError(
            f"binary_crossentropy expected targets of the shape of the predictions, {a.shape}; "
            f"received targets of shape {t.shape}."
        )
    _between_0_and_1(t)
    share = 1.0
    if axis is not None:
        (axis,) = normalize_axis(axis, a.ndim)
        share = 1 / (a.shape[axis] or 1)
    if from_logits:
        small = np.abs(a)
        np.exp(np.negative(small, out=small), out=small)  # in 0..1 for either sign
        y = np.log1p(small)
        scratch = np.maximum(a, 0)
        y += scratch
        y -= np.multiply(a, t, out=scratch)
        small += 1
    else:
        _warn_of_logits(a, 1.001)
        p, inside = _clipped(a)
        log_p, log_q = np.log(p), np.log1p(-p)
        y = -(t * log_p + (1 - t) * log_q)
    if axis is not None:
        y = np.add.reduce(y, axis) * share

    def backward(g: Any) -> Any:
        if axis is not None:
            g = np.expand_dims(g * share, axis)
        if not from_logits:
            dt = g * (log_q - log_p) if target.requires_grad else None
            d = p - t
            d /= p * (1 - p)
            d *= inside
            d *= g
            return dt, d
        # p = exp(min(z, 0)) / (1 + exp(-|z|)); a where() would take ten times as long
        d = np.minimum(a, 0)
        np.exp(d, out=d)
        d /= small
        d -= t
        d *= g
        return (-a * g if target.requires_grad else None), d

    return record(y, (target, output), backward, _composed_binary(from_logits, axis))


@op
def categorical_crossentropy(
    target: Tensor, output: Tensor, from_logits: bool = False, axis: int = -1
) -> Tensor:
    """-sum(t log p) over the classes; from logits z, p = softmax(z).

    Args:
        target: t, the probability of each class; one-hot for known labels.
        output: probabilities, divided by their sum and clipped to [eps, 1 - eps] with
            eps = `config.epsilon()`, or logits.
        from_logits: whether output holds logits, which stay exact at any size.
        axis: where the classes are.

    Shapes: target and output (..., classes) -> (...), for the default axis.

    Raises:
        ValueError: if the shapes differ or there is no class.

    Gradient: dz = g * (p sum(t) - t). With probabilities q = p / s before clipping, s their sum:
    dp = g / s * (sum(h q) - h), where h = t / q, 0 where q was clipped.
    """
    t, a = target.data, output.data
    axis = class_axis(a.shape, axis, "categorical_crossentropy")
    if t.shape != a.shape:
        raise ValueError(
            "categorical_crossentropy expected targets of the shape of the predictions, "
            f"{a.shape}; received targets of shape {t.shape}."
        )
    if from_logits:
        z = a - a.max(axis, keepdims=True)
        picked = np.vecdot(t, z, axis=axis)  # type: ignore[call-overload]
        e = np.exp(z, out=None if target.requires_grad else z)
        s = np.add.reduce(e, axis, keepdims=True)
        log_s, total = np.log(s), np.add.reduce(t, axis, keepdims=True)
        y = np.squeeze(log_s * total, axis) - picked

        def backward(g: Any) -> Any:
            g = np.expand_dims(g, axis)
            dt = g * (log_s - z) if target.requires_grad else None
            dz = e * (g * total / s)
            dz -= t * g
            return dt, dz

    else:
        _warn_of_logits(a)
        s = _total(a, axis)
        q, inside = _clipped(a / s)
        surprise = -np.log(q)
        y = np.add.reduce(t * surprise, axis)

        def backward(g: Any) -> Any:
            g = np.expand_dims(g, axis)
            dt = g * surprise if target.requires_grad else None
            h = t / q
            h *= inside
            both = np.vecdot(h, q, axis=axis)  # type: ignore[call-overload]
            dp = np.expand_dims(both, axis) - h
            dp *= g / s
            return dt, dp

    return record(y, (target, output), backward, _composed_categorical(from_logits, axis))


@op
def sparse_categorical_crossentropy(
    target: Array, output: Tensor, from_logits: bool = False, axis: int = -1
) -> Tensor:
    """-log p of the class with the given number; from logits z, p = softmax(z).

    Args:
        target: class numbers from 0 to classes - 1.
        output: probabilities, divided by their sum and clipped to [eps, 1 - eps] with
            eps = `config.epsilon()`, or logits.
        from_logits: whether output holds logits, which stay exact at any size.
        axis: where the classes are.

    Shapes: target (...) or (..., 1), output (..., classes) -> (...), for the default axis.

    Raises:
        ValueError: for numbers that are fractional or out of range, and for shapes that do not fit.

    Gradient, with 1 at the class: dz = g * (p - 1), dp = g * (1 / s - 1 / p) with s the sum of
    the probabilities, 0 where p / s was clipped.
    """
    a = output.data
    axis = class_axis(a.shape, axis, "sparse_categorical_crossentropy")
    last = axis == a.ndim - 1
    moved = a if last else np.moveaxis(a, axis, -1)
    k = a.shape[axis]
    labels = class_numbers("sparse_categorical_crossentropy", target, moved.shape[:-1], k)
    rows = moved.reshape(-1, k)
    at = np.arange(0, rows.size, k)
    at += labels.reshape(-1)

    def unrolled(dx: Array) -> Array:
        dx = dx.reshape(moved.shape)
        return dx if last else np.moveaxis(dx, -1, axis)

    if from_logits:
        e = rows - rows.max(1, keepdims=True)
        picked = e.take(at)
        np.exp(e, out=e)
        s = np.add.reduce(e, 1)
        y = np.log(s)
        y -= picked

        def backward(g: Any) -> Any:
            g = g.reshape(-1)
            dz = e * (g / s)[:, None]
            dz.reshape(-1)[at] -= g
            return (unrolled(dz),)

    else:
        _warn_of_logits(rows)
        s = _total(rows, 1)
        q, inside = _clipped(rows.take(at) / s[:, 0])
        y = -np.log(q)

        def backward(g: Any) -> Any:
            h = (g.reshape(-1) * inside / s[:, 0])[:, None]
            dp = np.repeat(h, k, 1)
            dp.reshape(-1)[at] -= h[:, 0] / q
            return (unrolled(dp),)

    composed = _composed_sparse(labels, k, from_logits, axis)
    return record(y.reshape(labels.shape), (output,), backward, composed)


@op
def squared_error(target: Tensor, output: Tensor) -> Tensor:
    """The mean over the last axis of (output - target)^2.

    Shapes: target and output (..., n) -> (...).

    Gradient: doutput = 2 g (output - target) / n, dtarget = -doutput.
    """
    _same_shape("squared_error", target, output)
    e = output.data - target.data
    share = 1 / (e.shape[-1] or 1)
    y = np.vecdot(e, e) * share

    def backward(g: Any) -> Any:
        d = e * (g * (2 * share))[..., None]
        return (-d if target.requires_grad else None), d

    return record(y, (target, output), backward, _composed_squared)


@op
def huber_error(target: Tensor, output: Tensor, delta: float = 1.0) -> Tensor:
    """The mean over the last axis of c (e - c / 2) with e = output - target and c = e kept in
    [-delta, delta]: e^2 / 2 inside, delta (|e| - delta / 2) outside.

    Shapes: target and output (..., n) -> (...).

    Gradient: doutput = g c / n, dtarget = -doutput.
    """
    _same_shape("huber_error", target, output)
    e = output.data - target.data
    c = np.maximum(e, -delta)
    np.minimum(c, delta, out=c)
    share = 1 / (e.shape[-1] or 1)
    y = (np.vecdot(c, e) - 0.5 * np.vecdot(c, c)) * share

    def backward(g: Any) -> Any:
        d = c * (g * share)[..., None]
        return (-d if target.requires_grad else None), d

    return record(y, (target, output), backward, _composed_huber(delta))


@functools.lru_cache(maxsize=16)
def _row_starts(n: int, k: int) -> Array:
    """Where each of n rows of k elements begins in the flat array."""
    return np.arange(0, n * k, k)


def mean_sparse_crossentropy(target: Array, output: Tensor) -> Tensor:
    """The mean of -log p of the class with the given number, from logits with the classes last:
    what classifiers are trained with, in one op.

    Shapes: target (...) or (..., 1), output (..., classes) -> (), with at least one sample.

    Raises:
        ValueError: as `sparse_categorical_crossentropy`.

    Gradient: dz = g * (p - 1 at the class) / n.
    """
    a = output.data
    k = a.shape[-1]
    labels = class_numbers("sparse_categorical_crossentropy", target, a.shape[:-1], k)
    rows = a if a.ndim == 2 else a.reshape(-1, k)
    n = len(rows)
    at = _row_starts(n, k) + labels.reshape(-1)
    e = rows - np.maximum.reduce(rows, 1, keepdims=True)
    picked = e.take(at)
    np.exp(e, out=e)
    s = sum_of_columns(e)
    values = np.log(s)
    values -= picked

    def backward(g: Any) -> Any:
        share = g * (1.0 / n)
        dz = e * (share / s)[:, None]
        dz.reshape(-1)[at] -= share
        return (dz.reshape(a.shape),)

    def composed(output: Tensor) -> Any:
        one_each = sparse_categorical_crossentropy(labels, output, True)
        return weighted_sum(one_each, None, 1.0 / n)

    return record(np.add.reduce(values) * (1.0 / n), (output,), backward, composed)


def weighted_sum(values: Tensor, weights: Array | None, share: float) -> Tensor:
    """share * sum(weights * values): how a loss becomes one number.

    Args:
        values: any shape.
        weights: of the same shape, or None for ones.
        share: what the sum is multiplied with, such as 1 / n for a mean.

    Gradient: dvalues = g * share * weights.
    """
    v = values.data
    total = np.add.reduce(v if weights is None else v * weights, None)

    def backward(g: Any) -> Any:
        if weights is not None:
            return (g * (weights * share),)
        if isinstance(g, Tensor):
            return (g * np.full(v.shape, share, v.dtype),)
        return (np.full(v.shape, g * share, v.dtype),)

    return record(total * share, (values,), backward)


# -------------------------------------------------------------------- checks and pieces


def _same_shape(name: str, target: Tensor, output: Tensor) -> None:
    if target.data.shape != output.data.shape or not output.data.ndim:
        raise ValueError(
            f"{name} expected targets of the shape of the predictions, {output.data.shape}, with "
            f"at least one axis; received targets of shape {target.data.shape}."
        )


def _between_0_and_1(t: Array) -> None:
    if t.size:
        low, high = float(t.min()), float(t.max())
        if low < -0.5 or high > 1.5:  # soft labels with some noise are used for GANs
            raise ValueError(
                f"Targets of a binary cross-entropy must lie between 0 and 1; received values from "
                f"{low:g} to {high:g}. Labels -1 and 1 belong to a hinge loss, several classes to "
                "SparseCategoricalCrossentropy; what has a weight of 0 needs a valid target too."
            )


def _clipped(p: Array) -> tuple[Array, Array]:
    """p kept in [eps, 1 - eps], and where it already was."""
    eps = config.epsilon()
    low, high = p.dtype.type(eps), p.dtype.type(1 - eps)
    q = np.maximum(p, low)
    np.minimum(q, high, out=q)
    return q, q == p


def _total(p: Array, axis: int) -> Array:
    """The sum over the classes, 1 in place of 0."""
    s = np.add.reduce(p, axis, keepdims=True)
    s += s == 0
    return s


def _warn_of_logits(p: Array, most: float = math.inf) -> None:
    if p.size and (p.min() < 0 or (most < math.inf and p.max() > most)):
        warnings.warn(  # the same text for every batch, so that it is shown once
            "A cross-entropy expected probabilities, but received values outside of 0 to 1. Raw "
            "scores of a last layer without softmax or sigmoid are logits: pass from_logits=True.",
            stacklevel=4,
        )


# -------------------------------------------------------------------- for second derivatives


def _composed_squared(target: Tensor, output: Tensor) -> Any:
    from picodl import ops

    return ops.mean(ops.square(output - target), -1)


def _composed_huber(delta: float) -> Callable[..., Any]:
    def composed(target: Tensor, output: Tensor) -> Any:
        from picodl import ops

        e = output - target
        c = ops.clip(e, -delta, delta)
        return ops.mean(c * (e - 0.5 * c), -1)

    return composed


def _composed_binary(from_logits: bool, axis: int | None) -> Callable[..., Any]:
    def composed(target: Tensor, output: Tensor) -> Any:
        from picodl import ops

        if from_logits:
            y = ops.softplus(output) - output * target
        else:
            p = ops.clip(output, config.epsilon(), 1 - config.epsilon())
            y = -(target * ops.log(p) + (1 - target) * ops.log(1 - p))
        return y if axis is None else ops.mean(y, axis)

    return composed


def _composed_categorical(from_logits: bool, axis: int) -> Callable[..., Any]:
    def composed(target: Tensor, output: Tensor) -> Any:
        from picodl import ops

        if from_logits:
            return -ops.sum(target * ops.log_softmax(output, axis), axis)
        s = ops.sum(output, axis, keepdims=True)
        q = ops.clip(output / (s + (s.data == 0)), config.epsilon(), 1 - config.epsilon())
        return -ops.sum(target * ops.log(q), axis)

    return composed


def _composed_sparse(
    labels: Array, classes: int, from_logits: bool, axis: int
) -> Callable[..., Any]:
    def composed(output: Tensor) -> Any:
        hot = np.moveaxis(np.eye(classes, dtype=output.dtype)[labels], -1, axis)
        return _composed_categorical(from_logits, axis)(Tensor(hot), output)

    return composed
