"""The one place where an op looks at its arguments, and the ops that only convert."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from picodl import config, symbolic
from picodl.symbolic import Symbol
from picodl.tensor import Tensor, as_array, record
from picodl.typing import Array

# How an op's signature says what it does with an argument:
#   Tensor   computed with in floating point: integers and bools become floatx
#   Numeric  integers stay integers where all inputs are (add, sum, reshape, ...)
#   Array    ids, indices, conditions: passed as a plain array, never differentiated
# each also as "... | None" and as list["..."] for a sequence of inputs.
Numeric: TypeAlias = Tensor

_FLOATING, _NUMERIC, _PLAIN = "floating", "numeric", "plain"
_KINDS = {"Tensor": _FLOATING, "Numeric": _NUMERIC, "Array": _PLAIN}


def op(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function of Tensors an op: arrays give arrays, Tensors a Tensor, Symbols a Symbol.

    Python numbers and plain arrays that meet a Tensor take its float dtype. The annotations of
    the function say which arguments are inputs (see above); all others are static.
    """
    code = function.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    inputs = []
    for place, name in enumerate(names):
        note = function.__annotations__.get(name, "")
        if not isinstance(note, str):  # a module without `from __future__ import annotations`
            note = note.__name__ if isinstance(note, type) else str(note)
            note = note.replace(f"{Tensor.__module__}.", "")
        note = note.removesuffix(" | None")
        many = note.startswith("list[")
        kind = _KINDS.get(note.removeprefix("list[").removesuffix("]"))
        if kind is not None:
            inputs.append((place, name, kind, many))
    # the short path: all inputs given by position, and nothing to convert
    kinds = [kind for _, _, kind, many in inputs if not many]
    short = len(kinds) == len(inputs) and [i[0] for i in inputs] == list(range(len(inputs)))
    mixed = len(inputs) > 1  # an integer among several inputs takes the dtype of the others
    input_names = {name for _, name, _, _ in inputs}

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if short and (not kwargs or input_names.isdisjoint(kwargs)):
            seen = False
            for x, kind in zip(args, kinds, strict=False):
                if kind is _PLAIN:
                    if type(x) is not np.ndarray:
                        break
                elif isinstance(x, Tensor):
                    if x.data.dtype.kind != "f" and (mixed or kind is _FLOATING):
                        break
                    seen = True
                elif x is not None:
                    break
            else:
                if seen:
                    try:
                        return function(*args, **kwargs)
                    except (ValueError, IndexError, TypeError) as error:
                        _explain(error, function, args)
                        raise
        symbols = tensors = False
        dtype = None  # what plain data is converted to
        found = []
        for place, name, kind, many in inputs:
            if place < len(args):
                given = args[place]
            elif name in kwargs:
                given = kwargs[name]
            else:
                continue
            if given is None:
                continue
            for x in given if many else (given,):
                if isinstance(x, Tensor):
                    tensors = True
                    if kind is not _PLAIN and dtype is None and x.data.dtype.kind == "f":
                        dtype = x.data.dtype
                elif isinstance(x, Symbol):
                    symbols = True
            found.append((place, name, kind, many, given))
        more = kwargs or len(args) > len(found)
        if symbols or (more and symbolic.is_symbolic((args, kwargs))):
            return symbolic.record_op(call, args, kwargs)
        weak = dtype if dtype is not None else _float_dtype(found)
        new = list(args)
        for place, name, kind, many, given in found:
            if many:
                ready: Any = [_convert(x, kind, tensors, dtype, weak, found) for x in given]
            else:
                ready = _convert(given, kind, tensors, dtype, weak, found)
            if place < len(args):
                new[place] = ready
            else:
                kwargs[name] = ready
        try:
            result = function(*new, **kwargs)
        except (ValueError, IndexError, TypeError) as error:
            _explain(error, function, new)
            raise
        return result if tensors else _arrays(result)

    return call


def _explain(error: Exception, function: Callable[..., Any], args: Sequence[Any]) -> None:
    """Note in numpy's error which op it was and the shapes it was given."""
    if not getattr(error, "__notes__", None):
        shapes = [
            str(x.shape)
            for arg in args
            for x in (arg if isinstance(arg, list) else (arg,))
            if isinstance(x, (Tensor, np.ndarray))
        ]
        error.add_note(f"in picodl.ops.{function.__name__} of shapes {', '.join(shapes)}")


