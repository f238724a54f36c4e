"""Data sets in the files of Keras: what Keras gives for them, and no code from a file."""

import collections
import functools
import io
import json
import os
import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from picodl import config, datasets
from picodl.datasets.pickled import Pickled, read_pickled


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Keras's folder of data sets."""
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "keras" / "datasets"
    folder.mkdir(parents=True)
    return folder


def lists(*rows):
    array = np.empty(len(rows), object)
    array[:] = [list(row) for row in rows]
    return array


TRAIN = lists([1, 5, 2], [9, 4], [3], [7, 8, 6, 1, 300])
TEST = lists([2, 2], [70000, 1], [4, 5, 6])
LABELS, TEST_LABELS = np.array([1, 0, 1, 0]), np.array([0, 1, 1])
TOPICS = np.array([3, 4, 19, 45])


def as_lists(split):
    return [[part.tolist() for part in pair] for pair in split]


# the numbers of Keras 3.15 for the same files
@pytest.mark.parametrize(
    ("options", "train", "test"),
    [
        (
            {},
            [[[1, 10, 11, 9, 4, 303], [1, 6], [1, 4, 8, 5], [1, 12, 7]], [0, 1, 1, 0]],
            [[[1, 2, 4], [1, 5, 5], [1, 7, 8, 9]], [1, 0, 1]],
        ),
        (
            {"num_words": 8, "skip_top": 5},
            [[[2, 2, 2, 2, 2, 2], [2, 6], [2, 2, 2, 5], [2, 2, 7]], [0, 1, 1, 0]],
            [[[2, 2, 2], [2, 5, 5], [2, 7, 2, 2]], [1, 0, 1]],
        ),
        (
            {"maxlen": 4, "oov_char": None, "num_words": 9},
            [[[1, 6], [1, 7]], [1, 0]],
            [[[1, 4], [1, 5, 5]], [1, 0]],
        ),
        (
            {"start_char": None, "index_from": 0, "seed": 3},
            [[[7, 8, 6, 1, 300], [9, 4], [1, 5, 2], [3]], [0, 0, 1, 1]],
            [[[2, 1], [4, 5, 6], [2, 2]], [1, 1, 0]],
        ),
    ],
)
def test_imdb_as_keras(home, options, train, test):
    np.savez(home / "imdb.npz", x_train=TRAIN, y_train=LABELS, x_test=TEST, y_test=TEST_LABELS)
    split = datasets.imdb.load_data(**options)
    assert as_lists(split) == [train, test]
    (x, y), _ = split
    assert x.dtype == object and y.dtype == np.int64 and type(x[0][0]) is int


@pytest.mark.parametrize(
    ("options", "train", "test"),
    [
        (
            {},
            [[[1, 10, 11, 9, 4, 2], [1, 6], [1, 4, 8, 5]], [45, 19, 3]],
            [[[1, 12, 7]], [4]],
        ),
        ({"maxlen": 4, "oov_char": None, "num_words": 9}, [[[1, 6]], [19]], [[[1, 7]], [4]]),
        (
            {"test_split": 0.5, "num_words": 9},
            [[[1, 2, 2, 2, 4, 2], [1, 6]], [45, 19]],
            [[[1, 4, 8, 5], [1, 2, 7]], [3, 4]],
        ),
    ],
)
def test_reuters_as_keras(home, options, train, test):
    np.savez(home / "reuters.npz", x=TRAIN, y=TOPICS)
    assert as_lists(datasets.reuters.load_data(**options)) == [train, test]


def test_texts_all_too_long(home):
    np.savez(home / "reuters.npz", x=TRAIN, y=TOPICS)
    with pytest.raises(ValueError, match="No text is shorter than maxlen=2"):
        datasets.reuters.load_data(maxlen=2)
    with pytest.raises(ValueError, match="test_split must be a fraction"):
        datasets.reuters.load_data(test_split=1)


def test_word_indexes_and_names(home):
    (home / "imdb_word_index.json").write_text(json.dumps({"the": 1, "é": 2}))
    (home / "mine.json").write_text(json.dumps({"the": "1"}))
    assert datasets.imdb.get_word_index() == {"the": 1, "é": 2}
    with pytest.raises(ValueError, match=r"mine\.json must hold a number for each word"):
        datasets.reuters.get_word_index("mine.json")
    names = datasets.reuters.get_label_names()
    assert len(names) == 46 and names[0] == "cocoa" and names[45] == "lead"


