"""The variables of a model as nested dicts."""

from __future__ import annotations

import numpy as np
import pytest

from picodl import Input, Sequential, Tensor, layers

X = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")


def _model():
    model = Sequential(
        [Input((3,)), layers.Dense(2, name="d"), layers.BatchNormalization(name="b")]
    )
    model.name = "s"
    model.compile("adam", "mse")
    model.fit(X, np.ones((4, 2)), verbose=0)
    return model


def test_the_tree_follows_the_paths_of_keras():
    model = _model()
    found = model.get_state_tree("numpy_array")
    kinds = ["trainable", "non_trainable", "optimizer", "metrics"]
    assert list(found) == [f"{kind}_variables" for kind in kinds]
    (inside,) = found["trainable_variables"].values()
    assert list(inside) == ["d", "b"] and list(inside["d"]) == ["kernel", "bias"]
    (states,) = found["non_trainable_variables"].values()
    assert list(states["b"]) == ["moving_mean", "moving_variance"]
    (slots,) = found["optimizer_variables"].values()
    assert list(slots)[:2] == ["iteration", "learning_rate"]
    inside["d"]["kernel"][...] = 7  # a copy
    assert not (model.layers[0].kernel.data == 7).any()
    assert isinstance(next(iter(_leaves(model.get_state_tree()))), Tensor)


def _leaves(tree):
    for value in tree.values():
        yield from _leaves(value) if isinstance(value, dict) else [value]


def test_a_tree_puts_the_state_back():
    model = _model()
    saved = model.get_state_tree()
    before = model.get_weights()
    model.fit(X, np.zeros((4, 2)), verbose=0)
    model.set_state_tree(saved)
    for a, b in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert int(model.optimizer.iterations) == 1
    model.fit(X, np.zeros((4, 2)), verbose=0)  # the optimizer still moves the weights
    assert not np.array_equal(before[0], model.get_weights()[0])


def test_what_does_not_fit_changes_nothing():
    model = _model()
    tree = model.get_state_tree("numpy_array")
    ((name, inside),) = tree["trainable_variables"].items()
    inside["d"]["kernel"][...] = 5
    inside["b"]["gamma"] = np.ones(3)
    with pytest.raises(ValueError, match=r"gamma' has shape \(2,\), but received shape \(3,\)"):
        model.set_state_tree(tree)
    assert not (model.layers[0].kernel.data == 5).any()
    with pytest.raises(ValueError, match="has no variable"):
        model.set_state_tree({"trainable_variables": {name: {"e": {"kernel": np.ones(1)}}}})
    with pytest.raises(ValueError, match="unknown kind 'weights'"):
        model.set_state_tree({"weights": {}})
    with pytest.raises(ValueError, match="value_format must be"):
        model.get_state_tree("list")
