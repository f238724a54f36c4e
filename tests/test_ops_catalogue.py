"""The public list of picodl.ops against Keras's: every name, its arguments and their defaults."""

from __future__ import annotations

import importlib
import inspect
import types
from pathlib import Path
from typing import Any

import pytest

from picodl import ops

# one signature of Keras 3.16 a line
KERAS = (Path(__file__).parent / "golden" / "keras_ops.txt").read_text()

# names of keras.ops that are not here, and why
LEFT_OUT: dict[str, str] = {
    **dict.fromkeys(
        ("real", "imag", "conj", "conjugate", "angle", "polar", "view_as_complex", "view_as_real"),
        "complex numbers: Tensors hold real ones",
    ),
    **dict.fromkeys(
        ("fft", "fft2", "ifft2", "rfft", "irfft", "stft", "istft", "extract_sequences"),
        "Fourier transforms: complex numbers",
    ),
    "jvp": "forward mode: backward() and jacobian serve functions of the sizes met here",
    **{
        f"image.{name}": "rarely met; layers and user code can compose it"
        for name in (
            "gaussian_blur",
            "elastic_transform",
            "perspective_transform",
            "scale_and_translate",
            "sobel_edges",
            "ssim",
            "extract_patches_3d",
            "reconstruct_patches",
        )
    },
}


def find(name: str) -> Any:
    place: Any = ops
    for part in name.split("."):
        place = getattr(place, part, None)
    return place


SIGNATURES = KERAS.splitlines()
NAMES = [line.partition("(")[0] for line in SIGNATURES]


@pytest.mark.parametrize("name", NAMES)
def test_name_exists(name):
    assert callable(find(name)), f"ops.{name} is missing"


@pytest.mark.parametrize("line", SIGNATURES, ids=NAMES)
def test_arguments_are_those_of_keras(line):
    name, _, rest = line.partition("(")
    scope: dict[str, Any] = {}
    exec(f"def f({rest.removesuffix(')')}): ...", scope)
    expected = dict(inspect.signature(scope["f"]).parameters)
    if name == "layer_normalization":
        del expected["kwargs"]  # they are there for an argument of older versions
    found = inspect.signature(find(name)).parameters
    assert list(found)[: len(expected)] == list(expected)
    for key, parameter in expected.items():
        assert found[key].kind == parameter.kind
        assert found[key].default == parameter.default, key


@pytest.mark.parametrize("name", LEFT_OUT)
def test_what_is_left_out_is_not_there(name):
    assert find(name) is None, f"ops.{name} exists: take it off LEFT_OUT"


PUBLIC = [
    name
    for name, value in vars(ops).items()
    if not name.startswith("_") and not isinstance(value, types.ModuleType)
]


@pytest.mark.parametrize("name", PUBLIC)
def test_docstring_says_what_it_computes_and_its_gradient(name):
    text = inspect.getdoc(getattr(ops, name)) or ""
    first = text.partition("\n")[0]
    assert 6 < len(first) <= 100
    plain = ops.creation.__dict__.get(name) or ops.core.__dict__.get(name)
    if plain is None:
        words = ("Gradient", "ot differentiable", "`", "f(", "loop")
        assert any(word in text for word in words), f"ops.{name} does not state its gradient"


FILES = (
    "compare control creation ctc decompositions diagonals elementwise functions image indexing "
    "linalg nan patches products reduce sampling segment shape solving sorting special"
)


def test_every_differentiable_op_of_these_files_is_in_the_table():
    from tests.ops_table import CASES

    tried = {case.name for case in CASES}
    missing = set()
    for file in FILES.split():
        prefix = "image." if file in ("image", "sampling") else ""
        module = f"picodl.ops.{file}"
        for name, thing in vars(importlib.import_module(module)).items():
            own = getattr(thing, "__module__", "") == module and not name.startswith("_")
            if own and "Gradient:" in (inspect.getdoc(thing) or ""):
                missing.add(prefix + name)
    helpers = {"spread", "unary", "times", "constant"}
    assert sorted(missing - tried - helpers) == []
