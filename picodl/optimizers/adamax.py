"""Relatives of Adam: Adamax and Nadam."""

from __future__ import annotations

from typing import Any

import numpy as np

from picodl.optimizers.base import Optimizer
from picodl.optimizers.blas import add_scaled
from picodl.optimizers.options import check_fractions
from picodl.typing import Array


class Adamax(Optimizer):
    """Adam with the largest recent gradient in place of the root mean square.

    m += (1 - beta_1) * (g - m); u = max(beta_2 * u, abs(g));
    w -= lr * m / ((1 - beta_1**t) * (u + epsilon)).

    Args:
        learning_rate: see `Optimizer`. Defaults to 0.001.
        beta_1: how much of the mean gradient is kept in each step. Defaults to 0.9.
        beta_2: how much of the largest gradient. Defaults to 0.999.
        epsilon: keeps the division finite. Defaults to 1e-7.
        weight_decay: see `Optimizer`, as for all other options.

    Raises:
        ValueError: for a beta that is not at least 0 and below 1.

    Reference: Kingma and Ba, 2014, "Adam: A Method for Stochastic Optimization", arXiv:1412.6980,
    section 7.
    """

    slots = ("momentum", "norm")
    hyperparameters = ("beta_1", "beta_2", "epsilon")

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        weight_decay: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(learning_rate, weight_decay, **options)
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        check_fractions(self, "beta_1", "beta_2")

    def numbers(self, step: int, learning_rate: float) -> tuple[float, ...]:
        rate = learning_rate / (1 - self.beta_1**step)
        return -rate, self.beta_1, 1 - self.beta_1, self.beta_2, self.epsilon

    def update_step(self, gradient: Array, variable: Array, *args: Any) -> None:
        minus_rate, beta_1, share, beta_2, epsilon, m, u, scratch = args
        add_scaled(m, beta_1, gradient, share, scratch)
        u *= beta_2
        np.abs(gradient, out=scratch)
        np.maximum(u, scratch, out=u)
        np.add(u, epsilon, out=scratch)
        np.divide(m, scratch, out=scratch)
        add_scaled(variable, None, scratch, minus_rate, scratch)


class Nadam(Optimizer):
    """Adam with Nesterov's look ahead.

    With u_t = beta_1 * (1 - 0.96**t / 2) and U the product of u_1 ... u_t:
    w -= lr * (u_(t+1) * m / (1 - U * u_(t+1)) + (1 - u_t) * g / (1 - U)) / (sqrt(v') + epsilon),
    m and v as in Adam, v' = v / (1 - beta_2**t).

    Args:
        learning_rate: see `Optimizer`. Defaults to 0.001.
        beta_1: how much of the mean gradient is kept in each step. Defaults to 0.9.
        beta_2: how much of the mean square. Defaults to 0.999.
        epsilon: keeps the division finite. Defaults to 1e-7.
        weight_decay: see `Optimizer`, as for all other options.

    Raises:
        ValueError: for a beta that is not at least 0 and below 1.

    Reference: Dozat, 2016, "Incorporating Nesterov Momentum into Adam".
    """

    slots = ("momentum", "velocity")
    hyperparameters = ("beta_1", "beta_2", "epsilon")

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        weight_decay: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(learning_rate, weight_decay, **options)
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        check_fractions(self, "beta_1", "beta_2")
        self._product: Any = None

    def build(self, variables: Any) -> None:
        """Make the slots, and the product of the u so far."""
        super().build(variables)
        if self._product is None:
            self._product = self._own_variable(1.0, "u_product")
            self._own_variables.append(self._product)

    def before_step(self, step: int) -> None:
        """Take the next u into the product."""
        self._product.data *= self._u(step)

    def _u(self, step: int) -> float:
        return self.beta_1 * (1 - 0.5 * 0.96**step)

    def numbers(self, step: int, learning_rate: float) -> tuple[float, ...]:
        product, following = float(self._product.data), self._u(step + 1)
        return (
            learning_rate * following / (1 - product * following),
            learning_rate * (1 - self._u(step)) / (1 - product),
            self.beta_1,
            1 - self.beta_1,
            self.beta_2,
            1 - self.beta_2,
            1 / (1 - self.beta_2**step),
            self.epsilon,
        )

    def update_step(self, gradient: Array, variable: Array, *args: Any) -> None:
        ahead, now, beta_1, share_1, beta_2, share_2, correction, epsilon, m, v, scratch = args
        add_scaled(m, beta_1, gradient, share_1, scratch)
        np.square(gradient, out=scratch)
        add_scaled(v, beta_2, scratch, share_2, scratch)
        np.multiply(v, correction, out=scratch)
        np.sqrt(scratch, out=scratch)
        scratch += epsilon
        direction = m * ahead
        direction += gradient * now
        direction /= scratch
        variable -= direction
