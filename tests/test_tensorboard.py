"""Event files: read back by a small reader of its own, and by TensorBoard where it is installed."""

from __future__ import annotations

import math
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import picodl
from picodl import callbacks as C
from picodl import layers
from picodl.callbacks.event_files import EventFile, crc32c

X = np.random.default_rng(0).normal(size=(20, 3)).astype("float32")
Y = X[:, :1] * 2


def fit(board: Any, epochs: int = 2, **options: Any) -> Any:
    model = picodl.Sequential([picodl.Input((3,)), layers.Dense(4, name="hidden"), layers.Dense(1)])
    model.compile("sgd", loss="mse", metrics=["mae"])
    options = {"epochs": epochs, "batch_size": 8, "verbose": 0, **options}
    return model.fit(X, Y, validation_data=(X, Y), callbacks=[board], **options)


def bitwise_crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def records(path: Path) -> list[bytes]:
    """The data of each record, with both checksums proven."""

    def check(data: bytes, stored: bytes) -> None:
        turned = (int.from_bytes(stored, "little") - 0xA282EAD8) % 2**32
        assert (turned << 15 | turned >> 17) % 2**32 == bitwise_crc32c(data)

    content, found = path.read_bytes(), []
    while content:
        length, rest = int.from_bytes(content[:8], "little"), content[12:]
        check(content[:8], content[8:12])
        check(rest[:length], rest[length : length + 4])
        found.append(rest[:length])
        content = rest[length + 4 :]
    return found


def fields(message: bytes) -> dict[int, Any]:
    """The fields of a message by their numbers; each has one value here."""

    def varint() -> int:
        value = shift = 0
        while True:
            byte = data.pop(0)
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7

    data, found = bytearray(message), {}
    while data:
        number, kind = divmod(varint(), 8)
        if kind == 0:
            value: Any = varint()
        else:
            size = {1: 8, 2: 0, 5: 4}[kind] or varint()
            value = bytes(data[:size])
            assert len(value) == size
            del data[:size]
            value = value if kind == 2 else struct.unpack("<d" if kind == 1 else "<f", value)[0]
        assert number not in found
        found[number] = value
    return found


def values(folder: Path) -> list[tuple[str, int, dict[int, Any]]]:
    """(tag, step, fields of the value) of the only file of a folder."""
    (path,) = folder.iterdir()
    first, *events = (fields(record) for record in records(path))
    assert first[3] == b"brain.Event:2" and set(first) == {1, 3}
    found = []
    for event in events:
        value = fields(fields(event[5])[1])
        assert event[1] >= first[1]
        found.append((value.pop(1).decode(), event[2], value))
    return found


def written(folder: Path, what: str, *arguments: Any) -> dict[int, Any]:
    file = EventFile(folder)
    getattr(file, what)("tag", *arguments, 5)
    file.close()
    ((tag, step, value),) = values(folder)
    assert (tag, step) == ("tag", 5)
    return value


def test_crc32c_has_the_known_values() -> None:
    assert crc32c(b"") == 0
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43


@pytest.mark.parametrize("size", [1, 3, 64, 999, 1000, 1001, 1023, 1024, 1028, 4095, 4099])
def test_crc32c_of_any_length_is_that_of_its_bits(size: int) -> None:
    data = np.random.default_rng(size).bytes(size)
    assert crc32c(data) == bitwise_crc32c(data)


@pytest.mark.parametrize("value", [0.5, 7, math.nan, math.inf, -math.inf, np.float32(0.25)])
def test_scalar_is_kept_as_it_is(tmp_path: Path, value: float) -> None:
    np.testing.assert_equal(written(tmp_path, "scalar", value), {2: float(value)})


def test_scalar_beyond_float32_is_infinite(tmp_path: Path) -> None:
    assert written(tmp_path, "scalar", -1e39) == {2: -math.inf}


def test_steps_of_any_size(tmp_path: Path) -> None:
    file = EventFile(tmp_path)
    for step in (0, 127, 128, 2**40, np.int64(3), -1):
        file.scalar("é/x y", 1.0, step)
    file.close()
    assert [step for _, step, _ in values(tmp_path)] == [0, 127, 128, 2**40, 3, 2**64 - 1]
    assert values(tmp_path)[0][0] == "é/x y"


