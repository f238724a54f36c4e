"""Checksums of arrays and of stretches of files, as fast as the memory, on several threads.

An array of less than 1 MiB has the CRC-32 of its path and its bytes. In a larger one each MiB is
laid out as 63 rows of 2079 words of 8 bytes and 95 more; the CRC-32 of the sums of its columns
(modulo 2**64) and the other words stands for it, which takes a ninth of the time of its own; and
the array has the CRC-32 of its path and these. A last piece of less than 1 MiB stands for itself by
its CRC-32. One changed bit is always found, and pages that changed places are too: a row is no
whole number of pages.
"""

from __future__ import annotations

import functools
import os
import threading
import zlib
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from picodl.parallel import map_blocks, shares_of
from picodl.typing import Array

T = TypeVar("T")
BLOCK = 1 << 20
_ROWS, _COLUMNS = 63, 2079


def checksum(name: str, values: Array) -> int:
    """The checksum of an array, little-endian and in C order, that stands at the path `name`."""
    little = values.dtype.newbyteorder("<")
    data = np.ascontiguousarray(values, None if little == values.dtype else little)
    raw = data.reshape(-1).view(np.uint8)
    if raw.size < BLOCK:
        return zlib.crc32(raw.data, zlib.crc32(name.encode()))

    def sums(share: slice) -> list[int]:
        starts = range(share.start * BLOCK, min(share.stop * BLOCK, raw.size), BLOCK)
        return [sum_of_piece(raw[i : i + BLOCK]) for i in starts]

    shares = shares_of(-(-raw.size // BLOCK))
    return total(name, [s for part in map_blocks(sums, shares, raw.size / 20000) for s in part])


def sum_of_piece(piece: Array) -> int:
    """What stands for a piece of at most BLOCK bytes of a large array."""
    if piece.size < BLOCK:
        return zlib.crc32(piece.data)
    words, whole = piece.view("<u8"), _ROWS * _COLUMNS
    columns = np.add.reduce(words[:whole].reshape(_ROWS, _COLUMNS), axis=0)
    return zlib.crc32(words[whole:].data, zlib.crc32(columns.data))


def total(name: str, sums: list[int]) -> int:
    """The checksum of a large array at the path `name`, from its pieces'."""
    return zlib.crc32(np.array(sums, "<u4").data, zlib.crc32(name.encode()))


def read_stretch(
    descriptor: int,
    offset: int,
    size: int,
    each: Callable[[Array], T],
    out: Array | None = None,
    block: int = BLOCK,
) -> list[T]:
    """Read a stretch of a file on several threads, past the file object.

    Args:
        descriptor: of the open file.
        offset, size: where the stretch is, in bytes.
        each: called with each piece (the last may be shorter) while it is in the cache; the piece
            lives until it returns.
        out: contiguous bytes to read into; None reads into scratch memory.
        block: the size of the pieces.

    Returns: what `each` gave, in order.

    Raises:
        EOFError: if the file ends before the stretch does.
    """

    def work(share: slice) -> list[T]:
        scratch = np.empty(block, np.uint8) if out is None else out
        found: list[T] = []
        for i in range(share.start * block, min(share.stop * block, size), block):
            n, at = min(block, size - i), 0 if out is None else i
            piece = scratch[at : at + n]
            done = 0
            while done < n:
                got = _read_at(descriptor, piece[done:], offset + i + done)
                if got == 0:
                    raise EOFError(f"the file ends at byte {offset + i + done}")
                done += got
            found.append(each(piece))
        return found

    shares = shares_of(-(-size // block))
    return [f for part in map_blocks(work, shares, work=size / 10000) for f in part]


def _read_at(descriptor: int, out: Array, offset: int) -> int:
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, [out.data], offset)
    with _turn:  # a system without reading at a place
        os.lseek(descriptor, offset, os.SEEK_SET)
        data = os.read(descriptor, out.size)
    out[: len(data)] = np.frombuffer(data, np.uint8)
    return len(data)


_turn = threading.Lock()


def crc32_of_stretch(descriptor: int, offset: int, size: int) -> int:
    """The plain CRC-32 of a stretch of a file.

    zlib computes 7 GB/s on one thread, so blocks go to the threads, and their sums are put
    together: appending n bytes to data with the sum c gives A(c) ^ crc32(bytes), where A is linear
    over single bits and depends on n alone.
    """

    def each(piece: Array) -> int | bytes:
        return zlib.crc32(piece.data) if piece.size == BLOCK else piece.tobytes()

    so_far = 0
    columns = _advance()
    for part in read_stretch(descriptor, offset, size, each):
        if isinstance(part, bytes):
            so_far = zlib.crc32(part, so_far)
        else:
            so_far = _apply(columns, so_far) ^ part
    return so_far


@functools.cache
def _advance() -> tuple[int, ...]:
    """A for BLOCK bytes: what becomes of each bit of the sum."""
    columns = tuple(zlib.crc32(b"\0", 1 << bit) ^ zlib.crc32(b"\0") for bit in range(32))
    for _ in range(BLOCK.bit_length() - 1):  # A for 1 byte, squared until it is for BLOCK
        columns = tuple(_apply(columns, column) for column in columns)
    return columns


def _apply(columns: tuple[int, ...], value: int) -> int:
    moved = 0
    for bit in range(32):
        if value >> bit & 1:
            moved ^= columns[bit]
    return moved
