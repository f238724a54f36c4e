"""Models: Sequential, functional and subclassed, built, copied, looked at."""

from __future__ import annotations

import copy
import json
import pickle
import warnings
from typing import Any

import numpy as np
import pytest

import picodl
from picodl import Input, Model, Sequential, layers, models, ops, saving

rng = np.random.default_rng(0)
X = rng.normal(size=(24, 6)).astype("float32")
Y = rng.integers(0, 3, 24)


def same(a: Any, b: Any) -> None:
    for x, y in zip(picodl.tree.flatten(a), picodl.tree.flatten(b), strict=True):
        np.testing.assert_array_equal(x, y)


def functional() -> Model:
    x = Input((6,), name="x")
    h = layers.Dense(5, activation="tanh", name="hidden")(x)
    shared = layers.Dense(5, name="shared")
    a, b = shared(h), shared(shared(h))
    return Model(x, layers.Dense(3, name="out")(layers.Add(name="sum")([a, b])), name="net")


# -------------------------------------------------------------------- the three ways to build


def test_functional_sequential_and_subclassed_give_bit_identical_results() -> None:
    class Net(Model):
        def __init__(self) -> None:
            super().__init__()
            self.first = layers.Dense(8, activation="relu")
            self.second = layers.Dense(3)

        def call(self, x: Any) -> Any:
            return self.second(self.first(x))

    x = Input((6,))
    nets = [
        Sequential([Input((6,)), layers.Dense(8, activation="relu"), layers.Dense(3)]),
        Model(x, layers.Dense(3)(layers.Dense(8, activation="relu")(x))),
        Net(),
    ]
    nets[2](X[:1])
    weights = nets[0].get_weights()
    outcomes = []
    for net in nets:
        net.set_weights(weights)
        loss = picodl.losses.SparseCategoricalCrossentropy(from_logits=True)
        net.compile("adam", loss, metrics=["accuracy"])
        history = net.fit(X, Y, epochs=3, batch_size=7, verbose=0).history
        outcomes.append((history["loss"], net.predict(X, verbose=0)))
    for loss, predicted in outcomes[1:]:
        assert loss == outcomes[0][0]
        np.testing.assert_array_equal(predicted, outcomes[0][1])


def test_paths_of_weights_are_those_of_keras() -> None:
    model = Sequential([Input((2,)), layers.Dense(1, name="d")], name="seq")
    assert [w.path for w in model.weights] == ["seq/d/kernel", "seq/d/bias"]
    x = Input((2,))
    assert Model(x, layers.Dense(1, name="d")(x)).weights[0].path == "d/kernel"


def test_sequential_is_built_when_it_is_first_called() -> None:
    model = Sequential([layers.Dense(3), layers.Dense(1)])
    assert not model.built and model.weights == []
    assert model.predict(X, verbose=0).shape == (24, 1)
    assert model.built and model.input_shape == (None, 6) and model.count_params() == 25


def test_sequential_add_and_pop() -> None:
    model = Sequential([Input((6,))])
    model.add(layers.Dense(4, name="a"))
    model.add(layers.Dense(2, name="b"))
    assert model.output_shape == (None, 2)
    assert model.pop().name == "b" and model.output_shape == (None, 4)
    model.add(layers.Dense(3, name="c"))
    assert [layer.name for layer in model.layers] == ["a", "c"]
    assert model.predict(X, verbose=0).shape == (24, 3)


