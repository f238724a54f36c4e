"""scikit-learn estimators out of models: for pipelines, cross-validation and grid search.

They pass scikit-learn's check_estimator but for check_sample_weight_equivalence_on_dense_data and
..._on_sparse_data, which cannot apply: a sample repeated k times makes other batches, and more
steps, than one sample of weight k. Models pickle, so n_jobs and joblib's backends work.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Self

import numpy as np
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    ClassNamePrefixFeaturesOutMixin,
    RegressorMixin,
    TransformerMixin,
)
from sklearn.preprocessing import LabelEncoder
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from picodl import activations
from picodl.helpers import to_categorical
from picodl.losses import Loss
from picodl.models import Model, clone_model
from picodl.typing import Array, Config

_DICTS = ("model_kwargs", "fit_kwargs")


class _Wrapper(BaseEstimator):
    """What the wrappers share: the model, its training, the parameters.

    Parameters inside model_kwargs and fit_kwargs can be set one by one, as grid search does:
    `model_kwargs__units`, `fit_kwargs__epochs`.
    """

    def __init__(
        self,
        model: Model | Callable[..., Model],
        warm_start: bool = False,
        model_kwargs: Config | None = None,
        fit_kwargs: Config | None = None,
    ) -> None:
        self.model = model
        self.warm_start = warm_start
        self.model_kwargs = model_kwargs
        self.fit_kwargs = fit_kwargs

    # ---------------------------------------------------------------- parameters

    def get_params(self, deep: bool = True) -> Config:
        """The constructor's arguments; with deep also the entries of the two dicts."""
        params: Config = super().get_params(deep=False)
        for name in _DICTS if deep else ():
            inside = params[name] if isinstance(params[name], dict) else {}
            params |= {f"{name}__{key}": value for key, value in inside.items()}
        return params

    def set_params(self, **params: Any) -> Self:
        """Set arguments, or single entries of the two dicts: `model_kwargs__units=8`."""
        plain = {key: v for key, v in params.items() if "__" not in key}
        super().set_params(**plain)
        for key, value in params.items():
            name, _, entry = key.partition("__")
            if not entry:
                continue
            if name not in _DICTS:
                raise ValueError(
                    f"{type(self).__name__} has no parameter {key!r}; expected an argument of the "
                    "constructor, model_kwargs__NAME or fit_kwargs__NAME."
                )
            setattr(self, name, {**(getattr(self, name) or {}), entry: value})
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True  # weights start at random
        tags.input_tags.sparse = True
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    # ---------------------------------------------------------------- training

    def fit(self, X: Any, y: Any, sample_weight: Any = None, **kwargs: Any) -> Self:
        """Train a new model, or with warm_start the one there is.

        Args:
            X: samples (n, features), dense or sparse.
            y: targets.
            sample_weight: weights of the samples.
            **kwargs: passed to the model's fit, over those in fit_kwargs.

        Raises:
            TypeError: if model is neither a Model nor a callable that makes one.
            ValueError: if the model is not compiled, or the data do not fit.
        """
        X, y = self._checked(X, y, reset=True)
        keep = self.warm_start and hasattr(self, "model_")
        target = self._learn_target(y, None, anew=not keep)
        if not keep:
            self.model_ = self._make_model(X, target)
        self._train(X, target, sample_weight, kwargs)
        return self

    def _partial_fit(self, X: Any, y: Any, sample_weight: Any, classes: Any) -> Self:
        first = not hasattr(self, "model_")
        X, y = self._checked(X, y, reset=first)
        target = self._learn_target(y, classes, anew=first)
        if first:
            self.model_ = self._make_model(X, target)
        self._train(X, target, sample_weight, {"epochs": 1})
        return self

    def _train(self, X: Any, target: Array, sample_weight: Any, kwargs: Config) -> None:
        if sample_weight is not None:
            sample_weight = _check_sample_weight(sample_weight, X)
        # copies, because callbacks change while they are used and parameters must not
        options = {"verbose": 0, **copy.deepcopy(self.fit_kwargs or {}), **kwargs}
        self.history_ = self.model_.fit(
            X, self._for_loss(target), sample_weight=sample_weight, **options
        )

    def _make_model(self, X: Any, target: Array) -> Model:
        if isinstance(self.model, Model):
            if not self.model.compiled:
                raise ValueError(
                    f"{type(self).__name__}: the model must be compiled: call its compile() first."
                )
            model = clone_model(self.model)
            model.compile_from_config(self.model.get_compile_config())
            if self.model.built:
                model.set_weights(self.model.get_weights())
            return model
        if not callable(self.model):
            raise TypeError(
                f"{type(self).__name__}: model must be a compiled Model, or a callable that takes "
                f"X and y and returns one; received {self.model!r}."
            )
        model = self.model(X=X, y=target, **(self.model_kwargs or {}))
        if not isinstance(model, Model) or not model.compiled:
            raise TypeError(
                f"{type(self).__name__}: the callable must return a compiled Model; it returned "
                f"{model!r}."
            )
        return model

    def _checked(self, X: Any, y: Any, reset: bool) -> tuple[Any, Any]:
        options: Config = {"accept_sparse": "csr", "reset": reset, "ensure_min_samples": 1}
        multi = {"multi_output": True, "y_numeric": not isinstance(self, ClassifierMixin)}
        return validate_data(self, X, y, **options, **multi)

    def _outputs(self, X: Any) -> Array:
        """What the model computes for X."""
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", reset=False)
        return self.model_.predict(X, verbose=0)

    def _learn_target(self, y: Array, classes: Any, anew: bool) -> Array:
        """The targets as numbers for the model."""
        raise NotImplementedError

    def _for_loss(self, target: Array) -> Array:
        """The targets in the form that the model's loss takes."""
        return target


