"""Running numbers over batches: sums and weights are kept, and divided once."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from picodl import config, tree
from picodl.losses.base import Loss, columns, is_loss_function, spread
from picodl.module import Parameter
from picodl.naming import auto_name, to_snake_case
from picodl.tensor import Tensor, as_array
from picodl.typing import Array, Config


class Metric:
    """Base class: a subclass defines `update_state`, `result` and `reset_state`.

    Numbers are kept as plain attributes or made by `add_variable`; both are saved with a training
    state.

    Args:
        dtype: of variables. Defaults to floatx.
        name: under which it is logged. Defaults to the class name in snake case.

    >>> class WithinTolerance(Metric):
    ...     def __init__(self, tolerance=0.1, name="within_tolerance"):
    ...         super().__init__(name=name)
    ...         self.tolerance = tolerance
    ...         self.reset_state()
    ...     def update_state(self, y_true, y_pred, sample_weight=None):
    ...         hits = np.abs(y_true - y_pred) <= self.tolerance
    ...         self.hits += int(np.count_nonzero(hits))
    ...         self.total += hits.size
    ...     def result(self):
    ...         return self.hits / self.total if self.total else 0.0
    ...     def reset_state(self):
    ...         self.hits = self.total = 0
    >>> WithinTolerance()(np.array([1.0, 2.0]), np.array([1.05, 3.0]))
    0.5
    """

    direction: str | None = None  # "up" or "down": what mode="auto" of callbacks takes for better

    def __init__(self, dtype: Any = None, name: str | None = None) -> None:
        self.name = auto_name(to_snake_case(type(self).__name__)) if name is None else name
        if isinstance(dtype, str) and dtype.startswith(("int", "uint")):
            self._dtype: str | None = dtype  # counts
        else:
            self._dtype = None if dtype is None else config.as_policy(dtype).compute_dtype
        self._variables: list[Parameter] = []

    @property
    def dtype(self) -> str:
        """The dtype of variables."""
        return self._dtype or config.floatx()

    @property
    def variables(self) -> list[Parameter]:
        """What `add_variable` made, Variables in attributes, and those of metrics held in them;
        lists and dicts are looked into."""
        return [*self._own(), *(v for _, metric in self._inner() for v in metric.variables)]

    def _own(self) -> list[Parameter]:
        leaves = tree.flatten([self._variables, list(vars(self).values())])
        return list({id(v): v for v in leaves if isinstance(v, Parameter)}.values())

    def add_variable(
        self,
        shape: Any = (),
        initializer: Any = "zeros",
        dtype: Any = None,
        aggregation: str = "sum",
        name: str | None = None,
    ) -> Parameter:
        """A variable for a running number; `reset_state` sets it to 0 unless it is overridden.

        Args:
            shape: its shape.
            initializer: see `picodl.initializers.get`.
            dtype: defaults to that of the metric.
            aggregation: accepted, as there is one process only.
            name: the last part of its path.
        """
        from picodl import initializers

        variable = Parameter(
            initializers.get(initializer or "zeros"),
            shape=shape,
            dtype=dtype or self.dtype,
            trainable=False,
            name=name,
        )
        self._variables.append(variable)
        return variable

    def add_weight(
        self,
        shape: Any = (),
        initializer: Any = None,
        dtype: Any = None,
        name: str | None = None,
    ) -> Parameter:
        """`add_variable` under its other name."""
        return self.add_variable(shape, initializer or "zeros", dtype, name=name)

    def update_state(self, *args: Any, **kwargs: Any) -> Any:
        """Take in a batch.

        Raises:
            NotImplementedError: unless a subclass defines it.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define update_state().")

    def result(self) -> Any:
        """The value over all batches since the last reset.

        Raises:
            NotImplementedError: unless a subclass defines it.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define result().")

    def reset_state(self) -> None:
        """Start anew: variables are set to 0, metrics held in attributes are reset."""
        for variable in self._own():
            variable.data[...] = 0
        for _, metric in self._inner():
            metric.reset_state()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Take in a batch and give the value over all batches so far."""
        self.update_state(*args, **kwargs)
        return self.result()

    def get_state(self) -> dict[str, Any]:
        """The running numbers, as a plain dict of numbers and arrays."""
        state: dict[str, Any] = {}
        arguments = self.get_config()
        for name, part in vars(self).items():
            if name in arguments:
                continue
            if isinstance(part, Tensor):
                state[name] = part.data.copy()
            elif isinstance(part, np.ndarray):
                state[name] = part.copy()
            elif isinstance(part, (int, float, np.number)) and not isinstance(part, bool):
                state[name] = part
        for i, variable in enumerate(self._own()):
            state[f"variables/{i}"] = variable.data.copy()
        for name, metric in self._inner():
            state |= {f"{name}/{key}": part for key, part in metric.get_state().items()}
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over the running numbers that `get_state` gave."""
        inner = dict(self._inner())
        for key, part in state.items():
            owner, _, rest = key.partition("/")
            if owner == "variables" and rest.isdigit():
                self._own()[int(rest)].assign(part)
            elif rest and owner in inner:
                inner[owner].set_state({rest: part})
            elif isinstance(getattr(self, key, None), Parameter):
                getattr(self, key).assign(part)
            else:
                setattr(self, key, part.copy() if isinstance(part, np.ndarray) else part)

    def _inner(self) -> Iterator[tuple[str, Metric]]:
        """The metrics in attributes, and in lists and dicts there, with names without a slash."""
        for name, part in vars(self).items():
            if isinstance(part, Metric):
                yield name, part
            elif tree.is_nested(part):
                for path, leaf in tree.flatten_with_path(part):
                    if isinstance(leaf, Metric):
                        yield ".".join(map(str, (name, *path))), leaf

    def get_config(self) -> Config:
        """The arguments that make the same metric again."""
        return {"name": self.name, "dtype": self.dtype}

    @classmethod
    def from_config(cls, config: Config) -> Any:
        """The metric of a config."""
        return cls(**config)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} name={self.name}>"


class Mean(Metric):
    """sum(weight * value) / sum(weight); 0 before anything came.

    Args: name, dtype: see `Metric`.

    >>> mean = Mean()
    >>> mean.update_state([1.0, 3.0], sample_weight=[1.0, 3.0])
    >>> mean.result()
    2.5
    """

    def __init__(self, name: str | None = "mean", dtype: Any = None) -> None:
        super().__init__(dtype, name)
        self.reset_state()

    def update_state(self, values: Any, sample_weight: Any = None) -> None:
        """Take in values; those of one sample count together as one.

        Raises:
            ValueError: if weights do not fit the values.
        """
        self.add(plain(values), with_mask(values, sample_weight))

    def add(self, values: Array, weight: Any = None) -> None:
        """Take in an array of values with their weights."""
        size = values.size
        if not size:
            return
        # Keras counts samples: a sample of 3 steps weighs as much as one of 5
        share = len(values) / size if values.ndim else 1.0
        if weight is not None:
            w = spread(weight, values.shape, "sample_weight")
            self.total += float(np.sum(values * w, dtype=np.float64)) * share
            self.count += float(np.sum(w, dtype=np.float64)) * share
        else:
            if values.dtype.kind == "b":
                self.total += int(np.count_nonzero(values)) * share
            else:
                self.total += float(np.add.reduce(values, None)) * share
            self.count += size * share

    def result(self) -> float:
        """The mean so far."""
        return self.total / self.count if self.count else 0.0

    def reset_state(self) -> None:
        """Start anew."""
        self.total = self.count = 0.0


class Sum(Metric):
    """sum(weight * value).

    Args: name, dtype: see `Metric`.
    """

    def __init__(self, name: str | None = "sum", dtype: Any = None) -> None:
        super().__init__(dtype, name)
        self.reset_state()

    def update_state(self, values: Any, sample_weight: Any = None) -> None:
        """Take in values.

        Raises:
            ValueError: if weights do not fit the values.
        """
        array = plain(values)
        weight = with_mask(values, sample_weight)
        if weight is not None:
            array = array * spread(weight, array.shape, "sample_weight")
        self.total += float(np.sum(array, dtype=np.float64))

    def result(self) -> float:
        """The sum so far."""
        return self.total

    def reset_state(self) -> None:
        """Start anew."""
        self.total = 0.0


class MeanMetricWrapper(Mean):
    """The mean of what a function `fn(y_true, y_pred, **kwargs)` gives, per sample or step.

    A function that gives one number for a batch counts with the number of its samples.

    Args:
        fn: a loss or loss function, a metric function or one of your own.
        name: defaults to the name of the function.
        dtype: see `Metric`.
        **kwargs: passed on to fn.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        name: str | None = None,
        dtype: Any = None,
        **kwargs: Any,
    ) -> None:
        if name is None:
            name = to_snake_case(getattr(fn, "__name__", type(fn).__name__))
        super().__init__(name, dtype)
        self.fn = fn
        self.kwargs = kwargs
        if isinstance(fn, Loss):  # its values are needed, not their mean
            self.fn = copy.copy(fn)
            self.fn.reduction = "none"

    def __getattr__(self, name: str) -> Any:
        """The arguments of the function are attributes."""
        try:
            return vars(self)["kwargs"][name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}.") from None

    def update_state(  # type: ignore[override]
        self, y_true: Any, y_pred: Any, sample_weight: Any = None
    ) -> None:
        """Take in a batch.

        Raises:
            ValueError: if shapes or weights do not fit.
        """
        t, p = plain(y_true), plain(y_pred)
        weight = with_mask(y_pred, sample_weight)
        if isinstance(self.fn, Loss) or is_loss_function(self.fn):
            t, p = columns(t, p)  # one value per sample or step, not one for them all
        values = plain(self.fn(t, p, **self.kwargs))
        if isinstance(self.fn, Loss) and (counted := self.fn.counted(t)) is not None:
            counted = spread(counted, values.shape, "mask of targets")
            weight = counted if weight is None else counted * spread(weight, values.shape, "mask")
        if values.ndim == 0 and weight is None and p.ndim:
            values = np.broadcast_to(values, len(p))
        self.add(values, weight)

    def get_config(self) -> Config:
        """The arguments that make the same metric again."""
        settings = {**super().get_config(), **self.kwargs}
        if type(self) is MeanMetricWrapper:
            from picodl import metrics

            settings["fn"] = metrics.serialize(self.fn)
        return settings

    @classmethod
    def from_config(cls, config: Config) -> Any:
        """The metric of a config."""
        if "fn" in config:
            from picodl import metrics

            config = {**config, "fn": metrics.function_of(config["fn"])}
        return cls(**config)


def plain(x: Any) -> Array:
    """x as an array, half precision widened: its sums overflow."""
    array = x if type(x) is np.ndarray and x.dtype.kind in "fiub" else as_array(x)
    return array.astype(np.float32) if array.dtype == np.float16 else array


def with_mask(y: Any, sample_weight: Any) -> Any:
    """The sample weights, times the mask that a Tensor carries; None if there is neither."""
    mask = getattr(y, "mask", None)
    if mask is None:
        return sample_weight
    mask = plain(mask)
    if sample_weight is None:
        return mask
    weight = plain(sample_weight)
    wide, narrow = (mask, weight) if mask.ndim >= weight.ndim else (weight, mask)
    return wide * spread(narrow, wide.shape, "sample_weight")


def own_metrics(layer: Any) -> list[Any]:
    """The Metric objects in attributes (and lists and dicts) of a layer and of those inside it."""
    found: dict[int, Any] = {}
    for module in layer.modules():
        for name, part in vars(module).items():
            if not name.startswith(("_compiled", "_own")):
                for leaf in tree.flatten(part) if tree.is_nested(part) else (part,):
                    if isinstance(leaf, Metric):
                        found[id(leaf)] = leaf
    return list(found.values())