def test_housing_as_keras(home):
    x = np.arange(14.0).reshape(7, 2)
    for name in ("boston_housing", "california_housing"):
        np.savez(home / f"{name}.npz", x=x, y=x[:, 0] * 10)
        split = getattr(datasets, name).load_data()
        assert as_lists(split)[0][1] == [20, 60, 0, 120, 40]
        assert as_lists(split)[1] == [[[8, 9], [10, 11]], [80, 100]]
        assert split[0][0].dtype == np.float64
        with pytest.raises(ValueError, match="test_split must be a fraction from 0"):
            getattr(datasets, name).load_data(test_split=-0.1)
    _, (_, y) = datasets.boston_housing.load_data(test_split=0.4, seed=1)
    assert y.tolist() == [80, 60, 100]
    np.savez(home / "california_housing.npz", x=np.ones((700, 8), "f4"), y=np.ones(700))
    (x, y), (x_test, _) = datasets.california_housing.load_data("small", test_split=0.1)
    assert x.shape == (540, 8) and x_test.shape == (60, 8) and x.dtype == np.float32
    with pytest.raises(ValueError, match='version must be "small" or "large"'):
        datasets.california_housing.load_data("medium")


def test_paths(home, tmp_path):
    x = np.ones((5, 2))
    np.savez(home / "cached.npz", x=x, y=x[:, 0])
    np.savez(tmp_path / "here.npz", x=x, y=x[:, 0] * 2)
    for path in ("cached.npz", "here.npz", "./here.npz", tmp_path / "here.npz"):
        (_, y), _ = datasets.boston_housing.load_data(path)
        assert y[0] == (1 if path == "cached.npz" else 2)


def short(text):
    return b"U" + bytes([len(text)]) + text


def of_python2(data, labels):
    """A batch of CIFAR as Python 2 wrote it: protocol 2, texts as bytes."""
    out = b"\x80\x02}q\x01(" + short(b"batch_label") + short(b"training batch 1 of 5")
    for key, numbers in labels.items():
        out += short(key) + b"]q\x02(" + b"".join(b"K" + bytes([n]) for n in numbers) + b"e"
    out += short(b"data") + b"cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\n"
    out += b"q\x04K\x00\x85U\x01b\x87Rq\x05(K\x01" + struct.pack(
        "<cicH", b"J", len(data), b"M", 3072
    )
    out += b"\x86cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01\x87Rq\x07(K\x03U\x01|NNN"
    out += b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T" + struct.pack("<i", data.size)
    out += data.tobytes() + b"tb" + short(b"filenames") + b"](" + short(b"a.png") + b"eu."
    return out


def of_python3(data, labels, protocol):
    return pickle.dumps({b"data": data, **labels}, protocol)


WRITERS = {
    "python2": of_python2,
    **{f"protocol{n}": functools.partial(of_python3, protocol=n) for n in (2, 3, 4)},
}


def images(count, seed):
    return np.random.default_rng(seed).integers(0, 256, (count, 3072), "u1")


@pytest.mark.parametrize("writer", WRITERS)
def test_cifar10(home, tmp_path, writer):
    folder = home / "cifar-10-batches-py-target" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    for i, name in enumerate(names):
        (folder / name).write_bytes(WRITERS[writer](images(2, i), {b"labels": [i, 9]}))
    (x, y), (x_test, y_test) = datasets.cifar10.load_data()
    assert x.shape == (10, 32, 32, 3) and x.dtype == y.dtype == y_test.dtype == np.uint8
    assert y.tolist() == [[0], [9], [1], [9], [2], [9], [3], [9], [4], [9]]
    assert y_test.shape == (2, 1)
    np.testing.assert_array_equal(x_test[1, 3, 4], images(2, 5)[1].reshape(3, 32, 32)[:, 3, 4])
    config.set_image_data_format("channels_first")
    try:
        (x, _), _ = datasets.cifar10.load_data(folder.parent)
    finally:
        config.set_image_data_format("channels_last")
    np.testing.assert_array_equal(x[2], images(2, 1)[0].reshape(3, 32, 32))
    folder.rename(home / "cifar-10-batches-py")  # where Keras 2 unpacked it
    assert len(datasets.cifar10.load_data()[0][0]) == 10
    (home / "cifar-10-batches-py" / "data_batch_3").unlink()
    with pytest.raises(FileNotFoundError, match="data_batch_3"):
        datasets.cifar10.load_data()


