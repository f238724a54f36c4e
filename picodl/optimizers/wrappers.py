"""Optimizers that hand the work to others: loss scaling, one optimizer for each part."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np

from picodl.module import Parameter
from picodl.optimizers.base import Optimizer
from picodl.saving.serialization import deserialize_keras_object, serialize_keras_object
from picodl.typing import Array, Config


class LossScaleOptimizer(Optimizer):
    """Multiply the loss, so that small gradients survive float16, and divide gradients again.

    The scale is found while training: a gradient that is not finite halves it and its step is left
    out; after `dynamic_growth_steps` steps without one it is doubled.

    Args:
        inner_optimizer: takes the steps; clipping, decay and the rest are its options.
        initial_scale: the first scale. Too high a one falls quickly. Defaults to 2**15.
        dynamic_growth_steps: see above. Defaults to 2000.
        name: of the optimizer.

    Raises:
        TypeError: unless the inner optimizer is an `Optimizer`.

    Reference: Micikevicius et al., 2017, "Mixed Precision Training", arXiv:1710.03740.
    """

    def __init__(
        self,
        inner_optimizer: Any,
        initial_scale: float = 2.0**15,
        dynamic_growth_steps: int = 2000,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(0.0, name=name, **_refuse_options("LossScaleOptimizer", kwargs))
        self.inner_optimizer = _as_optimizer(inner_optimizer)
        self.inner_optimizer.loss_scale_factor = None  # or gradients would be divided twice
        self.initial_scale = initial_scale
        self.dynamic_growth_steps = dynamic_growth_steps
        self._counter = self._own_variable(0, "step_counter", "int32")
        self._scale = self._own_variable(initial_scale, "dynamic_scale", "float32")

    def build(self, variables: Iterable[Any]) -> None:
        """Make the slots of the inner optimizer."""
        self.inner_optimizer.build(variables)
        self._parameters = self.inner_optimizer._parameters
        self.built = True

    @property
    def dynamic_scale(self) -> float:
        """What the loss is multiplied with now."""
        return float(self._scale.data)

    def scale_loss(self, loss: Any) -> Any:
        """The loss times the scale."""
        return loss * self.dynamic_scale

    def _apply(self, parameters: Sequence[Any], gradients: Sequence[Array]) -> None:
        self.build(parameters)
        if not all(np.isfinite(g).all() for g in gradients):
            self._counter.data[...] = 0
            self._scale.data[...] = self.dynamic_scale / 2
            return
        scale = self.dynamic_scale
        own = [
            np.divide(g, scale, dtype=p.dtype) for p, g in zip(parameters, gradients, strict=True)
        ]
        self.inner_optimizer._apply(parameters, own)
        self._counter.data += 1
        if int(self._counter.data) >= self.dynamic_growth_steps:
            self._counter.data[...] = 0
            self._scale.data[...] = scale * 2

    @property
    def variables(self) -> list[Parameter]:
        """The own state, then that of the inner optimizer."""
        own = [self._iterations, self._learning_rate, self._counter, self._scale]
        return (own if self.built else own[:2]) + self.inner_optimizer.variables

    @property
    def iterations(self) -> Any:
        """How many steps the inner optimizer took."""
        return self.inner_optimizer.iterations

    @property
    def learning_rate(self) -> Any:
        """The learning rate of the inner optimizer."""
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self.inner_optimizer.learning_rate = value

    @property
    def use_ema(self) -> bool:
        """Whether the inner optimizer keeps averages."""
        return self.inner_optimizer.use_ema

    @use_ema.setter
    def use_ema(self, flag: bool) -> None:
        if flag:
            self.inner_optimizer.use_ema = flag

    def finalize_variable_values(self, var_list: Iterable[Any] | None = None) -> None:
        """See `Optimizer`."""
        self.inner_optimizer.finalize_variable_values(var_list)

    def swap_averages(self, variables: Iterable[Any] | None = None) -> None:
        """See `Optimizer`."""
        self.inner_optimizer.swap_averages(variables)

    def get_config(self) -> Config:
        """The arguments, with the inner optimizer's."""
        return {
            "name": self.name,
            "inner_optimizer": serialize_keras_object(self.inner_optimizer),
            "initial_scale": self.initial_scale,
            "dynamic_growth_steps": self.dynamic_growth_steps,
        }

    @classmethod
    def from_config(cls, config: Config, custom_objects: Mapping[str, Any] | None = None) -> Any:
        """The optimizer of a config."""
        inner = deserialize_keras_object(config["inner_optimizer"], custom_objects)
        return cls(**{**config, "inner_optimizer": inner})


