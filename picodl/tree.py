"""Nested lists, tuples and dicts: take them apart, map over them, put them together again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def is_nested(structure: Any) -> bool:
    """Whether it is a list, a tuple or a dict."""
    return isinstance(structure, (list, tuple, dict))


def flatten(structure: Any) -> list[Any]:
    """The leaves in order; dicts in the order of their sorted keys. None is a leaf.

    >>> flatten({"b": [1, 2], "a": (3, None)})
    [3, None, 1, 2]
    """
    if isinstance(structure, dict):
        return [leaf for key in _keys(structure) for leaf in flatten(structure[key])]
    if isinstance(structure, (list, tuple)):
        return [leaf for part in structure for leaf in flatten(part)]
    return [structure]


def flatten_with_path(structure: Any, path: tuple[Any, ...] = ()) -> list[tuple[tuple, Any]]:
    """The leaves, each with the keys and indices that lead to it.

    >>> flatten_with_path({"a": [1, 2]})
    [(('a', 0), 1), (('a', 1), 2)]
    """
    if isinstance(structure, dict):
        parts: Iterable[tuple[Any, Any]] = ((key, structure[key]) for key in _keys(structure))
    elif isinstance(structure, (list, tuple)):
        parts = enumerate(structure)
    else:
        return [(path, structure)]
    return [leaf for key, part in parts for leaf in flatten_with_path(part, (*path, key))]


def map_structure(func: Callable[..., Any], *structures: Any, none_is_leaf: bool = True) -> Any:
    """The same structure with func applied to the leaves that stand in the same place.

    Raises:
        ValueError: if the structures differ.

    >>> map_structure(lambda a, b: a + b, {"x": [1, 2]}, {"x": [10, 20]})
    {'x': [11, 22]}
    """
    first = structures[0]
    for other in structures[1:]:
        _same_kind(first, other)
    if isinstance(first, dict):
        return {
            k: map_structure(func, *(s[k] for s in structures), none_is_leaf=none_is_leaf)
            for k in first
        }
    if isinstance(first, (list, tuple)):
        parts = [
            map_structure(func, *group, none_is_leaf=none_is_leaf)
            for group in zip(*structures, strict=True)
        ]
        return _rebuild(first, parts)
    if first is None and not none_is_leaf:
        return None
    return func(*structures)


def pack_sequence_as(structure: Any, flat_sequence: Iterable[Any]) -> Any:
    """The leaves of flat_sequence arranged as in structure: the inverse of flatten.

    Raises:
        ValueError: if there are more or fewer leaves than places.

    >>> pack_sequence_as({"b": 0, "a": [0, 0]}, "xyz")
    {'b': 'z', 'a': ['x', 'y']}
    """
    leaves = list(flat_sequence)
    places = len(flatten(structure))
    if places != len(leaves):
        raise ValueError(f"The structure has {places} leaves, but received {len(leaves)}.")
    return _pack(structure, iter(leaves))


def assert_same_structure(a: Any, b: Any) -> None:
    """Check that both have the same nesting, lengths and keys.

    Raises:
        ValueError: if they differ.
    """
    _same_kind(a, b)
    if isinstance(a, dict):
        for key in a:
            assert_same_structure(a[key], b[key])
    elif isinstance(a, (list, tuple)):
        for x, y in zip(a, b, strict=True):
            assert_same_structure(x, y)


def _pack(structure: Any, leaves: Any) -> Any:
    if isinstance(structure, dict):
        packed = {key: _pack(structure[key], leaves) for key in _keys(structure)}
        return {key: packed[key] for key in structure}
    if isinstance(structure, (list, tuple)):
        return _rebuild(structure, [_pack(part, leaves) for part in structure])
    return next(leaves)


def _keys(structure: dict[Any, Any]) -> list[Any]:
    try:
        return sorted(structure)
    except TypeError:  # keys of several kinds have no order
        return list(structure)


def _rebuild(like: Any, parts: list[Any]) -> Any:
    if isinstance(like, list):
        return parts
    if hasattr(like, "_fields"):  # a named tuple
        return type(like)(*parts)
    return tuple(parts)


def _same_kind(a: Any, b: Any) -> None:
    if is_nested(a) != is_nested(b) or isinstance(a, dict) != isinstance(b, dict):
        raise ValueError(
            f"The structures differ: {type(a).__name__} stands where {type(b).__name__} does."
        )
    if isinstance(a, dict) and set(a) != set(b):
        raise ValueError(f"The structures differ: keys {sorted(a)} against {sorted(b)}.")
    if is_nested(a) and len(a) != len(b):
        raise ValueError(f"The structures differ: {len(a)} parts against {len(b)}.")
