"""Distillation: the losses, the training and the files of a Distiller."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from picodl import Input, Model, Sequential, distillation, layers, losses, models, optimizers
from picodl.distillation import (
    DistillationLoss,
    Distiller,
    FeatureDistillation,
    LogitsDistillation,
)

T = np.array([[1, 2, 3], [0, 1, -1]], "float32")
S = np.array([[0, 1, 5], [2, 1, -1]], "float32")
X = ((np.arange(18) % 5 - 2) / 4).reshape(6, 3).astype("float32")
Y = np.array([0, 1, 1, 0, 1, 0])


# computed by Keras 3.15 with the models of `_distiller(student_loss_weight=0.3)`
EXPECTED_HISTORY = {
    "accuracy": [0.66666669, 0.66666669, 0.66666669],
    "distillation_loss": [0.028166349977254868, 0.026964697986841202, 0.025856880471110344],
    "loss": [0.22695676982402802, 0.2257012575864792, 0.22452054917812347],
    "student_loss": [0.6845978498458862, 0.6835176944732666, 0.6824541687965393],
    "total_loss": [0.22509580850601196, 0.22393059730529785, 0.22283607721328735],
}
EXPECTED_BIAS = [-0.15114986896514893, 0.13568365573883057]


def _net(seed: int) -> Model:
    inputs = Input((3,))
    hidden = layers.Dense(4, activation="tanh", name="h")(inputs)
    model = Model(inputs, layers.Dense(2, name="o")(hidden))
    for k, weight in enumerate(model.weights):
        values = ((np.arange(weight.data.size) * (seed + 2)) % 7 - 3) / 10 + 0.05 * k
        weight.assign(values.reshape(weight.shape))
    return model


def _distiller(**options) -> Distiller:
    parts = [LogitsDistillation(2.0, "mse"), FeatureDistillation("mse", "h", "h")]
    return Distiller(_net(0), _net(1), parts, [1.0, 0.5], **options)


@pytest.mark.parametrize(
    ("part", "expected"),
    [  # computed by Keras 3.15
        (LogitsDistillation(3.0, losses.KLDivergence()), 0.7851356863975525),
        (LogitsDistillation(3.0, "mse"), 0.18518520891666412),
        (LogitsDistillation(3.0, losses.CategoricalCrossentropy(from_logits=True)), 0.98437864),
        (FeatureDistillation(), 1.6666667461395264),
        (FeatureDistillation("cosine_similarity"), -0.7341961860656738),
    ],
)
def test_losses_match_keras(part, expected):
    assert float(part.compute_loss(T, S)) == pytest.approx(expected, rel=1e-5)


def test_the_divergence_takes_probabilities_by_name_too():
    by_name = LogitsDistillation(3.0, "kl_divergence").compute_loss(T, S)
    assert float(by_name) == pytest.approx(0.7851356863975525, rel=1e-5)


def test_a_structure_of_losses_leaves_out_what_is_none():
    part = FeatureDistillation(loss=["mse", None])
    assert float(part.compute_loss([T, T], [S, S])) == pytest.approx(1.6666667, rel=1e-5)
    part.validate_outputs([T, T], [S, S])
    with pytest.raises(ValueError, match="structure of the outputs"):
        part.validate_outputs(T, S)


@pytest.fixture(scope="module")
def trained():
    model = _distiller(student_loss_weight=0.3)
    loss = losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizers.SGD(0.1), loss=loss, metrics=["accuracy"])
    teacher = [w.copy() for w in model.teacher.get_weights()]
    history = model.fit(X, Y, epochs=3, batch_size=4, shuffle=False, verbose=0).history
    for before, after in zip(teacher, model.teacher.get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)
    return model, history


def test_training_matches_keras(trained):
    model, history = trained
    assert list(history) == list(EXPECTED_HISTORY)
    for name, values in EXPECTED_HISTORY.items():
        np.testing.assert_allclose(history[name], values, rtol=1e-5, atol=1e-7, err_msg=name)
    np.testing.assert_allclose(model.student.get_weights()[-1], EXPECTED_BIAS, rtol=1e-5)


def test_evaluation_reports_the_parts(trained):
    model, _ = trained
    found = model.evaluate(X, Y, verbose=0, return_dict=True)
    assert list(found) == ["accuracy", "distillation_loss", "loss", "student_loss", "total_loss"]
    mixed = 0.3 * found["student_loss"] + 0.7 * found["distillation_loss"]
    assert found["total_loss"] == pytest.approx(mixed, rel=1e-5)


def test_a_saved_distiller_comes_back(trained, tmp_path):
    model, _ = trained
    path = str(tmp_path / "d.keras")
    model.save(path)
    loaded = models.load_model(path)
    assert isinstance(loaded, Distiller)
    np.testing.assert_allclose(loaded.predict(X, verbose=0), model.predict(X, verbose=0))
    assert loaded.evaluate(X, Y, verbose=0) == pytest.approx(model.evaluate(X, Y, verbose=0))
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_allclose(again.predict(X, verbose=0), model.predict(X, verbose=0))


def test_a_file_without_the_loss_is_loaded_uncompiled():
    model = _distiller()
    with pytest.warns(UserWarning, match="does not hold its loss"):
        model.compile_from_config({"optimizer": "sgd", "loss": None})
    assert not model.compiled


def test_a_loss_of_ones_own_and_sample_weights():
    class Total(DistillationLoss):
        def compute_loss(self, teacher_outputs, student_outputs, **kwargs):
            return ((teacher_outputs - student_outputs) ** 2).sum()

    model = Distiller(_net(0), _net(1), Total(), student_loss_weight=0.0)
    model.compile("sgd", loss="mse")
    before = model.evaluate(X, T[:1, :2].repeat(6, 0), verbose=0)
    model.fit(X, T[:1, :2].repeat(6, 0), epochs=5, verbose=0)
    assert model.evaluate(X, T[:1, :2].repeat(6, 0), verbose=0) < before
    alone = Distiller(_net(0), _net(1), Total(), student_loss_weight=1.0)
    alone.compile("sgd", loss="mse")
    y = np.zeros((6, 2), "float32")
    whole = alone.evaluate(X, y, verbose=0)[0]
    half = alone.evaluate(X, y, sample_weight=np.full(6, 0.5), verbose=0)[0]
    assert half == pytest.approx(whole / 2, rel=1e-5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LogitsDistillation(0.0), "temperature must be positive"),
        (lambda: LogitsDistillation("3"), "temperature must be a number"),
        (lambda: FeatureDistillation(loss=[None]), "at least one output"),
        (lambda: Distiller(_net(0), _net(1), []), "distillation_losses must be"),
        (lambda: Distiller(_net(0), 3, FeatureDistillation()), "the student must be a Model"),
        (lambda: Distiller(_net(0), _net(1), FeatureDistillation(), [1, 2]), "1 distillation_loss"),
        (
            lambda: Distiller(_net(0), _net(1), FeatureDistillation(), student_loss_weight=2),
            "student_loss_weight must be a number from 0 to 1",
        ),
        (
            lambda: Distiller(_net(0), _net(1), FeatureDistillation("mse", "hh")),
            "in the teacher: .* has no layer 'hh'.",
        ),
        (
            lambda: Distiller(
                _net(0), Sequential([Input((4,)), layers.Dense(2)]), FeatureDistillation()
            ),
            "the inputs of the teacher .* differ",
        ),
        (lambda: _distiller().compile("sgd"), "needs the loss of the student"),
    ],
)
def test_messages(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_names_are_exported():
    assert set(dir(distillation)) >= {"Distiller", "LogitsDistillation", "FeatureDistillation"}
