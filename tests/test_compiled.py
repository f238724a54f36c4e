"""The kernels in C give what numpy gives, to float32's rounding."""

from __future__ import annotations

import os
import pickle
import shutil
import sys

import numpy as np
import pytest

import picodl
from picodl import compiled, ops, parallel
from picodl.__main__ import main
from picodl.compiled import building
from picodl.models import folding
from picodl.ops import attention
from picodl.tensor import Tensor

rng = np.random.default_rng(0)


@pytest.fixture(scope="module", autouse=True)
def built(tmp_path_factory):
    """The kernels, compiled into a folder of the tests."""
    try:
        building.compiler()
    except RuntimeError as error:
        pytest.skip(str(error))
    patch = pytest.MonkeyPatch()
    patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    compiled.build()
    yield
    compiled.enable(False)
    patch.undo()


@pytest.fixture(autouse=True)
def seeded():
    """The same numbers for a test, whatever ran before it."""
    global rng
    rng = np.random.default_rng(0)


def both(function, *arrays, tolerance=5e-6):
    """Values and gradients with the kernels and without agree; those without are in float64."""
    found, slope = [], None
    for on, dtype in ((True, np.float32), (False, np.float64)):
        compiled.enable(on)
        tensors = [Tensor(a.astype(dtype), requires_grad=True) for a in arrays]
        y = function(*tensors)
        slope = normal(*y.shape) if slope is None else slope
        (y * slope.astype(dtype)).sum().backward()
        found.append([y.data, *(t.grad for t in tensors)])
        assert y.data.dtype == dtype
    compiled.enable()
    for one, other in zip(*found, strict=True):
        scale = np.abs(other).max(initial=1e-30)
        assert np.abs(one - other).max(initial=0) <= tolerance * scale


def normal(*shape):
    return rng.normal(size=shape)


@pytest.mark.parametrize(
    "shape, kernel, options",
    [
        ((3, 9, 8, 5), (3, 3, 5, 7), {"padding": "same"}),
        ((3, 9, 8, 16), (3, 3, 16, 32), {"padding": "same"}),
        ((2, 13, 13, 4), (3, 3, 4, 40), {"padding": "valid"}),
        ((2, 12, 12, 6), (5, 3, 6, 16), {"padding": "same", "strides": 2}),
        ((2, 12, 15, 6), (3, 3, 6, 16), {"padding": "valid", "strides": (1, 3)}),
        ((2, 12, 12, 6), (3, 3, 6, 33), {"padding": "same", "dilation_rate": 2}),
        ((2, 12, 12, 6), (3, 3, 3, 8), {"padding": "same"}),
        ((2, 12, 12, 32), (3, 3, 16, 32), {"padding": "same", "strides": 2}),
        ((2, 9, 9, 8), (1, 1, 8, 17), {}),
        ((2, 9, 9, 8), (1, 1, 8, 17), {"strides": 2}),
        ((5, 30, 3), (4, 3, 6), {"padding": "causal", "dilation_rate": 3}),
        ((5, 30, 3), (5, 3, 20), {"padding": "same", "strides": 3}),
        ((2, 5, 6, 7, 3), (3, 2, 3, 3, 8), {"padding": "same"}),
        ((2, 8, 2, 3), (3, 3, 3, 4), {"padding": "same"}),
        ((1, 300, 300, 8), (3, 3, 8, 8), {"padding": "same"}),
        ((0, 9, 9, 3), (3, 3, 3, 4), {}),
    ],
)
def test_convolutions(shape, kernel, options):
    if options.get("strides", 1) == 1 or shape[0] < 3:
        bias = normal(kernel[-1])
        both(
            lambda x, w, b: ops.conv(x, w, bias=b, **options), normal(*shape), normal(*kernel), bias
        )
    both(lambda x, w: ops.conv(x, w, **options), normal(*shape), normal(*kernel))


@pytest.mark.parametrize("kernel", [(3, 3, 5, 7), (1, 1, 5, 7)])
def test_convolutions_of_which_little_is_trained(kernel):
    x, w, b = normal(3, 9, 8, 5), normal(*kernel), normal(7)
    both(lambda x, b: ops.conv(x, w.astype(x.dtype), bias=b), x, b)
    both(lambda b: ops.conv(x.astype(b.dtype), w.astype(b.dtype), bias=b), b)
    both(
        lambda w, b: ops.conv(x.astype(b.dtype), w, bias=b, pair=picodl.activations.relu.pair), w, b
    )
    both(lambda x: ops.conv(x, w.astype(x.dtype), pair=picodl.activations.tanh.pair), x)


