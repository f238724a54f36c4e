"""Every example runs in a short mode, and stands in the table of examples/README.md."""

import runpy
import sys
from contextlib import chdir
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"

# the arguments that make an example quick
SHORT = {
    "autoencoder.py": ["--epochs", "1"],
    "callbacks_tour.py": ["--epochs", "2", "--out", "logs"],
    "char_rnn.py": ["--epochs", "1"],
    "class_imbalance.py": ["--epochs", "1"],
    "digits_cnn.py": ["--epochs", "1"],
    "digits_mlp.py": ["--epochs", "1"],
    "distillation.py": ["--epochs", "1"],
    "embedded.py": ["--epochs", "1"],
    "gan_digits.py": ["--epochs", "1"],
    "gpt_tiny.py": ["--steps", "3"],
    "gradient_penalty.py": ["--steps", "20"],
    "manual_loop.py": ["--epochs", "1"],
    "neuroevolution.py": ["--size", "20", "--generations", "2", "--steps", "20"],
    "out_of_core.py": ["--megabytes", "8", "--cap", "0", "--epochs", "1"],
    "pinn.py": ["--steps", "20"],
    "regression.py": ["--epochs", "2"],
    "resnet_small.py": ["--epochs", "1"],
    "resume_training.py": ["--kills", "1", "--epochs", "2"],
    "saliency.py": ["--epochs", "2"],
    "sklearn_grid_search.py": ["--epochs", "1", "--jobs", "1"],
    "spiking.py": ["--epochs", "1"],
    "time_series.py": ["--epochs", "1"],
    "transfer.py": ["--epochs", "1"],
    "transformer_text.py": ["--epochs", "1"],
    "vae_digits.py": ["--epochs", "1"],
    "vanishing_gradients.py": ["--epochs", "1"],
    "xor_scalar.py": ["--seeds", "1"],
}
# they start processes, or take seconds in their shortest form
SLOW = {"char_rnn.py", "resnet_small.py", "resume_training.py", "sklearn_grid_search.py"}
SCRIPTS = sorted(path.name for path in EXAMPLES.glob("*.py"))


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in SCRIPTS]
)
def test_example_runs(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, *SHORT.get(name, [])])
    with chdir(tmp_path):
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert capsys.readouterr().out.strip()


def test_table_names_every_example():
    table = (EXAMPLES / "README.md").read_text()
    assert [name for name in SCRIPTS if f"`{name}`" not in table] == []


def test_benchmarks_are_described():
    text = (EXAMPLES / "benchmarks" / "README.md").read_text()
    scripts = [path.name for path in (EXAMPLES / "benchmarks").glob("*.py")]
    assert [name for name in scripts if name not in text] == []


@pytest.mark.peers
@pytest.mark.parametrize("name", ["scalar.py", "population.py"])
def test_benchmark_runs(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, "--rounds", "1"])
    runpy.run_path(str(EXAMPLES / "benchmarks" / name), run_name="__main__")
    assert "picodl" in capsys.readouterr().out
