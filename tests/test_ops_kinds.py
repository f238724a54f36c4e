"""What ops give for arrays, Tensors, Symbols and numbers, and which dtype it has."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special

from picodl import Input, Model, ops
from picodl.symbolic import Symbol
from picodl.tensor import Tensor, no_grad
from picodl.testing import gradcheck

A = np.linspace(0.1, 0.9, 12, dtype="f").reshape(3, 4)


def test_arrays_give_arrays_and_tensors_tensors():
    for function in (ops.exp, ops.sum, ops.argmax, ops.isnan, ops.sort, ops.ravel, ops.floor):
        assert isinstance(function(A), (np.ndarray, np.generic))
        assert isinstance(function(Tensor(A)), Tensor)
    assert [type(p) for p in ops.split(A, 3)] == [np.ndarray] * 3
    assert [type(p) for p in ops.split(Tensor(A), 3)] == [Tensor] * 3
    values, places = ops.top_k(Tensor(A), 2)
    assert isinstance(values, Tensor)
    assert isinstance(places, Tensor)


def test_nothing_flows_through_what_has_no_gradient():
    x = Tensor(A, requires_grad=True)
    for function in (ops.sign, ops.floor, ops.round, ops.argmax, ops.isnan, ops.stop_gradient):
        assert not function(x).requires_grad
    with pytest.raises(RuntimeError, match="does not depend"):
        ops.floor(x).sum().backward()
    with no_grad():
        assert not ops.exp(x).requires_grad


INTEGERS = np.arange(-3, 4)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + x,
        lambda x: ops.multiply(x, 2),
        ops.square,
        ops.negative,
        ops.abs,
        ops.sum,
        ops.max,
        ops.cumsum,
        ops.sign,
        ops.trunc,
        ops.round,
        lambda x: ops.floor_divide(x, 2),
        lambda x: ops.mod(x, 2),
        lambda x: ops.power(x, 2),
        lambda x: ops.clip(x, -1, 1),
        lambda x: ops.where(x > 0, x, 0),
        lambda x: ops.concatenate([x, x]),
        lambda x: ops.pad(x, 1),
        lambda x: ops.segment_max(x, np.zeros(7, int)),
        ops.sort,
        ops.diff,
        ops.unique,
    ],
)
def test_arithmetic_of_integers_stays_integer(function):
    assert function(INTEGERS).dtype.kind == "i"


@pytest.mark.parametrize("name", ["exp", "sqrt", "floor", "mean", "std", "erf", "median", "norm"])
def test_functions_of_real_values_of_integers_give_floatx(name):
    with np.errstate(invalid="ignore"):
        assert getattr(ops, name)(INTEGERS).dtype == np.float32


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "uint32", "int64"])
def test_python_integers_take_the_dtype_of_integer_arrays(dtype):
    x = np.array([1, 2, 100], dtype)
    for y in (
        ops.add(x, 1),
        ops.multiply(2, Tensor(x[:2])),
        ops.floor_divide(x, 2),
        ops.power(x[:2], 3),
        ops.clip(x, 0, 50),
        ops.where(x > 1, x, 0),
        ops.maximum(x, 7),
    ):
        assert y.dtype == dtype
    assert ops.add(x > 1, 1).dtype == np.int32
    assert ops.add(np.ones(2, "uint8"), 300).tolist() == [301, 301]  # what does not fit is kept
    assert ops.less(np.ones(2, "int8"), 200).all()


def test_mixed_dtypes():
    x = Tensor(A)
    assert (x + np.ones(4)).dtype == np.float32  # a plain array takes the tensor's dtype
    assert (np.ones(4) * x).dtype == np.float32
    assert (x * np.float64(2)).dtype == np.float32
    assert ops.add(np.ones(3), 1.5).dtype == np.float64
    assert ops.add(np.ones(3, "f"), 1.5).dtype == np.float32
    assert ops.add(INTEGERS, 1.5).dtype == np.float32
    assert ops.divide(INTEGERS, 2).dtype == np.float32
    assert ops.stack([np.float64(1), np.float64(2)]).dtype == np.float64
    assert ops.stack([1.0, 2.0]).dtype == np.float32
    assert Tensor(A.astype("float64")).sum().dtype == np.float64
    for name in ("argmax", "argsort", "count_nonzero", "searchsorted"):
        args = (A[0], A) if name == "searchsorted" else (A,)
        assert getattr(ops, name)(*args).dtype == np.int32


NUMPY = [
    lambda f: f.exp,
    lambda f: f.sinh,
    lambda f: f.transpose,
    lambda f: f.cumsum,
    lambda f: f.sort,
    lambda f: f.ravel,
    lambda f: f.linalg.norm,
    lambda f: lambda x: f.sum(x, 0),
    lambda f: lambda x: f.mean(x, axis=1, keepdims=True),
    lambda f: lambda x: f.maximum(x, 0.5),
    lambda f: lambda x: f.where(x > 0.5, x, 0.0),
    lambda f: lambda x: f.concatenate([x, x], 1),
    lambda f: lambda x: f.stack([x, x]),
    lambda f: lambda x: f.pad(x, 1),
    lambda f: lambda x: f.clip(x, 0.2, 0.7),
    lambda f: lambda x: f.take(x, np.array([0, 2]), 1),
    lambda f: lambda x: f.reshape(x, (4, 3)),
    lambda f: lambda x: f.swapaxes(x, 0, 1),
    lambda f: lambda x: f.tensordot(x, x, 2),
    lambda f: lambda x: f.quantile(x, 0.3, axis=0),
    lambda f: lambda x: f.linalg.det(x[:, :3]),
    lambda f: lambda x: f.diff(x, axis=0),
    lambda f: lambda x: f.repeat(x, 2, axis=0),
    lambda f: lambda x: f.split(x, 2, axis=1)[1],
]


@pytest.mark.parametrize("i", range(len(NUMPY)))
def test_numpy_functions_on_tensors_are_the_ops(i):
    function = NUMPY[i](np)
    x = Tensor(A, requires_grad=True)
    y = function(x)
    assert isinstance(y, Tensor)
    np.testing.assert_allclose(y.data, function(A), rtol=1e-6)
    assert y.requires_grad


def test_numpy_ufuncs_without_an_op_are_refused():
    with pytest.raises(TypeError, match="of picodl"):
        np.spacing(Tensor(A))
    with pytest.raises(TypeError, match="no gradient"):
        np.add(Tensor(A), 1, out=np.zeros((3, 4), "f"))


SYMBOLIC = [
    (ops.exp, (None, 4)),
    (lambda x: x * 2 + 1, (None, 4)),
    (lambda x: ops.sum(x, axis=1), (None,)),
    (lambda x: ops.mean(x, axis=-1, keepdims=True), (None, 1)),
    (lambda x: ops.reshape(x, (-1, 2, 2)), (None, 2, 2)),
    (lambda x: ops.concatenate([x, x], 1), (None, 8)),
    (lambda x: ops.expand_dims(x, 1), (None, 1, 4)),
    (lambda x: ops.split(x, 2, axis=1)[1], (None, 2)),
    (lambda x: x[:, 1:3], (None, 2)),
    (lambda x: ops.transpose(x), (4, None)),
    (lambda x: ops.pad(x, ((0, 0), (1, 1))), (None, 6)),
    (lambda x: ops.norm(x, axis=1), (None,)),
    (lambda x: ops.top_k(x, 2)[0], (None, 2)),
    (lambda x: ops.swapaxes(x, 0, 1), (4, None)),
    (lambda x: ops.map(lambda row: row * row, x), (None, 4)),
    (lambda x: ops.quantile(x, 0.5, axis=1), (None,)),
    (lambda x: ops.where(ops.greater(x, 0.0), x, 0.0), (None, 4)),
    (lambda x: np.tanh(x), (None, 4)),
    (lambda x: ops.einsum("bi,bj->bij", x, x), (None, 4, 4)),
    (lambda x: ops.meshgrid(x[0], x[1])[0], (4, 4)),
    (lambda x: ops.stack(ops.unstack(x, axis=1), 1), (None, 4)),
]


_STACK, _IDS = Symbol((None, 3, 3), "float32"), Symbol((None,), "int32")
SYMBOLIC += [
    # matrices of zeros have no inverse
    (lambda x: ops.inv(_STACK), (None, 3, 3)),
    (lambda x: ops.solve(_STACK, Symbol((None, 3, 2), "float32")), (None, 3, 2)),
    (lambda x: ops.cholesky(_STACK), (None, 3, 3)),
    (lambda x: ops.logdet(_STACK), (None,)),
    (lambda x: ops.solve_triangular(_STACK, Symbol((None, 3), "float32")), (None, 3)),
    # sizes that are divided
    (lambda x: ops.split(x, 2)[0], (None, 4)),
    (lambda x: ops.reshape(x, (-1, 12)), (None, 12)),
    # an axis of unknown size that meets one of a known size
    (lambda x: x + Symbol((3, 4), "float32"), (3, 4)),
    (lambda x: x + Symbol((5, None), "float32"), (5, 4)),
    (lambda x: Symbol((None, None, 4), "float32") * np.ones((6, 4), "f"), (None, 6, 4)),
    (lambda x: ops.matmul(Symbol((None, None), "float32"), np.ones((4, 3), "f")), (None, 3)),
    (lambda x: ops.unstack(Symbol((None, None), "float32"), 3, axis=1)[0], (None,)),
    (lambda x: ops.vstack([x, Symbol((None, None), "float32")]), (None, 4)),
    # sizes that depend on the values
    (lambda x: ops.nonzero(x)[0], (None,)),
    (lambda x: ops.unique(x), (None,)),
    (lambda x: ops.where(x > 0)[1], (None,)),
    (lambda x: ops.segment_sum(x, _IDS), (None, 4)),
    (lambda x: ops.segment_sum(x, _IDS, num_segments=3), (3, 4)),
    (lambda x: ops.one_hot(_IDS, 1), (None, 1)),
]


@pytest.mark.parametrize(("function", "shape"), SYMBOLIC)
def test_symbols_give_symbols(function, shape):
    y = function(Symbol((None, 4), "float32", "x"))
    assert isinstance(y, Symbol)
    assert y.shape == shape


def test_comparisons_and_logic_of_symbols():
    x = Symbol((None, 4), "float32", "x")
    for y in (x < 1, x <= 1, x > 1, x >= 1, x != 1, np.ones(4) < x, (x > 0) & (x < 1), ~(x > 0)):
        assert (y.shape, y.dtype) == ((None, 4), "bool")
    for y in ((x > 0) | (x < -1), (x > 0) ^ (x > 1), np.ones(4, bool) & (x > 0)):
        assert (y.shape, y.dtype) == ((None, 4), "bool")
    assert (+x, round(x).shape, round(x, 2).shape) == (x, (None, 4), (None, 4))
    assert x.reshape((-1, 2, 2)).shape == x.reshape(-1, 2, 2).shape == (None, 2, 2)
    assert ops.expand_dims(x, 1).squeeze(1).shape == ops.expand_dims(x, 1).squeeze().shape
    assert x == x and x in {x: 1}
    inputs = Input((4,))
    model = Model(inputs, ops.where((inputs > 0) & (inputs != 0.5), inputs, -1.0))
    given = np.array([[0.5, -2, 3, 0]], "f")
    assert model.predict(given, verbose=0).tolist() == [[-1, -1, 3, -1]]


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32"])
def test_images_of_integers_stay_integers(dtype):
    x = np.array([0, 1, 126, 127], dtype).reshape(1, 2, 2, 1)
    y = ops.image.resize(x, (4, 4))
    expected = [[0, 0, 1, 1], [32, 32, 32, 32], [94, 95, 95, 96], [126, 126, 127, 127]]
    assert y.dtype == dtype and y[0, :, :, 0].tolist() == expected
    assert ops.image.resize(x, (4, 4), "nearest").dtype == dtype
    sharp = ops.image.resize(x, (4, 4), "bicubic")
    assert sharp.dtype == dtype
    assert (sharp.max() == 127) == (dtype == "int8")  # the largest it holds
    assert ops.image.resize(Symbol((None, 2, 2, 1), dtype), (4, 4)).dtype == dtype


def test_names_of_paddings_and_formats_may_be_capitals():
    x, w = np.arange(16, dtype="f").reshape(1, 4, 4, 1), np.ones((2, 2, 1, 1), "f")
    for function, kernel in ((ops.conv, w), (ops.conv_transpose, w), (ops.depthwise_conv, w),
                             (ops.max_pool, 2), (ops.image.extract_patches, 2)):  # fmt: skip
        for name in ("same", "valid"):
            y = function(x, kernel, padding=name)
            given = function(x, kernel, padding=name.upper(), data_format="CHANNELS_LAST")
            np.testing.assert_array_equal(given, y)


@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 4), (3, 3)])
def test_lu_factor_of_matrices_of_any_shape(shape):
    a = np.random.default_rng(0).normal(size=shape)
    lu, pivots = ops.lu_factor(a)
    m, n = shape[-2:]
    k = min(m, n)
    assert (lu.shape, pivots.shape) == (shape, (*shape[:-2], k))
    lower, upper = np.tril(lu[..., :k], -1) + np.eye(m, k), np.triu(lu[..., :k, :])
    expected = a.reshape(-1, m, n).copy()
    for matrix, steps in zip(expected, pivots.reshape(-1, k), strict=True):
        for row, other in enumerate(steps):
            matrix[[row, other]] = matrix[[other, row]]
    np.testing.assert_allclose(lower @ upper, expected.reshape(shape), atol=1e-12)
    assert ops.lu_factor(Symbol((None, 4, 3), "float32"))[1].shape == (None, 3)


@pytest.mark.parametrize("name", ["erf", "erfc", "erfinv", "gammainc", "i0"])
def test_special_functions_of_half_precision_stay_so(name):
    x = np.array([0.25, 0.5], "float16")
    arguments = (x, x) if name == "gammainc" else (x,)
    y = getattr(ops, name)(*arguments)
    assert y.dtype == np.float16
    np.testing.assert_allclose(y, getattr(special, name)(*map(np.float64, arguments)), rtol=1e-3)


def test_images_of_half_precision_stay_so():
    x = np.ones((3, 3, 1), "float16")
    move = np.array([1, 0, 0.5, 0, 1, 0, 0, 0], "f")
    assert ops.image.affine_transform(x, move).dtype == np.float16
    assert ops.image.map_coordinates(x, np.zeros((3, 2), "f"), 1).dtype == np.float16


def test_indices_and_array_are_broadcast_in_take_along_axis():
    x, ids = np.arange(12.0).reshape(1, 1, 3, 4), np.array([0, 2, 2, 1]).reshape(1, 4, 1, 1)
    expected = np.take_along_axis(x, ids, 2)
    np.testing.assert_array_equal(ops.take_along_axis(x, ids, 2), expected)
    assert expected.shape == (1, 4, 1, 4)
    gradcheck(lambda a: ops.take_along_axis(a, ids, 2), x)


def test_linspace_gives_the_steps_of_arrays():
    start, stop = np.zeros((2, 3), "f"), np.arange(6, dtype="f").reshape(2, 3)
    y, step = ops.linspace(start, stop, 5, retstep=True)
    assert (y.shape, y.dtype, step.dtype) == ((5, 2, 3), np.float32, np.float32)
    np.testing.assert_allclose(step, stop / 4)
    y, step = ops.linspace(0, 1, 5, retstep=True)
    assert step == 0.25


def test_no_nan_is_like_another():
    values, counts = ops.unique(np.array([np.nan, 1, np.nan, 1], "f"), return_counts=True)
    assert np.isnan(values).tolist() == [False, True, True] and counts.tolist() == [2, 1, 1]


def test_variances_of_half_precision_do_not_overflow():
    x = (np.random.default_rng(0).normal(size=(4, 5000)) * 30).astype("float16")
    for y, exact in (
        (ops.var(x, 1), x.astype("d").var(1)),
        (ops.std(x, 1), x.astype("d").std(1)),
        (ops.moments(x, [1])[1], x.astype("d").var(1)),
    ):
        assert y.dtype == np.float16
        np.testing.assert_allclose(y, exact, rtol=1e-3)


def test_differences_of_bools_are_where_they_differ():
    assert ops.diff(np.array([True, True, False])).tolist() == [False, True]


def test_logic_of_tensors():
    a, b = Tensor(np.array([True, True, False])), Tensor(np.array([True, False, False]))
    assert (a & b).data.tolist() == [True, False, False]
    assert (a | b).data.tolist() == [True, True, False]
    assert (a ^ b).data.tolist() == (a ^ b.data).data.tolist() == [False, True, False]
    assert (~a).data.tolist() == [False, False, True]
    assert round(Tensor([1.26, 2.0]), 1).data.tolist() == np.float32([1.3, 2]).tolist()


def test_no_size_makes_a_wrong_op_on_symbols_right():
    x = Symbol((None, 4), "float32", "x")
    with pytest.raises(ValueError, match=r"add cannot be called on symbols of shape \(None, 4\)"):
        ops.add(x, np.ones((2, 3)))
    with pytest.raises(ValueError, match="reshape cannot be called"):
        ops.reshape(x, (-1, 7, 5))
    with pytest.raises(ValueError, match="while_loop cannot be called"):  # it works for one number
        ops.while_loop(lambda v: v < 3, lambda v: v + 1, Symbol((None,), "float32"))


def test_dtype_of_symbols():
    x = Symbol((None, 4), "float32")
    assert ops.argmax(x, 1).dtype == "int32"
    assert ops.isnan(x).dtype == "bool"
    assert ops.one_hot(Symbol((None,), "int32"), 5).shape == (None, 5)
    assert ops.exp(Symbol((2,), "float64")).dtype == "float64"


@pytest.mark.parametrize("name", ["erf", "erfc", "erfinv", "i0"])
def test_special_functions_are_those_of_scipy(name):
    x = np.linspace(-0.9, 0.9, 7)
    np.testing.assert_allclose(getattr(ops, name)(x), getattr(special, name)(x), rtol=1e-12)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (1,), ()])
def test_empty_and_single_elements(shape):
    a = np.ones(shape, "f")
    for function in (ops.exp, ops.sort, ops.ravel, ops.sum, ops.cumsum, ops.flip, ops.negative):
        if function is ops.sort and not shape:
            continue
        x = Tensor(a, requires_grad=True)
        y = function(x)
        y.sum().backward()
        assert x.grad.shape == shape
        assert x.grad.dtype == np.float32
    with pytest.raises(ValueError, match="is empty"):
        ops.max(np.ones((0, 3)), 0)


@pytest.mark.parametrize(
    "name",
    ["celu", "elu", "gelu", "hard_sigmoid", "leaky_relu", "log_sigmoid", "mish", "relu", "selu",
     "sigmoid", "silu", "softplus", "softsign", "squareplus", "tanh"],
)  # fmt: skip
def test_activations_of_a_single_number(name):
    function = getattr(ops, name)
    row = function(np.array([0.3], "f"))
    for x in (0.3, np.float32(0.3), np.array(0.3, "f")):
        y = function(x)
        assert (np.shape(y), y.dtype) == ((), np.float32)
        np.testing.assert_allclose(y, row[0], rtol=1e-6)
    gradcheck(function, np.array(0.3))


def test_numpy_functions_without_an_op_do_not_lose_a_gradient_in_silence():
    x = Tensor(A[0], requires_grad=True)
    with pytest.raises(TypeError, match="would lose the gradient"):
        np.convolve(x, np.ones(2, "f"))
    assert isinstance(np.convolve(Tensor(A[0]), np.ones(2, "f")), np.ndarray)
    assert np.array_equal(x, A[0])
    with no_grad():
        assert isinstance(np.convolve(x, np.ones(2, "f")), np.ndarray)


def test_numpy_arguments_in_another_order_are_asked_for_by_name():
    x = Tensor(A, requires_grad=True)
    with pytest.raises(TypeError, match="after the first 2 by name"):
        np.mean(x, 0, np.float64)
    with pytest.raises(TypeError, match="after the first 1 by name"):
        np.unique(x, True)
    assert np.mean(x, 0, keepdims=True).shape == (1, 4)
    with pytest.raises(TypeError, match="would lose the gradient"):
        np.linalg.lstsq(x, A)
    with pytest.raises(TypeError, match="would lose the gradient"):
        np.broadcast_arrays(x, A)
    with pytest.raises(TypeError, match="after the first 2 by name"):
        np.sum(Symbol((None, 4), "float32"), 0, None)


def test_iteration_over_a_tensor_is_recorded():
    x = Tensor(A, requires_grad=True)
    total = None
    for i, row in enumerate(x):
        part = (row * i).sum()
        total = part if total is None else total + part
    total.backward()
    np.testing.assert_array_equal(x.grad, np.repeat([[0.0], [1.0], [2.0]], 4, 1))
    with pytest.raises(TypeError, match="without axes"):
        list(Tensor(1.0))


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8"])
def test_relu_hard_tanh_and_vander_of_integers_stay_integers(dtype):
    x = np.array([-3, 0, 1, 2]).astype(dtype) if dtype != "uint8" else np.arange(4).astype(dtype)
    for found, wanted in (
        (ops.relu(x), np.maximum(x, 0)),
        (ops.relu(np.tile(x, 3000)), np.tile(np.maximum(x, 0), 3000)),
        (ops.hard_tanh(x), np.clip(x.astype(int), -1, 1)),
        (ops.vander(x), np.vander(x)),
        (ops.vander(x, 2, increasing=True), np.vander(x, 2, increasing=True)),
    ):
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, wanted.astype(dtype))
    assert ops.relu(Input((3,), dtype=dtype)).dtype == dtype
    assert ops.vander(A[0]).dtype == "float32"


def test_relu_of_bools_gives_integers():
    for x in (A > 0.5, np.tile(A > 0.5, (500, 1))):
        for found in (ops.relu(x), ops.relu(Tensor(x)).numpy()):
            assert found.dtype == "int32" and np.array_equal(found, x)
    assert ops.relu(Input((3,), dtype="bool")).dtype == "int32"


def test_sizes_below_minus_one_are_refused():
    for shape in (-2, (-2, 4), [3, -4], (-3,)):
        with pytest.raises(ValueError, match="a size must be -1 or not negative; received"):
            ops.reshape(A, shape)
    with pytest.raises(ValueError, match="a size must be -1 or not negative; received"):
        ops.reshape(Input((4,)), (-2, 4))
    assert ops.reshape(A, -1).shape == (12,) and ops.reshape(A[:1, :1], ()).shape == ()
