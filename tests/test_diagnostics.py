"""Profiles, dry runs, one batch learnt by heart, and the comparison with other libraries."""

from __future__ import annotations

import pickle
import random
import re

import numpy as np
import pytest

import picodl
from picodl import layers as L
from picodl import losses, ops
from picodl.diagnostics import compare, dry_run, overfit_batch, profile
from picodl.models.state import get_training_state

RNG = np.random.default_rng(0)
X = RNG.normal(size=(32, 6)).astype(np.float32)
Y = np.arange(32) % 3


def classifier(*inside, loss="sparse_categorical_crossentropy", optimizer="adam", end="softmax"):
    picodl.utils.set_random_seed(1)
    inside = inside or (L.Dense(16, "relu", name="hidden"),)
    model = picodl.Sequential([L.Input((6,)), *inside, L.Dense(3, end, name="out")], name="net")
    model.compile(optimizer, loss, metrics=["accuracy"])
    return model


def restless():
    """A model of which nearly everything could change: statistics, generators, slots, metrics."""
    picodl.utils.set_random_seed(0)
    model = classifier(L.Dense(8, "relu"), L.BatchNormalization(), L.Dropout(0.5))
    model.fit(X, Y, verbose=0)
    return model


def everything(model):
    """All that a tool must leave alone, as bytes, and the attributes of every layer."""
    numbers = pickle.dumps(get_training_state(model))
    return numbers, [(type(m), sorted(vars(m))) for m in model.modules()]


def finds(report, kind):
    return [f for f in report.findings if f.kind == kind]


# -------------------------------------------------------------------- nothing changes


@pytest.mark.parametrize(
    "tool",
    [
        lambda m: profile(m, X, repeats=2),
        lambda m: profile(m, X, Y, repeats=2),
        lambda m: dry_run(m, X, Y),
        lambda m: overfit_batch(m, X, Y, steps=3),
        lambda m: compare(m, lambda x: np.zeros((32, 3)), X, Y),
    ],
    ids=["prediction", "training", "dry_run", "overfit_batch", "compare"],
)
def test_nothing_of_the_model_changes(tool):
    model = restless()
    drawn = random.getstate(), np.random.get_state(legacy=False)["state"]["key"].copy()
    before = everything(model)
    tool(model)
    assert everything(model) == before
    assert random.getstate() == drawn[0]
    np.testing.assert_array_equal(np.random.get_state(legacy=False)["state"]["key"], drawn[1])
    model.fit(X, Y, verbose=0)
    other = restless()
    other.fit(X, Y, verbose=0)  # the same training with no tool in between
    for a, b in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


class Failing(L.Layer):
    def call(self, x, training=False):
        np.random.random()
        raise RuntimeError("stop here")


def test_nothing_of_the_model_changes_by_an_error():
    model = restless()
    before = everything(model)
    for tool in (profile, dry_run, overfit_batch):
        with pytest.raises(ValueError, match=r"expects shape.*received shape \(32, 5\)"):
            tool(model, X[:, :5], Y)
        assert everything(model) == before
    model = picodl.Sequential([L.Dense(3), Failing()])
    model.compile("sgd", "mse")
    state = np.random.get_state(legacy=False)["state"]["pos"]
    with pytest.raises(RuntimeError, match="stop here"):
        dry_run(model, X, X[:, :3])
    assert not model.built and not model.layers[0].built
    assert np.random.get_state(legacy=False)["state"]["pos"] == state


def test_a_model_that_is_not_built_stays_so():
    def new():
        picodl.utils.set_random_seed(3)
        model = picodl.Sequential([L.Dense(4, "relu"), L.Dense(3, "softmax")])
        model.compile("sgd", "sparse_categorical_crossentropy")
        return model

    model = new()
    assert len(profile(model, X, Y).rows) == 4 and dry_run(model, X, Y)
    assert not model.built
    for a, b in zip(model.predict(X, verbose=0), new().predict(X, verbose=0), strict=True):
        np.testing.assert_array_equal(a, b)


# -------------------------------------------------------------------- clear errors