class SKLearnClassifier(ClassifierMixin, _Wrapper):
    """A classifier out of a model, with labels of any kind.

    The model has one output unit per class, or one sigmoid unit for two classes. It gets one-hot
    rows, or integers where its loss is sparse_categorical_crossentropy. Multi-label targets (n, k)
    of 0 and 1 are passed on as they are.

    Args:
        model: a compiled model, which is cloned with its weights, or a callable of (X, y,
            **model_kwargs), y being one-hot, that returns a compiled one.
        warm_start: whether fit goes on with the model of the last fit.
        model_kwargs: further arguments of the callable.
        fit_kwargs: arguments of the model's fit, such as {"epochs": 20}. verbose is 0 by default.

    Attributes:
        model_, history_: the trained model, and what its last fit returned.
        classes_: the labels, sorted.

    >>> from picodl import Input, Sequential, layers
    >>> def build(X, y):
    ...     model = Sequential([Input(X.shape[1:]), layers.Dense(y.shape[1], "softmax")])
    ...     model.compile("adam", "categorical_crossentropy")
    ...     return model
    >>> classifier = SKLearnClassifier(build).fit([[0.0], [1.0], [2.0]], ["a", "b", "b"])
    >>> classifier.predict_proba([[1.0]]).shape
    (1, 2)
    """

    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None
    ) -> SKLearnClassifier:
        """Train for one epoch more; the first call needs all classes, unless y has them."""
        return self._partial_fit(X, y, sample_weight, classes)

    def predict(self, X: Any) -> Array:
        """The label of each sample."""
        outputs = self.predict_proba(X)
        if self._multilabel:
            return (outputs > 0.5).astype(np.int64)
        return self.classes_[outputs.argmax(axis=1)]

    def predict_proba(self, X: Any) -> Array:
        """The probability of each class, in the order of `classes_`."""
        outputs = self._outputs(X)
        outputs = outputs.reshape(len(outputs), -1)
        if self._gives_logits():
            one = outputs.shape[1] == 1 or self._multilabel
            outputs = activations.sigmoid(outputs) if one else activations.softmax(outputs)
        if outputs.shape[1] == 1 and not self._multilabel:
            return np.concatenate([1 - outputs, outputs], axis=1)
        return outputs

    def decision_function(self, X: Any) -> Array:
        """The model's outputs; for two classes one number, positive for the second."""
        outputs = self._outputs(X)
        outputs = outputs.reshape(len(outputs), -1)
        if self._multilabel or outputs.shape[1] > 2 or len(self.classes_) > 2:
            return outputs
        if outputs.shape[1] == 2:
            return outputs[:, 1] - outputs[:, 0]
        return outputs[:, 0] - (0.0 if self._gives_logits() else 0.5)

    def _gives_logits(self) -> bool:
        """Whether the loss says that the outputs are no probabilities yet."""
        loss = self.model_.loss
        return bool(loss.get_config().get("from_logits")) if isinstance(loss, Loss) else False

    def _learn_target(self, y: Array, classes: Any, anew: bool) -> Array:
        check_classification_targets(y)
        kind = type_of_target(y)
        if anew:
            self._multilabel = kind == "multilabel-indicator"
            if kind == "multiclass-multioutput":
                raise ValueError(
                    f"{type(self).__name__} takes one label per sample or rows of 0 and 1; "
                    f"received y of shape {y.shape} with more values. Use sklearn.multioutput."
                )
            known = np.arange(y.shape[1]) if self._multilabel else y if classes is None else classes
            self._encoder = LabelEncoder().fit(known)
            self.classes_ = self._encoder.classes_
            if len(self.classes_) < 2:
                raise ValueError(
                    "Classifier can't train when only one class is present: y holds "
                    f"{self.classes_[0]!r} alone."
                )
        if self._multilabel:
            return np.asarray(y, np.float32)
        if y.ndim == 2 and y.shape[1] == 1:
            y = y[:, 0]
        try:
            codes = self._encoder.transform(y)
        except ValueError as error:
            raise ValueError(
                f"{error}. The classes are {list(self.classes_)}; pass all in the first call."
            ) from error
        return to_categorical(codes, len(self.classes_))

    def _for_loss(self, target: Array) -> Array:
        if self._multilabel:
            return target
        loss = self.model_.loss
        name = loss if isinstance(loss, str) else getattr(loss, "name", "")
        if "sparse" in str(name).lower():
            return target.argmax(axis=1)
        shape = getattr(self.model_, "output_shape", None) if self.model_.built else None
        if isinstance(shape, tuple) and shape[-1] == 1 and target.shape[1] == 2:
            return target[:, 1:]
        return target


