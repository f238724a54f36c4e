"""Logs in files: rows are whole, headers are there once, killed runs leave no doubles."""

from __future__ import annotations

import csv
import json
import logging
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import picodl
from picodl import callbacks as C
from picodl import layers

X = np.random.default_rng(0).normal(size=(20, 3)).astype("float32")
Y = X[:, :1] * 2


def fit(*callbacks: Any, epochs: int = 2, **options: Any) -> Any:
    model = picodl.Sequential([picodl.Input((3,)), layers.Dense(1)])
    model.compile("sgd", loss="mse", metrics=["mae"])
    options = {"epochs": epochs, "batch_size": 8, "verbose": 0, **options}
    return model.fit(X, Y, callbacks=list(callbacks), **options)


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_csv_columns_and_values(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    history = fit(C.CSVLogger(path), validation_data=(X, Y)).history
    text = path.read_bytes().decode()
    assert text.startswith("epoch,loss,mae,val_loss,val_mae\r\n")
    assert [float(r["val_mae"]) for r in rows(path)] == history["val_mae"]
    fit(C.CSVLogger(path, separator=";"), validation_data=(X, Y), validation_freq=2)
    lines = path.read_text().splitlines()
    assert lines[0] == "epoch;loss;mae;val_loss;val_mae"
    assert lines[1].endswith(";NA;NA") and "NA" not in lines[2]


def test_csv_append_keeps_one_header(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    fit(C.CSVLogger(path, append=True))
    fit(C.CSVLogger(path, append=True), epochs=4, initial_epoch=2)
    assert [r["epoch"] for r in rows(path)] == ["0", "1", "2", "3"]
    fit(C.CSVLogger(path))
    assert [r["epoch"] for r in rows(path)] == ["0", "1"]


def test_csv_torn_line_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    fit(C.CSVLogger(path))
    whole = path.read_bytes()
    path.write_bytes(whole + b"2,0.12")
    fit(C.CSVLogger(path, append=True), epochs=3, initial_epoch=2)
    assert [r["epoch"] for r in rows(path)] == ["0", "1", "2"]
    assert path.read_bytes().startswith(whole)


def test_csv_append_to_other_columns(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("epoch,loss\r\n")
    with pytest.warns(UserWarning, match="has no column for mae"):
        fit(C.CSVLogger(path, append=True), epochs=1)
    assert list(rows(path)[0]) == ["epoch", "loss"]
    path.write_text("date,loss\r\n")
    with pytest.raises(ValueError, match=r"log\.csv.*first column is \"epoch\""):
        fit(C.CSVLogger(path, append=True), epochs=1)


def test_missing_folder_is_named() -> None:
    with pytest.raises(FileNotFoundError, match="no/such"):
        fit(C.CSVLogger("no/such/log.csv"))


def test_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    history = fit(C.JSONLinesLogger(path), validation_data=(X, Y)).history
    fit(C.JSONLinesLogger(path, append=True), epochs=3, initial_epoch=2)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [0, 1, 2]
    assert lines[1]["logs"] == {key: values[1] for key, values in history.items()}
    assert lines[0]["steps"] == 3 and lines[0]["samples_per_second"] > 0
    assert lines[0]["learning_rate"] == pytest.approx(0.01)
    assert datetime.fromisoformat(lines[0]["time"]).tzinfo is not None


def test_json_lines_hold_no_bare_nan(tmp_path: Path) -> None:
    def strict(name: str) -> Any:
        raise AssertionError(f"{name} is no JSON")

    path = tmp_path / "log.jsonl"
    adds = C.LambdaCallback(on_epoch_end=lambda e, logs: logs.update(odd=float("nan")))
    fit(adds, C.JSONLinesLogger(path), epochs=1)
    assert json.loads(path.read_text(), parse_constant=strict)["logs"]["odd"] == "nan"


def test_python_logging(caplog: Any) -> None:
    with caplog.at_level(logging.INFO, "mine"):
        fit(C.LoggingCallback("mine", every=2), epochs=1)
    assert caplog.messages[0] == "training begins: 1 epochs of 3 steps"
    assert caplog.messages[1].startswith("epoch 1, batch 2: loss=")
    assert caplog.messages[2].startswith("epoch 1: loss=")
    assert caplog.messages[3].startswith("training ends: loss=")


def test_gradient_monitor_names_the_layer(capsys: Any) -> None:
    dead = picodl.initializers.Constant(-50.0)
    model = picodl.Sequential(
        [
            picodl.Input((3,)),
            layers.Dense(4, "relu", bias_initializer=dead, name="asleep"),
            layers.Dense(1, name="head"),
        ]
    )
    model.compile("sgd", loss="mse")
    monitor = C.GradientMonitor(every=1)
    model.fit(X, Y, epochs=2, callbacks=[monitor], verbose=0)
    out = capsys.readouterr().out
    assert out.count("4 of the 4 units of layer asleep are dead") == 1
    assert "the gradient of layer asleep vanishes" in out
    assert monitor.dead_units == {"asleep": (4, 4)}
    assert len(monitor.norms["head"]) == 2 and "head" in monitor.report()
    model.fit(X, Y * 1e6, callbacks=[monitor], verbose=0)
    assert "the gradient of layer head explodes" in capsys.readouterr().out
    assert model.gradient_watcher is None


def test_live_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "curves.png"
    plot = C.LivePlot(path, interval=0.0)
    fit(plot, validation_data=(X, Y))
    assert path.read_bytes().startswith(b"\x89PNG")
    assert len(plot.history["val_loss"]) == 2


def test_metrics_with_several_values(tmp_path: Path, capsys: Any, caplog: Any) -> None:
    model = picodl.Sequential([picodl.Input((3,)), layers.Dense(2, "softmax")])
    metric = picodl.metrics.F1Score(average=None)
    model.compile("sgd", loss="categorical_crossentropy", metrics=[metric])
    targets = picodl.utils.to_categorical((Y[:, 0] > 0).astype(int), 2)
    logs = [C.CSVLogger(tmp_path / "l.csv"), C.JSONLinesLogger(tmp_path / "l.jsonl")]
    with caplog.at_level(logging.INFO, "picodl"):
        model.fit(X, targets, callbacks=[*logs, C.LoggingCallback()], verbose=2)
    assert "f1_score: 0." in capsys.readouterr().out
    assert "f1_score=[" in caplog.text
    assert len(json.loads(rows(tmp_path / "l.csv")[0]["f1_score"])) == 2
    assert len(json.loads((tmp_path / "l.jsonl").read_text())["logs"]["f1_score"]) == 2
    with pytest.raises(ValueError, match="'f1_score' has 2 values; a single number is needed"):
        model.fit(X, targets, callbacks=[C.EarlyStopping("f1_score")], verbose=0)
