"""Operation: a named computation that can be a step of a functional model; the base of layers."""

from __future__ import annotations

import inspect
from typing import Any

from picodl import naming, symbolic
from picodl.symbolic import Step
from picodl.typing import Config


class Operation:
    """A computation without weights, on arrays and Tensors as on the symbols of a model.

    Subclasses define `call`, built of `picodl.ops`; everything else has defaults.

    Args:
        name: unique in a model. Defaults to the class name in snake case, numbered.

    >>> class Swap(Operation):
    ...     def call(self, x):
    ...         return x[:, ::-1]
    >>> import picodl
    >>> x = picodl.Input((3,))
    >>> picodl.Model(x, Swap()(x)).predict([[1.0, 2.0, 3.0]], verbose=0)
    array([[3., 2., 1.]], dtype=float32)
    """

    name: str
    _auto_config: Config | None = None

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        self = super().__new__(cls)
        self._auto_config = bound_arguments(cls, self, args, kwargs)
        return self

    def __init__(self, name: str | None = None) -> None:
        self.name = name or naming.auto_name(naming.to_snake_case(type(self).__name__))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compute; or, if an argument is a symbol, record the call and give symbols."""
        if symbolic.is_symbolic((args, kwargs)):
            return self.symbolic_call(*args, **kwargs)
        return self.call(*args, **kwargs)

    def symbolic_call(self, *args: Any, **kwargs: Any) -> Any:
        """Record a call on symbols, and give symbols for the results."""
        step = Step(self, args, kwargs, self.name)
        outputs = step.give(self.compute_output_spec(*args, **kwargs))
        vars(self).setdefault("_steps", []).append(step)
        return outputs

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """What it computes.

        Raises:
            NotImplementedError: unless a subclass defines it.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define call().")

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        """Shape and dtype of the results for symbols, as `picodl.symbolic.Spec` leaves: by default
        what `call` gives on small arrays of zeros."""
        return symbolic.infer(self.call, args, kwargs)

    @property
    def input(self) -> Any:
        """The symbol (or structure of symbols) this was first called on in a model."""
        step = self._only_step("input")
        return step.args[0] if step.args else next(iter(step.kwargs.values()), [])

    @property
    def output(self) -> Any:
        """The symbol (or structure of symbols) this gave when it was first called on one."""
        return self._only_step("output").outputs

    def _only_step(self, what: str) -> Step:
        steps = vars(self).get("_steps") or []
        if not steps:
            raise AttributeError(
                f'{type(self).__name__} "{self.name}" has no {what}: it was never called on the '
                "symbols of a model."
            )
        return steps[0]

    def get_config(self) -> Config:
        """What is needed to make an equal one: the arguments of the constructor.

        Raises:
            NotImplementedError: if they are not plain numbers, strings and lists.
        """
        return {"name": self.name, **plain_arguments(self)}

    @classmethod
    def from_config(cls, config: Config) -> Any:
        """A new one from what `get_config` gave."""
        return cls(**config)

    def __getstate__(self) -> dict[str, Any]:
        state = dict(vars(self))
        state.pop("_steps", None)  # symbols refer to each other; models keep their own list
        return state

    def __repr__(self) -> str:
        return f"<{type(self).__name__} name={self.name}>"


def bound_arguments(cls: Any, self: Any, args: Any, kwargs: Any) -> Config | None:
    """The arguments of a constructor call by name, without those that all layers take; None if they
    do not fit it."""
    try:
        bound = inspect.signature(cls.__init__).bind(self, *args, **kwargs)
    except TypeError:
        return None  # the constructor itself will say what is wrong
    bound.apply_defaults()
    found: Config = {}
    for name, value in list(bound.arguments.items())[1:]:
        kind = bound.signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            found.update(value)
        elif kind is not inspect.Parameter.VAR_POSITIONAL:
            found[name] = value
    for common in ("name", "trainable", "dtype", "activity_regularizer", "autocast"):
        found.pop(common, None)
    return found


def plain_arguments(made: Any) -> Config:
    """The arguments an object was made with.

    Raises:
        NotImplementedError: if one of them is not a plain value.
    """
    for key, value in (made._auto_config or {}).items():
        if not _is_plain(value):
            raise NotImplementedError(
                f"{type(made).__name__} takes the argument {key!r}, which is not a plain "
                "value, so it must define get_config() to be saved or cloned."
            )
    return made._auto_config or {}


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(k, str) and _is_plain(v) for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return all(_is_plain(v) for v in value)
    return value is None or isinstance(value, (bool, int, float, str))
