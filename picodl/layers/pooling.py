"""Pooling layers: over windows, over whole samples, and to a wanted size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from picodl import config, ops
from picodl.layers.base import Layer
from picodl.layers.checks import choice, lower, sizes
from picodl.layers.input_spec import InputSpec
from picodl.ops.windows import output_sizes, pads_of
from picodl.typing import Config, Shape


class SpatialLayer(Layer):
    """The base of layers without weights that work on spatial axes.

    Subclasses set `rank`, the number of these axes.

    Args:
        data_format: "channels_last" or "channels_first". Defaults to the global setting.
    """

    built = True
    rank = 0

    def __init__(self, data_format: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.data_format = config.standardize_data_format(data_format)
        self.input_spec = InputSpec(ndim=self.rank + 2)

    @property
    def axes(self) -> tuple[int, ...]:
        """The spatial axes."""
        first = 2 if self.data_format == "channels_first" else 1
        return tuple(range(first, first + self.rank))

    def with_sizes(self, input_shape: Shape, new: Sequence[int | None]) -> Shape:
        """The shape with other sizes of the spatial axes."""
        first = self.axes[0]
        return (*input_shape[:first], *new, *input_shape[first + self.rank :])

    def get_config(self) -> Config:
        return {**super().get_config(), "data_format": self.data_format}


# -------------------------------------------------------------------- windows


class Pooling(SpatialLayer):
    """The maximum or the mean of each window, per channel.

    Args:
        pool_size: size of the window along each axis, an int or one per axis.
        strides: distance of neighbouring windows. Defaults to pool_size.
        padding: "valid", or "same": windows hang over the edge, what lies outside does not count.
        data_format: "channels_last" or "channels_first". Defaults to the global setting.

    Shapes: (batch, *sizes, n) -> (batch, *out, n) with out = ceil(size / stride) for "same",
    floor((size - pool_size) / stride) + 1 for "valid".

    Raises:
        ValueError: for sizes that are not positive, and if no window fits into the input.
    """

    def __init__(
        self,
        pool_size: int | Sequence[int],
        strides: int | Sequence[int] | None = None,
        padding: str = "valid",
        data_format: str | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(data_format, name=name, **kwargs)
        self.pool_size = sizes(self, "pool_size", pool_size, self.rank)
        steps = self.pool_size if strides is None else strides
        self.strides = sizes(self, "strides", steps, self.rank)
        self.padding = choice(self, "padding", lower(padding), ("valid", "same"))

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        self._check_shape(input_shape)
        out: list[int | None] = []
        for axis, k, s in zip(self.axes, self.pool_size, self.strides, strict=True):
            n = input_shape[axis]
            if n is None:
                out.append(None)
                continue
            pads = pads_of(self.padding, (n,), (k,), (s,), (1,))
            out += output_sizes((n,), (k,), (s,), (1,), pads)
            if out[-1] is not None and out[-1] < 1:
                raise ValueError(
                    f'{type(self).__name__} layer "{self.name}": windows of size {self.pool_size} '
                    f"do not fit into input of shape {input_shape}; the output would have size 0. "
                    'Use a smaller pool_size, padding="same" or larger inputs.'
                )
        return self.with_sizes(input_shape, out)

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "pool_size": self.pool_size,
            "strides": self.strides,
            "padding": self.padding,
        }


class MaxPooling(Pooling):
    """The largest element of each window; see `Pooling` for the arguments."""

    def __init__(
        self,
        pool_size: int | Sequence[int] = 2,
        strides: int | Sequence[int] | None = None,
        padding: str = "valid",
        data_format: str | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(pool_size, strides, padding, data_format, name, **kwargs)

    def call(self, inputs: Any) -> Any:
        return ops.max_pool(inputs, self.pool_size, self.strides, self.padding, self.data_format)


class MaxPooling1D(MaxPooling):
    """The largest of neighbouring steps; see `Pooling` for the arguments."""

    rank = 1


class MaxPooling2D(MaxPooling):
    """The largest of neighbouring pixels; see `Pooling` for the arguments.

    >>> import numpy as np
    >>> MaxPooling2D()(np.arange(16.0).reshape(1, 4, 4, 1)).numpy().ravel()
    array([ 5.,  7., 13., 15.], dtype=float32)
    """

    rank = 2


class MaxPooling3D(MaxPooling):
    """The largest of neighbouring cells; see `Pooling` for the arguments."""

    rank = 3


class AveragePooling(Pooling):
    """The mean of each window; see `Pooling` for the arguments."""

    def call(self, inputs: Any) -> Any:
        return ops.average_pool(
            inputs, self.pool_size, self.strides, self.padding, self.data_format
        )


class AveragePooling1D(AveragePooling):
    """The mean of neighbouring steps; see `Pooling` for the arguments.

    >>> import numpy as np
    >>> AveragePooling1D(3, 1, "same")(np.arange(1.0, 6.0).reshape(1, 5, 1)).numpy().ravel()
    array([1.5, 2. , 3. , 4. , 4.5], dtype=float32)
    """

    rank = 1


class AveragePooling2D(AveragePooling):
    """The mean of neighbouring pixels; see `Pooling` for the arguments."""

    rank = 2


class AveragePooling3D(AveragePooling):
    """The mean of neighbouring cells; see `Pooling` for the arguments."""

    rank = 3


# -------------------------------------------------------------------- whole samples


class GlobalPooling(SpatialLayer):
    """One number per channel: the maximum or the mean over all spatial axes.

    Args:
        data_format: "channels_last" or "channels_first". Defaults to the global setting.
        keepdims: keep the spatial axes, with size 1.

    Shapes: (batch, *sizes, n) -> (batch, n), with keepdims (batch, 1, ..., n).
    """

    def __init__(
        self, data_format: str | None = None, keepdims: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(data_format, **kwargs)
        self.keepdims = keepdims

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return self.with_sizes(input_shape, (1,) * self.rank if self.keepdims else ())

    def get_config(self) -> Config:
        return {**super().get_config(), "keepdims": self.keepdims}


class GlobalMaxPooling(GlobalPooling):
    """The largest element of each channel; see `GlobalPooling` for the arguments."""

    def call(self, inputs: Any) -> Any:
        return ops.max(inputs, self.axes, self.keepdims)


class GlobalMaxPooling1D(GlobalMaxPooling):
    """The largest step of each channel; see `GlobalPooling` for the arguments."""

    rank = 1


class GlobalMaxPooling2D(GlobalMaxPooling):
    """The largest pixel of each channel; see `GlobalPooling` for the arguments."""

    rank = 2


class GlobalMaxPooling3D(GlobalMaxPooling):
    """The largest cell of each channel; see `GlobalPooling` for the arguments."""

    rank = 3


class GlobalAveragePooling(GlobalPooling):
    """The mean of each channel; see `GlobalPooling` for the arguments."""

    def call(self, inputs: Any) -> Any:
        return ops.mean(inputs, self.axes, self.keepdims)


class GlobalAveragePooling1D(GlobalAveragePooling):
    """The mean over the steps, with a mask over those it keeps; see `GlobalPooling`.

    A sample whose steps are all masked gives 0.

    >>> import numpy as np
    >>> x = np.array([[[1.0], [3.0], [8.0]]])
    >>> GlobalAveragePooling1D()(x, mask=np.array([[True, True, False]])).numpy()
    array([[2.]], dtype=float32)
    """

    rank = 1
    supports_masking = True

    def call(self, inputs: Any, mask: Any = None) -> Any:
        if mask is None:
            return super().call(inputs)
        axis = self.axes[0]
        kept = ops.expand_dims(ops.cast(mask, inputs.dtype), 3 - axis)
        count = ops.maximum(ops.sum(kept, axis, self.keepdims), 1)
        return ops.sum(inputs * kept, axis, self.keepdims) / count

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        return None


class GlobalAveragePooling2D(GlobalAveragePooling):
    """The mean over the pixels; see `GlobalPooling` for the arguments."""

    rank = 2


class GlobalAveragePooling3D(GlobalAveragePooling):
    """The mean over the cells; see `GlobalPooling` for the arguments."""

    rank = 3


# -------------------------------------------------------------------- a wanted size


class AdaptivePooling(SpatialLayer):
    """Windows that cover the input evenly and give an output of a wanted size.

    Args:
        output_size: an int or one per axis; window i reaches from floor(i n / out) to
            ceil((i + 1) n / out).
        data_format: "channels_last" or "channels_first". Defaults to the global setting.

    Shapes: (batch, *sizes, n) -> (batch, *output_size, n).
    """

    def __init__(
        self, output_size: int | Sequence[int], data_format: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(data_format, **kwargs)
        self.output_size = sizes(self, "output_size", output_size, self.rank)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return self.with_sizes(input_shape, self.output_size)

    def get_config(self) -> Config:
        return {**super().get_config(), "output_size": self.output_size}


class AdaptiveAveragePooling(AdaptivePooling):
    """The means of windows that cover the input evenly; see `AdaptivePooling`."""

    def call(self, inputs: Any) -> Any:
        return ops.adaptive_average_pool(inputs, self.output_size, self.data_format)


class AdaptiveAveragePooling1D(AdaptiveAveragePooling):
    """Means over steps, to a wanted length; see `AdaptivePooling` for the arguments."""

    rank = 1


class AdaptiveAveragePooling2D(AdaptiveAveragePooling):
    """Means over pixels, to a wanted size; see `AdaptivePooling` for the arguments."""

    rank = 2


class AdaptiveMaxPooling(AdaptivePooling):
    """The maxima of windows that cover the input evenly; see `AdaptivePooling`."""

    def call(self, inputs: Any) -> Any:
        return ops.adaptive_max_pool(inputs, self.output_size, self.data_format)


class AdaptiveMaxPooling1D(AdaptiveMaxPooling):
    """Maxima over steps, to a wanted length; see `AdaptivePooling` for the arguments."""

    rank = 1


class AdaptiveMaxPooling2D(AdaptiveMaxPooling):
    """Maxima over pixels, to a wanted size; see `AdaptivePooling` for the arguments."""

    rank = 2
