"""Names for the types that signatures use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]
Shape: TypeAlias = tuple[int | None, ...]
Axis: TypeAlias = int | Sequence[int] | None
Config: TypeAlias = dict[str, Any]
Backward: TypeAlias = Callable[[Any], Sequence[Any]]
