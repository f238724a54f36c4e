"""Files that Keras 2 and 3 wrote, and how picodl's own are laid out beside them."""

from __future__ import annotations

import warnings
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest

import picodl as P
from picodl import layers, saving
from tests.saving_models import X, Y, same, structure

FOLDER = Path(__file__).parent / "golden" / "files"
FOLDERS = sorted(p.name for p in FOLDER.iterdir() if p.is_dir())
WHOLE = [(d, f) for d in FOLDERS for f in ("model.keras", "model.h5") if (FOLDER / d / f).exists()]
WEIGHTS = [
    (d, f)
    for d in FOLDERS
    for f in ("model.weights.h5", "legacy_weights.h5", "model.h5", "model.keras")
    if (FOLDER / d / f).exists() and d not in ("subclassed", "functional_subclass", "vocabularies")
]


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


@pytest.mark.parametrize("file", ["x.keras", "x.h5", "x.weights.h5"])
def test_vocabularies_and_their_weights_are_kept(file, tmp_path):
    values = expected("vocabularies")
    model = saving.load_model(FOLDER / "vocabularies" / "model.keras")
    model.save_weights(tmp_path / file) if "weights" in file else model.save(tmp_path / file)
    if "weights" in file:
        model.get_layer("words").load_own_variables({"idf_weights": np.zeros(5)})
        model.load_weights(tmp_path / file)
    else:
        model = saving.load_model(tmp_path / file)
    predicts(model, values)


def test_vocabularies_weights_are_laid_out_as_keras_writes_them(tmp_path):
    theirs = FOLDER / "vocabularies" / "model.keras"
    saving.load_model(theirs).save(tmp_path / "x.keras")
    found = []
    for path in (theirs, tmp_path / "x.keras"):
        with zipfile.ZipFile(path) as archive:
            archive.extract("model.weights.h5", tmp_path)
        found.append(sorted(structure(tmp_path / "model.weights.h5")))
    assert found[0] == found[1]


def test_weights_of_another_vocabulary_are_refused(tmp_path):
    def words(tokens, mode="tf_idf"):
        x = P.Input((1,), dtype="string")
        options = {"idf_weights": range(len(tokens))} if mode == "tf_idf" else {}
        layer = layers.StringLookup(vocabulary=tokens, output_mode=mode, name="w", **options)
        return P.Model(x, layer(x))

    words(["a", "b"]).save_weights(tmp_path / "x.weights.h5")
    other = words(["a", "b", "c"])
    with pytest.raises(saving.FileError, match=r"idf_weights have shape \(3,\).*needs \(4,\)"):
        other.load_weights(tmp_path / "x.weights.h5")
    np.testing.assert_allclose(other.layers[-1].idf_weights, [1, 0, 1, 2])
    with pytest.raises(saving.FileError, match="holds 0 variables itself"):
        words(["a", "b"], "count").load_weights(tmp_path / "x.weights.h5")


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


class Encoder(P.Model):
    def __init__(self, **kwargs):
        embed, top = layers.Dense(4, "tanh", name="embed"), layers.Dense(2, name="top")
        norm = layers.LayerNormalization(name="a_norm")
        x = P.Input((3,))
        super().__init__(x, top(norm(embed(x))), **kwargs)
        self.a_norm, self.top, self.embed = norm, top, embed


def test_layers_come_before_attributes_in_a_subclass_made_of_symbols(tmp_path):
    values = expected("functional_subclass")
    theirs = FOLDER / "functional_subclass" / "model.weights.h5"
    model = Encoder(name="encoder")
    model.load_weights(theirs)
    predicts(model, values)
    model.save_weights(tmp_path / "own.weights.h5")
    assert structure(tmp_path / "own.weights.h5") == structure(theirs)


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


@pytest.mark.parametrize(
    "folder", [d for d, f in WHOLE if f == "model.h5" and (d, "model.keras") in WHOLE]
)
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
