"""Metrics: running numbers over batches, in plain numpy, nothing recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from picodl import losses
from picodl.families import Family
from picodl.losses import (
    binary_crossentropy,
    binary_focal_crossentropy,
    categorical_crossentropy,
    categorical_focal_crossentropy,
    categorical_hinge,
    hinge,
    huber,
    kl_divergence,
    log_cosh,
    mean_absolute_error,
    mean_absolute_percentage_error,
    mean_squared_error,
    mean_squared_logarithmic_error,
    poisson,
    sparse_categorical_crossentropy,
    squared_hinge,
)
from picodl.losses.base import is_loss_function
from picodl.metrics.accuracies import (
    Accuracy,
    BinaryAccuracy,
    CategoricalAccuracy,
    SparseCategoricalAccuracy,
    SparseTopKCategoricalAccuracy,
    TopKCategoricalAccuracy,
    accuracy,
    accuracy_for,
    binary_accuracy,
    categorical_accuracy,
    sparse_categorical_accuracy,
    sparse_top_k_categorical_accuracy,
    top_k_categorical_accuracy,
)
from picodl.metrics.base import Mean, MeanMetricWrapper, Metric, Sum
from picodl.metrics.confusion import (
    ConfusionMetric,
    FalseNegatives,
    FalsePositives,
    Precision,
    Recall,
    TrueNegatives,
    TruePositives,
)
from picodl.metrics.curves import (
    AUC,
    PrecisionAtRecall,
    RecallAtPrecision,
    SensitivityAtSpecificity,
    SpecificityAtSensitivity,
)
from picodl.metrics.fscore import F1Score, FBetaScore
from picodl.metrics.iou import BinaryIoU, IoU, MeanIoU, OneHotIoU, OneHotMeanIoU
from picodl.metrics.probabilistic import (
    BinaryCrossentropy,
    CategoricalCrossentropy,
    CategoricalHinge,
    Hinge,
    KLDivergence,
    Poisson,
    SparseCategoricalCrossentropy,
    SquaredHinge,
)
from picodl.metrics.regression import (
    ConcordanceCorrelation,
    CosineSimilarity,
    LogCoshError,
    MeanAbsoluteError,
    MeanAbsolutePercentageError,
    MeanRelativeError,
    MeanSquaredError,
    MeanSquaredLogarithmicError,
    PearsonCorrelation,
    R2Score,
    RootMeanSquaredError,
    concordance_correlation,
    cosine_similarity,
    pearson_correlation,
)
from picodl.metrics.scoring import EpochScoring
from picodl.saving import registry
from picodl.saving.serialization import deserialize_keras_object

_family = Family(
    "metric",
    "keras.metrics",
    Metric,
    [
        AUC,
        Accuracy,
        BinaryAccuracy,
        BinaryCrossentropy,
        BinaryIoU,
        CategoricalAccuracy,
        CategoricalCrossentropy,
        CategoricalHinge,
        ConcordanceCorrelation,
        CosineSimilarity,
        EpochScoring,
        F1Score,
        FBetaScore,
        FalseNegatives,
        FalsePositives,
        Hinge,
        IoU,
        KLDivergence,
        LogCoshError,
        Mean,
        MeanAbsoluteError,
        MeanAbsolutePercentageError,
        MeanIoU,
        MeanMetricWrapper,
        MeanRelativeError,
        MeanSquaredError,
        MeanSquaredLogarithmicError,
        OneHotIoU,
        OneHotMeanIoU,
        PearsonCorrelation,
        Poisson,
        Precision,
        PrecisionAtRecall,
        R2Score,
        Recall,
        RecallAtPrecision,
        RootMeanSquaredError,
        SensitivityAtSpecificity,
        SparseCategoricalAccuracy,
        SparseCategoricalCrossentropy,
        SparseTopKCategoricalAccuracy,
        SpecificityAtSensitivity,
        SquaredHinge,
        Sum,
        TopKCategoricalAccuracy,
        TrueNegatives,
        TruePositives,
    ],
    aliases={
        "mse": MeanSquaredError,
        "MSE": MeanSquaredError,
        "mae": MeanAbsoluteError,
        "MAE": MeanAbsoluteError,
        "mape": MeanAbsolutePercentageError,
        "MAPE": MeanAbsolutePercentageError,
        "msle": MeanSquaredLogarithmicError,
        "MSLE": MeanSquaredLogarithmicError,
        "bce": BinaryCrossentropy,
        "BCE": BinaryCrossentropy,
    },
)


# what a MeanMetricWrapper may name in its config; the class of the same name is another thing
_functions = {
    **{name: part for name, part in vars(losses).items() if is_loss_function(part)},
    "accuracy": accuracy,
    "binary_accuracy": binary_accuracy,
    "categorical_accuracy": categorical_accuracy,
    "concordance_correlation": concordance_correlation,
    "cosine_similarity": cosine_similarity,
    "pearson_correlation": pearson_correlation,
    "sparse_categorical_accuracy": sparse_categorical_accuracy,
    "sparse_top_k_categorical_accuracy": sparse_top_k_categorical_accuracy,
    "top_k_categorical_accuracy": top_k_categorical_accuracy,
}


def function_of(config: Any) -> Any:
    """The function (or loss) of the config that `serialize` gives; the user's own come first."""
    if isinstance(config, dict) and config.get("class_name") != "function":
        return deserialize_keras_object(config)
    name = config.get("config") if isinstance(config, dict) else config
    found = registry.find_custom(name)
    if found is None and isinstance(name, str):
        found = _functions.get(name)
    return deserialize(config) if found is None else found


def get(identifier: Any) -> Any:
    """The metric for a name (new each time), a config, a class or a callable; None stays None.

    Raises:
        TypeError: for anything else.
        ValueError: for an unknown name; the nearest known one is suggested.

    >>> get("mae").name
    'mean_absolute_error'
    """
    return _family.get(identifier)


def serialize(metric: Any) -> Any:
    """The config of a metric, as Keras writes it."""
    return _family.serialize(metric)


def deserialize(config: Any, custom_objects: Mapping[str, Any] | None = None) -> Any:
    """The metric of a config."""
    return _family.deserialize(config, custom_objects)
