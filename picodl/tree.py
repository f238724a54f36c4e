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
        parts = {
            k: map_structure(func, *(s[k] for s in structures), none_is_leaf=none_is_leaf)
            for k in first
        }
        return _same_dict(first, parts)
    if isinstance(first, (list, tuple)):
        groups = zip(*structures, strict=True)
        return _rebuild(
            first, [map_structure(func, *group, none_is_leaf=none_is_leaf) for group in groups]
        )
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


def map_structure_up_to(shallow_structure: Any, func: Callable[..., Any], *structures: Any) -> Any:
    """As map_structure, but only as deep as a shallow structure goes: what lies below is a leaf.

    >>> map_structure_up_to([0, 0], len, [[1, 2], [3]])
    [2, 1]
    """
    for other in structures:
        if is_nested(shallow_structure):
            _same_kind(shallow_structure, other)
    if isinstance(shallow_structure, dict):
        parts = {
            key: map_structure_up_to(part, func, *(s[key] for s in structures))
            for key, part in shallow_structure.items()
        }
        return _same_dict(shallow_structure, parts)
    if isinstance(shallow_structure, (list, tuple)):
        groups = zip(shallow_structure, *structures, strict=True)
        return _rebuild(
            shallow_structure, [map_structure_up_to(part, func, *rest) for part, *rest in groups]
        )
    return func(*structures)


def map_shape_structure(func: Callable[..., Any], structure: Any) -> Any:
    """The structure with func applied to its shapes: lists or tuples of sizes (or None).

    >>> map_shape_structure(len, {"x": (None, 3), "y": [(2,), ()]})
    {'x': 2, 'y': [1, 0]}
    """
    if isinstance(structure, (list, tuple)) and all(n is None or _is_size(n) for n in structure):
        return func(tuple(structure))
    if isinstance(structure, dict):
        parts = {key: map_shape_structure(func, part) for key, part in structure.items()}
        return _same_dict(structure, parts)
    if isinstance(structure, (list, tuple)):
        return _rebuild(structure, [map_shape_structure(func, part) for part in structure])
    raise ValueError(f"Expected a structure of shapes, but found {structure!r} in it.")


class MAP_TO_NONE:
    """What a function given to `traverse` returns to put None in a place."""


def traverse(func: Callable[[Any], Any], structure: Any, top_down: bool = True) -> Any:
    """The structure with each part, the whole included, replaced by func of it.

    Args:
        func: gives the replacement, MAP_TO_NONE for None, or None to keep the part as it is (and,
            from the top down, to go on inside it).
        structure: the structure.
        top_down: the whole before its parts. False: the parts first.

    >>> traverse(lambda x: sum(x) if isinstance(x, list) else None, {"a": [1, 2], "b": 3})
    {'a': 3, 'b': 3}
    """
    if top_down:
        new = func(structure)
        if new is not None:
            return None if new is MAP_TO_NONE else new
    if isinstance(structure, dict):
        parts = {key: traverse(func, part, top_down) for key, part in structure.items()}
        structure = _same_dict(structure, parts)
    elif isinstance(structure, (list, tuple)):
        structure = _rebuild(structure, [traverse(func, part, top_down) for part in structure])
    if top_down:
        return structure
    new = func(structure)
    if new is None:
        return structure
    return None if new is MAP_TO_NONE else new


def lists_to_tuples(structure: Any) -> Any:
    """The structure with tuples in the place of lists.

    >>> lists_to_tuples([1, {"a": [2, [3]]}])
    (1, {'a': (2, (3,))})
    """
    if isinstance(structure, dict):
        return _same_dict(structure, {k: lists_to_tuples(part) for k, part in structure.items()})
    if isinstance(structure, list):
        return tuple(lists_to_tuples(part) for part in structure)
    if isinstance(structure, tuple):
        return _rebuild(structure, [lists_to_tuples(part) for part in structure])
    return structure


def assert_same_structure(a: Any, b: Any, check_types: bool | None = None) -> None:
    """Check that both have the same nesting, lengths and keys.

    Args:
        a, b: the structures.
        check_types: whether a list and a tuple count as different. Defaults to no.

    Raises:
        ValueError: if they differ.
    """
    _same_kind(a, b)
    if check_types and is_nested(a) and type(a) is not type(b):
        raise ValueError(
            f"The structures differ: {type(a).__name__} stands where {type(b).__name__} does."
        )
    if isinstance(a, dict):
        for key in a:
            assert_same_structure(a[key], b[key], check_types)
    elif isinstance(a, (list, tuple)):
        for x, y in zip(a, b, strict=True):
            assert_same_structure(x, y, check_types)


def assert_same_paths(a: Any, b: Any) -> None:
    """Check that the same keys and indices lead to the leaves of both.

    Raises:
        ValueError: if they differ.
    """
    first = {path for path, _ in flatten_with_path(a)}
    second = {path for path, _ in flatten_with_path(b)}
    if first != second:
        only = [sorted(map(str, part)) for part in (first - second, second - first)]
        raise ValueError(
            f"The structures differ: only in one {only[0]}, only in the other {only[1]}."
        )


def _is_size(n: Any) -> bool:
    return hasattr(n, "__index__") and not isinstance(n, bool)


def _same_dict(like: dict[Any, Any], parts: dict[Any, Any]) -> Any:
    """The parts in a dict of the same kind."""
    if type(like) is dict:
        return parts
    copy = like.copy()
    copy.update(parts)
    return copy


def _pack(structure: Any, leaves: Any) -> Any:
    if isinstance(structure, dict):
        packed = {key: _pack(structure[key], leaves) for key in _keys(structure)}
        return _same_dict(structure, {key: packed[key] for key in structure})
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
