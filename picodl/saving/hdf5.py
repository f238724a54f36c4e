"""HDF5 without trust: hard links only, plain numbers only, and a checksum beside every dataset."""

from __future__ import annotations

import math
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import numpy as np

from picodl.saving.checksum import checksum, read_stretch, sum_of_piece, total
from picodl.saving.files import FileError, Window
from picodl.saving.limits import CHUNK_BYTES, CONFIG_BYTES, GROUP_DEPTH, ITEMS, MIB
from picodl.typing import Array

CHECKSUM = "crc32"
_FILTERS = {1: "gzip", 2: "shuffle", 3: "fletcher32"}


class Source(NamedTuple):
    """Where the bytes of an open HDF5 file are."""

    descriptor: int | None  # of the file on the disk; None if it is in memory
    start: int  # where HDF5's bytes begin in it
    verified: bool  # whether they have been compared with a checksum of the whole
    size: int  # how many there are


@contextmanager
def open_hdf5(stream: Any, verified: bool = False) -> Iterator[Group]:
    """The root group of an HDF5 file that is read through a binary Python file.

    HDF5 itself opens no file, so it takes no locks (HDF5_USE_FILE_LOCKING has no say) and can
    follow no name to another file.

    Args:
        stream: a binary file.
        verified: whether its bytes were compared with a checksum already.
    """
    import h5py

    start, file = (stream.start, stream.file) if isinstance(stream, Window) else (0, stream)
    descriptor = None
    if sys.byteorder == "little":
        with suppress(OSError, AttributeError):
            descriptor = file.fileno()
    size = stream.seek(0, 2)
    stream.seek(0)
    with h5py.File(stream, "r") as root:
        yield Group(root.id, "", Source(descriptor, start, verified, size))


