"""Metrics: Keras's values, batches against all at once, weights, masks, state, configs."""

from __future__ import annotations

import inspect
import itertools
import json
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from picodl import config, losses, metrics, ops
from picodl.module import Parameter
from picodl.tensor import Tensor

GOLDEN = Path(__file__).parent / "golden" / "metrics.h5"
RNG = np.random.default_rng(0)
P = RNG.dirichlet(np.ones(3), 12).astype(np.float32)
LABELS = RNG.integers(0, 3, 12)
HOT = np.eye(3, dtype=np.float32)[LABELS]
Q = RNG.random(12).astype(np.float32)
BITS = (RNG.random(12) < Q).astype(np.float32)
W = RNG.random(12).astype(np.float32)

ARGUMENTS = {
    "PrecisionAtRecall": {"recall": 0.5},
    "RecallAtPrecision": {"precision": 0.5},
    "SensitivityAtSpecificity": {"specificity": 0.5},
    "SpecificityAtSensitivity": {"sensitivity": 0.5},
    "IoU": {"num_classes": 3, "target_class_ids": [0, 2], "dtype": "float32"},
    "MeanIoU": {"num_classes": 3, "dtype": "float32"},
    "OneHotIoU": {"num_classes": 3, "target_class_ids": [0, 2], "dtype": "float32"},
    "OneHotMeanIoU": {"num_classes": 3, "dtype": "float32"},
    "BinaryIoU": {"dtype": "float32"},
    "MeanMetricWrapper": {"fn": losses.mean_squared_error},
    "MeanRelativeError": {"normalizer": [1.0, 2.0, 4.0]},
    "EpochScoring": {"scorer": "accuracy"},
}
OF_LABELS = {
    "SparseCategoricalAccuracy",
    "SparseCategoricalCrossentropy",
    "SparseTopKCategoricalAccuracy",
    "EpochScoring",
}
OF_BITS = {
    "AUC",
    "BinaryAccuracy",
    "BinaryIoU",
    "Precision",
    "Recall",
    "TruePositives",
    "TrueNegatives",
    "FalsePositives",
    "FalseNegatives",
} | {n for n in ARGUMENTS if "At" in n}
OF_IDS = {"Accuracy", "IoU", "MeanIoU"}
NAMES = sorted(
    name
    for name, found in vars(metrics).items()
    if inspect.isclass(found)
    and issubclass(found, metrics.Metric)
    and name not in ("Metric", "ConfusionMetric")
)


def make(name):
    return getattr(metrics, name)(**ARGUMENTS.get(name, {}))


def example(name):
    """The arguments of update_state without weights."""
    if name in ("Mean", "Sum"):
        return (Q,)
    if name in OF_BITS:
        return BITS, Q
    if name in OF_IDS:
        return LABELS, P.argmax(1)
    return (LABELS, P) if name in OF_LABELS else (HOT, P)


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


def close(found, case, path):
    expected = np.asarray(case[path])
    found = np.asarray(found)
    assert found.shape == expected.shape
    ok = np.isnan(expected)  # Keras's nan of nothing is 0 here
    if path in case.get("agreed", {}):
        ok = ok | ~case["agreed"][path][()]
    # Keras counts in float32 in places; its IoU is float32
    rtol = 1e-5 if expected.dtype == np.float32 else 1e-7
    scale = np.abs(np.where(ok, 0, expected)).max(initial=0)
    assert np.abs(np.where(ok, 0, found - expected)).max(initial=0) <= rtol * scale + 1e-12


@pytest.mark.filterwarnings("ignore:.*counts in int32")
@pytest.mark.parametrize("name", golden_names())
def test_results_are_those_of_keras(name, float64):
    with h5py.File(GOLDEN, "r") as f:
        case = f[name]
        metric = getattr(metrics, case.attrs["class"])(**json.loads(case.attrs["config"]))
        for i in range(len(case["updates"])):
            update = {k: v[()] for k, v in case["updates"][str(i)].items()}
            weight = update.pop("sample_weight", None)
            if "values" in update:
                metric.update_state(update["values"], sample_weight=weight)
            else:
                metric.update_state(update["y_true"], update["y_pred"], weight)
            close(metric.result(), case, f"results/{i}")
        metric.reset_state()
        close(metric.result(), case, "result_after_reset")


