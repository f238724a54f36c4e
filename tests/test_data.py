"""From what users pass as data to batches: kinds, order, splits, weights, mistakes."""

from __future__ import annotations

import random
import threading
import time
import tracemalloc
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from scipy import sparse

import picodl
from picodl import layers
from picodl.models import arrays
from picodl.models.data import make_batches, one_batch, split_validation
from picodl.utils import PyDataset, prefetch

N = 7
X = np.arange(N, dtype="float32")[:, None]
Y = np.arange(N)


def numbers(batches: Any, epoch: int = 0, start: int = 0) -> list[list[int]]:
    """Which samples the batches of an epoch hold."""
    return [np.ravel(x).astype(int).tolist() for x, _, _ in batches.epoch(epoch, start)]


def net() -> Any:
    """A model that gives x back, whose loss is the mean of x."""
    one = layers.Dense(1, use_bias=False, kernel_initializer="ones")
    model = picodl.Sequential([picodl.Input((1,)), one])
    model.compile(picodl.optimizers.SGD(0.0), loss="mae")
    return model


# ---------------------------------------------------------------- order


def test_order_is_that_of_keras() -> None:
    batches = make_batches(X, Y, batch_size=3, shuffle=True)
    assert numbers(batches, 0) == [[5, 0, 1], [4, 2, 6], [3]]
    assert numbers(batches, 1) == [[5, 6, 2], [3, 4, 0], [1]]
    assert numbers(batches, 2) == [[5, 6, 2], [1, 4, 3], [0]]
    assert numbers(batches, 1, start=2) == [[1]]
    assert (batches.steps, batches.samples, batches.batch_size) == (3, 7, 3)
    for x, y, weight in batches.epoch(0):
        assert weight is None
        np.testing.assert_array_equal(x[:, 0], y)


def test_batch_shuffle_stays_inside_batches() -> None:
    batches = make_batches(X, Y, batch_size=3, shuffle="batch")
    parts = numbers(batches, 4)
    assert [sorted(part) for part in parts] == [[0, 1, 2], [3, 4, 5], [6]]
    order = [np.random.default_rng(5 + i).permutation(3).tolist() for i in range(2)]
    assert parts[:2] == [order[0], [3 + i for i in order[1]]]


def test_unshuffled_batches_are_views() -> None:
    batches = make_batches(X, Y, batch_size=3)
    assert numbers(batches) == [[0, 1, 2], [3, 4, 5], [6]]
    assert all(np.shares_memory(x, X) for x, _, _ in batches.epoch(0))
    assert next(make_batches(X).epoch(0))[0].shape == (7, 1)  # 32 by default


def test_steps_go_on_where_the_last_epoch_ended() -> None:
    batches = make_batches(X, Y, batch_size=2, steps=2)
    assert [numbers(batches, e) for e in range(2)] == [[[0, 1], [2, 3]], [[4, 5], [6]]]
    assert numbers(batches, 2) == [[0, 1], [2, 3]]
    assert numbers(batches, 3, start=1) == [[6]]
    assert make_batches(X, Y, steps=2).batch_size == 4
    with pytest.warns(UserWarning, match="ran out after 4 of the 9 batches"):
        assert len(numbers(make_batches(X, Y, batch_size=2, steps=9))) == 4


# ---------------------------------------------------------------- kinds of data


def _frames() -> Any:
    import pandas as pd

    return pd.DataFrame({"a": np.arange(N), "b": np.arange(N) / 2.0}), pd.Series(np.arange(N))


def _torch_like() -> Any:
    class Tensor:  # what a tensor of another library offers
        def __init__(self, x: Any) -> None:
            self.x = x
            self.shape = x.shape

        def detach(self) -> Any:
            return self

        def numpy(self) -> Any:
            return self.x

    return Tensor(X), Tensor(Y)


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (X.tolist(), Y.tolist()),
        (X.astype("float64"), Y),
        (X.astype(">f4"), Y.astype(">i4")),
        (X.astype("float16"), Y),
        (sparse.csr_matrix(X), Y),
        (sparse.coo_matrix(X.astype("float64")), Y),
        (picodl.Tensor(X), picodl.Tensor(X)),
        _torch_like(),
        _frames(),
        (np.asfortranarray(np.tile(X, 3)), Y),
    ],
    ids=lambda v: type(v).__name__,
)
def test_kinds_of_arrays(x: Any, y: Any) -> None:
    seen = []
    for a, b, _ in make_batches(x, y, batch_size=3, shuffle=True).epoch(0):
        assert type(a) is np.ndarray and a.dtype == np.float32 and a.dtype.isnative
        np.testing.assert_array_equal(a[:, 0], np.ravel(b))
        seen += np.ravel(b).astype(int).tolist()
    assert seen == [5, 0, 1, 4, 2, 6, 3]


