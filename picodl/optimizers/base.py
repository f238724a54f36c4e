"""The optimizers' base class: all of a step but the rule."""

from __future__ import annotations

import inspect
import math
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from picodl import config
from picodl.config import thread
from picodl.module import Module, Parameter
from picodl.optimizers import schedules
from picodl.optimizers.clipping import clip_by_global_norm, clip_by_norm, clip_by_value
from picodl.optimizers.flat import Packing, Plan, label
from picodl.optimizers.options import OPTIONS, as_groups, check_options
from picodl.optimizers.schedules import LearningRateSchedule
from picodl.optimizers.state import State
from picodl.parallel import blas_single_thread, map_blocks
from picodl.tensor import Tensor, as_array, no_grad
from picodl.typing import Array, Config

_ALONE = 1 << 15  # elements that one thread takes at once


class Optimizer(State):
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

    elementwise: bool = True
    cost: float = 0.75e-3  # microseconds that the rule takes for an element, on one thread
    _per_variable: bool = False  # whether update_step has Keras's form
    hyperparameters: tuple[str, ...] = ()  # attributes that get_config adds
    __signature__: inspect.Signature
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
        super().__init__(name, use_ema, gradient_accumulation_steps)
        self.weight_decay = weight_decay
        self.clipnorm = clipnorm
        self.clipvalue = clipvalue
        self.global_clipnorm = global_clipnorm
        self.ema_momentum = ema_momentum
        self.ema_overwrite_frequency = ema_overwrite_frequency
        self.loss_scale_factor = loss_scale_factor
        self.parameter_groups = as_groups(parameter_groups)
        self._learning_rate: Any = self._make_rate(learning_rate)
        self._not_decayed: tuple[list[Any], list[str]] = ([], [])
        self._warned = False

    # ---------------------------------------------------------------- for subclasses

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        rule = vars(cls).get("update_step")
        if rule is not None:  # Keras's own form: (self, gradient, variable, learning_rate)
            kinds = [p.kind for p in inspect.signature(rule).parameters.values()]
            cls._per_variable = kinds == [inspect.Parameter.POSITIONAL_OR_KEYWORD] * 4
            cls.elementwise = cls.elementwise and not cls._per_variable
        own = dict(inspect.signature(cls.__init__).parameters)
        if own.pop("options", None) is not None:  # show the options of all by name
            shared = inspect.signature(Optimizer.__init__).parameters.values()
            more = [p.replace(kind=p.KEYWORD_ONLY) for p in shared if p.name not in own]
            cls.__signature__ = inspect.Signature([*own.values()][1:] + more[:-1])

    def update_step(self, gradient: Any, variable: Any, *args: Any) -> None:
        """The rule: change the variable and the slots in place.

        In Keras's form, with the learning rate as the third and last argument, it gets one
        parameter at a time, as tensors: the slots come from `add_optimizer_variables`, called in
        `build`, and `assign` and its relatives set values.

        Raises:
            NotImplementedError: unless a subclass defines it.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define update_step().")

    def numbers(self, step: int, learning_rate: float) -> tuple[float, ...]:
        """What `update_step` takes after the variable, for the step of this number (from 1)."""
        return (learning_rate,)

    def decay_of(self, parameter: Any) -> float | None:
        """The weight decay of a parameter that no group and no exclusion speaks of."""
        return self.weight_decay

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

    def update(self, parameters: Sequence[Any], gradients: Sequence[Array] | None = None) -> None:
        """Update the parameters with these gradients, or with those in `grad` where there are any:
        what `backward` returns will do."""
        if gradients is not None:
            self._apply(parameters, gradients)
            return
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
        if thread.stateless is not None:  # the flat arrays it would write to are the variables' own
            raise RuntimeError(
                f"{self.name}: an optimizer cannot step inside a StatelessScope. Take the values "
                "out with get_current_value() and step after the block."
            )
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
            if plan.size > _ALONE:
                with blas_single_thread():
                    map_blocks(self._step_block, plan.blocks, plan.size * self.cost)
            else:
                for block in plan.blocks:
                    self._step_block(block)
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
        scratch = np.empty_like(values)
        if settings.weight_decay:
            np.multiply(values, settings.minus_decay, out=scratch)
            values += scratch
        if self._per_variable:
            own = gradient.reshape(run.member.data.shape)
            with no_grad():
                self.update_step(Tensor(own), run.member, Tensor(settings.constants[0]))
            return
        self.update_step(gradient, values, *settings.constants, *slots, scratch)

    def _plan(self, parameters: Sequence[Any]) -> Plan:
        key = tuple(map(id, parameters))
        packing = self._packing
        if packing is not None and (plan := packing.plan(key)) is not None:
            return plan
        if len(set(key)) < len(key):
            raise ValueError(f"{self.name}: a variable was given twice in one step.")
        if any(id(p) not in self._places for p in parameters):
            self.build(parameters)
        if packing is None:
            packing = self._packing = Packing(self.elementwise, self.slots)
        # all that are known are packed, so that neighbours stay neighbours in every step
        packing.add(self._parameters, self._slots, self._settings_of)
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

    @property
    def weight_decay(self) -> float | None:
        """The fraction of a weight, times the learning rate, that a step takes away; can be set."""
        return self._weight_decay

    @weight_decay.setter
    def weight_decay(self, value: float | None) -> None:
        self._weight_decay = value
        self._packing = None

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
