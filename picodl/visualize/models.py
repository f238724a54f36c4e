"""Drawings of models: one box a layer, arrows where values flow."""

from __future__ import annotations

import os
from typing import Any

from picodl import tree
from picodl.visualize.picture import Picture, escape


class ModelPicture(Picture):
    """The drawing of a model; see `model_to_dot` for the options."""

    def __init__(self, model: Any, rankdir: str = "TB", dpi: int = 200, **options: Any) -> None:
        self.rankdir = rankdir
        self.dpi = dpi
        self.options = options
        self._lines: list[str] = []
        self._edges: list[str] = []  # apart, for an edge inside a frame draws its ends into it
        self._text: list[str] = []
        self._count = 0
        names = [
            self._box(source.name, "Input", source, None, spec.shape, spec.dtype)
            for source, spec in zip(_graph(model).sources, model.inputs, strict=True)
        ]
        self._draw(model, names)

    @property
    def dot(self) -> str:
        head = (
            f"digraph {{\n  rankdir={self.rankdir}; graph [dpi={self.dpi}];\n"
            '  node [shape=box, style="rounded,filled", fillcolor="#eef4fb", fontname=Helvetica];'
        )
        return "\n".join([head, *(f"  {line}" for line in [*self._lines, *self._edges]), "}"])

    def __str__(self) -> str:
        return "\n".join(self._text)

    def _draw(self, model: Any, names: list[str]) -> list[str]:
        """Draw the steps of a model; gives the boxes its outputs come from."""
        graph = _graph(model)
        boxes: dict[int, str] = dict(zip(graph.input_slots, names, strict=True))
        for node in graph.nodes:
            leaves = tree.flatten((node.args, node.kwargs))
            sources = [boxes[leaf.number] for leaf in leaves if hasattr(leaf, "number")]
            inside = getattr(node.call, "_graph", None) is not None
            if inside and self.options["expand_nested"]:
                self._lines.append(f"subgraph cluster_{self._count} {{")
                self._lines.append(f'label="{escape(node.name)}"; fontname=Helvetica;')
                results = self._draw(node.call, sources)
                self._lines.append("}")
            else:
                spec = tree.flatten(node.specs)[0]
                kind = type(node.call).__name__ if hasattr(node.call, "name") else "op"
                box = self._box(node.name, kind, node.call, sources, spec.shape, spec.dtype)
                results = [box] * len(node.outputs)
            boxes.update(zip(node.outputs, results, strict=True))
        return [boxes[number] for number in graph.output_slots]

    def _box(
        self, name: str, kind: str, layer: Any, sources: list[str] | None, shape: Any, dtype: str
    ) -> str:
        wanted = self.options
        words = [f"{name} ({kind})" if wanted["show_layer_names"] else kind]
        activation = getattr(getattr(layer, "activation", None), "__name__", None)
        if wanted["show_layer_activations"] and activation:
            words.append(f"activation {activation}")
        if wanted["show_shapes"]:
            words.append(str(tuple(shape)))
        if wanted["show_dtype"]:
            words.append(str(dtype))
        if wanted["show_trainable"] and getattr(layer, "weights", None):
            words.append("trainable" if layer.trainable else "frozen")
        box = f"n{self._count}"
        self._count += 1
        label = "\\n".join(escape(word) for word in words)
        self._lines.append(f'{box} [label="{label}"];')
        for source in sources or ():
            self._edges.append(f"{source} -> {box};")
        came = f" <- {', '.join(sources)}" if sources else ""
        self._text.append(f"{box} {' '.join(words)}{came}")
        return box


def model_to_dot(
    model: Any,
    show_shapes: bool = False,
    show_dtype: bool = False,
    show_layer_names: bool = True,
    rankdir: str = "TB",
    expand_nested: bool = False,
    dpi: int = 200,
    subgraph: bool = False,
    show_layer_activations: bool = False,
    show_trainable: bool = False,
    splines: str = "ortho",
) -> ModelPicture:
    """The drawing of a model; `.dot` is its source, `.save(path)` writes it, `str()` is text.

    Args:
        model: a model made from Input symbols.
        show_shapes, show_dtype: of each layer's output.
        show_layer_names: names beside the classes.
        rankdir: "TB" from top to bottom, "LR" from left to right.
        expand_nested: draw the insides of nested models, each in a frame.
        dpi: dots per inch of a PNG.
        show_layer_activations: the names of activations.
        show_trainable: whether a layer with weights is trainable or frozen.
        subgraph, splines: accepted.

    Raises:
        ValueError: for a model without a graph.
    """
    return ModelPicture(
        model,
        rankdir,
        dpi,
        show_shapes=show_shapes,
        show_dtype=show_dtype,
        show_layer_names=show_layer_names,
        expand_nested=expand_nested,
        show_layer_activations=show_layer_activations,
        show_trainable=show_trainable,
    )


def plot_model(
    model: Any,
    to_file: str | os.PathLike[str] = "model.png",
    show_shapes: bool = False,
    show_dtype: bool = False,
    show_layer_names: bool = False,
    **options: Any,
) -> ModelPicture:
    """Draw a model into a file: .png, .svg, .pdf, .dot or .txt.

    Args:
        model: a model made from Input symbols.
        to_file: the path.
        options: see `model_to_dot`.

    Raises:
        ImportError: for pictures, without graphviz. .dot and .txt need nothing.
        ValueError: for a model without a graph.
    """
    picture = model_to_dot(model, show_shapes, show_dtype, show_layer_names, **options)
    picture.save(to_file)
    return picture


def _graph(model: Any) -> Any:
    graph = getattr(model, "_graph", None)
    if graph is None:
        raise ValueError(
            f'"{getattr(model, "name", model)}" has no graph to draw: it was not made from Input '
            "symbols. Give a Sequential model an Input or call it on data first."
        )
    return graph
