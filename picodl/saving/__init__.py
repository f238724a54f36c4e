"""Files: Keras's formats both ways, safe to load, written whole or not at all."""

from picodl.saving.registry import (
    CustomObjectScope,
    custom_object_scope,
    get_custom_objects,
    get_registered_name,
    get_registered_object,
    register_keras_serializable,
)
from picodl.saving.serialization import deserialize_keras_object, serialize_keras_object
