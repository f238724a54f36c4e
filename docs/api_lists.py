"""Fills the API pages: a line `@@ picodl.layers` becomes an entry for each public name in it.

Classes and functions are left to mkdocstrings; functions made from a table, which it cannot see in
the source, are written out here from their signature and docstring.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from docstrings import as_markdown

# modules of one file that offer what is defined elsewhere
COLLECTIONS = ("picodl.utils", "picodl.ops.image")
INTERNAL = ("Family",)
_shown: dict[str, str] = {}  # full name -> page


def on_pre_build(**_: Any) -> None:
    """Called by mkdocs at the start."""
    _shown.clear()


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Called by mkdocs for every page."""
    where = page.file.src_uri
    for name in re.findall(r"^::: (\S+)$", markdown, re.M):
        _shown[name] = where

    def fill(match: re.Match[str]) -> str:
        left_out = {word.removeprefix("-") for word in match[2].split()}
        return entries(match[1], left_out, where)

    return re.sub(r"^@@ (\S+)(.*)$", fill, markdown, flags=re.M)


def entries(module_name: str, left_out: set[str], where: str) -> str:
    """The markdown for all public names of a module but those left out (`-Name`)."""
    module = importlib.import_module(module_name)
    is_package = hasattr(module, "__path__") or module_name in COLLECTIONS
    names = getattr(module, "__all__", None) or [n for n in vars(module) if not n.startswith("_")]
    names = dict.fromkeys([*names, *getattr(module, "_LAZY", ())])
    found: dict[str, tuple[Any, str]] = {}
    for name in names:
        thing = getattr(module, name)
        if name in left_out or name in INTERNAL or isinstance(thing, ModuleType):
            continue
        if not callable(thing):
            continue
        own = inspect.unwrap(thing)
        home = getattr(own, "__module__", "") or ""
        if not home.startswith("picodl") or not (is_package or home == module_name):
            continue
        real = f"{home}.{getattr(own, '__qualname__', name)}"
        found[name] = (thing, f"{module_name}.{name}" if "<locals>" in real else real)
    own_names = {real: name for name, (thing, real) in found.items() if _called(thing) == name}
    parts = []
    for name, (thing, real) in sorted(found.items(), key=lambda item: _order(item[0])):
        first = own_names.setdefault(real, name)
        if first != name:
            parts.append(f"### {name}\n\nAnother name of `{first}`.\n")
        elif _shown.setdefault(real, where) != where:
            parts.append(f"### {name}\n\nSee [{name}][{real}].\n")
        elif _called(thing) == name and visible(inspect.unwrap(thing)):
            parts.append(f"::: {real}\n")
        else:
            parts.append(written_out(name, thing, real))
    return "\n".join(parts)


def _called(thing: Any) -> str:
    return getattr(inspect.unwrap(thing), "__name__", "")


def _order(name: str) -> tuple[bool, str]:
    """Classes first, then functions, each by the alphabet."""
    return name[0].islower(), name.lower()


def visible(thing: Any) -> bool:
    """Whether its definition stands in the source under its own name."""
    try:
        source = inspect.getsource(thing)
    except (OSError, TypeError):
        return False
    return re.search(rf"^(def|class) {re.escape(thing.__name__)}\b", source, re.M) is not None


def written_out(name: str, thing: Any, real: str) -> str:
    """Heading, signature and docstring of a function that mkdocstrings cannot find."""
    try:
        signature = re.sub(r"'([^']*)'", r"\1", str(inspect.signature(thing)))
    except ValueError:
        signature = "(...)"
    text = as_markdown(inspect.getdoc(thing) or "")
    return f"### {name} {{: #{real} }}\n\n```python\n{name}{signature}\n```\n\n{text}\n"
