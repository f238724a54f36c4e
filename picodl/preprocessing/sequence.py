"""Sequences of unequal length as arrays."""

from __future__ import annotations

from picodl.sequence_data import pad_sequences

__all__ = ["pad_sequences"]
