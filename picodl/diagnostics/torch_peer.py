"""A module of PyTorch as the counterpart of a model in `compare`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from picodl import tree
from picodl.diagnostics.peers import Peer, Results, imported, to_array, torch_gradients
from picodl.saving import torch_state
from picodl.typing import Array


class TorchPeer(Peer):
    """A torch.nn.Module, in its eval mode."""

    label = "PyTorch"
    differentiates = True

    def __init__(self, other: Any, names: Mapping[str, str] | None, loss: Any) -> None:
        super().__init__(other)
        self.torch = imported("torch")
        self.names = names
        self.loss = loss
        self.has_loss = False  # what it has knows nothing of the model's penalties
        self._refused: ValueError | None = None
        self._layout: TorchLayout | None = None

    def meet(self, model: Any, copy: Any, x: Any) -> None:
        super().meet(model, copy, x)
        try:
            torch_state.load_torch_state_dict(copy, self.other.state_dict(), self.names)
            self._layout = TorchLayout(model, self.other.state_dict(), self.names)
        except ValueError as error:
            self._refused = error
        for mine, weight in zip(copy.weights, model.weights, strict=True):
            mine.data[...] = weight.data

    def take_weights(self) -> None:
        if self._layout is None:
            raise ValueError(
                f"compare cannot copy the weights to PyTorch: {self._refused} Pass names=... where "
                "the order differs, or copy them yourself and pass copy_weights=False."
            ) from self._refused
        state = self.other.state_dict()
        new = self._layout.to_torch([w.data for w in self.model.weights])
        for name, values in new.items():
            like = state[name]
            state[name] = self.torch.as_tensor(values, dtype=like.dtype, device=like.device)
        self.other.load_state_dict(state)

    def run(self, x: Any, y: Any, upstream: list[Array | None] | None, kinds: list[str]) -> Results:
        torch, other = self.torch, self.other
        with self._evaluating(), torch.enable_grad():
            given = tree.map_structure(self._tensor, x)
            if isinstance(given, dict):
                y_pred = other(**given)
            else:
                y_pred = other(*given) if isinstance(given, (list, tuple)) else other(given)
            flat = tree.flatten(y_pred)
            results = Results([to_array(t) for t in flat])
            loss = None
            if y is not None and self.loss is not None:
                loss = self.loss(y_pred, tree.map_structure(self._tensor, y))
                results.loss = float(to_array(loss))
            elif y is not None:
                self.notes.append("losses are not compared: pass PyTorch's as loss=...")
        if y is None:
            return results
        if self._layout is None:
            self.notes.append(f"gradients are not compared: {self._refused}")
            return results
        trained = {name: p for name, p in other.named_parameters() if p.requires_grad}
        if trained and (loss is not None or len(flat) == len(upstream or ())):
            found = torch_gradients(torch, loss, flat, upstream, list(trained.values()))
            arrays = {
                name: to_array(g)
                for name, g in zip(trained, found, strict=True)
                if g is not None
            }  # fmt: skip
            results.gradients = self._layout.gradients(arrays)
        return results

    def _tensor(self, array: Any) -> Any:
        """An array as a tensor of the module's dtype and on its device; integers as int64."""
        if array is None or isinstance(array, self.torch.Tensor):
            return array
        array = np.ascontiguousarray(array)
        like = next((p for p in self.other.parameters() if p.is_floating_point()), None)
        device = None if like is None else like.device
        if array.dtype.kind in "iub":
            return self.torch.as_tensor(array.astype(np.int64), device=device)
        dtype = self.torch.get_default_dtype() if like is None else like.dtype
        return self.torch.as_tensor(array, dtype=dtype, device=device)

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        before = [(module, module.training) for module in self.other.modules()]
        self.other.eval()
        try:
            yield
        finally:
            for module, training in before:
                module.training = training


class TorchLayout:
    """Where in a state dict of PyTorch each number of a model's weights has its place.

    `saving.load_torch_state_dict` translates from PyTorch. To know the way back, its translations
    are run on the numbers of the places, one array of the state dict at a time: all they do is
    move numbers, and add the two biases of a recurrent layer, of which the first takes the sum.

    Args:
        model: the model.
        state_dict: of a module that fits it.
        names: which module is which layer, where the order differs.

    Raises:
        ValueError: if they do not fit.
    """

    def __init__(
        self, model: Any, state_dict: Mapping[str, Any], names: Mapping[str, str] | None
    ) -> None:
        modules = torch_state._modules(state_dict)
        layers = [layer for layer in torch_state._leaves(model) if layer.weights]
        self._pairs = torch_state._paired(modules, layers, names or {})
        self._modules = modules
        self._weights = model.weights
        numbers = {id(w): i for i, w in enumerate(self._weights)}
        self._sources: list[tuple[int, str, Array]] = []  # weight, array, places or -1
        for module, layer in self._pairs:
            for short in modules[module]:
                arrays = self._translated(module, layer, short)
                for weight, places in zip(layer.weights, arrays, strict=True):
                    if (places > 0).any():
                        name = f"{module}.{short}" if module else short
                        self._sources.append((numbers[id(weight)], name, places - 1))
        self._shapes = {
            f"{module}.{short}" if module else short: array.shape
            for module, _ in self._pairs
            for short, array in modules[module].items()
        }

    def _translated(self, module: str, layer: Any, short: str) -> list[Array]:
        """The places, from 1, that a layer's weights take from one array, and 0 from others."""
        probe = torch_state.Part()
        for name, array in self._modules[module].items():
            count = array.size if name == short else 0
            places = np.arange(1, count + 1) if count else np.zeros(array.size, np.int64)
            probe[name] = places.reshape(array.shape)
        return torch_state._translate(layer, probe, module)

    def to_torch(self, values: Sequence[Array]) -> dict[str, Array]:
        """The arrays of the state dict that mean the same as these weights.

        Raises:
            ValueError: if PyTorch's layer cannot hold such weights.
        """
        state = {name: np.zeros(shape, np.float64) for name, shape in self._shapes.items()}
        given = [np.zeros(v.shape, bool) for v in values]
        for weight, name, places in self._sources:
            first = (places >= 0) & ~given[weight]
            state[name].reshape(-1)[places[first]] = values[weight][first]
            given[weight] |= first
        for module, layer in self._pairs:
            part = torch_state.Part()
            for short in self._modules[module]:
                part[short] = state[f"{module}.{short}" if module else short]
            again = torch_state._translate(layer, part, module)
            for weight, array in zip(layer.weights, again, strict=True):
                if not np.array_equal(array, weight.data, equal_nan=True):
                    raise ValueError(
                        f"compare: PyTorch's {module!r} cannot hold the values of {weight.path}: "
                        "several numbers there share one here. Copy the weights yourself and pass "
                        "copy_weights=False."
                    )
        return state

    def gradients(self, found: Mapping[str, Array]) -> dict[int, Array]:
        """The gradients of the weights, by their place, out of those of PyTorch by name.

        A weight of which PyTorch shares numbers has none.
        """
        gradients: dict[int, Array] = {}
        given = {i: np.zeros(w.data.shape, bool) for i, w in enumerate(self._weights)}
        shared: set[int] = set()
        for weight, name, places in self._sources:
            first = (places >= 0) & ~given[weight]
            taken = places[first]
            if not taken.size or name not in found:
                continue
            if len(np.unique(taken)) < taken.size:
                shared.add(weight)
            new = gradients.setdefault(weight, np.zeros(given[weight].shape, found[name].dtype))
            new[first] = found[name].reshape(-1)[taken]
            given[weight] |= first
        return {i: g for i, g in gradients.items() if i not in shared and given[i].all()}
