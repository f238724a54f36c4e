"""What every picture of a graph can do: be text, be a file, be shown in a notebook."""

from __future__ import annotations

import os
from typing import Any


class Picture:
    """A graph as text, in graphviz's language, and as a file; subclasses give dot and str()."""

    @property
    def dot(self) -> str:
        """The graph in graphviz's language."""
        raise NotImplementedError(f"{type(self).__name__} does not define dot.")

    def __repr__(self) -> str:
        return str(self)

    def _repr_svg_(self) -> str | None:
        """What a notebook shows; without graphviz it falls back on the text."""
        try:
            return self._render("svg").decode()
        except ImportError:
            return None

    def save(self, path: str | os.PathLike[str]) -> str:
        """Write the picture; the ending says what: .svg, .png, .pdf, .dot or .txt.

        Returns:
            The path.

        Raises:
            ImportError: for pictures, without graphviz. .dot and .txt need nothing.
        """
        path = os.fspath(path)
        kind = os.path.splitext(path)[1].removeprefix(".").lower() or "svg"
        text = {"dot": self.dot, "txt": str(self)}.get(kind)
        content = (text + "\n").encode() if text is not None else self._render(kind)
        with open(path, "wb") as file:
            file.write(content)
        return path

    def _render(self, kind: str) -> bytes:
        graphviz = need_graphviz()
        try:
            return graphviz.Source(self.dot).pipe(format=kind)
        except graphviz.ExecutableNotFound as error:
            raise ImportError(
                "The program `dot` was not found. Install graphviz from your system's packages "
                "(apt install graphviz, brew install graphviz), or save to .dot or .txt."
            ) from error


def need_graphviz() -> Any:
    """The module graphviz.

    Raises:
        ImportError: naming the extra.
    """
    try:
        import graphviz
    except ImportError as error:
        raise ImportError("Pictures of graphs need graphviz: pip install 'picodl[viz]'.") from error
    return graphviz


def escape(text: str) -> str:
    """Text for a label in quotes."""
    return text.replace("\\", "\\\\").replace('"', '\\"')