@pytest.mark.parametrize("tool", [profile, dry_run, overfit_batch])
def test_what_cannot_be_looked_at_is_refused(tool):
    name = tool.__name__
    model = picodl.Sequential([L.Input((6,)), L.Dense(3)], name="plain")
    with pytest.raises(ValueError, match=f'{name} needs a loss, but "plain" is not compiled'):
        tool(model, X, Y)
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match=f"{name}: x is empty"):
        tool(model, X[:0], X[:0, :3])
    with pytest.raises(ValueError, match=f"{name}: .*x has 32, y has 31"):
        tool(model, X, X[:31, :3])
    with pytest.raises(TypeError, match=f"{name} takes one batch"):
        tool(model, iter([(X, Y)]), Y)
    with pytest.raises(TypeError, match=f"{name} expects a model or a layer.*received function"):
        tool(lambda x: x, X, Y)
    with pytest.raises(TypeError, match=f"{name}: .*"):
        tool(model, "abc", Y)


def test_arguments_out_of_range_are_refused():
    model = classifier()
    for steps in (0, 1.5, True):
        with pytest.raises(ValueError, match="steps must be an integer of at least 1"):
            overfit_batch(model, X, Y, steps=steps)
        with pytest.raises(ValueError, match="repeats must be an integer of at least 1"):
            profile(model, X, repeats=steps)
    with pytest.raises(ValueError, match="goal must be a finite number; received nan"):
        overfit_batch(model, X, Y, goal=float("nan"))
    with pytest.raises(ValueError, match="dead_share must be a fraction"):
        dry_run(model, X, Y, dead_share=2)


def test_a_model_that_cannot_be_copied_is_named():
    model = classifier()
    model.file = (i for i in range(3))
    with pytest.raises(TypeError, match=r'dry_run works on a copy, but "net" cannot be copied'):
        dry_run(model, X, Y)


# -------------------------------------------------------------------- profile


def test_profile_lists_nested_layers_and_adds_up():
    block = picodl.Sequential([L.Dense(5, "relu", name="a"), L.Dense(4, name="b")], name="block")
    shared = L.Dense(4, name="shared")
    x = L.Input((6,))
    y = ops.tanh(block(x))
    model = picodl.Model(x, L.Dense(1, name="out")(shared(shared(y))), name="net")
    model.compile("sgd", "mse")
    found = profile(model, X, X[:, :1], repeats=2)
    assert [(r.path, r.depth, r.calls) for r in found.rows] == [
        ("net", 0, 1), ("block", 1, 1), ("block/a", 2, 1), ("block/b", 2, 1),
        ("shared", 1, 2), ("out", 1, 1), ("(loss)", 0, 1),
    ]  # fmt: skip
    rows = {r.path: r for r in found.rows}
    assert rows["block/a"].shape == (32, 5) and rows["block/a"].output_bytes == 32 * 5 * 4
    assert rows["shared"].output_bytes == 2 * 32 * 4 * 4
    assert rows["block/a"].weight_bytes == (6 * 5 + 5) * 4 and rows["block"].weight_bytes == 0
    assert sum(r.weight_bytes for r in found.rows) == 4 * model.count_params()
    assert sum(r.share for r in found.rows) == pytest.approx(100)
    assert found.forward == pytest.approx(sum(r.forward for r in found.rows))
    assert all(r.forward > 0 for r in found.rows)
    for path in ("net", "block/a", "block/b", "shared", "out", "(loss)"):  # net: the tanh
        assert rows[path].backward > 0
    assert rows["block"].backward == 0  # it only calls others


def test_profile_charges_time_to_the_layer_that_takes_it():
    from time import perf_counter

    def wait():
        end = perf_counter() + 0.003
        while perf_counter() < end:
            pass

    @picodl.custom_gradient
    def slow(x):
        wait()

        def grad(*args, upstream):
            wait()
            wait()
            return upstream

        return x * 1, grad

    model = classifier(L.Dense(4, name="a"), L.Lambda(slow, name="slow"), L.Dense(4, name="b"))
    rows = {r.path: r for r in profile(model, X, Y, repeats=2).rows}
    assert 0.003 <= rows["slow"].forward < 0.006 <= rows["slow"].backward < 0.012
    assert rows["slow"].share > 80
    assert rows["a"].backward < 0.002 and rows["b"].backward < 0.002
    rows = {r.path: r for r in profile(model, X, repeats=1).rows}
    assert rows["slow"].forward >= 0.003 and rows["slow"].backward is None
    assert "(loss)" not in rows


