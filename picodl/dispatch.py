"""Which op answers a numpy function that is called on a Tensor or a Symbol."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

# numpy's functions whose later arguments stand in another order: how many may come by position
_BY_POSITION = {
    **dict.fromkeys(("sum", "mean", "std", "var", "prod", "max", "min", "amax", "amin"), 2),
    **dict.fromkeys(("argmax", "argmin", "any", "all", "ptp", "median", "nanmedian"), 2),
    **dict.fromkeys(("nansum", "nanmean", "nanstd", "nanvar", "nanprod", "nanmax", "nanmin"), 2),
    **dict.fromkeys(("quantile", "percentile", "nanquantile", "nanpercentile"), 3),
    **dict.fromkeys(("unique", "nan_to_num", "copy"), 1),
}


def op_of(func: Any, args: Sequence[Any]) -> Callable[..., Any] | None:
    """The op that answers a numpy function called on a Tensor or Symbol, or None.

    Raises:
        TypeError: if arguments came by position that mean something else to the op.
    """
    from picodl import ops

    name = func.__name__
    if func.__module__ not in ("numpy", "numpy.linalg") or name == "lstsq":  # it returns more
        return None
    function = getattr(ops, name, None)
    if function is not None and len(args) > _BY_POSITION.get(name, len(args)):
        raise TypeError(
            f"numpy.{name} on a {type(args[0]).__name__}: pass the arguments after the first "
            f"{_BY_POSITION[name]} by name, or use picodl.ops.{name}."
        )
    return function


def holds_floats(result: Any) -> bool:
    """Whether there is an array of floats among the results of a numpy function."""
    if isinstance(result, (list, tuple)):
        return any(holds_floats(part) for part in result)
    return getattr(result, "dtype", np.dtype(bool)).kind == "f"
