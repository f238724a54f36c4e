"""RNN around any cell, and several cells as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from picodl import ops, tree
from picodl.config import thread
from picodl.layers.base import Layer
from picodl.layers.input_spec import InputSpec
from picodl.layers.recurrent_states import (
    KeptStates,
    alone_or_list,
    as_list,
    first_states,
    map_state_shapes,
    output_shape,
    packed,
    state_shapes,
)
from picodl.ops.recurrent import unroll
from picodl.tensor import Tensor
from picodl.typing import Config, Shape


class RNN(Layer):
    """Apply a cell to the steps of a sequence, one after the other.

    Args:
        cell: a cell, or a list of cells for StackedRNNCells. A cell is a layer with
            `call(inputs, states)`, which returns the output and the new states, and `state_size`:
            a number, or a list with a number for each state. In place of a number may stand a
            shape, a tuple such as (2, 3), or a list of further states, which the cell then takes
            and returns as a list. It may have an `output_size` (else that of the first state) and
            `get_initial_state(batch_size)` (else zeros).
        return_sequences: give the outputs of all steps instead of the last one.
        return_state: give the last states too.
        go_backwards: start with the last step; outputs stand in that order.
        stateful: go on from where the call before ended, until `reset_states()`. The batch size is
            then fixed.
        unroll: accepted; there is one way of computing it.
        zero_output_for_mask: a masked step puts out zeros instead of the output before it.

    Call: (sequences, initial_state=None, mask=None, training=False). A masked step (False) changes
    neither state nor output.

    Shapes: (batch, T, n) -> (batch, units), or (batch, T, units) for return_sequences; with
        return_state the tuple (output, state, ...), the states nested as the cell's are; for
        several cells the state, or the list of states, of each. An initial_state may be flat too.

    >>> import numpy as np
    >>> class Sum(Layer):
    ...     state_size = 2
    ...
    ...     def call(self, inputs, states):
    ...         total = states[0] + inputs
    ...         return total, [total]
    >>> RNN(Sum())(np.ones((1, 3, 2))).tolist()
    [[3.0, 3.0]]
    """

    supports_masking = True

    def __init__(
        self,
        cell: Any,
        return_sequences: bool = False,
        return_state: bool = False,
        go_backwards: bool = False,
        stateful: bool = False,
        unroll: bool = False,
        zero_output_for_mask: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.cell = StackedRNNCells(cell) if isinstance(cell, (list, tuple)) else cell
        if not callable(getattr(self.cell, "call", None)) or not hasattr(self.cell, "state_size"):
            raise ValueError(
                f'{type(self).__name__} layer "{self.name}" needs a cell: a layer with '
                f"call(inputs, states) and state_size; received {cell!r}."
            )
        self.return_sequences = return_sequences
        self.return_state = return_state
        self.go_backwards = go_backwards
        self.stateful = stateful
        self.unroll = unroll
        self.zero_output_for_mask = zero_output_for_mask
        self.input_spec: Any = InputSpec(min_ndim=3)
        self._kept = KeptStates()

    @property
    def state_size(self) -> Any:
        """The size of each state of the cell."""
        return self.cell.state_size

    @property
    def states(self) -> list[Any] | None:
        """The states a stateful layer goes on from; None before its first call."""
        kept = self._kept.values
        if not kept:
            return kept
        return packed(self.get_initial_state(kept[0].shape[0]), kept)

    def build(self, sequences_shape: Shape, initial_state_shape: Any = None) -> None:
        self._check_shape(sequences_shape)
        batch, _, *rest = sequences_shape
        if self.stateful and batch is None:
            raise ValueError(
                f'{type(self).__name__} layer "{self.name}" is stateful, so it needs to know its '
                "batch size. Give it in Input(batch_shape=(batch, steps, features))."
            )
        if isinstance(self.cell, Layer) and not self.cell.built:
            self.cell.build((batch, *rest))
        self.input_spec = InputSpec(ndim=len(sequences_shape), axes={-1: sequences_shape[-1]})

    def call(
        self,
        sequences: Any,
        initial_state: Any = None,
        mask: Any = None,
        training: bool = False,
    ) -> Any:
        if isinstance(mask, (list, tuple)):
            mask = mask[0]
        mask = self._checked_mask(mask, sequences)
        memory = (
            None
            if thread.decoding is None or initial_state is not None
            else thread.decoding.of(self)
        )
        states = self._first_states(sequences, memory.get("states") if memory else initial_state)
        if _runs_whole_sequences(self.cell):
            keep = self.return_state or self.stateful or memory is not None
            flat = tree.flatten(states)
            output, last = self._run_fused(sequences, flat, mask, training, keep)
        else:
            output, last = self._run_steps(sequences, states, mask, training)
        if memory is not None:  # inside generate() the next call brings the next tokens
            memory["states"] = last
        if self.stateful:
            self._kept.assign([s.data for s in last])
        return (output, *packed(states, last)) if self.return_state else output

    def _run_fused(
        self, x: Any, states: list[Any], mask: Any, training: bool, keep_states: bool
    ) -> Any:
        """The cell runs over the whole sequence by itself."""
        options = (mask, training, self.go_backwards, self.zero_output_for_mask)
        if not keep_states:
            returns = "sequences" if self.return_sequences else "last"
            return self.cell.sequence(x, states, *options, returns), []
        return self.cell.sequence_and_states(x, states, *options, self.return_sequences)

    def _run_steps(self, x: Any, states: list[Any], mask: Any, training: bool) -> Any:
        """Step by step, for a user's own cell."""
        takes = {"training": training} if _takes_training(self.cell) else {}

        def step(part: Any, flat: list[Any]) -> tuple[Any, list[Any]]:
            output, new = self.cell(part, packed(states, flat), **takes)
            after = tree.flatten(new)
            if len(after) != len(flat):
                raise ValueError(
                    f'{type(self).__name__} layer "{self.name}": the cell '
                    f"{type(self.cell).__name__} received {len(flat)} states, but returned "
                    f"{len(after)}. It must return as many as it received."
                )
            return output, after

        flat = tree.flatten(states)
        last, outputs, ends = unroll(
            step, x, flat, mask, self.go_backwards, self.zero_output_for_mask
        )
        return (ops.stack(outputs, axis=1) if self.return_sequences else last), ends

    # ---------------------------------------------------------------- states

    def _first_states(self, x: Any, initial_state: Any) -> list[Any]:
        """The states to start from, in the structure that the cell takes."""
        batch = x.shape[0]
        zeros = self.get_initial_state(batch)
        if initial_state is not None:
            given = [s if isinstance(s, Tensor) else Tensor(s) for s in tree.flatten(initial_state)]
            self._check_states(given, tree.flatten(zeros))
            return packed(zeros, given)
        if self.stateful and self._kept.values is not None:
            kept = [Tensor(s.data.copy()) for s in self._kept.values]
            if kept[0].shape[0] != batch:
                raise ValueError(
                    f'{type(self).__name__} layer "{self.name}" is stateful with batch size '
                    f"{kept[0].shape[0]}, but received sequences of shape {tuple(x.shape)}. Call "
                    "reset_states() first, or use batches of one size."
                )
            return packed(zeros, kept)
        return zeros

    def _check_states(self, given: list[Any], zeros: list[Any]) -> None:
        if [s.shape for s in given] != [z.shape for z in zeros]:
            raise ValueError(
                f'{type(self).__name__} layer "{self.name}" expects initial states of shapes '
                f"{[z.shape for z in zeros]}, but received {[s.shape for s in given]}."
            )

    def get_initial_state(self, batch_size: int) -> list[Any]:
        """The first states, zeros unless the cell has its own, in the structure the cell takes."""
        return first_states(self.cell, batch_size, self._dtype)

    def reset_states(self) -> None:
        """Start the next call of a stateful layer from zeros."""
        self._kept.values = None

    reset_state = reset_states

    def _checked_mask(self, mask: Any, x: Any) -> Any:
        if mask is None:
            return None
        mask = np.asarray(mask)
        if mask.shape != tuple(x.shape[:2]):
            raise ValueError(
                f'{type(self).__name__} layer "{self.name}" expects a mask of shape (batch, steps) '
                f"= {tuple(x.shape[:2])}, but received shape {mask.shape}."
            )
        mask = mask.astype(bool)
        return None if mask.all() else mask

    # ---------------------------------------------------------------- shapes and config

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        mask = mask[0] if isinstance(mask, (list, tuple)) else mask
        mask = mask if self.return_sequences else None
        if self.return_state:
            return [mask] + [None] * len(as_list(self.cell.state_size))
        return mask

    def compute_output_shape(self, sequences_shape: Shape, initial_state_shape: Any = None) -> Any:
        batch, steps, *_ = sequences_shape
        size = output_shape(self.cell)
        output = (batch, steps, *size) if self.return_sequences else (batch, *size)
        if not self.return_state:
            return output
        return (output, *map_state_shapes(lambda shape: (batch, *shape), self.cell))

    def options(self) -> Config:
        """The arguments that all recurrent layers share."""
        return {
            "return_sequences": self.return_sequences,
            "return_state": self.return_state,
            "go_backwards": self.go_backwards,
            "stateful": self.stateful,
            "unroll": self.unroll,
            "zero_output_for_mask": self.zero_output_for_mask,
        }

    def get_config(self) -> Config:
        from picodl.saving import serialization

        cell = serialization.serialize_keras_object(self.cell)
        return {**super().get_config(), **self.options(), "cell": cell}

    @classmethod
    def from_config(cls, config: Config) -> Any:
        from picodl.saving import serialization

        cell = config.get("cell")
        if isinstance(cell, dict):
            config = {**config, "cell": serialization.deserialize_keras_object(cell)}
        return super().from_config(config)


