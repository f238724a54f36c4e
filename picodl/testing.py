"""Checks for authors of ops and layers: gradients against finite differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from picodl import tree
from picodl.tensor import Tensor, gradients, no_grad
from picodl.typing import Array


def gradcheck(
    function: Callable[..., Any],
    *inputs: Any,
    eps: float = 1e-6,
    tolerance: float = 1e-6,
    seed: int = 0,
    second: bool = False,
) -> None:
    """Compare the gradient of a function with central differences, in float64.

    The outputs are reduced to one number with random weights g, and for each input the slope along
    a random direction d is compared: sum(dx * d) against (f(x + eps d) - f(x - eps d)) / (2 eps).

    Args:
        function: takes one tensor per input, gives a tensor or a nest of them.
        inputs: arrays; floating ones are checked, others are passed on.
        eps: the step of the difference.
        tolerance: the error allowed, relative to the size of the terms.
        seed: of the random weights and directions.
        second: check the second derivatives instead: those of the first ones (create_graph).

    Raises:
        AssertionError: if a gradient is wrong; the message names the input and both slopes.

    >>> from picodl import ops
    >>> gradcheck(ops.exp, np.array([0.5, -1.0]))
    """
    arrays = [_float64(x) for x in inputs]
    places = [i for i, x in enumerate(arrays) if x.dtype.kind == "f"]
    rng = np.random.default_rng(seed)
    if second:
        function = _first_derivative(function, places, rng)
    g = [rng.normal(size=y.shape) for y in _outputs(function, arrays)]

    def scalar(changed: Sequence[Array]) -> float:
        with no_grad():
            return _dot(g, [y.data for y in _outputs(function, changed)])

    tensors = [Tensor(x, requires_grad=i in places) for i, x in enumerate(arrays)]
    outputs = _float_leaves(function(*tensors))
    found = gradients(outputs, g, [tensors[i] for i in places])
    by_id = {id(x): dx for x, dx in found}
    for i in places:
        d = rng.normal(size=arrays[i].shape)
        dx = by_id.get(id(tensors[i]))
        if dx is not None and dx.shape != arrays[i].shape:
            raise AssertionError(f"input {i}: gradient of shape {dx.shape} for {arrays[i].shape}")
        got = 0.0 if dx is None else float(np.sum(dx * d))
        plus, minus = ([*arrays[:i], arrays[i] + s * eps * d, *arrays[i + 1 :]] for s in (1, -1))
        expected = (scalar(plus) - scalar(minus)) / (2 * eps)
        scale = max(1.0, abs(expected), 0.0 if dx is None else float(np.sum(np.abs(dx * d))))
        if not abs(got - expected) <= tolerance * scale:
            raise AssertionError(
                f"input {i}: the gradient says {got:.10g}, the difference {expected:.10g}"
            )


def _first_derivative(
    function: Callable[..., Any], places: list[int], rng: np.random.Generator
) -> Callable[..., Any]:
    """The function x -> all first derivatives of sum(weights * function(x))."""
    seed = int(rng.integers(1 << 30))

    def derivative(*inputs: Tensor) -> list[Tensor]:
        from picodl.tensor import enable_grad

        with enable_grad():
            own = [
                x if x.requires_grad or i not in places else Tensor(x.data, requires_grad=True)
                for i, x in enumerate(inputs)
            ]
            outputs = _float_leaves(function(*own))
            weights = np.random.default_rng(seed)
            g = [Tensor(weights.normal(size=y.shape)) for y in outputs]
            stop = [own[i] for i in places]
            found = {id(x): dx for x, dx in gradients(outputs, g, stop, True, True)}
        return [found[id(x)] for x in stop if id(x) in found]

    return derivative


def _outputs(function: Callable[..., Any], arrays: Sequence[Array]) -> list[Tensor]:
    return _float_leaves(function(*[Tensor(x) for x in arrays]))


def _float_leaves(structure: Any) -> list[Tensor]:
    return [y for y in tree.flatten(structure) if isinstance(y, Tensor) and y.dtype.kind == "f"]


def _float64(x: Any) -> Array:
    x = np.asarray(x)
    return x.astype(np.float64) if x.dtype.kind == "f" else x


def _dot(a: Sequence[Array], b: Sequence[Array]) -> float:
    return float(sum(np.sum(x * y) for x, y in zip(a, b, strict=True)))