class Group:
    """A group, reached over hard links."""

    def __init__(self, identifier: Any, path: str, source: Source) -> None:
        import h5py

        self.path, self.source = path, source
        self.id = h5py.h5g.open(identifier, b"/") if path == "" else identifier

    def names(self) -> list[str]:
        """The names of what the group holds.

        Raises:
            FileError: for a group with more than 100 000 entries.
        """
        if self.id.get_num_objs() > ITEMS:
            raise FileError(f"{self.path or 'the root'} holds more than {ITEMS} entries.")
        return [name.decode("utf-8", "surrogateescape") for name in self.id]

    def get(self, path: str) -> Group | Dataset | None:
        """What stands at the path below this group; None if nothing does.

        Raises:
            FileError: if a part of the path is a link, or leads upwards.
        """
        node: Any = self
        for part in path.split("/"):
            if part in ("", ".", ".."):
                raise FileError(f"{_join(self.path, path)!r} is not a path inside the file.")
            if not isinstance(node, Group):
                return None
            node = node._child(part)
        return node

    def group(self, path: str) -> Group:
        """The group at the path.

        Raises:
            FileError: if there is none.
        """
        found = self.get(path)
        if not isinstance(found, Group):
            raise FileError(
                f"{_join(self.path, path)} is "
                + ("missing." if found is None else "not a group, as it should be.")
            )
        return found

    def _child(self, name: str) -> Group | Dataset | None:
        import h5py

        key = name.encode("utf-8", "surrogateescape")
        if b"\0" in key or not self.id.links.exists(key):
            return None
        path = _join(self.path, name)
        kind = self.id.links.get_info(key).type
        if kind != h5py.h5l.TYPE_HARD:
            raise FileError(
                f"{path} is {_LINKS.get(kind, 'a link')}; links are never followed. Save the data "
                "itself into the file."
            )
        found = h5py.h5o.open(self.id, key)
        if isinstance(found, h5py.h5g.GroupID):
            return Group(found, path, self.source)
        if isinstance(found, h5py.h5d.DatasetID):
            return Dataset(found, path, self.source)
        raise FileError(f"{path} is neither a group nor a dataset.")

    def datasets(self) -> dict[str, Dataset]:
        """All datasets below, by their path; each group is looked into once."""
        import h5py

        found: dict[str, Dataset] = {}
        seen = {h5py.h5o.get_info(self.id).addr}
        stack: list[tuple[Group, str, int]] = [(self, "", 0)]
        count = 0
        while stack:
            group, base, depth = stack.pop()
            if depth > GROUP_DEPTH:
                raise FileError(f"{group.path[:80]}... is nested more than {GROUP_DEPTH} deep.")
            below: list[tuple[Group, str, int]] = []
            for name in group.names():
                count += 1
                if count > ITEMS:
                    raise FileError(f"The file holds more than {ITEMS} items.")
                child = group._child(name)
                if isinstance(child, Dataset):
                    found[_join(base, name)] = child
                elif child is not None:
                    address = h5py.h5o.get_info(child.id).addr
                    if address not in seen:
                        seen.add(address)
                        below.append((child, _join(base, name), depth + 1))
            stack.extend(reversed(below))
        return found

    def text(self, attribute: str) -> str | None:
        """An attribute that is a text; None if it is missing.

        Raises:
            FileError: if it is something else.
        """
        value = _attribute(self, attribute)
        if isinstance(value, str):
            wanted = _attribute(self, f"{attribute}_{CHECKSUM}")
            if wanted is not None and wanted != zlib.crc32(value.encode()):
                raise FileError(f"{attribute} does not match its checksum: the file is damaged.")
        if value is None or isinstance(value, str):
            return value
        raise FileError(
            f"The attribute {attribute} of {self.path or 'the file'} should be a text, but is "
            f"of type {type(value).__name__}."
        )

    def number(self, attribute: str) -> int | None:
        """An attribute that is a whole number; None if it is missing or something else."""
        value = _attribute(self, attribute)
        return int(value) if isinstance(value, np.integer) else None

    def texts(self, attribute: str) -> list[str] | None:
        """An attribute that is a list of texts, also when split into attribute0, attribute1, ...

        Raises:
            FileError: if it is something else.
        """
        value = _attribute(self, attribute)
        if value is None and _attribute(self, f"{attribute}0") is not None:
            value, part = [], 0
            while (more := self.texts(f"{attribute}{part}")) is not None:
                value.extend(more)
                part += 1
        if value is None or (isinstance(value, list) and all(isinstance(v, str) for v in value)):
            return value
        raise FileError(
            f"The attribute {attribute} of {self.path or 'the file'} should be a list of names, "
            f"but is of type {type(value).__name__}."
        )


_LINKS = {1: "a soft link", 64: "an external link"}


