"""Spectral normalisation: keep the largest singular value of a layer's kernel at 1."""

from __future__ import annotations

from typing import Any

import numpy as np

from picodl import initializers
from picodl.layers.base import Layer
from picodl.layers.checks import positive_integer
from picodl.layers.core import Wrapper
from picodl.typing import Array, Config, Shape


class SpectralNormalization(Wrapper):
    """Divide the wrapped layer's kernel by its largest singular value before each training call.

    Args:
        layer: a layer with a `kernel` or `embeddings`.
        power_iterations: steps towards the singular value in each call; it is followed from call to
            call, so that one is enough.

    Weights: the kernel, vector_u (1, last axis of the kernel; not trained), the layer's others.
    Raises:
        ValueError: for a layer without such a weight.
    Reference: Miyato et al., 2018, "Spectral Normalization for Generative Adversarial Networks",
    arXiv:1802.05957.
    """

    def __init__(self, layer: Layer, power_iterations: int = 1, **kwargs: Any) -> None:
        super().__init__(layer, **kwargs)
        self.power_iterations = positive_integer(self, "power_iterations", power_iterations)

    def build(self, input_shape: Any = None) -> None:
        super().build(input_shape)
        self.kernel = self._kernel()  # before vector_u: Keras's order of the weights
        self.vector_u = self.add_weight(
            (1, self.kernel.shape[-1]),
            initializers.TruncatedNormal(stddev=0.02),
            trainable=False,
            name="vector_u",
        )

    def _kernel(self) -> Any:
        for name in ("kernel", "embeddings"):
            if hasattr(self.layer, name):
                return getattr(self.layer, name)
        raise ValueError(
            f'SpectralNormalization "{self.name}" needs a layer with a kernel or embeddings; '
            f'{type(self.layer).__name__} "{self.layer.name}" has neither.'
        )

    def call(self, inputs: Any, training: bool = False) -> Any:
        if training:
            self._normalize()
        return self.layer(inputs)

    def _normalize(self) -> None:
        kernel = self.kernel
        matrix = kernel.data.reshape(-1, kernel.shape[-1])
        if not matrix.any():
            return
        u = self.vector_u.data
        for _ in range(self.power_iterations):
            v = _unit(u.dot(matrix.T))
            u = _unit(v.dot(matrix))
        sigma = v.dot(matrix).dot(u.T).item()
        self.vector_u.assign(u)
        kernel.assign(kernel.data / sigma)

    def compute_output_shape(self, input_shape: Shape) -> Any:
        return self.layer.compute_output_shape(input_shape)

    def get_config(self) -> Config:
        return {**super().get_config(), "power_iterations": self.power_iterations}


def _unit(row: Array) -> Array:
    return row / max(float(np.sqrt(np.sum(row * row))), 1e-12)
