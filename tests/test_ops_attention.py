"""Attention as one op: gradients, the composed form, masks, grouped heads, large scores."""

import numpy as np
import pytest

from picodl import ops
from picodl.ops import attention as module
from picodl.ops.attention import attention, attention_scores, dot_product_attention
from picodl.tensor import Tensor
from picodl.testing import gradcheck

B, T, S, N, H, V = 3, 4, 5, 4, 3, 2


def arguments(heads=N, scale=1.0, seed=0):
    rng = np.random.default_rng(seed)
    shapes = [(B, T, N, H), (B, S, heads, H), (B, S, heads, V)]
    return [scale * rng.normal(size=s) for s in shapes]


def masks():
    rng = np.random.default_rng(1)
    some = rng.random((B, 1, T, S)) < 0.6
    some[0, 0, 2] = False  # a query that may look at nothing
    return {
        "none": None,
        "some": some,
        "heads": rng.random((B, N, T, S)) < 0.7,
        "keys": (np.arange(S) < 3)[None, None, None],
        "causal": np.tri(T, S, dtype=bool),
    }


@pytest.mark.parametrize("mask", masks())
@pytest.mark.parametrize("heads", [N, 2, 1])
@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_gradients_and_composed_form_agree(mask, heads, scale):
    args, mask = arguments(heads, scale), masks()[mask]
    rng = np.random.default_rng(2)
    for zero in (False, True):
        for keep in (None, rng.random((B, N, T, S)) < 0.8):
            options = {"mask": mask, "keep": keep, "keep_probability": 0.8, "zero_masked": zero}
            gradcheck(lambda *a, o=options: attention(*a, **o), *args, tolerance=1e-5)
            tensors = [Tensor(a, requires_grad=True) for a in args]
            y = attention(*tensors, **options)
            np.testing.assert_allclose(y.data, y._composed(*y._inputs).data, atol=1e-10)


def test_bias_has_a_gradient_and_joins_the_scores():
    args = arguments()
    bias = np.random.default_rng(3).normal(size=(1, N, T, S))
    gradcheck(lambda q, k, v, b: attention(q, k, v, b, mask=masks()["some"]), *args, bias)
    gradcheck(lambda q, k, v, b: attention(q, k, v, b), *args, bias, second=True, tolerance=1e-5)


def test_soft_cap_and_second_derivatives():
    args = arguments()
    gradcheck(lambda *a: dot_product_attention(*a, attn_logits_soft_cap=2.0), *args)
    gradcheck(
        lambda *a: dot_product_attention(*a, is_causal=True), *args, second=True, tolerance=1e-5
    )


def test_scores_computed_again_give_the_same(monkeypatch):
    args = arguments()
    tensors = [Tensor(a, requires_grad=True) for a in args]
    attention(*tensors, mask=masks()["some"]).sum().backward()
    monkeypatch.setattr(module, "_KEEP", 0)
    again = [Tensor(a, requires_grad=True) for a in args]
    attention(*again, mask=masks()["some"]).sum().backward()
    for a, b in zip(tensors, again, strict=True):
        np.testing.assert_array_equal(a.grad, b.grad)


def test_a_query_that_looks_at_nothing_gives_the_mean_or_zero():
    q, k, v = arguments()
    mask = masks()["some"]
    y = dot_product_attention(q, k, v, mask=mask)
    np.testing.assert_allclose(y[0, 2], v[0].mean(axis=0))
    assert (attention(q, k, v, mask=mask, zero_masked=True)[0, 2] == 0).all()


def test_huge_scores_stay_finite():
    q, k, v = (a.astype("float32") for a in arguments(scale=1e4))
    tensors = [Tensor(a, requires_grad=True) for a in (q, k, v)]
    y = dot_product_attention(*tensors, is_causal=True)
    y.sum().backward()
    assert y.dtype == np.float32 and np.isfinite(y.data).all()
    assert all(np.isfinite(t.grad).all() for t in tensors)


def test_softmax_weights_sum_to_one():
    _, p = attention_scores(*(Tensor(a) for a in arguments()), scale=0.5)
    np.testing.assert_allclose(p.data.sum(-1), 1)


def test_is_a_public_op():
    assert ops.dot_product_attention is dot_product_attention
    assert isinstance(dot_product_attention(*arguments()), np.ndarray)


def test_messages_name_the_shapes():
    q, k, v = arguments()
    with pytest.raises(ValueError, match=r"\(3, 4, 4, 3\), \(3, 4, 4, 3\) and \(3, 5, 4, 2\)"):
        dot_product_attention(q, k[:, :4], v)
    with pytest.raises(ValueError, match=r"= \(3, 4, 4, 5\); received shape \(3, 1, 4, 4\)"):
        dot_product_attention(q, k, v, mask=np.ones((3, 1, 4, 4), bool))


@pytest.mark.parametrize("heads", [N, 2])
def test_one_sample_is_cut_by_its_heads(heads):
    args = [a[:1] for a in arguments(heads)]
    rng = np.random.default_rng(4)
    bias, mask = rng.normal(size=(1, N, T, S)), rng.random((1, N, T, S)) < 0.7
    options = {"mask": mask, "keep": rng.random((1, N, T, S)) < 0.8, "keep_probability": 0.8}
    gradcheck(lambda q, k, v, b: attention(q, k, v, b, **options), *args, bias)
    tensors = [Tensor(a, requires_grad=True) for a in (*args, bias)]
    y = attention(*tensors, **options)
    np.testing.assert_allclose(y.data, y._composed(*y._inputs).data, atol=1e-10)
    assert len(module._Attention(*args, None, mask[:, :1], 0.5, None, 1.0, False).blocks) == 2
    assert dot_product_attention(*(a[:0] for a in args)).shape == (0, T, N, V)
