"""HDF5 files that lie, are damaged or attack: refused by name, and nothing else happens."""

from __future__ import annotations

import zlib

import h5py
import numpy as np
import pytest

from picodl import saving
from tests.saving_models import MIB, net, refused

W0 = "layers/dense/vars/0"


@pytest.fixture
def good(tmp_path):
    model = net()
    model.save_weights(tmp_path / "good.weights.h5")
    model.save(tmp_path / "good.keras")
    model.save(tmp_path / "good.h5")
    return model


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
