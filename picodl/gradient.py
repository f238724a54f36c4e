"""Gradients in one's hands: functions that give the derivatives of functions.

With respect to what, the argument `wrt` says everywhere: the number of an argument of the function
(an array, or a nest of arrays), several such numbers, a model or layer (its trainable parameters,
in the order of `trainable_weights`), or a list of tensors.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from picodl import tree
from picodl.module import Module
from picodl.tensor import Tensor, enable_grad, gradients, record


class _Depth(threading.local):
    inside: int = 0  # how many of these functions are running: their inner gradients are recorded


_depth = _Depth()


def grad(fn: Callable[..., Any], wrt: Any = 0, create_graph: bool = False) -> Callable[..., Any]:
    """The function that gives the gradient of a function that returns one number.

    Args:
        fn: takes tensors (also where arrays are passed), returns a tensor with one element.
        wrt: with respect to what; see above. Defaults to the first argument.
        create_graph: give tensors that can be differentiated again. Inside another `grad` or
            `jacobian` that is always so.

    Returns:
        A function with the arguments of fn. It gives arrays for arrays and tensors for tensors, in
        the structure of what `wrt` names; zeros where the result does not depend on something.

    Raises:
        TypeError: if fn does not return a tensor.
        ValueError: if it returns more than one element.
        NotImplementedError: with create_graph, for an op without a second derivative.

    >>> cube = lambda x: x**3
    >>> float(grad(cube)(2.0)), float(grad(grad(cube))(2.0))
    (12.0, 12.0)
    """
    both = value_and_grad(fn, wrt, create_graph)

    @functools.wraps(fn)
    def gradient(*args: Any, **kwargs: Any) -> Any:
        return both(*args, **kwargs)[1]

    return gradient


def value_and_grad(
    fn: Callable[..., Any], wrt: Any = 0, create_graph: bool = False
) -> Callable[..., Any]:
    """As `grad`, but the function gives the value and the gradient.

    >>> value_and_grad(lambda w, x: ((w * x) ** 2).sum())(np.ones(2, "f"), np.arange(2.0))
    (array(1., dtype=float32), array([0., 2.], dtype=float32))
    """

    @functools.wraps(fn)
    def both(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        again = create_graph or _depth.inside > 0
        value, watched = _call(fn, wrt, args, kwargs)
        if value.size != 1:
            raise ValueError(
                f"grad needs a function that returns one number, but {_name(fn)} returned shape "
                f"{value.shape}. Sum it up, or use jacobian."
            )
        found = watched.gradients(value, None, again)
        return watched.dress(value, again), watched.arrange(found)

    return both


def jacobian(
    fn: Callable[..., Any], wrt: Any = 0, create_graph: bool = False
) -> Callable[..., Any]:
    """The function that gives all derivatives of a function that returns an array.

    One backward pass per element of the result: for small functions.

    Args: as `grad`; fn may return any shape.

    Returns:
        A function whose result has, for each array x of `wrt`, the shape of fn's value followed by
        that of x.

    >>> jacobian(lambda x: x * x)(np.array([1.0, 3.0], "f"))
    array([[2., 0.],
           [0., 6.]], dtype=float32)
    """

    @functools.wraps(fn)
    def derivatives(*args: Any, **kwargs: Any) -> Any:
        from picodl.ops import stack

        again = create_graph or _depth.inside > 0
        value, watched = _call(fn, wrt, args, kwargs)
        rows = []
        for i in range(value.size):
            seed = np.zeros(value.shape, value.dtype)
            seed.flat[i] = 1
            rows.append(watched.gradients(value, Tensor(seed) if again else seed, again))
        if not rows:
            empty = [np.zeros(value.shape + x.shape, x.dtype) for x in watched.leaves]
            return watched.arrange(empty)
        columns = [stack(list(parts)) for parts in zip(*rows, strict=True)]
        shapes = [value.shape + x.shape for x in watched.leaves]
        return watched.arrange([c.reshape(s) for c, s in zip(columns, shapes, strict=True)])

    return derivatives


def per_sample_grad(fn: Callable[..., Any], wrt: Any) -> Callable[..., Any]:
    """The function that gives the gradient of each sample of a batch on its own.

    The batch is cut along the first axis of every argument that `wrt` does not name; fn is called
    on batches of one. A plain loop, for small models.

    Args: as `grad`.

    Returns:
        A function whose result has the samples along a new first axis.

    >>> loss = lambda w, x: ((w * x) ** 2).sum()
    >>> per_sample_grad(loss, 0)(np.ones(2, "f"), np.array([[1.0, 0.0], [2.0, 1.0]], "f"))
    array([[2., 0.],
           [8., 2.]], dtype=float32)
    """
    one = grad(fn, wrt)
    kept = set(_places(wrt) or ())

    @functools.wraps(fn)
    def gradients_of_samples(*args: Any, **kwargs: Any) -> Any:
        batch = [a for i, a in enumerate(args) if i not in kept]
        sizes = {len(leaf) for leaf in tree.flatten(batch) if leaf is not None}
        if len(sizes) != 1:
            raise ValueError(
                f"per_sample_grad needs arguments with first axes of one size; received sizes "
                f"{sorted(sizes)}."
            )

        def sample(structure: Any, i: int) -> Any:
            return tree.map_structure(lambda x: None if x is None else x[i : i + 1], structure)

        parts = [
            one(*(a if j in kept else sample(a, i) for j, a in enumerate(args)), **kwargs)
            for i in range(sizes.pop())
        ]
        return tree.map_structure(lambda *leaves: np.stack(leaves), *parts)

    return gradients_of_samples


def _name(fn: Any) -> str:
    return getattr(fn, "__name__", type(fn).__name__)


def _places(wrt: Any) -> tuple[int, ...] | None:
    """The numbers of arguments that wrt names, or None if it names something else."""
    if isinstance(wrt, int):
        return (wrt,)
    if isinstance(wrt, (list, tuple)) and wrt and all(isinstance(i, int) for i in wrt):
        return tuple(wrt)
    return None


def _call(
    fn: Callable[..., Any], wrt: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Tensor, _Watched]:
    """fn's value as a recorded tensor, and what is differentiated for."""
    watched = _Watched(wrt, args)
    _depth.inside += 1
    try:
        with enable_grad():
            value = fn(*watched.args, **kwargs)
    finally:
        _depth.inside -= 1
    if not isinstance(value, Tensor) or value.dtype.kind != "f":
        kind = f"a tensor of {value.dtype}" if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(
            f"A function to differentiate must return a Tensor of floats, but {_name(fn)} returned "
            f"{kind}. Compute with picodl.ops (or numpy functions on the tensors it is given)."
        )
    return value, watched


