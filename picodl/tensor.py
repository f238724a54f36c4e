"""The engine: a Tensor remembers how it was computed, and backward() walks that way back.

An op computes an array and hands `record` the array, its inputs and a closure `backward(g)` that
returns one gradient per input. That closure is all there is to differentiation here.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Any

import numpy as np

from picodl import config
from picodl.arraylike import ArrayLike, holds_tensor, plain
from picodl.config import thread
from picodl.typing import Array, Backward, Shape

_creation = itertools.count(1)


def creation_number() -> int:
    """A number larger than all before: the age of tensors and parameters."""
    return next(_creation)


class Tensor(ArrayLike):
    """An array that can take part in differentiation.

    Args:
        data: anything `numpy.asarray` takes; Python floats become `config.floatx()`.
        requires_grad: whether `backward` leaves the gradient of this tensor in `grad`.
        dtype: the dtype to convert to.

    >>> x = Tensor([1.0, 2.0], requires_grad=True)
    >>> _ = (x * x).sum().backward()
    >>> x.grad
    array([2., 4.], dtype=float32)
    """

    __slots__ = (
        "__weakref__",
        "_backward",
        "_composed",
        "_inputs",
        "_order",
        "data",
        "grad",
        "mask",
        "requires_grad",
    )

    data: Array
    grad: Any
    mask: Any
    _composed: Any

    def __init__(self, data: Any, requires_grad: bool = False, dtype: Any = None) -> None:
        self.data = as_array(data, dtype)
        if requires_grad and self.data.dtype.kind != "f":
            raise TypeError(
                f"Only floating-point tensors have gradients; received dtype {self.data.dtype}."
            )
        self.requires_grad = requires_grad
        self.grad = None
        self.mask = None
        self._inputs: Sequence[Tensor] = ()
        self._backward: Backward | None = None
        self._order = 0

    # ---------------------------------------------------------------- what it is

    @property
    def op(self) -> str:
        """The name of the op that made it, or "" for a tensor that was not recorded."""
        return self._backward.__qualname__.split(".")[0] if self._backward is not None else ""

    def detach(self) -> Tensor:
        """The same array in a tensor of its own, outside any graph."""
        return Tensor(self.data)

    def zero_grad(self) -> None:
        """Forget the gradient."""
        self.grad = None

    __hash__ = object.__hash__  # == compares elements, so the hash is the identity

    def __reduce__(self) -> Any:
        return type(self), (self.data, self.requires_grad)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return Tensor(self.data.copy(), self.requires_grad)

    # ---------------------------------------------------------------- differentiation

    def backward(
        self, gradient: Any = None, retain_graph: bool = False, create_graph: bool = False
    ) -> list[Tensor]:
        """Add the gradient of this tensor to `grad` of every leaf it was computed from.

        Args:
            gradient: what arrives from above, of this tensor's shape. Defaults to ones.
            retain_graph: keep the graph for another backward, and leave the gradient of every
                intermediate tensor in its `grad`.
            create_graph: make the gradients tensors that can be differentiated again.

        Returns:
            The leaves that were reached.

        Raises:
            RuntimeError: if nothing here requires a gradient, or if the graph was used before.
            NotImplementedError: with create_graph, for an op without a second derivative.
        """
        if not self.requires_grad:
            raise RuntimeError(
                "backward() on a tensor that does not depend on anything with requires_grad=True "
                "(or was computed under no_grad())."
            )
        reached = gradients([self], [gradient], (), retain_graph or create_graph, create_graph)
        for leaf, g in reached:
            leaf.grad = g if leaf.grad is None else leaf.grad + g
        return [leaf for leaf, _ in reached]


# -------------------------------------------------------------------- making tensors


def as_array(data: Any, dtype: Any = None) -> Array:
    """An ndarray of the given dtype; Python floats without a dtype become floatx.

    Raises:
        TypeError: for strings, objects and other things that are no numbers.
    """
    if isinstance(data, Tensor):
        data = data.data
    if isinstance(data, np.ndarray):
        array = data
    else:
        if isinstance(data, (list, tuple)) and holds_tensor(data):
            data = plain(data)
        array = np.asarray(data)
        if dtype is None and array.dtype == np.float64 and not hasattr(data, "dtype"):
            dtype = config.floatx()
    if array.dtype.kind not in "fiub":
        raise TypeError(
            f"Expected numbers, but received {type(data).__name__} data of dtype {array.dtype}."
        )
    return array if dtype is None or array.dtype == dtype else array.astype(dtype)


def record(
    data: Any,
    inputs: Sequence[Tensor] = (),
    backward: Backward | None = None,
    composed: Callable[..., Any] | bool | None = None,
) -> Tensor:
    """The result of an op as a Tensor, with the way back if any input requires a gradient.

    Args:
        data: the computed array.
        inputs: the tensors it was computed from.
        backward: takes the gradient of the result and returns one gradient (or None) per input.
        composed: for second derivatives. None: `backward` itself can be differentiated, because it
            works on tensors too (see `value`); a function of the inputs that computes the same out
            of such ops; or False: there is none.
    """
    out = Tensor.__new__(Tensor)
    out.data = data if type(data) is np.ndarray else np.asarray(data)
    out.grad = out.mask = None
    if thread.recording:
        for x in inputs:
            if x.requires_grad:
                out.requires_grad = True
                out._inputs = inputs
                out._backward = backward
                out._order = next(_creation)
                if composed is not None:
                    out._composed = composed
                return out
    out.requires_grad = False
    out._inputs = ()
    out._backward = None
    out._order = 0
    return out


def value(x: Tensor, g: Any) -> Any:
    """What a backward closure multiplies with: x's array, or x itself when g is a Tensor."""
    return x if isinstance(g, Tensor) else x.data


