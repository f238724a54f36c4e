"""What a Tensor is to a user who takes it for an array: operators, methods, numpy's functions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from picodl.config import thread
from picodl.typing import Array


@functools.cache
def ops() -> Any:
    """The package of ops, which is imported later than this."""
    from picodl import ops

    return ops


class Operators:
    """The operators of Tensor and Symbol, each the op of picodl.ops that has its meaning."""

    __slots__ = ()

    def __add__(self, other: Any) -> Any:
        return ops().add(self, other)

    def __radd__(self, other: Any) -> Any:
        return ops().add(other, self)

    def __sub__(self, other: Any) -> Any:
        return ops().subtract(self, other)

    def __rsub__(self, other: Any) -> Any:
        return ops().subtract(other, self)

    def __mul__(self, other: Any) -> Any:
        return ops().multiply(self, other)

    def __rmul__(self, other: Any) -> Any:
        return ops().multiply(other, self)

    def __truediv__(self, other: Any) -> Any:
        return ops().divide(self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return ops().divide(other, self)

    def __floordiv__(self, other: Any) -> Any:
        return ops().floor_divide(self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return ops().floor_divide(other, self)

    def __mod__(self, other: Any) -> Any:
        return ops().mod(self, other)

    def __rmod__(self, other: Any) -> Any:
        return ops().mod(other, self)

    def __pow__(self, other: Any) -> Any:
        return ops().power(self, other)

    def __rpow__(self, other: Any) -> Any:
        return ops().power(other, self)

    def __matmul__(self, other: Any) -> Any:
        return ops().matmul(self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return ops().matmul(other, self)

    def __neg__(self) -> Any:
        return ops().negative(self)

    def __abs__(self) -> Any:
        return ops().abs(self)

    def __pos__(self) -> Any:
        return self

    def __round__(self, ndigits: int | None = None) -> Any:
        return ops().round(self, ndigits or 0)

    def __invert__(self) -> Any:
        return ops().bitwise_not(self)

    def __and__(self, other: Any) -> Any:
        return ops().bitwise_and(self, other)

    def __rand__(self, other: Any) -> Any:
        return ops().bitwise_and(other, self)

    def __or__(self, other: Any) -> Any:
        return ops().bitwise_or(self, other)

    def __ror__(self, other: Any) -> Any:
        return ops().bitwise_or(other, self)

    def __xor__(self, other: Any) -> Any:
        return ops().bitwise_xor(self, other)

    def __rxor__(self, other: Any) -> Any:
        return ops().bitwise_xor(other, self)

    def __getitem__(self, key: Any) -> Any:
        return ops().get_item(self, key)

    def reshape(self, *shape: Any) -> Any:
        return ops().reshape(self, shape[0] if len(shape) == 1 else shape)

    def squeeze(self, axis: Any = None) -> Any:
        return ops().squeeze(self, axis)


class ArrayLike(Operators):
    """Shape, numbers, comparison, methods and numpy's functions for something with an array in
    `data`."""

    __slots__ = ()

    data: Array
    requires_grad: bool

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.data.dtype

    @property
    def ndim(self) -> int:
        return self.data.ndim

    @property
    def size(self) -> int:
        return self.data.size

    def numpy(self) -> Array:
        """The array itself (not a copy)."""
        return self.data

    def item(self) -> Any:
        """The one element as a Python number."""
        return self.data.item()

    def tolist(self) -> Any:
        """The elements as nested Python lists."""
        return self.data.tolist()

    def __repr__(self) -> str:
        kind = type(self).__name__
        body = np.array2string(self.data, separator=", ", prefix=f"{kind}(", threshold=100)
        more = ", requires_grad=True" if self.requires_grad else ""
        return f"{kind}({body}, shape={self.shape}, dtype={self.dtype}{more})"

    def __len__(self) -> int:
        return len(self.data)

    def __float__(self) -> float:
        return float(self.data)

    def __int__(self) -> int:
        return int(self.data)

    def __index__(self) -> int:
        return self.data.__index__()

    def __bool__(self) -> bool:
        return bool(self.data)

    def __format__(self, spec: str) -> str:
        return format(self.data.item() if spec and self.data.size == 1 else self.data, spec)

    def __iter__(self) -> Iterator[Any]:
        if not self.data.ndim:
            raise TypeError("A Tensor without axes cannot be iterated over.")
        return iter(ops().unstack(self))  # the rows share one gradient array

    # ---------------------------------------------------------------- meeting numpy

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy:
            return np.array(self.data, dtype=dtype)
        return self.data if dtype is None else self.data.astype(dtype, copy=False)

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        function = getattr(ops(), ufunc.__name__, None)
        if is_in_place(args, kwargs):
            kwargs = {}
        if method != "__call__" or function is None or kwargs:
            called = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
            raise TypeError(
                f"numpy.{called} with {sorted(kwargs) or 'these arguments'} has no gradient on a "
                "Tensor. Use a function of picodl.ops, or .numpy() for the plain array."
            )
        return function(*args)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        function = op_of(func, args)
        if function is not None:
            return function(*args, **kwargs)
        result = func(*plain(args), **plain(kwargs))
        if thread.recording and holds_floats(result) and asks_gradient([args, kwargs]):
            raise TypeError(
                f"numpy.{func.__name__} would lose the gradient of a Tensor: picodl.ops has no "
                "such function. Compose it, or pass .numpy() for the plain array."
            )
        return result

    def astype(self, dtype: Any) -> Any:
        return ops().cast(self, dtype)

    def transpose(self, *axes: Any) -> Any:
        return ops().transpose(self, (axes[0] if len(axes) == 1 else axes) or None)

    @property
    def T(self) -> Any:
        return self.transpose()

    def sum(self, axis: Any = None, keepdims: bool = False) -> Any:
        return ops().sum(self, axis, keepdims)

    def mean(self, axis: Any = None, keepdims: bool = False) -> Any:
        return ops().mean(self, axis, keepdims)

    def max(self, axis: Any = None, keepdims: bool = False) -> Any:
        return ops().max(self, axis, keepdims)

    def min(self, axis: Any = None, keepdims: bool = False) -> Any:
        return ops().min(self, axis, keepdims)

    def matmul(self, other: Any) -> Any:
        return ops().matmul(self, other)

    dot = matmul

    def __eq__(self, other: Any) -> Any:
        return self.data == plain(other)

    def __ne__(self, other: Any) -> Any:
        return self.data != plain(other)

    def __lt__(self, other: Any) -> Any:
        return self.data < plain(other)

    def __le__(self, other: Any) -> Any:
        return self.data <= plain(other)

    def __gt__(self, other: Any) -> Any:
        return self.data > plain(other)

    def __ge__(self, other: Any) -> Any:
        return self.data >= plain(other)


# -------------------------------------------------------------------- which op answers


def is_in_place(args: Any, kwargs: Any) -> bool:
    """Whether a ufunc was called as `array += tensor`.

    The name on the left then stands for the sum, a new Tensor; the array stays as it is.
    """
    out = kwargs.get("out", ())
    there = len(kwargs) == 1 and len(out) == 1 and type(out[0]) is np.ndarray
    return there and len(args) == 2 and out[0] is args[0]


# numpy's functions whose later arguments stand in another order: how many may come by position
_BY_POSITION = {
    **dict.fromkeys(("sum", "mean", "std", "var", "prod", "max", "min", "amax", "amin"), 2),
    **dict.fromkeys(("argmax", "argmin", "any", "all", "ptp", "median", "nanmedian"), 2),
    **dict.fromkeys(("nansum", "nanmean", "nanstd", "nanvar", "nanprod", "nanmax", "nanmin"), 2),
    **dict.fromkeys(("quantile", "percentile", "nanquantile", "nanpercentile"), 3),
    **dict.fromkeys(("unique", "nan_to_num", "copy"), 1),
}


def op_of(func: Any, args: Sequence[Any]) -> Callable[..., Any] | None:
    """The op that answers a numpy function called on a Tensor or Symbol, or None.

    Raises:
        TypeError: if arguments came by position that mean something else to the op.
    """
    name = func.__name__
    if func.__module__ not in ("numpy", "numpy.linalg") or name == "lstsq":  # it returns more
        return None
    function = getattr(ops(), name, None)
    if function is not None and len(args) > _BY_POSITION.get(name, len(args)):
        raise TypeError(
            f"numpy.{name} on a {type(args[0]).__name__}: pass the arguments after the first "
            f"{_BY_POSITION[name]} by name, or use picodl.ops.{name}."
        )
    return function


def holds_floats(result: Any) -> bool:
    """Whether there is an array of floats among the results of a numpy function."""
    if isinstance(result, (list, tuple)):
        return any(holds_floats(part) for part in result)
    return getattr(result, "dtype", np.dtype(bool)).kind == "f"


def holds_tensor(data: Any) -> bool:
    """Whether a Tensor or symbolic value lies in nested lists or tuples."""
    return any(
        isinstance(x, ArrayLike) or (isinstance(x, (list, tuple)) and holds_tensor(x)) for x in data
    )


def asks_gradient(x: Any) -> bool:
    """Whether a Tensor in a structure requires a gradient."""
    if isinstance(x, dict):
        x = list(x.values())
    if isinstance(x, (list, tuple)):
        return any(asks_gradient(part) for part in x)
    return isinstance(x, ArrayLike) and x.requires_grad


def plain(x: Any) -> Any:
    """Tensors replaced by their arrays, also inside lists, tuples and dicts."""
    if isinstance(x, ArrayLike):
        return x.data
    if isinstance(x, (list, tuple)):
        return type(x)(plain(part) for part in x)
    if isinstance(x, dict):
        return {key: plain(part) for key, part in x.items()}
    return x
