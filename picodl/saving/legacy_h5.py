"""The older `.h5`: a whole model, or weights alone, by layer names; written by Keras 2 and 3.

    attributes model_config, training_config      JSON
    model_weights/LAYER/...                       datasets, in the order of weight_names
    optimizer_weights/...                         the same for the optimizer's variables

A file of weights alone has the layers' groups at its root.
"""

from __future__ import annotations

import json
import warnings
import zlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from picodl.saving.files import FileError
from picodl.saving.hdf5 import CHECKSUM, Dataset, Group, write_dataset
from picodl.saving.items import assign_all, misfit
from picodl.saving.keras2 import modern_compile_config, modern_config, optimizer_order
from picodl.saving.keras_zip import KERAS_VERSION, compile_from, make_model, refuse_assets
from picodl.saving.layout import title
from picodl.saving.limits import parse_json
from picodl.saving.own_state import saves_its_own
from picodl.saving.serialization import serialize_keras_object
from picodl.saving.weights_h5 import Pair, describe_mismatch, optimizer_pairs, require_built

_LONGEST_ATTRIBUTE = 64512  # bytes that HDF5 can hold in one attribute, with room for its header
_TOP = "top_level_model_weights"


# ---------------------------------------------------------------------------- writing


def write_model(stream: Any, model: Any, with_optimizer: bool = True) -> None:
    """Write a whole model: config, weights, and what compile was given, to a binary file.

    Raises:
        ValueError: for a subclassed model, which this form cannot describe.
    """
    import h5py

    require_built(model)
    refuse_assets(model)
    _refuse_own_state(model)
    config = serialize_keras_object(model)
    if "layers" not in config["config"]:
        raise ValueError(
            f"The older .h5 holds Sequential and functional models; {title(model)} is of class "
            f"{type(model).__name__}. Save it as .keras, or its weights as .weights.h5."
        )
    training = config.get("compile_config") if with_optimizer else None
    with h5py.File(stream, "w") as file:
        _sign(file)
        _write_text(file, "model_config", json.dumps(_plain(config)))
        _write_layers(file.create_group("model_weights"), model, "model_weights/")
        if training:
            optimizer = training.pop("optimizer", None)
            training = _without_modules(training)
            if optimizer:
                training["optimizer_config"] = _plain(optimizer)
            _write_text(file, "training_config", json.dumps(training))
            _write_optimizer(file.create_group("optimizer_weights"), model.optimizer)


def write_weights(stream: Any, model: Any) -> None:
    """Write the weights alone to a binary file.

    Raises:
        TypeError: for a module without layers.
    """
    import h5py

    require_built(model)
    if not hasattr(model, "layers"):
        raise TypeError(f"The older .h5 holds models only, not {title(model)}; use .weights.h5.")
    _refuse_own_state(model)
    with h5py.File(stream, "w") as file:
        _write_layers(file, model, "")


def _refuse_own_state(model: Any) -> None:
    for module in model.modules():
        if saves_its_own(module) and not getattr(module, "config_holds_all", False):
            raise ValueError(
                f'Layer "{module.name}" ({type(module).__name__}) defines save_own_variables(), '
                "but the older .h5 holds weights only: what else it keeps would be lost. Save the "
                "model as .keras, or its weights as .weights.h5."
            )


def _write_text(group: Any, attribute: str, text: str) -> None:
    group.attrs[attribute] = text
    group.attrs[f"{attribute}_{CHECKSUM}"] = np.uint32(zlib.crc32(text.encode()))


def _sign(group: Any) -> None:
    group.attrs["backend"] = "numpy"
    group.attrs["keras_version"] = KERAS_VERSION


def _plain(config: Any) -> Any:
    """A layer's or model's config as the old format has it: class_name and config alone."""
    if not isinstance(config, dict):
        return config
    inner = dict(config["config"])
    if isinstance(inner.get("layers"), list):
        kept = ("name", "inbound_nodes")
        inner["layers"] = [
            {**_plain(layer), **{key: layer[key] for key in kept if key in layer}}
            for layer in inner["layers"]
        ]
    return {"class_name": _class_name(config), "config": inner}


def _class_name(config: Any) -> Any:
    registered = config.get("registered_name") or ""
    name = config["class_name"]
    if name == "GroupQueryAttention":
        name = "GroupedQueryAttention"  # the class behind the name that Keras exports
    return registered if ">" in registered else name


