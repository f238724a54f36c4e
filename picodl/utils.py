"""Helpers around models and training, in one place under Keras's names."""

from __future__ import annotations

import importlib
from typing import Any

from picodl.callbacks.progress import (
    Progbar,
    disable_interactive_logging,
    enable_interactive_logging,
    is_interactive_logging_enabled,
)
from picodl.helpers import (
    clear_session,
    get_source_inputs,
    is_keras_tensor,
    normalize,
    pack_x_y_sample_weight,
    set_random_seed,
    split_dataset,
    standardize_dtype,
    to_categorical,
    unpack_x_y_sample_weight,
)
from picodl.models.prefetch import prefetch
from picodl.models.pydataset import PyDataset, Sequence
from picodl.saving import (
    CustomObjectScope,
    custom_object_scope,
    deserialize_keras_object,
    get_custom_objects,
    get_registered_name,
    get_registered_object,
    load_torch_state_dict,
    register_keras_serializable,
    serialize_keras_object,
)

# imported from these modules when they are first used
_LAZY = {
    "CharacterTokenizer": "preprocessing.text",
    "array_to_img": "images",
    "get_file": "downloads",
    "image_dataset_from_directory": "images",
    "img_to_array": "images",
    "load_img": "images",
    "model_to_dot": "visualize",
    "pad_sequences": "sequence_data",
    "plot_model": "visualize",
    "save_img": "images",
    "smart_resize": "images",
    "text_dataset_from_directory": "sequence_data",
    "timeseries_dataset_from_array": "sequence_data",
}

__all__ = [
    "CustomObjectScope", "Progbar", "PyDataset", "Sequence", "clear_session",
    "custom_object_scope", "deserialize_keras_object", "disable_interactive_logging",
    "enable_interactive_logging", "get_custom_objects", "get_registered_name",
    "get_registered_object", "get_source_inputs", "is_interactive_logging_enabled",
    "is_keras_tensor", "load_torch_state_dict", "normalize", "pack_x_y_sample_weight", "prefetch",
    "register_keras_serializable", "serialize_keras_object", "set_random_seed", "split_dataset",
    "standardize_dtype", "to_categorical", "unpack_x_y_sample_weight",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f"picodl.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'picodl.utils' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
