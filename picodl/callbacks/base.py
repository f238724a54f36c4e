"""Callback: hooks that a training calls; CallbackList: calls the hooks that somebody overrides."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from picodl import tree

Logs: TypeAlias = dict[str, Any]


class Callback:
    """Base class: a subclass overrides the hooks it needs, all others cost nothing.

    In fit the hooks come in this order: `on_train_begin`; for each epoch `on_epoch_begin`, for each
    batch `on_train_batch_begin` and `on_train_batch_end`, then the test hooks of the validation and
    `on_epoch_end`; at last `on_train_end`. evaluate and predict call their own. Epochs and batches
    count from 0. Logs are dicts of floats: after a batch the averages since the epoch began, after
    an epoch its values, those of the validation under "val_...". All callbacks get the same dict,
    so a key that one adds is seen by those after it.

    Attributes:
        model: the model in training. Setting `model.stop_training = True` ends the training after
            the batch or epoch; `stop_evaluating` and `stop_predicting` end the other two.
        params: dict with "verbose", "epochs" and "steps".

    >>> class StopOnTarget(Callback):
    ...     def __init__(self, target):
    ...         super().__init__()
    ...         self.target = target
    ...
    ...     def on_epoch_end(self, epoch, logs=None):
    ...         if logs["accuracy"] >= self.target:
    ...             self.model.stop_training = True
    """

    params: dict[str, Any] = {}
    model: Any = None
    lazy_logs = False  # whether batch hooks take the logs as a function, to be called at need
    repeats = True  # whether a resumed run may call a hook again that it had not finished

    def __init__(self) -> None:
        self.params = {}

    def set_params(self, params: dict[str, Any]) -> None:
        """Receive the parameters of the training before it begins."""
        self.params = params

    def set_model(self, model: Any) -> None:
        """Receive the model before the training begins."""
        self.model = model

    def get_state(self) -> dict[str, Any]:
        """What the callback must remember when a killed training is resumed.

        Returns:
            A dict of numbers, strings, None, arrays, and lists and dicts of these.
        """
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take up what `get_state` gave; called after `on_train_begin` of a resumed training."""

    def set_siblings(self, callbacks: Sequence[Callback]) -> None:
        """Receive all callbacks of the training, in their order, before it begins."""

    def settle(self) -> None:
        """Give the model the weights that were trained: called after the last epoch, before the
        optimizer's averages take their place."""

    def release(self) -> None:
        """Close files and give back what was borrowed: called last, after an exception too."""

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Called when fit begins."""

    def on_train_end(self, logs: Logs | None = None) -> None:
        """Called when fit ends, with the logs of the last epoch."""

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Called when an epoch of fit begins."""

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Called when an epoch of fit ends, validation included."""

    def on_train_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Called before each batch of fit."""

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Called after each batch of fit, with the averages since the epoch began."""

    def on_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """An older name of `on_train_batch_begin`."""

    def on_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """An older name of `on_train_batch_end`."""

    def on_test_begin(self, logs: Logs | None = None) -> None:
        """Called when evaluate, or a validation in fit, begins."""

    def on_test_end(self, logs: Logs | None = None) -> None:
        """Called when evaluate, or a validation in fit, ends."""

    def on_test_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Called before each batch of evaluate."""

    def on_test_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Called after each batch of evaluate, with the averages so far."""

    def on_predict_begin(self, logs: Logs | None = None) -> None:
        """Called when predict begins."""

    def on_predict_end(self, logs: Logs | None = None) -> None:
        """Called when predict ends."""

    def on_predict_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Called before each batch of predict."""

    def on_predict_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Called after each batch of predict, with {"outputs": ...}."""


HOOKS = tuple(name for name in vars(Callback) if name.startswith("on_"))
_OLDER_NAMES = {
    "on_train_batch_begin": "on_batch_begin",
    "on_train_batch_end": "on_batch_end",
}


class CallbackList:
    """Several callbacks as one: each hook is passed to those that override it, in their order.

    The logs of a batch may be given as a function without arguments. It is called when a callback
    wants the logs, and not at all when none does.

    Args:
        callbacks: a callback or a (nested) list of them.
        add_history: append a `History` unless there is one.
        add_progbar: append a `ProgbarLogger` unless there is one.
        model: passed to `set_model` of each.
        **params: passed to `set_params` of each; verbose, epochs, steps, and for the speed in the
            progress bar samples and batch_size.

    Raises:
        TypeError: for something that is not a callback.
    """

    def __init__(
        self,
        callbacks: Any = None,
        add_history: bool = False,
        add_progbar: bool = False,
        model: Any = None,
        **params: Any,
    ) -> None:
        from picodl.callbacks.history import History
        from picodl.callbacks.progress import ProgbarLogger

        self.callbacks = [_checked(item) for item in tree.flatten(callbacks) if item is not None]
        if add_history and self._find(History) is None:
            self.callbacks.append(History())
        if add_progbar and self._find(ProgbarLogger) is None:
            self.callbacks.append(ProgbarLogger())
        self.history: Any = self._find(History)
        self.model: Any = None
        self.params: dict[str, Any] = {}
        if model is not None:
            self.set_model(model)
        self.set_params(params)
        self._collect()

    def _find(self, kind: type) -> Callback | None:
        return next((c for c in self.callbacks if isinstance(c, kind)), None)

    def append(self, callback: Callback) -> None:
        """Add a callback at the end."""
        self.callbacks.append(_checked(callback))
        callback.set_params(self.params)
        if self.model is not None:
            callback.set_model(self.model)
        self._collect()

    def set_params(self, params: dict[str, Any]) -> None:
        """Hand the parameters to all callbacks."""
        self.params = params
        for callback in self.callbacks:
            callback.set_params(params)

    def set_model(self, model: Any) -> None:
        """Hand the model to all callbacks."""
        self.model = model
        if self.history is not None:
            model.history = self.history
        for callback in self.callbacks:
            callback.set_model(model)
            callback.set_siblings(self.callbacks)

    def restore(self, saved: Sequence[Any]) -> list[Callback | None]:
        """Give the callbacks the states of those of the same class in a saved list.

        Returns:
            The callback that got each of the states, None where there is none.
        """
        left = list(self.callbacks)
        found: list[Callback | None] = []
        for name, state in saved:
            match = next((c for c in left if type(c).__name__ == name), None)
            if match is not None:
                left.remove(match)
                match.set_state(state)
            found.append(match)
        return found

    def _collect(self) -> None:
        self._hooks: dict[str, list[tuple[Callable[..., None], bool]]] = {}
        for hook in HOOKS:
            found = ((_hook_of(c, hook), c.lazy_logs) for c in self.callbacks)
            self._hooks[hook] = [(method, lazy) for method, lazy in found if method is not None]
        self._train_batch_end = self._hooks["on_train_batch_end"]
        self._train_batch_begin = self._hooks["on_train_batch_begin"]

    @property
    def has_train_batch_hooks(self) -> bool:
        """Whether some callback looks at the batches of fit."""
        return bool(self._train_batch_begin or self._train_batch_end)

    @property
    def has_train_batch_begin_hooks(self) -> bool:
        """Whether some callback wants to know when a batch of fit begins."""
        return bool(self._train_batch_begin)

    @property
    def has_test_batch_hooks(self) -> bool:
        """Whether some callback looks at the batches of evaluate."""
        return bool(self._hooks["on_test_batch_begin"] or self._hooks["on_test_batch_end"])

    @property
    def has_predict_batch_hooks(self) -> bool:
        """Whether some callback looks at the batches of predict."""
        return bool(self._hooks["on_predict_batch_begin"] or self._hooks["on_predict_batch_end"])

    def settle(self) -> None:
        """Let all callbacks give the model back the weights that were trained."""
        for callback in self.callbacks:
            callback.settle()

    def release(self) -> None:
        """Let all callbacks close what they hold; to be called however the run ends."""
        for callback in self.callbacks:
            callback.release()

    def on_train_begin(self, logs: Logs | None = None) -> None:
        self._call("on_train_begin", logs)

    def on_train_end(self, logs: Logs | None = None) -> None:
        self._call("on_train_end", logs)

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        self._call_at("on_epoch_begin", epoch, logs)

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        self._call_at("on_epoch_end", epoch, logs)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self._train_batch_begin:
            _call_with_logs(self._train_batch_begin, batch, logs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._train_batch_end:
            _call_with_logs(self._train_batch_end, batch, logs)

    def on_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.on_train_batch_begin(batch, logs)

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        self.on_train_batch_end(batch, logs)

    def on_test_begin(self, logs: Logs | None = None) -> None:
        self._call("on_test_begin", logs)

    def on_test_end(self, logs: Logs | None = None) -> None:
        self._call("on_test_end", logs)

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        _call_with_logs(self._hooks["on_test_batch_begin"], batch, logs)

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        _call_with_logs(self._hooks["on_test_batch_end"], batch, logs)

    def on_predict_begin(self, logs: Logs | None = None) -> None:
        self._call("on_predict_begin", logs)

    def on_predict_end(self, logs: Logs | None = None) -> None:
        self._call("on_predict_end", logs)

    def on_predict_batch_begin(self, batch: int, logs: Any = None) -> None:
        _call_with_logs(self._hooks["on_predict_batch_begin"], batch, logs)

    def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
        _call_with_logs(self._hooks["on_predict_batch_end"], batch, logs)

    def _call(self, hook: str, logs: Logs | None) -> None:
        logs = {} if logs is None else logs
        for method, _ in self._hooks[hook]:
            method(logs)

    def _call_at(self, hook: str, number: int, logs: Logs | None) -> None:
        logs = {} if logs is None else logs
        for method, _ in self._hooks[hook]:
            method(number, logs)


def _call_with_logs(
    hooks: Iterable[tuple[Callable[..., None], bool]], batch: int, logs: Any
) -> None:
    for method, lazy in hooks:
        if not lazy and (logs is None or callable(logs)):
            logs = {} if logs is None else logs()
        method(batch, logs)


def _hook_of(callback: Callback, hook: str) -> Callable[..., None] | None:
    """The method that answers a hook; None if the callback leaves it as it is in Callback."""
    for name in (hook, _OLDER_NAMES.get(hook)):
        if name is not None:
            method = getattr(callback, name)
            if getattr(method, "__func__", method) is not getattr(Callback, name):
                return method
    return None


def _checked(item: Any) -> Callback:
    if isinstance(item, Callback):
        return item
    if inspect.isclass(item) and issubclass(item, Callback):
        raise TypeError(
            f"callbacks holds the class {item.__name__} itself; pass an instance, "
            f"{item.__name__}(...)."
        )
    raise TypeError(
        f"callbacks must be a list of Callback instances, but received {item!r} of type "
        f"{type(item).__name__}. Wrap a function in LambdaCallback(on_epoch_end=...)."
    )
