"""A tiny GPT learns to add by reading sums, and writes the answers to sums it never saw.

    python examples/gpt_tiny.py [--steps 1500]

Each line is a text such as "47+85=231;": the sum stands with its last digit first, the order in
which one adds by hand. The model predicts the next letter; an answer is generated letter by letter.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import picodl
from picodl import layers
from picodl.models import generate
from picodl.preprocessing import CharacterTokenizer

LETTERS = CharacterTokenizer("0123456789+=;", sort=False)
LENGTH = len("47+85=231;")


def line(a: int, b: int) -> str:
    answer = f"{a + b:03d}"[::-1]
    return f"{a:02d}+{b:02d}={answer};"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1500)
    options = parser.parse_args()
    picodl.utils.set_random_seed(0)

    rng = np.random.default_rng(0)
    pairs = rng.permutation([(a, b) for a in range(100) for b in range(100)])
    test, train = pairs[:500], pairs[500:]
    texts = np.array([LETTERS.encode(line(a, b)) for a, b in train])

    source = picodl.Input((None,), dtype="int32")
    x = layers.TokenAndPositionEmbedding(len(LETTERS), LENGTH, 64)(source)
    for _ in range(2):
        x = layers.TransformerDecoder(128, num_heads=4, normalize_first=True)(x)
    x = layers.LayerNormalization()(x)
    model = picodl.Model(source, layers.Dense(len(LETTERS))(x))
    rate = picodl.optimizers.schedules.CosineDecay(
        0.0, options.steps, warmup_target=2e-3, warmup_steps=100
    )
    model.compile(
        picodl.optimizers.AdamW(rate), picodl.losses.SparseCategoricalCrossentropy(from_logits=True)
    )

    began = time.perf_counter()
    for step in range(options.steps):
        batch = texts[rng.integers(0, len(texts), 128)]
        loss = model.train_on_batch(batch[:, :-1], batch[:, 1:])
        if step % max(1, options.steps // 6) == 0:
            print(f"step {step:>5}   loss {loss:.3f}   {time.perf_counter() - began:.0f} s")

    prompts = np.array([LETTERS.encode(f"{a:02d}+{b:02d}=") for a, b in test])
    written = generate(model, prompts, 4, temperature=0)
    answers = [LETTERS.decode(row[6:]) for row in written]
    right = [answer == line(a, b)[6:] for answer, (a, b) in zip(answers, test, strict=True)]
    print(f"right answers to sums it never saw: {np.mean(right):.1%}")
    for (a, b), answer in list(zip(test, answers, strict=True))[:5]:
        print(f"{a} + {b} = {answer[:3][::-1]}")


if __name__ == "__main__":
    main()
