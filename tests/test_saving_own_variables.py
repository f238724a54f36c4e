"""Layers that say themselves what a file keeps of them."""

from __future__ import annotations

import numpy as np
import pytest

from picodl import Input, Sequential, layers, models


class Counted(layers.Layer):
    """Keeps an array that is no weight."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seen = np.zeros(3)

    def build(self, input_shape):
        self.scale = self.add_weight(shape=(2,), name="scale")

    def call(self, x):
        return x * self.scale

    def save_own_variables(self, store):
        super().save_own_variables(store)
        store["seen"] = self.seen

    def load_own_variables(self, store):
        super().load_own_variables(store)
        self.seen = store["seen"][:]


@pytest.mark.parametrize("ending", [".weights.h5", ".npz", ".safetensors", ".keras"])
def test_what_a_layer_keeps_itself_comes_back(ending, tmp_path):
    def make():
        return Sequential([Input((2,)), layers.Dense(2), Counted()])

    model, other = make(), make()
    model.layers[1].seen = np.array([1.0, 2.0, 3.0])
    path = str(tmp_path / f"w{ending}")
    if ending == ".keras":
        model.save(path)
        other = models.load_model(path, custom_objects={"Counted": Counted})
    else:
        model.save_weights(path)
        other.load_weights(path)
    np.testing.assert_array_equal(other.layers[1].seen, [1, 2, 3])
    x = np.ones((1, 2), "float32")
    np.testing.assert_array_equal(other.predict(x, verbose=0), model.predict(x, verbose=0))


def test_a_missing_array_is_named():
    layer = Counted(name="c")
    layer.build((None, 2))
    with pytest.raises(ValueError, match=r"has a variable 'scale' .* no array '0'"):
        layers.Layer.load_own_variables(layer, {})