def test_windows_that_see_nothing_but_zeros(monkeypatch):
    monkeypatch.setattr(sys.modules["picodl.ops.windows"], "COLUMNS", 1 << 9)
    padding = ((9, 9), (1, 1))
    both(lambda x, w: ops.conv(x, w, 1, padding), normal(2, 3, 8, 16), normal(3, 3, 16, 16))


@pytest.mark.parametrize("strides", [1, 2, 3])
@pytest.mark.parametrize("padding", ["same", "valid"])
def test_transposed_convolutions(strides, padding):
    both(
        lambda x, w: ops.conv_transpose(x, w, strides, padding),
        *(normal(2, 7, 9, 6), normal(3, 4, 5, 6)),
    )


@pytest.mark.parametrize("name", ["relu", "gelu"])
def test_activations(name):
    function = getattr(picodl.activations, name)
    options = {"approximate": False} if name == "gelu" else {}
    both(lambda x: function(x, **options), 3 * normal(7, 33))
    both(lambda x: function(x, **options), np.linspace(-30, 30, 1000))
    extreme = np.array([0, -0.0, 1e-30, 1e20, -20.0, np.inf, np.nan], np.float32)
    found = []
    for on in (True, False):
        compiled.enable(on)
        x = Tensor(extreme, requires_grad=True)
        y = function(x, **options)
        y.sum().backward()
        found.append((y.data, x.grad))
    np.testing.assert_allclose(*(y for y, _ in found), rtol=1e-6)
    np.testing.assert_allclose(*(d for _, d in found), rtol=1e-6, atol=1e-37)
    compiled.enable()


@pytest.mark.parametrize("shape", [(4, 6, 5, 3), (64, 16), (8, 9, 9, 16), (200, 64, 32)])
def test_normalisation(shape):
    n = shape[-1]
    arrays = (3 * normal(*shape) + 5, normal(n), normal(n))
    both(lambda x, a, b: ops.normalize_batch(x, a, b)[0], *arrays)
    both(lambda x: ops.normalize_batch(x)[0], arrays[0])
    both(ops.scale_and_shift, *arrays)
    both(ops.layer_normalization, *arrays, tolerance=2e-5)
    both(ops.layer_normalization, arrays[0], tolerance=2e-5)
    both(ops.rms_normalization, *arrays[:2])
    both(lambda x: ops.rms_normalization(x, epsilon=np.float32(1e-3)), arrays[0])


def test_adam():
    found = []
    for on in (True, False):
        compiled.enable(on)
        w = picodl.Variable(np.linspace(-1, 1, 1000, dtype=np.float32))
        optimizer = picodl.optimizers.AdamW(0.01)
        for step in range(5):
            optimizer.apply([np.sin((step + 1) * w.numpy())], [w])
        found.append(w.numpy())
    np.testing.assert_allclose(*found, rtol=1e-5, atol=1e-7)
    compiled.enable()


@pytest.mark.parametrize("reset_after", [None, True, False])
@pytest.mark.parametrize("options", [{}, {"mask": True}, {"sequences": True, "back": True}])
def test_recurrences(reset_after, options):
    b, steps, n, u = 32, 13, 5, 9
    mask = rng.random((b, steps)) < 0.7 if "mask" in options else None
    gates = 4 if reset_after is None else 3
    bias = normal(2, gates * u) if reset_after else normal(gates * u)
    rest = {
        "mask": mask,
        "returns": "all" if "sequences" in options else "last",
        "go_backwards": "back" in options,
    }
    weights = (normal(n, gates * u), normal(u, gates * u), bias)
    if reset_after is None:
        arrays = (normal(b, steps, n), normal(b, u), normal(b, u), *weights)
        both(lambda x, h, c, *w: ops.lstm(x, *w, h, c, **rest), *arrays, tolerance=2e-5)
    else:
        arrays = (normal(b, steps, n), normal(b, u), *weights)
        rest["reset_after"] = reset_after
        both(lambda x, h, *w: ops.gru(x, *w, h, **rest), *arrays, tolerance=2e-5)


