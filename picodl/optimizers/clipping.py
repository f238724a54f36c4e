"""Limits on gradients, imposed on the runs of a step before the rule."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np


def clip_by_value(runs: Sequence[Any], limit: float) -> None:
    """Each element between -limit and limit."""
    for run in runs:
        run.now = np.minimum(run.now, limit, out=run.buffer)
        np.maximum(run.now, -limit, out=run.now)  # an array of the run's own by now


def clip_by_norm(runs: Sequence[Any], limit: float) -> None:
    """g * limit / max(norm, limit) for each parameter's gradient g."""
    for run in runs:
        if len(run.edges) == 2:
            factor: Any = limit / max(_norm([run]), limit)
        else:
            squares = np.add.reduceat(run.now * run.now, run.edges[:-1])
            factor = np.repeat(limit / np.maximum(np.sqrt(squares), limit), np.diff(run.edges))
        run.now = np.multiply(run.now, factor, out=run.buffer)


def clip_by_global_norm(runs: Sequence[Any], limit: float) -> None:
    """g * min(1, limit / norm), with the norm of all gradients together."""
    norm = _norm(runs)
    if not norm <= limit:  # a NaN goes on to the weights, where it is seen
        for run in runs:
            run.now = np.multiply(run.now, limit / norm, out=run.buffer)


def _norm(runs: Sequence[Any]) -> float:
    total = 0.0
    for run in runs:
        flat = run.now.reshape(-1)
        total += float(flat.dot(flat))
    return math.sqrt(total)