def _float_dtype(found: list[Any]) -> Any:
    """The float dtype that integers and Python numbers take beside arrays; None: integers only."""
    weak = scalar = None
    for _, _, kind, many, given in found:
        if kind is not _PLAIN:
            for x in given if many else (given,):
                if isinstance(x, np.ndarray):
                    if x.dtype.kind == "f":
                        return x.dtype
                elif isinstance(x, np.floating):
                    scalar = x.dtype
                elif not isinstance(x, (bool, int, Tensor)) and np.asarray(x).dtype.kind == "f":
                    weak = np.dtype(config.floatx())
    return scalar or weak


def _whole_dtype(found: list[Any], number: int) -> Any:
    """The dtype that Python's int takes beside integer arrays: theirs, if it holds the number;
    int32 beside bools; None beside none."""
    kinds = [
        x.dtype
        for _, _, kind, many, given in found
        if kind is not _PLAIN
        for x in (given if many else (given,))
        if isinstance(x, (np.ndarray, np.generic, Tensor))
    ]
    if not kinds:
        return None
    dtype = np.result_type(*kinds)
    if dtype.kind == "b":
        dtype = np.dtype(np.int32)
    limits = np.iinfo(dtype)
    return dtype if limits.min <= number <= limits.max else None


def _convert(x: Any, kind: str, tensors: bool, dtype: Any, weak: Any, found: list[Any]) -> Any:
    if kind is _PLAIN:
        return x.data if isinstance(x, Tensor) else _index_array(x)
    if type(x) is float or type(x) is int:
        if weak is not None:  # the quick way: 2.9 us, not 3.5
            return record(np.array(x, weak))
        if kind is _NUMERIC:
            return record(np.array(x, _whole_dtype(found, int(x))))
    if isinstance(x, Tensor):
        if kind is _FLOATING and x.data.dtype.kind != "f":
            return Tensor(x.data.astype(dtype or config.floatx()))
        if weak is not None and x.data.dtype.kind != "f":
            return Tensor(x.data.astype(weak))
        return x
    if isinstance(x, np.ndarray):
        data = as_array(x)
        if tensors and dtype is not None:
            data = data.astype(dtype, copy=False)
        elif data.dtype.kind != "f" and (kind is _FLOATING or weak is not None):
            data = data.astype(weak or config.floatx())
        return Tensor(data)
    data = as_array(x, weak)
    if weak is None and kind is _FLOATING and data.dtype.kind != "f":
        data = data.astype(config.floatx())
    return Tensor(data)


def _index_array(x: Any) -> Any:
    """Lists as arrays; scalars, slices and the like as they are."""
    if isinstance(x, (list, tuple)):
        return np.asarray([p.data if isinstance(p, Tensor) else p for p in x])
    return x


def _arrays(result: Any) -> Any:
    if isinstance(result, Tensor):
        return result.data
    if isinstance(result, (list, tuple)):
        parts = [_arrays(part) for part in result]
        return parts if isinstance(result, list) else tuple(parts)
    return result


def normalize_axis(axis: Any, ndim: int) -> tuple[int, ...]:
    """The axes as non-negative numbers in a tuple; all of them for None.

    Raises:
        ValueError: for an axis that the array does not have.
    """
    if axis is None:
        return tuple(range(ndim))
    axes = (axis,) if not isinstance(axis, (list, tuple)) else axis
    for a in axes:
        if not -ndim <= a < ndim:
            raise ValueError(f"axis {a} is out of range for an array of {ndim} dimensions.")
    return tuple(int(a) % ndim for a in axes)


# -------------------------------------------------------------------- conversion


def convert_to_tensor(x: Any, dtype: Any = None, sparse: Any = None, ragged: Any = None) -> Any:
    """x as a Tensor (a Symbol stays a Symbol); Python floats become floatx."""
    if sparse or ragged:
        raise ValueError("picodl has no sparse or ragged tensors; pass a dense array.")
    if isinstance(x, Symbol):
        return x if dtype is None else cast(x, dtype)
    if isinstance(x, Tensor):
        return x if dtype is None else cast(x, dtype)
    return Tensor(x, dtype=dtype)


