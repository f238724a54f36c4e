"""EpochScoring: scikit-learn's scores of all samples of an epoch."""

from __future__ import annotations

import numpy as np
import pytest

from picodl import metrics
from picodl.tensor import Tensor

RNG = np.random.default_rng(0)
P = RNG.dirichlet(np.ones(3), 12).astype(np.float32)
LABELS = RNG.integers(0, 3, 12)
HOT = np.eye(3, dtype=np.float32)[LABELS]
Q = RNG.random(12).astype(np.float32)
BITS = (RNG.random(12) < Q).astype(np.float32)
W = RNG.random(12).astype(np.float32)


def test_epoch_scoring_equals_the_score_of_all_samples():
    from sklearn import metrics as sk

    kappa = sk.make_scorer(sk.cohen_kappa_score)
    cases = [
        ("roc_auc", BITS, Q, sk.roc_auc_score(BITS, Q)),
        ("average_precision", BITS, Q[:, None], sk.average_precision_score(BITS, Q)),
        ("f1", BITS[:, None], Q[:, None], sk.f1_score(BITS, Q > 0.5)),
        ("f1_macro", LABELS, P, sk.f1_score(LABELS, P.argmax(1), average="macro")),
        ("accuracy", HOT, P, sk.accuracy_score(LABELS, P.argmax(1))),
        ("neg_log_loss", LABELS, P, -sk.log_loss(LABELS, P)),
        ("roc_auc_ovr", LABELS, P, sk.roc_auc_score(LABELS, P, multi_class="ovr")),
        ("r2", Q[:, None], P[:, :1], sk.r2_score(Q, P[:, 0])),
        ("r2", HOT * 1.5, P, sk.r2_score(HOT * 1.5, P)),
        (
            sk.make_scorer(sk.cohen_kappa_score),
            LABELS,
            P,
            sk.cohen_kappa_score(LABELS, P.argmax(1)),
        ),
        (sk.mean_absolute_error, Q, P[:, 0], sk.mean_absolute_error(Q, P[:, 0])),
    ]
    for scorer, y, p, expected in cases:
        metric = metrics.EpochScoring(scorer)
        for rows in (slice(0, 7), slice(7, 12)):
            metric.update_state(y[rows], p[rows])
        assert metric.result() == pytest.approx(expected, rel=1e-6), scorer
        metric.reset_state()
        assert metric.result() == 0.0
    assert metrics.EpochScoring("roc_auc").direction == "up"
    assert metrics.EpochScoring(sk.mean_absolute_error).direction == "down"
    assert metrics.EpochScoring(sk.mean_absolute_error).name == "mean_absolute_error"
    assert metrics.EpochScoring(kappa).name == "cohen_kappa_score"


def test_epoch_scoring_of_logits_weights_masks_and_steps():
    from sklearn import metrics as sk

    z = np.log(P)
    metric = metrics.EpochScoring("neg_log_loss", from_logits=True)
    assert metric(LABELS, z, sample_weight=W) == pytest.approx(
        -sk.log_loss(LABELS, P, sample_weight=W), rel=1e-5
    )
    steps = Tensor(P.reshape(4, 3, 3))
    steps.mask = (W > 0.3).reshape(4, 3)
    expected = sk.accuracy_score(LABELS[W > 0.3], P.argmax(1)[W > 0.3])
    assert metrics.EpochScoring("accuracy")(LABELS.reshape(4, 3), steps) == pytest.approx(expected)
    assert metrics.EpochScoring("accuracy")(
        HOT.reshape(4, 3, 3), P.reshape(4, 3, 3)
    ) == pytest.approx(np.mean(P.argmax(1) == LABELS))


def test_epoch_scoring_that_cannot_be_computed_says_why():
    from sklearn.metrics import cohen_kappa_score

    metric = metrics.EpochScoring(cohen_kappa_score)
    metric.update_state(LABELS, P)
    with pytest.warns(UserWarning, match="cohen_kappa_score.*make_scorer"):
        assert np.isnan(metric.result())
    with pytest.raises(ValueError, match=r"targets of shape \(5,\) .* \(12, 3\)"):
        metric.update_state(LABELS[:5], P)
