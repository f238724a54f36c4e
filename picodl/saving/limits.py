"""What a file may ask for: sizes, depths and counts beyond which it is refused unread."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np

from picodl.saving.files import FileError

MIB = 1 << 20
CONFIG_BYTES = 64 * MIB  # the text of a config
CONFIG_DEPTH = 250  # brackets inside brackets; a nested model takes about ten
CONFIG_PARTS = 2_000_000  # values in a config; each costs about 60 bytes of memory
CHUNK_BYTES = 64 * MIB  # a chunk of a dataset, unless the dataset itself is as large
ITEMS = 100_000  # groups and datasets of a file, members of an archive
GROUP_DEPTH = 200

_STRINGS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def parse_json(text: bytes | str, item: str) -> Any:
    """The value of a JSON text from a file, after its size and depth have been looked at.

    Args:
        text: as it stands in the file.
        item: what it is called in messages, such as "config.json".

    Raises:
        FileError: for anything but JSON of a sane size and depth.

    >>> parse_json('{"units": 8}', "config.json")
    {'units': 8}
    """
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else bytes(text)
    if len(data) > CONFIG_BYTES:
        raise FileError(
            f"{item} holds {len(data) // MIB} MiB; more than {CONFIG_BYTES // MIB} MiB are refused."
        )
    bare = _STRINGS.sub(b"", data)
    if bare.count(b",") + bare.count(b"[") + bare.count(b"{") > CONFIG_PARTS:
        raise FileError(f"{item} holds more than {CONFIG_PARTS} values.")
    depth = _depth(bare)
    if depth > CONFIG_DEPTH:
        raise FileError(
            f"{item} is nested {depth} levels deep; more than {CONFIG_DEPTH} are refused."
        )
    try:
        return json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise FileError(f"{item} is not valid JSON: {error}") from error


def _depth(bare: bytes) -> int:
    """How many brackets are open at once, at most; looked at in blocks to save memory."""
    brackets = np.frombuffer(bare.translate(None, _NO_BRACKETS), np.uint8)
    deepest = now = 0
    for start in range(0, len(brackets), MIB):
        block = brackets[start : start + MIB]
        steps = np.where((block == ord("[")) | (block == ord("{")), 1, -1).cumsum()
        deepest = max(deepest, now + int(steps.max()))
        now += int(steps[-1])
    return deepest
