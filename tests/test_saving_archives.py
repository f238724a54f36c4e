"""Archives, configs and other formats that lie or attack: refused, and nothing else happens."""

from __future__ import annotations

import io
import json
import struct
import zipfile

import h5py
import numpy as np
import pytest

from picodl import saving
from tests.saving_models import MIB, model_refused, net, refused, rewrite

W0 = "layers/dense/vars/0"


@pytest.fixture
def good(tmp_path):
    model = net()
    model.save_weights(tmp_path / "good.weights.h5")
    model.save(tmp_path / "good.keras")
    model.save(tmp_path / "good.h5")
    return model


# ---------------------------------------------------------------------------- archives


@pytest.mark.parametrize("member", ["config.json", "model.weights.h5"])
def test_members_must_be_there_once_plain_and_readable(member, good, tmp_path):
    model_refused(rewrite(tmp_path, lambda m: m.pop(member)), member.replace(".", r"\."))
    path = rewrite(tmp_path, lambda m: None)
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr(member, b"{}")
    model_refused(tmp_path / "bad.keras", "duplicates")

    def link(members):
        info = zipfile.ZipInfo(member)
        info.create_system, info.external_attr = 3, 0o120777 << 16
        members[info] = members.pop(member)

    model_refused(rewrite(tmp_path, link), "link")
    data = bytearray((tmp_path / "good.keras").read_bytes())
    for signature, offset in ((b"PK\x01\x02", 8), (b"PK\x03\x04", 6)):
        at = data.find(signature)
        while at >= 0:
            data[at + offset] |= 1
            at = data.find(signature, at + 4)
    (tmp_path / "locked.keras").write_bytes(data)
    model_refused(tmp_path / "locked.keras", "encrypted")


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2])
@pytest.mark.parametrize("member", ["config.json", "model.weights.h5"])
def test_bombs_cost_nothing(member, method, good, tmp_path):
    path = rewrite(tmp_path, lambda m: m.pop(member), "bomb.keras")
    with zipfile.ZipFile(path, "a") as archive:
        info = zipfile.ZipInfo(member)
        info.compress_type = method
        with archive.open(info, "w") as target:
            for _ in range(70):
                target.write(bytes(MIB))
    model_refused(path, member.replace(".", r"\."), 8 * MIB)


def test_a_directory_that_lies_about_sizes_is_refused(good, tmp_path):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("config.json", b"{" + b" " * 70 * MIB + b"}")
    data = buffer.getvalue()
    at = data.rfind(b"PK\x01\x02")
    path = tmp_path / "lies.keras"
    path.write_bytes(data[: at + 24] + struct.pack("<I", 300) + data[at + 28 :])
    model_refused(path, "config.json|damaged")


def test_members_are_never_unpacked(good, tmp_path):
    def change(members):
        members["../outside"] = members["/tmp/picodl_outside"] = members["a/../../out"] = b"x"

    folder = tmp_path / "inner"
    folder.mkdir()
    path = rewrite(tmp_path, change)
    saving.load_model(path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "bad.keras", "good.h5", "good.keras", "good.weights.h5", "inner",
    ]  # fmt: skip


# ---------------------------------------------------------------------------- configs


def with_config(folder, change):
    def edit(members):
        config = json.loads(members["config.json"])
        found = change(config)
        members["config.json"] = found if isinstance(found, str) else json.dumps(found or config)

    return rewrite(folder, edit)


def dense(config, **changes):
    config["config"]["layers"][1]["config"].update(changes)


@pytest.mark.parametrize("units", [-1, 0, 10**12, 2**31, 8.5, "8", True, None, [8], 10**400])
def test_sizes_in_a_config_cost_nothing(units, good, tmp_path):
    model_refused(
        with_config(tmp_path, lambda c: dense(c, units=units)), "units|'a'|a/kernel|last axis", MIB
    )


@pytest.mark.parametrize(
    ("layer", "match"),
    [
        ({"module": "os", "class_name": "system", "config": {"command": "touch x"}}, "system"),
        ({"module": "builtins", "class_name": "eval", "config": {"source": "1"}}, "eval"),
        ({"module": "keras.saving", "class_name": "load_model", "config": {}}, "load_model"),
        ({"module": None, "class_name": "Evil", "config": {}, "registered_name": "C>Evil"}, "Evil"),
        (
            {
                "module": "keras.layers",
                "class_name": "Lambda",
                "config": {
                    "name": "lam",
                    "function": {"class_name": "__lambda__", "config": {"code": "4wAA"}},
                },
            },
            "lam.*never run",
        ),
        ({"module": "keras.layers", "class_name": "TFSMLayer", "config": {}}, "TFSMLayer"),
        ("dense", "InputLayer|layers|dense|config"),
        (None, "layers|config|None"),
    ],
)
def test_names_from_a_file_run_nothing(layer, match, good, tmp_path):
    def change(config):
        config["config"]["layers"].insert(1, layer)

    model_refused(with_config(tmp_path, change), match)


