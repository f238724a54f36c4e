"""The curve of a search for the learning rate."""

from __future__ import annotations

from typing import Any

from picodl.visualize.plots import _figure, _finish


def plot_learning_rates(finder: Any, to_file: Any = None) -> Any:
    """Loss against learning rate, and the rate that a `LearningRateFinder` suggests.

    Args:
        finder: the callback after its search.
        to_file: where to save the figure.

    Raises:
        ValueError: if there was no search, or the loss never fell.
    """
    suggestion = finder.suggestion
    figure = _figure(6, 4)
    ax = figure.subplots()
    rates = finder.learning_rates[: len(finder.losses)]
    ax.plot(rates, finder.losses, color="lightgray", label="loss")
    ax.plot(rates, finder.smoothed(), label="smoothed")
    ax.axvline(suggestion, color="tab:red", linestyle="--", label=f"suggestion {suggestion:.2g}")
    ax.set_xscale("log")
    ax.set_xlabel("learning rate")
    ax.set_ylabel("loss")
    ax.legend()
    return _finish(figure, to_file)
