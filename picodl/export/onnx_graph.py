"""A model as an ONNX file, for onnxruntime and everything else that reads the format."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from picodl.export.onnx_layers import EMITTERS
from picodl.export.plan import Plan, Value, make_plan
from picodl.saving.files import atomic_write


class Builder:
    """Collects ONNX nodes and weights; values are known by their picodl Value.

    Images exist in two layouts: picodl's (batch, h, w, channels) and ONNX's (batch, channels, h,
    w). What one layer leaves in the second is converted only if somebody asks for the first.
    """

    def __init__(self) -> None:
        import onnx

        self.onnx = onnx
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.stored = 0
        self._names: dict[tuple[int, tuple[int, ...]], str] = {}  # (buffer, shape) -> name
        self._planar: dict[int, str] = {}  # buffer -> name of the (batch, channels, ...) form
        self._shapes: dict[int, tuple[int, ...]] = {}
        self._count = 0

    def node(self, kind: str, inputs: list[str], **attributes: Any) -> str:
        """Append a node with one output; gives the output's name."""
        self._count += 1
        name = f"{kind.lower()}_{self._count}"
        self.nodes.append(self.onnx.helper.make_node(kind, inputs, [name], name, **attributes))
        return name

    def many(self, kind: str, inputs: list[str], outputs: int, **attributes: Any) -> list[str]:
        """The same for a node with several outputs."""
        self._count += 1
        names = [f"{kind.lower()}_{self._count}_{i}" for i in range(outputs)]
        self.nodes.append(self.onnx.helper.make_node(kind, inputs, names, names[0], **attributes))
        return names

    def array(self, array: Any, dtype: Any = np.float32) -> str:
        """A weight or constant; gives its name."""
        array = np.ascontiguousarray(array, dtype)
        self._count += 1
        name = f"w_{self._count}"
        self.stored += array.nbytes
        self.weights.append(self.onnx.numpy_helper.from_array(array, name))
        return name

    def set(self, value: Value, name: str) -> None:
        """Say where a value can be found."""
        self._names[value.buffer, value.shape] = name
        self._shapes.setdefault(value.buffer, value.shape)

    def set_planar(self, value: Value, name: str) -> None:
        """The same for a name in the layout (batch, channels, ...)."""
        self._planar[value.buffer] = name
        self._shapes.setdefault(value.buffer, value.shape)

    def get(self, value: Value) -> str:
        """The name of a value in picodl's layout and the shape asked for."""
        key = (value.buffer, value.shape)
        if key not in self._names:
            made = Value(self._shapes[value.buffer], value.buffer)
            if (made.buffer, made.shape) not in self._names:
                rank = len(made.shape)
                order = [0, *range(2, rank + 1), 1]
                self.set(made, self.node("Transpose", [self._planar[made.buffer]], perm=order))
            if made.shape != value.shape:
                target = self.array([-1, *value.shape], np.int64)
                self.set(value, self.node("Reshape", [self.get(made), target]))
        return self._names[key]

    def get_planar(self, value: Value) -> str:
        """The name of a value in the layout (batch, channels, ...)."""
        if value.buffer not in self._planar or self._shapes[value.buffer] != value.shape:
            rank = len(value.shape)
            order = [0, rank, *range(1, rank)]
            name = self.node("Transpose", [self.get(value)], perm=order)
            if self._shapes[value.buffer] != value.shape:
                return name
            self._planar[value.buffer] = name
        return self._planar[value.buffer]


def write_onnx(model: Any, path: str | os.PathLike[str]) -> dict[str, int]:
    """Write a model as an ONNX file of opset 17; the batch axis stays free.

    Inputs and outputs keep their names, order and shapes (channels last). Embedding ids are floats,
    as in `predict`.

    Args:
        model: a model made from Input symbols, every other size known.
        path: of the file.

    Returns:
        The bytes of the weights.

    Raises:
        ImportError: without the extra "onnx".
        ValueError: for what cannot be exported, naming the layer.
    """
    try:
        import onnx
    except ImportError as error:
        raise ImportError("ONNX export needs onnx: pip install 'picodl[onnx]'.") from error
    plan, builder = make_plan(model), Builder()
    names = _unique([*plan.input_names, *plan.output_names])
    entering, leaving = names[: len(plan.inputs)], names[len(plan.inputs) :]
    for value, name in zip(plan.inputs, entering, strict=True):
        builder.set(value, name)
    for call in plan.calls:
        emitter = EMITTERS.get(call.kind)
        if emitter is None:
            raise ValueError(
                f'The {call.kind} layer "{call.name}" cannot be exported to ONNX. These can: '
                f"{', '.join(sorted(k for k in EMITTERS if k[0].isupper()))}."
            )
        emitter(call, builder)
    for value, name in zip(plan.outputs, leaving, strict=True):
        builder.nodes.append(onnx.helper.make_node("Identity", [builder.get(value)], [name], name))
    made = _make_model(onnx, plan, builder, entering, leaving)
    onnx.checker.check_model(made)
    with atomic_write(os.fspath(path)) as file:
        file.write(made.SerializeToString())
    return {"weights": builder.stored}


def _make_model(
    onnx: Any, plan: Plan, builder: Builder, entering: list[str], leaving: list[str]
) -> Any:
    def info(value: Value, name: str) -> Any:
        shape = ["batch", *value.shape]
        return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)

    graph = onnx.helper.make_graph(
        builder.nodes,
        plan.name,
        [info(v, n) for v, n in zip(plan.inputs, entering, strict=True)],
        [info(v, n) for v, n in zip(plan.outputs, leaving, strict=True)],
        builder.weights,
    )
    return onnx.helper.make_model(
        graph,
        producer_name="picodl",
        opset_imports=[onnx.helper.make_opsetid("", 17)],
        ir_version=8,
    )


def _unique(names: list[str]) -> list[str]:
    """The names with numbers after those that repeat."""
    seen: set[str] = set()
    result = []
    for name in names:
        candidate, number = name, 1
        while candidate in seen:
            number += 1
            candidate = f"{name}_{number}"
        seen.add(candidate)
        result.append(candidate)
    return result