def test_profile_prints_a_table():
    text = str(profile(classifier(), X, Y, repeats=1))
    lines = text.splitlines()
    assert lines[0].startswith('Profile of "net" on 32 samples: forward ')
    assert "Backward" in lines[2] and len({len(line) for line in lines[1:]}) == 1
    assert "│   hidden (Dense) " in text and " 448.00 B │" in text and "%" in text
    assert "Backward" not in str(profile(classifier(), X, repeats=1))


def test_profile_of_a_layer_and_of_several_inputs():
    (row,) = profile(L.LSTM(5, name="lstm"), RNG.normal(size=(4, 7, 3)), repeats=1).rows
    assert (row.path, row.shape, row.calls) == ("lstm", (4, 5), 1)
    assert row.weight_bytes == 4 * (3 * 20 + 5 * 20 + 20) and row.share == pytest.approx(100)
    a, b = L.Input((2,), name="a"), L.Input((3,), name="b")
    model = picodl.Model({"a": a, "b": b}, L.Concatenate()([a, b]))
    found = profile(model, {"a": np.ones((4, 2)), "b": np.ones((4, 3))}, repeats=1)
    assert found.samples == 4 and found.rows[1].shape == (4, 5)


# -------------------------------------------------------------------- dry_run


def test_a_healthy_step_has_no_findings():
    report = dry_run(classifier(), X, Y)
    assert report and not report.findings and report.notes == []
    assert str(report) == f'Dry run of "net": no findings, loss {report.loss:.4g}'
    assert report.loss == pytest.approx(classifier().train_on_batch(X, Y)[0])


def test_inputs_that_are_not_fit_are_found():
    bad = X.copy()
    bad[3, 2] = np.nan
    (finding,) = dry_run(classifier(), bad, Y).findings
    assert finding.where == "x" and "1 of its 192 numbers are not finite" in finding.what
    (finding,) = finds(dry_run(classifier(), X * [1, 1, 1, 1, 300, 1], Y), "inputs")
    assert finding.where == "hidden" and "not scaled (1 of 6 features)" in finding.what
    (finding,) = finds(dry_run(classifier(), X * 1e-4, Y), "inputs")
    assert "tiny" in finding.what
    (finding,) = finds(dry_run(classifier(), np.ones((32, 6)), Y), "inputs")
    assert "all samples are the same" in finding.what


def test_inputs_are_judged_where_they_meet_weights():
    assert not finds(dry_run(classifier(L.Rescaling(1 / 300), L.Dense(4)), X * 300, Y), "inputs")
    image = RNG.integers(0, 256, (8, 9, 9, 1)).astype(np.uint8)
    parts = [L.Conv2D(2, 3, name="conv"), L.GlobalAveragePooling2D(), L.Dense(1)]
    model = picodl.Sequential([L.Input((9, 9, 1)), *parts])
    model.compile("sgd", "mse")
    (finding,) = finds(dry_run(model, image, np.zeros((8, 1))), "inputs")
    assert finding.where == "conv" and "from 0 to 255" in finding.what
    ids = RNG.integers(0, 5000, (8, 4))
    model = picodl.Sequential([L.Input((4,)), L.Embedding(5000, 3), L.Flatten(), L.Dense(1)])
    model.compile("sgd", "mse")
    assert dry_run(model, ids, np.zeros((8, 1)))


def test_the_first_layer_with_numbers_that_are_not_finite_is_named():
    log = L.Lambda(lambda x: ops.log(x), name="log")
    report = dry_run(classifier(L.Dense(4), log, L.Dense(4)), X, Y)
    (finding,) = report.findings
    assert (finding.kind, finding.where) == ("outputs", "log") and np.isnan(report.loss)
    assert "no layer before" in finding.what

    x = L.Input((6,))
    model = picodl.Model(x, L.Dense(3, name="out")(ops.log(L.Dense(4)(x))))
    model.compile("sgd", losses.CrossEntropyLoss())
    (finding,) = dry_run(model, X, Y).findings
    assert finding.where == "out" and "an operation before it" in finding.what

    model = classifier()
    model.layers[0].kernel.assign(np.full((6, 16), np.inf))
    (finding,) = dry_run(model, X, Y).findings
    assert (finding.kind, finding.where) == ("weights", "hidden/kernel")


def test_a_loss_that_is_not_finite_is_found():
    def harsh(y_true, y_pred):
        return ops.log(ops.sum(y_pred, -1) * 0)

    (finding,) = dry_run(classifier(loss=harsh), X, X[:, :3]).findings
    assert (finding.kind, finding.where) == ("loss", "loss")
    assert "-inf, although the outputs are finite" in finding.what
    targets = X[:, :3].copy()
    targets[0, 0] = np.nan
    kinds = {f.kind for f in dry_run(classifier(loss="mse", end=None), X, targets).findings}
    assert kinds == {"loss", "targets"}


