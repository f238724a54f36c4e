"""KerasFileEditor: look into a weights file and change what it holds."""

from __future__ import annotations

from typing import Any

import numpy as np

from picodl.saving.contents import read_arrays
from picodl.saving.files import as_path, atomic_write, check_writable, loading
from picodl.saving.hdf5 import write_dataset
from picodl.saving.layout import places
from picodl.saving.own_state import keeps_its_own
from picodl.typing import Array


class KerasFileEditor:
    """The weights of a file as a dict of paths and arrays, to be changed and saved again.

    Args:
        filepath: `.weights.h5`, `.keras`, `.npz` or `.safetensors`; read whole, into memory.

    Attributes:
        weights_dict: "layers/dense/vars/0" -> array.

    Raises:
        OSError: if there is no such file.
        ValueError: if it cannot be loaded.
    """

    def __init__(self, filepath: Any) -> None:
        self.filepath = as_path(filepath)
        with loading(self.filepath):
            found = read_arrays(self.filepath)
            if found is None:
                raise ValueError("the older .h5 cannot be edited; convert it to .weights.h5 first.")
        self.weights_dict: dict[str, Array] = found

    def summary(self) -> None:
        """Print the paths with shapes and dtypes."""
        print(f"Weights of {self.filepath}")
        for path, values in self.weights_dict.items():
            print(f"    {path}  {values.shape}  {values.dtype}")

    def compare(self, reference_model: Any) -> dict[str, Any]:
        """What fits the weights a model needs, and what does not.

        Returns:
            A dict: "status" is "success" or "error", "match_count" and "error_count" say how many
            weights fit and how many do not, and "errors" maps the paths of these to "missing",
            "not in the model", or both shapes.
        """
        found_places = places(reference_model)
        own = [place.base for place in found_places if keeps_its_own(place.owner)]
        needed = {p: v for place in found_places if place.base not in own for p, v in place.items()}
        found = {path: "missing" for path in needed if path not in self.weights_dict}
        for path, values in self.weights_dict.items():
            if path not in needed:
                if not path.startswith("optimizer/") and path.rpartition("/")[0] not in own:
                    found[path] = "not in the model"
            elif values.shape != needed[path].data.shape:
                found[path] = f"shape {values.shape}, the model needs {needed[path].data.shape}"
        matching = sum(path in self.weights_dict and path not in found for path in needed)
        return {
            "status": "error" if found else "success",
            "error_count": len(found),
            "match_count": matching,
            "errors": found,
        }

    def _path_of(self, object_name: str) -> str:
        """The path of an object that is named by it, or by its last part if that is unique."""
        objects = set()
        for path in self.weights_dict:
            parts = path.split("/")[:-2]  # without vars/0
            objects |= {"/".join(parts[: i + 1]) for i in range(len(parts))}
        named = [path for path in objects if path.endswith(f"/{object_name}")]
        if object_name in objects:
            return object_name
        if len(named) != 1:
            raise ValueError(
                f"{self.filepath} holds {len(named) or 'no'} objects {object_name!r}; its objects "
                f"are {', '.join(sorted(objects))}."
            )
        return named[0]

    def _below(self, path: str) -> list[str]:
        return [p for p in self.weights_dict if p.startswith(f"{path}/")]

    def rename_object(self, object_name: str, new_name: str) -> None:
        """Give an object another name, such as "dense" or "layers/dense" -> "dense_2".

        Args:
            object_name: its path, or the last part of it if no other object has that.
            new_name: takes the place of the last part; with a slash, of the whole path.

        Raises:
            ValueError: if there is no such object, or the new path is taken.
        """
        path = self._path_of(object_name)
        if "/" not in new_name:
            new_name = path[: len(path) - len(path.rpartition("/")[2])] + new_name
        moved = {p: new_name + p[len(path) :] for p in self._below(path)}
        taken = [p for p in moved.values() if p in self.weights_dict and p not in moved]
        if taken:
            raise ValueError(f"{taken[0]!r} exists already in {self.filepath}.")
        self.weights_dict = {moved.get(p, p): a for p, a in self.weights_dict.items()}

    def delete_object(self, object_name: str) -> None:
        """Remove an object with all below it."""
        for path in self._below(self._path_of(object_name)):
            del self.weights_dict[path]

    def add_object(self, object_path: str, weights: dict[str, Any]) -> None:
        """Add an object at a path: its weights are numbered as given, {"0": kernel, "1": bias}."""
        for name, values in weights.items():
            self.weights_dict[f"{object_path}/vars/{name}"] = np.array(values)

    def add_weights(self, object_name: str, weights: dict[str, Any]) -> None:
        """Add weights to an object, or replace them.

        Raises:
            ValueError: if there is no such object.
        """
        self.add_object(self._path_of(object_name), weights)

    def delete_weight(self, object_name: str, weight_name: str) -> None:
        """Remove one weight of an object.

        Raises:
            ValueError: if there is no such weight.
        """
        path = f"{self._path_of(object_name)}/vars/{weight_name}"
        if path not in self.weights_dict:
            raise ValueError(f"{self.filepath} holds no {path!r}.")
        del self.weights_dict[path]

    def save(self, filepath: Any) -> None:
        """Write the weights to a `.weights.h5` file.

        Raises:
            ValueError: for another ending.
        """
        path = as_path(filepath)
        if not path.endswith(".weights.h5"):
            raise ValueError(f"The ending must be .weights.h5; received {path!r}.")
        import h5py

        check_writable(path, True)
        with atomic_write(path) as file, h5py.File(file, "w") as h5:
            for name, values in self.weights_dict.items():
                write_dataset(h5, name, values, name)

    resave_weights = save
