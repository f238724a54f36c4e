"""What all optimizers can be told: options, and parameters with a rate or decay of their own."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from picodl.module import Module
from picodl.naming import suggest
from picodl.tensor import Tensor
from picodl.typing import Config


class ParameterGroup:
    """What some of an optimizer's parameters have of their own.

    Args:
        match: a regular expression searched in the parameter's path, a layer or model, a parameter,
            or a list of these.
        learning_rate: a number, or a schedule, in place of the optimizer's.
        learning_rate_multiplier: a factor for the optimizer's rate. Defaults to 1.
        weight_decay: in place of the optimizer's.

    Raises:
        TypeError: for a match of another kind.
        ValueError: for negative numbers, or for a learning rate beside a multiplier.
    """

    def __init__(
        self,
        match: Any,
        learning_rate: Any = None,
        learning_rate_multiplier: float = 1.0,
        weight_decay: float | None = None,
    ) -> None:
        self.matches = list(match) if isinstance(match, (list, tuple)) else [match]
        for item in self.matches:
            if not isinstance(item, (str, Module, Tensor)):
                raise TypeError(
                    'A parameter group\'s "match" is a regular expression, a layer, a parameter or '
                    f"a list of these; received {item!r}."
                )
        if learning_rate is not None and learning_rate_multiplier != 1.0:
            raise ValueError(
                "A parameter group takes learning_rate or learning_rate_multiplier, not both; "
                f"received {learning_rate!r} and {learning_rate_multiplier!r}."
            )
        for name, number in (
            ("learning_rate", learning_rate),
            ("learning_rate_multiplier", learning_rate_multiplier),
            ("weight_decay", weight_decay),
        ):
            if isinstance(number, (int, float)) and not number >= 0:
                raise ValueError(
                    f"A parameter group's {name} must not be negative; received {number!r}."
                )
        self.learning_rate = learning_rate
        self.learning_rate_multiplier = learning_rate_multiplier
        self.weight_decay = weight_decay

    def holds(self, parameter: Any) -> bool:
        """Whether the parameter belongs to the group."""
        for item in self.matches:
            if isinstance(item, str):
                if re.search(item, getattr(parameter, "path", None) or ""):
                    return True
            else:
                inside = item.parameters() if isinstance(item, Module) else (item,)
                if any(p is parameter for p in inside):
                    return True
        return False

    def rate(self, learning_rate: float, iteration: int) -> float:
        """The group's learning rate, given the optimizer's."""
        if self.learning_rate is None:
            return learning_rate * self.learning_rate_multiplier
        if callable(self.learning_rate):
            return float(self.learning_rate(iteration))
        return float(self.learning_rate)

    def get_config(self) -> Config:
        """The arguments; layers and parameters as expressions for their paths."""
        match: list[str] = []
        for item in self.matches:
            if isinstance(item, str):
                match.append(item)
            else:
                parameters = item.parameters() if isinstance(item, Module) else [item]
                match += [f"^{re.escape(getattr(p, 'path', ''))}$" for p in parameters]
        return {
            "match": match,
            "learning_rate": self.learning_rate,
            "learning_rate_multiplier": self.learning_rate_multiplier,
            "weight_decay": self.weight_decay,
        }


def as_groups(groups: Sequence[Any] | None) -> list[ParameterGroup]:
    """Parameter groups from dicts.

    Raises:
        ValueError: for a key that no group has, or without "match".
    """
    return [g if isinstance(g, ParameterGroup) else _from_dict(g) for g in groups or ()]


_KEYS = ("match", "learning_rate", "learning_rate_multiplier", "weight_decay")


def _from_dict(given: Any) -> ParameterGroup:
    if not isinstance(given, dict) or "match" not in given:
        raise ValueError(f'A parameter group is a dict with a "match"; received {given!r}.')
    for key in given:
        if key not in _KEYS:
            raise ValueError(
                f"A parameter group has no {key!r}.{suggest(key, _KEYS)} Known: {', '.join(_KEYS)}."
            )
    return ParameterGroup(**given)


OPTIONS = (
    "clipnorm",
    "global_clipnorm",
    "clipvalue",
    "use_ema",
    "ema_momentum",
    "ema_overwrite_frequency",
    "loss_scale_factor",
    "gradient_accumulation_steps",
)


_OLDER = {  # arguments of Keras 2
    "lr": " It is called learning_rate.",
    "decay": " Pass a schedule as learning_rate, such as schedules.InverseTimeDecay.",
}


def check_options(owner: str, given: Mapping[str, Any], unknown: Mapping[str, Any]) -> None:
    """Refuse what is unknown, out of range or contradictory."""
    known = {"learning_rate", "weight_decay", "name", "parameter_groups", *OPTIONS}
    for name in unknown:
        if name != "jit_compile":  # accepted, as there is nothing to compile
            hint = _OLDER.get(name) or suggest(name, known)
            raise ValueError(f"{owner} has no argument {name!r}.{hint}")
    clips = {name: given[name] for name in ("clipnorm", "clipvalue", "global_clipnorm")}
    set_ones = {name: limit for name, limit in clips.items() if limit is not None}
    if len(set_ones) > 1:
        raise ValueError(
            f"{owner}: only one of {', '.join(clips)} can be set; received {set_ones}."
        )
    for name in (*clips, "loss_scale_factor"):
        if given[name] is not None and not given[name] > 0:
            raise ValueError(f"{owner}: {name} must be positive; received {given[name]!r}.")
    if given["weight_decay"] is not None and not given["weight_decay"] >= 0:
        raise ValueError(
            f"{owner}: weight_decay must not be negative; received {given['weight_decay']!r}."
        )
    if not 0 <= given["ema_momentum"] <= 1:
        raise ValueError(
            f"{owner}: ema_momentum must lie in 0..1; received {given['ema_momentum']!r}."
        )
    for name, least in (("ema_overwrite_frequency", 1), ("gradient_accumulation_steps", 2)):
        number = given[name]
        if number is not None and (not isinstance(number, (int, np.integer)) or number < least):
            raise ValueError(
                f"{owner}: {name} must be an integer of at least {least}; received {number!r}."
            )


def check_fractions(optimizer: Any, *names: str) -> None:
    """Refuse attributes that are not at least 0 and below 1, such as the beta of an average.

    Raises:
        ValueError: for the first of them.
    """
    for name in names:
        value = getattr(optimizer, name)
        if not 0 <= value < 1:
            raise ValueError(
                f"{type(optimizer).__name__}: {name} must be at least 0 and below 1; "
                f"received {value!r}."
            )
