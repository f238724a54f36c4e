"""Muon: orthogonal steps for matrices, Adam's for the rest."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from picodl.optimizers.adam import adam_numbers, adam_step
from picodl.optimizers.base import Optimizer
from picodl.optimizers.options import check_fractions
from picodl.typing import Array


class Muon(Optimizer):
    """Momentum made orthogonal for matrices; AdamW for all other parameters and for embeddings.

    m = momentum * m + g; u = g + momentum * m (m itself without nesterov); then ns_steps times
    u = a * u + (b * A + c * A @ A) @ u with A = u @ u.T, from u / norm(u); and
    w -= lr * rms_rate * sqrt(max(rows, columns)) * u.

    Args:
        learning_rate: see `Optimizer`. Defaults to 0.001.
        adam_beta_1: `beta_1` of Adam's part. Defaults to 0.9.
        adam_beta_2: `beta_2` of Adam's part. Defaults to 0.999.
        adam_weight_decay: the weight decay of Adam's part. Defaults to 0.004.
        epsilon: of Adam's part. Defaults to 1e-7.
        weight_decay: of the matrices. Defaults to 0.004.
        clipnorm: see `Optimizer`, as for the options up to `name`.
        exclude_layers: regular expressions: matrices whose path matches one are Adam's.
        exclude_embeddings: whether matrices with "embedding" in their path are Adam's.
        muon_a: a of the iteration. Defaults to 3.4445.
        muon_b: b of the iteration. Defaults to -4.775.
        muon_c: c of the iteration. Defaults to 2.0315.
        adam_lr_ratio: Adam's learning rate over that of the matrices. Defaults to 1.
        momentum: how much of m is kept in each step. Defaults to 0.95.
        ns_steps: how often the iteration is made. Defaults to 5.
        nesterov: whether the step looks ahead.
        rms_rate: the size of a step of rate 1; None for u alone. Defaults to 0.2.

    Raises:
        ValueError: for a beta that is not at least 0 and below 1.

    Reference: Jordan et al., 2024, "Muon: An optimizer for hidden layers in neural networks";
    Liu et al., 2025, "Muon is Scalable for LLM Training", arXiv:2502.16982.
    """

    slots = ("momentum", "velocity")
    elementwise = False
    hyperparameters = (
        "adam_beta_1",
        "adam_beta_2",
        "epsilon",
        "exclude_layers",
        "muon_a",
        "muon_b",
        "muon_c",
        "adam_lr_ratio",
        "momentum",
        "ns_steps",
        "nesterov",
        "exclude_embeddings",
        "adam_weight_decay",
        "rms_rate",
    )

    def __init__(
        self,
        learning_rate: Any = 0.001,
        adam_beta_1: float = 0.9,
        adam_beta_2: float = 0.999,
        adam_weight_decay: float | None = 0.004,
        epsilon: float = 1e-7,
        weight_decay: float | None = 0.004,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
        use_ema: bool = False,
        ema_momentum: float = 0.99,
        ema_overwrite_frequency: int | None = None,
        loss_scale_factor: float | None = None,
        gradient_accumulation_steps: int | None = None,
        name: str | None = None,
        exclude_layers: Sequence[str] | None = None,
        exclude_embeddings: bool = True,
        muon_a: float = 3.4445,
        muon_b: float = -4.775,
        muon_c: float = 2.0315,
        adam_lr_ratio: float = 1,
        momentum: float = 0.95,
        ns_steps: int = 5,
        nesterov: bool = True,
        rms_rate: float | None = 0.2,
        **options: Any,
    ) -> None:
        super().__init__(
            learning_rate,
            weight_decay,
            clipnorm,
            clipvalue,
            global_clipnorm,
            use_ema,
            ema_momentum,
            ema_overwrite_frequency,
            loss_scale_factor,
            gradient_accumulation_steps,
            name,
            **options,
        )
        self.adam_beta_1 = adam_beta_1
        self.adam_beta_2 = adam_beta_2
        check_fractions(self, "adam_beta_1", "adam_beta_2")
        self.adam_weight_decay = adam_weight_decay
        self.epsilon = epsilon
        self.exclude_layers = list(exclude_layers or ())
        self.exclude_embeddings = exclude_embeddings
        self.muon_a = muon_a
        self.muon_b = muon_b
        self.muon_c = muon_c
        self.adam_lr_ratio = adam_lr_ratio
        self.momentum = momentum
        self.ns_steps = ns_steps
        self.nesterov = nesterov
        self.rms_rate = rms_rate

    def _is_adams(self, parameter: Any) -> bool:
        path = getattr(parameter, "path", "")
        return (
            parameter.data.ndim != 2
            or (self.exclude_embeddings and "embedding" in path.lower())
            or any(re.search(pattern, path) for pattern in self.exclude_layers)
        )

    def slots_of(self, parameter: Any) -> Sequence[str]:
        return self.slots if self._is_adams(parameter) else self.slots[:1]

    def decay_of(self, parameter: Any) -> float | None:
        return self.adam_weight_decay if self._is_adams(parameter) else self.weight_decay

    def numbers(self, step: int, learning_rate: float) -> tuple[float, ...]:
        rate = learning_rate * self.adam_lr_ratio
        adams = adam_numbers(step, rate, self.adam_beta_1, self.adam_beta_2, self.epsilon)
        return learning_rate, *adams

    def update_step(self, gradient: Array, variable: Array, *args: Any) -> None:
        rate, *adams = args
        if len(adams) == 9:  # with a velocity
            adam_step(gradient, variable, *adams)
            return
        *_, m, scratch = adams
        m *= self.momentum
        m += gradient
        u = gradient + self.momentum * m if self.nesterov else m
        u = self._orthogonal(u)
        size = math.sqrt(max(u.shape)) * self.rms_rate if self.rms_rate is not None else 1.0
        np.multiply(u, float(rate) * size, out=scratch)
        variable -= scratch

    def _orthogonal(self, u: Array) -> Array:
        """The matrix with its singular values near 1, by a few steps of Newton and Schulz."""
        tall = u.shape[0] > u.shape[1]
        x = np.ascontiguousarray(u.T) if tall else u
        x = x / (math.sqrt(float(np.vdot(x, x))) + 1e-7)
        for _ in range(self.ns_steps):
            a = x.dot(x.T)
            x = self.muon_a * x + (self.muon_b * a + self.muon_c * a.dot(a)).dot(x)
        return x.T if tall else x
