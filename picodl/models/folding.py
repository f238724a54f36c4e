"""Convolution, batch normalisation and activation as one convolution, where a model predicts.

With fixed statistics the normalisation is one factor and one shift per channel: they go into the
kernel and the bias, and the activation into the convolution. Nothing but rounding changes. With
compiled kernels a sum and its relu are one step as well.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from picodl import activations, compiled
from picodl.config import thread
from picodl.layers.activation import ReLU
from picodl.layers.base import Layer
from picodl.layers.convolution import Conv1D, Conv2D, Conv3D
from picodl.layers.core import Activation
from picodl.layers.merging import Add
from picodl.layers.normalization import BatchNormalization
from picodl.models.graph import Node
from picodl.ops.conv import conv
from picodl.parallel import map_blocks, shares_of
from picodl.tensor import Tensor, no_grad
from picodl.typing import Array

_CONVOLUTIONS = {Conv1D, Conv2D, Conv3D}


@contextlib.contextmanager
def predicting() -> Iterator[None]:
    """Inside, nothing is recorded and models join such layers. Per thread."""
    before, thread.folding = thread.folding, True
    try:
        with no_grad():
            yield
    finally:
        thread.folding = before


class Folded:
    """A convolution with the normalisation, and perhaps the activation, that follow it.

    Args:
        layers: these two or three layers.
    """

    def __init__(self, layers: Sequence[Any]) -> None:
        self.layers = layers

    def __call__(self, x: Any) -> Any:
        """The output of the last layer for the input of the first."""
        first, norm, *rest = self.layers
        function = _function(rest[0]) if rest else activations.linear
        pair = getattr(function, "pair", None)
        if pair is not None and self._can(x):
            kernel, bias = _folded(first, norm)
            windows = (first.strides, first.padding, "channels_last", first.dilation_rate)
            with contextlib.suppress(ValueError):  # the layers say better what does not fit
                return conv(x, kernel, *windows, bias, pair)
        for layer in self.layers:
            x = layer(x)
        return x

    def _can(self, x: Any) -> bool:
        """Whether the layers do nothing else with x."""
        first, norm = self.layers[:2]
        return (
            _is_plain(x, self.layers)
            and first.built
            and first.input_spec.fits(x.shape)
            and first.activation is activations.linear
            and first.data_format == "channels_last"
            and norm.axis in (-1, x.ndim - 1)
        )


class Summed:
    """An Add layer of two inputs and the relu that follows it.

    Args:
        layers: these two.
    """

    def __init__(self, layers: Sequence[Any]) -> None:
        self.layers = layers

    def __call__(self, inputs: Any) -> Any:
        """The output of the relu for the inputs of the sum."""
        if compiled.kernels is not None and len(inputs) == 2:
            a, b = inputs
            if all(_is_plain(x, self.layers) for x in inputs) and a.shape == b.shape:
                y = _relu_of_sum(a.data, b.data)
                if y is not None:
                    return Tensor(y)
        add, relu = self.layers
        return relu(add(inputs))


def _relu_of_sum(a: Array, b: Array) -> Array | None:
    """max(a + b, 0); None if the kernels do not take the arrays."""
    if not (a.flags.c_contiguous and b.flags.c_contiguous):
        return None
    y = np.empty_like(a)
    flat = [x.reshape(-1) for x in (a, b, y)]

    def run(s: slice) -> bool:
        return compiled.run("add_relu", *(x[s] for x in flat), s.stop - s.start)

    return y if all(map_blocks(run, shares_of(a.size, 2), a.size * 1e-3)) else None


def _is_plain(x: Any, layers: Sequence[Any]) -> bool:
    """Whether layers do nothing with x but what they are for."""
    return (
        type(x) is Tensor
        and x.mask is None
        and not thread.training
        and thread.stateless is None
        and all(
            layer.activity_regularizer is None
            and not layer._rounds
            and layer._dtype is x.data.dtype
            for layer in layers
        )
    )


def _function(layer: Layer) -> Any:
    """The activation that a layer is, or None."""
    if type(layer) is Activation:
        return layer.activation
    if type(layer) is ReLU and not layer.negative_slope and not layer.threshold:
        return {None: activations.relu, 6: activations.relu6}.get(layer.max_value)
    return None


def _folded(first: Any, norm: Any) -> tuple[Tensor, Tensor]:
    """Kernel and bias of both in one."""
    factor = 1 / np.sqrt(norm.moving_variance.data + norm.epsilon)
    if norm.gamma is not None:
        factor = factor * norm.gamma.data
    shift = -norm.moving_mean.data
    if first.bias is not None:
        shift = shift + first.bias.data
    shift = shift * factor
    if norm.beta is not None:
        shift = shift + norm.beta.data
    dtype = first.kernel.data.dtype
    return Tensor((first.kernel.data * factor).astype(dtype)), Tensor(shift.astype(dtype))


def chain(layers: Sequence[Any]) -> list[Any]:
    """What to call in turn instead of layers that follow each other."""
    found: list[Any] = []
    place = 0
    while place < len(layers):
        n = _length(layers[place : place + 3])
        found.append(Folded(layers[place : place + n]) if n else layers[place])
        place += max(n, 1)
    return found


def _length(layers: Sequence[Any]) -> int:
    """How many of these layers, each fed by the one before alone, are one step, or 0."""
    if type(layers[0]) is Add:
        return 2 if len(layers) > 1 and _function(layers[1]) is activations.relu else 0
    if len(layers) < 2 or type(layers[0]) not in _CONVOLUTIONS:
        return 0
    if type(layers[1]) is not BatchNormalization:
        return 0
    return 3 if len(layers) > 2 and type(layers[2]) in (Activation, ReLU) else 2


def folded_nodes(nodes: Sequence[Node], kept: Sequence[int]) -> list[Node]:
    """The nodes of a graph with such layers joined.

    Args:
        nodes: in the order they are run.
        kept: slots that are outputs.
    """
    readers: dict[int, list[Node]] = {}
    for node in nodes:
        for number in node.reads():
            readers.setdefault(number, []).append(node)

    def following(node: Node) -> Node | None:
        """The one node that reads the result, if there is but one, which reads nothing else."""
        if (node.simple < 0 and type(node.call) is not Add) or node.outputs[0] in kept:
            return None
        after = readers.get(node.outputs[0], [])
        return after[0] if len(after) == 1 and after[0].simple >= 0 else None

    found: list[Node] = []
    joined: set[int] = set()
    for node in nodes:
        if id(node) in joined:
            continue
        row = [node]
        while len(row) < 3 and (after := following(row[-1])) is not None:
            row.append(after)
        n = _length([part.call for part in row])
        if n:
            row = row[:n]
            joined.update(id(part) for part in row)
            last = row[-1]
            kind = Summed if type(node.call) is Add else Folded
            whole = Node(
                kind([part.call for part in row]),
                node.args,
                {},
                last.outputs,
                last.specs,
                last.name,
            )
            inside = {part.outputs[0] for part in row[:-1]}
            whole.free = tuple(
                number for part in row for number in part.free if number not in inside
            )
            node = whole
        found.append(node)
    return found
