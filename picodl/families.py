"""Objects that have a name and a config: found by name, written to a dict, read back from it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from picodl.naming import suggest, to_snake_case
from picodl.saving import registry
from picodl.saving.serialization import deserialize_keras_object, serialize_keras_object


class Family:
    """One kind of named objects: its get(), serialize() and deserialize().

    Args:
        kind: what one member is called in messages, such as "initializer".
        module: where Keras exports the members, such as "keras.initializers".
        base: the class of the members.
        members: the classes; each is known by its name and by that name in snake case.
        aliases: further names, each with its class or function.
        any_case: whether names are compared without regard to case.
    """

    def __init__(
        self,
        kind: str,
        module: str,
        base: type,
        members: list[type],
        aliases: Mapping[str, Any] | None = None,
        any_case: bool = False,
    ) -> None:
        self.kind = kind
        self.module = module
        self.base = base
        self.any_case = any_case
        self.by_class = {member.__name__: member for member in members}
        self.by_name: dict[str, Any] = {
            **{to_snake_case(member.__name__): member for member in members},
            **self.by_class,
            **(aliases or {}),
        }
        if any_case:
            self.by_name |= {name.lower(): member for name, member in self.by_name.items()}
        registry.add_kind(kind, module, self.by_name)

    def find(self, name: str, custom_objects: Mapping[str, Any] | None = None) -> Any:
        """The class (or function) of that name.

        Raises:
            ValueError: for an unknown name; the nearest known one is suggested.
        """
        with registry.custom_object_scope(custom_objects):
            found = registry.find_custom(name)
        if found is None:
            found = self.by_name.get(name.lower() if self.any_case else name)
        if found is None:
            raise ValueError(
                f"Unknown {self.kind} {name!r}.{suggest(name, self.by_class)} "
                f"Known are {', '.join(sorted(self.by_class))}; pass your own as an object, or its "
                "class in custom_objects."
            )
        return found

    def get(self, identifier: Any) -> Any:
        """The object for a name, a class, a config, a callable or None.

        Raises:
            TypeError: for anything else.
            ValueError: for an unknown name.
        """
        if identifier is None or isinstance(identifier, self.base):
            return identifier
        if isinstance(identifier, str):
            found = self.find(identifier)
            return found() if inspect.isclass(found) else found
        if isinstance(identifier, dict):
            return self.deserialize(identifier)
        if inspect.isclass(identifier) and callable(identifier):
            return identifier()
        if callable(identifier):
            return identifier
        raise TypeError(
            f"Expected the name of a known {self.kind}, a {self.base.__name__} object, its config "
            f"or a callable; received {identifier!r} of type {type(identifier).__name__}."
        )

    def serialize(self, obj: Any) -> Any:
        """The config of an object, as Keras writes it.

        Raises:
            ValueError: for a lambda, which nothing could load again.
        """
        return serialize_keras_object(obj)

    def deserialize(self, config: Any, custom_objects: Mapping[str, Any] | None = None) -> Any:
        """The object that a config (or a name) describes.

        Raises:
            ValueError: for an unknown class, or a config that its class does not take.
        """
        if config is None:
            return None
        if isinstance(config, str):
            found = self.find(config, custom_objects)
            return found() if inspect.isclass(found) else found
        if not isinstance(config, dict) or "class_name" not in config:
            raise ValueError(
                f'The config of a {self.kind} needs "class_name" and "config"; received {config!r}.'
            )
        return deserialize_keras_object(config, custom_objects, kind=self.kind)
