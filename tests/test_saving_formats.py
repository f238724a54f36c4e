"""Every format both ways: files that Keras wrote, and files that picodl writes."""

from __future__ import annotations

import json
import warnings
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest

import picodl as P
from picodl import layers, saving

FOLDER = Path(__file__).parent / "golden" / "files"
FOLDERS = sorted(p.name for p in FOLDER.iterdir() if p.is_dir())
WHOLE = [(d, f) for d in FOLDERS for f in ("model.keras", "model.h5") if (FOLDER / d / f).exists()]
WEIGHTS = [
    (d, f)
    for d in FOLDERS
    for f in ("model.weights.h5", "legacy_weights.h5", "model.h5", "model.keras")
    if (FOLDER / d / f).exists() and d != "subclassed"
]
FORMATS = (".weights.h5", ".keras", ".h5", ".npz", ".safetensors")


def expected(folder):
    with np.load(FOLDER / folder / "expected.npz") as z:
        return dict(z)


def inputs(values):
    found = [values[k] for k in sorted(values) if k.startswith("input_")]
    return found if len(found) > 1 else found[0]


def predicts(model, values):
    found = P.tree.flatten(model.predict(inputs(values), verbose=0))
    for i, y in enumerate(found):
        np.testing.assert_allclose(y, values[f"output_{i}"], rtol=1e-5, atol=1e-5)


def net(units=8, names=("a", "b"), compiled=False):
    model = P.Sequential(
        [P.Input((4,)), layers.Dense(units, "relu", name=names[0]), layers.Dense(3, name=names[1])]
    )
    if compiled:
        model.compile("adam", "mse", metrics=["mae"])
    return model


def same(a, b):
    return len(a.weights) == len(b.weights) and all(
        np.array_equal(x, y) for x, y in zip(a.get_weights(), b.get_weights(), strict=True)
    )


def save(model, path):
    write = model.save if str(path).endswith((".keras", ".h5")) else model.save_weights
    if str(path).endswith(".weights.h5"):
        write = model.save_weights
    write(path)
    return path


DATA = np.random.default_rng(0)
X = DATA.normal(size=(20, 4)).astype("float32")
Y = DATA.normal(size=(20, 3)).astype("float32")


# ---------------------------------------------------------------------------- Keras's files


@pytest.mark.parametrize(("folder", "file"), WHOLE)
def test_whole_models_of_keras_predict_what_keras_predicted(folder, file):
    values = expected(folder)
    model = saving.load_model(FOLDER / folder / file)
    predicts(model, values)
    names = sorted(k for k in values if k.startswith("optimizer_") and k[10:].isdigit())
    if names:
        found = list(model.optimizer.variables)
        if folder.startswith("keras2_"):  # Keras 2 keeps the rate elsewhere
            found = [v for v in found if v.name != "learning_rate"]
        assert len(found) == len(names)
        for variable, name in zip(found, names, strict=True):
            assert np.array_equal(variable.numpy(), values[name]), name


@pytest.mark.parametrize(("folder", "file"), WEIGHTS)
def test_weights_of_keras_load_into_the_same_architecture(folder, file):
    config = str(expected(folder.removeprefix("keras2_"))["config"])
    model = P.models.model_from_json(config)
    with warnings.catch_warnings():  # compiled, but another optimizer state than the file's
        warnings.filterwarnings("ignore", message="The state of optimizer")
        model.load_weights(FOLDER / folder / file)
    predicts(model, expected(folder))


