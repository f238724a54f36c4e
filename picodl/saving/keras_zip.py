"""`.keras`: config.json, metadata.json and model.weights.h5 in an archive, read where they are."""

from __future__ import annotations

import datetime
import functools
import json
import os
from collections.abc import Callable
from typing import Any

from picodl.layers.weights import own_variables
from picodl.saving import archive
from picodl.saving.archive import Archive, Folder
from picodl.saving.files import FileError, atomic_write
from picodl.saving.hdf5 import open_hdf5
from picodl.saving.items import make_rest, without_memory
from picodl.saving.layout import places
from picodl.saving.limits import CONFIG_BYTES, MIB, parse_json
from picodl.saving.own_state import keeps_its_own
from picodl.saving.serialization import (
    ConfigError,
    deserialize_keras_object,
    serialize_keras_object,
    shorten,
)
from picodl.saving.weights_h5 import read_optimizer, read_weights, require_built, write_weights
from picodl.typing import Config

# the version of Keras whose format is written; Keras compares nothing but shows it
KERAS_VERSION = "3.15.1"
CONFIG, METADATA, WEIGHTS = "config.json", "metadata.json", "model.weights.h5"


def write_archive(model: Any, path: str) -> None:
    """Write a model to a `.keras` file.

    Raises:
        ValueError: for parts that could not be loaded again, such as lambdas.
    """
    require_built(model)
    refuse_assets(model)
    members = model_members(model)
    with atomic_write(path) as file:
        size = 8 * sum(w.data.nbytes for w in model.weights)  # with the optimizer's state
        write = functools.partial(write_weights, model=model)
        archive.write_archive(file, members, WEIGHTS, write, size)


def write_folder(model: Any, path: str) -> None:
    """Write the members of a `.keras` file into a folder, each of them whole or not at all."""
    require_built(model)
    refuse_assets(model)
    members = model_members(model)
    os.makedirs(path, exist_ok=True)
    for name, data in members.items():
        if os.path.dirname(name):
            os.makedirs(os.path.join(path, os.path.dirname(name)), exist_ok=True)
        with atomic_write(os.path.join(path, name)) as file:
            file.write(data.encode())
    with atomic_write(os.path.join(path, WEIGHTS)) as file:
        write_weights(file, model)


def model_members(model: Any) -> dict[str, str]:
    """The texts of an archive: metadata and config, and the assets of layers that have some."""
    now = datetime.datetime.now().strftime("%Y-%m-%d@%H:%M:%S")
    metadata = {"keras_version": KERAS_VERSION, "date_saved": now, "writer": "picodl"}
    return {
        METADATA: json.dumps(metadata),
        CONFIG: json.dumps(serialize_keras_object(model)),
    }


def read_model(members: Archive | Folder, compile: bool = True) -> Any:
    """The model of an archive, with its weights, compiled as it was, with its optimizer's state.

    Raises:
        FileError: if a member is missing or does not fit the others.
    """
    config = parse_json(members.read(CONFIG, CONFIG_BYTES), CONFIG)
    training = config.pop("compile_config", None) if isinstance(config, dict) else None

    def fill(model: Any) -> None:
        with open_weights(members, model) as file, open_hdf5(file, members.verified) as root:
            read_weights(root, model)
            read_assets(members, model)
            if compile and training:
                compile_from(model, training, f"{CONFIG}: compile_config")
                read_optimizer(root, model)

    return make_model(config, fill, CONFIG, members.size)


def read_assets(members: Archive | Folder, model: Any) -> None:
    """Give lookup layers the vocabularies that Keras keeps beside the config."""
    for place in places(model):
        if hasattr(place.owner, "load_assets") and members.holds(f"assets/{place.path}"):
            raise FileError(
                f'it holds files for layer "{place.name}" ({type(place.owner).__name__}), which '
                "load_assets() would read; picodl does not support assets."
            )
        name = f"assets/{place.path}/vocabulary.txt"
        if hasattr(place.owner, "load_vocabulary") and name in members:
            try:
                tokens = members.read(name, CONFIG_BYTES).decode("utf-8").splitlines()
            except UnicodeDecodeError as error:
                raise FileError(f"{name} is not UTF-8 text: {error}") from error
            place.owner.load_vocabulary(tokens)


def open_weights(members: Archive | Folder, model: Any) -> Any:
    """The weights of an archive as a file."""
    if WEIGHTS not in members and "model.weights.npz" in members:
        raise FileError(
            f"it holds model.weights.npz, which is pickled data, instead of {WEIGHTS}; pickles are "
            "never loaded."
        )
    needed = sum(w.data.size * w.data.itemsize for w in model.weights)
    limit = 16 * needed + 64 * MIB
    if any(keeps_its_own(module) for module in model.modules()):
        limit = max(limit, members.size)
    return members.open(WEIGHTS, limit)


def refuse_assets(model: Any) -> None:
    """Refuse a model with a layer that would write files of its own.

    Raises:
        ValueError: for such a model.
    """
    for module in model.modules():
        if hasattr(module, "save_assets"):
            raise ValueError(
                f'{type(module).__name__} "{getattr(module, "name", "")}" defines save_assets(), '
                "which picodl does not support: the files would be lost. Keep arrays with "
                "save_own_variables(store), or texts in get_config()."
            )


def make_model(config: Any, fill: Callable[[Any], None], item: str, room: int = 0) -> Any:
    """The model of a config, laid out without memory, then filled from the file.

    Args:
        config: a config of a model.
        fill: loads the weights.
        item: where the config stands, for messages.
        room: bytes that layers which load their own variables may take before they do.

    Raises:
        FileError: if the config is not that of a model.
    """
    if not isinstance(config, dict) or "class_name" not in config:
        raise FileError(f"{item} is not the config of a model: {shorten(config)}.")
    try:
        model, unmade = without_memory(lambda: deserialize_keras_object(config, kind="model"))
    except ConfigError as error:
        raise FileError(f"{item}: {error}") from error
    if not hasattr(model, "predict"):
        raise FileError(
            f"{item} describes a {type(model).__name__}, which is not a model: {shorten(config)}."
        )
    loading = {id(v) for m in model.modules() if keeps_its_own(m) for v in own_variables(m)}
    make_rest([pair for pair in unmade if id(pair[0]) in loading], room)
    fill(model)
    make_rest(unmade)
    return model


def compile_from(model: Any, config: Config, item: str) -> None:
    """Compile a loaded model as its file says.

    Raises:
        FileError: if that cannot be done; load_model(..., compile=False) leaves it out.
    """
    try:
        model.compile_from_config(config)
    except Exception as error:
        raise FileError(
            f"{item} cannot be restored: {error} Pass custom_objects, or compile=False to load the "
            "model without it."
        ) from error
