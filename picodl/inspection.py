"""One backward pass told op by op: formula, shapes, norms, and a check against differences."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import numpy as np

from picodl import config, ops, tree
from picodl.tensor import Tensor, gradients, graph_behind, no_grad, record, unbroadcast
from picodl.typing import Array

_EPS = 1e-6


@dataclass
class InputReport:
    """What one input of an op received.

    Attributes:
        name: a weight's path, "#3 dense" for the result of step 3, or "input".
        shape: of the input.
        norm: of the gradient that the op sends to it; None if it sends none.
        error: the relative difference between that gradient and finite differences of the op in
            float64, along a random direction; None if it could not be measured.
    """

    name: str
    shape: tuple[int, ...]
    norm: float | None = None
    error: float | None = None


@dataclass
class OpReport:
    """One op in the order of the backward pass.

    Attributes:
        number: its place in the forward pass.
        name: of the op.
        formula: what the op's docstring says: what it computes, and its gradient.
        shape: of the result.
        norm: of the gradient that came in.
        inputs: one report for each input.
        remark: why the check was left out, if it was.
    """

    number: int
    name: str
    formula: str
    shape: tuple[int, ...]
    norm: float
    inputs: list[InputReport] = field(default_factory=list)
    remark: str = ""

    def __str__(self) -> str:
        lines = [f"#{self.number} {self.name} {self.shape}   |g| came in: {self.norm:.3g}"]
        lines += [f"    {line}" for line in self.formula.splitlines()]
        for x in self.inputs:
            sent = "none" if x.norm is None else f"{x.norm:.3g}"
            line = f"    -> {x.name} {x.shape}   |g| sent: {sent}"
            if x.error is not None:
                line += f"   off the difference by {x.error:.0e}"
            lines.append(line)
        if self.remark:
            lines.append(f"    ({self.remark})")
        return "\n".join(lines)


def explain(
    model: Callable[..., Any],
    x: Any,
    y: Any = None,
    loss: Callable[[Any, Any], Any] | None = None,
    training: bool = False,
    tolerance: float = 1e-3,
    print_fn: Callable[[str], Any] | None = print,
) -> list[OpReport]:
    """Tell, for one batch, every op of the backward pass, and check its gradient.

    Each op is run again in float64 with its inputs moved a little along a random direction; the
    slope found in this way is compared with the gradient that the backward pass really sent.

    Args:
        model: a layer, a model, or any function of tensors.
        x: the batch.
        y: the targets. Without them the model's output itself is differentiated.
        loss: a function or Loss `loss(y_true, y_pred)`. Defaults to the loss the model was
            compiled with.
        training: whether layers run as in training. Dropout is then random and is not checked.
        tolerance: a larger relative error is reported as a fault.
        print_fn: gets each line; None to print nothing.

    Returns:
        The reports, in the order of the backward pass.

    Raises:
        ValueError: if targets are given and there is no loss, or if nothing was recorded.

    >>> reports = explain(lambda x: (x * x).sum(), Tensor([3.0], requires_grad=True))
    #2 sum ()   |g| came in: 1
    ...
    >>> [report.name for report in reports]
    ['sum', 'multiply']
    """
    calls: dict[int, _Call] = {}
    x = x if isinstance(x, (Tensor, list, tuple, dict)) else Tensor(x)
    with config.thread_values(training=training), _recorded_calls(calls):
        out = model(x)
        if y is not None:
            out = _loss_of(model, loss, x, y, out)
    if not isinstance(out, Tensor) or not out.requires_grad:
        raise ValueError(
            "explain found nothing to differentiate: the result does not depend on any weight. "
            "Is the model built, and is anything in it trainable?"
        )
    nodes, leaves = graph_behind([out])
    names = {id(p): _leaf_name(p) for p in leaves}
    for number, node in enumerate(nodes, start=1):
        names[id(node)] = f"#{number} {node.op}"
    reports = []
    with _spied(nodes) as sent:
        gradients([out], [None], retain_graph=True)
    for number, node in reversed(list(enumerate(nodes, start=1))):
        if id(node) in sent:
            g, parts = sent[id(node)]
            reports.append(_report(number, node, g, parts, names, calls.get(id(node))))
        node.grad = None
    if print_fn is not None:
        for report in reports:
            print_fn(str(report))
        print_fn(_verdict(reports, tolerance))
    return reports


# -------------------------------------------------------------------- watching the forward pass


@dataclass
class _Call:
    """The call of an op that made a tensor: the function as it is written, and its arguments."""

    result: Tensor  # kept so that its id stays its own
    function: Callable[..., Any] | None
    arguments: dict[str, Any]


@contextmanager
def _recorded_calls(calls: dict[int, _Call]) -> Iterator[None]:
    """Note the call behind every tensor that is recorded in this thread.

    The interpreter's profiling hook does it, so that the engine itself pays nothing for it.
    """
    code = record.__code__

    def hook(frame: FrameType, event: str, result: Any) -> None:
        if event == "return" and frame.f_code is code and isinstance(result, Tensor):
            caller = frame.f_back
            if result.requires_grad and caller is not None:
                local, made = caller.f_locals, caller.f_code
                names = made.co_varnames[: made.co_argcount + made.co_kwonlyargcount]
                arguments = {name: local[name] for name in names if name in local}
                calls[id(result)] = _Call(result, _function(caller, result), arguments)

    before = sys.getprofile()
    sys.setprofile(hook)
    try:
        yield
    finally:
        sys.setprofile(before)


def _function(frame: FrameType, result: Tensor) -> Callable[..., Any] | None:
    """The function whose code runs in the frame: an op under its decorator, or a helper of one."""
    code = frame.f_code
    for candidate in (frame.f_globals.get(code.co_name), getattr(ops, result.op, None)):
        if callable(candidate):
            inner = inspect.unwrap(candidate)
            if getattr(inner, "__code__", None) is code:
                return inner
    return None


@contextmanager
def _spied(nodes: list[Tensor]) -> Iterator[dict[int, tuple[Array, Any]]]:
    """Note what comes into and goes out of every node while a backward pass runs."""
    sent: dict[int, tuple[Array, Any]] = {}
    closures = [node._backward for node in nodes]

    def spy(node: Tensor, closure: Any) -> Callable[[Any], Any]:
        def backward(g: Any) -> Any:
            parts = list(closure(g))
            sent[id(node)] = (g, parts)
            return parts

        return backward

    for node, closure in zip(nodes, closures, strict=True):
        node._backward = spy(node, closure)
    try:
        yield sent
    finally:
        for node, closure in zip(nodes, closures, strict=True):
            node._backward = closure


# -------------------------------------------------------------------- judging one op


def _report(
    number: int, node: Tensor, g: Array, parts: Any, names: dict[int, str], call: _Call | None
) -> OpReport:
    report = OpReport(number, node.op, _formula(node, call), node.shape, _norm(g))
    inputs: dict[int, Tensor] = {}
    sums: dict[int, Array] = {}  # an input that is used twice gets the sum, as in the engine
    for x, dx in zip(node._inputs, parts, strict=True):
        inputs[id(x)] = x
        if dx is not None and x.requires_grad:
            dx = unbroadcast(np.asarray(dx), x.shape)
            sums[id(x)] = sums[id(x)] + dx if id(x) in sums else dx
    replay, report.remark = _replay(node, call, inputs)
    rng = np.random.default_rng(number)
    for key, x in inputs.items():
        one = InputReport(names.get(key, "data"), x.shape)
        if key in sums:
            one.norm = _norm(sums[key])
            if replay is not None:
                one.error = _error(replay, inputs, key, sums[key], g, rng)
        report.inputs.append(one)
    return report


def _replay(
    node: Tensor, call: _Call | None, inputs: dict[int, Tensor]
) -> tuple[Callable[[dict[int, Array]], Array] | None, str]:
    """The op as a function of float64 inputs (by id), or None and the reason."""
    if call is None or call.function is None:
        return None, "not checked: it was not made by an op of picodl.ops"
    function, arguments = call.function, call.arguments
    met = {id(a) for a in tree.flatten(arguments) if isinstance(a, Tensor)}
    if not met >= set(inputs):
        return None, "not checked: it was not computed from its arguments alone"

    def replay(arrays: dict[int, Array]) -> Array:
        def fill(a: Any) -> Any:
            if isinstance(a, Tensor):
                return Tensor(arrays[id(a)] if id(a) in arrays else _float64(a.data))
            return a

        with no_grad():
            result = function(**tree.map_structure(fill, arguments))
        for part in tree.flatten(result):
            if isinstance(part, Tensor) and part.shape == node.shape:
                return part.data
        raise ValueError("no result of the same shape")

    try:
        again = replay({key: _float64(x.data) for key, x in inputs.items()})
    except Exception as error:
        return None, f"not checked: it cannot be run again ({type(error).__name__}: {error})"
    scale = float(np.max(np.abs(node.data), initial=1.0))
    if not np.all(np.abs(again - node.data) <= 1e-3 * scale):
        return None, "not checked: run again it gives other numbers, so it is random"
    return replay, ""


def _error(
    replay: Callable[[dict[int, Array]], Array],
    inputs: dict[int, Tensor],
    key: int,
    dx: Array,
    g: Array,
    rng: np.random.Generator,
) -> float:
    """|sum(dx * d) - slope of sum(g * f) along d|, relative to the size of the terms.

    A tenth of |g| |slope of f| is the least that counts as size: a gradient that is 0 but for
    rounding would otherwise be judged by its rounding. At a kink (equal maxima, relu at 0) the
    slopes ahead and behind differ, and anything between them is right.
    """
    arrays = {k: _float64(x.data) for k, x in inputs.items()}
    d = rng.normal(size=dx.shape)
    behind, here, ahead = (
        replay({**arrays, key: arrays[key] + step * _EPS * d}) for step in (-1, 0, 1)
    )
    slopes = np.stack([(here - behind) / _EPS, (ahead - here) / _EPS]) * _float64(g)
    low, high = float(slopes.min(axis=0).sum()), float(slopes.max(axis=0).sum())
    terms = dx.astype(np.float64) * d
    got, expected = float(terms.sum()), float(slopes.sum()) / 2
    size = 0.1 * _norm(g) * _norm(ahead - behind) / (2 * _EPS)
    scale = max(abs(expected), float(np.abs(terms).sum()), size) or 1.0
    if high - low > 1e-4 * scale:
        return max(low - got, got - high, 0.0) / scale
    return abs(got - expected) / scale


# -------------------------------------------------------------------- words


def _formula(node: Tensor, call: _Call | None) -> str:
    """The first line of the op's docstring and what it says about its gradient."""
    public = getattr(ops, node.op, None)
    document = inspect.getdoc(public or (call.function if call else None) or type(None)) or ""
    if public is None and (call is None or call.function is None):
        return "a function with a gradient of its own"
    paragraphs = document.split("\n\n")
    first = " ".join(paragraphs[0].split())
    for paragraph in paragraphs:
        start = paragraph.find("Gradient")
        if start >= 0:
            kept: list[str] = []
            for line in paragraph[start:].splitlines():
                if kept and line[:1] != " " and line.split(":")[0] in _SECTIONS:
                    break
                kept.append(line)
            return first + "\n" + "\n".join(kept)
    return first