class Block(layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.first = layers.Dense(5, activation="relu")
        self.rest = [layers.Dense(5), layers.Dense(5)]

    def build(self, shape):
        self.scale = self.add_weight((5,), "ones", name="scale")
        self.first.build(shape)
        for layer in self.rest:
            layer.build((shape[0], 5))

    def call(self, x):
        x = self.first(x)
        for layer in self.rest:
            x = x + layer(x)
        return x * self.scale


class Subclassed(P.Model):
    def __init__(self):
        super().__init__(name="subclassed")
        self.block = Block()
        self.heads = {"a": layers.Dense(2), "b": layers.Dense(1)}
        self.bn = layers.BatchNormalization()

    def call(self, x, training=False):
        h = self.bn(self.block(x), training=training)
        return [self.heads["a"](h), self.heads["b"](h)]


def test_a_subclassed_model_goes_by_attribute_paths(tmp_path):
    values = expected("subclassed")
    P.utils.clear_session()
    model = Subclassed()
    model(inputs(values))
    model.load_weights(FOLDER / "subclassed" / "model.weights.h5")
    predicts(model, values)
    model.save_weights(tmp_path / "own.weights.h5")
    assert structure(tmp_path / "own.weights.h5") == structure(
        FOLDER / "subclassed" / "model.weights.h5"
    )


class Tower(P.Model):
    def __init__(self, depth=2, **kwargs):
        super().__init__(**kwargs)
        self.depth = depth
        self.blocks = [layers.Dense(4, "tanh") for _ in range(depth)]
        self.head = layers.Dense(3)

    def call(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)

    def get_config(self):
        return {**super().get_config(), "depth": self.depth}


def test_a_subclassed_model_is_saved_whole_with_its_config(tmp_path):
    model = Tower(3)
    model.compile("adam", "mse")
    model.fit(X, Y, epochs=1, verbose=0)
    model.save(tmp_path / "x.keras")
    back = saving.load_model(tmp_path / "x.keras", {"Tower": Tower})
    for m in (model, back):
        m.fit(X, Y, epochs=1, shuffle=False, verbose=0)
    assert same(model, back)
    with pytest.raises(ValueError, match=r"Tower.*\.keras"):
        model.save(tmp_path / "x.h5")


def structure(path):
    """What a weights file holds: path -> shape, and the names of the groups."""
    found = {}
    with h5py.File(path) as file:

        def visit(name, item):
            is_array = isinstance(item, h5py.Dataset)
            found[name] = item.shape if is_array else dict(item.attrs)

        file.visititems(visit)
    return found


@pytest.mark.parametrize("folder", [d for d in FOLDERS if (FOLDER / d / "model.keras").exists()])
def test_what_picodl_writes_is_laid_out_as_keras_writes_it(folder, tmp_path):
    model = saving.load_model(FOLDER / folder / "model.keras")
    model.save_weights(tmp_path / "own.weights.h5")
    mine = structure(tmp_path / "own.weights.h5")
    theirs = structure(FOLDER / folder / "model.weights.h5")
    # whether an optimizer that took no step has its slots is the backend's affair, and Keras's
    # attention holds a softmax and a dropout layer, without weights
    assert without(mine) == without(theirs)
    model.save(tmp_path / "own.h5")
    with h5py.File(tmp_path / "own.h5") as a, h5py.File(FOLDER / folder / "model.h5") as b:
        mine, theirs = a["model_weights"], b["model_weights"]
        assert list(mine.attrs["layer_names"].astype(str)) == list(theirs.attrs["layer_names"])
        for layer in theirs:
            names = [list(map(_text, g[layer].attrs["weight_names"])) for g in (mine, theirs)]
            assert [n.split("/")[-1] for n in names[0]] == [n.split("/")[-1] for n in names[1]]
            assert [mine[layer][n].shape for n in names[0]] == [
                theirs[layer][n].shape for n in names[1]
            ]
    model.save(tmp_path / "own.keras")
    with zipfile.ZipFile(tmp_path / "own.keras") as archive:
        assert archive.namelist() == ["metadata.json", "config.json", "model.weights.h5"]
        assert {i.compress_type for i in archive.infolist()} == {zipfile.ZIP_STORED}
    for name in ("own.keras", "own.h5"):
        predicts(saving.load_model(tmp_path / name), expected(folder))


def without(found):
    parts = ("optimizer/vars/", "/_softmax", "/_dropout_layer")
    return {k: v for k, v in found.items() if not any(part in k for part in parts)}


def _text(value):
    return value.decode() if isinstance(value, bytes) else str(value)


# ---------------------------------------------------------------------------- both ways


@pytest.mark.parametrize("ending", FORMATS)
def test_weights_come_back_bit_for_bit(ending, tmp_path):
    a, b = net(), net(names=("other", "names"))
    b.load_weights(save(a, tmp_path / f"x{ending}"))
    assert same(a, b)


@pytest.mark.parametrize("ending", [".keras", ".h5"])
@pytest.mark.parametrize("optimizer", ["adam", "sgd", "rmsprop", "adamw", "nadam", "lion"])
def test_training_goes_on_as_if_never_interrupted(ending, optimizer, tmp_path):
    a = net()
    a.compile(optimizer, "mse", metrics=["mae"])
    a.fit(X, Y, epochs=2, batch_size=8, verbose=0)
    b = saving.load_model(save(a, tmp_path / f"x{ending}"))
    assert type(b.optimizer) is type(a.optimizer)
    assert b.optimizer.get_config() == a.optimizer.get_config()
    logs = [m.fit(X, Y, epochs=2, batch_size=8, shuffle=False, verbose=0).history for m in (a, b)]
    assert logs[0] == logs[1]
    assert same(a, b)


def test_the_state_of_the_optimizer_comes_with_the_weights(tmp_path):
    a, b, c = net(compiled=True), net(compiled=True), net()
    a.fit(X, Y, epochs=2, batch_size=8, shuffle=False, verbose=0)
    a.save_weights(tmp_path / "x.weights.h5")
    b.load_weights(tmp_path / "x.weights.h5")
    c.load_weights(tmp_path / "x.weights.h5")  # not compiled: the weights alone
    for model in (a, b):
        model.fit(X, Y, batch_size=8, shuffle=False, verbose=0)
    assert same(a, b) and not same(a, c)
    d = net()
    d.compile("sgd", "mse")
    with pytest.warns(UserWarning, match=r"sgd.*not loaded.*14|sgd.*not loaded.*10"):
        d.load_weights(tmp_path / "x.weights.h5")


def test_a_lost_state_of_the_optimizer_is_told(tmp_path):
    model = net(compiled=True)
    model.fit(X, Y, epochs=1, verbose=0)
    model.save_weights(tmp_path / "x.weights.h5")
    with h5py.File(tmp_path / "x.weights.h5", "r+") as file:
        file.move("optimizer/vars/5", "optimizer/vars/50")
    with pytest.raises(ValueError, match=r"optimizer/vars/5 is missing"):
        model.load_weights(tmp_path / "x.weights.h5")
    with h5py.File(tmp_path / "x.weights.h5", "r+") as file:
        del file["optimizer"]
    with pytest.warns(UserWarning, match=r"10 arrays that were written.*optimizer"):
        model.load_weights(tmp_path / "x.weights.h5")


def test_a_weight_that_two_objects_hold_stands_in_both_places(tmp_path):
    model = P.Sequential([P.Input((5,)), layers.SpectralNormalization(layers.Dense(3))])
    model.save_weights(tmp_path / "x.weights.h5")
    found = structure(tmp_path / "x.weights.h5")
    inside = "layers/spectral_normalization/layer/vars"
    assert found[f"{inside}/0"] == (5, 3) and found[f"{inside}/1"] == (3,)
    before = model.get_weights()
    model.load_weights(tmp_path / "x.weights.h5")
    assert all(np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))


