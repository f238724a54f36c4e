"""What every exported layer promises, tried on each of them."""

from __future__ import annotations

import copy
import inspect
import json
import pickle
from typing import Any

import numpy as np
import pytest

import picodl
from picodl import layers, tree
from picodl.layers import Layer
from picodl.tensor import Tensor

rng = np.random.default_rng(0)
VECTOR, SEQUENCE, IMAGE, VOLUME = (4, 6), (4, 5, 6), (4, 8, 8, 3), (2, 6, 6, 6, 2)

# class -> (arguments, shape of the input, or a function that makes it)
SPECIAL: dict[str, tuple[dict[str, Any], Any]] = {
    "Dense": ({"units": 3}, SEQUENCE),
    "Linear": ({"input_size": 6, "output_size": 3}, VECTOR),
    "EinsumDense": (
        {"equation": "abc,cd->abd", "output_shape": (5, 7), "bias_axes": "d"},
        SEQUENCE,
    ),
    "Embedding": ({"input_dim": 9, "output_dim": 4}, lambda: rng.integers(0, 9, (4, 5))),
    "ReversibleEmbedding": ({"input_dim": 9, "output_dim": 4}, lambda: rng.integers(0, 9, (4, 5))),
    "TokenAndPositionEmbedding": (
        {"vocabulary_size": 9, "sequence_length": 5, "embedding_dim": 4},
        lambda: rng.integers(0, 9, (4, 5)),
    ),
    "Activation": ({"activation": "relu"}, VECTOR),
    "Dropout": ({"rate": 0.5}, VECTOR),
    "AlphaDropout": ({"rate": 0.5}, VECTOR),
    "GaussianDropout": ({"rate": 0.5}, VECTOR),
    "GaussianNoise": ({"stddev": 1.0}, VECTOR),
    "SpatialDropout1D": ({"rate": 0.5}, SEQUENCE),
    "SpatialDropout2D": ({"rate": 0.5}, IMAGE),
    "SpatialDropout3D": ({"rate": 0.5}, VOLUME),
    "Reshape": ({"target_shape": (3, 2)}, VECTOR),
    "Permute": ({"dims": (2, 1)}, SEQUENCE),
    "RepeatVector": ({"n": 3}, VECTOR),
    "Rescaling": ({"scale": 0.5}, VECTOR),
    "Dot": ({"axes": 1}, lambda: [rng.normal(size=VECTOR).astype("f"), np.ones(VECTOR, "f")]),
    "GroupNormalization": ({"groups": 3}, IMAGE),
    "TimeDistributed": ({"layer": layers.Dense(3)}, SEQUENCE),
    "MultiHeadAttention": ({"num_heads": 2, "key_dim": 3}, "attention"),
    "GroupQueryAttention": (
        {"head_dim": 3, "num_query_heads": 4, "num_key_value_heads": 2},
        "attention",
    ),
    "GroupedQueryAttention": (
        {"head_dim": 3, "num_query_heads": 4, "num_key_value_heads": 2},
        "attention",
    ),
    "Attention": ({}, lambda: [rng.normal(size=SEQUENCE).astype("f") for _ in range(2)]),
    "AdditiveAttention": ({}, lambda: [rng.normal(size=SEQUENCE).astype("f") for _ in range(2)]),
    "SpectralNormalization": ({"layer": layers.Dense(3)}, VECTOR),
    "AlibiBias": ({}, (4, 3, 5, 5)),
    "Normalization": ({}, VECTOR),
    "Softmax": ({}, VECTOR),
}
MERGING = ("Add", "Average", "Concatenate", "Maximum", "Minimum", "Multiply", "Subtract")
# not made for one array of numbers: bases, wrappers of something else, text and image layers
APART = {
    "Input", "InputLayer", "InputSpec", "Layer", "Wrapper", "Lambda", "RNN", "StackedRNNCells",
    "SimpleRNNCell", "LSTMCell", "GRUCell", "Pipeline", "StringLookup", "IntegerLookup",
    "TextVectorization", "Hashing", "HashedCrossing", "CategoryEncoding", "Discretization",
    "MixUp", "CutMix", "ConvLSTMCell", "Cell", "TransformerDecoder",
}  # fmt: skip


