"""Texts as lists of word numbers: film reviews of IMDB, news of Reuters."""

from __future__ import annotations

from itertools import chain, pairwise
from typing import Any

import numpy as np

from picodl.datasets.files import KERAS, Place, Source, Split, check_split, read_npz, shuffled
from picodl.saving.files import FileError, loading
from picodl.saving.limits import parse_json
from picodl.typing import Array

_TOPICS = """cocoa grain veg-oil earn acq wheat copper housing money-supply coffee sugar trade
    reserves ship cotton carcass crude nat-gas cpi money-fx interest gnp meal-feed alum oilseed gold
    tin strategic-metal livestock retail ipi iron-steel rubber heat jobs lei bop zinc orange
    pet-chem dlr gas silver wpi hog lead"""


class Imdb:
    """Film reviews, 25000 to train and 25000 to test: favourable (1) or not (0).

    A review is a list of word numbers, the commonest word first. By convention 0 is for padding, 1
    begins a text and 2 stands for a word that was left out.

    Reference: Maas et al., 2011, "Learning Word Vectors for Sentiment Analysis".
    """

    source = Source(
        "imdb.npz",
        f"{KERAS}imdb.npz",
        "69664113be75683a8fe16e3ed0ab59fda8886cb3cd7ada244f7d9544e4676b9f",
    )
    words = Source(
        "imdb_word_index.json",
        f"{KERAS}imdb_word_index.json",
        "bfafd718b763782e994055a2d397834f",
    )

    def load_data(
        self,
        path: Place = "imdb.npz",
        num_words: int | None = None,
        skip_top: int = 0,
        maxlen: int | None = None,
        seed: int = 113,
        start_char: int | None = 1,
        oov_char: int | None = 2,
        index_from: int = 3,
        *,
        download: bool = False,
    ) -> Split:
        """The reviews, arrays of lists of integers, and the labels, in the order of Keras.

        The lists in the file are pickled; they are read without unpickling, so nothing runs.

        Args:
            path: an .npz with x_train, y_train, x_test, y_test; a bare name is looked for in
                ~/.keras/datasets.
            num_words: word numbers from this one on become oov_char. Defaults to the highest
                number in the data, which thereby is left out, as in Keras.
            skip_top: word numbers below this one become oov_char.
            maxlen: texts of this length or longer, start_char counted, are left out.
            seed: of the shuffling.
            start_char: begins each text; None for none.
            oov_char: in place of words that are left out; None to leave them out without.
            index_from: is added to the word numbers of the file.
            download: get the file if it is not there, from where Keras gets it.

        Raises:
            FileNotFoundError: if there is no such file, with the command that gets it.
            ValueError: if no text is shorter than maxlen, or for a file of another kind.
        """
        place = self.source.find(path, download)
        arrays = read_npz(place, "x_train", "y_train", "x_test", "y_test")
        generator = np.random.RandomState(seed)
        parts = [
            _shuffled(x, y, generator, place)
            for x, y in zip(arrays[::2], arrays[1::2], strict=True)
        ]
        options = num_words, skip_top, maxlen, start_char, oov_char, index_from
        train, test = encode(parts, *options)
        return (_objects(train[0]), train[1]), (_objects(test[0]), test[1])

    def get_word_index(
        self, path: Place = "imdb_word_index.json", *, download: bool = False
    ) -> dict[str, int]:
        """The number of each word, to which load_data adds index_from.

        Args:
            path: a .json file; a bare name is looked for in ~/.keras/datasets.
            download: get the file if it is not there, from where Keras gets it.
        """
        return _word_index(self.words, path, download)

    def __repr__(self) -> str:
        return "<data set IMDB>"


