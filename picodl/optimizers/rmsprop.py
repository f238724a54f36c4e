"""Gradients divided by their running root mean square."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from picodl.optimizers.base import Optimizer
from picodl.optimizers.blas import add_scaled
from picodl.optimizers.options import check_fractions
from picodl.typing import Array


class RMSprop(Optimizer):
    """v = rho * v + (1 - rho) * g**2; w -= lr * g / sqrt(v + epsilon).

    Args:
        learning_rate: see `Optimizer`. Defaults to 0.001.
        rho: how much of the mean square is kept in each step. Defaults to 0.9.
        momentum: how much of the last step is added to this one. Defaults to 0.
        epsilon: added to v, inside the root. Defaults to 1e-7.
        centered: whether the square of the mean gradient is taken from v (a variance remains).
        weight_decay: see `Optimizer`, as for all other options.

    Raises:
        ValueError: for a rho that is not at least 0 and below 1.

    Reference: Tieleman and Hinton, 2012, "Lecture 6.5: rmsprop"; centered: Graves, 2013,
    arXiv:1308.0850.
    """

    hyperparameters = ("rho", "momentum", "epsilon", "centered")

    def __init__(
        self,
        learning_rate: Any = 0.001,
        rho: float = 0.9,
        momentum: float = 0.0,
        epsilon: float = 1e-7,
        centered: bool = False,
        weight_decay: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(learning_rate, weight_decay, **options)
        self.rho = rho
        check_fractions(self, "rho")
        self.momentum = momentum
        self.epsilon = epsilon
        self.centered = centered
        self.slots = (
            "velocity",
            *(("momentum",) if momentum > 0 else ()),
            *(("average_gradient",) if centered else ()),
        )

    def slot_groups(self) -> Sequence[Sequence[str]]:
        return [(slot,) for slot in self.slots]

    def numbers(self, step: int, learning_rate: float) -> tuple[float, ...]:
        return learning_rate, self.rho, 1 - self.rho, self.momentum, self.epsilon

    def update_step(self, gradient: Array, variable: Array, *args: Any) -> None:
        rate, rho, share, momentum, epsilon, velocity, *slots, scratch = args
        np.square(gradient, out=scratch)
        add_scaled(velocity, rho, scratch, share, scratch)
        if self.centered:
            mean = slots[-1]
            add_scaled(mean, rho, gradient, share, scratch)
            np.square(mean, out=scratch)
            np.subtract(velocity, scratch, out=scratch)
            np.maximum(scratch, 0, out=scratch)  # a steady gradient leaves rounding of either sign
            scratch += epsilon
        else:
            np.add(velocity, epsilon, out=scratch)
        np.sqrt(scratch, out=scratch)
        np.divide(gradient, scratch, out=scratch)
        if self.momentum > 0:
            m = slots[0]
            add_scaled(m, momentum, scratch, rate, scratch)
            variable -= m
        else:
            add_scaled(variable, None, scratch, -rate, scratch)
