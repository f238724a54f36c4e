"""Losses: Keras's values and gradients, shapes that must fit, weights, masks, configs."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import picodl
from picodl import config, losses, metrics, ops
from picodl.losses.base import REDUCTIONS, is_loss_function
from picodl.tensor import Tensor
from picodl.testing import gradcheck

GOLDEN = Path(__file__).parent / "golden" / "losses.h5"
RNG = np.random.default_rng(0)
P = RNG.dirichlet(np.ones(3), 4).astype(np.float32)
LABELS = np.array([0, 2, 1, 1])
HOT = np.eye(3, dtype=np.float32)[LABELS]
CLASSES = {
    name: found
    for name, found in vars(losses).items()
    if inspect.isclass(found) and issubclass(found, losses.Loss)
}
CONCRETE = sorted(set(CLASSES) - {"Loss", "LossFunctionWrapper"})
OF_LABELS = {
    "SparseCategoricalCrossentropy",
    "CategoricalGeneralizedCrossEntropy",
    "Circle",
    "Triplet",
}


def example(name):
    """Targets and predictions a loss takes."""
    if name in OF_LABELS:
        return LABELS, P
    if name == "CTC":
        return np.array([[1, 2], [2, 0]]), RNG.normal(size=(2, 5, 3)).astype(np.float32)
    if name == "GaussianNLL":
        return P[:, :1], P[:, 1:] + 0.5
    return HOT, P


def golden_names():
    names = []
    with h5py.File(GOLDEN, "r") as f:
        f.visit(names.append)
        return [n for n in names if "note" in f[n].attrs]


@pytest.fixture
def float64():
    before = config.floatx()
    config.set_floatx("float64")
    yield
    config.set_floatx(before)


def agrees(found, case, path):
    """Equal to 1e-9 of the largest magnitude, where the peers agree and are finite."""
    expected = case[path][()]
    agreed = case["agreed"][path][()] if path in case.get("agreed", {}) else True
    agreed = agreed & np.isfinite(expected)
    assert found.shape == expected.shape
    scale = np.abs(expected[np.isfinite(expected)]).max(initial=0)
    # a gradient at the very bound of a clip: the peers give half of it, 1e-8 of the largest one
    error = np.where(agreed, found - expected, 0)
    assert np.abs(error).max(initial=0) <= 3e-8 * scale + 1e-12
    assert np.median(np.abs(error)) <= 1e-9 * scale + 1e-12


@pytest.mark.parametrize("name", golden_names())
def test_values_and_gradients_are_those_of_keras(name, float64):
    with h5py.File(GOLDEN, "r") as f:
        case = f[name]
        loss = getattr(losses, case.attrs["class"])(**json.loads(case.attrs["config"]))
        y_pred = Tensor(case["y_pred"][()], requires_grad=True)
        weight = case["sample_weight"][()] if "sample_weight" in case else None
        found = loss(case["y_true"][()], y_pred, weight)
        agrees(found.data, case, "outputs/0")
        if found.requires_grad:
            found.backward(case["upstream/0"][()])
        gradient = np.zeros(y_pred.shape) if y_pred.grad is None else y_pred.grad
        agrees(gradient, case, "input_grads/0")


# -------------------------------------------------------------------- every class


@pytest.mark.parametrize("name", CONCRETE)
def test_every_loss_has_gradient_dtype_config_and_function(name):
    loss = getattr(losses, name)()
    y_true, y_pred = example(name)
    value = loss(y_true, y_pred)
    assert isinstance(value, np.ndarray) and value.shape == () and value.dtype == np.float32
    tensor = Tensor(y_pred, requires_grad=True)
    recorded = loss(y_true, tensor)
    assert isinstance(recorded, Tensor) and recorded.data == value
    recorded.backward()
    assert tensor.grad.dtype == np.float32 and np.isfinite(tensor.grad).all()
    assert loss.loss(y_pred, y_true) == value

    again = losses.deserialize(json.loads(json.dumps(losses.serialize(loss))))
    assert type(again) is type(loss) and again.get_config() == loss.get_config()
    assert again(y_true, y_pred) == value

    each = getattr(losses, name)(reduction="none")(y_true, y_pred)
    if is_loss_function(loss.fn) and name not in ("CrossEntropyLoss",):
        np.testing.assert_array_equal(loss.fn(y_true, y_pred, **loss.kwargs), each)


@pytest.mark.parametrize("name", sorted(set(CONCRETE) - {"CTC"}))
def test_every_gradient_matches_differences(name):
    y_true, y_pred = example(name)
    loss = getattr(losses, name)()
    gradcheck(lambda p: loss(y_true.astype(np.float64), p), y_pred, tolerance=1e-5)


@pytest.mark.parametrize("name", sorted(set(CONCRETE) - {"CategoricalCrossentropy"}))
def test_nothing_is_0(name):
    y_true, y_pred = example(name)
    loss = getattr(losses, name)()
    for reduction in REDUCTIONS[:-1]:
        loss.reduction = reduction
        assert loss(y_true[:0], y_pred[:0]) == 0
    tensor = Tensor(y_pred[:0], requires_grad=True)
    loss(y_true[:0], tensor).backward()


@pytest.mark.parametrize("name", CONCRETE)
def test_a_symbol_gives_a_symbol(name):
    y_true, y_pred = example(name)
    if name in ("Circle", "Triplet"):  # they compare the samples of a batch
        return
    symbols = [picodl.Input(x.shape[1:], dtype=str(x.dtype)) for x in (y_true, y_pred)]
    assert getattr(losses, name)()(*symbols).shape == ()


# -------------------------------------------------------------------- shapes


@pytest.mark.parametrize(
    ("t", "p"), [((4,), (4, 1)), ((4, 1), (4,)), ((4, 2), (4, 2, 1)), ((4, 2, 1), (4, 2))]
)
def test_a_missing_last_axis_is_aligned(t, p):
    y = RNG.normal(size=8).astype(np.float32)[: np.prod(t)]
    q = RNG.normal(size=8).astype(np.float32)[: np.prod(p)]
    for name in ("mse", "mae", "huber", "log_cosh"):
        loss = losses.LossFunctionWrapper(losses.get(name))
        expected = loss(y[:, None], q[:, None])
        np.testing.assert_allclose(loss(y.reshape(t), q.reshape(p)), expected, rtol=1e-6)
        np.testing.assert_allclose(
            loss(y.reshape(t), Tensor(q.reshape(p), requires_grad=True)).data, expected, rtol=1e-6
        )


@pytest.mark.parametrize(
    ("t", "p"), [((4, 1), (4, 3)), ((4,), (4, 4)), ((4, 4), (4, 1)), ((3, 4), (4, 3)), ((4,), (5,))]
)
@pytest.mark.parametrize("name", ["mse", "bce", "categorical_crossentropy", "hinge", "dice"])
def test_other_shapes_are_refused_with_both_named(name, t, p):
    function = losses.get(name)
    with pytest.raises(ValueError) as error:
        losses.LossFunctionWrapper(function)(np.zeros(t), np.zeros(p))
    message = str(error.value)
    assert str(t) in message and str(p) in message and function.__name__ in message


def test_the_right_loss_is_named_for_labels_and_one_hot():
    with pytest.raises(ValueError, match="use SparseCategoricalCrossentropy"):
        losses.CategoricalCrossentropy()(LABELS, P)
    with pytest.raises(ValueError, match="use SparseCategoricalCrossentropy"):
        losses.CategoricalCrossentropy()(LABELS[:, None], P)
    with pytest.raises(ValueError, match="One-hot targets belong to CategoricalCrossentropy"):
        losses.SparseCategoricalCrossentropy()(HOT, P)
    with pytest.raises(ValueError, match="One output unit: BinaryCrossentropy"):
        losses.SparseCategoricalCrossentropy()(LABELS, P[:, :1])


def test_a_categorical_loss_of_one_class_is_reported():
    for name in ("CategoricalCrossentropy", "CategoricalFocalCrossentropy"):
        with pytest.warns(UserWarning, match="one class is always 0.*BinaryCrossentropy"):
            getattr(losses, name)()(HOT[:, :1], P[:, :1])


def test_a_loss_that_leaves_the_graph_is_refused():
    loss = losses.LossFunctionWrapper(lambda t, p: (t - p.data) ** 2, name="mine")
    assert loss(HOT, P).dtype == np.float32
    with pytest.raises(TypeError, match="'mine' returned ndarray, which has no gradient"):
        loss(HOT, Tensor(P, requires_grad=True))


def test_a_function_of_the_user_may_broadcast():
    loss = losses.LossFunctionWrapper(lambda t, p: ops.mean(ops.abs(t - p), -1), name="mine")
    np.testing.assert_allclose(loss(P[:, :1], P), np.abs(P[:, :1] - P).mean(), rtol=1e-6)
    np.testing.assert_allclose(
        loss(P[:, 0], P[:, 1:2]), np.abs(P[:, 0] - P[:, 1]).mean(), rtol=1e-6
    )


@pytest.mark.parametrize("data", [np.array(["a", "b"]), np.array([None, None]), {"a": 1}])
def test_data_that_is_no_numbers_is_refused(data):
    with pytest.raises(TypeError, match="Expected numbers"):
        losses.MeanSquaredError()(data, np.zeros(2))


# -------------------------------------------------------------------- weights, masks, reductions


def test_reductions_by_hand():
    e, w = np.array([[1.0], [2.0], [3.0]]), np.array([1.0, 0.0, 3.0])
    expected = {
        "sum_over_batch_size": (1 + 27) / 3,
        "mean": (1 + 27) / 3,
        "mean_with_sample_weight": (1 + 27) / 4,
        "sum": 28,
        "none": [1, 0, 27],
    }
    for reduction in REDUCTIONS:
        loss = losses.MeanSquaredError(reduction=reduction)
        np.testing.assert_allclose(loss(0 * e, e, w), expected[reduction])
        np.testing.assert_allclose(loss(0 * e, e, w[:, None]), expected[reduction])
        np.testing.assert_allclose(loss(0 * e, e, list(w)), expected[reduction])
    np.testing.assert_allclose(losses.MeanSquaredError(reduction=None)(0 * e, e), [1, 4, 9])


def test_weights_per_sample_reach_every_step_and_a_weighted_mean_is_one():
    e = RNG.normal(size=(2, 3, 4))
    values = (e * e).mean(-1)
    w = np.array([2.0, 0.5])
    loss = losses.MeanSquaredError()
    np.testing.assert_allclose(loss(0 * e, e, w), (values * w[:, None]).mean())
    steps = RNG.random((2, 3))
    np.testing.assert_allclose(loss(0 * e, e, steps), (values * steps).mean())
    np.testing.assert_allclose(loss(0 * e, e, 2.0), 2 * values.mean())
    loss = losses.MeanSquaredError(reduction="mean_with_sample_weight")
    np.testing.assert_allclose(
        loss(0 * e, e, w), np.average(values, weights=np.broadcast_to(w[:, None], (2, 3)))
    )


def test_one_number_per_sample_can_be_weighted_without_a_last_axis():
    e, w = np.array([1.0, 2.0, 3.0]), np.array([1.0, 0.0, 3.0])
    np.testing.assert_allclose(losses.MeanSquaredError()(0 * e, e, w), 28 / 3)
    steps = RNG.normal(size=(2, 3))
    weights = RNG.random((2, 3))
    expected = (steps**2 * weights).mean()
    for t, p in ((0 * steps, steps[..., None]), (0 * steps[..., None], steps)):
        np.testing.assert_allclose(losses.MeanSquaredError()(t, p, weights), expected)
        metric = metrics.MeanSquaredError()(t, p, weights)
        np.testing.assert_allclose(metric, expected / weights.mean())


def test_masked_values_count_neither_above_nor_below_the_line():
    e = RNG.normal(size=(2, 3, 4)).astype(np.float32)
    mask = np.array([[True, False, False], [True, True, False]])
    values = (e * e).mean(-1)
    w = np.array([2.0, 0.5], np.float32)

    def masked(reduction, weight=None, mask=mask):
        y_pred = Tensor(e, requires_grad=True)
        y_pred.mask = mask
        value = losses.MeanSquaredError(reduction=reduction)(0 * e, y_pred, weight)
        if reduction != "none":
            value.backward()
            assert (y_pred.grad[~mask] == 0).all()
        return value.data

    np.testing.assert_allclose(masked("mean"), values[mask].mean(), rtol=1e-6)
    np.testing.assert_allclose(masked("sum"), values[mask].sum(), rtol=1e-6)
    np.testing.assert_allclose(masked("none"), values * mask)
    weights = np.broadcast_to(w[:, None], mask.shape)
    np.testing.assert_allclose(masked("mean", w), (values * weights)[mask].mean(), rtol=1e-6)
    np.testing.assert_allclose(
        masked("mean_with_sample_weight", w),
        np.average(values[mask], weights=weights[mask]),
        rtol=1e-6,
    )
    assert masked("mean", mask=np.zeros((2, 3), bool)) == 0
    with pytest.raises(ValueError, match=r"mask of shape \(2, 4\) .* of shape \(2, 3\)"):
        masked("mean", mask=np.ones((2, 4), bool))


def test_a_loss_of_one_number_leaves_the_mask_out_with_a_word():
    y_pred = Tensor(P, requires_grad=True)
    y_pred.mask = np.array([True, False, True, True])
    loss = losses.LossFunctionWrapper(lambda t, p: ops.mean(ops.square(t - p)), name="mine")
    with pytest.warns(UserWarning, match="'mine' gives one number.*mask"):
        value = loss(HOT, y_pred)
    np.testing.assert_allclose(value.data, ((HOT - P) ** 2).mean(), rtol=1e-6)


def test_ctc_takes_the_number_of_steps_from_the_mask():
    labels, z = np.array([[1, 2], [2, 0]]), RNG.normal(size=(2, 6, 3))
    y_pred = Tensor(z, requires_grad=True)
    y_pred.mask = np.arange(6) < np.array([[4], [6]])
    for loss in (losses.CTC(), losses.LossFunctionWrapper(losses.get("ctc"))):
        loss.reduction = "none"
        found = loss(labels, y_pred)
    np.testing.assert_allclose(found.data[0], loss(labels[:1], z[:1, :4])[0])
    np.testing.assert_allclose(found.data[1], loss(labels[1:], z[1:])[0])
    found.backward(np.ones(2))
    assert not y_pred.grad[0, 4:].any()
    y_pred.mask = y_pred.mask[:, ::-1]
    with pytest.raises(ValueError, match="leave out steps at the end"):
        loss(labels, y_pred)


@pytest.mark.parametrize("shape", [(3,), (1,), (4, 3), (4, 1, 2), (2, 4)])
def test_weights_that_do_not_fit_are_refused(shape):
    with pytest.raises(ValueError) as error:
        losses.MeanSquaredError()(HOT, P, np.ones(shape))
    assert f"sample_weight of shape {shape}" in str(error.value) and "(4,)" in str(error.value)


def test_ignored_classes_do_not_count():
    labels = np.array([[0, -1, 1], [2, 1, -1]])
    z = RNG.normal(size=(2, 3, 3))
    keep = labels != -1
    loss = losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)
    plain = losses.SparseCategoricalCrossentropy(from_logits=True)
    np.testing.assert_allclose(loss(labels, z), plain(labels[keep], z[keep]))
    np.testing.assert_allclose(loss(labels[..., None], z), plain(labels[keep], z[keep]))
    assert loss(np.full((2, 3), -1), z) == 0
    w = np.array([1.0, 3.0])
    each = np.broadcast_to(w[:, None], (2, 3))[keep]
    np.testing.assert_allclose(loss(labels, z, w), plain(labels[keep], z[keep], each))


def test_float64_and_float16():
    loss = losses.MeanSquaredError()
    assert loss(HOT.astype("float64"), P.astype("float64")).dtype == np.float64
    assert loss(HOT.astype("float64"), P).dtype == np.float32
    assert loss(HOT, Tensor(P)).dtype == np.float32
    big = np.full((40, 40), 300, np.float16)  # its square is beyond float16
    half = Tensor(big, requires_grad=True)
    value = loss(0 * big, half)
    assert value == 90000 and value.dtype == np.float32
    value.backward()
    assert half.grad.dtype == np.float16
    assert losses.MeanSquaredError(dtype="float64")(HOT, P).dtype == np.float64
    assert losses.MeanSquaredError(dtype="float64").get_config()["dtype"] == "float64"


def test_targets_that_take_gradients():
    y_true = Tensor(HOT, requires_grad=True)
    losses.MeanSquaredError()(y_true, P).backward()
    np.testing.assert_allclose(y_true.grad, -2 * (P - HOT) / 12, rtol=1e-5)
    constant = Tensor(HOT)
    loss = losses.MeanSquaredError()(constant, Tensor(P))
    assert not loss.requires_grad


# -------------------------------------------------------------------- names and configs


def test_names_and_aliases():
    for name in ("mse", "MSE", "mean_squared_error"):
        assert losses.get(name) is losses.mean_squared_error
    for name in ("kld", "KLD", "bce", "BCE", "mape", "MAPE", "msle", "MSLE", "mae", "MAE"):
        assert is_loss_function(losses.get(name))
    assert type(losses.get("MeanSquaredError")) is losses.MeanSquaredError
    assert type(losses.get(losses.Huber)) is losses.Huber
    assert losses.get(None) is None
    given = losses.Huber()
    assert losses.get(given) is given and given.name == "huber_loss"
    assert losses.get({"class_name": "Huber", "config": {"delta": 2.0}}).kwargs == {"delta": 2.0}
    assert losses.serialize(losses.mean_squared_error) == {
        "module": "builtins",
        "class_name": "function",
        "config": "mean_squared_error",
        "registered_name": "function",
    }
    for cls in ("MeanSquaredError", "Huber", "CTC", "Dice"):
        assert losses.serialize(getattr(losses, cls)())["module"] == "keras.losses"
    assert losses.SparseCategoricalCrossentropy(axis=1).get_config()["axis"] == 1


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: losses.get("mean_sqared_error"), ValueError, r"mean_sqared_error.*MeanSquaredErr"),
        (lambda: losses.get(5), TypeError, "loss.*5 of type int"),
        (lambda: losses.MeanSquaredError(reduction="avg"), ValueError, "reduction .* 'avg'"),
        (lambda: losses.BinaryCrossentropy(label_smoothing=2), ValueError, "label_smoothing .* 2"),
        (lambda: losses.bce(HOT, P, label_smoothing=-1), ValueError, "label_smoothing .* -1"),
        (lambda: losses.CategoricalGeneralizedCrossEntropy(q=1.5), ValueError, "q must .* 1.5"),
        (lambda: losses.Quantile(1.5), ValueError, "quantile must lie .* 1.5"),
        (lambda: losses.Quantile([0.1, 0.9])(HOT, P), ValueError, "one column for each of the 2"),
        (lambda: losses.Quantile([0.1, 0.5, 0.9])(HOT, P), ValueError, r"quantile.*\(4, 3\).*\(4,"),
        (lambda: losses.Triplet(mining="easy"), ValueError, "mining .* 'easy'"),
        (lambda: losses.Triplet()(HOT, P), ValueError, r"triplet: .* \(4, 3\) and \(4, 3\)"),
        (lambda: losses.GaussianNLL()(HOT, P), ValueError, r"expected \(4, 6\), received \(4, 3\)"),
        (lambda: losses.GaussianNLL()(P[:, :1], -P[:, 1:]), ValueError, "negative variance"),
        (lambda: losses.CTC()(HOT, P), ValueError, r"ctc: .* \(4, 3\) and \(4, 3\)"),
        (lambda: losses.Loss()(HOT, P), NotImplementedError, "Loss does not define call"),
    ],
)
def test_mistakes_are_named(call, error, match):
    with pytest.raises(error, match=match):
        call()


def test_own_losses_and_functions_come_back_from_their_configs():
    class Scaled(losses.Loss):
        def __init__(self, scale=2.0, **kwargs):
            super().__init__(**kwargs)
            self.scale = scale

        def call(self, y_true, y_pred):
            assert y_true.dtype == y_pred.dtype == np.float32
            return self.scale * ops.mean(ops.abs(y_true - y_pred), -1)

        def get_config(self):
            return {**super().get_config(), "scale": self.scale}

    loss = Scaled(3.0, name="scaled", reduction="sum")
    again = losses.deserialize(losses.serialize(loss), {"Scaled": Scaled})
    assert again.get_config() == {"name": "scaled", "reduction": "sum", "scale": 3.0}
    np.testing.assert_allclose(again(LABELS[:, None], P[:, :1]), loss(LABELS[:, None], P[:, :1]))

    def mine(y_true, y_pred, power=1):
        return ops.mean(ops.abs(y_true - y_pred) ** power, -1)

    wrapped = losses.LossFunctionWrapper(mine, power=2)
    assert wrapped.name == "mine"
    again = losses.deserialize(losses.serialize(wrapped), {"mine": mine})
    assert again(HOT, P) == wrapped(HOT, P)


# -------------------------------------------------------------------- properties

numbers = st.floats(-1e3, 1e3, width=32)


@settings(max_examples=50, deadline=None)
@given(
    z=arrays(np.float32, (5, 4), elements=numbers),
    labels=arrays(np.int64, 5, elements=st.integers(0, 3)),
)
def test_cross_entropies_agree_with_each_other(z, labels):
    hot = np.eye(4)[labels]
    sparse = losses.sparse_categorical_crossentropy(labels, z, from_logits=True)
    full = losses.categorical_crossentropy(hot, z, from_logits=True)
    np.testing.assert_allclose(sparse, full, rtol=1e-5, atol=1e-6)
    assert (sparse >= 0).all()
    shifted = losses.sparse_categorical_crossentropy(labels, z + np.float32(8), from_logits=True)
    np.testing.assert_allclose(shifted, sparse, rtol=1e-4, atol=2e-3)


@settings(max_examples=50, deadline=None)
@given(
    y=arrays(np.float64, (6, 3), elements=numbers),
    p=arrays(np.float64, (6, 3), elements=numbers),
    w=arrays(np.float64, 6, elements=st.floats(0, 10)),
)
def test_a_batch_is_the_sum_of_its_samples(y, p, w):
    for name in ("mse", "mae", "huber", "log_cosh", "hinge", "cosine_similarity"):
        loss = losses.LossFunctionWrapper(losses.get(name), reduction="sum")
        if name == "hinge":
            y = np.sign(y) + (y == 0) * 2.0  # or single samples of 0 and 1 are read as -1 and 1
        each = sum(float(loss(y[i : i + 1], p[i : i + 1], w[i : i + 1])) for i in range(6))
        np.testing.assert_allclose(loss(y, p, w), each, rtol=1e-9, atol=1e-9)


def test_weights_with_all_axes_are_broadcast():
    t, p = np.zeros((3, 2, 4)), RNG.normal(size=(3, 2, 4))
    weight = np.array([[1.0, 3.0]])
    loss = losses.MeanSquaredError()
    assert loss(t, p, weight) == pytest.approx(loss(t, p, np.repeat(weight, 3, 0)))


def test_arguments_are_attributes():
    loss = losses.BinaryFocalCrossentropy(gamma=3.0, from_logits=True)
    assert loss.gamma == 3.0 and loss.from_logits is True
    with pytest.raises(AttributeError, match="BinaryFocalCrossentropy has no attribute 'margin'"):
        _ = loss.margin
