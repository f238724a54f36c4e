"""picodl as `keras`: in processes of their own, since it holds for a whole process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
import keras
import keras.layers as L
from keras import ops, regularizers
from keras.models import Sequential
from keras.optimizers.schedules import ExponentialDecay

import picodl

assert sys.argv[1:] == ["--epochs", "2"], sys.argv
assert keras.__version__.split(".")[0] == "3"
assert L is keras.layers is picodl.layers and L.__name__ == L.__spec__.name == "picodl.layers"
assert keras.Sequential is Sequential is picodl.Sequential
model = Sequential([keras.Input((4,)), L.Dense(1, kernel_regularizer=regularizers.l2(1e-3))])
model.compile(keras.optimizers.SGD(ExponentialDecay(0.1, 10, 0.5)), "mse")
model.fit(ops.ones((8, 4)), ops.ones((8, 1)), epochs=int(sys.argv[2]), verbose=0)
for name in ("keras.src", "keras.applications", "keras.parallel"):
    try:
        __import__(name)
    except ModuleNotFoundError:
        pass
    else:
        raise AssertionError(name)
try:
    keras.applications
except AttributeError as error:
    assert "picodl stands in for Keras" in str(error)
"""

TENSORFLOW = """
import tensorflow as tf
from tensorflow.keras import layers
from tensorflow.keras.callbacks import EarlyStopping

import keras
import picodl

assert layers is tf.keras.layers is picodl.layers
assert EarlyStopping is picodl.callbacks.EarlyStopping and keras.ops is picodl.ops
try:
    tf.data
except AttributeError as error:
    assert "tensorflow.keras alone" in str(error)
else:
    raise AssertionError
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    ("text", "before", "after"),
    [(SCRIPT, [], ["--epochs", "2"]), (TENSORFLOW, ["--tensorflow"], [])],
    ids=["keras", "tensorflow"],
)
def test_a_script_of_keras_runs_unchanged(
    tmp_path: Path, text: str, before: list[str], after: list[str]
) -> None:
    script = tmp_path / "script.py"
    script.write_text(text)
    done = run("-m", "picodl", "run", *before, str(script), *after)
    assert done.returncode == 0, done.stderr


def test_a_script_that_fails_says_so(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import keras\nimport sys\nsys.exit(3)")
    assert run("-m", "picodl", "run", str(script)).returncode == 3
    script.write_text("import tensorflow.data")
    done = run("-m", "picodl", "run", "--tensorflow", str(script))
    assert done.returncode == 1 and "ModuleNotFoundError" in done.stderr
    assert "No such file" in run("-m", "picodl", "run", str(tmp_path / "none.py")).stderr


def test_another_keras_is_not_replaced() -> None:
    code = "import sys, types; sys.modules['keras'] = types.ModuleType('keras')\n"
    done = run("-c", code + "import picodl; picodl.as_keras()")
    assert done.returncode == 1 and "was imported already" in done.stderr
    twice = "import picodl; picodl.as_keras(); import keras; picodl.as_keras(); keras.layers.Dense"
    assert run("-c", twice).returncode == 0
