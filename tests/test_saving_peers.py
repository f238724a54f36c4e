"""Keras loads what picodl saves, and the reverse; PyTorch's weights give PyTorch's numbers.

Run where Keras and PyTorch are installed; elsewhere `test_saving_formats` compares layouts.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import picodl as P
from picodl import saving

pytestmark = pytest.mark.peers
ENDINGS = (".keras", ".h5", ".weights.h5")
RNG = np.random.default_rng(0)
X = RNG.normal(size=(20, 6)).astype("float32")
Y = RNG.integers(0, 3, 20)


@pytest.fixture(scope="module")
def keras():
    return pytest.importorskip("keras")


def simple(K):
    L = K.layers
    return K.Sequential([K.Input((6,)), L.Dense(8, activation="relu"), L.Dense(3)])


def images(K):
    L = K.layers
    return K.Sequential(
        [
            K.Input((9, 9, 3)),
            L.Conv2D(4, 3, padding="same"),
            L.BatchNormalization(),
            L.ReLU(),
            L.MaxPooling2D(),
            L.DepthwiseConv2D(3),
            L.SeparableConv2D(3, 2),
            L.ZeroPadding2D(1),
            L.SpatialDropout2D(0.2),
            L.Flatten(),
            L.Dropout(0.3),
            L.Dense(2),
        ]
    )


def sequences(K):
    L = K.layers
    return K.Sequential(
        [
            K.Input((7, 3)),
            L.ZeroPadding1D(1),
            L.Bidirectional(L.LSTM(4, return_sequences=True)),
            L.GRU(3, return_sequences=True),
            L.TimeDistributed(L.Dense(3)),
            L.SimpleRNN(2),
        ]
    )


def attention(K):
    L = K.layers
    i = K.Input((7, 8))
    x = L.LayerNormalization()(L.Add()([i, L.MultiHeadAttention(2, 4)(i, i)]))
    x = L.Concatenate()([x, L.Dense(4, activation="gelu")(x)])
    return K.Model(i, L.Dense(2)(L.GlobalAveragePooling1D()(x)))


def operations(K):
    i = K.Input((6,))
    x = K.ops.relu(K.layers.Dense(4)(i)) * 2.0 + 1.0
    x = K.ops.concatenate([x, i], axis=-1)
    return K.Model(i, K.layers.Dense(2)(x[:, 1:]))


MODELS = {
    "simple": (simple, (6,)),
    "images": (images, (9, 9, 3)),
    "sequences": (sequences, (7, 3)),
    "attention": (attention, (7, 8)),
    "operations": (operations, (6,)),
}
# Keras cannot read its own older files with operations
NOT_IN_KERAS = {("operations", ".h5")}


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("writer", ["picodl", "keras"])
def test_models_predict_the_same_on_both_sides(writer, name, ending, keras, tmp_path):
    if writer == "picodl" and (name, ending) in NOT_IN_KERAS:
        pytest.skip("not supported by Keras")
    make, shape = MODELS[name]
    here, there = (P, keras) if writer == "picodl" else (keras, P)
    model = make(here)
    for weight in model.weights:
        weight.assign(RNG.uniform(0.1, 1.0, weight.shape).astype("float32"))
    path = str(tmp_path / f"x{ending}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if ending == ".weights.h5":
            model.save_weights(path)
            other = make(there)
            other.load_weights(path)
        else:
            model.save(path)
            other = there.models.load_model(path)
    x = RNG.normal(size=(3, *shape)).astype("float32")
    a, b = (np.asarray(m.predict(x, verbose=0)) for m in (model, other))
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("writer", ["picodl", "keras"])
def test_weights_of_tokens_load_on_the_other_side(writer, keras, tmp_path):
    here, there = (P, keras) if writer == "picodl" else (keras, P)
    texts = np.array(["the cat sat", "the dog sat on the cat", "a bird"])
    layer = here.layers.TextVectorization(output_mode="tf_idf")
    layer.adapt(texts)
    x = here.Input((), dtype="string")
    here.Model(x, layer(x)).save(str(tmp_path / "x.keras"))
    other = there.models.load_model(str(tmp_path / "x.keras")).layers[-1]
    assert other.get_vocabulary() == layer.get_vocabulary()
    np.testing.assert_allclose(np.asarray(other(texts)), np.asarray(layer(texts)), rtol=1e-6)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("writer", ["picodl", "keras"])
@pytest.mark.parametrize("name", ["SGD", "RMSprop", "Adam", "AdamW", "Adamax", "Nadam", "Lion"])
def test_training_goes_on_on_the_other_side(name, writer, ending, keras, tmp_path):
    if writer == "picodl" and ending == ".h5":
        pytest.skip("Keras cannot go on from its own older files either")
    here, there = (P, keras) if writer == "picodl" else (keras, P)

    def compiled(K):
        model = simple(K)
        options = {"momentum": 0.9} if name in ("SGD", "RMSprop") else {}
        rate = K.optimizers.schedules.CosineDecay(0.01, 10) if name == "AdamW" else 0.01
        loss = K.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(getattr(K.optimizers, name)(rate, **options), loss, metrics=["accuracy"])
        return model

    def fit(model):
        model.fit(X, Y, epochs=2, batch_size=8, shuffle=False, verbose=0)

    model, path = compiled(here), str(tmp_path / f"x{ending}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit(model)
        if ending == ".weights.h5":
            model.save_weights(path)
            other = compiled(there)
            other.optimizer.build(other.trainable_variables)
            other.load_weights(path)
        else:
            model.save(path)
            other = there.models.load_model(path)
        fit(model)
        fit(other)
    a, b = (np.asarray(m.predict(X, verbose=0)) for m in (model, other))
    np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


def torch_pairs():
    L = P.layers
    return {
        "mlp": (
            lambda nn: [nn.Linear(6, 4), nn.ReLU(), nn.LayerNorm(4), nn.Linear(4, 2)],
            [L.Dense(4, activation="relu"), L.LayerNormalization(epsilon=1e-5), L.Dense(2)],
            (6,),
        ),
        "cnn": (
            lambda nn: [
                nn.Conv2d(3, 4, 3),
                nn.BatchNorm2d(4),
                nn.ReLU(),
                nn.Conv2d(4, 8, 2, groups=4),
                nn.ConvTranspose2d(8, 5, 3),
                nn.Flatten(),
                nn.Linear(5 * 8 * 7, 2),
            ],
            [
                L.Conv2D(4, 3),
                L.BatchNormalization(epsilon=1e-5),
                L.ReLU(),
                L.DepthwiseConv2D(2, depth_multiplier=2),
                L.Conv2DTranspose(5, 3),
                L.Flatten(),
                L.Dense(2),
            ],
            (9, 8, 3),
        ),
        **{
            kind: (
                lambda nn, kind=kind, both=both: [
                    getattr(nn, kind.split()[0])(3, 4, batch_first=True, bidirectional=both)
                ],
                [L.Bidirectional(layer) if both else layer],
                (7, 3),
            )
            for both in (False, True)
            for kind, layer in {
                f"LSTM {both}": L.LSTM(4, return_sequences=True),
                f"GRU {both}": L.GRU(4, return_sequences=True),
                f"RNN {both}": L.SimpleRNN(4, return_sequences=True),
            }.items()
        },
    }


@pytest.mark.parametrize("name", torch_pairs())
def test_torch_weights_give_torch_numbers(name):
    torch = pytest.importorskip("torch")
    make, own, shape = torch_pairs()[name]
    net = torch.nn.Sequential(*make(torch.nn)).eval()
    for parameter in net.parameters():
        parameter.data.normal_()
    model = P.Sequential([P.Input(shape), *own])
    saving.load_torch_state_dict(model, net.state_dict())
    x = RNG.normal(size=(4, *shape)).astype("float32")
    given = x.transpose(0, 3, 1, 2).copy() if len(shape) == 3 else x
    with torch.no_grad():
        want = net(torch.tensor(given))
    want = (want[0] if isinstance(want, tuple) else want).numpy()
    np.testing.assert_allclose(model.predict(x, verbose=0), want, rtol=1e-4, atol=1e-5)


# numpy's complaint about the variables of Keras
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize("ending", [".keras", ".weights.h5"])
@pytest.mark.parametrize("writer", ["picodl", "keras"])
def test_what_layers_keep_themselves_is_read_on_the_other_side(writer, ending, keras, tmp_path):
    def kind(K):
        class Counted(K.layers.Layer):
            seen = np.zeros(3)

            def build(self, shape):
                self.scale = self.add_weight(shape=(6,), name="scale")

            def call(self, x):
                return x * self.scale

            def save_own_variables(self, store):
                super().save_own_variables(store)
                store["seen"] = self.seen

            def load_own_variables(self, store):
                self.seen = store["seen"]
                super().load_own_variables({k: store[k] for k in store.keys() if k != "seen"})  # noqa: SIM118

        return Counted

    here, there = (P, keras) if writer == "picodl" else (keras, P)
    custom = kind(there)
    model = here.Sequential([here.Input((6,)), kind(here)(), here.layers.Dense(3)])
    model.layers[0].seen = np.array([1.0, 2.0, 3.0])
    path = str(tmp_path / f"x{ending}")
    if ending == ".keras":
        model.save(path)
        other = there.models.load_model(path, custom_objects={"Counted": custom})
    else:
        model.save_weights(path)
        other = there.Sequential([there.Input((6,)), custom(), there.layers.Dense(3)])
        other.load_weights(path)
    np.testing.assert_array_equal(other.layers[0].seen, [1, 2, 3])
    a, b = (np.asarray(m.predict(X, verbose=0)) for m in (model, other))
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
