"""scikit-learn estimators out of models: for pipelines, cross-validation and grid search.

They pass scikit-learn's check_estimator but for check_sample_weight_equivalence_on_dense_data and
..._on_sparse_data, which cannot apply: a sample repeated k times makes other batches, and more
steps, than one sample of weight k. Models pickle, so n_jobs and joblib's backends work.
"""

from picodl.wrappers.estimators import SKLearnClassifier, SKLearnRegressor, SKLearnTransformer
from picodl.wrappers.perceptrons import PicoClassifier, PicoRegressor

__all__ = [
    "PicoClassifier",
    "PicoRegressor",
    "SKLearnClassifier",
    "SKLearnRegressor",
    "SKLearnTransformer",
]
