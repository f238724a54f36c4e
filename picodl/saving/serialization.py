"""Objects to plain dicts that JSON can hold, and back, by names that the registry knows.

A dict never chooses what Python runs: its names are looked up in `registry`, its module is compared
with the names Keras uses, and nothing is imported, evaluated or unpickled.
"""

from __future__ import annotations

import copy
import inspect
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from picodl.config import DTypePolicy, thread, thread_values
from picodl.naming import suggest
from picodl.saving import registry
from picodl.tensor import Tensor
from picodl.typing import Config

_PLAIN = (bool, int, float, str, type(None))
_NUMBERS = "biuf"


class ConfigError(ValueError):
    """A config that does not describe an object: the message says which part and why."""


# ---------------------------------------------------------------------------- writing


def serialize_keras_object(obj: Any) -> Any:
    """What JSON can hold of an object: {"module", "class_name", "config", "registered_name"}.

    Numbers, strings and None stay; lists, tuples and dicts are gone through; arrays, bytes and
    slices get special class names, as in Keras.

    Args:
        obj: a plain value, a named function, or an object with `get_config`.

    Raises:
        ValueError: for a lambda, and for an object without `get_config`.

    >>> serialize_keras_object({"sizes": (1, 2), "pad": slice(0, None)})["sizes"]
    [1, 2]
    """
    outermost = thread.shared is None
    with _sharing():
        made = _serialize(obj)
    if outermost:
        _drop_ids(made, {i for i, n in Counter(_ids(made)).items() if n == 1})
    return made


def _ids(made: Any) -> Iterator[int]:
    """The shared_object_id of every object in a config, as often as it is mentioned."""
    if isinstance(made, dict):
        if "shared_object_id" in made:
            yield made["shared_object_id"]
        for part in made.values():
            yield from _ids(part)
    elif isinstance(made, list):
        for part in made:
            yield from _ids(part)


def _drop_ids(made: Any, single: set[int]) -> None:
    if isinstance(made, dict):
        if made.get("shared_object_id") in single:
            del made["shared_object_id"]
        made = list(made.values())
    if isinstance(made, list):
        for part in made:
            _drop_ids(part, single)


def _serialize(obj: Any) -> Any:
    if isinstance(obj, _PLAIN):
        return obj
    if isinstance(obj, (list, tuple)):
        return [_serialize(part) for part in obj]
    if isinstance(obj, dict):
        return {str(key): _serialize(part) for key, part in obj.items()}
    if isinstance(obj, np.generic):
        return obj.item()
    if isinstance(obj, (np.ndarray, Tensor)):
        array = np.asarray(obj)
        value = {"value": array.tolist(), "dtype": array.dtype.name}
        return {"class_name": "__numpy__", "config": value}
    if isinstance(obj, bytes):
        return {"class_name": "__bytes__", "config": {"value": obj.decode("utf-8")}}
    if isinstance(obj, slice):
        parts = {"start": obj.start, "stop": obj.stop, "step": obj.step}
        return {"class_name": "__slice__", "config": _serialize(parts)}
    if obj is Ellipsis:
        return {"class_name": "__ellipsis__", "config": {}}
    if isinstance(obj, np.dtype) or (inspect.isclass(obj) and issubclass(obj, np.generic)):
        return np.dtype(obj).name
    if hasattr(obj, "get_config") and not inspect.isclass(obj):
        return _serialize_object(obj)
    if callable(obj) and hasattr(obj, "__name__"):
        return _serialize_function(obj)
    raise ValueError(
        f"An object of type {type(obj).__name__} cannot be saved: it has no get_config() method. "
        f"Received {obj!r}."
    )


def _serialize_object(obj: Any) -> Config:
    cls = type(obj)
    if thread.shared is not None and id(obj) in thread.shared:
        return copy.deepcopy(thread.shared[id(obj)][1])
    home = registry.home_of(cls)
    made: Config = {"module": home, "class_name": cls.__name__}
    if thread.shared is not None:  # equal numbers mean the same object
        made["shared_object_id"] = len(thread.shared)
        thread.shared[id(obj)] = (obj, made)
    made["config"] = _serialize(obj.get_config())
    made["registered_name"] = None
    if home is None:
        made["registered_name"] = registry.get_registered_name(cls)
        made["module"] = cls.__module__ if ">" not in made["registered_name"] else None
    elif cls.__name__ == "Functional":
        made["module"], made["registered_name"] = "keras.src.models.functional", "Functional"
    built = obj.get_build_config() if hasattr(obj, "get_build_config") else None
    if built is not None:
        made["build_config"] = _serialize(built)
    if hasattr(obj, "get_compile_config"):
        made["compile_config"] = _serialize(obj.get_compile_config() or {})
    return made


