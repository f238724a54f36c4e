"""Tables: houses and their prices."""

from __future__ import annotations

import numpy as np

from picodl.datasets.files import KERAS, Place, Source, Split, check_split, read_npz, shuffled
from picodl.saving.files import FileError


class BostonHousing:
    """Districts of Boston, 506 with 13 numbers each, and the median value of a home in $1000.

    One column, "B", was made from the share of Black residents on the assumption that segregation
    raises prices: use the table to show what is wrong with such data, and `california_housing` for
    all else.

    Reference: Harrison and Rubinfeld, 1978, "Hedonic prices and the demand for clean air".
    """

    source = Source(
        "boston_housing.npz",
        f"{KERAS}boston_housing.npz",
        "f553886a1f8d56431e820c5b82552d9d95cfcb96d1e678153f8839538947dff5",
    )

    def load_data(
        self,
        path: Place = "boston_housing.npz",
        test_split: float = 0.2,
        seed: int = 113,
        *,
        download: bool = False,
    ) -> Split:
        """The rows (n, 13) and values (n,), shuffled and split as Keras does it, in float64.

        Args:
            path: an .npz with x and y; a bare name is looked for in ~/.keras/datasets.
            test_split: fraction of the rows for the test.
            seed: of the shuffling.
            download: get the file if it is not there, from where Keras gets it.

        Raises:
            FileNotFoundError: if there is no such file, with the command that gets it.
            ValueError: for another test_split or a file of another kind.
        """
        return _load(self.source, path, test_split, seed, download, None)

    def __repr__(self) -> str:
        return "<data set Boston housing>"


class CaliforniaHousing:
    """Districts of California, 20640 with 8 numbers each, and the median value of a home in $.

    The columns: median income, median age of the houses, rooms and bedrooms of a household,
    population, members of a household, latitude, longitude.

    Reference: Pace and Barry, 1997, "Sparse spatial autoregressions".
    """

    source = Source(
        "california_housing.npz",
        f"{KERAS}california_housing.npz",
        "1a2e3a52e0398de6463aebe6f4a8da34fb21fbb6b934cf88c3425e766f2a1a6f",
    )

    def load_data(
        self,
        version: str = "large",
        path: Place = "california_housing.npz",
        test_split: float = 0.2,
        seed: int = 113,
        *,
        download: bool = False,
    ) -> Split:
        """The rows (n, 8) and values (n,), shuffled and split as Keras does it.

        Args:
            version: "large", or "small" for the first 600 rows of the file.
            path: an .npz with x and y; a bare name is looked for in ~/.keras/datasets.
            test_split: fraction of the rows for the test.
            seed: of the shuffling.
            download: get the file if it is not there, from where Keras gets it.

        Raises:
            FileNotFoundError: if there is no such file, with the command that gets it.
            ValueError: for another version or test_split, or a file of another kind.
        """
        if version not in ("small", "large"):
            raise ValueError(f'version must be "small" or "large"; received {version!r}.')
        rows = 600 if version == "small" else None
        return _load(self.source, path, test_split, seed, download, rows)

    def __repr__(self) -> str:
        return "<data set California housing>"


def _load(
    source: Source, path: Place, test_split: float, seed: int, download: bool, rows: int | None
) -> Split:
    check_split(test_split)
    place = source.find(path, download)
    x, y = (values[:rows] for values in read_npz(place, "x", "y"))
    if len(x) != len(y):
        raise FileError(f"{place} holds {len(x)} rows in x, but {len(y)} values in y.")
    order = shuffled(np.random.RandomState(seed), len(x))
    x, y = x[order], y[order]
    end = int(len(x) * (1 - test_split))
    return (x[:end], y[:end]), (x[end:], y[end:])
