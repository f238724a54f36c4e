"""Zip archives and unpacked folders whose members are read, and written, where they are."""

from __future__ import annotations

import io
import os
import stat
import struct
import zipfile
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

from picodl.saving.checksum import crc32_of_stretch
from picodl.saving.files import FileError, Window
from picodl.saving.limits import ITEMS, MIB


def write_archive(
    file: Any, texts: Mapping[str, str], name: str, write: Callable[[Any], None], size: int
) -> None:
    """Write a zip file of texts and one large member, all of them stored.

    The large member is written in its place, since an HDF5 file of its own would take its size in
    memory or on the disk once more.

    Args:
        file: what `atomic_write` gives.
        texts: name -> text.
        name: of the large member.
        write: writes it to a binary file that can be seeked.
        size: about how many bytes it will have.
    """
    with zipfile.ZipFile(file, "w", allowZip64=True) as archive:
        for text in texts:
            archive.writestr(text, texts[text])
        info = zipfile.ZipInfo(name, archive.infolist()[0].date_time)
        info.external_attr = 0o600 << 16
        info.header_offset, info.CRC = archive.start_dir, 0
        wide = size > 1 << 31
        start = info.header_offset + len(info.FileHeader(zip64=wide))
        write(Window(file, start, None))
        info.file_size = info.compress_size = max(0, file.seek(0, os.SEEK_END) - start)
        info.CRC = crc32_of_stretch(file.fileno(), start, info.file_size)
        file.seek(info.header_offset)
        file.write(info.FileHeader(zip64=wide))
        archive.filelist.append(info)
        archive.NameToInfo[name] = info
        archive.start_dir = start + info.file_size  # where the directory of the archive goes


class Archive:
    """The members of a zip file, each looked at before it is read; nothing is written anywhere.

    Attributes:
        verified: whether the bytes of members were compared with a checksum.
        size: of the file, in bytes.
    """

    verified = True

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.size = file.seek(0, os.SEEK_END)
        self.zip = zipfile.ZipFile(file)
        if len(self.zip.infolist()) > ITEMS:
            raise FileError(f"the archive holds more than {ITEMS} members.")
        self.members: dict[str, list[zipfile.ZipInfo]] = {}
        for info in self.zip.infolist():
            self.members.setdefault(info.filename, []).append(info)

    def __contains__(self, name: str) -> bool:
        return name in self.members

    def names(self) -> list[str]:
        """The names of the members, in the order of the file."""
        return list(self.members)

    def holds(self, folder: str) -> bool:
        """Whether there are members in a folder."""
        return any(name.startswith(f"{folder}/") for name in self.members)

    def stream(self, name: str, limit: int | None) -> Any:
        """A member to be read from its beginning, of any size if limit is None."""
        return self.zip.open(self._member(name, limit))

    def _member(self, name: str, limit: int | None) -> zipfile.ZipInfo:
        found = self.members.get(name, [])
        if not found:
            raise FileError(f"the archive has no member {name}; is it a saved model?")
        if len(found) > 1:
            raise FileError(f"the archive has {len(found)} members called {name} (duplicates).")
        info = found[0]
        mode = info.external_attr >> 16
        if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
            raise FileError(f"{name} is a link or a special file, not a plain member.")
        if info.flag_bits & 1:
            raise FileError(f"{name} is encrypted; passwords are not supported.")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise FileError(
                f"{name} has the compression method {info.compress_type}; only stored and deflated "
                "members are read."
            )
        if limit is not None and info.file_size > min(
            limit, max(64 * MIB, 100 * info.compress_size)
        ):
            raise FileError(
                f"{name} unpacks to {info.file_size / MIB:.0f} MiB, which is more than the model "
                "can need."
            )
        return info

    def read(self, name: str, limit: int) -> bytes:
        """A member of at most so many bytes, its CRC checked."""
        data = io.BytesIO()
        with self.stream(name, limit) as member:  # in pieces: it may hold more than it says
            while piece := member.read(MIB):
                data.write(piece)
                if data.tell() > limit:
                    raise FileError(f"{name} unpacks to more than {limit // MIB} MiB.")
        return data.getvalue()

    def open(self, name: str, limit: int) -> Any:
        """A member as a file that can be seeked; a large stored one stays where it is."""
        info = self._member(name, limit)
        if info.compress_type == zipfile.ZIP_DEFLATED or info.file_size < 16 * MIB:
            return io.BytesIO(self.read(name, limit))
        with self.zip.open(info):  # compares the header before the data with the directory
            pass
        self.file.seek(info.header_offset)
        name_size, extra_size = struct.unpack("<26xHH", self.file.read(30))
        start = info.header_offset + 30 + name_size + extra_size
        if crc32_of_stretch(self.file.fileno(), start, info.file_size) != info.CRC:
            raise FileError(f"{name} does not match its checksum: the archive is damaged.")
        return Window(self.file, start, info.file_size)


class Folder:
    """The members of an unpacked archive; only plain files inside the folder are opened."""

    verified = False

    def __init__(self, path: str) -> None:
        self.path = path
        self.size = sum(e.stat(follow_symlinks=False).st_size for e in os.scandir(path))

    def _where(self, name: str) -> str:
        path = os.path.join(self.path, *name.split("/"))
        if not os.path.lexists(path):
            raise FileError(f"the folder holds no {name}; is it a saved model?")
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise FileError(f"{name} is a link or a special file, not a plain file.")
        return path

    def __contains__(self, name: str) -> bool:
        return os.path.lexists(os.path.join(self.path, *name.split("/")))

    holds = __contains__

    def read(self, name: str, limit: int) -> bytes:
        """A file of at most so many bytes."""
        with open(self._where(name), "rb") as file:
            data = file.read(limit + 1)
        if len(data) > limit:
            raise FileError(f"{name} holds more than {limit // MIB} MiB.")
        return data

    def open(self, name: str, limit: int) -> Any:
        """A file, opened for reading."""
        return open(self._where(name), "rb")