def test_shared_layers_nested_models_and_operators() -> None:
    inner = Sequential([Input((5,)), layers.Dense(5, activation="relu")], name="inner")
    x = Input((6,))
    h = layers.Dense(5)(x)
    y = inner(h) + inner(inner(h)) * 2.0 - ops.relu(h)[:, :5]
    model = Model(x, [y, ops.mean(y, axis=-1)])
    a, b = model.predict(X, verbose=0)
    dense = model.layers[1]
    h = X @ dense.kernel.data + dense.bias.data
    first = inner.predict(h, verbose=0)
    expected = first + inner.predict(first, verbose=0) * 2 - np.maximum(h, 0)
    np.testing.assert_allclose(a, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(b, expected.mean(-1), rtol=1e-5, atol=1e-6)
    assert len(model.weights) == 4


def test_dicts_of_inputs_and_outputs_with_losses_by_name() -> None:
    inputs = {"left": Input((6,), name="left"), "right": Input((2,), name="right")}
    h = layers.Concatenate()([layers.Dense(4)(inputs["left"]), inputs["right"]])
    model = Model(inputs, {"class": layers.Dense(3)(h), "value": layers.Dense(1)(h)})
    sparse = picodl.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        "adam",
        loss={"class": sparse, "value": "mse"},
        loss_weights={"class": 1.0, "value": 0.5},
        metrics={"class": ["accuracy"], "value": ["mae"]},
    )
    x = {"left": X, "right": X[:, :2]}
    history = model.fit(x, {"class": Y, "value": X[:, :1]}, epochs=2, verbose=0).history
    assert list(history) == ["class_accuracy", "class_loss", "loss", "value_loss", "value_mae"]
    total = history["class_loss"][0] + 0.5 * history["value_loss"][0]
    np.testing.assert_allclose(history["loss"][0], total, rtol=1e-6)
    assert set(model.predict(x, verbose=0)) == {"class", "value"}
    extra = model.predict({**x, "unused": X}, verbose=0)
    same(extra, model.predict(x, verbose=0))
    with pytest.raises(ValueError, match="without 'right'"):
        model.predict({"left": X}, verbose=0)
    with pytest.raises(ValueError, match=r"loss has the key 'clas'.*Did you mean \"class\""):
        model.compile("adam", loss={"clas": sparse, "value": "mse"})
        model.fit(x, {"class": Y, "value": X[:, :1]}, verbose=0)


def test_feature_extraction_from_the_middle_of_a_model() -> None:
    model = functional()
    middle = Model(model.input, model.get_layer("hidden").output)
    full = Model(model.input, [model.get_layer("hidden").output, model.output])
    a, b = full.predict(X, verbose=0)
    np.testing.assert_array_equal(middle.predict(X, verbose=0), a)
    np.testing.assert_array_equal(model.predict(X, verbose=0), b)
    tail = Model(model.get_layer("sum").output, model.output)
    summed = Model(model.input, model.get_layer("sum").output).predict(X, verbose=0)
    np.testing.assert_array_equal(tail.predict(summed, verbose=0), b)


def test_layers_in_lists_and_dicts_of_a_subclass_are_found() -> None:
    class Net(Model):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = [layers.Dense(4, activation="relu") for _ in range(2)]
            self.heads = {"a": layers.Dense(1), "b": layers.Dense(2)}
            self.score = picodl.metrics.Mean(name="score")

        def call(self, x: Any, training: bool = False) -> Any:
            for block in self.blocks:
                x = block(x)
            self.add_loss(0.0 * ops.sum(x))
            return self.heads["a"](x)

        def train_step(self, data: Any) -> Any:
            x, y = data
            y_pred = self(x, training=True)
            loss = self.compute_loss(x, y, y_pred)
            self.minimize(loss)
            self.score.update_state(float(loss))
            return {"score": self.score.result()}

    net = Net()
    net.compile("sgd", "mse")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        history = net.fit(X, X[:, :1], epochs=3, verbose=0).history
    assert list(history) == ["score"] and history["score"][-1] < history["score"][0]
    assert len(net.layers) == 4 and len(net.weights) == 6


