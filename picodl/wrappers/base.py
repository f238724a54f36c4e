"""What the estimators share: the model, its training, the parameters."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Self

from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from picodl.models import Model, clone_model
from picodl.typing import Array, Config

_DICTS = ("model_kwargs", "fit_kwargs")


class Wrapper(BaseEstimator):
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