def histogram(value: dict[int, Any]) -> tuple[dict[int, Any], np.ndarray, np.ndarray]:
    found = fields(value[5])
    limits, counts = (np.frombuffer(found.pop(number), "<f8") for number in (6, 7))
    return found, limits, counts


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32"])
def test_histogram_counts_every_value(tmp_path: Path, dtype: str) -> None:
    x = (np.random.default_rng(1).normal(size=(20, 30)) * 9).astype(dtype)
    numbers, limits, counts = histogram(written(tmp_path, "histogram", x))
    exact = x.astype("float64")
    expected = [exact.min(), exact.max(), 600, exact.sum(), (exact**2).sum()]
    np.testing.assert_allclose(list(numbers.values()), expected, rtol=1e-12)
    edges = np.concatenate([[exact.min()], limits])
    np.testing.assert_array_equal(counts, np.histogram(exact, edges)[0])
    assert len(limits) == 30 and limits[-1] == exact.max()


@pytest.mark.parametrize(
    ("x", "count"),
    [
        ([2.5, 2.5], 2),
        (3.0, 1),
        ([], 0),
        ([1.0, math.nextafter(1.0, 2.0)], 2),
        ([-1e308, 1e308], 2),
    ],
)
def test_histogram_of_one_bucket(tmp_path: Path, x: Any, count: int) -> None:
    numbers, limits, counts = histogram(written(tmp_path, "histogram", np.array(x)))
    assert limits[-1] == np.max(x, initial=0.0) and counts.sum() == count
    assert len(limits) == 1 or x[0] == 1.0  # older numpy finds room between neighbouring numbers
    assert numbers[3] == count


def test_image_is_a_png_of_the_pixels(tmp_path: Path) -> None:
    pixels = np.random.default_rng(2).integers(0, 256, (5, 7)).astype("uint8")
    image = fields(written(tmp_path, "image", pixels)[4])
    assert (image[1], image[2], image[3]) == (5, 7, 1)
    data, chunks = image[4], {}
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    data = data[8:]
    while data:
        size = int.from_bytes(data[:4], "big")
        assert int.from_bytes(data[8 + size : 12 + size], "big") == zlib.crc32(data[4 : 8 + size])
        chunks[data[4:8]], data = data[8 : 8 + size], data[12 + size :]
    assert chunks[b"IHDR"] == struct.pack(">IIBBBBB", 7, 5, 8, 0, 0, 0, 0)
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), "uint8").reshape(5, 8)
    np.testing.assert_array_equal(rows[:, 1:], pixels)
    assert not rows[:, 0].any() and list(chunks)[-1] == b"IEND"


def test_text_is_a_tensor_for_the_text_plugin(tmp_path: Path) -> None:
    value = written(tmp_path, "text", "ü\n    b")
    assert fields(value[8]) == {1: 7, 2: b"", 8: "ü\n    b".encode()}
    assert fields(fields(value[9])[1]) == {1: b"text"}


def test_callback_writes_what_history_holds(tmp_path: Path) -> None:
    board = C.TensorBoard(tmp_path, histogram_freq=2, write_images=True, update_freq=2)
    history = fit(board, epochs=3).history
    found = values(tmp_path / "train")
    losses = [value[2] for tag, _, value in found if tag == "epoch_loss"]
    np.testing.assert_allclose(losses, history["loss"], rtol=1e-6)
    assert [step for tag, step, _ in found if tag == "batch_loss"] == [2, 4, 6, 8]
    tags = {tag: step for tag, step, _ in found if step == 2 and tag.endswith(("gram", "image"))}
    assert len([tag for tag in tags if tag.endswith("/histogram")]) == 4
    assert len([tag for tag in tags if tag.endswith("/image")]) == 2
    assert found[0][0] == "model" and b"hidden" in found[0][2][8]
    found = values(tmp_path / "validation")
    losses = [value[2] for tag, _, value in found if tag == "epoch_loss"]
    np.testing.assert_allclose(losses, history["val_loss"], rtol=1e-6)
    tag = "evaluation_loss_vs_iterations"
    assert [step for name, step, _ in found if name == tag] == [3, 6, 9]


def test_speed_is_written_where_values_are(tmp_path: Path) -> None:
    fit(C.TensorBoard(tmp_path, write_steps_per_second=True, update_freq=2))
    found = [(tag, step) for tag, step, _ in values(tmp_path / "train") if "per_second" in tag]
    batch, epoch = "batch_steps_per_second", "epoch_steps_per_second"
    assert found == [(batch, 2), (epoch, 0), (batch, 4), (batch, 6), (epoch, 1)]


