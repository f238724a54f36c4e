"""LambdaCallback: hooks as plain functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from picodl.callbacks.base import HOOKS, Callback
from picodl.naming import suggest


class LambdaCallback(Callback):
    """A callback made of functions, each given under the name of its hook.

    Args:
        on_epoch_begin, on_epoch_end: functions of (epoch, logs).
        on_train_begin, on_train_end: functions of (logs).
        on_train_batch_begin, on_train_batch_end: functions of (batch, logs).
        **kwargs: functions for any other hook.

    Raises:
        TypeError: for a name that is no hook, or something that cannot be called.

    >>> seen = []
    >>> callback = LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(logs["loss"]))
    >>> callback.on_epoch_end(0, {"loss": 0.5})
    >>> seen
    [0.5]
    """

    def __init__(
        self,
        on_epoch_begin: Callable[..., Any] | None = None,
        on_epoch_end: Callable[..., Any] | None = None,
        on_train_begin: Callable[..., Any] | None = None,
        on_train_end: Callable[..., Any] | None = None,
        on_train_batch_begin: Callable[..., Any] | None = None,
        on_train_batch_end: Callable[..., Any] | None = None,
        **kwargs: Callable[..., Any] | None,
    ) -> None:
        super().__init__()
        given = {
            "on_epoch_begin": on_epoch_begin,
            "on_epoch_end": on_epoch_end,
            "on_train_begin": on_train_begin,
            "on_train_end": on_train_end,
            "on_train_batch_begin": on_train_batch_begin,
            "on_train_batch_end": on_train_batch_end,
            **kwargs,
        }
        for hook, function in given.items():
            if hook not in HOOKS:
                raise TypeError(f"LambdaCallback: there is no hook {hook!r}.{suggest(hook, HOOKS)}")
            if function is None:
                continue
            if not callable(function):
                raise TypeError(f"LambdaCallback: {hook} must be callable; received {function!r}.")
            setattr(self, hook, function)
