"""scikit-learn's scorers as metrics, computed on all predictions of an epoch."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from picodl.losses.base import spread
from picodl.metrics.base import Metric, plain, with_mask
from picodl.naming import to_snake_case
from picodl.typing import Array, Config


class EpochScoring(Metric):
    """Any scorer or metric function of scikit-learn over all samples of an epoch.

    Predictions and targets are kept until the reset, so the number is exact where a mean of
    batches would not be: ROC AUC, Cohen's kappa, Matthews' coefficient.

    Args:
        scorer: a name such as "roc_auc" or "f1_macro" (see `sklearn.metrics.get_scorer_names`); a
            scorer `f(estimator, X, y)`, as `sklearn.metrics.make_scorer` gives it, which is asked
            for classes or probabilities as it needs; or a function `f(y_true, y_pred)`, which gets
            the predictions as they are.
        name: defaults to the name of the scorer.
        from_logits: whether predictions are logits, to be turned into probabilities.

    >>> metric = EpochScoring("roc_auc")
    >>> metric.update_state([0, 0], [0.1, 0.6])
    >>> metric.update_state([1, 1], [0.5, 0.9])
    >>> metric.result()
    0.75
    """

    _kept: list[tuple[Array, Array, Array | None]]
    _value: float | None

    def __init__(
        self,
        scorer: str | Callable[..., Any],
        name: str | None = None,
        from_logits: bool = False,
        dtype: Any = None,
    ) -> None:
        if not isinstance(scorer, str) and not callable(scorer):
            raise TypeError(
                "EpochScoring: scorer must be a name or a function of scikit-learn; received "
                f"{scorer!r}."
            )
        super().__init__(dtype, name or _name_of(scorer))
        self.scorer = scorer
        self.from_logits = from_logits
        self._score = _find(scorer) if isinstance(scorer, str) else scorer
        self._wants_estimator = next(iter(_parameters(self._score)), "") == "estimator"
        self.direction = _direction(self._score, self._wants_estimator)
        self.reset_state()

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Keep a batch.

        Raises:
            ValueError: if targets and predictions differ in their first axes.
        """
        t, p = plain(y_true), plain(y_pred)
        if p.ndim > 1 and p.shape[-1] == 1:
            p = p[..., 0]
        if t.ndim > 1 and t.shape[-1] == 1 and t.ndim > p.ndim - (p.shape[:-1] == t.shape[:-1]):
            t = t[..., 0]
        steps = t.shape if t.shape == p.shape[: t.ndim] else p.shape[:-1]
        if t.shape[: len(steps)] != steps or t.ndim == 0:
            raise ValueError(
                f"EpochScoring {self.name!r}: targets of shape {np.shape(y_true)} do not fit "
                f"predictions of shape {np.shape(y_pred)}."
            )
        given = with_mask(y_pred, sample_weight)
        w = None if given is None else spread(given, steps, "sample_weight").astype(np.float64)
        self._kept.append((t.copy(), p.copy(), w))  # a batch may lie in a buffer that is used again
        self._value = None

    def result(self) -> float:
        """The score of all samples so far; NaN, with a warning, where it cannot be computed."""
        if not self._kept:
            return 0.0
        if self._value is None:
            t, p, w = self._joined()
            options = {} if w is None or (w == 1).all() else {"sample_weight": w}
            if self.from_logits:
                p = _probabilities(p)
            try:
                if self._wants_estimator:
                    estimator, t = _estimator(p, t)
                    self._value = float(self._score(estimator, np.zeros((len(t), 1)), t, **options))
                else:
                    self._value = float(self._score(t, p, **options))
            except ValueError as error:
                warnings.warn(
                    f"EpochScoring {self.name!r} cannot be computed on what came so far: "
                    f"{error} A plain function gets the predictions as they are; make_scorer turns "
                    "it into a scorer that gets classes or probabilities.",
                    stacklevel=2,
                )
                self._value = float("nan")
        return self._value

    def _joined(self) -> tuple[Array, Array, Array | None]:
        targets, predictions, weights = zip(*self._kept, strict=True)
        lead = targets[0].ndim if targets[0].shape == predictions[0].shape[: targets[0].ndim] else 1
        if targets[0].ndim == predictions[0].ndim > 1:
            lead = targets[0].ndim - 1  # (batch, ..., classes) on both sides
        t = np.concatenate([x.reshape(-1, *x.shape[lead:]) for x in targets])
        p = np.concatenate([x.reshape(-1, *x.shape[lead:]) for x in predictions])
        if all(w is None for w in weights):
            return t, p, None
        w = np.concatenate(
            [
                np.ones(x.shape[:lead]).reshape(-1) if w is None else w.reshape(-1)
                for x, w in zip(targets, weights, strict=True)
            ]
        )
        keep = w != 0
        return t[keep], p[keep], w[keep]

    def reset_state(self) -> None:
        """Forget all predictions."""
        self._kept = []
        self._value = None

    def get_state(self) -> dict[str, Any]:
        """What was kept, as a plain dict of arrays."""
        state: dict[str, Any] = {}
        for i, batch in enumerate(self._kept):
            state |= {f"{i}/{k}": x for k, x in zip("tpw", batch, strict=True) if x is not None}
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over what `get_state` gave."""
        self.reset_state()
        for i in range(len({key.split("/")[0] for key in state})):
            self._kept.append((state[f"{i}/t"], state[f"{i}/p"], state.get(f"{i}/w")))

    def get_config(self) -> Config:
        """The arguments that make the same metric again."""
        return {**super().get_config(), "scorer": self.scorer, "from_logits": self.from_logits}


def _find(name: str) -> Callable[..., Any]:
    from sklearn.metrics import get_scorer, get_scorer_names

    from picodl.naming import suggest

    if name not in get_scorer_names():
        raise ValueError(
            f"EpochScoring: scikit-learn has no scorer {name!r}."
            f"{suggest(name, get_scorer_names())} sklearn.metrics.get_scorer_names() lists them."
        )
    return get_scorer(name)


def _parameters(function: Callable[..., Any]) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return []


def _name_of(scorer: Any) -> str:
    if isinstance(scorer, str):
        return scorer
    inner = getattr(scorer, "_score_func", scorer)
    return to_snake_case(getattr(inner, "__name__", type(inner).__name__))


def _direction(score: Any, is_scorer: bool) -> str | None:
    """Scorers are made so that more is better; functions say it at the end of their names."""
    name = _name_of(score)
    if is_scorer or name.endswith("_score"):
        return "up"
    return "down" if name.endswith(("_loss", "_error")) else None


def _probabilities(p: Array) -> Array:
    if p.ndim == 1:
        return 0.5 * (np.tanh(0.5 * p) + 1)
    e = np.exp(p - p.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _estimator(p: Array, t: Array) -> tuple[Any, Array]:
    """An estimator that answers with the kept predictions, and targets as scorers want them."""
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

    one_hot = t.ndim == 2 and t.shape == p.shape and bool(((t == 0) | (t == 1)).all())
    several = one_hot and bool((t.sum(1) != 1).any())
    if one_hot and not several:
        t = t.argmax(1)
    labels = several or t.dtype.kind in "iub" or bool((t == np.floor(t)).all())
    if not labels or (t.ndim == 1 and p.ndim == 1 and not np.isin(t, (0, 1)).all()):

        class Regressor(RegressorMixin, BaseEstimator):
            fitted_ = True

            def predict(self, X: Any) -> Array:
                return p

        return Regressor(), t
    t = t.astype(np.intp)

    class Classifier(ClassifierMixin, BaseEstimator):
        classes_ = np.arange(2 if p.ndim == 1 else p.shape[1])

        def predict(self, X: Any) -> Array:
            if p.ndim == 1 or several:
                return (p > 0.5).astype(np.intp)
            return p.argmax(1)

        def predict_proba(self, X: Any) -> Array:
            return np.stack([1 - p, p], 1) if p.ndim == 1 else p

    return Classifier(), t
