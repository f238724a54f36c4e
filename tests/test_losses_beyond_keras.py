"""The losses that Keras does not have: by hand, by a loop, by the density they stand for."""

from __future__ import annotations

import numpy as np
import pytest

from picodl import losses
from picodl.tensor import Tensor
from picodl.testing import gradcheck

RNG = np.random.default_rng(0)
P = RNG.dirichlet(np.ones(3), 4).astype(np.float32)
LABELS = np.array([0, 2, 1, 1])
HOT = np.eye(3, dtype=np.float32)[LABELS]


def test_cross_entropy_of_labels_equals_that_of_one_hot():
    loss = losses.CrossEntropyLoss()
    logits = Tensor(RNG.normal(size=(4, 3)).astype(np.float32), requires_grad=True)
    by_label, by_hot = loss.loss(logits, LABELS), loss.loss(logits, HOT)
    np.testing.assert_allclose(by_label.data, by_hot.data, rtol=1e-6)
    by_label.backward()
    probability = np.exp(logits.data) / np.exp(logits.data).sum(1, keepdims=True)
    np.testing.assert_allclose(logits.grad, (probability - HOT) / 4, rtol=1e-4, atol=1e-7)
    smooth = losses.CrossEntropyLoss(label_smoothing=0.1)
    np.testing.assert_allclose(smooth(LABELS, P), smooth(HOT, P), rtol=1e-6)


def test_the_quantile_loss_is_least_at_the_quantile():
    y = RNG.normal(size=200)
    loss = losses.Quantile(0.8)
    at = [float(loss(y, np.full(200, c))) for c in np.sort(y)]
    assert np.argmin(at) in range(158, 162)
    np.testing.assert_allclose(losses.Quantile(0.5)(HOT, P), 0.5 * losses.mae(HOT, P).mean())
    q = [0.1, 0.5, 0.9]
    several = losses.Quantile(q)(P[:, 0], P)
    each = [losses.Quantile(c)(P[:, 0], P[:, i]) for i, c in enumerate(q)]
    np.testing.assert_allclose(several, np.mean(each), rtol=1e-5)


def test_gaussian_nll_is_the_density():
    t, m, v = RNG.normal(size=(5, 2)), RNG.normal(size=(5, 2)), RNG.random((5, 2)) + 0.1
    density = np.exp(-((t - m) ** 2) / (2 * v)) / np.sqrt(2 * np.pi * v)
    found = losses.GaussianNLL(full=True)(t, np.concatenate([m, v], 1))
    np.testing.assert_allclose(found, -np.log(density).mean())
    logs = losses.GaussianNLL(full=True, log_variance=True)(t, np.concatenate([m, np.log(v)], 1))
    np.testing.assert_allclose(logs, found)
    one = losses.GaussianNLL()(t[:, 0], np.stack([m[:, 0], 0 * v[:, 0]], 1))
    assert np.isfinite(one)


def test_contrastive_by_hand():
    d, t = np.array([[0.5], [0.2], [3.0]]), np.array([1.0, 0.0, 0.0])
    found = losses.Contrastive(margin=1.0, reduction="none")(t, d)
    np.testing.assert_allclose(found, [0.25, 0.64, 0.0])


@pytest.mark.parametrize("mining", ["hard", "semi_hard"])
def test_triplets_by_a_loop(mining):
    labels = np.array([0, 0, 1, 1, 1, 2, 0])
    x = RNG.normal(size=(7, 3))
    d = np.linalg.norm(x[:, None] - x[None], axis=-1)
    expected = []
    for a in range(7):
        positives = [b for b in range(7) if labels[b] == labels[a] and b != a]
        negatives = [b for b in range(7) if labels[b] != labels[a]]
        values = []
        for p in positives:
            beyond = [d[a, n] for n in negatives if d[a, n] > d[a, p]]
            n = min(beyond) if beyond else max(d[a, n] for n in negatives)
            values.append(max(d[a, p] - n + 0.5, 0))
        if positives and mining == "hard":
            hardest = max(d[a, p] for p in positives) - min(d[a, n] for n in negatives)
            values = [max(hardest + 0.5, 0)]
        expected.append(np.mean(values) if values else 0)
    loss = losses.Triplet(margin=0.5, mining=mining, reduction="none")
    np.testing.assert_allclose(loss(labels, x), expected)
    mean = losses.Triplet(margin=0.5, mining=mining)(labels, x)
    np.testing.assert_allclose(mean, np.sum(expected) / 6)  # the one of class 2 has no triplet
    gradcheck(lambda e: losses.Triplet(margin=0.5, mining=mining)(labels, e), x)
    same = Tensor(np.ones((4, 2)), requires_grad=True)  # distances of 0 have finite slopes
    losses.Triplet(mining=mining)([0, 0, 1, 1], same).backward()
    assert np.isfinite(same.grad).all()