@pytest.mark.parametrize(
    "n, k, m",
    [
        (8, 16, 16),
        (70, 128, 64),
        (9, 5, 32),
        (12, 32, 20),
        (7, 16, 16),
        (600, 64, 128),
        (70, 288, 256),
    ],
)
@pytest.mark.parametrize("name", ["linear", "relu", "gelu", "silu"])
@pytest.mark.parametrize("needs_x", [True, False])
def test_dense(n, k, m, name, needs_x):
    pair = None if name == "linear" else getattr(picodl.activations, name).pair
    x, w, b = normal(n, k), normal(k, m), normal(m)
    if needs_x:
        both(lambda x, w, b: ops.dense(x, w, b, pair), x, w, b)
        both(lambda x, w: ops.dense(x, w, None, pair), x, w)
    else:
        both(lambda w, b: ops.dense(Tensor(x.astype(w.dtype)), w, b, pair), w, b)


@pytest.mark.parametrize("n", [1, 7, 8, 15, 16, 17])
def test_few_rows_and_many_weights(n):
    x, w, b = normal(n, 1024), normal(1024, 1024), normal(1024)
    both(lambda x, w, b: ops.dense(x, w, b, picodl.activations.relu.pair), x, w, b)


def test_dense_arguments_that_do_not_fit():
    compiled.enable()
    x, w = np.ones((16, 16), np.float32), np.ones((16, 32), np.float32)
    with pytest.raises(ValueError):
        ops.dense(x, w[:8])
    with pytest.raises(ValueError):
        ops.dense(x[:, :8], w)
    with pytest.raises(ValueError):
        ops.dense(x, w, np.ones(16, np.float32))
    np.testing.assert_array_equal(ops.dense(x, w, np.ones(1, np.float32)), np.full((16, 32), 17))


def test_dense_layers_of_which_little_is_trained():
    x, w, b = normal(9, 16), normal(16, 32), normal(32)
    both(lambda b: ops.dense(Tensor(x.astype(b.dtype)), Tensor(w.astype(b.dtype)), b), b)
    both(lambda x: ops.dense(x, Tensor(w.astype(x.dtype)), Tensor(b.astype(x.dtype))), x)
    both(lambda x: ops.dense(x, Tensor(np.asfortranarray(w, x.dtype))), x)
    both(lambda w: ops.dense(Tensor(np.asfortranarray(x, w.dtype)), w), w)
    x, w = normal(70, 288), normal(288, 256)  # on threads
    both(lambda x: ops.dense(x, Tensor(w.astype(x.dtype))), x)
    both(lambda w: ops.dense(Tensor(x.astype(w.dtype)), w), w)
    both(lambda b: ops.dense(Tensor(x.astype(b.dtype)), Tensor(w.astype(b.dtype)), b), normal(256))


@pytest.mark.parametrize("gates, function", [(4, ops.lstm), (3, ops.gru)])
def test_recurrences_of_blocks_that_the_kernels_take_in_part(gates, function):
    b, n, u = 33, 3, 168  # blocks of 17 and 16
    bias = normal(gates * u) if gates == 4 else normal(2, gates * u)
    arrays = (normal(b, 3, n), 0.1 * normal(n, gates * u), 0.1 * normal(u, gates * u), bias)
    both(function, *arrays, tolerance=2e-5)


def weights(k, m):
    return np.linspace(-1, 1, k * m, dtype=np.float32).reshape(k, m)


@pytest.mark.parametrize("before, after", [(True, False), (False, True)])
@pytest.mark.parametrize(
    "shape, function",
    [
        ((32, 4, 2), lambda x: ops.lstm(x, weights(2, 64), weights(16, 64), weights(1, 64)[0])),
        ((32, 4, 2), lambda x: ops.gru(x, weights(2, 48), weights(16, 48), weights(2, 48))),
        ((9, 16), lambda x: ops.dense(x, weights(16, 16), None, picodl.activations.gelu.pair)),
        ((70, 288), lambda x: ops.dense(x, weights(288, 256), None, picodl.activations.relu.pair)),
        ((600, 64), lambda x: ops.dense(x, weights(64, 128), weights(1, 128)[0])),
        ((2, 9, 2, 16), lambda x: ops.dot_product_attention(x, x, x)),
        ((2, 9, 9, 4), lambda x: ops.conv(x, weights(36, 8).reshape(3, 3, 4, 8))),
    ],
)
def test_kernels_switched_between_forward_and_backward(before, after, shape, function):
    found = []
    for first, then in ((before, after), (False, False)):
        compiled.enable(first)
        rng = np.random.default_rng(1)
        x = Tensor(rng.normal(size=shape).astype(np.float32), requires_grad=True)
        y = function(x)
        compiled.enable(then)
        y.sum().backward()
        found.append(x.grad)
    compiled.enable()
    np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-5 * np.abs(found[1]).max())


