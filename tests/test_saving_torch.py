"""PyTorch state dicts given as arrays: layouts by their definitions, and what does not fit."""

from __future__ import annotations

import numpy as np
import pytest

import picodl as P
from picodl import layers, saving

RNG = np.random.default_rng(0)


def arrays(**shapes):
    return {name.replace("__", "."): RNG.normal(size=shape) for name, shape in shapes.items()}


def test_dense_after_flatten_sees_channels_first():
    model = P.Sequential([P.Input((2, 3, 4)), layers.Flatten(), layers.Dense(5)])
    state = arrays(fc__weight=(5, 24), fc__bias=(5,))
    saving.load_torch_state_dict(model, state)
    x = RNG.normal(size=(2, 2, 3, 4)).astype("float32")
    want = x.transpose(0, 3, 1, 2).reshape(2, 24) @ state["fc.weight"].T + state["fc.bias"]
    np.testing.assert_allclose(model.predict(x, verbose=0), want, rtol=1e-5, atol=1e-5)


def test_layers_are_paired_by_name_where_the_order_differs():
    model = P.Sequential([P.Input((3,)), layers.Dense(3, name="a"), layers.Dense(3, name="b")])
    state = arrays(last__weight=(3, 3), last__bias=(3,), first__weight=(3, 3), first__bias=(3,))
    saving.load_torch_state_dict(model, state, names={"first": "a", "last": "b"})
    np.testing.assert_allclose(model.weights[0].data, state["first.weight"].T, rtol=1e-6)
    np.testing.assert_allclose(model.weights[3].data, state["last.bias"], rtol=1e-6)


@pytest.mark.parametrize(
    ("state", "options", "message"),
    [
        (arrays(a__weight=(4, 3), a__bias=(4,)), {}, r"kernel has shape \(3, 2\).*\(3, 4\)"),
        (arrays(a__weight=(2, 3)), {}, "no bias"),
        (arrays(a__weight=(2, 3), a__bias=(2,), a__more=(2,)), {}, "more would be left over"),
        (arrays(a__weight=(2, 3), a__bias=(2,), b__weight=(2,)), {}, "2 modules.*1 layers"),
        (arrays(a__bias=(2,)), {}, "does not fit Dense"),
        (arrays(a__weight=(2, 3), a__bias=(2,)), {"names": {"z": "a"}}, "names pairs 'z'"),
    ],
)
def test_what_does_not_fit_is_named_and_changes_nothing(state, options, message):
    model = P.Sequential([P.Input((3,)), layers.Dense(2)])
    before = model.get_weights()
    with pytest.raises(ValueError, match=message):
        saving.load_torch_state_dict(model, state, **options)
    assert all(np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))