class SKLearnRegressor(RegressorMixin, _Wrapper):
    """A regressor out of a model, with one target or several.

    Args:
        model, warm_start, model_kwargs, fit_kwargs: see `SKLearnClassifier`; y has the shape
            (n, targets).

    Attributes:
        model_, history_: the trained model, and what its last fit returned.
    """

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> SKLearnRegressor:
        """Train for one epoch more."""
        return self._partial_fit(X, y, sample_weight, None)

    def predict(self, X: Any) -> Array:
        """The value of each sample as float64, in the shape of the y it was trained on."""
        outputs = self._outputs(X).astype(np.float64)  # what scikit-learn expects of regressors
        return outputs.reshape(len(outputs)) if self._flat else outputs

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _learn_target(self, y: Array, classes: Any, anew: bool) -> Array:
        if anew:
            self._flat = y.ndim == 1
        return y.reshape(len(y), -1)


class SKLearnTransformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, _Wrapper):
    """A transformer out of a model: transform gives the model's outputs as features.

    Args:
        model, warm_start, model_kwargs, fit_kwargs: see `SKLearnClassifier`; y is what fit got, or
            X itself when there is none, as for an autoencoder.

    Attributes:
        model_, history_: the trained model, and what its last fit returned.
    """

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, **kwargs: Any) -> Self:
        """Train the model to give y, or X again where y is None."""
        return super().fit(X, y, sample_weight, **kwargs)

    def transform(self, X: Any) -> Array:
        """The model's outputs (n, features)."""
        outputs = self._outputs(X)
        return outputs.reshape(len(outputs), -1)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float32"]
        return tags

    @property
    def _n_features_out(self) -> int:
        return int(np.prod(self.model_.output_shape[1:]))

    def _checked(self, X: Any, y: Any, reset: bool) -> tuple[Any, Any]:
        if y is not None:
            return super()._checked(X, y, reset)
        X = validate_data(self, X, accept_sparse="csr", reset=reset)
        return X, X.toarray() if hasattr(X, "toarray") else X

    def _learn_target(self, y: Array, classes: Any, anew: bool) -> Array:
        return y.reshape(len(y), -1)
