import builtins

import numpy as np
import pytest

from picodl import Input, Model, Sequential, layers, ops, visualize
from picodl.scalar import MLP, Value
from picodl.tensor import Tensor


class Stack(layers.Layer):
    """Layers one after the other."""

    def __init__(self, *parts, **kwargs):
        super().__init__(**kwargs)
        self.stacked = list(parts)

    def call(self, x):
        for part in self.stacked:
            x = part(x)
        return x


@pytest.fixture
def loss():
    x = Tensor([[1.0, 2.0]], requires_grad=True)
    w = Tensor([[0.5], [0.25]], requires_grad=True)
    y = ops.tanh(ops.matmul(x, w))
    return ops.sum(y * y)


@pytest.fixture
def without(monkeypatch):
    def hide(name):
        real = builtins.__import__

        def fake(module, *args, **kwargs):
            if module.split(".")[0] == name:
                raise ImportError(module)
            return real(module, *args, **kwargs)

        monkeypatch.setattr(builtins, "__import__", fake)

    return hide


def test_text_tree_tells_op_shape_range_and_gradient(loss):
    lines = str(visualize.draw_graph(loss)).splitlines()
    assert lines[0].startswith("sum () [0.58, 0.58] |g| 1")
    assert lines[1].startswith("multiply (1, 1) [0.58, 0.58] |g| 1")
    assert lines[2].startswith("tanh (1, 1) [0.762, 0.762] |g| 1.52")
    assert lines[3].startswith("matmul (1, 1) [1, 1] |g| 0.64")
    assert lines[4].startswith("    input (1, 2) [1, 2]")
    assert len(lines) == 6


def test_drawing_leaves_gradients_and_graph_alone(loss):
    leaf = loss._inputs[0]
    visualize.draw_graph(loss)
    assert leaf.grad is None and loss.grad is None
    (x, w) = loss.backward()
    assert x.grad is not None and w.grad is not None
    with pytest.raises(RuntimeError, match="retain_graph"):
        visualize.draw_graph(loss)


def test_a_branch_is_told_once():
    x = Tensor([1.0], requires_grad=True)
    y = ops.exp(x)
    text = str(visualize.draw_graph(ops.sum(ops.tanh(y) + ops.sin(y))))
    assert text.count("exp (1,)") == 1 and "exp (see above)" in text


def test_long_chain_is_drawn_without_recursion():
    y = Tensor([1.0], requires_grad=True)
    for _ in range(3000):
        y = y + 1.0
    assert len(str(visualize.draw_graph(y)).splitlines()) == 6001


@pytest.mark.parametrize(
    "norm, word",
    [(0.0, "zero"), (1e-9, "vanished"), (1e-6, "tiny"), (1.0, ""), (1e3, "large"), (1e5, "expl")],
)
def test_gradient_size_is_named(norm, word):
    x = Tensor([1.0], requires_grad=True)
    text = str(visualize.draw_graph(ops.sum(x * norm)))
    assert word in text.splitlines()[-2 if norm == 1.0 else 2]


def test_dot_source_and_files(loss, tmp_path):
    picture = visualize.draw_graph(loss, tmp_path / "graph.dot")
    source = (tmp_path / "graph.dot").read_text()
    assert source.startswith("digraph {") and source.count("->") == 6
    picture.save(tmp_path / "graph.txt")
    assert (tmp_path / "graph.txt").read_text().startswith("sum ()")


def test_svg_and_png_through_graphviz(loss, tmp_path):
    graphviz = pytest.importorskip("graphviz")
    picture = visualize.draw_graph(loss)
    try:
        svg = picture._repr_svg_()
    except graphviz.ExecutableNotFound:
        pytest.skip("no dot program")
    if svg is None:
        pytest.skip("no dot program")
    assert "<svg" in svg and "tanh" in svg
    picture.save(tmp_path / "graph.png")
    assert (tmp_path / "graph.png").read_bytes().startswith(b"\x89PNG")


def test_without_graphviz_text_remains(loss, without):
    without("graphviz")
    picture = visualize.draw_graph(loss)
    assert picture._repr_svg_() is None and "tanh" in str(picture)
    with pytest.raises(ImportError, match=r"picodl\[viz\]"):
        picture.save("graph.svg")
    with pytest.raises(ImportError, match=r"picodl\[viz\]"):
        visualize.draw_dot(Value(1.0))


def test_draw_graph_refuses_what_was_not_recorded():
    with pytest.raises(ValueError, match="requires_grad=True"):
        visualize.draw_graph(Tensor([1.0]))


