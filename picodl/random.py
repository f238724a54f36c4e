"""Seeded random numbers."""

from __future__ import annotations

import random

_seeds = random.Random()


def set_seed(seed: int | None) -> None:
    """Start the stream of automatic seeds again; None starts it anywhere."""
    _seeds.seed(seed)


def next_seed() -> int:
    """The next automatic seed: a number from 1 to 1e9."""
    return _seeds.randint(1, int(1e9))