@pytest.mark.parametrize("writer", WRITERS)
def test_cifar100(home, writer):
    folder = home / "cifar-100-python-target" / "cifar-100-python"
    folder.mkdir(parents=True)
    for name in ("train", "test"):
        labels = {b"coarse_labels": [1, 2, 3], b"fine_labels": [70, 80, 90]}
        (folder / name).write_bytes(WRITERS[writer](images(3, 0), labels))
    (x, y), _ = datasets.cifar100.load_data()
    assert x.shape == (3, 32, 32, 3) and y.tolist() == [[70], [80], [90]] and y.dtype == np.int64
    _, (_, y) = datasets.cifar100.load_data(label_mode="coarse")
    assert y.tolist() == [[1], [2], [3]]
    with pytest.raises(ValueError, match='label_mode must be "fine" or "coarse"'):
        datasets.cifar100.load_data("rough")


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps({"data": images(2, 0), "fine_labels": [1]}, 2),
        pickle.dumps({"data": images(2, 0).astype("f4"), "fine_labels": [1, 2]}, 2),
        pickle.dumps({"data": images(2, 0)[:, :10].copy(), "fine_labels": [1, 2]}, 2),
        pickle.dumps({"data": images(2, 0), "fine_labels": [1, "2"]}, 2),
        pickle.dumps({"data": images(2, 0), "fine_labels": [1, 100]}, 2),
        pickle.dumps({"data": images(2, 0), "fine_labels": [1, -1]}, 2),
        pickle.dumps({"data": images(2, 0), "fine_labels": [1, 2**70]}, 2),
        pickle.dumps({"fine_labels": [1, 2]}, 2),
        pickle.dumps([1, 2], 2),
        b"",
        b"\x1f\x8b",
    ],
)
def test_files_that_are_no_cifar(tmp_path, content):
    for name in ("train", "test"):
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match="train"):
        datasets.cifar100.load_data(path=tmp_path)


class Call:
    """Pickled as a call of a function."""

    def __init__(self, function, *args):
        self.reduced = function, args

    def __reduce__(self):
        return self.reduced


HOSTILE = {
    "system": Call(os.system, "touch ran"),
    "eval": Call(eval, "open('ran', 'w')"),
    "exec": Call(exec, "open('ran', 'w')"),
    "getattr": Call(getattr, "text", "upper"),
    "open": Call(open, "ran", "w"),
    "import": Call(__import__, "this"),
    "nested": [{"a": [Call(os.mkdir, "ran")]}],
    "loads": Call(pickle.loads, b"."),
    "partial": functools.partial(os.mkdir, "ran"),
    "counter": collections.Counter("a"),
    "path": Path("ran"),
    "memmap": Call(np.memmap, "ran", "u1", "w+"),
    "fromfile": Call(np.fromfile, "ran"),
    "array": Call(np.array, [1]),
    "scalar": np.float64(1.0),
    "set": {1, 2},
    "complex": 1j,
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("protocol", range(6))
def test_hostile_pickles_run_nothing(home, tmp_path, name, protocol):
    evil = np.empty(1, object)
    evil[0] = HOSTILE[name]
    data = pickle.dumps({b"labels": HOSTILE[name]}, protocol)
    (tmp_path / "train").write_bytes(data)
    with pytest.raises(ValueError, match="train"):
        datasets.cifar100.load_data(path=tmp_path)
    member = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        member, {"descr": "|O", "fortran_order": False, "shape": (1,)}
    )
    member.write(pickle.dumps(evil, protocol))
    with zipfile.ZipFile(home / "reuters.npz", "w") as archive:
        archive.writestr("x.npy", member.getvalue())
        y = io.BytesIO()
        np.save(y, np.array([1]))
        archive.writestr("y.npy", y.getvalue())
    with pytest.raises(ValueError, match=r"reuters\.npz"):
        datasets.reuters.load_data()
    assert not (tmp_path / "ran").exists()


