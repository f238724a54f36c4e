"""Distillation: a small student learns from what a large teacher gives, besides the labels."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from picodl import losses, metrics, ops, tree
from picodl.losses import KLDivergence, kl_divergence
from picodl.models import Model, Sequential
from picodl.saving import deserialize_keras_object, serialize_keras_object
from picodl.saving.registry import add_kind
from picodl.tensor import no_grad
from picodl.typing import Config

__all__ = ["DistillationLoss", "Distiller", "FeatureDistillation", "LogitsDistillation"]


class DistillationLoss:
    """The base of losses between the outputs of a teacher and of a student.

    Subclasses override `compute_loss`, and the two checks where they have something to check. To be
    saved with a Distiller they also need `get_config` and to be registered.
    """

    teacher_layer_name: str | None = None
    student_layer_name: str | None = None

    def compute_loss(self, teacher_outputs: Any, student_outputs: Any, **kwargs: Any) -> Any:
        """One number for a batch.

        Raises:
            NotImplementedError: unless a subclass defines it.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define compute_loss().")

    def validate_outputs(self, teacher_outputs: Any, student_outputs: Any) -> None:
        """Check the outputs of a batch: by default that both have the same structure.

        Raises:
            ValueError: if they do not fit.
        """
        tree.assert_same_structure(teacher_outputs, student_outputs)

    def validate_model_compatibility(self, teacher: Any, student: Any) -> None:
        """Check the models when the Distiller is made."""

    @classmethod
    def from_config(cls, config: Config) -> Any:
        """A new loss from what get_config gave."""
        return cls(**config)


class _Structured(DistillationLoss):
    """One loss for each output: the work both kinds share."""

    def __init__(self, loss: Any) -> None:
        self.loss = tree.map_structure(losses.get, loss)
        self._given = loss
        if all(part is None for part in tree.flatten(self.loss)):
            raise ValueError(
                f"{type(self).__name__}: loss must name a loss for at least one output; received "
                f"{loss!r}."
            )

    def validate_outputs(self, teacher_outputs: Any, student_outputs: Any) -> None:
        super().validate_outputs(teacher_outputs, student_outputs)
        try:
            tree.assert_same_structure(self.loss, teacher_outputs)
        except ValueError as error:
            raise ValueError(
                f"{type(self).__name__}: loss must have the structure of the outputs it is for. "
                f"{error}"
            ) from None

    def compute_loss(self, teacher_outputs: Any, student_outputs: Any, **kwargs: Any) -> Any:
        total: Any = 0.0
        teachers, students = tree.flatten(teacher_outputs), tree.flatten(student_outputs)
        for loss, t, s in zip(tree.flatten(self.loss), teachers, students, strict=True):
            if loss is not None:
                total = total + self._one(loss, t, s)
        return total

    def _one(self, loss: Any, teacher: Any, student: Any) -> Any:
        return ops.mean(loss(teacher, student))

    def get_config(self) -> Config:
        return {"loss": tree.map_structure(_described, self._given)}

    @classmethod
    def from_config(cls, config: Config) -> Any:
        return cls(**{**config, "loss": deserialize_keras_object(config["loss"])})


class LogitsDistillation(_Structured):
    """The student's logits come near the teacher's, both divided by a temperature T.

    With the Kullback-Leibler divergence the loss is T^2 * KL(softmax(t / T) || softmax(s / T)),
    whether it is given by name or as an object (Keras takes no softmax for the name); with any
    other it is loss(t / T, s / T).

    Args:
        temperature: T; the higher, the softer the probabilities. Defaults to 3.
        loss: name, function or Loss; a structure like that of the outputs for several outputs, None
            for those that are left out. Defaults to "kl_divergence".

    Raises:
        ValueError: for a temperature that is not positive, or no loss at all.

    Reference: Hinton et al., 2015, "Distilling the Knowledge in a Neural Network",
    arXiv:1503.02531.

    >>> import numpy as np
    >>> logits = np.array([[1.0, 2.0]], "float32")
    >>> float(LogitsDistillation().compute_loss(logits, logits))
    0.0
    """

    def __init__(self, temperature: float = 3.0, loss: Any = "kl_divergence") -> None:
        if isinstance(temperature, bool) or not isinstance(temperature, (int, float)):
            raise ValueError(
                f"LogitsDistillation: temperature must be a number; received {temperature!r}."
            )
        if not temperature > 0:
            raise ValueError(
                f"LogitsDistillation: temperature must be positive; received {temperature!r}."
            )
        self.temperature = temperature
        super().__init__(loss)

    def _one(self, loss: Any, teacher: Any, student: Any) -> Any:
        teacher, student = teacher / self.temperature, student / self.temperature
        if loss is kl_divergence or isinstance(loss, KLDivergence):
            value = ops.mean(loss(ops.softmax(teacher), ops.softmax(student)))
            return value * self.temperature**2
        return super()._one(loss, teacher, student)

    def get_config(self) -> Config:
        return {"temperature": self.temperature, **super().get_config()}


