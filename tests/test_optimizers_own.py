"""Optimizers that users write, in picodl's form and in Keras's."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import picodl as P
from picodl import ops, optimizers, saving
from picodl.module import Parameter
from tests.test_optimizers import weights_and_gradients


def test_a_rule_in_kerass_form_gets_variables():
    class Momentum(optimizers.Optimizer):
        def build(self, var_list):
            if self.built:
                return
            super().build(var_list)
            self.momenta = [self.add_variable_from_reference(v, "momentum") for v in var_list]

        def update_step(self, gradient, variable, learning_rate):
            m = self.momenta[self._get_variable_index(variable)]
            self.assign(m, ops.subtract(m * 0.9, gradient * learning_rate))
            self.assign_add(variable, m)

    weights, grads = weights_and_gradients([(4, 3), (3,)], 5)
    same = [Parameter(w.numpy()) for w in weights]
    mine, sgd = Momentum(0.1, weight_decay=0.1), optimizers.SGD(0.1, 0.9, weight_decay=0.1)
    for row in grads:
        mine.apply(row, weights)
        sgd.apply(row, same)
    for a, b in zip(weights, same, strict=True):
        np.testing.assert_allclose(a.data, b.data, rtol=1e-5, atol=1e-6)
    assert [v.path.split("/")[1] for v in mine.variables[2:]] == ["w0_momentum", "w1_momentum"]
    with pytest.raises(ValueError, match="was not there when the optimizer was built"):
        mine.apply([np.ones(1)], [Parameter([1.0])])
    held, twin = copy.deepcopy((weights, mine))
    twin.apply(grads[0], held)
    mine.apply(grads[0], weights)
    assert held[0].data.tobytes() == weights[0].data.tobytes()


@saving.register_keras_serializable("optimizers in Keras's form")
class KerasMomentum(optimizers.Optimizer):
    def __init__(self, learning_rate=0.01, momentum=0.9, name="momentum", **kwargs):
        super().__init__(learning_rate=learning_rate, name=name, **kwargs)
        self.momentum = momentum

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self.momenta = self.add_optimizer_variables(variables, "momentum")

    def update_step(self, gradient, variable, learning_rate):
        rate = ops.cast(learning_rate, variable.dtype)
        m = self.momenta[self._get_variable_index(variable)]
        self.assign(m, ops.subtract(ops.multiply(m, self.momentum), ops.multiply(gradient, rate)))
        self.assign_add(variable, m)

    def get_config(self):
        return {**super().get_config(), "momentum": self.momentum}


@saving.register_keras_serializable("optimizers in Keras's form")
class KerasLion(optimizers.Optimizer):
    def build(self, var_list):
        if self.built:
            return
        super().build(var_list)
        self._momenta = self.add_optimizer_variables(var_list, name="momentum", initializer="zeros")

    def update_step(self, gradient, variable, learning_rate):
        m = self._momenta[self._get_variable_index(variable)]
        ahead = ops.add(ops.multiply(m, 0.9), ops.multiply(gradient, 0.1))
        self.assign_sub(variable, ops.multiply(learning_rate, ops.sign(ahead)))
        self.assign(m, ops.add(ops.multiply(m, 0.99), ops.multiply(gradient, 1 - 0.99)))


@saving.register_keras_serializable("optimizers in Keras's form")
class KerasAdam(optimizers.Optimizer):
    def __init__(self, learning_rate=0.001, beta_1=0.9, beta_2=0.999, **kwargs):
        super().__init__(learning_rate, **kwargs)
        self.beta_1, self.beta_2 = beta_1, beta_2

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        names = ["momentum", "velocity"]
        self._m, self._v = self.add_optimizer_variables(variables, names)

    def update_step(self, gradient, variable, learning_rate):
        step = ops.cast(self.iterations + 1, variable.dtype)
        shares = [1 - ops.power(ops.cast(b, "float32"), step) for b in (self.beta_1, self.beta_2)]
        rate = learning_rate * ops.sqrt(shares[1]) / shares[0]
        i = self._get_variable_index(variable)
        m, v = self._m[i], self._v[i]
        self.assign_add(m, ops.multiply(ops.subtract(gradient, m), 1 - self.beta_1))
        self.assign_add(v, ops.multiply(ops.subtract(ops.square(gradient), v), 1 - self.beta_2))
        self.assign_sub(variable, ops.divide(ops.multiply(m, rate), ops.add(ops.sqrt(v), 1e-7)))

    def get_config(self):
        return {**super().get_config(), "beta_1": self.beta_1, "beta_2": self.beta_2}


@pytest.mark.parametrize(
    ("theirs", "own", "options"),
    [
        (KerasMomentum, optimizers.SGD, {"momentum": 0.8, "use_ema": True, "clipnorm": 1.0}),
        (KerasLion, optimizers.Lion, {"weight_decay": 0.1, "gradient_accumulation_steps": 2}),
        (KerasAdam, optimizers.Adam, {"beta_2": 0.99, "weight_decay": 0.01}),
    ],
)
def test_optimizers_written_for_keras_train_and_resume(theirs, own, options, tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(32, 4)).astype("float32"), rng.normal(size=(32, 1)).astype("float32")

    def fit(model):
        model.fit(x, y, epochs=3, batch_size=8, shuffle=False, verbose=0)
        return model.get_weights()

    model = P.Sequential([P.Input((4,)), P.layers.Dense(5, "tanh"), P.layers.Dense(1)])
    twin = P.models.clone_model(model)
    twin.set_weights(model.get_weights())
    model.compile(theirs(0.01, **options), "mse")
    twin.compile(own(0.01, **options), "mse")
    for a, b in zip(fit(model), fit(twin), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    model.save(tmp_path / "x.keras")
    back = saving.load_model(tmp_path / "x.keras")
    assert back.optimizer.get_config() == model.optimizer.get_config()
    for a, b in zip(fit(model), fit(back), strict=True):
        assert a.tobytes() == b.tobytes()


def test_add_optimizer_variables_takes_several_names():
    optimizer = optimizers.SGD()
    weights = [Parameter(np.zeros((2, 3)), name="a"), Parameter(np.zeros(4), name="b")]
    for weight in weights:
        weight.path = f"dense/{weight.name}"
    m, v = optimizer.add_optimizer_variables(weights, ["m", "v"], ["zeros", "ones"])
    assert [w.shape for w in v] == [(2, 3), (4,)] and v[0].numpy().all() and not m[0].numpy().any()
    found = [w.path.split("/")[1] for w in optimizer.variables[2:]]
    assert found == ["dense_a_m", "dense_a_v", "dense_b_m", "dense_b_v"]
    with pytest.raises(ValueError, match="2 names, but 1 init"):
        optimizer.add_optimizer_variables(weights, ["m", "v"], ["zeros"])
