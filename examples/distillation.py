"""Knowledge distillation: a small student learns from a large teacher's soft answers.

    python examples/distillation.py

Reference: Hinton et al., 2015, "Distilling the Knowledge in a Neural Network", arXiv:1503.02531.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import picodl
from picodl import layers, losses, ops


def network(*units: int) -> picodl.Sequential:
    hidden = [layers.Dense(n, activation="relu") for n in units]
    return picodl.Sequential([picodl.Input((64,)), *hidden, layers.Dense(10)])


class Distiller(picodl.Model):
    """Train a student on the labels and on the teacher's probabilities at a temperature."""

    def __init__(
        self, student: picodl.Model, teacher: picodl.Model, temperature: float, share: float
    ) -> None:
        super().__init__()
        self.student, self.teacher = student, teacher
        teacher.trainable = False
        self.temperature, self.share = temperature, share

    def call(self, x: Any) -> Any:
        return self.student(x)

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        hard = super().compute_loss(x, y, y_pred, sample_weight, training)
        if not training:
            return hard
        with picodl.no_grad():
            soft_targets = ops.softmax(self.teacher(x) / self.temperature)
        soft = losses.KLDivergence()(soft_targets, ops.softmax(y_pred / self.temperature))
        return (1 - self.share) * hard + self.share * self.temperature**2 * soft


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--labels", type=int, default=50, help="labels that the student has")
    options = parser.parse_args()
    picodl.utils.set_random_seed(0)

    digits = load_digits()
    x, x_test, y, y_test = train_test_split(
        (digits.data / 16).astype("float32"), digits.target, test_size=0.5, random_state=0
    )
    loss = losses.SparseCategoricalCrossentropy(from_logits=True)

    def trained(model: picodl.Model, name: str, size: int, labels: int) -> None:
        model.compile("adam", loss, metrics=["accuracy"])
        steps = -(-len(x) // 32) * options.epochs  # equally many steps for all
        model.fit(x[:labels], y[:labels], epochs=steps // -(-labels // 32), verbose=0)
        report(model, name, size)

    def report(model: picodl.Model, name: str, size: int) -> None:
        _, accuracy = model.evaluate(x_test, y_test, verbose=0)
        print(f"{name:42} {size:7,} weights  test accuracy {accuracy:.1%}")

    teacher = network(256, 256)
    trained(teacher, f"teacher, {len(x)} labels", teacher.count_params(), len(x))
    alone = network(16)
    start = alone.get_weights()
    trained(alone, f"student alone, {options.labels} labels", alone.count_params(), options.labels)

    # the teacher judges all pictures; labels count for the few that the student has
    student = network(16)
    student.set_weights(start)
    distiller = Distiller(student, teacher, temperature=3.0, share=0.9)
    distiller.compile("adam", loss, metrics=["accuracy"])
    known = (np.arange(len(x)) < options.labels).astype("float32")
    distiller.fit(x, y, sample_weight=known, epochs=options.epochs, verbose=0)
    name = f"student, {options.labels} labels and the teacher"
    report(distiller, name, student.count_params())


if __name__ == "__main__":
    main()
