"""Names that are given automatically: dense, dense_1, ...; and scopes that prefix paths."""

from __future__ import annotations

import contextlib
import difflib
import re
import threading
from collections.abc import Iterable, Iterator

from picodl.config import thread

_counters: dict[str, int] = {}
_lock = threading.Lock()


def to_snake_case(name: str) -> str:
    """A class name as Keras writes it in lower case.

    >>> to_snake_case("Conv1DTranspose"), to_snake_case("PReLU")
    ('conv1d_transpose', 'p_re_lu')
    """
    name = re.sub(r"\W+", "", name)
    name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()


def auto_name(prefix: str) -> str:
    """The prefix itself at its first use, then prefix_1, prefix_2, ..."""
    number = get_uid(prefix) - 1
    return prefix if number == 0 else f"{prefix}_{number}"


def get_uid(prefix: str = "") -> int:
    """How often the prefix has been asked for, this time included."""
    with _lock:
        _counters[prefix] = _counters.get(prefix, 0) + 1
        return _counters[prefix]


def reset_names() -> None:
    """Start all automatic names again."""
    with _lock:
        _counters.clear()


@contextlib.contextmanager
def name_scope(name: str) -> Iterator[None]:
    """Prefix the paths of the variables made inside the block with a name."""
    before = thread.names
    thread.names = (*before, name)
    try:
        yield
    finally:
        thread.names = before


def scoped(name: str) -> str:
    """The name with the scopes in force before it, joined by slashes."""
    return "/".join((*thread.names, name))


def suggest(name: object, known: Iterable[str]) -> str:
    """A hint with the nearest known name, or "" when none is near.

    >>> suggest("sotfmax", ["relu", "softmax"])
    ' Did you mean "softmax"?'
    """
    names = list(known)
    lower = {n.lower(): n for n in names}
    near = difflib.get_close_matches(str(name).lower(), lower, n=1, cutoff=0.6)
    return f' Did you mean "{lower[near[0]]}"?' if near else ""
