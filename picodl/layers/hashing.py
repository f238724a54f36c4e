"""Anything as one of a number of bins, by a hash: the layers Hashing and HashedCrossing."""

from __future__ import annotations

from typing import Any

import numpy as np

from picodl.layers.base import Layer
from picodl.layers.categories import MODES, Preprocessing, as_texts, encode, encoded_shape
from picodl.layers.checks import choice, int_of, positive_integer
from picodl.layers.hashes import crossed, fingerprint, siphash
from picodl.tensor import Tensor
from picodl.typing import Array, Config, Shape


class Hashing(Preprocessing):
    """Anything as one of a number of bins, by the hash of its text that Keras uses too.

    Args:
        num_bins: the number of bins.
        mask_value: goes into bin 0, which nothing else does then.
        salt: an integer or two: SipHash with this key instead of FarmHash.
        output_mode: "int", or "one_hot", "multi_hot", "count" as in CategoryEncoding.
        sparse: accepted when False.

    >>> Hashing(3)([["A"], ["B"], ["E"]]).numpy().tolist()
    [[1], [0], [2]]
    """

    def __init__(
        self,
        num_bins: int,
        mask_value: Any = None,
        salt: Any = None,
        output_mode: str = "int",
        sparse: bool = False,
        dtype: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(dtype=_dtype_for(output_mode, dtype), **kwargs)
        self.refuse_sparse(sparse)
        self.num_bins = positive_integer(self, "num_bins", num_bins)
        self.mask_value = mask_value
        self.salt = salt_of(self, salt)
        self.output_mode = choice(self, "output_mode", output_mode, MODES)

    def call(self, inputs: Any) -> Any:
        texts = as_texts(inputs)
        masked = None if self.mask_value is None else texts == str(self.mask_value)
        if masked is None:
            ids = hashed(texts, self.num_bins, self.salt)
        else:
            ids = hashed(texts, max(1, self.num_bins - 1), self.salt) + (self.num_bins > 1)
            ids[masked] = 0
        return Tensor(encode(ids, self.output_mode, self.num_bins, self._dtype))

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return encoded_shape(input_shape, self.output_mode, self.num_bins)

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "num_bins": self.num_bins,
            "mask_value": self.mask_value,
            "salt": self.salt,
            "output_mode": self.output_mode,
            "sparse": False,
        }


class HashedCrossing(Preprocessing):
    """Two features as one of a number of bins, by a hash of both together.

    Args:
        num_bins: the number of bins.
        output_mode: "int" or "one_hot".
        sparse: accepted when False.

    Call: ([first, second]), of the same shape, (batch,) or (batch, 1); integers or strings.

    >>> HashedCrossing(5)([np.array(["A", "B"]), np.array([101, 102])]).numpy().tolist()
    [1, 1]
    """

    def __init__(
        self,
        num_bins: int,
        output_mode: str = "int",
        sparse: bool = False,
        name: str | None = None,
        dtype: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, dtype=_dtype_for(output_mode, dtype), **kwargs)
        self.refuse_sparse(sparse)
        self.num_bins = positive_integer(self, "num_bins", num_bins)
        self.output_mode = choice(self, "output_mode", output_mode, MODES[:2])

    def call(self, inputs: Any) -> Any:
        if not isinstance(inputs, (list, tuple)) or len(inputs) < 2:
            raise ValueError(f'HashedCrossing layer "{self.name}" expects a list of two features.')
        features = [self._numbers(x) for x in inputs]
        shape = features[0].shape
        if any(f.shape != shape for f in features):
            raise ValueError(
                f'HashedCrossing layer "{self.name}" expects features of the same shape, but '
                f"received {[f.shape for f in features]}."
            )
        if shape[1:] not in ((), (1,)):
            raise ValueError(
                f'HashedCrossing layer "{self.name}" expects features of shape (batch,) or '
                f"(batch, 1), but received {shape}."
            )
        rows = zip(*(f.ravel().tolist() for f in features), strict=True)
        ids = np.array([crossed(row) % self.num_bins for row in rows], np.int64).reshape(shape)
        return Tensor(encode(ids, self.output_mode, self.num_bins, self._dtype))

    def _numbers(self, x: Any) -> Array:
        """Integers as they are, the fingerprints of strings."""
        array = x.data if isinstance(x, Tensor) else np.asarray(x)
        if array.dtype.kind == "f":
            raise ValueError(
                f'HashedCrossing layer "{self.name}" expects integers or strings, but received '
                f"dtype {array.dtype}."
            )
        if array.dtype.kind in "iub":
            return array.astype(np.int64).astype(np.uint64)
        return np.array([fingerprint(t.encode()) for t in as_texts(array).flat], np.uint64).reshape(
            array.shape
        )

    def compute_output_shape(self, input_shape: Any) -> Shape:
        return encoded_shape(tuple(input_shape[0]), self.output_mode, self.num_bins)

    def get_config(self) -> Config:
        config = super().get_config()
        del config["trainable"]
        return {
            **config,
            "num_bins": self.num_bins,
            "output_mode": self.output_mode,
            "sparse": False,
        }


def _dtype_for(output_mode: str, dtype: Any) -> Any:
    return "int64" if dtype is None and output_mode == "int" else dtype


def salt_of(layer: Layer, salt: Any) -> Any:
    """The salt itself.

    Raises:
        ValueError: naming the layer, unless it is None, an integer or a pair of them.
    """
    pair = salt if isinstance(salt, (list, tuple)) else [salt, salt]
    if salt is not None and (len(pair) != 2 or any(int_of(k) is None for k in pair)):
        raise ValueError(
            f'{type(layer).__name__} layer "{layer.name}": salt must be an integer or a pair of '
            f"them; received {salt!r}."
        )
    return salt


def hashed(texts: Array, bins: int, salt: Any) -> Array:
    """A bin for each text: the hash of its UTF-8 bytes modulo the number of bins."""
    unique, places = np.unique(texts, return_inverse=True)
    coded = [t.encode() for t in unique.tolist()]
    if salt is None:
        found = [fingerprint(t) % bins for t in coded]
    else:
        first, second = salt if isinstance(salt, (list, tuple)) else (salt, salt)
        found = [siphash(t, (first, second)) % bins for t in coded]
    return np.array(found, np.int64)[places].reshape(texts.shape)