class FeatureDistillation(_Structured):
    """What a layer of the student gives comes near what a layer of the teacher gives.

    Args:
        loss: name, function or Loss, as for LogitsDistillation. Defaults to "mse".
        teacher_layer_name, student_layer_name: the layers; None for the outputs of the models.

    Raises:
        ValueError: for a layer that its model does not have, when the Distiller is made.

    Reference: Romero et al., 2014, "FitNets: Hints for Thin Deep Nets", arXiv:1412.6550.
    """

    def __init__(
        self,
        loss: Any = "mse",
        teacher_layer_name: str | None = None,
        student_layer_name: str | None = None,
    ) -> None:
        super().__init__(loss)
        self.teacher_layer_name = teacher_layer_name
        self.student_layer_name = student_layer_name

    def validate_model_compatibility(self, teacher: Any, student: Any) -> None:
        for role, model, name in (
            ("teacher", teacher, self.teacher_layer_name),
            ("student", student, self.student_layer_name),
        ):
            if name is None:
                continue
            if getattr(model, "_graph", None) is None:
                raise ValueError(
                    f'FeatureDistillation cannot look into the {role} "{model.name}": it was not '
                    "made from symbols. Use a functional or built Sequential model, or leave out "
                    f"{role}_layer_name."
                )
            try:
                model.get_layer(name)
            except ValueError as error:
                raise ValueError(f"FeatureDistillation: in the {role}: {error}") from None

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "teacher_layer_name": self.teacher_layer_name,
            "student_layer_name": self.student_layer_name,
        }


class Distiller(Model):
    """Train a student on labels and on a teacher: loss = w * student + (1 - w) * sum of c_i * d_i.

    The teacher is frozen and runs as at inference. The student part is the loss given to
    `compile`, penalties included; d_i are the distillation losses. Where a loss looks into layers,
    the student runs a second time in each step, as in Keras.

    Args:
        teacher, student: models of the same inputs and outputs. The teacher's trainable becomes
            False.
        distillation_losses: a DistillationLoss or a list of them.
        distillation_loss_weights: c, one for each. Defaults to 1.
        student_loss_weight: w, from 0 to 1.
        name: of the model.

    Attributes:
        student: the trained model, for use on its own.

    Raises:
        ValueError: for models or weights that do not fit together.

    >>> from picodl import Input, layers
    >>> def net(units):
    ...     return Sequential([Input((3,)), layers.Dense(units), layers.Dense(2)])
    >>> distiller = Distiller(net(8), net(2), LogitsDistillation(temperature=2.0))
    >>> distiller.compile("sgd", "mse")
    """

    def __init__(
        self,
        teacher: Any,
        student: Any,
        distillation_losses: Any,
        distillation_loss_weights: Sequence[float] | None = None,
        student_loss_weight: float = 0.5,
        name: str = "distiller",
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        _check_models(teacher, student)
        several = isinstance(distillation_losses, (list, tuple))
        parts = list(distillation_losses) if several else [distillation_losses]
        weights = [1.0] * len(parts)
        if distillation_loss_weights is not None:
            weights = list(distillation_loss_weights)
        if not parts or not all(hasattr(part, "compute_loss") for part in parts):
            raise ValueError(
                "Distiller: distillation_losses must be a DistillationLoss (LogitsDistillation, "
                f"FeatureDistillation, ...) or a list of them; received {distillation_losses!r}."
            )
        if len(weights) != len(parts):
            raise ValueError(
                f"Distiller: {len(parts)} distillation_losses need as many "
                f"distillation_loss_weights; received {len(weights)}."
            )
        if isinstance(student_loss_weight, bool) or not 0 <= student_loss_weight <= 1:
            raise ValueError(
                "Distiller: student_loss_weight must be a number from 0 to 1; received "
                f"{student_loss_weight!r}."
            )
        for part in parts:
            part.validate_model_compatibility(teacher, student)
        self.teacher, self.student = teacher, student
        self.distillation_losses, self.distillation_loss_weights = parts, weights
        self.student_loss_weight = float(student_loss_weight)
        self.teacher.trainable = False
        self.student_loss_tracker = metrics.Mean(name="student_loss")
        self.distillation_loss_tracker = metrics.Mean(name="distillation_loss")
        self.total_loss_tracker = metrics.Mean(name="total_loss")
        teachers = {part.teacher_layer_name for part in parts if part.teacher_layer_name}
        students = {part.student_layer_name for part in parts if part.student_layer_name}
        self._extractors = _Extractors(_extractor(teacher, teachers), _extractor(student, students))
        self.built = bool(student.built)

    def compile(  # type: ignore[override]
        self, optimizer: Any = "adam", loss: Any = None, metrics: Any = None, **kwargs: Any
    ) -> None:
        """Say how the student is trained; see `Model.compile`.

        Raises:
            ValueError: without a loss.
        """
        if loss is None:
            raise ValueError(
                f'Distiller "{self.name}" needs the loss of the student on the labels: '
                "compile(optimizer, loss=...)."
            )
        super().compile(optimizer=optimizer, loss=loss, metrics=metrics, **kwargs)

    def compile_from_config(self, config: Config) -> None:
        """Compile as a file says; one written by Keras does not hold the loss."""
        if config and config.get("loss") is None:
            warnings.warn(
                f'Distiller "{self.name}" was not compiled: the file does not hold its loss. Call '
                "compile(optimizer, loss=...) to train it further.",
                stacklevel=2,
            )
            return
        super().compile_from_config(config)

    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        """The student's outputs."""
        return self.student(inputs, training=training)

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        """The total loss of a batch; the three parts go into the trackers."""
        w = self.student_loss_weight
        if y_pred is None:
            y_pred = self(x, training=training)
        student: Any = 0.0
        if w > 0 and y is not None:
            student = super().compute_loss(x, y, y_pred, sample_weight, training)
        distillation: Any = self._distil(x, y_pred, training) if w < 1 else 0.0
        total = w * student + (1 - w) * distillation
        self.student_loss_tracker.update_state(float(student))
        self.distillation_loss_tracker.update_state(float(distillation))
        self.total_loss_tracker.update_state(float(total))
        return total

    def _distil(self, x: Any, y_pred: Any, training: bool) -> Any:
        looks = self._extractors
        with no_grad():
            given = self.teacher(x, training=False) if looks.teacher is None else None
            teachers = looks.teacher(x, training=False) if given is None else {None: given}
        students = {} if looks.student is None else looks.student(x, training=training)
        total: Any = 0.0
        pairs = zip(self.distillation_losses, self.distillation_loss_weights, strict=True)
        for part, weight in pairs:
            t = teachers[part.teacher_layer_name or _OUTPUT if given is None else None]
            s = students[part.student_layer_name] if part.student_layer_name else y_pred
            part.validate_outputs(t, s)
            value = part.compute_loss(t, s)
            if getattr(value, "ndim", 0):
                raise ValueError(
                    f"{type(part).__name__}.compute_loss must return one number; it returned shape "
                    f"{value.shape}."
                )
            total = total + weight * value
        return total

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "teacher": serialize_keras_object(self.teacher),
            "student": serialize_keras_object(self.student),
            "distillation_losses": [serialize_keras_object(p) for p in self.distillation_losses],
            "distillation_loss_weights": self.distillation_loss_weights,
            "student_loss_weight": self.student_loss_weight,
        }

    @classmethod
    def from_config(cls, config: Config, custom_objects: Any = None) -> Any:
        """A new Distiller from what get_config gave."""
        config = dict(config)
        for key in ("teacher", "student", "distillation_losses"):
            config[key] = deserialize_keras_object(config[key], custom_objects)
        return cls(**config)


