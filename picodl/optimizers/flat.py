"""How weights lie in memory while an optimizer runs.

An elementwise rule does not care where one parameter ends and the next begins. So small parameters
are packed side by side into one flat array (their own arrays become views of it), and their slots
likewise: a step is then about ten numpy calls for all of them. Large ones stay where they are and
are taken in blocks, for threads and caches. What belongs to a parameter is kept per parameter; a
packing is made when a step needs it and never copied or pickled.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from picodl.module import Parameter
from picodl.parallel import shares_of
from picodl.typing import Array

BLOCK = 1 << 18  # elements of a block at most: smaller ones make threads wait for each other
LARGE = 1 << 15  # from here on copying a gradient costs more than the calls that packing saves


class Settings:
    """What parameters of one dtype, learning rate and weight decay have in common.

    The numbers of a step are kept as 0-d arrays of that dtype: half the cost of Python numbers.
    """

    def __init__(self, dtype: Any, group: Any, weight_decay: float) -> None:
        self.dtype = dtype
        self.group = group
        self.weight_decay = weight_decay
        self.constants: tuple[Array, ...] = ()
        self.minus_decay: Any = None  # what weight decay adds to a weight, as a fraction of it
        self._numbers: tuple[float, ...] = ()
        self._store: Any = np.zeros(0, dtype)
        self._format = ""

    def set(self, numbers: tuple[float, ...], learning_rate: float) -> None:
        """Take over the numbers of a step."""
        everything = (*numbers, -self.weight_decay * learning_rate)
        if everything == self._numbers:
            return
        if len(everything) != len(self._store):
            self._store = np.empty(len(everything), self.dtype)
            self._format = f"{len(everything)}{self._store.dtype.char}"
            places = [self._store[i : i + 1].reshape(()) for i in range(len(everything))]
            self.constants, self.minus_decay = tuple(places[:-1]), places[-1]
        struct.pack_into(self._format, self._store, 0, *everything)  # 1 us less than by numpy
        self._numbers = everything


class Segment:
    """One parameter, or small ones packed side by side, and their slots in the same order.

    Args:
        parameters: the members.
        slots: the slot variables of each member, by name.
        settings: what they have in common.
        shaped: keep the member's shape (then there is one) for a rule that is not elementwise.
    """

    def __init__(
        self,
        parameters: Sequence[Any],
        slots: Sequence[dict[str, Parameter]],
        settings: Settings,
        shaped: bool = False,
    ) -> None:
        self.settings = settings
        self.shaped = shaped
        self.gradient: Array | None = None
        self.first = parameters[0]
        if len(parameters) == 1:
            own = parameters[0]
            if not isinstance(own, Parameter) or not own.data.flags.carray:
                own.data = own.data.copy(order="C")  # a Tensor's array is its maker's
            self.edges = [0, own.data.size]
            self.places = [own.data]
            for slot in slots[0].values():
                slot.data = np.ascontiguousarray(slot.data).reshape(slot.data.shape)
            flat = not shaped or own.data.ndim == 0  # calls on 0-d arrays give numbers, not arrays
            self.values = own.data.reshape(-1) if flat else own.data
            self.slots = {
                name: slot.data.reshape(-1) if flat else slot.data
                for name, slot in slots[0].items()
            }
            return
        self.edges = [0, *itertools.accumulate(p.data.size for p in parameters)]
        self.values, self.places = self._pack(parameters)
        self.slots = {name: self._pack([own[name] for own in slots])[0] for name in slots[0]}
        self.gradient = np.empty_like(self.values)

    def _pack(self, members: Sequence[Any]) -> tuple[Array, list[Array]]:
        """Move the members' arrays side by side into a new one."""
        flat = np.empty(self.edges[-1], self.settings.dtype)
        places = []
        for member, (start, stop) in zip(members, itertools.pairwise(self.edges), strict=True):
            place = flat[start:stop].reshape(member.data.shape)
            place[...] = member.data
            member.data = place
            places.append(place)
        return flat, places