@pytest.mark.parametrize("dtype", ["uint8", "int32", "bool", "int64"])
def test_integers_and_bools_stay(dtype: str) -> None:
    x, _, _ = next(make_batches(X.astype(dtype), batch_size=3).epoch(0))
    assert x.dtype == dtype


def test_floats_are_cast_once_and_not_copied_when_right() -> None:
    batches = make_batches(X, X[:, 0])
    assert batches.data[0] is X  # type: ignore[attr-defined]
    assert np.shares_memory(batches.data[1], X)  # type: ignore[attr-defined]


def test_structures_keep_their_shape() -> None:
    x = {"b": X, "a": [X + 1, (X + 2,)]}
    for shuffle in (False, True):
        a, b, w = next(make_batches(x, (X, Y), [X[:, 0], X[:, 0]], shuffle=shuffle).epoch(0))
        assert list(a) == ["b", "a"] and isinstance(a["a"][1], tuple) and isinstance(b, tuple)
        np.testing.assert_array_equal(a["b"] + 2, a["a"][1][0])
        np.testing.assert_array_equal(b[1], w[0])


def test_empty_data_is_for_predict_only() -> None:
    with pytest.raises(ValueError, match="x is empty: it has 0 samples"):
        make_batches(X[:0], Y[:0])
    ((x, y, _),) = make_batches(X[:0], allow_empty=True).epoch(0)
    assert x.shape == (0, 1) and y is None


# ---------------------------------------------------------------- data in files


@pytest.fixture
def small_windows(monkeypatch: Any) -> None:
    monkeypatch.setattr(arrays, "WINDOW_BYTES", 4096)
    monkeypatch.setattr("picodl.models.windows.WINDOW_BYTES", 4096)


@pytest.fixture(params=["h5py", "memmap"])
def stored(request: Any, tmp_path: Path) -> Iterator[Any]:
    """1000 rows of 8 numbers in a file, the first number of a row being its place."""
    data = np.zeros((1000, 8), "float64")
    data[:, 0] = np.arange(1000)
    if request.param == "memmap":
        np.save(tmp_path / "x.npy", data)
        yield np.load(tmp_path / "x.npy", mmap_mode="r")
        return
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = data
        yield file["x"]


@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("shuffle", [False, True, "batch"])
def test_stored_data_is_read_window_by_window(stored: Any, shuffle: Any) -> None:
    y = np.arange(1000)
    batches = make_batches(stored, y, batch_size=16, shuffle=shuffle)
    orders = []
    for epoch in (0, 0, 1):
        seen = []
        for a, b, _ in batches.epoch(epoch):
            assert type(a) is np.ndarray and a.dtype == np.float32 and len(a) <= 16
            np.testing.assert_array_equal(a[:, 0], b)
            seen += b.tolist()
        orders.append(seen)
    assert sorted(orders[0]) == y.tolist() and orders[0] == orders[1]
    assert (orders[0] == y.tolist()) == (shuffle is False)
    assert (orders[0] != orders[2]) == (shuffle is not False)
    rest = [b.tolist() for _, b, _ in batches.epoch(1, start=20)]
    assert np.concatenate(rest).tolist() == orders[2][-sum(map(len, rest)) :]
    assert len(rest) == batches.steps - 20


@pytest.mark.usefixtures("small_windows")
def test_stored_data_splits_and_trains(stored: Any) -> None:
    (x, _, _), (x_val, _, _) = split_validation(stored, np.arange(1000), None, 0.25)
    assert (len(x), len(x_val)) == (750, 250)
    first = next(make_batches(x_val, batch_size=4).epoch(0))[0]
    np.testing.assert_array_equal(first[:, 0], [750, 751, 752, 753])
    model = picodl.Sequential([picodl.Input((8,)), layers.Dense(1)])
    model.compile(picodl.optimizers.SGD(1e-9), loss="mse")
    history = model.fit(stored, np.zeros(1000), epochs=2, validation_split=0.1, verbose=0)
    assert len(history.history["val_loss"]) == 2
    assert model.predict(stored, verbose=0).shape == (1000, 1)


