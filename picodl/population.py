"""Many small networks of one shape at once: their weights stacked, one batched pass for all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from picodl import activations, config
from picodl.layers import Layer
from picodl.module import Parameter
from picodl.parallel import blas_single_thread
from picodl.tensor import no_grad
from picodl.typing import Array


class Population:
    """n networks of the same layers, each with weights of its own.

    The trainable weights of a network are one row of `genomes`; the layers compute with views of
    it, so writing into a genome changes the network. Normalisation and dropout run as at inference,
    with the template's moving averages.

    Args:
        model: the template: a built Sequential, or a list of built layers.
        size: how many networks.
        seed: of the first weights and of `evolve`.
        copies: start from the template's weights instead of new draws of its initializers.

    Attributes:
        genomes: the weights, of shape (size, weights of one network), dtype floatx.

    Raises:
        ValueError: if the model is not built, or for a layer that cannot be stacked, by its name.

    >>> from picodl import layers
    >>> nets = Population([layers.Linear(3, 4, activation="tanh"), layers.Linear(4, 2)], 5, seed=0)
    >>> nets.genomes.shape, nets.predict(np.ones((7, 3))).shape
    ((5, 26), (5, 7, 2))
    """

    def __init__(
        self, model: Any, size: int, seed: int | None = None, copies: bool = False
    ) -> None:
        if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 1:
            raise ValueError(f"Population: size must be a positive integer; received {size!r}.")
        self.layers = _chain(model)
        self.size = int(size)
        self.rng = np.random.default_rng(seed)
        for layer in self.layers:
            own = not type(layer).__module__.startswith("picodl.layers.")
            if own or type(layer).__name__ not in _STEPS:
                raise ValueError(
                    f'Population cannot stack the {type(layer).__name__} layer "{layer.name}"; it '
                    f"knows {', '.join(sorted(_STEPS))}."
                )
            if getattr(layer, "lora_enabled", False):
                raise ValueError(
                    f'Population: the layer "{layer.name}" is adapted by low-rank matrices, which '
                    "cannot be stacked."
                )
            if not layer.built:
                raise ValueError(
                    f'Population: the layer "{layer.name}" has no weights yet. Give the model an '
                    "Input, or call it on data first."
                )
        weights = [(layer, w) for layer in self.layers for w in layer.trainable_weights]
        if len({id(w) for _, w in weights}) < len(weights):
            raise ValueError("Population: a layer is used twice; each place needs its own.")
        total = sum(w.size for _, w in weights)
        self.genomes: Array = np.empty((self.size, total), config.floatx())
        self._views: dict[int, Array] = {}
        start = 0
        for layer, w in weights:
            part = self.genomes[:, start : start + w.size]
            view = part.reshape(self.size, *w.shape)
            view[...] = w.data if copies else self._draw(layer, w)
            self._views[id(w)] = view
            start += w.size
        self._steps = [_STEPS[type(layer).__name__](layer, self._view) for layer in self.layers]

    def _draw(self, layer: Layer, weight: Parameter) -> Any:
        """First values for all members: a new draw of the layer's initializer for each."""
        initializer = getattr(layer, f"{weight.name}_initializer", None)
        if initializer is None:
            return weight.data
        arguments = initializer.get_config() if hasattr(initializer, "get_config") else {}
        if "seed" not in arguments:
            return np.asarray(initializer(weight.shape, dtype=weight.dtype.name))
        seeds = self.rng.integers(1 << 31, size=self.size)
        return [
            type(initializer)(**{**arguments, "seed": int(s)})(weight.shape, weight.dtype.name)
            for s in seeds
        ]

    def _view(self, weight: Parameter | None) -> Array | None:
        """The stacked values of a weight with an axis for the batch: (size, 1 or more, ...)."""
        if weight is None:
            return None
        stacked = self._views.get(id(weight))
        if stacked is None:
            stacked = np.broadcast_to(weight.data, (self.size, *weight.shape))
        return stacked if stacked.ndim > 2 else stacked[:, None]

    def predict(self, x: Any) -> Array:
        """The outputs of all networks for the same samples.

        Shapes: (batch, ...) -> (size, batch, ...).
        """
        x = np.asarray(x, self.genomes.dtype)
        return self._run(x[None])

    def predict_each(self, x: Any) -> Array:
        """The output of each network for samples of its own.

        Shapes: (size, batch, ...) -> (size, batch, ...).

        Raises:
            ValueError: unless there is one entry for each network.
        """
        x = np.asarray(x, self.genomes.dtype)
        if x.ndim < 2 or len(x) != self.size:
            raise ValueError(
                f"predict_each needs one batch for each of the {self.size} networks, of shape "
                f"({self.size}, batch, ...); received {x.shape}."
            )
        return self._run(x)

    def _run(self, x: Array) -> Array:
        with no_grad(), blas_single_thread():
            for step in self._steps:
                x = step(x)
        return np.broadcast_to(x, (self.size, *x.shape[1:])) if len(x) != self.size else x

    def weights_of(self, member: int) -> list[Array]:
        """Copies of the trainable weights of one network, in the template's order."""
        return [view[member].copy() for view in self._views.values()]

    def install(self, member: int) -> None:
        """Give the template the weights of one network, to save or to use it on its own."""
        weights = [w for layer in self.layers for w in layer.trainable_weights]
        for w, values in zip(weights, self.weights_of(member), strict=True):
            w.assign(values)

    def evolve(
        self, scores: Sequence[float] | Array, keep: float = 0.2, sigma: float = 0.1
    ) -> Array:
        """The next generation: the best stay, the others become mutated copies of them.

        Args:
            scores: one number for each network; higher is better, NaN is worst.
            keep: the fraction that stays as it is (at least one network).
            sigma: the standard deviation of the noise added to each weight of a copy.

        Returns:
            The members that stayed, best first; they have moved to the first rows of `genomes`.

        Raises:
            ValueError: for another number of scores, or keep outside (0, 1].
        """
        scores = np.asarray(scores, np.float64)
        if scores.shape != (self.size,):
            raise ValueError(
                f"evolve needs one score for each of the {self.size} networks; received an array "
                f"of shape {scores.shape}."
            )
        if not 0 < keep <= 1:
            raise ValueError(f"evolve: keep must be in (0, 1]; received {keep!r}.")
        n = max(1, round(keep * self.size))
        best = np.argsort(-np.where(np.isnan(scores), -np.inf, scores), kind="stable")[:n]
        parents = np.concatenate([np.arange(n), self.rng.integers(n, size=self.size - n)])
        children = self.genomes[best][parents]
        noise = self.rng.standard_normal((self.size - n, children.shape[1]), np.float32)
        children[n:] += sigma * noise
        self.genomes[...] = children
        return best


