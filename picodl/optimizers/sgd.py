"""Gradient descent, with or without momentum."""

from __future__ import annotations

from typing import Any

from picodl.optimizers.base import Optimizer
from picodl.optimizers.blas import add_scaled
from picodl.typing import Array


class SGD(Optimizer):
    """w -= lr * g; with momentum m = momentum * m - lr * g and w += m.

    Args:
        learning_rate: see `Optimizer`. Defaults to 0.01.
        momentum: how much of the last step is kept, from 0 to 1. Defaults to 0.
        nesterov: whether the step looks ahead: w += momentum * m - lr * g.
        weight_decay: see `Optimizer`, as for all other options.

    Raises:
        ValueError: for a momentum outside 0..1.

    Reference: Sutskever et al., 2013, "On the importance of initialization and momentum in deep
    learning".
    """

    hyperparameters = ("momentum", "nesterov")

    def __init__(
        self,
        learning_rate: Any = 0.01,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float | None = None,
        **options: Any,
    ) -> None:
        if not 0 <= momentum <= 1:
            raise ValueError(f"SGD: momentum must lie in 0..1; received {momentum!r}.")
        super().__init__(learning_rate, weight_decay, **options)
        self.momentum = momentum
        self.nesterov = nesterov
        self.slots = ("momentum",) if momentum else ()
        self.cost = 0.15e-3 if momentum else 0.07e-3

    def numbers(self, step: int, learning_rate: float) -> tuple[float, ...]:
        return -learning_rate, self.momentum

    def update_step(self, gradient: Array, variable: Array, *args: Any) -> None:
        minus_rate, momentum, *slots, scratch = args
        if not slots:
            add_scaled(variable, None, gradient, minus_rate, scratch)
            return
        m = slots[0]
        add_scaled(m, momentum, gradient, minus_rate, scratch)
        if self.nesterov:
            add_scaled(variable, None, gradient, minus_rate, scratch)
            add_scaled(variable, None, m, momentum, scratch)
        else:
            variable += m