_SECTIONS = ("Args", "Shapes", "Returns", "Raises", "Reference")


def _leaf_name(x: Tensor) -> str:
    return getattr(x, "path", None) or getattr(x, "name", None) or "input"


def _loss_of(model: Any, loss: Any, x: Any, y: Any, out: Any) -> Any:
    """The given loss of the outputs, or everything the model was compiled to minimise."""
    if loss is None and getattr(model, "compiled", False):
        return model.compute_loss(x, tree.map_structure(np.asarray, y), out)
    if loss is None:
        raise ValueError(
            "explain received targets but no loss. Pass loss=..., or compile the model with one."
        )
    if callable(loss):
        return loss(y, out)
    from picodl import losses

    return losses.get(loss)(y, out)


def _norm(g: Any) -> float:
    return float(np.sqrt(np.sum(np.square(g, dtype=np.float64))))


def _float64(a: Array) -> Array:
    return a.astype(np.float64) if a.dtype.kind == "f" else a


def _verdict(reports: list[OpReport], tolerance: float) -> str:
    errors = [
        (x.error, report, x) for report in reports for x in report.inputs if x.error is not None
    ]
    faults = [entry for entry in errors if not entry[0] <= tolerance]
    if faults:
        return "\n".join(
            f"FAULT: #{report.number} {report.name} sends {x.name} a gradient that is off by "
            f"{error:.0e} (tolerance {tolerance:g})"
            for error, report, x in faults
        )
    skipped = sum(bool(report.remark) for report in reports)
    return (
        f"{len(reports)} ops, {len(errors)} gradients agree with finite differences"
        + (f" within {max(e[0] for e in errors):.0e}" if errors else "")
        + (f"; {skipped} ops not checked" if skipped else "")
    )