def example(name: str) -> tuple[Any, list[Any]]:
    """A layer of the class with small arguments, and arrays to call it on."""
    cls = getattr(layers, name)
    if name in SPECIAL:
        arguments, given = SPECIAL[name]
        if "layer" in arguments:
            arguments = {**arguments, "layer": layers.Dense(3)}
    elif name in MERGING:
        arguments, given = {}, lambda: [rng.normal(size=VECTOR).astype("f") for _ in range(2)]
    else:
        parameters = inspect.signature(cls.__init__).parameters
        arguments = {}
        small = {
            "filters": 4, "kernel_size": 3, "pool_size": 2, "units": 3, "output_size": 2, "size": 2,
            "height": 4, "width": 4, "factor": 0.2, "height_factor": 0.2, "width_factor": 0.2,
            "padding": 1, "num_heads": 2, "intermediate_dim": 8, "sequence_length": 5,
            "max_length": 5, "cropping": 1, "head_dim": 3,
        }  # fmt: skip
        for key, parameter in parameters.items():
            required = parameter.default is inspect.Parameter.empty
            if key in small and required:
                arguments[key] = small[key]
        if name == "Bidirectional":
            arguments = {"layer": layers.LSTM(3)}
        dimension = next((int(d) for d in "123" if f"{d}D" in name), None)
        given = {1: SEQUENCE, 2: IMAGE, 3: VOLUME}.get(dimension, VECTOR)
        if name.startswith(("Random", "Resizing", "CenterCrop")):
            given = IMAGE
        if name.startswith("ConvLSTM"):
            given = (2, 3, 8, 3) if dimension == 1 else (2, 3, 8, 8, 3)
        sequences = (
            "LSTM", "GRU", "SimpleRNN", "Bidirectional", "Masking", "Transformer", "Position",
            "Sinusoidal", "Sine", "Rotary",
        )  # fmt: skip
        if name.startswith(sequences):
            given = SEQUENCE
    layer = cls(**arguments)
    if name.startswith("Random"):
        layer.eval()  # these are active in direct calls
    if given == "attention":
        return layer, [rng.normal(size=SEQUENCE).astype("f") for _ in range(2)]
    if callable(given):
        return layer, [given()]
    return layer, [rng.normal(size=given).astype("f")]


NAMES = sorted(
    name
    for name in layers.__all__
    if inspect.isclass(getattr(layers, name))
    and issubclass(getattr(layers, name), Layer)
    and name not in APART
)


def arrays(outputs: Any) -> list[np.ndarray]:
    return [y.data for y in tree.flatten(outputs) if isinstance(y, Tensor)]


@pytest.mark.parametrize("name", NAMES)
def test_layer_keeps_the_contract(name: str, tmp_path: Any) -> None:
    layer, inputs = example(name)
    outputs = layer(*inputs)
    found = arrays(outputs)
    assert (
        found
        and layer.built
        and layer.name.startswith(picodl.naming.to_snake_case(type(layer).__name__))
    )

    # float32 in, float32 out, inputs unchanged
    again = [copy.deepcopy(x) for x in inputs]
    before = arrays(layer(*again))
    assert all(y.dtype == np.float32 for y in before if y.dtype.kind == "f")
    for x, y in zip(tree.flatten(inputs), tree.flatten(again), strict=True):
        np.testing.assert_array_equal(x, y)

    # compute_output_shape is the real shape
    shapes = tree.map_structure(lambda x: (None, *x.shape[1:]), inputs)
    shape_of = layer.compute_output_shape(*shapes)
    expected = [shape_of] if len(found) == 1 else list(shape_of)
    for y, shape in zip(found, expected, strict=True):
        assert tuple(shape)[1:] == y.shape[1:], (shape, y.shape)

    # the same from its config, with the same weights
    twin = type(layer).from_config(layer.get_config())
    assert twin.name == layer.name
    if name.startswith("Random"):
        twin.eval()
    twin(*inputs)
    twin.set_weights(layer.get_weights())
    for y, z in zip(arrays(twin(*inputs)), before, strict=True):
        np.testing.assert_array_equal(y, z)

    # copies and pickles compute the same
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        for y, z in zip(arrays(other(*inputs)), before, strict=True):
            np.testing.assert_array_equal(y, z)

    # a batch of n is n single samples at inference
    single = [tree.map_structure(lambda x: x[:1], x) for x in inputs]
    for y, z in zip(arrays(layer(*single)), before, strict=True):
        np.testing.assert_allclose(y, z[:1], rtol=1e-4, atol=1e-5)

    # gradients reach the weights and the inputs in training
    tensors = [
        tree.map_structure(lambda a: Tensor(a, requires_grad=a.dtype.kind == "f"), x)
        for x in inputs
    ]
    trained = [y for y in tree.flatten(layer(*tensors, training=True)) if y.requires_grad]
    if trained:
        total = trained[0].sum()
        for y in trained[1:]:
            total = total + y.sum()
        total.backward()
        for weight in layer.trainable_weights:
            assert weight.grad is None or np.isfinite(weight.grad).all()