@pytest.mark.parametrize("ending", [".weights.h5", ".npz", ".safetensors"])
def test_plain_modules_keep_their_weights_too(ending, tmp_path):
    class Net(P.Module):
        def __init__(self):
            self.first = layers.Linear(4, 3)
            self.rest = [layers.Linear(3, 3), layers.Linear(3, 2)]

    a, b = Net(), Net()
    saving.save_weights(a, tmp_path / f"x{ending}")
    saving.load_weights(b, tmp_path / f"x{ending}")
    pairs = zip(a.parameters(), b.parameters(), strict=True)
    assert all(np.array_equal(p.data, q.data) for p, q in pairs)
    b.rest.append(layers.Linear(2, 2))
    with pytest.raises(ValueError, match=r"module Net: rest/linear_2/vars/0.*missing"):
        saving.load_weights(b, tmp_path / f"x{ending}")


def test_compile_false_leaves_the_model_uncompiled(tmp_path):
    model = net(compiled=True)
    for name in ("x.keras", "x.h5"):
        model.save(tmp_path / name)
        assert saving.load_model(tmp_path / name).compiled
        assert not saving.load_model(tmp_path / name, compile=False).compiled


def test_saving_as_h5_leaves_the_compile_config_alone(tmp_path):
    model = net(compiled=True)
    model.save(tmp_path / "x.h5")
    model.save(tmp_path / "x.keras")
    assert type(saving.load_model(tmp_path / "x.keras").optimizer) is P.optimizers.Adam


