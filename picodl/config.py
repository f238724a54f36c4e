"""Global settings, and what belongs to the call in progress (per thread)."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

_DATA_FORMATS = ("channels_last", "channels_first")
_FLOATS = ("float16", "float32", "float64")
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8")

_OF_PROGRESS = (
    "disable_interactive_logging",
    "enable_interactive_logging",
    "is_interactive_logging_enabled",
)

_settings: dict[str, Any] = {
    "floatx": "float32",
    "epsilon": 1e-7,
    "image_data_format": "channels_last",
    "dtype_policy": None,
    "traceback_filtering": True,
    "max_epochs": None,
    "max_steps_per_epoch": None,
}


class _Thread(threading.local):
    """The state of the calls in progress in one thread; the class attributes are the defaults."""

    recording: bool = True  # no_grad() turns it off
    training: bool | None = None  # what the enclosing call was told
    folding: bool = False  # predict() joins layers where that changes nothing but rounding
    losses: list[Any] | None = None  # (layer, value) of add_loss in the outermost call in progress
    finished: list[Any] = []  # the same of the last outermost call
    names: tuple[str, ...] = ()  # name_scope() and the layers being built
    parallel: bool = False  # inside a block of parallel.map_blocks
    decoding: Any = None  # what layers remember between the tokens of generate()
    custom_objects: tuple[Any, ...] = ()  # custom_object_scope()
    shared: dict[Any, Any] | None = None  # objects met while a config is written or read
    stateless: Any = None  # the StatelessScope around the calls in progress
    unmade: list[Any] | None = None  # parameters laid out without memory while a file is read


thread = _Thread()


def require_no_scope(what: str) -> None:
    """For what writes into the arrays of variables themselves.

    Raises:
        RuntimeError: inside a StatelessScope, which would neither see nor undo it.
    """
    if thread.stateless is not None:
        raise RuntimeError(
            f"{what} inside a StatelessScope would change the variables' own values. Do it before "
            "or after the block, or give their new values to the scope."
        )


class DTypePolicy:
    """The dtype a layer computes in and the dtype of its weights.

    Args:
        name: "float16", "float32", "float64", or "mixed_float16" (float16 storage of values between
            layers, float32 weights); for layers that give numbers of categories also an integer
            dtype. bfloat16 does not exist in numpy and is refused.

    >>> DTypePolicy("float64").compute_dtype
    'float64'
    """

    def __init__(self, name: str | None = None) -> None:
        name = _settings["floatx"] if name is None else name
        if name == "mixed_float16":
            self.compute_dtype, self.variable_dtype = "float16", "float32"
        elif name in _FLOATS or name in _INTEGERS:
            self.compute_dtype = self.variable_dtype = name
        elif "bfloat16" in str(name):
            raise ValueError(
                f"The dtype policy {name!r} needs bfloat16, which numpy does not have. "
                'Use "mixed_float16" to save memory, or "float32".'
            )
        else:
            raise ValueError(
                f"Unknown dtype policy {name!r}; expected {', '.join(_FLOATS)} or mixed_float16."
            )
        self.name = name

    def get_config(self) -> dict[str, Any]:
        return {"name": self.name}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> DTypePolicy:
        return cls(**config)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DTypePolicy) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f'<DTypePolicy "{self.name}">'


def backend() -> str:
    """The name of the array library: always "numpy"."""
    return "numpy"


def set_backend(backend: str) -> None:
    """Accept "numpy" and refuse everything else: picodl has one backend.

    Raises:
        ValueError: for another name.
    """
    if backend != "numpy":
        raise ValueError(f'picodl computes with numpy only; received set_backend("{backend}").')


@contextlib.contextmanager
def device(device_name: str) -> Iterator[None]:
    """Accept "cpu" and "cpu:0" as the place to compute, and refuse everything else.

    Raises:
        ValueError: for another device.
    """
    if str(device_name).lower() not in ("cpu", "cpu:0", "/cpu:0", "/device:cpu:0"):
        raise ValueError(f'picodl computes on the CPU only; received device("{device_name}").')
    yield


def floatx() -> str:
    """The default float dtype: "float32" unless `set_floatx` changed it."""
    return _settings["floatx"]


def set_floatx(value: str) -> None:
    """Set the default float dtype: "float16", "float32" or "float64".

    Raises:
        ValueError: for another name.
    """
    if value not in _FLOATS:
        raise ValueError(f"floatx must be one of {', '.join(_FLOATS)}; received {value!r}.")
    _settings["floatx"] = str(value)


def epsilon() -> float:
    """The small number that keeps logarithms and divisions finite: 1e-7 unless it was set."""
    return _settings["epsilon"]


def set_epsilon(value: float) -> None:
    """Set the number that `epsilon()` returns."""
    _settings["epsilon"] = float(value)


def image_data_format() -> str:
    """Where images have their channels by default: "channels_last" unless it was set."""
    return _settings["image_data_format"]


def set_image_data_format(data_format: str) -> None:
    """Set the default place of the channels: "channels_last" or "channels_first".

    Raises:
        ValueError: for another name.
    """
    _settings["image_data_format"] = standardize_data_format(data_format)


def standardize_data_format(data_format: str | None) -> str:
    """The given format checked, or the default for None.

    Raises:
        ValueError: unless it is "channels_last", "channels_first" or None.
    """
    if data_format is None:
        return _settings["image_data_format"]
    found = data_format if data_format in _DATA_FORMATS else str(data_format).lower()
    if found not in _DATA_FORMATS:
        raise ValueError(
            f'data_format must be "channels_last" or "channels_first"; received {data_format!r}.'
        )
    return found


def dtype_policy() -> DTypePolicy:
    """The policy of layers made without a dtype: floatx unless `set_dtype_policy` was called."""
    return _settings["dtype_policy"] or DTypePolicy(_settings["floatx"])


def set_dtype_policy(policy: str | DTypePolicy | None) -> None:
    """Set the policy of layers made from now on; None goes back to floatx."""
    _settings["dtype_policy"] = as_policy(policy) if policy is not None else None


def as_policy(dtype: Any) -> DTypePolicy:
    """A DTypePolicy from None, a name, a numpy dtype, a policy, or a policy's serialised config."""
    if dtype is None:
        return dtype_policy()
    if isinstance(dtype, DTypePolicy):
        return dtype
    if isinstance(dtype, dict):
        return DTypePolicy(str(dtype.get("config", dtype)["name"]))
    name = getattr(dtype, "__name__", None) or getattr(dtype, "name", None) or str(dtype)
    return DTypePolicy(name)


