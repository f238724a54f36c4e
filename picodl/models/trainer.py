"""fit, evaluate and predict: the loops over batches."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from picodl import config, parallel, tree
from picodl.callbacks import CallbackList, History
from picodl.models import data as batches
from picodl.models import state
from picodl.models.folding import predicting
from picodl.models.steps import Steps, numbers_of
from picodl.module import Parameter
from picodl.tensor import Tensor, no_grad


class Trainer(Steps):
    """The loops over batches.

    While a fit runs, other threads may predict: they see the weights as they are between two
    steps or in the middle of one. Two fits of one model at the same time are not supported.
    """

    history: History | None = None
    _resumed: state.Resumed | None = None

    # ---------------------------------------------------------------- fit

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: int | str = "auto",
        callbacks: Any = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: bool | str = True,
        class_weight: dict[int, float] | None = None,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: Any = 1,
    ) -> History:
        """Train the model.

        Other threads may predict meanwhile: they see the weights between two steps or amid one.
        One model is trained by one thread at a time.

        Args:
            x: inputs: an array, a list or dict of arrays, or an iterable of batches.
            y: targets, in the structure of the outputs; None for an iterable.
            batch_size: samples per step. Defaults to 32.
            epochs: the number of the last epoch; each is a pass over the data.
            verbose: 0 nothing, 1 a progress bar, 2 a line per epoch, "auto" 1 on a terminal.
            callbacks: a list of Callbacks.
            validation_split: the fraction at the end of the data to evaluate on instead.
            validation_data: (x, y) or (x, y, sample_weight), or an iterable of batches; with it,
                validation_split is not looked at.
            shuffle: True, False, or "batch" to shuffle inside batches only.
            class_weight: {class: weight} of the loss.
            sample_weight: weights of the loss, one per sample or per time step.
            initial_epoch: the epoch to begin with, to go on with an earlier run.
            steps_per_epoch, validation_steps: batches per epoch. Defaults to all.
            validation_batch_size: defaults to batch_size.
            validation_freq: evaluate every so many epochs, or in these epochs (counted from 1).

        Returns:
            The History: its `history` holds one list per logged name.

        Raises:
            ValueError: for arguments or data that do not fit, before anything is trained.
        """
        self._require_compiled("fit()")
        epochs = _whole("epochs", epochs, 0)
        initial_epoch = _whole("initial_epoch", initial_epoch, 0)
        if validation_split and validation_data is None:
            (x, y, sample_weight), validation_data = batches.split_validation(
                x, y, sample_weight, validation_split, self._takes_strings
            )
        train = batches.make_batches(
            x,
            y,
            sample_weight,
            batch_size=batch_size,
            steps=steps_per_epoch,
            shuffle=shuffle,
            class_weight=class_weight,
            strings=self._takes_strings,
        )
        validation_batch_size = batches.check_whole("validation_batch_size", validation_batch_size)
        validation = self._validation(
            validation_data, validation_batch_size or batch_size, validation_steps
        )
        evaluates = _frequency(validation_freq)
        limit = config.max_epochs()
        epochs = epochs if limit is None else min(epochs, initial_epoch + limit)
        cap = config.max_steps_per_epoch()
        steps = train.steps if cap is None or train.steps is None else min(cap, train.steps)
        listeners = CallbackList(
            callbacks,
            add_history=True,
            add_progbar=verbose != 0,
            model=self,
            verbose=verbose,
            epochs=epochs,
            steps=steps,
            samples=train.samples,
            batch_size=train.batch_size,
        )
        self._prepare_training()
        step = self._train if type(self).train_step is Steps.train_step else self._custom_train
        logs: dict[str, Any] = {}
        with parallel.blas_single_thread(), _closing(listeners, train, validation):
            listeners.on_train_begin()
            first, start = initial_epoch, 0
            resumed = self._resumed
            if resumed is not None:
                self._resumed = None
                first, start = resumed.epoch, resumed.batch
                resumed.restore(listeners, repeat=start == 0)
            for epoch in range(first, epochs):
                if self.stop_training or not train.has_more():
                    break
                if start == 0:
                    self.reset_metrics()
                listeners.on_epoch_begin(epoch)
                if start and resumed is not None:
                    resumed.restore(listeners)  # over what on_epoch_begin did a second time
                self._epoch(train, epoch - initial_epoch, start, cap, listeners, step)
                start = 0
                logs = self._logs()
                if validation is not None and evaluates(epoch):
                    logs = logs | self._validate(validation, listeners)
                train.on_epoch_end()
                listeners.on_epoch_end(epoch, logs)
            listeners.settle()
            if hasattr(self.optimizer, "finalize_variable_values"):
                self.optimizer.finalize_variable_values(self.trainable_weights)
            listeners.on_train_end(logs)
        return self.history  # type: ignore[return-value]

    def _epoch(
        self,
        train: Any,
        number: int,
        start: int,
        cap: int | None,
        listeners: Any,
        step: Callable[..., None],
    ) -> None:
        """Train on the batches of one epoch: the hot loop."""
        begins, get_logs = listeners.has_train_batch_begin_hooks, self._logs
        checked = self._reached is not None
        for i, (x, y, sample_weight) in enumerate(train.epoch(number, start), start):
            if cap is not None and i >= cap:
                break
            if begins:
                listeners.on_train_batch_begin(i)
            step(x, y, sample_weight)
            if not checked:
                self._check_gradients()
                checked = True
            listeners.on_train_batch_end(i, get_logs)
            if self.stop_training:
                break

    def _prepare_training(self) -> None:
        """Whatever an earlier use may have left behind is put right."""
        self.stop_training = False
        self._saw_nan = False
        self._reached = None
        self._custom_logs = None
        self._find_parts()
        self.reset_metrics()
        self.zero_grad()

    def _check_gradients(self) -> None:
        """After the first step: warn of weights that training does not reach."""
        if type(self).train_step is not Steps.train_step:
            return
        trainable = self.trainable_weights
        if not trainable:
            warnings.warn(f'Model "{self.name}" has no trainable weights.', stacklevel=5)
        reached = self._reached or set()
        lost = [w for w in trainable if id(w) not in reached]
        if lost and reached:
            warnings.warn(
                "No gradient reaches the weights "
                + ", ".join(getattr(w, "path", "?") for w in lost[:5])
                + ("" if len(lost) <= 5 else f" and {len(lost) - 5} more")
                + f' of model "{self.name}": they are not trained. Does the loss depend on them?',
                stacklevel=5,
            )

    def get_training_state(self) -> dict[str, Any]:
        """Weights, optimizer, metrics and random generators as plain numbers and arrays."""
        return state.get_training_state(self)

    def resume_training(self, saved: dict[str, Any]) -> None:
        """Let the fit that is about to begin go on from a saved state; see `state.Resumed`."""
        self._resumed = state.Resumed(self, saved)

    def _logs(self) -> dict[str, Any]:
        """The running metrics in alphabetical order."""
        found = self.get_metrics_result()
        if self._custom_logs is not None and set(found) != set(self._custom_logs):
            found = self._custom_logs  # a train_step of the user's own decides what is logged
        return dict(sorted(found.items()))

    def _custom_train(self, x: Any, y: Any, sample_weight: Any) -> None:
        logs = self.train_step(_pack(x, y, sample_weight))
        self._custom_logs = numbers_of(logs)

    def _custom_test(self, x: Any, y: Any, sample_weight: Any) -> None:
        with no_grad():
            logs = self.test_step(_pack(x, y, sample_weight))
        self._custom_logs = numbers_of(logs)

    # ---------------------------------------------------------------- evaluate

    def _validation(self, data: Any, batch_size: int | None, steps: int | None) -> Any:
        if data is None:
            return None
        steps = batches.check_whole("validation_steps", steps)
        parts = tuple(data) if isinstance(data, (tuple, list)) else (data,)
        if len(parts) not in (1, 2, 3):
            raise ValueError(
                "validation_data is (x,), (x, y) or (x, y, sample_weight), or an iterable of "
                f"batches; received a {type(data).__name__} of {len(data)}."
            )
        try:
            return batches.make_batches(
                *parts, batch_size=batch_size, steps=steps, strings=self._takes_strings
            )
        except (TypeError, ValueError) as error:
            raise type(error)(f"In validation_data: {error}") from error

    def _takes_strings(self) -> bool:
        """Whether one of the layers takes texts."""
        return any(
            getattr(module, "accepts_strings", False) and not isinstance(module, Steps)
            for module in self.modules()
        )

    def _validate(self, validation: Any, listeners: Any) -> dict[str, Any]:
        """Evaluate inside a fit; the logs with val_ before their names."""
        self.reset_metrics()
        custom, self._custom_logs = self._custom_logs, None
        logs = self._evaluate(validation, listeners)
        self._custom_logs = custom
        return {f"val_{name}": value for name, value in logs.items()}

    def _evaluate(self, data: Any, listeners: Any) -> dict[str, Any]:
        step = self._test if type(self).test_step is Steps.test_step else self._custom_test
        cap = config.max_steps_per_epoch()
        self.stop_evaluating = False
        listeners.on_test_begin()
        for i, (x, y, sample_weight) in enumerate(data.epoch(0)):
            if cap is not None and i >= cap:
                break
            listeners.on_test_batch_begin(i)
            step(x, y, sample_weight)
            listeners.on_test_batch_end(i, self._logs)
            if self.stop_evaluating:
                break
        logs = self._logs()
        listeners.on_test_end(logs)
        return logs

    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        verbose: int | str = "auto",
        sample_weight: Any = None,
        steps: int | None = None,
        callbacks: Any = None,
        return_dict: bool = False,
    ) -> Any:
        """The loss and the metrics on data.

        Args:
            x, y, batch_size, verbose, sample_weight, callbacks: as in fit.
            steps: the number of batches. Defaults to all.
            return_dict: return {name: value} instead of a list.

        Returns:
            The loss, or [loss, metrics...] where there are metrics.

        Raises:
            ValueError: for arguments or data that do not fit.
        """
        self._require_compiled("evaluate()")
        data = batches.make_batches(
            x, y, sample_weight, batch_size=batch_size, steps=steps, strings=self._takes_strings
        )
        listeners = CallbackList(
            callbacks, add_progbar=verbose != 0, model=self, verbose=verbose, epochs=1,
            steps=data.steps, samples=data.samples, batch_size=data.batch_size,
        )  # fmt: skip
        self._custom_logs = None
        self._find_parts()
        self.reset_metrics()
        with parallel.blas_single_thread(), _closing(listeners, data):
            logs = self._evaluate(data, listeners)
        return self._report(logs, return_dict)

    def _report(self, logs: dict[str, Any], return_dict: bool) -> Any:
        if return_dict:
            return logs
        order = list(self.get_metrics_result() if self._custom_logs is None else logs)
        values = [logs[name] for name in order]
        return values[0] if len(values) == 1 else values

    # ---------------------------------------------------------------- predict

    def predict(
        self,
        x: Any,
        batch_size: int | None = None,
        verbose: int | str = "auto",
        steps: int | None = None,
        callbacks: Any = None,
    ) -> Any:
        """The outputs for data, as arrays; safe to call from several threads.

        Args:
            x, batch_size, verbose, callbacks: as in fit.
            steps: the number of batches. Defaults to all.

        Returns:
            An array, or the structure of the model's outputs with arrays.

        Raises:
            ValueError: for data that does not fit.
        """
        if type(x) is np.ndarray and verbose == 0 and callbacks is None and steps is None:
            limit = 32 if batch_size is None else batch_size
            if type(limit) is int and 0 < len(x) <= limit and x.dtype.kind in "fiub":
                return self.predict_on_batch(x)  # a short path for few rows
        data = batches.make_batches(
            x, batch_size=batch_size, steps=steps, allow_empty=True, strings=self._takes_strings
        )
        listeners = CallbackList(
            callbacks, add_progbar=verbose != 0, model=self, verbose=verbose, epochs=1,
            steps=data.steps, samples=data.samples, batch_size=data.batch_size,
        )  # fmt: skip
        custom = type(self).predict_step is not Steps.predict_step
        cap = config.max_steps_per_epoch()
        parts: list[Any] = []
        with parallel.blas_single_thread(), predicting(), _closing(listeners, data):
            self.stop_predicting = False
            listeners.on_predict_begin()
            for i, (x, _, _) in enumerate(data.epoch(0)):
                if cap is not None and i >= cap:
                    break
                listeners.on_predict_batch_begin(i)
                y = self.predict_step(_pack(x)) if custom else self(x, training=False)
                parts.append(_plain(y, x))
                listeners.on_predict_batch_end(i, {"outputs": parts[-1]})
                if self.stop_predicting:
                    break
            listeners.on_predict_end()
        if len(parts) == 1:
            return parts[0]
        return tree.map_structure(lambda *rows: np.concatenate(rows), *parts)

    # ---------------------------------------------------------------- single batches

    def train_on_batch(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        class_weight: dict[int, float] | None = None,
        return_dict: bool = False,
    ) -> Any:
        """One training step; returns the loss and metrics of this batch as evaluate does."""
        self._require_compiled("train_on_batch()")
        x, y, sample_weight = batches.one_batch(
            x, y, sample_weight, class_weight, self._takes_strings
        )
        if self._regularized is None:
            self._find_parts()
        self._custom_logs = None
        self.reset_metrics()
        with parallel.blas_single_thread():
            if type(self).train_step is Steps.train_step:
                self._train(x, y, sample_weight)
            else:
                self._custom_train(x, y, sample_weight)
        return self._report(self._logs(), return_dict)

    def test_on_batch(
        self, x: Any, y: Any = None, sample_weight: Any = None, return_dict: bool = False
    ) -> Any:
        """The loss and metrics of one batch, as evaluate returns them."""
        self._require_compiled("test_on_batch()")
        x, y, sample_weight = batches.one_batch(x, y, sample_weight, strings=self._takes_strings)
        if self._regularized is None:
            self._find_parts()
        self._custom_logs = None
        self.reset_metrics()
        with parallel.blas_single_thread():
            if type(self).test_step is Steps.test_step:
                self._test(x, y, sample_weight)
            else:
                self._custom_test(x, y, sample_weight)
        return self._report(self._logs(), return_dict)

    def predict_on_batch(self, x: Any) -> Any:
        """The outputs for one batch, as arrays."""
        with predicting():
            if type(self).predict_step is Steps.predict_step:
                return _plain(self(x, training=False), x)
            return _plain(self.predict_step(_pack(x)), x)


@contextlib.contextmanager
def _closing(listeners: CallbackList, *data: Any) -> Iterator[None]:
    """However the run ends: let callbacks and data close what they hold."""
    try:
        yield
    finally:
        listeners.release()
        for batches in data:
            if batches is not None:
                batches.close()


def _plain(y: Any, x: Any) -> Any:
    """Tensors as arrays that are the caller's own: no view of the inputs or of a weight."""

    def own(t: Any) -> Any:
        if not isinstance(t, Tensor):
            return t
        array = t.data
        kept = array.base is not None or isinstance(t, Parameter)
        if kept or any(array is leaf for leaf in tree.flatten(x)):
            return array.copy()
        return array

    return own(y) if isinstance(y, Tensor) else tree.map_structure(own, y)


def _pack(x: Any, y: Any = None, sample_weight: Any = None) -> Any:
    """A batch as steps of the user's own receive it: one array alone stands for itself."""
    if y is None and sample_weight is None:
        return (x,) if isinstance(x, (list, tuple)) else x
    return (x, y) if sample_weight is None else (x, y, sample_weight)


def _whole(argument: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ValueError(f"{argument} must be an integer of at least {least}; received {value!r}.")
    return int(value)


def _frequency(validation_freq: Any) -> Callable[[int], bool]:
    """Whether to evaluate after epoch e (from 0)."""
    if isinstance(validation_freq, (int, np.integer)) and not isinstance(validation_freq, bool):
        every = _whole("validation_freq", validation_freq, 1)
        return lambda epoch: (epoch + 1) % every == 0
    if isinstance(validation_freq, (list, tuple, set)):
        chosen = set(validation_freq)
        return lambda epoch: epoch + 1 in chosen
    raise ValueError(
        "validation_freq must be a positive integer or a list of epochs (counted from 1); received "
        f"{validation_freq!r}."
    )
