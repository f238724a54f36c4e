"""Helpers for data under Keras's older name; `picodl.utils` has them too."""

from __future__ import annotations

from picodl.images import image_dataset_from_directory
from picodl.preprocessing import image, sequence, text
from picodl.preprocessing.text import CharacterTokenizer
from picodl.sequence_data import text_dataset_from_directory, timeseries_dataset_from_array

__all__ = [
    "CharacterTokenizer",
    "image",
    "image_dataset_from_directory",
    "sequence",
    "text",
    "text_dataset_from_directory",
    "timeseries_dataset_from_array",
]
