"""Whole sequences in one op: gradients, composed forms, masks, dropout, blocks, messages."""

import itertools

import numpy as np
import pytest

from picodl.ops import recurrence
from picodl.ops.recurrent import gru, lstm, simple_rnn
from picodl.tensor import Tensor
from picodl.testing import gradcheck

B, T, N, U = 5, 4, 3, 2
MASK = np.array([[1, 1, 1, 1], [1, 0, 1, 0], [0, 0, 0, 0], [0, 1, 1, 1], [1, 1, 0, 0]], dtype=bool)
# op, gates, states, options
KINDS = {
    "tanh": (simple_rnn, 1, 1, {}),
    "relu": (simple_rnn, 1, 1, {"activation": "relu"}),
    "linear": (simple_rnn, 1, 1, {"activation": "linear"}),
    "lstm": (lstm, 4, 2, {}),
    "gru": (gru, 3, 1, {}),
    "gru_before": (gru, 3, 1, {"reset_after": False}),
}


def arguments(kind, rng):
    """x, kernel, recurrent kernel, bias and first states."""
    _, gates, states, options = KINDS[kind]
    bias = (2, 3 * U) if gates == 3 and options.get("reset_after", True) else (gates * U,)
    shapes = [(B, T, N), (N, gates * U), (U, gates * U), bias, *[(B, U)] * states]
    return [rng.normal(size=s) for s in shapes]


def options_for(kind, rng):
    """All combinations of mask, dropout, direction, output."""
    gates = KINDS[kind][1]
    for mask, drop, back, zero, returns in itertools.product(
        (None, MASK), (0, 1), (0, 1), (0, 1), ("last", "sequences", "all")
    ):
        options = {"mask": mask, "go_backwards": bool(back), "zero_output_for_mask": bool(zero)}
        if drop:
            options["dropout"] = rng.random((gates, B, N)) * 2
            options["recurrent_dropout"] = rng.random((gates, B, U)) * 2
        yield {**options, "returns": returns, **KINDS[kind][3]}


@pytest.fixture(params=["one block", "two blocks"])
def blocks(request, monkeypatch):
    if request.param == "two blocks":
        monkeypatch.setattr(recurrence, "shares_of", lambda n, most: [slice(0, 3), slice(3, n)])


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_and_composed_form_agree(kind, blocks):
    rng = np.random.default_rng(0)
    args = arguments(kind, rng)
    for options in options_for(kind, rng):
        gradcheck(lambda *a, o=options: KINDS[kind][0](*a, **o), *args)
        tensors = [Tensor(a, requires_grad=True) for a in args]
        y = KINDS[kind][0](*tensors, **options)
        np.testing.assert_allclose(y.data, y._composed(*y._inputs).data, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_second_derivatives(kind):
    args = arguments(kind, np.random.default_rng(1))
    op, options = KINDS[kind][0], KINDS[kind][3]
    gradcheck(lambda *a: op(*a, mask=MASK, **options), *args, second=True, tolerance=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_float32_stays_and_inputs_are_untouched(kind):
    args = [a.astype("float32") for a in arguments(kind, np.random.default_rng(2))]
    before = [a.copy() for a in args]
    op, options = KINDS[kind][0], KINDS[kind][3]
    tensors = [Tensor(a, requires_grad=True) for a in args]
    y = op(*tensors, mask=MASK, returns="all", **options)
    assert y.dtype == np.float32
    g = np.ones(y.shape, np.float32)
    y.backward(g)
    assert (g == 1).all()
    for a, b, t in zip(args, before, tensors, strict=True):
        assert t.grad.dtype == np.float32
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("kind", KINDS)
def test_without_bias_and_states_of_any_size(kind):
    rng = np.random.default_rng(3)
    op, gates, _, options = KINDS[kind]
    for batch, steps in ((1, 1), (0, 3), (2, 0), (130, 2)):
        x = rng.normal(size=(batch, steps, N))
        w, u = rng.normal(size=(N, gates * U)), rng.normal(size=(U, gates * U))
        y = op(x, w, u, returns="sequences", **options)
        assert y.shape == (batch, steps, U)
        gradcheck(lambda *a: op(*a, **options), x, w, u)


@pytest.mark.parametrize("kind", KINDS)
def test_masked_steps_change_nothing_and_may_hold_nan(kind):
    op, _, states, options = KINDS[kind]
    x, w, u, b, *first = arguments(kind, np.random.default_rng(4))
    x[~MASK] = np.nan
    tensors = [Tensor(a, requires_grad=True) for a in (x, w, u, b, *first)]
    y = op(*tensors, mask=MASK, returns="all", **options)
    y.backward()
    assert np.isfinite(y.data).all()
    assert all(np.isfinite(t.grad).all() for t in tensors)
    np.testing.assert_array_equal(y.data[2, :T], np.tile(first[0][2], (T, 1)))
    np.testing.assert_array_equal(y.data[2, T:], [s[2] for s in first])
    assert (tensors[0].grad[~MASK] == 0).all()
    short = op(x[4:, :2], w, u, b, *(s[4:] for s in first), **options)
    np.testing.assert_allclose(y.data[4, T - 1], short[0], rtol=1e-12)
    assert len(first) == states


def test_messages_name_the_shapes():
    x, w, u, b, h, c = arguments("lstm", np.random.default_rng(5))
    with pytest.raises(ValueError, match=r"\(batch, steps, features\); received \(5, 4\)"):
        lstm(x[..., 0], w, u, b)
    with pytest.raises(ValueError, match=r"kernel of shape \(3, 8\)"):
        lstm(x, w[:2], u, b)
    with pytest.raises(ValueError, match=r"states of shape \(5, 2\); received \(1, 2\)"):
        lstm(x, w, u, b, h[:1], c)
    with pytest.raises(ValueError, match=r"boolean mask of shape \(5, 4\).*\(5, 3\)"):
        lstm(x, w, u, b, mask=MASK[:, :3])


@pytest.mark.parametrize("op", [lstm, gru])
def test_gradients_fade_to_zero_and_not_to_slow_numbers(op):
    rng = np.random.default_rng(6)
    gates = {lstm: 4, gru: 3}[op]
    x = Tensor(rng.normal(size=(2, 400, 3)).astype("float32"), requires_grad=True)
    w, u = (0.1 * rng.normal(size=(n, gates * 4)).astype("float32") for n in (3, 4))
    op(x, w, u).sum().backward()
    sizes = np.abs(x.grad)
    assert sizes[:, -1].min() > 1e-4 and sizes[:, 0].max() == 0
    assert (sizes[sizes > 0] > np.finfo("float32").tiny).all()
