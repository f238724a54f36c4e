"""Configs and optimizer states as Keras 2 wrote them, said in the words of Keras 3."""

from __future__ import annotations

from typing import Any

from picodl.saving import registry
from picodl.typing import Config

# settings of Keras 2's layers that say nothing here
_DROPPED = {
    "DepthwiseConv2D": (
        "filters", "groups", "kernel_initializer", "kernel_regularizer", "kernel_constraint",
    ),
    "SeparableConv1D": ("groups", "kernel_initializer", "kernel_regularizer", "kernel_constraint"),
    "SeparableConv2D": ("groups", "kernel_initializer", "kernel_regularizer", "kernel_constraint"),
    "MultiHeadAttention": (
        "query_shape", "key_shape", "value_shape", "softmax_robust_masking",
    ),
    "Embedding": ("input_length", "batch_input_shape"),
    "BatchNormalization": ("virtual_batch_size", "fused", "renorm", "renorm_clipping",
                           "renorm_momentum"),
}  # fmt: skip
_RENAMED = {"Model": "Functional", "GroupedQueryAttention": "GroupQueryAttention"}
_OF_OPTIMIZERS = ("jit_compile", "is_legacy_optimizer", "decay", "initial_decay")
_MODULES = {"loss": "keras.losses", "metrics": "keras.metrics", "weighted_metrics": "keras.metrics"}


def modern_config(config: Any) -> Any:
    """The config of a layer or model, with everything inside it, in today's form."""
    if isinstance(config, list):
        return [modern_config(part) for part in config]
    if not isinstance(config, dict):
        return config
    config = {key: modern_config(part) for key, part in config.items()}
    name = config.get("class_name")
    if not isinstance(name, str) or "config" not in config:
        return config
    name = config["class_name"] = _own_name(name)
    inner = config["config"]
    if name == "Sequential" and isinstance(inner, list):  # before Keras 2.2.3
        inner = {"layers": inner}
    if isinstance(inner, dict):
        inner = {k: v for k, v in inner.items() if k not in _DROPPED.get(name, ())}
        if name == "InputLayer" and "batch_input_shape" in inner:
            inner["batch_shape"] = inner.pop("batch_input_shape")
        axis = inner.get("axis")
        if name == "BatchNormalization" and isinstance(axis, list) and len(axis) == 1:
            inner["axis"] = axis[0]
        if name == "Sequential" and isinstance(inner.get("layers"), list):
            inner["layers"] = _with_input(inner["layers"])
        if name == "Functional":
            inner = _renumbered(inner)
    config["config"] = inner
    return config


def _own_name(name: str) -> str:
    """The class's name today; the prefix Custom> of classes that are not the user's goes."""
    if name in _RENAMED:
        return _RENAMED[name]
    bare = name.removeprefix("Custom>")
    if bare != name and registry.find_custom(name) is None:
        return bare if registry.find_builtin(bare)[0] is not None else name
    return name


def _with_input(layers: list[Any]) -> list[Any]:
    """The layers of a Sequential, with the shape of the first one's input as a layer of its own."""
    first: Any = layers[0] if layers else None
    if not isinstance(first, dict) or first.get("class_name") == "InputLayer":
        return layers
    inner = first.get("config")
    if not isinstance(inner, dict) or inner.get("batch_input_shape") is None:
        return layers
    shape = inner["batch_input_shape"]
    dtype = "int32" if first["class_name"] == "Embedding" else inner.get("dtype", "float32")
    start = {"batch_shape": shape, "dtype": dtype, "name": f"{inner.get('name', 'first')}_input"}
    return [{"class_name": "InputLayer", "config": start}, *layers]


def _renumbered(config: Config) -> Config:
    """A graph's config with the calls of the models inside counted from 0.

    Keras 2 counted the making of a model as its first call.
    """
    entries = config.get("layers")
    calls = {
        e["name"]: len(e["inbound_nodes"])
        for e in (entries if isinstance(entries, list) else [])
        if isinstance(e, dict)
        and e.get("class_name") in ("Sequential", "Functional")
        and isinstance(e.get("inbound_nodes"), list)
        and isinstance(e.get("name"), str)
    }

    def is_address(part: Any) -> bool:
        return (
            isinstance(part, list)
            and len(part) >= 3
            and isinstance(part[0], str)
            and all(type(n) is int for n in part[1:3])
        )

    def addresses(part: Any) -> Any:
        if is_address(part):
            yield part
        elif isinstance(part, (list, dict)):
            for inside in part.values() if isinstance(part, dict) else part:
                yield from addresses(inside)

    nodes = [e.get("inbound_nodes") for e in entries or () if isinstance(e, dict)]
    ends = [config.get("input_layers"), config.get("output_layers")]
    late = {a[0] for a in addresses([nodes, ends]) if a[0] in calls and a[1] == calls[a[0]]}

    def shift(part: Any) -> Any:
        if is_address(part) and part[0] in late:
            return [part[0], part[1] - 1, *part[2:]]
        if isinstance(part, dict):
            return {key: shift(inside) for key, inside in part.items()}
        return [shift(inside) for inside in part] if isinstance(part, list) else part

    if not late:
        return config
    layers = [{**e, "inbound_nodes": shift(e.get("inbound_nodes"))} for e in entries or ()]
    ends_now = {key: shift(config[key]) for key in ("input_layers", "output_layers")}
    return {**config, "layers": layers, **ends_now}