# -------------------------------------------------------------------- every class


@pytest.mark.parametrize("name", NAMES)
def test_batches_reset_state_and_config(name):
    data = example(name)
    whole, parts = make(name), make(name)
    before = [x.copy() for x in data]
    whole.update_state(*data, sample_weight=W)
    for rows in (slice(0, 5), slice(5, 6), slice(6, 6), slice(6, 12)):
        parts.update_state(*[x[rows] for x in data], sample_weight=W[rows])
    expected = whole.result()
    np.testing.assert_allclose(parts.result(), expected, rtol=1e-6)
    assert isinstance(expected, (float, np.ndarray))
    for x, old in zip(data, before, strict=True):
        np.testing.assert_array_equal(x, old)

    other = make(name)
    other.set_state(parts.get_state())
    np.testing.assert_array_equal(other.result(), parts.result())
    for metric in (other, parts):  # and both go on alike
        metric.update_state(*data)
    np.testing.assert_array_equal(other.result(), parts.result())
    assert all(isinstance(x, (int, float, np.ndarray)) for x in parts.get_state().values())

    parts.reset_state()
    assert np.all(parts.result() == 0)
    np.testing.assert_allclose(parts(*data, sample_weight=W), expected)

    again = metrics.deserialize(json.loads(json.dumps(metrics.serialize(whole))))
    assert type(again) is type(whole) and again.get_config() == whole.get_config()
    np.testing.assert_allclose(again(*data, sample_weight=W), expected)


@pytest.mark.parametrize("name", NAMES)
def test_tensors_and_their_masks_count_as_weights(name):
    data = example(name)
    keep = W > 0.4
    expected = make(name)(*[x[keep] for x in data])
    tensors = [Tensor(x) for x in data]
    tensors[-1].mask = keep
    np.testing.assert_allclose(make(name)(*tensors), expected, rtol=1e-6)


def test_directions():
    up = {n for n in NAMES if getattr(metrics, n).direction == "up"}
    down = {n for n in NAMES if getattr(metrics, n).direction == "down"}
    assert {"Accuracy", "AUC", "Precision", "Recall", "F1Score", "IoU", "R2Score"} <= up
    assert {"CosineSimilarity", "PearsonCorrelation", "PrecisionAtRecall", "MeanIoU"} <= up
    assert {"MeanSquaredError", "RootMeanSquaredError", "Hinge", "Poisson"} <= down
    assert {"SparseCategoricalCrossentropy", "KLDivergence", "LogCoshError"} <= down
    neither = {"Mean", "Sum", "MeanMetricWrapper", "EpochScoring"}
    neither |= {"TruePositives", "TrueNegatives", "FalsePositives", "FalseNegatives"}
    assert set(NAMES) - up - down == neither


# -------------------------------------------------------------------- means


def test_the_small_last_batch_and_the_weights_are_in_the_denominator():
    metric = metrics.MeanAbsoluteError()
    metric.update_state([[0.0], [0.0]], [[1.0], [1.0]])
    metric.update_state([[0.0]], [[4.0]])
    assert metric.result() == 2.0
    metric = metrics.MeanAbsoluteError()
    metric.update_state([[0.0], [0.0]], [[1.0], [2.0]], sample_weight=[1.0, 0.0])
    metric.update_state([[0.0]], [[4.0]], sample_weight=[3.0])
    assert metric.result() == 13 / 4


def test_numbers_without_a_last_axis_are_samples():
    metric = metrics.MeanSquaredError()
    metric.update_state([0.0, 0.0], [1.0, 1.0])
    metric.update_state([0.0], [4.0])
    assert metric.result() == 6.0


def test_masked_steps_count_nowhere():
    p = Tensor(np.array([[[1.0], [5.0], [5.0]], [[1.0], [3.0], [5.0]]]))
    p.mask = np.array([[True, False, False], [True, True, False]])
    np.testing.assert_allclose(metrics.MeanAbsoluteError()(np.zeros((2, 3, 1)), p), 5 / 3)
    metric = metrics.MeanAbsoluteError()
    np.testing.assert_allclose(metric(np.zeros((2, 3, 1)), p, sample_weight=[3.0, 1.0]), 7 / 5)
    p.mask = np.zeros((2, 3), bool)
    assert metrics.MeanAbsoluteError()(np.zeros((2, 3, 1)), p) == 0


