"""`.keras`: config.json, metadata.json and model.weights.h5 in an archive, read where they are."""

from __future__ import annotations

import datetime
import io
import json
import os
import stat
import struct
import zipfile
from collections.abc import Callable
from typing import Any, BinaryIO

from picodl.saving.checksum import crc32_of_stretch
from picodl.saving.files import FileError, Window, atomic_write
from picodl.saving.hdf5 import open_hdf5
from picodl.saving.items import make_rest, without_memory
from picodl.saving.layout import places
from picodl.saving.limits import CONFIG_BYTES, ITEMS, MIB, parse_json
from picodl.saving.serialization import (
    ConfigError,
    deserialize_keras_object,
    serialize_keras_object,
    shorten,
)
from picodl.saving.weights_h5 import read_optimizer, read_weights, require_built, write_weights
from picodl.typing import Config

# the version of Keras whose format is written; Keras compares nothing but shows it
KERAS_VERSION = "3.15.1"
CONFIG, METADATA, WEIGHTS = "config.json", "metadata.json", "model.weights.h5"


def write_archive(model: Any, path: str) -> None:
    """Write a model to a `.keras` file.

    Raises:
        ValueError: for parts that could not be loaded again, such as lambdas.
    """
    require_built(model)
    members = model_members(model)
    weights = io.BytesIO()
    write_weights(weights, model)
    with atomic_write(path) as file, zipfile.ZipFile(file, "w", allowZip64=True) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
        archive.writestr(WEIGHTS, weights.getbuffer())


def write_folder(model: Any, path: str) -> None:
    """Write the members of a `.keras` file into a folder, each of them whole or not at all."""
    require_built(model)
    members = model_members(model)
    os.makedirs(path, exist_ok=True)
    for name, data in members.items():
        if os.path.dirname(name):
            os.makedirs(os.path.join(path, os.path.dirname(name)), exist_ok=True)
        with atomic_write(os.path.join(path, name)) as file:
            file.write(data.encode())
    with atomic_write(os.path.join(path, WEIGHTS)) as file:
        write_weights(file, model)


def model_members(model: Any) -> dict[str, str]:
    """The texts of an archive: metadata and config, and the assets of layers that have some."""
    now = datetime.datetime.now().strftime("%Y-%m-%d@%H:%M:%S")
    metadata = {"keras_version": KERAS_VERSION, "date_saved": now, "writer": "picodl"}
    return {
        METADATA: json.dumps(metadata),
        CONFIG: json.dumps(serialize_keras_object(model)),
    }


class Archive:
    """The members of a zip file, each looked at before it is read; nothing is written anywhere."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.zip = zipfile.ZipFile(file)
        self.infos = self.zip.infolist()
        if len(self.infos) > ITEMS:
            raise FileError(f"the archive holds more than {ITEMS} members.")

    def __contains__(self, name: str) -> bool:
        return any(info.filename == name for info in self.infos)

    def names(self) -> list[str]:
        """The names of the members, in the order of the file."""
        return [info.filename for info in self.infos]

    def stream(self, name: str, limit: int | None) -> Any:
        """A member to be read from its beginning, of any size if limit is None."""
        return self.zip.open(self._member(name, limit))

    def _member(self, name: str, limit: int | None) -> zipfile.ZipInfo:
        found = [info for info in self.infos if info.filename == name]
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
        small = info.file_size < 16 * MIB or not hasattr(os, "preadv")
        if info.compress_type == zipfile.ZIP_DEFLATED or small:
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

    def __init__(self, path: str) -> None:
        self.path = path

    def _where(self, name: str) -> str:
        path = os.path.join(self.path, *name.split("/"))
        if not os.path.lexists(path):
            raise FileError(f"the folder holds no {name}; is it a saved model?")
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise FileError(f"{name} is a link or a special file, not a plain file.")
        return path

    def __contains__(self, name: str) -> bool:
        return os.path.lexists(os.path.join(self.path, *name.split("/")))

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


def read_model(members: Archive | Folder, compile: bool = True) -> Any:
    """The model of an archive, with its weights, compiled as it was, with its optimizer's state.

    Raises:
        FileError: if a member is missing or does not fit the others.
    """
    config = parse_json(members.read(CONFIG, CONFIG_BYTES), CONFIG)
    training = config.pop("compile_config", None) if isinstance(config, dict) else None

    def fill(model: Any) -> None:
        read_assets(members, model)
        with open_weights(members, model) as file, open_hdf5(file) as root:
            read_weights(root, model)
            if compile and training:
                compile_from(model, training, f"{CONFIG}: compile_config")
                read_optimizer(root, model)

    return make_model(config, fill, CONFIG)


def read_assets(members: Archive | Folder, model: Any) -> None:
    """Give lookup layers the vocabularies that Keras keeps beside the config."""
    for place in places(model):
        name = f"assets/{place.path}/vocabulary.txt"
        if hasattr(place.owner, "set_vocabulary") and name in members:
            try:
                tokens = members.read(name, CONFIG_BYTES).decode("utf-8").splitlines()
            except UnicodeDecodeError as error:
                raise FileError(f"{name} is not UTF-8 text: {error}") from error
            place.owner.set_vocabulary(tokens)


def open_weights(members: Archive | Folder, model: Any) -> Any:
    """The weights of an archive as a file."""
    if WEIGHTS not in members and "model.weights.npz" in members:
        raise FileError(
            f"it holds model.weights.npz, which is pickled data, instead of {WEIGHTS}; pickles are "
            "never loaded."
        )
    needed = sum(w.data.size * w.data.itemsize for w in model.weights)
    return members.open(WEIGHTS, 16 * needed + 64 * MIB)


def make_model(config: Any, fill: Callable[[Any], None], item: str) -> Any:
    """The model of a config, laid out without memory, then filled from the file.

    Args:
        config: a config of a model.
        fill: loads the weights.
        item: where the config stands, for messages.

    Raises:
        FileError: if the config is not that of a model.
    """
    if not isinstance(config, dict) or "class_name" not in config:
        raise FileError(f"{item} is not the config of a model: {shorten(config)}.")
    try:
        model, unmade = without_memory(lambda: deserialize_keras_object(config, kind="model"))
    except ConfigError as error:
        raise FileError(f"{item}: {error}") from error
    if not hasattr(model, "predict"):
        raise FileError(
            f"{item} describes a {type(model).__name__}, which is not a model: {shorten(config)}."
        )
    fill(model)
    make_rest(unmade)
    return model


def compile_from(model: Any, config: Config, item: str) -> None:
    """Compile a loaded model as its file says.

    Raises:
        FileError: if that cannot be done; load_model(..., compile=False) leaves it out.
    """
    try:
        model.compile_from_config(config)
    except Exception as error:
        raise FileError(
            f"{item} cannot be restored: {error} Pass custom_objects, or compile=False to load the "
            "model without it."
        ) from error
