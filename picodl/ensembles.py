"""Several models as one: cross-validation, ensembles, dropout that stays on, calibration."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from picodl import tree
from picodl.layers.normalization import BatchNormalization
from picodl.models.cloning import clone_model
from picodl.ops.labels import class_numbers
from picodl.tensor import no_grad
from picodl.typing import Array


class Ensemble:
    """The mean of what several models predict, and how far they differ.

    Args:
        models: at least one, each with one output of the same shape.

    Raises:
        ValueError: for no models.

    >>> from picodl import Input, Sequential, layers
    >>> models = [Sequential([Input((2,)), layers.Dense(1)]) for _ in range(3)]
    >>> mean, std = Ensemble(models).predict(np.ones((4, 2)), return_std=True)
    >>> mean.shape, std.shape
    ((4, 1), (4, 1))
    """

    def __init__(self, models: Sequence[Any]) -> None:
        self.models = list(models)
        if not self.models:
            raise ValueError("Ensemble needs at least one model; received none.")

    def predict(self, x: Any, return_std: bool = False, **options: Any) -> Any:
        """The mean over the models.

        Args:
            x: data, as for `Model.predict`.
            return_std: give (mean, standard deviation over the models) instead.
            **options: further arguments of `Model.predict`.
        """
        return _summary(self.predict_each(x, **options), return_std)

    def predict_each(self, x: Any, **options: Any) -> Array:
        """What each model predicts, (models, samples, ...)."""
        options.setdefault("verbose", 0)
        return np.stack([model.predict(x, **options) for model in self.models])


@dataclass
class CrossValidation:
    """What `cross_validate` found.

    Attributes:
        scores: name of a loss or metric -> one number for each fold, on the data left out.
        predictions: for each sample, by the model that did not see it.
        models: the model of each fold.
        histories: the History of each fit.
    """

    scores: dict[str, Array]
    predictions: Array
    models: list[Any]
    histories: list[Any]

    @property
    def ensemble(self) -> Ensemble:
        """The models of all folds as one."""
        return Ensemble(self.models)

    def __str__(self) -> str:
        found = (f"{k} {v.mean():.4g} +- {v.std():.2g}" for k, v in self.scores.items())
        return f"{len(self.models)} folds: {', '.join(found)}"


def cross_validate(
    model: Any, x: Any, y: Any, folds: int = 5, seed: int | None = None, **fit_options: Any
) -> CrossValidation:
    """Train a fresh copy of a model for each fold on the other folds, and try it on that one.

    Folds are shuffled; class numbers, (n,) or (n, 1) integers that each stand there often enough,
    are spread evenly over them.

    Args:
        model: compiled; it stays as it is. The copies begin with new weights.
        x: an array, or a list or dict of arrays.
        y: the targets, one array.
        folds: how many, from 2 to the number of samples.
        seed: of the shuffling.
        **fit_options: arguments of `fit`, such as epochs; verbose is 0 unless given.

    Raises:
        ValueError: for a model that is not compiled, too many or too few folds, or numbers of rows
            and targets that differ.

    >>> from picodl import Input, Sequential, layers
    >>> model = Sequential([Input((2,)), layers.Dense(1)])
    >>> model.compile("sgd", loss="mse")
    >>> found = cross_validate(model, np.ones((9, 2)), np.zeros((9, 1)), folds=3, epochs=2)
    >>> found.scores["loss"].shape, found.predictions.shape
    ((3,), (9, 1))
    """
    from sklearn.model_selection import KFold, StratifiedKFold

    if not getattr(model, "compiled", False):
        raise ValueError(
            f'cross_validate: compile the model "{model.name}" first; the copies are then, too.'
        )
    x = tree.map_structure(np.asarray, x)
    y = np.asarray(y)
    for part in tree.flatten(x):
        if len(part) != len(y):
            raise ValueError(
                f"cross_validate: received {len(part)} rows of x, but {len(y)} targets."
            )
    if isinstance(folds, bool) or not isinstance(folds, int) or not 2 <= folds <= len(y):
        raise ValueError(
            f"cross_validate: folds must be an integer from 2 to the number of samples, {len(y)}; "
            f"received {folds!r}."
        )
    classes = y.dtype.kind in "iub" and y.size == len(y)
    classes = classes and np.unique(y, return_counts=True)[1].min() >= folds
    split = (StratifiedKFold if classes else KFold)(folds, shuffle=True, random_state=seed)
    compiled = model.get_compile_config()
    models, histories, scores = [], [], []
    predictions: Any = None
    for train, test in split.split(np.zeros(len(y)), y.reshape(-1) if classes else None):
        here = tree.map_structure(lambda a, rows=train: a[rows], x)
        left_out = tree.map_structure(lambda a, rows=test: a[rows], x)
        copy = clone_model(model)
        copy.compile_from_config(compiled)
        histories.append(copy.fit(here, y[train], **{"verbose": 0, **fit_options}))
        scores.append(copy.evaluate(left_out, y[test], verbose=0, return_dict=True))
        part = copy.predict(left_out, verbose=0)
        if predictions is None:
            predictions = np.empty((len(y), *part.shape[1:]), part.dtype)
        predictions[test] = part
        models.append(copy)
    together = {name: np.array([score[name] for score in scores]) for name in scores[0]}
    return CrossValidation(together, predictions, models, histories)


def mc_dropout(
    model: Any, x: Any, samples: int = 32, batch_size: int = 32, return_std: bool = True
) -> Any:
    """Predictions with dropout on, many times over: their spread says how unsure the model is.

    Batch normalisation keeps to its moving statistics; whatever else behaves differently in
    training, noise and augmentation, is on. Not for a model that is in use elsewhere meanwhile.

    Args:
        model: with one output.
        x: an array, or a list or dict of arrays.
        samples: predictions for each row.
        batch_size: rows at a time.
        return_std: give (mean, standard deviation) instead of the mean alone.

    Raises:
        ValueError: for no samples or no rows.

    Reference: Gal and Ghahramani, 2016, "Dropout as a Bayesian Approximation", arXiv:1506.02142.

    >>> from picodl import Input, Sequential, layers
    >>> model = Sequential([Input((8,)), layers.Dropout(0.5), layers.Dense(1)])
    >>> mean, std = mc_dropout(model, np.ones((2, 8)), samples=20)
    >>> mean.shape, bool((std > 0).all())
    ((2, 1), True)
    """
    x = tree.map_structure(np.asarray, x)
    rows = len(tree.flatten(x)[0])
    for name, number in (("samples", samples), ("batch_size", batch_size), ("rows of x", rows)):
        if number < 1:
            raise ValueError(f"mc_dropout: {name} must be at least 1; received {number!r}.")
    found = []
    with no_grad(), _moving_statistics(model):
        for start in range(0, rows, batch_size):
            part = tree.map_structure(lambda a, s=start: a[s : s + batch_size], x)
            found.append(np.stack([model(part, training=True).numpy() for _ in range(samples)]))
    return _summary(np.concatenate(found, axis=1), return_std)


@contextlib.contextmanager
def _moving_statistics(model: Any) -> Iterator[None]:
    """Batch normalisation as in inference, which it is where it is not trained."""
    layers = [m for m in model.modules() if isinstance(m, BatchNormalization) and m._trainable]
    for layer in layers:
        layer._trainable = False
    try:
        yield
    finally:
        for layer in layers:
            layer._trainable = True


def _summary(each: Array, return_std: bool) -> Any:
    mean = each.mean(axis=0)
    return (mean, each.std(axis=0)) if return_std else mean


class TemperatureScaling:
    """Probabilities that mean what they say: softmax(logits / T), with one T for all classes.

    T does not change which class is the likeliest. Fit it on data that the model did not train on.

    Attributes:
        temperature: T, 1 before the fit.

    Reference: Guo et al., 2017, "On Calibration of Modern Neural Networks", arXiv:1706.04599.

    >>> logits = np.array([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [0.0, 4.0]])
    >>> scaling = TemperatureScaling().fit(logits, np.array([0, 0, 1, 1]))  # 3 of 4 are right
    >>> scaling.predict(logits)[0].round(2)
    array([0.75, 0.25])
    """

    temperature = 1.0

    def fit(self, logits: Any, labels: Any) -> TemperatureScaling:
        """Find the T that makes the labels likeliest.

        Args:
            logits: (n, classes).
            labels: class numbers, (n,) or (n, 1).

        Raises:
            ValueError: for other shapes, no samples, or labels that are no class numbers.
        """
        from scipy.optimize import minimize_scalar

        z = _table("TemperatureScaling", logits)
        numbers = class_numbers("TemperatureScaling", np.asarray(labels), z.shape[:1], z.shape[1])
        own = z[np.arange(len(z)), numbers]

        def surprise(log_t: float) -> float:
            scaled = z / np.exp(log_t)
            top = scaled.max(axis=1)
            total = np.log(np.exp(scaled - top[:, None]).sum(axis=1)) + top
            return float((total - own / np.exp(log_t)).mean())

        self.temperature = float(np.exp(minimize_scalar(surprise, bounds=(-5, 5)).x))
        return self

    def predict(self, logits: Any) -> Array:
        """The probabilities, (n, classes)."""
        from scipy.special import softmax

        probabilities: Array = softmax(np.asarray(logits) / self.temperature, axis=-1)
        return probabilities


def expected_calibration_error(labels: Any, probabilities: Any, bins: int = 15) -> float:
    """How far confidence and accuracy lie apart: the mean over samples of |accuracy - confidence|
    of the bin of confidences that the sample falls into.

    Args:
        labels: class numbers, (n,) or (n, 1).
        probabilities: (n, classes).
        bins: equal intervals of the highest probability.

    Raises:
        ValueError: for other shapes, no samples, or labels that are no class numbers.

    >>> expected_calibration_error([0, 1], [[0.75, 0.25], [0.75, 0.25]])
    0.25
    """
    name = "expected_calibration_error"
    p = _table(name, probabilities)
    numbers = class_numbers(name, np.asarray(labels), p.shape[:1], p.shape[1])
    confidence, right = p.max(axis=1), p.argmax(axis=1) == numbers
    places = np.minimum((confidence * bins).astype(int), bins - 1)
    gaps = np.bincount(places, right - confidence, bins)
    return float(np.abs(gaps).sum() / len(p))


def _table(name: str, values: Any) -> Array:
    """Numbers (n, classes) in float64."""
    table = np.asarray(values, np.float64)
    if table.ndim != 2 or not table.size:
        raise ValueError(
            f"{name} expects numbers of shape (n, classes), for one sample at least; received "
            f"shape {table.shape}."
        )
    return table
