"""Whole trainings against Keras in float64: history, weights, scores and predictions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import picodl
from picodl import callbacks, constraints, layers, losses, metrics, optimizers, regularizers, tree
from tests.goldens import Case, close, make, names

FILE = "training.h5"
SPACES = [layers, optimizers.schedules, optimizers, losses, metrics, regularizers, constraints]
MERGING = ("Add", "Subtract", "Multiply", "Average", "Maximum", "Minimum", "Concatenate", "Dot")


def build(spec: dict[str, Any]) -> Any:
    if spec["kind"] == "sequential":
        source = picodl.Input(tuple(spec["input_shape"]), dtype=spec.get("input_dtype"))
        return picodl.Sequential([source, *make(spec["layers"], SPACES)])
    values = {
        i["name"]: picodl.Input(tuple(i["shape"]), name=i["name"], dtype=i.get("dtype"))
        for i in spec["inputs"]
    }
    inputs = dict(values)
    for node in spec["nodes"]:
        config = {**node["config"], "name": node["name"]}
        layer = make({"class": node["class"], "config": config}, SPACES)
        args = [values[name] for name in node["in"]]
        values[node["name"]] = layer(args) if node["class"] in MERGING else layer(*args)
    outputs = {name: values[name] for name in spec["outputs"]}
    return picodl.Model(one_or_all(inputs), one_or_all(outputs))


def one_or_all(found: dict[str, Any]) -> Any:
    return next(iter(found.values())) if len(found) == 1 else found


def data(case: Case, prefix: str) -> Any:
    found = {case.attrs[f"{prefix}/{i}"].get("name", i): a for i, a in case.under(prefix).items()}
    return one_or_all(found)


def callback(spec: dict[str, Any]) -> Any:
    if spec["class"] == "LearningRateScheduler":
        table = spec["config"]["table"]
        return callbacks.LearningRateScheduler(lambda epoch, rate: table[epoch])
    return getattr(callbacks, spec["class"])(**spec["config"])


def flat(predicted: Any, order: list[str]) -> list[Any]:
    if isinstance(predicted, dict):
        return [predicted[name] for name in order]
    return tree.flatten(predicted)


@pytest.mark.parametrize("name", names(FILE))
def test_training_follows_keras(name: str, float64: None) -> None:
    case = Case(FILE, name)
    spec, fit = case["model"], dict(case["fit"])
    if "class_weight" in fit:
        fit["class_weight"] = {int(k): w for k, w in fit["class_weight"].items()}
    order = spec.get("outputs", [])
    model = build(spec)
    for weight, value in zip(model.weights, case.listed("initial_weights"), strict=True):
        weight.assign(value)
    model.compile(**make(case["compile"], SPACES))
    x, y = data(case, "x"), data(case, "y")
    validation = None
    if case.under("validation"):
        validation = (case.arrays["validation/x"], case.arrays["validation/y"])
    before = flat(model.predict(x, verbose=0), order)
    for got, expected in zip(before, case.listed("predictions_before"), strict=True):
        close(got, expected, 1e-6)
    history = model.fit(
        x,
        y,
        verbose=0,
        sample_weight=case.arrays.get("sample_weight"),
        validation_data=validation,
        callbacks=[callback(c) for c in case["callbacks"]],
        **fit,
    ).history
    assert set(history) == set(case.under("history"))
    for key, expected in case.under("history").items():
        close(np.array(history[key]), expected, 1e-6)
    for i, expected in case.under("final_weights").items():
        weight = model.weights[int(i)]
        if case.attrs[f"final_weights/{i}"]["path"].endswith("/key/bias"):
            # its gradient is zero but for rounding, which Adam blows up
            np.testing.assert_allclose(weight.data, expected, atol=1e-6)
        else:
            close(weight.data, expected, 1e-6)
    scores = model.evaluate(x, y, verbose=0, batch_size=16, return_dict=True)
    for key, expected in case.under("evaluate").items():
        close(np.array(scores[key]), expected, 1e-6)
    for got, expected in zip(
        flat(model.predict(x, verbose=0), order), case.listed("predictions"), strict=True
    ):
        close(got, expected, 1e-6)
