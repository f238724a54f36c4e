"""The bar on a real (pseudo) terminal, lines elsewhere."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import textwrap
import types
from typing import Any

import numpy as np
import pytest

import picodl
from picodl import layers
from picodl.callbacks.progress import resolve_verbose
from picodl.utils import Progbar

SCRIPT = textwrap.dedent("""
    import numpy as np, picodl, time
    model = picodl.Sequential([picodl.Input((2,)), picodl.layers.Dense(1)])
    model.compile("sgd", loss="mse")
    x, y = np.ones((64, 2), "float32"), np.ones((64, 1), "float32")
    slow = picodl.callbacks.LambdaCallback(on_train_batch_end=lambda b, logs: time.sleep(0.03))
    model.fit(x, y, epochs=2, batch_size=4, validation_data=(x, y), callbacks=[slow], verbose=1)
    model.evaluate(x, y, verbose=1)
    print("end")
""")


def test_bar_on_a_terminal() -> None:
    pty = pytest.importorskip("pty")
    terminal, its = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        stdin=its, stdout=its, stderr=its,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "120"},
    )  # fmt: skip
    os.close(its)
    output = b""
    while True:
        try:
            part = os.read(terminal, 4096)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        output += part
    os.close(terminal)
    assert child.wait() == 0, output.decode()
    lines = output.decode().replace("\r\n", "\n").split("\n")
    shown = [line.rsplit("\r", 1)[-1] for line in lines if line.strip()]
    assert re.search(
        r"^Epoch 1/2 100%\|█+\| 16/16 \[00:00<00:00, [\d.]+k? samples/s - loss: [\d.e-]+ - "
        r"val_loss: [\d.e-]+\]$",
        shown[0],
    ), shown
    assert shown[1].startswith("Epoch 2/2 100%") and shown[2].startswith("100%")
    assert shown[3:] == ["end"]
    drawn = lines[0].split("\r")
    assert len(drawn) > 3, "the bar was not redrawn during the epoch"
    assert any(re.search(r"<00:0\d", line) for line in drawn), "no remaining time"


@pytest.mark.parametrize("verbose", [1, 2, "auto"])
def test_lines_without_a_terminal(verbose: Any, capsys: Any) -> None:
    model = picodl.Sequential([picodl.Input((2,)), layers.Dense(1)])
    model.compile("sgd", loss="mse")
    x, y = np.ones((10, 2), "float32"), np.ones((10, 1), "float32")
    model.fit(x, y, epochs=2, batch_size=4, validation_data=(x, y), verbose=verbose)
    model.evaluate(x, y, verbose=verbose)
    model.predict(x, verbose=verbose)
    out, err = capsys.readouterr()
    assert err == ""
    number = r"\d+\.\d{4}(e-\d\d)?"
    speed = r"3/3 - \d+s - \d+(s|ms|us)/step"
    expected = [
        "Epoch 1/2",
        f"{speed} - loss: {number} - val_loss: {number}",
        "Epoch 2/2",
        f"{speed} - loss: {number} - val_loss: {number}",
        rf"1/1 - \d+s - \d+(s|ms|us)/step - loss: {number}",
        r"1/1 - \d+s - \d+(s|ms|us)/step",
    ]
    lines = out.splitlines()
    assert len(lines) == len(expected)
    for line, pattern in zip(lines, expected, strict=True):
        assert re.fullmatch(pattern, line), (line, pattern)


def test_single_epoch_has_no_title_and_verbose_0_is_silent(capsys: Any) -> None:
    model = picodl.Sequential([picodl.Input((2,)), layers.Dense(1)])
    model.compile("sgd", loss="mse")
    x, y = np.ones((10, 2), "float32"), np.ones((10, 1), "float32")
    model.fit(x, y, verbose=0)
    assert capsys.readouterr().out == ""
    model.fit(x, y, verbose=2)
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_interactive_logging_can_be_turned_off(capsys: Any, caplog: Any) -> None:
    model = picodl.Sequential([picodl.Input((2,)), layers.Dense(1)])
    model.compile("sgd", loss="mse")
    assert picodl.utils.is_interactive_logging_enabled()
    picodl.utils.disable_interactive_logging()
    try:
        with caplog.at_level(logging.INFO, "picodl"):
            model.evaluate(np.ones((4, 2), "float32"), np.ones((4, 1), "float32"), verbose=1)
    finally:
        picodl.utils.enable_interactive_logging()
    assert capsys.readouterr().out == ""
    assert caplog.messages[0].startswith("1/1 - ")


@pytest.mark.parametrize("verbose", [3, "loud", None, -1])
def test_unknown_verbose(verbose: Any) -> None:
    with pytest.raises(ValueError, match='verbose must be 0, 1, 2 or "auto"'):
        resolve_verbose(verbose)


def test_progbar_averages_what_is_not_stateful(capsys: Any) -> None:
    bar = Progbar(4, verbose=2, stateful_metrics=["last"])
    bar.update(1, [("mean", 1.0), ("last", 1.0)])
    bar.add(3, [("mean", 5.0), ("last", 5.0)])
    assert capsys.readouterr().out.endswith(" - mean: 4.0000 - last: 5.0000\n")
    bar.update(4)
    assert capsys.readouterr().out == ""  # the line is written once


def test_notebook_without_widgets_gets_the_plain_bar(monkeypatch: Any, capsys: Any) -> None:
    shell = type("ZMQInteractiveShell", (), {})()
    notebook = types.SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert resolve_verbose("auto") == 1
    model = picodl.Sequential([picodl.Input((2,)), layers.Dense(1)])
    model.compile("sgd", loss="mse")
    model.fit(np.ones((8, 2), "float32"), np.ones((8, 1), "float32"), epochs=2)
    out, err = capsys.readouterr()
    assert out == "" and "Epoch 2/2 100%" in err
