"""Files that lie, are damaged or attack: refused by name, and nothing else happens."""

from __future__ import annotations

import io
import json
import struct
import tracemalloc
import zipfile
import zlib

import h5py
import numpy as np
import pytest

import picodl as P
from picodl import layers, saving

W0 = "layers/dense/vars/0"
MIB = 1 << 20


def net():
    return P.Sequential([P.Input((4,)), layers.Dense(8, "relu", name="a"), layers.Dense(3)])


@pytest.fixture
def good(tmp_path):
    model = net()
    model.save_weights(tmp_path / "good.weights.h5")
    model.save(tmp_path / "good.keras")
    model.save(tmp_path / "good.h5")
    return model


def refused(path, match, limit=64 * MIB):
    """load_weights says what is wrong, takes little memory, and leaves the model as it was."""
    model = net()
    before = model.get_weights()
    tracemalloc.start()
    try:
        with pytest.raises(saving.FileError, match=match) as caught:
            model.load_weights(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert path.name in str(caught.value)
    assert peak < limit
    assert all(np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))


# ---------------------------------------------------------------------------- HDF5


def other_file(folder):
    with h5py.File(folder / "secret.h5", "w") as file:
        file[W0] = np.full((4, 8), 7.0, "f4")
    return str(folder / "secret.h5")


def virtual(file, path, source):
    layout = h5py.VirtualLayout((4, 8), "f4")
    layout[:] = h5py.VirtualSource(source, W0, (4, 8))
    file.create_virtual_dataset(path, layout)


def huge_chunk(file, path, chunk, stored):
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_chunk(chunk)
    plan.set_deflate(1)
    space = h5py.h5s.create_simple((4, 8), (h5py.h5s.UNLIMITED,) * 2)
    parent, leaf = path.rsplit("/", 1)
    made = h5py.h5d.create(file[parent].id, leaf.encode(), h5py.h5t.IEEE_F32LE, space, plan)
    packer = zlib.compressobj(1)
    made.write_direct_chunk(
        (0, 0), b"".join([*(packer.compress(bytes(MIB)) for _ in range(stored)), packer.flush()])
    )


def filtered(file, path, *codes):
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_chunk((4, 8))
    for code in codes:
        plan.set_filter(code, h5py.h5z.FLAG_OPTIONAL, (1,))
    parent, leaf = path.rsplit("/", 1)
    space = h5py.h5s.create_simple((4, 8))
    made = h5py.h5d.create(file[parent].id, leaf.encode(), h5py.h5t.IEEE_F32LE, space, plan)
    made.write_direct_chunk((0, 0), bytes(128), 0)


ENUM = h5py.enum_dtype({"A": 0, "B": 1}, basetype="i1")
LINKS = {
    "external link": (lambda f, d: put(f, h5py.ExternalLink(other_file(d), W0)), "external link"),
    "soft link": (lambda f, d: put(f, h5py.SoftLink("/layers/dense_1/vars/0")), "soft link"),
    "circle": (lambda f, d: put(f, h5py.SoftLink(f"/{W0}")), "soft link"),
    "virtual": (lambda f, d: virtual(f, W0, other_file(d)), "virtual"),
    "storage": (
        lambda f, d: f.create_dataset(W0, (4, 8), "f4", external=[(other_file(d), 0, 128)]),
        "another file",
    ),
}
CONTENTS = {
    "bool": (np.ones((4, 8), bool), "boolean"),
    "complex": (np.ones((4, 8), "c8"), "compound|complex"),
    "text": (np.full((4, 8), b"1.5"), "text"),
    "objects": (np.full((4, 8), "1.5", object), "text|variable"),
    "pairs": (np.zeros((4, 8), [("a", "f4"), ("b", "f4")]), "compound"),
    "bytes": (np.zeros((4, 8), "V16"), "opaque"),
    "transposed": (np.zeros((8, 4), "f4"), r"\(8, 4\).*\(4, 8\)"),
    "scalar": (np.float32(1), r"shape \(\)"),
    "empty": (np.zeros((0, 8), "f4"), r"\(0, 8\)"),
    "null": (h5py.Empty("f4"), "no data"),
}
SHAPES = {
    "tera": {"shape": (2**20, 2**20), "chunks": (1024, 1024), "compression": "gzip"},
    "giga": {"shape": (2**14, 2**15), "chunks": (1024, 1024), "compression": "gzip"},
    "references": {"shape": (4, 8), "dtype": h5py.ref_dtype},
    "variable": {"shape": (4, 8), "dtype": h5py.vlen_dtype("f4")},
    "enumerated": {"shape": (4, 8), "dtype": ENUM},
    "unwritten": {"shape": (4, 8), "dtype": "f4", "chunks": (4, 8)},
}


def put(file, item):
    file[W0] = item


def replace(folder, change, name="bad.weights.h5"):
    path = folder / name
    path.write_bytes((folder / "good.weights.h5").read_bytes())
    with h5py.File(path, "r+") as file:
        del file[W0]
        change(file)
    return path


@pytest.mark.parametrize("case", LINKS)
def test_nothing_leads_out_of_the_file(case, good, tmp_path):
    change, match = LINKS[case]
    refused(replace(tmp_path, lambda f: change(f, tmp_path)), rf"dense/vars/0.*{match}")