def _chain(model: Any) -> list[Layer]:
    """The layers of a model that passes each one's output to the next."""
    if isinstance(model, (list, tuple)):
        return list(model)
    graph = getattr(model, "_graph", None)
    if graph is not None and len(graph.input_slots) == 1:
        found: list[Layer] = []
        slot = graph.input_slots[0]
        for node in graph.nodes:
            if node.simple != slot or not isinstance(node.call, Layer):
                break
            found.append(node.call)
            slot = node.outputs[0]
        else:
            if graph.output_slots == [slot]:
                return found
    raise ValueError(
        f"Population needs a built model whose layers follow one another (a Sequential with an "
        f"Input), or a list of built layers; received {model!r}."
    )


# -------------------------------------------------------------------- layers over stacks

Step = Callable[[Array], Array]
View = Callable[[Parameter | None], Any]


def _apply(activation: Any) -> Step:
    """An activation on an array that the step owns."""
    pair = getattr(activation, "pair", None)
    if activation is activations.linear:
        return lambda x: x
    if pair is not None:
        return lambda x: pair.forward(x)[0]
    return lambda x: np.asarray(activation(x))


def _dense(layer: Any, view: View) -> Step:
    kernel, bias = view(layer.kernel), view(layer.bias)
    activate = _apply(layer.activation)

    def step(x: Array) -> Array:
        rows = x.reshape(len(x), -1, x.shape[-1]) if x.ndim != 3 else x
        z = np.matmul(rows, kernel)
        if bias is not None:
            z += bias
        y = activate(z)
        return y if x.ndim == 3 else y.reshape(len(y), *x.shape[1:-1], y.shape[-1])

    return step


