"""Text as numbers, one for each character."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from picodl.typing import Array, Config


class CharacterTokenizer:
    """Numbers the characters of a text, and turns such numbers back into text.

    Args:
        characters: a text, or several, of the characters to know; `vocabulary` has each once.
        unknown: the character that stands for any other. It joins the vocabulary. None, the
            default, makes other characters an error.
        sort: whether the vocabulary is sorted. If False it keeps the order of first appearance.

    >>> tokenizer = CharacterTokenizer("to be or not to be")
    >>> tokenizer.vocabulary, len(tokenizer)
    (' benort', 7)
    >>> tokenizer.encode("one bet")
    array([4, 3, 2, 0, 1, 2, 6])
    >>> tokenizer.decode([1, 5, 4, 3, 6, 4])
    'bronto'
    """

    def __init__(
        self, characters: str | Iterable[str], unknown: str | None = None, sort: bool = True
    ) -> None:
        if unknown is not None and not (isinstance(unknown, str) and len(unknown) == 1):
            raise ValueError(
                f"CharacterTokenizer: unknown must be one character or None; received {unknown!r}."
            )
        known = dict.fromkeys("".join(characters) + (unknown or ""))
        if not known:
            raise ValueError("CharacterTokenizer expects at least one character; received none.")
        self.vocabulary = "".join(sorted(known) if sort else known)
        self.unknown = unknown
        self.sort = sort
        self._ids = {character: i for i, character in enumerate(self.vocabulary)}

    def encode(self, text: str) -> Array:
        """The number of each character, int64 of shape (len(text),).

        Raises:
            ValueError: for a character that is not in the vocabulary, unless `unknown` is given.
        """
        if not isinstance(text, str):
            raise TypeError(
                f"CharacterTokenizer.encode expects one text; received {type(text).__name__}."
            )
        ids = self._ids
        if self.unknown is not None:
            other = ids[self.unknown]
            return np.array([ids.get(character, other) for character in text], np.int64)
        try:
            return np.array([ids[character] for character in text], np.int64)
        except KeyError as error:
            character = error.args[0]
            raise ValueError(
                f"CharacterTokenizer does not know {character!r}, at place "
                f"{text.index(character)} of the text. Make it with that character, or with "
                f"unknown= and a character that stands for all others."
            ) from None

    def decode(self, ids: Any) -> str:
        """The text with these numbers.

        Args:
            ids: a sequence of integers, from 0 to len(self) - 1.
        """
        numbers = np.asarray(ids)
        if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
            raise ValueError(
                f"CharacterTokenizer.decode expects one sequence of integers; received shape "
                f"{numbers.shape} and dtype {numbers.dtype}. Decode several texts one by one."
            )
        wrong = numbers[(numbers < 0) | (numbers >= len(self))]
        if wrong.size:
            raise ValueError(
                f"CharacterTokenizer.decode expects numbers from 0 to {len(self) - 1}, one for "
                f"each character of the vocabulary; received {wrong[0]}."
            )
        return "".join([self.vocabulary[i] for i in numbers.tolist()])

    def __len__(self) -> int:
        return len(self.vocabulary)

    def get_config(self) -> Config:
        """What `from_config` makes the same tokenizer of; it can be written as JSON."""
        return {"characters": self.vocabulary, "unknown": self.unknown, "sort": self.sort}

    @classmethod
    def from_config(cls, config: Config) -> CharacterTokenizer:
        """A tokenizer from what `get_config` gave."""
        return cls(**config)

    def __repr__(self) -> str:
        return f"<CharacterTokenizer of {len(self)} characters>"