@pytest.mark.parametrize("part", ["layers", "layers/dense", "layers/dense/vars"])
def test_groups_are_reached_over_hard_links_only(part, good, tmp_path):
    def change(file):
        file.move(part, "elsewhere")
        file[part] = h5py.SoftLink("/elsewhere")

    refused(replace(tmp_path, change), f"{part} is a soft link")


@pytest.mark.parametrize("case", CONTENTS)
def test_what_cannot_be_the_weight_is_refused(case, good, tmp_path):
    data, match = CONTENTS[case]
    refused(replace(tmp_path, lambda f: put(f, data)), match)


@pytest.mark.parametrize("case", SHAPES)
def test_sizes_are_compared_before_memory_is_taken(case, good, tmp_path):
    options = {"dtype": "f4", **SHAPES[case]}
    refused(replace(tmp_path, lambda f: f.create_dataset(W0, **options)), "dense/vars/0", MIB)


@pytest.mark.parametrize(("chunk", "match"), [((8192, 8192), "chunks of"), ((4, 8), "chunk")])
def test_chunks_that_unpack_to_more_are_refused(chunk, match, good, tmp_path):
    def change(file):
        huge_chunk(file, W0, chunk, stored=128)

    refused(replace(tmp_path, change), rf"dense/vars/0.*{match}")


@pytest.mark.parametrize("codes", [(32013,), (1, 1), (4,)])
def test_unknown_or_stacked_filters_are_refused(codes, good, tmp_path):
    refused(replace(tmp_path, lambda f: filtered(f, W0, *codes)), "filter")


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda f: f.create_group(W0), "missing"),
        (lambda f: None, "missing"),
        (lambda f: [put(f, np.zeros((4, 8), "f4")), put2(f)], "no place for"),
    ],
)
def test_missing_and_left_over_items_are_named(make, match, good, tmp_path):
    refused(replace(tmp_path, make), match)


def put2(file):
    file["layers/dense_2/vars/0"] = np.zeros(3)


@pytest.mark.parametrize(
    "options", [{"compression": "gzip", "shuffle": True}, {"fletcher32": True}]
)
def test_usual_filters_are_read(options, good, tmp_path):
    data = good.get_weights()[0]
    path = replace(tmp_path, lambda f: f.create_dataset(W0, data=data, chunks=(2, 8), **options))
    model = net()
    model.load_weights(path)
    assert np.array_equal(model.get_weights()[0], data)


def test_deep_and_wide_groups_cost_nothing(good, tmp_path):
    def change(file):
        put(file, np.zeros((4, 8), "f4"))
        group = file["layers"]
        for _ in range(400):
            group = group.create_group("g")
        file["layers/loop"] = file["layers"]

    refused(replace(tmp_path, change), "deep")


@pytest.mark.parametrize("file", ["good.weights.h5", "good.keras", "good.h5", "x.safetensors"])
def test_a_flipped_bit_is_found_or_does_not_matter(file, good, tmp_path):
    if file[0] == "x":
        good.save_weights(tmp_path / file)
    data = (tmp_path / file).read_bytes()
    places = [i for i, byte in enumerate(data) if byte]
    rng = np.random.default_rng(3)
    path = tmp_path / f"bad.{file.split('.', 1)[1]}"
    want = good.get_weights()
    for at in rng.choice(places, 60):
        damaged = bytearray(data)
        damaged[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        try:
            model = net()
            if file in ("good.weights.h5", "x.safetensors"):
                model.load_weights(path)
            else:
                model = saving.load_model(path)
        except saving.FileError as error:
            assert "bad." in str(error)
        else:
            found = model.get_weights()
            assert all(np.array_equal(a, b) for a, b in zip(want, found, strict=True)), at
            assert model.layers[0].get_config()["activation"] == "relu"


@pytest.mark.parametrize(
    "file", ["good.weights.h5", "good.keras", "good.h5", "x.npz", "x.safetensors"]
)
def test_a_file_cut_anywhere_is_refused(file, good, tmp_path):
    if file[0] == "x":
        good.save_weights(tmp_path / file)
    data = (tmp_path / file).read_bytes()
    path = tmp_path / f"cut.{file.split('.', 1)[1]}"
    for share in (0, 0.01, 0.3, 0.6, 0.9, 0.999):
        path.write_bytes(data[: int(share * len(data))])
        refused(path, "cut")


# ---------------------------------------------------------------------------- archives


def rewrite(folder, change, name="bad.keras"):
    """A copy of the good archive whose members went through `change`."""
    with zipfile.ZipFile(folder / "good.keras") as source:
        members = {n: source.read(n) for n in source.namelist()}
    change(members)
    with zipfile.ZipFile(folder / name, "w") as target:
        for member, data in members.items():
            target.writestr(member, data)
    return folder / name


def model_refused(path, match, limit=64 * MIB):
    tracemalloc.start()
    try:
        with pytest.raises(saving.FileError, match=match) as caught:
            saving.load_model(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert path.name in str(caught.value) and peak < limit


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
        with_config(tmp_path, lambda c: dense(c, units=units)), "units|'a'|a/kernel|dense", MIB
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
