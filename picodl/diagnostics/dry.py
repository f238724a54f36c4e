"""dry_run(): one training step without lasting effect, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from picodl import optimizers, tree
from picodl.diagnostics.expectations import misfits
from picodl.diagnostics.step import Step, ends_in, finite
from picodl.diagnostics.watching import as_batch, build, on_a_copy, require_loss
from picodl.layers.weights import adapters_of
from picodl.models.compiled import _by_output
from picodl.typing import Array

_TINY, _FAR = 0.01, 5.0  # inputs that are all below the one, or of a mean or spread above the other


class Finding(NamedTuple):
    """One thing that is wrong.

    Attributes:
        kind: "inputs", "weights", "outputs", "targets", "loss", "gradient", "dead units", or
            "warning" for what picodl itself warned of.
        where: the layer, weight, input or loss.
        what: what was found.
        advice: what to do.
    """

    kind: str
    where: str
    what: str
    advice: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}. {self.advice}".rstrip()


@dataclass
class DryRun:
    """What a dry run found.

    Attributes:
        name: of the model.
        loss: of the batch; None if it could not be computed.
        findings: in the order of a step. The object itself is true if there are none.
        dead_units: (dead, all) of each layer that ends in a ReLU: how many of its units are 0 for
            the whole batch.
        notes: what could not be looked at.
    """

    name: str
    loss: float | None
    findings: list[Finding]
    dead_units: dict[str, tuple[int, int]]
    notes: list[str]

    def __bool__(self) -> bool:
        return not self.findings

    def __str__(self) -> str:
        count = len(self.findings)
        found = "no findings" if not count else f"{count} finding{'s' if count > 1 else ''}"
        loss = "no loss" if self.loss is None else f"loss {self.loss:.4g}"
        lines = [f'Dry run of "{self.name}": {found}, {loss}']
        lines += [f"- {finding}" for finding in self.findings]
        return "\n".join([*lines, *(f"({note})" for note in self.notes)])


def dry_run(model: Any, x: Any, y: Any = None, dead_share: float = 0.5) -> DryRun:
    """Make one training step on one batch with a copy of a model, and say what is wrong with it.

    It looks for: inputs that are not finite, not scaled or all the same; weights, outputs, losses
    and gradients that are not finite, and the first layer where it happens; outputs and targets
    that the loss does not expect; weights without a gradient, or with one that is all zero; layers
    with many ReLU units that are 0 for the whole batch. Warnings of the step count as findings.

    A train_step of the model's own is run as it is; its gradients are seen where it calls
    `minimize`. An optimizer that needs the loss several times in a step (LBFGS) is left out.

    Args:
        model: compiled. It stays as it is, also when the step fails.
        x, y: the batch, as for `train_on_batch`; as many samples as in training.
        dead_share: the fraction of a layer's ReLU units that may be 0 for the whole batch. In a new
            network and a batch of 32 a quarter of them often is, by chance; 0 reports every one.

    Returns:
        A DryRun: true if nothing was found, and a short list as text.

    Raises:
        ValueError: for a model that is not compiled, an empty batch, data that does not fit the
            model or each other, or a dead_share outside 0 to 1.
        TypeError: for what is no model or no data.

    >>> from picodl import Input, Sequential, layers, losses
    >>> model = Sequential([Input((4,)), layers.Dense(3, activation="softmax", name="out")])
    >>> model.compile("adam", losses.SparseCategoricalCrossentropy(from_logits=True))
    >>> x = np.random.default_rng(0).normal(size=(8, 4))
    >>> [(f.kind, f.where) for f in dry_run(model, x, np.arange(8) % 3).findings]
    [('loss', 'out')]
    """
    if not isinstance(dead_share, (int, float)) or not 0 <= dead_share <= 1:
        raise ValueError(
            f"dry_run: dead_share must be a fraction from 0 to 1; received {dead_share!r}."
        )
    with on_a_copy("dry_run", model) as copy:
        require_loss("dry_run", model)
        x, y = as_batch("dry_run", copy, x, y)
        build(copy, x)
        step = _Judge(copy)
        step.run(x, y)
        findings = list(step.findings(x, dead_share))
    return DryRun(model.name, step.loss, findings, step.dead_units(), step.notes)


class _Judge(Step):
    """Says what is wrong with a step."""

    def findings(self, x: Any, dead_share: float) -> Iterator[Finding]:
        """All that is wrong, in the order of a step; of what is not finite only the first place."""
        yield from self._of_inputs(x)
        yield from self._of_weights()
        bad = bool(self.weights_before) or not all(map(_is_finite, tree.flatten(x)))
        if not bad:
            yield from self._of_outputs()
        bad = bad or self.first_bad is not None
        yield from self._of_loss(bad)
        for text in self.warnings:
            what, _, advice = text.rstrip(".").partition(". ")
            yield Finding("warning", self.model.name, what, f"{advice}." if advice else "")
        if self.gradients is not None:
            broken = bad or not np.isfinite(self.loss or 0.0)
            yield from self._of_gradients(broken)
        for path, (count, size) in self.dead_units().items():
            if count > dead_share * size:
                yield Finding(
                    "dead units",
                    path,
                    f"{count} of the {size} units are 0 for all samples, so they do not learn",
                    "Lower the learning rate, try a leaky ReLU or He initialisation, scale the "
                    "inputs, or look at the biases.",
                )

    def dead_units(self) -> dict[str, tuple[int, int]]:
        """(dead, all) units of each layer that ends in a ReLU, by its path."""
        return {path: (int(np.count_nonzero(d)), d.size) for path, d in self.dead.items()}

    def _of_inputs(self, x: Any) -> Iterator[Finding]:
        for keys, leaf in tree.flatten_with_path(x):
            name = "x" + "".join(f"[{key!r}]" for key in keys)
            if leaf is None or leaf.dtype.kind not in "fiub":
                continue
            if not finite(leaf):
                count = int(np.count_nonzero(~np.isfinite(leaf)))
                yield Finding(
                    "inputs",
                    name,
                    f"{count} of its {leaf.size} numbers are not finite",
                    "Fill or leave out what is missing.",
                )
            elif len(leaf) > 1 and leaf.size and (leaf == leaf[:1]).all():
                yield Finding(
                    "inputs", name, "all samples are the same", "Look at how the data is loaded."
                )
        for path, a in self.data.items():
            if a.size and a.dtype.kind in "fiu" and finite(a):
                yield from _scaling(path, a)

    def _of_weights(self) -> Iterator[Finding]:
        for w in self.weights_before:
            yield Finding(
                "weights",
                self._name(w),
                "it is not finite",
                "Load it again, or begin with a new model.",
            )

    def _of_outputs(self) -> Iterator[Finding]:
        if self.first_bad is not None:
            path, came_in = self.first_bad
            what = "its outputs are not finite, and no layer before gives such numbers"
            if came_in:
                what = "its inputs are not finite: an operation before it makes them so"
            yield Finding(
                "outputs",
                path,
                what,
                "Look for a log or a division by 0, a large exp, inputs or weights that are large.",
            )

    def _of_loss(self, bad: bool) -> Iterator[Finding]:
        if self.refused is not None:
            yield Finding("loss", "loss", str(self.refused).rstrip("."), "")
            return
        if not bad and self.loss is not None and not np.isfinite(self.loss):
            yield Finding(
                "loss",
                "loss",
                f"it is {self.loss}, although the outputs are finite",
                "Look for a log of 0 in it and targets that are not finite or out of its range; "
                "from_logits=True is exact where probabilities are 0.",
            )
        compiled = self.model._compiled_loss
        if bad or self.batch is None or not compiled.built:
            return
        y, y_pred = self.batch
        outputs = tree.flatten(y_pred)
        targets = _by_output(y, y_pred, compiled.names, "y")
        for place, loss, _ in compiled.parts:
            output, target = outputs[place], np.asarray(targets[place])
            _, layer, path = self.makers.get(id(output), (None, None, compiled.names[place]))
            activation = ends_in(layer, output.data) or self.made_by[place]
            if not finite(target):
                what = "they are not finite"
                yield Finding("targets", f"targets of {path}", what, "Fill or leave out such rows.")
                continue
            for what, advice in misfits(loss, target, output.data, activation):
                yield Finding("loss", path, what, advice)

    def _of_gradients(self, broken: bool) -> Iterator[Finding]:
        trainable = self.model.trainable_weights
        found = self.gradients or {}
        if not trainable:
            what = "it has no trainable weights"
            yield Finding("gradient", self.model.name, what, "Set trainable=True on some layer.")
        missing = [w for w in trainable if id(w) not in found]
        for layer, names in self._by_layer(missing):
            yield Finding(
                "gradient",
                layer,
                f"no gradient reaches {names}",
                "Does the loss depend on it? Look for numpy(), detach() or an output without loss.",
            )
        if broken:
            return
        scaled = isinstance(self.model.optimizer, optimizers.LossScaleOptimizer)
        bad = [w for w in trainable if id(w) in found and not finite(found[id(w)])]
        if bad and not scaled:  # that one leaves such a step out, and scales less
            first = self.first_bad_gradient
            yield Finding(
                "gradient",
                first or self._name(bad[-1]),
                "its backward pass is the first to give gradients that are not finite"
                if first
                else "its gradient is not finite",
                "Look for a root or a division at 0, or where(...) over a branch that is not "
                "finite.",
            )
        if bad:
            return
        zero = [w for w in trainable if id(w) in found and not found[id(w)].any()]
        adapters = {id(a) for m in self.model.modules() for a in adapters_of(m)}
        advice = (
            "Look for dead ReLU units, saturated activations, weights that are all 0, or a mask "
            "that hides everything."
        )
        if zero and len(zero) == len(found):
            yield Finding("gradient", self.model.name, "the gradients of all weights are 0", advice)
            return
        for layer, names in self._by_layer([w for w in zero if id(w) not in adapters]):
            yield Finding("gradient", layer, f"the gradient of {names} is 0 everywhere", advice)
        after = [w for w in self.model.weights if not finite(w.data)]
        for w in after if not self.weights_before else ():
            yield Finding(
                "weights",
                self._name(w),
                "it is not finite after the step",
                "Lower the learning rate, or clip the gradients.",
            )

    def _name(self, weight: Any) -> str:
        """The path of a weight inside the model."""
        return str(getattr(weight, "path", "a tensor")).removeprefix(f"{self.model.name}/")

    def _by_layer(self, weights: list[Any]) -> Iterator[tuple[str, str]]:
        """(layer, names of its weights) of some weights."""
        names: dict[str, list[str]] = {}
        for w in weights:
            layer, _, name = self._name(w).rpartition("/")
            names.setdefault(layer or name, []).append(name)
        return ((layer, ", ".join(some)) for layer, some in names.items())


def _is_finite(leaf: Any) -> bool:
    """Whether an array holds finite numbers, or no numbers at all."""
    return leaf is None or leaf.dtype.kind not in "fiub" or finite(leaf)


def _scaling(path: str, a: Array) -> Iterator[Finding]:
    """What is wrong with the size of numbers (samples, ..., features) that go into a layer."""
    axes = tuple(range(a.ndim - 1)) if a.ndim > 1 else (0,)
    mean, spread = np.abs(a.mean(axes, np.float64)), a.std(axes, np.float64)
    far = np.atleast_1d((mean > _FAR) | (spread > _FAR))
    advice = (
        "Bring them to mean 0 and spread 1, for example with layers.Normalization or Rescaling."
    )
    if far.any():
        which = "" if far.size == 1 else f" ({np.count_nonzero(far)} of {far.size} features)"
        yield Finding(
            "inputs",
            path,
            f"its inputs are not scaled{which}: they go from {a.min():.4g} to {a.max():.4g}, with "
            f"mean {a.mean(dtype=np.float64):.4g} and spread {a.std(dtype=np.float64):.4g}",
            advice,
        )
    elif a.any() and np.abs(a).max() < _TINY:
        yield Finding("inputs", path, f"its inputs are tiny: none exceeds {_TINY}", advice)