def enable_traceback_filtering() -> None:
    """Accepted for Keras's sake: picodl's tracebacks are short and are never filtered."""
    _settings["traceback_filtering"] = True


def disable_traceback_filtering() -> None:
    """Accepted for Keras's sake; see `enable_traceback_filtering`."""
    _settings["traceback_filtering"] = False


def is_traceback_filtering_enabled() -> bool:
    """What the last of the two calls above said."""
    return _settings["traceback_filtering"]


def enable_unsafe_deserialization() -> None:
    """Warn and change nothing: picodl never loads code from a file."""
    import warnings

    warnings.warn(
        "enable_unsafe_deserialization() has no effect: picodl never loads code from a file. "
        "Pass the function in custom_objects instead.",
        stacklevel=2,
    )


def max_epochs() -> int | None:
    """The most epochs a fit may run, or None."""
    return _settings["max_epochs"]


def set_max_epochs(max_epochs: int | None) -> None:
    """Cap the epochs of every fit, to try a script out; None lifts the cap."""
    _settings["max_epochs"] = max_epochs


def max_steps_per_epoch() -> int | None:
    """The most batches an epoch may have, or None."""
    return _settings["max_steps_per_epoch"]


def set_max_steps_per_epoch(max_steps_per_epoch: int | None) -> None:
    """Cap the batches of every epoch, evaluation and prediction, to try a script out; None lifts
    the cap."""
    _settings["max_steps_per_epoch"] = max_steps_per_epoch


def __getattr__(name: str) -> Any:
    if name in _OF_PROGRESS:
        from picodl.callbacks import progress

        return getattr(progress, name)
    raise AttributeError(f"module 'picodl.config' has no attribute {name!r}")


@contextlib.contextmanager
def thread_values(**values: Any) -> Iterator[None]:
    """Set fields of the thread's state inside a with block, and put the old ones back."""
    before = {name: getattr(thread, name) for name in values}
    for name, new in values.items():
        setattr(thread, name, new)
    try:
        yield
    finally:
        for name, old in before.items():
            setattr(thread, name, old)