@pytest.mark.parametrize("shape", [(1, 1), (16, 16), (17, 40), (40, 17), (3, 100), (0, 5)])
def test_transposing(shape):
    x, out = normal(*shape).astype(np.float32), np.empty(shape[::-1], np.float32)
    compiled.call("transpose", x, shape[1], out, shape[0], *shape)
    np.testing.assert_array_equal(out, x.T)


@pytest.mark.parametrize("channels", [16, 32, 5])
@pytest.mark.parametrize(
    "options",
    [
        {"padding": "same"},
        {"padding": "valid", "strides": 2},
        {"padding": "same", "dilation_rate": 2},
        {"padding": "same", "strides": 3},
    ],
)
def test_depthwise_convolutions(channels, options):
    arrays = (normal(3, 9, 15, channels), normal(3, 4, channels, 1), normal(channels))
    both(lambda x, w, b: ops.depthwise_conv(x, w, bias=b, **options), *arrays)
    both(lambda x, w: ops.depthwise_conv(x, w, **options), normal(3, 20, 16), normal(5, 16, 2))


@pytest.mark.parametrize("channels", [16, 5])
@pytest.mark.parametrize("size, strides", [(2, None), (3, 2), ((2, 3), (3, 1))])
@pytest.mark.parametrize("padding", ["valid", "same"])
def test_maxima(channels, size, strides, padding):
    x = np.round(normal(3, 10, 9, channels), 1)  # many ties
    both(lambda x: ops.max_pool(x, size, strides, padding), x)
    both(lambda x: ops.max_pool(x, 2), normal(2, 12, 32))


def test_maxima_of_nan():
    x = np.zeros((1, 4, 16), np.float32)
    x[0, 1], x[0, 2] = np.nan, np.nan
    assert np.isnan(ops.max_pool(x, 2)).all()


def test_numbers_do_not_depend_on_threads():
    x = rng.normal(size=(64, 16, 16, 16)).astype(np.float32)
    w = rng.normal(size=(3, 3, 16, 16)).astype(np.float32)
    s = rng.normal(size=(64, 20, 8)).astype(np.float32)
    weights = [rng.normal(size=n).astype(np.float32) for n in ((8, 128), (32, 128), (128,))]
    found = []
    for threads in (1, 2, 3):
        parallel.set_threads(threads)
        t = [Tensor(a, requires_grad=True) for a in (x, w, s, *weights)]
        y = ops.max_pool(ops.conv(*t[:2], 1, "same"), 2)
        (y.sum() + ops.lstm(*t[2:]).sum()).backward()
        found.append([y.data, *(a.grad for a in t)])
    parallel.set_threads(None)
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(one, two)


def test_building_and_removing(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(RuntimeError, match="picodl compile"):
        compiled.enable()
    monkeypatch.setattr(building, "_FLAGS", ("-O0", "-fopenmp-simd"))
    assert main(["compile"]) == 0 and compiled.is_enabled()
    path = building.library()
    assert str(path) in capsys.readouterr().out and path.exists()
    compiled.enable(False)
    assert not compiled.is_enabled() and not compiled.run("relu_backward")
    path.chmod(0o666)  # somebody else may have written it
    with pytest.raises(RuntimeError, match="others may write"):
        compiled.build()
    monkeypatch.setattr(building, "_FLAGS", ("-O1", "-fopenmp-simd"))
    building.library().write_bytes(b"no library")
    with pytest.raises(RuntimeError, match="cannot be loaded"):
        compiled.build()
    assert main(["compile", "--remove"]) == 0 and not path.exists()


def test_a_library_in_the_current_folder_is_not_loaded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    monkeypatch.setattr(building, "_FLAGS", ("-O0", "-fopenmp-simd"))
    with pytest.raises(RuntimeError, match="cannot be loaded"):
        compiled.build()
    with pytest.raises(RuntimeError, match="picodl compile"):
        compiled.enable()


def test_a_library_is_ours_alone_whatever_the_umask(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "new"))
    monkeypatch.setattr(building, "_FLAGS", ("-O0", "-fopenmp-simd"))
    monkeypatch.setenv("CC", "env gcc" if shutil.which("gcc") else "")  # of two words
    before = os.umask(0o002)
    try:
        assert compiled.build().exists() and compiled.is_enabled()
    finally:
        os.umask(before)