class OptimizerMap(MutableMapping[str, Any]):
    """Which optimizer a variable gets: by its path, or by a regular expression for all of it.

    Args:
        default_optimizer: for variables that no key matches.
        optimizer_map: path or expression -> optimizer.

    Raises:
        TypeError: for what is no optimizer.
        ValueError: for a key given twice; on look-up, if several expressions match.

    >>> from picodl.optimizers import SGD, Adam
    >>> rules = OptimizerMap(SGD(), {"encoder/.*": Adam()})
    >>> type(rules["encoder/dense/kernel"]).__name__, type(rules["head/kernel"]).__name__
    ('Adam', 'SGD')
    """

    def __init__(
        self, default_optimizer: Any, optimizer_map: Mapping[str, Any] | None = None
    ) -> None:
        self._default = _as_optimizer(default_optimizer)
        self._map: dict[str, Any] = {}
        for key, optimizer in (optimizer_map or {}).items():
            self[key] = optimizer

    @property
    def default_optimizer(self) -> Any:
        """The optimizer of variables that no key matches."""
        return self._default

    def __getitem__(self, key: str) -> Any:
        if key in self._map:
            return self._map[key]
        matching = [pattern for pattern in self._map if re.fullmatch(pattern, key)]
        if len(matching) > 1:
            raise ValueError(
                f"OptimizerMap: several keys match the variable {key}: {', '.join(matching)}. "
                "Let one of them match."
            )
        return self._map[matching[0]] if matching else self._default

    def __setitem__(self, key: str, optimizer: Any) -> None:
        if not isinstance(key, str):
            raise ValueError(f"OptimizerMap: a key is a path; received {key!r}.")
        if key in self._map:
            raise ValueError(f"OptimizerMap: the key {key!r} is there already; delete it first.")
        self._map[key] = _as_part(optimizer)

    def __delitem__(self, key: str) -> None:
        del self._map[key]

    def __contains__(self, key: object) -> bool:
        return key in self._map

    def __len__(self) -> int:
        return len(self._map)

    def __iter__(self) -> Iterator[str]:
        return iter(self._map)

    def __call__(self, variable: Any) -> Any:
        """The optimizer of a variable."""
        return self[getattr(variable, "path", "")]

    def get_config(self) -> Config:
        """The arguments."""
        return {
            "default_optimizer": serialize_keras_object(self._default),
            "optimizer_map": serialize_keras_object(self._map),
        }

    @classmethod
    def from_config(cls, config: Config, custom_objects: Mapping[str, Any] | None = None) -> Any:
        """The map of a config."""
        return cls(*(deserialize_keras_object(config[k], custom_objects) for k in config))


