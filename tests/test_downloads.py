"""utils.get_file: whole files or none, from here or from a server of this machine, and archives."""

import functools
import hashlib
import http.server
import io
import stat
import tarfile
import threading
import zipfile
from pathlib import Path

import pytest

from picodl import unpacking, utils
from picodl.downloads import keras_home

DATA = b"picodl" * 100_000


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves a folder, and some answers that go wrong."""

    asked: list[str] = []

    def do_GET(self):
        self.asked.append(self.path)
        if self.path == "/short":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"only this")
        elif self.path == "/chunks":
            self.protocol_version = "HTTP/1.1"
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"100\r\nnot so many")
            self.close_connection = True
        elif self.path.startswith("/to/"):
            self.send_response(302)
            self.send_header("Location", self.path.removeprefix("/to/"))
            self.end_headers()
        else:
            super().do_GET()

    def log_message(self, *args):
        pass


@pytest.fixture
def there(tmp_path):
    """The folder that is served."""
    folder = tmp_path / "there"
    folder.mkdir()
    (folder / "data.bin").write_bytes(DATA)
    return folder


@pytest.fixture
def site(there):
    Handler.asked = []
    handler = functools.partial(Handler, directory=str(there))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def files(folder):
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if not p.is_dir())


def test_download_is_cached(site, tmp_path, capsys):
    path = utils.get_file(origin=f"{site}/data.bin?version=2", cache_dir=tmp_path / "cache")
    assert path == str(tmp_path / "cache" / "datasets" / "data.bin")
    assert Path(path).read_bytes() == DATA
    assert capsys.readouterr().out == f"Downloading data from {site}/data.bin?version=2\n"
    for digest in ("md5", "sha256"):
        known = hashlib.new(digest, DATA).hexdigest()
        for options in ({"file_hash": known}, {"file_hash": known, "hash_algorithm": digest}):
            again = utils.get_file(
                "data.bin", f"{site}/data.bin", cache_dir=tmp_path / "cache", **options
            )
            assert again == path
    assert len(Handler.asked) == 1 and capsys.readouterr().out == ""
    known = hashlib.md5(DATA).hexdigest().upper()
    utils.get_file("data.bin", f"{site}/data.bin", md5_hash=known, cache_dir=tmp_path / "cache")
    assert files(tmp_path / "cache") == ["datasets/data.bin"]


def test_force_download_and_a_file_with_another_hash(site, there, tmp_path, capsys):
    path = Path(utils.get_file("a", f"{site}/data.bin", cache_dir=tmp_path))
    (there / "data.bin").write_bytes(b"new")
    known = hashlib.sha256(b"new").hexdigest()
    utils.get_file("a", f"{site}/data.bin", cache_dir=tmp_path)
    assert path.read_bytes() == DATA
    utils.get_file("a", f"{site}/data.bin", cache_dir=tmp_path, file_hash=known)
    assert path.read_bytes() == b"new"
    assert "does not have the expected sha256 hash: it is replaced" in capsys.readouterr().out
    (there / "data.bin").write_bytes(b"newer")
    utils.get_file("a", f"{site}/data.bin", cache_dir=tmp_path, force_download=True)
    assert path.read_bytes() == b"newer"


def test_hash_mismatch_leaves_nothing(site, tmp_path):
    with pytest.raises(ValueError, match=r"sha256 hash .*but 0{64} was expected.*is not kept"):
        utils.get_file("a", f"{site}/data.bin", cache_dir=tmp_path / "c", file_hash="0" * 64)
    assert files(tmp_path / "c") == []


def test_file_urls(there, tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "home"))
    assert keras_home() == str(tmp_path / "home")
    path = utils.get_file("b", (there / "data.bin").as_uri(), cache_subdir="models")
    assert path == str(tmp_path / "home" / "models" / "b") and Path(path).read_bytes() == DATA
    path = utils.get_file("b", (there / "data.bin").as_uri(), cache_subdir=tmp_path / "absolute")
    assert path == str(tmp_path / "absolute" / "b")


@pytest.mark.parametrize(
    "page", ["short", "chunks", "missing", "to/file:///etc/hostname", "to/ftp://x/y"]
)
def test_failed_downloads_leave_what_was_there(site, tmp_path, page):
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "a").write_text("old")
    with pytest.raises(OSError, match="URL fetch failure on http"):
        utils.get_file(
            "a", f"{site}/{page}", cache_dir=tmp_path, cache_subdir="c", force_download=True
        )
    assert files(tmp_path / "c") == ["a"] and (tmp_path / "c" / "a").read_text() == "old"


def test_a_server_that_is_not_there(tmp_path):
    for origin in ("http://127.0.0.1:9/x", (tmp_path / "none").as_uri()):
        with pytest.raises(OSError, match="URL fetch failure"):
            utils.get_file("x", origin, cache_dir=tmp_path / "c")
    assert files(tmp_path / "c") == []


def test_redirections_are_followed(site, tmp_path):
    path = utils.get_file("a", f"{site}/to//data.bin", cache_dir=tmp_path)
    assert Path(path).read_bytes() == DATA


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "needs origin"),
        ({"origin": "ftp://host/a"}, "begins with http://, https:// or file://"),
        ({"origin": "data:text/plain,hello"}, "begins with http"),
        ({"origin": "/tmp/a"}, r"pathlib.Path\(...\).as_uri"),
        ({"origin": "http://127.0.0.1:9/"}, "ends in no file name"),
        ({"origin": "http://127.0.0.1:9/.."}, "without folders"),
        ({"origin": "http://127.0.0.1:9/a", "fname": "b/c"}, "without folders; received 'b/c'"),
        ({"origin": "http://127.0.0.1:9/a", "fname": ".."}, "without folders"),
        ({"origin": "http://127.0.0.1:9/a", "file_hash": "abc"}, "must be an MD5"),
        (
            {"origin": "http://127.0.0.1:9/a", "file_hash": "0" * 32, "hash_algorithm": "sha256"},
            "to go with it",
        ),
        (
            {"origin": "http://127.0.0.1:9/a", "file_hash": "0" * 40, "hash_algorithm": "sha1"},
            "'auto', 'md5' or 'sha256'",
        ),
    ],
)
def test_mistakes(options, told, tmp_path):
    with pytest.raises(ValueError, match=told):
        utils.get_file(**options, cache_dir=tmp_path / "c")
    assert not (tmp_path / "c").exists()


def tar(path, *members, mode="w"):
    """A tar file of (name, content) or TarInfo."""
    with tarfile.open(path, mode) as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                archive.addfile(info, io.BytesIO(member[1]))


def special(name, kind, target=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize("ending", ["tar", "tar.gz", "tar.bz2", "tar.xz", "zip"])
@pytest.mark.parametrize("fname", [None, "x.tgz", "x"])
def test_archives(tmp_path, ending, fname):
    source = tmp_path / f"pack.{ending}"
    if ending == "zip":
        with zipfile.ZipFile(source, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("in/a.txt", b"a")
            archive.writestr("b.txt", b"b" * 1000)
    else:
        mode = f"w:{ending[4:]}"
        tar(source, ("./in/a.txt", b"a"), ("b.txt", b"b" * 1000), mode=mode)
    folder, archive_name = {
        None: (source.name, f"{source.name}_archive"),
        "x.tgz": ("x_extracted", "x.tgz"),
        "x": ("x", "x_archive"),
    }[fname]  # as in Keras
    options = {"extract": True} if ending == "zip" or fname else {"untar": True}
    for _ in range(2):
        path = utils.get_file(fname, source.as_uri(), cache_dir=tmp_path / "c", **options)
    here = tmp_path / "c" / "datasets"
    assert path == str(here / folder)
    assert files(here) == sorted([archive_name, f"{folder}/b.txt", f"{folder}/in/a.txt"])
    assert (here / folder / "in" / "a.txt").read_text() == "a"


def test_unpacking_again_restores_files_and_leaves_others(tmp_path):
    tar(tmp_path / "a.tar", ("d/a", b"a"), ("b", b"b"), special("link", tarfile.SYMTYPE, "d/a"))
    folder = tmp_path / "out"
    unpacking.unpack(str(tmp_path / "a.tar"), str(folder))
    assert (folder / "link").read_text() == "a" and stat.S_IMODE(folder.stat().st_mode) & 0o700
    (folder / "own").write_text("mine")
    (folder / "d" / "a").write_text("torn off")
    (folder / "b").unlink()
    unpacking.unpack(str(tmp_path / "a.tar"), str(folder))
    assert files(folder) == ["b", "d/a", "link", "own"]
    assert (folder / "d" / "a").read_text() == "a"
    (folder / "d" / "a").unlink()
    (folder / "d").rmdir()
    (tmp_path / "elsewhere").mkdir()
    (folder / "d").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="is a link; remove it"):
        unpacking.unpack(str(tmp_path / "a.tar"), str(folder))
    assert files(tmp_path / "elsewhere") == []
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


SYM, HARD = tarfile.SYMTYPE, tarfile.LNKTYPE


@pytest.mark.parametrize(
    "members",
    [
        [("../evil", b"")],
        [("/evil", b"")],
        [("a/../../evil", b"")],
        [("a\\..\\..\\evil", b"")],
        [("\\evil", b"")],
        [special("link", SYM, "../evil")],
        [special("link", SYM, "/etc/passwd")],
        [special("a/link", SYM, "../../evil")],
        [special("link", SYM, "a/../../evil")],
        [special("here", SYM, "."), special("link", SYM, "here/..")],  # each alone stays inside
        [special("d", SYM, "."), ("d/evil", b"")],
        [("evil", b""), special("evil", SYM, "x"), special("evil2", HARD, "evil")],
        [special("D", SYM, "."), ("d/evil", b"")],  # one name where case does not count
        [special("hard", HARD, "../evil")],
        [special("hard", HARD, "/etc/passwd")],
        [special("hard", HARD, "not there")],
        [special("link", SYM, "x"), special("hard", HARD, "link")],
        [special("device", tarfile.CHRTYPE)],
        [special("device", tarfile.BLKTYPE)],
        [special("pipe", tarfile.FIFOTYPE)],
        [special(".", SYM, "x")],
    ],
)
def test_hostile_tar_files_write_nothing(tmp_path, members):
    tar(tmp_path / "a.tar", ("good", b"good"), *members)
    (tmp_path / "deep" / "er").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"a\.tar: member .*(Nothing was|nothing was)"):
        unpacking.unpack(str(tmp_path / "a.tar"), str(tmp_path / "deep" / "er" / "out"))
    assert files(tmp_path) == ["a.tar"] and not list((tmp_path / "deep" / "er").iterdir())


def test_links_that_stay_inside(tmp_path):
    tar(
        tmp_path / "a.tar", ("d/a", b"a"), special("d/up", SYM, "../b"), ("b", b"b"),
        special("same", HARD, "d/a"),
    )  # fmt: skip
    unpacking.unpack(str(tmp_path / "a.tar"), str(tmp_path / "out"))
    assert (tmp_path / "out" / "d" / "up").read_text() == "b"
    assert (tmp_path / "out" / "same").read_text() == "a"


@pytest.mark.parametrize("name", ["../evil", "/evil", "a/../../evil", "link", "secret"])
def test_hostile_zip_files_write_nothing(tmp_path, name):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("good", b"good")
        info = zipfile.ZipInfo(name)
        if name == "link":
            info.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(info, "/etc/passwd")
    if name == "secret":  # the flag that says so, in both places
        data = bytearray((tmp_path / "a.zip").read_bytes())
        for mark, at in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
            data[data.rindex(mark) + at] |= 1
        (tmp_path / "a.zip").write_bytes(data)
    (tmp_path / "deep").mkdir()
    with pytest.raises(ValueError, match=f"member '{name}'"):
        unpacking.unpack(str(tmp_path / "a.zip"), str(tmp_path / "deep" / "out"))
    assert files(tmp_path) == ["a.zip"]


def test_damaged_archives(tmp_path):
    for ending in ("gz", "bz2", "xz", ""):
        tar(tmp_path / "a.tar", ("a", bytes(range(256)) * 500), ("b", b"b"), mode=f"w:{ending}")
        data = (tmp_path / "a.tar").read_bytes()
        for part in (data[: len(data) // 2], data[:100], b""):
            (tmp_path / "a.tar").write_bytes(part)
            with pytest.raises(ValueError, match=r"a\.tar"):
                unpacking.unpack(str(tmp_path / "a.tar"), str(tmp_path / "out"))
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a", b"content")
    data = (tmp_path / "a.zip").read_bytes()
    (tmp_path / "a.zip").write_bytes(data.replace(b"content", b"c0ntent", 1))
    with pytest.raises(ValueError, match="CRC"):
        unpacking.unpack(str(tmp_path / "a.zip"), str(tmp_path / "out"))
    assert files(tmp_path) == ["a.tar", "a.zip"]


def test_other_files_are_no_archives(tmp_path):
    (tmp_path / "a").write_text("hello")
    with pytest.raises(ValueError, match="is no tar or zip archive"):
        utils.get_file("b", (tmp_path / "a").as_uri(), extract=True, cache_dir=tmp_path)
    for wrong in ("rar", None, []):
        with pytest.raises(ValueError, match="archive_format must be"):
            unpacking.unpack(str(tmp_path / "a"), str(tmp_path / "out"), wrong)
    with pytest.raises(ValueError, match="is no zip archive"):
        tar(tmp_path / "a.tar", ("x", b""))
        unpacking.unpack(str(tmp_path / "a.tar"), str(tmp_path / "out"), ["zip"])


def test_an_archive_larger_than_the_disk(tmp_path, monkeypatch):
    tar(tmp_path / "a.tar", ("x", b"x" * 1000))
    usage = unpacking.shutil.disk_usage(tmp_path)._replace(free=999)
    monkeypatch.setattr(unpacking.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(OSError, match="takes 1000 bytes, and 999 are free"):
        unpacking.unpack(str(tmp_path / "a.tar"), str(tmp_path / "out"))
