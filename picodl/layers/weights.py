"""The weights of a layer: made, listed, frozen, read and set."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from picodl import initializers, naming, regularizers
from picodl.config import DTypePolicy, thread
from picodl.layers.shapes import as_shape
from picodl.module import Module, Parameter, _trainable_then_older
from picodl.stateless import substituted
from picodl.tensor import Tensor
from picodl.typing import Array


class WeightedModule(Module):
    """The part of Layer that makes weights, lists them and can freeze them."""

    name: str
    built = False
    dtype_policy: DTypePolicy
    _trainable: bool

    def add_weight(
        self,
        shape: Any = None,
        initializer: Any = None,
        dtype: Any = None,
        trainable: bool = True,
        autocast: bool = True,
        regularizer: Any = None,
        constraint: Any = None,
        aggregation: str = "none",
        overwrite_with_gradient: bool = False,
        name: str | None = None,
    ) -> Parameter:
        """A new Parameter of this layer, to be kept in an attribute.

        Args:
            shape: a tuple of sizes; None for a single number.
            initializer: name, callable or array. Defaults to "glorot_uniform", or "zeros" for
                integers.
            dtype: defaults to the layer's variable dtype.
            trainable: False for a state.
            regularizer, constraint: name or object.
            name: the last part of the path.

        Raises:
            TypeError: if the shape is a string (the name belongs into name=).
            ValueError: if a size is not known.
        """
        if isinstance(shape, str):
            raise TypeError(
                f'add_weight of layer "{self.name}": the first argument is the shape; received the '
                f"string {shape!r}. Pass it as name={shape!r}."
            )
        shape = as_shape(shape or ())
        if not all(isinstance(n, int) and n >= 0 for n in shape):
            raise ValueError(
                f'{type(self).__name__} layer "{self.name}" cannot make the weight {name!r} of '
                f"shape {shape}: every size must be known and not negative."
            )
        dtype = np.dtype(dtype or self.dtype_policy.variable_dtype)
        if initializer is None:
            initializer = "glorot_uniform" if dtype.kind == "f" else "zeros"
        try:
            with self._scope():
                parameter = Parameter(
                    initializers.get(initializer),
                    shape,
                    dtype,
                    trainable,
                    autocast,
                    name=name,
                    regularizer=regularizers.get(regularizer),
                    constraint=_constraint(constraint),
                )
        except MemoryError:
            size = math.prod(shape) * dtype.itemsize / 2**30
            raise ValueError(
                f'{type(self).__name__} layer "{self.name}": the weight {name!r} of shape {shape} '
                f"would take {size:,.1f} GiB of memory, which is more than there is."
            ) from None
        parameter.requires_grad = parameter.requires_grad and self._trainable
        return parameter

    def add_variable(self, shape: Any, initializer: Any, **options: Any) -> Parameter:
        """`add_weight`, under its other name."""
        return self.add_weight(shape, initializer, **options)

    def save_own_variables(self, store: Any) -> None:
        """Put the variables the layer holds itself into a store: "0", "1", ... -> values, trainable
        ones first.

        Override it together with `load_own_variables` to keep other arrays in files, or more.

        Args:
            store: a dict of arrays; it copies what is put in.
        """
        merged = self.merged_weights() if hasattr(self, "merged_weights") else {}
        for number, variable in enumerate(own_variables(self)):
            store[str(number)] = merged.get(id(variable), variable.data)

    def load_own_variables(self, store: Any) -> None:
        """Set the variables the layer holds itself from what `save_own_variables` put in a store.

        An override that keeps other arrays besides passes on a dict without them.

        Args:
            store: a dict of arrays.

        Raises:
            ValueError: unless it holds just these variables, in their shapes.
        """
        own = own_variables(self)
        wanted = [str(number) for number in range(len(own))]
        if set(store.keys()) != set(wanted):
            raise ValueError(
                f'{type(self).__name__} "{self.name}" holds {len(own)} variables itself and loads '
                f"them from the arrays {_listed(wanted)}; received {_listed(store.keys())}. Take "
                "other arrays out before calling super().load_own_variables()."
            )
        for number, variable in zip(wanted, own, strict=True):
            values = np.asarray(store[number])
            whole = variable.data.dtype.kind in "iu" and values.dtype.kind not in "iu"
            if values.shape != variable.data.shape or whole:
                raise ValueError(
                    f'{type(self).__name__} "{self.name}": its variable {number} is '
                    f"{variable.data.dtype} of shape {variable.data.shape}, but the array "
                    f"{number!r} is {values.dtype} of shape {values.shape}."
                )
        for number, variable in zip(wanted, own, strict=True):
            _assign(variable, np.asarray(store[number]))
        for adapter in adapters_of(self)[1:]:
            _assign(adapter, np.zeros_like(adapter.data))

    def _scope(self) -> Any:
        """The layer's name before those of its variables, unless it is there already."""
        own = self.name in thread.names[-1:]
        return contextlib.nullcontext() if own else naming.name_scope(self.name)

    @property
    def weights(self) -> list[Parameter]:
        """All weights: own trainable, own states, then those of the layers inside."""
        return list(self.parameters())

    variables = weights

    @property
    def trainable_weights(self) -> list[Parameter]:
        """The weights that training changes."""
        return [w for w in self.parameters() if w.requires_grad]

    trainable_variables = trainable_weights

    @property
    def non_trainable_weights(self) -> list[Parameter]:
        """The weights that training leaves alone, states included."""
        return [w for w in self.parameters() if not w.requires_grad]

    non_trainable_variables = non_trainable_weights

    @property
    def trainable(self) -> bool:
        """Whether training changes the weights; set it on a layer or a whole model at any time."""
        return self._trainable

    @trainable.setter
    def trainable(self, flag: bool) -> None:
        for module in self.modules():
            if isinstance(module, WeightedModule):
                module._trainable = bool(flag)
        for weight in self.parameters():
            weight.requires_grad = bool(flag) and getattr(weight, "can_train", True)

    def get_weights(self) -> list[Array]:
        """Copies of the values of `weights`."""
        return [weight.data.copy() for weight in self.parameters()]

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Set the values of `weights`, all or none.

        Raises:
            ValueError: if there are too many or too few, or a shape differs.
        """
        own = self.weights
        new = [Tensor(value).data for value in weights]
        if len(new) != len(own):
            raise ValueError(
                f'{type(self).__name__} "{self.name}" has {len(own)} weights, but set_weights '
                f"received {len(new)} arrays."
                + ("" if self.built else " It has not been built yet: call it on data first.")
            )
        for weight, value in zip(own, new, strict=True):
            if weight.data.shape != value.shape:
                raise ValueError(
                    f"The weight {getattr(weight, 'path', '')} has shape {weight.data.shape}, but "
                    f"set_weights received an array of shape {value.shape}."
                )
        for weight, value in zip(own, new, strict=True):
            weight.assign(value)

    def stateless_call(
        self,
        trainable_variables: Sequence[Any],
        non_trainable_variables: Sequence[Any],
        *args: Any,
        return_losses: bool = False,
        **kwargs: Any,
    ) -> Any:
        """The layer called with other values for its variables, which stay as they are.

        The outputs can be differentiated with respect to values that are Tensors. Random generators
        and the states of stateful recurrent layers are no variables and go on as in any call.
        Another thread must not use the layer meanwhile.

        Args:
            trainable_variables: one value for each of `trainable_variables`.
            non_trainable_variables: one value for each of `non_trainable_variables`.
            *args, **kwargs: what the layer is called on.
            return_losses: whether to give the layer's `losses` as well.

        Returns: (outputs, non-trainable values after the call), or with the losses as a third part.

        Raises:
            ValueError: if there are too many or too few values, or a shape differs, or the layer
                has not been built.

        >>> from picodl.layers import Dense
        >>> layer = Dense(1, use_bias=False)
        >>> layer.build((None, 2))
        >>> y, states = layer.stateless_call([np.ones((2, 1))], [], np.array([[3.0, 4.0]]))
        >>> y.numpy(), states
        (array([[7.]], dtype=float32), [])
        """
        called = f'{type(self).__name__} "{self.name}".stateless_call()'
        if not self.built:
            raise ValueError(f"{called}: build the layer first, or call it on data.")
        trained, others = self.trainable_weights, self.non_trainable_weights
        for what, own, given in (
            ("trainable_variables", trained, trainable_variables),
            ("non_trainable_variables", others, non_trainable_variables),
        ):
            if len(own) != len(given):
                raise ValueError(
                    f"{called}: the layer has {len(own)} {what}, but received {len(given)} values."
                )
        values = [*trainable_variables, *non_trainable_variables]
        with substituted(self, zip([*trained, *others], values, strict=True)) as used:
            outputs = self(*args, **kwargs)
            losses = self.losses if return_losses else None  # type: ignore[attr-defined]
        states = [state.data for state in used[len(trained) :]]
        return (outputs, states, losses) if return_losses else (outputs, states)

    def count_params(self) -> int:
        """The number of weights, states included.

        Raises:
            ValueError: if the layer has not been built.
        """
        if not self.built:
            raise ValueError(
                f'{type(self).__name__} "{self.name}" has no weights yet: call it on data, or '
                "build(input_shape) first."
            )
        return sum(int(w.data.size) for w in self.parameters())


def own_variables(module: Module) -> list[Any]:
    """The variables that a module holds itself: trainable ones, then states."""
    own = [(path, part) for path, part in Module.parts(module) if isinstance(part, Tensor)]
    adapters = [id(part) for part in adapters_of(module)]
    return [part for _, part in sorted(own, key=_trainable_then_older) if id(part) not in adapters]


def adapters_of(module: Module) -> list[Any]:
    """The matrices of a low-rank change, which files hold as part of the table it changes."""
    return list(module._adapters()) if getattr(module, "lora_enabled", False) else []  # type: ignore[attr-defined]


def _assign(variable: Any, values: Array) -> None:
    if variable.data.flags.writeable:
        variable.data[...] = values
    else:  # laid out without memory so far
        variable.data = np.array(values, variable.data.dtype)


def _listed(names: Any) -> str:
    names = sorted(map(str, names))
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return (", ".join(map(repr, names[:8])) or "none") + more


def _constraint(identifier: Any) -> Any:
    if identifier is None:
        return None
    from picodl import constraints

    return constraints.get(identifier)
