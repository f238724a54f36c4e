"""summary(): a table of the layers of a model."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from typing import Any, NamedTuple

from picodl import tree
from picodl.layers.core import InputLayer


class _Row(NamedTuple):
    cells: list[str]


def summarise(
    model: Any,
    line_length: int | None = None,
    positions: Sequence[float] | None = None,
    expand_nested: bool = False,
    show_trainable: bool = False,
    layer_range: Sequence[str] | None = None,
) -> str:
    """The table as text; the arguments are those of `Model.summary`."""
    chain = is_chain(model)
    connections = {} if chain else _connections(model)
    header = ["Layer (type)", "Output Shape", "Param #"]
    if not chain:
        header.append("Connected to")
    if show_trainable:
        header.append("Trai…")
    if positions is None:
        fractions = [0.45, 0.80, 1.0] if chain else [0.3, 0.56, 0.74, 1.0]
        if show_trainable:
            fractions = [*(p * 0.9 for p in fractions), 1.0]
    else:
        fractions = list(positions)
    if line_length is None:
        line_length = min(88 if chain else 108, shutil.get_terminal_size((80, 24)).columns - 4)
        line_length += 12 if show_trainable else 0
    widths = _widths(fractions, line_length, len(header))
    rows = [
        _row(layer, depth, last, chain, connections, show_trainable)
        for layer, depth, last in _listed(model, expand_nested, layer_range)
    ]
    parts = [f'Model: "{model.name}"', table(header, [r.cells for r in rows], widths)]
    return "\n".join([*parts, *_totals(model)])


def is_chain(model: Any) -> bool:
    """Whether each layer of a model feeds the next one only."""
    graph = model._graph
    if graph is None or type(model).__name__ == "Sequential":
        return True
    if len(graph.sources) > 1 or len(graph.output_slots) > 1:
        return False
    calls = [id(node.call) for node in graph.nodes]
    if len(set(calls)) < len(calls):
        return False
    at = 0
    for node in graph.nodes:
        if node.simple != at:
            return False
        at = node.outputs[0]
    return True


def _connections(model: Any) -> dict[int, list[str]]:
    """For each layer, where its inputs come from, as layer[call][result]."""
    from picodl.models.graph import _slots_in

    graph = model._graph
    counts: dict[int, int] = {}
    made = {n: (s.name, 0, 0) for n, s in zip(graph.input_slots, graph.sources, strict=True)}
    found: dict[int, list[str]] = {}
    for node in graph.nodes:
        index = counts[id(node.call)] = counts.get(id(node.call), -1) + 1
        sources = [made[n] for n in _slots_in((node.args, node.kwargs))]
        found.setdefault(id(node.call), []).extend(f"{n}[{i}][{t}]" for n, i, t in sources)
        for result, number in enumerate(node.outputs):
            made[number] = (node.name, index, result)
    return found


def _listed(model: Any, expand_nested: bool, layer_range: Sequence[str] | None) -> Any:
    """(layer, depth, whether it is the last of its model)."""
    layers = model.layers
    if layer_range is not None:
        if len(layer_range) != 2:
            raise ValueError(f"layer_range is a pair of layer names; received {layer_range!r}.")
        places = [
            [i for i, layer in enumerate(layers) if re.match(pattern, layer.name)]
            for pattern in layer_range
        ]
        if not all(places):
            raise ValueError(f"layer_range {layer_range!r} names no layer of {model.name!r}.")
        first, last = sorted((min(places[0]), max(places[1])))
        layers = layers[first : last + 1]
    yield from _nested(layers, expand_nested, 0)


def _nested(layers: list[Any], expand: bool, depth: int) -> Any:
    for i, layer in enumerate(layers):
        yield layer, depth, i == len(layers) - 1
        if expand and getattr(layer, "layers", None):
            yield from _nested(layer.layers, expand, depth + 1)


def _row(
    layer: Any, depth: int, last: bool, chain: bool, connections: dict[int, list[str]], trains: bool
) -> _Row:
    prefix = "   " * depth + ("└ " if last else "├ ") if depth else ""
    cells = [f"{prefix}{layer.name} ({type(layer).__name__})", _output_shape(layer)]
    cells.append(_count(layer))
    if not chain:
        cells.append(", ".join(connections.get(id(layer), [])) or "-")
    if trains:
        flag = "Y" if layer.trainable else "N"
        cells.append(flag if any(True for _ in layer.parameters()) else "-")
    return _Row(cells)


def _output_shape(layer: Any) -> str:
    if isinstance(layer, InputLayer):
        return str(layer.batch_shape)
    steps = vars(layer).get("_steps")
    if not steps:
        return "?"
    shapes = [str(s.shape) for s in tree.flatten(steps[0].outputs) if hasattr(s, "shape")]
    return shapes[0] if len(shapes) == 1 else f"[{', '.join(shapes)}]"


def _count(layer: Any) -> str:
    if not layer.built:
        return "0 (unbuilt)"
    return f"{sum(w.size for w in layer.parameters()):,}"


def _widths(fractions: Sequence[float], line_length: int, columns: int) -> list[int]:
    """The width of each column without its padding."""
    if len(fractions) != columns:
        raise ValueError(f"positions must have {columns} entries; received {list(fractions)}.")
    ends = [int(p * line_length) for p in fractions]
    widths = [b - a + 2 for a, b in zip([0, *ends], ends, strict=False)]
    excess = sum(widths) - (line_length - (columns + 1))
    for i in range(columns):
        less = round(excess / (columns - i))
        widths[i] -= less
        excess -= less
    return [max(3, w - 2) for w in widths]


def table(
    header: list[str], rows: list[list[str]], widths: list[int], numbers: Sequence[int] = (2,)
) -> str:
    """A table drawn with lines.

    Args:
        header: the titles of the columns.
        rows: the cells of each row.
        widths: of the columns, in characters; longer cells are broken into lines.
        numbers: the columns that stand to the right.
    """

    def rule(left: str, middle: str, right: str, line: str) -> str:
        return left + middle.join(line * (w + 2) for w in widths) + right

    lines = [
        rule("┏", "┳", "┓", "━"),
        *_lines(header, widths, "┃", numbers),
        rule("┡", "╇", "┩", "━"),
    ]
    for i, cells in enumerate(rows):
        if i:
            lines.append(rule("├", "┼", "┤", "─"))
        lines.extend(_lines(cells, widths, "│", numbers))
    lines.append(rule("└", "┴", "┘", "─"))
    return "\n".join(lines)


def _lines(cells: list[str], widths: list[int], border: str, numbers: Sequence[int]) -> list[str]:
    """One row, over as many lines as its longest cell takes."""
    wrapped = [_wrap(cell, width) for cell, width in zip(cells, widths, strict=True)]
    height = max(map(len, wrapped))
    lines = []
    for i in range(height):
        parts = []
        for column, (cell, width) in enumerate(zip(wrapped, widths, strict=True)):
            text = cell[i] if i < len(cell) else ""
            parts.append(f" {text:>{width}} " if column in numbers else f" {text:<{width}} ")
        lines.append(border + border.join(parts) + border)
    return lines


def _wrap(text: str, width: int) -> list[str]:
    """Broken at spaces, and inside words that are too long."""
    indent = text[: len(text) - len(text.lstrip())]
    lines, line = [], indent
    for word in text.split():
        while len(word) > width - len(indent):
            if line.strip():
                lines.append(line)
                line = indent
            cut = max(1, width - len(indent))
            lines.append(indent + word[:cut])
            word = word[cut:]
        if line.strip() and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = indent
        line += (" " if line.strip() else "") + word
    return [*lines, line] if line.strip() or not lines else lines


def _totals(model: Any) -> list[str]:
    trainable = sum(w.size for w in model.parameters() if w.requires_grad)
    trainable_bytes = sum(w.data.nbytes for w in model.parameters() if w.requires_grad)
    others = [w for w in model.parameters() if not w.requires_grad]
    other, other_bytes = sum(w.size for w in others), sum(w.data.nbytes for w in others)
    lines = [
        _total(" Trainable params", trainable, trainable_bytes),
        _total(" Non-trainable params", other, other_bytes),
    ]
    optimizer = model.optimizer
    states = optimizer.variables if optimizer is not None and optimizer.built else []
    count, size = sum(v.size for v in states), sum(v.data.nbytes for v in states)
    if states:
        lines.append(_total(" Optimizer params", count, size))
    total = _total(" Total params", trainable + other + count, trainable_bytes + other_bytes + size)
    return [total, *lines]


def _total(label: str, count: int, size: float) -> str:
    return f"{label}: {count:,} ({bytes_text(size)})"


def bytes_text(size: float) -> str:
    """A number of bytes in the unit that suits it."""
    unit = "B"
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if size < 1024 or unit == "TB":
            break
        size /= 1024
    return f"{size:.2f} {unit}"
