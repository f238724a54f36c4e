"""The weights of a PyTorch network in a matching model: names, layouts and gates translated.

| PyTorch | here |
|---|---|
| Linear.weight (out, in) | Dense kernel (in, out) |
| ConvNd.weight (out, in / groups, *size) | kernel (*size, in / groups, out) |
| ConvNd.weight (in * m, 1, *size), groups=in | DepthwiseConvND kernel (*size, in, m) |
| ConvTransposeNd.weight (in, out, *size) | kernel (*size, out, in) |
| BatchNorm weight, bias, running_mean, running_var | gamma, beta, moving_mean, moving_variance |
| LayerNorm, GroupNorm, InstanceNorm weight, bias | gamma, beta |
| Embedding.weight, PReLU.weight | the same |
| LSTM weight_ih, weight_hh (4h, n); bias_ih + bias_hh | kernel, recurrent_kernel (n, 4h); bias |
| GRU: gates r, z, n; both biases | gates z, r, n; bias (2, 3h), with reset_after=True |
| MultiheadAttention in_proj, out_proj | query, key, value and output kernels, split into heads |

A Dense layer after a Flatten of channels_last data gets its rows in the order of PyTorch's
channels_first Flatten. PyTorch's epsilon and momentum are arguments, not weights: set
`BatchNormalization(epsilon=1e-5)` and the like yourself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from picodl.typing import Array


class Part(dict[str, Array]):
    """The arrays of one PyTorch module by their short names, and which of them were used."""

    def __init__(self) -> None:
        super().__init__()
        self.used: set[str] = set()

    def __getitem__(self, name: str) -> Array:
        self.used.add(name)
        return super().__getitem__(name)


def load_torch_state_dict(
    model: Any,
    state_dict: Mapping[str, Any],
    names: Mapping[str, str] | None = None,
) -> None:
    """Set a model's weights from `torch_module.state_dict()`; all of them or none.

    Layers are paired with PyTorch's modules in the order of the state dict, or by `names`. The
    table in `picodl.saving.torch_state` says how the layouts are translated. No PyTorch is
    needed when the values are arrays, such as `{k: v.numpy() for k, v in state_dict.items()}`.

    Args:
        model: built, with channels_last layers of the same sizes, in the same order.
        state_dict: name -> array or tensor.
        names: PyTorch module -> layer name, such as {"fc1": "dense"}, where the order differs.

    Raises:
        ValueError: if a layer and a module do not fit, or one of them is left over.

    >>> import picodl
    >>> model = picodl.Sequential([picodl.Input((3,)), picodl.layers.Dense(2)])
    >>> load_torch_state_dict(model, {"0.weight": np.ones((2, 3)), "0.bias": np.zeros(2)})
    >>> model.predict(np.ones((1, 3)), verbose=0)
    array([[3., 3.]], dtype=float32)
    """
    modules = _modules(state_dict)
    layers = [layer for layer in _leaves(model) if layer.weights]
    pairs = _paired(modules, layers, names or {})
    new: list[tuple[Any, Array]] = []
    for module, layer in pairs:
        arrays = _translate(layer, modules[module], module)
        weights = layer.weights
        if len(arrays) != len(weights):
            raise ValueError(
                f'Layer "{layer.name}" has {len(weights)} weights, but PyTorch\'s {module!r} gives '
                f"{len(arrays)}: {', '.join(modules[module])}. Does one of them have no bias?"
            )
        for weight, array in zip(weights, arrays, strict=True):
            if weight.data.shape != array.shape:
                raise ValueError(
                    f"{weight.path} has shape {weight.data.shape}, but PyTorch's {module!r} gives "
                    f"{array.shape} after its axes were put in Keras's order."
                )
            new.append((weight, array))
    for weight, array in new:
        weight.assign(array)


def _modules(state_dict: Mapping[str, Any]) -> dict[str, Part]:
    """The arrays by module, in order; counters of batches are left out."""
    modules: dict[str, Part] = {}
    for name, value in state_dict.items():
        module, _, short = name.rpartition(".")
        if short == "num_batches_tracked":
            continue
        if module.endswith("out_proj"):  # a part of MultiheadAttention
            module, short = module.rpartition(".")[0], f"out_proj.{short}"
        if hasattr(value, "detach"):
            value = value.detach().cpu().numpy()
        modules.setdefault(module, Part())[short] = np.asarray(value)
    return modules


def _leaves(model: Any) -> list[Any]:
    """The layers that hold weights themselves, or that stand for one PyTorch module."""
    found: list[Any] = []
    for layer in model.layers:
        if hasattr(layer, "layers"):
            found += _leaves(layer)
        else:
            found.append(layer)
    return found


def _paired(
    modules: Mapping[str, Part], layers: list[Any], names: Mapping[str, str]
) -> list[tuple[str, Any]]:
    by_name = {layer.name: layer for layer in layers}
    for module, name in names.items():
        if module not in modules or name not in by_name:
            raise ValueError(
                f"names pairs {module!r} with {name!r}; the state dict has the modules "
                f"{', '.join(modules)}, the model the layers {', '.join(by_name)}."
            )
    pairs = [(module, by_name[name]) for module, name in names.items()]
    left = [layer for layer in layers if layer.name not in names.values()]
    rest = [module for module in modules if module not in names]
    if len(rest) != len(left):
        raise ValueError(
            f"The state dict has {len(rest)} modules with weights ({', '.join(rest)}), model "
            f'"{model_name(layers)}" {len(left)} layers ({", ".join(x.name for x in left)}).'
        )
    return pairs + list(zip(rest, left, strict=True))


def model_name(layers: list[Any]) -> str:
    """The first part of the first weight's path, for messages."""
    return str(layers[0].weights[0].path).split("/")[0] if layers else ""