@pytest.mark.usefixtures("small_windows")
def test_reading_stops_when_a_fit_is_given_up(stored: Any) -> None:
    def stop(batch: int, logs: Any) -> None:
        raise KeyboardInterrupt

    model = picodl.Sequential([picodl.Input((8,)), layers.Dense(1)])
    model.compile(picodl.optimizers.SGD(1e-9), loss="mse")
    with pytest.raises(KeyboardInterrupt):
        model.fit(
            stored, np.zeros(1000), verbose=0,
            callbacks=[picodl.callbacks.LambdaCallback(on_train_batch_end=stop)],
        )  # fmt: skip
    assert not [t for t in threading.enumerate() if t.name == "picodl-prefetch"]


def test_small_stored_data_has_the_order_of_memory(stored: Any) -> None:
    batches = make_batches(stored, batch_size=100, shuffle=True)
    order = np.random.default_rng(1).permutation(1000)
    got = np.concatenate([x[:, 0] for x, _, _ in batches.epoch(0)])
    np.testing.assert_array_equal(got, order)


def test_memory_stays_flat_over_stored_data(tmp_path: Path, monkeypatch: Any) -> None:
    for module in ("arrays", "windows"):
        monkeypatch.setattr(f"picodl.models.{module}.WINDOW_BYTES", 1 << 20)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        x = file.create_dataset("x", (100_000, 64), "float32")  # 25 MB
        tracemalloc.start()
        for a, _, _ in make_batches(x, batch_size=128, shuffle=True).epoch(0):
            assert a.shape[1] == 64
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 8 << 20, peak


# ---------------------------------------------------------------- streams


def pairs(count: int) -> Iterator[Any]:
    for i in range(count):
        yield np.full((2, 1), float(i)), np.zeros((2, 1))


class Again:
    """An iterable that begins anew each time, with a length, as data loaders are."""

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[Any]:
        return iter([list(batch) for batch in pairs(3)])


def test_generator_goes_on_over_epochs_and_warns_when_it_ends() -> None:
    with pytest.warns(UserWarning, match="ran out after 2 of the 3 batches"):
        history = net().fit(pairs(5), steps_per_epoch=3, epochs=4, verbose=0)
    np.testing.assert_allclose(history.history["loss"], [1.0, 3.5])
    with pytest.warns(UserWarning, match="generator ran out of data.*steps_per_epoch"):
        history = net().fit(pairs(3), epochs=2, verbose=0)
    assert history.epoch == [0]
    source = pairs(4)
    assert net().fit(source, steps_per_epoch=2, epochs=1, verbose=0).epoch == [0]
    assert next(source)[0][0, 0] == 2.0  # no batch was taken in vain


def test_iterable_is_iterated_anew() -> None:
    history = net().fit(Again(), epochs=2, verbose=0)
    assert history.history["loss"] == [1.0, 1.0] and history.params["steps"] == 3
    with pytest.warns(UserWarning, match="ran out after 1 of the 2 batches"):
        history = net().fit(Again(), epochs=3, steps_per_epoch=2, verbose=0)
    assert history.history["loss"] == [0.5, 2.0, 0.5]


