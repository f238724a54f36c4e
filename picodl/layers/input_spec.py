"""What a layer expects of its input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from picodl.typing import Shape


class InputSpec:
    """Rank, sizes and dtype that a layer expects.

    Args:
        dtype: the dtype's name, or None for any.
        shape: the whole shape; None for sizes that vary.
        ndim: the exact rank.
        max_ndim, min_ndim: bounds of the rank.
        axes: {axis: size} that must hold.
        allow_last_axis_squeeze: accept a missing or extra last axis of size 1.
        name: the key of this input where inputs come as a dict.
        optional: whether None is accepted.
    """

    def __init__(
        self,
        dtype: str | None = None,
        shape: Sequence[int | None] | None = None,
        ndim: int | None = None,
        max_ndim: int | None = None,
        min_ndim: int | None = None,
        axes: dict[int, int | None] | None = None,
        allow_last_axis_squeeze: bool = False,
        name: str | None = None,
        optional: bool = False,
    ) -> None:
        self.dtype = dtype
        self.shape = None if shape is None else tuple(shape)
        self.ndim = len(self.shape) if self.shape is not None else ndim
        self.max_ndim = max_ndim
        self.min_ndim = min_ndim
        self.axes = {int(axis): size for axis, size in (axes or {}).items()}
        self.allow_last_axis_squeeze = allow_last_axis_squeeze
        self.name = name
        self.optional = optional
        # what most layers want: a rank of two or more, and the size of the last axis
        usual = list(self.axes) == [-1] and min_ndim == 2
        usual = usual and self.ndim is None and max_ndim is None and dtype is None
        self._last = self.axes[-1] if usual else None

    def fits(self, shape: Shape) -> bool:
        """Whether a shape is surely what is expected: a quick look before `check`."""
        rank = len(shape)
        if self._last is not None:
            return rank >= 2 and shape[-1] == self._last
        if self.min_ndim is not None and rank < self.min_ndim:
            return False
        if self.ndim is not None and rank != self.ndim:
            return False
        if self.shape is not None or self.max_ndim is not None or self.dtype is not None:
            return False  # needs the closer look
        for axis, size in self.axes.items():
            if size is not None and (not -rank <= axis < rank or shape[axis] != size):
                return False
        return True

    def check(self, layer: Any, shape: Shape, dtype: Any = None) -> None:
        """Compare with a shape.

        Raises:
            ValueError: naming the layer, what it expects and the shape it received.
        """
        rank = len(shape)
        squeezes = self.allow_last_axis_squeeze and abs(rank - (self.ndim or 0)) == 1
        if self.ndim is not None and rank != self.ndim and not squeezes:
            _refuse(layer, f"expects input of rank {self.ndim}", shape)
        if self.min_ndim is not None and rank < self.min_ndim:
            _refuse(layer, f"expects input of rank {self.min_ndim} or more", shape)
        if self.max_ndim is not None and rank > self.max_ndim:
            _refuse(layer, f"expects input of rank {self.max_ndim} or less", shape)
        for axis, size in self.axes.items():
            got = shape[axis] if -rank <= axis < rank else None
            if size is not None and got is not None and got != size:
                where = "last axis" if axis == -1 else f"axis {axis}"
                _refuse(
                    layer,
                    f"was built for inputs with {where} {size}",
                    shape,
                    f"Pass inputs with {where} {size}, or create a new layer for the new size.",
                )
        if self.shape is not None and not self.allow_last_axis_squeeze:
            for want, got in zip(self.shape, shape, strict=False):
                if want is not None and got is not None and want != got:
                    _refuse(layer, f"expects input of shape {self.shape}", shape)
        if self.dtype is not None and dtype is not None and str(dtype) != self.dtype:
            _refuse(layer, f"expects input of dtype {self.dtype}, not {dtype}", shape)

    def get_config(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key[0] != "_"}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> InputSpec:
        """A new one from what `get_config` gave."""
        return cls(**config)


def _refuse(layer: Any, expects: str, shape: Shape, advice: str = "") -> None:
    text = f'{type(layer).__name__} layer "{layer.name}" {expects}, but received shape {shape}.'
    raise ValueError(f"{text}\n{advice}" if advice else text)
