"""Differentiable functions under the names of keras.ops."""

from picodl.ops.core import *  # noqa: F403
