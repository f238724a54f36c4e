"""Is the network healthy? Its time layer by layer, a dry run, one batch learnt, a second opinion.

    profile(model, x, y)        where time and memory go
    dry_run(model, x, y)        what is wrong with one training step
    overfit_batch(model, x, y)  whether the model can learn at all
    compare(model, other, x)    whether Keras or PyTorch computes the same

All of them work on a copy: the model, its optimizer and metrics, and the random generators of
picodl, numpy and Python are afterwards as they were, also when something raises.
"""

from __future__ import annotations

from picodl.diagnostics.comparing import Comparison, Difference, compare
from picodl.diagnostics.dry import DryRun, Finding, dry_run
from picodl.diagnostics.overfitting import Overfit, overfit_batch
from picodl.diagnostics.profiling import LayerProfile, Profile, profile

__all__ = [
    "Comparison", "Difference", "DryRun", "Finding", "LayerProfile", "Overfit", "Profile",
    "compare", "dry_run", "overfit_batch", "profile",
]  # fmt: skip
