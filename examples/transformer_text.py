"""A small transformer tells praise from complaint where the order of the words decides.

    python examples/transformer_text.py [--epochs 8]

The sentences are made up: "the food was not good, but the room was lovely". What counts is the part
after "but", and "not" turns a word round. A model of word counts cannot know; it stays near chance
where the transformer is nearly always right.
"""

from __future__ import annotations

import argparse

import numpy as np
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression

import picodl
from picodl import layers

THINGS = ["food", "room", "service", "view", "price", "staff", "music", "garden"]
GOOD = ["good", "lovely", "great", "splendid", "fine", "pleasant"]
BAD = ["bad", "awful", "poor", "dreadful", "dull", "nasty"]


def sentence(rng: np.random.Generator) -> tuple[str, int]:
    """A sentence and whether it is praise."""

    def part() -> tuple[str, bool]:
        praise, turned = rng.random(2) < 0.5
        word = rng.choice(GOOD if praise != turned else BAD)
        verb = rng.choice(["was not", "is not"] if turned else ["was", "is", "was very"])
        return f"the {rng.choice(THINGS)} {verb} {word}", bool(praise)

    (first, _), (second, praise) = part(), part()
    return f"{first}, but {second}.", int(praise)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=8)
    options = parser.parse_args()
    picodl.utils.set_random_seed(0)

    rng = np.random.default_rng(0)
    pairs = [sentence(rng) for _ in range(4000)]
    texts = np.array([text for text, _ in pairs])
    y = np.array([praise for _, praise in pairs])
    train, test = slice(0, 3000), slice(3000, None)

    tokens = layers.TextVectorization(output_sequence_length=14)
    tokens.adapt(texts[train])
    ids = tokens(texts).numpy()

    source = picodl.Input((None,), dtype="int32")
    x = layers.TokenAndPositionEmbedding(tokens.vocabulary_size(), 14, 32, mask_zero=True)(source)
    for _ in range(2):
        x = layers.TransformerEncoder(64, num_heads=4, dropout=0.1)(x)
    x = layers.GlobalAveragePooling1D()(x)
    model = picodl.Model(source, layers.Dense(1, activation="sigmoid")(x))
    model.compile(picodl.optimizers.Adam(0.001), "binary_crossentropy", metrics=["accuracy"])
    model.fit(ids[train], y[train], batch_size=32, epochs=options.epochs, verbose=0)

    counts = CountVectorizer().fit(texts[train])
    baseline = LogisticRegression(max_iter=1000).fit(counts.transform(texts[train]), y[train])
    by_counts = baseline.score(counts.transform(texts[test]), y[test])
    score = model.evaluate(ids[test], y[test], verbose=0, return_dict=True)["accuracy"]
    print(f"accuracy of word counts       {by_counts:.3f}")
    print(f"accuracy of the transformer   {score:.3f}")
    for text in (
        "the view was awful, but the staff was not bad.",
        "the price is fine, but the room is dull.",
    ):
        praise = model.predict(tokens(np.array([text])).numpy(), verbose=0)[0, 0]
        print(f"{praise:.2f}  {text}")


if __name__ == "__main__":
    main()
