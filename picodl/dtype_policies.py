"""Dtype policies by name and by config, under the names of keras.dtype_policies."""

from __future__ import annotations

from typing import Any

from picodl.config import DTypePolicy, as_policy
from picodl.saving.serialization import serialize_keras_object
from picodl.typing import Config

__all__ = ["DTypePolicy", "deserialize", "get", "serialize"]


def get(identifier: Any) -> DTypePolicy:
    """The policy of a name, a numpy dtype, a config or a policy; the one in force for None.

    Raises:
        ValueError: for a name that is no policy.

    >>> get("mixed_float16").variable_dtype
    'float32'
    """
    return as_policy(identifier)


def serialize(policy: DTypePolicy) -> Config:
    """The config of a policy, as it stands in the config of a layer."""
    return dict(serialize_keras_object(policy))


def deserialize(config: Config) -> DTypePolicy:
    """The policy of a config that `serialize` gave.

    Raises:
        ValueError: for a name that is no policy.

    >>> deserialize(serialize(DTypePolicy("float64")))
    <DTypePolicy "float64">
    """
    return as_policy(config)
