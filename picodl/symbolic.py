"""Symbols: values that have a shape and a dtype but no numbers yet.

`Input()` makes the first ones; every layer or op called on a Symbol makes a Step, which remembers
what was called with what, and gives Symbols for its results. A functional model is the list of
Steps that lead from its inputs to its outputs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from picodl import config, tree
from picodl.arraylike import Operators, is_in_place, op_of, ops
from picodl.tensor import Tensor
from picodl.typing import Array, Shape

_creation = itertools.count(1)

# sizes that stand in for None while an op is tried out: pairs, apart so that windows and strides do
# not make them equal, the later ones for large windows and for what must be divided
_TRIAL_SIZES = ((2, 7), (16, 49), (64, 193), (48, 240))
_MOST_TRIALS = 24  # of each other kind: what can never fit is to be told soon


class Symbol(Operators):
    """A value to come: shape (None where it varies), dtype, name, and the step that makes it.

    Args:
        shape: with the batch axis first; None for sizes that vary.
        dtype: the dtype or its name.
        name: shown in messages and summaries.
        step: the Step it comes from; None for an input.
        index: which of the step's results it is.
        optional: an input that may be None.
    """

    __slots__ = ("dtype", "index", "mask", "name", "optional", "shape", "step")

    def __init__(
        self,
        shape: Sequence[int | None],
        dtype: Any = "float32",
        name: str = "",
        step: Step | None = None,
        index: int = 0,
        optional: bool = False,
    ) -> None:
        self.shape: Shape = tuple(shape)
        self.dtype: str = dtype if isinstance(dtype, str) else np.dtype(dtype).name
        self.name = name
        self.step = step
        self.index = index
        self.optional = optional
        self.mask: Any = None

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __repr__(self) -> str:
        return f"<Symbol {self.name!r} shape={self.shape} dtype={self.dtype}>"

    def __iter__(self) -> Any:
        if not self.shape or self.shape[0] is None:
            raise TypeError(
                f"{self!r} cannot be iterated over: its first axis has no size yet. "
                "Index it, or use an op such as picodl.ops.unstack(x, num)."
            )
        return (self[i] for i in range(self.shape[0]))

    def _no_numbers(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(
            f"{self!r} has no numbers yet: it describes a value of a model that is being built. "
            "Use layers and picodl.ops on it, and call the finished model on data."
        )

    __array__ = __bool__ = __float__ = __int__ = __index__ = __len__ = numpy = _no_numbers

    def __lt__(self, other: Any) -> Any:
        return ops().less(self, other)

    def __le__(self, other: Any) -> Any:
        return ops().less_equal(self, other)

    def __gt__(self, other: Any) -> Any:
        return ops().greater(self, other)

    def __ge__(self, other: Any) -> Any:
        return ops().greater_equal(self, other)

    def __ne__(self, other: Any) -> Any:  # == stays identity, as for every key of a dict
        return ops().not_equal(self, other)

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        function = getattr(ops(), ufunc.__name__, None)
        if is_in_place(args, kwargs):
            kwargs = {}
        if method != "__call__" or function is None or kwargs:
            return self._no_numbers()
        return function(*args)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        function = op_of(func, args)
        return self._no_numbers() if function is None else function(*args, **kwargs)


KerasTensor = Symbol  # the name that users know


class Step:
    """One call in a graph of Symbols.

    Args:
        call: the layer or op that was called.
        args, kwargs: what it was called with; Symbols stand where tensors will.
        name: the layer's name or the op's.

    Attributes:
        inputs: the Symbols among the arguments, in the order of `tree.flatten`.
        outputs: what the call gives, as a structure of Symbols.
    """

    __slots__ = ("args", "call", "inputs", "kwargs", "name", "order", "outputs")

    def __init__(self, call: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> None:
        self.call = call
        self.args = args
        self.kwargs = kwargs
        self.name = name
        self.inputs = symbols_in((args, kwargs))
        self.order = next(_creation)
        self.outputs: Any = None

    def give(self, specs: Any) -> Any:
        """Make the Symbols of the results from a structure of leaves with a shape and a dtype."""
        leaves = [
            Symbol(s.shape, s.dtype, f"{self.name}:{i}" if i else self.name, self, i)
            if isinstance(s, (Spec, Symbol))
            else s
            for i, s in enumerate(tree.flatten(specs))
        ]
        self.outputs = tree.pack_sequence_as(specs, leaves)
        return self.outputs


class Spec:
    """The shape and dtype of one result."""

    __slots__ = ("dtype", "shape")

    def __init__(self, shape: Sequence[int | None], dtype: str) -> None:
        self.shape = tuple(shape)
        self.dtype = dtype

    def __repr__(self) -> str:
        return f"Spec({self.shape}, {self.dtype})"


def is_symbolic(structure: Any) -> bool:
    """Whether any leaf of a structure is a Symbol."""
    if isinstance(structure, Symbol):
        return True
    if isinstance(structure, (list, tuple, dict)):
        for part in structure.values() if isinstance(structure, dict) else structure:
            kind = type(part)
            if kind is not Tensor and kind is not np.ndarray and is_symbolic(part):
                return True
        return False
    if isinstance(structure, slice):
        return any(isinstance(p, Symbol) for p in (structure.start, structure.stop, structure.step))
    return False


def symbols_in(structure: Any) -> list[Symbol]:
    """The Symbols among the leaves of a structure, in order."""
    return [leaf for leaf in tree.flatten(structure) if isinstance(leaf, Symbol)]


def substitute(structure: Any, leaf: Callable[[Symbol], Any]) -> Any:
    """The structure with every Symbol replaced by leaf(symbol)."""
    return tree.map_structure(lambda x: leaf(x) if isinstance(x, Symbol) else x, structure)


def record_op(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Record a step for an op called on Symbols."""
    step = Step(function, args, kwargs, function.__name__)
    return step.give(infer(function, args, kwargs))