def test_gradients_that_are_not_finite_are_found_with_their_layer():
    root = L.Lambda(lambda x: ops.sqrt(ops.relu(x) * 0.0), name="root")
    (finding,) = dry_run(classifier(L.Dense(4), root, L.Dense(4)), X, Y).findings
    assert (finding.kind, finding.where) == ("gradient", "root")
    assert "first to give gradients that are not finite" in finding.what

    def steep(y_true, y_pred):
        return ops.sum(ops.sqrt(ops.abs(y_pred - y_pred)), -1)

    finding = dry_run(classifier(loss=steep), X, X[:, :3]).findings[-1]
    assert (finding.kind, finding.where) == ("gradient", "the loss")


def test_weights_without_gradient_are_found():
    x = L.Input((6,))
    used, unused = L.Dense(2, name="used")(x), L.Dense(2, name="unused")(x)
    model = picodl.Model(x, [used, unused])
    model.compile("sgd", ["mse", None])
    (finding,) = dry_run(model, X, [X[:, :2], X[:, :2]]).findings
    assert (finding.kind, finding.where) == ("gradient", "unused")
    assert finding.what == "no gradient reaches kernel, bias"
    model = classifier()
    model.trainable = False
    (finding,) = dry_run(model, X, Y).findings
    assert finding.what == "it has no trainable weights"


def test_gradients_of_zero_and_dead_units_are_found():
    model = classifier()
    model.layers[0].bias.assign(np.full(16, -100.0))
    report = dry_run(model, X, Y)
    assert [(f.kind, f.where) for f in report.findings] == [
        ("gradient", "hidden"), ("gradient", "out"), ("dead units", "hidden"),
    ]  # fmt: skip
    assert report.findings[0].what == "the gradient of kernel, bias is 0 everywhere"
    assert report.findings[1].what == "the gradient of kernel is 0 everywhere"
    assert report.dead_units == {"hidden": (16, 16)}
    bias = np.zeros(16)
    bias[[2, 5]] = -100
    model.layers[0].bias.assign(bias)
    report = dry_run(model, X, Y)
    assert report and report.dead_units == {"hidden": (2, 16)}
    (finding,) = dry_run(model, X, Y, dead_share=0.1).findings
    assert "2 of the 16 units are 0" in finding.what


def test_dead_channels_are_counted_over_samples_and_pixels():
    parts = [L.Conv2D(4, 3, name="conv"), L.ReLU(name="relu"), L.GlobalAveragePooling2D()]
    model = picodl.Sequential([L.Input((8, 8, 1)), *parts, L.Dense(1)])
    model.compile("sgd", "mse")
    model.layers[0].bias.assign([0, -100, 0, -100])
    report = dry_run(model, RNG.normal(size=(4, 8, 8, 1)), np.zeros((4, 1)))
    assert report.dead_units == {"relu": (2, 4)}


LOGITS = losses.SparseCategoricalCrossentropy(from_logits=True)


@pytest.mark.parametrize(
    ("end", "loss", "y", "message"),
    [
        ("softmax", LOGITS, Y, "made by softmax.*from_logits=True"),
        (None, "sparse_categorical_crossentropy", Y, "expects probabilities, but the outputs go"),
        ("sigmoid", "sparse_categorical_crossentropy", Y, "do not add up to 1"),
        ("sigmoid", losses.BinaryCrossentropy(from_logits=True), np.eye(3)[Y], "made by sigmoid"),
        (None, "binary_crossentropy", np.eye(3)[Y], "expects probabilities"),
        ("softmax", "categorical_crossentropy", np.ones((32, 3)), "targets of a sample do not add"),
        ("sigmoid", "binary_crossentropy", np.eye(3)[Y] * 1.4, "targets go from 0 to 1.4"),
        ("sigmoid", "mse", X[:, :3] * 9, "end in sigmoid and lie in 0 to 1, but the targets go"),
        ("relu", "mae", X[:, :3], "end in relu and lie in 0 and more"),
        ("tanh", losses.Huber(), X[:, :3] * 9, "end in tanh and lie in -1 to 1"),
        ("softmax", losses.CrossEntropyLoss(), Y, "from_logits=True"),
        (None, "poisson", np.eye(3)[Y], "outputs go from -.*expects 0 and more"),
    ],
)
def test_outputs_and_targets_that_the_loss_does_not_expect(end, loss, y, message):
    report = dry_run(classifier(loss=loss, end=end), X, y)
    finding = finds(report, "loss")[-1]  # before it, a logarithm may have made the loss NaN
    assert finding.where == "out" and re.search(message, finding.what)