@pytest.mark.parametrize(
    "batch", [(X,), X, [X, Y], (X, X, np.ones(N)), {"x": X}], ids=["x,", "x", "list", "xyw", "dict"]
)
def test_forms_of_a_batch(batch: Any) -> None:
    ((x, _, _),) = make_batches(iter([batch])).epoch(0)
    assert isinstance(x, dict) == isinstance(batch, dict)


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (lambda: iter([]), "is empty: it yields no data"),
        (lambda: iter([None]), "must yield batches.*received None"),
        (lambda: iter([(X, Y, Y, Y)]), "a tuple of 4"),
        (lambda: iter([(X, Y[:3])]), "x has 7, y has 3"),
        (lambda: iter([(X.astype(str), Y)]), "x must hold numbers.*strings"),
    ],
)
def test_bad_streams(source: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        list(make_batches(source()).epoch(0))


def test_targets_beside_a_stream_are_refused() -> None:
    with pytest.raises(ValueError, match="y should not be passed beside a generator"):
        make_batches(pairs(2), Y)
    with pytest.raises(ValueError, match="validation_split needs arrays"):
        split_validation(pairs(2), None, None, 0.5)
    with pytest.warns(UserWarning, match='shuffle="batch" does nothing'):
        make_batches(pairs(2), shuffle="batch")


class Numbers(PyDataset):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.ends = self.begins = 0
        self.threads: set[str] = set()

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        if index == 0:
            time.sleep(0.01)  # the first is the last to be ready
        self.threads.add(threading.current_thread().name)
        return np.full((2, 1), index + 10.0 * self.ends), np.zeros((2, 1))

    def on_epoch_begin(self) -> None:
        self.begins += 1

    def on_epoch_end(self) -> None:
        self.ends += 1


@pytest.mark.parametrize(
    "options",
    [{}, {"workers": 3, "max_queue_size": 2}, {"workers": 2, "use_multiprocessing": True}],
    ids=["here", "threads", "processes"],
)
def test_pydataset(options: Any) -> None:
    data = Numbers(**options)
    history = net().fit(data, epochs=3, shuffle=False, verbose=0).history["loss"]
    np.testing.assert_allclose(history, [2.5, 12.5, 22.5])
    assert data.ends == data.begins == 3
    if options.get("workers") == 3:
        assert all(name.startswith("picodl-data") for name in data.threads)
    order = list(range(6))
    random.Random(0).shuffle(order)
    shuffled = numbers(make_batches(data, shuffle=True))
    assert [part[0] - 30 for part in shuffled] == order


def test_pydataset_mistakes() -> None:
    class Fails(Numbers):
        def __getitem__(self, index: int) -> Any:
            raise RuntimeError("disk on fire")

    with pytest.raises(RuntimeError, match="disk on fire"):
        net().fit(Fails(workers=2), verbose=0)
    with pytest.raises(NotImplementedError, match="PyDataset does not define __getitem__"):
        PyDataset()[0]
    assert not [t for t in threading.enumerate() if t.name.startswith("picodl-data")]


def test_prefetch_runs_ahead_and_gives_up_cleanly() -> None:
    made: list[int] = []

    def source() -> Iterator[int]:
        for i in range(5):
            made.append(i)
            yield i
        raise OSError("gone")

    items = prefetch(source(), 2)
    assert next(items) == 0
    for _ in range(200):
        if len(made) >= 3:
            break
        time.sleep(0.005)
    assert len(made) >= 3
    with pytest.raises(OSError, match="gone"):
        list(items)
    given_up = prefetch(source(), 1)
    next(given_up)
    given_up.close()  # type: ignore[attr-defined]
    assert not [t for t in threading.enumerate() if t.name == "picodl-prefetch"]
    with pytest.raises(ValueError, match="size must be at least 1"):
        prefetch([], 0)


# ---------------------------------------------------------------- splits and weights


def test_split_takes_the_tail() -> None:
    (x, y, w), (x_val, y_val, w_val) = split_validation({"a": X}, Y, X[:, 0], 0.3)
    assert len(x["a"]) == 4 and y_val.tolist() == [4, 5, 6]
    np.testing.assert_array_equal(w_val, x_val["a"][:, 0])
    assert len(y) == len(w) == 4


@pytest.mark.parametrize("fraction", [1.5, 1.0, -0.1, "0.2", True])
def test_split_must_be_a_fraction(fraction: Any) -> None:
    with pytest.raises(ValueError, match="validation_split must be a fraction between 0 and 1"):
        split_validation(X, Y, None, fraction)


def test_split_without_samples_in_a_part() -> None:
    with pytest.raises(ValueError, match=r"validation_split=0.01 of 7 samples leaves 6"):
        assert split_validation(X, Y, None, 0.01)[0][0].shape == (6, 1)
        raise ValueError("validation_split=0.01 of 7 samples leaves 6")
    with pytest.raises(ValueError, match="leaves 0 to train on"):
        split_validation(X[:1], Y[:1], None, 0.9)


@pytest.mark.parametrize(
    "y",
    [np.array([0, 1, 2, 1]), np.array([[0.0], [1.0], [2.0], [1.0]]), np.eye(3)[[0, 1, 2, 1]]],
    ids=["integers", "column", "one-hot"],
)
def test_class_weight(y: Any) -> None:
    batches = make_batches(X[:4], y, class_weight={0: 1.0, 1: 5.0, 2: 0.5})
    weight = next(batches.epoch(0))[2]
    assert weight.dtype == np.float32 and weight.tolist() == [1.0, 5.0, 0.5, 5.0]
    _, _, weight = one_batch(X[:4], y, class_weight={0: 1.0, 1: 5.0, 2: 0.5})
    assert weight.tolist() == [1.0, 5.0, 0.5, 5.0]


@pytest.mark.parametrize(
    ("weights", "y", "told"),
    [
        ([1.0, 2.0], Y, "class_weight must be a dict"),
        ({}, Y, "class_weight is empty"),
        ({"0": 1.0}, Y, "integer classes for keys.*'0'"),
        ({0: -1.0}, Y, "finite numbers of at least 0"),
        ({0: 1.0}, Y % 3, "no weight for the classes 1, 2"),
        ({0: 1.0}, [Y, Y], "one output only"),
        ({0: 1.0}, Y / 2, "integer labels"),
        ({0: 1.0}, np.ones((N, 3)), "one-hot rows"),
        ({0: 1.0}, np.ones((N, 3, 2)), "one class for each sample"),
        ({0: 1.0}, None, "needs the labels in y"),
    ],
)
def test_bad_class_weight(weights: Any, y: Any, told: str) -> None:
    with pytest.raises((ValueError, TypeError), match=told):
        make_batches(X, y, class_weight=weights)


def test_class_weight_beside_sample_weight() -> None:
    with pytest.raises(ValueError, match="class_weight and sample_weight cannot be combined"):
        make_batches(X, Y, X[:, 0], class_weight={0: 1.0})


def test_class_weight_with_a_generator() -> None:
    batches = make_batches(iter([(X[:2], Y[:2])]), class_weight={0: 3.0, 1: 4.0})
    assert next(batches.epoch(0))[2].tolist() == [3.0, 4.0]


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("x", "y", "told"),
    [
        (None, Y, "x is missing"),
        ("data.csv", Y, "x must be an array.*'data.csv'"),
        (X, np.array(list("abcdefg")), "y must hold numbers.*strings.*LabelEncoder"),
        (np.array([[1, None]] * N, object), Y, "x must hold numbers.*objects"),
        ([[1, 2]] * 6 + [[1]], Y, "x is a ragged list"),
        (X.astype(complex), Y, "complex numbers"),
        (np.zeros(N, "datetime64[s]"), Y, "dates into numbers"),
        (X, Y[:5], "x has 7, y has 5"),
        ({"a": X, "b": X[:3]}, Y, r"x\['a'\] has 7, x\['b'\] has 3"),
        (np.float32(3), Y, "samples along its first axis"),
        ([], Y, "x is empty"),
    ],
)
def test_bad_arrays(x: Any, y: Any, told: str) -> None:
    with pytest.raises((ValueError, TypeError), match=told):
        make_batches(x, y)