def test_half_precision_does_not_overflow():
    big = np.full((50, 40), 300, np.float16)
    assert metrics.MeanSquaredError()(0 * big, big) == 90000
    assert metrics.Sum()(np.full(300, 300, np.float16)) == 90000


def test_ignored_classes_do_not_count():
    metric = metrics.SparseCategoricalCrossentropy(ignore_class=-1)
    labels = np.where(W > 0.5, LABELS, -1)
    keep = labels != -1
    expected = losses.sparse_categorical_crossentropy(LABELS[keep], P[keep]).mean()
    np.testing.assert_allclose(metric(labels, P), expected, rtol=1e-6)
    metric.reset_state()
    assert metric(np.full(12, -1), P) == 0


def test_a_function_of_the_user_is_averaged():
    def mine(y_true, y_pred, power=1):
        return ops.mean(ops.abs(y_true - y_pred) ** power, axis=-1)

    metric = metrics.MeanMetricWrapper(mine, power=2)
    assert metric.name == "mine"
    np.testing.assert_allclose(metric(HOT, P), ((HOT - P) ** 2).mean(), rtol=1e-6)
    again = metrics.deserialize(metrics.serialize(metric), {"mine": mine})
    np.testing.assert_allclose(again(HOT, P), metric.result())
    assert metrics.MeanMetricWrapper(lambda t, p: p, name="x")(HOT, P) == pytest.approx(P.mean())


def test_one_number_for_a_batch_counts_with_its_samples():
    metric = metrics.MeanMetricWrapper(lambda t, p: np.abs(t - p).mean(), name="mine")
    metric.update_state(np.zeros((2, 1)), np.ones((2, 1)))
    metric.update_state(np.zeros((1, 1)), np.full((1, 1), 4.0))
    assert metric.result() == 2.0
    with pytest.raises(ValueError, match=r"sample_weight.*\(2,\).*one value per sample"):
        metric.update_state(np.zeros((2, 1)), np.ones((2, 1)), [1.0, 2.0])


def test_a_loss_as_a_metric_is_averaged_over_samples():
    for loss in (losses.MeanSquaredError(), losses.CategoricalCrossentropy(reduction="sum")):
        metric = metrics.MeanMetricWrapper(loss)
        for rows in (slice(0, 7), slice(7, 12)):
            metric.update_state(HOT[rows], P[rows], W[rows])
        each = loss.fn(HOT, P, **loss.kwargs)
        np.testing.assert_allclose(metric.result(), np.average(each, weights=W), rtol=1e-6)
        again = metrics.deserialize(metrics.serialize(metric))
        np.testing.assert_allclose(again(HOT, P, W), metric.result(), rtol=1e-6)
    ignoring = losses.SparseCategoricalCrossentropy(ignore_class=1)
    metric = metrics.MeanMetricWrapper(ignoring)
    np.testing.assert_allclose(metric(LABELS, P), ignoring(LABELS, P), rtol=1e-6)
    assert ignoring.reduction == "sum_over_batch_size"


# -------------------------------------------------------------------- accuracies


@pytest.mark.parametrize("dtype", ["int64", "uint8", "float32", "bool"])
def test_sparse_accuracy_of_any_label_shape_and_dtype(dtype):
    labels = (LABELS % 2).astype(dtype)
    expected = np.mean(P.argmax(1) == LABELS % 2)
    for y in (labels, labels[:, None]):
        assert metrics.SparseCategoricalAccuracy()(y, P) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("t", "p", "name"),
    [
        ((8, 1), (8, 1), "BinaryAccuracy"),
        ((8,), (8, 1), "BinaryAccuracy"),
        ((8,), (8, 3), "SparseCategoricalAccuracy"),
        ((8, 1), (8, 3), "SparseCategoricalAccuracy"),
        ((8, 5), (8, 5, 3), "SparseCategoricalAccuracy"),
        ((8, 3), (8, 3), "CategoricalAccuracy"),
        ((None, 3), (None, 3), "CategoricalAccuracy"),
    ],
)
def test_accuracy_is_chosen_by_shape(t, p, name):
    assert metrics.accuracy_for(t, p) is getattr(metrics, name)