ARRAY = b"cnumpy\nndarray\nK\x00\x85C\x01b\x87R"
DTYPE = b"cnumpy\ndtype\nC\x02%sK\x00K\x01\x87R"
STATE = b"(K\x03C\x01%sNNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
MAKE = b"cnumpy.core.multiarray\n_reconstruct\n"


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"\x80\x02cos\nsystem\nC\x01a\x85R.", "names os.system"),
        (b"\x80\x04\x8c\x05numpy\x8c\x0bcore.memmap\x93.", "names numpy.core.memmap"),
        (b"\x80\x02cnumpy\nndarray.__class__\n.", "names numpy.ndarray.__class__"),
        (b"\x80\x02cnumpy\nndarray\n)R.", "calls ndarray"),
        (b"\x80\x02cnumpy\nndarray\n)\x81.", "instruction"),  # NEWOBJ
        (b"\x80\x02(i__main__\nx\n.", "instruction"),  # INST
        (b"\x80\x02(cos\nsystem\nC\x01ao.", "names os.system"),  # OBJ
        (b"\x80\x02K\x01Q.", "instruction"),  # BINPERSID
        (b"\x80\x02Pid\n.", "instruction"),  # PERSID
        (b"\x80\x02\x82\x01.", "instruction"),  # EXT1
        (b"\x80\x05\x97.", "instruction"),  # NEXT_BUFFER
        (b"\x80\x06N.", "newer than 5"),
        (b"\x80\x02" + MAKE + b"cnumpy\ndtype\nK\x00\x85C\x01b\x87R.", "calls reconstruct"),
        (b"\x80\x02" + DTYPE % b"O2" + b".", "calls dtype"),
        (b"\x80\x02" + DTYPE % b"V8" + b".", "calls dtype"),
        (b"\x80\x02" + DTYPE % b"u1" + b"(K\x03C\x01|K\x01NNK\x00K\x00K\x00tb.", "with fields"),
        (b"\x80\x02" + DTYPE % b"u1" + STATE % b"?" + b".", "with fields"),
        (b"\x80\x02" + DTYPE % b"u1" + b"}b.", "no tuple"),
        (b"\x80\x02}(K\x01tb.", "has none"),
        (b"\x80\x02]K\x01K\x02s.", "no dict"),
        (b"\x80\x02}K\x01K\x02s.", "keys are no text"),
        (b"\x80\x02}K\x01a.", "no list"),
        (b"\x80\x02](K\x01e", "damaged"),
        (b"\x80\x02K\x01K\x02.", "more than one"),
        (b"\x80\x02(K\x01.", "more than one"),
        (b"\x80\x02(0.", "not there"),
        (b"\x80\x02a.", "damaged"),
        (b"\x80\x02h\x05.", "damaged"),
        (b"\x80\x02r\xff\xff\xff\x7f.", "damaged"),
        (b"\x80\x02U\xffabc.", "cut off"),
        (b"\x80\x02T\xff\xff\xff\xffabc.", "cut off"),
        (b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7fabc.", "cut off"),
        (b"\x80\x02X\x01\x00\x00\x00\xff.", "damaged"),
        (b"", "damaged"),
    ],
)  # fmt: skip
def test_strict_reading_of_pickles(data, told):
    with pytest.raises(ValueError, match=told):
        read_pickled(data)


def pickled_array(shape, code, order, values, fortran=b"\x89"):
    return (
        b"\x80\x03" + MAKE + ARRAY + b"(K\x01" + shape + DTYPE % code + STATE % order + fortran
        + values + b"tb"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "code", "values"),
    [
        (b"K\x05\x85", b"u1", b"C\x04abcd"),
        (b"J\xff\xff\xff\xff\x85", b"u1", b"C\x04abcd"),
        (b"\x8a\x08" + b"\xff" * 7 + b"\x7f\x85", b"u1", b"C\x04abcd"),
        (b"K\x04", b"u1", b"C\x04abcd"),
        (b"K\x04\x85", b"u1", b"]"),
        (b"K\x02\x85", b"O8", b"]K\x01a"),
        (b"K\x08\x85", b"O8", b"C\x08aaaaaaaa"),  # bytes as pointers
        (b"K\x01\x85", b"u1", b"](K\x01e"),
    ],
)
def test_arrays_that_do_not_fit_their_data(shape, code, values):
    with pytest.raises(ValueError, match="the pickle holds an array"):
        read_pickled(pickled_array(shape, code, b"|", values) + b".")


def test_arrays_of_every_order():
    for order, code in ((b"<", "<i2"), (b">", ">i2")):
        data = pickled_array(b"K\x02K\x02\x86", b"i2", order, b"C\x08abcdefgh", b"\x88")
        array = read_pickled(data + b".").value
        expected = np.frombuffer(b"abcdefgh", code).reshape(2, 2, order="F")
        np.testing.assert_array_equal(array, expected)
        assert array.dtype == np.int16 and array.dtype.isnative


def test_values_named_many_times_take_no_memory():
    text = "x" * 50_000
    data = b"\x80\x02c_codecs\nencode\nq\x01X" + struct.pack("<I", len(text)) + text.encode()
    data += b"X\x06\x00\x00\x00latin1\x86q\x02R0" + b"h\x01h\x02R0" * 10_000 + b"N."
    with pytest.raises(ValueError, match="same data many times"):
        read_pickled(data)
    with pytest.raises(ValueError, match="more than 4000000 values"):
        read_pickled(b"\x80\x02" + b"]0" * 2_000_001 + b"N.")