def _without_modules(config: Any) -> Any:
    if isinstance(config, list):
        return [_without_modules(part) for part in config]
    if not isinstance(config, dict):
        return config
    if "class_name" in config and config.get("module") != "builtins":
        config = {"class_name": _class_name(config), "config": config["config"]}
    return {key: _without_modules(part) for key, part in config.items()}


def _write_layers(group: Any, model: Any, base: str) -> None:
    layers = list(model.layers)
    _write_names(group, "layer_names", [layer.name for layer in layers])
    _sign(group)
    inside: set[int] = set()
    for layer in layers:
        weights = layer_weights(layer)
        inside.update(id(w) for w in weights)
        _write_variables(group.create_group(layer.name), weights, f"{base}{layer.name}/")
    own = [w for w in layer_weights(model) if id(w) not in inside]
    _write_variables(group.create_group(_TOP), own, f"{base}{_TOP}/")


def _write_optimizer(group: Any, optimizer: Any) -> None:
    _write_variables(group, list(optimizer.variables), "optimizer_weights/")


def _write_variables(group: Any, variables: list[Any], base: str) -> None:
    names: list[str] = []
    for variable in variables:
        name = path = getattr(variable, "path", "") or "variable"
        count = 0
        while name in names or any(other.startswith(f"{name}/") for other in names):
            count += 1
            name = f"{path}_{count}"
        names.append(name)
        write_dataset(group, name, variable.data, f"{base}{name}")
    _write_names(group, "weight_names", names)


def _write_names(group: Any, attribute: str, names: list[str]) -> None:
    if not names:
        group.attrs[attribute] = np.zeros(0)
        return
    parts, size = [[]], 0  # type: list[list[bytes]], int
    longest = max(len(name.encode()) for name in names)
    for name in names:
        if size + longest > _LONGEST_ATTRIBUTE:
            parts.append([])
            size = 0
        parts[-1].append(name.encode())
        size += longest
    for number, part in enumerate(parts):
        label = attribute if len(parts) == 1 else f"{attribute}{number}"
        group.attrs[label] = np.array(part, f"S{longest}")


# ---------------------------------------------------------------------------- reading


def read_model(root: Group, compile: bool = True) -> Any:
    """The model of a file, with its weights, compiled as it was, with its optimizer's state.

    Raises:
        FileError: if a part is missing or does not fit the others.
    """
    text = root.text("model_config")
    if text is None:
        raise FileError(
            "it has no attribute model_config, so it is not a saved model. If it holds weights "
            "alone, make the model and call model.load_weights(path)."
        )
    config = modern_config(parse_json(text, "model_config"))

    def fill(model: Any) -> None:
        assign_all(weight_pairs(root.group("model_weights"), model))
        training = root.text("training_config")
        if compile and training:
            settings = parse_json(training, "training_config")
            compile_from(model, modern_compile_config(settings), "training_config")
            assign_all(_optimizer_pairs(root, model))

    return make_model(config, fill, "model_config", root.source.size)


def read_weights(
    root: Group, model: Any, skip_mismatch: bool = False, by_name: bool = False
) -> None:
    """Set a model's weights from a file's root group; all or nothing.

    Args:
        root: of a file with weights alone, or with a whole model.
        model: built.
        skip_mismatch: keep the own weights of layers that do not fit, with a warning.
        by_name: pair layers by name instead of by order; others are left alone.

    Raises:
        FileError: if something does not fit.
    """
    require_built(model)
    found = root.get("model_weights")
    group = found if isinstance(found, Group) else root
    assign_all(weight_pairs(group, model, skip_mismatch, by_name))


def layer_weights(layer: Any) -> list[Any]:
    """A layer's weights in the order of this format: trainable ones, then the others."""
    return [*layer.trainable_weights, *layer.non_trainable_weights]


