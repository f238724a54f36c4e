"""Random numbers: the streams of Keras's NumPy backend, and states that come back exactly."""

import pickle
import random as python_random

import numpy as np
import pytest

from picodl import random, saving
from picodl.symbolic import Symbol
from picodl.tensor import Tensor
from picodl.testing import gradcheck

# what Keras 3.15.1 gives on its NumPy backend
KERAS = [
    (lambda: random.normal((3,), seed=7), [0.00123015, 0.29874554, -0.27413785]),
    (lambda: random.uniform((3,), seed=7), [0.6250955, 0.8972138, 0.77568567]),
    (lambda: random.randint((5,), 0, 10, seed=7), [9, 6, 6, 8, 5]),
    (
        lambda: random.truncated_normal((4,), seed=3),
        [0.41809884, -0.5677696, -0.4526493, -0.21559717],
    ),
    (lambda: random.beta((3,), 2.0, 3.0, seed=3), [0.6350973, 0.67959136, 0.2036468]),
    (lambda: random.gamma((3,), 2.0, seed=3), [5.93382, 2.2667956, 1.1479354]),
    (lambda: random.binomial((3,), 10.0, 0.3, seed=3), [1, 2, 4]),
    (lambda: random.shuffle(np.arange(6), seed=3), [2, 5, 4, 1, 3, 0]),
    (lambda: random.dropout(np.ones(8, "f"), 0.5, seed=3), [2, 2, 0, 0, 2, 2, 2, 2]),
    (
        lambda: random.categorical(np.log([[0.2, 0.3, 0.5], [0.1, 0.1, 0.8]]), 5, seed=3),
        [[0, 1, 2, 2, 0], [2, 2, 1, 2, 1]],
    ),
    (
        lambda: random.normal((2,), mean=np.array([0.0, 10.0]), seed=1),
        [0.34558418, 10.821618],
    ),
]


@pytest.mark.parametrize(("draw", "expected"), KERAS)
def test_values_match_keras(draw, expected):
    np.testing.assert_allclose(draw(), expected, rtol=5e-6)


def test_seed_generator_counts_its_draws():
    generator = random.SeedGenerator(7)
    np.testing.assert_allclose(
        random.normal((2,), seed=generator), [0.00123015, 0.29874554], rtol=5e-6
    )
    np.testing.assert_allclose(
        random.normal((2,), seed=generator), [0.34736177, -2.337856], rtol=5e-6
    )
    assert generator.state.tolist() == [7, 2]


def test_draws_without_a_seed_follow_keras_after_set_seed():
    random.set_seed(5)
    np.testing.assert_allclose(random.normal((2,)), [2.0342076, 0.06245378], rtol=5e-6)
    np.testing.assert_allclose(random.uniform((2,)), [0.56129134, 0.77986974], rtol=5e-6)
    np.testing.assert_allclose(random.normal((2,)), [-1.3708965, -1.6709372], rtol=5e-6)


def test_automatic_seeds_are_those_of_python():
    random.set_seed(1)
    assert random.next_seed() == 144272510


def test_state_comes_back_exactly():
    generator = random.SeedGenerator()
    generator.next()
    state, copy = generator.get_state(), pickle.loads(pickle.dumps(generator))
    first = random.uniform((4,), seed=generator)
    np.testing.assert_array_equal(first, random.uniform((4,), seed=copy))
    generator.set_state(state)
    np.testing.assert_array_equal(first, random.uniform((4,), seed=generator))
    again = random.SeedGenerator.from_config(random.SeedGenerator(11).get_config())
    assert again.state.tolist() == [11, 0]
    config = saving.serialize_keras_object(random.SeedGenerator(11, name="draws"))
    assert config["module"] == "keras.random" and config["config"] == {"seed": 11, "name": "draws"}
    again = saving.deserialize_keras_object(config)
    assert (again.name, again.state.tolist()) == ("draws", [11, 0])


@pytest.mark.parametrize(
    ("draw", "dtype", "kind"),
    [
        (random.uniform, "int32", "a floating-point"),
        (random.normal, "int32", "a floating-point"),
        (random.truncated_normal, bool, "a floating-point"),
        (lambda shape, dtype: random.beta(shape, 1, 1, dtype), "int8", "a floating-point"),
        (lambda shape, dtype: random.gamma(shape, 1, dtype), "int8", "a floating-point"),
        (lambda shape, dtype: random.randint(shape, 0, 9, dtype), "float32", "an integer"),
    ],
)
def test_numbers_of_the_wrong_kind_are_refused(draw, dtype, kind):
    with pytest.raises(ValueError, match=f"draws numbers of {kind} dtype; received"):
        draw((3,), dtype=dtype)


def test_global_generators_stay_untouched():
    python_random.seed(3)
    np.random.seed(3)
    before = python_random.getstate(), np.random.get_state()[1].copy()
    random.set_seed(9)
    random.normal((3,))
    random.shuffle(np.arange(3))
    assert python_random.getstate() == before[0]
    np.testing.assert_array_equal(np.random.get_state()[1], before[1])


def test_shuffle_keeps_slices_whole():
    x = np.arange(12.0).reshape(4, 3)
    y = random.shuffle(x, seed=0)
    np.testing.assert_array_equal(np.sort(y[:, 0]), x[:, 0])
    np.testing.assert_array_equal(y[:, 1] - y[:, 0], np.ones(4))
    z = random.shuffle(x, axis=1, seed=0)
    np.testing.assert_array_equal(np.sort(z, 1), x)


def test_dropout_gradient_and_kinds():
    x = np.linspace(-1, 1, 12).reshape(3, 4)
    gradcheck(lambda t: random.dropout(t, 0.4, seed=3), x)
    gradcheck(lambda t: random.dropout(t, 0.4, seed=3) ** 2, x, second=True)
    assert random.dropout(x.astype("f"), 0.4, seed=1).dtype == np.float32
    assert isinstance(random.dropout(Tensor(x), 0.4), Tensor)
    assert random.dropout(Symbol((None, 4), "float32"), 0.4).shape == (None, 4)
    assert not random.dropout(x, 1.0).any()
    rows = random.dropout(np.ones((5, 6), "f"), 0.5, noise_shape=(None, 1), seed=2)
    assert (rows == rows[:, :1]).all()


@pytest.mark.parametrize("seed", [-1, 1.5, "a", True, 2**32])
def test_seed_of_another_kind_is_refused(seed):
    with pytest.raises(ValueError, match="seed must be an integer"):
        random.normal((2,), seed=seed)


def test_rate_out_of_range_is_refused():
    with pytest.raises(ValueError, match="fraction from 0 to 1"):
        random.dropout(np.ones(2), 1.5)


def test_floats_are_floatx():
    for draw in (random.normal, random.uniform, random.truncated_normal):
        assert draw((2,)).dtype == np.float32
        assert draw((2, 0), dtype="float64").shape == (2, 0)
