"""Callbacks: look into a training, log it, stop it, save it."""

from picodl.callbacks.base import Callback, CallbackList
from picodl.callbacks.history import History
from picodl.callbacks.progress import Progbar, ProgbarLogger
from picodl.callbacks.functions import LambdaCallback
from picodl.callbacks.stopping import EarlyStopping, TerminateOnNaN, TimeStopping
from picodl.callbacks.learning_rate import (
    LearningRateScheduler,
    ReduceLROnPlateau,
    SwapEMAWeights,
)
from picodl.callbacks.rate_finder import LearningRateFinder
from picodl.callbacks.checkpoint import ModelCheckpoint
from picodl.callbacks.backup import BackupAndRestore
from picodl.callbacks.logging import CSVLogger, JSONLinesLogger, LoggingCallback
from picodl.callbacks.tensorboard import TensorBoard
from picodl.callbacks.gradients import GradientMonitor
from picodl.callbacks.plot import LivePlot
