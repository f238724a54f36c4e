"""L-BFGS: few, long, well-chosen steps on the whole of a small data set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from picodl.constraints import NonNeg
from picodl.optimizers.base import Optimizer
from picodl.tensor import Tensor, gradients
from picodl.typing import Array


class LBFGS(Optimizer):
    """Quasi-Newton steps with a line search, by scipy's L-BFGS-B.

    It evaluates the loss several times in one step, so the loss must be the same function each
    time: take all data as one batch (`fit(..., batch_size=len(x))`), and no Dropout or noise. Each
    step of `fit` makes up to `max_iter` iterations; in a loop of one's own, call `minimize`. There
    is no learning rate to choose. NonNeg constraints hold exactly, as bounds.

    Args:
        max_iter: iterations in one step. Defaults to 20.
        max_eval: evaluations of the loss in one step. Defaults to 1.25 * max_iter.
        tolerance_grad: ends the step when no slope is larger. Defaults to 1e-7.
        tolerance_change: ends it when the loss falls by a smaller fraction. Defaults to 1e-9.
        history_size: how many past steps the curvature is worked out from. Defaults to 10.
        name: of the optimizer.

    Reference: Liu and Nocedal, 1989, "On the limited memory BFGS method for large scale
    optimization"; Zhu et al., 1997, "Algorithm 778: L-BFGS-B".

    >>> from picodl.module import Parameter
    >>> w = Parameter([5.0, -3.0])
    >>> loss = LBFGS().minimize(lambda: ((w - np.array([1.0, 2.0])) ** 2).sum(), [w])
    >>> np.round(w.numpy(), 4)
    array([1., 2.], dtype=float32)
    """

    hyperparameters = ("max_iter", "max_eval", "tolerance_grad", "tolerance_change", "history_size")
    uses_closure = True

    def __init__(
        self,
        max_iter: int = 20,
        max_eval: int | None = None,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        history_size: int = 10,
        name: str | None = None,
        **unused: Any,
    ) -> None:
        unused.pop("learning_rate", None)  # in configs, and without a meaning here
        for option, value in unused.items():
            if value not in (None, False) and (option, value) != ("ema_momentum", 0.99):
                raise ValueError(f"LBFGS has no option {option}: it searches along a line.")
        super().__init__(1.0, name=name)
        for argument, value in (("max_iter", max_iter), ("history_size", history_size)):
            if value < 1:
                raise ValueError(f"LBFGS: {argument} must be at least 1; received {value!r}.")
        self.max_iter = max_iter
        self.max_eval = max_eval
        self.tolerance_grad = tolerance_grad
        self.tolerance_change = tolerance_change
        self.history_size = history_size

    def minimize(self, closure: Callable[[], Tensor], parameters: Sequence[Any]) -> float:
        """Change the parameters until the loss is small, for up to max_iter iterations.

        Args:
            closure: computes the loss, a scalar, anew.
            parameters: what it depends on; those that take no gradient stay.

        Returns:
            The loss at the end.
        """
        from scipy.optimize import minimize

        trained = [p for p in parameters if p.requires_grad]
        edges = np.cumsum([0, *(p.data.size for p in trained)])

        def spread(x: Array) -> None:
            for p, start, stop in zip(trained, edges, edges[1:], strict=False):
                p.data[...] = x[start:stop].reshape(p.data.shape)

        def evaluate(x: Array) -> tuple[float, Array]:
            spread(x)
            loss = closure()
            slopes = np.zeros(edges[-1])
            found = {id(leaf): g for leaf, g in gradients([loss], [None])}
            for p, start, stop in zip(trained, edges, edges[1:], strict=False):
                if id(p) in found:
                    slopes[start:stop] = found[id(p)].reshape(-1)
            return float(loss), slopes

        result = minimize(
            evaluate,
            np.concatenate([p.data.reshape(-1) for p in trained], dtype=np.float64),
            jac=True,
            method="L-BFGS-B",
            bounds=self._bounds(trained),
            options={
                "maxiter": self.max_iter,
                "maxfun": self.max_eval or max(2, self.max_iter * 5 // 4),
                "maxcor": self.history_size,
                "gtol": self.tolerance_grad,
                "ftol": self.tolerance_change,
            },
        )
        spread(result.x)
        for p in trained:
            constraint = getattr(p, "constraint", None)
            if constraint is not None:
                p.data[...] = np.asarray(constraint(p.data))
        self._iterations.data += 1
        return float(result.fun)

    def _bounds(self, parameters: Sequence[Any]) -> Any:
        kinds = [isinstance(getattr(p, "constraint", None), NonNeg) for p in parameters]
        if not any(kinds):
            return None
        lowest = [
            np.full(p.data.size, 0.0 if kind else -np.inf)
            for p, kind in zip(parameters, kinds, strict=True)
        ]
        return [(low, np.inf) for low in np.concatenate(lowest)]

    def _apply(self, parameters: Sequence[Any], gradients: Sequence[Array]) -> None:
        raise TypeError(
            "LBFGS evaluates the loss several times in a step, so gradients alone are not enough: "
            "call minimize(closure, parameters), or train with fit()."
        )
