"""A griffe extension: picodl's docstrings as Markdown.

Doctests become code blocks, and the sections that are picodl's own (Shapes, Gradient, ...) get bold
names; Args, Returns and Raises are left to mkdocstrings.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

OWN = ("Shapes", "Gradient", "Gradients", "Weights", "Reference", "References", "Usage", "Note")
GOOGLE = ("Args", "Attributes", "Returns", "Raises", "Yields")
HEAD = re.compile(rf"^({'|'.join(OWN + GOOGLE)})(, [^:]*)?:(?=\s|$)")


class Docstrings(griffe.Extension):
    """Rewrites each docstring once it is loaded."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    """The docstring with its own sections marked up."""
    blocks: list[list[str]] = [[]]
    in_code = False
    for line in text.splitlines():
        if line.startswith(">>>") and not in_code:
            blocks.append([])
            in_code = True
        elif not line.strip():
            in_code = False
        elif HEAD.match(line) and not in_code:
            blocks.append([])
        blocks[-1].append(line)
    return "\n\n".join(filter(None, (_block(lines) for lines in blocks)))


def _block(lines: list[str]) -> str:
    text = "\n".join(lines).strip("\n")
    if not text.strip():
        return ""
    if text.startswith(">>>"):
        code, _, rest = text.partition("\n\n")
        return f"```pycon\n{code}\n```" + (f"\n\n{as_markdown(rest)}" if rest.strip() else "")
    text = text.replace("](", "]\\(")  # an index and a call, not a link
    head = HEAD.match(text)
    if head is None:
        return text
    rest = text[head.end() :]
    if head[1] in GOOGLE:
        first, _, more = rest.partition("\n")
        if first.strip():  # "Args: x: what it is" in one line
            return f"{head[1]}:\n    {first.strip()}" + (f"\n{more}" if more else "")
        return text
    body = re.sub(r"\n +", "\n", rest.strip())
    return f"**{head[1]}{head[2] or ''}:** {body}"
