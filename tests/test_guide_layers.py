"""Layers and steps of the user's own, as Keras's guides write them."""

from __future__ import annotations

import numpy as np
import pytest

import picodl as keras
from picodl import layers, losses, ops


class Split(layers.Layer):
    """Halves of a sequence; its mask is split with it."""

    def call(self, inputs):
        return ops.split(inputs, 2, axis=1)

    def compute_mask(self, inputs, mask=None):
        return None if mask is None else ops.split(mask, 2, axis=1)


class OwnEmbedding(layers.Layer):
    def build(self, input_shape):
        self.table = self.add_weight(shape=(10, 3), initializer="random_normal")

    def call(self, inputs):
        return ops.take(self.table, ops.cast(inputs, "int32"), axis=0)

    def compute_mask(self, inputs, mask=None):
        return ops.not_equal(inputs, 0)


class StepSoftmax(layers.Layer):
    """A layer that insists on a mask."""

    supports_masking = True

    def call(self, inputs, mask=None):
        assert mask is not None
        kept = ops.exp(inputs) * ops.expand_dims(ops.cast(mask, "float32"), -1)
        return kept / ops.sum(kept, axis=1, keepdims=True)


IDS = np.array([[1, 2, 0, 0], [3, 4, 5, 0]])


def test_a_layer_with_its_own_compute_mask_supports_masking():
    first, second = Split()(layers.Embedding(10, 3, mask_zero=True)(IDS))
    np.testing.assert_array_equal(first.mask, IDS[:, :2] != 0)
    np.testing.assert_array_equal(second.mask, IDS[:, 2:] != 0)
    mask = OwnEmbedding()(IDS).mask
    assert isinstance(mask, np.ndarray)
    np.testing.assert_array_equal(mask, IDS != 0)


def test_a_layer_that_insists_on_a_mask_stands_in_a_functional_model():
    inputs = keras.Input((None,), dtype="int32")
    x = layers.Dense(1)(OwnEmbedding()(inputs))
    model = keras.Model(inputs, StepSoftmax()(x))
    assert model.output_shape == (None, None, 1)
    y = model.predict(IDS, verbose=0)
    np.testing.assert_allclose(y.sum(1), 1, rtol=1e-6)
    assert not y[0, 2:].any()


class Reconstruct(keras.Model):
    """Steps on inputs alone."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(4)

    def call(self, x):
        return self.dense(x)

    def _loss(self, data):
        assert data.shape[1:] == (4,)
        return losses.MeanSquaredError()(data, self(data))

    def train_step(self, data):
        loss = self._loss(data)
        self.minimize(loss)
        return {"loss": loss}

    def test_step(self, data):
        return {"loss": self._loss(data)}

    def predict_step(self, data):
        return self(data) * 0 + data.shape[0]


def test_steps_receive_the_array_itself_where_there_are_no_targets():
    x = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
    model = Reconstruct()
    model.compile("adam")
    history = model.fit(x, epochs=2, batch_size=4, verbose=0, validation_data=(x,)).history
    assert list(history) == ["loss", "val_loss"]
    assert (model.predict(x, batch_size=4, verbose=0) == 4).all()
    assert (model.predict_on_batch(x) == 8).all()


def test_labels_of_a_gan_may_carry_noise():
    noisy = np.array([[1.05], [0.03]], "float32")
    loss = losses.BinaryCrossentropy(from_logits=True)
    assert np.isfinite(float(loss(noisy, np.zeros((2, 1), "float32"))))
    with pytest.raises(ValueError, match="between 0 and 1"):
        loss(np.array([[-1.0], [1.0]]), np.zeros((2, 1), "float32"))


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_matrices_and_masked_arrays_are_taken_as_plain_arrays_or_refused():
    x = np.ones((4, 3), "float32")
    model = keras.Sequential([keras.Input((3,)), layers.Dense(3, activation="relu")])
    model.compile("sgd", "mse")
    expected = model.predict(x, verbose=0)
    for given in (np.asmatrix(x), np.ma.array(x)):
        np.testing.assert_array_equal(model.predict(given, verbose=0), expected)
        np.testing.assert_array_equal(model(given).numpy(), expected)
        model.train_on_batch(given, expected)
    hidden = np.ma.array(x, mask=x > 2)
    hidden[0, 0] = np.ma.masked
    for use in (model, model.predict, lambda h: model.fit(x, h, verbose=0)):
        with pytest.raises(ValueError, match=r"masked array with hidden entries.*filled\(0\)"):
            use(hidden)


def test_lists_and_tuples_of_numbers_are_arrays_and_those_of_tensors_keep_their_gradient():
    dense = layers.Dense(2)
    assert dense(((1, 2, 3), (4, 5, 6))).shape == (2, 2)

    class Sum(layers.Layer):
        def call(self, pairs):
            return pairs[0][0] + pairs[1][1]

    x = keras.Variable(np.ones((2, 3)))
    Sum()([[x, x], [x, x]]).sum().backward()
    np.testing.assert_array_equal(x.grad, np.full((2, 3), 2))


class Stack(keras.Model):
    def __init__(self, width=4, **kwargs):
        super().__init__(**kwargs)
        self.width = width
        self.first = layers.Dense(width, activation="relu")
        self.blocks = [layers.Dense(width) for _ in range(2)]
        self.normalise = layers.BatchNormalization()
        self.calls = 0

    def call(self, x, training=False):
        self.calls += 1
        for block in (self.first, *self.blocks):
            x = block(x)
        return self.normalise(x, training=training)

    def get_config(self):
        return {"width": self.width}


def test_a_subclassed_model_is_built_for_a_shape():
    model = Stack()
    model.build((None, 3))
    assert model.built and len(model.weights) == 10
    assert not model.normalise.moving_mean.data.any()
    assert model.count_params() == 4 * 4 + 2 * 20 + 16
    model.summary(print_fn=lambda text: None)
    once = Stack()
    once(np.ones((2, 3)))
    assert once.calls == 1  # a call does not run the model on zeros first


def test_a_subclassed_model_without_a_build_comes_back_from_its_file(tmp_path):
    x = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
    model = Stack()
    model.compile("adam", "mse")
    model.fit(x, np.ones((8, 4)), verbose=0)
    path = str(tmp_path / "stack.keras")
    model.save(path)
    loaded = keras.models.load_model(path, custom_objects={"Stack": Stack})
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), model.predict(x, verbose=0))
    for m in (model, loaded):
        m.fit(x, np.ones((8, 4)), verbose=0)  # the optimizer's state came along
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), model.predict(x, verbose=0))


def test_a_model_of_several_inputs_is_built_for_their_shapes():
    class Two(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = layers.Dense(2)

        def call(self, inputs):
            return self.dense(inputs["a"]) + self.dense(inputs["b"])

    model = Two()
    model.build({"a": (None, 3), "b": (None, 3)})
    assert len(model.weights) == 2
    with pytest.raises(ValueError, match="cannot be called on symbols of shape"):
        Two().build({"a": (None, 3), "b": (None, 4)})


def test_weights_made_in_a_constructor_have_the_layers_name_in_their_paths():
    class Shift(layers.Layer):
        def __init__(self):
            super().__init__(name="shift")
            self.b = self.add_weight(shape=(2,), name="b")

        def build(self, input_shape):
            self.c = self.add_weight(shape=(2,), name="c")

        def call(self, x):
            return x + self.b + self.c

    layer = Shift()
    layer(np.ones((1, 2)))
    assert [w.path for w in layer.weights] == ["shift/b", "shift/c"]


def test_a_mixed_model_gives_what_its_last_layer_gives():
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = keras.Sequential(
            [keras.Input((2,)), layers.Dense(3), layers.Dense(1, dtype="float32")]
        )
    finally:
        keras.config.set_dtype_policy(None)
    x = np.ones((4, 2), "float32")
    assert model.layers[0](x).dtype == "float16"
    assert model(x).dtype == model.predict(x, verbose=0).dtype == np.float32


class Normed(layers.Layer):
    """What is inside is built by a call; the shape needs none."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.norm = layers.LayerNormalization()

    def call(self, inputs):
        return self.norm(inputs)

    def compute_output_shape(self, input_shape):
        return input_shape