def _activation(layer: Any, view: View) -> Step:
    activate = _apply(layer.activation)
    return lambda x: activate(x.copy())


def _elementwise(layer: Any, view: View) -> Step:
    """A layer without weights that treats every number, or the last axis, alike."""
    if getattr(layer, "axis", -1) not in (-1, [-1], (-1,)):
        raise ValueError(
            f'Population: the layer "{layer.name}" works on axis {layer.axis}; only the last axis, '
            "-1, can be stacked."
        )
    return lambda x: np.asarray(layer(x, training=False))


def _identity(layer: Any, view: View) -> Step:
    return lambda x: x


def _flatten(layer: Any, view: View) -> Step:
    return lambda x: x.reshape(*x.shape[:2], -1)


def _reshape(layer: Any, view: View) -> Step:
    return lambda x: x.reshape(*x.shape[:2], *layer.target_shape)


def _last_axis(layer: Any) -> None:
    axis = layer.axis if isinstance(layer.axis, int) else list(layer.axis)
    if axis not in (-1, [-1]) and getattr(layer, "_ndim", 2) != 2:
        raise ValueError(
            f'Population: the layer "{layer.name}" normalises axis {layer.axis}; only the last '
            "axis can be stacked."
        )


def _batch_norm(layer: Any, view: View) -> Step:
    _last_axis(layer)
    mean, var = layer.moving_mean.data, layer.moving_variance.data
    root = np.sqrt(var + np.asarray(layer.epsilon, var.dtype))
    gamma, beta = view(layer.gamma), view(layer.beta)

    def step(x: Array) -> Array:
        y = (x - mean) / root
        if gamma is not None:
            y = y * _over_middle(gamma, y.ndim)
        return y if beta is None else y + _over_middle(beta, y.ndim)

    return step


def _layer_norm(layer: Any, view: View) -> Step:
    _last_axis(layer)
    gamma, beta = view(layer.gamma), view(layer.beta)

    def step(x: Array) -> Array:
        y = x - x.mean(-1, keepdims=True)
        y /= np.sqrt((y * y).mean(-1, keepdims=True) + np.asarray(layer.epsilon, y.dtype))
        if gamma is not None:
            y = y * _over_middle(gamma, y.ndim)
        return y if beta is None else y + _over_middle(beta, y.ndim)

    return step


def _over_middle(stacked: Array, ndim: int) -> Array:
    """(size, 1, n) as (size, 1, ..., 1, n)."""
    return stacked.reshape(len(stacked), *(1,) * (ndim - 2), stacked.shape[-1])


_STEPS: dict[str, Callable[[Any, View], Step]] = {
    "Activation": _activation,
    "AlphaDropout": _identity,
    "BatchNormalization": _batch_norm,
    "Dense": _dense,
    "Dropout": _identity,
    "ELU": _elementwise,
    "Flatten": _flatten,
    "GaussianDropout": _identity,
    "GaussianNoise": _identity,
    "Identity": _identity,
    "InputLayer": _identity,
    "LayerNormalization": _layer_norm,
    "LeakyReLU": _elementwise,
    "Linear": _dense,
    "ReLU": _elementwise,
    "Reshape": _reshape,
    "Softmax": _elementwise,
}
