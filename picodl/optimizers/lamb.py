"""Rules that look at a parameter as a whole: Lamb and Adafactor."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from picodl.optimizers.base import Optimizer
from picodl.optimizers.blas import add_scaled
from picodl.optimizers.options import check_fractions
from picodl.typing import Array


class Lamb(Optimizer):
    """Adam's step, scaled to the size of the parameter: w -= lr * norm(w) / norm(u) * u.

    u = m' / (sqrt(v') + epsilon), with Adam's m and v over their corrections; the ratio is 1 where
    a norm is 0.

    Args:
        learning_rate: see `Optimizer`. Defaults to 0.001.
        beta_1: how much of the mean gradient is kept in each step. Defaults to 0.9.
        beta_2: how much of the mean square. Defaults to 0.999.
        epsilon: keeps the division finite. Defaults to 1e-7.
        weight_decay: see `Optimizer`, as for all other options.

    Raises:
        ValueError: for a beta that is not at least 0 and below 1.

    Reference: You et al., 2019, "Large Batch Optimization for Deep Learning: Training BERT in 76
    minutes", arXiv:1904.00962.
    """

    slots = ("momentum", "velocity")
    elementwise = False
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
        return (
            learning_rate,
            self.beta_1,
            1 - self.beta_1,
            self.beta_2,
            1 - self.beta_2,
            1 / (1 - self.beta_1**step),
            1 / (1 - self.beta_2**step),
            self.epsilon,
        )

    def update_step(self, gradient: Array, variable: Array, *args: Any) -> None:
        rate, beta_1, share_1, beta_2, share_2, correction_1, correction_2, *rest = args
        epsilon, m, v, scratch = rest
        add_scaled(m, beta_1, gradient, share_1, scratch)
        np.square(gradient, out=scratch)
        add_scaled(v, beta_2, scratch, share_2, scratch)
        np.multiply(v, correction_2, out=scratch)
        np.sqrt(scratch, out=scratch)
        scratch += epsilon
        np.divide(m, scratch, out=scratch)
        scratch *= correction_1
        w_norm, u_norm = _norm(variable), _norm(scratch)
        scratch *= rate
        if w_norm > 0 and u_norm > 0:
            scratch *= w_norm / u_norm
        variable -= scratch


class Adafactor(Optimizer):
    """Adam's division with the mean squares of rows and columns alone, and no momentum.

    With rho = 1 - t**beta_2_decay, r and c the running means of g**2 + epsilon_1 over columns and
    rows: v = r * c / mean(r) (for a vector v itself is kept); u = g / sqrt(v), divided by
    max(1, rms(u) / clip_threshold); w -= max(epsilon_2, rms(w)) * min(lr, 1 / sqrt(t)) * u.

    Args:
        learning_rate: see `Optimizer`. Defaults to 0.001.
        beta_2_decay: the power that lets the means become longer. Defaults to -0.8.
        epsilon_1: added to the squares. Defaults to 1e-30.
        epsilon_2: the least size of a parameter. Defaults to 0.001.
        clip_threshold: the largest root mean square of u. Defaults to 1.
        relative_step: kept for Keras's files; as there, the rate falls with the steps either way.
        weight_decay: see `Optimizer`, as for all other options.

    Reference: Shazeer and Stern, 2018, "Adafactor: Adaptive Learning Rates with Sublinear Memory
    Cost", arXiv:1804.04235.
    """

    slots = ("r", "c", "velocity")
    elementwise = False
    hyperparameters = (
        "beta_2_decay",
        "epsilon_1",
        "epsilon_2",
        "clip_threshold",
        "relative_step",
    )

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_2_decay: float = -0.8,
        epsilon_1: float = 1e-30,
        epsilon_2: float = 1e-3,
        clip_threshold: float = 1.0,
        relative_step: bool = True,
        weight_decay: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(learning_rate, weight_decay, **options)
        self.beta_2_decay = beta_2_decay
        self.epsilon_1 = epsilon_1
        self.epsilon_2 = epsilon_2
        self.clip_threshold = clip_threshold
        self.relative_step = relative_step

    def initial_slot(self, slot: str, parameter: Any) -> Any:
        shape = parameter.data.shape
        if slot == "velocity":
            return 0.0
        if len(shape) < 2:
            return np.zeros(())  # a placeholder, as in Keras
        return np.zeros(shape[:-1] if slot == "r" else shape[:-2] + shape[-1:])

    def numbers(self, step: int, learning_rate: float) -> tuple[float, ...]:
        return min(learning_rate, 1 / math.sqrt(step)), step**self.beta_2_decay

    def update_step(self, gradient: Array, variable: Array, *args: Any) -> None:
        rate, share, r, c, v, scratch = args
        np.multiply(gradient, gradient, out=scratch)
        scratch += self.epsilon_1
        if variable.ndim < 2:
            v += share * (scratch - v)
        else:
            r += share * (scratch.mean(axis=-1) - r)
            c += share * (scratch.mean(axis=-2) - c)
            rows = r / r.mean(axis=-1, keepdims=True)
            np.multiply(rows[..., None], c[..., None, :], out=v)
        np.sqrt(v, out=scratch)
        np.divide(gradient, scratch, out=scratch)
        scale = max(self.epsilon_2, _rms(variable)) * float(rate)
        scratch *= scale / max(1.0, _rms(scratch) / self.clip_threshold)
        variable -= scratch


def _norm(a: Array) -> float:
    flat = a.reshape(-1)
    return math.sqrt(float(flat.dot(flat)))


def _rms(a: Array) -> float:
    return _norm(a) / math.sqrt(max(a.size, 1))
