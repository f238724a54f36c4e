"""AdamW without a schedule: an average of all weights takes its place."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from picodl.optimizers.base import Optimizer
from picodl.optimizers.blas import add_scaled
from picodl.optimizers.options import check_fractions
from picodl.typing import Array


class ScheduleFreeAdamW(Optimizer):
    """Adam's steps on one sequence of weights, gradients at a mixture of it and its average.

    z -= lr * g / (sqrt(v / (1 - beta_2**t)) + epsilon); x = (1 - 1/t) * x + z / t;
    w = (1 - beta_1) * z + beta_1 * x, where z is the slot momentum. The old x is worked out of w
    and the new z, as Keras does on TensorFlow and PyTorch (the paper, and Keras on JAX, take the
    old z).

    Args:
        learning_rate: see `Optimizer`. Defaults to 0.0025.
        beta_1: the share of the average in the weights. Defaults to 0.9.
        beta_2: how much of the mean square is kept in each step. Defaults to 0.999.
        epsilon: keeps the division finite. Defaults to 1e-8.
        warmup_steps: over how many steps the rate rises to its full height. Defaults to 0.
        weight_decay: see `Optimizer`, as for all other options.

    Raises:
        ValueError: for a beta_1 outside 0..1, or a beta_2 that is not at least 0 and below 1.

    Reference: Defazio et al., 2024, "The Road Less Scheduled", arXiv:2405.15682.
    """

    slots = ("momentum", "velocity")
    hyperparameters = ("beta_1", "beta_2", "epsilon", "warmup_steps")

    def __init__(
        self,
        learning_rate: Any = 0.0025,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-8,
        warmup_steps: int = 0,
        weight_decay: float | None = None,
        **options: Any,
    ) -> None:
        if not 0 < beta_1 <= 1:
            raise ValueError(
                f"ScheduleFreeAdamW: beta_1 must lie above 0 and up to 1; received {beta_1!r}."
            )
        super().__init__(learning_rate, weight_decay, **options)
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        check_fractions(self, "beta_2")
        self.epsilon = epsilon
        self.warmup_steps = warmup_steps

    def initial_slot(self, slot: str, parameter: Any) -> Any:
        return parameter.data if slot == "momentum" else 0.0

    def before_step(self, step: int) -> None:
        """Start from the weights of now: they may have been loaded after build."""
        if step == 1:
            for parameter, slots in zip(self._parameters, self._slots, strict=True):
                slots["momentum"].data[...] = parameter.data

    def numbers(self, step: int, learning_rate: float) -> tuple[float, ...]:
        rate = learning_rate
        if self.warmup_steps:
            rate *= min(1.0, step / self.warmup_steps)
        correction = math.sqrt(1 - self.beta_2**step)
        return -rate, correction, self.beta_2, 1 - self.beta_2, self.epsilon, 1 / step

    def update_step(self, gradient: Array, variable: Array, *args: Any) -> None:
        minus_rate, correction, beta_2, share, epsilon, newest, z, v, scratch = args
        np.square(gradient, out=scratch)
        add_scaled(v, beta_2, scratch, share, scratch)
        np.sqrt(v, out=scratch)
        scratch /= correction
        scratch += epsilon
        np.divide(gradient, scratch, out=scratch)
        add_scaled(z, None, scratch, minus_rate, scratch)
        # beta_1 * x = w - (1 - beta_1) * z
        ahead = 1 - self.beta_1
        add_scaled(variable, None, z, -ahead, scratch)
        add_scaled(variable, 1 - newest, z, newest * self.beta_1 + ahead, scratch)
