"""Convolution layers for sequences, images and volumes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from picodl import activations, config, constraints, initializers, ops, regularizers
from picodl.layers.base import Layer
from picodl.layers.checks import choice, known_axis, lower, positive_integer, sizes
from picodl.layers.input_spec import InputSpec
from picodl.ops.windows import extent, output_sizes, pads_of
from picodl.typing import Config, Shape


class ConvBase(Layer):
    """What the convolution layers share: windows, bias and activation.

    Subclasses set `rank`, the number of spatial axes.
    """

    rank = 0
    paddings: tuple[str, ...] = ("valid", "same")

    def __init__(
        self,
        kernel_size: Any,
        strides: Any,
        padding: str,
        data_format: str | None,
        dilation_rate: Any,
        activation: Any,
        use_bias: bool,
        bias_initializer: Any,
        bias_regularizer: Any,
        bias_constraint: Any,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.kernel_size = sizes(self, "kernel_size", kernel_size, self.rank)
        self.strides = sizes(self, "strides", strides, self.rank)
        self.padding = choice(self, "padding", lower(padding), self.paddings)
        self.data_format = config.standardize_data_format(data_format)
        self.dilation_rate = sizes(self, "dilation_rate", dilation_rate, self.rank)
        self.activation = activations.get(activation)
        self.use_bias = use_bias
        self.bias_initializer = initializers.get(bias_initializer)
        self.bias_regularizer = regularizers.get(bias_regularizer)
        self.bias_constraint = constraints.get(bias_constraint)
        self.bias: Any = None
        self.input_spec = InputSpec(ndim=self.rank + 2)

    @property
    def channel_axis(self) -> int:
        return 1 if self.data_format == "channels_first" else -1

    def channels_of(self, input_shape: Shape) -> int:
        """The number of input channels, and a check that the windows fit."""
        self._check_shape(input_shape)
        n = known_axis(self, input_shape, self.channel_axis)
        self.compute_output_shape(input_shape)
        self.input_spec = InputSpec(ndim=self.rank + 2, axes={self.channel_axis: n})
        return n

    def add_kernel(self, shape: Any, prefix: str = "", name: str = "kernel") -> Any:
        """A weight with the options named prefix_initializer, prefix_regularizer, ..."""
        return self.add_weight(
            shape,
            getattr(self, f"{prefix or 'kernel'}_initializer"),
            regularizer=getattr(self, f"{prefix or 'kernel'}_regularizer"),
            constraint=getattr(self, f"{prefix or 'kernel'}_constraint"),
            name=name,
        )

    def add_bias(self, outputs: int) -> None:
        if self.use_bias:
            self.bias = self.add_kernel((outputs,), "bias", "bias")

    def run(self, function: Any, *arguments: Any) -> Any:
        """Call a convolution op with the bias and, where it can be fused, the activation."""
        pair = getattr(self.activation, "pair", None) if self.channel_axis == -1 else None
        y = function(*arguments, bias=self.bias, pair=pair)
        return y if pair is not None or self.activation is None else self.activation(y)

    def spatial(self, input_shape: Shape) -> Shape:
        """The sizes of the spatial axes."""
        return input_shape[2:] if self.channel_axis == 1 else input_shape[1:-1]

    def shape_of(self, input_shape: Shape, out: Sequence[int | None], outputs: int) -> Shape:
        """The output's shape from its spatial sizes and number of channels."""
        if self.channel_axis == 1:
            return (input_shape[0], outputs, *out)
        return (input_shape[0], *out, outputs)

    def window_sizes(self, input_shape: Shape) -> Shape:
        """How many windows fit along each axis; None where the size is not known.

        Raises:
            ValueError: naming the layer and the shape, if none fits.
        """
        found: list[int | None] = []
        windows = zip(
            self.spatial(input_shape),
            self.kernel_size,
            self.strides,
            self.dilation_rate,
            strict=True,
        )
        for n, k, s, d in windows:
            if n is None:
                found.append(None)
                continue
            pads = pads_of(self.padding, (n,), (k,), (s,), (d,))
            out = output_sizes((n,), (k,), (s,), (d,), pads)[0]
            if out < 1:
                raise ValueError(
                    f'{type(self).__name__} layer "{self.name}": a kernel of size '
                    f"{self.kernel_size} (reaching over {extent(k, d)} elements of an axis of {n}) "
                    f"does not fit into input of shape {input_shape}; the output would have size "
                    '0. Use a smaller kernel_size, padding="same" or larger inputs.'
                )
            found.append(out)
        return tuple(found)

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "kernel_size": self.kernel_size,
            "strides": self.strides,
            "padding": self.padding,
            "data_format": self.data_format,
            "dilation_rate": self.dilation_rate,
            "activation": activations.serialize(self.activation),
            "use_bias": self.use_bias,
            **self.options("bias"),
        }

    def options(self, prefix: str) -> Config:
        """The config entries of a weight's initializer, regularizer and constraint."""
        return {
            f"{prefix}_initializer": initializers.serialize(getattr(self, f"{prefix}_initializer")),
            f"{prefix}_regularizer": regularizers.serialize(getattr(self, f"{prefix}_regularizer")),
            f"{prefix}_constraint": constraints.serialize(getattr(self, f"{prefix}_constraint")),
        }


