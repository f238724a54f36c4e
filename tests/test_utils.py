"""Helpers under picodl.utils, data sets and images."""

from __future__ import annotations

import gzip
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import picodl
from picodl import backend, datasets, layers, utils


def test_set_random_seed() -> None:
    def draws(seed: int) -> Any:
        utils.set_random_seed(seed)
        weights = layers.Dense(3)
        weights.build((None, 2))
        return random.random(), np.random.rand(), weights.get_weights()[0].tolist()

    assert draws(3) == draws(3) != draws(4)
    state = np.random.get_state(legacy=False)["state"]["key"].tobytes(), random.getstate()
    model = picodl.Sequential([layers.Dense(2), layers.Dropout(0.5)])
    model.compile("sgd", loss="mse")
    model.fit(np.ones((4, 2)), np.ones((4, 2)), verbose=0)
    assert state == (np.random.get_state(legacy=False)["state"]["key"].tobytes(), random.getstate())
    for seed in (-1, 2**32, 1.5, True, None):
        with pytest.raises(ValueError, match="seed must be an integer"):
            utils.set_random_seed(seed)  # type: ignore[arg-type]


def test_clear_session_starts_names_again() -> None:
    utils.clear_session()
    assert layers.Dense(1).name == "dense"
    assert layers.Dense(1).name == "dense_1"
    utils.clear_session()
    assert layers.Dense(1).name == "dense"


@pytest.mark.parametrize(
    ("x", "classes", "shape"),
    [
        ([0, 2], None, (2, 3)),
        ([[1], [0]], 4, (2, 4)),
        ([[0, 1], [1, 0]], 2, (2, 2, 2)),
        ([], 3, (0, 3)),
    ],
)
def test_to_categorical(x: Any, classes: Any, shape: Any) -> None:
    rows = utils.to_categorical(x, classes)
    assert rows.shape == shape and rows.dtype == np.float32
    np.testing.assert_array_equal(rows.argmax(-1).ravel(), np.ravel(x))


