"""The one place where names from files are looked up: picodl's own objects, and the user's."""

from __future__ import annotations

import functools
import importlib
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from picodl.config import thread, thread_values

T = TypeVar("T")

# kind -> (Keras's module of that kind, class name -> object); filled by the packages themselves
_kinds: dict[str, tuple[str, dict[str, Any]]] = {}
_registered: dict[str, Any] = {}
_names: dict[Any, str] = {}
_lock = threading.Lock()

# what the parts of a module's name may be for its objects to be looked up: never imported
_ROOTS = {"keras", "tf_keras", "keras_core", "tensorflow", "picodl"}
_PLACES = {
    "layers": "layer",
    "models": "model",
    "engine": "layer",
    "losses": "loss",
    "metrics": "metric",
    "schedules": "schedule",
    "learning_rate_schedule": "schedule",
    "optimizers": "optimizer",
    "optimizer": "optimizer",
    "initializers": "initializer",
    "regularizers": "regularizer",
    "constraints": "constraint",
    "activations": "activation",
    "dtype_policies": "policy",
    "distillation": "distillation",
    "random": "random",
    "ops": "operation",
}


def add_kind(kind: str, module: str, objects: Mapping[str, Any]) -> None:
    """Make picodl's own objects of one kind known under their names.

    Args:
        kind: what one of them is called in messages: "layer", "loss", ...
        module: the module under which Keras exports them, such as "keras.layers".
        objects: name -> class or function; kept, not copied, so that it may still grow.
    """
    _kinds[kind] = (module, objects if isinstance(objects, dict) else dict(objects))


def kind_of_module(module: str | None) -> str | None:
    """The kind that the module's name speaks of, None for a module picodl does not know.

    The name is only compared with the names Keras uses; nothing is imported.

    >>> kind_of_module("keras.src.layers.core.dense"), kind_of_module("os")
    ('layer', None)
    """
    parts = str(module).split(".")
    if parts[0] not in _ROOTS:
        return None
    places = [_PLACES[part] for part in parts if part in _PLACES]
    if "schedule" in places:
        return "schedule"
    return places[0] if places else ("model" if len(parts) == 1 else None)


@functools.cache
def load_all() -> None:
    """Import every package of picodl that makes its objects known here, as nobody else may have."""
    for package in ("layers", "losses", "metrics", "models", "optimizers", "activations",
                    "initializers", "regularizers", "constraints", "ops", "random",
                    "distillation"):  # fmt: skip
        importlib.import_module(f"picodl.{package}")


def find_builtin(name: str, kind: str | None = None) -> tuple[Any, str]:
    """picodl's own object of that name with its kind, or (None, "").

    Layers and models are looked up together, since each may stand where the other does.
    """
    load_all()
    models = {"layer": ("layer", "model"), "model": ("model", "layer", "distillation")}
    wanted = models.get(kind or "", (kind,))
    for known in _kinds if kind is None else wanted:
        found = _kinds.get(known or "", ("", {}))[1].get(name)
        if found is not None:
            return found, str(known)
    return None, ""


def builtin_names(kind: str) -> list[str]:
    """The names of picodl's own objects of a kind."""
    return sorted(_kinds.get(kind, ("", {}))[1])


def home_of(obj: Any) -> str | None:
    """The Keras module of one of picodl's own classes or functions; None for anybody else's."""
    name = getattr(obj, "__name__", "")
    for module, objects in _kinds.values():
        if objects.get(name) is obj:
            return module
    return None


def find_custom(*names: Any) -> Any:
    """The user's object of the first of these names that is known, or None.

    Scopes are searched from the innermost outwards, then what was registered.
    """
    for name in names:
        if not isinstance(name, str):
            continue
        for scope in reversed(thread.custom_objects):
            if name in scope:
                return scope[name]
        if name in _registered:
            return _registered[name]
    return None


def register_keras_serializable(
    package: str = "Custom", name: str | None = None
) -> Callable[[T], T]:
    """Decorator: let files name this class or function, as `package>name`.

    Args:
        package: a word that keeps the names of different projects apart.
        name: defaults to the object's own name.

    Raises:
        ValueError: for a class without `get_config`, which could not be written.

    >>> @register_keras_serializable("guide")
    ... def double(x):
    ...     return 2 * x
    >>> get_registered_name(double)
    'guide>double'
    """

    def register(obj: T) -> T:
        if inspect.isclass(obj) and not hasattr(obj, "get_config"):
            raise ValueError(
                f"{obj.__name__} has no get_config() method, so it cannot be saved. "
                "Define one, or do not register the class."
            )
        key = f"{package}>{name or obj.__name__}"  # type: ignore[attr-defined]
        with _lock:
            _registered[key] = obj
            _names[obj] = key
        return obj

    return register


def get_registered_name(obj: Any) -> str:
    """`package>name` of a registered class or function, else its own name."""
    known = _names.get(obj) if getattr(obj, "__hash__", None) else None
    return known or obj.__name__


def get_registered_object(
    name: str,
    custom_objects: Mapping[str, Any] | None = None,
    module_objects: Mapping[str, Any] | None = None,
) -> Any:
    """The class or function of a registered name, or None.

    Args:
        name: as `get_registered_name` gives it.
        custom_objects, module_objects: searched after the scopes and the registry.
    """
    found = find_custom(name)
    if found is None:
        found = (custom_objects or {}).get(name)
    return found if found is not None else (module_objects or {}).get(name)


def get_custom_objects() -> dict[str, Any]:
    """The dictionary of everything registered; what is put into it is known from then on."""
    return _registered


@contextmanager
def custom_object_scope(*custom_objects: Mapping[str, Any] | None) -> Iterator[None]:
    """Inside the with block files may name these classes and functions.

    >>> with custom_object_scope({"double": lambda x: 2 * x}):
    ...     find_custom("double")(4)
    8
    """
    scopes = [check_custom_objects(scope) for scope in custom_objects if scope]
    with thread_values(custom_objects=(*thread.custom_objects, *scopes)):
        yield


class CustomObjectScope:
    """`custom_object_scope` under Keras's class name."""

    def __init__(self, custom_objects: Mapping[str, Any]) -> None:
        self.custom_objects = custom_objects

    def __enter__(self) -> CustomObjectScope:
        self._scope = custom_object_scope(self.custom_objects)
        self._scope.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._scope.__exit__(*error)


def check_custom_objects(custom_objects: Any) -> Mapping[str, Any]:
    """The mapping itself.

    Raises:
        TypeError: unless it maps names to objects.
    """
    if not isinstance(custom_objects, Mapping) or not all(
        isinstance(key, str) for key in custom_objects
    ):
        raise TypeError(
            "custom_objects must be a dict of names and classes or functions, such as "
            f'{{"MyLayer": MyLayer}}; received {custom_objects!r}.'
        )
    return custom_objects