class Scaled(layers.Dense):
    """A layer, a loss and a metric of a user."""


def own_loss(y_true, y_pred):
    return P.ops.mean((y_true - y_pred) ** 2, axis=-1)


def own_metric(y_true, y_pred):
    return P.ops.mean(P.ops.abs(y_true - y_pred), axis=-1)


@pytest.mark.parametrize("ending", [".keras", ".h5"])
def test_custom_layers_losses_and_metrics_need_their_names(ending, tmp_path):
    model = P.Sequential([P.Input((4,)), Scaled(3, activation=P.ops.tanh)])
    model.compile(P.optimizers.SGD(0.1), own_loss, metrics=[own_metric])
    path = save(model, tmp_path / f"x{ending}")
    with pytest.raises(ValueError, match=rf"x{ending}.*Scaled.*custom_objects"):
        saving.load_model(path)
    with pytest.raises(ValueError, match=r"own_loss|own_metric"):
        saving.load_model(path, {"Scaled": Scaled})
    objects = {"Scaled": Scaled, "own_loss": own_loss, "own_metric": own_metric}
    back = saving.load_model(path, objects)
    assert type(back.layers[0]) is Scaled
    a, b = (m.evaluate(X, Y, verbose=0, return_dict=True) for m in (model, back))
    assert a == b and set(a) == {"loss", "own_metric"}


def test_lambdas_are_refused_when_saving_and_loading(tmp_path):
    model = P.Sequential([P.Input((4,)), layers.Lambda(lambda x: 2 * x), layers.Dense(1)])
    with pytest.raises(ValueError, match="lambda cannot be saved"):
        model.save(tmp_path / "x.keras")
    with pytest.raises(ValueError, match="lambda"):
        P.Sequential([P.Input((4,)), layers.Dense(1, lambda x: x)]).save(tmp_path / "x.h5")
    model.save_weights(tmp_path / "x.weights.h5")  # weights hold no code
    named = P.Sequential([P.Input((4,)), layers.Lambda(twice), layers.Dense(1)])
    named.save(tmp_path / "x.keras")
    with pytest.raises(ValueError, match="twice"):
        saving.load_model(tmp_path / "x.keras")
    back = saving.load_model(tmp_path / "x.keras", {"twice": twice})
    assert np.array_equal(back.predict(X, verbose=0), named.predict(X, verbose=0))


