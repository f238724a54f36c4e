"""Pictures of computation graphs, coloured by gradients; plain text where graphviz is missing."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from picodl.scalar import Value
from picodl.tensor import Tensor, gradients, graph_behind
from picodl.visualize.picture import Picture, escape, need_graphviz

# -------------------------------------------------------------------- graphs of Tensors

# norms up to a limit have its colour and word; above the last one they explode
_SCALE = (
    (0.0, "#ffffff", "zero"),
    (1e-8, "#6a51a3", "vanished"),
    (1e-5, "#9e9ac8", "tiny"),
    (1e-3, "#cbc9e2", "small"),
    (1e2, "#c7e9c0", ""),
    (1e4, "#fdae6b", "large"),
)
_EXPLODED = ("#e6550d", "exploding")


class GraphPicture(Picture):
    """The graph behind a tensor: `str()` gives a tree of text, `save` a file, `dot` the source.

    Attributes:
        nodes: (tensor, title, gradient norm or None) in order of creation, leaves first.
    """

    def __init__(self, root: Tensor, rankdir: str = "LR") -> None:
        nodes, leaves = graph_behind([root])
        before = [(x, x.grad) for x in nodes]
        found = {id(x): g for x, g in gradients([root], [None], retain_graph=True)}
        found.update({id(x): x.grad for x in nodes if x.grad is not None})
        for x, grad in before:
            x.grad = grad
        others = {id(x): x for node in nodes for x in node._inputs if not x.requires_grad}
        self.root = root
        self.rankdir = rankdir
        self.nodes = [
            (x, _title(x), _norm(found[id(x)]) if id(x) in found else None)
            for x in [*others.values(), *leaves, *nodes]
        ]
        self._place = {id(x): place for place, (x, _, _) in enumerate(self.nodes)}

    @property
    def dot(self) -> str:
        """The graph in graphviz's language."""
        style = "node [shape=box, style=filled, fontname=Helvetica]"
        lines = ["digraph {", f"  rankdir={self.rankdir}; {style};"]
        for place, (x, title, norm) in enumerate(self.nodes):
            color, word = _judge(norm)
            lines.append(
                f'  n{place} [label="{escape(title)}\\n{escape(_facts(x, norm, word))}", '
                f'fillcolor="{color}"{"" if x._inputs else ", shape=ellipse"}];'
            )
            lines += [f"  n{self._place[id(a)]} -> n{place};" for a in x._inputs]
        return "\n".join([*lines, "}"])

    def __str__(self) -> str:
        """One line a node, from the result back.

        The input that was computed last goes on in the same column; leaves and side branches stand
        indented under the node that uses them.
        """
        lines: list[str] = []
        stack, seen = [(self.root, 0)], set()
        while stack:
            x, depth = stack.pop()
            _, title, norm = self.nodes[self._place[id(x)]]
            line = f"{'    ' * depth}{title} {_facts(x, norm, _judge(norm)[1])}"
            if id(x) in seen and x._inputs:
                lines.append(f"{'    ' * depth}{title} (see above)")
                continue
            seen.add(id(x))
            lines.append(line)
            inputs = list({id(a): a for a in x._inputs}.values())
            trunk = max((a for a in inputs if a._inputs), key=lambda a: a._order, default=None)
            if trunk is not None:
                stack.append((trunk, depth))
            stack += [(a, depth + 1) for a in reversed(inputs) if a is not trunk]
        return "\n".join(lines)


def draw_graph(
    loss: Tensor, to_file: str | os.PathLike[str] | None = None, rankdir: str = "LR"
) -> GraphPicture:
    """The graph behind a tensor, each node with op, shape, range of values and gradient norm.

    Colours follow the norm of the gradient: violet where it vanishes (1e-8 and less is darkest),
    green in the usual range, orange where it explodes (above 100). Gradients of the weights are
    left as they were, and the graph can still be used for a backward.

    Args:
        loss: any recorded tensor; draw it before its backward, or after
            `backward(retain_graph=True)`.
        to_file: where to save it: .svg, .png, .pdf, .dot or .txt.
        rankdir: "LR" from left to right, "TB" from top to bottom.

    Raises:
        ValueError: if the tensor was not recorded.
        RuntimeError: if a backward has already used the graph up.

    >>> x = Tensor([1.0, 2.0], requires_grad=True)
    >>> print(draw_graph((x * x).sum()))
    sum () [5, 5] |g| 1
    multiply (2,) [1, 4] |g| 1.41
        input (2,) [1, 2] |g| 4.47
    """
    if not isinstance(loss, Tensor) or not loss.requires_grad:
        raise ValueError(
            "draw_graph needs a tensor that was computed from something with requires_grad=True; "
            f"received {type(loss).__name__}."
        )
    picture = GraphPicture(loss, rankdir)
    if to_file is not None:
        picture.save(to_file)
    return picture


def _title(x: Tensor) -> str:
    if x._inputs:
        return x.op
    return getattr(x, "path", None) or ("input" if x.requires_grad else "data")


def _facts(x: Tensor, norm: float | None, word: str) -> str:
    low, high = (x.data.min(), x.data.max()) if x.size else (0, 0)
    text = f"{x.shape} [{low:.3g}, {high:.3g}]"
    if norm is not None:
        text += f" |g| {norm:.3g}"
    return f"{text} {word}" if word else text


def _judge(norm: float | None) -> tuple[str, str]:
    """Colour and word of a gradient norm."""
    if norm is None:
        return "#f0f0f0", ""
    for limit, color, word in _SCALE:
        if norm <= limit:
            return color, word
    return _EXPLODED


def _norm(g: Any) -> float:
    return float(np.sqrt(np.sum(np.square(np.asarray(g), dtype=np.float64))))


# -------------------------------------------------------------------- graphs of scalar Values


def trace(root: Value) -> tuple[set[Value], set[tuple[Value, Value]]]:
    """All Values behind a Value, and the edges (input, result) between them."""
    nodes, edges, stack = {root}, set(), [root]
    while stack:
        node = stack.pop()
        for x in node._prev:
            edges.add((x, node))
            if x not in nodes:
                nodes.add(x)
                stack.append(x)
    return nodes, edges


def draw_dot(root: Value, format: str = "svg", rankdir: str = "LR") -> Any:
    """The graph behind a scalar Value as a `graphviz.Digraph`; `.render("graph")` writes a file.

    Raises:
        ImportError: without graphviz.
    """
    nodes, edges = trace(root)
    dot = need_graphviz().Digraph(format=format, graph_attr={"rankdir": rankdir})
    for n in sorted(nodes, key=lambda n: n._order):
        label = f"{n._op or 'value'} | data {n.data:.4f} | grad {n.grad:.4f}"
        dot.node(name=str(id(n)), label=label, shape="record")
    for a, b in sorted(edges, key=lambda edge: (edge[1]._order, edge[0]._order)):
        dot.edge(str(id(a)), str(id(b)))
    return dot
