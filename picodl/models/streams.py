"""Batches that the user's own code makes: generators, iterables, data loaders, PyDataset."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

from picodl.models.arrays import Strings
from picodl.models.data import Batches, one_batch
from picodl.models.pydataset import PyDataset, fetch, ordered_indices


def stream_batches(
    source: Any,
    y: Any,
    sample_weight: Any,
    steps: int | None,
    shuffle: Any,
    class_weight: dict[int, float] | None,
    strings: Strings = False,
) -> Batches:
    """Batches from an iterable of batches.

    Raises:
        ValueError: for y or sample_weight beside it.
    """
    kind = type(source).__name__
    for name, value in (("y", y), ("sample_weight", sample_weight)):
        if value is not None:
            raise ValueError(
                f"{name} should not be passed beside a {kind}: it yields (x, y) or "
                "(x, y, sample_weight) itself."
            )
    if shuffle == "batch":
        warnings.warn(
            f'shuffle="batch" does nothing with a {kind}: its batches come as it yields them.',
            stacklevel=4,
        )
    if isinstance(source, PyDataset):
        return DatasetBatches(source, steps, shuffle is True, class_weight, strings)
    return StreamBatches(source, steps, class_weight, strings)


class StreamBatches(Batches):
    """Batches of an iterable: each epoch iterates it anew, or goes on where the last one stopped.

    Args:
        source: an iterable of batches. An iterator (a generator) can be gone through only once.
        steps: batches in an epoch; None goes to the end of the source each time.
        class_weight: {class: weight}, which becomes the sample weight.
    """

    def __init__(
        self,
        source: Any,
        steps: int | None,
        class_weight: dict[int, float] | None,
        strings: Strings = False,
    ) -> None:
        self.source = source
        self._strings = strings
        self.class_weight = class_weight
        self._asked = steps
        self._iterator: Iterator[Any] | None = None
        self._once = hasattr(source, "__next__")
        self._seen = 0  # batches in all
        self._told = False  # whether the user was told that the source has ended
        self._ahead: list[Any] = []  # a batch that was looked at before its epoch
        try:
            self.steps = len(source) if steps is None else steps
        except TypeError:
            self.steps = None

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[Any, Any, Any]]:
        count = 0
        if self._once and not self._seen and self._asked is not None:
            for _ in zip(range(epoch * self._asked), self.source, strict=False):
                self._seen += 1  # the epochs before a resumed one
        while self._asked is None or count < self._asked:
            if self._iterator is None:
                self._iterator = self._begin(epoch)
            batch = self._ahead.pop() if self._ahead else next(self._iterator, self)
            if batch is self:
                self._ended(count)
                break
            count += 1
            self._seen += 1
            if count > start:
                yield unpack_batch(batch, self._name(), self.class_weight, self._strings)
        self.steps = self.steps or count

    def has_more(self) -> bool:
        if not self._once or not self._seen or self._ahead:
            return True
        batch = self if self._told else next(self.source, self)
        if batch is self and not self._told:
            warnings.warn(
                f"The {self._name()} ran out of data, training ends. A generator lasts for one "
                "pass: give steps_per_epoch, or pass a PyDataset or another object that can be "
                "iterated again.",
                stacklevel=3,
            )
        if batch is not self:
            self._ahead.append(batch)
        return batch is not self

    def _begin(self, epoch: int) -> Iterator[Any]:
        return iter(self.source)

    def _name(self) -> str:
        return type(self.source).__name__

    def _ended(self, count: int) -> None:
        """The iterator has no more batches, count of this epoch were seen."""
        self._iterator = None
        if not self._seen:
            raise ValueError(f"The {self._name()} is empty: it yields no data, not even one batch.")
        if self._asked is not None:
            self._told = True
            warn_of_end(count, self._asked)

    def close(self) -> None:
        if self._iterator is not None and not self._once and hasattr(self._iterator, "close"):
            self._iterator.close()
        self._iterator = None


class DatasetBatches(StreamBatches):
    """Batches of a PyDataset, in the order of their numbers or shuffled."""

    def __init__(
        self,
        source: PyDataset,
        steps: int | None,
        shuffle: bool,
        class_weight: dict[int, float] | None,
        strings: Strings = False,
    ) -> None:
        super().__init__(source, steps, class_weight, strings)
        self.shuffle = shuffle
        self.steps = source.num_batches if steps is None else steps
        self._ends = 0
        if self.steps == 0:
            raise ValueError(f"The {type(source).__name__} is empty: its num_batches is 0.")

    def _begin(self, epoch: int) -> Iterator[Any]:
        self.source.on_epoch_begin()
        return fetch(self.source, ordered_indices(self.source, epoch, self.shuffle))

    def on_epoch_end(self) -> None:
        self.source.on_epoch_end()
        if self._asked is None:
            self.close()


def warn_of_end(seen: int, asked: int) -> None:
    """Warn that an epoch ended before its steps were done."""
    warnings.warn(
        f"The data ran out after {seen} of the {asked} batches of this epoch, which ends here. "
        "Make sure that the data have steps_per_epoch * epochs batches.",
        stacklevel=5,
    )


def unpack_batch(
    batch: Any,
    source: str,
    class_weight: dict[int, float] | None = None,
    strings: Strings = False,
) -> tuple[Any, Any, Any]:
    """(x, y, sample_weight) of what an iterable yields: x, (x,), (x, y) or (x, y, sample_weight).

    Raises:
        ValueError: for anything else, and for arrays that do not fit.
    """
    if isinstance(batch, list):  # data loaders yield lists
        batch = tuple(batch)
    if not isinstance(batch, tuple):
        batch = (batch,)
    if not 1 <= len(batch) <= 3 or batch[0] is None:
        told = "None" if len(batch) == 1 else f"a tuple of {len(batch)}"
        raise ValueError(
            f"The {source} must yield batches x, (x,), (x, y) or (x, y, sample_weight) of arrays; "
            f"received {told}."
        )
    x, y, sample_weight = (*batch, None, None)[:3]
    return one_batch(x, y, sample_weight, class_weight, strings)
