"""A recurrent network reads sonnets letter by letter, and then writes on its own.

python examples/char_rnn.py [--cell lstm] [--epochs 25] [--temperature 0.6]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import picodl
from picodl import layers
from picodl.models import generate
from picodl.preprocessing import CharacterTokenizer

LENGTH = 60  # letters in a training sequence


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cell", choices=["lstm", "gru"], default="gru")
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--temperature", type=float, default=0.6)
    options = parser.parse_args()
    picodl.utils.set_random_seed(0)

    text = (Path(__file__).parent / "data" / "sonnets.txt").read_text()
    letters = CharacterTokenizer(text)
    ids = letters.encode(text)
    # every sequence with the same one a letter later: what comes next at each place
    windows = np.lib.stride_tricks.sliding_window_view(ids, LENGTH + 1)[::3]
    x, y = windows[:, :-1], windows[:, 1:]

    recurrent = layers.LSTM if options.cell == "lstm" else layers.GRU
    model = picodl.Sequential(
        [
            picodl.Input((None,), dtype="int32"),
            layers.Embedding(len(letters), 32),
            recurrent(128, return_sequences=True),
            layers.Dense(len(letters)),
        ]
    )
    loss = picodl.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(picodl.optimizers.Adam(0.004), loss)
    history = model.fit(x, y, batch_size=64, epochs=options.epochs, verbose=0).history["loss"]

    share = np.bincount(ids) / len(ids)
    print(f"{len(text)} letters, {len(letters)} different ones")
    print(f"bits a letter, by frequency alone  {-(share * np.log2(share)).sum():.2f}")
    print(f"bits a letter, first epoch         {history[0] / np.log(2):.2f}")
    print(f"bits a letter, last epoch          {history[-1] / np.log(2):.2f}")
    prompt = letters.encode("Shall I ")
    written = generate(model, prompt, 300, temperature=options.temperature, seed=0)
    print("\n" + letters.decode(written))


if __name__ == "__main__":
    main()