class _Watched:
    """What is differentiated for: its tensors, and how their gradients are handed out."""

    def __init__(self, wrt: Any, args: tuple[Any, ...]) -> None:
        self.args: list[Any] = list(args)
        self.structure: Any
        self.plain: list[bool] = []  # whether the gradient of a leaf is given as an array
        self.leaves: list[Tensor] = []
        places = _places(wrt)
        if places is not None:
            self._watch_arguments(places, isinstance(wrt, int))
        else:
            self._watch_tensors(wrt)

    def _watch_arguments(self, places: tuple[int, ...], single: bool) -> None:
        count = len(self.args)
        if any(not -count <= i < count for i in places):
            raise ValueError(
                f"wrt={places} names an argument that was not passed by position: {count} were."
            )
        for i in places:
            self.args[i] = tree.map_structure(self._leaf, self.args[i])
        parts = [self.args[i] for i in places]
        self.structure = parts[0] if single else tuple(parts)
        if not self.leaves:
            raise TypeError("There is nothing to differentiate for: no array of floats in wrt.")

    def _leaf(self, x: Any) -> Any:
        tensor = x if isinstance(x, Tensor) else Tensor(x) if x is not None else None
        if tensor is None or tensor.dtype.kind != "f":
            return x
        if not tensor.requires_grad:
            tensor = Tensor(tensor.data, requires_grad=True)
        elif any(tensor is other for other in self.leaves):  # passed twice: two variables
            with enable_grad():
                tensor = record(tensor.data, (tensor,), lambda g: (g,))
        self.leaves.append(tensor)
        self.plain.append(not isinstance(x, Tensor))
        return tensor

    def _watch_tensors(self, wrt: Any) -> None:
        if isinstance(wrt, Module):
            self.leaves = [p for p in wrt.parameters() if p.requires_grad]
        else:
            self.leaves = [wrt] if isinstance(wrt, Tensor) else list(wrt)
        bad = [x for x in self.leaves if not isinstance(x, Tensor) or not x.requires_grad]
        if bad or not self.leaves:
            raise TypeError(
                "wrt must be argument numbers, a model with trainable parameters, or tensors with "
                f"requires_grad=True; received {type(wrt).__name__}."
            )
        self.plain = [True] * len(self.leaves)
        self.structure = self.leaves[0] if isinstance(wrt, Tensor) else self.leaves

    def gradients(self, value: Tensor, seed: Any, again: bool) -> list[Any]:
        """One gradient per leaf, zeros where there is none. The graph stays usable."""
        found = {}
        if value.requires_grad:
            upstream = Tensor(np.ones(value.shape, value.dtype)) if again and seed is None else seed
            found = {id(x): g for x, g in gradients([value], [upstream], self.leaves, True, again)}
        missing = [np.zeros(x.shape, x.dtype) for x in self.leaves if id(x) not in found]
        parts = iter(missing)
        grads = [found[id(x)] if id(x) in found else next(parts) for x in self.leaves]
        if again:
            return [g if isinstance(g, Tensor) else Tensor(g) for g in grads]
        return [g if p else Tensor(g) for g, p in zip(grads, self.plain, strict=True)]

    def dress(self, value: Tensor, again: bool) -> Any:
        """The value as fn's caller expects it."""
        if again:
            return value
        return value.data if all(self.plain) else value.detach()

    def arrange(self, found: list[Any]) -> Any:
        """The gradients in the structure of what is differentiated for; None beside integers."""
        by_leaf = {id(x): g for x, g in zip(self.leaves, found, strict=True)}
        return tree.map_structure(
            lambda x: by_leaf.get(id(x)) if isinstance(x, Tensor) else None, self.structure
        )
