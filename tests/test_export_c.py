import ctypes
import subprocess

import numpy as np
import pytest

from picodl import Input, Model, Sequential, layers, ops
from picodl.export import export_model
from tests.export_models import MODELS, build

FLAGS = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-O1"]


@pytest.fixture(scope="session")
def compiler(tmp_path_factory):
    try:
        subprocess.run(["gcc", "--version"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("gcc is not installed")


def run(folder, model, xs, **options):
    """The outputs of the compiled file for each sample."""
    export_model(model, folder / "net.c", **options)
    library = folder / "net.so"
    subprocess.run(
        ["gcc", *FLAGS, "-shared", "-fPIC", folder / "net.c", "-o", library, "-lm"], check=True
    )
    predict = ctypes.CDLL(library).net_predict
    shapes = [tuple(symbol.shape[1:]) for symbol in model.outputs]
    results = [np.empty((len(xs[0]), *shape), np.float32) for shape in shapes]
    pointer = ctypes.POINTER(ctypes.c_float)
    for n in range(len(xs[0])):
        given = [np.ascontiguousarray(x[n]) for x in xs]
        places = [a.ctypes.data_as(pointer) for a in (*given, *(r[n] for r in results))]
        assert predict(*places) == 0
    return results


def predicted(model, xs):
    wanted = model.predict(xs if len(xs) > 1 else xs[0], verbose=0)
    return wanted if isinstance(wanted, list) else [wanted]


@pytest.mark.parametrize("name", MODELS)
def test_compiled_c_equals_predict(name, tmp_path, compiler):
    model, xs = build(name)
    for got, wanted in zip(run(tmp_path, model, xs), predicted(model, xs), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["mlp", "convnet", "more convolution", "gru", "embedding"])
def test_int8_is_close_and_small(name, tmp_path, compiler):
    model, xs = build(name)
    sizes = [export_model(model, tmp_path / "a.c", quantize=q)["weights"] for q in (None, "int8")]
    assert sizes[1] < 0.7 * sizes[0]
    for got, wanted in zip(
        run(tmp_path, model, xs, quantize="int8"), predicted(model, xs), strict=True
    ):
        np.testing.assert_allclose(got, wanted, atol=0.05 * np.abs(wanted).max())


def test_batch_norm_is_folded_into_the_layer_before(tmp_path):
    model, _ = build("batch norm folded")
    model.export(tmp_path / "net.c")
    source = (tmp_path / "net.c").read_text()
    assert "BatchNormalization" not in source and "scale_shift" not in source


def test_self_test_program_passes(tmp_path, compiler):
    model, xs = build("branches")
    model.export(tmp_path / "two-in.c", examples=xs)
    program = tmp_path / "test"
    subprocess.run(
        ["gcc", *FLAGS, "-DTWO_IN_SELF_TEST", tmp_path / "two-in.c", "-o", program, "-lm"],
        check=True,
    )
    done = subprocess.run([program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("largest difference: ")
    header = (tmp_path / "two-in.h").read_text()
    assert "int two_in_predict(const float *input0, const float *input1, float *output0," in header
    assert "#define TWO_IN_INPUT1_SIZE 3 /* b: (3) */" in header


def test_id_outside_of_the_table_is_reported(tmp_path, compiler):
    model, _ = build("embedding")
    export_model(model, tmp_path / "net.c")
    subprocess.run(
        ["gcc", *FLAGS, "-shared", "-fPIC", tmp_path / "net.c", "-o", tmp_path / "n.so", "-lm"],
        check=True,
    )
    predict = ctypes.CDLL(tmp_path / "n.so").net_predict
    pointer = ctypes.POINTER(ctypes.c_float)
    out = np.zeros(2, np.float32)
    for bad in (6, -1, np.nan):
        ids = np.array([0, 1, 2, bad, 3, 4, 5], np.float32)
        assert predict(ids.ctypes.data_as(pointer), out.ctypes.data_as(pointer)) == 1


class Dense(layers.Dense):
    """A layer of the same name that computes something else."""

    def call(self, x):
        return -super().call(x)


def with_mask():
    x = Input((3, 2))
    mask = Input((3,), dtype="bool")
    return Model([x, mask], layers.LSTM(2, name="r")(x, mask=mask))


def with_array():
    x = Input((3,))
    return Model(x, ops.multiply(x, np.ones(3, np.float32)))


def sequential(*parts, shape=(4,)):
    return Sequential([Input(shape), *parts])


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: sequential(layers.Lambda(abs, name="odd")), 'Lambda layer "odd" cannot be expo'),
        (lambda: sequential(layers.Dense(2, activation=abs, name="d")), '"d" has the activation'),
        (lambda: sequential(layers.Dense(2), shape=(None, 4)), "has shape .* sizes that are all"),
        (lambda: Sequential([layers.Dense(2)], name="late"), '"late" cannot be exported: it was'),
        (
            lambda: sequential(Dense(2, name="d")),
            r'test_export_c.Dense layer "d" cannot be exported',
        ),
        (with_mask, '"r" is called with training=True, a mask, a state'),
        (with_array, "not arithmetic of two values"),
        (lambda: sequential(layers.Softmax(axis=1), shape=(3, 2)), "axis 1; only the last"),
        (
            lambda: sequential(layers.Embedding(6, 2, mask_zero=True, name="e")),
            '"e" makes masks',
        ),
        (
            lambda: sequential(
                layers.Conv2D(2, 1, data_format="channels_first", name="c"), shape=(2, 3, 3)
            ),
            '"c" has channels first',
        ),
        (
            lambda: sequential(layers.LSTM(2, stateful=True, name="r"), shape=(2, 3)),
            '"r" is stateful',
        ),
    ],
)
def test_what_cannot_be_exported_is_named(make, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        export_model(make(), tmp_path / "net.c")
    assert not list(tmp_path.iterdir())


def test_options_are_checked(tmp_path):
    model, _ = build("mlp")
    with pytest.raises(ValueError, match=r"must be None or .*; received 'int4'"):
        model.export(tmp_path / "net.c", quantize="int4")
    with pytest.raises(ValueError, match='writes "c" or "onnx"; received format \'tflite\''):
        model.export(tmp_path / "net.tflite")
    with pytest.raises(ValueError, match=r"ends in \.c; received"):
        export_model(model, tmp_path / "net", format="c")
    model.layers[-1].kernel.assign(np.full((5, 3), np.nan, np.float32))
    with pytest.raises(ValueError, match=r'"kernel" of layer .* is not finite'):
        model.export(tmp_path / "net.c")
