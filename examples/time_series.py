"""An LSTM forecasts an hourly temperature six hours ahead, and beats two simple rules.

    python examples/time_series.py [--epochs 40]

The series is made up: a day's and a year's rhythm, weather that drifts, and noise. The rules are
"as it is now" and "as it was at that hour yesterday". The LSTM's error is at most 70% of that of
the better rule.
"""

from __future__ import annotations

import argparse

import numpy as np

import picodl
from picodl import layers
from picodl.callbacks import EarlyStopping

HOURS, WINDOW, AHEAD = 6000, 48, 6


def temperatures(rng: np.random.Generator) -> np.ndarray:
    """Hourly temperatures in degrees Celsius."""
    hour = np.arange(HOURS)
    weather = np.zeros(HOURS)
    for t in range(1, HOURS):
        weather[t] = 0.97 * weather[t - 1] + 0.35 * rng.normal()
    day = 4 * np.sin(2 * np.pi * (hour - 9) / 24) + np.sin(4 * np.pi * hour / 24)
    year = 8 * np.sin(2 * np.pi * hour / 8766)
    return 12 + year + day + weather + 0.2 * rng.normal(size=HOURS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=40)
    options = parser.parse_args()
    picodl.utils.set_random_seed(0)

    degrees = temperatures(np.random.default_rng(0))
    cut = int(0.8 * HOURS)
    mean, spread = degrees[:cut].mean(), degrees[:cut].std()
    series = ((degrees - mean) / spread).astype("float32")

    def windows(start: int, stop: int) -> picodl.utils.PyDataset:
        # the target of the window that starts at i lies AHEAD hours after the window's end, and is
        # told as the change from that end
        last = WINDOW - 1
        change = series[last + AHEAD :] - series[last : len(series) - AHEAD]
        return picodl.utils.timeseries_dataset_from_array(
            series[:, None],
            change[:, None],
            WINDOW,
            batch_size=64,
            start_index=start,
            end_index=stop,
        )

    source = picodl.Input((WINDOW, 1))
    shape = source - source[:, -1:]  # the level changes over the year: look at the shape only
    model = picodl.Model(source, layers.Dense(1)(layers.LSTM(32)(shape)))
    model.compile(picodl.optimizers.Adam(0.005), "mse")
    model.fit(
        windows(0, cut),
        epochs=options.epochs,
        validation_data=windows(cut, HOURS),
        callbacks=[EarlyStopping(patience=8, restore_best_weights=True)],
        verbose=0,
    )

    test = windows(cut, HOURS)
    change = model.predict(test, verbose=0)[:, 0] * spread
    ends = np.arange(cut + WINDOW - 1, cut + WINDOW - 1 + len(change))
    ends = ends[ends + AHEAD < HOURS]
    truth = degrees[ends + AHEAD]
    forecasts = {
        "as it is now": degrees[ends],
        "as yesterday": degrees[ends + AHEAD - 24],
        "LSTM": degrees[ends] + change[: len(ends)],
    }
    errors = {name: np.abs(f - truth).mean() for name, f in forecasts.items()}
    for name, error in errors.items():
        print(f"mean error, {name:<13} {error:.2f} degrees")
    best = min(errors["as it is now"], errors["as yesterday"])
    print(f"the LSTM's error is {errors['LSTM'] / best:.0%} of the better rule's")


if __name__ == "__main__":
    main()