@pytest.mark.parametrize("name", NAMES)
def test_layer_saves_and_loads_its_weights(name: str, tmp_path: Any) -> None:
    layer, inputs = example(name)
    if len(inputs) > 1 or isinstance(inputs[0], list):
        pytest.skip("takes several inputs")
    model = picodl.Sequential([layer])
    y = model(inputs[0])
    path = tmp_path / "model.weights.h5"
    model.save_weights(path)
    fresh = picodl.Sequential([type(layer).from_config(layer.get_config())])
    fresh(inputs[0])
    fresh.load_weights(path)
    for a, b in zip(arrays(fresh(inputs[0])), arrays(model(inputs[0])), strict=True):
        np.testing.assert_array_equal(a, b)
    assert len(arrays(y)) >= 1


def test_forward_takes_arrays_as_the_manual_loop_does() -> None:
    layer = layers.Linear(3, 2)
    x = np.ones((4, 3))
    assert layer.forward(x).requires_grad
    np.testing.assert_array_equal(layer.forward(x).data, layer(x).data)


def test_training_flag_is_passed_on_in_the_order_of_keras() -> None:
    class Probe(Layer):
        def call(self, x: Any, training: bool = False) -> Any:
            seen.append(training)
            return x

    class Outer(Layer):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Probe()

        def call(self, x: Any) -> Any:
            return self.inner(x)

    seen: list[bool] = []
    x = np.ones((1, 1))
    outer = Outer()
    outer(x)
    outer(x, training=True)
    outer.train()
    outer(x)
    outer.eval()
    outer(x)
    outer.inner(x, training=True)
    assert seen == [False, True, True, False, True]


def test_a_build_that_fails_leaves_no_half_built_layer() -> None:
    class Half(Layer):
        def build(self, shape: Any) -> None:
            self.first = self.add_weight((1,), name="first")
            raise ValueError("no")

    layer = Half()
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            layer(np.ones((1, 1)))
    assert not layer.built and layer.weights == []


def test_weights_come_in_order_of_creation_trainable_first() -> None:
    class Mixed(Layer):
        def __init__(self) -> None:
            super().__init__()
            self.bias = None

        def build(self, shape: Any) -> None:
            self.state = self.add_weight((1,), trainable=False, name="state")
            self.kernel = self.add_weight((1,), name="kernel")
            self.bias = self.add_weight((1,), name="bias")

    layer = Mixed()
    layer.build((None, 1))
    assert [w.name for w in layer.weights] == ["kernel", "bias", "state"]
    layer.trainable = False
    assert [w.name for w in layer.weights] == ["kernel", "bias", "state"]
    assert layer.trainable_weights == [] and len(layer.non_trainable_weights) == 3
    layer.trainable = True
    assert [w.name for w in layer.trainable_weights] == ["kernel", "bias"]