def test_each_fit_writes_a_file_behind_the_others(tmp_path: Path) -> None:
    board = C.TensorBoard(tmp_path)
    names = []
    for _ in range(3):
        fit(board)
        names += [p.name for p in (tmp_path / "train").iterdir() if p.name not in names]
    assert names == sorted(names) and len(names) == 3
    assert all(n.startswith("events.out.tfevents.") and n.endswith(".picodl") for n in names)


def test_epochs_are_in_the_file_when_they_end(tmp_path: Path) -> None:
    counts = []

    class Look(C.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            counts.append(sum(tag == "epoch_loss" for tag, _, _ in values(tmp_path / "train")))

    model = picodl.Sequential([picodl.Input((3,)), layers.Dense(1)])
    model.compile("sgd", loss="mse")
    model.fit(X, Y, epochs=3, callbacks=[C.TensorBoard(tmp_path), Look()], verbose=0)
    assert counts == [1, 2, 3]


def test_histogram_of_weights_with_nan_is_left_out(tmp_path: Path) -> None:
    class Spoil(C.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.layers[0].bias.assign(np.full(4, np.nan, "float32"))

    model = picodl.Sequential([picodl.Input((3,)), layers.Dense(4)])
    model.compile("sgd", loss="mse")
    board = C.TensorBoard(tmp_path, histogram_freq=1)
    with pytest.warns(UserWarning, match="bias holds NaN or infinity"):
        model.fit(X, X[:, [0, 1, 2, 0]], callbacks=[Spoil(), board], verbose=0)
    tags = [tag for tag, _, _ in values(tmp_path / "train") if tag.endswith("/histogram")]
    assert len(tags) == 1 and tags[0].endswith("kernel/histogram")


def test_tensorboard_bad_arguments() -> None:
    with pytest.raises(ValueError, match="update_freq"):
        C.TensorBoard(update_freq="sometimes")
    with pytest.warns(UserWarning, match="profile_batch"):
        C.TensorBoard(profile_batch=2)


def test_writing_imports_no_other_package(tmp_path: Path) -> None:
    code = (
        "import sys, picodl; from picodl.callbacks.event_files import EventFile;"
        f"file = EventFile({str(tmp_path)!r}); file.scalar('a', 1.0, 0); file.close();"
        "print(sorted({'tensorboard', 'tensorboardX', 'torch', 'google'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def accumulated(folder: Path) -> Any:
    name = "tensorboard.backend.event_processing.event_accumulator"
    reader = pytest.importorskip(name).EventAccumulator(str(folder))
    reader.Reload()
    return reader


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    board = C.TensorBoard(
        tmp_path, histogram_freq=1, write_images=True, update_freq=2, write_steps_per_second=True
    )
    history = fit(board, epochs=3).history
    train = accumulated(tmp_path / "train")
    tags = train.Tags()
    assert {"epoch_loss", "epoch_mae", "epoch_learning_rate", "batch_loss"} <= set(tags["scalars"])
    np.testing.assert_allclose(
        [s.value for s in train.Scalars("epoch_loss")], history["loss"], rtol=1e-6
    )
    assert [s.step for s in train.Scalars("batch_loss")] == [2, 4, 6, 8]
    (name,) = [tag for tag in tags["histograms"] if "hidden/kernel" in tag]
    last = train.Histograms(name)[-1]
    value = last.histogram_value
    assert last.step == 2 and value.num == sum(value.bucket) == 12
    assert value.min < value.max == value.bucket_limit[-1]
    (name,) = [tag for tag in tags["images"] if "hidden/kernel" in tag]
    image = train.Images(name)[-1]
    assert (image.height, image.width) == (3, 4)
    assert image.encoded_image_string.startswith(b"\x89PNG")
    assert train.PluginTagToContent("text") == {"model": b""}
    assert b"hidden" in train.Tensors("model")[0].tensor_proto.string_val[0]
    validation = accumulated(tmp_path / "validation")
    np.testing.assert_allclose(
        [s.value for s in validation.Scalars("epoch_loss")], history["val_loss"], rtol=1e-6
    )


def test_tensorboard_passes_over_a_torn_record(tmp_path: Path) -> None:
    file = EventFile(tmp_path)
    for step in range(3):
        file.scalar("loss", step, step)
    file.close()
    whole = Path(file.path).read_bytes()
    Path(file.path).write_bytes(whole[:-9])
    again = EventFile(tmp_path)
    again.scalar("loss", 2.0, 2)
    again.close()
    assert [s.value for s in accumulated(tmp_path).Scalars("loss")] == [0.0, 1.0, 2.0]
