"""A dense layer whose product is any einsum."""

from __future__ import annotations

import copy
from typing import Any

from picodl import activations, constraints, initializers, ops, regularizers
from picodl.layers.lora import LowRank
from picodl.ops.projection import project
from picodl.typing import Config, Shape


class EinsumDense(LowRank):
    """y = activation(einsum(equation, x, kernel) + bias).

    Args:
        equation: of the input and the kernel, such as "abc,cd->abd"; "..." stands for any axes.
        output_shape: the sizes of the output without the batch axis, None where the input has them;
            an integer for one axis.
        activation: name or function. Defaults to the identity.
        bias_axes: the letters of the output that the bias has; no bias for None.
        kernel_initializer, bias_initializer: first values of the weights.
        kernel_regularizer, bias_regularizer: penalties on the weights.
        activity_regularizer: penalty on the outputs.
        kernel_constraint, bias_constraint: applied to the weights after each update.
        lora_rank, lora_alpha: freeze the kernel and train a change of this rank; see `enable_lora`.

    Weights: kernel, of the shape the equation asks for; bias.

    Raises:
        ValueError: for an equation that does not fit the input.

    >>> import numpy as np
    >>> EinsumDense("abc,cd->abd", output_shape=(None, 4), bias_axes="d")(np.ones((2, 3, 5))).shape
    (2, 3, 4)
    """

    def __init__(
        self,
        equation: str,
        output_shape: Any,
        activation: Any = None,
        bias_axes: str | None = None,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: Any = None,
        bias_constraint: Any = None,
        lora_rank: int | None = None,
        lora_alpha: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(activity_regularizer=activity_regularizer, **kwargs)
        self.equation = equation
        self.partial_output_shape = (
            (output_shape,) if isinstance(output_shape, int) else tuple(output_shape)
        )
        self.bias_axes = bias_axes
        self.activation = activations.get(activation)
        self.kernel_initializer = initializers.get(kernel_initializer)
        self.bias_initializer = initializers.get(bias_initializer)
        self.kernel_regularizer = regularizers.get(kernel_regularizer)
        self.bias_regularizer = regularizers.get(bias_regularizer)
        self.kernel_constraint = constraints.get(kernel_constraint)
        self.bias_constraint = constraints.get(bias_constraint)
        self._axes = self._axes_that_meet()
        self.bias: Any = None
        self._set_lora(lora_rank, lora_alpha)

    def _split_equation(self) -> tuple[str, str, str]:
        """The letters of the input, the kernel and the output."""
        left, arrow, output = self.equation.replace(" ", "").partition("->")
        terms = left.split(",")
        if not arrow or len(terms) != 2:
            raise ValueError(
                f'EinsumDense layer "{self.name}" expects an equation such as "abc,cd->abd", with '
                f"the input and the kernel; received {self.equation!r}."
            )
        return terms[0], terms[1], output

    def _sizes(self, input_shape: Shape) -> tuple[dict[str, Any], tuple[Any, ...]]:
        """The size of each letter, and the whole output shape."""
        source, _, output = self._split_equation()
        inside = _letters(source, len(input_shape))
        rank = len(input_shape) - len(source.replace("...", "")) + len(output.replace("...", ""))
        outside = _letters(output, rank if "..." in output else len(output))
        sizes: dict[str, Any] = (
            dict(zip(inside, input_shape, strict=True)) if len(inside) == len(input_shape) else {}
        )
        if not sizes:
            raise ValueError(
                f'EinsumDense layer "{self.name}" with the equation {self.equation!r} expects an '
                f"input of rank {len(inside)}, but received shape {input_shape}."
            )
        given = self.partial_output_shape
        written = [letter for letter in outside if letter[0] != "."]
        if len(given) > len(written):
            written = outside  # with the axes of "..."
        for letter, size in zip(reversed(written), reversed(given), strict=False):
            before = sizes.get(letter)
            if size is not None and before is not None and before != size:
                raise ValueError(
                    f'EinsumDense layer "{self.name}": axis {letter!r} of {self.equation!r} has '
                    f"size {before} in the input of shape {input_shape}, but {size} in "
                    f"output_shape={given}."
                )
            if letter not in sizes or size is not None:
                sizes[letter] = size
        return sizes, tuple(sizes.get(letter) for letter in outside)

    def build(self, input_shape: Shape) -> None:
        _, kernel, output = self._split_equation()
        sizes, shape = self._sizes(input_shape)
        unknown = [letter for letter in kernel if sizes.get(letter) is None]
        if unknown:
            raise ValueError(
                f'EinsumDense layer "{self.name}" with the equation {self.equation!r}: the size of '
                f"axis {unknown[0]!r} of the kernel is not known from the input shape "
                f"{input_shape} and output_shape={self.partial_output_shape}."
            )
        self.kernel = self.add_weight(
            tuple(sizes[letter] for letter in kernel),
            self._scaled(kernel, output),
            regularizer=self.kernel_regularizer,
            constraint=self.kernel_constraint,
            name="kernel",
        )
        if self.lora_rank is not None:
            self._adapt(self.lora_rank, self.lora_alpha)
        if self.bias_axes is None:
            return
        letters = _letters(output, len(shape))
        missing = [letter for letter in self.bias_axes if letter not in letters]
        if missing:
            raise ValueError(
                f'EinsumDense layer "{self.name}": bias_axes={self.bias_axes!r} names '
                f"{missing[0]!r}, which the output {output!r} does not have."
            )
        first = min(letters.index(letter) for letter in self.bias_axes)
        self.bias = self.add_weight(
            tuple(sizes[letter] if letter in self.bias_axes else 1 for letter in letters[first:]),
            self.bias_initializer,
            regularizer=self.bias_regularizer,
            constraint=self.bias_constraint,
            name="bias",
        )

    def _scaled(self, kernel: str, output: str) -> Any:
        """The kernel's initializer; one scaled by fans takes the letters of the output as units,
        the others as inputs, unless it was given axes."""
        initializer = self.kernel_initializer
        if not isinstance(initializer, initializers.VarianceScaling) or (
            initializer.input_axes is not None and initializer.output_axes is not None
        ):
            return initializer
        initializer = copy.copy(initializer)
        initializer.input_axes = [i for i, letter in enumerate(kernel) if letter not in output]
        initializer.output_axes = [i for i, letter in enumerate(kernel) if letter in output]
        return initializer

    def _axes_that_meet(self) -> int:
        """How many last axes of the input meet as many first axes of the kernel, if that is all the
        equation says; else 0."""
        source, kernel, output = (term.replace("...", "0") for term in self._split_equation())
        for axes in range(1, len(kernel)):
            meeting, free = kernel[:axes], kernel[axes:]
            if source.endswith(meeting) and output == source[: len(source) - axes] + free:
                return axes
        return 0

    def call(self, inputs: Any) -> Any:
        kernel = self._adapted() if self.lora_enabled else self.kernel
        axes = self._axes
        if axes and (self.bias is None or self.bias.shape == kernel.shape[axes:]):
            pair = getattr(self.activation, "pair", None)
            y = project(inputs, kernel, self.bias, axes, pair)
            return y if pair is not None or self.activation is None else self.activation(y)
        y = ops.einsum(self.equation, inputs, kernel)
        if self.bias is not None:
            y = y + self.bias
        return y if self.activation is None else self.activation(y)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return self._sizes(input_shape)[1]

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "equation": self.equation,
            "output_shape": self.partial_output_shape,
            "activation": activations.serialize(self.activation),
            "bias_axes": self.bias_axes,
            "kernel_initializer": initializers.serialize(self.kernel_initializer),
            "bias_initializer": initializers.serialize(self.bias_initializer),
            "kernel_regularizer": regularizers.serialize(self.kernel_regularizer),
            "bias_regularizer": regularizers.serialize(self.bias_regularizer),
            "kernel_constraint": constraints.serialize(self.kernel_constraint),
            "bias_constraint": constraints.serialize(self.bias_constraint),
            **self._lora_config(),
        }


def _letters(term: str, rank: int) -> list[str]:
    """One name for each axis; those of the ellipsis are numbered."""
    if "..." not in term:
        return list(term)
    before, after = term.split("...")
    between = max(0, rank - len(before) - len(after))
    return [*before, *(f"...{k}" for k in range(between)), *after]
