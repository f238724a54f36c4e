"""All logs of one training: CSV, JSON lines, checkpoint, TensorBoard, gradients, a picture.

    python examples/callbacks_tour.py [--out logs]

The picture needs matplotlib (pip install 'picodl[viz]') and is left out without it. The event files
are shown by `tensorboard --logdir logs/tensorboard` (pip install 'picodl[tensorboard]').
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
from pathlib import Path

import picodl
from picodl import callbacks, layers


class SayWhenHalf(callbacks.Callback):
    """A callback of one's own: speaks once, when the loss has halved."""

    def __init__(self) -> None:
        super().__init__()
        self.first: float | None = None
        self.said = False

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        loss = logs["loss"]
        self.first = self.first or loss
        if not self.said and loss < self.first / 2:
            self.said = True
            print(f"The loss has halved after {epoch + 1} epochs.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("logs"), help="folder for the logs")
    parser.add_argument("--epochs", type=int, default=40)
    options = parser.parse_args()
    out = options.out
    out.mkdir(parents=True, exist_ok=True)

    picodl.utils.set_random_seed(0)
    (x, y), (x_test, y_test) = picodl.datasets.digits.load_data()
    model = picodl.Sequential(
        [
            picodl.Input((64,)),
            layers.Rescaling(1 / 16),
            layers.Dense(64, activation="relu"),
            layers.Dropout(0.2),
            layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile("adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])

    monitor = callbacks.GradientMonitor(every=5)
    stopping = callbacks.EarlyStopping("val_loss", patience=5, restore_best_weights=True, verbose=1)
    used = [
        callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=3),  # logs the rate, too
        callbacks.CSVLogger(out / "log.csv"),
        callbacks.JSONLinesLogger(out / "log.jsonl"),
        callbacks.ModelCheckpoint(
            out / "best.weights.h5", "val_accuracy", save_best_only=True, save_weights_only=True
        ),
        callbacks.TensorBoard(out / "tensorboard", histogram_freq=5),
        stopping,
        monitor,
        SayWhenHalf(),
    ]
    if importlib.util.find_spec("matplotlib"):
        used.append(callbacks.LivePlot(out / "curves.png"))
    model.fit(x, y, epochs=options.epochs, validation_split=0.2, callbacks=used, verbose=0)

    with open(out / "log.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    print(f"log.csv has {len(rows)} epochs; the last: {rows[-1]}")
    last = json.loads((out / "log.jsonl").read_text().splitlines()[-1])
    print(f"log.jsonl adds the speed: {last['samples_per_second']:.0f} samples/s")
    print(f"the gradients of the last epoch:\n{monitor.report()}")
    accuracy = model.evaluate(x_test, y_test, verbose=0)[1]
    print(f"best epoch {stopping.best_epoch + 1}, test accuracy {accuracy:.1%}")
    print(f"files in {out}: {', '.join(sorted(path.name for path in out.iterdir()))}")


if __name__ == "__main__":
    main()
