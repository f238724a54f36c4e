import builtins

import numpy as np
import pytest

from picodl import Input, Sequential, layers
from tests.export_models import MODELS, build

onnxruntime = pytest.importorskip("onnxruntime")


@pytest.mark.parametrize("name", MODELS)
def test_onnxruntime_equals_predict(name, tmp_path):
    model, xs = build(name)
    assert model.export(tmp_path / "net.onnx")["weights"] > 0 or not model.weights
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx")
    feed = {node.name: x for node, x in zip(session.get_inputs(), xs, strict=True)}
    wanted = model.predict(xs if len(xs) > 1 else xs[0], verbose=0)
    wanted = wanted if isinstance(wanted, list) else [wanted]
    for got, one in zip(session.run(None, feed), wanted, strict=True):
        np.testing.assert_allclose(got, one, rtol=1e-5, atol=2e-5)


def test_names_of_inputs_and_outputs_are_kept(tmp_path):
    model, _ = build("branches")
    model.export(tmp_path / "net.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx")
    assert [node.name for node in session.get_inputs()] == ["a", "b"]
    assert session.get_outputs()[0].name == "first"


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: layers.Lambda(abs, name="odd"), 'Lambda layer "odd" cannot be exported to ONNX'),
        (lambda: layers.Dense(2, activation="glu", name="d"), "activation 'glu'"),
    ],
)
def test_what_cannot_be_exported_is_named(make, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        Sequential([Input((4,)), make()]).export(tmp_path / "net.onnx")
    assert not list(tmp_path.iterdir())


def test_without_onnx_the_extra_is_named(monkeypatch, tmp_path):
    real = builtins.__import__

    def fake(module, *args, **kwargs):
        if module == "onnx":
            raise ImportError(module)
        return real(module, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", fake)
    with pytest.raises(ImportError, match=r"picodl\[onnx\]"):
        Sequential([Input((4,)), layers.Dense(1)]).export(tmp_path / "net.onnx")
