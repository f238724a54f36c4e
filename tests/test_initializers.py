"""Initializers: Keras's values and distributions, seeds, configs, messages."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest

from picodl import initializers, random
from picodl.tensor import Tensor

GOLDEN = Path(__file__).parent / "golden" / "initializers.h5"
CLASSES = initializers._members
RANDOM = [c for c in CLASSES if issubclass(c, initializers.RandomInitializer)]


def golden_names():
    names = []
    with h5py.File(GOLDEN, "r") as f:
        f.visit(names.append)
        return [n for n in names if "note" in f[n].attrs]


@pytest.mark.parametrize("name", golden_names())
def test_values_and_distributions_are_keras(name):
    with h5py.File(GOLDEN, "r") as f:
        case = f[name]
        cls = getattr(initializers, case.attrs["class"])
        options, shape = json.loads(case.attrs["config"]), tuple(json.loads(case.attrs["shape"]))
        if case.attrs["kind"] == "deterministic":
            np.testing.assert_allclose(cls(**options)(shape, "float64"), case["outputs/0"][()])
        elif case.attrs["kind"] == "property":
            q = cls(seed=1, **options)(shape, "float64").reshape(-1, shape[-1])
            gram = q.T @ q if q.shape[0] >= q.shape[1] else q @ q.T
            np.testing.assert_allclose(gram, case["outputs/0"][()], atol=1e-12)
        else:
            mean, std, low, high = case["expected"][()][:4]
            draws = np.concatenate([cls(seed=s, **options)(shape).ravel() for s in range(8)])
            assert abs(draws.mean() - mean) < 6 * std / draws.size**0.5
            assert abs(draws.std() / std - 1) < max(6 / (2 * draws.size) ** 0.5, 0.005)
            assert low - 1e-6 <= draws.min() and draws.max() <= high + 1e-6


def test_two_objects_differ_and_one_repeats_itself():
    for cls in RANDOM:
        one, two = cls(), cls()
        np.testing.assert_array_equal(one((3, 4)), one((3, 4)))
        assert not np.array_equal(one((3, 4)), two((3, 4)))
        np.testing.assert_array_equal(cls(seed=5)((3, 4)), cls(seed=5)((3, 4)))


def test_seeds_follow_the_stream_of_python_random():
    random.set_seed(1)
    assert initializers.get("he_normal").seed == 144272510


def test_a_seed_generator_draws_anew_at_each_call():
    one = initializers.RandomNormal(seed=random.SeedGenerator(3))
    a, b = one((4,)), one((4,))
    assert not np.array_equal(a, b)
    again = initializers.deserialize(json.loads(json.dumps(initializers.serialize(one))))
    np.testing.assert_array_equal(again((4,)), a)


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_dtype_and_shape(cls, dtype):
    made = cls(np.ones((3, 4))) if cls is initializers.Values else cls()
    values = made((3, 4), dtype)
    assert values.shape == (3, 4) and values.dtype == dtype
    assert values.flags.writeable


@pytest.mark.parametrize("cls", CLASSES)
def test_config_round_trip(cls):
    made = cls([[1.0]]) if cls is initializers.Values else cls()
    config = json.loads(json.dumps(initializers.serialize(made)))
    assert config["module"] == "keras.initializers" and config["registered_name"] is None
    again = initializers.deserialize(config)
    assert type(again) is cls and again.get_config() == made.get_config()
    assert made.clone().get_config() == made.get_config()


def test_older_files_have_only_the_seed():
    made = initializers.deserialize({"class_name": "HeNormal", "config": {"seed": 4}})
    assert made.seed == 4 and made.input_axes is None


@pytest.mark.parametrize(
    ("name", "cls"),
    [
        ("glorot_uniform", "GlorotUniform"),
        ("HeNormal", "HeNormal"),
        ("normal", "RandomNormal"),
        ("uniform", "RandomUniform"),
        ("one", "Ones"),
        ("zeros", "Zeros"),
        ("Zeros", "Zeros"),
        ("identity", "Identity"),
        ("OrthogonalInitializer", "Orthogonal"),
    ],
)
def test_names_and_aliases(name, cls):
    assert type(initializers.get(name)).__name__ == cls
    assert getattr(initializers, name).__name__ == cls


def test_get_takes_arrays_classes_callables_and_none():
    given = np.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(initializers.get(given)((2, 3)), given)
    np.testing.assert_array_equal(initializers.get(Tensor(given))((2, 3)), given)
    assert isinstance(initializers.get(initializers.Ones), initializers.Ones)
    assert initializers.get(len) is len
    assert initializers.get(None) is None
    one = initializers.Ones()
    assert initializers.get(one) is one


def test_axes_decide_what_counts_as_input():
    made = initializers.VarianceScaling(distribution="uniform", input_axes=[0, 1], output_axes=[2])
    values = made((4, 5, 6))
    assert np.abs(values).max() <= (3 / 20) ** 0.5
    assert initializers.compute_fans((4, 5, 6), [0, 1], [2]) == (20, 6)
    assert initializers.compute_fans(()) == (1, 1)
    assert initializers.compute_fans((7,)) == (7, 7)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: initializers.get("glorot_unifrm"), ValueError, r"Did you mean .GlorotUniform."),
        (lambda: initializers.get(3), TypeError, "name of a known initializer"),
        (lambda: initializers.get(np.ones(3))((4,)), ValueError, r"shape \(3,\).*shape \(4,\)"),
        (lambda: initializers.Constant([1, 2])((3,)), ValueError, "do not broadcast"),
        (lambda: initializers.Identity()((2, 2, 2)), ValueError, "Identity makes matrices"),
        (lambda: initializers.Orthogonal()((3,)), ValueError, "rank 2 or more"),
        (lambda: initializers.VarianceScaling(0.0), ValueError, "scale must be positive"),
        (lambda: initializers.VarianceScaling(1, "fan"), ValueError, "fan_in, fan_out, fan_avg"),
        (lambda: initializers.VarianceScaling(distribution="x"), ValueError, "truncated_normal"),
        (lambda: initializers.HeNormal(seed="a"), ValueError, "HeNormal: seed must be"),
        (lambda: initializers.HeNormal(seed=-1), ValueError, "HeNormal: seed must be"),
        (lambda: initializers.serialize(lambda s, d: 0), ValueError, "lambda"),
        (lambda: initializers.deserialize({"config": {}}), ValueError, "class_name"),
    ],
)
def test_messages(make, error, message):
    with pytest.raises(error, match=message):
        make()
