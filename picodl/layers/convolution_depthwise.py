"""Convolutions that treat each channel by itself, and with a mixing 1x1 convolution after it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from picodl import constraints, initializers, ops, regularizers
from picodl.layers.checks import positive_integer
from picodl.layers.convolution import ConvBase
from picodl.typing import Config, Shape


class DepthwiseConv(ConvBase):
    """Convolution of each channel with kernels of its own.

    Args:
        kernel_size, strides, padding, data_format, dilation_rate, activation, use_bias: as in
            `Conv`.
        depth_multiplier: the number of kernels, and outputs, of each channel.
        depthwise_initializer, depthwise_regularizer, depthwise_constraint: of the kernel.
        bias_initializer, bias_regularizer, bias_constraint: of the bias.
        activity_regularizer: penalty on the outputs.

    Weights: kernel (*kernel_size, n, depth_multiplier), bias (n * depth_multiplier,).
    Shapes: (batch, *sizes, n) -> (batch, *out, n * depth_multiplier); the outputs of a channel lie
    together.
    """

    def __init__(
        self,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = 1,
        padding: str = "valid",
        depth_multiplier: int = 1,
        data_format: str | None = None,
        dilation_rate: int | Sequence[int] = 1,
        activation: Any = None,
        use_bias: bool = True,
        depthwise_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        depthwise_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        depthwise_constraint: Any = None,
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
        self.depth_multiplier = positive_integer(self, "depth_multiplier", depth_multiplier)
        self.depthwise_initializer = initializers.get(depthwise_initializer)
        self.depthwise_regularizer = regularizers.get(depthwise_regularizer)
        self.depthwise_constraint = constraints.get(depthwise_constraint)

    def build(self, input_shape: Shape) -> None:
        n = self.channels_of(input_shape)
        shape = (*self.kernel_size, n, self.depth_multiplier)
        self.kernel = self.add_kernel(shape, "depthwise")
        self.add_bias(n * self.depth_multiplier)

    def call(self, inputs: Any) -> Any:
        return self.run(
            ops.depthwise_conv,
            inputs,
            self.kernel,
            self.strides,
            self.padding,
            self.data_format,
            self.dilation_rate,
        )

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        outputs = (input_shape[self.channel_axis] or 0) * self.depth_multiplier
        return self.shape_of(input_shape, self.window_sizes(input_shape), outputs)

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "depth_multiplier": self.depth_multiplier,
            **self.options("depthwise"),
        }


class DepthwiseConv1D(DepthwiseConv):
    """Depthwise convolution over sequences; see `DepthwiseConv` for the arguments.

    >>> import numpy as np
    >>> DepthwiseConv1D(3, depth_multiplier=2)(np.ones((1, 8, 5))).shape
    (1, 6, 10)
    """

    rank = 1


class DepthwiseConv2D(DepthwiseConv):
    """Depthwise convolution over images; see `DepthwiseConv` for the arguments."""

    rank = 2


class SeparableConv(ConvBase):
    """A depthwise convolution, then a 1x1 convolution that mixes the channels.

    Args:
        filters: the number of output channels.
        kernel_size, strides, padding, data_format, dilation_rate: of the first of the two.
        depth_multiplier: the number of outputs per channel of the first of the two.
        activation, use_bias: as in `Conv`, after both.
        depthwise_initializer, pointwise_initializer, bias_initializer: first values of the weights.
        depthwise_regularizer, pointwise_regularizer, bias_regularizer: penalties on the weights.
        activity_regularizer: penalty on the outputs.
        depthwise_constraint, pointwise_constraint, bias_constraint: applied after each update.

    Weights: depthwise_kernel (*kernel_size, n, m), pointwise_kernel (1, ..., n * m, filters), bias
    (filters,).
    Reference: Chollet, 2017, "Xception", arXiv:1610.02357.
    """

    def __init__(
        self,
        filters: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = 1,
        padding: str = "valid",
        data_format: str | None = None,
        dilation_rate: int | Sequence[int] = 1,
        depth_multiplier: int = 1,
        activation: Any = None,
        use_bias: bool = True,
        depthwise_initializer: Any = "glorot_uniform",
        pointwise_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        depthwise_regularizer: Any = None,
        pointwise_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        depthwise_constraint: Any = None,
        pointwise_constraint: Any = None,
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
        self.depth_multiplier = positive_integer(self, "depth_multiplier", depth_multiplier)
        self.depthwise_initializer = initializers.get(depthwise_initializer)
        self.pointwise_initializer = initializers.get(pointwise_initializer)
        self.depthwise_regularizer = regularizers.get(depthwise_regularizer)
        self.pointwise_regularizer = regularizers.get(pointwise_regularizer)
        self.depthwise_constraint = constraints.get(depthwise_constraint)
        self.pointwise_constraint = constraints.get(pointwise_constraint)

    def build(self, input_shape: Shape) -> None:
        n = self.channels_of(input_shape)
        m = self.depth_multiplier
        self.depthwise_kernel = self.add_kernel(
            (*self.kernel_size, n, m), "depthwise", "depthwise_kernel"
        )
        self.pointwise_kernel = self.add_kernel(
            (*(1,) * self.rank, n * m, self.filters), "pointwise", "pointwise_kernel"
        )
        self.add_bias(self.filters)

    def call(self, inputs: Any) -> Any:
        return self.run(
            ops.separable_conv,
            inputs,
            self.depthwise_kernel,
            self.pointwise_kernel,
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
            "depth_multiplier": self.depth_multiplier,
            **self.options("depthwise"),
            **self.options("pointwise"),
        }


class SeparableConv1D(SeparableConv):
    """Separable convolution over sequences; see `SeparableConv` for the arguments."""

    rank = 1


class SeparableConv2D(SeparableConv):
    """Separable convolution over images; see `SeparableConv` for the arguments.

    >>> import numpy as np
    >>> SeparableConv2D(6, 3, padding="same")(np.ones((1, 8, 8, 4))).shape
    (1, 8, 8, 6)
    """

    rank = 2