def modern_compile_config(settings: Any) -> Config:
    """The arguments of compile that a training_config describes, as a compile_config.

    Raises:
        ValueError: if it is not a dict.
    """
    if not isinstance(settings, dict):
        raise ValueError(f"training_config should be a dict; received {settings!r}.")
    made: Config = {}
    optimizer = settings.get("optimizer_config")
    if isinstance(optimizer, dict) and isinstance(optimizer.get("config"), dict):
        inner = {k: v for k, v in optimizer["config"].items() if k not in _OF_OPTIMIZERS}
        if "lr" in inner:
            inner["learning_rate"] = inner.pop("lr")
        name = _own_name(str(optimizer.get("class_name")))
        made["optimizer"] = {"module": "keras.optimizers", **optimizer}
        made["optimizer"] |= {"class_name": name, "config": inner}
    elif optimizer is not None:
        made["optimizer"] = optimizer
    for key in ("loss", "metrics", "weighted_metrics"):
        if settings.get(key) is not None:
            made[key] = _modern(settings[key], _MODULES[key])
    for key in ("metrics", "weighted_metrics"):
        nested = made.get(key)
        if isinstance(nested, list) and len(nested) == 1 and isinstance(nested[0], list):
            made[key] = nested[0]
    if settings.get("loss_weights") is not None:
        made["loss_weights"] = settings["loss_weights"]
    return made


def _modern(part: Any, module: str) -> Any:
    if isinstance(part, list):
        return [_modern(p, module) for p in part]
    if not isinstance(part, dict):
        return part
    name, inner = part.get("class_name"), part.get("config")
    if not isinstance(name, str):
        return {key: _modern(p, module) for key, p in part.items()}
    if name in ("MeanMetricWrapper", "LossFunctionWrapper") and isinstance(inner, dict):
        label, function = inner.get("name"), inner.get("fn")
        if label in ("accuracy", "acc", "crossentropy", "ce") or not isinstance(function, str):
            return label if not isinstance(function, dict) else function
        return function
    if isinstance(inner, dict):
        inner = {key: value for key, value in inner.items() if key != "fn"}
        if inner.get("reduction") == "auto":
            inner["reduction"] = "sum_over_batch_size"
    return {"module": module, **part, "class_name": _own_name(name), "config": inner}


def optimizer_order(items: dict[str, Any], optimizer: Any) -> list[Any]:
    """The items of optimizer_weights in the order of the optimizer's variables.

    Keras 2 wrote no learning rate (None stands in its place here), and its older optimizers
    wrote all first moments before all second ones.

    Args:
        items: name -> item, in the order of the file.
        optimizer: a compiled model's.
    """
    names = list(items)
    if not names or any("learning_rate" in name for name in names):
        return list(items.values())
    if "iter" not in names[0].rsplit("/", 1)[-1]:
        return list(items.values())
    kinds: dict[str, list[Any]] = {}
    for name in names[1:]:
        kinds.setdefault(name.rsplit("/", 1)[-1].split(":")[0], []).append(items[name])
    slots = [slot for group in optimizer.slot_groups() for slot in group]
    in_order = [items[name] for name in names[1:]]
    if len(kinds) == len(slots) and len({len(kind) for kind in kinds.values()}) == 1:
        stored = iter(kinds.values())  # one list per slot: the order of the older optimizers
        in_order = []
        for group in optimizer.slot_groups():
            parts = [next(stored) for _ in group]
            in_order += [item for together in zip(*parts, strict=True) for item in together]
    scheduled = not any(variable.name == "learning_rate" for variable in optimizer.variables)
    return [items[names[0]], *([] if scheduled else [None]), *in_order]