def convert_to_numpy(x: Any) -> Array:
    """x as a plain array."""
    return as_array(x)


def is_tensor(x: Any) -> bool:
    """Whether x is a Tensor."""
    return isinstance(x, Tensor)


@op
def cast(x: Numeric, dtype: Any) -> Tensor:
    """x converted to another dtype.

    Gradient: dx = g, converted back. Nothing flows through a cast to integers.
    """
    if x.data.dtype == np.dtype(dtype):
        return x
    data = x.data.astype(dtype)
    if data.dtype.kind != "f":
        return record(data)

    def backward(g: Any) -> Any:
        return (g,)  # the engine gives it x's dtype

    return record(data, (x,), backward)


@op
def saturate_cast(x: Numeric, dtype: Any) -> Tensor:
    """x clipped to the range of an integer dtype and converted to it. Not differentiable."""
    kind = np.dtype(dtype)
    if kind.kind not in "iu":
        return cast(x, dtype)
    info = np.iinfo(kind)
    return record(np.clip(x.data, info.min, info.max).astype(kind))


@op
def view(x: Numeric, dtype: Any = None) -> Tensor:
    """The same bytes read as another dtype; the last axis grows or shrinks with its size.

    Not differentiable, unless the dtype is x's own.
    """
    if dtype is None or np.dtype(dtype) == x.data.dtype:
        return x
    return record(np.ascontiguousarray(x.data).view(dtype))


@op
def stop_gradient(variable: Numeric) -> Tensor:
    """The same numbers; nothing flows back through them."""
    return record(variable.data)


def shape(x: Any) -> tuple[int | None, ...]:
    """The shape as a tuple; None where a Symbol's size varies."""
    return tuple(x.shape) if hasattr(x, "shape") else np.shape(x)


def ndim(x: Any) -> int:
    """The number of axes."""
    return len(shape(x))


def size(x: Any) -> int:
    """The number of elements."""
    return math.prod([n for n in shape(x) if n is not None])


def dtype(x: Any) -> str:
    """The dtype's name."""
    return str(x.dtype) if hasattr(x, "dtype") else str(as_array(x).dtype)


def custom_gradient(f: Callable[..., Any]) -> Callable[..., Any]:
    """Give a function a gradient of one's own.

    Args:
        f: takes arrays or tensors and returns its value and a function `grad(*args, upstream)`
            that returns one gradient per argument of f (a single one may stand alone).

    Reference: the same decorator of Keras; for surrogate gradients, Neftci et al., 2019,
    "Surrogate Gradient Learning in Spiking Neural Networks", arXiv:1901.09948.

    >>> @custom_gradient
    ... def sign_through(x):
    ...     def grad(*args, upstream):
    ...         return upstream
    ...     return np.sign(x), grad
    >>> x = Tensor([-2.0, 3.0], requires_grad=True)
    >>> _ = sign_through(x).sum().backward()
    >>> x.grad
    array([1., 1.], dtype=float32)
    """

    @functools.wraps(f)
    def call(*args: Any) -> Any:
        if symbolic.is_symbolic(args):
            return symbolic.record_op(call, args, {})
        tensors = any(isinstance(a, Tensor) for a in args)
        inputs = [a if isinstance(a, Tensor) else Tensor(a) for a in args]
        plain = [Tensor(x.data) if tensors else x.data for x in inputs]
        y, grad = f(*plain)

        def backward(g: Any) -> Any:
            parts = grad(*(Tensor(x.data) for x in inputs), upstream=Tensor(g))
            if not isinstance(parts, (list, tuple)):
                parts = (parts,)
            if len(parts) != len(inputs):
                raise ValueError(
                    f"The gradient of {f.__name__} returned {len(parts)} gradients for "
                    f"{len(inputs)} inputs."
                )
            return [None if p is None else as_array(p) for p in parts]

        backward.__qualname__ = f.__name__
        out = record(as_array(y), inputs, backward, composed=False)
        return out if tensors else out.data

    return call