class Reuters:
    """News, 11228 of them, and which of 46 topics they are about.

    A text is a list of word numbers, the commonest word first. By convention 0 is for padding, 1
    begins a text and 2 stands for a word that was left out.

    Reference: Lewis, 1997, "Reuters-21578 text categorization test collection".
    """

    source = Source(
        "reuters.npz",
        f"{KERAS}reuters.npz",
        "d6586e694ee56d7a4e65172e12b3e987c03096cb01eab99753921ef915959916",
    )
    words = Source(
        "reuters_word_index.json",
        f"{KERAS}reuters_word_index.json",
        "4d44cc38712099c9e383dc6e5f11a921",
    )

    def load_data(
        self,
        path: Place = "reuters.npz",
        num_words: int | None = None,
        skip_top: int = 0,
        maxlen: int | None = None,
        test_split: float = 0.2,
        seed: int = 113,
        start_char: int | None = 1,
        oov_char: int | None = 2,
        index_from: int = 3,
        *,
        download: bool = False,
    ) -> Split:
        """The texts, arrays of lists of integers, and the topics, in the order of Keras.

        Args:
            path: an .npz with x and y; a bare name is looked for in ~/.keras/datasets.
            num_words, skip_top, maxlen: as in `Imdb.load_data`, which tells the others too.
            test_split: fraction of the texts for the test.
            seed: of the shuffling.
            start_char, oov_char, index_from, download: as in `Imdb.load_data`.

        Raises:
            FileNotFoundError: if there is no such file, with the command that gets it.
            ValueError: for another test_split, if no text is shorter than maxlen, or for a file of
                another kind.
        """
        check_split(test_split)
        place = self.source.find(path, download)
        texts, topics = read_npz(place, "x", "y")
        part = _shuffled(texts, topics, np.random.RandomState(seed), place)
        options = num_words, skip_top, maxlen, start_char, oov_char, index_from
        [(x, y)] = encode([part], *options)
        end = int(len(x) * (1 - test_split))
        return (_objects(x[:end]), y[:end]), (_objects(x[end:]), y[end:])

    def get_word_index(
        self, path: Place = "reuters_word_index.json", *, download: bool = False
    ) -> dict[str, int]:
        """The number of each word, to which load_data adds index_from.

        Args:
            path: a .json file; a bare name is looked for in ~/.keras/datasets.
            download: get the file if it is not there, from where Keras gets it.
        """
        return _word_index(self.words, path, download)

    def get_label_names(self) -> tuple[str, ...]:
        """The 46 topics, in the order of the labels.

        >>> Reuters().get_label_names()[3:5]
        ('earn', 'acq')
        """
        return tuple(_TOPICS.split())

    def __repr__(self) -> str:
        return "<data set Reuters>"


Part = tuple[list[list[int]], Array]


def encode(
    parts: list[Part],
    num_words: int | None,
    skip_top: int,
    maxlen: int | None,
    start_char: int | None,
    oov_char: int | None,
    index_from: int,
) -> list[Part]:
    """Texts with the words renumbered and left out as `Imdb.load_data` says.

    >>> texts = [[1, 5], [2]], np.array([0, 1])
    >>> encode([texts], 7, 0, None, 1, 2, 3)
    [([[1, 4, 2], [1, 5]], array([0, 1]))]
    """
    ready = []
    for texts, labels in parts:
        words = np.fromiter(chain.from_iterable(texts), np.int64) + index_from
        lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        if start_char is not None:
            words = np.insert(words, lengths.cumsum() - lengths, start_char)
            lengths += 1
        if maxlen:
            short = lengths < maxlen
            if not short.any():
                raise ValueError(f"No text is shorter than maxlen={maxlen}; pass a larger one.")
            words = words[short.repeat(lengths)]
            lengths, labels = lengths[short], labels[short]
        ready.append((words, lengths, labels))
    top = num_words or max((int(words.max()) for words, _, _ in ready if len(words)), default=0)
    result = []
    for words, lengths, labels in ready:
        kept = (words >= skip_top) & (words < top)
        if oov_char is None:
            owners = np.arange(len(lengths)).repeat(lengths)
            lengths = np.bincount(owners[kept], minlength=len(lengths))
            words = words[kept]
        else:
            words[~kept] = oov_char
        numbers, ends = words.tolist(), [0, *lengths.cumsum().tolist()]
        result.append(([numbers[a:b] for a, b in pairwise(ends)], labels))
    return result


def _shuffled(x: Any, y: Any, generator: np.random.RandomState, place: Any) -> Part:
    if type(x) is not list or not isinstance(y, np.ndarray) or len(x) != len(y):
        raise FileError(f"{place} must hold lists of word numbers and one label for each.")
    order = shuffled(generator, len(x))
    return [x[i] for i in order], y[order]


def _objects(texts: list[list[int]]) -> Array:
    return np.array(texts, dtype=object)


def _word_index(source: Source, path: Place, download: bool) -> dict[str, int]:
    place = source.find(path, download)
    with loading(str(place)):
        index = parse_json(place.read_bytes(), str(place))
        if not isinstance(index, dict) or {type(n) for n in index.values()} - {int}:
            raise FileError(f"{place} must hold a number for each word.")
        return index
