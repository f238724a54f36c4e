"""Pictures of graphs, weights, activations, trainings and predictions (the extra "viz")."""

from picodl.visualize.graphs import GraphPicture, draw_dot, draw_graph, trace
from picodl.visualize.models import ModelPicture, model_to_dot, plot_model
from picodl.visualize.plots import (
    layer_outputs,
    plot_activations,
    plot_confusion_matrix,
    plot_decision_boundary,
    plot_history,
    plot_weights,
)
from picodl.visualize.rates import plot_learning_rates

__all__ = [
    "GraphPicture",
    "ModelPicture",
    "draw_dot",
    "draw_graph",
    "layer_outputs",
    "model_to_dot",
    "plot_activations",
    "plot_confusion_matrix",
    "plot_decision_boundary",
    "plot_history",
    "plot_learning_rates",
    "plot_model",
    "plot_weights",
    "trace",
]