def test_forward_may_stand_for_call() -> None:
    class Net(Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = layers.Dense(2)

        def forward(self, x: Any) -> Any:
            return self.dense(x)

    assert Net().predict(X, verbose=0).shape == (24, 2)


# -------------------------------------------------------------------- copies and configs


@pytest.mark.parametrize("how", ["pickle", "deepcopy", "config", "json", "clone"])
def test_round_trips_keep_architecture_and_weights(how: str) -> None:
    inner = functional()
    model = Sequential([Input((6,)), layers.Dense(6), inner, layers.Dropout(0.5)], name="outer")
    model.compile("adam", "mse", metrics=["mae"])
    model.fit(X, X[:, :3], verbose=0)
    if how == "pickle":
        other = pickle.loads(pickle.dumps(model))
    elif how == "deepcopy":
        other = copy.deepcopy(model)
    elif how == "config":
        other = Sequential.from_config(model.get_config())
    elif how == "json":
        other = models.model_from_json(model.to_json())
    else:
        other = models.clone_model(model)
    if how in ("pickle", "deepcopy"):
        assert other.optimizer.iterations == model.optimizer.iterations
        a = model.fit(X, X[:, :3], verbose=0, epochs=2).history
        b = other.fit(X, X[:, :3], verbose=0, epochs=2).history
        assert a["loss"] == b["loss"]
    else:
        assert not np.array_equal(other.get_weights()[0], model.get_weights()[0])
        other.set_weights(model.get_weights())
    same(other.predict(X, verbose=0), model.predict(X, verbose=0))
    assert [layer.name for layer in other.layers] == [layer.name for layer in model.layers]
    assert len(other.weights) == len(model.weights)
    extracted = Model(other.input, other.layers[0].output)
    assert extracted.predict(X, verbose=0).shape == (24, 6)


def test_a_graph_with_operators_goes_through_json() -> None:
    x = Input((6,), name="x")
    y = (x * 2.0 + 1.0)[:, 1:4] - ops.mean(x, axis=-1, keepdims=True)
    model = Model(x, {"a": y, "b": ops.concatenate([y, y], axis=-1)})
    text = model.to_json()
    other = models.model_from_json(text)
    same(other.predict(X, verbose=0), model.predict(X, verbose=0))
    assert json.loads(text)["class_name"] == "Functional"


def test_a_chain_of_1000_layers_builds_trains_copies_and_saves(tmp_path: Any) -> None:
    x = h = Input((2,))
    for i in range(1000):
        h = layers.Activation("linear", name=f"a{i}")(h)
    model = Model(x, layers.Dense(1)(h))
    model.compile("sgd", "mse")
    model.fit(X[:, :2], X[:, :1], verbose=0)
    other = copy.deepcopy(model)
    path = tmp_path / "deep.keras"
    model.save(path)
    loaded = saving.load_model(path)
    for net in (other, pickle.loads(pickle.dumps(model)), loaded):
        same(net.predict(X[:, :2], verbose=0), model.predict(X[:, :2], verbose=0))


# -------------------------------------------------------------------- freezing


def test_trainable_takes_effect_at_the_next_step_and_keeps_slots() -> None:
    model = Sequential([Input((6,)), layers.Dense(4, name="a"), layers.Dense(3, name="b")])
    model.compile("adam", picodl.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(X, Y, verbose=0)
    frozen = model.get_layer("a")
    frozen.trainable = False
    before = [w.copy() for w in model.get_weights()]
    model.fit(X, Y, verbose=0)
    after = model.get_weights()
    for i in (0, 1):
        np.testing.assert_array_equal(before[i], after[i])
    assert not np.array_equal(before[2], after[2])
    frozen.trainable = True
    model.fit(X, Y, verbose=0)
    assert not np.array_equal(after[0], model.get_weights()[0])


# -------------------------------------------------------------------- messages


def test_messages_of_building() -> None:
    x, other = Input((6,), name="x"), Input((6,), name="other")
    h = layers.Dense(2, name="d")(x)
    with pytest.raises(ValueError, match="not among the inputs"):
        Model(x, h + layers.Dense(2)(other))
    with pytest.raises(ValueError, match='two layers named "d"'):
        Model(x, layers.Dense(2, name="d")(h))
    with pytest.raises(ValueError, match='already has a layer named "d"'):
        Sequential([layers.Dense(1, name="d"), layers.Dense(1, name="d")])
    with pytest.raises(TypeError, match=r"come from Input\(\); received ndarray"):
        Model(X, h)
    with pytest.raises(TypeError, match="has no numbers yet"):
        np.asarray(h)
    with pytest.raises(TypeError, match="has no numbers yet"):
        float(h)
    with pytest.raises(TypeError, match="together with a numpy array"):
        layers.Add()([h, np.ones((1, 2))])
    with pytest.raises(ValueError, match=r'expects shape \(None, 6\) for its input "x"'):
        Model(x, h).predict(X[:, :5], verbose=0)
    with pytest.raises(ValueError, match=r"has no layer 'den'"):
        Model(x, h).get_layer("den")
    with pytest.raises(TypeError, match="received the class Dense"):
        Sequential([layers.Dense])
    with pytest.raises(ValueError, match="must be compiled"):
        Model(x, h).fit(X, Y)
    with pytest.raises(TypeError, match='Did you mean "optimizer"'):
        Model(x, h).compile(optimiser="adam")


def test_weights_that_the_loss_never_reaches_are_named_once() -> None:
    class Net(Model):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.idle = layers.Dense(1), layers.Dense(1, name="idle")

        def call(self, x: Any) -> Any:
            self.idle(x)
            return self.used(x)

    net = Net()
    net.compile("sgd", "mse")
    with pytest.warns(UserWarning, match="No gradient reaches.*idle/kernel"):
        net.fit(X, X[:, :1], verbose=0)


def test_a_single_output_unit_that_is_always_one_is_reported() -> None:
    model = Sequential([Input((6,)), layers.Dense(1, activation="softmax")])
    model.compile("sgd", "binary_crossentropy")
    with pytest.warns(UserWarning, match="sigmoid"):
        model.fit(X, Y[:, None] % 2, verbose=0)


def test_the_first_nan_loss_warns_once() -> None:
    model = Sequential([Input((6,)), layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.warns(UserWarning, match="TerminateOnNaN") as caught:
        model.fit(X, np.full((24, 1), np.nan), batch_size=4, verbose=0)
    assert len(caught) == 1


# -------------------------------------------------------------------- summary


def test_summary_is_the_table_of_keras(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines: list[str] = []
    Sequential([Input((6,)), layers.Dense(4, name="a")], name="s").summary(print_fn=lines.append)
    [text] = lines
    assert text.splitlines()[:5] == [
        'Model: "s"',
        "┏━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━┳━━━━━━━━━━━━━━━━━━━━━━━━┳━━━━━━━━━━━━━━━┓",
        "┃ Layer (type)                    ┃ Output Shape           ┃       Param # ┃",
        "┡━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━╇━━━━━━━━━━━━━━━━━━━━━━━━╇━━━━━━━━━━━━━━━┩",
        "│ a (Dense)                       │ (None, 4)              │            28 │",
    ]
    assert " Total params: 28 (112.00 B)" in text


def test_summary_of_a_graph_shows_connections_and_nested_layers() -> None:
    lines: list[str] = []
    x = Input((6,), name="x")
    inner = Sequential([Input((6,)), layers.Dense(6, name="deep")], name="inner")
    y = layers.Add(name="sum")([inner(x), x])
    Model(x, y).summary(print_fn=lines.append, expand_nested=True, show_trainable=True)
    assert "Connected to" in lines[0] and "inner[0][0]" in lines[0] and "└ deep" in lines[0]


# -------------------------------------------------------------------- predict


@pytest.mark.parametrize("layer", ["activation", "flatten", "weight"])
def test_predictions_share_no_memory_with_inputs_or_weights(layer: str) -> None:
    class Weight(layers.Layer):
        def build(self, shape: Any) -> None:
            self.w = self.add_weight((24, 6), "ones", name="w")

        def call(self, x: Any) -> Any:
            return self.w

    made = {
        "activation": layers.Activation("linear"),
        "flatten": layers.Flatten(),
        "weight": Weight(),
    }
    model = Sequential([Input((6,)), made[layer]])
    x = X.copy()
    for predicted in (
        model.predict(x, batch_size=24, verbose=0),
        model.predict_on_batch(x),
        model.predict(x, batch_size=24, verbose=0, callbacks=[]),
    ):
        predicted[...] = -1
    np.testing.assert_array_equal(x, X)
    assert all((w == 1).all() for w in model.get_weights())


def test_copies_keep_the_dtypes_that_numpy_has():
    """Layers look for them by identity, which is faster."""
    model = Sequential([Input((3,)), layers.Dense(2)])
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        (layer,) = other.layers
        assert layer._dtype is np.dtype("float32")
        assert other._dtype is np.dtype("float32")
        assert all(w.data.dtype is np.dtype("float32") for w in other.weights)
        assert other(np.zeros((1, 3), np.float32)).data.dtype is np.dtype("float32")


def test_weights_of_another_byte_order_keep_their_values():
    parameter = picodl.Variable([1.0, -2.5])
    restore, (data, *rest) = parameter.__reduce__()
    other = restore(data.astype(data.dtype.newbyteorder()), *rest)
    assert other.data.dtype is np.dtype("float32")
    np.testing.assert_array_equal(other, [1.0, -2.5])


# -------------------------------------------------------------------- inputs and outputs


def test_inputs_and_outputs_in_nested_dicts() -> None:
    one, two, three = Input((1,)), Input((2,)), Input((3,))
    inputs = {"1": one, "others": {"2": two, "3": three}}
    model = Model(inputs, {"sum": layers.Concatenate()([one, two]), "deep": {"3": three}})
    data = {"1": X[:, :1], "others": {"2": X[:, 1:3], "3": X[:, 3:]}}
    found = model(data)
    np.testing.assert_array_equal(found["sum"].data, X[:, :3])
    np.testing.assert_array_equal(found["deep"]["3"].data, X[:, 3:])
    assert model(inputs)["deep"]["3"].shape == (None, 3)
    same(model.predict(data, verbose=0), {"sum": X[:, :3], "deep": {"3": X[:, 3:]}})
    with pytest.raises(ValueError, match="a dict without '3'"):
        model({"1": X[:, :1], "others": {"2": X[:, 1:3]}})


def test_a_list_stands_for_a_dict_of_inputs_only_in_the_order_of_its_keys() -> None:
    a, b = Input((6,), name="a"), Input((6,), name="b")
    difference = layers.subtract([a, b])
    same(Model({"a": a, "b": b}, difference)([X, 2 * X]).data, -X)
    unsorted = Model({"b": b, "a": a}, difference)
    same(unsorted({"a": X, "b": 2 * X}).data, -X)
    with pytest.raises(ValueError, match="Pass a dict with the keys 'b', 'a'"):
        unsorted([X, 2 * X])


def test_none_is_welcome_for_optional_inputs_alone() -> None:
    class Plus(layers.Layer):
        def call(self, x: Any, y: Any = None) -> Any:
            return x if y is None else x + y

        def compute_output_shape(self, x_shape: Any, y_shape: Any = None) -> Any:
            return x_shape

    x, y = Input((6,), name="x"), Input((6,), name="y", optional=True)
    model = Model({"x": x, "y": y}, layers.Dense(1)(Plus()(x, y)))
    model.compile("sgd", loss="mse")
    model.fit({"x": X, "y": None}, Y, verbose=0)
    model.fit(iter([({"x": X, "y": None}, Y)]), verbose=0)
    without = model.predict({"x": X, "y": None}, verbose=0)
    same(without, model.predict({"x": X, "y": np.zeros_like(X)}, verbose=0))
    with pytest.raises(ValueError, match='None for its input "x", which is not optional'):
        model({"x": None, "y": X})


def test_sequential_takes_what_its_first_layer_takes() -> None:
    class Both(layers.Layer):
        def call(self, parts: Any) -> Any:
            return parts["a"] + parts["b"] if isinstance(parts, dict) else parts[0] + parts[1]

    model = Sequential([Both(), layers.Dense(1)])
    assert model({"a": X, "b": X}).shape == (24, 1)
    same(model({"a": X, "b": 2 * X}).data, model([X, 2 * X]).data)
    assert model.count_params() == 7
    model.compile("sgd", loss="mse")
    model.fit({"a": X, "b": X}, Y, verbose=0)
    with pytest.raises(ValueError, match="has no layers"):
        Sequential()(X)


def test_sequential_takes_its_array_in_a_list_or_dict() -> None:
    model = Sequential([Input((6,), name="x"), layers.Dense(1)])
    model.compile("sgd", loss="mse")
    expected = model.predict(X, verbose=0)
    for data in ([X], (X,), {"x": X}):
        same(model.predict(data, verbose=0), expected)
        model.evaluate(data, [Y], verbose=0)
    model.fit([X], [Y], verbose=0, validation_data=[X, Y])
    with pytest.raises(ValueError, match=r"has 1 inputs .* received 2"):
        model([X, X])


def test_sequential_runs_layers_that_cannot_tell_their_shapes() -> None:
    class Closed(layers.Layer):
        def call(self, x: Any) -> Any:
            return x + 1

        def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError

    same(Sequential([Closed()])(X).data, X + 1)


def test_compute_output_spec_may_give_symbols() -> None:
    class Twice(layers.Layer):
        def call(self, x: Any) -> Any:
            return 2 * x

        def compute_output_spec(self, x: Any) -> Any:
            return picodl.KerasTensor(x.shape, dtype=x.dtype)

    x = Input((6,))
    model = Model(x, Twice()(x))
    assert model.output_shape == (None, 6)
    same(model(X).data, 2 * X)


def test_a_config_keeps_the_arguments_of_a_functional_subclass_and_its_tuples() -> None:
    class Named(Model):
        def __init__(self, *args: Any, label: str = "none", **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.label = label

        def get_config(self) -> Any:
            return {**super().get_config(), "label": self.label}

    x = Input((6,))
    model = Named(x, (layers.Dense(1)(x), layers.Dense(2)(x)), label="two", name="named")
    again = Named.from_config(model.get_config())
    assert (again.label, again.name, type(again.output)) == ("two", "named", tuple)


def test_clone_is_compiled_like_its_model() -> None:
    def error(y_true: Any, y_pred: Any) -> Any:
        return ops.mean(ops.abs(y_true - y_pred), axis=-1)

    model = Sequential([Input((6,)), layers.Dense(1)])
    assert not models.clone_model(model).compiled
    metric = picodl.metrics.MeanSquaredError()
    model.compile(picodl.optimizers.Adam(0.25), loss=error, metrics=[metric, "mae"])
    model.fit(X, Y, verbose=0)
    clone = models.clone_model(model)
    assert clone.optimizer is not model.optimizer and int(clone.optimizer.iterations) == 0
    assert float(clone.optimizer.learning_rate) == 0.25
    before = metric.result()
    clone.set_weights(model.get_weights())
    assert clone.evaluate(X, Y, verbose=0) == model.evaluate(X, Y, verbose=0) != before


def test_a_list_of_one_output_comes_without_the_list() -> None:
    x = Input((6,))
    for outputs in ([layers.Dense(2)(x)], (layers.Dense(2)(x),)):
        model = Model([x], outputs)
        assert model(X).shape == model.predict(X, verbose=0).shape == (24, 2)
        assert (model.input_shape, model.output_shape) == ((None, 6), (None, 2))
        assert type(model.output) is type(outputs)
        assert Model(x, layers.ReLU()(model(x)[0]))(X).shape == (24, 2)
    assert type(Model(x, {"y": layers.Dense(2)(x)})(X)) is dict


def test_an_input_casts_floats_to_the_dtype_it_asks_for() -> None:
    for dtype in ("float16", "float64"):
        x, n = Input((6,), dtype=dtype), Input((6,), dtype="int32")
        model = Model([x, n], [x + 2, n + 2])
        assert [t.dtype for t in model([X, X.astype("int32")])] == [np.dtype(dtype), np.int32]
        assert model.predict([X, X.astype("int32")], verbose=0)[0].dtype == dtype
        assert [s.dtype for s in model([Input((6,)), n])] == [dtype, "int32"]


def test_batches_may_have_another_size_than_the_input_says() -> None:
    x = Input((6,), batch_size=3)
    assert Model(x, layers.Dense(2)(x))(X).shape == (24, 2)


# -------------------------------------------------------------------- losses of several outputs


def two_outputs() -> Model:
    x = Input((6,))
    ones = {"use_bias": False, "kernel_initializer": "ones"}
    return Model(x, [layers.Dense(1, name="a", **ones)(x), layers.Dense(1, name="b", **ones)(x)])


def test_outputs_without_a_loss_need_no_targets() -> None:
    y = X.sum(1, keepdims=True) + 2
    for loss in ([None, "mse"], {"b": "mse"}):
        model = two_outputs()
        model.compile("sgd", loss=loss)
        assert model.evaluate(X, y, verbose=0) == pytest.approx(4.0, rel=1e-5)
        assert model.evaluate(X, [y, y], verbose=0) == pytest.approx(4.0, rel=1e-5)
    with pytest.raises(ValueError, match="The model has 2 outputs"):
        model = two_outputs()
        model.compile("sgd", loss="mse")
        model.evaluate(X, y, verbose=0)


def test_losses_in_a_list_for_an_output_are_added_up() -> None:
    y = X.sum(1, keepdims=True) + 2
    for loss in ({"a": ["mse"], "b": ["mse", "mae"]}, ["mse", ["mse", "mae"]]):
        model = two_outputs()
        model.compile("sgd", loss=loss, loss_weights=[1.0, 0.5])
        assert model.evaluate(X, [y, y], verbose=0)[0] == pytest.approx(4 + 0.5 * 6, rel=1e-5)


def test_weighted_metrics_of_several_outputs_have_the_names_of_keras() -> None:
    model = two_outputs()
    model.compile("sgd", loss="mse", metrics=[["mse"], []], weighted_metrics=[["mse"], ["mse"]])
    found = model.evaluate(X, [Y, Y], verbose=0, return_dict=True)
    assert sorted(found) == ["a_loss", "a_mse", "a_weighted_mse", "b_loss", "b_mse", "loss"]


def test_compute_loss_need_not_take_training() -> None:
    class Doubled(Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = layers.Dense(1)

        def call(self, x: Any) -> Any:
            return self.dense(x)

        def compute_loss(  # type: ignore[override]
            self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None
        ) -> Any:
            return 2 * super().compute_loss(x, y, y_pred, sample_weight)

    model = Doubled()
    model.compile("sgd", loss="mse", metrics=["mse"])
    model.fit(X, Y, verbose=0, validation_data=(X, Y))
    for loss, mse in (model.evaluate(X, Y, verbose=0), model.test_on_batch(X, Y)):
        assert loss == pytest.approx(2 * mse, rel=1e-5)


def test_sequential_leaves_the_sizes_to_its_layers(tmp_path):
    lengths = (5, 7, 3)

    def batches():
        for n in lengths:
            yield np.ones((2, n, 3), "f"), np.zeros((2, 1), "f")

    model = picodl.Sequential([layers.LSTM(3), layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(batches(), verbose=0)
    assert model.input_shape == (None, 5, 3)
    model.save(tmp_path / "x.keras")
    for again in (model, picodl.models.load_model(tmp_path / "x.keras")):
        for n in lengths:
            assert again.predict(np.ones((2, n, 3), "f"), verbose=0).shape == (2, 1)
        for wrong in ((2, 5, 4), (2, 3)):
            with pytest.raises(ValueError, match=r"(last axis 3|expects shape \(None, 5, 3\))"):
                again(np.ones(wrong, "f"))


def test_sequential_takes_ids_of_any_length_but_no_scrambled_channels():
    ids = picodl.Sequential([layers.Embedding(5, 3), layers.GlobalAveragePooling1D()])
    for n in (4, 6, 2):
        assert ids.predict(np.ones((2, n), int), verbose=0).shape == (2, 3)
    images = picodl.Sequential([Input((8, 8, 3)), layers.Flatten(), layers.Dense(2)])
    assert images(np.ones((2, 8, 8, 3), "f")).shape == (2, 2)
    with pytest.raises(ValueError, match=r"expects shape \(None, 8, 8, 3\)"):
        images(np.ones((2, 3, 8, 8), "f"))  # as many numbers, in another order


def test_the_shape_of_the_outputs_by_keyword() -> None:
    assert functional().compute_output_shape(input_shape=(4, 6)) == (4, 3)
    model = Sequential([layers.Dense(2)])
    model.add(layers.Dense(3), rebuild=True)
    assert model.compute_output_shape(input_shape=(4, 6)) == (4, 3)
    assert (model.run_eagerly, model.jit_compile, model.steps_per_execution) == (False, "auto", 1)


def test_losses_and_metrics_in_the_structure_of_the_outputs() -> None:
    x = Input((6,))
    one = {"use_bias": False, "kernel_initializer": "ones"}
    parts = [layers.Dense(1, **one)(x) for _ in range(3)]
    model = Model(x, {"a": parts[0], "b": {"c": parts[1], "d": [parts[2]]}})
    y = X.sum(1, keepdims=True) + 2
    model.compile(
        "sgd",
        loss={"a": "mse", "b": {"c": ["mae"], "d": [None]}},
        metrics={"a": ["mse", "mae"], "b": {"d": ["mse"]}},
    )
    targets = {"a": y, "b": {"c": y, "d": [y]}}
    found = model.evaluate(X, targets, verbose=0, return_dict=True)
    expected = {"loss": 6, "a_loss": 4, "b/c_loss": 2, "a_mse": 4, "a_mae": 2, "b/d/0_mse": 4}
    assert found == pytest.approx(expected, rel=1e-5)
    model.compile("sgd", loss={"a": "mse", "b": ["mse"]})
    with pytest.raises(ValueError, match="must have the structure of the outputs"):
        model.evaluate(X, targets, verbose=0)


@pytest.mark.parametrize("also", [{"shape": (3,)}, {"batch_size": 4}])
def test_an_input_is_told_its_batch_size_once(also):
    with pytest.raises(ValueError, match="pass batch_shape alone"):
        Input(batch_shape=(2, 3), **also)
    assert Input((3,), batch_size=2).shape == Input(batch_shape=(2, 3)).shape == (2, 3)


def test_compute_metrics_of_a_model_decides_what_is_logged() -> None:
    class Measured(Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = layers.Dense(1)
            self.error = picodl.metrics.Mean(name="error")

        def call(self, x: Any) -> Any:
            return self.dense(x)

        def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
            self.error.update_state(ops.abs(y - y_pred))
            found = super().compute_metrics(x, y, y_pred, sample_weight)
            return {**found, "inputs": ops.sum(x)}

    model, y = Measured(), Y[:, None].astype("float32")
    model.compile("sgd", loss="mse", metrics=["mae"])
    history = model.fit(X, y, epochs=2, verbose=0, validation_data=(X, y)).history
    names = ["error", "inputs", "loss", "mae"]
    assert sorted(history) == names + [f"val_{name}" for name in names]
    assert history["error"] == pytest.approx(history["mae"])
    assert history["val_error"] == pytest.approx(history["val_mae"])
    assert history["inputs"][0] == pytest.approx(X.sum(), rel=1e-4)
    found = model.evaluate(X, y, verbose=0, return_dict=True)
    assert found["error"] == pytest.approx(found["mae"]) and "inputs" in found
    for logs in (model.train_on_batch, model.test_on_batch):
        assert sorted(logs(X, y, return_dict=True)) == names
