"""Run an iterator ahead in a thread, so that slow sources and training overlap."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")
_END = object()


def prefetch(iterable: Iterable[T], size: int = 2) -> Iterator[T]:
    """The same items in the same order, up to `size` of them made ahead by a thread.

    It pays where the items come from a disk or a network; numpy work that holds the interpreter
    gains nothing. An exception of the iterable is raised where its item was due, and the thread
    ends when the iteration is given up. Of an iterator, up to `size` items more than were used may
    be consumed.

    Args:
        iterable: for instance a generator of batches.
        size: how many items may wait.

    Raises:
        ValueError: unless size is at least 1.

    >>> list(prefetch(range(3)))
    [0, 1, 2]
    """
    if size < 1:
        raise ValueError(f"prefetch: size must be at least 1; received {size!r}.")
    return _items(iterable, size)


def _items(iterable: Iterable[T], size: int) -> Iterator[T]:
    ready: queue.Queue[Any] = queue.Queue(size)
    stopped = threading.Event()

    def put(item: Any) -> bool:
        while not stopped.is_set():
            try:
                ready.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def work() -> None:
        try:
            for item in iterable:
                if not put((item, None)):
                    return
            put((_END, None))
        except BaseException as error:
            put((_END, error))

    worker = threading.Thread(target=work, name="picodl-prefetch", daemon=True)
    worker.start()
    try:
        while True:
            item, error = ready.get()
            if error is not None:
                raise error
            if item is _END:
                return
            yield item
    finally:
        stopped.set()
        worker.join(timeout=5)  # a source that never answers is left behind
