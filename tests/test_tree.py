"""Nested structures: taken apart, mapped over, compared, put together."""

from __future__ import annotations

from collections import OrderedDict, namedtuple

import pytest

from picodl import tree

Point = namedtuple("Point", "x y")
NEST = {"b": [1, (2, None)], "a": Point(3, {"k": 4})}


def test_flatten_and_pack_are_inverse():
    leaves = tree.flatten(NEST)
    assert leaves == [3, 4, 1, 2, None]
    assert tree.pack_sequence_as(NEST, leaves) == NEST
    assert tree.flatten(5) == [5]
    with pytest.raises(ValueError, match="5 leaves, but received 4"):
        tree.pack_sequence_as(NEST, leaves[:-1])


def test_paths():
    paths = [path for path, _ in tree.flatten_with_path(NEST)]
    assert paths == [("a", 0), ("a", 1, "k"), ("b", 0), ("b", 1, 0), ("b", 1, 1)]
    tree.assert_same_paths([1, (2, 3)], (4, [5, 6]))
    with pytest.raises(ValueError, match=r"\('a',\)"):
        tree.assert_same_paths({"a": 1}, {"b": 1})


def test_map_structure_keeps_kinds():
    doubled = tree.map_structure(lambda x: None if x is None else 2 * x, NEST)
    assert doubled == {"b": [2, (4, None)], "a": Point(6, {"k": 8})}
    assert isinstance(doubled["a"], Point)
    assert tree.map_structure(lambda x: 2 * x, [1, None], none_is_leaf=False) == [2, None]
    ordered = OrderedDict(z=1, a=2)
    mapped = tree.map_structure(lambda x, y: x + y, ordered, {"a": 10, "z": 20})
    assert type(mapped) is OrderedDict
    assert list(mapped.items()) == [("z", 21), ("a", 12)]
    with pytest.raises(ValueError, match="2 parts against 1"):
        tree.map_structure(lambda x, y: x, [1, 2], [1])
    with pytest.raises(ValueError, match="keys"):
        tree.map_structure(lambda x, y: x, {"a": 1}, {"b": 1})


def test_map_structure_up_to():
    assert tree.map_structure_up_to({"x": 0}, len, {"x": [1, 2, 3]}) == {"x": 3}
    assert tree.map_structure_up_to((0, [0]), lambda a, b: (a, b), ([1], [2]), (3, [[4]])) == (
        ([1], 3),
        [(2, [4])],
    )


def test_map_shape_structure():
    shapes = {"a": (None, 3), "b": [(2,), [4, 5]]}
    assert tree.map_shape_structure(lambda s: s[1:], shapes) == {"a": (3,), "b": [(), (5,)]}
    with pytest.raises(ValueError, match="structure of shapes"):
        tree.map_shape_structure(len, ["a"])


def test_traverse_in_both_directions():
    seen = []
    tree.traverse(lambda x: seen.append(x), [1, [2]], top_down=False)
    assert seen == [1, 2, [2], [1, [2]]]
    found = tree.traverse(lambda x: tree.MAP_TO_NONE if x == 1 else None, {"a": 1, "b": (1, 2)})
    assert found == {"a": None, "b": (None, 2)}
    joined = tree.traverse(
        lambda x: sum(x) if isinstance(x, list) else None, [1, [2, [3]]], top_down=False
    )
    assert joined == 6


def test_structures_are_compared():
    tree.assert_same_structure([1, {"a": 2}], [3, {"a": 4}])
    tree.assert_same_structure([1], (1,))
    with pytest.raises(ValueError, match="list stands where tuple"):
        tree.assert_same_structure([1], (1,), check_types=True)
    with pytest.raises(ValueError, match="differ"):
        tree.assert_same_structure([1], 1)


def test_lists_to_tuples():
    assert tree.lists_to_tuples([1, Point([2], 3)]) == (1, Point((2,), 3))
    assert tree.is_nested([]) and tree.is_nested({}) and not tree.is_nested("ab")