def infer(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a function would give for Symbols, as a structure of Specs.

    It runs unrecorded on small arrays, with two sizes for None: an axis of the result that has two
    sizes is None. The first ones hold zeros, the second ones also ones, so that a size that depends
    on the values is None too.

    Raises:
        ValueError: if it cannot run on such shapes; the message says which.
    """
    problem: Exception | None = None
    for small, large, fixed in _trials(args, kwargs):
        try:
            first = _trial(function, args, kwargs, small, fixed, (np.zeros, _units))
            second = _trial(function, args, kwargs, large, fixed, (_units, np.zeros))
        except (ValueError, IndexError) as error:
            problem = problem or error
            continue
        stretched = 1 in fixed.values()
        if stretched and any(1 in getattr(y, "shape", ()) for y in tree.flatten(first)):
            continue  # it met no other size
        return tree.map_structure(_spec, first, second)
    shapes = ", ".join(str(s.shape) for s in symbols_in((args, kwargs)))
    name = getattr(function, "name", None) or getattr(function, "__name__", str(function))
    raise ValueError(
        f"{name} cannot be called on symbols of shape {shapes}: {problem}"
    ) from problem


def _trials(args: Any, kwargs: Any) -> Iterator[tuple[int, int, dict[Any, int]]]:
    """What to try: two sizes for None, and axes of unknown size that have another one, because they
    meet an axis of a known size: 1 to be stretched, or the same."""
    yield from ((small, large, {}) for small, large in _TRIAL_SIZES)
    leaves = tree.flatten((args, kwargs))
    symbols = [x for x in leaves if isinstance(x, Symbol)]
    unknown = {(id(s), i): None for s in symbols for i, n in enumerate(s.shape) if n is None}
    choices = (itertools.combinations(unknown, n) for n in range(1, len(unknown) + 1))
    for places in itertools.islice(itertools.chain.from_iterable(choices), _MOST_TRIALS):
        yield *_TRIAL_SIZES[0], dict.fromkeys(places, 1)
    sizes = (n for x in leaves for n in getattr(x, "shape", (x,)) if type(n) is int)
    known = {n: None for n in sizes if 1 < n < 4096}
    for place, n in itertools.islice(itertools.product(unknown, known), _MOST_TRIALS):
        yield *_TRIAL_SIZES[0], {place: n}


def _trial(function: Any, args: Any, kwargs: Any, size: int, fixed: Any, fills: Any) -> Any:
    """What the function gives for arrays filled in one of two ways, the first it can take."""

    def run(fill: Any) -> Any:
        def values(symbol: Symbol) -> Tensor:
            shape = tuple(
                fixed.get((id(symbol), i), size) if n is None else n
                for i, n in enumerate(symbol.shape)
            )
            return Tensor(fill(shape, symbol.dtype))

        return function(*substitute(args, values), **substitute(kwargs, values))

    with config.thread_values(recording=False, training=False), np.errstate(all="ignore"):
        try:
            return run(fills[0])
        except (ValueError, IndexError) as error:
            try:
                return run(fills[1])
            except (ValueError, IndexError):
                raise error from None


def _units(shape: tuple[int, ...], dtype: str) -> Array:
    """Zeros, and ones on the diagonal of the last two axes: matrices that have an inverse."""
    rows, columns = (1, 1, *shape)[-2:]
    values: Array = np.zeros((1, 1, *shape), dtype)
    values += np.eye(rows, columns, dtype=dtype)
    return values.reshape(shape)


def _spec(a: Any, b: Any) -> Any:
    if not hasattr(a, "shape"):
        return a
    sizes = zip(a.shape, b.shape, strict=True)
    return Spec(tuple(m if m == n else None for m, n in sizes), str(a.dtype))
