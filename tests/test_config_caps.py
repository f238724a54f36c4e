"""Caps on epochs and batches, and Keras's other names for helpers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import picodl as keras
from picodl import config, layers, ops, preprocessing, utils

X, Y = np.ones((10, 3), "float32"), np.ones((10, 1), "float32")


@pytest.fixture
def caps() -> Iterator[None]:
    config.set_max_epochs(2)
    config.set_max_steps_per_epoch(3)
    yield
    config.set_max_epochs(None)
    config.set_max_steps_per_epoch(None)


def test_caps_hold_for_fit_evaluate_and_predict(caps: None) -> None:
    model = keras.Sequential([keras.Input((3,)), layers.Dense(1)])
    model.compile("sgd", "mse")
    seen = []
    count = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(batch)
    )
    history = model.fit(X, Y, batch_size=2, epochs=5, verbose=0, callbacks=[count]).history
    assert len(history["loss"]) == 2 and seen == [0, 1, 2, 0, 1, 2]
    assert model.predict(X, batch_size=2, verbose=0).shape == (6, 1)
    tested = []
    count = keras.callbacks.LambdaCallback(
        on_test_batch_end=lambda batch, logs: tested.append(batch)
    )
    model.evaluate(X, Y, batch_size=2, verbose=0, callbacks=[count])
    assert tested == [0, 1, 2]


def test_helpers_are_found_under_their_other_names() -> None:
    assert preprocessing.sequence.pad_sequences is utils.pad_sequences
    assert preprocessing.image.img_to_array is utils.img_to_array
    assert preprocessing.timeseries_dataset_from_array is utils.timeseries_dataset_from_array
    assert ops.nn.relu is ops.relu and ops.numpy.mean is ops.mean
    with pytest.raises(AttributeError, match="no attribute 'relus'"):
        ops.relus  # type: ignore[attr-defined]
    before = config.is_interactive_logging_enabled()
    config.disable_interactive_logging()
    assert not utils.is_interactive_logging_enabled()
    if before:
        config.enable_interactive_logging()
    assert config.is_interactive_logging_enabled() == before
    with pytest.raises(AttributeError, match="no attribute 'max_batches'"):
        config.max_batches
