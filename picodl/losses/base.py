"""What all losses share: shapes that must fit, weights and masks, and the way to one number."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from picodl import config, ops, symbolic
from picodl.naming import auto_name, suggest, to_snake_case
from picodl.ops.core import op
from picodl.ops.loss import weighted_sum
from picodl.tensor import Tensor, as_array
from picodl.typing import Array, Config

REDUCTIONS = ("sum_over_batch_size", "mean", "mean_with_sample_weight", "sum", "none")


class Loss:
    """Base class: a subclass defines `call(y_true, y_pred)`, one value per sample or time step.

    Args:
        name: defaults to the class name in snake case.
        reduction: "sum_over_batch_size" (or "mean"): the sum of weight * value over the number of
            values, whatever the weights are; "mean_with_sample_weight": over the sum of the
            weights; "sum"; "none" (or None) for the values themselves. Masked values do not count
            in a mean, and the mean of nothing is 0.
        dtype: what predictions are computed in. Defaults to their own, and float32 for float16.

    >>> class Pinball(Loss):
    ...     def call(self, y_true, y_pred):
    ...         e = y_true - y_pred
    ...         return ops.mean(ops.maximum(0.75 * e, -0.25 * e), axis=-1)
    >>> float(Pinball()(np.array([[2.0], [0.0]]), np.array([[1.0], [1.0]])))
    0.5
    """

    casts_targets = True  # y_true takes the dtype of y_pred before call sees it
    reads_mask = False  # whether call looks at the mask of y_pred itself

    def __init__(
        self,
        name: str | None = None,
        reduction: str | None = "sum_over_batch_size",
        dtype: Any = None,
    ) -> None:
        self.name = auto_name(to_snake_case(type(self).__name__)) if name is None else name
        self.reduction = standardize_reduction(reduction)
        self._dtype = None if dtype is None else np.dtype(config.as_policy(dtype).compute_dtype)

    @property
    def dtype(self) -> str:
        """The dtype asked for, else floatx."""
        return config.floatx() if self._dtype is None else self._dtype.name

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """The loss of predictions, weighted and reduced.

        Args:
            y_true: targets. A Tensor counts as constant unless it requires a gradient.
            y_pred: predictions. The mask of a Tensor leaves values out.
            sample_weight: one number per value, or per leading part of the values: (batch,) also
                fits values of shape (batch, steps).

        Returns:
            A Tensor if y_true or y_pred is one, else an array; one number unless the reduction is
            "none".

        Raises:
            ValueError: for shapes that do not fit.
            TypeError: if `call` gives something that cannot be differentiated.
        """
        if sample_weight is None and type(y_pred) is Tensor and type(y_true) is np.ndarray:
            fused = self.fused_mean(y_true, y_pred)
            if fused is not None:
                return fused
        tensors = isinstance(y_pred, Tensor) or isinstance(y_true, Tensor)
        if not tensors and symbolic.is_symbolic((y_true, y_pred, sample_weight)):
            step = symbolic.Step(self, (y_true, y_pred, sample_weight), {}, self.name)
            return step.give(symbolic.infer(self, step.args, {}))
        mask = None if self.reads_mask else getattr(y_pred, "mask", None)
        y_pred = _floating(y_pred, self._dtype)
        if self.casts_targets:
            if isinstance(y_true, Tensor):
                y_true = _floating(y_true, y_pred.data.dtype)
            else:
                y_true = as_array(y_true).astype(y_pred.data.dtype, copy=False)
        elif not isinstance(y_true, (np.ndarray, Tensor)):
            y_true = as_array(y_true)
        if sample_weight is not None or mask is not None:
            y_true, y_pred = _keep_last_axis(y_true, y_pred, sample_weight, mask)
        values = self.call(y_true, y_pred)
        if not isinstance(values, Tensor):
            if y_pred.requires_grad:
                raise TypeError(
                    f"The loss {self.name!r} returned {type(values).__name__}, which has no "
                    "gradient. Compute it from y_pred with picodl.ops or numpy functions."
                )
            values = Tensor(values)
        if mask is not None and not values.data.ndim:
            warnings.warn(
                f"The loss {self.name!r} gives one number for the whole batch, so the mask of the "
                "predictions is not used. Return one value per sample or time step.",
                stacklevel=2,
            )
            mask = None
        loss = reduce(values, sample_weight, mask, self.counted(y_true), self.reduction)
        return loss if tensors else loss.data

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """The values, with the last axis reduced.

        Raises:
            NotImplementedError: unless a subclass defines it.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define call(y_true, y_pred).")

    def fused_mean(self, y_true: Array, y_pred: Tensor) -> Tensor | None:
        """The mean over an unweighted batch in one op, where there is one for it."""
        return None

    def counted(self, y_true: Any) -> Array | None:
        """Which values count in a mean, by their targets; None for all."""
        return None

    def loss(self, predicted: Any, targets: Any) -> Any:
        """The loss, with the arguments in the order of a hand-written loop."""
        return self(targets, predicted)

    def get_config(self) -> Config:
        """The arguments that make the same loss again."""
        settings: Config = {"name": self.name, "reduction": self.reduction}
        if self._dtype is not None:
            settings["dtype"] = self._dtype.name
        return settings

    @classmethod
    def from_config(cls, config: Config) -> Any:
        """The loss of a config."""
        return cls(**config)