def test_trace_and_draw_dot_of_values():
    x, y = Value(2.0), Value(3.0)
    z = x * y + x
    nodes, edges = visualize.trace(z)
    assert nodes == {x, y, z, z._prev[0]} and len(edges) == 4
    pytest.importorskip("graphviz")
    z.backward()
    source = visualize.draw_dot(z).source
    assert "* | data 6.0000 | grad 1.0000" in source and source.count("->") == 4
    deep = x
    for _ in range(3000):
        deep = deep + 1
    assert len(visualize.trace(deep)[0]) == 6001


def test_draw_dot_of_a_network_has_one_node_a_neuron():
    nodes, _ = visualize.trace(MLP(2, [4, 1], seed=0)([1.0, 0.0]))
    assert sum(node._op == "tanh" for node in nodes) == 5


def test_plots_are_figures_and_files(tmp_path):
    pytest.importorskip("matplotlib")
    model = Stack(layers.Dense(8, activation="relu"), layers.Dense(2), name="stack")
    x = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)
    model(x)
    y = (x[:, 0] > 0).astype(int)
    scores = model(x).numpy()
    figures = [
        visualize.plot_weights(model, tmp_path / "w.png"),
        visualize.plot_activations(model, x, tmp_path / "a.svg"),
        visualize.plot_confusion_matrix(y, scores, ["left", "right"], True, tmp_path / "c.png"),
        visualize.plot_decision_boundary(model, x, y, tmp_path / "d.png", resolution=20),
        visualize.plot_history({"loss": [2.0, 1.0], "val_loss": [3.0, 2.0]}, tmp_path / "h.png"),
    ]
    assert all(figure._repr_png_().startswith(b"\x89PNG") for figure in figures)
    assert {f.name for f in tmp_path.iterdir()} == {"w.png", "a.svg", "c.png", "d.png", "h.png"}


def test_layer_outputs_by_name():
    dense = layers.Dense(3, name="shared")
    model = Stack(dense, layers.ReLU(name="relu"), dense)
    x = np.ones((2, 3), np.float32)
    outputs = visualize.layer_outputs(model, x)
    assert list(outputs) == ["shared", "relu", "shared (2)"]
    np.testing.assert_array_equal(outputs["shared (2)"], model(x).numpy())
    assert not {"call", "forward"} & set(vars(dense))
    again = visualize.layer_outputs(model, x)  # layers take a shorter path once they were called
    assert list(again) == list(outputs)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: visualize.plot_weights(layers.ReLU()), "no weights to plot"),
        (lambda: visualize.plot_activations(layers.ReLU(), np.ones((1, 2))), "called no layer"),
        (lambda: visualize.plot_confusion_matrix([0, 1], [0]), "2 samples and y_pred 1"),
        (lambda: visualize.plot_decision_boundary(abs, np.ones((4, 3)), [0] * 4), r"\(n, 2\)"),
    ],
)
def test_bad_calls_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_without_matplotlib_the_extra_is_named(without):
    without("matplotlib")
    with pytest.raises(ImportError, match=r"picodl\[viz\]"):
        visualize.plot_history({"loss": [1.0]})


@pytest.fixture
def model():
    x = Input((4,), name="x")
    inner = Sequential([Input((4,)), layers.Dense(4, activation="relu", name="in")], name="nest")
    y = layers.Add(name="sum")([x, inner(x)])
    return Model(x, layers.Dense(2, name="out")(y))


def test_model_to_dot_draws_layers_and_arrows(model):
    picture = visualize.model_to_dot(model, show_shapes=True)
    assert str(picture).splitlines() == [
        "n0 x (Input) (None, 4)",
        "n1 nest (Sequential) (None, 4) <- n0",
        "n2 sum (Add) (None, 4) <- n0, n1",
        "n3 out (Dense) (None, 2) <- n2",
    ]
    assert picture.dot.count("->") == 4 and "rankdir=TB" in picture.dot


def test_nested_models_are_expanded_in_a_frame(model):
    picture = visualize.model_to_dot(
        model, expand_nested=True, show_layer_activations=True, show_trainable=True
    )
    assert "subgraph cluster_1" in picture.dot and 'label="nest"' in picture.dot
    assert "in (Dense) activation relu trainable" in str(picture)


def test_plot_model_writes_files(model, tmp_path):
    visualize.plot_model(model, tmp_path / "model.dot")
    model.plot(tmp_path / "model.txt", show_layer_names=True)
    assert (tmp_path / "model.dot").read_text().startswith("digraph {")
    assert "sum (Add)" in (tmp_path / "model.txt").read_text()
    with pytest.raises(ValueError, match='"late" has no graph to draw'):
        visualize.plot_model(Sequential([layers.Dense(1)], name="late"), tmp_path / "m.dot")
