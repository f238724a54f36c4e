"""Layers that say themselves what a file keeps of them."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

from picodl import Input, Sequential, callbacks, layers, models, saving
from picodl.saving import own_state


class Counted(layers.Layer):
    """Keeps an array that is no weight; when it fails, it has changed everything."""

    fails = False

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
        if self.fails:
            self.seen[...] = 7
            self.more = 1
            self.scale.assign([7, 7])
            raise KeyError("nothing of the kind")
        self.seen = store["seen"][:]
        super().load_own_variables({name: store[name] for name in store if name != "seen"})


class Quantized(layers.Dense):
    """Keeps its kernel in eight bits."""

    def save_own_variables(self, store):
        super().save_own_variables(store)
        store["0"] *= 10
        store["0"] = store["0"].round().astype("int8")

    def load_own_variables(self, store):
        self.kernel.assign(store["0"] / np.float32(10))
        self.bias.assign(store["1"])


class Demanding(layers.Layer):
    """Hands the file what it is told to."""

    kept = ("a", 1.0)

    def call(self, x):
        return x

    def save_own_variables(self, store):
        store[self.kept[0]] = self.kept[1]

    def load_own_variables(self, store):
        self.store = store


CUSTOM = {"Counted": Counted, "Quantized": Quantized, "Demanding": Demanding}


def small(last=Counted, **options):
    return Sequential([Input((2,)), layers.Dense(2), last(**options)])


def test_what_a_layer_keeps_itself_comes_back(saved, tmp_path):
    model = small()
    model.layers[1].seen = np.array([1.0, 2.0, 3.0])
    other = saved(model, small())
    np.testing.assert_array_equal(other.layers[1].seen, [1, 2, 3])
    for a, b in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_layer_may_keep_its_weights_in_another_form(saved):
    model = small(Quantized, units=3)
    kernel = np.array([[0.11, 0.2, 0.3], [-0.5, 0, 12]], "float32")
    model.layers[1].kernel.assign(kernel)
    other = saved(model, small(Quantized, units=3))
    np.testing.assert_allclose(other.layers[1].kernel, kernel.round(1), atol=1e-6)
    np.testing.assert_array_equal(model.layers[1].kernel, kernel)  # saving changed nothing


@pytest.fixture(params=[".weights.h5", ".npz", ".safetensors", ".keras", ".weights.json", "folder"])
def saved(request, tmp_path):
    """A function that saves a model, and gives one with what was in the file."""

    def through(model, other):
        path = str(tmp_path / f"w{request.param}")
        if request.param in (".keras", "folder"):
            model.save(path, zipped=request.param != "folder")
            return models.load_model(path, custom_objects=CUSTOM)
        model.save_weights(path)
        other.load_weights(path)
        return other

    return through


@pytest.mark.parametrize(
    "kept",
    [
        np.zeros((0, 3)),
        np.array(3),
        np.arange(4, dtype="uint64"),
        np.ones(2, "float16"),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(3, dtype=">f8"),
        np.arange(4)[::-1],
        np.array([np.nan]),
    ],
    ids=lambda a: f"{a.dtype}{a.shape}",
)
def test_arrays_of_all_kinds_come_back(kept, saved):
    model = small(Demanding)
    model.layers[1].kept = ("an array.npy", kept)
    layer = saved(model, small(Demanding)).layers[1]
    np.testing.assert_array_equal(layer.store["an array.npy"], kept)
    assert layer.store["an array.npy"].dtype == kept.dtype.newbyteorder("=")


def test_a_subclassed_model_can_keep_arrays_too(tmp_path):
    class Whole(models.Model):
        def __init__(self, **options):
            super().__init__(**options)
            self.dense = layers.Dense(2)
            self.note = np.zeros(1)

        def call(self, x):
            return self.dense(x)

        def save_own_variables(self, store):
            store["note"] = self.note

        def load_own_variables(self, store):
            self.note = store["note"]

    model, x = Whole(), np.ones((1, 2), "float32")
    y, model.note = model.predict(x, verbose=0), np.array([4.0])
    model.save(tmp_path / "m.keras")
    again = models.load_model(tmp_path / "m.keras", custom_objects={"Whole": Whole})
    assert again.note[0] == 4
    np.testing.assert_array_equal(again.predict(x, verbose=0), y)


def test_a_config_that_asks_for_absurd_sizes_is_refused(tmp_path):
    small(Quantized, units=3).save(tmp_path / "m", zipped=False)
    config = tmp_path / "m" / "config.json"
    config.write_text(config.read_text().replace('"units": 3', '"units": 1000000000'))
    with pytest.raises(saving.FileError, match="ask for 11444 MiB that the file does not hold"):
        models.load_model(tmp_path / "m", custom_objects=CUSTOM)


def test_the_file_is_laid_out_as_in_keras(tmp_path):
    path = tmp_path / "w.weights.h5"
    small().save_weights(path)
    with h5py.File(path) as file:
        assert sorted(file["layers/counted/vars"]) == ["0", "seen"]
        assert file["layers/counted/vars/seen"].dtype == np.float64


def test_a_layer_that_fails_leaves_the_model_as_it_was(tmp_path):
    path = str(tmp_path / "w.weights.h5")
    first = Sequential([Input((2,)), Counted(name="a"), layers.Dense(2), Counted(name="b")])
    first.layers[0].seen = np.ones(3)
    first.save_weights(path)
    model = Sequential([Input((2,)), Counted(name="a"), layers.Dense(2), Counted(name="b")])
    model.layers[2].fails = True
    before = model.get_weights()
    said = r'w.weights.h5: layer "b" \(Counted\) did not load .* KeyError: .* holds for it: 0, seen'
    with pytest.raises(saving.FileError, match=said):
        model.load_weights(path)
    for a, b in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    for layer in (model.layers[0], model.layers[2]):
        np.testing.assert_array_equal(layer.seen, np.zeros(3))
        assert not hasattr(layer, "more")
    with pytest.warns(UserWarning, match='left out what does not fit: layer "b"'):
        model.load_weights(path, skip_mismatch=True)
    np.testing.assert_array_equal(model.layers[0].seen, np.ones(3))
    np.testing.assert_array_equal(model.layers[2].seen, np.zeros(3))
    np.testing.assert_array_equal(model.layers[1].kernel, first.layers[1].kernel)


def test_nothing_is_handed_over_when_another_layer_does_not_fit(tmp_path):
    path = str(tmp_path / "w.weights.h5")
    model = Sequential([Input((2,)), Counted(), layers.Dense(3)])
    model.layers[0].seen = np.ones(3)
    model.save_weights(path)
    other = Sequential([Input((2,)), Counted(), layers.Dense(4)])
    with pytest.raises(saving.FileError, match=r"\(2, 3\)"):
        other.load_weights(path)
    np.testing.assert_array_equal(other.layers[0].seen, np.zeros(3))


def test_damage_in_an_array_of_a_layers_own_is_found_first(tmp_path):
    path = str(tmp_path / "w.weights.h5")
    small().save_weights(path)
    with h5py.File(path, "r+") as file:
        file["layers/counted/vars/seen"][0] = 5
    model = small()
    before = model.get_weights()
    with pytest.raises(saving.FileError, match="vars/seen does not match its checksum"):
        model.load_weights(path)
    for a, b in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_file_without_the_arrays_is_refused(tmp_path):
    path = str(tmp_path / "w.weights.h5")
    with h5py.File(path, "w") as file:
        file["layers/dense/vars/0"] = np.ones((2, 2), "float32")
        file["layers/dense/vars/1"] = np.ones(2, "float32")
    with pytest.raises(saving.FileError, match="KeyError: 'seen'; the file holds for it: nothing"):
        small().load_weights(path)


@pytest.mark.parametrize("how", ["packed", "linked"])
def test_arrays_larger_than_the_file_are_refused_unread(how, tmp_path, monkeypatch):
    monkeypatch.setattr(own_state, "_FREE", 100_000)
    path = str(tmp_path / "w.weights.h5")
    small().save_weights(path)
    with h5py.File(path, "r+") as file:
        group = file["layers/counted/vars"]
        if how == "packed":
            group.create_dataset("big", data=np.zeros(1_000_000, "int8"), compression="gzip")
        else:
            group["big"] = np.zeros(50_000, "int8")
            for number in range(20):
                group[f"link{number}"] = group["big"]
    with pytest.raises(saving.FileError, match="more than it can hold is refused"):
        small().load_weights(path)


@pytest.mark.parametrize(
    ("kept", "error", "said"),
    [
        (("a/b", 1.0), ValueError, "without '/'"),
        ((3, 1.0), ValueError, "received 3"),
        (("..", 1.0), ValueError, "cannot be called"),
        (("a", "text"), TypeError, "array 'a' is of dtype <U4"),
        (("a", np.array([True])), TypeError, "booleans to uint8"),
        (("a", [None]), TypeError, "dtype object"),
        (("a", 1j), TypeError, "dtype complex128"),
    ],
)
def test_what_no_file_can_hold_is_refused_when_saving(kept, error, said, tmp_path):
    layer = Demanding(name="d")
    layer.kept = kept
    model = Sequential([Input((2,)), layer])
    path = tmp_path / "w.weights.h5"
    path.write_bytes(b"old")
    with pytest.raises(error, match=said) as caught:
        model.save_weights(path)
    assert caught.value.__notes__ == ['in save_own_variables of Demanding layer "d"']
    assert path.read_bytes() == b"old"


def test_arrays_that_nobody_takes_are_refused(tmp_path, monkeypatch):
    monkeypatch.delattr(Demanding, "load_own_variables")
    path = str(tmp_path / "w.weights.h5")
    model = Sequential([Input((2,)), Demanding(name="d")])
    model.save_weights(path)
    with pytest.raises(saving.FileError, match=r"holds 0 variables .* none; received 'a'"):
        model.load_weights(path)


@pytest.mark.parametrize(
    ("store", "said"),
    [
        ({}, "from the arrays '0'; received none"),
        ({"0": np.ones(2), "x": 1}, "received '0', 'x'"),
        (
            {"0": np.ones(3)},
            r"float32 of shape \(2,\), but the array '0' is float64 of shape \(3,\)",
        ),
    ],
)
def test_the_base_class_takes_its_variables_and_nothing_else(store, said):
    layer = Counted(name="c")
    layer.build((None, 2))
    with pytest.raises(ValueError, match=f'Counted "c".*{said}'):
        layers.Layer.load_own_variables(layer, store)


def test_low_rank_changes_are_worked_into_what_the_base_class_saves():
    layer = layers.Dense(2, lora_rank=1)
    layer.build((None, 2))
    layer.lora_kernel_b.assign([[1, 1]])
    x = np.array([[1, 2]], "float32")
    y = layer(x)
    store = {}
    layer.save_own_variables(store)
    assert list(store) == ["0", "1"]
    layer.load_own_variables(store)
    np.testing.assert_array_equal(layer.lora_kernel_b, [[0, 0]])
    np.testing.assert_allclose(layer(x), y, rtol=1e-6)


@pytest.mark.parametrize("name", ["m.h5", "w.h5"])
def test_the_older_format_refuses_what_it_would_lose(name, tmp_path):
    model = small()
    write = model.save if name == "m.h5" else model.save_weights
    with pytest.raises(ValueError, match=r'"counted.* defines save_own_variables\(\), but the old'):
        write(tmp_path / name)


class Writing(layers.Layer):
    """Would keep files of its own."""

    def call(self, x):
        return x

    def save_assets(self, folder):
        raise AssertionError

    def load_assets(self, folder):
        raise AssertionError


@pytest.mark.parametrize("name", ["m.keras", "folder", "m.h5"])
def test_layers_with_files_of_their_own_are_refused(name, tmp_path):
    model = Sequential([Input((2,)), Writing(name="w")])
    with pytest.raises(ValueError, match=r'Writing "w" defines save_assets\(\), which'):
        model.save(tmp_path / name, zipped=name != "folder")
    assert not list(tmp_path.iterdir())


def test_files_of_a_layers_own_are_not_ignored_when_loading(tmp_path, monkeypatch):
    model = Sequential([Input((2,)), Writing(name="w")])
    with monkeypatch.context() as patch:
        patch.delattr(Writing, "save_assets")
        model.save(tmp_path / "m", zipped=False)
    assert models.load_model(tmp_path / "m", custom_objects={"Writing": Writing})
    (tmp_path / "m/assets/layers/writing").mkdir(parents=True)
    with pytest.raises(saving.FileError, match=r'layer "w" \(Writing\), which load_assets'):
        models.load_model(tmp_path / "m", custom_objects={"Writing": Writing})


def test_the_editor_leaves_such_layers_out_of_its_comparison(tmp_path):
    path = tmp_path / "w.weights.h5"
    small().save_weights(path)
    assert saving.KerasFileEditor(path).compare(small())["errors"] == {}


def test_a_resumed_training_has_the_arrays_too(tmp_path):
    x = np.ones((4, 2), "float32")
    backup = callbacks.BackupAndRestore(tmp_path / "b", delete_checkpoint=False)
    model, other = small(), small()
    for net in (model, other):
        net.compile("sgd", "mse")
        if net is model:
            net.layers[1].seen = np.array([1.0, 2.0, 3.0])
        net.fit(x, x, verbose=0, callbacks=[backup])
    np.testing.assert_array_equal(other.layers[1].seen, [1, 2, 3])
    np.testing.assert_array_equal(other.layers[1].scale, model.layers[1].scale)
