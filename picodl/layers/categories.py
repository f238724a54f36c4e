"""Numbers and names as categories: encodings and bins."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from picodl.layers.base import Layer
from picodl.layers.checks import choice, positive_integer
from picodl.ops.embedding import whole_numbers
from picodl.symbolic import Spec
from picodl.tensor import Tensor
from picodl.typing import Array, Config, Shape

MODES = ("int", "one_hot", "multi_hot", "count")


def encode(ids: Array, mode: str, depth: int, dtype: Any, weights: Any = None) -> Array:
    """Category numbers in one of the output modes.

    Args:
        ids: numbers from 0 to depth - 1.
        mode: "int": as they are; "one_hot": a vector for each; "multi_hot", "count": a vector for
            each row of the last axis.
        depth: the length of the vectors.
        dtype: of the vectors; an integer one is also that of the numbers in mode "int".
        weights: added up instead of ones in mode "count".
    """
    if mode == "int":
        return ids.astype(dtype, copy=False) if dtype.kind in "iu" else ids
    if ids.ndim == 0 or (mode == "one_hot" and ids.shape[-1] != 1):
        ids = ids[..., None]
    rows = ids.reshape(-1, ids.shape[-1])
    total = np.zeros((len(rows), depth), dtype)
    places = (np.arange(len(rows))[:, None], rows)
    if mode == "count":
        np.add.at(total, places, 1 if weights is None else np.reshape(weights, rows.shape))
    else:
        total[places] = 1
    return total.reshape(*ids.shape[:-1], depth)


def encoded_shape(shape: Shape, mode: str, depth: int | None) -> Shape:
    """The shape that `encode` gives."""
    if mode == "int":
        return shape
    if not shape or (mode == "one_hot" and shape[-1] != 1):
        return (*shape, depth)
    return (*shape[:-1], depth)


class Preprocessing(Layer):
    """The base of layers that prepare data: arrays in, arrays out, nothing to train."""

    built = True
    accepts_strings = True
    warns_of_dropped_masks = False
    output_mode = "int"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.autocast = False

    def refuse_sparse(self, *flags: Any) -> None:
        """Raise for sparse=True or ragged=True, which need tensors that picodl does not have."""
        if any(flags):
            raise ValueError(
                f'{type(self).__name__} layer "{self.name}": picodl has no sparse or ragged '
                "tensors; leave sparse and ragged at False."
            )

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        shapes = [tuple(a.shape) for a in (args[0] if isinstance(args[0], (list, tuple)) else args)]
        shape = self.compute_output_shape(
            shapes if isinstance(args[0], (list, tuple)) else shapes[0]
        )
        wide = self.output_mode == "int" and self._dtype.kind == "f"
        return Spec(shape, "int64" if wide else self._dtype.name)


def batches(data: Any, steps: int | None = None) -> Any:
    """The inputs of each batch of a dataset, which may also give tuples of inputs and targets."""
    numbered = hasattr(data, "__len__") and hasattr(data, "__getitem__")  # as a PyDataset is
    each = map(data.__getitem__, range(len(data))) if numbered else data
    for batch in itertools.islice(each, steps):
        yield batch[0] if isinstance(batch, tuple) else batch


class CategoryEncoding(Preprocessing):
    """Category numbers as vectors of 0 and 1, or of counts.

    Args:
        num_tokens: the number of categories.
        output_mode: "multi_hot": 1 for the categories in a row of the last axis; "one_hot": a
            vector for each number; "count": how often each comes.
        sparse: accepted when False.

    Call: (inputs, count_weights=None): what each number counts in mode "count".
    Shapes: (batch, n) -> (batch, num_tokens); "one_hot" (batch,) -> (batch, num_tokens).

    Raises:
        ValueError: for numbers outside 0 to num_tokens - 1.

    >>> CategoryEncoding(4, output_mode="count")([[0, 1, 1]]).numpy().tolist()
    [[1.0, 2.0, 0.0, 0.0]]
    """

    def __init__(
        self,
        num_tokens: int | None = None,
        output_mode: str = "multi_hot",
        sparse: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.refuse_sparse(sparse)
        self.output_mode = choice(self, "output_mode", output_mode, MODES[1:])
        self.num_tokens = positive_integer(self, "num_tokens", num_tokens)

    def call(self, inputs: Any, count_weights: Any = None) -> Any:
        ids = whole_numbers(np.asarray(inputs))
        if count_weights is not None and self.output_mode != "count":
            raise ValueError(
                f'CategoryEncoding layer "{self.name}" takes count_weights with '
                f'output_mode="count" only; it is {self.output_mode!r}.'
            )
        if ids.size and (ids.min() < 0 or ids.max() >= self.num_tokens):
            wrong = ids.min() if ids.min() < 0 else ids.max()
            raise ValueError(
                f'CategoryEncoding layer "{self.name}" expects numbers from 0 to '
                f"{self.num_tokens - 1}, but received {wrong}."
            )
        weights = None if count_weights is None else np.asarray(count_weights)
        return Tensor(encode(ids, self.output_mode, self.num_tokens, self._dtype, weights))

    def compute_output_shape(self, input_shape: Shape, count_weights_shape: Any = None) -> Shape:
        return encoded_shape(input_shape, self.output_mode, self.num_tokens)

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "num_tokens": self.num_tokens,
            "output_mode": self.output_mode,
            "sparse": False,
        }


class Discretization(Preprocessing):
    """Numbers as the bins they fall into.

    Args:
        bin_boundaries: the inner boundaries, ascending; a number equal to one belongs to the bin
            above.
        num_bins: how many bins `adapt` makes, about equally full.
        epsilon: how closely `adapt` looks at the data: it keeps 1 / epsilon of its numbers.
        output_mode: "int", or "one_hot", "multi_hot", "count" as in CategoryEncoding.
        sparse: accepted when False.

    >>> Discretization([0.0, 1.0])([[-0.5, 0.0, 3.0]]).numpy().tolist()
    [[0, 1, 2]]
    """

    def __init__(
        self,
        bin_boundaries: Any = None,
        num_bins: int | None = None,
        epsilon: float = 0.01,
        output_mode: str = "int",
        sparse: bool = False,
        dtype: Any = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(dtype=dtype, name=name, **kwargs)
        self.refuse_sparse(sparse)
        self.output_mode = choice(self, "output_mode", output_mode, MODES)
        if (bin_boundaries is None) == (num_bins is None):
            raise ValueError(
                f'Discretization layer "{self.name}" needs either bin_boundaries, or num_bins and '
                f"a call of adapt(); received {bin_boundaries!r} and {num_bins!r}."
            )
        if num_bins is not None:
            num_bins = positive_integer(self, "num_bins", num_bins, 2)
        self.num_bins = num_bins
        self.epsilon = epsilon
        self.bin_boundaries = None if bin_boundaries is None else [float(b) for b in bin_boundaries]
        if self.bin_boundaries is not None and sorted(self.bin_boundaries) != self.bin_boundaries:
            raise ValueError(
                f'Discretization layer "{self.name}": bin_boundaries must ascend; received '
                f"{bin_boundaries!r}."
            )
        self._summary: Any = None  # values and how many numbers each stands for

    def adapt(self, data: Any, steps: int | None = None) -> None:
        """Find the boundaries that fill the bins equally.

        Args:
            data: an array, or an iterable of batches.
            steps: how many batches to read. Defaults to all.
        """
        self.reset_state()
        single = hasattr(data, "shape") or isinstance(data, list)
        for batch in [data] if single else batches(data, steps):
            self.update_state(batch)
        self.finalize_state()

    def update_state(self, data: Any) -> None:
        """Look at one batch."""
        if self.num_bins is None:
            raise ValueError(
                f'Discretization layer "{self.name}" has fixed bin_boundaries; adapt() needs '
                "num_bins instead."
            )
        values = np.sort(np.asarray(data, np.float64), axis=None)
        step = len(values) * self.epsilon
        kept = values[int(step) :: max(int(step), 1)]
        new = np.stack([kept, np.full(len(kept), max(step, 1.0))])
        if self._summary is not None:
            new = np.concatenate([self._summary, new], axis=1)
            new = _thinned(new[:, np.argsort(new[0], kind="stable")], self.epsilon)
        self._summary = new

    def finalize_state(self) -> None:
        """Take the boundaries from what was seen."""
        if self._summary is not None and self.num_bins is not None:
            thin = _thinned(self._summary, 1 / self.num_bins)
            self.bin_boundaries = [float(b) for b in thin[0][:-1]]

    def reset_state(self) -> None:
        """Forget what was seen."""
        self._summary = None

    def call(self, inputs: Any) -> Any:
        if self.bin_boundaries is None:
            raise ValueError(
                f'Discretization layer "{self.name}" has no boundaries yet: call adapt(data) first.'
            )
        ids = np.searchsorted(self.bin_boundaries, np.asarray(inputs), side="right")
        depth = len(self.bin_boundaries) + 1
        return Tensor(encode(ids, self.output_mode, depth, self._dtype))

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        depth = self.num_bins or len(self.bin_boundaries or ()) + 1
        return encoded_shape(input_shape, self.output_mode, depth)

    def get_config(self) -> Config:
        config = super().get_config()
        del config["trainable"]
        fixed = self.bin_boundaries if self.num_bins is None else None
        return {
            **config,
            "bin_boundaries": fixed,
            "num_bins": self.num_bins,
            "epsilon": self.epsilon,
            "output_mode": self.output_mode,
            "sparse": False,
            **({"adapted": self.bin_boundaries} if self._adapted() else {}),
        }

    def _adapted(self) -> bool:
        return self.num_bins is not None and self.bin_boundaries is not None

    @classmethod
    def from_config(cls, config: Config) -> Any:
        adapted = config.get("adapted")
        layer = super().from_config({k: v for k, v in config.items() if k != "adapted"})
        if adapted is not None:
            layer.bin_boundaries = [float(b) for b in adapted]
        return layer


def _thinned(summary: Array, epsilon: float) -> Array:
    """A summary of 1 / epsilon values at equal shares of the whole, by linear interpolation."""
    if summary.shape[1] * epsilon < 1:
        return summary
    shares = epsilon + np.arange(0.0, 1.0, epsilon)
    total = np.cumsum(summary[1])
    values = np.interp(shares, total / total[-1], summary[0])
    counts = np.interp(shares, total / total[-1], total)
    return np.stack([values, np.diff(counts, prepend=0)])


def as_texts(x: Any) -> Array:
    """Strings, bytes or whole numbers as an array of str."""
    array = x.data if isinstance(x, Tensor) else np.asarray(x)
    if array.dtype.kind == "S":
        return np.char.decode(array, "utf-8")
    if array.dtype.kind == "O":
        flat = [t.decode("utf-8") if isinstance(t, bytes) else str(t) for t in array.ravel()]
        return np.array(flat, dtype=str).reshape(array.shape)
    if array.dtype.kind in "fb":
        array = whole_numbers(array)
    return array.astype(str)
