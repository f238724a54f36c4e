"""Where each weight of a model stands in a file: paths made of attributes, as in Keras."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from picodl.layers.weights import own_variables
from picodl.module import Module
from picodl.naming import to_snake_case
from picodl.saving.own_state import keeps_its_own, kept_by
from picodl.tensor import Tensor
from picodl.typing import Array

_HIDDEN = ("_layers", "_source", "optimizer")  # found under `layers`, or no part of the weights


class Place(NamedTuple):
    """One object of the file: `path/vars` holds its own variables, numbered."""

    path: str
    name: str
    variables: list[Any]
    owner: Any = None

    @property
    def base(self) -> str:
        """The path of the group that holds the variables."""
        return f"{self.path}/vars" if self.path else "vars"

    def items(self) -> Iterator[tuple[str, Any]]:
        """(path of the dataset, variable) of each variable."""
        base = self.base
        return ((f"{base}/{number}", variable) for number, variable in enumerate(self.variables))

    def values(self) -> Iterator[tuple[str, Array]]:
        """(path of the dataset, values) of each variable, a low-rank change worked in; where the
        object says itself what it keeps, of that."""
        if keeps_its_own(self.owner):
            return ((f"{self.base}/{name}", a) for name, a in kept_by(self.owner).items())
        merged = self.owner.merged_weights() if hasattr(self.owner, "merged_weights") else {}
        return ((path, merged.get(id(v), v.data)) for path, v in self.items())


def places(model: Module, left_out: Collection[Any] = ()) -> list[Place]:
    """The objects of a model in the order of the file, each at the first path that leads to it;
    none that are left out, nor what only leads through these.

    The path is made of attribute names, alphabetical with private ones last. What stands in a list,
    tuple or dict is named after its class, numbered. A model's layers come under `layers`, so
    their own names play no part.
    """
    found: list[Place] = []
    seen = set(map(id, left_out))
    stack: list[tuple[str, Module]] = [("", model)]
    while stack:
        path, module = stack.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        own = own_variables(module)
        found.append(Place(path, getattr(module, "name", type(module).__name__), own, module))
        stack.extend(reversed([(_join(path, name), m) for name, m in _children(module)]))
    return found


def title(model: Module) -> str:
    """What a model is called in messages: model "digits", or the class of a plain module."""
    name = getattr(model, "name", None)
    return f'model "{name}"' if name else f"module {type(model).__name__}"


def _children(module: Module) -> Iterator[tuple[str, Module]]:
    held = {
        name: part
        for name, part in vars(module).items()
        if not isinstance(part, Tensor) and name not in _HIDDEN
    }
    layers = getattr(type(module), "layers", None)
    names = sorted(held, key=lambda name: (name.startswith("_"), name))
    if isinstance(layers, property):
        held["layers"] = module.layers  # type: ignore[attr-defined]
        at = 0 if _is_graph(module) else len([n for n in names if n < "layers" and n[0] != "_"])
        names = [n for n in names if n != "layers"]
        names.insert(at, "layers")
    renamed = getattr(module, "saved_names", {})
    for name in names:
        yield from _named(renamed.get(name, name), held[name])


def _is_graph(module: Module) -> bool:
    """Whether it is a Sequential model or one of symbols, of whatever class: their layers come
    before all attributes."""
    if getattr(module, "_graph", None) is not None:
        return True
    return any(cls.__name__ == "Sequential" for cls in type(module).__mro__)


def _named(name: str, part: Any) -> Iterator[tuple[str, Module]]:
    """(path, module) of an attribute, which may be a module or a container of modules."""
    stack = [(name, part)]
    seen: set[int] = set()
    while stack:
        path, part = stack.pop()
        if isinstance(part, Module):
            yield path, part
        elif isinstance(part, (list, tuple, dict)) and id(part) not in seen:
            seen.add(id(part))
            used: dict[str, int] = {}
            inside = []
            for child in part.values() if isinstance(part, dict) else part:
                if isinstance(child, Module):
                    label = to_snake_case(getattr(child, "saved_class", type(child).__name__))
                elif isinstance(child, (list, tuple, dict)):
                    label = "container"
                else:
                    continue
                count = used[label] = used.get(label, -1) + 1
                inside.append((f"{path}/{label}_{count}" if count else f"{path}/{label}", child))
            stack.extend(reversed(inside))


def _join(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name
