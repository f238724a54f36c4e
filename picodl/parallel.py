"""Large kernels in blocks over a few threads, with BLAS held to one thread meanwhile.

numpy releases the GIL inside its loops and products, so threads do speed kernels up. What makes it
safe to use everywhere: blocks depend on shapes alone and partial sums are added in block order, so
that no number changes with the number of cores.
"""

from __future__ import annotations

import atexit
import contextvars
import ctypes
import itertools
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from queue import SimpleQueue
from typing import Any, TypeVar

from picodl.blas import libraries
from picodl.config import thread
from picodl.memory import keep_freed_memory
from picodl.typing import Array

T = TypeVar("T")

GRAIN = 300.0  # microseconds of work; a round trip to another thread costs 40 to 150
# Elements of a part: smaller ones would stay in the cache, but a thread needs the interpreter's
# lock after each numpy call and may have to wait for it: calls had better be few and long.
PART = 1 << 19


# -------------------------------------------------------------------- blocks


def blocks_of(n: int, size: int) -> list[slice]:
    """The range 0..n cut into slices of `size`, the last one shorter.

    >>> blocks_of(5, 2)
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    size = max(1, int(size))
    return [slice(i, min(i + size, n)) for i in range(0, n, size)]


def shares_of(n: int, most: int = 8) -> list[slice]:
    """The range 0..n cut into at most `most` slices that differ by one at most.

    >>> shares_of(5, 2)
    [slice(0, 3, None), slice(3, 5, None)]
    """
    count = max(1, min(n, most))
    edges = [-(-n * i // count) for i in range(count + 1)]
    return [slice(a, b) for a, b in itertools.pairwise(edges)]


def parts_of(n: int, each: int) -> list[slice]:
    """The range 0..n in equal parts for a kernel of several numpy calls, an even number if many.

    Args:
        n: length of the range; none is cut for 0.
        each: elements of the arrays that one step of the range stands for.

    >>> len(parts_of(64, 1 << 10)), len(parts_of(64, 1 << 14)), len(parts_of(64, 5 << 13))
    (1, 2, 6)
    """
    count = -(-n * each // PART)
    return shares_of(n, count + count % 2 if count > 1 else 1) if n else []


def map_blocks(
    function: Callable[[Any], T], blocks: Sequence[Any], work: float = float("inf")
) -> list[T]:
    """[function(b) for b in blocks], on a few threads where that pays.

    It runs in the calling thread alone when there is little work or one processor, inside another
    map_blocks, and while the interpreter closes. The function works on plain arrays; each call
    should keep numpy busy for 25 microseconds or more, or the threads wait for each other.

    Args:
        function: takes a block; no two blocks may write to the same place.
        blocks: what it is called with, chosen from shapes alone.
        work: microseconds that all blocks together take on one thread, roughly. Defaults to many.

    Returns:
        The results in the order of the blocks.

    Raises:
        Exception: what the first block that failed raised, after all blocks ended.
    """
    if len(blocks) < 2 or work < GRAIN or thread.parallel or _pool.closing or threads() < 2:
        return [function(block) for block in blocks]
    with blas_single_thread():
        return _pool.run(function, blocks)


def sum_blocks(
    function: Callable[[Any], Array], blocks: Sequence[Any], work: float = float("inf")
) -> Array:
    """The sum of function(b) over the blocks, added up in their order.

    Args: as for `map_blocks`; the function returns an array of its own.
    """
    parts = map_blocks(function, blocks, work)
    total = parts[0]
    for part in parts[1:]:
        total += part
    return total


# -------------------------------------------------------------------- the pool


def threads() -> int:
    """How many threads blocks are spread over, the calling one included."""
    return _pool.size


def set_threads(number: int | None) -> None:
    """Spread blocks over this many threads; None for one per processor. Results do not change.

    Raises:
        ValueError: for less than one.
    """
    if number is not None and number < 1:
        raise ValueError(f"The number of threads must be at least 1; received {number}.")
    _pool.resize(_processors() if number is None else int(number))


def _processors() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS and Windows
        return os.cpu_count() or 1


class _Job:
    """The blocks of one map_blocks, in neighbouring runs for each thread.

    A thread takes its own run from the front and then helps the others from the back. Arrays cut
    in the same way meet the same thread again: what one kernel wrote is in the cache of the core
    that the next one reads it on.
    """

    def __init__(self, function: Callable[[Any], Any], blocks: Sequence[Any], threads: int) -> None:
        self.function = function
        places = list(enumerate(blocks))
        self.runs = [deque(places[run]) for run in shares_of(len(places), threads)]
        self.results: list[Any] = [None] * len(blocks)
        self.errors: list[tuple[int, BaseException]] = []
        self.left = len(blocks)
        self.lock = threading.Lock()
        self.done = threading.Lock()
        self.done.acquire()

    def take(self, number: int) -> tuple[int, Any] | None:
        """The next block for a thread, with its place; None if there is none left."""
        try:
            return self.runs[number].popleft()
        except IndexError:
            pass
        for run in self.runs:
            try:
                return run.pop()
            except IndexError:
                continue
        return None

    def work(self, number: int) -> None:
        before, thread.parallel = thread.parallel, True
        try:
            while (taken := self.take(number)) is not None:
                place, block = taken
                try:
                    self.results[place] = self.function(block)
                except BaseException as error:
                    self.errors.append((place, error))
                with self.lock:
                    self.left -= 1
                    if self.left == 0:
                        self.done.release()
        finally:
            thread.parallel = before


class _Pool:
    """Threads made at first use, which wait for jobs."""

    def __init__(self) -> None:
        self.size = _processors()
        self.closing = False
        self.forget()

    def forget(self) -> None:
        """Have no threads: at the start, and in a forked child, where the parent's do not live."""
        self.lock = threading.Lock()
        self.members: list[tuple[threading.Thread, SimpleQueue[Any]]] = []

    def run(self, function: Callable[[Any], Any], blocks: Sequence[Any]) -> list[Any]:
        job = _Job(function, blocks, self.size)
        if len(self.members) < self.size - 1:
            self._hire()
        for number, (_, queue) in zip(range(1, len(job.runs)), self.members, strict=False):
            # a context of its own for each: np.errstate lives there
            queue.put((contextvars.copy_context(), job, number))
        job.work(0)
        job.done.acquire()
        if job.errors:
            raise min(job.errors, key=lambda found: found[0])[1]
        return job.results

    def _hire(self) -> None:
        with self.lock:
            while len(self.members) < self.size - 1:
                queue: SimpleQueue[Any] = SimpleQueue()
                member = threading.Thread(target=_serve, args=(queue,), name="picodl", daemon=True)
                self.members.append((member, queue))
                member.start()

    def resize(self, size: int) -> None:
        self.dismiss()
        self.size = size

    def dismiss(self) -> None:
        """Let the threads go; the next job makes new ones."""
        with self.lock:
            for _, queue in self.members:
                queue.put(None)
            for member, _ in self.members:
                member.join()
            self.members = []

    def close(self) -> None:
        """From here on everything runs in the calling thread: daemon threads soon freeze."""
        self.closing = True
        self.dismiss()


