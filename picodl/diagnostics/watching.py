"""What the tools share: a copy to try things on, and a look at every call of its layers."""

from __future__ import annotations

import copy
import random as python_random
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from picodl import config, parallel, random
from picodl.layers.base import Layer
from picodl.layers.signature import CallSignature
from picodl.models.data import is_stream, one_batch
from picodl.models.steps import Steps
from picodl.tensor import Tensor, creation_number, enable_grad, graph_behind, no_grad


@contextmanager
def on_a_copy(tool: str, model: Any) -> Iterator[Any]:
    """Yield a copy of a model to work on; what lies outside of it is put back at the end.

    Gradients are recorded inside, and BLAS keeps to one thread, as in fit.

    Args:
        tool: its name, for messages.
        model: a model or layer.

    Raises:
        TypeError: for something else, and for a model that cannot be copied.
    """
    if not isinstance(model, Layer):
        raise TypeError(
            f"{tool} expects a model or a layer of picodl; received {type(model).__name__}."
        )
    drawn = random.get_state(), python_random.getstate(), np.random.get_state(legacy=False)
    try:
        try:
            double = copy.deepcopy(model)
        except Exception as error:
            raise TypeError(
                f'{tool} works on a copy, but "{model.name}" cannot be copied: '
                f"{type(error).__name__}: {error}. Keep files, locks and the like out of its "
                "attributes."
            ) from error
        around = config.thread_values(losses=None, finished=[], training=None)
        with parallel.blas_single_thread(), enable_grad(), around:
            yield double
    finally:
        random.set_state(drawn[0])
        python_random.setstate(drawn[1])
        np.random.set_state(drawn[2])


def as_batch(tool: str, model: Any, x: Any, y: Any = None) -> tuple[Any, Any]:
    """x and y as arrays of one length.

    Raises:
        ValueError: for no samples, or numbers of samples that differ.
        TypeError: for what is no data.
    """
    if is_stream(x):
        raise TypeError(
            f"{tool} takes one batch: arrays x and y; received a {type(x).__name__}. Pass what it "
            "yields first."
        )
    inside = [m for m in model.modules() if not isinstance(m, Steps)]
    strings = any(getattr(m, "accepts_strings", False) for m in inside)
    try:
        x, y, _ = one_batch(x, y, strings=strings)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{tool}: {error}") from error
    return x, y


def require_loss(tool: str, model: Any) -> None:
    """See that a model was compiled.

    Raises:
        ValueError: if it was not.
    """
    if not getattr(model, "compiled", False):
        raise ValueError(
            f'{tool} needs a loss, but "{model.name}" is not compiled: call '
            "model.compile(optimizer, loss) first."
        )


def build(model: Any, x: Any) -> None:
    """Run a copy once, so that every layer inside it is built."""
    if not all(m.built for m in model.modules() if isinstance(m, Layer)):
        with no_grad():
            model(x, training=False)


class Watcher:
    """Sees every call of a model and of the layers inside it, and which of them made an op.

    A subclass overrides `enter` and `leave`. Only for a copy, and for the thread that uses it.
    """

    def __init__(self) -> None:
        self.stack: list[Layer] = []  # the calls in progress
        self._marks: list[int] = []  # ages of tensors at which the layer in charge changes
        self._owners: list[Any] = []  # the layer in charge from then on

    def enter(self, layer: Any, inputs: Any) -> None:
        """A call begins; the layer is on top of the stack already."""

    def leave(self, layer: Any, outputs: Any) -> None:
        """A call has ended; the layer is on top of the stack still."""

    def in_charge(self, owner: Any) -> None:
        """From now on, ops belong to this layer, or to what else stands for one."""
        self._marks.append(creation_number())
        self._owners.append(owner)

    def owner_of(self, node: Tensor) -> Any:
        """The layer that was in charge when an op was recorded; None before the first."""
        place = bisect_left(self._marks, node._order) - 1
        return self._owners[place] if place >= 0 else None

    def wrap_backward(self, loss: Tensor, wrap: Callable[[Any, Any], Callable[[Any], Any]]) -> None:
        """Put wrap(closure, owner) in the place of the closure of every op behind a loss."""
        for node in graph_behind([loss])[0]:
            node._backward = wrap(node._backward, self.owner_of(node))

    @contextmanager
    def watching(self, model: Any) -> Iterator[None]:
        """See the calls inside the block."""
        layers = [m for m in model.modules() if isinstance(m, Layer)]
        kinds = [type(layer) for layer in layers]
        made: dict[type, type] = {}
        for layer, kind in zip(layers, kinds, strict=True):
            if kind not in made:
                made[kind] = self._seen(kind)
            layer.__class__ = made[kind]
        try:
            yield
        finally:
            self.stack.clear()
            for layer, kind in zip(layers, kinds, strict=True):
                layer.__class__ = kind

    def _seen(self, kind: Any) -> type:
        """A class like this one whose calls are seen, with all that happens around `call`."""

        call, stack = kind.__call__, self.stack
        in_charge, enter, leave = self.in_charge, self.enter, self.leave

        def __call__(layer: Any, *args: Any, **kwargs: Any) -> Any:
            outer = stack[-1] if stack else None
            stack.append(layer)
            in_charge(layer)
            enter(layer, (args, kwargs))
            y = call(layer, *args, **kwargs)
            leave(layer, y)
            stack.pop()
            in_charge(outer)
            return y

        names = {"__call__": __call__, "__module__": kind.__module__, "__doc__": kind.__doc__}
        made: Any = type(kind.__name__, (kind,), names)
        made._signature = CallSignature.of(kind)  # or the first call of each would read it again
        return made


def path_of(stack: Sequence[Layer]) -> str:
    """The names of the layers called in one another, without the model's own unless it is all."""
    return "/".join(layer.name for layer in stack[1:]) or stack[0].name
