"""`get_file`: a file from elsewhere into a cache on this machine, whole or not at all."""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

from picodl.callbacks.progress import draws_bars, write_line
from picodl.saving.files import atomic_write

SCHEMES = ("http", "https", "file")
_DIGITS = {"md5": 32, "sha256": 64}  # of a hash, written in hexadecimal
_PIECE = 1 << 18  # bytes
_TIMEOUT = 60  # seconds without a byte

Path = str | os.PathLike[str]


def get_file(
    fname: Path | None = None,
    origin: str | None = None,
    untar: bool = False,
    md5_hash: str | None = None,
    file_hash: str | None = None,
    cache_subdir: Path = "datasets",
    hash_algorithm: str = "auto",
    extract: bool = False,
    archive_format: str | list[str] | tuple[str, ...] | None = "auto",
    cache_dir: Path | None = None,
    force_download: bool = False,
) -> str:
    """Download a file unless it is in the cache already; unpack it if asked.

    A file that is there, with the right hash where one is given, is returned without touching the
    network. A download appears under its name only when it is whole, has the right hash and is on
    the disk; whatever goes wrong, nothing is left and an older file stays as it was.

    Args:
        fname: name in the cache, without folders. Defaults to the last part of origin.
        origin: URL, beginning with http://, https:// or file://.
        untar: as extract, for tar files alone.
        md5_hash: older name of file_hash, for MD5.
        file_hash: expected hash, in hexadecimal.
        cache_subdir: folder in cache_dir; an absolute path stands for itself.
        hash_algorithm: "md5", "sha256" or "auto", which goes by the length of file_hash.
        extract: unpack the archive, into a folder beside it. With an fname that has a dot this is
            the part before the first dot with `_extracted` behind it; else it has the name itself
            and the archive gets `_archive` behind its name. Files that are in the folder
            already and are not in the archive are left alone.
        archive_format: "tar" (also .gz, .bz2, .xz), "zip", a list of these, or "auto" for both.
        cache_dir: Defaults to the environment variable KERAS_HOME, else to ~/.keras.
        force_download: download it even if it is there.

    Returns: path of the file, or of the folder if it was unpacked.

    Raises:
        ValueError: for a missing origin or another scheme, an fname with folders, a hash of an
            unknown kind, a download with another hash than the expected one; for a damaged archive
            or one with members that lie or point outside, are devices or the like, of which
            nothing is then written.
        OSError: if the download fails or ends early, or the disk is full.

    >>> import pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.txt").write_text("hello")
    >>> path = get_file("b.txt", (folder / "a.txt").as_uri(), cache_dir=folder)
    Downloading data from file:///...a.txt
    >>> pathlib.Path(path).read_text(), pathlib.Path(path).relative_to(folder).as_posix()
    ('hello', 'datasets/b.txt')
    """
    if not isinstance(origin, str) or not origin:
        raise ValueError(f"get_file needs origin, the URL of the file; received {origin!r}.")
    if urllib.parse.urlsplit(origin).scheme.lower() not in SCHEMES:
        raise ValueError(
            f"get_file: origin must be a URL that begins with http://, https:// or file://; "
            f"received {origin!r}. For a file of this machine pass pathlib.Path(...).as_uri()."
        )
    if md5_hash is not None and file_hash is None:
        file_hash, hash_algorithm = md5_hash, "md5"
    check = None if file_hash is None else _Check(file_hash, hash_algorithm)
    unpacks = extract or untar
    name, folder = _names(fname, origin, unpacks)
    base = keras_home() if cache_dir is None else os.path.expanduser(os.fspath(cache_dir))
    place = os.path.join(base, os.fspath(cache_subdir))
    target = os.path.join(place, name)

    wanted = force_download or not os.path.exists(target)
    if not wanted and check is not None and not check.fits(target):
        write_line(f"{target} does not have the expected {check.algorithm} hash: it is replaced.")
        wanted = True
    if wanted:
        os.makedirs(place, exist_ok=True)
        _download(origin, target, check)
    if not unpacks:
        return target
    from picodl.unpacking import unpack

    unpack(target, os.path.join(place, folder), "tar" if untar else archive_format)
    return os.path.join(place, folder)


def keras_home() -> str:
    """The folder of Keras's own files: $KERAS_HOME, else ~/.keras."""
    return os.path.expanduser(os.environ.get("KERAS_HOME") or os.path.join("~", ".keras"))


