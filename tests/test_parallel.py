from __future__ import annotations

import subprocess
import sys
import threading

import numpy as np
import pytest

from picodl import parallel
from picodl.config import thread


@pytest.fixture(params=[1, 2, 4])
def threads(request):
    parallel.set_threads(request.param)
    yield request.param
    parallel.set_threads(None)


def test_blocks_cover_the_range_once():
    for n in (0, 1, 5, 16):
        for size in (1, 2, 7):
            for cut in (parallel.blocks_of, parallel.shares_of):
                covered = [i for block in cut(n, size) for i in range(n)[block]]
                assert covered == list(range(n))
    assert len(parallel.shares_of(100, 3)) == 3


def test_results_come_in_the_order_of_the_blocks(threads):
    assert parallel.map_blocks(lambda b: b * b, list(range(50))) == [b * b for b in range(50)]


def test_sums_do_not_depend_on_the_number_of_threads():
    x = np.random.default_rng(0).normal(size=(64, 1000)).astype(np.float32)
    sums = []
    for n in (1, 2, 3):
        parallel.set_threads(n)
        sums.append(parallel.sum_blocks(lambda b: x[b].sum(0), parallel.blocks_of(64, 5)))
    parallel.set_threads(None)
    assert all(np.array_equal(s, sums[0]) for s in sums)


def test_little_work_stays_in_the_calling_thread(threads):
    names = parallel.map_blocks(lambda b: threading.current_thread().name, range(8), work=1.0)
    assert set(names) == {threading.current_thread().name}


def test_map_blocks_inside_map_blocks_runs_inline(threads):
    def outer(b):
        return sum(parallel.map_blocks(lambda c: b * c, range(5)))

    assert parallel.map_blocks(outer, range(8)) == [10 * b for b in range(8)]
    assert not thread.parallel


def test_the_first_failing_block_is_reported_after_all_ended(threads):
    ended = []

    def work(b):
        ended.append(b)
        if b in (3, 5):
            raise ValueError(f"block {b}")

    with pytest.raises(ValueError, match="block 3"):
        parallel.map_blocks(work, range(8))
    if threads > 1:
        assert sorted(ended) == list(range(8))
    assert parallel.map_blocks(lambda b: b, range(4)) == [0, 1, 2, 3]


def test_error_state_reaches_the_threads(threads):
    with np.errstate(divide="ignore"):
        parallel.map_blocks(lambda b: np.log(np.zeros(1000)), range(8))


def test_many_callers_at_once():
    parallel.set_threads(3)
    found = []

    def caller(k):
        found.append(parallel.map_blocks(lambda b: b + k, range(20)) == [b + k for b in range(20)])

    callers = [threading.Thread(target=caller, args=(k,)) for k in range(8)]
    for c in callers:
        c.start()
    for c in callers:
        c.join()
    parallel.set_threads(None)
    assert found == [True] * 8


def test_set_threads_refuses_less_than_one():
    with pytest.raises(ValueError, match="at least 1; received 0"):
        parallel.set_threads(0)


def blas_threads():
    guard = parallel.blas_single_thread()
    with guard:  # finds the libraries
        pass
    return [get() for get, _ in guard.libraries]


def test_blas_guard_counts_and_restores():
    before = blas_threads()
    guard = parallel.blas_single_thread()
    with guard:
        with guard:
            assert set(blas_threads()) <= {1}
        assert {get() for get, _ in guard.libraries} <= {1}
    with pytest.raises(KeyError), guard:
        raise KeyError
    assert [get() for get, _ in guard.libraries] == before


def test_blas_guard_held_by_two_threads_that_overlap():
    guard = parallel.blas_single_thread()
    before = blas_threads()
    inside, leave = threading.Event(), threading.Event()

    def other():
        with guard:
            inside.set()
            leave.wait()

    t = threading.Thread(target=other)
    with guard:
        t.start()
        inside.wait()
    assert {get() for get, _ in guard.libraries} <= {1}  # the other thread is still inside
    leave.set()
    t.join()
    assert [get() for get, _ in guard.libraries] == before


@pytest.mark.parametrize(
    "script",
    [
        # a forked child makes a pool of its own
        """
        import os
        assert parallel.map_blocks(str, range(4)) == list("0123")
        child = os.fork()
        if child == 0:
            os._exit(parallel.map_blocks(str, range(4)) != list("0123"))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        """,
        # a kernel called while the interpreter closes runs inline
        """
        import atexit
        parallel.map_blocks(str, range(4))
        parallel._pool.close()
        assert parallel.map_blocks(str, range(4)) == list("0123")
        """,
        # without threadpoolctl the guard changes nothing
        """
        import sys
        sys.modules["threadpoolctl"] = None
        with parallel.blas_single_thread():
            pass
        """,
    ],
    ids=["fork", "closing", "no threadpoolctl"],
)
def test_in_a_process_of_its_own(script):
    import textwrap

    code = "from picodl import parallel\nparallel.set_threads(3)\n" + textwrap.dedent(script)
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stderr
