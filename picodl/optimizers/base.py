"""The optimizers' base class: all of a step but the rule."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from picodl import config
from picodl.module import Module, Parameter
from picodl.naming import auto_name, to_snake_case
from picodl.optimizers import schedules
from picodl.optimizers.clipping import clip_by_global_norm, clip_by_norm, clip_by_value
from picodl.optimizers.flat import Packing, Plan, label
from picodl.optimizers.options import OPTIONS, as_groups, check_options
from picodl.optimizers.schedules import LearningRateSchedule
from picodl.parallel import map_blocks
from picodl.tensor import Tensor, as_array
from picodl.typing import Array, Config

THREADS_FROM = 200_000  # elements; with fewer, threads cost more than they save


class Optimizer:
    """Base class: `update_step` is the rule, elementwise and in place; all else is here.

    A subclass names its slots (arrays kept per parameter, zero at first unless `initial_slot` says
    otherwise) and defines `update_step(gradient, variable, *numbers, *slots, scratch)`. The numbers
    are what `numbers` returns, by default the learning rate alone; `scratch` is an array like the
    variable to write to. All arrays are one-dimensional and may hold several parameters; with
    `elementwise = False` the rule gets one parameter at a time in its own shape. The gradient is
    read-only.

    A step: gradients are divided by the loss scale, accumulated, clipped; weights decay; the rule;
    moving averages; constraints. A parameter without a gradient is left alone, slots and decay
    included.

    Args:
        learning_rate: a number, a `LearningRateSchedule`, or a callable without arguments.
        weight_decay: the fraction of a weight, times the learning rate, that a step takes away.
        clipnorm: the largest norm of each parameter's gradient.
        clipvalue: the largest absolute value in a gradient.
        global_clipnorm: the largest norm of all gradients together. Only one of these three.
        use_ema: whether averages of the weights are kept; the end of fit puts them in place.
        ema_momentum: what an average keeps of itself in each step. Defaults to 0.99.
        ema_overwrite_frequency: after how many steps the weights are set to the averages.
        loss_scale_factor: what the loss was multiplied with (see `scale_loss`).
        gradient_accumulation_steps: step with the mean of so many gradients.
        name: defaults to the class's name in snake case.
        parameter_groups: dicts with "match" (a regular expression searched in the path, a layer, a
            parameter, or a list of these) and "learning_rate" or "learning_rate_multiplier" and
            "weight_decay" for the parameters that match; the first group that matches counts.

    Raises:
        ValueError: for numbers out of range, or arguments that are unknown or exclude each other.

    >>> class SignDescent(Optimizer):
    ...     def update_step(self, gradient, variable, learning_rate, scratch):
    ...         np.sign(gradient, out=scratch)
    ...         scratch *= learning_rate
    ...         variable -= scratch
    >>> w = Parameter([1.0, -2.0])
    >>> SignDescent(0.5).apply([np.array([0.1, -7.0])], [w])
    >>> w.numpy()
    array([ 0.5, -1.5], dtype=float32)
    """

    slots: tuple[str, ...] = ()
    elementwise: bool = True
    hyperparameters: tuple[str, ...] = ()  # attributes that get_config adds
    uses_closure: bool = False  # whether a step is `minimize(closure, parameters)`, as for LBFGS

    def __init__(
        self,
        learning_rate: Any,
        weight_decay: float | None = None,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
        use_ema: bool = False,
        ema_momentum: float = 0.99,
        ema_overwrite_frequency: int | None = None,
        loss_scale_factor: float | None = None,
        gradient_accumulation_steps: int | None = None,
        name: str | None = None,
        parameter_groups: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> None:
        check_options(type(self).__name__, locals(), kwargs)
        self.name = auto_name(to_snake_case(type(self).__name__)) if name is None else name
        self.weight_decay = weight_decay
        self.clipnorm = clipnorm
        self.clipvalue = clipvalue
        self.global_clipnorm = global_clipnorm
        self.use_ema = bool(use_ema)
        self.ema_momentum = ema_momentum
        self.ema_overwrite_frequency = ema_overwrite_frequency
        self.loss_scale_factor = loss_scale_factor
        self.gradient_accumulation_steps = gradient_accumulation_steps
        self.parameter_groups = as_groups(parameter_groups)
        self.built = False
        self._iterations = self._own_variable(0, "iteration", "int32")
        self._learning_rate: Any = self._make_rate(learning_rate)
        self._parameters: list[Any] = []
        self._slots: list[dict[str, Parameter]] = []
        self._own_variables: list[Parameter] = []  # those that belong to no parameter
        self._not_decayed: tuple[list[Any], list[str]] = ([], [])
        self._warned = False
        self._places: dict[int, int] = {}  # id of a parameter -> where it stands in _parameters
        self._packing: Packing | None = None

    # ---------------------------------------------------------------- for subclasses

    def update_step(self, gradient: Array, variable: Array, *args: Any) -> None:
        """The rule: change the variable and the slots in place.

        Raises:
            NotImplementedError: unless a subclass defines it.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define update_step().")

    def numbers(self, step: int, learning_rate: float) -> tuple[float, ...]:
        """What `update_step` takes after the variable, for the step of this number (from 1)."""
        return (learning_rate,)

    def initial_slot(self, slot: str, parameter: Any) -> Any:
        """The first value of a slot: an array, or a number for one of the parameter's shape."""
        return 0.0

    def slots_of(self, parameter: Any) -> Sequence[str]:
        """Which of the slots a parameter has; all unless a subclass decides otherwise."""
        return self.slots

    def decay_of(self, parameter: Any) -> float | None:
        """The weight decay of a parameter that no group and no exclusion speaks of."""
        return self.weight_decay

    def slot_groups(self) -> Sequence[Sequence[str]]:
        """The order of `variables`: for each group, for each parameter, the group's slots."""
        return [self.slots]

    def before_step(self, step: int) -> None:
        """Advance what belongs to the step and to no parameter."""

    # ---------------------------------------------------------------- stepping

    def step(self, net: Any) -> None:
        """Update all parameters of a module (or of an iterable) that have a gradient.

        Raises:
            ValueError: if none has.
        """
        parameters = net.params() if isinstance(net, Module) else net
        found = [p for p in parameters if p.grad is not None]
        if not found:
            raise ValueError(
                f"{self.name}: no parameter has a gradient. Call loss.backward() before step()."
            )
        self._apply(found, [p.grad for p in found])

    def update(self, parameters: Sequence[Any]) -> None:
        """Update those of the parameters that have a gradient: what `backward` returns will do."""
        gradients = [p.grad for p in parameters]
        if any(g is None for g in gradients):
            parameters = [p for p in parameters if p.grad is not None]
            gradients = [p.grad for p in parameters]
        if gradients:
            self._apply(parameters, gradients)

    def apply(self, grads: Iterable[Any], trainable_variables: Iterable[Any] | None = None) -> None:
        """Update variables with gradients, one for each; None leaves a variable alone.

        Args:
            grads: arrays or tensors.
            trainable_variables: defaults to those the optimizer was built with.

        Raises:
            ValueError: if numbers or shapes differ, or if there is no gradient at all.
        """
        grads = list(grads)
        variables = self._parameters if trainable_variables is None else list(trainable_variables)
        if len(grads) != len(variables):
            raise ValueError(
                f"{self.name}: received {len(grads)} gradients for {len(variables)} variables."
            )
        pairs = [(p, as_array(g)) for p, g in zip(variables, grads, strict=True) if g is not None]
        for p, g in pairs:
            if g.shape != p.data.shape:
                raise ValueError(
                    f"{label(p)} has shape {p.data.shape}, but its gradient has shape {g.shape}."
                )
        if not pairs:
            raise ValueError(f"{self.name}: no gradient for any of {len(variables)} variables.")
        if len(pairs) < len(variables) and not self._warned:
            self._warned = True
            missing = [label(p) for p, g in zip(variables, grads, strict=True) if g is None]
            warnings.warn(
                f"{self.name}: no gradient for {', '.join(missing)}: left as they are.",
                stacklevel=2,
            )
        self._apply([p for p, _ in pairs], [g for _, g in pairs])

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> Any:
        """Update variables from (gradient, variable) pairs; returns `iterations`."""
        pairs = list(grads_and_vars)
        self.apply([g for g, _ in pairs], [v for _, v in pairs])
        return self.iterations

    def _apply(self, parameters: Sequence[Any], gradients: Sequence[Array]) -> None:
        iteration = int(self._iterations.data)
        steps = self.gradient_accumulation_steps or 1
        due = (iteration + 1) % steps == 0
        if steps > 1 and due:
            parameters, gradients = self._with_accumulated(parameters, gradients)
        plan = self._plan(parameters)
        plan.check()
        rate = self._current_rate(iteration)
        for run in plan.runs:
            run.gather(gradients)
        if self.loss_scale_factor:
            for run in plan.runs:
                run.now = np.divide(run.now, self.loss_scale_factor, out=run.buffer)
        if steps > 1:
            self._accumulate(plan, steps if due else 0)
        step = iteration // steps + 1
        if due:
            self._clip(plan)
            self.before_step(step)
            for settings in plan.settings:
                own = settings.group.rate(rate, iteration) if settings.group else rate
                settings.set(self.numbers(step, own), own)
            if plan.size < THREADS_FROM:
                for block in plan.blocks:
                    self._step_block(block)
            else:
                map_blocks(self._step_block, plan.blocks)
        for run in plan.runs:
            run.now = None
        if self.use_ema:
            self._average(plan, step)
        for parameter in plan.constrained:
            parameter.data[...] = as_array(parameter.constraint(parameter.data))
        self._iterations.data[...] = iteration + 1

    def _step_block(self, block: Any) -> None:
        run, part, values, slots = block
        settings = run.settings
        gradient = run.now if part is None else run.now[part]
        if settings.weight_decay:
            values *= settings.keep
        scratch = np.empty_like(values)
        self.update_step(gradient, values, *settings.constants, *slots, scratch)

    def _plan(self, parameters: Sequence[Any]) -> Plan:
        key = tuple(map(id, parameters))
        packing = self._packing
        if packing is not None and (plan := packing.plan(key)) is not None:
            return plan
        if len(set(key)) < len(key):
            raise ValueError(f"{self.name}: a variable was given twice in one step.")
        self.build(parameters)
        if packing is None:
            packing = self._packing = Packing(self.elementwise, self.slots)
        # all that are known are packed, so that neighbours stay neighbours in every step
        slots = {id(p): own for p, own in zip(self._parameters, self._slots, strict=True)}
        packing.add(self._parameters, lambda p: slots[id(p)], self._settings_of)
        return packing.make_plan(key, parameters)

    def _settings_of(self, parameter: Any) -> tuple[Any, float]:
        group = next((g for g in self.parameter_groups if g.holds(parameter)), None)
        decay = self.decay_of(parameter)
        if group is not None and group.weight_decay is not None:
            decay = group.weight_decay
        variables, names = self._not_decayed
        name = getattr(parameter, "name", "")
        if any(v is parameter for v in variables) or any(re.search(n, name) for n in names):
            decay = None
        return group, decay or 0.0

    def _clip(self, plan: Plan) -> None:
        if self.clipvalue is not None:
            clip_by_value(plan.runs, self.clipvalue)
        elif self.clipnorm is not None:
            clip_by_norm(plan.runs, self.clipnorm)
        elif self.global_clipnorm is not None:
            clip_by_global_norm(plan.runs, self.global_clipnorm)

    def _accumulate(self, plan: Plan, steps: int) -> None:
        """Add gradients to the accumulators; with steps, take their means out of them."""
        for run in plan.runs:
            total = run.slots["gradient_accumulator"]
            total += run.now
            if steps:
                run.now = np.divide(total, steps, out=run.buffer)
                total[...] = 0

    def _with_accumulated(self, parameters: Any, gradients: Any) -> Any:
        """Also the parameters that had gradients before but have none in the last step."""
        here = set(map(id, parameters))
        late = [
            p
            for p, slots in zip(self._parameters, self._slots, strict=True)
            if id(p) not in here and slots["gradient_accumulator"].data.any()
        ]
        return [*parameters, *late], [*gradients, *(np.zeros_like(p.data) for p in late)]

    # ---------------------------------------------------------------- moving averages

    def _average(self, plan: Plan, step: int) -> None:
        keep = self.ema_momentum if step > 1 else 0.0
        for run in plan.runs:
            average = run.slots["average"]
            average *= keep
            average += (1 - keep) * run.values
            if self.ema_overwrite_frequency and step % self.ema_overwrite_frequency == 0:
                run.values[...] = average

    def finalize_variable_values(self, trainable_variables: Iterable[Any] | None = None) -> None:
        """Set the weights to their moving averages, with use_ema; called at the end of fit."""
        if self.use_ema:
            for parameter, average in self._averages(trainable_variables):
                parameter.data[...] = average.data

    def swap_averages(self, variables: Iterable[Any] | None = None) -> None:
        """Exchange the weights with their moving averages; a second call undoes it.

        Raises:
            ValueError: without use_ema.
        """
        if not self.use_ema:
            raise ValueError(f"{self.name} keeps no averages. Make it with use_ema=True.")
        for parameter, average in self._averages(variables):
            weights = parameter.data.copy()
            parameter.data[...] = average.data
            average.data[...] = weights

    def _averages(self, variables: Iterable[Any] | None) -> Iterable[tuple[Any, Parameter]]:
        if not int(self._iterations.data):
            return  # there is nothing to average yet
        for parameter in self._parameters if variables is None else variables:
            if id(parameter) in self._places:
                yield parameter, self._slots[self._places[id(parameter)]]["average"]

    # ---------------------------------------------------------------- state

    def build(self, variables: Iterable[Any]) -> None:
        """Make the slots of variables, in their order; known ones keep theirs."""
        for parameter in variables:
            if id(parameter) in self._places:
                continue
            self._places[id(parameter)] = len(self._parameters)
            self._parameters.append(parameter)
            own = {"average": 0.0} if self.use_ema else {}
            if self.gradient_accumulation_steps:
                own["gradient_accumulator"] = 0.0
            own |= {slot: self.initial_slot(slot, parameter) for slot in self.slots_of(parameter)}
            path = getattr(parameter, "path", f"parameter_{len(self._slots)}").replace("/", "_")
            made = {}
            for slot, first in own.items():
                full = isinstance(first, np.ndarray)
                value = first if full else np.full(parameter.data.shape, first)
                made[slot] = self._own_variable(value, f"{path}_{slot}", parameter.data.dtype)
            self._slots.append(made)
        self.built = True

    @property
    def variables(self) -> list[Parameter]:
        """The state, in Keras's order: iteration, learning rate (unless scheduled), slots."""
        found = [self._iterations]
        if isinstance(self._learning_rate, Parameter):
            found.append(self._learning_rate)
        extra = ("average",) if self.use_ema else ()
        groups = [extra, ("gradient_accumulator",) if self.gradient_accumulation_steps else ()]
        for group in [*groups, *self.slot_groups()]:
            found += [slots[slot] for slots in self._slots for slot in group if slot in slots]
        return found + self._own_variables

    def load_variables(self, arrays: Iterable[Any]) -> None:
        """Set the state to arrays in the order of `variables`: all of them or none.

        Raises:
            ValueError: if the numbers of arrays or their shapes differ.
        """
        variables, new = self.variables, [as_array(a) for a in arrays]
        if len(new) != len(variables):
            raise ValueError(
                f"{self.name} has {len(variables)} variables, but received {len(new)} arrays. "
                f"Call build(variables) first; it was {'' if self.built else 'not '}built."
            )
        for variable, array in zip(variables, new, strict=True):
            if array.shape != variable.data.shape:
                raise ValueError(
                    f"{label(variable)} has shape {variable.data.shape}, but received an array of "
                    f"shape {array.shape}."
                )
        for variable, array in zip(variables, new, strict=True):
            variable.data[...] = array

    @property
    def iterations(self) -> Any:
        """How many steps were taken."""
        if self.gradient_accumulation_steps:
            return Tensor(self._iterations.data // self.gradient_accumulation_steps)
        return self._iterations

    def _own_variable(self, value: Any, name: str, dtype: Any = None) -> Parameter:
        variable = Parameter(value, dtype=dtype, trainable=False, name=name)
        variable.path = f"{self.name}/{name}"
        return variable

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_packing": None, "_places": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._places = {id(p): i for i, p in enumerate(self._parameters)}

    # ---------------------------------------------------------------- learning rate, decay

    @property
    def learning_rate(self) -> Any:
        """A variable, or the value of the schedule (or callable) for the next step."""
        if isinstance(self._learning_rate, Parameter):
            return self._learning_rate
        return Tensor(self._current_rate(int(self._iterations.data)))

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        new = self._make_rate(value)
        if isinstance(new, Parameter):
            if not isinstance(self._learning_rate, Parameter):
                raise TypeError(
                    f"The learning rate of {self.name} is {type(self._learning_rate).__name__}, "
                    "which decides it: it cannot be set. Make the optimizer with a number."
                )
            self._learning_rate.data[...] = new.data
        else:
            self._learning_rate = new

    def _make_rate(self, given: Any) -> Any:
        if isinstance(given, dict):
            given = schedules.deserialize(given)
        if callable(given):
            return given
        if isinstance(given, Tensor):
            given = given.data
        number = np.ndim(given) == 0 and np.asarray(given).dtype.kind in "fiu"
        if not number or not 0 <= float(given) < math.inf:
            raise ValueError(
                f"{type(self).__name__}: learning_rate must be a number that is not negative, a "
                f"LearningRateSchedule or a callable without arguments; received {given!r}."
            )
        return self._own_variable(float(given), "learning_rate", config.floatx())

    def _current_rate(self, iteration: int) -> float:
        given = self._learning_rate
        if isinstance(given, Parameter):
            rate = float(given.data)
        else:
            scheduled = isinstance(given, LearningRateSchedule)
            rate = float(given(iteration) if scheduled else given())
        if not 0 <= rate < math.inf:
            raise ValueError(f"{self.name}: the learning rate of step {iteration} is {rate}.")
        return rate

    def exclude_from_weight_decay(
        self, var_list: Iterable[Any] | None = None, var_names: Iterable[str] | None = None
    ) -> None:
        """Let no weight decay act on some variables.

        Args:
            var_list: the variables.
            var_names: regular expressions searched in their names.
        """
        self._not_decayed = (list(var_list or ()), list(var_names or ()))
        self._packing = None

    def scale_loss(self, loss: Any) -> Any:
        """The loss times loss_scale_factor."""
        return loss if self.loss_scale_factor is None else loss * self.loss_scale_factor

    # ---------------------------------------------------------------- config

    def get_config(self) -> Config:
        """The arguments that make the same optimizer again, without its state.

        Raises:
            ValueError: if the learning rate is a lambda, which nothing could load again.
        """
        options = {
            "name": self.name,
            "learning_rate": schedules.serialize(self._learning_rate),
            "weight_decay": self.weight_decay,
            **{name: getattr(self, name) for name in OPTIONS},
        }
        if isinstance(self._learning_rate, Parameter):
            options["learning_rate"] = float(self._learning_rate.data)
        if self.parameter_groups:
            options["parameter_groups"] = [g.get_config() for g in self.parameter_groups]
        return {**options, **{name: getattr(self, name) for name in self.hyperparameters}}

    @classmethod
    def from_config(cls, config: Config, custom_objects: Mapping[str, Any] | None = None) -> Any:
        """The optimizer of a config."""
        config = dict(config)
        if isinstance(config.get("learning_rate"), dict):
            given = config["learning_rate"]
            config["learning_rate"] = schedules.deserialize(given, custom_objects)
        return cls(**config)
