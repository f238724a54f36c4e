"""Small data sets that scikit-learn brings, or that are made from random numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from picodl.datasets.files import Split
from picodl.typing import Array


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
    """A data set made from random numbers.

    Args:
        maker: name of a function in sklearn.datasets, such as "make_moons", or a function like
            them: with n_samples and random_state, it returns features and labels.
        **defaults: arguments of the maker.
    """

    def __init__(self, maker: str | Callable[..., Any], **defaults: Any) -> None:
        self.maker = maker
        self.name = maker if isinstance(maker, str) else maker.__name__
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

        make = getattr(datasets, self.maker) if isinstance(self.maker, str) else self.maker
        options = {**self.defaults, **options}
        x, y = make(n_samples, random_state=seed, **options)[:2]
        return _split(x, y, test_split, seed)

    def __repr__(self) -> str:
        return f"<data set {self.name.removeprefix('make_')}>"


def make_spirals(
    n_samples: int = 100,
    random_state: int | None = None,
    classes: int = 2,
    turns: float = 1.5,
    noise: float = 0.03,
) -> tuple[Array, Array]:
    """Points on spirals that wind around each other from the origin to the unit circle.

    Args:
        n_samples: of all spirals together.
        random_state: seed.
        classes: number of spirals; the label is the number of the spiral.
        turns: how often each goes round.
        noise: standard deviation of what is added to the points. Neighbouring spirals are
            1 / (turns * classes) apart.

    Returns:
        Points of shape (n_samples, 2) and integers of shape (n_samples,).

    >>> x, y = make_spirals(6, classes=3)
    >>> x.shape, y
    ((6, 2), array([0, 1, 2, 0, 1, 2]))
    """
    if classes < 1:
        raise ValueError(f"make_spirals expects classes of at least 1; received {classes}.")
    rng = np.random.RandomState(random_state)
    label = np.arange(n_samples) % classes
    radius = np.sqrt(rng.uniform(size=n_samples))  # as dense outside as inside
    angle = 2 * np.pi * (turns * radius + label / classes)
    x = radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return x + rng.normal(scale=noise, size=x.shape), label


def make_xor(
    n_samples: int = 100, random_state: int | None = None, noise: float = 0.3
) -> tuple[Array, Array]:
    """Points around the corners (-1, -1), (-1, 1), (1, -1), (1, 1) of a square.

    Args:
        n_samples: of all corners together.
        random_state: seed.
        noise: standard deviation of the distance to the corner on each axis.

    Returns:
        Points of shape (n_samples, 2), and integers of shape (n_samples,): 1 where the two
        coordinates of the corner differ in sign, 0 where they agree.

    >>> x, y = make_xor(4, noise=0.0)
    >>> x.tolist(), y
    ([[-1.0, -1.0], [-1.0, 1.0], [1.0, -1.0], [1.0, 1.0]], array([0, 1, 1, 0]))
    """
    rng = np.random.RandomState(random_state)
    corner = np.arange(n_samples) % 4
    bits = np.stack([corner // 2, corner % 2], axis=1)
    x = 2 * bits - 1 + rng.normal(scale=noise, size=bits.shape)
    return x, bits[:, 0] ^ bits[:, 1]


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
