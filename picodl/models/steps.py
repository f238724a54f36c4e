"""One batch of training, evaluation or prediction: what subclasses override."""

from __future__ import annotations

import inspect
import warnings
from collections import deque
from typing import Any

import numpy as np

from picodl import optimizers, tree
from picodl.compiled import build_once
from picodl.config import thread
from picodl.layers.base import Layer
from picodl.metrics.base import Metric, own_metrics
from picodl.models.compiled import CompiledLoss, CompiledMetrics, as_number
from picodl.naming import suggest
from picodl.tensor import Tensor, gradients, no_grad
from picodl.typing import Config


class Steps(Layer):
    """compile() and the work on single batches.

    A model with a training step of its own overrides `train_step(data)`:

        def train_step(self, data):
            x, y, sample_weight = picodl.utils.unpack_x_y_sample_weight(data)
            y_pred = self(x, training=True)
            loss = self.compute_loss(x, y, y_pred, sample_weight)
            self.minimize(loss)
            return self.compute_metrics(x, y, y_pred, sample_weight)
    """

    optimizer: Any = None
    output_names: list[str] | None = None
    stop_training = stop_evaluating = stop_predicting = False
    gradient_watcher: Any = None  # a function that sees the weights with gradients in each step
    warns_of_dropped_masks = False
    computes = False
    accepts_strings = True  # passed on to the layers, which say whether they do

    compiled = run_eagerly = False
    jit_compile: Any = "auto"
    steps_per_execution = 1
    _compiled_loss: CompiledLoss | None = None
    _compiled_metrics: CompiledMetrics | None = None
    _regularized: deque[Any] | None = None  # parameters with a penalty; None: to be looked for
    _own_metrics: list[Any] | None = None
    _total = 0.0  # of the loss over the samples of this epoch
    _samples = 0
    _output_totals: list[float] | None = None  # the same per output, where there are several
    _saw_nan = False
    _output_values: list[Any] | None = None
    _testing: Config = {"training": False}  # for compute_loss, if it takes that argument
    _custom_logs: dict[str, Any] | None = None  # what steps of the user's own returned
    _reached: set[int] | None = None  # ids of the weights that the first step of a fit reached

    # ---------------------------------------------------------------- compile

    def compile(
        self,
        optimizer: Any = "rmsprop",
        loss: Any = None,
        loss_weights: Any = None,
        metrics: Any = None,
        weighted_metrics: Any = None,
        run_eagerly: bool = False,
        steps_per_execution: int = 1,
        jit_compile: Any = "auto",
        auto_scale_loss: bool = True,
        **unknown: Any,
    ) -> None:
        """Say how the model is trained.

        Args:
            optimizer: name or Optimizer.
            loss: name, function or Loss; a list or dict for several outputs.
            loss_weights: a number per output, as a list or dict.
            metrics: names, functions or Metrics to report, without sample weights.
            weighted_metrics: the same, with sample weights.
            run_eagerly, steps_per_execution: accepted for Keras's sake; every step runs eagerly and
                at once.
            jit_compile: True builds the compiled kernels (see `picodl.compiled.build`) before the
                first batch, if this machine has a C compiler and they are not there; "auto" uses
                those that are there, and so does False.
            auto_scale_loss: scale the loss of a model of the dtype policy "mixed_float16", so that
                small gradients survive.

        Raises:
            ValueError: for unknown names.
        """
        if unknown:
            name = next(iter(unknown))
            known = ["optimizer", "loss", "loss_weights", "metrics", "weighted_metrics"]
            raise TypeError(f"compile() does not take the argument {name!r}.{suggest(name, known)}")
        compiled_loss = CompiledLoss(loss, loss_weights)
        compiled_metrics = CompiledMetrics(metrics, weighted_metrics)
        self.optimizer = optimizers.get(optimizer)
        scaled = isinstance(self.optimizer, optimizers.LossScaleOptimizer)
        if auto_scale_loss and not scaled and self.dtype_policy.name == "mixed_float16":
            self.optimizer = optimizers.LossScaleOptimizer(self.optimizer)
        self._compiled_loss = compiled_loss
        self._compiled_metrics = compiled_metrics
        self._compile_options = {
            "run_eagerly": run_eagerly,
            "steps_per_execution": steps_per_execution,
            "jit_compile": jit_compile,
        }
        self.run_eagerly, self.jit_compile = run_eagerly, jit_compile
        self.steps_per_execution = steps_per_execution
        self.stop_training = False
        self.compiled = True
        self._regularized = None

    def get_compile_config(self) -> Config | None:
        """What compile() was given, serialised; None before."""
        if not self.compiled or self._compiled_loss is None or self._compiled_metrics is None:
            return None
        from picodl.saving import serialization

        given = {
            "optimizer": self.optimizer,
            "loss": self._compiled_loss.given,
            "loss_weights": self._compiled_loss.loss_weights,
            "metrics": self._compiled_metrics.given,
            "weighted_metrics": self._compiled_metrics.weighted,
            **self._compile_options,
        }
        return {key: serialization.serialize_keras_object(v) for key, v in given.items()}

    def compile_from_config(self, config: Config) -> None:
        """Compile as `get_compile_config` says."""
        from picodl.saving import serialization

        if config:
            self.compile(
                **{k: serialization.deserialize_keras_object(v) for k, v in config.items()}
            )
            if self.built and self.optimizer is not None:
                self.optimizer.build(self.trainable_weights)

    def compile_like(self, model: Any) -> None:
        """Compile as another model, with an optimizer and metrics of its own; nothing if it is not
        compiled."""

        def fresh(part: Any) -> Any:
            again = isinstance(part, (Metric, optimizers.Optimizer))
            return type(part).from_config(part.get_config()) if again else part

        if model.compiled:
            parts, given = model._compiled_loss, model._compiled_metrics
            Steps.compile(
                self,
                fresh(model.optimizer),
                parts.given,
                parts.loss_weights,
                tree.map_structure(fresh, given.given),
                tree.map_structure(fresh, given.weighted),
                auto_scale_loss=False,
                **model._compile_options,
            )

    def _require_compiled(self, what: str) -> None:
        if not self.compiled:
            raise ValueError(
                f'Model "{self.name}" must be compiled before {what}: call '
                "model.compile(optimizer, loss) first."
            )
        if self.jit_compile is True:
            build_once()

    # ---------------------------------------------------------------- what users override

    def train_step(self, data: Any) -> Any:
        """Train on one batch (x, y, sample_weight); returns the running metrics by name."""
        x, y, sample_weight = _unpack(data)
        self._train(x, y, sample_weight)
        return self.get_metrics_result()

    def test_step(self, data: Any) -> Any:
        """Evaluate one batch (x, y, sample_weight); returns the running metrics by name."""
        x, y, sample_weight = _unpack(data)
        self._test(x, y, sample_weight)
        return self.get_metrics_result()

    def predict_step(self, data: Any) -> Any:
        """The model's outputs for one batch."""
        return self(_unpack(data)[0], training=False)

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        """The total loss of a batch: the compiled loss, penalties of the weights, and what layers
        added in the last call of the model.

        Raises:
            ValueError: if the model has neither a loss nor a penalty.
        """
        total: Any = None
        values: list[Any] = []
        compiled = self._compiled_loss
        if compiled is not None and compiled.given is not None:
            if y is None:
                raise ValueError(
                    f'Model "{self.name}" was compiled with a loss, which needs targets: pass y, '
                    "or let the data yield (x, y)."
                )
            if not compiled.built:
                compiled.build(y, y_pred, self.output_names)
            total, values = compiled(y, y_pred, sample_weight)
        self._output_values = values if len(values) > 1 else None
        for _, value in thread.finished:
            total = value if total is None else total + value
        if self._regularized is None:
            self._find_parts()
        for weight in self._regularized or ():
            if weight.requires_grad:
                penalty = weight.regularizer(weight)
                total = penalty if total is None else total + penalty
        if total is None:
            raise ValueError(
                f'Model "{self.name}" has nothing to train on: compile it with a loss, or call '
                "add_loss() in a layer."
            )
        return total

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Feed the compiled metrics with one batch; returns the running metrics by name."""
        self._update_metrics(y, y_pred, sample_weight)
        return self.get_metrics_result()

    def minimize(self, loss: Any) -> None:
        """One step of the optimizer down the gradient of a loss."""
        scale = getattr(self.optimizer, "scale_loss", None)
        if scale is not None:
            loss = scale(loss)
        if not isinstance(loss, Tensor) or not loss.requires_grad:
            return  # nothing here is trained
        reached = gradients([loss], [None])
        leaves = [leaf for leaf, _ in reached]
        if self._reached is None:
            self._reached = {id(leaf) for leaf in leaves}
            self.optimizer.build(self.trainable_weights)  # slots in the order of the model
        if self.gradient_watcher is not None:
            for leaf, g in reached:
                leaf.grad = g
            self.gradient_watcher(leaves)
            for leaf in leaves:
                leaf.grad = None
        self.optimizer.update(leaves, [g for _, g in reached])

    # ---------------------------------------------------------------- the built-in steps

    def _train(self, x: Any, y: Any, sample_weight: Any) -> None:
        y_pred = self(x, training=True)
        loss = self.compute_loss(x, y, y_pred, sample_weight)
        self._track(loss, x)
        if getattr(self.optimizer, "uses_closure", False):
            again = lambda: self.compute_loss(x, y, self(x, training=True), sample_weight)  # noqa: E731
            self.optimizer.minimize(again, self.trainable_weights)
        else:
            self.minimize(loss)
        self._measure(x, y, y_pred, sample_weight)

    def _test(self, x: Any, y: Any, sample_weight: Any) -> None:
        with no_grad():
            y_pred = self(x, training=False)
            self._track(self.compute_loss(x, y, y_pred, sample_weight, **self._testing), x)
        self._measure(x, y, y_pred, sample_weight)

    def _track(self, loss: Any, x: Any) -> None:
        """Add a batch to the epoch's loss, weighted by its number of samples."""
        n = len(x) if isinstance(x, np.ndarray) else _samples(x)
        number = float(loss)
        if number != number and not self._saw_nan:
            self._saw_nan = True
            warnings.warn(
                f'The loss of model "{self.name}" is NaN. Look for NaN in the data, too large a '
                "learning rate, or log(0); callbacks.TerminateOnNaN() stops at the first one.",
                stacklevel=6,
            )
        self._total += number * n
        self._samples += n
        if self._output_values is not None:
            numbers = [float(v) * n for v in self._output_values]
            before = self._output_totals or [0.0] * len(numbers)
            self._output_totals = [a + b for a, b in zip(before, numbers, strict=True)]

    def _measure(self, x: Any, y: Any, y_pred: Any, sample_weight: Any) -> None:
        if type(self).compute_metrics is Steps.compute_metrics:
            self._update_metrics(y, y_pred, sample_weight)
        else:
            self._custom_logs = numbers_of(self.compute_metrics(x, y, y_pred, sample_weight))

    def _update_metrics(self, y: Any, y_pred: Any, sample_weight: Any) -> None:
        compiled = self._compiled_metrics
        if compiled is not None:
            if not compiled.built:
                compiled.build(y, y_pred, self.output_names)
            if compiled.parts:
                compiled.update(y, y_pred, sample_weight)

    def get_metrics_result(self) -> dict[str, Any]:
        """The running loss and metrics of the epoch by name."""
        found: dict[str, Any] = {}
        if self._samples:
            found["loss"] = self._total / self._samples
        compiled = self._compiled_loss
        if self._output_totals is not None and compiled is not None:
            for (place, _, _), total in zip(compiled.parts, self._output_totals, strict=True):
                found[f"{compiled.names[place]}_loss"] = total / self._samples
        if self._compiled_metrics is not None:
            found.update(self._compiled_metrics.result())
        for metric in self._own_metrics or ():
            value = metric.result()
            found.update(value if isinstance(value, dict) else {metric.name: as_number(value)})
        return found

    def reset_metrics(self) -> None:
        """Start the running loss and metrics again."""
        self._total, self._samples, self._output_totals = 0.0, 0, None
        if self._compiled_metrics is not None:
            self._compiled_metrics.reset_state()
        for metric in self._own_metrics or ():
            metric.reset_state()

    def _find_parts(self) -> None:
        """Look once through the model for weights with penalties and for metrics in attributes."""
        self._regularized = deque(  # the walk through attributes looks into lists
            w for w in self.parameters() if getattr(w, "regularizer", None) is not None
        )
        self._own_metrics = own_metrics(self)
        accepted = inspect.signature(self.compute_loss).parameters
        takes = "training" in accepted or any(p.kind is p.VAR_KEYWORD for p in accepted.values())
        self._testing = {"training": False} if takes else {}

    @property
    def metrics(self) -> list[Any]:
        """The metrics of compile(), and those in attributes of the model and its layers."""
        compiled = [part[2] for part in self._compiled_metrics.parts] if self.compiled else []  # type: ignore[union-attr]
        return compiled + own_metrics(self)

    @property
    def metrics_names(self) -> list[str]:
        """The names that evaluate() reports, in its order."""
        return list(self.get_metrics_result()) if self._samples else ["loss"]

    @property
    def loss(self) -> Any:
        """The loss given to compile()."""
        return None if self._compiled_loss is None else self._compiled_loss.given


def numbers_of(logs: Any) -> dict[str, Any]:
    """Logs of the user's own as floats and arrays."""
    return {k: as_number(v) for k, v in logs.items()} if isinstance(logs, dict) else {}


def _unpack(data: Any) -> tuple[Any, Any, Any]:
    """x, y, sample_weight of a batch, None where absent."""
    if isinstance(data, tuple):
        x, y, sample_weight = (*data, None, None)[:3]
        return x, y, sample_weight
    return data, None, None


def _samples(x: Any) -> int:
    for leaf in tree.flatten(x):
        if hasattr(leaf, "shape"):
            return int(leaf.shape[0])
    return len(x)