def _names(fname: Path | None, origin: str, unpacks: bool) -> tuple[str, str]:
    """Name of the file in the cache, and of the folder it is unpacked to."""
    name = os.fspath(fname) if fname else ""
    given = bool(name)
    name = name or os.path.basename(urllib.parse.urlsplit(origin).path)
    if not name:
        raise ValueError(f"get_file: {origin!r} ends in no file name; pass one as fname.")
    if name in (".", "..") or any(mark in name for mark in (os.sep, os.altsep, "\0") if mark):
        raise ValueError(
            f"get_file: fname must be a name without folders; received {name!r}. "
            f"Pass the folder as cache_dir and cache_subdir."
        )
    if not unpacks:
        return name, ""
    if given and "." in name:
        return name, f"{name[: name.index('.')]}_extracted"
    return f"{name}_archive", name


class _Check:
    """The hash that a file must have.

    Raises:
        ValueError: if the algorithm is unknown or does not go with the hash.
    """

    def __init__(self, expected: str, algorithm: str) -> None:
        self.expected = str(expected).strip().lower()
        lengths = {length: name for name, length in _DIGITS.items()}
        self.algorithm = str(algorithm).lower()
        if self.algorithm == "auto":
            self.algorithm = lengths.get(len(self.expected), "")
        if len(self.expected) != _DIGITS.get(self.algorithm):
            raise ValueError(
                f"get_file: file_hash must be an MD5 (32 hexadecimal digits) or SHA-256 (64), and "
                f"hash_algorithm 'auto', 'md5' or 'sha256' to go with it; received {expected!r} "
                f"and {algorithm!r}."
            )

    def new(self) -> Any:
        """A hasher without data."""
        return hashlib.new(self.algorithm, usedforsecurity=False)

    def fits(self, path: str) -> bool:
        """Whether a file has this hash."""
        with open(path, "rb") as file:
            return hashlib.file_digest(file, self.new).hexdigest() == self.expected


def _download(origin: str, target: str, check: _Check | None) -> None:
    write_line(f"Downloading data from {origin}")
    source, size = _open(origin)
    with source, atomic_write(target) as file, _bar(size) as bar:
        hasher = hashlib.sha256() if check is None else check.new()
        for piece in _pieces(source, origin, size):
            file.write(piece)
            bar.update(len(piece))
            hasher.update(piece)
            if getattr(file, "failure", None):  # a full disk: atomic_write says so
                break
        found = hasher.hexdigest()
        if check is not None and found != check.expected:
            raise ValueError(
                f"The file from {origin} has the {check.algorithm} hash {found}, but "
                f"{check.expected} was expected: it is damaged or another version, and is not kept."
            )


def _open(origin: str) -> tuple[Any, int | None]:
    """The answer to a request, and its length in bytes if it is known.

    Redirections lead to http and https alone.
    """
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPRedirectHandler,
        urllib.request.HTTPErrorProcessor,
        urllib.request.FileHandler,
        urllib.request.UnknownHandler,
    ):
        opener.add_handler(handler())
    request = urllib.request.Request(origin, headers={"User-Agent": "picodl"})
    try:
        source: Any = opener.open(request, timeout=_TIMEOUT)
    except (OSError, http.client.HTTPException) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        raise _failure(origin, error) from error
    size = source.headers.get("Content-Length")
    return source, int(size) if size and size.isdecimal() else None


def _pieces(source: Any, origin: str, size: int | None) -> Iterator[bytes]:
    """The data, piece by piece.

    Raises:
        OSError: if it ends before its announced size, or the connection breaks.
    """
    done = 0
    while True:
        try:
            piece = source.read(_PIECE)
        except (OSError, http.client.HTTPException) as error:
            raise _failure(origin, error) from error
        if not piece:
            break
        done += len(piece)
        yield piece
    if size is not None and done != size:
        raise _failure(origin, f"it ended after {done} of {size} bytes")


def _failure(origin: str, reason: Any) -> OSError:
    return OSError(f"URL fetch failure on {origin}: {reason or type(reason).__name__}")


def _bar(size: int | None) -> Any:
    """A bar that counts bytes, where one can be drawn."""
    from tqdm import tqdm

    return tqdm(
        total=size,
        unit="B",
        unit_scale=True,
        unit_divisor=1024,
        disable=not draws_bars(),
        leave=False,
    )