def output(y: Array, g: Any, op: Callable[..., Any], *inputs: Any) -> Any:
    """The array an op computed, or the op applied again when g is a Tensor.

    A closure must not hold the Tensor it belongs to: that would be a cycle and keep its memory.
    """
    return op(*inputs) if isinstance(g, Tensor) else y


@contextlib.contextmanager
def no_grad() -> Iterator[None]:
    """Compute without recording: nothing inside can be differentiated. Per thread."""
    before, thread.recording = thread.recording, False
    try:
        yield
    finally:
        thread.recording = before


@contextlib.contextmanager
def enable_grad() -> Iterator[None]:
    """Record again inside a `no_grad` block. Per thread."""
    before, thread.recording = thread.recording, True
    try:
        yield
    finally:
        thread.recording = before


# -------------------------------------------------------------------- walking back


def _used(g: Any) -> Sequence[Any]:
    raise RuntimeError(
        "This graph was already used by a backward(), which frees it. Call the first one with "
        "retain_graph=True, or add the losses up and call backward() once."
    )


@np.errstate(all="ignore")  # the forward pass has warned where there is a reason
def gradients(
    outputs: Sequence[Tensor],
    upstream: Sequence[Any],
    stop: Sequence[Tensor] = (),
    retain_graph: bool = False,
    create_graph: bool = False,
) -> list[tuple[Tensor, Any]]:
    """Walk back from outputs; pairs of (leaf, gradient) for what was reached.

    Here alone gradients are added up, broadcasting is undone, and each gradient gets the shape and
    dtype of its tensor.

    Args:
        outputs: the tensors to start from.
        upstream: one gradient per output; None stands for ones.
        stop: tensors to treat as leaves: if given, only their gradients are returned.
        retain_graph: keep the closures, and leave gradients in `grad` of the nodes.
        create_graph: compute the gradients as recorded tensors.

    Raises:
        RuntimeError: if part of the graph was already used.
        NotImplementedError: with create_graph, for an op without a second derivative.
    """
    ends = {id(x) for x in stop}
    found: dict[int, tuple[Tensor, Any]] = {}  # leaves with their gradients
    waiting: dict[int, tuple[Tensor, Any]] = {}  # nodes by age, with what they have got so far
    queue: list[int] = []  # their ages negated, youngest first: all that uses a node is younger

    def give(x: Tensor, dx: Any) -> None:
        if x._backward is None or id(x) in ends:
            key, place = id(x), found
        else:
            key, place = -x._order, waiting
            if key not in waiting:
                heappush(queue, key)
        place[key] = (x, place[key][1] + dx if key in place else dx)

    for out, g in zip(outputs, upstream, strict=True):
        if out.requires_grad:
            give(out, _seed(out, g, create_graph))
    recording = thread.recording
    thread.recording = create_graph
    node: Any = None
    try:
        while node is not None or queue:
            if node is None:
                node, g = waiting.pop(heappop(queue))
            if retain_graph and not stop:
                node.grad = g
            parts = _differentiable(node, g) if create_graph else node._backward(g)
            inputs = node._inputs
            if not retain_graph:
                node._backward = _used
                node._inputs = ()
            node = None
            for x, dx in zip(inputs, parts, strict=True):
                if dx is None or not x.requires_grad:
                    continue
                data = x.data
                if dx.shape != data.shape:
                    dx = unbroadcast(dx, data.shape)
                if dx.dtype is not data.dtype and dx.dtype != data.dtype:
                    dx = dx.astype(data.dtype)
                if x._backward is None and (key := id(x)) not in found:
                    found[key] = (x, dx)  # what `give` does with nearly every leaf
                elif node is None and not queue and not ends and x._backward is not None:
                    node, g = x, dx  # the only one that waits: in a chain, every one
                else:
                    give(x, dx)
                    if node is not None:
                        give(node, g)
                        node = None
    finally:
        thread.recording = recording
    pairs = [found[id(x)] for x in stop if id(x) in found] if stop else list(found.values())
    return pairs if create_graph else [(x, np.asarray(g)) for x, g in pairs]


