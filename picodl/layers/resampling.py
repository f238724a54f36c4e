"""Layers that repeat, pad and cut along the spatial axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from picodl import ops
from picodl.layers.checks import choice, int_of, sizes
from picodl.layers.pooling import SpatialLayer
from picodl.ops.image import resize
from picodl.typing import Config, Shape

# -------------------------------------------------------------------- larger


class UpSampling(SpatialLayer):
    """Each element repeated along the spatial axes.

    Args:
        size: how often along each axis, an int or one per axis.
        data_format: "channels_last" or "channels_first". Defaults to the global setting.

    Shapes: (batch, *sizes, n) -> (batch, sizes * size, n).
    """

    def __init__(
        self, size: int | Sequence[int] = 2, data_format: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(data_format, **kwargs)
        self.size = sizes(self, "size", size, self.rank)

    def call(self, inputs: Any) -> Any:
        for axis, times in zip(self.axes, self.size, strict=True):
            if times > 1:
                inputs = ops.repeat(inputs, times, axis)
        return inputs

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        pairs = zip(self.axes, self.size, strict=True)
        new = [None if input_shape[a] is None else input_shape[a] * k for a, k in pairs]  # type: ignore[operator]
        return self.with_sizes(input_shape, new)

    def get_config(self) -> Config:
        return {**super().get_config(), "size": self.size}


class UpSampling1D(UpSampling):
    """Each step repeated.

    Args:
        size: how often.

    Shapes: (batch, steps, n) -> (batch, steps * size, n).
    """

    rank = 1

    def __init__(self, size: int = 2, **kwargs: Any) -> None:
        super().__init__(size, "channels_last", **kwargs)

    def get_config(self) -> Config:
        config = super().get_config()
        del config["data_format"]
        return {**config, "size": self.size[0]}


class UpSampling2D(UpSampling):
    """Images enlarged by whole factors.

    Args:
        size: the factors for height and width.
        data_format: "channels_last" or "channels_first". Defaults to the global setting.
        interpolation: "nearest" repeats pixels; "bilinear", "bicubic", "lanczos3" or "lanczos5" mix
            them, with pixels as squares and their values at the centres.

    >>> import numpy as np
    >>> x = np.array([[0.0, 1.0], [2.0, 3.0]]).reshape(1, 2, 2, 1)
    >>> UpSampling2D(2, interpolation="bilinear")(x).numpy()[0, 0, :, 0]
    array([0.  , 0.25, 0.75, 1.  ], dtype=float32)
    """

    rank = 2

    def __init__(
        self,
        size: int | Sequence[int] = (2, 2),
        data_format: str | None = None,
        interpolation: str = "nearest",
        **kwargs: Any,
    ) -> None:
        super().__init__(size, data_format, **kwargs)
        methods = ("nearest", "bilinear", "bicubic", "lanczos3", "lanczos5")
        self.interpolation = choice(self, "interpolation", interpolation, methods)

    def call(self, inputs: Any) -> Any:
        if self.interpolation == "nearest":
            return super().call(inputs)
        new = [inputs.shape[a] * k for a, k in zip(self.axes, self.size, strict=True)]
        return resize(inputs, new, self.interpolation, data_format=self.data_format)

    def get_config(self) -> Config:
        return {**super().get_config(), "interpolation": self.interpolation}


class UpSampling3D(UpSampling):
    """Each cell repeated along three axes; see `UpSampling` for the arguments."""

    rank = 3


# -------------------------------------------------------------------- padded and cut


class Borders(SpatialLayer):
    """The base of layers that add or cut borders: a pair (before, after) for each axis.

    Args:
        border: an int for all sides, an int per axis for both of its sides, or a pair per axis.
        argument: what the argument is called in messages and in the config.
        data_format: "channels_last" or "channels_first". Defaults to the global setting.
    """

    def __init__(
        self, border: Any, argument: str, data_format: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(data_format, **kwargs)
        self.borders = self._pairs(border, argument)

    def _pairs(self, border: Any, argument: str) -> tuple[tuple[int, int], ...]:
        if int_of(border) is not None:
            border = (border,) * self.rank
        elif self.rank == 1 and isinstance(border, (list, tuple)) and len(border) == 2:
            border = (border,)
        if not isinstance(border, (list, tuple)) or len(border) != self.rank:
            raise ValueError(
                f'{type(self).__name__} layer "{self.name}": {argument} must be an integer, an '
                f"integer per axis, or a pair (before, after) for each of {self.rank} axes; "
                f"received {border!r}."
            )
        pairs = [sizes(self, argument, side, 2, least=0) for side in border]
        return tuple((before, after) for before, after in pairs)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        new: list[int | None] = []
        for axis, (before, after) in zip(self.axes, self.borders, strict=True):
            n = input_shape[axis]
            new.append(None if n is None else self.size_of(n, before + after, input_shape))
        return self.with_sizes(input_shape, new)

    def size_of(self, n: int, border: int, input_shape: Shape) -> int:
        """The size of an axis afterwards."""
        return n + border


class Padding(Borders):
    """A border around the spatial axes, of zeros or of what the input has near its edge.

    Args:
        padding: an int for all sides, an int per axis for both of its sides, or a pair (before,
            after) per axis.
        mode: "constant" (zeros), "reflect" (mirrored without the edge), "symmetric" (with it),
            "edge" (its last element repeated) or "wrap" (from the other side).
        data_format: "channels_last" or "channels_first". Defaults to the global setting.

    Shapes: (batch, *sizes, n) -> (batch, before + size + after, ..., n).
    """

    def __init__(
        self,
        padding: Any = 1,
        mode: str = "reflect",
        data_format: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(padding, "padding", data_format, **kwargs)
        modes = ("constant", "reflect", "symmetric", "edge", "wrap")
        self.mode = choice(self, "mode", mode, modes)
        self.padding = self.borders

    def call(self, inputs: Any) -> Any:
        first = self.axes[0]
        rest = len(inputs.shape) - first - self.rank
        widths = [(0, 0)] * first + list(self.borders) + [(0, 0)] * rest
        return ops.pad(inputs, widths, self.mode)

    def get_config(self) -> Config:
        return {**super().get_config(), "padding": self.padding, "mode": self.mode}


class Padding1D(Padding):
    """A border in front of and behind sequences; see `Padding` for the arguments.

    >>> import numpy as np
    >>> Padding1D(2)(np.arange(4.0).reshape(1, 4, 1)).numpy().ravel()
    array([2., 1., 0., 1., 2., 3., 2., 1.], dtype=float32)
    """

    rank = 1


class Padding2D(Padding):
    """A border around images; see `Padding` for the arguments."""

    rank = 2


class Padding3D(Padding):
    """A border around volumes; see `Padding` for the arguments."""

    rank = 3


class ZeroPadding(Padding):
    """A border of zeros around the spatial axes.

    Args:
        padding: an int for all sides, an int per axis for both of its sides, or a pair (before,
            after) per axis.
        data_format: "channels_last" or "channels_first". Defaults to the global setting.
    """

    def __init__(self, padding: Any = 1, data_format: str | None = None, **kwargs: Any) -> None:
        super().__init__(padding, "constant", data_format, **kwargs)

    def get_config(self) -> Config:
        config = super().get_config()
        del config["mode"]
        return config


class ZeroPadding1D(ZeroPadding):
    """Zeros in front of and behind sequences; see `ZeroPadding` for the arguments."""

    rank = 1

    def get_config(self) -> Config:
        return {**super().get_config(), "padding": self.padding[0]}


class ZeroPadding2D(ZeroPadding):
    """Zeros around images; see `ZeroPadding` for the arguments."""

    rank = 2


class ZeroPadding3D(ZeroPadding):
    """Zeros around volumes; see `ZeroPadding` for the arguments."""

    rank = 3


class Cropping(Borders):
    """The spatial axes without their borders.

    Args:
        cropping: an int for all sides, an int per axis for both of its sides, or a pair (before,
            after) per axis.
        data_format: "channels_last" or "channels_first". Defaults to the global setting.

    Raises:
        ValueError: if nothing would be left.
    """

    def __init__(self, cropping: Any = 1, data_format: str | None = None, **kwargs: Any) -> None:
        super().__init__(cropping, "cropping", data_format, **kwargs)
        self.cropping = self.borders

    def call(self, inputs: Any) -> Any:
        self.compute_output_shape(inputs.shape)
        inside = [slice(None)] * self.axes[0]
        pairs = zip(self.axes, self.borders, strict=True)
        inside += [slice(before, inputs.shape[axis] - after) for axis, (before, after) in pairs]
        return inputs[tuple(inside)]

    def size_of(self, n: int, border: int, input_shape: Shape) -> int:
        if border >= n:
            raise ValueError(
                f'{type(self).__name__} layer "{self.name}": cropping {self.borders} leaves '
                f"nothing of input of shape {input_shape}."
            )
        return n - border

    def get_config(self) -> Config:
        return {**super().get_config(), "cropping": self.cropping}


class Cropping1D(Cropping):
    """Sequences without their ends.

    Args:
        cropping: an int for both ends, or a pair (before, after).

    >>> import numpy as np
    >>> Cropping1D((1, 2))(np.arange(5.0).reshape(1, 5, 1)).numpy().ravel()
    array([1., 2.], dtype=float32)
    """

    rank = 1

    def __init__(self, cropping: Any = (1, 1), **kwargs: Any) -> None:
        super().__init__(cropping, "channels_last", **kwargs)

    def get_config(self) -> Config:
        config = super().get_config()
        del config["data_format"]
        return {**config, "cropping": self.cropping[0]}


class Cropping2D(Cropping):
    """Images without their borders; see `Cropping` for the arguments."""

    rank = 2

    def __init__(
        self, cropping: Any = ((0, 0), (0, 0)), data_format: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(cropping, data_format, **kwargs)


class Cropping3D(Cropping):
    """Volumes without their borders; see `Cropping` for the arguments."""

    rank = 3

    def __init__(
        self,
        cropping: Any = ((1, 1), (1, 1), (1, 1)),
        data_format: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(cropping, data_format, **kwargs)
