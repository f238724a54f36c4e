"""Files: Keras's formats both ways, safe to load, written whole or not at all."""

from __future__ import annotations

import importlib
from typing import Any

from picodl.saving.registry import (
    CustomObjectScope,
    custom_object_scope,
    get_custom_objects,
    get_registered_name,
    get_registered_object,
    register_keras_serializable,
)
from picodl.saving.serialization import deserialize_keras_object, serialize_keras_object

# imported when first used: layers need the registry only
_LATER = {
    "FileError": "files",
    "KerasFileEditor": "editor",
    "convert": "contents",
    "describe": "contents",
    "load_model": "api",
    "load_torch_state_dict": "torch_state",
    "load_weights": "api",
    "model_from_json": "api",
    "save_model": "api",
    "save_weights": "api",
}

__all__ = [
    "CustomObjectScope",
    "custom_object_scope",
    "deserialize_keras_object",
    "get_custom_objects",
    "get_registered_name",
    "get_registered_object",
    "register_keras_serializable",
    "serialize_keras_object",
    *_LATER,
]


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(importlib.import_module(f"picodl.saving.{_LATER[name]}"), name)
    raise AttributeError(f"module 'picodl.saving' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
