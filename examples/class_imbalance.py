"""One case in fifty is ill: what class weights, sampling and a moved threshold do about it.

python examples/class_imbalance.py
"""

from __future__ import annotations

import argparse

import numpy as np
from sklearn.datasets import make_classification
from sklearn.metrics import balanced_accuracy_score, precision_score, recall_score
from sklearn.model_selection import train_test_split

import picodl
from picodl import layers


def make_model(features: int) -> picodl.Sequential:
    picodl.utils.set_random_seed(0)
    model = picodl.Sequential(
        [
            picodl.Input((features,)),
            layers.Dense(32, activation="relu"),
            layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile(picodl.optimizers.Adam(0.002), loss="binary_crossentropy")
    return model


class Balanced(picodl.utils.PyDataset):
    """Batches with as many ill as healthy samples, drawn anew in each epoch."""

    def __init__(self, x: np.ndarray, y: np.ndarray, batch_size: int = 64) -> None:
        super().__init__()
        self.x, self.y = x, y
        self.parts = [np.flatnonzero(y == label) for label in (0, 1)]
        self.batch_size = batch_size
        self.epoch = 0

    def __len__(self) -> int:
        return len(self.x) // self.batch_size

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng([self.epoch, index])
        rows = np.concatenate([rng.choice(p, self.batch_size // 2) for p in self.parts])
        return self.x[rows], self.y[rows]

    def on_epoch_end(self) -> None:
        self.epoch += 1


def best_threshold(y: np.ndarray, p: np.ndarray) -> float:
    """The threshold with the best balanced accuracy on the training data."""
    candidates = np.quantile(p, np.linspace(0.5, 0.999, 200))
    return float(max(candidates, key=lambda t: balanced_accuracy_score(y, p > t)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=15)
    options = parser.parse_args()
    x, y = make_classification(
        12_000, 20, n_informative=6, n_clusters_per_class=3, weights=[0.98], flip_y=0.005,
        class_sep=0.9, random_state=0,
    )  # fmt: skip
    x = x.astype("float32")
    x, x_test, y, y_test = train_test_split(x, y, test_size=0.3, stratify=y, random_state=0)
    counts = np.bincount(y)
    weights = {label: len(y) / (2 * count) for label, count in enumerate(counts)}
    print(
        f"{counts[1]} of {len(y)} training samples are ill; class weights {weights[0]:.2f}, "
        f"{weights[1]:.1f}"
    )
    print(f"{'':26} balanced   recall  precision")

    def tell(name: str, model: picodl.Sequential, threshold: float = 0.5) -> None:
        said = model.predict(x_test, verbose=0)[:, 0] > threshold
        balanced, recall = balanced_accuracy_score(y_test, said), recall_score(y_test, said)
        precision = precision_score(y_test, said, zero_division=0)
        print(f"{name:26} {balanced:8.1%} {recall:8.1%} {precision:8.1%}")

    plain = make_model(x.shape[1])
    plain.fit(x, y, epochs=options.epochs, verbose=0)
    tell("nothing", plain)
    threshold = best_threshold(y, plain.predict(x, verbose=0)[:, 0])
    tell(f"threshold {threshold:.3f}", plain, threshold)
    weighted = make_model(x.shape[1])
    weighted.fit(x, y, epochs=options.epochs, class_weight=weights, verbose=0)
    tell("class_weight", weighted)
    sampled = make_model(x.shape[1])
    sampled.fit(Balanced(x, y), epochs=options.epochs, verbose=0)
    tell("balanced batches", sampled)


if __name__ == "__main__":
    main()