def test_messages_name_the_layer_and_what_came() -> None:
    layer = layers.Dense(3, name="wide")
    layer(np.ones((2, 64)))
    with pytest.raises(
        ValueError, match=r'"wide" was built for inputs with last axis 64.*\(32, 10\)'
    ):
        layer(np.ones((32, 10)))
    with pytest.raises(ValueError, match='"wide" expects input of rank 2 or more'):
        layer(np.ones(64))
    with pytest.raises(TypeError, match="bias"):
        layers.Dense(3, bias=False)
    with pytest.raises(ValueError, match=r"units must be an integer of at least 1; received 0"):
        layers.Dense(0)
    with pytest.raises(ValueError, match='Did you mean "softmax"'):
        layers.Dense(3, activation="sotfmax")
    with pytest.raises(TypeError, match=r"expects numbers, but received an array of dtype"):
        layer(np.array([["a"]]))
    with pytest.raises(ValueError, match=r"would take .* GiB"):
        layers.Dense(10**12).build((None, 4))


def test_errors_of_numpy_say_which_layer_was_being_called() -> None:
    class Wrong(Layer):
        def call(self, x: Any) -> Any:
            return np.ones(3) + x

    with pytest.raises(ValueError) as caught:
        Wrong(name="odd")(np.ones((2, 2)))
    assert any('layer "odd"' in note for note in caught.value.__notes__)


