"""Losses: classes for training, and function forms that give one value per sample.

Each class is a function with its arguments kept; the class says what is computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from picodl.families import Family
from picodl.losses.base import Loss, LossFunctionWrapper
from picodl.losses.crossentropy import (
    BinaryCrossentropy,
    BinaryFocalCrossentropy,
    CategoricalCrossentropy,
    CategoricalFocalCrossentropy,
    CategoricalGeneralizedCrossEntropy,
    CrossEntropyLoss,
    KLDivergence,
    Poisson,
    SparseCategoricalCrossentropy,
    binary_crossentropy,
    binary_focal_crossentropy,
    categorical_crossentropy,
    categorical_focal_crossentropy,
    categorical_generalized_cross_entropy,
    kl_divergence,
    poisson,
    sparse_categorical_crossentropy,
)
from picodl.losses.ctc import CTC, ctc
from picodl.losses.embedding import Circle, Contrastive, Triplet, circle, contrastive, triplet
from picodl.losses.hinge import (
    CategoricalHinge,
    Hinge,
    SquaredHinge,
    categorical_hinge,
    hinge,
    squared_hinge,
)
from picodl.losses.overlap import Dice, Tversky, dice, tversky
from picodl.losses.regression import (
    MSE,
    CosineSimilarity,
    GaussianNLL,
    Huber,
    LogCosh,
    MeanAbsoluteError,
    MeanAbsolutePercentageError,
    MeanSquaredError,
    MeanSquaredLogarithmicError,
    Quantile,
    cosine_similarity,
    gaussian_nll,
    huber,
    log_cosh,
    mean_absolute_error,
    mean_absolute_percentage_error,
    mean_squared_error,
    mean_squared_logarithmic_error,
    quantile,
)

mse = mean_squared_error
mae = mean_absolute_error
mape = mean_absolute_percentage_error
msle = mean_squared_logarithmic_error
bce = binary_crossentropy
kld = kl_divergence

_functions = [
    binary_crossentropy,
    binary_focal_crossentropy,
    categorical_crossentropy,
    categorical_focal_crossentropy,
    categorical_generalized_cross_entropy,
    categorical_hinge,
    circle,
    contrastive,
    cosine_similarity,
    ctc,
    dice,
    gaussian_nll,
    hinge,
    huber,
    kl_divergence,
    log_cosh,
    mean_absolute_error,
    mean_absolute_percentage_error,
    mean_squared_error,
    mean_squared_logarithmic_error,
    poisson,
    quantile,
    sparse_categorical_crossentropy,
    squared_hinge,
    triplet,
    tversky,
]

_family = Family(
    "loss",
    "keras.losses",
    Loss,
    [
        BinaryCrossentropy,
        BinaryFocalCrossentropy,
        CTC,
        CategoricalCrossentropy,
        CategoricalFocalCrossentropy,
        CategoricalGeneralizedCrossEntropy,
        CategoricalHinge,
        Circle,
        Contrastive,
        CosineSimilarity,
        CrossEntropyLoss,
        Dice,
        GaussianNLL,
        Hinge,
        Huber,
        KLDivergence,
        LogCosh,
        LossFunctionWrapper,
        MeanAbsoluteError,
        MeanAbsolutePercentageError,
        MeanSquaredError,
        MeanSquaredLogarithmicError,
        Poisson,
        Quantile,
        SparseCategoricalCrossentropy,
        SquaredHinge,
        Triplet,
        Tversky,
    ],
    aliases={
        **{function.__name__: function for function in _functions},
        "pinball": quantile,
        "mse": mse,
        "MSE": mse,
        "mae": mae,
        "MAE": mae,
        "mape": mape,
        "MAPE": mape,
        "msle": msle,
        "MSLE": msle,
        "bce": bce,
        "BCE": bce,
        "kld": kld,
        "KLD": kld,
    },
)


def get(identifier: Any) -> Any:
    """The loss for a name, a config, a class or a callable; None stays None.

    A function's name gives the function, a class name a new object, as in Keras.

    Raises:
        TypeError: for anything else.
        ValueError: for an unknown name; the nearest known one is suggested.

    >>> get("mse") is mean_squared_error, get("Huber").name
    (True, 'huber_loss')
    """
    return _family.get(identifier)


def serialize(loss: Any) -> Any:
    """The config of a loss, as Keras writes it."""
    return _family.serialize(loss)


def deserialize(config: Any, custom_objects: Mapping[str, Any] | None = None) -> Any:
    """The loss of a config."""
    return _family.deserialize(config, custom_objects)
