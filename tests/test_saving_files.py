"""Writing whole or not at all."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import zlib

import numpy as np
import pytest

import picodl as P
from picodl import layers
from picodl.saving import checksum, files


def net(units=8):
    return P.Sequential([P.Input((4,)), layers.Dense(units, name="a"), layers.Dense(3, name="b")])


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(a.get_weights(), b.get_weights(), strict=True))


def test_a_failure_keeps_the_old_file_and_leaves_nothing(tmp_path):
    path = tmp_path / "x.bin"
    path.write_bytes(b"old")
    with pytest.raises(ZeroDivisionError), files.atomic_write(str(path)) as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["x.bin"]


def test_a_full_disk_is_an_oserror_that_names_the_target(tmp_path, monkeypatch):
    path = tmp_path / "x.weights.h5"
    model = net()
    model.save_weights(path)
    old = path.read_bytes()
    write = files.os.fdopen

    class Full:
        def __init__(self, *args, **kwargs):
            self.file, self.left = write(*args, **kwargs), 200

        def write(self, data):
            if len(data) > self.left:
                raise OSError(errno.ENOSPC, "No space left on device")
            self.left -= len(data)
            return self.file.write(data)

        def __getattr__(self, name):
            return getattr(self.file, name)

    monkeypatch.setattr(files.os, "fdopen", Full)
    for name in ("x.weights.h5", "x.keras", "x.h5", "x.npz", "x.safetensors"):
        save = model.save if name in ("x.keras", "x.h5") else model.save_weights
        (tmp_path / name).write_bytes(old)
        with pytest.raises(OSError, match=name) as caught:
            save(tmp_path / name)
        assert caught.value.errno == errno.ENOSPC
        assert (tmp_path / name).read_bytes() == old
    assert not [n for n in os.listdir(tmp_path) if n.endswith(".tmp")]


def test_what_a_killed_writer_left_is_overwritten(tmp_path):
    path = tmp_path / "x.weights.h5"
    (tmp_path / ".x.weights.h5.tmp").write_bytes(b"torn" * 100000)
    net().save_weights(path)
    assert os.listdir(tmp_path) == ["x.weights.h5"]
    net().load_weights(path)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_kill_at_any_moment_leaves_a_whole_file(tmp_path):
    path = tmp_path / "x.weights.h5"
    model = net(2000)
    model.save_weights(path)
    code = textwrap.dedent("""
        import sys, numpy as np, picodl as P
        m = P.Sequential([P.Input((4,)), P.layers.Dense(2000), P.layers.Dense(3)])
        print("ready", flush=True)
        while True:
            m.save_weights(sys.argv[1])
        """)
    root = os.path.dirname(os.path.dirname(P.__file__))
    env = {**os.environ, "PYTHONPATH": root}
    command = [sys.executable, "-c", code, str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=env)
    try:
        process.stdout.readline()
        reader = net(2000)
        for _ in range(20):  # others see a whole file while it is being replaced
            reader.load_weights(path)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
    reader.load_weights(path)
    model.save_weights(path)
    assert os.listdir(tmp_path) == ["x.weights.h5"]


def test_two_writers_of_one_target_do_not_mix(tmp_path):
    path = str(tmp_path / "x.bin")

    def write(byte):
        for _ in range(20):
            with files.atomic_write(path) as file:
                for _ in range(50):
                    file.write(byte * 100)

    threads = [threading.Thread(target=write, args=(byte,)) for byte in (b"a", b"b", b"c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    data = (tmp_path / "x.bin").read_bytes()
    assert len(data) == 5000 and len(set(data)) == 1
    assert os.listdir(tmp_path) == ["x.bin"]


def test_links_are_followed_and_permissions_kept(tmp_path):
    target, link = tmp_path / "target.bin", tmp_path / "link.bin"
    target.write_bytes(b"old")
    target.chmod(0o640)
    link.symlink_to(target)
    with files.atomic_write(str(link)) as file:
        file.write(b"new")
    assert link.is_symlink() and target.read_bytes() == b"new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_overwriting_can_be_refused(tmp_path):
    for name in ("x.weights.h5", "x.keras", "x.h5"):
        save = net().save_weights if "weights" in name else net().save
        save(tmp_path / name)
        with pytest.raises(FileExistsError, match=name):
            save(tmp_path / name, overwrite=False)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m, d: m.save_weights(5), TypeError, "filepath must be a path"),
        (lambda m, d: m.load_weights(5), TypeError, "filepath must be a path"),
        (lambda m, d: m.save_weights(d / "x.pkl"), ValueError, r"x\.pkl.*ending.*\.weights\.h5"),
        (lambda m, d: m.save(d / "x.pkl"), ValueError, r"x\.pkl.*ending must be \.keras"),
        (lambda m, d: m.save(d / "x.weights.h5"), ValueError, "save_weights"),
        (lambda m, d: m.save_weights(d / "no" / "x.h5"), FileNotFoundError, "folder.*exist"),
        (lambda m, d: m.load_weights(d / "none.weights.h5"), FileNotFoundError, "none.weights.h5"),
        (lambda m, d: P.models.load_model(d / "none.keras"), FileNotFoundError, "none.keras"),
        (lambda m, d: m.load_weights(d), ValueError, "model.weights.h5"),
        (lambda m, d: P.Sequential([layers.Dense(1)]).save(d / "x.h5"), ValueError, "built"),
        (
            lambda m, d: P.Sequential([layers.Dense(1)]).save_weights(d / "x.weights.h5"),
            ValueError,
            "built",
        ),
    ],
)
def test_daily_mistakes_are_named(call, error, message, tmp_path):
    with pytest.raises(error, match=message):
        call(net(), tmp_path)


def test_checksums_agree_with_their_definition():
    rng = np.random.default_rng(0)
    small = rng.normal(size=(7, 3)).astype("float32")
    assert checksum.checksum("a/0", small) == zlib.crc32(small.tobytes(), zlib.crc32(b"a/0"))
    assert checksum.checksum("a/1", small) != checksum.checksum("a/0", small)
    assert checksum.checksum("a/0", small.astype(">f4")) == checksum.checksum("a/0", small)
    large = rng.integers(0, 2**63, 3 * 2**17 + 100, np.int64)
    pieces = [large[i : i + 2**17] for i in range(0, large.size, 2**17)]
    sums = []
    for piece in pieces[:-1]:
        words = piece.view("u8")
        columns = words[: 63 * 2079].reshape(63, 2079).sum(0)
        sums.append(zlib.crc32(words[63 * 2079 :].tobytes(), zlib.crc32(columns.tobytes())))
    sums.append(zlib.crc32(pieces[-1].tobytes()))
    expected = zlib.crc32(np.array(sums, "u4").tobytes(), zlib.crc32(b"a"))
    assert checksum.checksum("a", large) == expected
    for place in (0, 2**17 + 3, large.size - 1):
        for bit in (0, 31, 63):
            damaged = large.copy()
            damaged.view("u8")[place] ^= np.uint64(1 << bit)
            assert checksum.checksum("a", damaged) != expected
    swapped = large.copy()
    swapped[:512], swapped[2048:2560] = large[2048:2560], large[:512]
    assert checksum.checksum("a", swapped) != expected


def test_a_stretch_of_a_file_is_read_in_pieces(tmp_path):
    data = np.random.default_rng(0).integers(0, 256, 3 * checksum.BLOCK + 17).astype(np.uint8)
    path = tmp_path / "raw"
    path.write_bytes(b"head" + data.tobytes())
    with open(path, "rb") as file:
        out = np.empty_like(data)
        sizes = checksum.read_stretch(file.fileno(), 4, data.size, len, out)
        assert np.array_equal(out, data) and sizes == [checksum.BLOCK] * 3 + [17]
        found = checksum.crc32_of_stretch(file.fileno(), 4, data.size)
        assert found == zlib.crc32(data)
        with pytest.raises(EOFError, match="ends at byte"):
            checksum.read_stretch(file.fileno(), 5, data.size, len)


def test_a_window_is_a_file_of_its_own(tmp_path):
    path = tmp_path / "raw"
    path.write_bytes(bytes(range(100)))
    with open(path, "rb") as file:
        window = files.Window(file, 10, 20)
        assert window.read() == bytes(range(10, 30))
        window.seek(-5, os.SEEK_END)
        assert window.read(100) == bytes(range(25, 30)) and window.tell() == 20
