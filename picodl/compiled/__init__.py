"""Kernels in C for those who have a compiler: optional, built once by `python -m picodl compile`
or by a model that is compiled with `jit_compile=True`.

numpy alone computes everything. Where an operation takes a dozen numpy calls that go through memory
again and again, the C files here do the same in one walk over float32 arrays; what they do not
serve (other dtypes, odd layouts) stays with numpy. Results differ in the last digits.

The library is made for this processor, kept in the user's cache folder under a name that holds a
digest of the sources, the flags and the processor, and used by every later process. The
environment variable PICODL_COMPILED=0 leaves it alone.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from picodl.typing import Array

_FLOAT = np.dtype(np.float32)
_Buffer = ctypes.c_char * 0
_pointer, _integer, _number = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
_ARGUMENTS = {"p": _pointer, "i": _integer, "f": _number}
_SIGNATURES = {
    "convolve": "pppp" + "ii" + "pp" + "ii",
    "convolve_kernel": "pppppp" + "i",
    "dense": "pppp" + "iiii",
    "dense_gelu": "pppppp" + "iii",
    "dense_back": "pppppp" + "iiiii",
    "dense_gelu_back": "ppppp" + "pppp" + "iii",
    "depthwise": "pppp" + "i",
    "depthwise_kernel": "pppp" + "i",
    "max_pool": "ppp" + "i",
    "max_pool_back": "ppppp" + "i",
    "scale_rows": "ppppii",
    "combine_rows": "ppppppii",
    "product_sums": "ppppii",
    "normalize_rows": "ppppppiif",
    "normalize_rows_back": "ppppppppii",
    "gelu_forward": "pppi",
    "gelu_backward": "ppppi",
    "relu_backward": "pppi",
    "add_relu": "pppi",
    "lstm_forward": "pppppp" + "iiii",
    "lstm_backward": "pppppp" + "ppppp" + "iiiiif",
    "gru_forward": "ppppppp" + "iiii",
    "gru_backward": "pppp" + "ppppp" + "iiiiif",
    "pack_steps": "pipiii",
    "transpose": "pi" + "pi" + "ii",
    "adam": "ppppiffff",
    "attention_forward": "ppp" + "ii",
    "attention_backward": "pppppp" + "ii",
    "exp_rows": "ppii",
    "softmax_back": "ppppiiif",
}

kernels: Any = None  # the library with its functions; None: numpy alone
_may_build = os.environ.get("PICODL_COMPILED") != "0"


def build() -> Path:
    """Compile the kernels for this processor, keep them in the user's cache, and use them.

    Takes some ten seconds; a library that is there already is used as it is.

    Returns: where the library lies.
    Raises:
        RuntimeError: if there is no C compiler, or it fails.
    """
    from picodl.compiled import building

    path = building.library()
    if not path.exists():
        building.compile_to(path)
    if not _use(path):
        raise RuntimeError(
            f"The compiled kernels {path} cannot be loaded, or others may write to them or their "
            "folder. Run `python -m picodl compile --remove` and compile again."
        )
    return path


def build_once() -> None:
    """Build the kernels if they are not in use, as `jit_compile=True` asks for.

    Nothing is done after `enable(False)` or with PICODL_COMPILED=0; where they cannot be built a
    warning is given, once.
    """
    global _may_build
    if kernels is None and _may_build:
        try:
            build()
        except (OSError, RuntimeError) as error:
            _may_build = False
            warnings.warn(
                f"The compiled kernels could not be built; numpy computes everything. {error}",
                stacklevel=4,
            )


def remove() -> None:
    """Delete all compiled kernels from the cache; from here on numpy computes everything."""
    enable(False)
    for path in cache().glob("kernels-*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def enable(on: bool = True) -> None:
    """Use the kernels that were built, or numpy alone, from here on in this process.

    Raises:
        RuntimeError: if they are not built.
    """
    global kernels, _may_build
    _may_build = on
    if not on:
        kernels = None
    elif not _use_built():
        raise RuntimeError("The kernels are not compiled here: run `python -m picodl compile`.")


def cache() -> Path:
    """The folder that compiled kernels are kept in."""
    home = os.path.expanduser("~")
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.join(home, ".cache"), "picodl")


def is_enabled() -> bool:
    """Whether compiled kernels are in use."""
    return kernels is not None


def run(name: str, *arguments: Any) -> bool:
    """Call a kernel, if kernels are in use and it can take the arrays.

    Args:
        name: of the function.
        arguments: its arrays of numbers, which must be C-contiguous and float32; None for NULL;
            integers, and the `address` of arrays of them.

    Returns:
        Whether it was called; if not, numpy has to do it.
    """
    if kernels is None:
        return False
    given = []
    for one in arguments:
        if isinstance(one, np.ndarray):
            if one.dtype != _FLOAT:
                return False
            try:
                one = _Buffer.from_buffer(one)  # type: ignore[arg-type]
            except (TypeError, ValueError, BufferError):
                if not one.flags.c_contiguous:
                    return False
                one = address(one)
        given.append(one)
    getattr(kernels, name)(*given)
    return True


def call(name: str, *arguments: Any) -> None:
    """Call a kernel, where it is known that it can take the arrays.

    Raises:
        TypeError: if it cannot.
    """
    if not run(name, *arguments):
        raise TypeError(f"The compiled kernel {name} cannot take these arguments.")


def address(x: Array) -> Any:
    """Where an array's elements are, as ctypes takes it."""
    try:
        return _Buffer.from_buffer(x)  # type: ignore[arg-type]
    except (TypeError, ValueError, BufferError):  # read-only, or not in one piece
        return x.__array_interface__["data"][0]


# -------------------------------------------------------------------- loading


def _use_built() -> bool:
    """Load the library that was built here before, if there is one that can be read."""
    try:
        if not cache().is_dir():
            return False
        from picodl.compiled import building

        return _use(building.library())
    except OSError:
        return False


def _use(path: Path) -> bool:
    """Load a library; not one that somebody else could have written."""
    global kernels
    if not path.is_file() or not (_is_own(path) and _is_own(path.parent)):
        return False
    try:
        library: Any = ctypes.CDLL(str(path))
    except OSError:
        return False
    for name, letters in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype = None
        function.argtypes = [_ARGUMENTS[letter] for letter in letters]
    library.vector = library.vector_length()
    kernels = library
    return True


def _is_own(path: Path) -> bool:
    if not path.is_absolute():  # no home: "~" would be a folder here
        return False
    if os.name == "nt":
        return True
    found = path.stat()
    return found.st_uid in (0, os.getuid()) and not found.st_mode & 0o022


if _may_build:
    _use_built()
