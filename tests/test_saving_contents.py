"""Large files and shards; looking into files, converting and editing them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import picodl as P
from picodl import layers, saving
from tests.saving_models import FORMATS, net, same, save

FOLDER = Path(__file__).parent / "golden" / "files"

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
    count = len(model.weights)
    fits = {"status": "success", "error_count": 0, "match_count": count, "errors": {}}
    assert editor.compare(model) == fits
    editor.rename_object("layers/dense_1", "other")
    assert "layers/other/vars/0" in editor.weights_dict
    found = editor.compare(model)
    assert (found["status"], found["error_count"], found["match_count"]) == ("error", 4, count - 2)
    assert set(found["errors"].values()) == {"missing", "not in the model"}
    editor.rename_object("other", "layers/dense_1")
    editor.delete_weight("dense_1", "1")
    editor.add_weights("dense_1", {"1": np.full(3, 7.0, "f4")})
    for name in ("layers/zzz", "zzz"):
        with pytest.raises(ValueError, match=f"no objects '{name}'"):
            editor.delete_object(name)
    editor.add_object("spare/dense_1", {"0": np.zeros(1)})
    with pytest.raises(ValueError, match="holds 2 objects 'dense_1'"):
        editor.delete_object("dense_1")
    editor.delete_object("spare/dense_1")
    assert editor.compare(model) == fits
    editor.save(tmp_path / "y.weights.h5")
    model.load_weights(tmp_path / "y.weights.h5")
    assert (model.get_weights()[3] == 7).all()
