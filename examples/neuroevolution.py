"""Swing a pole up and balance it with evolved networks: a whole population in one batched pass.

A pole hangs from a cart on a track. The cart must swing it up by pushing left and right, catch it
at the top and hold it there. Each network of the population drives carts of its own; the best
tenth stays, the rest become mutated copies; there are no gradients. Solved means that the champion
holds the pole up at the end of each of 100 runs from new starts.

    python examples/neuroevolution.py
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from picodl import layers
from picodl.population import Population

GRAVITY, CART, POLE, LENGTH, FORCE, TICK = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
TRACK = 2.4


def start(carts: int, rng: np.random.Generator) -> np.ndarray:
    """Carts near the middle with the pole hanging: position, speed, angle from the top, turn."""
    return (rng.uniform(-0.1, 0.1, size=(carts, 4)) + [0, 0, np.pi, 0]).astype(np.float32)


def push(state: np.ndarray, force: np.ndarray) -> np.ndarray:
    """All carts after one tick; a cart that hits the end of the track stops there."""
    x, v, a, w = state.T
    sin, cos = np.sin(a), np.cos(a)
    total = CART + POLE
    moment = (force + POLE * LENGTH * w * w * sin) / total
    turn = (GRAVITY * sin - cos * moment) / (LENGTH * (4 / 3 - POLE * cos * cos / total))
    move = moment - POLE * LENGTH * turn * cos / total
    v = v + TICK * move
    w = w + TICK * turn
    x = x + TICK * v
    stopped = np.abs(x) > TRACK
    return np.stack(
        [np.clip(x, -TRACK, TRACK), np.where(stopped, 0, v), a + TICK * w, w], axis=1
    ).astype(np.float32)


def heights(nets: Population, states: np.ndarray, steps: int) -> np.ndarray:
    """The height of the pole's tip (-1 to 1) over time: (steps, networks, starts)."""
    shape = states.shape
    track = np.empty((steps, *shape[:2]), np.float32)
    for t in range(steps):
        x, v, a, w = np.moveaxis(states, -1, 0)
        seen = np.stack([x, v, np.sin(a), np.cos(a), 0.2 * w], axis=-1)
        force = FORCE * nets.predict_each(seen)[..., 0]
        states = push(states.reshape(-1, 4), force.reshape(-1)).reshape(shape)
        track[t] = np.cos(states[..., 2]) - 0.1 * np.abs(states[..., 0])  # the middle is better
    return track


def evolve(size: int, generations: int, steps: int, seed: int) -> bool:
    """Whether a network that never drops the pole was found."""
    rng = np.random.default_rng(seed)
    controller = [
        layers.Linear(5, 16, activation="tanh"),
        layers.Linear(16, 1, activation="tanh"),
    ]
    nets = Population(controller, size, seed=seed)
    began = time.perf_counter()
    for generation in range(1, generations + 1):
        same = np.broadcast_to(start(2, rng), (size, 2, 4))  # two starts, the same for everybody
        track = heights(nets, same, steps)
        scores = track.mean(axis=(0, 2))
        champion = nets.evolve(scores, keep=0.1, sigma=0.2)[0]
        if generation % 5 == 1:
            print(f"generation {generation:3}: best mean height {scores[champion]:5.2f}")
        if track[-100:, champion].min() > 0.7:  # held up for two seconds: try it on new starts
            one = Population(controller, 1)
            one.genomes[0] = nets.genomes[0]  # evolve put the champion first
            held = heights(one, start(100, rng)[None], steps)[-100:, 0].min(axis=0) > 0.7
            if held.all():
                took = time.perf_counter() - began
                print(f"solved in generation {generation}, {took:.1f} s: 100 of 100 poles are up")
                return True
    print("not solved yet")
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=500, help="networks in the population")
    parser.add_argument("--generations", type=int, default=100, help="the most that are tried")
    parser.add_argument("--steps", type=int, default=500, help="steps of 0.02 s in one run")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    evolve(options.size, options.generations, options.steps, options.seed)


if __name__ == "__main__":
    main()
