"""PyDataset: batches by number, computed by the user, in several threads or processes if wanted."""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any


class PyDataset:
    """Base class of data sets that make the batch of a given number.

    A subclass defines `__getitem__(index)`, which returns x, (x, y) or (x, y, sample_weight),
    and `__len__` or `num_batches`. The order is the same whatever the number of workers.

    Args:
        workers: threads (or processes) that prepare batches ahead; up to 1 means none.
        use_multiprocessing: use processes instead of threads; the data set must pickle. Each
            process has a copy from the beginning of the epoch.
        max_queue_size: batches prepared ahead at most.

    >>> import numpy as np
    >>> class Squares(PyDataset):
    ...     def __len__(self):
    ...         return 3
    ...
    ...     def __getitem__(self, index):
    ...         x = np.full((2, 1), float(index))
    ...         return x, x**2
    >>> Squares().num_batches
    3
    """

    def __init__(
        self, workers: int = 1, use_multiprocessing: bool = False, max_queue_size: int = 10
    ) -> None:
        self.workers = workers
        self.use_multiprocessing = use_multiprocessing
        self.max_queue_size = max_queue_size

    workers = 1
    use_multiprocessing = False
    max_queue_size = 10

    def __getitem__(self, index: int) -> Any:
        """The batch of this number.

        Raises:
            NotImplementedError: unless a subclass defines it.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define __getitem__().")

    def __iter__(self) -> Iterator[Any]:
        """The batches of an epoch, in order; without an end if nothing says how many there are."""
        count = self.num_batches
        indices = itertools.count() if count is None else iter(range(count))
        return (self[index] for index in indices)

    @property
    def num_batches(self) -> int | None:
        """The number of batches in an epoch; None for a data set without an end."""
        length = getattr(self, "__len__", None)
        return None if length is None else int(length())

    def on_epoch_begin(self) -> None:
        """Called before each epoch."""

    def on_epoch_end(self) -> None:
        """Called after each epoch."""


Sequence = PyDataset


def ordered_indices(dataset: PyDataset, epoch: int, shuffle: bool) -> Iterator[int]:
    """The numbers of the batches of an epoch, in the order in which they come."""
    count = dataset.num_batches
    if count is None:
        yield from itertools.count()
        return
    order = list(range(count))
    if shuffle:
        random.Random(epoch).shuffle(order)
    yield from order


def fetch(dataset: PyDataset, indices: Iterator[int]) -> Iterator[Any]:
    """The batches of these numbers, prepared ahead by the data set's workers."""
    parallel = dataset.workers > 1 or (dataset.workers > 0 and dataset.use_multiprocessing)
    if not parallel:
        for index in indices:
            yield dataset[index]
        return
    pool: Executor
    if dataset.use_multiprocessing:
        pool = ProcessPoolExecutor(dataset.workers, initializer=_keep, initargs=(dataset,))
        get: Callable[[int], Any] = _get
    else:
        pool = ThreadPoolExecutor(dataset.workers, thread_name_prefix="picodl-data")
        get = dataset.__getitem__
    ahead: deque[Any] = deque()
    try:
        for index in indices:
            ahead.append(pool.submit(get, index))
            if len(ahead) >= max(1, dataset.max_queue_size):
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


_kept: list[PyDataset] = []  # in a worker process: the data set it works for


def _keep(dataset: PyDataset) -> None:
    _kept[:] = [dataset]


def _get(index: int) -> Any:
    return _kept[0][index]