def test_ties_and_what_is_no_number_in_top_k():
    p = np.array([[0.4, 0.4, 0.2], [0.2, 0.4, 0.4], [np.nan, 0.5, 0.5]])
    hits = metrics.sparse_top_k_categorical_accuracy([1, 0, 0], p, k=1)
    np.testing.assert_array_equal(hits, [True, False, False])
    assert not metrics.sparse_top_k_categorical_accuracy([7], p[:1], k=3).any()
    ids = np.array([[2, 0, 1], [1, 0, 2]])
    hits = metrics.sparse_top_k_categorical_accuracy([0, 2], ids, k=2, from_sorted_ids=True)
    np.testing.assert_array_equal(hits, [True, False])
    np.testing.assert_array_equal(metrics.categorical_accuracy(np.eye(3)[[0, 1]], p[:2]), [1, 1])


# -------------------------------------------------------------------- counts and curves


def test_areas_against_scikit_learn():
    from sklearn.metrics import roc_auc_score

    p = np.round(RNG.random(500), 2)  # ties
    y = RNG.random(500) < p
    metric = metrics.AUC(num_thresholds=2001)
    assert metric(y, p) == pytest.approx(roc_auc_score(y, p), abs=1e-6)
    w = RNG.random(500)
    metric.reset_state()
    expected = roc_auc_score(y, p, sample_weight=w)
    assert metric(y, p, sample_weight=w) == pytest.approx(expected, abs=1e-6)
    logits = np.log((p + 0.01) / (1.01 - p))
    metric = metrics.AUC(num_thresholds=20001, from_logits=True)
    assert metric(y, logits) == pytest.approx(roc_auc_score(y, p), abs=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_many_predictions_are_counted_as_exactly_as_few(dtype):
    p = RNG.random(6000).astype(dtype)
    p[:400] = np.linspace(0, 1, 200, dtype=dtype).repeat(2)  # on the thresholds
    y = RNG.random(6000) < p
    for limits in (np.linspace(0, 1, 200), np.linspace(0, 1, 9000), [0.5, 0.2], np.full(20, 0.3)):
        limits = np.asarray(limits)
        many = metrics.confusion.counts_at(limits, y, p, None)
        few = [
            metrics.confusion.counts_at(limits, y[i : i + 2000], p[i : i + 2000], None)
            for i in (0, 2000, 4000)
        ]
        np.testing.assert_array_equal(many, np.sum(few, axis=0))
        for i in (0, len(limits) - 1):
            over = p > limits.astype(dtype)[i]
            np.testing.assert_array_equal(many[:2, i], [(over & y).sum(), (over & ~y).sum()])


def test_areas_of_one_class_alone():
    for curve, of_ones in (("ROC", 0.0), ("PR", 1.0)):
        assert metrics.AUC(curve=curve)([1, 1], [0.2, 0.9]) == pytest.approx(of_ones)
        assert metrics.AUC(curve=curve)([0, 0], [0.2, 0.9]) == 0.0


def test_precision_and_recall_of_ints_bools_and_edges():
    y, p = [0, 1, 1, 0], [0, 1, 0, 1]
    for dtype in (int, bool, float):
        data = np.array(y, dtype), np.array(p, dtype)
        assert metrics.Precision()(*data) == metrics.Recall()(*data) == 0.5
    assert metrics.Precision()([1], [0.5]) == 0.0  # not above the threshold
    assert metrics.TruePositives(thresholds=0.0)([1, 1], [0.0, 0.1]) == 1.0
    found = metrics.FalsePositives(thresholds=[0.8, 0.2])([0, 0, 1], [0.5, 0.9, 0.9])
    np.testing.assert_array_equal(found, [1, 2])


def test_r2_and_correlations_against_numpy():
    t, p = RNG.normal(size=(40, 2)) + 1e4, RNG.normal(size=(40, 2)) + 1e4
    expected = 1 - ((t - p) ** 2).sum(0) / ((t - t.mean(0)) ** 2).sum(0)
    np.testing.assert_allclose(metrics.R2Score(class_aggregation=None)(t, p), expected)
    assert metrics.R2Score()([1.0, 1.0], [1.0, 1.0]) == 1.0
    assert metrics.R2Score()([1.0, 1.0], [1.0, 2.0]) == 0.0
    with pytest.warns(UserWarning, match="too few for 5 regressors"):
        metrics.R2Score(num_regressors=5)([1.0, 2.0, 4.0], [1.0, 2.0, 3.0])
    rows = metrics.pearson_correlation(t.T, p.T)
    np.testing.assert_allclose(rows, [np.corrcoef(t[:, i], p[:, i])[0, 1] for i in range(2)])
    assert metrics.pearson_correlation([1.0, 1.0], [1.0, 2.0]) == 0.0
    t = RNG.normal(size=(1, 9))
    np.testing.assert_allclose(metrics.concordance_correlation(t, t), 1, rtol=1e-6)


def test_iou_cuts_fractional_weights_with_a_word():
    with pytest.warns(UserWarning, match='MeanIoU counts in int32.*dtype="float32"'):
        found = metrics.MeanIoU(2)([0, 1], [0, 0], sample_weight=[1.5, 0.5])
    assert found == 1.0
    exact = metrics.MeanIoU(2, dtype="float32")([0, 1], [0, 0], sample_weight=[1.5, 0.5])
    assert exact == pytest.approx((1.5 / 2 + 0) / 2)


# -------------------------------------------------------------------- own metrics, names, mistakes


class Hits(metrics.Metric):
    """With variables, as Keras users write it, and a metric inside."""

    def __init__(self, limit=0.5, name="hits", **kwargs):
        super().__init__(name=name, **kwargs)
        self.limit = limit
        self.n = self.add_weight(shape=(), initializer="zeros", name="n")
        self.each = self.add_variable(shape=(3,), initializer="zeros")
        self.inner = metrics.Mean(name="inner")
        self.seen = 0

    def update_state(self, y_true, y_pred, sample_weight=None):
        hit = np.abs(y_true - y_pred) < self.limit
        self.n.assign_add(hit.sum())
        self.each.assign_add(hit.sum(0))
        self.inner.update_state(hit)
        self.seen += len(hit)

    def result(self):
        return self.n / (3 * self.seen) if self.seen else 0.0


def test_metrics_with_variables():
    metric = Hits()
    value = float(metric(HOT, P))
    assert value == pytest.approx(metric.inner.result())
    assert [v.path for v in metric.variables][:1] == ["n"] and not metric.n.requires_grad
    other = Hits()
    other.set_state(metric.get_state())
    assert float(other.result()) == value and other.inner.result() == metric.inner.result()
    np.testing.assert_array_equal(other.each.numpy(), metric.each.numpy())
    other(HOT, P)  # nothing is shared
    assert float(metric.result()) == value
    metric.reset_state()
    assert metric.n.numpy() == 0 and not metric.each.numpy().any() and metric.inner.result() == 0


def test_names():
    assert metrics.get("mse").name == "mean_squared_error"
    assert type(metrics.get("AUC")) is metrics.AUC
    assert type(metrics.get("f1_score")) is metrics.F1Score
    assert type(metrics.get("root_mean_squared_error")) is metrics.RootMeanSquaredError
    assert type(metrics.get("BCE")) is metrics.BinaryCrossentropy
    assert metrics.get("mae") is not metrics.get("mae")
    assert metrics.get(None) is None
    assert metrics.LogCoshError().name == "logcosh"
    assert metrics.Precision(name="p").name == "p"
    assert metrics.Precision().name.startswith("precision")
    for function in ("mean_squared_error", "binary_accuracy", "hinge", "pearson_correlation"):
        assert callable(getattr(metrics, function))
    assert metrics.Precision().get_config()["thresholds"] is None


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: metrics.get("acuracy"), ValueError, 'acuracy.*"Accuracy"'),
        (lambda: metrics.get(3), TypeError, "metric.*3 of type int"),
        (lambda: metrics.SparseCategoricalAccuracy()(HOT, P), ValueError, "CategoricalAccuracy"),
        (lambda: metrics.CategoricalAccuracy()(LABELS, P), ValueError, r"\(12,\).*\(12, 3\)"),
        (lambda: metrics.BinaryAccuracy()(BITS, P), ValueError, r"\(12,\).*\(12, 3\)"),
        (lambda: metrics.BinaryAccuracy(threshold=2), ValueError, "threshold .* 2"),
        (lambda: metrics.MeanSquaredError()(Q, P), ValueError, r"\(12,.*\(12, 3\)"),
        (lambda: metrics.MeanSquaredError()(HOT, P, W[:5]), ValueError, r"sample_weight.*\(5,\)"),
        (lambda: metrics.Mean()(Q, sample_weight=W[:5]), ValueError, r"sample_weight.*\(5,\)"),
        (lambda: metrics.Precision(thresholds=1.5), ValueError, "Precision: thresholds .* 1.5"),
        (
            lambda: metrics.Precision(top_k=0),
            ValueError,
            "k must be a positive integer",
        ),
        (lambda: metrics.Recall(class_id=5)(HOT, P), ValueError, r"class_id 5 .*\(12, 3\)"),
        (lambda: metrics.AUC(curve="roc"), ValueError, "curve .* 'roc'"),
        (lambda: metrics.AUC(num_thresholds=1), ValueError, "at least 2; received 1"),
        (lambda: metrics.AUC(summation_method="x"), ValueError, "summation_method"),
        (lambda: metrics.AUC()([0, 1], [-3.0, 2.0]), ValueError, "-3 to 2. Pass from_logits=True"),
        (lambda: metrics.AUC(multi_label=True)(BITS, Q), ValueError, r"labels.*\(12,\)"),
        (lambda: metrics.PrecisionAtRecall(2), ValueError, "PrecisionAtRecall: recall .* 2"),
        (lambda: metrics.F1Score(average="mean"), ValueError, "F1Score: average .* 'mean'"),
        (lambda: metrics.F1Score()(BITS, Q), ValueError, r"one-hot targets; received \(12,\)"),
        (lambda: metrics.FBetaScore(beta=0), ValueError, "beta"),
        (lambda: metrics.MeanIoU(2)([0, 2], [0, 1]), ValueError, "range 0 to 1; .* 0 to 2"),
        (lambda: metrics.MeanIoU(2.5), ValueError, "num_classes .* 2.5"),
        (lambda: metrics.IoU(3, [3]), ValueError, "target_class_ids .* 0 to 2"),
        (lambda: metrics.R2Score(class_aggregation="sum"), ValueError, "class_aggregation"),
        (lambda: metrics.R2Score(num_regressors=-1), ValueError, "num_regressors .* -1"),
        (lambda: metrics.TopKCategoricalAccuracy(k=-1), ValueError, "k must .* -1"),
        (lambda: metrics.EpochScoring("rocauc"), ValueError, 'rocauc.*"roc_auc"'),
        (lambda: metrics.EpochScoring(3), TypeError, "received 3"),
        (lambda: metrics.Metric().result(), NotImplementedError, "result"),
        (lambda: metrics.Mean()(np.array(["a"])), TypeError, "Expected numbers"),
    ],
)
def test_mistakes_are_named(call, error, match):
    with pytest.raises(error, match=match):
        call()


