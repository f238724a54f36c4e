"""scikit-learn takes the wrappers for its own."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

import picodl
from picodl import callbacks, layers
from picodl.wrappers import (
    PicoClassifier,
    PicoRegressor,
    SKLearnClassifier,
    SKLearnRegressor,
    SKLearnTransformer,
)

RNG = np.random.default_rng(0)
LABELS = np.repeat(["no", "perhaps", "yes"], 30)
X = np.eye(3)[np.repeat([0, 1, 2], 30)] * 3 + RNG.normal(size=(90, 3))
FIT = {"epochs": 15, "batch_size": 16}


def classifier(X: Any, y: Any, units: int = 16, rate: float = 0.02) -> Any:
    picodl.utils.set_random_seed(0)
    model = picodl.Sequential(
        [
            picodl.Input(X.shape[1:]),
            layers.Dense(units, "relu"),
            layers.Dense(y.shape[1], "softmax"),
        ]
    )
    model.compile(picodl.optimizers.Adam(rate), "categorical_crossentropy", metrics=["accuracy"])
    return model


def regressor(X: Any, y: Any) -> Any:
    picodl.utils.set_random_seed(0)
    model = picodl.Sequential(
        [picodl.Input(X.shape[1:]), layers.Dense(16, "relu"), layers.Dense(y.shape[1])]
    )
    model.compile(picodl.optimizers.Adam(0.02), "mse")
    return model


# a sample repeated k times makes other batches, and more steps, than one of weight k
EXPECTED = {
    "check_sample_weight_equivalence_on_dense_data": "batches differ",
    "check_sample_weight_equivalence_on_sparse_data": "batches differ",
}
ESTIMATORS = [
    SKLearnClassifier(classifier, fit_kwargs={"epochs": 20}),
    SKLearnRegressor(regressor, fit_kwargs={"epochs": 20}),
    SKLearnTransformer(regressor, fit_kwargs={"epochs": 3}),
    PicoClassifier((16,), max_iter=25, learning_rate_init=0.01),
    PicoRegressor((16,), max_iter=40, learning_rate_init=0.01),
]
CHECKS = [
    pytest.param(estimator, check, id=f"{type(estimator).__name__}-{check.func.__name__}")
    for prototype in ESTIMATORS
    for estimator, check in estimator_checks_generator(prototype, mark=None)
    if check.func.__name__ not in EXPECTED
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("estimator", "check"), CHECKS)
def test_estimator_checks(estimator: Any, check: Any) -> None:
    from unittest import SkipTest

    try:
        check(estimator)
    except SkipTest as reason:
        pytest.skip(str(reason))


def test_classifier_with_names() -> None:
    model = SKLearnClassifier(classifier, fit_kwargs=FIT).fit(X, LABELS)
    assert is_classifier(model) and list(model.classes_) == ["no", "perhaps", "yes"]
    assert model.score(X, LABELS) > 0.9
    probabilities = model.predict_proba(X)
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-5)
    np.testing.assert_array_equal(model.decision_function(X), probabilities)
    assert set(model.history_.history) == {"accuracy", "loss"}


@pytest.mark.parametrize(
    ("loss", "units", "activation"),
    [
        ("sparse_categorical_crossentropy", 2, "softmax"),
        ("binary_crossentropy", 1, "sigmoid"),
        (picodl.losses.BinaryCrossentropy(from_logits=True), 1, None),
        (picodl.losses.CategoricalCrossentropy(from_logits=True), 2, None),
        (picodl.losses.SparseCategoricalCrossentropy(from_logits=True), 2, None),
    ],
)
def test_two_classes_with_every_kind_of_loss(loss: Any, units: int, activation: Any) -> None:
    def build(X: Any, y: Any) -> Any:
        picodl.utils.set_random_seed(0)
        model = picodl.Sequential(
            [picodl.Input(X.shape[1:]), layers.Dense(8, "relu"), layers.Dense(units, activation)]
        )
        model.compile(picodl.optimizers.Adam(0.05), loss)
        return model

    y = np.where(LABELS == "yes", "yes", "no")
    model = SKLearnClassifier(build, fit_kwargs=FIT).fit(X, y)
    assert model.score(X, y) > 0.9
    probabilities = model.predict_proba(X)
    assert probabilities.shape == (90, 2) and (probabilities >= 0).all()
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-5)
    decided = np.where(model.decision_function(X) > 0, "yes", "no")
    np.testing.assert_array_equal(decided, model.predict(X))


def test_multilabel() -> None:
    def build(X: Any, y: Any) -> Any:
        picodl.utils.set_random_seed(0)
        model = picodl.Sequential([picodl.Input(X.shape[1:]), layers.Dense(y.shape[1], "sigmoid")])
        model.compile(picodl.optimizers.Adam(0.1), "binary_crossentropy")
        return model

    y = (X[:, :2] > 1.5).astype(int)
    model = SKLearnClassifier(build, fit_kwargs=FIT).fit(X, y)
    assert model.predict(X).shape == (90, 2) and (model.predict(X) == y).mean() > 0.9
    with pytest.raises(ValueError, match=r"one label per sample.*sklearn\.multioutput"):
        model.fit(X, np.tile(np.arange(90)[:, None] % 3, 2))


def test_regressor_with_several_targets() -> None:
    y = np.stack([X[:, 0] * 2, X[:, 1] - 1], axis=1)
    model = SKLearnRegressor(regressor, fit_kwargs={"epochs": 60}).fit(X, y)
    assert is_regressor(model) and model.score(X, y) > 0.9
    assert model.fit(X, y[:, 0]).predict(X).shape == (90,)


def test_transformer_is_trained_on_its_input_without_targets() -> None:
    model = SKLearnTransformer(regressor, fit_kwargs={"epochs": 40})
    codes = model.fit_transform(X)
    assert codes.shape == (90, 3) and np.square(codes - X).mean() < 1
    assert model.get_feature_names_out()[0] == "sklearntransformer0"


def test_parameters_can_be_searched_and_stay_what_they_were() -> None:
    stopping = callbacks.EarlyStopping("val_loss", patience=2)
    options = {"epochs": 8, "validation_split": 0.2, "callbacks": [stopping]}
    model = SKLearnClassifier(classifier, fit_kwargs=options, model_kwargs={"units": 4})
    before = repr(model.get_params(deep=False))
    search = GridSearchCV(
        model,
        {"model_kwargs__units": [2, 16], "model_kwargs__rate": [0.02], "fit_kwargs__epochs": [8]},
        cv=2,
    )
    search.fit(X, LABELS)
    assert search.best_params_["model_kwargs__units"] == 16
    assert repr(model.get_params(deep=False)) == before and stopping.best is None
    assert model.get_params()["fit_kwargs__epochs"] == 8
    with pytest.raises(ValueError, match="no parameter 'model__units'"):
        model.set_params(model__units=3)


@pytest.mark.slow
def test_cross_validation_in_processes_and_pipelines() -> None:
    model = SKLearnClassifier(classifier, fit_kwargs=FIT)
    pipeline = make_pipeline(StandardScaler(), model)
    scores = cross_val_score(pipeline, X, LABELS, cv=3, n_jobs=2)
    np.testing.assert_array_equal(scores, cross_val_score(pipeline, X, LABELS, cv=3))
    assert scores.min() > 0.8


def test_pickle_and_clone() -> None:
    model = SKLearnClassifier(classifier, fit_kwargs=FIT).fit(X, LABELS)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    fresh = clone(model)
    assert fresh.fit_kwargs == FIT and not hasattr(fresh, "model_")


def test_compiled_model_is_cloned_with_its_weights() -> None:
    template = regressor(X, X[:, :1])
    weights = template.get_weights()
    model = SKLearnRegressor(template, fit_kwargs={"epochs": 1})
    first = model.fit(X, X[:, 0]).predict(X)
    for kept, old in zip(template.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(kept, old)
    np.testing.assert_array_equal(model.fit(X, X[:, 0]).predict(X), first)


def test_warm_start_partial_fit_and_weights() -> None:
    warm = SKLearnClassifier(classifier, warm_start=True, fit_kwargs={"epochs": 1})
    first = warm.fit(X, LABELS).model_
    assert warm.fit(X, LABELS).model_ is first
    parts = SKLearnClassifier(classifier)
    for _ in range(15):
        parts.partial_fit(X[:60], LABELS[:60], classes=["no", "perhaps", "yes"])
        parts.partial_fit(X[60:], LABELS[60:], sample_weight=np.ones(30))
    assert parts.score(X, LABELS) > 0.8
    with pytest.raises(ValueError, match="classes are"):
        parts.partial_fit(X[:2], ["never", "no"])
    weighted = SKLearnClassifier(classifier, fit_kwargs=FIT)
    weighted.fit(X, LABELS, sample_weight=np.where(LABELS == "no", 1.0, 0.0))
    assert (weighted.predict(X) == "no").mean() > 0.9


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (5, "model must be a compiled Model, or a callable.*received 5"),
        (lambda X, y: 3, "must return a compiled Model; it returned 3"),
    ],
)
def test_what_is_no_model(model: Any, told: str) -> None:
    with pytest.raises(TypeError, match=told):
        SKLearnClassifier(model).fit(X, LABELS)


def test_model_that_is_not_compiled() -> None:
    with pytest.raises(ValueError, match="must be compiled"):
        SKLearnRegressor(picodl.Sequential([layers.Dense(1)])).fit(X, X[:, 0])


def test_ready_made_classifier() -> None:
    model = PicoClassifier(
        (16, 8), dropout=0.1, batch_normalization=True, alpha=1e-4, learning_rate_init=0.02,
        early_stopping=True, max_iter=60, random_state=1,
    )  # fmt: skip
    model.fit(X, LABELS)
    assert model.score(X, LABELS) > 0.9 and model.n_iter_ == len(model.loss_curve_) <= 60
    np.testing.assert_array_equal(
        clone(model).fit(X, LABELS).predict_proba(X), model.predict_proba(X)
    )
    rare = np.where(np.arange(90) % 15 == 0, "rare", "usual")
    plain = PicoClassifier((8,), max_iter=5, random_state=0).fit(X, rare)
    balanced = PicoClassifier((8,), max_iter=5, random_state=0, class_weight="balanced")
    assert balanced.fit(X, rare).predict_proba(X)[:, 0].mean() > plain.predict_proba(X)[:, 0].mean()
    search = GridSearchCV(PicoClassifier(max_iter=5), {"dropout": [0.0, 0.5]}, cv=2)
    assert set(search.fit(X, LABELS).best_params_) == {"dropout"}


def test_ready_made_regressor() -> None:
    y = 1000 + 50 * X[:, :2]
    model = PicoRegressor((16,), learning_rate_init=0.01, max_iter=80, random_state=0)
    assert model.fit(X, y).score(X, y) > 0.9 and model.predict(X).shape == (90, 2)
    with pytest.raises(ValueError, match="class_weight is for classes"):
        PicoRegressor(class_weight="balanced").fit(X, y)


@pytest.mark.slow
def test_grid_search_on_dask() -> None:
    distributed = pytest.importorskip("dask.distributed")
    import joblib

    with (
        distributed.Client(n_workers=2, threads_per_worker=1, dashboard_address=None),
        joblib.parallel_config("dask"),
    ):
        search = GridSearchCV(
            SKLearnClassifier(classifier, fit_kwargs=FIT), {"model_kwargs__units": [4, 16]}, cv=3
        )
        search.fit(X, LABELS)
    assert search.best_score_ > 0.8