def _serve(queue: SimpleQueue[Any]) -> None:
    while (item := queue.get()) is not None:
        context, job, number = item
        context.run(job.work, number)
        del item, context, job  # a waiting thread keeps no arrays alive


_pool = _Pool()
atexit.register(_pool.close)


# -------------------------------------------------------------------- BLAS on one thread


class _BlasGuard:
    """The first to enter, in any thread, sets BLAS to one thread; the last to leave restores it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.depth = 0
        self.libraries: list[tuple[Any, Any]] | None = None
        self.saved: list[int] = []

    def __enter__(self) -> None:
        with self.lock:
            if self.depth == 0:
                if self.libraries is None:
                    self.libraries = list(_find_blas())
                self.saved = [get() for get, _ in self.libraries]
                self._set([1] * len(self.saved))
            self.depth += 1

    def __exit__(self, *error: object) -> None:
        with self.lock:
            self.depth -= 1
            if self.depth == 0:
                self._set(self.saved)

    def _set(self, numbers: list[int]) -> None:
        for (get, put), number in zip(self.libraries or (), numbers, strict=True):
            if get() != number:
                put(number)


def blas_single_thread() -> _BlasGuard:
    """A with block in which BLAS uses one thread; for all threads, counted, about 3 us.

    Small products are faster on one thread, and blocks spread over threads must not each bring
    threads of their own. Without a known BLAS the block changes nothing.
    """
    return _guard


def blas_is_single() -> bool:
    """Whether BLAS is held to one thread at this moment."""
    return _guard.depth > 0


_BLAS_FUNCTIONS = [
    (f"{prefix}openblas_get_num_threads{suffix}", f"{prefix}openblas_set_num_threads{suffix}")
    for prefix in ("scipy_", "")
    for suffix in ("64_", "_64", "")
] + [
    ("MKL_Get_Max_Threads", "MKL_Set_Num_Threads"),
    ("bli_thread_get_num_threads", "bli_thread_set_num_threads"),
]


def _find_blas() -> Iterable[tuple[Any, Any]]:
    """The get and set functions of each BLAS in this process; PyDLL because they take no time."""
    for library in libraries():
        try:
            functions = ctypes.PyDLL(library["filepath"])
        except OSError:
            continue
        for get, put in _BLAS_FUNCTIONS:
            if hasattr(functions, get) and hasattr(functions, put):
                yield getattr(functions, get), getattr(functions, put)
                break


_guard = _BlasGuard()
keep_freed_memory()


def _after_fork() -> None:
    _pool.forget()
    _guard.lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
