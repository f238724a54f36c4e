"""Operation and Function: steps and pieces of functional models that are no layers."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

import picodl
from picodl import layers as L
from picodl import ops


class Clip(picodl.Operation):
    """Limits with settings that a config must keep."""

    def __init__(self, low: float, high: float = 1.0, name: str | None = None) -> None:
        super().__init__(name)
        self.low, self.high = low, high

    def call(self, x, gate=None):
        y = ops.clip(x, self.low, self.high)
        return y if gate is None else y * gate


class Halves(picodl.Operation):
    """Two results."""

    def call(self, x):
        return ops.split(x, 2, axis=-1)


def model_with(clip: Clip) -> picodl.Model:
    x = picodl.Input((4,))
    a, b = Halves()(L.Dense(4)(x))
    return picodl.Model(x, clip(a, gate=clip(b)))


DATA = np.linspace(-3, 3, 12, dtype=np.float32).reshape(3, 4)


def test_operation_on_arrays_tensors_and_symbols():
    clip = Clip(0.0)
    assert isinstance(clip(DATA), np.ndarray)
    x = picodl.Tensor(DATA, requires_grad=True)
    clip(x).sum().backward()
    np.testing.assert_array_equal(x.grad, (DATA > 0) & (DATA < 1))
    y = clip(picodl.Input((4,)))
    assert y.shape == (None, 4) and clip.output is y and clip.input.shape == (None, 4)
    assert isinstance(L.Dense(1), picodl.Operation)
    with pytest.raises(AttributeError, match="never called"):
        _ = Clip(0.0).output
    with pytest.raises(NotImplementedError, match=r"call\(\)"):
        picodl.Operation()(1.0)


def test_model_of_operations_trains_copies_and_saves(tmp_path: Path):
    model = model_with(Clip(-0.5, high=0.75, name="limits"))
    kernel, bias = model.get_weights()
    z = DATA @ kernel + bias
    expected = np.clip(z[:, :2], -0.5, 0.75) * np.clip(z[:, 2:], -0.5, 0.75)
    np.testing.assert_allclose(model.predict(DATA, verbose=0), expected, rtol=1e-5, atol=1e-6)
    model.compile("adam", "mse")
    model.fit(DATA, DATA[:, :2], verbose=0)
    expected = model.predict(DATA, verbose=0)

    model.save(tmp_path / "m.keras")
    custom = {"Clip": Clip, "Halves": Halves}
    copies = [
        picodl.models.load_model(tmp_path / "m.keras", custom_objects=custom),
        pickle.loads(pickle.dumps(model)),
    ]
    with picodl.saving.custom_object_scope(custom):
        for make in (
            picodl.models.clone_model,
            lambda m: picodl.Model.from_config(m.get_config()),
            lambda m: picodl.models.model_from_json(m.to_json()),
        ):
            copies.append(make(model))
            copies[-1].set_weights(model.get_weights())
    for copy in copies:
        np.testing.assert_array_equal(copy.predict(DATA, verbose=0), expected)
    with pytest.raises(ValueError, match=r"Clip|Halves"):
        picodl.models.load_model(tmp_path / "m.keras")


def test_operation_names_are_unique_in_a_model():
    x = picodl.Input((4,))
    y = Clip(0.0, name="same")(L.Dense(4, name="same")(x))
    with pytest.raises(ValueError, match='two layers named "same"'):
        picodl.Model(x, y)


def test_operation_with_an_array_must_say_its_config():
    class Shift(picodl.Operation):
        def __init__(self, by):
            super().__init__()
            self.by = by

        def call(self, x):
            return x + self.by

    with pytest.raises(NotImplementedError, match=r"'by'.*get_config"):
        Shift(np.ones(3)).get_config()
    assert Clip(0.25, name="c").get_config() == {"name": "c", "low": 0.25, "high": 1.0}


def test_function_runs_and_shares_its_layers():
    x = picodl.Input((4,))
    hidden = L.Dense(3, activation="tanh")(x)
    model = picodl.Model(x, L.Dense(2)(hidden))
    inner = picodl.Function(x, {"hidden": hidden, "out": model.output})
    got = inner(DATA)
    assert sorted(got) == ["hidden", "out"]
    np.testing.assert_array_equal(got["out"].numpy(), model.predict(DATA, verbose=0))
    assert inner.operations[1:] == model.layers[1:]
    assert [s.shape for s in inner.outputs] == [(None, 3), (None, 2)]
    ids = picodl.Input((5,), dtype="int32")
    looked_up = picodl.Function(ids, ops.take(np.ones((3, 2), np.float32), ids, axis=0))
    assert looked_up.compute_output_shape((7, 5)) == (7, 5, 2)
    assert inner.compute_output_shape((7, 4)) == {"hidden": (7, 3), "out": (7, 2)}

    loss = (got["out"] * got["out"]).sum()
    loss.backward()
    assert all(w.grad is not None for w in model.weights)


def test_function_on_symbols_repeats_its_steps():
    x = picodl.Input((4,))
    function = picodl.Function(x, L.Dense(2)(x) * 2.0)
    new = picodl.Input((4,))
    outer = picodl.Model(new, function(new) + 1.0)
    assert len(outer.trainable_weights) == 2
    np.testing.assert_allclose(
        outer.predict(DATA, verbose=0), function(DATA).numpy() + 1, rtol=1e-6
    )


def test_function_of_several_inputs_by_list_and_name():
    a, b = picodl.Input((2,), name="a"), picodl.Input((2,), name="b")
    function = picodl.Function([a, b], a - b)
    one, three = np.ones((1, 2)), np.full((1, 2), 3.0)
    assert float(function([three, one])[0, 0]) == 2.0
    assert float(function({"b": one, "a": three})[0, 0]) == 2.0
    for wrong, message in (([one], "2 inputs"), ([one, np.ones((1, 3))], "expects shape")):
        with pytest.raises(ValueError, match=message):
            function(wrong)
    with pytest.raises(ValueError, match="not among the inputs"):
        picodl.Function(a, a - b)


def test_device():
    with picodl.device("cpu:0"):
        assert picodl.ops.ones(1)[0] == 1
    with (
        pytest.raises(ValueError, match=r'CPU only; received device\("gpu:0"\)'),
        picodl.device("gpu:0"),
    ):
        pass


@pytest.mark.parametrize("base", [picodl.Operation, L.Layer])
def test_an_own_output_spec_may_be_a_keras_tensor(base):
    class Total(base):
        def call(self, inputs):
            return ops.sum(inputs, axis=-1), inputs

        def compute_output_spec(self, inputs):
            return picodl.KerasTensor(inputs.shape[:-1], dtype=np.float32), inputs

    x = picodl.Input((3,))
    total, same = Total()(x)
    assert (total.shape, total.dtype, same.shape) == ((None,), "float32", (None, 3))
    model = picodl.Model(x, [total, same])
    outputs = model.predict(np.ones((2, 3)), verbose=0)
    np.testing.assert_array_equal(outputs[0], [3, 3])
    np.testing.assert_array_equal(outputs[1], np.ones((2, 3)))
    assert picodl.KerasTensor((2, None)).dtype == "float32"
    assert L.InputLayer((3,)).input == []


def test_symbolic_call_gives_symbols():
    x = picodl.Input((5, 3))
    for layer in (L.Dense(4), L.LSTM(2, return_state=True)):
        found, called = picodl.tree.flatten(layer.symbolic_call(x)), picodl.tree.flatten(layer(x))
        assert [(s.shape, s.dtype) for s in found] == [(s.shape, s.dtype) for s in called]
        assert all(s.step is None for s in found)  # a call is recorded by calling alone
    y = Clip(0.0).symbolic_call(x)
    assert y.shape == (None, 5, 3) and y.step.inputs == [x]


def test_an_input_may_take_over_a_symbol():
    given = picodl.KerasTensor((None, 3), "float32")
    x = picodl.Input(tensor=given, name="x")
    h = L.Dense(4)(x)
    whole = picodl.Model(x, L.Dense(2)(h))
    assert x is given and whole.predict(np.ones((2, 3)), verbose=0).shape == (2, 2)
    rest = picodl.Model(picodl.Input(tensor=h, name="h"), L.Dense(5)(h))
    assert rest.layers[0].name == "h" and rest.input_shape == (None, 4)
    assert rest.predict(np.ones((2, 4)), verbose=0).shape == (2, 5)
    assert whole.predict(np.ones((2, 3)), verbose=0).shape == (2, 2)
    for same in ({"shape": (3,)}, {"batch_shape": (None, 3)}, {"dtype": "float32"}):
        assert picodl.Input(tensor=picodl.KerasTensor((None, 3)), **same).shape == (None, 3)
    for other in ({"shape": (4,)}, {"batch_size": 2}, {"dtype": "int32"}):
        with pytest.raises(ValueError, match="differs from that of the tensor"):
            picodl.Input(tensor=given, **other)
    with pytest.raises(ValueError, match="tensor must be a symbol"):
        picodl.Input(tensor=np.ones(3))
