"""Freed memory stays in the process."""

import sys

from picodl.memory import keep_freed_memory


def test_asking_twice_is_harmless_and_says_whether_it_works():
    assert keep_freed_memory() == keep_freed_memory()
    if sys.platform == "win32":
        assert not keep_freed_memory()