def test_empty_batches_and_sequences():
    compiled.enable()
    for shape in ((0, 5, 3), (32, 0, 3)):
        arrays = (np.zeros(shape), normal(3, 16), normal(4, 16), normal(16))
        x, *w = (Tensor(a.astype(np.float32), requires_grad=True) for a in arrays)
        ops.lstm(x, *w).sum().backward()
        assert all(np.isfinite(t.grad).all() for t in (x, *w))


def test_building_without_a_compiler(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "new"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CC", "")
    monkeypatch.setattr(building.sysconfig, "get_config_var", lambda name: None)
    assert main(["compile"]) == 1
    assert "No C compiler" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def trained(**options):
    model = picodl.Sequential([picodl.Input((3,)), picodl.layers.Dense(2)])
    model.compile("sgd", "mse", **options)
    return model.train_on_batch(np.ones((4, 3), np.float32), np.ones((4, 2), np.float32))


def test_jit_compile_builds_before_the_first_batch(tmp_path, monkeypatch):
    monkeypatch.setattr(compiled, "kernels", None)
    monkeypatch.setattr(compiled, "_may_build", True)
    trained()
    trained(jit_compile=False)
    assert not compiled.is_enabled()
    trained(jit_compile=True)
    assert compiled.is_enabled()
    compiled.enable(False)  # what was switched off stays so
    trained(jit_compile=True)
    assert not compiled.is_enabled()
    compiled.enable()


def test_jit_compile_without_a_compiler(tmp_path, monkeypatch):
    monkeypatch.setattr(compiled, "kernels", None)
    monkeypatch.setattr(compiled, "_may_build", True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(shutil, "which", lambda command: None)
    with pytest.warns(UserWarning, match="numpy computes everything.*No C compiler"):
        loss = trained(jit_compile=True)
    assert np.isfinite(loss)
    trained(jit_compile=True)  # warns no more


def test_a_compiler_that_fails(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(building, "_FLAGS", ("-no-such-flag",))
    with pytest.raises(RuntimeError, match="no-such-flag"):
        compiled.build()
    assert not list(tmp_path.rglob("kernels-*"))


def test_arrays_that_do_not_fit_are_left_to_numpy():
    compiled.enable()
    assert not compiled.run("relu_backward", np.ones(4), np.ones(4), np.ones(4), 4)
    narrow = np.ones((4, 4), np.float32)[:, ::2]
    assert not compiled.run("relu_backward", narrow, narrow, narrow, 8)
    with pytest.raises(TypeError, match="relu_backward"):
        compiled.call("relu_backward", narrow, narrow, narrow, 8)


def test_arrays_of_files_are_served(tmp_path):
    """Their dtype is float32, but another object than numpy's own."""
    compiled.enable()
    x = np.ones(4, np.float32)
    x.tofile(tmp_path / "x")
    other = np.fromfile(tmp_path / "x", np.dtype("f4").newbyteorder("=").newbyteorder("native"))
    copy = pickle.loads(pickle.dumps(x))
    for array in (other, copy):
        assert compiled.run("relu_backward", x, array, np.empty_like(x), 4)


def test_a_weight_s_step_does_not_depend_on_its_place():
    compiled.enable()
    values = rng.normal(size=40).astype(np.float32)
    found = []
    for place in (0, 1, 7):
        w, m, g = (np.concatenate([np.ones(place, np.float32), values * k]) for k in (1, 2, 3))
        v = np.abs(w)
        compiled.call("adam", g, w, m, v, w.size, -0.01, 1e-7, 0.1, 0.001)
        found.append(np.concatenate([a[place:] for a in (w, m, v)]))
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


@pytest.mark.parametrize("heads", [4, 2])
@pytest.mark.parametrize("size, wide", [(8, 6), (16, 32)])
def test_attention(heads, size, wide):
    arrays = (normal(3, 11, 4, size), normal(3, 13, heads, size), normal(3, 13, heads, wide))
    mask = rng.random((3, 1, 11, 13)) < 0.5
    both(ops.dot_product_attention, *arrays)
    both(lambda q, k, v: ops.dot_product_attention(q, k, v, mask=mask), *arrays)
    both(lambda q, k, v: ops.dot_product_attention(30 * q, k, v), *arrays, tolerance=5e-5)


@pytest.mark.parametrize("keep", [0, 1 << 20])
@pytest.mark.parametrize("zero_masked", [True, False])
def test_attention_in_pieces_of_the_queries(keep, zero_masked, monkeypatch):
    monkeypatch.setattr(attention, "_KEEP", keep)
    arrays = (normal(2, 90, 4, 16), normal(2, 401, 2, 16), normal(2, 401, 2, 16))
    both(attention.attention, *arrays)
    mask = rng.random((2, 1, 90, 401)) < 0.5
    mask[1, :, 7] = False  # sees nothing
    for some in (mask, mask[:, :, :1], mask[:1, :, :, :1], np.tri(90, 401, dtype=bool)):
        both(
            lambda q, k, v: attention.attention(q, k, v, None, some, zero_masked=zero_masked),
            *arrays,
        )


def test_attention_with_dropout():
    arrays = (normal(2, 90, 4, 16), normal(2, 401, 2, 16), normal(2, 401, 2, 16))
    keep, mask = rng.random((2, 4, 90, 401)) < 0.8, rng.random((2, 1, 1, 401)) < 0.5
    for some in (None, mask):
        both(
            lambda q, k, v: attention.attention(q, k, v, None, some, None, None, keep, 0.8), *arrays
        )


def test_attention_of_views():
    """Query, key and value out of one array, steps backwards, and what lies in records."""
    joined = normal(2, 9, 3, 4, 16)
    both(lambda x: attention.attention(x[:, :, 0], x[:, ::-1, 1], x[:, :, 2]), joined)
    compiled.enable()
    records = np.zeros((2, 9, 4, 16), np.dtype([("x", "f4"), ("n", "i1")]))
    records["x"] = joined[:, :, 0]
    packed = np.zeros((2, 9, 4), np.dtype([("x", "f4", 16), ("n", "i1")]))
    packed["x"] = joined[:, :, 0]
    expected = attention.attention(*[joined[:, :, 0].astype(np.float32)] * 3)
    for x in (records["x"], packed["x"]):
        np.testing.assert_array_equal(attention.attention(x, x, x), expected)


def test_attention_hands_nan_on():
    compiled.enable()
    q = np.ones((1, 2, 1, 16), np.float32)
    k = q.copy()
    k[0, 1] = np.nan
    assert np.isnan(attention.attention(q, k, q)).all()
    mask = np.array([True, False]).reshape(1, 1, 1, 2)
    assert np.isfinite(attention.attention(q, k, q, None, mask)).all()


@pytest.mark.parametrize(
    "after, inputs, joined",
    [
        (picodl.layers.ReLU, 2, True),
        (lambda: picodl.layers.Activation("relu"), 2, True),
        (lambda: picodl.layers.ReLU(6), 2, False),
        (lambda: picodl.layers.ReLU(activity_regularizer="l2"), 2, False),
        (picodl.layers.ReLU, 3, False),
    ],
)
def test_a_sum_and_its_relu_predict_as_one(after, inputs, joined, monkeypatch):
    compiled.enable()
    calls = []
    one = folding._relu_of_sum
    monkeypatch.setattr(folding, "_relu_of_sum", lambda a, b: calls.append(a) or one(a, b))
    x = picodl.Input((5, 6, 4))
    branches = [picodl.layers.Conv2D(4, 3, padding="same")(x) for _ in range(inputs - 1)]
    total = picodl.layers.Add()([*branches, x])
    model = picodl.Model(x, after()(total))
    data = normal(3, 5, 6, 4).astype(np.float32)
    data[0, 0, 0, 0] = np.nan
    np.testing.assert_allclose(
        model.predict(data, verbose=0), np.asarray(model(data, training=False)), rtol=1e-6
    )
    assert bool(calls) == joined
    both = picodl.Model(x, [after()(total), total])  # the sum is wanted as well
    calls.clear()
    both.predict(data, verbose=0)
    assert not calls


def test_sums_that_the_kernels_do_not_take():
    compiled.enable()
    a = normal(4, 6).astype(np.float32)
    assert folding._relu_of_sum(a, a.T.copy().T) is None
    assert folding._relu_of_sum(a.astype(float), a.astype(float)) is None
    np.testing.assert_array_equal(folding._relu_of_sum(a, a), np.maximum(2 * a, 0))
