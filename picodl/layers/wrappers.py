"""Layers around a layer: for every step of a sequence, and for both directions of time."""

from __future__ import annotations

from typing import Any

import numpy as np

from picodl import ops, tree
from picodl.layers.base import Layer
from picodl.layers.checks import choice
from picodl.layers.core import Wrapper
from picodl.layers.input_spec import InputSpec
from picodl.layers.recurrent_states import as_list
from picodl.layers.signature import CallSignature
from picodl.typing import Config, Shape


class TimeDistributed(Wrapper):
    """Apply a layer to every step of a sequence, with the same weights.

    Args:
        layer: any layer for one step.

    Call: (inputs, training=False, mask=None); a layer that takes a mask gets that of its steps.
    Shapes: (batch, T, ...) -> (batch, T, ...): the layer sees (batch * T, ...); mask (batch, T,
        ...).

    >>> import numpy as np
    >>> from picodl.layers.dense import Dense
    >>> TimeDistributed(Dense(3))(np.ones((2, 4, 5))).shape
    (2, 4, 3)
    """

    supports_masking = True

    def __init__(self, layer: Any, **kwargs: Any) -> None:
        super().__init__(layer, **kwargs)
        self.input_spec = InputSpec(min_ndim=3)

    def build(self, input_shape: Any = None) -> None:
        self._check_shape(input_shape)
        super().build((input_shape[0], *input_shape[2:]))

    def call(self, inputs: Any, training: bool = False, mask: Any = None) -> Any:
        batch, steps, *rest = inputs.shape
        signature = CallSignature.of(type(self.layer))
        given: Config = {}
        if signature.training:
            given["training"] = training
        if mask is not None:
            mask = np.asarray(mask)
            if mask.shape[:2] != (batch, steps):
                raise ValueError(
                    f'TimeDistributed layer "{self.name}" expects a mask of shape '
                    f"{(batch, steps)}, with more axes or without, but received {mask.shape}."
                )
            if signature.mask:
                given["mask"] = mask.reshape(batch * steps, *mask.shape[2:])
        y = self.layer(ops.reshape(inputs, (batch * steps, *rest)), **given)
        return tree.map_structure(lambda t: ops.reshape(t, (batch, steps, *t.shape[1:])), y)

    def compute_output_shape(self, input_shape: Shape) -> Any:
        batch, steps, *rest = input_shape
        inner = self.layer.compute_output_shape((batch, *rest))
        if isinstance(inner, list) or (inner and isinstance(inner[0], (list, tuple))):
            return type(inner)((batch, steps, *shape[1:]) for shape in inner)
        return (batch, steps, *inner[1:])


