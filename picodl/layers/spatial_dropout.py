"""Dropout of whole channels: neighbouring pixels are too alike to be dropped one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from picodl import config
from picodl.layers.input_spec import InputSpec
from picodl.layers.regularization import Dropout
from picodl.typing import Config


class SpatialDropout(Dropout):
    """Set a fraction of the channels to 0 in training and scale the others up by 1 / (1 - rate).

    Args:
        rate: the fraction to drop, from 0 to 1.
        data_format: "channels_last" or "channels_first". Defaults to the global setting.
        seed: of the draws.

    Shapes: (batch, *sizes, n) -> same.
    Reference: Tompson et al., 2015, "Efficient Object Localization Using Convolutional Networks",
    arXiv:1411.4280.
    """

    rank = 0

    def __init__(
        self,
        rate: float,
        data_format: str | None = None,
        seed: int | None = None,
        name: str | None = None,
        dtype: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(rate, seed=seed, name=name, dtype=dtype, **kwargs)
        self.data_format = config.standardize_data_format(data_format)
        self.input_spec = InputSpec(ndim=self.rank + 2)

    def mask_shape(self, inputs: Any) -> Sequence[int | None]:
        batch, ones = inputs.shape[0], (1,) * self.rank
        if self.data_format == "channels_first":
            return (batch, inputs.shape[1], *ones)
        return (batch, *ones, inputs.shape[-1])

    def get_config(self) -> Config:
        config = super().get_config()
        del config["noise_shape"]
        if config["trainable"]:  # Keras's classes do not take it
            del config["trainable"]
        return {**config, "data_format": self.data_format}


class SpatialDropout1D(SpatialDropout):
    """Dropout of whole channels of sequences; see `SpatialDropout` for the arguments."""

    rank = 1

    def __init__(
        self,
        rate: float,
        seed: int | None = None,
        name: str | None = None,
        dtype: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(rate, "channels_last", seed, name, dtype, **kwargs)

    def get_config(self) -> Config:
        config = super().get_config()
        del config["data_format"]
        return config


class SpatialDropout2D(SpatialDropout):
    """Dropout of whole channels of images; see `SpatialDropout` for the arguments."""

    rank = 2


class SpatialDropout3D(SpatialDropout):
    """Dropout of whole channels of volumes; see `SpatialDropout` for the arguments."""

    rank = 3
