"""Half precision under the names of keras.mixed_precision."""

from __future__ import annotations

from picodl.config import DTypePolicy, dtype_policy, set_dtype_policy
from picodl.optimizers import LossScaleOptimizer

Policy = DTypePolicy
global_policy, set_global_policy = dtype_policy, set_dtype_policy

__all__ = [
    "DTypePolicy", "LossScaleOptimizer", "Policy", "dtype_policy", "global_policy",
    "set_dtype_policy", "set_global_policy",
]  # fmt: skip