class MultiOptimizer(Optimizer):
    """Several optimizers, each for some of the variables.

    Args:
        optimizer_map: an `OptimizerMap`, or a function of a variable that gives its optimizer.
        loss_scale_factor: see `Optimizer`; takes the place of that of all parts.
        name: of the optimizer.

    Raises:
        AttributeError: for its learning rate: the parts have theirs.
        TypeError: if the map gives something that is no optimizer.
    """

    def __init__(
        self,
        optimizer_map: OptimizerMap | Callable[[Any], Any],
        loss_scale_factor: float | None = None,
        name: str | None = None,
    ) -> None:
        self.optimizers: list[Any] = []
        super().__init__(0.0, loss_scale_factor=loss_scale_factor, name=name)
        self._optimizer_map = optimizer_map
        self._chosen: list[int] = []  # for each parameter, which of the optimizers
        if isinstance(optimizer_map, OptimizerMap):
            for part in (*optimizer_map._map.values(), optimizer_map.default_optimizer):
                self._number_of(part)

    def _number_of(self, part: Any) -> int:
        for number, known in enumerate(self.optimizers):
            if known is part:
                return number
        part = _as_part(part)
        part.loss_scale_factor = self.loss_scale_factor
        self.optimizers.append(part)
        return len(self.optimizers) - 1

    def build(self, variables: Iterable[Any]) -> None:
        """Choose the optimizer of each variable, and build them."""
        for parameter in variables:
            if id(parameter) not in self._places:
                self._places[id(parameter)] = len(self._parameters)
                self._parameters.append(parameter)
                self._chosen.append(self._number_of(self._optimizer_map(parameter)))
        for number, part in enumerate(self.optimizers):
            part.build(
                [p for p, n in zip(self._parameters, self._chosen, strict=True) if n == number]
            )
        self.built = True

    def _apply(self, parameters: Sequence[Any], gradients: Sequence[Array]) -> None:
        if any(id(p) not in self._places for p in parameters):
            self.build(parameters)
        shares: list[tuple[list[Any], list[Array]]] = [([], []) for _ in self.optimizers]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            own = shares[self._chosen[self._places[id(parameter)]]]
            own[0].append(parameter)
            own[1].append(gradient)
        for part, (own_parameters, own_gradients) in zip(self.optimizers, shares, strict=True):
            if own_parameters:
                part._apply(own_parameters, own_gradients)
        self._iterations.data += 1

    @property
    def variables(self) -> list[Parameter]:
        """The own state, then that of the parts."""
        own = [self._iterations, self._learning_rate]
        return own + [v for part in self.optimizers for v in part.variables]

    @property
    def learning_rate(self) -> Any:
        """There is none: the parts have theirs."""
        raise AttributeError(
            f"{self.name} has no learning rate of its own: read and set those of its .optimizers."
        )

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        raise AttributeError(
            f"{self.name} has no learning rate of its own: read and set those of its .optimizers."
        )

    @property
    def loss_scale_factor(self) -> float | None:
        """What the loss was multiplied with, for all parts."""
        return self._loss_scale_factor

    @loss_scale_factor.setter
    def loss_scale_factor(self, factor: float | None) -> None:
        self._loss_scale_factor = factor
        for part in self.optimizers:
            part.loss_scale_factor = factor

    @property
    def use_ema(self) -> bool:
        """Whether a part keeps averages."""
        return any(part.use_ema for part in self.optimizers)

    @use_ema.setter
    def use_ema(self, flag: bool) -> None:
        if flag:
            raise ValueError(f"{self.name} takes no use_ema: give it to the parts.")

    def swap_averages(self, variables: Iterable[Any] | None = None) -> None:
        """See `Optimizer`; the weights of parts without averages stay as they are."""
        given = None if variables is None else list(variables)
        for part in self.optimizers:
            if part.use_ema:
                part.swap_averages(given)

    def finalize_variable_values(self, var_list: Iterable[Any] | None = None) -> None:
        """See `Optimizer`."""
        given = None if var_list is None else list(var_list)
        for part in self.optimizers:
            part.finalize_variable_values(given)

    def get_config(self) -> Config:
        """The arguments."""
        return {
            "optimizer_map": serialize_keras_object(self._optimizer_map),
            "loss_scale_factor": self.loss_scale_factor,
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config: Config, custom_objects: Mapping[str, Any] | None = None) -> Any:
        """The optimizer of a config."""
        found = deserialize_keras_object(config["optimizer_map"], custom_objects)
        return cls(**{**config, "optimizer_map": found})


def _as_optimizer(given: Any) -> Any:
    if not isinstance(given, Optimizer):
        raise TypeError(
            f"Expected an optimizer object; received {given!r} of type {type(given).__name__}."
        )
    return given


def _as_part(given: Any) -> Any:
    if isinstance(given, (LossScaleOptimizer, MultiOptimizer)):
        raise ValueError(f"A {type(given).__name__} cannot be a part of a MultiOptimizer.")
    return _as_optimizer(given)


_NO_OPTIONS = (("ema_momentum", 0.99), ("dynamic", True))


def _refuse_options(owner: str, options: Config) -> Config:
    """Nothing, if all options have the values of no option (older files hold them)."""
    for name, value in options.items():
        if value not in (None, False) and (name, value) not in _NO_OPTIONS:
            raise ValueError(f"{owner} takes no {name}: give it to the inner optimizer.")
    return {}
