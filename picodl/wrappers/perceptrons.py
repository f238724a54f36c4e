"""Ready-made estimators: multilayer perceptrons with the arguments of scikit-learn's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.validation import _check_sample_weight

from picodl import initializers, layers, optimizers, regularizers
from picodl.callbacks import EarlyStopping
from picodl.losses import BinaryCrossentropy, CategoricalCrossentropy, MeanSquaredError
from picodl.models import Model, Sequential
from picodl.typing import Array, Config
from picodl.wrappers.base import Wrapper
from picodl.wrappers.estimators import SKLearnClassifier, SKLearnRegressor


class _Perceptron(Wrapper):
    """What the ready-made estimators share: arguments like those of scikit-learn's MLPs."""

    model_kwargs = None
    fit_kwargs: Any = None
    get_params = BaseEstimator.get_params
    set_params = BaseEstimator.set_params

    def __init__(
        self,
        hidden_layer_sizes: Sequence[int] = (100,),
        activation: str = "relu",
        dropout: float = 0.0,
        batch_normalization: bool = False,
        alpha: float = 0.0,
        learning_rate_init: float = 0.001,
        batch_size: int = 32,
        max_iter: int = 200,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        class_weight: Any = None,
        warm_start: bool = False,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.dropout = dropout
        self.batch_normalization = batch_normalization
        self.alpha = alpha
        self.learning_rate_init = learning_rate_init
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.class_weight = class_weight
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = False  # random_state decides
        return tags

    @property
    def n_iter_(self) -> int:
        """The number of epochs of the last fit."""
        return len(self.history_.epoch)

    @property
    def loss_curve_(self) -> list[float]:
        """The loss of each epoch of the last fit."""
        return self.history_.history["loss"]

    def _make_model(self, X: Any, target: Array) -> Model:
        random = check_random_state(self.random_state)

        def seed() -> int:
            return int(random.randint(1, 2**31 - 1))

        def dense(units: int, activation: str | None = None) -> Any:
            return layers.Dense(
                units,
                activation,
                kernel_initializer=initializers.GlorotUniform(seed()),
                kernel_regularizer=regularizers.L2(self.alpha) if self.alpha else None,
            )

        stack: list[Any] = [layers.Input((X.shape[1],))]
        for units in self.hidden_layer_sizes:
            stack.append(dense(units))
            if self.batch_normalization:
                stack.append(layers.BatchNormalization())
            stack.append(layers.Activation(self.activation))
            if self.dropout:
                stack.append(layers.Dropout(self.dropout, seed=seed()))
        model = Sequential([*stack, dense(target.shape[1])])
        model.compile(optimizers.Adam(self.learning_rate_init), self._loss())
        return model

    def _loss(self) -> Any:
        raise NotImplementedError

    def _train(self, X: Any, target: Array, sample_weight: Any, kwargs: Config) -> None:
        weight = None if sample_weight is None else _check_sample_weight(sample_weight, X)
        if self.class_weight is not None:
            if not isinstance(self, ClassifierMixin):
                raise ValueError("PicoRegressor: class_weight is for classes; leave it None.")
            balance = compute_sample_weight(self.class_weight, target.argmax(axis=1))
            weight = balance if weight is None else weight * balance
        options: Config = {"batch_size": self.batch_size, "epochs": self.max_iter, **kwargs}
        monitor = "loss"
        if self.early_stopping and "epochs" not in kwargs:
            rows = np.arange(len(target))
            kept, held = train_test_split(
                rows,
                test_size=self.validation_fraction,
                random_state=check_random_state(self.random_state).randint(2**31 - 1),
                stratify=target.argmax(axis=1) if isinstance(self, ClassifierMixin) else None,
            )
            options["validation_data"] = (X[held], target[held])
            X, target = X[kept], target[kept]
            weight = None if weight is None else weight[kept]
            monitor = "val_loss"
        stopping = EarlyStopping(
            monitor, patience=self.n_iter_no_change, restore_best_weights=monitor == "val_loss"
        )
        self.history_ = self.model_.fit(
            X, target, sample_weight=weight, callbacks=[stopping], verbose=self.verbose, **options
        )


class PicoClassifier(_Perceptron, SKLearnClassifier):
    """A multilayer perceptron for classes, with the arguments of scikit-learn's MLPClassifier.

    It adds dropout, batch normalization and class weights, and trains with Adam.

    Args:
        hidden_layer_sizes: units of the hidden layers.
        activation: of the hidden layers.
        dropout: fraction of their outputs dropped in training.
        batch_normalization: whether it stands before each activation.
        alpha: L2 penalty of the kernels.
        learning_rate_init: of Adam.
        batch_size: samples in a step.
        max_iter: epochs at most.
        early_stopping: hold validation_fraction out and keep the weights that do best on it.
        validation_fraction: fraction held out.
        n_iter_no_change: epochs without a better loss after which training stops.
        class_weight: "balanced", or {class number: weight}.
        warm_start: whether fit goes on with the model of the last fit.
        random_state: seed of the weights, dropout and the split.
        verbose: as in fit.

    Attributes:
        model_, history_, classes_: see `SKLearnClassifier`; loss_curve_: the loss of each epoch.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> PicoClassifier((16,), max_iter=60, random_state=0).fit(X, y).score(X, y) > 0.9
    True
    """

    def _loss(self) -> Any:
        if self._multilabel:
            return BinaryCrossentropy(from_logits=True)
        return CategoricalCrossentropy(from_logits=True)


class PicoRegressor(_Perceptron, SKLearnRegressor):
    """A multilayer perceptron for numbers, with the arguments of scikit-learn's MLPRegressor.

    Targets are standardised while it trains.

    Args: as for `PicoClassifier`, without class_weight.

    Attributes:
        model_, history_: see `SKLearnRegressor`; loss_curve_: the loss of each epoch.
    """

    def _loss(self) -> Any:
        return MeanSquaredError()

    def _learn_target(self, y: Array, classes: Any, anew: bool) -> Array:
        target = super()._learn_target(y, classes, anew)
        if anew:
            spread = target.std(axis=0)
            self._center, self._spread = target.mean(axis=0), np.where(spread == 0, 1, spread)
        return (target - self._center) / self._spread

    def _outputs(self, X: Any) -> Array:
        return super()._outputs(X) * self._spread + self._center
