"""Files: Keras's formats both ways, safe to load, written whole or not at all."""

from picodl.saving.api import load_model, load_weights, model_from_json, save_model, save_weights
from picodl.saving.describe import convert, describe
from picodl.saving.files import FileError
from picodl.saving.registry import (
    CustomObjectScope,
    custom_object_scope,
    get_custom_objects,
    get_registered_name,
    get_registered_object,
    register_keras_serializable,
)
from picodl.saving.serialization import deserialize_keras_object, serialize_keras_object
from picodl.saving.torch_state import load_torch_state_dict

__all__ = [
    "CustomObjectScope",
    "FileError",
    "convert",
    "custom_object_scope",
    "describe",
    "deserialize_keras_object",
    "get_custom_objects",
    "get_registered_name",
    "get_registered_object",
    "load_model",
    "load_torch_state_dict",
    "load_weights",
    "model_from_json",
    "register_keras_serializable",
    "save_model",
    "save_weights",
    "serialize_keras_object",
]
