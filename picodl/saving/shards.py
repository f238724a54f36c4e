"""`.weights.json`: the weights in several `.weights.h5` files, and which of them holds what."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Collection
from contextlib import ExitStack
from typing import Any

from picodl.saving.files import FileError, atomic_write, loading
from picodl.saving.hdf5 import open_hdf5
from picodl.saving.items import assign_all
from picodl.saving.layout import Place
from picodl.saving.limits import CONFIG_BYTES, ITEMS, parse_json
from picodl.saving.weights_h5 import model_pairs, saved_places, write_places

GIB = 1 << 30


def write(
    model: Any, path: str, max_shard_size: float | None = None, left_out: Collection[Any] = ()
) -> None:
    """Write a model's weights into files beside `NAME.weights.json`, which is written last.

    Args:
        model: built.
        path: `NAME.weights.json`; the others are `NAME_00000.weights.h5`, ...
        max_shard_size: of each file, in GB (2**30 bytes). Defaults to 5. One object's weights stay
            together.
        left_out: layers whose weights are not written.

    Raises:
        ValueError: for another ending, or a size that is not positive.
    """
    import h5py

    size = 5.0 if max_shard_size is None else float(max_shard_size)
    if not path.endswith(".weights.json"):
        raise ValueError(
            f"max_shard_size needs a path that ends in .weights.json; received {path!r}."
        )
    if not size > 0:
        raise ValueError(f"max_shard_size must be positive (GB); received {max_shard_size}.")
    base = path.removesuffix(".weights.json")
    weight_map: dict[str, str] = {}
    total = 0
    found = saved_places(model, left_out=left_out)
    for number, shard in enumerate(_split(found, size * GIB)):
        name = f"{base}_{number:05}.weights.h5"
        with atomic_write(name) as file, h5py.File(file, "w") as target:
            write_places(target, shard)
        for place in shard:
            weight_map[f"/{place.path}/vars" if place.path else "/vars"] = os.path.basename(name)
            total += sum(v.data.nbytes for v in place.variables)
    with atomic_write(path) as file:
        text = {"metadata": {"total_size": total}, "weight_map": weight_map}
        file.write(json.dumps(text, indent=4).encode())


def _split(found: list[Place], limit: float) -> list[list[Place]]:
    shards: list[list[Place]] = [[]]
    size = 0
    for place in found:
        here = sum(v.data.nbytes for v in place.variables)
        if shards[-1] and here and size + here > limit:
            shards.append([])
            size = 0
        shards[-1].append(place)
        size += here
    return shards


def read(
    path: str, model: Any, skip_mismatch: bool = False, left_out: Collection[Any] = ()
) -> None:
    """Set a model's weights from `NAME.weights.json` and the files beside it; all or nothing.

    Only plain files in the same folder, called `NAME_NUMBER.weights.h5`, are opened.

    Raises:
        FileError: if something does not fit.
    """
    with open(path, "rb") as file:
        index = parse_json(file.read(CONFIG_BYTES + 1), "the index")
    names = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(names, dict):
        raise FileError("it has no weight_map, so it is not an index of weight files.")
    flat = [n for value in names.values() for n in (value if isinstance(value, list) else [value])]
    shards = list(dict.fromkeys(map(str, flat)))
    if len(shards) > min(ITEMS, 1000):
        raise FileError(f"it names {len(shards)} files, too many.")
    with ExitStack() as stack:
        roots = []
        for name in shards:
            where = _beside(path, name)
            stack.enter_context(loading(where))
            roots.append(stack.enter_context(open_hdf5(stack.enter_context(open(where, "rb")))))
        assign_all(model_pairs(roots, model, skip_mismatch, left_out))


def _beside(path: str, name: str) -> str:
    base = os.path.basename(path).removesuffix(".weights.json")
    number = name.removeprefix(f"{base}_").removesuffix(".weights.h5")
    if name != f"{base}_{number}.weights.h5" or not number.isdecimal():
        raise FileError(
            f"it names the file {name!r}; shards are called {base}_00000.weights.h5, ..."
        )
    where = os.path.join(os.path.dirname(path), name)
    if os.path.lexists(where) and not stat.S_ISREG(os.lstat(where).st_mode):
        raise FileError(f"{name} is a link or a special file, not a plain file.")
    return where
