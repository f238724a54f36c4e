"""Imports point down: each room of the house knows only the rooms below it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "picodl"

# from the ground floor up; modules of one line may know each other
FLOORS = [
    {"typing"},
    {"compiled"},
    {"config", "arraylike", "tree", "naming", "parallel", "scalar", "memory", "blas"},
    {"tensor"},
    {"saving.registry", "saving.serialization"},
    {"symbolic", "operation", "families"},
    {"ops"},
    {"random"},
    {"activations", "initializers", "regularizers", "constraints", "module"},
    {"stateless", "testing", "gradient"},
    {"layers", "losses", "optimizers"},
    {"metrics", "saving", "callbacks"},
    {"models"},
    {
        "utils",
        "helpers",
        "images",
        "datasets",
        "downloads",
        "unpacking",
        "distillation",
        "diagnostics",
        "ensembles",
        "wrappers",
        "visualize",
        "export",
        "inspection",
        "population",
        "sequence_data",
        "preprocessing",
        "backend",
        "dtype_policies",
        "mixed_precision",
        "stand_in",
        "__main__",
    },
]
# the operators of Tensor and Symbol are one-line methods that look up picodl.ops when called
EXCEPTIONS = {("arraylike", "ops"), ("symbolic", "ops")}


def room(name: str) -> str:
    """The room a module of the package belongs to."""
    known = set().union(*FLOORS)
    return name if name in known else name.split(".")[0]


def floor(name: str) -> int | None:
    return next((i for i, rooms in enumerate(FLOORS) if room(name) in rooms), None)


def imports_of(path: Path) -> list[tuple[str, bool]]:
    """(module of picodl, whether at module level) for the imports of a file."""
    tree = ast.parse(path.read_text())
    found = []
    top = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("picodl"):
            base = node.module.removeprefix("picodl").removeprefix(".")
            for alias in node.names:
                target = f"{base}.{alias.name}" if base else alias.name
                if not exists(target):
                    target = base
                if target:
                    found.append((target, id(node) in top))
    return found


def exists(name: str) -> bool:
    path = PACKAGE.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").exists()


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_at_module_level_point_down(path: Path) -> None:
    own = ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")
    if own == "__init__":
        return
    here = floor(own)
    for target, top in imports_of(path):
        above = floor(target)
        if not top or here is None or above is None or (room(own), room(target)) in EXCEPTIONS:
            continue
        assert above <= here, f"picodl.{own} imports picodl.{target}, which lies above it"


def test_every_module_has_a_floor() -> None:
    missing = []
    for path in FILES:
        own = ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")
        if own != "__init__" and floor(own) is None:
            missing.append(own)
    assert not missing, f"give these modules a floor in FLOORS: {missing}"