@pytest.mark.parametrize(
    ("end", "loss", "y"),
    [
        (None, LOGITS, Y),
        (None, losses.CrossEntropyLoss(), Y),
        (None, losses.BinaryCrossentropy(from_logits=True), np.eye(3)[Y]),
        ("sigmoid", "binary_crossentropy", np.eye(3)[Y]),
        ("softmax", "categorical_crossentropy", np.eye(3)[Y]),
        ("softmax", "kl_divergence", np.full((32, 3), 1 / 3)),
        (None, "mse", X[:, :3]),
        ("tanh", "mse", np.tanh(X[:, :3])),
        ("softplus", "poisson", np.eye(3)[Y]),
        (None, "hinge", np.sign(X[:, :3])),
    ],
)
def test_what_fits_the_loss_is_no_finding(end, loss, y):
    assert str(dry_run(classifier(loss=loss, end=end), X, y)).startswith('Dry run of "net": no f')


def test_targets_of_another_shape_are_a_finding():
    report = dry_run(classifier(), X, np.eye(3)[Y])
    (finding,) = report.findings
    assert finding.kind == "loss" and report.loss is None
    assert "received targets of shape (32, 3)" in str(report)
    with pytest.raises(ValueError, match="which needs targets: pass y"):
        dry_run(classifier(), X)


def test_warnings_are_findings():
    model = picodl.Sequential([L.Input((6,)), L.Dense(1, "softmax")], name="net")
    model.compile("sgd", "binary_crossentropy")
    (finding,) = finds(dry_run(model, X, Y % 2), "warning")
    assert finding.where == "net" and "single output unit is 1" in finding.what


def test_a_step_that_leaves_weights_without_numbers_is_found():
    model = classifier(loss="mse", end=None, optimizer=picodl.optimizers.SGD(3e38))
    found = dry_run(model, X, X[:, :3] * 4).findings
    assert found and all("not finite after the step" in f.what for f in found)


def test_a_train_step_of_ones_own_is_run():
    class Own(picodl.Model):
        def __init__(self):
            super().__init__(name="own")
            self.dense = L.Dense(3, name="dense")
            self.idle = L.Dense(3, name="idle")

        def call(self, x):
            self.idle(x)
            return ops.softmax(self.dense(x))

        def train_step(self, data):
            x, y = data
            loss = self.compute_loss(x, y, self(x, training=True))
            self.step(loss)
            return {"loss": float(loss)}

        def step(self, loss):
            self.minimize(loss)

    model = Own()
    model.compile("sgd", LOGITS)
    report = dry_run(model, X, Y)
    assert [(f.kind, f.where) for f in report.findings] == [("loss", "own"), ("gradient", "idle")]
    assert not model.built
    assert len(overfit_batch(model, X, Y, steps=3).losses) == 3

    class ByHand(Own):
        def step(self, loss):
            loss.backward()
            self.optimizer.step(self)

    model = ByHand()
    model.compile("sgd", LOGITS)
    report = dry_run(model, X, Y)
    assert [f.kind for f in report.findings] == ["loss"]
    assert "gradients were not seen" in report.notes[0] and "gradients were" in str(report)


def test_optimizers_that_need_the_loss_again_are_left_out():
    model = classifier(optimizer=picodl.optimizers.LBFGS())
    report = dry_run(model, X, Y)
    assert report and report.notes == ["LBFGS was not run, plain gradients were"]
    assert overfit_batch(model, X, Y, goal=0.5)


# -------------------------------------------------------------------- overfit_batch