# -------------------------------------------------------------------- properties


@settings(max_examples=40, deadline=None)
@given(
    cuts=st.lists(st.integers(0, 12), max_size=4),
    name=st.sampled_from(sorted(set(NAMES) - {"EpochScoring"})),
    weighted=st.booleans(),
)
def test_fed_in_batches_equals_fed_at_once(cuts, name, weighted):
    data = example(name)
    whole, parts = make(name), make(name)
    whole.update_state(*data, sample_weight=W if weighted else None)
    edges = [0, *sorted(cuts), 12]
    for start, stop in itertools.pairwise(edges):
        rows = slice(start, stop)
        weight = W[rows] if weighted else None
        parts.update_state(*[x[rows] for x in data], sample_weight=weight)
    np.testing.assert_allclose(parts.result(), whole.result(), rtol=1e-6, atol=1e-7)


# -------------------------------------------------------------------- what users can look at


@pytest.mark.parametrize(
    ("method", "area"),
    [("interpolation", 0.125), ("minoring", 0.0), ("majoring", 0.25)],
)
def test_auc_of_precision_gain_matches_keras(method, area):
    t, p = [0, 1, 0, 1, 1, 0, 1, 0], [0.1, 0.4, 0.35, 0.45, 0.6, 0.9, 0.7, 0.55]
    metric = metrics.AUC(5, curve="PRGAIN", summation_method=method)
    assert metric(t, p) == pytest.approx(area, rel=1e-6)


