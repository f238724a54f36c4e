"""The engine: recording, walking back, and what a Tensor is to the rest of numpy."""

from __future__ import annotations

import copy
import operator
import pickle
import threading
import warnings

import numpy as np
import pytest

import picodl
from picodl import ops
from picodl.tensor import Tensor, gradients, no_grad


def leaf(values: object, dtype: str = "float64") -> Tensor:
    return Tensor(np.asarray(values, dtype), requires_grad=True)


def test_gradient_of_a_product_is_the_other_factor() -> None:
    x, y = leaf([1.0, 2.0]), leaf([3.0, 4.0])
    (x * y).sum().backward()
    np.testing.assert_array_equal(x.grad, [3, 4])
    np.testing.assert_array_equal(y.grad, [1, 2])


def test_a_tensor_used_twice_adds_up() -> None:
    x = leaf([3.0])
    y = x * x
    (y + y).sum().backward()
    np.testing.assert_array_equal(x.grad, [12])


def test_leaf_gradients_add_up_over_calls_until_zero_grad() -> None:
    x = leaf([1.0])
    for _ in range(2):
        (2 * x).sum().backward()
    np.testing.assert_array_equal(x.grad, [4])
    x.zero_grad()
    assert x.grad is None


@pytest.mark.parametrize("shapes", [((3,), (2, 3)), ((2, 1), (1, 3)), ((), (2, 2)), ((1,), (0,))])
def test_broadcasting_is_undone_in_both_directions(shapes: tuple) -> None:
    a, b = leaf(np.ones(shapes[0])), leaf(np.ones(shapes[1]))
    (a * b).sum().backward()
    assert a.grad.shape == shapes[0] and b.grad.shape == shapes[1]
    size = np.broadcast_shapes(*shapes)
    assert a.grad.sum() == np.prod(size) and b.grad.sum() == np.prod(size)


def test_a_chain_of_100_000_ops_works_and_frees_without_recursion() -> None:
    x = y = leaf([1.0])
    for _ in range(100_000):
        y = y + 1.0
    y.backward()
    assert x.grad == 1
    y = x
    for _ in range(100_000):
        y = y + 1.0
    del y


def test_backward_twice_needs_retain_graph() -> None:
    x = leaf([1.0])
    y = (x * x).sum()
    y.backward(retain_graph=True)
    y.backward()
    with pytest.raises(RuntimeError, match="retain_graph=True"):
        y.backward()
    np.testing.assert_array_equal(x.grad, [4])


def test_a_second_loss_over_a_used_trunk_changes_nothing() -> None:
    x = leaf([1.0])
    trunk = x * 2
    first, second = (trunk * 3).sum(), (trunk * 5).sum() + (x * x).sum()
    first.backward()
    before = x.grad.copy()
    with pytest.raises(RuntimeError, match="already used"):
        second.backward()
    np.testing.assert_array_equal(x.grad, before)


def test_retain_graph_leaves_gradients_on_every_node() -> None:
    x = leaf([2.0])
    y = x * x
    z = (y * 3).sum()
    z.backward(retain_graph=True)
    np.testing.assert_array_equal(y.grad, [3])


def test_second_derivative_through_create_graph() -> None:
    x = leaf([2.0, -1.0])
    y = (x * x * x).sum()
    y.backward(create_graph=True)
    first = x.grad
    assert isinstance(first, Tensor)
    x.zero_grad()
    first.sum().backward()
    np.testing.assert_allclose(x.grad, 6 * x.data)


def test_gradients_stop_at_inner_tensors_and_leave_grad_alone() -> None:
    x = leaf([2.0])
    y = x * 3
    [(node, g)] = gradients([(y * y).sum()], [None], [y])
    assert node is y and g == 12 and x.grad is None


def test_no_grad_records_nothing_in_this_thread_only() -> None:
    x = leaf([1.0])
    seen = []
    with no_grad():
        assert not (x * 2).requires_grad
        other = threading.Thread(target=lambda: seen.append((x * 2).requires_grad))
        other.start()
        other.join()
    assert seen == [True] and (x * 2).requires_grad


def test_backward_without_anything_to_differentiate_says_so() -> None:
    with pytest.raises(RuntimeError, match="requires_grad=True"):
        Tensor([1.0]).backward()


def test_integers_have_no_gradients() -> None:
    with pytest.raises(TypeError, match="floating-point"):
        Tensor([1, 2], requires_grad=True)


def test_strings_and_objects_are_refused() -> None:
    with pytest.raises(TypeError, match="numbers"):
        Tensor(["a", "b"])


def test_python_floats_become_floatx_and_arrays_keep_their_dtype() -> None:
    assert Tensor([1.0]).dtype == np.float32
    assert Tensor(np.ones(2)).dtype == np.float64
    assert (Tensor([1.0]) * np.float64(2)).dtype == np.float32
    assert (Tensor([1.0]) + np.ones(1)).dtype == np.float32
    assert (Tensor([1.0]) + np.arange(1)).dtype == np.float32


@pytest.mark.parametrize(
    "left, right",
    [
        (lambda c, x: c - x, lambda c, x: -(x - c)),
        (lambda c, x: c / x, lambda c, x: (x / c) ** -1.0),
        (lambda c, x: c @ x, lambda c, x: ops.matmul(c, x)),
        (lambda c, x: 2.0**x, lambda c, x: ops.exp(x * float(np.log(2)))),
    ],
)
def test_arrays_on_the_left_keep_the_gradient(left: object, right: object) -> None:
    c = np.array([1.0, 2.0, 4.0])
    grads = []
    for fn in (left, right):
        x = leaf([1.0, 2.0, 0.5])
        out = fn(c, x)
        assert isinstance(out, Tensor)
        out.sum().backward()
        grads.append(x.grad)
    np.testing.assert_allclose(grads[0], grads[1])


