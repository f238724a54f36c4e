"""Solve a differential equation with a network: a physics-informed network for a damped spring.

    python examples/pinn.py

The network u(t) is trained on no data at all. Its loss is how badly it obeys the equation
u'' + 2 d u' + w^2 u = 0 at points in time, and the start u(0) = 1, u'(0) = 0; the derivatives with
respect to t are taken by picodl.grad, and the loss is differentiated through them once more.

Reference: Raissi, Perdikaris and Karniadakis, 2019, "Physics-informed neural networks", Journal of
Computational Physics 378.
"""

from __future__ import annotations

import argparse
import math

import numpy as np

import picodl
from picodl import layers, ops, optimizers

DAMPING, FREQUENCY, END = 0.4, 4.0, 2.0


def exact(t: np.ndarray) -> np.ndarray:
    """The solution in closed form."""
    w = math.sqrt(FREQUENCY**2 - DAMPING**2)
    return np.exp(-DAMPING * t) * (np.cos(w * t) + DAMPING / w * np.sin(w * t))


def make_network() -> picodl.Sequential:
    return picodl.Sequential(
        [
            picodl.Input((1,)),
            layers.Dense(32, activation="tanh"),
            layers.Dense(32, activation="tanh"),
            layers.Dense(1),
        ]
    )


def physics_loss(model: picodl.Sequential, t: np.ndarray) -> picodl.Tensor:
    """The mean square of u'' + 2 d u' + w^2 u at t, and of what the start gets wrong."""

    def u(t):
        return model(t)

    # every row depends on its own t only, so that the gradient of the sum is u' of each row
    du = picodl.grad(lambda t: u(t).sum(), create_graph=True)
    ddu = picodl.grad(lambda t: du(t).sum(), create_graph=True)
    residual = ddu(t) + 2 * DAMPING * du(t) + FREQUENCY**2 * u(t)
    zero = np.zeros((1, 1), t.dtype)
    start = (u(zero) - 1) ** 2 + du(zero) ** 2
    return ops.mean(residual**2) / FREQUENCY**4 + start.sum()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=6000)
    steps = parser.parse_args().steps

    picodl.utils.set_random_seed(0)
    model = make_network()
    schedule = optimizers.schedules.CosineDecay(0.005, steps)
    optimizer = optimizers.Adam(schedule)
    t = np.linspace(0, END, 64, dtype="f")[:, None]
    for step in range(steps):
        model.zero_grad()
        loss = physics_loss(model, t)
        loss.backward()
        optimizer.step(model)
        if step % max(steps // 6, 1) == 0:
            print(f"step {step:5d}   loss {float(loss):.3e}")

    test = np.linspace(0, END, 9, dtype="f")[:, None]
    found = model.predict(test, verbose=0)
    print("\n    t   network     exact")
    for row in zip(test[:, 0], found[:, 0], exact(test[:, 0]), strict=True):
        print("{:5.2f}  {:8.4f}  {:8.4f}".format(*row))
    error = float(np.abs(found - exact(test)).max())
    print(f"\nlargest error: {error:.4f} (the solution lies between -1 and 1)")


if __name__ == "__main__":
    main()
