"""Event files, which TensorBoard reads, written with numpy and the standard library alone.

A file is a row of records: the length of the data (8 bytes), a checksum of the length, the data, a
checksum of the data (4 bytes each). The data is an Event, a message of protocol buffers, whose few
kinds of fields are put together here by hand; the comments name the fields. Killing the process
leaves at most a torn last record, which TensorBoard passes over.

>>> hex(crc32c(b"123456789"))
'0xe3069283'
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
import struct
import time
import zlib

import numpy as np

from picodl.typing import Array

_BUCKETS = 30  # of a histogram, as in Keras
_SECONDS = 30  # after which an added record flushes the buffer
_numbers = itertools.count()  # of the files of this process


class EventFile:
    """A new event file in a folder, which is made if it is missing.

    Records wait in a buffer until `flush` is called, the buffer is full, or a record is added more
    than 30 seconds after the last flush.

    Args:
        folder: where TensorBoard looks; the files of one folder are one run.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        from socket import gethostname

        os.makedirs(folder, exist_ok=True)
        # TensorBoard reads the files of a folder by the alphabet
        name = f"{int(time.time()):010d}.{gethostname()}.{os.getpid()}.{next(_numbers):05d}"
        self.path = os.path.join(folder, f"events.out.tfevents.{name}.picodl")
        self._file = open(self.path, "xb")  # noqa: SIM115
        # wall_time, file_version
        self._write(_double(1, time.time()) + _bytes(3, b"brain.Event:2"))
        self.flush()

    def scalar(self, tag: str, value: float, step: int) -> None:
        """Add a number, which is kept as float32."""
        self._add(tag, _float(2, value), step)  # simple_value

    def histogram(self, tag: str, values: Array, step: int) -> None:
        """Add the distribution of finite values of any shape, in 30 buckets of equal width."""
        flat = np.asarray(values, np.float64).reshape(-1)
        low, high = (float(flat.min()), float(flat.max())) if flat.size else (0.0, 0.0)
        limits, counts = _buckets(flat, low, high)
        with np.errstate(over="ignore"):
            sums = float(flat.sum()), float(flat.dot(flat))
        # min, max, num, sum, sum_squares; then bucket_limit, the right edges, and bucket
        numbers = enumerate((low, high, flat.size, *sums), start=1)
        message = b"".join(_double(number, value) for number, value in numbers)
        self._add(tag, _bytes(5, message + _doubles(6, limits) + _doubles(7, counts)), step)

    def image(self, tag: str, pixels: Array, step: int) -> None:
        """Add a grey picture. Shapes: (height, width) of uint8, none of them 0."""
        height, width = pixels.shape
        # height, width, colorspace (1: grey), encoded_image_string
        message = _integer(1, height) + _integer(2, width) + _integer(3, 1) + _bytes(4, png(pixels))
        self._add(tag, _bytes(4, message), step)

    def text(self, tag: str, text: str, step: int) -> None:
        """Add a text, which TensorBoard shows as Markdown."""
        tensor = _integer(1, 7) + _bytes(2, b"") + _bytes(8, text.encode())  # string, shape, value
        metadata = _bytes(1, _bytes(1, b"text"))  # plugin_data: plugin_name
        self._add(tag, _bytes(8, tensor) + _bytes(9, metadata), step)

    def flush(self) -> None:
        """Hand the records over to the file."""
        self._file.flush()
        self._flushed = time.time()

    def close(self) -> None:
        """Flush and close the file; nothing can be added after it."""
        self._file.close()

    def _add(self, tag: str, content: bytes, step: int) -> None:
        now = time.time()
        value = _bytes(1, _bytes(1, tag.encode()) + content)  # summary: value: tag and content
        self._write(_double(1, now) + _integer(2, step) + _bytes(5, value))
        if now - self._flushed > _SECONDS:
            self.flush()

    def _write(self, event: bytes) -> None:
        length = struct.pack("<Q", len(event))
        sums = (struct.pack("<I", _masked(crc32c(data))) for data in (length, event))
        self._file.write(b"".join((length, next(sums), event, next(sums))))


def _buckets(values: Array, low: float, high: float) -> tuple[Array, Array]:
    """The right edges and the counts of the buckets; a single one if no more fit in between."""
    if 0 < high - low < math.inf:
        with contextlib.suppress(ValueError):  # fewer floats than edges lie in between
            counts, edges = np.histogram(values, _BUCKETS)
            return edges[1:], counts
    return np.array([high]), np.array([values.size])


def png(pixels: Array) -> bytes:
    """A grey picture as a PNG file. Shapes: (height, width) of uint8."""
    height, width = pixels.shape
    rows = np.zeros((height, width + 1), np.uint8)  # each begins with its filter: none
    rows[:, 1:] = pixels

    def chunk(kind: bytes, data: bytes) -> bytes:
        checksum = zlib.crc32(data, zlib.crc32(kind))
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)  # 8 bits, grey, not interlaced
    parts = chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows.data)), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


# the fields of a message: number and kind (0 varint, 1 eight bytes, 2 length and bytes, 5 four
# bytes), then the value


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; all but the last have their top bit set."""
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _integer(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(int(value))


def _double(number: int, value: float) -> bytes:
    return struct.pack("<Bd", number << 3 | 1, value)


def _float(number: int, value: float) -> bytes:
    try:
        return struct.pack("<Bf", number << 3 | 5, value)
    except OverflowError:
        return struct.pack("<Bf", number << 3 | 5, math.copysign(math.inf, value))


def _bytes(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _doubles(number: int, values: Array) -> bytes:
    return _bytes(number, values.astype("<f8").tobytes())


def crc32c(data: bytes) -> int:
    """The CRC-32C (Castagnoli) of bytes: what is left of them, a polynomial over bits, divided.

    Short data goes byte by byte through a table. Long data is taken as words: a word moved on by
    those that follow it is a linear function of it, so the front part of the words, moved on by the
    2**k words of the rest, is added to the rest in one stroke, and at least half of them are left;
    that is 25 times faster at 100 kB.
    """
    crc = 0xFFFFFFFF
    count = len(data) // 4 if len(data) >= _LONG else 0
    if count:
        words = np.frombuffer(data, "<u4", count).copy()
        words[0] ^= crc
        while words.size > 1:
            level = (words.size - 1).bit_length() - 1
            front, words = words[: -(1 << level)], words[-(1 << level) :]
            words[-front.size :] ^= _advance(front, level)
        crc = int(_advance(words, 0)[0])
    table = _byte_table()
    for byte in data[4 * count :]:
        crc = table[(crc ^ byte) & 255] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


_LONG = 1000  # bytes from which on words are faster


def _masked(crc: int) -> int:
    """A checksum as records hold it: turned and shifted."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _advance(words: Array, level: int) -> Array:
    """What the words are 2**level words later."""
    tables, parts = _tables(level), words.view(np.uint8).reshape(-1, 4)
    moved = tables[0][parts[:, 0]]
    for i in (1, 2, 3):
        moved ^= tables[i][parts[:, i]]
    return moved


@functools.cache
def _tables(level: int) -> Array:
    """What byte i of a word adds to it 2**level words later. Shapes: (4, 256)."""
    if level:
        return _advance(_tables(level - 1).reshape(-1), level - 1).reshape(4, 256)
    words = np.arange(256, dtype="<u4") << np.array([[0], [8], [16], [24]], "<u4")
    for _ in range(32):
        words = words >> 1 ^ (words & 1) * 0x82F63B78
    return words


@functools.cache
def _byte_table() -> list[int]:
    return _tables(0)[3].tolist()