def test_auc_of_precision_gain_is_averaged_over_labels():
    t, p = np.array([0, 0, 1, 1, 0, 1, 0, 0]), np.linspace(0.05, 0.95, 8)
    one = [metrics.AUC(9, curve="PRGAIN")(labels, p) for labels in (t, t[::-1])]
    both = metrics.AUC(9, curve="PRGAIN", multi_label=True, num_labels=2)
    assert both(np.stack([t, t[::-1]], 1), np.stack([p, p], 1)) == pytest.approx(np.mean(one))


def test_counts_and_thresholds_can_be_read():
    t, p = [0, 1, 1, 1], [0.7, 0.2, 0.8, 0.9]
    precision = metrics.Precision(thresholds=[0.5, 0.85])
    precision.update_state(t, p)
    np.testing.assert_array_equal(precision.true_positives, [2, 1])
    np.testing.assert_array_equal(precision.false_positives, [1, 0])
    np.testing.assert_array_equal(precision.true_negatives, [0, 1])
    np.testing.assert_array_equal(precision.false_negatives, [1, 2])
    area = metrics.AUC(thresholds=[0.75, 0.5])
    area.update_state(t, p)
    np.testing.assert_allclose(area.thresholds, [-1e-7, 0.5, 0.75, 1 + 1e-7])
    np.testing.assert_array_equal(area.true_positives, [3, 2, 2, 0])
    again = metrics.AUC.from_config(area.get_config())
    assert again.thresholds == area.thresholds and "thresholds" not in metrics.AUC().get_config()
    assert metrics.RecallAtPrecision(0.5, num_thresholds=3).thresholds == [0.0, 0.5, 1.0]
    assert metrics.RecallAtPrecision(0.25).precision == 0.25
    matrix = metrics.MeanIoU(2)
    matrix.update_state([0, 1, 1], [0, 0, 1])
    np.testing.assert_array_equal(matrix.total_cm, [[1, 0], [1, 1]])