class StackedRNNCells(Layer):
    """Several cells as one: each takes the output of the one before.

    Args:
        cells: a list of cells.

    Shapes: as its first cell's input, its last cell's output; the states are a list with those of
        each cell: a list, or the state itself where state_size is a number.
    """

    def __init__(self, cells: Sequence[Any], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        for cell in cells:
            if not callable(getattr(cell, "call", None)) or not hasattr(cell, "state_size"):
                raise ValueError(
                    f'StackedRNNCells "{self.name}" needs cells with call(inputs, states) and '
                    f"state_size; received {cell!r}."
                )
        self.cells = list(cells)

    @property
    def state_size(self) -> list[Any]:
        """The state_size of each cell."""
        sizes = [cell.state_size for cell in self.cells]
        return [list(size) if isinstance(size, tuple) else size for size in sizes]

    @property
    def output_size(self) -> Any:
        """That of the last cell."""
        shape = output_shape(self.cells[-1])
        return shape[0] if len(shape) == 1 else shape

    def build(self, input_shape: Shape) -> None:
        shape = input_shape
        for cell in self.cells:
            if isinstance(cell, Layer) and not cell.built:
                cell.build(shape)
            shape = (input_shape[0], *output_shape(cell))

    def get_initial_state(self, batch_size: int) -> list[Any]:
        """The first states of each cell."""
        return [
            alone_or_list(cell.state_size, first_states(cell, batch_size, self._dtype))
            for cell in self.cells
        ]

    def call(self, inputs: Any, states: Any, training: bool = False) -> tuple[Any, list[Any]]:
        new = []
        for cell, before in zip(self.cells, states, strict=True):
            takes = {"training": training} if _takes_training(cell) else {}
            inputs, after = cell(inputs, as_list(before), **takes)
            new.append(alone_or_list(before, as_list(after)))
        return inputs, new

    def sequence(
        self,
        x: Any,
        states: list[Any],
        mask: Any,
        training: bool,
        back: bool,
        zero: bool,
        returns: str,
    ) -> Any:
        """Each cell over the whole sequence, one after the other; see RecurrentCell.sequence."""
        for place, (cell, own) in enumerate(zip(self.cells, self._shared(states), strict=True)):
            last = place == len(self.cells) - 1
            x = cell.sequence(
                x, own, mask, training, back and place == 0, zero and last,
                returns if last else "sequences",
            )  # fmt: skip
            if place == 0 and back and mask is not None:
                mask = mask[:, ::-1]
        return x

    def sequence_and_states(
        self,
        x: Any,
        states: list[Any],
        mask: Any,
        training: bool,
        back: bool,
        zero: bool,
        all_: bool,
    ) -> Any:
        """The outputs and the flat list of last states; see RecurrentCell.sequence_and_states."""
        ends: list[Any] = []
        for place, (cell, own) in enumerate(zip(self.cells, self._shared(states), strict=True)):
            last = place == len(self.cells) - 1
            x, new = cell.sequence_and_states(
                x, own, mask, training, back and place == 0, zero and last, all_ or not last
            )
            ends += new
            if place == 0 and back and mask is not None:
                mask = mask[:, ::-1]
        return x, ends

    def _shared(self, flat: list[Any]) -> list[list[Any]]:
        """The flat list of states cut into those of each cell."""
        left = iter(flat)
        return [[next(left) for _ in state_shapes(cell)] for cell in self.cells]

    def get_config(self) -> Config:
        from picodl.saving import serialization

        cells = [serialization.serialize_keras_object(cell) for cell in self.cells]
        return {**super().get_config(), "cells": cells}

    @classmethod
    def from_config(cls, config: Config) -> Any:
        from picodl.saving import serialization

        cells = [
            serialization.deserialize_keras_object(c) if isinstance(c, dict) else c
            for c in config["cells"]
        ]
        return super().from_config({**config, "cells": cells})


def _runs_whole_sequences(cell: Any) -> bool:
    """Whether the class that defines the cell's `call` defines `sequence` as well."""
    if isinstance(cell, StackedRNNCells) and not all(map(_runs_whole_sequences, cell.cells)):
        return False
    for base in type(cell).__mro__:
        own = vars(base)
        if "call" in own or "forward" in own:
            return "sequence" in own
    return False


def _takes_training(cell: Any) -> bool:
    from picodl.layers.signature import CallSignature

    return not isinstance(cell, Layer) or CallSignature.of(type(cell)).training