@pytest.mark.parametrize(
    "changes",
    [
        {"activation": {"module": "os", "class_name": "function", "config": "system"}},
        {"activation": {"class_name": "__lambda__", "config": {"code": "4wAA"}}},
        {"kernel_initializer": {"module": "os", "class_name": "system", "config": {}}},
        {"kernel_initializer": "zzz"},
        {"surprise": 1},
        {"dtype": "float1024"},
    ],
)
def test_arguments_from_a_file_run_nothing(changes, good, tmp_path):
    model_refused(with_config(tmp_path, lambda c: dense(c, **changes)), "Dense 'a'")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        "null",
        "[1]",
        '"x"',
        "{",
        "{}",
        "NaN",
        "[" * 5000 + "]" * 5000,
        '{"a": ' * 400 + "1" + "}" * 400,
    ],
)
def test_other_json_is_refused(text, good, tmp_path):
    model_refused(rewrite(tmp_path, lambda m: m.update({"config.json": text})), r"config\.json")


def test_compile_config_runs_nothing(good, tmp_path):
    evil = {"module": "os", "class_name": "function", "config": "system"}

    def change(config):
        config["compile_config"] = {"optimizer": "adam", "loss": evil}

    path = with_config(tmp_path, change)
    model_refused(path, "compile_config.*system.*compile=False")
    saving.load_model(path, compile=False)


def test_an_older_file_without_its_parts_is_refused(good, tmp_path):
    def broken(change):
        (tmp_path / "bad.h5").write_bytes((tmp_path / "good.h5").read_bytes())
        with h5py.File(tmp_path / "bad.h5", "r+") as file:
            change(file)
        return tmp_path / "bad.h5"

    cases = [
        (lambda f: f.attrs.pop("model_config"), "model_config"),
        (lambda f: attribute(f, "model_config", 5), "model_config"),
        (lambda f: attribute(f, "model_config", "null"), "model_config"),
        (lambda f: f.pop("model_weights"), "model_weights"),
        (lambda f: f["model_weights"].attrs.pop("layer_names"), "layer_names"),
        (lambda f: attribute(f["model_weights"], "layer_names", np.arange(2)), "layer_names"),
        (lambda f: attribute(f["model_weights"], "layer_names", np.array([b"..", b"/"])), "path"),
        (lambda f: f["model_weights/a"].attrs.pop("weight_names"), "weight_names"),
        (lambda f: names(f, [b"zzz", b"yyy"]), "zzz"),
        (lambda f: names(f, [b"/model_weights/a", b"../b"]), "not a path"),
        (lambda f: names(f, [b"only"]), "only"),
    ]
    for change, match in cases:
        model_refused(broken(change), match)


def attribute(owner, name, value):
    owner.attrs[name] = value


def names(file, values):
    file["model_weights/a"].attrs["weight_names"] = np.array(values)


# ---------------------------------------------------------------------------- npz and safetensors


def test_pickles_are_never_loaded(tmp_path):
    array = np.empty(1, object)
    array[0] = print
    np.savez(tmp_path / "x.npz", **{W0: array})
    refused(tmp_path / "x.npz", "plain numbers|header")

    with zipfile.ZipFile(tmp_path / "x.keras", "w") as archive:
        archive.writestr("config.json", "{}")
        archive.writestr("model.weights.npz", (tmp_path / "x.npz").read_bytes())
    refused(tmp_path / "x.keras", "pickle")


@pytest.mark.parametrize(
    ("header", "match"),
    [
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, "does not fill"),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}, "hole"),
        ({"a": {"dtype": "X", "shape": [1], "data_offsets": [0, 4]}}, "damaged entry"),
        ({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, -4]}}, "does not fill"),
        ({"a": {"dtype": "F32", "shape": [2**62], "data_offsets": [0, 2**64]}}, "describes|hole"),
        ({"a": 5}, "damaged entry"),
        ([], "not a JSON object"),
    ],
)
def test_headers_of_safetensors_must_describe_their_bytes(header, match, tmp_path):
    text = json.dumps(header).encode()
    if text[:1] != b"{":
        text = b'{"a":' + text + b"}"
        match = "damaged entry"
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    refused(path, match)
