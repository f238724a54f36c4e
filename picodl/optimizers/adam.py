"""Adam and AdamW."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from picodl import compiled
from picodl.optimizers.base import Optimizer
from picodl.optimizers.blas import add_scaled
from picodl.optimizers.options import check_fractions
from picodl.typing import Array


class Adam(Optimizer):
    """Steps of the mean gradient over the root of the mean square, both corrected at the start.

    m += (1 - beta_1) * (g - m); v += (1 - beta_2) * (g**2 - v); with
    alpha = lr * sqrt(1 - beta_2**t) / (1 - beta_1**t): w -= alpha * m / (sqrt(v) + epsilon).
    As in Keras, epsilon is not divided by the correction of v.

    Args:
        learning_rate: see `Optimizer`. Defaults to 0.001.
        beta_1: how much of the mean gradient is kept in each step. Defaults to 0.9.
        beta_2: how much of the mean square. Defaults to 0.999.
        epsilon: keeps the division finite. Defaults to 1e-7.
        amsgrad: whether the largest v so far takes its place.
        weight_decay: see `Optimizer`, as for all other options.

    Raises:
        ValueError: for a beta that is not at least 0 and below 1.

    Reference: Kingma and Ba, 2014, "Adam: A Method for Stochastic Optimization", arXiv:1412.6980;
    amsgrad: Reddi et al., 2018, "On the Convergence of Adam and Beyond", arXiv:1904.09237.
    """

    slots: tuple[str, ...] = ("momentum", "velocity")
    hyperparameters = ("beta_1", "beta_2", "epsilon", "amsgrad")

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        amsgrad: bool = False,
        weight_decay: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(learning_rate, weight_decay, **options)
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        check_fractions(self, "beta_1", "beta_2")
        self.amsgrad = amsgrad
        if amsgrad:
            self.slots = ("momentum", "velocity", "velocity_hat")

    def slot_groups(self) -> Sequence[Sequence[str]]:
        return [self.slots[:2], self.slots[2:]]

    def numbers(self, step: int, learning_rate: float) -> tuple[float, ...]:
        return adam_numbers(step, learning_rate, self.beta_1, self.beta_2, self.epsilon)

    def update_step(self, gradient: Array, variable: Array, *args: Any) -> None:
        if self.amsgrad:
            args = (*args[:-2], args[-1], args[-2])  # the slot velocity_hat comes last
        adam_step(gradient, variable, *args)


def adam_step(
    gradient: Array,
    variable: Array,
    minus_alpha: Any,
    epsilon: Any,
    beta_1: Any,
    share_1: Any,
    beta_2: Any,
    share_2: Any,
    m: Array,
    v: Array,
    scratch: Array,
    highest: Array | None = None,
) -> None:
    """Adam's rule; with `highest`, the largest v so far divides.

    The numbers after `variable` are those of `adam_numbers`.
    """
    if highest is None and compiled.kernels is not None and variable.flags.writeable:
        numbers = map(float, (minus_alpha, epsilon, share_1, share_2))
        if compiled.run("adam", gradient, variable, m, v, m.size, *numbers):
            return
    add_scaled(m, beta_1, gradient, share_1, scratch)
    np.square(gradient, out=scratch)
    add_scaled(v, beta_2, scratch, share_2, scratch)
    if highest is not None:
        v = np.maximum(highest, v, out=highest)
    np.sqrt(v, out=scratch)
    scratch += epsilon
    np.divide(m, scratch, out=scratch)
    add_scaled(variable, None, scratch, minus_alpha, scratch)


def adam_numbers(
    step: int, learning_rate: float, beta_1: float, beta_2: float, epsilon: float
) -> tuple[float, ...]:
    """-alpha, epsilon, beta_1, 1 - beta_1, beta_2, 1 - beta_2."""
    alpha = learning_rate * math.sqrt(1 - beta_2**step) / (1 - beta_1**step)
    return -alpha, epsilon, beta_1, 1 - beta_1, beta_2, 1 - beta_2


class AdamW(Adam):
    """Adam whose weights decay by themselves: first w -= lr * weight_decay * w, then Adam's step.

    Args:
        learning_rate: see `Optimizer`. Defaults to 0.001.
        weight_decay: the fraction, times the learning rate, that a step takes away. Defaults to
            0.004.
        beta_1: see `Adam`, as for the arguments that follow.

    Raises:
        ValueError: without a weight_decay.

    Reference: Loshchilov and Hutter, 2017, "Decoupled Weight Decay Regularization",
    arXiv:1711.05101.
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        weight_decay: float | None = 0.004,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        amsgrad: bool = False,
        **options: Any,
    ) -> None:
        if weight_decay is None:
            raise ValueError("AdamW needs a weight_decay; received None. Use Adam without decay.")
        super().__init__(learning_rate, beta_1, beta_2, epsilon, amsgrad, weight_decay, **options)