class Run:
    """Neighbours in a segment that have gradients in a step.

    Attributes:
        now: their gradient in the step, flat (or in the shape of the one member).
        member: the parameter of a segment that has one.
        buffer: where gradients are gathered; None for a single member, whose gradient is used as
            it came and must not be written to.
        sources: where the gradients stand in the list of gradients.
        edges: where each member starts in the run, and the end.
        blocks: (run, part, values, slots of the rule) of each block; part is a slice of `now`, or
            None for all of it.
    """

    def __init__(
        self, segment: Segment, first: int, last: int, sources: list[int], rule: Sequence[str]
    ) -> None:
        start, stop = segment.edges[first], segment.edges[last + 1]
        whole = start == 0 and stop == segment.edges[-1]

        def cut(a: Array) -> Array:
            return a if whole else a[start:stop]

        self.now: Any = None
        self.settings = segment.settings
        self.member = segment.first
        self.shape = segment.values.shape if segment.shaped else (stop - start,)
        self.buffer = None if segment.gradient is None else cut(segment.gradient)
        self.sources = sources
        self.edges = [edge - start for edge in segment.edges[first : last + 2]]
        self.values = cut(segment.values)
        self.slots = {name: cut(slot) for name, slot in segment.slots.items()}
        mine = [self.slots[name] for name in rule if name in self.slots]
        self.blocks: list[Any] = [(self, None, self.values, mine)]
        size = stop - start
        if not segment.shaped and size > BLOCK // 2:  # an even number: two threads end together
            self.blocks = [
                (self, part, self.values[part], [slot[part] for slot in mine])
                for part in shares_of(size, 2 * -(-size // (2 * BLOCK)))
            ]

    def gather(self, gradients: Sequence[Array]) -> None:
        """Take the members' gradients from the list of all."""
        if self.buffer is None:
            self.now = gradients[self.sources[0]].reshape(self.shape)
        else:
            np.concatenate([gradients[i] for i in self.sources], axis=None, out=self.buffer)
            self.now = self.buffer


class Plan:
    """The runs and blocks of one set of parameters that have gradients."""

    def __init__(self, parameters: Sequence[Any], runs: list[Run], places: list[Array]) -> None:
        self.parameters = list(parameters)
        self.places = places
        self.runs = runs
        self.blocks = [block for run in runs for block in run.blocks]
        self.settings = list({id(run.settings): run.settings for run in runs}.values())
        self.size = sum(run.values.size for run in runs)
        self.constrained = [p for p in parameters if getattr(p, "constraint", None) is not None]

    def check(self) -> None:
        """Bring back into its place what was moved since the last step.

        Another optimizer with the same parameter, or a value set by hand, moves the array.

        Raises:
            ValueError: if the new array has another shape or dtype.
        """
        for parameter, place in zip(self.parameters, self.places, strict=True):
            data = parameter.data
            if data is not place:
                if data.shape != place.shape or data.dtype != place.dtype:
                    raise ValueError(
                        f"{label(parameter)} had shape {place.shape} and dtype {place.dtype} when "
                        f"the optimizer was built, but now has {data.shape} and {data.dtype}. "
                        "Make a new optimizer for it."
                    )
                place[...] = data
                parameter.data = place


class Packing:
    """The segments of an optimizer's parameters, and the plans made over them.

    Args:
        elementwise: whether the rule works on flat arrays.
        rule: the names of the slots that the rule takes, in its order.
    """

    def __init__(self, elementwise: bool, rule: Sequence[str]) -> None:
        self.elementwise = elementwise
        self.rule = rule
        self._settings: dict[Any, Settings] = {}
        self._home: dict[int, tuple[Segment, int]] = {}
        self._plans: dict[tuple[int, ...], Plan] = {}

    def plan(self, key: tuple[int, ...]) -> Plan | None:
        """The plan for parameters of these ids, if there is one."""
        return self._plans.get(key)

    def add(
        self, parameters: Sequence[Any], slots: Sequence[dict[str, Parameter]], settings: Any
    ) -> None:
        """Make room for parameters.

        Args:
            parameters: those to add; known ones are left alone.
            slots: the slot variables of each, by name.
            settings: a function that gives a parameter's (group, weight decay).
        """
        small: dict[int, list[Any]] = {}
        for parameter, own in zip(parameters, slots, strict=True):
            if id(parameter) in self._home:
                continue
            dtype = parameter.data.dtype
            group, decay = settings(parameter)
            key = (dtype, id(group), decay)
            common = self._settings.setdefault(key, Settings(dtype, group, decay))
            if self.elementwise and parameter.data.size < LARGE:
                small.setdefault(id(common), [common]).append((parameter, own))
            else:
                self._settle([(parameter, own)], common)
        for common, *pairs in small.values():
            self._settle(pairs, common)

    def _settle(self, pairs: list[Any], settings: Settings) -> None:
        members, slots = zip(*pairs, strict=True)
        segment = Segment(members, slots, settings, shaped=not self.elementwise)
        for number, parameter in enumerate(members):
            self._home[id(parameter)] = segment, number

    def make_plan(self, key: tuple[int, ...], parameters: Sequence[Any]) -> Plan:
        """The plan for parameters that all have a place."""
        if len(self._plans) >= 16:  # a model whose branches change all the time
            self._plans.clear()
        for parameter in parameters:
            if id(parameter) not in self._home:
                raise ValueError(f"{label(parameter)} was not there when the optimizer was built.")
        homes = [self._home[id(p)] for p in parameters]
        by_segment: dict[int, tuple[Segment, dict[int, int]]] = {}
        for source, (segment, number) in enumerate(homes):
            if segment.places[number].size:
                by_segment.setdefault(id(segment), (segment, {}))[1][number] = source
        runs = []
        for segment, sources in by_segment.values():
            for numbers in _neighbours(sorted(sources)):
                found = [sources[i] for i in numbers]
                runs.append(Run(segment, numbers[0], numbers[-1], found, self.rule))
        places = [segment.places[number] for segment, number in homes]
        plan = self._plans[key] = Plan(parameters, runs, places)
        return plan


def _neighbours(numbers: list[int]) -> list[list[int]]:
    """Rising numbers cut where one is missing.

    >>> _neighbours([0, 1, 3])
    [[0, 1], [3]]
    """
    cut: list[list[int]] = []
    for n in numbers:
        if cut and cut[-1][-1] == n - 1:
            cut[-1].append(n)
        else:
            cut.append([n])
    return cut


def label(parameter: Any) -> str:
    """What a message calls a parameter."""
    return f"The variable {getattr(parameter, 'path', None) or 'without a name'}"
