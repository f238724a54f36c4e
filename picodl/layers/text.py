"""Texts as numbers: TextVectorization."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from picodl.layers.categories import Preprocessing, as_texts, batches
from picodl.layers.checks import choice, positive_integer
from picodl.layers.lookup import StringLookup, without_paths
from picodl.tensor import Tensor
from picodl.typing import Array, Config, Shape

_PUNCTUATION = re.compile(r'[!"#$%&()\*\+,-\./:;<=>?@\[\\\]^_`{|}~\']')
_STANDARDIZE = ("lower_and_strip_punctuation", "lower", "strip_punctuation")
_MODES = ("int", "multi_hot", "count", "tf_idf")


class TextVectorization(Preprocessing):
    """Texts cut into tokens, and tokens as numbers.

    Args:
        max_tokens: the most numbers, special ones included.
        standardize: "lower_and_strip_punctuation", "lower", "strip_punctuation", None, or a
            function from text to text, or of an array of texts.
        split: "whitespace", "character", None (a text is one token), or a function from a text to a
            list of tokens, or from an array of texts to such lists.
        ngrams: also join neighbouring tokens: up to so many, or the sizes as a tuple.
        output_mode: "int": the numbers in order, 0 for padding and 1 for unknown tokens;
            "multi_hot", "count", "tf_idf": a vector for each text.
        output_sequence_length: cut or pad "int" rows to this length. Defaults to the longest row.
        pad_to_max_tokens: make vectors max_tokens long.
        vocabulary: a list of tokens, or the path of a text file with one a line.
        idf_weights: for "tf_idf", one for each token of the vocabulary.
        sparse, ragged, encoding: accepted at their defaults.

    Shapes: (batch,) or (batch, 1) strings -> (batch, T) integers, or (batch, vocabulary).

    >>> layer = TextVectorization()
    >>> layer.adapt(["The cat sat.", "The dog!"])
    >>> layer.get_vocabulary()
    ['', '[UNK]', 'the', 'sat', 'dog', 'cat']
    >>> layer(["the bird sat", "The dog"]).numpy().tolist()
    [[2, 1, 3], [2, 4, 0]]
    """

    saved_names = {"lookup": "_lookup_layer"}  # its name in Keras, and so in weight files
    config_holds_all = True

    def __init__(
        self,
        max_tokens: int | None = None,
        standardize: Any = "lower_and_strip_punctuation",
        split: Any = "whitespace",
        ngrams: Any = None,
        output_mode: str = "int",
        output_sequence_length: int | None = None,
        pad_to_max_tokens: bool = False,
        vocabulary: Any = None,
        idf_weights: Any = None,
        sparse: bool = False,
        ragged: bool = False,
        encoding: str = "utf-8",
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        self.refuse_sparse(sparse, ragged)
        if standardize is not None and not callable(standardize):
            choice(self, "standardize", standardize, _STANDARDIZE)
        if split is not None and not callable(split):
            choice(self, "split", split, ("whitespace", "character"))
        self.standardize = standardize
        self.split = split
        self.ngrams = ngrams
        self._sizes = _ngram_sizes(self, ngrams)
        self.output_mode = choice(self, "output_mode", output_mode, _MODES)
        if output_sequence_length is not None:
            positive_integer(self, "output_sequence_length", output_sequence_length)
            if output_mode != "int":
                raise ValueError(
                    f'TextVectorization layer "{self.name}": output_sequence_length goes with '
                    f'output_mode="int" only; received {output_mode!r}.'
                )
        self.output_sequence_length = output_sequence_length
        self.encoding = choice(self, "encoding", encoding, ("utf-8",))
        self.lookup = StringLookup(
            max_tokens,
            mask_token="" if output_mode == "int" else None,
            vocabulary=vocabulary,
            idf_weights=idf_weights,
            output_mode=output_mode,
            pad_to_max_tokens=pad_to_max_tokens,
            name=f"{self.name}_lookup",
            dtype=self.dtype_policy,
        )

    def adapt(self, data: Any, batch_size: int | None = None, steps: int | None = None) -> None:
        """Take the vocabulary from texts: the tokens by falling frequency.

        Args:
            data: texts, or an iterable of batches of texts.
            batch_size: accepted; all texts are read at once.
            steps: how many batches to read. Defaults to all.
        """
        self.lookup.reset_state()
        texts = hasattr(data, "shape") or (
            isinstance(data, (list, tuple)) and all(isinstance(t, (str, bytes)) for t in data)
        )
        for batch in [data] if texts else batches(data, steps):
            self.update_state(batch)
        self.finalize_state()

    def update_state(self, data: Any) -> None:
        """Count the tokens of one batch of texts."""
        self.lookup.count(self.tokens_of(data))

    def finalize_state(self) -> None:
        """Make the vocabulary of what was counted."""
        self.lookup.finalize_state()

    def reset_state(self) -> None:
        """Forget what was counted."""
        self.lookup.reset_state()

    def get_vocabulary(self, include_special_tokens: bool = True) -> list[str]:
        """The tokens in the order of their numbers."""
        return self.lookup.get_vocabulary(include_special_tokens)

    def set_vocabulary(self, vocabulary: Any, idf_weights: Any = None) -> None:
        """Take a vocabulary; see StringLookup."""
        self.lookup.set_vocabulary(vocabulary, idf_weights)

    def vocabulary_size(self) -> int:
        """How many numbers there are, special ones included."""
        return self.lookup.vocabulary_size()

    def save_own_variables(self, store: Any) -> None:
        """Put into a store what the lookup inside puts there; Keras's files hold it twice."""
        self.lookup.save_own_variables(store)

    def load_own_variables(self, store: Any) -> None:
        """See StringLookup."""
        self.lookup.load_own_variables(store)

    def tokens_of(self, texts: Any) -> list[list[str]]:
        """The tokens of each text."""
        array = as_texts(texts)
        if array.ndim > 1 and array.shape[1:] != (1,):
            raise ValueError(
                f'TextVectorization layer "{self.name}" expects one text a sample, shape (batch,) '
                f"or (batch, 1), but received shape {array.shape}."
            )
        found: list[Any] = array.reshape(-1).tolist()
        if callable(self.standardize):
            found = _of_each(self.standardize, found, _as_text)
        else:
            kind = self.standardize or ""
            found = [text.lower() for text in found] if "lower" in kind else found
            found = [_PUNCTUATION.sub("", t) for t in found] if "strip" in kind else found
        if callable(self.split):
            found = _of_each(self.split, found, _as_tokens)
        else:
            split: Any = {"whitespace": str.split, "character": list}.get(self.split)
            found = [split(text) if split else [text] for text in found]
        return found if self._sizes == (1,) else [self._joined(tokens) for tokens in found]

    def _joined(self, tokens: list[str]) -> list[str]:
        return [
            " ".join(tokens[i : i + n]) for n in self._sizes for i in range(len(tokens) - n + 1)
        ]

    def call(self, inputs: Any) -> Any:
        rows = self.tokens_of(inputs)
        ids = [self.lookup.numbers_of(np.array(row, dtype=str)) for row in rows]
        single = np.ndim(inputs.data if isinstance(inputs, Tensor) else inputs) == 0
        if self.output_mode == "int":
            longest = max((len(row) for row in ids), default=0)
            y = self.lookup.encoded(padded(ids, self.output_sequence_length or longest))
        else:
            y = np.stack([self.lookup.encoded(row) for row in ids]) if ids else np.zeros((0, 0))
        return Tensor(y[0] if single else y)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        batch = tuple(input_shape[:1])
        if self.output_mode == "int":
            return (*batch, self.output_sequence_length)
        return (*batch, self.lookup._depth())

    def get_config(self) -> Config:
        from picodl.saving import serialization

        known = self.lookup.get_config()
        functions = {
            name: serialization.serialize_keras_object(f) if callable(f) else f
            for name, f in (("standardize", self.standardize), ("split", self.split))
        }
        return {
            **super().get_config(),
            "max_tokens": self.lookup.max_tokens,
            **functions,
            "ngrams": self.ngrams,
            "output_mode": self.output_mode,
            "output_sequence_length": self.output_sequence_length,
            "pad_to_max_tokens": self.lookup.pad_to_max_tokens,
            "vocabulary": known["vocabulary"],
            "idf_weights": known["idf_weights"],
            "sparse": False,
            "ragged": False,
            "encoding": self.encoding,
        }

    @classmethod
    def from_config(cls, config: Config) -> Any:
        from picodl.saving import serialization

        functions = {
            name: serialization.deserialize_keras_object(config[name])
            for name in ("standardize", "split")
            if isinstance(config.get(name), dict)
        }
        layer = super().from_config({**without_paths(cls, config), **functions})
        layer.lookup.expect(config.get("vocabulary_size"))
        return layer


