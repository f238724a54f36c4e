"""Transposed convolution layers: they make sequences, images and volumes larger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from picodl import constraints, initializers, ops, regularizers
from picodl.layers.checks import positive_integer, sizes
from picodl.layers.convolution import ConvBase
from picodl.ops.conv_plan import transposed_axis
from picodl.typing import Config, Shape


class ConvTranspose(ConvBase):
    """The transpose of a convolution: each input pixel writes its kernel into the output.

    Args:
        filters: the number of output channels.
        kernel_size: size of what one pixel writes.
        strides: how far apart neighbouring pixels write.
        padding: "valid" (all that is written) or "same" (size * stride of it).
        output_padding: extra elements at the end of each axis, below the stride. Defaults to what
            padding asks for.
        data_format, dilation_rate, activation, use_bias: as in `Conv`.
        kernel_initializer, bias_initializer: first values of the weights.
        kernel_regularizer, bias_regularizer: penalties on the weights.
        activity_regularizer: penalty on the outputs.
        kernel_constraint, bias_constraint: applied to the weights after each update.

    Weights: kernel (*kernel_size, filters, n), bias (filters,).
    Shapes: (batch, *sizes, n) -> (batch, *out, filters).

    Raises:
        ValueError: for arguments out of range, output_padding not below the strides, and rank or
            channels that do not fit.
    """

    def __init__(
        self,
        filters: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = 1,
        padding: str = "valid",
        output_padding: int | Sequence[int] | None = None,
        data_format: str | None = None,
        dilation_rate: int | Sequence[int] = 1,
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
        self.output_padding = None
        if output_padding is not None:
            self.output_padding = sizes(self, "output_padding", output_padding, self.rank, least=0)
            if any(p >= s for p, s in zip(self.output_padding, self.strides, strict=True)):
                raise ValueError(
                    f'{type(self).__name__} layer "{self.name}": output_padding must be below the '
                    f"strides {self.strides}; received {output_padding!r}."
                )
        self.kernel_initializer = initializers.get(kernel_initializer)
        self.kernel_regularizer = regularizers.get(kernel_regularizer)
        self.kernel_constraint = constraints.get(kernel_constraint)

    def build(self, input_shape: Shape) -> None:
        n = self.channels_of(input_shape)
        self.kernel = self.add_kernel((*self.kernel_size, self.filters, n))
        self.add_bias(self.filters)

    def call(self, inputs: Any) -> Any:
        return self.run(
            ops.conv_transpose,
            inputs,
            self.kernel,
            self.strides,
            self.padding,
            self.output_padding,
            self.data_format,
            self.dilation_rate,
        )

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        out: list[int | None] = []
        extra = self.output_padding or (None,) * self.rank
        for n, k, s, d, p in zip(
            self.spatial(input_shape),
            self.kernel_size,
            self.strides,
            self.dilation_rate,
            extra,
            strict=True,
        ):
            out.append(None if n is None else transposed_axis(n, k, s, d, self.padding, p)[0])
        return self.shape_of(input_shape, out, self.filters)

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "filters": self.filters,
            "output_padding": self.output_padding,
            **self.options("kernel"),
        }


class Conv1DTranspose(ConvTranspose):
    """Transposed convolution over sequences; see `ConvTranspose` for the arguments.

    >>> import numpy as np
    >>> Conv1DTranspose(4, 3, strides=2, padding="same")(np.ones((1, 5, 2))).shape
    (1, 10, 4)
    """

    rank = 1


class Conv2DTranspose(ConvTranspose):
    """Transposed convolution over images; see `ConvTranspose` for the arguments."""

    rank = 2


class Conv3DTranspose(ConvTranspose):
    """Transposed convolution over volumes; see `ConvTranspose` for the arguments.

    Args: in Keras's order, with data_format before output_padding.
    """

    rank = 3

    def __init__(
        self,
        filters: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = 1,
        padding: str = "valid",
        data_format: str | None = None,
        output_padding: int | Sequence[int] | None = None,
        dilation_rate: int | Sequence[int] = 1,
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
            filters,
            kernel_size,
            strides,
            padding,
            output_padding,
            data_format,
            dilation_rate,
            activation,
            use_bias,
            kernel_initializer,
            bias_initializer,
            kernel_regularizer,
            bias_regularizer,
            activity_regularizer,
            kernel_constraint,
            bias_constraint,
            **kwargs,
        )
