"""What a file holds, told without building a model; and the same arrays in another format."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from picodl.saving import api, keras_zip, npz, safetensors
from picodl.saving.archive import Archive, Folder
from picodl.saving.files import FileError, as_path, atomic_write, check_writable, loading
from picodl.saving.hdf5 import Dataset, Group, open_hdf5, write_dataset
from picodl.saving.items import Item, read_values
from picodl.saving.limits import CONFIG_BYTES, ITEMS, MIB, parse_json
from picodl.saving.serialization import shorten
from picodl.typing import Array

_UNITS = ("B", "KB", "MB", "GB", "TB")


def describe(filepath: Any) -> str:
    """What a weights or model file holds, as text: layers, shapes, dtypes, sizes, who wrote it.

    Nothing is built or run, and no array is read.

    Args:
        filepath: `.weights.h5`, `.keras`, `.h5`, `.npz` or `.safetensors`.

    Raises:
        OSError: if there is no such file.
        ValueError: if it is damaged, or none of these.
    """
    path = as_path(filepath)
    with loading(path):
        if os.path.isdir(path):
            found = _describe_members(Folder(path))
            return "\n".join([f"{path}: an unpacked Keras model", *found])
        size = _size(os.path.getsize(path))
        with _opened(path) as (kind, content):
            lines = list(_DESCRIBERS[kind](content))
        return "\n".join([f"{path}: {_KINDS[kind]}, {size}", *lines])


def convert(source: Any, target: Any, overwrite: bool = True) -> None:
    """Write what one file holds in another format, chosen by the target's ending.

    Args:
        source: a file as for `describe`. Whole models must be made of picodl's own layers or
            registered ones.
        target: `.keras` or `.h5` for a whole model, `.weights.h5`, `.npz` or `.safetensors` for its
            weights.
        overwrite: whether an existing file is replaced.

    Raises:
        ValueError: if the source does not hold what the target needs.
    """
    source, target = as_path(source, "source"), as_path(target, "target")
    if target.endswith((".keras", ".h5", ".hdf5")) and not target.endswith(".weights.h5"):
        api.save_model(api.load_model(source), target, overwrite=overwrite)
        return
    if not target.endswith((".weights.h5", ".npz", ".safetensors")):
        raise ValueError(
            f"Cannot convert to {target!r}: the ending must be .keras, .h5, .weights.h5, .npz or "
            ".safetensors."
        )
    with loading(source):
        arrays = read_arrays(source)
    if arrays is None:  # layers by name: only the model knows their structure
        api.save_weights(api.load_model(source), target, overwrite=overwrite)
        return
    check_writable(target, overwrite)
    with atomic_write(target) as file:
        _write_arrays(file, arrays, target)


def read_arrays(path: str) -> dict[str, Array] | None:
    """The arrays of a weights file by path; None for the older `.h5`, which has no such paths."""
    with _opened(path) as (kind, content):
        if kind in ("legacy model", "legacy weights"):
            return None
        if kind == "keras":
            with content.open(keras_zip.WEIGHTS, 1 << 50) as file, open_hdf5(file) as root:
                return _all_values(root.datasets())
        return _all_values(content.datasets() if isinstance(content, Group) else content)


def _all_values(items: Any) -> dict[str, Array]:
    found: dict[str, Item] = items
    return {n: read_values(item, item.dtype.newbyteorder("=")) for n, item in found.items()}


def _write_arrays(file: Any, arrays: dict[str, Array], target: str) -> None:
    if target.endswith(".weights.h5"):
        import h5py

        with h5py.File(file, "w") as h5:
            for path, values in arrays.items():
                write_dataset(h5, path, values, path)
        return
    arrays = {path: a for path, a in arrays.items() if not path.startswith("optimizer/")}
    if target.endswith(".npz"):
        np.savez(file, **arrays)  # type: ignore[arg-type]
    else:
        safetensors.write_arrays(file, arrays)


@contextmanager
def _opened(path: str) -> Iterator[tuple[str, Any]]:
    """(kind, content) of a file: a Group, an Archive, or a dict of items."""
    with open(path, "rb") as file:
        kind = api.kind_of(file)
        if kind == "hdf5":
            with open_hdf5(file) as root:
                if root.text("model_config") is not None:
                    yield "legacy model", root
                elif root.texts("layer_names") is not None:
                    yield "legacy weights", root
                else:
                    yield "weights", root
        elif kind == "zip":
            archive = Archive(file)
            if keras_zip.CONFIG in archive:
                yield "keras", archive
            else:
                names = [name for name in archive.names() if name.endswith(".npy")]
                yield "npz", {m.name: m for m in (npz.Member(archive, n) for n in names)}
        elif kind == "safetensors":
            yield "safetensors", safetensors.read_entries(file)
        else:
            raise FileError("it is none of HDF5 (.weights.h5, .h5), .keras, .npz, .safetensors.")


def _describe_weights(root: Group) -> Iterator[str]:
    objects: dict[str, list[tuple[str, Dataset]]] = {}
    for path, dataset in root.datasets().items():
        owner, _, number = path.rpartition("/")
        objects.setdefault(owner, []).append((number, dataset))
    state = objects.pop("optimizer/vars", None)
    yield from _table(
        (owner.removesuffix("/vars"), _owner(root, owner), sorted(items, key=_by_number))
        for owner, items in objects.items()
    )
    if state is not None:
        bytes_ = sum(_bytes(dataset) for _, dataset in state)
        name = _owner(root, "optimizer/vars") or "?"
        yield f"optimizer {name}: {len(state)} variables, {_size(bytes_)}"


def _by_number(pair: tuple[str, Any]) -> tuple[int, str]:
    return len(pair[0]), pair[0]


def _owner(root: Group, path: str) -> str:
    group = root.get(path)
    return (group.text("name") or "") if isinstance(group, Group) else ""


def _table(objects: Any) -> Iterator[str]:
    count = total = numbers = 0
    for path, name, items in objects:
        yield f"{path or '(model)'}  {name}".rstrip()
        for label, item in items:
            size = _bytes(item)
            count, total = count + 1, total + size
            numbers += size // item.dtype.itemsize
            yield f"    {label:12s} {item.shape!s:20s} {item.dtype!s:10s} {_size(size)}"
    yield f"weights: {count} arrays, {numbers:,} numbers, {_size(total)}"


def _bytes(item: Any) -> int:
    size = int(item.dtype.itemsize)
    for n in item.shape:
        size *= n
    return size


def _describe_members(members: Any) -> Iterator[str]:
    if keras_zip.METADATA in members:
        data = parse_json(members.read(keras_zip.METADATA, MIB), keras_zip.METADATA)
        if isinstance(data, dict):
            said = [f"{key} {shorten(value, quote=False)}" for key, value in data.items()]
            yield "written by: " + ", ".join(said)
    config = parse_json(members.read(keras_zip.CONFIG, CONFIG_BYTES), keras_zip.CONFIG)
    yield from _describe_config(config)
    with members.open(keras_zip.WEIGHTS, 1 << 50) as file, open_hdf5(file) as root:
        yield from _describe_weights(root)


def _describe_config(config: Any) -> Iterator[str]:
    if not isinstance(config, dict) or not isinstance(config.get("config"), (dict, list)):
        yield "its config is not that of a model"
        return
    inner = config["config"]
    inner = {"layers": inner} if isinstance(inner, list) else inner
    yield f"model {_text(config.get('class_name'))} {_text(inner.get('name'))}"
    layers = inner.get("layers")
    for layer in layers if isinstance(layers, list) else []:
        if isinstance(layer, dict) and isinstance(layer.get("config"), dict):
            name = _text(layer["config"].get("name"))
            yield f"    {_text(layer.get('class_name')):24s} {name}"
    compiled = config.get("compile_config")
    if isinstance(compiled, dict) and compiled:
        yield "compiled: " + ", ".join(
            f"{key} {_class(compiled[key])}" for key in ("optimizer", "loss") if key in compiled
        )


def _text(value: Any) -> str:
    return shorten(value, 60, quote=False) if value is not None else ""


def _class(value: Any) -> str:
    return _text(value.get("class_name") if isinstance(value, dict) else value)


def _describe_legacy(root: Group) -> Iterator[str]:
    version, backend = root.text("keras_version"), root.text("backend")
    if version:
        yield f"written by: Keras {version}, backend {backend}"
    config = root.text("model_config")
    if config is not None:
        settings = parse_json(config, "model_config")
        training = root.text("training_config")
        compiled = parse_json(training, "training_config") if training else None
        if isinstance(compiled, dict) and isinstance(settings, dict):
            settings["compile_config"] = {"optimizer": compiled.get("optimizer_config")} | compiled
        yield from _describe_config(settings)
    group = root.group("model_weights") if config is not None else root
    names = group.texts("layer_names") or []
    if len(names) > ITEMS:
        raise FileError(f"layer_names holds {len(names)} names.")
    yield from _table((name, "", _layer_items(group, name)) for name in names)
    state = root.get("optimizer_weights")
    if isinstance(state, Group):
        yield f"optimizer: {len(state.texts('weight_names') or [])} variables"


def _layer_items(group: Group, layer: str) -> list[tuple[str, Dataset]]:
    own = group.group(layer)
    found = [(name, own.get(name)) for name in own.texts("weight_names") or []]
    return [(name, item) for name, item in found if isinstance(item, Dataset)]


def _describe_items(items: dict[str, Item]) -> Iterator[str]:
    objects: dict[str, list[tuple[str, Item]]] = {}
    for path, item in items.items():
        owner, _, label = path.rpartition("/")
        objects.setdefault(owner.removesuffix("/vars"), []).append((label, item))
    yield from _table((owner, "", objects[owner]) for owner in objects)


def _size(count: float) -> str:
    unit = 0
    while count >= 1024 and unit < len(_UNITS) - 1:
        count /= 1024
        unit += 1
    return f"{count:.0f} B" if unit == 0 else f"{count:.1f} {_UNITS[unit]}"


_KINDS = {
    "weights": "HDF5, weights in the layout of Keras 3",
    "legacy model": "HDF5, a whole model in the older form",
    "legacy weights": "HDF5, weights in the older form",
    "keras": "a Keras 3 archive",
    "npz": "numpy's archive",
    "safetensors": "safetensors",
}
_DESCRIBERS: dict[str, Any] = {
    "weights": _describe_weights,
    "legacy model": _describe_legacy,
    "legacy weights": _describe_legacy,
    "keras": _describe_members,
    "npz": _describe_items,
    "safetensors": _describe_items,
}