def _of_each(function: Any, texts: list[str], ready: Callable[[Any], Any]) -> list[Any]:
    """What a user's function gives for each text; it takes one text, or a batch as Keras's do.

    One text tells which: a function of batches fails on it or gives something else. It gets a str
    of numpy, a str to Python and an array to functions of numpy.

    Args:
        ready: the result for one text in its final form; None for something else.
    """
    probe = np.str_(next(filter(None, texts), ""))
    failed = None
    try:
        alone = ready(function(probe)) is not None
    except Exception as error:
        alone, failed = False, error
    if alone:
        return [ready(function(np.str_(text))) for text in texts]
    try:
        found = [ready(one) for one in function(np.array(texts, dtype=str))]
    except Exception as error:
        raise (failed or error) from None
    if len(found) != len(texts) or None in found:
        raise failed or ValueError(
            f"{getattr(function, '__name__', function)} of TextVectorization gives neither strings "
            f"for one text nor as much for each text of a batch; one of {len(texts)} texts was "
            f"{str(probe)[:50]!r}."
        )
    return found


def _as_text(found: Any) -> str | None:
    found = np.asarray(found).tolist() if hasattr(found, "__array__") else found
    found = found.decode() if isinstance(found, bytes) else found
    return found if isinstance(found, str) else None


def _as_tokens(found: Any) -> list[str] | None:
    found = np.asarray(found).tolist() if hasattr(found, "__array__") else found
    parts = [token.decode() if isinstance(token, bytes) else token for token in found]
    nested = any(hasattr(p, "__len__") and not isinstance(p, str) for p in parts)
    return None if nested else [str(token) for token in parts]


def padded(rows: list[Array], length: int) -> Array:
    """Rows of numbers cut or filled up with 0 to one length."""
    y = np.zeros((len(rows), length), np.int64)
    for place, row in enumerate(rows):
        y[place, : min(length, len(row))] = row[:length]
    return y


def _ngram_sizes(layer: Any, ngrams: Any) -> tuple[int, ...]:
    if ngrams is None:
        return (1,)
    if isinstance(ngrams, int):
        return tuple(range(1, positive_integer(layer, "ngrams", ngrams) + 1))
    return tuple(positive_integer(layer, "ngrams", n) for n in ngrams)