def weight_pairs(
    group: Group, model: Any, skip_mismatch: bool = False, by_name: bool = False
) -> list[Pair]:
    """The model's weights with their datasets.

    Raises:
        FileError: if something does not fit.
    """
    names = group.texts("layer_names")
    if names is None:
        raise FileError(f"{group.path or 'the file'} has no attribute layer_names.")
    _refuse_twice(names, "layer_names")
    stored = [(name, _datasets(group, name)) for name in names]
    if by_name:
        chosen = list(_by_name(stored, model))
    else:
        chosen = list(_by_order(stored, model, skip_mismatch))
        own = {id(w) for layer in model.layers for w in layer.weights}
        top = [w for w in layer_weights(model) if id(w) not in own]
        if top or group.get(_TOP) is not None:
            chosen.append((_TOP, top, _datasets(group, _TOP)))
    pairs: list[Pair] = []
    problems: list[str] = []
    for name, weights, datasets in chosen:
        bad = len(problems)
        if len(weights) != len(datasets):
            problems.append(
                f"layer {name!r} has {len(weights)} weights, the file holds {len(datasets)} "
                f"(weight_names) for {datasets[0].name if datasets else name!r}"
            )
            continue
        labelled = [(w, d, getattr(w, "path", name)) for w, d in zip(weights, datasets)]  # noqa: B905
        problems += [p for w, d, label in labelled if (p := misfit(d, w, label))]
        if len(problems) == bad:
            pairs += labelled
    _report(model, problems, skip_mismatch)
    return pairs


def _report(model: Any, problems: list[str], skip_mismatch: bool) -> None:
    if not problems:
        return
    said = describe_mismatch(problems, [])
    if not skip_mismatch:
        raise FileError(
            f"the weights do not fit {title(model)}: {said} Load them into the architecture "
            "they were saved from, or pass skip_mismatch=True to take what fits."
        )
    warnings.warn(
        f"load_weights left out layers whose shapes do not fit (mismatch): {said}", stacklevel=5
    )


def _datasets(group: Group, layer: str) -> list[Dataset]:
    """The datasets of a layer, in order."""
    own = group.get(layer)
    if not isinstance(own, Group):
        raise FileError(f"layer_names names {layer!r}, but there is no such group.")
    names = own.texts("weight_names")
    if names is None:
        raise FileError(f"{own.path} has no attribute weight_names.")
    _refuse_twice(names, f"weight_names of {own.path}")
    found = []
    for name in names:
        dataset = own.get(name)
        if not isinstance(dataset, Dataset):
            raise FileError(f"{own.path}/{name}, named in weight_names, is missing.")
        found.append(dataset)
    return found


def _refuse_twice(names: list[str], item: str) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise FileError(f"{item} names {twice[0]!r} twice.")


Chosen = Iterator[tuple[str, list[Any], list[Dataset]]]


def _by_order(stored: list[tuple[str, list[Dataset]]], model: Any, skip_mismatch: bool) -> Chosen:
    layers = [(layer.name, w) for layer in model.layers if (w := layer_weights(layer))]
    filled = [(name, datasets) for name, datasets in stored if datasets]
    if len(layers) != len(filled):
        raise FileError(
            f"{title(model)} has {len(layers)} layers with weights "
            f"({_some([n for n, _ in layers])}), the file holds {len(filled)} "
            f"({_some([n for n, _ in filled])}; layer_names). Load it into the architecture it was "
            "saved from, or pass by_name=True to take the layers of equal names."
        )
    for (name, weights), (_, datasets) in zip(layers, filled, strict=True):
        yield name, weights, datasets


def _by_name(stored: list[tuple[str, list[Dataset]]], model: Any) -> Chosen:
    layers = {layer.name: layer for layer in model.layers}
    matched = False
    for name, datasets in stored:
        if name in layers and datasets:
            matched = True
            yield name, layer_weights(layers[name]), datasets
    if not matched:
        warnings.warn(
            f"No layer of {title(model)} has the name of a layer in the file: nothing was "
            f"loaded. The model has {_some(list(layers))}; the file holds "
            f"{_some([name for name, _ in stored])}.",
            stacklevel=6,
        )


def _some(names: list[str], limit: int = 8) -> str:
    return ", ".join(names[:limit]) + (", ..." if len(names) > limit else "")


def _optimizer_pairs(root: Group, model: Any) -> list[Pair]:
    if root.get("optimizer_weights") is None or model.optimizer is None:
        return []
    group = root.group("optimizer_weights")
    names = group.texts("weight_names")
    items: dict[str, Any] = {name: group.get(name) for name in names or ()}
    missing = [name for name, item in items.items() if not isinstance(item, Dataset)]
    if missing:
        raise FileError(f"optimizer_weights/{missing[0]}, named in weight_names, is missing.")
    return optimizer_pairs(model, optimizer_order(items, model.optimizer))
