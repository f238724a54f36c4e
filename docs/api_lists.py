"""Fills the API pages: a line `@@ picodl.layers` becomes an entry for each public name in it.

Classes and functions are left to mkdocstrings; functions made from a table, which it cannot see in
the source, are written out here from their signature and docstring.
"""

from __future__ import annotations

import importlib
import inspect
import re
from types import ModuleType
from typing import Any


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs for every page."""
    return re.sub(r"^@@ (\S+)(.*)$", lambda m: entries(m[1], m[2].split()), markdown, flags=re.M)


def entries(module_name: str, skip: list[str]) -> str:
    """The markdown for all public names of a module but those to skip (written as -Name)."""
    module = importlib.import_module(module_name)
    left_out = {name.removeprefix("-") for name in skip}
    names = getattr(module, "__all__", None) or [n for n in vars(module) if not n.startswith("_")]
    parts, aliases = [], {}
    for name in sorted(names, key=lambda n: (n[0].islower(), n.lower())):
        thing = getattr(module, name)
        if name in left_out or isinstance(thing, ModuleType) or not callable(thing):
            continue
        if not getattr(thing, "__module__", "").startswith("picodl"):
            continue
        own = inspect.unwrap(thing)
        real = f"{own.__module__}.{own.__qualname__}"
        if real in aliases:
            parts.append(
                f"### {name}\n\nThe same as [{aliases[real]}](#{anchor(aliases[real])}).\n"
            )
        elif own.__name__ == name and visible(own):
            aliases[real] = name
            parts.append(f'<a id="{anchor(name)}"></a>\n\n::: {real}\n')
        else:
            aliases[real] = name
            parts.append(written_out(name, thing))
    return "\n".join(parts)


def anchor(name: str) -> str:
    return f"name-{name}"


def visible(thing: Any) -> bool:
    """Whether its definition stands in the source under its own name."""
    if "<locals>" in thing.__qualname__:
        return False
    try:
        source = inspect.getsource(thing)
    except (OSError, TypeError):
        return False
    return re.search(rf"^\s*(def|class) {re.escape(thing.__name__)}\b", source, re.M) is not None


def written_out(name: str, thing: Any) -> str:
    """Heading, signature and docstring of a function that mkdocstrings cannot find."""
    try:
        signature = str(inspect.signature(thing))
    except ValueError:
        signature = "(...)"
    signature = re.sub(r"'([^']*)'", r"\1", signature)
    text = inspect.getdoc(thing) or ""
    return f"### {name} {{: #{anchor(name)} }}\n\n```python\n{name}{signature}\n```\n\n{text}\n"
