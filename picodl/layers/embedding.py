"""Embeddings of integer ids, and masks read off the data."""

from __future__ import annotations

from typing import Any

import numpy as np

from picodl import constraints, initializers, ops, regularizers
from picodl.layers.base import Layer
from picodl.layers.checks import positive_integer
from picodl.layers.lora import LowRank
from picodl.tensor import Tensor
from picodl.typing import Config, Shape


class Embedding(LowRank):
    """y = embeddings[ids]: a vector for each integer id.

    Args:
        input_dim: the number of ids: they run from 0 to input_dim - 1.
        output_dim: the size of a vector.
        embeddings_initializer: first values. Defaults to "uniform" (-0.05 to 0.05).
        embeddings_regularizer, embeddings_constraint: penalty and constraint of the table.
        mask_zero: id 0 is padding: it is masked in the layers that follow.
        weights: first values of the table, as an array or a list of one array.
        lora_rank, lora_alpha: freeze the table and train a change of this rank; see `enable_lora`.

    Weights: embeddings (input_dim, output_dim).
    Shapes: (batch, ...) integers -> (batch, ..., output_dim).

    Raises:
        ValueError: when called with an id outside the table.

    >>> Embedding(10, 4)(np.array([[1, 2, 1]])).shape
    (1, 3, 4)
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        embeddings_initializer: Any = "uniform",
        embeddings_regularizer: Any = None,
        embeddings_constraint: Any = None,
        mask_zero: bool = False,
        weights: Any = None,
        lora_rank: int | None = None,
        lora_alpha: float | None = None,
        **kwargs: Any,
    ) -> None:
        length = kwargs.pop("input_length", None)  # of Keras 2
        if length is not None and not any(k in kwargs for k in ("input_shape", "batch_shape")):
            kwargs["input_shape"] = (length,)
        super().__init__(**kwargs)
        self.input_dim = positive_integer(self, "input_dim", input_dim)
        self.output_dim = positive_integer(self, "output_dim", output_dim)
        self.embeddings_initializer = initializers.get(embeddings_initializer)
        self.embeddings_regularizer = regularizers.get(embeddings_regularizer)
        self.embeddings_constraint = constraints.get(embeddings_constraint)
        self.mask_zero = mask_zero
        self.supports_masking = mask_zero
        self.autocast = False  # ids stay what they are
        self._set_lora(lora_rank, lora_alpha)
        if weights is not None:
            self.build()
            given = list(weights) if isinstance(weights, (list, tuple)) else [weights]
            adapters = self._adapters() if self.lora_enabled else ()
            self.set_weights([*given, *adapters])

    _table = "embeddings"

    def build(self, input_shape: Any = None) -> None:
        self.embeddings = self.add_weight(
            (self.input_dim, self.output_dim),
            self.embeddings_initializer,
            regularizer=self.embeddings_regularizer,
            constraint=self.embeddings_constraint,
            name="embeddings",
        )
        if self.lora_rank is not None:
            self._adapt(self.lora_rank, self.lora_alpha)

    def call(self, inputs: Any) -> Any:
        y = ops.embedding(self.embeddings, inputs)
        if self.lora_enabled:
            a, b = self._adapters()  # of the rows in use: the whole table would be a large product
            change = ops.matmul(ops.embedding(a, inputs), b)
            y = y + (self.lora_alpha / self.lora_rank) * change  # type: ignore[operator]
        return ops.cast(y, self._dtype) if self._rounds else y

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        return np.asarray(inputs) != 0 if self.mask_zero else None

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (*input_shape, self.output_dim)

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "input_dim": self.input_dim,
            "output_dim": self.output_dim,
            "embeddings_initializer": initializers.serialize(self.embeddings_initializer),
            "embeddings_regularizer": regularizers.serialize(self.embeddings_regularizer),
            "activity_regularizer": regularizers.serialize(self.activity_regularizer),
            "embeddings_constraint": constraints.serialize(self.embeddings_constraint),
            "mask_zero": self.mask_zero,
            **self._lora_config(),
        }


class ReversibleEmbedding(Embedding):
    """An Embedding that also projects vectors back to one number for each id.

    `layer(ids)` gives vectors; `layer(x, reverse=True)` gives logits x @ embeddings^T.

    Args:
        input_dim, output_dim: see Embedding.
        tie_weights: use the same table both ways; else the way back has a table of its own.
        embeddings_initializer, embeddings_regularizer, embeddings_constraint, mask_zero: see
            Embedding.
        reverse_dtype: the dtype of the way back. Defaults to the layer's.
        logit_soft_cap: c: logits become c * tanh(logits / c).

    Weights: embeddings (input_dim, output_dim); without tied weights also reverse_embeddings
        (output_dim, input_dim).
    Reference: Press and Wolf, 2016, "Using the Output Embedding to Improve Language Models",
    arXiv:1608.05859.
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        tie_weights: bool = True,
        embeddings_initializer: Any = "uniform",
        embeddings_regularizer: Any = None,
        embeddings_constraint: Any = None,
        mask_zero: bool = False,
        reverse_dtype: Any = None,
        logit_soft_cap: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            input_dim, output_dim, embeddings_initializer, embeddings_regularizer,
            embeddings_constraint, mask_zero, **kwargs,
        )  # fmt: skip
        self.tie_weights = tie_weights
        self.reverse_dtype = reverse_dtype
        self.logit_soft_cap = logit_soft_cap

    def build(self, input_shape: Any = None) -> None:
        super().build(input_shape)
        if not self.tie_weights:
            self.reverse_embeddings = self.add_weight(
                (self.output_dim, self.input_dim),
                self.embeddings_initializer,
                regularizer=self.embeddings_regularizer,
                constraint=self.embeddings_constraint,
                name="reverse_embeddings",
            )

    def call(self, inputs: Any, reverse: bool = False) -> Any:
        if not reverse:
            return super().call(inputs)
        kernel = ops.transpose(self._adapted()) if self.tie_weights else self.reverse_embeddings
        if self.reverse_dtype is not None:
            inputs = ops.cast(inputs, self.reverse_dtype)
            kernel = ops.cast(kernel, self.reverse_dtype)
        logits = ops.dense(inputs, kernel)
        if self.logit_soft_cap is not None:
            logits = self.logit_soft_cap * ops.tanh(logits / self.logit_soft_cap)
        rounds = self._rounds and self.reverse_dtype is None
        return ops.cast(logits, self._dtype) if rounds else logits

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        if isinstance(inputs, Tensor) and inputs.data.dtype.kind == "f":
            return mask  # the way back
        return super().compute_mask(inputs, mask)

    def compute_output_shape(self, input_shape: Shape, reverse: bool = False) -> Shape:
        if reverse:
            return (*input_shape[:-1], self.input_dim)
        return super().compute_output_shape(input_shape)

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        return self._infer(args, kwargs)

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "tie_weights": self.tie_weights,
            "reverse_dtype": self.reverse_dtype,
            "logit_soft_cap": self.logit_soft_cap,
        }


class Masking(Layer):
    """Mask the steps whose features all equal a value, and set them to 0.

    Args:
        mask_value: the value.

    Shapes: (batch, T, ...) -> same, with a mask (batch, T) for the layers that follow.

    >>> Masking()(np.array([[[1.0], [0.0]]])).mask
    array([[ True, False]])
    """

    built = True
    supports_masking = True

    def __init__(self, mask_value: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.mask_value = mask_value

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        return (np.asarray(inputs) != self.mask_value).any(axis=-1)

    def call(self, inputs: Any) -> Any:
        keep = (np.asarray(inputs) != self.mask_value).any(axis=-1, keepdims=True)
        return ops.where(keep, inputs, np.zeros((), self._dtype))

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape

    def get_config(self) -> Config:
        return {**super().get_config(), "mask_value": self.mask_value}
