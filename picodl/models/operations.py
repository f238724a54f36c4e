"""Ops in a model's config, in Keras's form: a class with settings, called on tensors."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from picodl import ops
from picodl.saving import registry
from picodl.typing import Config

# where Keras keeps an op, if not in keras.src.ops.numpy
_PLACES = {
    "nn": """
        adaptive_average_pool adaptive_max_pool average_pool binary_crossentropy
        categorical_crossentropy celu conv conv_transpose ctc_decode ctc_loss depth_to_space
        depthwise_conv dot_product_attention elu fold gelu glu hard_shrink hard_sigmoid hard_silu
        hard_tanh leaky_relu log_sigmoid log_softmax max_pool moments multi_hot normalize one_hot
        psnr relu relu6 selu separable_conv sigmoid silu soft_shrink softmax softplus softsign
        space_to_depth sparse_categorical_crossentropy sparse_plus sparse_sigmoid sparsemax
        squareplus tanh_shrink threshold unfold""",
    "core": """
        associative_scan cast cond convert_to_tensor fori_loop map saturate_cast scan scatter
        scatter_update slice slice_update stop_gradient switch unstack vectorized_map while_loop""",
    "math": """
        cdist erf erfc erfinv in_top_k logdet logsumexp rsqrt segment_max segment_min segment_prod
        segment_sum top_k""",
    "linalg": """
        cholesky cholesky_inverse det eig eigh inv lstsq lu_factor matrix_rank norm pinv qr solve
        solve_triangular svd""",
    "own": """
        bartlett batch_normalization blackman column_stack convert_to_numpy custom_gradient degrees
        dense dropout dtype embedding empty eye gammainc group_normalization gru hamming hanning
        hard_swish identity index_add invert is_tensor kaiser layer_normalization lstm matrix_power
        mish normalize_batch ones radians rearrange remainder rms_normalization scale_and_shift
        shape simple_rnn swish tri vectorize zeros""",
}
_PLACE = {name: place for place, names in _PLACES.items() for name in names.split()}
# the arguments that Keras's classes are called with; all others are settings
_CALL_ARGUMENTS = """
    a array bias branches choicelist condition condlist constant_values data default
    depthwise_kernel elements elems f false_fn index indices init init_val inputs kernel key
    loop_vars mask operands output output_length pointwise_kernel pred predictions q query scale
    segment_ids sequence_lengths sorted_sequence start start_indices step stop target target_length
    targets true_fn updates value values variable x x1 x2 xs y"""
_NAMES = {
    "allclose": "AllClose", "isin": "IsIn", "ctc_decode": "CTCDecode", "ctc_loss": "CTCLoss",
    "svd": "SVD", "cdist": "CDist", "psnr": "PSNR", "searchsorted": "SearchSorted",
}  # fmt: skip


def class_name(op: str) -> str:
    """Keras's name of an op's class.

    >>> class_name("expand_dims")
    'ExpandDims'
    """
    return _NAMES.get(op) or "".join(part.capitalize() for part in op.split("_"))


@functools.cache
def known() -> dict[str, Any]:
    """The ops that a graph may hold, by Keras's class names: Relu, GetItem, ..."""
    functions = {n: f for n, f in vars(ops).items() if inspect.isfunction(f)}
    return {class_name(n): f for n, f in functions.items() if not n.startswith("_")}


def entry_of(
    call: Any, name: str, args: Any, kwargs: Any, is_symbol: Callable[[Any], bool]
) -> tuple[Config, tuple[Any, Config]]:
    """An op's entry in a config, and the arguments that stay in its call.

    Args:
        call: the op.
        name: of the entry.
        args, kwargs: what it is called with.
        is_symbol: whether an argument holds values to come.

    Returns: the entry without its call, and the positional and keyword arguments of that.
    """
    place = _PLACE.get(call.__name__, "numpy")
    entry: Config = {
        "module": "picodl.ops" if place == "own" else f"keras.src.ops.{place}",
        "class_name": class_name(call.__name__),
        "config": {"name": name},
        "registered_name": class_name(call.__name__),
    }
    if place == "own":
        return {**entry, "registered_name": None}, (args, kwargs)
    signature = inspect.signature(call)
    kinds = {parameter.name: parameter.kind for parameter in signature.parameters.values()}
    called: list[Any] = []
    called_names = _CALL_ARGUMENTS.split()
    for key, value in signature.bind(*args, **kwargs).arguments.items():
        if kinds[key] is inspect.Parameter.VAR_POSITIONAL:
            called += value
        elif kinds[key] is inspect.Parameter.VAR_KEYWORD:
            entry["config"] |= value
        elif key in called_names or is_symbol(value):
            called.append(value)
        else:
            entry["config"][key] = value
    return entry, (called, {})


def is_operation(entry: Config) -> bool:
    """Whether an entry of a config describes an op; the older form says no module."""
    module, name, config = entry.get("module"), entry.get("class_name"), entry.get("config")
    if module is None:  # a layer's config always says whether it is trained
        bare = isinstance(config, dict) and not {"trainable", "dtype"} & set(config)
        return bare and name in known() and registry.find_custom(name) is None
    return str(module) == "picodl.ops" or str(module).startswith("keras.src.ops.")


def operation_of(entry: Config, settings: Config) -> Any:
    """The op that an entry describes, with its settings.

    Args:
        entry: of an op.
        settings: the entry's config with everything inside it restored.

    Raises:
        ValueError: for an op that is not known here.
    """
    found = known().get(str(entry.get("class_name")))
    if found is None:
        raise ValueError(f"The model uses the operation {entry['class_name']!r}, unknown here.")
    given = {key: value for key, value in settings.items() if key != "name"}
    return functools.partial(found, **given) if given else found
