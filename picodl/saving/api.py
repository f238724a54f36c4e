"""save and load: what a path's ending asks for when writing, what a file holds when reading."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import Any

from picodl.config import require_no_scope
from picodl.saving import keras_zip, legacy_h5, npz, safetensors, shards, weights_h5
from picodl.saving.archive import Archive, Folder
from picodl.saving.files import FileError, as_path, atomic_write, check_writable, loading
from picodl.saving.hdf5 import open_hdf5
from picodl.saving.limits import parse_json
from picodl.saving.registry import custom_object_scope
from picodl.saving.serialization import deserialize_keras_object, warn_of_safe_mode

_HDF5 = b"\x89HDF\r\n\x1a\n"
_SKIPPING = "objects_to_skip goes with .weights.h5 and .weights.json files only."


def save_model(
    model: Any,
    filepath: Any,
    overwrite: bool = True,
    zipped: bool | None = None,
    include_optimizer: bool = True,
) -> None:
    """Save a whole model: architecture, weights, what compile was given, the optimizer's state.

    The file is written beside its target and then renamed: at any moment the old file or the new
    one is there, whole.

    Args:
        model: built.
        filepath: `NAME.keras` for Keras 3's archive, `NAME.h5` for the older HDF5 form.
        overwrite: whether an existing file is replaced.
        zipped: False writes the members of the archive into a folder of that name.
        include_optimizer: False leaves out of an `.h5` what compile was given and the state of the
            optimizer.

    Raises:
        ValueError: for another ending, and for parts that could not be loaded again.
        FileExistsError: if the file exists and overwrite is False.
        OSError: if the disk is full, the folder missing, ...; the old file is kept.
    """
    path = as_path(filepath)
    if zipped is False or path.endswith(".keras"):
        check_writable(path, overwrite)
        write = keras_zip.write_folder if zipped is False else keras_zip.write_archive
        write(model, path)
    elif path.endswith((".h5", ".hdf5")) and not path.endswith(".weights.h5"):
        check_writable(path, overwrite)
        with atomic_write(path) as file:
            legacy_h5.write_model(file, model, include_optimizer)
    else:
        raise ValueError(
            f"Cannot save a model as {path!r}: the ending must be .keras (Keras 3) or .h5 (the "
            "older form). For weights alone use model.save_weights('NAME.weights.h5')."
        )


def load_model(
    filepath: Any,
    custom_objects: Mapping[str, Any] | None = None,
    compile: bool = True,
    safe_mode: bool = True,
) -> Any:
    """Load a whole model that `save_model` or Keras wrote.

    Nothing in the file is run, imported or followed: a file can only name picodl's own classes,
    registered ones, and those in custom_objects.

    Args:
        filepath: a `.keras` archive, its unpacked folder, or a whole-model `.h5`, by Keras 2 or 3;
            which of them it is, the file tells.
        custom_objects: name -> class or function.
        compile: restore optimizer, loss and metrics, and the optimizer's state.
        safe_mode: False warns and changes nothing.

    Returns: the model.

    Raises:
        OSError: if there is no such file.
        ValueError: if it cannot be loaded; the message names the file and the item.
    """
    path = as_path(filepath)
    if not safe_mode:
        warn_of_safe_mode()
    with loading(path), custom_object_scope(custom_objects):
        if os.path.isdir(path):
            return keras_zip.read_model(Folder(path), compile)
        with open(path, "rb") as file:
            if kind_of(file) == "zip":
                return keras_zip.read_model(Archive(file), compile)
            if kind_of(file) == "hdf5":
                with open_hdf5(file) as root:
                    return legacy_h5.read_model(root, compile)
        raise FileError(
            "it is neither a .keras archive (zip) nor an HDF5 file (.h5); it may be damaged, or "
            "another format."
        )


def save_weights(
    model: Any,
    filepath: Any,
    overwrite: bool = True,
    max_shard_size: float | None = None,
    objects_to_skip: Any = None,
) -> None:
    """Save a model's weights, and its optimizer's state if it has one.

    Args:
        model: built.
        filepath: `NAME.weights.h5` for Keras 3's layout, `NAME.h5` for the older one (without the
            optimizer), `NAME.npz` or `NAME.safetensors` (weights alone), `NAME.weights.json` for
            several files.
        overwrite: whether an existing file is replaced.
        max_shard_size: with `NAME.weights.json`: size of each file, in GB.
        objects_to_skip: layers whose weights are not written, with `NAME.weights.h5` and
            `NAME.weights.json`.

    Raises:
        ValueError: for another ending, or a model that has not been built.
        FileExistsError: if the file exists and overwrite is False.
        OSError: if the disk is full, the folder missing, ...; the old file is kept.
    """
    path = as_path(filepath)
    left_out = list(objects_to_skip or ())
    if max_shard_size is not None or path.endswith(".weights.json"):
        check_writable(path, overwrite)
        shards.write(model, path, max_shard_size, left_out)
        return
    if left_out and not path.endswith(".weights.h5"):
        raise ValueError(_SKIPPING)
    writers: dict[str, Callable[..., None]] = {
        ".weights.h5": functools.partial(weights_h5.write_weights, left_out=left_out),
        ".h5": legacy_h5.write_weights,
        ".hdf5": legacy_h5.write_weights,
        ".npz": npz.write_weights,
        ".safetensors": safetensors.write_weights,
    }
    for ending, write in writers.items():
        if path.endswith(ending):
            weights_h5.require_built(model)
            check_writable(path, overwrite)
            with atomic_write(path) as file:
                write(file, model)
            return
    raise ValueError(
        f"Cannot save weights as {path!r}: the ending must be .weights.h5 (Keras 3), or one of "
        f"{', '.join(list(writers)[1:])}, .weights.json."
    )


def load_weights(
    model: Any,
    filepath: Any,
    skip_mismatch: bool = False,
    by_name: bool = False,
    objects_to_skip: Any = None,
) -> None:
    """Load a model's weights, all of them or, if anything is wrong, none.

    Args:
        model: built.
        filepath: what `save_weights`, `save_model` or Keras wrote; what it is, the file tells.
        skip_mismatch: keep the own weights of layers that do not fit, with a warning.
        by_name: for the older `.h5`: pair layers by name instead of by order.
        objects_to_skip: layers that keep their own weights, whatever the file holds for them; for
            `NAME.weights.h5` and `NAME.weights.json`.

    Raises:
        OSError: if there is no such file.
        ValueError: if it does not fit; the message names the file and the items, and the model is
            as it was.
        RuntimeError: inside a StatelessScope.
    """
    require_no_scope("Loading weights")
    path = as_path(filepath)
    weights_h5.require_built(model)
    left_out = list(objects_to_skip or ())
    with loading(path):
        if os.path.isdir(path):
            if left_out:
                raise FileError(_SKIPPING)
            _load_members(Folder(path), model, skip_mismatch)
            return
        with open(path, "rb") as file:
            kind = kind_of(file)
            if left_out and kind not in ("hdf5", "json"):
                raise FileError(_SKIPPING)
            if kind == "hdf5":
                with open_hdf5(file) as root:
                    _load_hdf5(root, model, skip_mismatch, by_name, left_out)
            elif by_name:
                raise FileError("by_name=True is for the older .h5 files.")
            elif kind == "zip":
                archive = Archive(file)
                if keras_zip.CONFIG in archive or keras_zip.WEIGHTS in archive:
                    _load_members(archive, model, skip_mismatch)
                else:
                    npz.read_weights(archive, model, skip_mismatch)
            elif kind == "json":
                shards.read(path, model, skip_mismatch, left_out)
            elif kind == "safetensors":
                safetensors.read_weights(file, model, skip_mismatch)
            else:
                raise FileError(
                    "it is none of HDF5 (.weights.h5, .h5), .keras, .npz and .safetensors; it may "
                    "be damaged, or another format."
                )


def _load_hdf5(root: Any, model: Any, skip_mismatch: bool, by_name: bool, left_out: Any) -> None:
    if root.get("model_weights") is not None or root.texts("layer_names") is not None:
        if left_out:
            raise FileError(_SKIPPING)
        legacy_h5.read_weights(root, model, skip_mismatch, by_name)
    elif by_name:
        raise FileError("by_name=True is for the older .h5 files; this one goes by structure.")
    else:
        weights_h5.read_weights(root, model, skip_mismatch, left_out)


def _load_members(members: Any, model: Any, skip_mismatch: bool) -> None:
    with (
        keras_zip.open_weights(members, model) as file,
        open_hdf5(file, members.verified) as root,
    ):
        weights_h5.read_weights(root, model, skip_mismatch)


def kind_of(file: Any) -> str:
    """What a file is, by its first bytes."""
    for offset in (0, 512, 1024, 2048, 4096):  # HDF5 may begin with a block of the user's
        file.seek(offset)
        start = file.read(10)
        if start[:8] == _HDF5:
            file.seek(0)
            return "hdf5"
        if offset == 0 and start[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
            kind = "zip"
            break
        if offset == 0 and start[8:9] == b"{" and start[7] == 0:
            kind = "safetensors"
            break
        if offset == 0 and start.lstrip()[:1] == b"{":
            kind = "json"
            break
    else:
        kind = ""
    file.seek(0)
    return kind


def model_from_json(json_string: str, custom_objects: Mapping[str, Any] | None = None) -> Any:
    """A model of the architecture that `model.to_json()` gave, with new weights.

    Args:
        json_string: by picodl or Keras.
        custom_objects: name -> class or function.

    Raises:
        TypeError: unless json_string is a string.
        ValueError: for anything but the config of a model.
    """
    if not isinstance(json_string, str):
        raise TypeError(f"json_string must be a str; received {type(json_string).__name__}.")
    config = parse_json(json_string, "json_string")
    if not isinstance(config, dict) or "class_name" not in config:
        raise ValueError("json_string is not the config of a model: it names no class.")
    with custom_object_scope(custom_objects):
        if "module" not in config:
            from picodl.saving.keras2 import modern_config

            config = modern_config(config)
        return deserialize_keras_object(config, kind="model")
