"""Rates that follow all gradients so far: Adagrad, Adadelta, Ftrl."""

from __future__ import annotations

from typing import Any

import numpy as np

from picodl.optimizers.base import Optimizer
from picodl.optimizers.blas import add_scaled
from picodl.optimizers.options import check_fractions
from picodl.typing import Array


class Adagrad(Optimizer):
    """a += g**2; w -= lr * g / sqrt(a + epsilon).

    Args:
        learning_rate: see `Optimizer`. Defaults to 0.001.
        initial_accumulator_value: where a starts. Defaults to 0.1.
        epsilon: added to a, inside the root. Defaults to 1e-7.
        weight_decay: see `Optimizer`, as for all other options.

    Raises:
        ValueError: for a negative initial value.

    Reference: Duchi et al., 2011, "Adaptive Subgradient Methods for Online Learning and Stochastic
    Optimization".
    """

    slots = ("accumulator",)
    hyperparameters = ("initial_accumulator_value", "epsilon")

    def __init__(
        self,
        learning_rate: Any = 0.001,
        initial_accumulator_value: float = 0.1,
        epsilon: float = 1e-7,
        weight_decay: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(learning_rate, weight_decay, **options)
        self.initial_accumulator_value = _start(self, initial_accumulator_value)
        self.epsilon = epsilon

    def initial_slot(self, slot: str, parameter: Any) -> Any:
        return self.initial_accumulator_value

    def numbers(self, step: int, learning_rate: float) -> tuple[float, ...]:
        return -learning_rate, self.epsilon

    def update_step(self, gradient: Array, variable: Array, *args: Any) -> None:
        minus_rate, epsilon, accumulator, scratch = args
        np.square(gradient, out=scratch)
        accumulator += scratch
        np.add(accumulator, epsilon, out=scratch)
        np.sqrt(scratch, out=scratch)
        np.divide(gradient, scratch, out=scratch)
        add_scaled(variable, None, scratch, minus_rate, scratch)


class Adadelta(Optimizer):
    """Steps as large as recent steps were, in the measure of the gradient.

    a = rho * a + (1 - rho) * g**2; d = g * sqrt(D + epsilon) / sqrt(a + epsilon);
    D = rho * D + (1 - rho) * d**2; w -= lr * d.

    Args:
        learning_rate: see `Optimizer`. Defaults to 0.001; 1.0 is the published rule.
        rho: how much of the mean squares is kept in each step. Defaults to 0.95.
        epsilon: added inside the roots. Defaults to 1e-7.
        weight_decay: see `Optimizer`, as for all other options.

    Raises:
        ValueError: for a rho that is not at least 0 and below 1.

    Reference: Zeiler, 2012, "ADADELTA: An Adaptive Learning Rate Method", arXiv:1212.5701.
    """

    slots = ("accumulated_grad", "accumulated_delta_var")
    hyperparameters = ("rho", "epsilon")

    def __init__(
        self,
        learning_rate: Any = 0.001,
        rho: float = 0.95,
        epsilon: float = 1e-7,
        weight_decay: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(learning_rate, weight_decay, **options)
        self.rho = rho
        check_fractions(self, "rho")
        self.epsilon = epsilon

    def numbers(self, step: int, learning_rate: float) -> tuple[float, ...]:
        return -learning_rate, self.rho, 1 - self.rho, self.epsilon

    def update_step(self, gradient: Array, variable: Array, *args: Any) -> None:
        minus_rate, rho, share, epsilon, squares, steps, scratch = args
        np.square(gradient, out=scratch)
        add_scaled(squares, rho, scratch, share, scratch)
        delta = steps + epsilon
        np.add(squares, epsilon, out=scratch)
        delta /= scratch
        np.sqrt(delta, out=delta)
        delta *= gradient
        np.square(delta, out=scratch)
        add_scaled(steps, rho, scratch, share, scratch)
        add_scaled(variable, None, delta, minus_rate, scratch)


class Ftrl(Optimizer):
    """Follow the regularised leader: weights in closed form from the sums of all gradients.

    With p = learning_rate_power and n, z the slots accumulator and linear:
    g' = g + 2 * l2_shrinkage * w; n' = n + g**2; z += g' - (n'**-p - n**-p) / lr * w;
    w = (clip(z, -l1, l1) - z) / (n'**-p / lr + 2 * (l2 + beta / (2 * lr))).

    Args:
        learning_rate: see `Optimizer`. Defaults to 0.001.
        learning_rate_power: p, at most 0; 0 for a rate that does not fall. Defaults to -0.5.
        initial_accumulator_value: where n starts. Defaults to 0.1.
        l1_regularization_strength: l1, which makes weights exactly 0. Defaults to 0.
        l2_regularization_strength: l2. Defaults to 0.
        l2_shrinkage_regularization_strength: l2_shrinkage, in the gradient alone. Defaults to 0.
        beta: as in the paper. Defaults to 0.
        weight_decay: see `Optimizer`, as for all other options.

    Raises:
        ValueError: for a positive power, or a negative strength or initial value.

    Reference: McMahan et al., 2013, "Ad Click Prediction: a View from the Trenches".
    """

    slots = ("accumulator", "linear")
    hyperparameters = (
        "learning_rate_power",
        "initial_accumulator_value",
        "l1_regularization_strength",
        "l2_regularization_strength",
        "l2_shrinkage_regularization_strength",
        "beta",
    )

    def __init__(
        self,
        learning_rate: Any = 0.001,
        learning_rate_power: float = -0.5,
        initial_accumulator_value: float = 0.1,
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        l2_shrinkage_regularization_strength: float = 0.0,
        beta: float = 0.0,
        weight_decay: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(learning_rate, weight_decay, **options)
        if learning_rate_power > 0:
            raise ValueError(
                f"Ftrl: learning_rate_power must be at most 0; received {learning_rate_power!r}."
            )
        self.learning_rate_power = learning_rate_power
        self.initial_accumulator_value = _start(self, initial_accumulator_value)
        self.l1_regularization_strength = l1_regularization_strength
        self.l2_regularization_strength = l2_regularization_strength
        self.l2_shrinkage_regularization_strength = l2_shrinkage_regularization_strength
        self.beta = beta
        for name in self.hyperparameters[2:5]:
            if getattr(self, name) < 0:
                raise ValueError(
                    f"Ftrl: {name} must not be negative; received {getattr(self, name)!r}."
                )

    def initial_slot(self, slot: str, parameter: Any) -> Any:
        return self.initial_accumulator_value if slot == "accumulator" else 0.0

    def numbers(self, step: int, learning_rate: float) -> tuple[float, ...]:
        l2 = self.l2_regularization_strength + self.beta / (2 * learning_rate)
        return 1 / learning_rate, 2 * l2

    def update_step(self, gradient: Array, variable: Array, *args: Any) -> None:
        per_rate, twice_l2, accumulator, linear, scratch = args
        l1, power = self.l1_regularization_strength, -self.learning_rate_power
        before = accumulator**power
        np.square(gradient, out=scratch)
        accumulator += scratch
        after = accumulator**power
        np.subtract(after, before, out=scratch)
        scratch *= per_rate
        scratch *= variable
        linear += gradient
        if self.l2_shrinkage_regularization_strength:
            linear += (2 * self.l2_shrinkage_regularization_strength) * variable
        linear -= scratch
        after *= per_rate
        after += twice_l2
        np.clip(linear, -l1, l1, out=scratch)
        scratch -= linear
        np.divide(scratch, after, out=variable)


def _start(owner: Any, given: float) -> float:
    if given < 0:
        raise ValueError(
            f"{type(owner).__name__}: initial_accumulator_value must not be negative; "
            f"received {given!r}."
        )
    return given