def test_numpy_functions_are_answered_by_ops() -> None:
    x = leaf([1.0, 2.0])
    for y in (np.exp(x), np.where(x > 1, x, 0), np.concatenate([x, x]), np.sum(x)):
        assert isinstance(y, Tensor) and y.requires_grad
    for call in (
        lambda: np.add(x, 1, out=np.zeros(2)),
        lambda: np.add(x, 1, out=x),  # x would not change
        lambda: np.exp(x, out=x),
    ):
        with pytest.raises(TypeError, match=r"picodl\.ops"):
            call()
    with pytest.raises(TypeError, match=r"picodl\.ops"):
        np.spacing(x)
    assert np.array_equal(x, x.data)


def test_a_tensor_added_to_an_array_in_place_makes_a_tensor() -> None:
    for change, want, slope in (
        (operator.iadd, [11, 22], [1, 1]),
        (operator.isub, [9, 18], [-1, -1]),
        (operator.imul, [10, 40], [10, 20]),
        (operator.itruediv, [10, 10], [-10, -5]),
    ):
        start, x = np.array([10.0, 20.0]), leaf([1.0, 2.0])
        total = change(start, x)
        np.testing.assert_allclose(total, want)
        np.testing.assert_array_equal(start, [10, 20])
        total.sum().backward()
        np.testing.assert_allclose(x.grad, slope)
    wide = np.zeros(1, np.int32)
    wide += leaf([1.0, 2.0])  # grows and turns to floats, as an array could not
    assert wide.shape == (2,) and wide.dtype == np.float64


def test_a_tensor_behaves_as_an_array_where_a_user_meets_one() -> None:
    x = Tensor([[1.0, 2.0], [3.0, 4.0]])
    assert len(x) == 2 and x.shape == (2, 2) and x.ndim == 2 and x.size == 4
    assert float(Tensor(2.5)) == 2.5 and int(Tensor(2)) == 2 and f"{Tensor(2.5):.2f}" == "2.50"
    assert (x == x.data).all() and (x > 1).sum() == 3 and [float(r.sum()) for r in x] == [3, 7]
    assert "requires_grad" not in repr(x) and "float32" in repr(x)
    assert hash(x) == hash(x) and np.asarray(x) is x.data


def test_pickling_and_copying_take_the_data_only() -> None:
    x = leaf([1.0])
    y = x * 2
    for z in (pickle.loads(pickle.dumps(y)), copy.deepcopy(y)):
        np.testing.assert_array_equal(z.data, [2])
        assert z._backward is None


def test_memory_of_activations_is_freed_while_walking_back() -> None:
    import weakref

    x = leaf(np.ones(10))
    y = x * 2
    z = y * 3
    watch = weakref.ref(y)
    loss = z.sum()
    del y, z
    loss.backward()
    assert watch() is None


def test_custom_gradient_is_used_and_refuses_second_derivatives() -> None:
    @picodl.custom_gradient
    def step(x: object) -> object:
        def grad(*args: object, upstream: object) -> object:
            return upstream * 5.0

        return ops.sign(x), grad

    x = leaf([-1.0, 2.0])
    step(x).sum().backward()
    np.testing.assert_array_equal(x.grad, [5, 5])
    assert isinstance(step(np.array([1.0])), np.ndarray)
    with pytest.raises(NotImplementedError, match="step"):
        step(x).sum().backward(create_graph=True)


@pytest.mark.parametrize("fn", [ops.sqrt, ops.log, lambda x: x**0.5, lambda x: 1 / x, ops.rsqrt])
def test_a_zero_from_above_wins_over_an_infinite_slope(fn: object) -> None:
    x = leaf([0.0, 4.0])
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        ops.where(np.array([False, True]), fn(x), 0.0).sum().backward()
    assert x.grad[0] == 0 and np.isfinite(x.grad[1])


def test_variables_of_names_integers_and_returned_values():
    v = picodl.Variable("ones", shape=(2, 3), name="v")
    assert (v.shape, v.dtype, v.data.sum()) == ((2, 3), np.float32, 6)
    with pytest.raises(ValueError, match="needs a shape"):
        picodl.Variable("zeros")
    steps = picodl.Variable(0)
    assert steps.dtype.kind == "i" and not steps.trainable
    assert picodl.Variable(np.ones(2, "int8")).dtype == np.int8
    assert picodl.Variable(np.ones(2, bool)).dtype == bool
    assert picodl.Variable(np.ones(2)).dtype == np.float32
    assert picodl.Variable(3, dtype="float32").dtype == np.float32
    assert (int(steps.assign_add(2)), int(steps.assign_sub(1)), int(steps)) == (2, 1, 1)
    new = v.assign([[1, 2, 3], [4, 5, 6]])
    assert new.dtype == np.float32
    np.testing.assert_array_equal(new, v.numpy())


def test_bits_and_truth_go_by_numpys_operators() -> None:
    a, b = np.array([5, 6]), np.array([3, 3])
    for x in (Tensor(a), Tensor(a > 5)):
        other = b if x.dtype.kind == "i" else b > 2
        np.testing.assert_array_equal(~x, ~x.data)
        np.testing.assert_array_equal(x & other, x.data & other)
        np.testing.assert_array_equal(other | x, other | x.data)
        np.testing.assert_array_equal(x ^ other, x.data ^ other)
        assert (x & other).dtype == x.dtype
    with pytest.raises(TypeError, match="integers and bools"):
        ~leaf([1.0])
