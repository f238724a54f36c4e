"""Normalisation layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from picodl import constraints, initializers, ops, regularizers
from picodl.layers.base import Layer
from picodl.layers.checks import fraction, int_of, known_axis, positive_integer
from picodl.layers.input_spec import InputSpec
from picodl.typing import Array, Config, Shape


class Scaled(Layer):
    """The base of normalisation layers: a scale gamma and an offset beta.

    Args:
        epsilon: keeps the divisor away from 0.
        center: whether to add beta.
        scale: whether to multiply by gamma.
        beta_initializer, gamma_initializer: first values of the weights.
        beta_regularizer, gamma_regularizer: penalties on the weights.
        beta_constraint, gamma_constraint: applied to the weights after each update.
    """

    supports_masking = True

    def __init__(
        self,
        epsilon: float,
        center: bool,
        scale: bool,
        beta_initializer: Any,
        gamma_initializer: Any,
        beta_regularizer: Any,
        gamma_regularizer: Any,
        beta_constraint: Any,
        gamma_constraint: Any,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.epsilon = epsilon
        self.center = center
        self.scale = scale
        self.beta_initializer = initializers.get(beta_initializer)
        self.gamma_initializer = initializers.get(gamma_initializer)
        self.beta_regularizer = regularizers.get(beta_regularizer)
        self.gamma_regularizer = regularizers.get(gamma_regularizer)
        self.beta_constraint = constraints.get(beta_constraint)
        self.gamma_constraint = constraints.get(gamma_constraint)
        self.gamma: Any = None
        self.beta: Any = None

    def add_scale(self, shape: tuple[int, ...]) -> None:
        """Make gamma and beta, where they are wanted."""
        if self.scale:
            self.gamma = self.add_weight(
                shape,
                self.gamma_initializer,
                regularizer=self.gamma_regularizer,
                constraint=self.gamma_constraint,
                name="gamma",
            )
        if self.center:
            self.beta = self.add_weight(
                shape,
                self.beta_initializer,
                regularizer=self.beta_regularizer,
                constraint=self.beta_constraint,
                name="beta",
            )

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "epsilon": self.epsilon,
            "center": self.center,
            "scale": self.scale,
            "beta_initializer": initializers.serialize(self.beta_initializer),
            "gamma_initializer": initializers.serialize(self.gamma_initializer),
            "beta_regularizer": regularizers.serialize(self.beta_regularizer),
            "gamma_regularizer": regularizers.serialize(self.gamma_regularizer),
            "beta_constraint": constraints.serialize(self.beta_constraint),
            "gamma_constraint": constraints.serialize(self.gamma_constraint),
        }


def one_axis(layer: Layer, axis: Any) -> int:
    """The axis as int; a list of one, as Keras writes it, too.

    Raises:
        ValueError: naming the layer, for anything else.
    """
    if isinstance(axis, (list, tuple)) and len(axis) == 1:
        axis = axis[0]
    if isinstance(axis, bool) or int_of(axis) is None:
        raise ValueError(
            f'{type(layer).__name__} layer "{layer.name}": axis must be an integer; '
            f"received {axis!r}."
        )
    return int(axis)


class BatchNormalization(Scaled):
    """y = (x - mean) / sqrt(variance + epsilon) * gamma + beta, for each element of an axis.

    In training mean and variance are those of the batch, and the moving statistics follow them:
    moving = moving * momentum + batch * (1 - momentum). Otherwise, and where the layer is not
    trainable, the moving statistics are used. Steps that a mask drops do not count.

    Args:
        axis: the axis of the channels, an integer.
        momentum: of the moving statistics, from 0 to 1.
        epsilon, center, scale, beta_initializer, ...: see `Scaled`.
        moving_mean_initializer, moving_variance_initializer: first values of the statistics.
        renorm: correct the batch's statistics by the moving ones, within bounds.
        renorm_clipping: bounds "rmin", "rmax" and "dmax" of that correction.
        renorm_momentum: of the statistics it uses.
        synchronized: accepted; there is one process.

    Weights: gamma (n,), beta (n,), moving_mean (n,), moving_variance (n,); the latter two, and with
    renorm three more, are not trained.
    Shapes: (batch, ...) -> same.
    Reference: Ioffe and Szegedy, 2015, "Batch Normalization", arXiv:1502.03167; Ioffe, 2017,
    "Batch Renormalization", arXiv:1702.03275.
    """

    def __init__(
        self,
        axis: int = -1,
        momentum: float = 0.99,
        epsilon: float = 0.001,
        center: bool = True,
        scale: bool = True,
        beta_initializer: Any = "zeros",
        gamma_initializer: Any = "ones",
        moving_mean_initializer: Any = "zeros",
        moving_variance_initializer: Any = "ones",
        beta_regularizer: Any = None,
        gamma_regularizer: Any = None,
        beta_constraint: Any = None,
        gamma_constraint: Any = None,
        renorm: bool = False,
        renorm_clipping: dict[str, float] | None = None,
        renorm_momentum: float = 0.99,
        synchronized: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            epsilon,
            center,
            scale,
            beta_initializer,
            gamma_initializer,
            beta_regularizer,
            gamma_regularizer,
            beta_constraint,
            gamma_constraint,
            **kwargs,
        )
        self.axis = one_axis(self, axis)
        self.momentum = fraction(self, "momentum", momentum)
        self.moving_mean_initializer = initializers.get(moving_mean_initializer)
        self.moving_variance_initializer = initializers.get(moving_variance_initializer)
        self.renorm = renorm
        self.renorm_clipping = renorm_clipping
        self.renorm_momentum = fraction(self, "renorm_momentum", renorm_momentum)
        bounds = renorm_clipping or {}
        for key in bounds:
            if key not in ("rmax", "rmin", "dmax"):
                raise ValueError(
                    f'BatchNormalization layer "{self.name}": renorm_clipping has the keys rmax, '
                    f"rmin and dmax; received {key!r}."
                )
        if bounds.get("dmax", 0) < 0 or bounds.get("rmin", 0) > bounds.get("rmax", np.inf):
            raise ValueError(
                f'BatchNormalization layer "{self.name}": renorm_clipping needs rmin <= rmax and '
                f"dmax >= 0; received {bounds}."
            )

    def build(self, input_shape: Shape) -> None:
        n = known_axis(self, input_shape, _axis_of(self, self.axis, input_shape))
        self.add_scale((n,))
        self.moving_mean = self._state("moving_mean", n, self.moving_mean_initializer)
        self.moving_variance = self._state("moving_variance", n, self.moving_variance_initializer)
        if self.renorm:
            self.moving_stddev = self._state("moving_stddev", n, self._first_stddev)
            self.renorm_mean = self._state("renorm_mean", n, self.moving_mean_initializer)
            self.renorm_stddev = self._state("renorm_stddev", n, self._first_stddev)
        self.input_spec = InputSpec(ndim=len(input_shape), axes={self.axis: n})

    def _first_stddev(self, shape: Any, dtype: Any = None) -> Array:
        return np.sqrt(np.asarray(self.moving_variance_initializer(shape, dtype=dtype)))

    def _state(self, name: str, n: int, initializer: Any) -> Any:
        return self.add_weight((n,), initializer, trainable=False, autocast=False, name=name)

    def call(self, inputs: Any, training: bool = False, mask: Any = None) -> Any:
        if not (training and self.trainable):
            mean, variance = self.moving_mean, self.moving_variance
            return ops.batch_normalization(
                inputs, mean, variance, self.axis, self.beta, self.gamma, self.epsilon
            )
        if mask is not None or self.renorm:
            return self._composed(inputs, mask)
        last = self.axis in (-1, inputs.ndim - 1)
        moved = inputs if last else ops.moveaxis(inputs, self.axis, -1)
        y, mean, variance = ops.normalize_batch(moved, self.gamma, self.beta, self.epsilon)
        if inputs.data.size:  # an empty batch tells nothing
            self._follow(self.moving_mean, mean, self.momentum)
            self._follow(self.moving_variance, variance, self.momentum)
        return y if last else ops.moveaxis(y, -1, self.axis)

    def _composed(self, x: Any, mask: Any) -> Any:
        """With a mask or renorm: the same out of small ops."""
        axis = self.axis % x.ndim
        axes = tuple(a for a in range(x.ndim) if a != axis)
        if mask is None:
            mean = ops.mean(x, axes)
            variance = ops.var(x, axes)
        else:
            kept = np.asarray(mask, x.dtype)
            kept = kept.reshape(kept.shape + (1,) * (x.ndim - kept.ndim))
            count = float(np.broadcast_to(kept, x.shape).sum()) / x.shape[axis] + 1e-7
            mean = ops.sum(x * kept, axes) / count
            shape = [1] * x.ndim
            shape[axis] = -1
            d = x - ops.reshape(mean, shape)
            variance = ops.sum(d * d * kept, axes) / count
        gamma, beta = self.gamma, self.beta
        if self.renorm:
            gamma, beta = self._renormalized(mean, variance)
        y = ops.batch_normalization(x, mean, variance, axis, beta, gamma, self.epsilon)
        self._follow(self.moving_mean, mean, self.momentum)
        if self.renorm:  # which follows the standard deviation instead
            moving = np.maximum(self.moving_stddev.data**2 - self.epsilon, 0)
            self.moving_variance.assign(moving)
        else:
            self._follow(self.moving_variance, variance, self.momentum)
        return y

    def _renormalized(self, mean: Any, variance: Any) -> tuple[Any, Any]:
        """gamma and beta with the correction r and d, through which nothing flows back."""
        stddev = np.sqrt(variance.data + self.epsilon)
        known = np.maximum(self.renorm_stddev.data, self.epsilon**0.5)  # not 0 early in training
        r = stddev / known
        d = (mean.data - self.renorm_mean.data) / known
        clipping = self.renorm_clipping or {}
        r = np.clip(r, clipping.get("rmin", 0), clipping.get("rmax", np.inf)).astype(r.dtype)
        if "dmax" in clipping:
            d = np.clip(d, -clipping["dmax"], clipping["dmax"]).astype(d.dtype)
        gamma = r if self.gamma is None else self.gamma * r
        beta = d if self.gamma is None else self.gamma * d
        if self.beta is not None:
            beta = beta + self.beta
        self._follow(self.moving_stddev, ops.convert_to_tensor(stddev), self.momentum)
        self._follow(self.renorm_mean, mean, self.renorm_momentum)
        self._follow(self.renorm_stddev, ops.convert_to_tensor(stddev), self.renorm_momentum)
        return gamma, beta

    def _follow(self, moving: Any, new: Any, momentum: float) -> None:
        moving.assign(moving.data * momentum + new.data * (1 - momentum))

    def get_config(self) -> Config:
        found = {
            **super().get_config(),
            "axis": self.axis,
            "momentum": self.momentum,
            "moving_mean_initializer": initializers.serialize(self.moving_mean_initializer),
            "moving_variance_initializer": initializers.serialize(self.moving_variance_initializer),
            "synchronized": False,
        }
        if self.renorm:
            found["renorm"] = True
            found["renorm_clipping"] = self.renorm_clipping
            found["renorm_momentum"] = self.renorm_momentum
        return found


def _axis_of(layer: Layer, axis: int, input_shape: Shape) -> int:
    if not -len(input_shape) <= axis < len(input_shape):
        raise ValueError(
            f'{type(layer).__name__} layer "{layer.name}": axis {axis} does not exist in input of '
            f"shape {input_shape}."
        )
    return axis


class LayerNormalization(Scaled):
    """y = (x - mean) / sqrt(variance + epsilon) * gamma + beta, over each sample's features.

    Args:
        axis: the axis or axes to normalise over, together.
        epsilon, center, scale, beta_initializer, ...: see `Scaled`.

    Weights: gamma and beta of the shape of the normalised axes.
    Shapes: (batch, ..., n) -> same.
    Reference: Ba, Kiros and Hinton, 2016, "Layer Normalization", arXiv:1607.06450.

    >>> import numpy as np
    >>> LayerNormalization()(np.array([[1.0, 2.0, 3.0]])).numpy().round(4)
    array([[-1.2238,  0.    ,  1.2238]], dtype=float32)
    """

    def __init__(
        self,
        axis: int | Sequence[int] = -1,
        epsilon: float = 0.001,
        center: bool = True,
        scale: bool = True,
        beta_initializer: Any = "zeros",
        gamma_initializer: Any = "ones",
        beta_regularizer: Any = None,
        gamma_regularizer: Any = None,
        beta_constraint: Any = None,
        gamma_constraint: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            epsilon,
            center,
            scale,
            beta_initializer,
            gamma_initializer,
            beta_regularizer,
            gamma_regularizer,
            beta_constraint,
            gamma_constraint,
            **kwargs,
        )
        many = isinstance(axis, (list, tuple))
        self.axis: Any = [one_axis(self, a) for a in axis] if many else one_axis(self, axis)  # type: ignore[union-attr]
        self.autocast = self.autocast and not self._rounds  # float16 could not hold large inputs

    def build(self, input_shape: Shape) -> None:
        given = self.axis if isinstance(self.axis, list) else [self.axis]
        axes = sorted(_axis_of(self, a, input_shape) % len(input_shape) for a in given)
        self.add_scale(tuple(known_axis(self, input_shape, a) for a in axes))
        if isinstance(self.axis, list):
            self.axis = axes

    def call(self, inputs: Any) -> Any:
        y = ops.layer_normalization(inputs, self.gamma, self.beta, self.axis, self.epsilon)
        return ops.cast(y, self._dtype) if self._rounds else y

    def get_config(self) -> Config:
        return {**super().get_config(), "axis": self.axis}


class GroupNormalization(Scaled):
    """y = (x - mean) / sqrt(variance + epsilon) * gamma + beta, over groups of a sample's channels.

    Args:
        groups: how many groups the channels fall into; -1 for one channel per group.
        axis: the axis of the channels.
        epsilon, center, scale, beta_initializer, ...: see `Scaled`.

    Weights: gamma (n,), beta (n,).
    Shapes: (batch, ..., n) -> same.
    Raises:
        ValueError: if the channels do not divide into the groups.
    Reference: Wu and He, 2018, "Group Normalization", arXiv:1803.08494.
    """

    def __init__(
        self,
        groups: int = 32,
        axis: int = -1,
        epsilon: float = 0.001,
        center: bool = True,
        scale: bool = True,
        beta_initializer: Any = "zeros",
        gamma_initializer: Any = "ones",
        beta_regularizer: Any = None,
        gamma_regularizer: Any = None,
        beta_constraint: Any = None,
        gamma_constraint: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            epsilon,
            center,
            scale,
            beta_initializer,
            gamma_initializer,
            beta_regularizer,
            gamma_regularizer,
            beta_constraint,
            gamma_constraint,
            **kwargs,
        )
        self.groups = groups if groups == -1 else positive_integer(self, "groups", groups)
        self.axis = one_axis(self, axis)
        self.autocast = self.autocast and not self._rounds  # float16 could not hold large inputs

    def build(self, input_shape: Shape) -> None:
        n = known_axis(self, input_shape, _axis_of(self, self.axis, input_shape))
        if self.groups == -1:
            self.groups = n
        if n % self.groups:
            raise ValueError(
                f'GroupNormalization layer "{self.name}": the {n} channels of input of shape '
                f"{input_shape} do not divide into groups={self.groups}. Pass a divisor of {n}."
            )
        self.add_scale((n,))
        self.input_spec = InputSpec(ndim=len(input_shape), axes={self.axis: n})

    def call(self, inputs: Any) -> Any:
        last = self.axis in (-1, inputs.ndim - 1)
        inputs = inputs if last else ops.moveaxis(inputs, self.axis, -1)
        y = ops.group_normalization(inputs, self.groups, self.gamma, self.beta, self.epsilon)
        y = y if last else ops.moveaxis(y, -1, self.axis)
        return ops.cast(y, self._dtype) if self._rounds else y

    def get_config(self) -> Config:
        return {**super().get_config(), "groups": self.groups, "axis": self.axis}


class RMSNormalization(Layer):
    """y = x / sqrt(mean(x^2) + epsilon) * scale, over each sample's features.

    Args:
        axis: the axis or axes to normalise over, together.
        epsilon: keeps the root away from 0.

    Weights: scale of the shape of the normalised axes.
    Reference: Zhang and Sennrich, 2019, "Root Mean Square Layer Normalization", arXiv:1910.07467.
    """

    def __init__(
        self, axis: int | Sequence[int] = -1, epsilon: float = 1e-6, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        many = isinstance(axis, (list, tuple))
        self.axis: Any = [one_axis(self, a) for a in axis] if many else one_axis(self, axis)  # type: ignore[union-attr]
        self.epsilon = epsilon

    def build(self, input_shape: Shape) -> None:
        given = self.axis if isinstance(self.axis, list) else [self.axis]
        axes = sorted(_axis_of(self, a, input_shape) % len(input_shape) for a in given)
        shape = tuple(known_axis(self, input_shape, a) for a in axes)
        self.scale = self.add_weight(shape, "ones", name="scale")

    def call(self, inputs: Any) -> Any:
        return ops.rms_normalization(inputs, self.scale, self.axis, self.epsilon)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape

    def get_config(self) -> Config:
        return {**super().get_config(), "axis": self.axis, "epsilon": self.epsilon}


class UnitNormalization(Layer):
    """x divided by its length along an axis: y = x / sqrt(max(sum(x^2), 1e-24)).

    Args:
        axis: the axis or axes along which the length is 1 afterwards.

    >>> import numpy as np
    >>> UnitNormalization()(np.array([[3.0, 4.0]])).numpy()
    array([[0.6, 0.8]], dtype=float32)
    """

    built = True
    supports_masking = True

    def __init__(self, axis: int | Sequence[int] = -1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        many = isinstance(axis, (list, tuple))
        self.axis: Any = [one_axis(self, a) for a in axis] if many else one_axis(self, axis)  # type: ignore[union-attr]

    def call(self, inputs: Any) -> Any:
        squares = ops.sum(inputs * inputs, self.axis, keepdims=True)
        return inputs * ops.rsqrt(ops.maximum(squares, 1e-24))

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape

    def get_config(self) -> Config:
        return {**super().get_config(), "axis": self.axis}
