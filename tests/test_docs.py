"""The code of the documentation runs: the python blocks of a page in order, in one namespace.

A block of text right after a python block is what it prints; "..." stands for anything.
"""

import doctest
import io
import os
import re
from contextlib import chdir, redirect_stdout
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"
PAGES = sorted(
    page for page in DOCS.rglob("*.md") if re.search(r"^ *```python", page.read_text(), re.M)
)
BLOCKS = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.M | re.S)


@pytest.fixture(autouse=True)
def settings(tmp_path):
    from picodl import config

    with chdir(tmp_path):
        yield
    config.set_floatx("float32")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_page_runs(page, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    names, printed, checker = {"__name__": "docs"}, None, doctest.OutputChecker()
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    text, end = page.read_text(), 0
    for block in BLOCKS.finditer(text):
        language, code = block.groups()
        line = text.count("\n", 0, block.start()) + 2
        if language == "python":
            out = io.StringIO()
            with redirect_stdout(out):
                exec(compile("\n" * (line - 1) + code, str(page), "exec"), names)
            printed = out.getvalue()
        elif language == "text" and printed is not None and not text[end : block.start()].strip():
            if not checker.check_output(code, printed, flags):
                raise AssertionError(f"{page}:{line}: expected\n{code}\nbut got\n{printed}")
            printed = None
        end = block.end()
    assert os.getcwd() != str(DOCS)