def _translate(layer: Any, part: Part, module: str) -> list[Array]:
    kind = type(layer).__name__
    translate = _TRANSLATIONS.get(kind)
    if translate is None:
        raise ValueError(
            f'Layer "{layer.name}" ({kind}) has no counterpart in PyTorch\'s {module!r} that is '
            "known here; set its weights with layer.set_weights()."
        )
    try:
        arrays = translate(layer, part)
        unused = [name for name in part if name not in part.used]
        if unused:
            raise ValueError(f"{', '.join(unused)} would be left over")
    except (KeyError, ValueError, IndexError, TypeError) as error:
        raise ValueError(
            f'PyTorch\'s {module!r} with {", ".join(part)} does not fit {kind} "{layer.name}": '
            f"{error}."
        ) from error
    return arrays


def _dense(layer: Any, part: Part) -> list[Array]:
    kernel = part["weight"].T
    shape = _flattened(layer)
    if shape is not None:  # rows in the order (channels, *size) become (*size, channels)
        rows = kernel.reshape(shape[-1], *shape[:-1], -1)
        kernel = np.moveaxis(rows, 0, -2).reshape(kernel.shape)
    return [kernel, *_bias(part)]


def _flattened(layer: Any) -> tuple[int, ...] | None:
    """The shape of one sample before the Flatten in front of a layer, if it has channels last."""
    steps = vars(layer).get("_steps") or []
    while steps and len(steps[0].inputs) == 1:
        symbol = steps[0].inputs[0]
        before = getattr(symbol.step, "call", None)
        kind = type(before).__name__
        if kind == "Flatten":
            shape = symbol.step.inputs[0].shape[1:]
            last = getattr(before, "data_format", "channels_last") == "channels_last"
            return tuple(shape) if len(shape) > 1 and last and None not in shape else None
        if kind not in ("Dropout", "Activation", "ReLU", "Identity"):
            return None
        steps = [symbol.step]
    return None


def _bias(part: Part) -> list[Array]:
    return [part["bias"]] if "bias" in part else []


def _conv(layer: Any, part: Part) -> list[Array]:
    return [np.moveaxis(part["weight"], (0, 1), (-1, -2)), *_bias(part)]


def _depthwise(layer: Any, part: Part) -> list[Array]:
    weight, multiplier = part["weight"], layer.depth_multiplier
    grouped = weight.reshape(-1, multiplier, *weight.shape[2:])
    return [np.moveaxis(grouped, (0, 1), (-2, -1)), *_bias(part)]


def _transposed_conv(layer: Any, part: Part) -> list[Array]:
    return [np.moveaxis(part["weight"], (0, 1), (-1, -2)), *_bias(part)]


def _norm(layer: Any, part: Part) -> list[Array]:
    names = ("weight", "bias", "running_mean", "running_var")
    return [part[name] for name in names if name in part]


def _same(layer: Any, part: Part) -> list[Array]:
    weight = part["weight"]
    if type(layer).__name__ == "PReLU":
        weight = np.broadcast_to(weight, layer.weights[0].data.shape)
    return [weight]


def _rnn(layer: Any, part: Part, end: str = "_l0") -> list[Array]:
    kind = type(layer).__name__
    order = (1, 0, 2) if kind == "GRU" else None  # PyTorch: reset, update, new

    def gates(array: Array) -> Array:
        if order is None:
            return array
        r_z_n = np.split(array, 3, axis=0)
        return np.concatenate([r_z_n[i] for i in order], axis=0)

    arrays = [gates(part[f"weight_ih{end}"]).T, gates(part[f"weight_hh{end}"]).T]
    if f"bias_ih{end}" in part:
        biases = gates(part[f"bias_ih{end}"]), gates(part[f"bias_hh{end}"])
        if kind == "GRU" and not layer.cell.reset_after:
            raise ValueError("PyTorch's GRU needs GRU(reset_after=True)")
        arrays.append(np.stack(biases) if kind == "GRU" else biases[0] + biases[1])
    return arrays


def _bidirectional(layer: Any, part: Part) -> list[Array]:
    forward = _rnn(layer.forward_layer, part)
    return forward + _rnn(layer.backward_layer, part, "_l0_reverse")


def _attention(layer: Any, part: Part) -> list[Array]:
    heads = layer.num_heads
    arrays: list[Array] = []
    biases = np.split(part["in_proj_bias"], 3) if "in_proj_bias" in part else [None] * 3
    for weight, bias in zip(np.split(part["in_proj_weight"], 3), biases, strict=True):
        arrays.append(weight.T.reshape(weight.shape[1], heads, -1))
        if bias is not None:
            arrays.append(bias.reshape(heads, -1))
    out = part["out_proj.weight"]
    arrays.append(out.T.reshape(heads, -1, out.shape[0]))
    if "out_proj.bias" in part:
        arrays.append(part["out_proj.bias"])
    return arrays  # query, key, value, output: the order of the layer's own weights


_TRANSLATIONS: dict[str, Callable[[Any, Part], list[Array]]] = {
    "Dense": _dense,
    "Linear": _dense,
    **{f"Conv{n}D": _conv for n in (1, 2, 3)},
    **{f"Conv{n}DTranspose": _transposed_conv for n in (1, 2, 3)},
    **{f"DepthwiseConv{n}D": _depthwise for n in (1, 2)},
    "BatchNormalization": _norm,
    "LayerNormalization": _norm,
    "GroupNormalization": _norm,
    "Embedding": _same,
    "PReLU": _same,
    "SimpleRNN": _rnn,
    "LSTM": _rnn,
    "GRU": _rnn,
    "Bidirectional": _bidirectional,
    "MultiHeadAttention": _attention,
}