class Bidirectional(Layer):
    """Run a recurrent layer forwards and a copy of it backwards, and merge what they give.

    Args:
        layer: a recurrent layer; its config makes both directions.
        merge_mode: "concat", "sum", "mul", "ave", or None for a list of both outputs.
        weights: first values of the weights, forward ones first.
        backward_layer: a layer of one's own for the way back, with go_backwards=True.

    Call: (sequences, initial_state=None, mask=None, training=False); the first half of the initial
    states is for the forward layer.

    Shapes: (batch, T, n) -> (batch, 2 units) or (batch, T, 2 units) with "concat"; the outputs of
        the way back are put into the order of time first. With return_state the tuple (output,
        forward states, backward states).

    Reference: Schuster and Paliwal, 1997, "Bidirectional Recurrent Neural Networks", IEEE
    Transactions on Signal Processing 45.

    >>> import numpy as np
    >>> from picodl.layers.recurrent_layers import GRU
    >>> Bidirectional(GRU(3))(np.ones((2, 4, 5))).shape
    (2, 6)
    """

    supports_masking = True

    def __init__(
        self,
        layer: Any,
        merge_mode: str | None = "concat",
        weights: Any = None,
        backward_layer: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._check_layer(layer)
        if merge_mode is not None:
            choice(self, "merge_mode", merge_mode, ("concat", "sum", "mul", "ave"))
        self.merge_mode = merge_mode
        self.forward_layer = _copy(layer, "forward_")
        if backward_layer is None:
            back = not layer.go_backwards
            self.backward_layer = _copy(layer, "backward_", go_backwards=back)
        else:
            self._check_layer(backward_layer)
            self._check_backward(backward_layer)
            self.backward_layer = backward_layer
        for one in (self.forward_layer, self.backward_layer):
            if hasattr(one, "zero_output_for_mask"):
                one.zero_output_for_mask = bool(layer.return_sequences)
        self.return_sequences = layer.return_sequences
        self.return_state = layer.return_state
        self.stateful = layer.stateful
        self.input_spec = InputSpec(min_ndim=3)
        self._first_weights = weights

    def _check_layer(self, layer: Any) -> None:
        needed = ("go_backwards", "return_sequences", "return_state", "stateful")
        if not isinstance(layer, Layer) or not all(hasattr(layer, name) for name in needed):
            raise ValueError(
                f'Bidirectional layer "{self.name}" needs a recurrent layer, with the attributes '
                f"{', '.join(needed)}; received {layer!r}."
            )

    def _check_backward(self, layer: Any) -> None:
        forward = self.forward_layer
        if layer.go_backwards == forward.go_backwards:
            raise ValueError(
                f'Bidirectional layer "{self.name}": backward_layer must go the other way; give it '
                f"go_backwards={not forward.go_backwards}."
            )
        for name in ("return_sequences", "return_state", "stateful"):
            if getattr(layer, name) != getattr(forward, name):
                raise ValueError(
                    f'Bidirectional layer "{self.name}": layer has {name}='
                    f"{getattr(forward, name)}, but backward_layer has {getattr(layer, name)}."
                )

    @property
    def layer(self) -> Any:
        """The forward layer."""
        return self.forward_layer

    def build(self, sequences_shape: Shape, initial_state_shape: Any = None) -> None:
        self._check_shape(sequences_shape)
        for one in (self.forward_layer, self.backward_layer):
            if not one.built:
                one.build(sequences_shape)
        if self._first_weights is not None:
            self.set_weights(self._first_weights)

    def call(
        self,
        sequences: Any,
        initial_state: Any = None,
        mask: Any = None,
        training: bool = False,
    ) -> Any:
        first: tuple[Any, Any] = (None, None)
        if initial_state is not None:
            half = len(initial_state) // 2
            first = (list(initial_state[:half]), list(initial_state[half:]))
        y, y_back = (
            one(sequences, initial_state=states, mask=mask, training=training)
            for one, states in zip((self.forward_layer, self.backward_layer), first, strict=True)
        )
        states = []
        if self.return_state:
            states = [*y[1:], *y_back[1:]]
            y, y_back = y[0], y_back[0]
        if self.return_sequences:
            y_back = ops.flip(y_back, axis=1)
        merged = self._merge(y, y_back)
        if not self.return_state:
            return merged
        return (*(merged if self.merge_mode is None else [merged]), *states)

    def _merge(self, y: Any, y_back: Any) -> Any:
        if self.merge_mode == "concat":
            return ops.concatenate([y, y_back], axis=-1)
        if self.merge_mode == "sum":
            return y + y_back
        if self.merge_mode == "ave":
            return (y + y_back) / 2
        return y * y_back if self.merge_mode == "mul" else [y, y_back]

    def reset_states(self) -> None:
        """Start the next call of a stateful layer from zeros."""
        self.forward_layer.reset_states()
        self.backward_layer.reset_states()

    reset_state = reset_states

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        mask = mask if self.return_sequences else None
        masks = [mask, mask] if self.merge_mode is None else [mask]
        if self.return_state:
            return masks + [None] * 2 * len(as_list(self.forward_layer.state_size))
        return masks if self.merge_mode is None else mask

    def compute_output_shape(self, sequences_shape: Shape, initial_state_shape: Any = None) -> Any:
        forward = self.forward_layer.compute_output_shape(sequences_shape)
        back = self.backward_layer.compute_output_shape(sequences_shape)
        states: tuple[Any, ...] = ()
        if self.return_state:
            states = (*forward[1:], *back[1:])
            forward, back = forward[0], back[0]
        if self.merge_mode is None:
            return (forward, back, *states) if states else [forward, back]
        size = forward[-1] + back[-1] if self.merge_mode == "concat" else forward[-1]
        merged = (*forward[:-1], size)
        return (merged, *states) if states else merged

    def get_config(self) -> Config:
        from picodl.saving import serialization

        return {
            **super().get_config(),
            "merge_mode": self.merge_mode,
            "layer": serialization.serialize_keras_object(self.forward_layer),
            "backward_layer": serialization.serialize_keras_object(self.backward_layer),
        }

    @classmethod
    def from_config(cls, config: Config) -> Any:
        from picodl.saving import serialization

        layers = {
            key: serialization.deserialize_keras_object(config[key])
            for key in ("layer", "backward_layer")
            if isinstance(config.get(key), dict)
        }
        return super().from_config({**config, **layers})


def _copy(layer: Any, prefix: str, **changes: Any) -> Any:
    """A new layer from the layer's config, its name marked with the prefix."""
    config = {**layer.get_config(), **changes}
    config["name"] = prefix + layer.name.removeprefix(prefix)
    return type(layer).from_config(config)