def test_one_list_named_many_times(home):
    row = list(range(200))
    array = np.empty(2000, object)
    array[:] = [row] * 2000
    np.savez(home / "reuters.npz", x=array, y=np.zeros(2000, int))
    with pytest.raises(ValueError, match="x must hold lists of integers"):
        datasets.reuters.load_data()


def test_rows_that_are_arrays(home):
    rows = np.empty(2, object)
    rows[:] = [np.array([1, 2]), np.array([3], "u1")]
    np.savez(home / "reuters.npz", x=rows, y=np.array([0, 1]))
    (x, _), (x_test, _) = datasets.reuters.load_data(num_words=99)
    assert [*x.tolist(), *x_test.tolist()] in ([[1, 4, 5], [1, 6]], [[1, 6], [1, 4, 5]])
    assert isinstance(read_pickled(pickle.dumps(rows[0], 2)), Pickled)


@pytest.mark.parametrize(
    "arrays",
    [
        {"x": TRAIN},
        {"x": TRAIN, "y": TOPICS[:3]},
        {"x": np.ones((4, 2), int), "y": TOPICS},
        {"x": TRAIN, "y": TRAIN},
        {"x": lists(["a"], [1]), "y": TOPICS[:2]},
        {"x": lists([1.5], [1]), "y": TOPICS[:2]},
        {"x": lists([True], [1]), "y": TOPICS[:2]},
        {"x": lists([2**70], [1]), "y": TOPICS[:2]},
        {"x": TRAIN, "y": np.array(["a"] * 4)},
    ],
)
def test_files_that_are_no_reuters(home, arrays):
    np.savez(home / "reuters.npz", **arrays)
    with pytest.raises(ValueError, match=r"reuters\.npz"):
        datasets.reuters.load_data()


def test_damaged_archives(home):
    np.savez(home / "boston_housing.npz", x=np.ones((3, 2)), y=np.ones(3))
    data = (home / "boston_housing.npz").read_bytes()
    for part in (data[:100], data[:-30], b"", data.replace(b"(3, 2)", b"(3, 9)")):
        (home / "boston_housing.npz").write_bytes(part)
        with pytest.raises(ValueError, match=r"boston_housing\.npz"):
            datasets.boston_housing.load_data()


LARGE = ["mnist", "cifar10", "cifar100", "imdb", "reuters", "boston_housing", "california_housing"]


@pytest.mark.parametrize("name", [*LARGE, "fashion_mnist"])
def test_missing_files_say_how_to_get_them(home, tmp_path, name, monkeypatch):
    monkeypatch.setattr("urllib.request.OpenerDirector.open", lambda *args, **kwargs: 1 / 0)
    data = getattr(datasets, name)
    assert "data set" in repr(data)
    with pytest.raises(FileNotFoundError) as caught:
        data.load_data()
    told = str(caught.value)
    assert str(home) in told and "Nothing is downloaded unasked" in told
    assert "picodl.utils.get_file('" in told and "origin='https://" in told
    assert name == "fashion_mnist" or "file_hash='" in told
    with pytest.raises(FileNotFoundError, match="nowhere"):
        data.load_data(path=tmp_path / "nowhere")
    with pytest.raises(ValueError, match="leave out path"):
        data.load_data(path=tmp_path / "nowhere", download=True)
    with pytest.raises(ZeroDivisionError):
        data.load_data(download=True)


def test_download_when_asked(home, tmp_path, monkeypatch, capsys):
    there = tmp_path / "there.npz"
    np.savez(there, x=np.ones((3, 2)), y=np.ones(3))
    source = datasets.boston_housing.source
    monkeypatch.setitem(source.options, "origin", there.as_uri())
    with pytest.raises(ValueError, match="sha256 hash"):
        datasets.boston_housing.load_data(download=True)
    monkeypatch.delitem(source.options, "file_hash")
    for _ in range(2):
        datasets.boston_housing.load_data(download=True)
    assert capsys.readouterr().out.count("Downloading data from") == 2
    assert (home / "boston_housing.npz").exists()


def test_mnist_in_the_cache(home):
    parts = {"x_train": np.zeros((2, 28, 28), "u1"), "y_train": np.array([1, 2], "u1")}
    np.savez(home / "mnist.npz", x_test=parts["x_train"], y_test=parts["y_train"], **parts)
    for options in ({}, {"path": "mnist.npz"}):
        (x, y), _ = datasets.mnist.load_data(**options)
        assert x.shape == (2, 28, 28) and y.tolist() == [1, 2] and y.dtype == np.uint8
