"""Small data sets that scikit-learn brings or makes."""

from __future__ import annotations

from typing import Any

import numpy as np

from picodl.datasets.files import Split


class Bundled:
    """A data set that is part of scikit-learn.

    Args:
        name: of the loader in sklearn.datasets, such as "load_iris".
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def load_data(self, test_split: float = 0.2, seed: int = 113) -> Split:
        """The data, shuffled and split; the same for the same seed, classes evenly.

        Args:
            test_split: fraction of the samples for the test.
            seed: of the shuffling.
        """
        from sklearn import datasets

        bunch = getattr(datasets, self.name)()
        return _split(bunch.data, bunch.target, test_split, seed)

    def __repr__(self) -> str:
        return f"<data set {self.name.removeprefix('load_')}>"


class Generated:
    """A data set that scikit-learn makes from random numbers.

    Args:
        name: of the maker in sklearn.datasets, such as "make_moons".
        **defaults: arguments of the maker.
    """

    def __init__(self, name: str, **defaults: Any) -> None:
        self.name = name
        self.defaults = defaults

    def load_data(
        self, n_samples: int = 1000, test_split: float = 0.2, seed: int = 113, **options: Any
    ) -> Split:
        """New samples, split; the same for the same seed.

        Args:
            n_samples: of both parts together.
            test_split: fraction of the samples for the test.
            seed: of the samples and of the split.
            **options: further arguments of the maker, such as noise.
        """
        from sklearn import datasets

        options = {**self.defaults, **options}
        x, y = getattr(datasets, self.name)(n_samples, random_state=seed, **options)[:2]
        return _split(x, y, test_split, seed)

    def __repr__(self) -> str:
        return f"<data set {self.name.removeprefix('make_')}>"


def _split(x: Any, y: Any, test_split: float, seed: int) -> Split:
    from sklearn.model_selection import train_test_split

    x = np.asarray(x, np.float32)
    labels = np.asarray(y).dtype.kind in "iu"
    y = np.asarray(y, np.int64 if labels else np.float32)
    parts = train_test_split(
        x, y, test_size=test_split, random_state=seed, stratify=y if labels else None
    )
    x_train, x_test, y_train, y_test = parts
    return (x_train, y_train), (x_test, y_test)