def test_arguments_are_attributes():
    metric = metrics.SparseTopKCategoricalAccuracy(k=2, from_sorted_ids=True)
    assert metric.k == 2 and metric.from_sorted_ids is True
    assert metrics.BinaryAccuracy(threshold=0.25).threshold == 0.25
    with pytest.raises(AttributeError, match="BinaryAccuracy has no attribute 'k'"):
        _ = metrics.BinaryAccuracy().k


def test_class_id_needs_an_axis_of_classes():
    with pytest.raises(ValueError, match=r"class_id 2 .* \(5,\)"):
        metrics.Precision(class_id=2)([0, 1, 1, 0, 0], [0.2, 0.1, 0.6, 0.0, 0.2])


def test_weights_with_all_axes_are_broadcast():
    values = np.array([[1.0, 3.0], [5.0, 7.0]])
    for weight in ([[1, 0]], [[1], [3]], [[2]]):
        full = np.broadcast_to(weight, values.shape)
        assert metrics.Sum()(values, weight) == metrics.Sum()(values, full)
        assert metrics.Mean()(values, weight) == metrics.Mean()(values, full)
    with pytest.raises(ValueError, match="does not fit"):
        metrics.Mean()([1.0, 2.0], [1.0])


def test_metrics_and_variables_in_lists_and_dicts_are_kept_and_reset():
    class Both(metrics.Metric):
        def __init__(self):
            super().__init__(name="both")
            self.steps = self.add_variable()
            self.parts = [metrics.Mean(), metrics.Sum()]
            self.named = {"own": [Parameter(0.0, trainable=False)]}

        def update_state(self, values):
            for part in self.parts:
                part.update_state(values)
            self.steps.assign_add(1.0)
            self.named["own"][0].assign_add(2.0)

        def result(self):
            return [float(v.numpy()) for v in self.variables] + [m.result() for m in self.parts]

    metric, again = Both(), Both()
    assert metric([1.0, 3.0]) == [1.0, 2.0, 2.0, 4.0]
    again.set_state(metric.get_state())
    assert again.result() == [1.0, 2.0, 2.0, 4.0]
    metric.reset_state()
    assert metric.result() == [0.0, 0.0, 0.0, 0.0]
