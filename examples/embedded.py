"""From training to one C file: digits in float32 and in 8 bits, compiled and compared.

    python examples/embedded.py --out build

Trains a small convolutional network on scikit-learn's digits, writes it as C99 source with float32
and with 8-bit weights, compiles both with gcc (if there is one) and compares their accuracy on the
test digits with that of predict.
"""

from __future__ import annotations

import argparse
import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import picodl
from picodl import layers


def compiled_outputs(source: Path, x: np.ndarray, classes: int) -> np.ndarray:
    """What the C function gives for each sample."""
    library = source.with_suffix(".so")
    subprocess.run(
        ["gcc", "-std=c99", "-Wall", "-Werror", "-O2", "-shared", "-fPIC", source, "-o", library]
        + ["-lm"],
        check=True,
    )
    predict = getattr(ctypes.CDLL(library.resolve()), f"{source.stem}_predict")
    pointer = ctypes.POINTER(ctypes.c_float)
    out = np.empty((len(x), classes), np.float32)
    for sample, row in zip(x, out, strict=True):
        predict(sample.ctypes.data_as(pointer), row.ctypes.data_as(pointer))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path(), help="folder for the C files")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    digits = load_digits()
    x_train, x_test, y_train, y_test = train_test_split(
        digits.images[..., None].astype("float32") / 16,
        digits.target,
        test_size=0.2,
        random_state=0,
    )
    picodl.utils.set_random_seed(0)
    model = picodl.Sequential(
        [
            picodl.Input((8, 8, 1)),
            layers.Conv2D(8, 3, padding="same", use_bias=False),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.MaxPooling2D(),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(picodl.optimizers.Adam(0.01), loss="sparse_categorical_crossentropy")
    model.fit(x_train, y_train, epochs=options.epochs, verbose=0)
    wanted = model.predict(x_test, verbose=0)
    print(f"predict: accuracy {np.mean(wanted.argmax(1) == y_test):.2%}")

    for name, quantize in (("digits_f32", None), ("digits_int8", "int8")):
        source = options.out / f"{name}.c"
        sizes = model.export(source, quantize=quantize)
        line = f"{source}: weights {sizes['weights']:,} bytes, memory {sizes['memory']:,} bytes"
        if shutil.which("gcc"):
            got = compiled_outputs(source, x_test, 10)
            accuracy = np.mean(got.argmax(1) == y_test)
            line += (
                f", accuracy {accuracy:.2%}, largest difference {np.abs(got - wanted).max():.1e}"
            )
        print(line)


if __name__ == "__main__":
    main()
