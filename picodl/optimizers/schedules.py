"""Learning rates as functions of the step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from picodl.families import Family
from picodl.typing import Config


class LearningRateSchedule:
    """Base class: an object called as `f(step)` that gives the learning rate of that step.

    Steps count from 0. An optimizer takes a schedule as its `learning_rate`.

    >>> class Halving(LearningRateSchedule):
    ...     def __call__(self, step):
    ...         return 0.1 * 0.5 ** (step // 100)
    >>> Halving()(250)
    0.025
    """

    def __call__(self, step: Any) -> Any:
        """The learning rate of a step.

        Raises:
            NotImplementedError: unless a subclass defines it.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define __call__(step).")

    def get_config(self) -> Config:
        """The arguments that make the same schedule again.

        Raises:
            NotImplementedError: unless a subclass defines it.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define get_config().")

    @classmethod
    def from_config(cls, config: Config) -> Any:
        """The schedule of a config."""
        return cls(**config)


class ExponentialDecay(LearningRateSchedule):
    """initial_learning_rate * decay_rate ** (step / decay_steps).

    Args:
        initial_learning_rate: the rate of step 0.
        decay_steps: in how many steps the rate is multiplied with `decay_rate`.
        decay_rate: the factor.
        staircase: whether the exponent is rounded down, so that the rate falls at intervals.
        name: of the schedule.

    >>> ExponentialDecay(0.1, 10, 0.5)(20)
    0.025
    """

    def __init__(
        self,
        initial_learning_rate: float,
        decay_steps: int,
        decay_rate: float,
        staircase: bool = False,
        name: str = "ExponentialDecay",
    ) -> None:
        self.initial_learning_rate = initial_learning_rate
        self.decay_steps = _positive(self, "decay_steps", decay_steps)
        self.decay_rate = decay_rate
        self.staircase = staircase
        self.name = name

    def __call__(self, step: Any) -> float:
        p = float(step) / self.decay_steps
        return self.initial_learning_rate * self.decay_rate ** (
            math.floor(p) if self.staircase else p
        )

    def get_config(self) -> Config:
        return _config(self, "initial_learning_rate decay_steps decay_rate staircase name")


class InverseTimeDecay(LearningRateSchedule):
    """initial_learning_rate / (1 + decay_rate * step / decay_steps).

    Args:
        initial_learning_rate: the rate of step 0.
        decay_steps: how many steps count as one.
        decay_rate: how fast the rate falls.
        staircase: whether step / decay_steps is rounded down.
        name: of the schedule.
    """

    def __init__(
        self,
        initial_learning_rate: float,
        decay_steps: int,
        decay_rate: float,
        staircase: bool = False,
        name: str = "InverseTimeDecay",
    ) -> None:
        self.initial_learning_rate = initial_learning_rate
        self.decay_steps = _positive(self, "decay_steps", decay_steps)
        self.decay_rate = decay_rate
        self.staircase = staircase
        self.name = name

    def __call__(self, step: Any) -> float:
        p = float(step) / self.decay_steps
        return self.initial_learning_rate / (
            1 + self.decay_rate * (math.floor(p) if self.staircase else p)
        )

    def get_config(self) -> Config:
        return _config(self, "initial_learning_rate decay_steps decay_rate staircase name")


class PiecewiseConstantDecay(LearningRateSchedule):
    """values[i] while step <= boundaries[i], then the last value.

    Args:
        boundaries: the last step of each value but the last, in rising order.
        values: the rates, one more than boundaries.
        name: of the schedule.

    Raises:
        ValueError: if the lengths do not fit, or boundaries fall.

    >>> rate = PiecewiseConstantDecay([2, 5], [1.0, 0.5, 0.1])
    >>> [rate(step) for step in (0, 2, 3, 5, 6)]
    [1.0, 1.0, 0.5, 0.5, 0.1]
    """

    def __init__(
        self,
        boundaries: Sequence[float],
        values: Sequence[float],
        name: str = "PiecewiseConstant",
    ) -> None:
        if len(values) != len(boundaries) + 1:
            raise ValueError(
                "PiecewiseConstantDecay needs one value more than boundaries; received "
                f"{len(boundaries)} boundaries and {len(values)} values."
            )
        if list(boundaries) != sorted(boundaries):
            raise ValueError(
                f"PiecewiseConstantDecay: boundaries must rise; received {boundaries}."
            )
        self.boundaries = list(boundaries)
        self.values = list(values)
        self.name = name

    def __call__(self, step: Any) -> float:
        for boundary, rate in zip(self.boundaries, self.values, strict=False):
            if float(step) <= boundary:
                return rate
        return self.values[-1]

    def get_config(self) -> Config:
        return _config(self, "boundaries values name")


class PolynomialDecay(LearningRateSchedule):
    """(initial - end) * (1 - step / decay_steps) ** power + end, and end from decay_steps on.

    Args:
        initial_learning_rate: the rate of step 0.
        decay_steps: in how many steps the rate reaches its end.
        end_learning_rate: the last rate. Defaults to 0.0001.
        power: of the polynomial; 1 for a straight line.
        cycle: whether the rate rises again after decay_steps: each time to the curve of the next
            multiple of decay_steps.
        name: of the schedule.
    """

    def __init__(
        self,
        initial_learning_rate: float,
        decay_steps: int,
        end_learning_rate: float = 0.0001,
        power: float = 1.0,
        cycle: bool = False,
        name: str = "PolynomialDecay",
    ) -> None:
        self.initial_learning_rate = initial_learning_rate
        self.decay_steps = _positive(self, "decay_steps", decay_steps)
        self.end_learning_rate = end_learning_rate
        self.power = power
        self.cycle = cycle
        self.name = name

    def __call__(self, step: Any) -> float:
        step, steps = float(step), float(self.decay_steps)
        if self.cycle:
            steps *= max(1, math.ceil(step / steps))
        left = 1 - min(step, steps) / steps
        end = self.end_learning_rate
        return (self.initial_learning_rate - end) * left**self.power + end

    def get_config(self) -> Config:
        names = "initial_learning_rate decay_steps end_learning_rate power cycle name"
        return _config(self, names)


class CosineDecay(LearningRateSchedule):
    """initial * ((1 - alpha) * (1 + cos(pi * step / decay_steps)) / 2 + alpha).

    With `warmup_target` the rate first goes in a line from initial_learning_rate to the target, and
    the cosine falls from there.

    Args:
        initial_learning_rate: the rate of step 0.
        decay_steps: the length of the cosine, warm-up not included.
        alpha: the last rate as a fraction of the highest. Defaults to 0.
        name: of the schedule.
        warmup_target: the rate at the end of the warm-up; None for no warm-up.
        warmup_steps: the length of the warm-up.

    Reference: Loshchilov and Hutter, 2016, "SGDR: Stochastic Gradient Descent with Warm Restarts",
    arXiv:1608.03983.

    >>> rate = CosineDecay(0.0, 10, warmup_target=0.1, warmup_steps=5)
    >>> [round(rate(step), 4) for step in (0, 1, 5, 10, 15)]
    [0.0, 0.02, 0.1, 0.05, 0.0]
    """

    def __init__(
        self,
        initial_learning_rate: float,
        decay_steps: int,
        alpha: float = 0.0,
        name: str = "CosineDecay",
        warmup_target: float | None = None,
        warmup_steps: int = 0,
    ) -> None:
        self.initial_learning_rate = initial_learning_rate
        self.decay_steps = _positive(self, "decay_steps", decay_steps)
        self.alpha = alpha
        self.name = name
        self.warmup_target = warmup_target
        self.warmup_steps = warmup_steps

    def __call__(self, step: Any) -> float:
        step, highest = float(step), self.initial_learning_rate
        if self.warmup_target is not None:
            target = self.warmup_target
            if step < self.warmup_steps:
                return highest + (target - highest) * step / self.warmup_steps
            step, highest = step - self.warmup_steps, target
        return highest * _cosine(min(step / self.decay_steps, 1.0), 1.0, self.alpha)

    def get_config(self) -> Config:
        names = "initial_learning_rate decay_steps alpha name warmup_target warmup_steps"
        return _config(self, names)


class CosineDecayRestarts(LearningRateSchedule):
    """The cosine of CosineDecay that starts again: each period t_mul times as long, m_mul as high.

    Args:
        initial_learning_rate: the rate of step 0.
        first_decay_steps: the length of the first period.
        t_mul: how much longer each period is than the one before. Defaults to 2.
        m_mul: how much higher. Defaults to 1.
        alpha: the lowest rate as a fraction of the initial one. Defaults to 0.
        name: of the schedule.

    Reference: see `CosineDecay`.
    """

    def __init__(
        self,
        initial_learning_rate: float,
        first_decay_steps: int,
        t_mul: float = 2.0,
        m_mul: float = 1.0,
        alpha: float = 0.0,
        name: str = "SGDRDecay",
    ) -> None:
        self.initial_learning_rate = initial_learning_rate
        self.first_decay_steps = _positive(self, "first_decay_steps", first_decay_steps)
        self.t_mul = _positive(self, "t_mul", t_mul)
        self.m_mul = m_mul
        self.alpha = alpha
        self.name = name

    def __call__(self, step: Any) -> float:
        p, period, height = float(step) / self.first_decay_steps, 1.0, 1.0
        if self.t_mul == 1:
            height, p = self.m_mul ** math.floor(p), p % 1.0
        while p >= period:
            if period * self.first_decay_steps < 1e-3:  # periods that shrink come to an end
                return self.initial_learning_rate * self.alpha
            p -= period
            period *= self.t_mul
            height *= self.m_mul
        return self.initial_learning_rate * _cosine(p / period, height, self.alpha)

    def get_config(self) -> Config:
        return _config(self, "initial_learning_rate first_decay_steps t_mul m_mul alpha name")


class LinearWarmup(LearningRateSchedule):
    """A line from start_lr to end_lr over warmup_steps, then another rate or schedule.

    Args:
        learning_rate: what follows: a number, or a schedule that starts where the warm-up ends.
        warmup_steps: the length of the line.
        start_lr: the rate of step 0.
        end_lr: where the line ends.
        name: of the schedule.

    Reference: `paddle.optimizer.lr.LinearWarmup`, whose name and arguments it has.

    >>> rate = LinearWarmup(CosineDecay(0.1, 100), warmup_steps=10, start_lr=0.0, end_lr=0.1)
    >>> [round(rate(step), 4) for step in (0, 5, 10, 60, 110)]
    [0.0, 0.05, 0.1, 0.05, 0.0]
    """

    def __init__(
        self,
        learning_rate: Any,
        warmup_steps: int,
        start_lr: float = 0.0,
        end_lr: float | None = None,
        name: str = "LinearWarmup",
    ) -> None:
        if isinstance(learning_rate, dict):
            learning_rate = deserialize(learning_rate)
        self.learning_rate = learning_rate
        self.warmup_steps = _positive(self, "warmup_steps", warmup_steps)
        self.start_lr = start_lr
        self.end_lr = self._after(0) if end_lr is None else end_lr
        self.name = name

    def _after(self, step: float) -> float:
        rate = self.learning_rate
        return float(rate(step) if callable(rate) else rate)

    def __call__(self, step: Any) -> float:
        step = float(step)
        if step < self.warmup_steps:
            return self.start_lr + (self.end_lr - self.start_lr) * step / self.warmup_steps
        return self._after(step - self.warmup_steps)

    def get_config(self) -> Config:
        config = _config(self, "learning_rate warmup_steps start_lr end_lr name")
        if isinstance(self.learning_rate, LearningRateSchedule):
            config["learning_rate"] = serialize(self.learning_rate)
        return config


class OneCycleLR(LearningRateSchedule):
    """One cycle: from max_lr / div_factor up to max_lr, then down to far below the start.

    Args:
        max_lr: the highest rate.
        total_steps: the length of the whole cycle; after it the last rate stays.
        pct_start: the fraction of the cycle in which the rate rises. Defaults to 0.3.
        anneal_strategy: "cos" or "linear". Defaults to "cos".
        div_factor: max_lr / the first rate. Defaults to 25.
        final_div_factor: the first rate / the last rate. Defaults to 1e4.
        name: of the schedule.

    Raises:
        ValueError: for a fraction outside 0..1 or an unknown strategy.

    Reference: Smith and Topin, 2017, "Super-Convergence", arXiv:1708.07120. The name, arguments and
    values are those of `torch.optim.lr_scheduler.OneCycleLR`.
    """

    def __init__(
        self,
        max_lr: float,
        total_steps: int,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        name: str = "OneCycleLR",
    ) -> None:
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(
                f'OneCycleLR: anneal_strategy must be "cos" or "linear"; received '
                f"{anneal_strategy!r}."
            )
        if not 0 <= pct_start <= 1:
            raise ValueError(f"OneCycleLR: pct_start must lie in 0..1; received {pct_start}.")
        self.max_lr = max_lr
        self.total_steps = _positive(self, "total_steps", total_steps)
        self.pct_start = pct_start
        self.anneal_strategy = anneal_strategy
        self.div_factor = _positive(self, "div_factor", div_factor)
        self.final_div_factor = _positive(self, "final_div_factor", final_div_factor)
        self.name = name

    def __call__(self, step: Any) -> float:
        first = self.max_lr / self.div_factor
        last = first / self.final_div_factor
        end = self.total_steps - 1
        top = self.pct_start * self.total_steps - 1
        step = min(float(step), end)
        if step <= top:
            return self._between(first, self.max_lr, step / top if top else 1.0)
        return self._between(self.max_lr, last, (step - top) / (end - top))

    def _between(self, a: float, b: float, p: float) -> float:
        if self.anneal_strategy == "cos":
            return b + (a - b) * _cosine(p, 1.0, 0.0)
        return a + (b - a) * p

    def get_config(self) -> Config:
        names = "max_lr total_steps pct_start anneal_strategy div_factor final_div_factor name"
        return _config(self, names)


def _cosine(p: float, height: float, alpha: float) -> float:
    """Half a cosine from height (at p = 0) to 0 (at p = 1), squeezed between 1 and alpha."""
    return (1 - alpha) * height * 0.5 * (1 + math.cos(math.pi * p)) + alpha


def _positive(owner: Any, argument: str, given: Any) -> Any:
    if not given > 0:
        raise ValueError(
            f"{type(owner).__name__}: {argument} must be greater than 0; received {given!r}."
        )
    return given


def _config(schedule: Any, names: str) -> Config:
    return {name: getattr(schedule, name) for name in names.split()}


# -------------------------------------------------------------------- by name

_family = Family(
    "schedule",
    "keras.optimizers.schedules",
    LearningRateSchedule,
    [
        ExponentialDecay,
        InverseTimeDecay,
        PiecewiseConstantDecay,
        PolynomialDecay,
        CosineDecay,
        CosineDecayRestarts,
        LinearWarmup,
        OneCycleLR,
    ],
)


def serialize(learning_rate_schedule: Any) -> Any:
    """The config of a schedule, as Keras writes it."""
    return _family.serialize(learning_rate_schedule)


def deserialize(config: Any, custom_objects: Mapping[str, Any] | None = None) -> Any:
    """The schedule of a config."""
    return _family.deserialize(config, custom_objects)