def _serialize_function(function: Any) -> Config:
    name = function.__name__
    if name == "<lambda>":
        raise ValueError(
            "A lambda cannot be saved: nothing could load it again. Define a function with def, "
            "and pass it in custom_objects when loading (or register it with "
            "picodl.saving.register_keras_serializable)."
        )
    if registry.home_of(function) is None:
        name = registry.get_registered_name(function)
    return {
        "module": "builtins",
        "class_name": "function",
        "config": name,
        "registered_name": "function",
    }


@contextmanager
def _sharing() -> Iterator[None]:
    """One table of the objects met so far, for everything written or read inside the block."""
    if thread.shared is not None:
        yield
        return
    with thread_values(shared={}):
        yield


# ---------------------------------------------------------------------------- reading


def deserialize_keras_object(
    config: Any,
    custom_objects: Mapping[str, Any] | None = None,
    safe_mode: bool = True,
    kind: str | None = None,
    module_objects: Mapping[str, Any] | None = None,
    printable_module_name: str = "object",
) -> Any:
    """The object that a config describes; the inverse of `serialize_keras_object`.

    Args:
        config: as `serialize_keras_object` gives it, or as Keras writes it.
        custom_objects: name -> class or function, for names that picodl does not know.
        safe_mode: code in a config is never run; False only warns.
        kind: "layer", "loss", ...: what is looked for when the config does not say.
        module_objects: name -> class or function of a family of the user's own, from which a plain
            name may choose too; a class is called without arguments.
        printable_module_name: what one of that family is called in messages.

    Returns: the object; plain values, lists and dicts come back as they are.

    Raises:
        ValueError: for an unknown name, code, or a config that its class does not take.

    >>> deserialize_keras_object({"class_name": "__slice__", "config": {"start": 1, "stop": 3,
    ...                                                                  "step": None}})
    slice(1, 3, None)
    """
    if not safe_mode:
        warn_of_safe_mode()
    family = dict(module_objects or {})
    with registry.custom_object_scope(family | dict(custom_objects or {})), _sharing():
        if not family or not isinstance(config, str):
            return _deserialize(config, kind)
        found = registry.find_custom(config)
        if found is None:
            raise ValueError(
                f"Unknown {printable_module_name} {config!r}.{suggest(config, list(family))}"
            )
        return found() if inspect.isclass(found) else found


def warn_of_safe_mode() -> None:
    """Say that safe_mode=False changes nothing."""
    warnings.warn(
        "safe_mode=False has no effect: picodl never runs code from a file. Pass the functions "
        "the file needs in custom_objects.",
        stacklevel=3,
    )


def _deserialize(config: Any, kind: str | None = None) -> Any:
    if isinstance(config, (list, tuple)):
        return [_deserialize(part) for part in config]
    if not isinstance(config, dict):
        return config
    if "class_name" not in config:
        return {key: _deserialize(part) for key, part in config.items()}
    name = config["class_name"]
    if not isinstance(name, str):
        raise ConfigError(f"class_name must be a string; received {shorten(name)}.")
    if name in _SPECIAL:
        try:
            return _SPECIAL[name](config.get("config"))
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise ConfigError(
                f"{name} cannot be read from {shorten(config.get('config'))}: {error}"
            ) from error
    if name == "__lambda__":
        raise ConfigError(
            "The config holds the code of a lambda, which picodl never runs. Pass the function in "
            "custom_objects, or save the model again with a named function."
        )
    if name == "function":
        return find_function(config, kind)
    shared = config.get("shared_object_id")
    if shared is None or not isinstance(shared, (int, str)) or thread.shared is None:
        return _make(config, kind)
    key = (shared, name)
    if key not in thread.shared:
        thread.shared[key] = _make(config, kind)
    return thread.shared[key]


