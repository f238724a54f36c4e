"""Models, and what makes, copies and loads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from picodl.models.function import Function
from picodl.models.functional import Functional
from picodl.models.generation import generate
from picodl.models.model import Model
from picodl.models.sequential import Sequential
from picodl.saving import registry

__all__ = [
    "Function",
    "Functional",
    "Model",
    "Sequential",
    "clone_model",
    "generate",
    "load_model",
    "model_from_json",
    "save_model",
]

if TYPE_CHECKING:
    from picodl.models.cloning import clone_model
    from picodl.saving import load_model, model_from_json, save_model

registry.add_kind(
    "model", "keras", {"Functional": Functional, "Model": Model, "Sequential": Sequential}
)


def __getattr__(name: str) -> Any:
    if name in ("load_model", "model_from_json", "save_model"):
        from picodl import saving

        return getattr(saving, name)
    if name == "clone_model":
        from picodl.models import cloning

        return getattr(cloning, name)
    raise AttributeError(f"module 'picodl.models' has no attribute {name!r}")