def test_layers_inside_are_built_where_a_model_of_symbols_is_made():
    inputs = keras.Input((4,))
    model = keras.Model(inputs, Normed()(inputs))
    assert [w.shape for w in model.weights] == [(4,), (4,)]


def test_input_spec_may_be_a_list():
    class Steps(layers.SimpleRNN):
        def __init__(self, **kwargs):
            super().__init__(3, **kwargs)
            self.input_spec = [layers.InputSpec(ndim=3)]

        def build(self, input_shape):
            super().build(input_shape)
            self.input_spec = [layers.InputSpec(shape=(None, None, input_shape[-1]))]

    model = keras.Sequential([keras.Input((5, 2)), Steps()])
    for _ in range(2):  # the second call takes the short path
        assert model(np.ones((4, 5, 2), "float32")).shape == (4, 3)
    with pytest.raises(ValueError, match="expects input of shape"):
        model.layers[0](np.ones((4, 5, 3), "float32"))
    with pytest.raises(ValueError, match="rank 3"):
        Steps()(np.ones((4, 5), "float32"))


def test_add_variable_is_add_weight():
    class Swap(layers.Layer):
        def __init__(self):
            super().__init__()
            self.order = self.add_variable((3,), "ones", trainable=False, dtype="int32", name="o")

        def call(self, inputs):
            return inputs * ops.cast(self.order, "float32")

    layer = Swap()
    assert layer(np.ones((1, 3), "float32")).shape == (1, 3)
    assert layer.order.dtype == "int32" and not layer.trainable_weights


def test_a_layer_lists_the_variables_of_its_metrics():
    class Share(keras.metrics.Metric):
        def __init__(self):
            super().__init__()
            self.total = self.add_variable((), "zeros", name="total")

        def update_state(self, values):
            self.total.assign_add(float(np.sum(values)))

        def result(self):
            return self.total

    layer, outer = layers.Dense(2, dtype="float64"), layers.Layer()
    layer.share, outer.inner = Share(), layer
    assert layer.metrics_variables == outer.metrics_variables == [layer.share.total]
    assert layer.input_dtype == "float64" and layers.Dense(1).metrics_variables == []


@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool"])
def test_dense_of_integers_gives_floats(dtype):
    x = np.array([[1, 0]], dtype)
    layer = layers.Dense(3)
    assert layer(x).dtype == "float32" and layer(layers.ReLU()(x)).dtype == "float32"
    np.testing.assert_array_equal(layer(x).numpy(), layer(x.astype("float32")).numpy())