def find_function(config: Config, kind: str | None = None) -> Any:
    """The function of a config {"class_name": "function", "config": its name}.

    Raises:
        ValueError: for an unknown name.
    """
    name, module = config.get("config"), config.get("module")
    if isinstance(name, dict):  # an older form: {"config": {"name": ...}}
        name = name.get("name")
    found = registry.find_custom(name, config.get("registered_name"))
    known = module in (None, "builtins") or registry.kind_of_module(module)
    if found is None and isinstance(name, str) and known:
        found = registry.find_builtin(name, kind)[0]
    if found is None and module == "builtins":  # Keras up to 3.6 left the package out
        registered = registry.get_custom_objects()
        found = next((registered[key] for key in registered if key.endswith(f">{name}")), None)
    if found is None:
        raise unknown(str(name), module, kind or "function")
    return found


def find_class(config: Config, kind: str | None = None) -> tuple[Any, str]:
    """The class (or function) that a config names, with its kind ("" for the user's own).

    Raises:
        ValueError: for an unknown name, or a module that is not one of Keras's.
    """
    name, module = config["class_name"], config.get("module")
    found = registry.find_custom(config.get("registered_name"), name)
    if found is not None:
        return found, ""
    if module is None or registry.kind_of_module(module):
        wanted = kind or (None if module is None else registry.kind_of_module(module))
        if wanted == "model" and kind is None:
            wanted = None if str(module).count(".") == 0 else "model"  # "keras" also has policies
        found, of = registry.find_builtin(name, wanted)
        if found is None and kind is not None and module is not None:
            found, of = registry.find_builtin(name, registry.kind_of_module(module))
        if found is not None:
            return found, of
    raise unknown(name, module, kind or registry.kind_of_module(module) or "class")


def unknown(name: str, module: Any, kind: str) -> ConfigError:
    """The error for a name that nobody made known."""
    of = f" of module {shorten(module)}" if module else ""
    hint = suggest(name, registry.builtin_names(kind))
    return ConfigError(
        f"Unknown {kind} {shorten(name)}{of}.{hint} A config may name picodl's own objects, those "
        "registered with picodl.saving.register_keras_serializable, and those passed as "
        f'custom_objects={{"{shorten(name, quote=False)}": ...}}.'
    )


def _make(config: Config, kind: str | None) -> Any:
    cls, _ = find_class(config, kind)
    inner = config.get("config")
    name = config["class_name"]
    if not isinstance(inner, dict):
        raise ConfigError(
            f"{shorten(name)} needs a config, a dict of its arguments; received {shorten(inner)}."
        )
    if not inspect.isclass(cls):
        raise ConfigError(f"{shorten(name)} is a function, but its config describes an object.")
    label = inner.get("name")
    label = f"{name} {shorten(label)}" if isinstance(label, str) else name
    try:
        made = cls.from_config(dict(inner)) if hasattr(cls, "from_config") else cls(**inner)
        if config.get("build_config") and hasattr(made, "build_from_config"):
            made.build_from_config(config["build_config"])
        if config.get("compile_config") and hasattr(made, "compile_from_config"):
            made.compile_from_config(config["compile_config"])
    except ConfigError as error:
        raise ConfigError(f"{label}: {error}") from error
    except Exception as error:
        said = str(error) or type(error).__name__
        if isinstance(error, MemoryError):
            said = "its sizes are larger than the memory."
        raise ConfigError(f"{label} cannot be made from its config: {said}") from error
    return made


def shorten(value: Any, length: int = 80, quote: bool = True) -> str:
    """A value for a message: one line, cut off when long."""
    text = repr(value) if quote or not isinstance(value, str) else value
    text = " ".join(text[: 4 * length].split())
    return text if len(text) <= length else text[: length - 3] + "..."


def _array(config: Config) -> Any:
    dtype = np.dtype(str(config["dtype"]))
    if dtype.kind not in _NUMBERS:
        raise ValueError(f"dtype {dtype} is not one of numbers")
    return np.array(config["value"], dtype)


_SPECIAL: dict[str, Any] = {
    "__numpy__": _array,
    "__tensor__": _array,
    "__bytes__": lambda config: str(config["value"]).encode("utf-8"),
    "__slice__": lambda config: slice(
        *(_deserialize(config[key]) for key in ("start", "stop", "step"))
    ),
    "__ellipsis__": lambda config: Ellipsis,
    "__tuple__": lambda config: tuple(_deserialize(part) for part in config),
}

registry.add_kind("policy", "keras", {"DTypePolicy": DTypePolicy, "FloatDTypePolicy": DTypePolicy})