def test_a_lambda_of_keras_takes_the_function_that_is_passed(tmp_path):
    named = P.Sequential([P.Input((4,)), layers.Lambda(twice, name="lam"), layers.Dense(1)])
    named.save(tmp_path / "x.keras")
    with zipfile.ZipFile(tmp_path / "x.keras") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    config = json.loads(members["config.json"])
    code = {"class_name": "__lambda__", "config": {"code": "4wEAAAA=", "defaults": None}}
    config["config"]["layers"][1]["config"] |= {"function": code, "function_type": "lambda"}
    members["config.json"] = json.dumps(config)
    with zipfile.ZipFile(tmp_path / "y.keras", "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    with pytest.raises(ValueError, match=r'custom_objects=\{"lam": function\}'):
        saving.load_model(tmp_path / "y.keras")
    back = saving.load_model(tmp_path / "y.keras", {"lam": twice})
    assert np.array_equal(back.predict(X, verbose=0), named.predict(X, verbose=0))


def test_ops_in_a_graph_are_written_as_keras_writes_them(tmp_path):
    x = P.Input((4,))
    y = P.ops.concatenate([P.ops.relu(x) * 2.0, P.ops.mean(x, axis=-1, keepdims=True)], axis=-1)
    model = P.Model(x, P.ops.reshape(y[:, 1:], (-1, 2, 2)))
    config = json.loads(model.to_json())["config"]
    found = {e["class_name"]: e for e in config["layers"]}
    assert found["Relu"]["module"] == "keras.src.ops.nn"
    assert found["Concatenate"]["module"] == "keras.src.ops.numpy"
    assert found["Concatenate"]["config"]["axis"] == -1
    assert found["Mean"]["config"] | {"axis": -1, "keepdims": True} == found["Mean"]["config"]
    assert found["Reshape"]["config"]["newshape"] == [-1, 2, 2]
    assert found["Multiply"]["inbound_nodes"][0]["args"][1] == 2.0
    for name in ("x.keras", "x.h5"):
        model.save(tmp_path / name)
        back = saving.load_model(tmp_path / name)
        assert np.array_equal(back.predict(X, verbose=0), model.predict(X, verbose=0))


def test_vocabularies_beside_the_config_are_read(tmp_path):
    x = P.Input((1,), dtype="string")
    model = P.Model(x, layers.StringLookup()(x), name="words")
    model.save(tmp_path / "x.keras")
    with zipfile.ZipFile(tmp_path / "x.keras", "a") as archive:
        archive.writestr("assets/layers/string_lookup/vocabulary.txt", "red\ngreen\n")
    back = saving.load_model(tmp_path / "x.keras")
    assert back.layers[-1].get_vocabulary() == ["[UNK]", "red", "green"]


def twice(x):
    return 2 * x


# ---------------------------------------------------------------------------- what does not fit


@pytest.mark.parametrize("ending", FORMATS)
def test_a_misfit_is_named_and_changes_nothing(ending, tmp_path):
    path = save(net(16), tmp_path / f"x{ending}")
    model = net()
    before = model.get_weights()
    with pytest.raises(ValueError, match=r"\(4, 16\).*a/kernel needs \(4, 8\)") as caught:
        model.load_weights(path)
    assert f"x{ending}" in str(caught.value) and "skip_mismatch" in str(caught.value)
    assert all(np.array_equal(p, q) for p, q in zip(before, model.get_weights(), strict=True))
    with pytest.warns(UserWarning, match=r"left out.*\(4, 16\)"):
        model.load_weights(path, skip_mismatch=True)


@pytest.mark.parametrize("ending", FORMATS)
def test_too_many_or_too_few_layers_are_named(ending, tmp_path):
    long = P.Sequential([P.Input((4,)), *(layers.Dense(4, name=f"d{i}") for i in range(3))])
    short = P.Sequential([P.Input((4,)), *(layers.Dense(4, name=f"d{i}") for i in range(2))])
    with pytest.raises(ValueError, match=r"dense_2/vars/0|3 \(d0, d1, d2|holds 3 .*d2"):
        short.load_weights(save(long, tmp_path / f"long{ending}"))
    with pytest.raises(ValueError, match=r"dense_2/vars/0.*missing|has 3 layers.*d2"):
        long.load_weights(save(short, tmp_path / f"short{ending}"))


def test_skip_mismatch_keeps_whole_layers(tmp_path):
    a, b = net(8), net(8)
    with h5py.File(save(a, tmp_path / "x.weights.h5"), "r+") as file:
        del file["layers/dense/vars/1"]
        file["layers/dense/vars/1"] = np.zeros(5, "f4")
    before = b.get_weights()
    with pytest.warns(UserWarning, match="dense/vars/1"):
        b.load_weights(tmp_path / "x.weights.h5", skip_mismatch=True)
    assert all(np.array_equal(p, q) for p, q in zip(before[:2], b.get_weights()[:2], strict=True))
    assert all(
        np.array_equal(p, q) for p, q in zip(a.get_weights()[2:], b.get_weights()[2:], strict=True)
    )


def test_by_name_pairs_the_layers_of_the_older_form(tmp_path):
    a, b = net(names=("one", "two")), net(names=("new", "two"))
    path = save(a, tmp_path / "x.h5")
    before = b.get_weights()
    b.load_weights(path, by_name=True)
    assert np.array_equal(before[0], b.get_weights()[0])
    assert np.array_equal(a.get_weights()[2], b.get_weights()[2])
    with pytest.warns(UserWarning, match="No layer"):
        net(names=("p", "q")).load_weights(path, by_name=True)
    with pytest.raises(ValueError, match="by_name"):
        b.load_weights(save(a, tmp_path / "x.weights.h5"), by_name=True)


@pytest.mark.parametrize("ending", FORMATS)
def test_nan_is_loaded_and_named(ending, tmp_path):
    a, b = net(), net()
    a.weights[2].data[1, 1] = np.nan
    path = save(a, tmp_path / f"x{ending}")
    with pytest.warns(UserWarning, match=r"NaN for .*b/kernel"):
        b.load_weights(path)
    assert np.isnan(b.weights[2].data[1, 1])


@pytest.mark.parametrize(
    ("stored", "fits"),
    [
        (lambda a: a.astype("f8"), True),
        (lambda a: a.astype(">f4"), True),
        (lambda a: a.astype("f2"), True),
        (lambda a: np.ones_like(a, "i4"), True),
        (lambda a: np.full_like(a, 1e300, "f8"), False),
        (lambda a: np.full_like(a, 2**40 + 1, "i8"), False),
    ],
)
def test_other_number_types_are_converted_when_they_fit(stored, fits, tmp_path):
    a, b = net(), net()
    values = stored(a.weights[0].data)
    with h5py.File(save(a, tmp_path / "x.weights.h5"), "r+") as file:
        del file["layers/dense/vars/0"]
        file["layers/dense/vars/0"] = values
    if fits:
        b.load_weights(tmp_path / "x.weights.h5")
        assert np.array_equal(b.weights[0].data, values.astype("f4"))
        assert b.weights[0].data.dtype == np.float32
    else:
        with pytest.raises(ValueError, match="do not fit into float32"):
            b.load_weights(tmp_path / "x.weights.h5")


def test_bfloat16_is_read(tmp_path):
    a, b = net(), net()
    bits = (a.weights[0].data.view("u4") >> 16).astype("u2")
    with h5py.File(save(a, tmp_path / "x.weights.h5"), "r+") as file:
        del file["layers/dense/vars/0"]
        file["layers/dense/vars/0"] = bits.view("V2")
        file["layers/dense/vars/0"].attrs["dtype"] = "bfloat16"
    b.load_weights(tmp_path / "x.weights.h5")
    assert np.array_equal(b.weights[0].data.view("u4") >> 16, bits)


# ---------------------------------------------------------------------------- large files, shards


def big():
    return P.Sequential([P.Input((600,)), layers.Dense(700, name="a"), layers.Dense(5, name="b")])


@pytest.mark.parametrize("ending", FORMATS)
def test_large_arrays_come_back(ending, tmp_path):
    a, b = big(), big()
    path = save(a, tmp_path / f"x{ending}")
    b.load_weights(path)
    assert same(a, b)
    if ending in (".keras", ".h5"):
        assert same(a, saving.load_model(path))


def test_damage_in_a_large_array_is_found(tmp_path):
    a, b = big(), big()
    data = bytearray(save(a, tmp_path / "x.weights.h5").read_bytes())
    data[data.find(a.weights[0].data[300].tobytes()) + 70] ^= 4
    (tmp_path / "bad.weights.h5").write_bytes(data)
    before = b.get_weights()
    with pytest.raises(ValueError, match=r"bad.*layers/dense/vars/0.*checksum"):
        b.load_weights(tmp_path / "bad.weights.h5")
    assert all(np.array_equal(p, q) for p, q in zip(before, b.get_weights(), strict=True))


def test_shards_hold_the_weights_together(tmp_path):
    a, b = big(), big()
    a.compile("adam", "mse")
    a.save_weights(tmp_path / "x.weights.json", max_shard_size=1e-3)
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names[:2] == ["x.weights.json", "x_00000.weights.h5"] and len(names) > 2
    b.load_weights(tmp_path / "x.weights.json")
    assert same(a, b)
    index = json.loads((tmp_path / "x.weights.json").read_text())
    index["weight_map"]["/layers/dense/vars"] = "../x_00000.weights.h5"
    (tmp_path / "x.weights.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match=r"\.\./x_00000"):
        b.load_weights(tmp_path / "x.weights.json")
    with pytest.raises(ValueError, match="positive"):
        a.save_weights(tmp_path / "x.weights.json", max_shard_size=0)


def test_a_folder_is_an_unpacked_archive(tmp_path):
    model = net(compiled=True)
    model.save(tmp_path / "m", zipped=False)
    assert {p.name for p in (tmp_path / "m").iterdir()} == {
        "metadata.json", "config.json", "model.weights.h5",
    }  # fmt: skip
    assert same(model, saving.load_model(tmp_path / "m"))
    (tmp_path / "m" / "config.json").rename(tmp_path / "c.json")
    (tmp_path / "m" / "config.json").symlink_to(tmp_path / "c.json")
    with pytest.raises(ValueError, match=r"config\.json is a link"):
        saving.load_model(tmp_path / "m")


def test_numpy_reads_the_npz_and_plain_lists_are_read(tmp_path):
    a, b = net(), net()
    a.save_weights(tmp_path / "x.npz")
    with np.load(tmp_path / "x.npz") as z:
        assert np.array_equal(z["layers/dense/vars/0"], a.get_weights()[0])
    np.savez(tmp_path / "list.npz", *a.get_weights())
    b.load_weights(tmp_path / "list.npz")
    assert same(a, b)
    np.savez_compressed(tmp_path / "order.npz", *map(np.asfortranarray, a.get_weights()))
    net_ = net()
    net_.load_weights(tmp_path / "order.npz")
    assert same(a, net_)


# ---------------------------------------------------------------------------- names


def test_nested_shared_and_equal_names_keep_apart(tmp_path):
    def make():
        shared = layers.Dense(4, name="inner")
        x = P.Input((4,))
        left = P.Sequential([P.Input((4,)), layers.Dense(4, name="inner")], name="left")
        right = P.Sequential([P.Input((4,)), layers.Dense(4, name="inner")], name="right")
        y = layers.Concatenate()([left(x), right(shared(x)), shared(x)])
        return P.Model(x, layers.Dense(2, name="left_out")(y))

    a = make()
    want = a.predict(X, verbose=0)
    for name in ("x.keras", "x.h5", "x.weights.h5", "x.npz"):
        b = make()
        b.load_weights(save(a, tmp_path / name))
        assert np.array_equal(b.predict(X, verbose=0), want), name
    assert len(a.weights) == 8
    for name in ("x.keras", "x.h5"):
        back = saving.load_model(tmp_path / name)
        assert len(back.weights) == 8
        assert np.array_equal(back.predict(X, verbose=0), want), name


def test_a_layer_shared_by_two_inner_models_stays_one(tmp_path):
    shared = layers.Dense(4)
    x = P.Input((4,))
    inner = [P.Sequential([P.Input((4,)), shared], name=f"m{i}") for i in range(2)]
    model = P.Model(x, layers.Add()([inner[0](x), inner[1](x)]))
    model.save(tmp_path / "x.keras")
    back = saving.load_model(tmp_path / "x.keras")
    assert len(back.weights) == len(model.weights) == 2
    assert np.array_equal(back.predict(X, verbose=0), model.predict(X, verbose=0))


def test_frozen_layers_come_back_frozen(tmp_path):
    model = net()
    model.layers[0].trainable = False
    for name in ("x.keras", "x.h5"):
        model.save(tmp_path / name)
        assert [layer.trainable for layer in saving.load_model(tmp_path / name).layers] == [
            False, True,
        ]  # fmt: skip


def test_loading_makes_no_random_numbers_and_no_lasting_state(tmp_path):
    model = P.Sequential([P.Input((4,)), layers.Dropout(0.5), layers.BatchNormalization()])
    model.save(tmp_path / "x.keras")
    back = saving.load_model(tmp_path / "x.keras")
    assert all(w.data.flags.writeable for w in back.weights)
    back(X, training=True)
    assert P.config.thread.unmade is None and P.config.thread.shared is None
    with pytest.raises(ValueError, match="Unknown"):
        saving.deserialize_keras_object({"class_name": "Nope", "config": {}})
    assert P.config.thread.shared is None


# ---------------------------------------------------------------------------- looking, converting


@pytest.mark.parametrize("ending", [*FORMATS, "_legacy.h5"])
def test_describe_tells_what_a_file_holds(ending, tmp_path):
    model = net(compiled=True)
    path = tmp_path / f"x{ending}"
    (model.save_weights if ending == "_legacy.h5" else lambda p: save(model, p))(path)
    text = saving.describe(path)
    assert str(path) in text and "(4, 8)" in text and "float32" in text
    assert "weights: 4 arrays, 67 numbers, 268 B" in text
    if ending in (".keras", ".h5"):
        assert "Sequential" in text and "Adam" in text and "3.15.1" in text
    assert str(tmp_path) in saving.describe(str(path))


@pytest.mark.parametrize("file", ["model.keras", "model.h5", "model.weights.h5"])
def test_describe_reads_the_files_of_keras(file):
    text = saving.describe(FOLDER / "trained_adam" / file)
    assert "optimizer" in text and "weights: 8 arrays" in text


@pytest.mark.parametrize("source", [".keras", ".h5", ".weights.h5", ".npz", ".safetensors"])
@pytest.mark.parametrize("target", FORMATS)
def test_convert_goes_from_every_format_that_holds_enough(source, target, tmp_path):
    model, back = net(), net()
    a, b = save(model, tmp_path / f"a{source}"), tmp_path / f"b{target}"
    if target in (".keras", ".h5") and source not in (".keras", ".h5"):
        with pytest.raises(ValueError, match=r"a\.|model"):
            saving.convert(a, b)
        return
    saving.convert(a, b)
    back.load_weights(b)
    assert same(model, back)
    with pytest.raises(FileExistsError):
        saving.convert(a, b, overwrite=False)


def test_the_command_line_inspects_and_converts(tmp_path, capsys):
    from picodl.__main__ import main

    model = net()
    model.save(tmp_path / "a.keras")
    assert main(["convert", str(tmp_path / "a.keras"), str(tmp_path / "b.npz")]) == 0
    assert main(["inspect", str(tmp_path / "b.npz"), str(tmp_path / "a.keras")]) == 0
    assert "layers/dense_1" in capsys.readouterr().out
    assert main(["inspect", str(tmp_path / "none.keras")]) == 1
    assert "none.keras" in capsys.readouterr().err


def test_the_editor_changes_what_a_file_holds(tmp_path, capsys):
    model = net()
    model.save_weights(tmp_path / "x.weights.h5")
    editor = saving.KerasFileEditor(tmp_path / "x.weights.h5")
    editor.summary()
    assert "layers/dense_1/vars/0" in capsys.readouterr().out
    assert editor.compare(model) == {}
    editor.rename_object("layers/dense_1", "layers/other")
    assert set(editor.compare(model).values()) == {"missing", "not in the model"}
    editor.rename_object("layers/other", "layers/dense_1")
    editor.delete_weight("layers/dense_1", "1")
    editor.add_weights("layers/dense_1", {"1": np.full(3, 7.0, "f4")})
    with pytest.raises(ValueError, match="no object 'layers/zzz'"):
        editor.delete_object("layers/zzz")
    editor.save(tmp_path / "y.weights.h5")
    model.load_weights(tmp_path / "y.weights.h5")
    assert (model.get_weights()[3] == 7).all()
