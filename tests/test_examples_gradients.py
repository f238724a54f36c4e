"""The examples about gradients run and find what they say."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(monkeypatch, capsys, name, *args):
    monkeypatch.setattr(sys, "argv", [name, *args])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return capsys.readouterr().out


def number(text, pattern):
    return float(re.search(pattern + r"\s*([\d.]+)", text).group(1))


def test_pinn_approaches_the_solution(monkeypatch, capsys):
    text = run(monkeypatch, capsys, "pinn.py", "--steps", "400")
    assert number(text, "largest error:") < 0.8


@pytest.mark.slow
def test_pinn_finds_the_solution(monkeypatch, capsys):
    text = run(monkeypatch, capsys, "pinn.py")
    assert number(text, "largest error:") < 0.01


def test_gradient_penalty_measures_the_distance(monkeypatch, capsys):
    text = run(monkeypatch, capsys, "gradient_penalty.py", "--steps", "400")
    assert abs(number(text, "distance:") - 2.5) < 0.3


def test_saliency_finds_the_pixels_that_matter(monkeypatch, capsys):
    text = run(monkeypatch, capsys, "saliency.py", "--epochs", "10")
    assert number(text, "most important first") * 3 < number(text, "in random order")