def graph_behind(
    outputs: Sequence[Tensor], ends: set[int] | frozenset[int] = frozenset()
) -> tuple[list[Tensor], list[Tensor]]:
    """All nodes behind the outputs in order of creation, and the leaves in order of discovery."""
    nodes: list[Tensor] = []
    leaves: list[Tensor] = []
    seen = {id(x) for x in outputs}
    stack = [x for x in outputs if x.requires_grad]
    while stack:
        node = stack.pop()
        if node._backward is None or id(node) in ends:
            leaves.append(node)
            continue
        nodes.append(node)
        for x in node._inputs:
            if x.requires_grad and id(x) not in seen:
                seen.add(id(x))
                stack.append(x)
    nodes.sort(key=_age)
    return nodes, leaves


_age = operator.attrgetter("_order")


@functools.lru_cache(maxsize=16)
def _ones(shape: tuple[int, ...], dtype: Any) -> Array:
    return np.ones(shape, dtype)


def _seed(out: Tensor, g: Any, create_graph: bool) -> Any:
    """The first gradient: ones, or what the caller gave, of the output's shape and dtype."""
    if g is None:
        array = _ones(out.data.shape, out.data.dtype)
    elif create_graph and isinstance(g, Tensor):
        return g
    else:
        array = np.asarray(g, out.data.dtype)
        if array.shape != out.data.shape:
            raise ValueError(
                f"backward() received a gradient of shape {array.shape} for a tensor of shape "
                f"{out.data.shape}."
            )
    return Tensor(array) if create_graph else array


def unbroadcast(g: Any, shape: Shape) -> Any:
    """Sum g over the axes that broadcasting stretched, so that it has the given shape."""
    extra = len(g.shape) - len(shape)
    axes = tuple(range(extra)) + tuple(
        extra + i for i, n in enumerate(shape) if n == 1 and g.shape[extra + i] != 1
    )
    if isinstance(g, np.ndarray):
        return (np.add.reduce(g, axis=axes) if axes else g).reshape(shape)
    return (g.sum(axes) if axes else g).reshape(shape)


def _differentiable(node: Tensor, g: Tensor) -> Sequence[Any]:
    """The gradients of one node as recorded tensors."""
    composed = getattr(node, "_composed", None)
    if composed is None:
        return node._backward(g)  # type: ignore[misc]
    if composed is False:
        raise NotImplementedError(
            f"The op {node.op!r} has no second derivative; create_graph=True cannot go through it."
        )
    again = composed(*node._inputs)
    found = {id(x): dx for x, dx in gradients([again], [g], node._inputs, True, True)}
    return [found.get(id(x)) for x in node._inputs]