def test_a_healthy_model_learns_a_batch_by_heart():
    model = classifier(optimizer=picodl.optimizers.Adam(0.02))
    result = overfit_batch(model, X[:8], Y[:8], goal=0.1)
    assert result and result.reached and result.goal == 0.1
    assert result.losses[-1] <= 0.1 < result.losses[-2] and len(result.losses) < 1000
    assert str(result).endswith(f"in {len(result.losses)} steps; the goal, 0.1, is reached.")
    first = model.evaluate(X[:8], Y[:8], verbose=0)[0]
    assert result.losses[0] == pytest.approx(first)
    other = classifier(optimizer=picodl.optimizers.Adam(0.02))
    by_hand = [other.train_on_batch(X[:8], Y[:8])[0] for _ in range(5)]
    np.testing.assert_allclose(result.losses[:5], by_hand, rtol=1e-6)


def test_the_optimizer_is_fresh():
    model = classifier(optimizer=picodl.optimizers.SGD(0.1, momentum=0.9))
    fresh = overfit_batch(model, X, Y, steps=4).losses
    model.optimizer.build(model.trainable_weights)
    for slot in model.optimizer.variables[2:]:
        slot.assign(np.ones(slot.shape))
    np.testing.assert_array_equal(overfit_batch(model, X, Y, steps=4).losses, fresh)


def test_a_model_that_does_not_learn_is_told():
    result = overfit_batch(classifier(optimizer=picodl.optimizers.SGD(1e-6)), X, Y, steps=5)
    assert not result and result.goal == pytest.approx(result.losses[0] / 10)
    assert "is not reached. It hardly falls" in str(result)
    model = classifier(loss="mse", end=None, optimizer=picodl.optimizers.SGD(1e3))
    with np.errstate(all="ignore"):
        result = overfit_batch(model, X, X[:, :3])
    assert not result and len(result.losses) < 1000 and "lower the learning rate" in str(result)


def test_a_loss_that_begins_at_zero_needs_a_goal():
    model = picodl.Sequential([L.Input((6,)), L.Dense(1, kernel_initializer="zeros")])
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match=r"first loss is 0.*Pass goal="):
        overfit_batch(model, X, np.zeros((32, 1)))
    assert overfit_batch(model, X, np.zeros((32, 1)), goal=0)


def test_progress_is_shown_as_in_fit(capsys):
    overfit_batch(classifier(), X, Y, steps=4, goal=0, verbose=2)
    out = capsys.readouterr().out
    assert out.startswith("4/4 - ") and "loss: " in out
    overfit_batch(classifier(), X, Y, steps=4, goal=0)
    assert capsys.readouterr().out == ""


# -------------------------------------------------------------------- compare


def by_hand(model, factor=1.0):
    (k, b), (k2, b2) = model.layers[0].get_weights(), model.layers[1].get_weights()

    def function(x):
        z = np.maximum(x @ k + b, 0) @ k2 + b2
        return factor * z

    return function


def test_a_function_that_computes_the_same_agrees():
    model = classifier(end=None)
    found = compare(model, by_hand(model), X)
    assert found and [(r.kind, r.name, r.shape) for r in found.rows] == [("output", "out", (32, 3))]
    assert found.worst.relative < 1e-6 and found.notes == []
    assert str(found).startswith('"net" agrees with the function (tolerance 0.0001)')


def test_a_function_that_computes_something_else_differs():
    model = classifier(end=None)
    found = compare(model, by_hand(model, 1.01), X, Y)
    largest = np.abs(by_hand(model)(X)).max()
    assert not found and "does not agree" in str(found) and "differs" in str(found)
    assert found.worst.absolute == pytest.approx(0.01 * largest, rel=1e-3)
    assert found.worst.relative == pytest.approx(0.01 / 1.01, rel=1e-3)
    assert compare(model, by_hand(model, 1.01), X, tolerance=0.02)
    assert "neither loss nor gradients" in found.notes[0]
    never = compare(model, lambda x: by_hand(model)(x) * np.nan, X)
    assert not never and never.worst.absolute == np.inf


def test_inputs_and_outputs_of_several_parts():
    a, b = L.Input((2,), name="a"), L.Input((3,), name="b")
    model = picodl.Model({"a": a, "b": b}, {"sum": ops.sum(a, -1), "b": ops.exp(b)})
    x = {"a": X[:, :2], "b": X[:, :3]}
    found = compare(model, lambda x: {"b": np.exp(x["b"]), "sum": x["a"].sum(-1)}, x)
    assert found and [r.name for r in found.rows] == ["b", "sum"]
    flat = compare(
        model, lambda x: [np.exp(x[1]), x[0].sum(-1)], x, to_other=lambda x: list(x.values())
    )
    assert flat