@pytest.mark.parametrize(
    ("x", "classes", "told"),
    [
        ([0, 5], 3, "from 0 to 2.*the label 5"),
        ([0, -1], None, "the label -1"),
        (["a", "b"], None, "labels x must be integers.*LabelEncoder"),
        ([0.5], None, "labels x must be integers"),
    ],
)
def test_to_categorical_mistakes(x: Any, classes: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        utils.to_categorical(x, classes)


def test_normalize() -> None:
    x = np.random.default_rng(0).normal(size=(3, 4, 5))
    np.testing.assert_allclose(np.linalg.norm(utils.normalize(x, 1), axis=1), 1)
    np.testing.assert_allclose(np.abs(utils.normalize(x, order=1)).sum(-1), 1)
    assert utils.normalize(np.zeros((2, 2), "float32")).dtype == np.float32


def test_packing() -> None:
    for data in ((1,), (1, 2), (1, 2, 3)):
        x, y, weight = utils.unpack_x_y_sample_weight(data)
        packed = utils.pack_x_y_sample_weight(x, y, weight)
        assert packed == (data if len(data) > 1 else 1)
    assert utils.pack_x_y_sample_weight([1]) == ([1],)
    assert utils.unpack_x_y_sample_weight([1, 2]) == (1, 2, None)
    with pytest.raises(ValueError, match="a tuple of 4"):
        utils.unpack_x_y_sample_weight((1, 2, 3, 4))


def test_split_dataset() -> None:
    x, y = np.arange(10), np.arange(10) * 2
    (xa, ya), (xb, yb) = utils.split_dataset((x, y), right_size=0.3)
    assert (len(xa), len(xb)) == (7, 3) and (ya == xa * 2).all() and (yb == xb * 2).all()
    a, b = utils.split_dataset(x, left_size=4, right_size=2, shuffle=True, seed=1)
    assert len(a) == 4 and len(b) == 2 and not set(a) & set(b)
    left, right = utils.split_dataset((i for i in range(5)), left_size=2)
    assert (left, right) == ([0, 1], [2, 3, 4])
    for sizes in ({}, {"left_size": 11}, {"left_size": 1.5}, {"left_size": 6, "right_size": 6}):
        with pytest.raises(ValueError, match="split_dataset"):
            utils.split_dataset(x, **sizes)


def test_symbolic_values() -> None:
    a, b = picodl.Input((2,)), picodl.Input((2,))
    y = layers.Dense(1)(layers.Add()([a, b]))
    assert utils.is_keras_tensor(y) and not utils.is_keras_tensor(np.ones(2))
    assert [id(s) for s in utils.get_source_inputs(y)] == [id(a), id(b)]


def test_names_of_dtypes() -> None:
    for given in (
        "float64",
        float,
        np.float64,
        np.dtype("float64"),
        None,
        int,
        bool,
        "torch.int64",
    ):
        assert utils.standardize_dtype(given) in ("float64", "float32", "int32", "bool", "int64")
    for name in ("int64", "float64", "int32", "float16", "bool"):  # int64 == int for numpy
        assert utils.standardize_dtype(np.dtype(name)) == name
    assert utils.standardize_dtype("float") == "float32"
    with pytest.raises(ValueError, match="Unknown dtype"):
        utils.standardize_dtype("flaot32")


@pytest.mark.parametrize(
    ("dtypes", "together"),
    [
        ((), "float32"),
        ((int,), "int32"),
        ((bool, int), "int32"),
        (("int8", int), "int8"),
        (("uint8", "int8"), "int16"),
        (("bool", float), "float32"),
        (("int64", float), "float32"),
        ((np.dtype("int64"), "int32"), "int64"),
        ((np.dtype("float64"), "float32"), "float64"),
        (("float16", "int64"), "float16"),
        (("uint64", "int64"), "float32"),
    ],
)
def test_dtype_of_several(dtypes: tuple[Any, ...], together: str) -> None:
    assert backend.result_type(*dtypes) == together


def test_utils_exports_what_it_names() -> None:
    assert all(hasattr(utils, name) for name in utils.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        utils.nothing


@pytest.mark.parametrize(
    ("name", "shape", "classes"),
    [
        ("digits", (1437, 64), 10),
        ("iris", (120, 4), 3),
        ("wine", (142, 13), 3),
        ("breast_cancer", (455, 30), 2),
        ("diabetes", (353, 10), 0),
        ("moons", (800, 2), 2),
        ("circles", (800, 2), 2),
        ("blobs", (800, 2), 3),
        ("spirals", (800, 2), 2),
        ("xor", (800, 2), 2),
    ],
)
def test_bundled_data(name: str, shape: Any, classes: int) -> None:
    (x, y), (x_test, y_test) = getattr(datasets, name).load_data()
    assert x.shape == shape and x.dtype == np.float32 and len(x_test) == len(y_test)
    assert y.dtype == (np.int64 if classes else np.float32)
    if classes:
        assert set(y) == set(y_test) == set(range(classes))
    (again, _), _ = getattr(datasets, name).load_data()
    np.testing.assert_array_equal(x, again)


def test_spirals_lie_on_their_curves() -> None:
    options = {"classes": 3, "turns": 2.0, "noise": 0.0}
    (x, y), (_, y_test) = datasets.spirals.load_data(600, **options)
    radius = np.hypot(x[:, 0], x[:, 1])
    angle = 2 * np.pi * (2 * radius + y / 3)
    assert radius.max() <= 1
    np.testing.assert_allclose(x[:, 0], radius * np.cos(angle), atol=1e-5)
    np.testing.assert_allclose(x[:, 1], radius * np.sin(angle), atol=1e-5)
    assert np.bincount(y).tolist() == [160] * 3 and np.bincount(y_test).tolist() == [40] * 3
    (other, _), _ = datasets.spirals.load_data(600, seed=1, **options)
    assert not np.array_equal(x, other)
    with pytest.raises(ValueError, match="classes of at least 1; received 0"):
        datasets.spirals.load_data(classes=0)
    assert repr(datasets.spirals) == "<data set spirals>"


def test_xor_is_1_where_the_signs_differ() -> None:
    (x, y), (x_test, y_test) = datasets.xor.load_data(400, noise=0.1, test_split=0.5)
    assert len(y) == len(y_test) == 200 and y.sum() == y_test.sum() == 100
    np.testing.assert_array_equal(y, x[:, 0] * x[:, 1] < 0)
    np.testing.assert_array_equal(y_test, x_test[:, 0] * x_test[:, 1] < 0)
    corners = np.round(np.concatenate([x, x_test])).astype(int)
    assert np.unique(corners, axis=0, return_counts=True)[1].tolist() == [100] * 4


@pytest.mark.parametrize(("name", "epochs"), [("spirals", 40), ("xor", 10)])
def test_a_small_network_learns(name: str, epochs: int) -> None:
    (x, y), (x_test, y_test) = getattr(datasets, name).load_data()
    utils.set_random_seed(0)
    model = picodl.Sequential(
        [
            layers.Dense(64, activation="relu"),
            layers.Dense(64, activation="relu"),
            layers.Dense(2, activation="softmax"),
        ]
    )
    loss = "sparse_categorical_crossentropy"
    model.compile(picodl.optimizers.Adam(0.01), loss=loss, metrics=["accuracy"])
    model.fit(x, y, epochs=epochs, verbose=0)
    assert model.evaluate(x_test, y_test, verbose=0)[1] > 0.9


def idx(array: Any) -> bytes:
    head = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.astype("uint8").tobytes()


def test_mnist_from_files(tmp_path: Path) -> None:
    images, labels = np.arange(2 * 4).reshape(2, 2, 2), np.array([3, 7])
    for part in ("train", "t10k"):
        (tmp_path / f"{part}-images-idx3-ubyte").write_bytes(idx(images))
        with gzip.open(tmp_path / f"{part}-labels-idx1-ubyte.gz", "wb") as file:
            file.write(idx(labels))
    (x, y), (x_test, _) = datasets.mnist.load_data(tmp_path)
    assert x.dtype == np.uint8 and (x == images).all() and y.tolist() == [3, 7]
    np.savez(tmp_path / "m.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    np.testing.assert_array_equal(datasets.mnist.load_data(tmp_path / "m.npz")[1][0], x_test)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx(images)[:-1])
    with pytest.raises(ValueError, match="is damaged: its header says shape"):
        datasets.mnist.load_data(tmp_path)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(b"PNG")
    with pytest.raises(ValueError, match="is no IDX file"):
        datasets.mnist.load_data(tmp_path)
    with pytest.raises(FileNotFoundError, match="Nothing is downloaded unasked"):
        datasets.fashion_mnist.load_data(tmp_path / "nowhere")


def test_images(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    rng = np.random.default_rng(0)
    for name in ("cats", "dogs"):
        (tmp_path / name).mkdir()
        for i in range(5):
            picture = rng.integers(0, 256, (8, 12, 3)).astype("float32")
            utils.save_img(tmp_path / name / f"{i}.png", picture, scale=False)
    picture[...] = utils.img_to_array(utils.load_img(tmp_path / "dogs" / "4.png"))
    assert picture.shape == (8, 12, 3) and picture.dtype == np.float32
    grey = utils.load_img(tmp_path / "dogs" / "4.png", "grayscale", (4, 4), "bilinear", True)
    assert utils.img_to_array(grey).shape == (4, 4, 1)
    assert utils.img_to_array(grey, "channels_first").shape == (1, 4, 4)
    back = utils.img_to_array(utils.array_to_img(picture, scale=False))
    np.testing.assert_array_equal(back, picture)
    data = utils.image_dataset_from_directory(
        tmp_path, batch_size=4, image_size=(6, 6), seed=1, verbose=False
    )
    assert data.class_names == ["cats", "dogs"] and len(data) == 3
    x, y = data[0]
    assert x.shape == (4, 6, 6, 3) and y.dtype == np.int32
    train, validation = utils.image_dataset_from_directory(
        tmp_path, label_mode="binary", image_size=(6, 6), seed=1, validation_split=0.3,
        subset="both", verbose=False,
    )  # fmt: skip
    assert not set(train.file_paths) & set(validation.file_paths)
    assert len(validation.file_paths) == 3 and train[0][1].shape == (7, 1)
    model = picodl.Sequential(
        [layers.Rescaling(1 / 255), layers.Flatten(), layers.Dense(1, "sigmoid")]
    )
    model.compile(picodl.optimizers.SGD(1e-6), "binary_crossentropy")
    model.fit(train, validation_data=validation, verbose=0)
    assert utils.smart_resize(picture, (4, 4)).shape == (4, 4, 3)
    whole = utils.image_dataset_from_directory(
        tmp_path, labels=None, batch_size=None, image_size=(12, 12), shuffle=False,
        pad_to_aspect_ratio=True, format="tf", verbose=False,
    )  # fmt: skip
    assert [x.shape for x in whole] == [(12, 12, 3)] * 10
    assert not whole[0][:2].any() and whole[0][2:10].any(axis=(1, 2)).all()  # 8 x 12 before
    with pytest.raises(ValueError, match="not both"):
        utils.image_dataset_from_directory(
            tmp_path, crop_to_aspect_ratio=True, pad_to_aspect_ratio=True
        )
    with pytest.raises(ValueError, match="No pictures"):
        utils.image_dataset_from_directory(tmp_path / "cats" / "..", class_names=["x"])
    clear = np.dstack([picture, picture[..., :1]])
    for name, kind in (("a.jpg", None), ("b.jpeg", "jpg"), ("c.png", "png")):
        utils.save_img(tmp_path / name, clear, file_format=kind)
        assert utils.load_img(tmp_path / name).size == (12, 8)
    with pytest.raises(ValueError, match="color_mode must be one of"):
        utils.load_img(tmp_path / "dogs" / "4.png", "cmyk")
