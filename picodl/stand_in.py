"""picodl under the name of Keras: scripts and packages that `import keras` run on it unchanged."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from types import ModuleType
from typing import Any

import picodl

__all__ = ["as_keras"]

KERAS = "3.15.0"  # the version whose public names these are


class _Root(ModuleType):
    """The module `keras`: picodl's names, and Keras's version."""

    def __init__(self, name: str) -> None:
        super().__init__(name, "picodl, standing in for Keras.")
        self.__path__: list[str] = []
        self.__version__ = KERAS

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return getattr(picodl, name)
        except AttributeError:
            raise AttributeError(
                f"{self.__name__}.{name} is not there: picodl stands in for Keras (see "
                "picodl.as_keras), and has no such name."
            ) from None

    def __dir__(self) -> list[str]:
        return dir(picodl)


class _TensorFlow(ModuleType):
    """The module `tensorflow`, with nothing but keras in it."""

    def __init__(self, name: str) -> None:
        super().__init__(name, "Nothing but keras, for which picodl stands in.")
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name == "keras":
            return importlib.import_module(f"{self.__name__}.keras")
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(
            f"tensorflow.{name} is not there: picodl stands in for tensorflow.keras alone (see "
            "picodl.as_keras)."
        )


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds keras and picodl's modules under it."""

    def __init__(self, roots: dict[str, type[ModuleType]]) -> None:
        self.roots = roots

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname in self.roots or self._own(fullname) is not None:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def _own(self, fullname: str) -> str | None:
        """The module of picodl that a name under keras stands for."""
        for root, kind in self.roots.items():
            if kind is _Root and fullname.startswith(root + "."):
                own = "picodl" + fullname[len(root) :]
                if own.split(".")[1] in picodl.__all__ and importlib.util.find_spec(own):
                    return own
        return None

    def create_module(self, spec: Any) -> ModuleType | None:
        kind = self.roots.get(spec.name)
        return kind(spec.name) if kind is not None else None

    def exec_module(self, module: ModuleType) -> None:
        own = self._own(module.__name__)
        if own is not None:  # the importing code gets what stands here afterwards
            sys.modules[module.__name__] = importlib.import_module(own)


def as_keras(tensorflow: bool = False) -> None:
    """Let `import keras` mean picodl in this process, in packages as well.

    Only public names are there, nothing of `keras.src`. `python -m picodl run SCRIPT` calls it
    before it runs a script.

    Args:
        tensorflow: let `import tensorflow` give a module with picodl as `tensorflow.keras`, and
            nothing else, too.

    Raises:
        RuntimeError: if another keras (or tensorflow) was imported before.

    >>> picodl.as_keras()  # doctest: +SKIP
    >>> import keras  # doctest: +SKIP
    >>> keras.layers.Dense is picodl.layers.Dense  # doctest: +SKIP
    True
    """
    roots: dict[str, type[ModuleType]] = {"keras": _Root}
    if tensorflow:
        roots |= {"tensorflow": _TensorFlow, "tensorflow.keras": _Root}
    for name, kind in roots.items():
        if name in sys.modules and not isinstance(sys.modules[name], kind):
            raise RuntimeError(
                f"{name} was imported already. Call picodl.as_keras() before anything imports it."
            )
    sys.meta_path[:] = [f for f in sys.meta_path if not isinstance(f, _Finder)]
    sys.meta_path.insert(0, _Finder(roots))
