"""Progress: a bar on a terminal or in a notebook, plain lines elsewhere."""

from __future__ import annotations

import logging
import math
import shutil
import sys
from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Any

import numpy as np

from picodl.callbacks.base import Callback, Logs

_interactive = True
_BAR = "{desc}{percentage:3.0f}%|{bar:WIDTH}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
_NO_BAR = "{desc}{percentage:3.0f}% {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
_NO_TOTAL = "{desc}{n_fmt} [{elapsed}{postfix}]"  # when nobody knows how many steps there will be


def enable_interactive_logging() -> None:
    """Write progress to the terminal: the default."""
    global _interactive
    _interactive = True


def disable_interactive_logging() -> None:
    """Write progress as lines to Python's logger "picodl" instead of the terminal."""
    global _interactive
    _interactive = False


def is_interactive_logging_enabled() -> bool:
    """Whether progress goes to the terminal."""
    return _interactive


def in_notebook() -> bool:
    """Whether the code runs in a Jupyter notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


def draws_bars() -> bool:
    """Whether a bar can be drawn: interactive logging, on a terminal or in a notebook."""
    return _interactive and (in_notebook() or bool(getattr(sys.stderr, "isatty", lambda: False)()))


def resolve_verbose(verbose: Any) -> int:
    """0 (silent), 1 (bar) or 2 (lines); "auto" is 1 where bars can be drawn, else 2.

    Raises:
        ValueError: for anything else.
    """
    if isinstance(verbose, str) and verbose == "auto":
        return 1 if draws_bars() else 2
    if isinstance(verbose, (int, float)) and verbose in (0, 1, 2):
        return int(verbose)
    raise ValueError(f'verbose must be 0, 1, 2 or "auto"; received {verbose!r}.')


class Progbar:
    """Show how far a loop has come: a tqdm bar on stderr, or a line on stdout at its end.

    Args:
        target: number of steps; None if unknown.
        width: width of the bar in characters.
        verbose: 0 silent, 1 a bar where one can be drawn and else a line, 2 a line.
        interval: seconds between two drawings of the bar.
        stateful_metrics: names of values shown as they are; others are averaged over the steps.
        stateless_metrics: names of values to average when stateful_metrics is not given; all
            others are then shown as they are.
        unit_name: what a step is called.
        description: text in front of the bar.
        samples: number of samples in all steps, and batch_size: in one; for the speed in the bar.

    Raises:
        ValueError: if both lists of names are given.

    >>> bar = Progbar(2, verbose=2)
    >>> bar.update(2, [("loss", 0.25)])
    2/2 - 0s - ...s/step - loss: 0.2500
    """

    def __init__(
        self,
        target: int | None,
        width: int = 20,
        verbose: int = 1,
        interval: float = 0.05,
        stateful_metrics: Iterable[str] | None = None,
        stateless_metrics: Iterable[str] | None = None,
        unit_name: str = "step",
        *,
        description: str = "",
        samples: int | None = None,
        batch_size: int | None = None,
    ) -> None:
        if stateful_metrics is not None and stateless_metrics is not None:
            raise ValueError("Progbar: give stateful_metrics or stateless_metrics, not both.")
        self.target = target
        self.width = width
        self.verbose = verbose
        self.interval = interval
        self.stateful_metrics = set(stateful_metrics or ())
        self.stateless_metrics = None if stateless_metrics is None else set(stateless_metrics)
        self.unit_name = unit_name
        self.description = description
        self.samples = samples
        self.batch_size = batch_size
        self.draws = verbose == 1 and draws_bars()
        self.step = 0
        self.next_draw = 0.0  # the clock's time from which a drawing is due
        self._sums: dict[str, list[float]] = {}
        self._bar: Any = None
        self._done = False
        self._start = perf_counter()
        self._paused: float | None = None

    def add(self, n: int, values: Iterable[tuple[str, Any]] | None = None) -> None:
        """Go n steps further, with the values of these steps."""
        self.update(self.step + n, values)

    def update(
        self,
        current: int,
        values: Iterable[tuple[str, Any]] | None = None,
        finalize: bool | None = None,
    ) -> None:
        """Say which step was reached.

        Args:
            current: number of steps done.
            values: (name, value) pairs of the last steps.
            finalize: whether this is the end. Defaults to current >= target.
        """
        steps = max(current - self.step, 1)
        self.step = current
        for name, value in values or ():
            self._take(name, value, steps)
        if finalize is None:
            finalize = self.target is not None and current >= self.target
        if self._done or not self.verbose:
            return
        if finalize:
            self.finish()
        elif self.draws and perf_counter() >= self.next_draw:
            self._draw()

    def pause(self) -> None:
        """Let the time from now on not count for the speed in samples per second."""
        self._paused = perf_counter() - self._start

    def finish(self) -> None:
        """Draw the last state and end the line."""
        if self._done:
            return
        self._done = True
        if self.draws:
            self._draw(last=True)
        elif self.verbose:
            write_line(self._line())

    def release(self) -> None:
        """Leave a half-drawn bar as it is, on a line of its own."""
        self._done = True
        if self._bar is not None:
            self._bar.close()

    def _take(self, name: str, value: Any, steps: int) -> None:
        keep = name in self.stateful_metrics
        if self.stateless_metrics is not None:
            keep = name not in self.stateless_metrics
        if keep or name not in self._sums:
            steps = 1 if keep else steps
            self._sums[name] = [value * steps, steps]
        else:
            pair = self._sums[name]
            pair[0] += value * steps
            pair[1] += steps

    def _values(self) -> str:
        parts = []
        for name, (total, count) in self._sums.items():
            value = float(np.mean(total)) / count  # one number for a metric with several
            text = f"{value:.4f}" if abs(value) > 1e-3 else f"{value:.4e}"
            parts.append(f" - {name}: {text}")
        return "".join(parts)

    def _line(self) -> str:
        seconds = perf_counter() - self._start
        target = self.step if self.target is None else self.target
        count = f"{self.step:{len(str(target))}d}/{target}"
        speed = _duration(seconds / max(self.step, 1))
        return f"{count} - {seconds:.0f}s - {speed}/{self.unit_name}{self._values()}"

    def _speed(self, seconds: float) -> str:
        seconds = self._paused or seconds
        done = self.step * (self.batch_size or 0)
        if self.samples is not None:
            done = min(done, self.samples)
        if not done or not seconds:
            return f"{_duration(seconds / max(self.step, 1))}/{self.unit_name}"
        return f"{_magnitude(done / seconds)} samples/s"

    def _draw(self, last: bool = False) -> None:
        now = perf_counter()
        seconds = now - self._start
        if self._bar is None:
            self._bar = _make_bar(self.target, self.description, seconds)
        bar, values = self._bar, self._values()
        bar.n = self.step
        bar.postfix = self._speed(seconds) + values
        room = (bar.ncols or 0) - len(self.description) - len(values) - 60
        if self.target is None:
            bar.bar_format = _NO_TOTAL
        elif bar.ncols is None:  # a widget, which finds its own width
            bar.bar_format = _BAR.replace(":WIDTH", "")
        elif room < 4:
            bar.bar_format = _NO_BAR
        else:
            bar.bar_format = _BAR.replace("WIDTH", str(min(room, self.width)))
        if last:
            bar.ncols = None  # the line that stays is written whole
            bar.close()
        else:
            bar.refresh()
            self.next_draw = now + self.interval


class ProgbarLogger(Callback):
    """Show the progress of fit, evaluate and predict; added by them unless verbose is 0.

    verbose 1 draws a bar for each epoch where one can be drawn; otherwise, and with verbose 2, each
    epoch is a line or two on stdout: `45/45 - 0s - 1ms/step - loss: 0.1234 - val_loss: 0.2345`.
    """

    lazy_logs = True
    repeats = False

    def __init__(self) -> None:
        super().__init__()
        self._bar: Progbar | None = None
        self._fitting = False
        self._seen = 0
        self._next_draw = math.inf

    def on_train_begin(self, logs: Logs | None = None) -> None:
        self._fitting = True

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        epochs = self.params.get("epochs", 1)
        title = f"Epoch {epoch + 1}/{epochs}" if epochs and epochs > 1 else ""
        self._begin(title)
        if title and not self._drawing() and self.params.get("verbose", 1):
            write_line(title)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._seen = batch + 1
        if perf_counter() >= self._next_draw:
            self._show(logs)

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        self._end(logs)

    def on_train_end(self, logs: Logs | None = None) -> None:
        self._fitting = False

    def on_test_begin(self, logs: Logs | None = None) -> None:
        if not self._fitting:
            self._begin("")
        elif self._bar is not None:
            self._bar.pause()

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        if not self._fitting:
            self.on_train_batch_end(batch, logs)

    def on_test_end(self, logs: Logs | None = None) -> None:
        if not self._fitting:
            self._end(logs)

    def on_predict_begin(self, logs: Logs | None = None) -> None:
        self._begin("")

    def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
        self._seen = batch + 1
        if perf_counter() >= self._next_draw:
            self._show(None)  # the logs hold the outputs

    def on_predict_end(self, logs: Logs | None = None) -> None:
        self._end(None)

    def release(self) -> None:
        self._fitting = False
        self._next_draw = math.inf
        if self._bar is not None:
            self._bar.release()
            self._bar = None

    def _drawing(self) -> bool:
        return self._bar is not None and self._bar.draws

    def _begin(self, title: str) -> None:
        params = self.params
        self._seen = 0
        self._bar = Progbar(
            params.get("steps"),
            verbose=resolve_verbose(params.get("verbose", 1)),
            interval=0.1,
            description=title and f"{title} ",
            stateless_metrics=(),
            samples=params.get("samples"),
            batch_size=params.get("batch_size"),
        )
        self._next_draw = perf_counter() + 0.1 if self._bar.draws else math.inf

    def _show(self, logs: Logs | Callable[[], Logs] | None) -> None:
        if self._bar is not None:
            logs = logs() if callable(logs) else logs
            self._bar.update(self._seen, (logs or {}).items(), finalize=False)
            self._next_draw = self._bar.next_draw

    def _end(self, logs: Logs | None) -> None:
        self._next_draw = math.inf
        if self._bar is not None:
            if self._bar.target is None:
                self._bar.target = self._seen
            self._bar.update(self._seen, (logs or {}).items(), finalize=True)
            self._bar = None


def write_line(text: str) -> None:
    """Write a line on stdout, or to the logger when interactive logging is off."""
    if _interactive:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    else:
        logging.getLogger("picodl").info("%s", text)


def _make_bar(target: int | None, description: str, seconds: float) -> Any:
    """A tqdm bar that began some seconds ago and is drawn only when told to."""
    import importlib.util

    import tqdm

    kind, widget = tqdm.tqdm, False
    if in_notebook() and importlib.util.find_spec("ipywidgets"):
        import tqdm.notebook

        kind, widget = tqdm.notebook.tqdm, True  # else the plain bar, which works there too

    class Bar(kind):  # type: ignore[valid-type, misc]
        monitor_interval = 0  # no watching thread

    bar = Bar(
        total=target,
        desc=description,
        leave=True,
        ncols=None if widget else shutil.get_terminal_size().columns - 1,
        nrows=20,  # a terminal of unknown size would hide the bar
        delay=0 if widget else 1,  # nothing is drawn here, but a widget must be shown
        file=sys.stderr,
    )
    bar.set_description_str(description, refresh=False)
    bar.delay = 0
    bar.start_t -= seconds
    return bar


def _duration(seconds: float) -> str:
    if seconds >= 1 or seconds == 0:
        return f"{seconds:.0f}s"
    return f"{seconds * 1e3:.0f}ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f}us"


def _magnitude(number: float) -> str:
    for unit in ("", "k", "M"):
        if number < 1000:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:.3g}G"