def test_config_of_a_simple_custom_layer_needs_no_code() -> None:
    class Scaled(Layer):
        def __init__(self, factor: float, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.factor = factor

        def call(self, x: Any) -> Any:
            return x * self.factor

    config = Scaled(2.5, name="s").get_config()
    assert config["factor"] == 2.5 and Scaled.from_config(config).factor == 2.5
    with pytest.raises(NotImplementedError, match="get_config"):
        Scaled(np.ones(2)).get_config()


def test_losses_hold_penalties_and_what_the_last_call_added() -> None:
    class Adds(Layer):
        def call(self, x: Any) -> Any:
            self.add_loss(x.sum())
            return x

    dense = layers.Dense(
        1, kernel_regularizer=picodl.regularizers.L2(0.5), kernel_initializer="ones"
    )
    model = picodl.Sequential([dense, Adds()])
    model(np.ones((1, 2), "f"))
    assert sorted(float(v) for v in model.losses) == [1.0, 2.0]
    assert [float(v) for v in dense.losses] == [1.0]
    with pytest.raises(RuntimeError, match="inside call"):
        model.layers[1].add_loss(1.0)
    assert "losses" not in vars(model)


def test_input_spec_from_its_config() -> None:
    spec = layers.InputSpec(min_ndim=2, axes={-1: 3}, name="x")
    twin = layers.InputSpec.from_config(json.loads(json.dumps(spec.get_config())))
    assert vars(twin) == vars(spec)
    assert layers.InputSpec.from_config({"shape": (None, 3)}).ndim == 2


def test_paths_and_metrics_of_layers_inside_layers() -> None:
    class Outer(Layer):
        def __init__(self) -> None:
            super().__init__(name="outer")
            self.inner = layers.Dense(2, name="inner")
            self.inner.seen = picodl.metrics.Mean(name="seen")
            self.others = [picodl.metrics.Sum(name="other")]

        def call(self, x: Any) -> Any:
            return self.inner(x)

    layer = Outer()
    assert layer.path is None and layer.inner.path is None
    layer(np.ones((1, 3)))
    assert (layer.path, layer.inner.path) == ("outer", "outer/inner")
    assert sorted(metric.name for metric in layer.metrics) == ["other", "seen"]
    model = picodl.Sequential([picodl.Input((3,)), Outer(), layers.Dense(1, name="d")], name="s")
    outer, dense = model.layers
    paths = [part.path for part in (model, outer, outer.inner, dense)]
    assert paths == ["s", "s/outer", "s/outer/inner", "s/d"]
    assert outer.inner.kernel.path == "s/outer/inner/kernel"
    assert len(model.metrics) == 2
    later = picodl.Sequential([layers.Dense(1, name="d")], name="later")
    assert later.path is None
    later.build((None, 3))
    assert (later.path, later.layers[0].path) == ("later", "later/d")
    x = picodl.Input((3,))
    graph = picodl.Model(x, layers.Dense(1, name="d")(x), name="graph")
    assert (graph.path, graph.layers[1].path) == ("graph", "d")


def test_a_subclass_with_weights_of_its_own_is_built_though_its_base_needs_none() -> None:
    class Scaled(layers.Dropout):
        def build(self, input_shape: Any) -> None:
            self.factor = self.add_weight(input_shape[-1:], "ones", name="factor")

        def call(self, inputs: Any, training: bool = False) -> Any:
            return super().call(inputs * self.factor, training)

    assert layers.Dropout(0.5).built
    layer = Scaled(0.5)
    assert not layer.built
    assert layer(np.ones((2, 3), "f")).shape == (2, 3)
    assert [w.shape for w in layer.weights] == [(3,)]


def test_an_activation_may_be_taken_away() -> None:
    options: Any = {"activation": "relu", "kernel_initializer": "ones"}
    for layer, shape in (
        (layers.Dense(2, **options), (3, 4)),
        (layers.EinsumDense("ab,bc->ac", 2, **options), (3, 4)),
        (layers.EinsumDense("ab,b->a", (), **options), (3, 4)),
        (layers.Conv1D(2, 3, **options), (3, 6, 4)),
    ):
        layer.activation = None
        assert (np.asarray(layer(-np.ones(shape, "f"))) < 0).all()


@pytest.mark.parametrize(
    ("equation", "output_shape", "axes", "kernel", "bias", "output"),
    [
        ("bc...,cde->bde...", (3, 4), "de", (1, 3, 4), (3, 4, 1), (2, 3, 4, 2)),
        ("bc...,cde->bde...", (3, 4), "e", (1, 3, 4), (4, 1), (2, 3, 4, 2)),
        ("bc...,cd->bd...", 4, "d", (1, 4), (4, 1), (2, 4, 2)),
        ("...c,cd->...d", (None, 4), None, (2, 4), None, (2, 1, 4)),
    ],
)
def test_output_shape_of_einsum_dense_has_the_axes_with_letters(
    equation: str, output_shape: Any, axes: Any, kernel: Any, bias: Any, output: Any
) -> None:
    layer = layers.EinsumDense(equation, output_shape, bias_axes=axes)
    assert layer(np.ones((2, 1, 2), "f")).shape == output
    assert layer.compute_output_shape((2, 1, 2)) == output
    assert [w.shape for w in layer.weights] == [kernel] + [bias] * (bias is not None)


def test_shapes_in_arguments_are_checked() -> None:
    for shape in ((-2, 5), (-1, -1), (2.5,)):
        with pytest.raises(ValueError, match="expects sizes, of which one may be -1"):
            layers.Reshape(shape)
    for make in (layers.Dropout, layers.AlphaDropout):
        assert make(0.5, noise_shape=[3, 1, None]).noise_shape == (3, 1, None)
        for noise in ("no", (3, 1.5), (3, -1), (0, 1)):
            with pytest.raises(ValueError, match="noise_shape must list positive"):
                make(0.5, noise_shape=noise)


def test_a_conv_lstm_tells_what_it_was_made_with() -> None:
    layer = layers.ConvLSTM2D(4, 3, padding="same", activation="relu", dropout=0.1)
    assert (layer.filters, layer.kernel_size, layer.padding) == (4, (3, 3), "same")
    assert layer.activation.__name__ == "relu" and layer.dropout == 0.1
    assert copy.deepcopy(layer).filters == 4
    with pytest.raises(AttributeError, match="no attribute 'units'"):
        layer.units


def test_vectors_of_rescaling_belong_to_the_channels() -> None:
    layer, x = layers.Rescaling([1.0, 2.0, 4.0], [0.0, 1.0, 0.0]), np.ones((2, 3, 5, 5), "f")
    picodl.config.set_image_data_format("channels_first")
    try:
        assert layer(x)[0, :, 0, 0].numpy().tolist() == [1, 3, 4]
        assert layer(np.ones((3, 3), "f"))[1].numpy().tolist() == [1, 3, 4]  # no images
    finally:
        picodl.config.set_image_data_format("channels_last")
    assert layer(np.ones((2, 5, 5, 3), "f"))[0, 0, 0].numpy().tolist() == [1, 3, 4]