def _join(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name


def _attribute(owner: Group | Dataset, name: str) -> Any:
    """The value of an attribute: str, list of str, or whatever numpy makes of it."""
    import h5py

    key = name.encode()
    if not h5py.h5a.exists(owner.id, key):
        return None
    attribute = h5py.h5a.open(owner.id, key)
    kind, space = attribute.get_type(), attribute.get_space()
    count = space.get_simple_extent_npoints()
    if count * kind.get_size() > CONFIG_BYTES:
        raise FileError(f"The attribute {name} of {owner.path or 'the file'} is too large.")
    if isinstance(kind, h5py.h5t.TypeStringID):
        value = h5py.AttributeManager(owner)[name]
        try:
            if isinstance(value, (bytes, np.bytes_)):
                return value.decode("utf-8")
            if isinstance(value, np.ndarray):
                return [v.decode("utf-8") if isinstance(v, bytes) else str(v) for v in value.flat]
        except UnicodeDecodeError as error:
            raise FileError(f"The attribute {name} is not UTF-8 text: {error}") from error
        return value
    if count == 0 and space.get_simple_extent_type() == h5py.h5s.SIMPLE:
        return []
    if isinstance(kind, (h5py.h5t.TypeIntegerID, h5py.h5t.TypeFloatID)):
        return h5py.AttributeManager(owner)[name]
    return kind


class Dataset:
    """An array of numbers in the file; an `Item`. Nothing is read before `read`.

    Raises:
        FileError: on the first look at shape or dtype, for data stored outside of the file, virtual
            data, unknown filters, absurd chunks and everything that is not numbers.
    """

    def __init__(self, identifier: Any, path: str, source: Source) -> None:
        self.id, self.source = identifier, source
        self.path = self.name = path

    def __getattr__(self, name: str) -> Any:
        if name in ("shape", "dtype"):
            self._look()
            return vars(self)[name]
        raise AttributeError(name)

    def _look(self) -> None:
        import h5py

        kind, space = self.id.get_type(), self.id.get_space()
        if space.get_simple_extent_type() == h5py.h5s.NULL:
            raise FileError(f"{self.name} holds no data (a null dataspace).")
        size = kind.get_size()
        self.bfloat16 = (
            kind.get_class() == h5py.h5t.OPAQUE
            and size == 2
            and _attribute(self, "dtype") == "bfloat16"
        )
        if self.bfloat16:
            dtype = np.dtype(np.float32)
        elif kind.get_class() in (h5py.h5t.FLOAT, h5py.h5t.INTEGER) and size <= 8:
            dtype = np.dtype(kind.dtype)
        else:
            raise FileError(
                f"{self.name} holds {_type_name(kind)} data; weights are plain floating or "
                "integer numbers."
            )
        shape = tuple(int(n) for n in self.id.shape)
        self._check_storage(shape, size)
        self.shape, self.dtype = shape, dtype

    def _check_storage(self, shape: tuple[int, ...], itemsize: int) -> None:
        import h5py

        plan = self.id.get_create_plist()
        if plan.get_external_count() > 0:
            raise FileError(f"{self.name} keeps its data in another file, which is refused.")
        if plan.get_layout() == h5py.h5d.VIRTUAL:
            raise FileError(f"{self.name} is a virtual dataset, which is refused.")
        filters = [plan.get_filter(i)[0] for i in range(plan.get_nfilters())]
        for code in filters:
            if code not in _FILTERS or filters.count(code) > 1:
                raise FileError(
                    f"{self.name} was written with the HDF5 filter {code}; only "
                    f"{', '.join(_FILTERS.values())} are read, each once."
                )
        size = itemsize
        for n in shape:
            size *= n
        if plan.get_layout() == h5py.h5d.CHUNKED:
            chunk = itemsize
            for n in plan.get_chunk():
                chunk *= n
            if chunk > max(CHUNK_BYTES, 2 * size):
                raise FileError(
                    f"{self.name} holds {size} bytes in chunks of {chunk // MIB} MiB, which is "
                    "refused."
                )
            self._chunk = (chunk, 1 in filters)
        else:
            self._chunk = (0, False)
        if size and self.id.get_storage_size() == 0:
            raise FileError(f"{self.name} was declared, but its data was never written.")

    def read(self, out: Array) -> None:
        """Read the values into an array of the dataset's shape and dtype; check their checksum.

        Raises:
            FileError: if the data are damaged.
        """
        import h5py

        shape = self.shape
        values = np.empty(shape, "V2") if self.bfloat16 else out
        if self._chunk[1]:
            self._check_chunks()
        if out.size:
            try:
                self.id.read(h5py.h5s.ALL, h5py.h5s.ALL, values)
            except (OSError, RuntimeError, ValueError, TypeError) as error:
                raise FileError(f"{self.name} cannot be read: {error}") from error
        if self.bfloat16:
            out.view(np.uint32)[...] = values.view(np.uint16).astype(np.uint32) << 16
        wanted = self._checksum()
        if wanted is not None and checksum(self.name, values) != wanted:
            raise self._damaged()

    def _checksum(self) -> Any:
        return None if self.source.verified else _attribute(self, CHECKSUM)

    def _damaged(self) -> FileError:
        return FileError(f"{self.name} does not match its checksum: the file is damaged.")

    def in_one_piece(self, dtype: np.dtype[Any]) -> bool:
        """Whether the values lie in the file as they would in memory, and are many."""
        raw = self.dtype == dtype and not self.bfloat16 and self.source.descriptor is not None
        size = self.dtype.itemsize * math.prod(self.shape)
        return raw and size >= MIB and self.id.get_offset() is not None

    def scan(self, out: Array | None = None) -> bool:
        """Read the values of a dataset in one piece past HDF5, on several threads, and check them.

        Args:
            out: where they go; None to look only.

        Returns: whether there are NaN among them.
        """
        wanted, dtype = self._checksum(), self.dtype
        floats, check = dtype.kind == "f", wanted is not None

        def each(piece: Array) -> tuple[int, bool]:
            nan = floats and bool(np.isnan(piece.view(dtype).min()))
            return (sum_of_piece(piece) if check else 0), nan

        seen = self._stretch(each, out)
        if check and total(self.name, [s for s, _ in seen]) != wanted:
            raise self._damaged()
        return any(nan for _, nan in seen)

    def copy_to(self, out: Array) -> None:
        """Read the values of a dataset in one piece, which was scanned before."""
        self._stretch(lambda piece: None, out, 4 * MIB)

    def _stretch(self, each: Any, out: Array | None, block: int = MIB) -> list[Any]:
        size = self.dtype.itemsize * math.prod(self.shape)
        raw = None if out is None else out.reshape(-1).view(np.uint8)
        at = self.source.start + self.id.get_offset()
        try:
            return read_stretch(self.source.descriptor, at, size, each, raw, block)  # type: ignore[arg-type]
        except EOFError as error:
            raise FileError(f"{self.name} is cut off: {error}.") from error

    def _check_chunks(self) -> None:
        """See that no compressed chunk unpacks to more than its size: HDF5 would not stop."""
        limit = self._chunk[0] + 64
        if self.id.get_num_chunks() > ITEMS:
            raise FileError(f"{self.name} is stored in more than {ITEMS} chunks.")
        chunks: list[Any] = []
        self.id.chunk_iter(chunks.append)
        for chunk in chunks:
            skipped = chunk.filter_mask
            if chunk.size > limit + limit // 512 + 64:
                raise FileError(f"{self.name} has a chunk of {chunk.size} bytes, too many.")
            if skipped:
                continue
            unpacker = zlib.decompressobj()
            try:
                data = self.id.read_direct_chunk(chunk.chunk_offset)[1]
                size = len(unpacker.decompress(data, limit))
            except (OSError, RuntimeError, zlib.error) as error:
                raise FileError(f"{self.name} has a damaged chunk: {error}") from error
            if size >= limit:
                raise FileError(f"{self.name} has a chunk that unpacks to more than its size.")


def _type_name(kind: Any) -> str:
    names = ("integer", "floating", "time", "text", "bit field", "opaque", "compound", "reference")
    code = int(kind.get_class())
    more = {8: "enumerated or boolean", 9: "variable-length", 10: "array", 11: "complex"}
    name = names[code] if 0 <= code < len(names) else more.get(code, "unknown")
    return f"{8 * kind.get_size()}-bit {name}" if name in ("integer", "floating") else name


def write_dataset(group: Any, name: str, values: Any, path: str) -> None:
    """Write an array and its checksum.

    Args:
        group: an open h5py group.
        name: of the dataset in it.
        values: the array.
        path: of the dataset from the root of the file, which enters into the checksum.
    """
    array = np.asarray(values)
    dataset = group.create_dataset(name, data=array)
    dataset.attrs.create(CHECKSUM, checksum(path, array), dtype=np.uint32)