class LossFunctionWrapper(Loss):
    """A function `fn(y_true, y_pred, **kwargs)` as a loss.

    Args:
        fn: gives one value per sample or time step. It may broadcast as it likes; a (batch,) that
            meets a (batch, 1) is aligned first.
        reduction, dtype: see `Loss`.
        name: defaults to the name of the function.
        **kwargs: passed on to fn.

    >>> def overshoot(y_true, y_pred, limit=0.0):
    ...     return ops.max(ops.relu(y_pred - y_true - limit), axis=-1)
    >>> float(LossFunctionWrapper(overshoot, limit=0.5)(np.zeros((2, 1)), np.ones((2, 1))))
    0.5
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        reduction: str | None = "sum_over_batch_size",
        name: str | None = None,
        dtype: Any = None,
        **kwargs: Any,
    ) -> None:
        if name is None:
            name = to_snake_case(getattr(fn, "__name__", type(fn).__name__))
        super().__init__(name=name, reduction=reduction, dtype=dtype)
        self.fn = fn
        self.kwargs = kwargs
        self.casts_targets = not is_loss_function(fn)
        self.reads_mask = getattr(fn, "reads_mask", False)

    def __getattr__(self, name: str) -> Any:
        """The arguments of the function are attributes."""
        try:
            return vars(self)["kwargs"][name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}.") from None

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """fn(y_true, y_pred, **kwargs)."""
        if self.casts_targets:
            y_true, y_pred = same_rank(y_true, y_pred)
        return self.fn(y_true, y_pred, **self.kwargs)

    def get_config(self) -> Config:
        """The arguments that make the same loss again."""
        settings = {**super().get_config(), **self.kwargs}
        if type(self) is LossFunctionWrapper:
            from picodl import losses

            settings["fn"] = losses.serialize(self.fn)
        return settings

    @classmethod
    def from_config(cls, config: Config) -> Any:
        """The loss of a config."""
        if "fn" in config:
            from picodl import losses

            config = {**config, "fn": losses.deserialize(config["fn"])}
        return cls(**config)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"


# -------------------------------------------------------------------- loss functions


def loss_function(function: Callable[..., Any]) -> Any:
    """Make f(y_true, y_pred, ...) a public loss function: an op that checks its own shapes."""
    call: Any = op(function)
    call.checks_shapes = True
    return call


def is_loss_function(function: Any) -> bool:
    """Whether a function was made by `loss_function`."""
    return getattr(function, "checks_shapes", False)


def matched(name: str, y_true: Tensor, y_pred: Tensor) -> tuple[Tensor, Tensor]:
    """Targets and predictions in one shape: (batch,) and (batch, 1) are aligned.

    Raises:
        ValueError: if the shapes differ otherwise.
    """
    if y_true.data.shape == y_pred.data.shape:
        return y_true, y_pred
    t, p = same_rank(y_true, y_pred)
    if t.shape == p.shape:
        return t, p
    hint = ""
    if y_true.ndim == y_pred.ndim - 1 or y_true.shape[-1:] == (1,):
        hint = " For class numbers as targets use SparseCategoricalCrossentropy."
    raise ValueError(
        f"{name}: targets (y_true) of shape {y_true.shape} do not fit predictions (y_pred) of "
        f"shape {y_pred.shape}. Give both the same shape; nothing is broadcast here.{hint}"
    )


def columns(y_true: Any, y_pred: Any) -> tuple[Any, Any]:
    """Targets and predictions with a last axis of size 1, if each is one number per sample or step:
    (batch,) becomes (batch, 1), and (batch, steps) that meets (batch, steps, 1) becomes that."""
    t, p = y_true.shape, y_pred.shape
    if len(t) == len(p) == 1:
        return ops.expand_dims(y_true, -1), ops.expand_dims(y_pred, -1)
    if len(p) == len(t) + 1 and p[-1] == 1 and t:
        return ops.expand_dims(y_true, -1), y_pred
    if len(t) == len(p) + 1 and t[-1] == 1 and p:
        return y_true, ops.expand_dims(y_pred, -1)
    return y_true, y_pred


def same_rank(y_true: Any, y_pred: Any) -> tuple[Any, Any]:
    """A missing or superfluous last axis of size 1 mended, as Keras does it."""
    t, p = y_true.shape, y_pred.shape
    if len(t) == len(p) + 1 and t[-1] == 1:
        if len(p) == 1:
            return y_true, ops.expand_dims(y_pred, -1)
        return ops.squeeze(y_true, -1), y_pred
    if len(p) == len(t) + 1 and p[-1] == 1:
        if len(t) == 1:
            return ops.expand_dims(y_true, -1), y_pred
        return y_true, ops.squeeze(y_pred, -1)
    return y_true, y_pred


# -------------------------------------------------------------------- to one number


def reduce(values: Tensor, weight: Any, mask: Any, counted: Any, reduction: str | None) -> Tensor:
    """Values times weights, reduced; masked and uncounted ones are left out.

    Raises:
        ValueError: if weights or mask do not fit the values.
    """
    shape, dtype = values.data.shape, values.data.dtype
    size: float = values.data.size
    weights = None
    if mask is not None or counted is not None:
        valid = np.ones(shape, bool)
        for part, name in ((mask, "mask"), (counted, "mask of targets")):
            if part is not None:
                valid &= spread(part, shape, name).astype(bool, copy=False)
        weights = valid.astype(dtype)
        size = int(np.count_nonzero(valid))
    if weight is not None:
        given = spread(weight, shape, "sample_weight").astype(dtype, copy=False)
        weights = given if weights is None else given * weights
    if reduction == "none":
        return values if weights is None else values * weights
    if reduction == "sum":
        share = 1.0
    else:
        if reduction == "mean_with_sample_weight" and weights is not None:
            size = float(weights.sum())
        share = 1.0 / size if size else 0.0
    return weighted_sum(values, weights, share)


def spread(weight: Any, shape: tuple[int, ...], name: str) -> Array:
    """Weights for values of a shape: a scalar, or axes that fit from the left; an axis of size 1
    stands for all, that of the samples only if no axis is left out.

    Raises:
        ValueError: if they do not fit.
    """
    w = as_array(weight)
    if w.shape == shape:
        return w
    left = w
    if left.ndim == len(shape) + 1 and left.shape[-1] == 1:
        left = left[..., 0]
    if left.ndim <= len(shape):
        left = left.reshape(left.shape + (1,) * (len(shape) - left.ndim))
        fits = [m in (1, n) for m, n in zip(left.shape, shape, strict=True)]
        samples = w.ndim == 0 or w.ndim == len(shape) > 1 or left.shape[:1] == shape[:1]
        if samples and all(fits):
            return np.broadcast_to(left, shape)
    hint = "Pass one weight per sample, or one per time step."
    if not shape:
        hint = "A function must return one value per sample for weights and masks to count."
    raise ValueError(f"{name} of shape {w.shape} does not fit values of shape {shape}. {hint}")


def standardize_reduction(reduction: str | None) -> str:
    """The name of a reduction, None standing for "none".

    Raises:
        ValueError: for an unknown one.
    """
    name = "none" if reduction is None else reduction
    if name not in REDUCTIONS:
        raise ValueError(
            f"reduction must be one of {', '.join(REDUCTIONS)} or None; received {reduction!r}."
            f"{suggest(reduction, REDUCTIONS)}"
        )
    return name


def check_fraction(name: str, value: Any) -> None:
    """Refuse a number outside 0..1.

    Raises:
        ValueError: for it.
    """
    if not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise ValueError(f"{name} must be a number between 0 and 1; received {value!r}.")


def _floating(x: Any, dtype: Any) -> Tensor:
    """x as a Tensor of the dtype; for None, of its own dtype if that is at least float32."""
    tensor = x if isinstance(x, Tensor) else Tensor(x)
    own = tensor.data.dtype
    if dtype is None:
        if own.kind == "f" and own.itemsize > 2:
            return tensor
        dtype = "float32" if own.kind == "f" else config.floatx()
    return tensor if own == dtype else ops.cast(tensor, dtype)


def _keep_last_axis(y_true: Any, y_pred: Tensor, *weights: Any) -> tuple[Any, Tensor]:
    """Shapes for which the values keep the axes that weights or a mask need."""
    need = max(np.ndim(w) for w in weights if w is not None)
    return columns(y_true, y_pred) if need >= min(y_true.ndim, y_pred.ndim) else (y_true, y_pred)
