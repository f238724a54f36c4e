"""Every format of picodl's own, there and back; what does not fit; names."""

from __future__ import annotations

import json
import zipfile

import h5py
import numpy as np
import pytest

import picodl as P
from picodl import layers, saving
from tests.saving_models import FORMATS, X, Y, net, same, save, structure

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


@pytest.mark.parametrize("dtype", [">f4", ">f8", ">i2"])
def test_arrays_of_the_other_byte_order_are_read_by_value(dtype, tmp_path):
    model = P.Sequential([P.Input((2,)), layers.Dense(2)])
    kernel = np.arange(4, dtype=dtype).reshape(2, 2)
    np.savez(tmp_path / "w.npz", kernel, np.ones(2, dtype))
    model.load_weights(tmp_path / "w.npz")
    np.testing.assert_array_equal(model.get_weights()[0], [[0, 1], [2, 3]])
    np.testing.assert_array_equal(model.get_weights()[1], [1, 1])


def test_an_h5_without_what_compile_was_given(tmp_path):
    model = net(compiled=True)
    model.save(tmp_path / "x.h5", include_optimizer=False)
    loaded = saving.load_model(tmp_path / "x.h5")
    assert not loaded.compiled and same(model, loaded)
    with h5py.File(tmp_path / "x.h5") as file:
        assert "training_config" not in file.attrs and "optimizer_weights" not in file


def test_attributes_of_a_functional_subclass_do_not_change_its_files(tmp_path):
    class Sub(P.Model):
        def __init__(self):
            x = P.Input((4,))
            first = layers.Dense(3)
            super().__init__(x, layers.Dense(2)(first(x)))
            self.a_layer = first
            self.decoder = layers.Dense(1)
            self.decoder.build((None, 2))

    a, x = Sub(), P.Input((4,))
    plain = P.Model(x, layers.Dense(2)(layers.Dense(3)(x)))
    a.save_weights(tmp_path / "x.weights.h5")
    paths = set(saving.KerasFileEditor(tmp_path / "x.weights.h5").weights_dict)
    owners = {"layers/dense", "layers/dense_1", "decoder"}
    assert paths == {f"{owner}/vars/{i}" for owner in owners for i in range(2)}
    plain.save_weights(tmp_path / "y.weights.h5")
    with pytest.warns(UserWarning, match="decoder"):
        a.load_weights(tmp_path / "y.weights.h5", skip_mismatch=True)
    np.testing.assert_array_equal(a(X[:, :4]).data, plain(X[:, :4]).data)


def same_shape(shape):
    return shape


def first_mask(inputs, mask):
    return mask


@pytest.mark.parametrize(
    "options",
    [{"mask": first_mask}, {"mask": np.ones((2, 8), bool)}, {"output_shape": same_shape},
     {"output_shape": (8,)}],
)  # fmt: skip
def test_a_lambda_keeps_its_mask_and_its_output_shape(options, tmp_path):
    x = P.Input((8,))
    model = P.Model(x, layers.Lambda(twice, name="l", **options)(x))
    model.save(tmp_path / "x.keras")
    own = {f.__name__: f for f in (twice, first_mask, same_shape)}
    layer = saving.load_model(tmp_path / "x.keras", custom_objects=own).layers[-1]
    for key in ("mask", "output_shape"):
        wanted, found = options.get(key), getattr(layer, key)
        assert np.array_equal(wanted, found) if key == "mask" else wanted == found
    assert layer.supports_masking == ("mask" in options)


@pytest.mark.parametrize("ending", [".weights.h5", ".weights.json"])
def test_objects_to_skip_keep_their_weights(ending, tmp_path):
    a, b = net(), net()
    a.save_weights(tmp_path / f"x{ending}")
    saving.save_weights(a, tmp_path / f"short{ending}", objects_to_skip=[a.layers[0]])
    before = b.get_weights()
    for file in (f"x{ending}", f"short{ending}"):
        b.load_weights(tmp_path / file, objects_to_skip=[b.layers[0]])
        assert np.array_equal(b.get_weights()[0], before[0])
        assert np.array_equal(b.get_weights()[2], a.get_weights()[2])
    with pytest.raises(saving.FileError, match=r"layers/dense/vars/0.*is missing"):
        b.load_weights(tmp_path / f"short{ending}")
    wide = net(16)
    with pytest.raises(saving.FileError, match="b/kernel needs"):
        wide.load_weights(tmp_path / f"x{ending}", objects_to_skip=[wide.layers[0]])


def test_a_skipped_model_keeps_what_is_inside_alone(tmp_path):
    def nested():
        x = P.Input((3,))
        return P.Sequential([x, P.Sequential([x, layers.Dense(3)]), layers.Dense(3, name="head")])

    a, b = nested(), nested()
    before = b.get_weights()
    a.save_weights(tmp_path / "x.weights.h5")
    b.load_weights(tmp_path / "x.weights.h5", objects_to_skip=[b.layers[0]])
    assert np.array_equal(b.get_weights()[0], before[0])
    assert np.array_equal(b.get_weights()[2], a.get_weights()[2])


@pytest.mark.parametrize("ending", [".keras", ".h5", ".npz", ".safetensors"])
def test_objects_to_skip_goes_with_weight_files_alone(ending, tmp_path):
    model = net()
    path = save(model, tmp_path / f"x{ending}")
    with pytest.raises(saving.FileError, match=r"objects_to_skip goes with \.weights\.h5"):
        model.load_weights(path, objects_to_skip=[model.layers[0]])
    if not ending.startswith(".k"):
        with pytest.raises(ValueError, match="objects_to_skip goes"):
            saving.save_weights(model, path, objects_to_skip=[model.layers[0]])
