"""Cases of the golden files: what Keras and PyTorch computed, read into memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np

_IN_JSON = ("config", "call", "agreement", "model", "compile", "fit", "callbacks")
FOLDER = Path(__file__).parent / "golden"


class Case:
    """One case: its attributes as JSON values, and its arrays by path."""

    def __init__(self, file: str, name: str) -> None:
        self.name = name
        self.arrays: dict[str, np.ndarray] = {}
        self.attrs: dict[str, dict[str, Any]] = {}
        with h5py.File(FOLDER / file, "r") as f:
            group = f[name]
            self.top = {k: json.loads(v) if k in _IN_JSON else v for k, v in group.attrs.items()}

            def read(path: str, item: Any) -> None:
                if isinstance(item, h5py.Dataset):
                    self.arrays[path] = item[()]
                    self.attrs[path] = dict(item.attrs)

            group.visititems(read)

    def __getitem__(self, key: str) -> Any:
        return self.top[key]

    def under(self, prefix: str) -> dict[str, np.ndarray]:
        """The arrays below a group, by the rest of their path, in order."""
        found = {k.removeprefix(f"{prefix}/"): v for k, v in self.arrays.items()}
        return {k: found[k] for k in sorted(found) if f"{prefix}/{k}" in self.arrays}

    def listed(self, prefix: str) -> list[np.ndarray]:
        return list(self.under(prefix).values())

    def agreed(self, path: str) -> Any:
        """Where all peers say the same; everywhere if nothing is said."""
        return self.arrays.get(f"agreed/{path}", np.True_)


def names(file: str) -> list[str]:
    """The names of the cases in a file."""
    found: list[str] = []
    with h5py.File(FOLDER / file, "r") as f:
        f.visit(found.append)
        return [n for n in found if "note" in f[n].attrs]


def close(found: Any, expected: Any, tolerance: float = 1e-9, where: Any = True) -> None:
    """Equal to `tolerance` of the largest magnitude of the array."""
    expected = np.asarray(expected)
    found = np.asarray(found)
    assert found.shape == expected.shape, (found.shape, expected.shape)
    size = np.abs(expected[np.isfinite(expected)]).max(initial=0) if expected.size else 0
    ok = np.isclose(found, expected, rtol=0, atol=tolerance * size + 1e-12, equal_nan=True)
    assert (ok | ~np.broadcast_to(where, ok.shape)).all(), (found, expected)


def make(value: Any, spaces: list[Any]) -> Any:
    """{"class": ..., "config": ...}, also inside lists and dicts, as objects."""
    if isinstance(value, dict) and set(value) == {"class", "config"}:
        cls = next(getattr(s, value["class"]) for s in spaces if hasattr(s, value["class"]))
        return cls(**make(value["config"], spaces))
    if isinstance(value, dict):
        return {k: make(v, spaces) for k, v in value.items()}
    return [make(v, spaces) for v in value] if isinstance(value, list) else value
