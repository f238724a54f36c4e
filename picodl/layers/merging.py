"""Layers that make one value out of several, and their function forms."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from picodl import ops
from picodl.layers.base import Layer
from picodl.typing import Config, Shape


class Merge(Layer):
    """The base of layers that combine a list of inputs element by element, with broadcasting.

    Inputs of lower rank get axes of size 1 after the batch axis.

    Raises:
        ValueError: for anything but a list of two or more inputs whose shapes broadcast.
    """

    supports_masking = True
    inputs_wanted: int | None = None  # exactly so many

    def build(self, input_shape: Any) -> None:
        self._merged_shape(input_shape)

    def _merged_shape(self, shapes: Any) -> Shape:
        single = isinstance(shapes, tuple) and not any(isinstance(s, tuple) for s in shapes)
        if single or not isinstance(shapes, (list, tuple)):
            raise ValueError(
                f'{type(self).__name__} layer "{self.name}" takes a list of inputs; received a '
                f"single one of shape {shapes}."
            )
        count = len(shapes)
        if count < 1 or (self.inputs_wanted is not None and count != self.inputs_wanted):
            raise ValueError(
                f'{type(self).__name__} layer "{self.name}" takes a list of '
                f"{self.inputs_wanted or 'one or more'} inputs; received {count}."
            )
        merged: Shape = tuple(shapes[0])
        for shape in shapes[1:]:
            merged = self._broadcast(merged, tuple(shape), shapes)
        return merged

    def _broadcast(self, a: Shape, b: Shape, shapes: Any) -> Shape:
        longer, shorter = (a, b) if len(a) >= len(b) else (b, a)
        filled = (*shorter[:1], *(1,) * (len(longer) - len(shorter)), *shorter[1:])
        sizes = []
        for m, n in zip(longer, filled, strict=True):
            if m is None or n is None:
                sizes.append(n if m == 1 else m if n == 1 else (m if n is None else n))
            elif m != n and 1 not in (m, n):
                raise ValueError(
                    f'{type(self).__name__} layer "{self.name}" cannot combine inputs of shapes '
                    f"{', '.join(str(tuple(s)) for s in shapes)}: they do not broadcast."
                )
            else:
                sizes.append(n if m == 1 else m)
        if longer and None in (longer[0], filled[0]):
            sizes[0] = None
        return tuple(sizes)

    def call(self, inputs: Any) -> Any:
        rank = max(x.ndim for x in inputs)
        return self.merge([_with_rank(x, rank) for x in inputs])

    def merge(self, inputs: list[Any]) -> Any:
        """The inputs, of equal rank, as one."""
        raise NotImplementedError(f"{type(self).__name__} does not define merge(inputs).")

    def compute_output_shape(self, input_shape: Any) -> Shape:
        return self._merged_shape(input_shape)

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """Where any input is kept; None unless every input has a mask."""
        masks = self._masks(inputs, mask)
        if any(m is None for m in masks):
            return None
        return functools.reduce(np.logical_or, [np.asarray(m, bool) for m in masks])

    def _masks(self, inputs: Any, mask: Any) -> list[Any]:
        """One mask or None for each input.

        Raises:
            ValueError: unless both are lists of the same length.
        """
        if not isinstance(inputs, (list, tuple)) or not isinstance(mask, (list, tuple, type(None))):
            raise ValueError(
                f'{type(self).__name__} layer "{self.name}" takes lists of inputs and masks; '
                f"received {type(inputs).__name__} and {type(mask).__name__}."
            )
        masks = [None] * len(inputs) if mask is None else list(mask)
        if len(masks) != len(inputs):
            raise ValueError(
                f'{type(self).__name__} layer "{self.name}" takes one mask for each of its '
                f"{len(inputs)} inputs; received {len(masks)}."
            )
        return masks


class Add(Merge):
    """The sum of the inputs."""

    def merge(self, inputs: list[Any]) -> Any:
        return functools.reduce(operator.add, inputs)


class Subtract(Merge):
    """The first input minus the second."""

    inputs_wanted = 2

    def merge(self, inputs: list[Any]) -> Any:
        return inputs[0] - inputs[1]


class Multiply(Merge):
    """The product of the inputs, element by element.

    Masked steps of an input count as 1; steps that are masked in all of them give 0.
    """

    def merge(self, inputs: list[Any]) -> Any:
        masks = [_kept(x) for x in inputs]
        y = functools.reduce(operator.mul, map(_filled, inputs, masks))
        if any(m is None for m in masks):
            return y
        return ops.where(functools.reduce(np.logical_or, masks), y, np.zeros((), y.dtype))


class Average(Merge):
    """The mean of the inputs."""

    def merge(self, inputs: list[Any]) -> Any:
        return functools.reduce(operator.add, inputs) / len(inputs)


class Maximum(Merge):
    """The largest of the inputs, element by element; masked steps of an input do not count."""

    def merge(self, inputs: list[Any]) -> Any:
        return _reduce_kept(ops.maximum, inputs)


class Minimum(Merge):
    """The smallest of the inputs, element by element; masked steps of an input do not count."""

    def merge(self, inputs: list[Any]) -> Any:
        return _reduce_kept(ops.minimum, inputs)


class Concatenate(Merge):
    """The inputs joined along an axis.

    Args:
        axis: defaults to the last.

    Raises:
        ValueError: unless the inputs agree in all other axes.
    """

    def __init__(self, axis: int = -1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.axis = axis

    def _merged_shape(self, shapes: Any) -> Shape:
        if not isinstance(shapes, (list, tuple)) or not isinstance(shapes[0], (list, tuple)):
            raise ValueError(
                f'Concatenate layer "{self.name}" takes a list of inputs; received a single one of '
                f"shape {shapes}."
            )
        axis = self.axis % len(shapes[0])
        rest = {len(s) for s in shapes}
        fits = len(rest) == 1 and all(
            len({s[i] for s in shapes} - {None}) <= 1 for i in range(len(shapes[0])) if i != axis
        )
        if not fits:
            raise ValueError(
                f'Concatenate layer "{self.name}" joins along axis {self.axis}: the inputs must '
                "agree in all others, but received shapes "
                f"{', '.join(str(tuple(s)) for s in shapes)}."
            )
        merged = [next((s[i] for s in shapes if s[i] is not None), None) for i in range(min(rest))]
        sizes = [s[axis] for s in shapes]
        merged[axis] = None if None in sizes else sum(sizes)
        return tuple(merged)

    def call(self, inputs: Any) -> Any:
        return ops.concatenate(inputs, axis=self.axis)

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """The masks joined along the axis; inputs without one are kept whole."""
        masks = self._masks(inputs, mask)
        if all(m is None for m in masks):
            return None
        full = []
        for x, m in zip(inputs, masks, strict=True):
            keep = np.asarray(True if m is None else m, bool)
            if keep.ndim < x.ndim:
                trailing = (1,) * (x.ndim - keep.ndim)
                keep = np.broadcast_to(keep.reshape(keep.shape + trailing), x.shape)
            full.append(keep)
        return np.concatenate(full, axis=self.axis).any(axis=-1)

    def get_config(self) -> Config:
        return {**super().get_config(), "axis": self.axis}


class Dot(Merge):
    """The sum of products of two inputs along an axis each, sample by sample.

    Args:
        axes: one axis for both, or a pair.
        normalize: scale both to unit length along these axes first (cosine similarity).
    """

    inputs_wanted = 2

    def __init__(self, axes: int | Sequence[int], normalize: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not isinstance(axes, int) and (not isinstance(axes, (list, tuple)) or len(axes) != 2):
            raise TypeError(
                f'Dot layer "{self.name}": axes is an integer or a pair of integers; received '
                f"{axes!r}."
            )
        self.axes = axes if isinstance(axes, int) else list(axes)
        self.normalize = normalize

    def _pair(self, ranks: tuple[int, int]) -> tuple[int, int]:
        a, b = (self.axes, self.axes) if isinstance(self.axes, int) else self.axes
        return a % ranks[0], b % ranks[1]

    def _merged_shape(self, shapes: Any) -> Shape:
        if not isinstance(shapes, (list, tuple)) or len(shapes) != 2:
            raise ValueError(f'Dot layer "{self.name}" takes a list of two inputs.')
        first, second = (tuple(s) for s in shapes)
        a, b = self._pair((len(first), len(second)))
        if 0 in (a, b) or (None not in (first[a], second[b]) and first[a] != second[b]):
            raise ValueError(
                f'Dot layer "{self.name}" with axes {self.axes} cannot combine shapes {first} and '
                f"{second}: the sizes of the two axes must be equal."
            )
        rest = [n for i, n in enumerate(first) if i != a]
        rest += [n for i, n in enumerate(second) if i not in (0, b)]
        return tuple(rest) if len(rest) > 1 else (*rest, 1)

    def call(self, inputs: Any) -> Any:
        return _dot(
            inputs[0], inputs[1], self._pair((inputs[0].ndim, inputs[1].ndim)), self.normalize
        )

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """None: the axis with the mask is gone."""
        return None

    def get_config(self) -> Config:
        return {**super().get_config(), "axes": self.axes, "normalize": self.normalize}


def _dot(x: Any, y: Any, axes: tuple[int, int], normalize: bool) -> Any:
    if normalize:
        x, y = ops.normalize(x, axis=axes[0]), ops.normalize(y, axis=axes[1])
    letters = "abcdefghijklmnopqrstuvwxyz"
    left = ["z", *letters[: x.ndim - 1]]
    right = ["z", *letters[x.ndim - 1 : x.ndim + y.ndim - 2]]
    left[axes[0]] = right[axes[1]] = "y"
    result = [c for c in left if c != "y"] + [c for c in right if c not in ("y", "z")]
    out = ops.einsum(f"{''.join(left)},{''.join(right)}->{''.join(result)}", x, y)
    return out if out.ndim > 1 else ops.expand_dims(out, -1)


def _kept(x: Any) -> Any:
    """The mask of an input with one more axis, for its features; None without a mask."""
    mask = getattr(x, "mask", None)
    return None if mask is None else np.asarray(mask, bool)[..., None]


def _filled(x: Any, kept: Any) -> Any:
    return x if kept is None else ops.where(kept, x, np.ones((), x.dtype))


def _reduce_kept(function: Any, inputs: list[Any]) -> Any:
    """The inputs merged one after the other; where one of a pair is masked, the other is taken."""
    y, kept = inputs[0], _kept(inputs[0])
    for x in inputs[1:]:
        also = _kept(x)
        if also is not None:
            x = ops.where(also, x, y)
        if kept is not None:
            y = ops.where(kept, y, x)
        kept = None if kept is None or also is None else kept | also
        y = function(y, x)
    return y


def _with_rank(x: Any, rank: int) -> Any:
    """x with axes of size 1 after the batch axis."""
    if x.ndim == rank:
        return x
    return ops.reshape(x, (*x.shape[:1], *(1,) * (rank - x.ndim), *x.shape[1:]))


def add(inputs: Sequence[Any], **kwargs: Any) -> Any:
    """The sum of the inputs, by an Add layer."""
    return Add(**kwargs)(inputs)


def subtract(inputs: Sequence[Any], **kwargs: Any) -> Any:
    """The first input minus the second, by a Subtract layer."""
    return Subtract(**kwargs)(inputs)


def multiply(inputs: Sequence[Any], **kwargs: Any) -> Any:
    """The product of the inputs, by a Multiply layer."""
    return Multiply(**kwargs)(inputs)


def average(inputs: Sequence[Any], **kwargs: Any) -> Any:
    """The mean of the inputs, by an Average layer."""
    return Average(**kwargs)(inputs)


def maximum(inputs: Sequence[Any], **kwargs: Any) -> Any:
    """The largest of the inputs, by a Maximum layer."""
    return Maximum(**kwargs)(inputs)


def minimum(inputs: Sequence[Any], **kwargs: Any) -> Any:
    """The smallest of the inputs, by a Minimum layer."""
    return Minimum(**kwargs)(inputs)


def concatenate(inputs: Sequence[Any], axis: int = -1, **kwargs: Any) -> Any:
    """The inputs joined along an axis, by a Concatenate layer."""
    return Concatenate(axis, **kwargs)(inputs)


def dot(inputs: Sequence[Any], axes: int | Sequence[int] = -1, **kwargs: Any) -> Any:
    """The sum of products along the axes, by a Dot layer."""
    return Dot(axes, **kwargs)(inputs)
