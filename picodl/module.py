"""Parameters, and modules that find theirs by one walk over their attributes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from picodl import config
from picodl.config import thread
from picodl.naming import auto_name, scoped
from picodl.tensor import Tensor, creation_number
from picodl.typing import Array


class Parameter(Tensor):
    """A Tensor with a name that a model keeps: a weight, or a state such as a moving average.

    Args:
        initializer: an array, a number, the name of an initializer, or a callable
            `f(shape, dtype)`.
        shape: needed when the initializer is a name or callable.
        dtype: defaults to floatx; integers and bools stay what they are.
        trainable: whether training changes it (it then takes gradients).
        autocast: accepted; the layers decide what dtype they compute in.
        aggregation: accepted, as there is one process only.
        name: the last part of `path`.

    Raises:
        ValueError: for a callable initializer without a shape.

    >>> v = Parameter(np.ones(2), name="v")
    >>> v.assign_add([1.0, 2.0])
    array([2., 3.], dtype=float32)
    """

    __slots__ = ("autocast", "can_train", "constraint", "name", "path", "regularizer")

    def __init__(
        self,
        initializer: Any,
        shape: Any = None,
        dtype: Any = None,
        trainable: bool = True,
        autocast: bool = True,
        aggregation: str = "none",
        name: str | None = None,
        regularizer: Any = None,
        constraint: Any = None,
    ) -> None:
        if isinstance(initializer, str):
            from picodl import initializers

            initializer = initializers.get(initializer)
        if callable(initializer):
            dtype = np.dtype(dtype or config.floatx())
            if shape is None:
                raise ValueError(
                    f"Variable {name!r}: a callable initializer needs a shape; received shape=None."
                )
            if thread.unmade is not None:  # a file with the values is being read
                data = np.broadcast_to(np.zeros((), dtype), tuple(shape))
                thread.unmade.append((self, initializer))
            else:
                data = np.array(Tensor(initializer(tuple(shape), dtype=dtype.name)).data, dtype)
            if data.shape != tuple(shape):
                raise ValueError(
                    f"Variable {name!r}: its initializer returned shape {data.shape} where "
                    f"{tuple(shape)} was asked for."
                )
        else:
            given = Tensor(initializer).data
            whole = dtype is None and given.dtype.kind != "f"
            dtype = given.dtype if whole else np.dtype(dtype or config.floatx())
            data = np.array(given, dtype)
            if shape is not None:
                data = np.broadcast_to(data, tuple(shape)).copy()
        trains = trainable and dtype.kind == "f"
        super().__init__(data, requires_grad=trains)
        self.can_train = trains
        self.autocast = autocast
        self.name = auto_name("variable") if name is None else name
        self.path = scoped(self.name)
        self.regularizer = regularizer
        self.constraint = constraint
        self._order = creation_number()  # Keras's order of weights is that of their creation

    @property
    def trainable(self) -> bool:
        """Whether training changes it; can be set."""
        return self.requires_grad

    @trainable.setter
    def trainable(self, flag: bool) -> None:
        self.requires_grad = bool(flag) and self.data.dtype.kind == "f"

    @property
    def value(self) -> Tensor:
        """The parameter itself, as a Tensor."""
        return self

    def numpy(self) -> Array:
        """A copy of the values: training changes the parameter in place."""
        return self.data.copy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False:
            return self.data
        return np.array(self.data, dtype=dtype)

    def assign(self, value: Any) -> Array:
        """Set the values in place.

        Returns:
            The new values.

        Raises:
            ValueError: if the shapes differ, or for fractions where the variable holds integers.
        """
        given = value.data if isinstance(value, Tensor) else np.asarray(value)
        cuts = self.data.dtype.kind in "iu" and given.dtype.kind == "f"
        if cuts and not (np.isfinite(given) & (np.trunc(given) == given)).all():
            raise ValueError(
                f"The variable {self.path} holds {self.data.dtype}, but was assigned fractions. "
                'Make it with dtype="float32" to keep them.'
            )
        new = given.astype(self.data.dtype, copy=False)
        if new.shape != self.data.shape:
            raise ValueError(
                f"The variable {self.path} has shape {self.data.shape}, but was assigned values of "
                f"shape {new.shape}."
            )
        if thread.stateless is not None:
            thread.stateless.add_update((self, new))
        elif self.data.flags.writeable:
            self.data[...] = new
        else:  # laid out without memory so far
            self.data = np.array(new, self.data.dtype)
        return new

    def assign_add(self, value: Any) -> Array:
        """Add to the values in place, and return the new ones."""
        return self.assign(self.data + Tensor(value).data)

    def assign_sub(self, value: Any) -> Array:
        """Subtract from the values in place, and return the new ones."""
        return self.assign(self.data - Tensor(value).data)

    def __repr__(self) -> str:
        return f"<Variable path={self.path}, shape={self.shape}, dtype={self.dtype}>"

    def __reduce__(self) -> Any:
        state = {name: getattr(self, name) for name in (*Parameter.__slots__, "_order")}
        return _restore_parameter, (self.data, self.requires_grad, state)

    def __deepcopy__(self, memo: dict[int, Any]) -> Parameter:
        restore, (data, requires_grad, state) = self.__reduce__()
        return restore(data.copy(), requires_grad, state)


def _restore_parameter(data: Array, requires_grad: bool, state: dict[str, Any]) -> Parameter:
    parameter = Parameter.__new__(Parameter)
    own = np.dtype(data.dtype.char)  # numpy's object, where pickle makes another that is equal
    data = data.view(own) if data.dtype == own else data.astype(own)  # or of other byte order
    Tensor.__init__(parameter, data, requires_grad)
    for name, item in state.items():
        setattr(parameter, name, item)
    return parameter


Variable = Parameter  # the name that users know


class Module:
    """Something with parameters: they are found in its attributes whenever they are asked for.

    Parameters and modules may stand in attributes, lists, tuples and dicts, nested as one likes and
    added at any time; each is found once, in the order of first assignment. A Tensor with
    requires_grad=True counts as a parameter.
    """

    _training: bool | None = None  # set by train() and eval()

    def parts(self) -> Iterator[tuple[str, Any]]:
        """(path, object) of the parameters and modules held directly, containers looked through."""
        seen: set[int] = set()
        stack = [(name, part) for name, part in reversed(list(vars(self).items()))]
        while stack:
            path, part = stack.pop()
            if isinstance(part, (Module, Tensor)):
                if not isinstance(part, Tensor) or is_parameter(part):
                    yield path, part
            elif isinstance(part, _CONTAINERS) and id(part) not in seen:
                seen.add(id(part))
                inside = part.items() if isinstance(part, dict) else enumerate(part)
                stack.extend(reversed([(f"{path}/{key}", p) for key, p in inside]))

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """(path, module) of this module and all below it, each once."""
        seen: set[int] = set()
        stack: list[tuple[str, Module]] = [(prefix, self)]
        while stack:
            path, module = stack.pop()
            if id(module) in seen:
                continue
            seen.add(id(module))
            yield path, module
            below = [(_join(path, p), m) for p, m in Module.parts(module) if isinstance(m, Module)]
            stack.extend(reversed(below))

    def modules(self) -> Iterator[Module]:
        """This module and all below it, each once."""
        return (module for _, module in self.named_modules())

    def named_parameters(self) -> Iterator[tuple[str, Any]]:
        """(path, parameter) in Keras's order: a module's own trainable ones, its states, then those
        of the modules below it in order of assignment."""
        seen: set[int] = set()
        for path, module in self.named_modules():
            own = [(p, t) for p, t in Module.parts(module) if isinstance(t, Tensor)]
            own.sort(key=_trainable_then_older)
            for name, parameter in own:
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield _join(path, name), parameter

    def parameters(self) -> Iterator[Any]:
        """All parameters, states included, each once."""
        return (parameter for _, parameter in self.named_parameters())

    @property
    def params(self) -> Params:
        """`net.params()` iterates over the trainable parameters; `self.params["w"] = Tensor(...)`
        keeps one by name."""
        return Params(self)

    def zero_grad(self) -> None:
        """Forget the gradients of all parameters."""
        for parameter in self.parameters():
            parameter.grad = None

    def train(self, mode: bool = True) -> Any:
        """Let direct calls behave as in training (dropout on, ...); returns the module."""
        for module in self.modules():
            module._training = mode
        return self

    def eval(self) -> Any:
        """Let direct calls behave as in inference; returns the module."""
        return self.train(False)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module computes; the default is `call`."""
        return self.call(*args, **kwargs)

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """What the module computes, under Keras's name.

        Raises:
            NotImplementedError: unless a subclass defines `call` or `forward`.
        """
        raise NotImplementedError(f"{type(self).__name__} defines neither call() nor forward().")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)


_CONTAINERS = (list, tuple, dict)


class Params:
    """The parameters of a module: called, an iterator; indexed, a dict of the module's own."""

    def __init__(self, module: Module) -> None:
        self._module = module

    def __call__(self) -> Iterator[Any]:
        return (p for p in self._module.parameters() if p.requires_grad)

    def __iter__(self) -> Iterator[Any]:
        return iter(vars(self._module).get("_params", {}))

    def __setitem__(self, name: str, parameter: Any) -> None:
        vars(self._module).setdefault("_params", {})[name] = parameter

    def __getitem__(self, name: str) -> Any:
        return vars(self._module).get("_params", {})[name]


def is_parameter(x: Tensor) -> bool:
    """Whether a tensor counts as a parameter: a Parameter, or a leaf that requires a gradient."""
    return isinstance(x, Parameter) or (x.requires_grad and x._backward is None)


def _trainable_then_older(item: tuple[str, Tensor]) -> tuple[bool, int]:
    return not getattr(item[1], "can_train", True), item[1]._order


def _join(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name