def test_what_cannot_be_compared_is_refused():
    model = classifier(end=None)
    with pytest.raises(ValueError, match=r"'out' has shape \(32, 3\) here and \(32, 2\) in the"):
        compare(model, lambda x: by_hand(model)(x)[:, :2], X)
    with pytest.raises(ValueError, match="gives 1 outputs, the function gives 2"):
        compare(model, lambda x: [x, x], X)
    with pytest.raises(TypeError, match="a function of arrays; received int"):
        compare(model, 3, X)
    with pytest.raises(ValueError, match="compare: x is empty"):
        compare(model, by_hand(model), X[:0])
    with pytest.raises(ValueError, match="is not built"):
        compare(picodl.Sequential([L.Dense(2)]), lambda x: x, X)
    with pytest.raises(ValueError, match="compare needs a loss"):
        compare(picodl.Sequential([L.Input((6,)), L.Dense(2)]), lambda x: x, X, Y)


@pytest.mark.parametrize(("library", "name"), [("keras", "Model"), ("torch", "Module")])
def test_a_library_that_is_missing_is_named(library, name, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, library, None)
    kind = type(name, (), {"__module__": f"{library}.made_up"})
    with pytest.raises(ImportError, match=f"compare needs {library}.*pip install"):
        compare(classifier(), kind(), X)


# -------------------------------------------------------------------- with the real ones


def shaken(model):
    """Weights of which none is 0 or 1."""
    for w in model.weights:
        w.assign(w.data + RNG.random(w.shape).astype(np.float32) * 0.1)
    return model


def network(library, ls, inputs):
    parts = [
        ls.Conv2D(4, 3, activation="relu"), ls.BatchNormalization(), ls.MaxPooling2D(),
        ls.Flatten(), ls.Dropout(0.5), ls.Dense(5, "softmax", kernel_regularizer="l2"),
    ]  # fmt: skip
    return library.Sequential([inputs((8, 8, 2)), *parts])


IMAGES = RNG.normal(size=(6, 8, 8, 2)).astype(np.float32)
LABELS = np.arange(6) % 5


@pytest.mark.peers
def test_keras_agrees_layer_by_layer():
    keras = pytest.importorskip("keras")
    model = shaken(network(picodl, L, L.Input))
    model.compile("sgd", "sparse_categorical_crossentropy")
    other = network(keras, keras.layers, keras.Input)
    found = compare(model, other, IMAGES, LABELS)
    assert found and [r.kind for r in found.rows].count("layer") == 6
    assert any("not compiled" in note for note in found.notes)
    np.testing.assert_array_equal(other.get_weights()[0], model.get_weights()[0])
    other.compile("sgd", "sparse_categorical_crossentropy")
    found = compare(model, other, IMAGES, LABELS)
    kinds = [r.kind for r in found.rows]
    assert found and kinds.count("loss") == 1
    if keras.backend.backend() in ("tensorflow", "torch"):
        assert kinds.count("gradient") == 6 and found.notes == []
    else:
        assert kinds.count("gradient") == 0 and "gradients are not compared" in found.notes[0]


@pytest.mark.peers
def test_keras_with_other_weights_differs_from_the_first_layer_on():
    keras = pytest.importorskip("keras")
    model = shaken(network(picodl, L, L.Input))
    other = network(keras, keras.layers, keras.Input)
    found = compare(model, other, IMAGES, copy_weights=False)
    assert not found and all(r.relative > 1e-3 for r in found.rows if r.kind == "layer")
    assert not np.array_equal(other.get_weights()[0], model.get_weights()[0])
    small = keras.Sequential(
        [keras.Input((8, 8, 2)), keras.layers.Flatten(), keras.layers.Dense(5)]
    )
    with pytest.raises(ValueError, match=r"has 8 weights, the Keras model .* 2"):
        compare(model, small, IMAGES)
    dense = picodl.Sequential([L.Input((8, 8, 2)), L.Flatten(), L.Dense(4)])
    with pytest.raises(ValueError, match=r"kernel has shape \(128, 4\).*\(128, 5\)"):
        compare(dense, small, IMAGES)


