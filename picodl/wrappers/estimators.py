"""Classifier, regressor and transformer out of a model of one's own."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import (
    ClassifierMixin,
    ClassNamePrefixFeaturesOutMixin,
    RegressorMixin,
    TransformerMixin,
)
from sklearn.preprocessing import LabelEncoder
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import validate_data

from picodl import activations
from picodl.helpers import to_categorical
from picodl.losses import Loss
from picodl.typing import Array
from picodl.wrappers.base import Wrapper


class SKLearnClassifier(ClassifierMixin, Wrapper):
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


class SKLearnRegressor(RegressorMixin, Wrapper):
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


class SKLearnTransformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Wrapper):
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