_OUTPUT = "final_output"


class _Extractors:
    """Models that also give features; kept where the walk for weights does not look."""

    def __init__(self, teacher: Any, student: Any) -> None:
        self.teacher, self.student = teacher, student


def _extractor(model: Any, names: set[str]) -> Any:
    """A model that gives the outputs of the named layers and its own; None for no names."""
    if not names:
        return None
    outputs = {_OUTPUT: model.output, **{name: model.get_layer(name).output for name in names}}
    return Model(model.inputs if isinstance(model, Sequential) else model.input, outputs)


def _described(loss: Any) -> Any:
    return loss if loss is None or isinstance(loss, str) else serialize_keras_object(loss)


def _check_models(teacher: Any, student: Any) -> None:
    """Both must be models; of those made from symbols the shapes and dtypes are compared.

    Raises:
        ValueError: if they do not fit together.
    """
    for role, model in (("teacher", teacher), ("student", student)):
        if not isinstance(model, Model):
            raise ValueError(f"Distiller: the {role} must be a Model; received {model!r}.")
    if teacher._graph is None or student._graph is None:
        return
    for what in ("inputs", "outputs"):
        pairs = getattr(teacher, what), getattr(student, what)
        same = len(pairs[0]) == len(pairs[1]) and all(
            _alike(t.shape, s.shape) and t.dtype == s.dtype for t, s in zip(*pairs, strict=True)
        )
        if not same:
            said = [", ".join(f"{tuple(s.shape)} {s.dtype}" for s in part) for part in pairs]
            raise ValueError(
                f'Distiller: the {what} of the teacher "{teacher.name}" and the student '
                f'"{student.name}" differ: {said[0]} and {said[1]}.'
            )


def _alike(a: Any, b: Any) -> bool:
    return len(a) == len(b) and all(
        n is None or m is None or n == m for n, m in zip(a, b, strict=True)
    )


add_kind(
    "distillation",
    "keras.distillation",
    {c.__name__: c for c in (DistillationLoss, LogitsDistillation, FeatureDistillation, Distiller)},
)