@pytest.mark.peers
def test_pytorch_agrees_with_a_convolutional_network():
    nn = pytest.importorskip("torch").nn
    parts = [
        L.Conv2D(4, 3, activation="relu"), L.BatchNormalization(epsilon=1e-5), L.MaxPooling2D(),
        L.Flatten(), L.Dense(5),
    ]  # fmt: skip
    model = shaken(picodl.Sequential([L.Input((8, 8, 2)), *parts]))
    model.compile("sgd", losses.SparseCategoricalCrossentropy(from_logits=True))
    other = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.ReLU(), nn.BatchNorm2d(4), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(36, 5),
    )  # fmt: skip
    first = {"to_other": lambda x: np.moveaxis(x, -1, 1)}
    found = compare(model, other, IMAGES, LABELS, **first)
    kinds = [r.kind for r in found.rows]
    assert found and kinds == ["output"] + ["gradient"] * 6
    assert found.notes == ["losses are not compared: pass PyTorch's as loss=..."]
    assert other.training and all(p.grad is None for p in other.parameters())
    found = compare(model, other, IMAGES, LABELS, loss=nn.CrossEntropyLoss(), **first)
    assert found and found.rows[1].kind == "loss" and found.notes == []
    other[0].bias.data += 1
    assert not compare(model, other, IMAGES, LABELS, copy_weights=False, **first)
    found = compare(model, other, IMAGES, LABELS, loss=nn.MultiMarginLoss(), **first)
    agree = {r.kind for r in found.rows if r.relative <= 1e-4}
    assert not found and agree == {"output"}


@pytest.mark.peers
def test_pytorch_agrees_with_recurrent_layers():
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = torch.nn.LSTM(3, 4, batch_first=True)
            self.gru = torch.nn.GRU(4, 5, batch_first=True)
            self.out = torch.nn.Linear(5, 2)

        def forward(self, x):
            return self.out(self.gru(self.lstm(x)[0])[0][:, -1])

    parts = [L.LSTM(4, return_sequences=True), L.GRU(5), L.Dense(2, kernel_regularizer="l2")]
    model = shaken(picodl.Sequential([L.Input((7, 3)), *parts]))
    model.compile("sgd", "mse")
    x, y = RNG.normal(size=(6, 7, 3)), RNG.normal(size=(6, 2))
    found = compare(model, Net(), x, y, loss=torch.nn.MSELoss())
    assert found and [r.kind for r in found.rows].count("gradient") == 8
    wrong = picodl.Sequential([L.Input((7, 3)), *map(L.Dense, (4, 5, 2))])
    with pytest.raises(ValueError, match=r"cannot copy the weights to PyTorch.*copy_weights=False"):
        compare(wrong, Net(), x)


@pytest.mark.peers
def test_pytorch_agrees_with_attention_and_bidirectional_layers():
    nn = pytest.importorskip("torch").nn

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.inside = nn.MultiheadAttention(8, 2, batch_first=True)
            self.lstm = nn.LSTM(8, 3, batch_first=True, bidirectional=True)

        def forward(self, x):
            return self.lstm(self.inside(x, x, x)[0])[0]

    x = L.Input((6, 8))
    h = L.MultiHeadAttention(2, 4)(x, x)
    model = shaken(picodl.Model(x, L.Bidirectional(L.LSTM(3, return_sequences=True))(h)))
    model.compile("sgd", "mse")
    x = RNG.normal(size=(3, 6, 8))
    found = compare(model, Attention(), x, x[:, :, :6], loss=nn.MSELoss())
    assert found and [r.kind for r in found.rows].count("gradient") == 14
    assert found.notes == []


@pytest.mark.peers
def test_numbers_that_pytorch_shares_are_not_mixed_up():
    nn = pytest.importorskip("torch").nn
    model = picodl.Sequential([L.Input((4,)), L.PReLU(name="slopes")])
    model.compile("sgd", "mse")
    model.layers[0].alpha.assign([0.1, 0.2, 0.3, 0.4])
    with pytest.raises(ValueError, match=r"cannot hold the values of .*slopes/alpha"):
        compare(model, nn.PReLU(1), X[:, :4])
    model.layers[0].alpha.assign([0.1, 0.1, 0.1, 0.1])
    found = compare(model, nn.PReLU(1), X[:, :4], X[:, 1:5], loss=nn.MSELoss())
    assert found and [r.kind for r in found.rows] == ["output", "loss"]
    assert "no gradients of their own for" in found.notes[0] and "slopes/alpha" in str(found)
    other = nn.Sequential(nn.Linear(4, 4))
    found = compare(model, other, X[:, :4], X[:, 1:5], copy_weights=False)
    assert not found and "gradients are not compared" in found.notes[-1]