class Conv(ConvBase):
    """y = activation(x * kernel + bias), a cross-correlation over the spatial axes.

    Args:
        filters: the number of output channels.
        kernel_size: size of the window along each axis, an int or one per axis.
        strides: distance of neighbouring windows.
        padding: "valid" (windows inside the input), "same" (zeros around it, ceil(size / stride)
            windows), and in Conv1D "causal" (zeros in front only).
        data_format: "channels_last" or "channels_first". Defaults to the global setting.
        dilation_rate: distance of neighbouring taps; goes together with strides.
        groups: input and output channels fall into this many groups that do not meet.
        activation: name or function. Defaults to the identity.
        use_bias: whether to add a bias.
        kernel_initializer, bias_initializer: first values of the weights.
        kernel_regularizer, bias_regularizer: penalties on the weights.
        activity_regularizer: penalty on the outputs.
        kernel_constraint, bias_constraint: applied to the weights after each update.

    Weights: kernel (*kernel_size, n / groups, filters), bias (filters,).
    Shapes: (batch, *sizes, n) -> (batch, *out, filters) with out = ceil(size / stride) for "same"
    and "causal", floor((size - (kernel - 1) * dilation - 1) / stride) + 1 for "valid".

    Raises:
        ValueError: for arguments out of range, for channels that do not divide into the groups, and
            for inputs that the window does not fit into.
    """

    def __init__(
        self,
        filters: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = 1,
        padding: str = "valid",
        data_format: str | None = None,
        dilation_rate: int | Sequence[int] = 1,
        groups: int = 1,
        activation: Any = None,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: Any = None,
        bias_constraint: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            kernel_size,
            strides,
            padding,
            data_format,
            dilation_rate,
            activation,
            use_bias,
            bias_initializer,
            bias_regularizer,
            bias_constraint,
            activity_regularizer=activity_regularizer,
            **kwargs,
        )
        self.filters = positive_integer(self, "filters", filters)
        self.groups = positive_integer(self, "groups", groups)
        if self.filters % self.groups:
            raise ValueError(
                f'{type(self).__name__} layer "{self.name}": filters must be a multiple of groups; '
                f"received filters={filters} and groups={groups}."
            )
        self.kernel_initializer = initializers.get(kernel_initializer)
        self.kernel_regularizer = regularizers.get(kernel_regularizer)
        self.kernel_constraint = constraints.get(kernel_constraint)

    def build(self, input_shape: Shape) -> None:
        n = self.channels_of(input_shape)
        if n % self.groups:
            raise ValueError(
                f'{type(self).__name__} layer "{self.name}": the {n} channels of input of shape '
                f"{input_shape} do not divide into groups={self.groups}."
            )
        self.kernel = self.add_kernel((*self.kernel_size, n // self.groups, self.filters))
        self.add_bias(self.filters)

    def call(self, inputs: Any) -> Any:
        return self.run(
            ops.conv,
            inputs,
            self.kernel,
            self.strides,
            self.padding,
            self.data_format,
            self.dilation_rate,
        )

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return self.shape_of(input_shape, self.window_sizes(input_shape), self.filters)

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "filters": self.filters,
            "groups": self.groups,
            **self.options("kernel"),
        }


class Conv1D(Conv):
    """Convolution over sequences; see `Conv` for the arguments.

    Shapes: (batch, steps, n) -> (batch, out, filters).

    >>> import numpy as np
    >>> Conv1D(4, 3, padding="causal")(np.ones((2, 10, 5))).shape
    (2, 10, 4)
    """

    rank = 1
    paddings = ("valid", "same", "causal")


class Conv2D(Conv):
    """Convolution over images; see `Conv` for the arguments.

    Shapes: (batch, height, width, n) -> (batch, height', width', filters).

    >>> import numpy as np
    >>> Conv2D(8, 3, strides=2, padding="same", activation="relu")(np.ones((1, 28, 28, 1))).shape
    (1, 14, 14, 8)
    """

    rank = 2


class Conv3D(Conv):
    """Convolution over volumes; see `Conv` for the arguments.

    Shapes: (batch, d1, d2, d3, n) -> (batch, d1', d2', d3', filters).
    """

    rank = 3
