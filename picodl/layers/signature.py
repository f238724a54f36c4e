"""What the call of a layer class takes, read once per class; and what it gives, by a trial."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from picodl import config, symbolic, tree
from picodl.config import thread
from picodl.symbolic import Symbol
from picodl.tensor import Tensor


class CallSignature:
    """The arguments of a class's `call` (or `forward`).

    Attributes:
        names: of the arguments, without self.
        several: whether more than one of them can be data.
        training, mask: whether it takes these.
        training_default: the default of training, False where there is none.
        makes_masks: whether the class has a compute_mask of its own.
        plain: whether the call takes one input, and neither training nor a mask.
        by_call: whether `forward` is the default, which runs `call`.
    """

    __slots__ = (
        "by_call",
        "makes_masks",
        "mask",
        "names",
        "plain",
        "several",
        "training",
        "training_default",
    )

    def __init__(self, cls: Any) -> None:
        from picodl.module import Module

        self.by_call = cls.forward is Module.forward
        function = cls.call if self.by_call else cls.forward
        parameters = inspect.signature(function).parameters
        self.names = [n for n in parameters if n != "self"]
        self.training = "training" in parameters
        default = parameters["training"].default if self.training else False
        self.training_default = bool(default) if isinstance(default, bool) else False
        self.mask = "mask" in parameters
        self.several = any(n.endswith("_mask") and n != "attention_mask" for n in self.names)
        self.makes_masks = "compute_mask" in _overridden(cls)
        self.plain = len(self.names) == 1 and not self.training and not self.makes_masks

    @classmethod
    def of(cls, layer_class: Any) -> CallSignature:
        """The signature of a layer class, kept on the class."""
        if layer_class._signature is None:
            layer_class._signature = cls(layer_class)
        return layer_class._signature

    def find_masks(self, args: Any, kwargs: Any) -> Any:
        """The mask of the first argument; with `<name>_mask` arguments, fills these in kwargs."""
        if self.several:
            for name, given in [*zip(self.names, args, strict=False), *list(kwargs.items())]:
                key = f"{name}_mask"
                if key in self.names and kwargs.get(key) is None:
                    mask = _mask_of(given)
                    if mask is not None:
                        kwargs[key] = mask
        return _mask_of(args[0] if args else next(iter(kwargs.values()), None))

    def shapes_for(self, method: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The shapes of the data arguments as a method such as build wants them: the first one
        alone, or each under `<name>_shape`."""
        wanted = [n for n in inspect.signature(method).parameters if n != "self"]
        given = dict(zip(self.names, args, strict=False)) | {
            k: v for k, v in kwargs.items() if k not in ("training", "mask")
        }
        shapes = {f"{n}_shape": _shape_of(v) for n, v in given.items() if _is_data(v)}
        matching = {n: shapes[n] for n in wanted if n in shapes}
        if len(shapes) > 1 and len(matching) > 1:
            return (), matching
        if args:
            return (_shape_of(args[0]),), {}
        return (next(iter(shapes.values()), None),), {}


def _overridden(cls: Any) -> set[str]:
    """Names defined in the classes between cls and Layer."""
    names: set[str] = set()
    for base in cls.__mro__:
        if base.__name__ == "Layer" and base.__module__ == "picodl.layers.base":
            break
        names |= set(vars(base))
    return names


def _mask_of(x: Any) -> Any:
    if isinstance(x, Tensor):
        return x.mask
    if isinstance(x, (list, tuple)):
        masks = [_mask_of(part) for part in x]
        return masks if any(m is not None for m in masks) else None
    return None


def _is_data(x: Any) -> bool:
    return any(isinstance(leaf, (Tensor, symbolic.Symbol)) for leaf in tree.flatten(x))


def _shape_of(x: Any) -> Any:
    if isinstance(x, dict):
        return {key: _shape_of(part) for key, part in x.items()}
    if isinstance(x, (list, tuple)):
        return [_shape_of(part) for part in x]
    return tuple(x.shape) if hasattr(x, "shape") else None


def tried_out(layer: Any, args: Any, kwargs: Any) -> Any:
    """What a call of a layer on Symbols gives, as a structure of Specs.

    It runs on small arrays; nothing is recorded, and states and random generators are put back.
    """
    states = [w for w in layer.parameters() if not w.requires_grad and w.data.flags.writeable]
    before = [(w, w.data.copy()) for w in states]
    generators = [
        (part, part.get_state())
        for module in layer.modules()
        for part in vars(module).values()
        if hasattr(part, "get_state") and hasattr(part, "set_state")
    ]
    names = thread.names
    if not layer._called and names[-1:] == (layer.name,):
        names = names[:-1]  # the first call opens the scope itself
    with config.thread_values(losses=[], names=names):
        try:
            return symbolic.infer(layer, args, kwargs)
        except Exception:
            if not CallSignature.of(type(layer)).mask or "mask" in kwargs or not args:
                raise
            shape = getattr(args[0], "shape", ())  # it may insist on the mask it will get
            return symbolic.infer(layer, args, {**kwargs, "mask": Symbol(shape[:2], "bool")})
        finally:
            for weight, values in before:
                weight.data[...] = values
            for generator, state in generators:
                generator.set_state(state)
