"""A scalar autograd engine for learners and micro-models: one number, its inputs, its slopes.

Every operation makes a `Value` that keeps its inputs and its slope with respect to each of them,
which are plain numbers known as soon as the result is. Going back is then one line: walk the
values from the newest to the oldest, and give each input `slope * gradient`. This file depends on
nothing; `picodl.Tensor` does the same with arrays.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Sequence
from operator import attrgetter, mul
from typing import Any, TypeAlias

_creation = itertools.count(1)
_age = attrgetter("_order")


class Value:
    """A number that remembers how it was computed.

    Args:
        data: the number.
        inputs: the values it was computed from.
        slopes: the derivative of this value with respect to each input.
        op: the name of the operation, for pictures.

    Attributes:
        grad: the derivative of what `backward` was called on with respect to this value.

    >>> x, y = Value(2.0), Value(3.0)
    >>> z = x * y + x**2
    >>> z.backward()
    >>> z.data, x.grad, y.grad
    (10.0, 7.0, 2.0)
    """

    __slots__ = ("_op", "_order", "_prev", "_slopes", "_walk", "data", "grad")

    def __init__(
        self,
        data: Any,
        inputs: Sequence[Value] = (),
        slopes: Sequence[float] = (),
        op: str = "",
    ) -> None:
        self.data = float(data)
        self.grad = 0.0
        self._prev = inputs
        self._slopes = slopes
        self._op = op
        self._order = next(_creation)
        self._walk: Any = None

    def __repr__(self) -> str:
        return f"Value(data={self.data}, grad={self.grad})"

    def __float__(self) -> float:
        return self.data

    def __reduce__(self) -> Any:
        return Value, (self.data,)  # copies and pickles take the number, not the graph behind it

    def backward(self) -> None:
        """Add the derivative of this value to `grad` of every value it was computed from.

        Leaves (parameters, data) add up over calls, so set their `grad` to 0 between steps;
        computed values start from 0 each time. Works for graphs of any depth.
        """
        walk = object()  # marks what this walk has met
        self._walk = walk
        if not self._prev:
            self.grad += 1.0
            return
        stack = [self]
        nodes = []
        while stack:
            node = stack.pop()
            node.grad = 0.0
            nodes.append(node)
            for x in node._prev:
                if x._prev and x._walk is not walk:
                    x._walk = walk
                    stack.append(x)
        nodes.sort(key=_age, reverse=True)  # the newest first: nobody uses a value before it exists
        self.grad = 1.0
        for node in nodes:
            g = node.grad
            for x, slope in zip(node._prev, node._slopes):  # noqa: B905 - strict costs a quarter
                x.grad += slope * g

    # ---------------------------------------------------------------- arithmetic

    def __add__(self, other: Number) -> Value:
        """z = x + y. Slopes: 1, 1."""
        y = _value(other)
        return Value(self.data + y.data, (self, y), (1.0, 1.0), "+")

    def __radd__(self, other: float) -> Value:
        # sum() starts with the number 0, and adding that would only lengthen the graph
        return self if other == 0 else self + other

    def __sub__(self, other: Number) -> Value:
        """z = x - y. Slopes: 1, -1."""
        y = _value(other)
        return Value(self.data - y.data, (self, y), (1.0, -1.0), "-")

    def __rsub__(self, other: float) -> Value:
        return _value(other) - self

    def __mul__(self, other: Number) -> Value:
        """z = x y. Slopes: y, x."""
        y = _value(other)
        return Value(self.data * y.data, (self, y), (y.data, self.data), "*")

    __rmul__ = __mul__

    def __truediv__(self, other: Number) -> Value:
        """z = x / y. Slopes: 1 / y, -z / y."""
        y = _value(other)
        z = self.data / y.data
        return Value(z, (self, y), (1.0 / y.data, -z / y.data), "/")

    def __rtruediv__(self, other: float) -> Value:
        return _value(other) / self

    def __neg__(self) -> Value:
        """z = -x. Slope: -1."""
        return Value(-self.data, (self,), (-1.0,), "neg")

    def __pow__(self, other: Number) -> Value:
        """z = x^y. Slopes: y x^(y-1), and z log(x) if the exponent is a Value too.

        Raises:
            ValueError: for a negative number to a power that is not whole.
            ZeroDivisionError: for 0 to a power below 1, where the slope is infinite.
        """
        x = self.data
        y = other.data if isinstance(other, Value) else float(other)
        if x < 0 and not y.is_integer():
            raise ValueError(f"{x} ** {y} is not a real number: the exponent must be whole.")
        slope = y * x ** (y - 1.0) if y else 0.0
        if not isinstance(other, Value):
            return Value(x**y, (self,), (slope,), f"**{other:g}")
        if x <= 0:
            raise ValueError(
                f"{x} ** Value({y}) has no slope in its exponent: the base must be > 0."
            )
        return Value(x**y, (self, other), (slope, x**y * math.log(x)), "**")

    def __rpow__(self, other: float) -> Value:
        return _value(other) ** self

    # ---------------------------------------------------------------- functions

    def exp(self) -> Value:
        """y = e^x. Slope: y.

        Raises:
            OverflowError: for x above 709, where e^x is beyond a float.
        """
        y = math.exp(self.data)
        return Value(y, (self,), (y,), "exp")

    def log(self) -> Value:
        """y = log(x), the natural logarithm. Slope: 1 / x.

        Raises:
            ValueError: if x is not positive.
        """
        if self.data <= 0:
            raise ValueError(f"log({self.data}): the logarithm needs a positive number.")
        return Value(math.log(self.data), (self,), (1.0 / self.data,), "log")

    def relu(self) -> Value:
        """y = max(x, 0). Slope: 1 where x > 0, else 0."""
        y, slope = _relu(self.data)
        return Value(y, (self,), (slope,), "relu")

    def tanh(self) -> Value:
        """y = tanh(x), which never overflows. Slope: 1 - y^2."""
        y, slope = _tanh(self.data)
        return Value(y, (self,), (slope,), "tanh")

    def sigmoid(self) -> Value:
        """y = 1 / (1 + e^-x), computed from e^-|x|, which never overflows. Slope: y (1 - y)."""
        y, slope = _sigmoid(self.data)
        return Value(y, (self,), (slope,), "sigmoid")


Number: TypeAlias = Value | float


def _value(x: Number) -> Value:
    return x if isinstance(x, Value) else Value(x)


# -------------------------------------------------------------------- number -> (result, slope)


def _linear(x: float) -> tuple[float, float]:
    return x, 1.0


def _relu(x: float) -> tuple[float, float]:
    return (0.0, 0.0) if x <= 0 else (x, 1.0)  # a NaN stays a NaN


def _tanh(x: float) -> tuple[float, float]:
    y = math.tanh(x)
    return y, 1.0 - y * y


def _sigmoid(x: float) -> tuple[float, float]:
    e = math.exp(-abs(x))
    y = 1.0 / (1.0 + e) if x >= 0 else e / (1.0 + e)
    return y, e / (1.0 + e) ** 2


_ACTIVATIONS = {"linear": _linear, "relu": _relu, "tanh": _tanh, "sigmoid": _sigmoid}


# -------------------------------------------------------------------- functions of several values


def softmax(values: Sequence[Number]) -> list[Value]:
    """y_i = e^(x_i - m) / sum_j e^(x_j - m) with m = max(x), so that nothing overflows.

    Slopes: dy_i / dx_j = y_i ((i = j) - y_j).

    >>> [y.data for y in softmax([1000.0, 1000.0])]
    [0.5, 0.5]
    """
    x = tuple(map(_value, values))
    y, _ = _softmax(x)
    return [
        Value(yi, x, [yi * ((i == j) - yj) for j, yj in enumerate(y)], "softmax")
        for i, yi in enumerate(y)
    ]


def cross_entropy(logits: Sequence[Number], label: int) -> Value:
    """-log(softmax(x)[label]) = log(sum_j e^(x_j - m)) + m - x[label], with m = max(x).

    Slopes: softmax(x)_j - (j = label).

    Raises:
        ValueError: if there is no logit for the label.
    """
    if not 0 <= label < len(logits):
        raise ValueError(f"Label {label} is outside of the {len(logits)} logits.")
    x = tuple(map(_value, logits))
    y, lse = _softmax(x)
    slopes = [yj - (j == label) for j, yj in enumerate(y)]
    return Value(lse - x[label].data, x, slopes, "cross_entropy")


def _softmax(x: Sequence[Value]) -> tuple[list[float], float]:
    """The probabilities, and log(sum(e^x))."""
    top = max(v.data for v in x)
    e = [math.exp(v.data - top) for v in x]
    total = sum(e)
    return [v / total for v in e], top + math.log(total)


# -------------------------------------------------------------------- networks


class Neuron:
    """y = f(w . x + b), one single Value in the graph whatever the number of inputs.

    Args:
        nin: the number of inputs.
        activation: "tanh", "relu", "sigmoid" or "linear".
        rng: draws the weights, uniform in (-1, 1). Defaults to the module `random`.
    """

    def __init__(
        self, nin: int, activation: str = "tanh", rng: random.Random | None = None
    ) -> None:
        if activation not in _ACTIVATIONS:
            raise ValueError(
                f"Unknown activation {activation!r}. Choose one of {', '.join(_ACTIVATIONS)}."
            )
        uniform = (rng or random).uniform
        self.w = [Value(uniform(-1, 1)) for _ in range(nin)]
        self.b = Value(uniform(-1, 1))
        self.activation = activation
        self._function = _ACTIVATIONS[activation]

    def __call__(self, x: Sequence[Number]) -> Value:
        values = [_value(v) for v in x]
        return self.fire(values, [v.data for v in values])

    def fire(self, x: list[Value], numbers: list[float]) -> Value:
        """The neuron's value for inputs x, whose numbers its layer has at hand.

        Slopes, with d = f'(w . x + b): d x_i for w_i, d w_i for x_i, d for b.

        Raises:
            ValueError: if there is not one input for each weight.
        """
        if len(x) != len(self.w):
            raise ValueError(f"A Neuron with {len(self.w)} inputs received {len(x)} values.")
        w = [v.data for v in self.w]
        y, d = self._function(sum(map(mul, w, numbers), self.b.data))
        slopes = [d * v for v in numbers + w]
        slopes.append(d)
        return Value(y, self.w + x + [self.b], slopes, self.activation)

    def parameters(self) -> list[Value]:
        """The weights, then the bias."""
        return [*self.w, self.b]

    def __repr__(self) -> str:
        return f"Neuron({len(self.w)}, {self.activation!r})"


class Layer:
    """nout neurons that see the same nin inputs; a single one gives a Value, more give a list."""

    def __init__(
        self, nin: int, nout: int, activation: str = "tanh", rng: random.Random | None = None
    ) -> None:
        self.neurons = [Neuron(nin, activation, rng) for _ in range(nout)]

    def __call__(self, x: Sequence[Number]) -> Any:
        values = [_value(v) for v in x]
        numbers = [v.data for v in values]
        out = [neuron.fire(values, numbers) for neuron in self.neurons]
        return out[0] if len(out) == 1 else out

    def parameters(self) -> list[Value]:
        """The parameters of all neurons, in order."""
        return [p for neuron in self.neurons for p in neuron.parameters()]

    def __repr__(self) -> str:
        return f"Layer({self.neurons})"


class MLP:
    """A stack of layers.

    Args:
        nin: the number of inputs.
        nouts: the number of neurons of each layer.
        activation: of every layer; or a list with one for each.
        seed: for weights of one's own sequence. Defaults to the module `random`.

    >>> model = MLP(2, [4, 1], seed=0)
    >>> len(model.parameters())
    17
    >>> round(model([1.0, 0.0]).data, 3)
    0.322
    """

    def __init__(
        self,
        nin: int,
        nouts: Sequence[int],
        activation: str | Sequence[str] = "tanh",
        seed: int | None = None,
    ) -> None:
        sizes = [nin, *nouts]
        rng = None if seed is None else random.Random(seed)
        kinds = [activation] * len(nouts) if isinstance(activation, str) else activation
        if len(kinds) != len(nouts):
            raise ValueError(f"{len(kinds)} activations for {len(nouts)} layers.")
        self.layers = [Layer(sizes[i], sizes[i + 1], kinds[i], rng) for i in range(len(nouts))]

    def __call__(self, x: Sequence[Number]) -> Any:
        """A Value, or a list of them if the last layer has several neurons."""
        out: Any = x
        for layer in self.layers:
            out = layer([out] if isinstance(out, Value) else out)
        return out

    def parameters(self) -> list[Value]:
        """The parameters of all layers, in order."""
        return [p for layer in self.layers for p in layer.parameters()]

    def zero_grad(self) -> None:
        """Set all gradients to 0, which has to happen before each backward."""
        for p in self.parameters():
            p.grad = 0.0

    def __repr__(self) -> str:
        return f"MLP({self.layers})"


# -------------------------------------------------------------------- training


def clip_gradients(parameters: Iterable[Value], limit: float = 1.0) -> None:
    """Bring every gradient into [-limit, limit]."""
    for p in parameters:
        p.grad = max(min(p.grad, limit), -limit)  # in this order a NaN stays a NaN


def clip_norm(parameters: Iterable[Value], limit: float = 1.0) -> float:
    """Scale all gradients down together so that their norm is at most limit; gives the norm."""
    parameters = list(parameters)
    norm = math.hypot(*[p.grad for p in parameters])
    if norm > limit:
        for p in parameters:
            p.grad *= limit / norm
    return norm


class SGD:
    """Gradient descent: p = p - lr g."""

    def __init__(self, parameters: Iterable[Value], lr: float = 0.05) -> None:
        self.parameters = list(parameters)
        self.lr = lr

    def zero_grad(self) -> None:
        """Set all gradients to 0."""
        for p in self.parameters:
            p.grad = 0.0

    def step(self) -> None:
        """Change the parameters by one step."""
        for p in self.parameters:
            p.data -= self.lr * p.grad


class Adam(SGD):
    """m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  p = p - lr m' / (sqrt(v') + eps).

    m' = m / (1 - b1^t) and v' = v / (1 - b2^t) correct for the start from 0.

    Reference: Kingma and Ba, 2014, "Adam: A Method for Stochastic Optimization", arXiv:1412.6980.
    """

    def __init__(
        self,
        parameters: Iterable[Value],
        lr: float = 0.05,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        super().__init__(parameters, lr)
        self.betas = betas
        self.eps = eps
        self.t = 0
        self.m = [0.0] * len(self.parameters)
        self.v = [0.0] * len(self.parameters)

    def step(self) -> None:
        """Change the parameters by one step."""
        self.t += 1
        b1, b2 = self.betas
        lr = self.lr / (1 - b1**self.t)
        correction = 1 - b2**self.t
        for i, p in enumerate(self.parameters):
            g = p.grad
            self.m[i] = m = b1 * self.m[i] + (1 - b1) * g
            self.v[i] = v = b2 * self.v[i] + (1 - b2) * g * g
            p.data -= lr * m / (math.sqrt(v / correction) + self.eps)
