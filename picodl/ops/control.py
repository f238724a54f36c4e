"""Control flow as functions. Here they are plain Python loops and branches on Tensors or arrays."""

from __future__ import annotations

import builtins
import functools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from picodl import symbolic, tree
from picodl.ops.indexing import get_item
from picodl.ops.shape import concatenate, stack
from picodl.tensor import Tensor, as_array


def _symbolic(function: Callable[..., Any]) -> Callable[..., Any]:
    """Record a step when Symbols are among the arguments."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if symbolic.is_symbolic((args, kwargs)):
            return symbolic.record_op(call, args, kwargs)
        return function(*args, **kwargs)

    return call


def _stacked(parts: Sequence[Any]) -> Any:
    """Results of the same structure, stacked leaf by leaf."""
    if parts[0] is None:
        return None
    return tree.map_structure(lambda *leaves: stack(list(leaves)), *parts)


def _at(structure: Any, i: int) -> Any:
    return tree.map_structure(lambda x: None if x is None else get_item(x, i), structure)


def _length(structure: Any, name: str) -> int:
    sizes = {len(x) for x in tree.flatten(structure) if x is not None}
    if len(sizes) != 1:
        raise ValueError(
            f"{name} needs arrays with first axes of one size; received sizes {sorted(sizes)}."
        )
    return sizes.pop()


@_symbolic
def cond(pred: Any, true_fn: Callable[[], Any], false_fn: Callable[[], Any]) -> Any:
    """true_fn() if pred holds, else false_fn(); only that one is called.

    Gradient: that of the one that was called.
    """
    return true_fn() if bool(pred) else false_fn()


@_symbolic
def switch(index: Any, branches: Sequence[Callable[..., Any]], *operands: Any) -> Any:
    """branches[index](*operands), the index kept within the range of the branches.

    Gradient: that of the branch that was called.
    """
    i = int(as_array(index))
    return branches[builtins.min(builtins.max(i, 0), len(branches) - 1)](*operands)


@_symbolic
def map(f: Callable[..., Any], xs: Any) -> Any:
    """f of each slice along the first axis of xs (an array or a nest of them), stacked.

    Gradient: that of f, slice by slice.
    """
    n = _length(xs, "map")
    if n == 0:
        raise ValueError("map needs at least one element to know what f returns.")
    return _stacked([f(_at(xs, i)) for i in builtins.range(n)])


@_symbolic
def vectorized_map(function: Callable[..., Any], elements: Any) -> Any:
    """function of each slice along the first axis of elements, stacked; the same as `map`."""
    return map(function, elements)


@_symbolic
def scan(
    f: Callable[..., Any],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: Any = 1,
) -> tuple[Any, Any]:
    """A loop that carries a state along the first axis of xs.

    Args:
        f: takes the state and a slice of xs, gives the next state and an output.
        init: the first state.
        xs: an array or a nest of them. Defaults to None: f gets None.
        length: how many steps, if xs is None.
        reverse: go from the end; the outputs stay in the order of xs.
        unroll: accepted; the loop is a Python loop.

    Returns:
        The last state and the outputs, stacked.
    """
    if xs is None and length is None:
        raise ValueError("scan needs xs, or length if there are none.")
    n = int(length) if xs is None else _length(xs, "scan")  # type: ignore[arg-type]
    if length is not None and length != n:
        raise ValueError(f"scan received length={length}, but xs has {n} slices.")
    if n == 0:
        return init, None
    carry, outputs = init, []
    for i in builtins.range(n - 1, -1, -1) if reverse else builtins.range(n):
        carry, y = f(carry, None if xs is None else _at(xs, i))
        outputs.append(y)
    return carry, _stacked(outputs[::-1] if reverse else outputs)


@_symbolic
def associative_scan(
    f: Callable[..., Any], elems: Any, reverse: bool = False, axis: int = 0
) -> Any:
    """All partial results of an associative f along an axis: x0, f(x0, x1), f(f(x0, x1), x2), ...

    Args:
        f: takes and gives slices of elems, in which the axis has size 1.
        elems: an array or a nest of them.
        reverse: start from the end.
        axis: Defaults to the first.
    """
    first = tree.flatten(elems)[0]
    n = first.shape[axis]
    before = (builtins.slice(None),) * (axis % len(first.shape))

    def piece(i: int) -> Any:
        return tree.map_structure(lambda x: get_item(x, (*before, builtins.slice(i, i + 1))), elems)

    order = list(builtins.range(n - 1, -1, -1) if reverse else builtins.range(n))
    results = [piece(order[0])]
    for i in order[1:]:
        results.append(f(results[-1], piece(i)))
    if reverse:
        results.reverse()
    return tree.map_structure(lambda *parts: concatenate(list(parts), axis), *results)


@_symbolic
def while_loop(
    cond: Callable[..., Any],
    body: Callable[..., Any],
    loop_vars: Any,
    maximum_iterations: int | None = None,
) -> Any:
    """Call body as long as cond holds.

    Args:
        cond: takes the loop variables, says whether to go on.
        body: takes the loop variables, gives the next ones.
        loop_vars: the first ones, a list or tuple, or one value.
        maximum_iterations: stop after so many. Defaults to None.
    """
    several = isinstance(loop_vars, (list, tuple))
    values = tuple(loop_vars) if several else (loop_vars,)
    count = 0
    while bool(cond(*values)) and (maximum_iterations is None or count < maximum_iterations):
        new = body(*values)
        values = tuple(new) if isinstance(new, (list, tuple)) else (new,)
        count += 1
    return type(loop_vars)(values) if several else values[0]


@_symbolic
def fori_loop(lower: Any, upper: Any, body_fun: Callable[..., Any], init_val: Any) -> Any:
    """body_fun(i, value) for i from lower up to, without, upper; the last value.

    Gradient: that of the calls, as with every loop here.
    """
    value = init_val
    for i in builtins.range(int(lower), int(upper)):
        value = body_fun(i, value)
    return value


def vectorize(
    pyfunc: Callable[..., Any], *, excluded: Any = None, signature: str | None = None
) -> Callable[..., Any]:
    """A function of single elements, made to work on whole arrays with broadcasting.

    Args:
        pyfunc: takes and gives scalars; or arrays of the axes named in the signature.
        excluded: positions of arguments to pass on as they are.
        signature: such as "(n),(n)->()". Defaults to None, scalars.

    It is a Python loop, for convenience and not for speed.
    """
    left_out = set(excluded or ())
    cores = None
    if signature is not None:
        if not re.fullmatch(r"[\w\s(),]+->[\w\s(),]+", signature):
            raise ValueError(f'signature must look like "(n),(n)->()"; received {signature!r}.')
        inside = re.findall(r"\(([^)]*)\)", signature.split("->")[0])
        cores = [len([name for name in part.split(",") if name.strip()]) for part in inside]

    @functools.wraps(pyfunc)
    @_symbolic
    def call(*args: Any) -> Any:
        places = [i for i in builtins.range(len(args)) if i not in left_out]
        arrays = {i: args[i] if isinstance(args[i], Tensor) else as_array(args[i]) for i in places}
        core = dict(zip(places, cores or [0] * len(places), strict=True))
        loops = {i: a.shape[: a.ndim - core[i]] for i, a in arrays.items()}
        shape = np.broadcast_shapes(*loops.values())
        flat = {
            i: np.broadcast_to(a, shape + a.shape[a.ndim - core[i] :]).reshape(
                (-1, *a.shape[a.ndim - core[i] :])
            )
            for i, a in arrays.items()
        }
        n = math.prod(shape)
        results = [
            pyfunc(*(flat[i][k] if i in flat else a for i, a in enumerate(args)))
            for k in builtins.range(n)
        ]
        joined = _stacked(results)
        return tree.map_structure(lambda y: y.reshape(shape + y.shape[1:]), joined)

    return call
