"""What an optimizer remembers: slots for each parameter, moving averages, variables of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from picodl import initializers
from picodl.module import Parameter
from picodl.naming import auto_name, to_snake_case
from picodl.optimizers.flat import Packing, Plan, label
from picodl.tensor import Tensor, as_array


class State:
    """Slots of parameters, in Keras's order; saved, loaded and copied whole.

    Args:
        name: of the optimizer; defaults to the class's name in snake case.
        use_ema: whether moving averages of the weights are kept.
        gradient_accumulation_steps: whether gradients are added up over steps.
    """

    slots: tuple[str, ...] = ()
    ema_momentum: float
    ema_overwrite_frequency: int | None
    _learning_rate: Any

    def __init__(
        self, name: str | None, use_ema: bool, gradient_accumulation_steps: int | None
    ) -> None:
        self.name = auto_name(to_snake_case(type(self).__name__)) if name is None else name
        self.use_ema = bool(use_ema)
        self.gradient_accumulation_steps = gradient_accumulation_steps
        self.built = False
        self._iterations = self._own_variable(0, "iteration", "int32")
        self._parameters: list[Any] = []
        self._slots: list[dict[str, Parameter]] = []
        self._own_variables: list[Parameter] = []  # those that belong to no parameter
        self._places: dict[int, int] = {}  # id of a parameter -> where it stands in _parameters
        self._packing: Packing | None = None

    # ---------------------------------------------------------------- for subclasses

    def initial_slot(self, slot: str, parameter: Any) -> Any:
        """The first value of a slot: an array, or a number for one of the parameter's shape."""
        return 0.0

    def slots_of(self, parameter: Any) -> Sequence[str]:
        """Which of the slots a parameter has; all unless a subclass decides otherwise."""
        return self.slots

    def slot_groups(self) -> Sequence[Sequence[str]]:
        """The order of `variables`: for each group, for each parameter, the group's slots."""
        return [self.slots]

    def add_variable(
        self,
        shape: Sequence[int] = (),
        initializer: Any = "zeros",
        dtype: Any = None,
        aggregation: str = "none",
        layout: Any = None,
        name: str | None = None,
    ) -> Parameter:
        """A variable that is saved with the optimizer.

        Args:
            shape, initializer, dtype: of its values.
            aggregation, layout: accepted, as there is one process only.
            name: the last part of its path.
        """
        value = initializers.get(initializer)(tuple(shape), dtype)
        variable = self._own_variable(value, name or "variable", dtype)
        self._own_variables.append(variable)
        return variable

    def add_variable_from_reference(
        self, reference_variable: Any, name: str | None = None, initializer: Any = "zeros"
    ) -> Parameter:
        """A variable of the shape and dtype of another, named after it."""
        data = reference_variable.data
        path = getattr(reference_variable, "path", "parameter").replace("/", "_")
        name = f"{path}_{name or 'var'}"
        return self.add_variable(data.shape, initializer, data.dtype, name=name)

    def add_optimizer_variables(
        self, trainable_variables: Iterable[Any], name: Any, initializer: Any = "zeros"
    ) -> Any:
        """A variable for each of others, of its shape and dtype; to be called in `build`.

        Args:
            trainable_variables: the others.
            name: the last part of the paths, or a list of several: so many variables for each.
            initializer: of all, or a list with one for each name.

        Returns: a list, or with several names a tuple of lists.

        Raises:
            ValueError: unless there are as many initializers as names.
        """
        names = [name] if isinstance(name, str) else list(name)
        several = isinstance(initializer, (list, tuple))
        first = list(initializer) if several else [initializer] * len(names)
        if len(first) != len(names):
            raise ValueError(
                f"{self.name}: add_optimizer_variables received {len(names)} names, but "
                f"{len(first)} initializers."
            )
        made: tuple[list[Parameter], ...] = tuple([] for _ in names)
        for variable in trainable_variables:  # in Keras's order: all names of one, then the next
            for found, last, start in zip(made, names, first, strict=True):
                found.append(self.add_variable_from_reference(variable, last, start))
        return made[0] if isinstance(name, str) else made

    def assign(self, variable: Any, value: Any) -> None:
        """Set a variable's values in place."""
        variable.data[...] = as_array(value)

    def assign_add(self, variable: Any, value: Any) -> None:
        """Add to a variable in place."""
        variable.data += as_array(value)

    def assign_sub(self, variable: Any, value: Any) -> None:
        """Subtract from a variable in place."""
        variable.data -= as_array(value)

    # ---------------------------------------------------------------- slots

    def build(self, variables: Iterable[Any]) -> None:
        """Make the slots of variables, in their order; known ones keep theirs."""
        for parameter in variables:
            if id(parameter) in self._places:
                continue
            self._places[id(parameter)] = len(self._parameters)
            self._parameters.append(parameter)
            own: dict[str, Any] = {"average": parameter.data} if self.use_ema else {}
            if self.gradient_accumulation_steps:
                own["gradient_accumulator"] = 0.0
            own |= {slot: self.initial_slot(slot, parameter) for slot in self.slots_of(parameter)}
            path = getattr(parameter, "path", f"parameter_{len(self._slots)}").replace("/", "_")
            made = {}
            for slot, first in own.items():
                data = parameter.data
                value = first if isinstance(first, np.ndarray) else np.full_like(data, first)
                made[slot] = self._own_variable(value, f"{path}_{slot}", data.dtype)
            self._slots.append(made)
        self.built = True

    def _own_variable(self, value: Any, name: str, dtype: Any = None) -> Parameter:
        variable = Parameter(value, dtype=dtype, trainable=False, name=name)
        variable.path = f"{self.name}/{name}"
        return variable

    def _get_variable_index(self, variable: Any) -> int:
        """Where a variable stands in the order of build (Keras's name of it)."""
        return self._places[id(variable)]

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

    def set_weights(self, weights: Iterable[Any]) -> None:
        """Set the state to arrays in the order of `variables`: all of them or none.

        Raises:
            ValueError: if the numbers of arrays or their shapes differ.
        """
        variables, new = self.variables, [as_array(a) for a in weights]
        if len(new) != len(variables):
            raise ValueError(
                f"{self.name} has {len(variables)} variables, but received {len(new)} arrays."
                + ("" if self.built else " Call build(variables) first.")
            )
        for variable, array in zip(variables, new, strict=True):
            if array.shape != variable.data.shape:
                raise ValueError(
                    f"{label(variable)} has shape {variable.data.shape}, but received an array of "
                    f"shape {array.shape}."
                )
        for variable, array in zip(variables, new, strict=True):
            variable.data[...] = array

    def save_own_variables(self, store: Any) -> None:
        """Write the state into a dict-like store, by the places in `variables`."""
        for place, variable in enumerate(self.variables):
            store[str(place)] = variable.numpy()

    def load_own_variables(self, store: Any) -> None:
        """Set the state to what `save_own_variables` wrote: all of it or nothing."""
        self.set_weights([store[str(place)] for place in range(len(store.keys()))])

    @property
    def iterations(self) -> Any:
        """How many steps were taken."""
        if self.gradient_accumulation_steps:
            return Tensor(self._iterations.data // self.gradient_accumulation_steps)
        return self._iterations

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_packing": None, "_places": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._places = {id(p): i for i, p in enumerate(self._parameters)}

    # ---------------------------------------------------------------- moving averages

    def _average(self, plan: Plan, step: int) -> None:
        """Take the weights after a step into the averages, which start from those of step 1."""
        if step == 1:
            for parameter, slots in zip(self._parameters, self._slots, strict=True):
                slots["average"].data[...] = parameter.data
        keep = self.ema_momentum if step > 1 else 0.0
        for run in plan.runs:
            average = run.slots["average"]
            average *= keep
            average += (1 - keep) * run.values
            if self.ema_overwrite_frequency and step % self.ema_overwrite_frequency == 0:
                run.values[...] = average

    def finalize_variable_values(self, var_list: Iterable[Any] | None = None) -> None:
        """Set the weights to their moving averages, with use_ema; called at the end of fit."""
        if self.use_ema:
            for parameter, average in self._averages(var_list):
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