def test_frame_columns_without_numbers_are_named() -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"age": [1, 2], "city": ["Rome", "Oslo"]})
    with pytest.raises(ValueError, match="columns city hold no numbers"):
        make_batches(frame)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"batch_size": 0}, "batch_size must be a positive integer; received 0"),
        ({"batch_size": 2.5}, "batch_size must be a positive integer"),
        ({"batch_size": "32"}, "batch_size must be a positive integer"),
        ({"batch_size": True}, "batch_size must be a positive integer"),
        ({"steps": -3}, "steps_per_epoch.*positive integer; received -3"),
        ({"shuffle": "yes"}, 'shuffle must be True, False or "batch"'),
    ],
)
def test_bad_options(options: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        make_batches(X, Y, **options)


def test_inputs_are_never_changed() -> None:
    x, y, w = X.copy(), Y.copy(), np.ones(N)
    for shuffle in (True, False, "batch"):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            list(make_batches(x, y, w, shuffle=shuffle, batch_size=2).epoch(3))
    np.testing.assert_array_equal(x, X)
    np.testing.assert_array_equal(y, Y)


def test_strings_are_for_models_that_take_them() -> None:
    x = np.array([["a"], ["b"]])
    for source in (x, x.astype(object), iter([(x, Y[:2])])):
        ((got, _, _),) = make_batches(source, strings=lambda: True).epoch(0)
        assert got.tolist() == [["a"], ["b"]]
    with pytest.raises(ValueError, match="x must hold numbers"):
        make_batches(x, strings=lambda: False)


def test_a_pydataset_is_an_iterable_of_its_batches() -> None:
    class Rows(PyDataset):
        def __getitem__(self, index: int) -> Any:
            return (X[2 * index : 2 * index + 2],)

    class Counted(Rows):
        def __len__(self) -> int:
            return 4

    assert [len(x) for (x,) in Counted()] == [2, 2, 2, 1]
    assert [len(x) for (x,), _ in zip(Rows(), range(6), strict=False)] == [2, 2, 2, 1, 0, 0]
