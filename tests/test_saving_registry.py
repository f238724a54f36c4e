"""Objects by name: what configs may say, and what they may not."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest

import picodl as P
from picodl import layers, saving
from picodl.saving import registry


class Plus(layers.Layer):
    def __init__(self, amount=1.0, inner=None, **kwargs):
        super().__init__(**kwargs)
        self.amount, self.inner = amount, inner

    def call(self, x):
        return x + self.amount

    def get_config(self):
        return {**super().get_config(), "amount": self.amount, "inner": self.inner}


def doubled(x):
    return 2 * x


@pytest.fixture(autouse=True)
def clean_registry():
    before = dict(saving.get_custom_objects())
    yield
    saving.get_custom_objects().clear()
    saving.get_custom_objects().update(before)


@pytest.mark.parametrize(
    ("value", "back"),
    [
        (None, None),
        (True, True),
        (3, 3),
        ("relu", "relu"),
        ((1, [2, None]), [1, [2, None]]),
        ({"a": (1,)}, {"a": [1]}),
        (b"bytes", b"bytes"),
        (slice(1, None, 2), slice(1, None, 2)),
        (..., ...),
        (np.float32(0.5), 0.5),
        (np.dtype("float32"), "float32"),
        (np.float64, "float64"),
    ],
)
def test_plain_values_come_back_through_json(value, back):
    text = json.dumps(saving.serialize_keras_object(value))
    assert saving.deserialize_keras_object(json.loads(text)) == back


def test_arrays_come_back_with_their_dtype():
    array = np.arange(6, dtype="int16").reshape(2, 3)
    back = saving.deserialize_keras_object(saving.serialize_keras_object(array))
    assert back.dtype == array.dtype and np.array_equal(back, array)


@pytest.mark.parametrize(
    ("obj", "module", "name"),
    [
        (layers.Dense(2), "keras.layers", "Dense"),
        (P.initializers.HeNormal(), "keras.initializers", "HeNormal"),
        (P.regularizers.L2(0.1), "keras.regularizers", "L2"),
        (P.constraints.MaxNorm(2), "keras.constraints", "MaxNorm"),
        (P.losses.MeanSquaredError(), "keras.losses", "MeanSquaredError"),
        (P.metrics.MeanSquaredError(), "keras.metrics", "MeanSquaredError"),
        (P.optimizers.Adam(), "keras.optimizers", "Adam"),
        (P.DTypePolicy("float32"), "keras", "DTypePolicy"),
        (P.Sequential(), "keras", "Sequential"),
    ],
)
def test_objects_carry_the_modules_of_keras(obj, module, name):
    config = saving.serialize_keras_object(obj)
    assert (config["module"], config["class_name"]) == (module, name)
    assert config["registered_name"] is None
    back = saving.deserialize_keras_object(json.loads(json.dumps(config)))
    assert type(back) is type(obj)


def test_registered_names_carry_their_package():
    @saving.register_keras_serializable("pack", "Sum")
    class Other(Plus):
        pass

    assert saving.get_registered_name(Other) == "pack>Sum"
    assert saving.get_registered_object("pack>Sum") is Other
    config = saving.serialize_keras_object(Other(3.0))
    assert config["registered_name"] == "pack>Sum"
    assert saving.deserialize_keras_object(config).amount == 3.0


def test_unregistered_objects_need_custom_objects():
    config = saving.serialize_keras_object(Plus(2.0))
    with pytest.raises(ValueError, match=r"Unknown .*'Plus'.*register_keras_serializable.*custom"):
        saving.deserialize_keras_object(config)
    assert saving.deserialize_keras_object(config, {"Plus": Plus}).amount == 2.0
    with saving.custom_object_scope({"Plus": Plus}):
        assert saving.deserialize_keras_object(config).amount == 2.0
    with saving.CustomObjectScope({"Plus": Plus}):
        assert saving.deserialize_keras_object(config).amount == 2.0
    with pytest.raises(ValueError, match="Unknown"):
        saving.deserialize_keras_object(config)


def test_functions_are_named_never_written():
    config = saving.serialize_keras_object(doubled)
    assert config["class_name"] == "function" and config["config"] == "doubled"
    assert saving.deserialize_keras_object(config, {"doubled": doubled}) is doubled
    with pytest.raises(ValueError, match="doubled"):
        saving.deserialize_keras_object(config)
    with pytest.raises(ValueError, match="lambda"):
        saving.serialize_keras_object(lambda x: x)


def test_a_scope_belongs_to_its_thread():
    seen = []
    with saving.custom_object_scope({"doubled": doubled}):
        thread = threading.Thread(target=lambda: seen.append(registry.find_custom("doubled")))
        thread.start()
        thread.join()
        assert registry.find_custom("doubled") is doubled
    assert seen == [None]


def test_one_object_mentioned_twice_is_one_object_again():
    shared = layers.Dense(3)
    config = saving.serialize_keras_object([shared, {"again": shared}, layers.Dense(3)])
    first, second, third = saving.deserialize_keras_object(json.loads(json.dumps(config)))
    assert first is second["again"] and third is not first


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"class_name": "system", "module": "os", "config": {}}, "'system' of module 'os'"),
        ({"class_name": "Dense", "module": "os", "config": {"units": 1}}, "'Dense' of module 'os'"),
        ({"class_name": "load", "module": "picodl.layers.np", "config": {}}, "'load'"),
        ({"class_name": "__class__", "module": "picodl", "config": {}}, "__class__"),
        (
            {"class_name": "Dense.__init__", "module": "keras.layers", "config": {}},
            "Dense.__init__",
        ),
        ({"class_name": "function", "module": "os", "config": "system"}, "'system'"),
        ({"class_name": "__lambda__", "config": {"code": "x"}}, "never runs"),
        ({"class_name": ["Dense"], "config": {}}, "class_name must be a string"),
        ({"class_name": "Dense", "config": "Dense"}, "needs a config"),
        ({"class_name": "Dense", "module": "keras.layers", "config": {"units": -1}}, "units"),
        ({"class_name": "Dense", "module": "keras.layers", "config": {"unit": 1}}, "unit"),
        ({"class_name": "Desne", "module": "keras.layers", "config": {}}, 'Did you mean "Dense"'),
        ({"class_name": "__numpy__", "config": {"value": [[1], 2], "dtype": "f4"}}, "__numpy__"),
        ({"class_name": "__numpy__", "config": {"value": ["x"], "dtype": "O"}}, "numbers"),
        ({"class_name": "relu", "module": "keras.activations", "config": {}}, "is a function"),
    ],
)
def test_bad_configs_are_refused_by_name(config, message):
    with pytest.raises(ValueError, match=message):
        saving.deserialize_keras_object(config)


def test_safe_mode_cannot_be_switched_off():
    with pytest.warns(UserWarning, match="never runs code"):
        assert saving.deserialize_keras_object(3, safe_mode=False) == 3
    with pytest.warns(UserWarning, match="no effect"):
        P.config.enable_unsafe_deserialization()
    with pytest.raises(ValueError, match="never runs"):
        saving.deserialize_keras_object({"class_name": "__lambda__", "config": {}})


def test_registering_and_scopes_check_their_arguments():
    class Bare:
        pass

    with pytest.raises(ValueError, match="get_config"):
        saving.register_keras_serializable()(Bare)
    with (
        pytest.raises(TypeError, match="custom_objects must be a dict"),
        saving.custom_object_scope([Plus]),
    ):
        pass
    with pytest.raises(ValueError, match="no get_config"):
        saving.serialize_keras_object(object())


def test_an_error_inside_a_layer_keeps_its_cause():
    config = saving.serialize_keras_object(Plus())

    class Broken(Plus):
        def __init__(self, **kwargs):
            raise ZeroDivisionError("inside")

    with pytest.raises(ValueError, match=r"Plus 'plus.*' cannot be made.*inside") as caught:
        saving.deserialize_keras_object(config, {"Plus": Broken})
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_family_of_the_users_own_goes_by_names():
    class Greedy:
        def __init__(self, seed=0):
            self.seed = seed

        @classmethod
        def from_config(cls, config):
            return cls(**config)

    family = {"greedy": Greedy, "top_k": max}
    read = saving.deserialize_keras_object
    assert isinstance(read("greedy", module_objects=family), Greedy)
    assert read("top_k", module_objects=family, printable_module_name="samplers") is max
    config = {"class_name": "greedy", "config": {"seed": 3}}
    assert read(config, module_objects=family).seed == 3
    assert read("greedy") == "greedy"
    with pytest.raises(ValueError, match=r"Unknown sampler 'gredy'.*greedy"):
        read("gredy", module_objects=family, printable_module_name="sampler")


def test_an_activation_may_be_a_layer():
    layer = layers.Dense(2, activation=layers.LeakyReLU(negative_slope=0.125, name="leak"))
    again = layers.Dense.from_config(json.loads(json.dumps(layer.get_config())))
    assert type(again.activation) is layers.LeakyReLU
    assert (again.activation.negative_slope, again.activation.name) == (0.125, "leak")


def test_functions_of_older_files_are_found_without_their_package():
    @saving.register_keras_serializable("older", name="third_power")
    def third_power(x):
        return x**3

    config = {"module": "builtins", "class_name": "function", "registered_name": "function"}
    for name in ("third_power", "older>third_power"):
        assert saving.deserialize_keras_object({**config, "config": name}) is third_power
