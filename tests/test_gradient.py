"""Functions that give derivatives of functions: grad, value_and_grad, jacobian, per_sample_grad."""

import numpy as np
import pytest

import picodl
from picodl import ops
from picodl.gradient import grad, jacobian, per_sample_grad, value_and_grad
from picodl.tensor import Tensor, no_grad

X = np.array([0.5, -1.0, 2.0])


def test_gradient_of_an_array_is_an_array():
    g = grad(lambda x: (x**3).sum())(X)
    assert type(g) is np.ndarray
    np.testing.assert_allclose(g, 3 * X**2)


def test_value_comes_along():
    value, g = value_and_grad(lambda w, x: ((w * x) ** 2).sum(), wrt=(0, 1))(2 * X, X)
    np.testing.assert_allclose(value, (2 * X * X) @ (2 * X * X))
    np.testing.assert_allclose(g[0], 4 * X**3)
    np.testing.assert_allclose(g[1], 8 * X**3)


def test_structures_keep_their_form():
    nest = {"w": [X, np.array([1, 2])], "b": 2.0}
    g = grad(lambda p: (p["w"][0] * p["b"]).sum())(nest)
    np.testing.assert_allclose(g["w"][0], np.full(3, 2.0))
    assert g["w"][1] is None  # integers have no gradient
    assert g["b"].dtype == np.float32
    np.testing.assert_allclose(g["b"], X.sum())


def test_same_tensor_passed_twice_counts_as_two_variables():
    x = Tensor(X, requires_grad=True)
    first, second = grad(lambda a, b: (a * a * b).sum(), wrt=(0, 1))(x, x)
    np.testing.assert_allclose(first.data, 2 * X * X)
    np.testing.assert_allclose(second.data, X * X)


def test_second_and_third_derivatives_by_nesting():
    f = lambda x: (ops.sin(x) * x).sum()  # noqa: E731
    third = grad(lambda x: grad(lambda y: grad(f)(y).sum())(x).sum())(X)
    np.testing.assert_allclose(third, -3 * np.sin(X) - X * np.cos(X))


def test_jacobian_and_hessian():
    a = np.arange(6.0).reshape(2, 3)
    np.testing.assert_allclose(jacobian(lambda x: ops.matmul(a, x))(X), a)
    hessian = jacobian(grad(lambda x: (x[0] * x[1] * x[2]) ** 2))(X)
    x, y, z = X
    np.testing.assert_allclose(
        hessian,
        [
            [2 * y * y * z * z, 4 * x * y * z * z, 4 * x * y * y * z],
            [4 * x * y * z * z, 2 * x * x * z * z, 4 * x * x * y * z],
            [4 * x * y * y * z, 4 * x * x * y * z, 2 * x * x * y * y],
        ],
    )
    assert jacobian(lambda x: ops.stack([x, x * x]))(X).shape == (2, 3, 3)
    assert jacobian(lambda x: x[:0])(X).shape == (0, 3)


def test_create_graph_gives_tensors_that_can_be_differentiated():
    x = Tensor(X, requires_grad=True)
    slope = grad(lambda t: (t**4).sum(), create_graph=True)(x)
    (slope**2).sum().backward()
    np.testing.assert_allclose(x.grad, 2 * 4 * X**3 * 12 * X**2)


def test_graph_outside_the_function_stays_usable():
    w = Tensor(X, requires_grad=True)
    h = w * w
    g = grad(lambda t: (t * h).sum())(X)
    np.testing.assert_allclose(g, X * X)
    assert w.grad is None
    h.sum().backward()
    np.testing.assert_allclose(w.grad, 2 * X)


def test_no_grad_outside_makes_no_difference():
    with no_grad():
        np.testing.assert_allclose(grad(lambda x: (x * x).sum())(X), 2 * X)


def test_zeros_where_the_result_does_not_depend():
    a, b = grad(lambda x, y: (y * y).sum(), wrt=(0, 1))(X, X)
    np.testing.assert_array_equal(a, np.zeros(3))
    np.testing.assert_allclose(b, 2 * X)


def test_with_respect_to_a_model_and_to_tensors():
    model = picodl.Sequential([picodl.Input((3,)), picodl.layers.Dense(2), picodl.layers.Dense(1)])
    x = np.ones((4, 3), "f")
    g = grad(lambda x: model(x).sum(), wrt=model)(x)
    assert [part.shape for part in g] == [w.shape for w in model.trainable_weights]
    model(x).sum().backward()
    for part, weight in zip(g, model.trainable_weights, strict=True):
        np.testing.assert_allclose(part, weight.grad, rtol=1e-6)
    kernel = model.trainable_weights[0]
    np.testing.assert_allclose(grad(lambda x: model(x).sum(), wrt=kernel)(x), g[0])


def test_per_sample_gradients_add_up():
    model = picodl.Sequential([picodl.Input((3,)), picodl.layers.Dense(2, activation="tanh")])
    x = np.random.default_rng(0).normal(size=(5, 3)).astype("f")
    y = np.ones((5, 2), "f")
    loss = lambda x, y: ((model(x) - y) ** 2).sum()  # noqa: E731
    each = per_sample_grad(loss, model)(x, y)
    whole = grad(loss, model)(x, y)
    for part, total in zip(each, whole, strict=True):
        assert part.shape == (5, *total.shape)
        np.testing.assert_allclose(part.sum(0), total, rtol=1e-5, atol=1e-6)


def test_functions_that_cannot_be_differentiated_are_named():
    with pytest.raises(TypeError, match="returned ndarray"):
        grad(lambda x: np.asarray(x).sum(keepdims=True))(X)
    with pytest.raises(TypeError, match="a tensor of int32"):
        grad(lambda x: ops.argmax(x))(X)
    with pytest.raises(ValueError, match=r"shape \(3,\).*use jacobian"):
        grad(lambda x: x * x)(X)
    with pytest.raises(ValueError, match="not passed by position"):
        grad(lambda x: x.sum(), wrt=1)(X)
    with pytest.raises(TypeError, match="nothing to differentiate"):
        grad(lambda x: x.sum())(np.arange(3))
    with pytest.raises(TypeError, match="wrt must be argument numbers"):
        grad(lambda x: x.sum(), wrt=Tensor(X))(X)
