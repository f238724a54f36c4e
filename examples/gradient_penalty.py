"""Measure how far apart two clouds of points are, with a critic kept smooth by a gradient penalty.

    python examples/gradient_penalty.py

A critic is trained to score one cloud high and the other low. If its slope is 1 everywhere, the
difference of its mean scores is the Wasserstein distance: how far one cloud must be moved to become
the other. The slope is held near 1 by a penalty on the gradient of the score with respect to the
input, which is itself differentiated: picodl.grad(..., create_graph=True). The critic gains from a
slope a little above 1, so the scores are divided by the slope that is found. Here one cloud is the
other moved by a known vector, and the answer is known: the length of the vector.

Reference: Gulrajani et al., 2017, "Improved training of Wasserstein GANs", arXiv:1704.00028.
"""

from __future__ import annotations

import argparse

import numpy as np

import picodl
from picodl import layers, ops, optimizers

SHIFT = np.array([2.0, 1.5], dtype="f")  # of length 2.5


def make_critic() -> picodl.Sequential:
    return picodl.Sequential(
        [
            picodl.Input((2,)),
            layers.Dense(64, activation="softplus"),
            layers.Dense(64, activation="softplus"),
            layers.Dense(1),
        ]
    )


def critic_loss(
    critic: picodl.Sequential, near: np.ndarray, far: np.ndarray, mix: np.ndarray
) -> tuple[picodl.Tensor, float]:
    """The loss of the critic on two batches, and the distance it measures."""
    between = mix * near + (1 - mix) * far
    slope = picodl.grad(lambda x: critic(x).sum(), create_graph=True)(between)
    penalty = ops.mean((ops.norm(slope, axis=1) - 1) ** 2)
    distance = ops.mean(critic(far)) - ops.mean(critic(near))
    return 10 * penalty - distance, float(distance)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1500)
    steps = parser.parse_args().steps

    picodl.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    critic = make_critic()
    optimizer = optimizers.Adam(0.002, beta_1=0.5)
    seen = []
    for step in range(steps):
        near = rng.normal(size=(128, 2)).astype("f")
        far = rng.normal(size=(128, 2)).astype("f") + SHIFT
        mix = rng.random((128, 1), dtype="f")
        critic.zero_grad()
        loss, distance = critic_loss(critic, near, far, mix)
        loss.backward()
        optimizer.step(critic)
        seen.append(distance)
        if step % max(steps // 6, 1) == 0:
            print(f"step {step:5d}   loss {float(loss):7.3f}   distance {distance:6.3f}")

    points = rng.normal(size=(1000, 2)).astype("f") + SHIFT / 2
    slopes = np.linalg.norm(picodl.grad(lambda x: critic(x).sum())(points), axis=1)
    print(f"\nslope of the critic: {slopes.mean():.3f} on average, {slopes.max():.3f} at most")
    measured = np.mean(seen[-steps // 5 :]) / slopes.mean()
    print(f"distance: {measured:.3f}; the clouds are {np.linalg.norm(SHIFT):.3f} apart")


if __name__ == "__main__":
    main()
