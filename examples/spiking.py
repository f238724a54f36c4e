"""Train spiking neurons: a surrogate gradient goes through a step that has none.

    python examples/spiking.py

A spike is a step function, whose slope is 0 wherever it is defined, so plain backpropagation
teaches a spiking layer nothing. `custom_gradient` keeps the step going forward and sends back the
slope of a smooth curve instead. The task is to hear which of two groups of inputs fires first, amid
noise: counting spikes cannot tell, only neurons that remember can.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

import picodl
from picodl import layers, ops

INPUTS, STEPS = 20, 30


@picodl.custom_gradient
def surrogate_spike(v: Any) -> Any:
    """1 where v > 0, else 0; going back, the slope of a fast sigmoid: 1 / (1 + 10 |v|)^2."""

    def grad(*args: Any, upstream: Any) -> Any:
        slope = 1 / (1 + 10 * np.abs(np.asarray(args[0]))) ** 2
        return np.asarray(upstream) * slope

    return ops.cast(ops.greater(v, 0), "float32"), grad


@picodl.custom_gradient
def true_spike(v: Any) -> Any:
    """The same with its real slope, 0."""

    def grad(*args: Any, upstream: Any) -> Any:
        return np.zeros_like(np.asarray(upstream))

    return ops.cast(ops.greater(v, 0), "float32"), grad


class SpikingDense(layers.Layer):
    """Leaky integrate-and-fire neurons: v = decay v + x @ kernel; a spike at v > 1 takes 1 away.

    Args:
        units: the number of neurons.
        spike: the function from v - 1 to 0 or 1.
        decay: what is left of v after a step.

    Shapes: (batch, steps, n) -> (batch, steps, units), spikes.
    """

    def __init__(self, units: int, spike: Any, decay: float = 0.9, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units = units
        self.spike = spike
        self.decay = decay

    def build(self, input_shape: Any) -> None:
        self.kernel = self.add_weight((input_shape[-1], self.units), "he_normal", name="kernel")

    def call(self, x: Any) -> Any:
        currents = ops.matmul(x, self.kernel)
        v, spikes = 0.0, []
        for t in range(x.shape[1]):
            v = self.decay * v + currents[:, t]
            spikes.append(self.spike(v - 1.0))
            v = v - spikes[-1]
        return ops.stack(spikes, axis=1)


def make_data(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Noise, and a burst of each half of the inputs; the label tells which half came first."""
    x = (rng.random((n, STEPS, INPUTS)) < 0.03).astype(np.float32)
    first = rng.integers(2, 10, size=n)
    second = first + rng.integers(3, 15, size=n)
    y = rng.integers(2, size=n)
    half = INPUTS // 2
    for times, halves in ((first, y), (second, 1 - y)):
        for i, (t, h) in enumerate(zip(times, halves, strict=True)):
            x[i, t : t + 3, h * half : (h + 1) * half] = rng.random((min(3, STEPS - t), half)) < 0.5
    return x, y


def accuracy(spike: Any, epochs: int) -> tuple[float, float]:
    """(accuracy on new data, how far the spiking layer's weights moved)."""
    rng = np.random.default_rng(0)
    x, y = make_data(1000, rng)
    x_test, y_test = make_data(500, rng)
    picodl.utils.set_random_seed(0)
    model = picodl.Sequential(
        [
            picodl.Input((STEPS, INPUTS)),
            SpikingDense(32, spike),
            layers.GlobalAveragePooling1D(),
            layers.Dense(2),
        ]
    )
    loss = picodl.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(picodl.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    before = model.layers[0].kernel.numpy().copy()
    model.fit(x, y, epochs=epochs, verbose=0)
    moved = float(np.abs(model.layers[0].kernel.numpy() - before).mean())
    return model.evaluate(x_test, y_test, verbose=0)[1], moved


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    epochs = parser.parse_args().epochs
    for name, spike in (("surrogate gradient", surrogate_spike), ("true gradient", true_spike)):
        score, moved = accuracy(spike, epochs)
        print(f"{name:18} accuracy {score:.1%}, spiking weights moved by {moved:.3f} on average")


if __name__ == "__main__":
    main()
