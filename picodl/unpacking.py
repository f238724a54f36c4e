"""Archives of strangers: every member is looked at before the first one is written."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import PurePath
from typing import Any, NamedTuple


class Entry(NamedTuple):
    """A member of an archive: kind is "file", "folder", "link" (symbolic), "hard link" or other."""

    name: str
    kind: str
    size: int
    target: str = ""


def unpack(path: str, folder: str, archive_format: Any = "auto") -> None:
    """Unpack a tar or zip file into a folder, which appears only when it is complete.

    If the folder is there, with all members in their sizes, nothing is written; else the files of
    the archive are put into it one by one, each whole, and other files are left alone.

    Args:
        path: of the archive.
        folder: where its members go.
        archive_format: "tar" (also .gz, .bz2, .xz), "zip", a list of these, or "auto" for both.

    Raises:
        ValueError: for another kind of file, a damaged one, or one with members that lie or point
            outside the folder, are encrypted, or are neither files, folders nor links.
        OSError: if the disk has no room for what the archive says it holds.
    """
    with _open(path, archive_format) as (entries, extract):
        check(entries, path)
        if _is_there(folder, entries):
            return
        place, name = os.path.split(os.path.abspath(folder))
        needed, free = sum(entry.size for entry in entries), shutil.disk_usage(place).free
        if needed > free:
            raise OSError(
                errno.ENOSPC,
                f"unpacking takes {needed} bytes, and {free} are free in {place}",
                path,
            )
        scratch = tempfile.mkdtemp(dir=place, prefix=f".{name}.")
        try:
            fresh = os.path.join(scratch, name)
            os.mkdir(fresh)
            extract(fresh)
            _put(fresh, folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def check(entries: list[Entry], path: str) -> None:
    """See that no member can write or point outside the folder it is unpacked to.

    No member lies behind a link of the archive or has its name, so the folder of a link is where
    its name says. Its target may begin with "..", as often as the name has folders, and has none
    after that: so it stays inside, whatever other links it passes.

    Raises:
        ValueError: naming the first member that can.
    """
    links = {_key(_parts(e.name)) for e in entries if e.kind == "link"}
    files: set[tuple[str, ...]] = set()
    made: set[tuple[str, ...]] = set()
    for entry in entries:
        parts = _parts(entry.name)
        key = _key(parts)
        outside = _leaves(entry.name) or ".." in parts or (key in links and key in made)
        made.add(key)
        if entry.kind in ("link", "hard link"):
            target = _parts(entry.target)
            steps = next((i for i, part in enumerate(target) if part != ".."), len(target))
            outside |= _leaves(entry.target) or ".." in target[steps:]
            if entry.kind == "link":
                outside |= steps >= len(parts)
            elif _key(target) not in files:
                raise ValueError(
                    f"{path}: member {entry.name!r} is a hard link to {entry.target!r}, which is "
                    f"no file before it in the archive. Nothing was unpacked."
                )
        if outside or any(key[:i] in links for i in range(1, len(key))):
            to = f", a link to {entry.target!r}," if entry.target else ""
            raise ValueError(
                f"{path}: member {entry.name!r}{to} would lead outside the folder it is unpacked "
                f"to. Nothing was unpacked."
            )
        if entry.kind not in ("file", "folder", "link", "hard link"):
            raise ValueError(
                f"{path}: member {entry.name!r} is {entry.kind}; only files, folders and links are "
                f"unpacked. Nothing was."
            )
        if entry.kind in ("file", "hard link"):
            files.add(key)


def _parts(name: str) -> tuple[str, ...]:
    return tuple(p for p in name.replace("\\", "/").split("/") if p not in ("", "."))


def _key(parts: tuple[str, ...]) -> tuple[str, ...]:
    """The same for names that are one on a disk that does not tell upper from lower case."""
    return tuple(part.casefold() for part in parts)


def _leaves(name: str) -> bool:
    return name[:1] in ("/", "\\") or bool(PurePath(name).drive)


Opened = tuple[list[Entry], Callable[[str], None]]


@contextmanager
def _open(path: str, archive_format: Any) -> Iterator[Opened]:
    """The members of an archive, and what writes them to a folder."""
    kinds = {"tar": (tarfile.is_tarfile, _tar), "zip": (zipfile.is_zipfile, _zip)}
    names = archive_format if isinstance(archive_format, (list, tuple)) else [archive_format]
    names = list(kinds) if archive_format == "auto" else names
    if not names or any(name not in kinds for name in names):
        raise ValueError(
            f"archive_format must be 'auto', 'tar', 'zip' or a list of the last two; received "
            f"{archive_format!r}."
        )
    try:
        for name in names:
            fits, opened = kinds[name]
            if fits(path):
                with opened(path) as archive:
                    yield archive
                return
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, RuntimeError, NotImplementedError) as e:
        raise ValueError(f"{path} cannot be unpacked: {e}") from e
    except Exception as e:  # zlib.error, lzma.LZMAError, and gzip's OSError, which has no number
        if isinstance(e, ValueError) or (isinstance(e, OSError) and e.errno is not None):
            raise
        raise ValueError(f"{path} is damaged: {e}") from e
    raise ValueError(f"{path} is no {' or '.join(names)} archive, or a damaged one.")


@contextmanager
def _tar(path: str) -> Iterator[Opened]:
    if not hasattr(tarfile, "data_filter"):
        raise RuntimeError("tar files are unpacked from Python 3.11.4 on")
    with tarfile.open(path) as archive:
        entries = [_tar_entry(member) for member in archive.getmembers()]
        yield entries, lambda folder: archive.extractall(folder, filter="data")


def _tar_entry(member: tarfile.TarInfo) -> Entry:
    kinds = [
        (member.isreg(), "file"), (member.isdir(), "folder"), (member.issym(), "link"),
        (member.islnk(), "hard link"), (member.ischr() or member.isblk(), "a device"),
        (member.isfifo(), "a pipe"),
    ]  # fmt: skip
    kind = next((name for fits, name in kinds if fits), "of an unknown kind")
    size = member.size if kind == "file" else 0
    return Entry(member.name, kind, size, member.linkname if "link" in kind else "")


@contextmanager
def _zip(path: str) -> Iterator[Opened]:
    with zipfile.ZipFile(path) as archive:
        entries = [_zip_entry(member) for member in archive.infolist()]
        yield entries, lambda folder: archive.extractall(folder)


def _zip_entry(member: zipfile.ZipInfo) -> Entry:
    kind = "folder" if member.is_dir() else "file"
    mode = stat.S_IFMT(member.external_attr >> 16)
    if mode not in (0, stat.S_IFREG, stat.S_IFDIR):
        kind = "a link or a device in a zip file"
    elif member.flag_bits & 1:
        kind = "encrypted"
    return Entry(member.filename, kind, 0 if kind == "folder" else member.file_size)


def _is_there(folder: str, entries: list[Entry]) -> bool:
    for entry in entries:
        path = os.path.join(folder, *_parts(entry.name))
        if entry.kind == "folder":
            good = os.path.isdir(path)
        elif entry.kind == "file":
            good = os.path.isfile(path) and os.path.getsize(path) == entry.size
        else:
            good = os.path.lexists(path)
        if not good:
            return False
    return os.path.isdir(folder)


def _put(fresh: str, folder: str) -> None:
    """Move a folder to its place; if there is one already, file by file."""
    if not os.path.lexists(folder):
        try:
            os.rename(fresh, folder)
            return
        except OSError:  # another process was quicker
            if not os.path.isdir(folder):
                raise
    for here, folders, files in os.walk(fresh):
        there = os.path.normpath(os.path.join(folder, os.path.relpath(here, fresh)))
        if there != os.path.normpath(folder) and os.path.islink(there):
            raise ValueError(f"{there} is a link; remove it to have the archive unpacked there.")
        os.makedirs(there, exist_ok=True)
        links = [name for name in folders if os.path.islink(os.path.join(here, name))]
        for name in [*files, *links]:
            os.replace(os.path.join(here, name), os.path.join(there, name))
