import copy
from itertools import pairwise

import numpy as np
import pytest

from picodl import Input, Model, Sequential, layers
from picodl.initializers import Constant
from picodl.population import Population


def template(x, *parts):
    for part in parts:
        x = part(x)
    return list(parts)


def one_by_one(population, x_of):
    """What the template gives with each member's weights in turn."""
    outputs = []
    for i in range(population.size):
        population.install(i)
        x = x_of(i)
        for layer in population.layers:
            x = layer(x, training=False) if isinstance(layer, layers.Dropout) else layer(x)
        outputs.append(x.numpy())
    return np.stack(outputs)


@pytest.fixture
def x():
    return np.random.default_rng(0).normal(size=(6, 8)).astype(np.float32)


MODELS = {
    "mlp": lambda: [layers.Dense(16, activation="tanh"), layers.Dense(4)],
    "no bias": lambda: [layers.Dense(5, use_bias=False, activation="softmax")],
    "activation layers": lambda: [
        layers.Dense(5),
        layers.ReLU(),
        layers.Dropout(0.5),
        layers.Dense(3, activation="gelu"),
        layers.Softmax(),
    ],
    "normalisation": lambda: [
        layers.Dense(5),
        layers.BatchNormalization(
            moving_mean_initializer="ones", moving_variance_initializer=Constant(4.0)
        ),
        layers.ReLU(),
        layers.LayerNormalization(),
        layers.Dense(2),
        layers.LeakyReLU(0.1),
    ],
    "sequences": lambda: [
        layers.Reshape((2, 4)),
        layers.BatchNormalization(),
        layers.LayerNormalization(),
        layers.Dense(3, activation="tanh"),
    ],
    "reshaping": lambda: [
        layers.Reshape((2, 4)),
        layers.Dense(3, activation="relu"),
        layers.Activation("sigmoid"),
        layers.Flatten(),
        layers.Dense(2),
    ],
}


@pytest.mark.parametrize("name", MODELS)
def test_one_pass_equals_one_network_after_the_other(name, x):
    nets = Population(template(x, *MODELS[name]()), 7, seed=1)
    nets.genomes += np.random.default_rng(3).normal(0, 0.1, nets.genomes.shape).astype("f4")
    y = nets.predict(x)
    assert y.dtype == np.float32
    np.testing.assert_allclose(y, one_by_one(nets, lambda i: x), rtol=1e-5, atol=1e-6)
    own = np.random.default_rng(2).normal(size=(7, 3, 8)).astype(np.float32)
    np.testing.assert_allclose(
        nets.predict_each(own), one_by_one(nets, lambda i: own[i]), rtol=1e-5, atol=1e-6
    )


def test_a_sequential_is_a_template_but_a_branch_is_not(x):
    model = Sequential([Input((8,)), layers.Dense(4, "tanh"), layers.Dropout(0.5), layers.Dense(2)])
    nets = Population(model, 3, seed=0)
    y = nets.predict(x)
    nets.install(2)
    np.testing.assert_allclose(model.predict(x, verbose=0), y[2], rtol=1e-5, atol=1e-6)
    copied = Population(copy.deepcopy(model), 3, seed=0)
    np.testing.assert_array_equal(copied.predict(x), Population(model, 3, seed=0).predict(x))
    a = Input((8,))
    branched = Model(a, layers.Add()([layers.Dense(2)(a), layers.Dense(2)(a)]))
    with pytest.raises(ValueError, match="layers follow one another"):
        Population(branched, 3)


def test_members_differ_and_seed_repeats_them(x):
    parts = template(x, layers.Dense(4, bias_initializer="ones"))
    a, b = Population(parts, 3, seed=5), Population(parts, 3, seed=5)
    np.testing.assert_array_equal(a.genomes, b.genomes)
    assert len(np.unique(a.genomes[:, 0])) == 3
    assert np.all(a.genomes[:, -4:] == 1)
    limit = np.sqrt(6 / 12)
    assert np.abs(a.genomes[:, :-4]).max() <= limit
    same = Population(parts, 3, copies=True)
    np.testing.assert_array_equal(same.weights_of(2)[0], parts[0].kernel.data)


def test_genomes_are_the_weights(x):
    nets = Population(template(x, layers.Dense(2)), 3)
    nets.genomes[1] = 0
    y = nets.predict(x)
    assert np.all(y[1] == 0) and np.any(y[0] != 0)


def test_input_is_left_alone(x):
    before = x.copy()
    nets = Population(template(x, layers.Activation("relu"), layers.Dense(2)), 1)
    nets.predict(x)
    np.testing.assert_array_equal(x, before)


def test_evolution_climbs():
    x = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)
    target = x[:, :1] * x[:, 1:]
    nets = Population(template(x, layers.Dense(8, activation="tanh"), layers.Dense(1)), 200, seed=0)
    errors = []
    for _ in range(60):
        error = ((nets.predict(x) - target) ** 2).mean(axis=(1, 2))
        errors.append(error.min())
        best = nets.evolve(-error, keep=0.1, sigma=0.1)
        assert best[0] == error.argmin()
    assert errors[-1] < 0.2 * errors[0]
    assert all(later <= earlier + 1e-6 for earlier, later in pairwise(errors))


def test_nan_scores_are_worst(x):
    nets = Population(template(x, layers.Dense(2)), 4, seed=0)
    assert list(nets.evolve([np.nan, 1.0, 3.0, 2.0], keep=0.75)) == [2, 3, 1]


def test_messages(x):
    dense = template(x, layers.Dense(2))
    adapted = template(x, layers.Dense(2, lora_rank=1))
    for call, message in [
        (lambda: Population(adapted, 3), "low-rank"),
        (lambda: Population(dense, 0), "positive integer; received 0"),
        (lambda: Population([layers.Dense(2, name="raw")], 3), '"raw" has no weights yet'),
        (lambda: Population(template(x, layers.Lambda(abs, name="odd")), 3), 'Lambda layer "odd"'),
        (lambda: Population([*dense, *dense], 3), "used twice"),
        (lambda: Population(template(x, layers.Softmax(axis=0)), 3), "axis 0"),
        (lambda: Population(dense, 3).predict_each(x), r"\(3, batch, ...\); received \(6, 8\)"),
        (lambda: Population(dense, 3).evolve([1.0]), r"3 networks; received .* \(1,\)"),
        (lambda: Population(dense, 3).evolve([1.0] * 3, keep=0), "keep must be in"),
        (lambda: Population(layers.Dense(2), 3), "layers follow one another"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()
