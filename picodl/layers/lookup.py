"""Tokens as numbers: StringLookup and IntegerLookup."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np

from picodl.layers.categories import Preprocessing, as_texts, batches, encode, encoded_shape
from picodl.layers.checks import choice, positive_integer
from picodl.layers.hashing import hashed, salt_of
from picodl.ops.embedding import whole_numbers
from picodl.tensor import Tensor
from picodl.typing import Array, Config, Shape

_MODES = ("int", "one_hot", "multi_hot", "count", "tf_idf")


class Vocabulary:
    """Tokens and their numbers; a plain object, so that no walk over weights looks into it."""

    def __init__(self, tokens: Iterable[Any] = ()) -> None:
        self.tokens = list(tokens)
        self.number = {token: i for i, token in enumerate(self.tokens)}
        self.idf: Array | None = None

    def __len__(self) -> int:
        return len(self.tokens)


class TokenLookup(Preprocessing):
    """What the lookups share: the order of numbers, adapting, output modes.

    Numbers: the mask token (if there is one) is 0, then come the numbers for tokens that are not in
    the vocabulary, then the vocabulary. In output modes other than "int" masked places do not count
    and the mask token has no number.
    """

    config_holds_all = True  # the weights of "tf_idf" too: files without arrays lose nothing

    def __init__(
        self,
        max_tokens: int | None,
        num_oov_indices: int,
        mask_token: Any,
        oov_token: Any,
        vocabulary: Any,
        idf_weights: Any,
        invert: bool,
        output_mode: str,
        pad_to_max_tokens: bool,
        salt: Any,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if max_tokens is not None:
            max_tokens = positive_integer(self, "max_tokens", max_tokens, 2)
        self.max_tokens = max_tokens
        self.num_oov_indices = positive_integer(self, "num_oov_indices", num_oov_indices, 0)
        self.mask_token = mask_token
        self.oov_token = oov_token
        self.invert = invert
        self.output_mode = choice(self, "output_mode", output_mode, _MODES)
        self.pad_to_max_tokens = pad_to_max_tokens
        self.salt = salt_of(self, salt)
        if invert and output_mode != "int":
            raise ValueError(
                f'{type(self).__name__} layer "{self.name}": invert=True goes with '
                f'output_mode="int" only; received {output_mode!r}.'
            )
        if pad_to_max_tokens and max_tokens is None:
            raise ValueError(
                f'{type(self).__name__} layer "{self.name}": pad_to_max_tokens=True needs '
                "max_tokens."
            )
        if idf_weights is not None and output_mode != "tf_idf":
            raise ValueError(
                f'{type(self).__name__} layer "{self.name}": idf_weights go with '
                f'output_mode="tf_idf" only; received {output_mode!r}.'
            )
        if output_mode == "tf_idf" and self._dtype.kind != "f":
            raise ValueError(
                f'{type(self).__name__} layer "{self.name}": output_mode="tf_idf" gives fractions; '
                f"received dtype {self._dtype.name}."
            )
        self._known = Vocabulary()
        self._size_to_come = self._specials  # what a config says of a vocabulary not in it
        self._seen: Counter[Any] = Counter()
        self._documents: Counter[Any] = Counter()
        self._document_count = 0
        if vocabulary is not None:
            self.set_vocabulary(vocabulary, idf_weights)

    # ---------------------------------------------------------------- the vocabulary

    def tokens_of(self, x: Any) -> Array:
        """The input as an array of tokens."""
        raise NotImplementedError

    @property
    def _masks(self) -> list[Any]:
        """The mask token, where it has a number."""
        return [] if self.mask_token is None or self.output_mode != "int" else [self.mask_token]

    @property
    def _specials(self) -> int:
        return self.num_oov_indices + len(self._masks)

    @property
    def idf_weights(self) -> Array | None:
        """The weight of each number in output mode "tf_idf", else None."""
        return self._known.idf

    def set_vocabulary(self, vocabulary: Any, idf_weights: Any = None) -> None:
        """Take a vocabulary: a list of tokens, with or without the special ones, or the path of a
        text file with one token a line.

        Raises:
            ValueError: for repeated tokens, a mask token among them, too many of them, or missing
                idf_weights.
        """
        if isinstance(vocabulary, str):
            with open(vocabulary, encoding="utf-8") as file:
                vocabulary = file.read().splitlines()
        tokens = self.tokens_of(np.asarray(vocabulary)).tolist()
        given = len(tokens)
        special = self._masks
        if self.num_oov_indices and tokens[: len(special) + 1] == [*special, self.oov_token]:
            tokens = tokens[len(special) + self.num_oov_indices :]
        elif special and tokens[:1] == special:
            tokens = tokens[1:]
        if self.mask_token is not None and self.mask_token in tokens:
            raise ValueError(
                f'{type(self).__name__} layer "{self.name}": the mask token {self.mask_token!r} '
                "has no place among the tokens of the vocabulary. Leave out the special tokens, or "
                f"begin with {[*special, *[self.oov_token] * self.num_oov_indices]}."
            )
        repeated = [t for t, n in Counter(tokens).items() if n > 1]
        if repeated:
            raise ValueError(
                f'{type(self).__name__} layer "{self.name}": the vocabulary holds {repeated[0]!r} '
                "more than once."
            )
        if self.max_tokens is not None and len(tokens) + self._specials > self.max_tokens:
            raise ValueError(
                f'{type(self).__name__} layer "{self.name}": {len(tokens)} tokens and '
                f"{self._specials} special ones are more than max_tokens={self.max_tokens}."
            )
        known = Vocabulary(tokens)
        if self.output_mode == "tf_idf":
            if idf_weights is None:
                raise ValueError(
                    f'{type(self).__name__} layer "{self.name}" with output_mode="tf_idf" needs '
                    "idf_weights, one for each token, or a call of adapt()."
                )
            weights = np.asarray(idf_weights, self._dtype)
            if len(weights) != given:
                raise ValueError(
                    f'{type(self).__name__} layer "{self.name}": {given} tokens, but '
                    f"{len(weights)} idf_weights."
                )
            known.idf = weights if given > len(tokens) else self._for_all(weights)
        self._known = known

    def get_vocabulary(self, include_special_tokens: bool = True) -> list[Any]:
        """The tokens in the order of their numbers."""
        if not include_special_tokens:
            return list(self._known.tokens)
        return self._masks + [self.oov_token] * self.num_oov_indices + self._known.tokens

    def vocabulary_size(self) -> int:
        """How many numbers there are, special ones included."""
        return len(self._known) + self._specials

    # ---------------------------------------------------------------- files

    def save_own_variables(self, store: Any) -> None:
        """Put the weights of output mode "tf_idf" into a store, as Keras does."""
        if self._known.idf is not None:
            store["idf_weights"] = self._padded_idf()

    def load_own_variables(self, store: Any) -> None:
        """Take the weights of output mode "tf_idf" from a store; the config may hold them alone.

        Raises:
            ValueError: for another number of weights, or other arrays.
        """
        rest = dict(store)
        if self.output_mode == "tf_idf" and "idf_weights" in rest:
            known = Vocabulary(self._known.tokens)
            known.idf = np.asarray(rest.pop("idf_weights"), self._dtype)
            if known.idf.shape != (self._depth(),):
                raise ValueError(
                    f"idf_weights have shape {known.idf.shape}, the layer needs {(self._depth(),)}."
                )
            known.idf = known.idf[: self._size()]
            self._known = known
        super().load_own_variables(rest)

    def load_vocabulary(self, tokens: list[str]) -> None:
        """Take the vocabulary that a file holds beside its config, after the weights."""
        self.set_vocabulary(tokens, self.idf_weights)

    # ---------------------------------------------------------------- adapting

    def adapt(self, data: Any, steps: int | None = None) -> None:
        """Take the vocabulary from data: the tokens by falling frequency.

        Args:
            data: an array or list of samples, or an iterable of batches.
            steps: how many batches to read. Defaults to all.
        """
        self.reset_state()
        single = hasattr(data, "shape") or isinstance(data, (list, tuple))
        for batch in [data] if single else batches(data, steps):
            self.update_state(batch)
        self.finalize_state()

    def update_state(self, data: Any) -> None:
        """Count the tokens of one batch; a row of the first axis is a document."""
        tokens = self.tokens_of(data)
        rows = tokens.reshape(len(tokens), -1).tolist() if tokens.ndim else [[tokens.item()]]
        self.count(rows)

    def count(self, rows: Iterable[list[Any]]) -> None:
        """Count the tokens of documents."""
        for row in rows:
            self._seen.update(row)
            self._documents.update(set(row))
            self._document_count += 1

    def finalize_state(self) -> None:
        """Make the vocabulary of what was counted."""
        for special in (self.mask_token, self.oov_token):
            self._seen.pop(special, None)
        # equal counts come in falling order of the tokens, as in Keras
        ranked = sorted(self._seen.items(), key=lambda item: (item[1], item[0]), reverse=True)
        tokens = [token for token, _ in ranked]
        if self.max_tokens is not None:
            tokens = tokens[: max(0, self.max_tokens - self._specials)]
        self._known = Vocabulary(tokens)
        if self.output_mode == "tf_idf":
            found = np.array([self._documents[t] for t in tokens], np.float64)
            weights = np.log1p(self._document_count / (1 + found)).astype(self._dtype)
            self._known.idf = self._for_all(weights)
        self.reset_state()

    def _for_all(self, idf: Array) -> Array:
        """Weights of the vocabulary with those of the unknown tokens before, their mean."""
        return np.pad(idf, (self._specials, 0), constant_values=idf.mean() if len(idf) else 0)

    def reset_state(self) -> None:
        """Forget what was counted."""
        self._seen, self._documents, self._document_count = Counter(), Counter(), 0

    # ---------------------------------------------------------------- looking up

    def unknown_numbers(self, tokens: Array) -> Array:
        """0, 1, ... below num_oov_indices, for tokens that are not in the vocabulary."""
        return hashed(tokens.astype(str), self.num_oov_indices, self.salt)

    def numbers_of(self, tokens: Array) -> Array:
        """The number of each token, -1 for the mask token where it has none.

        Raises:
            RuntimeError: while there is no vocabulary.
            ValueError: for a token that is not in the vocabulary, with num_oov_indices=0.
        """
        if not self._known.tokens:
            raise RuntimeError(
                f'{type(self).__name__} layer "{self.name}" has no vocabulary yet: call '
                "adapt(data) or set_vocabulary(tokens) first."
            )
        unique, places = np.unique(tokens, return_inverse=True)
        first = len(self._masks)
        known = self._known.number
        ids = np.array([known.get(t, -1) for t in unique.tolist()], np.int64).reshape(-1)
        missing = ids < 0
        if self.mask_token is not None:
            missing &= unique != self.mask_token
        ids += self._specials
        if missing.any():
            if self.num_oov_indices == 0:
                raise ValueError(
                    f'{type(self).__name__} layer "{self.name}" does not know '
                    f"{unique[missing].tolist()[0]!r}, and num_oov_indices=0 leaves no number for "
                    "it."
                )
            ids[missing] = first + self.unknown_numbers(unique[missing])
        if self.mask_token is not None:
            ids[unique == self.mask_token] = first - 1
        return ids[places].reshape(tokens.shape)

    def call(self, inputs: Any) -> Any:
        if self.invert:
            return self._tokens_for(whole_numbers(np.asarray(inputs)))
        return Tensor(self.encoded(self.numbers_of(self.tokens_of(inputs))))

    def encoded(self, ids: Array) -> Array:
        """Numbers in the layer's output mode; masked places, of number -1, leave no trace."""
        if self.output_mode == "int":
            return encode(ids, "int", 0, self._dtype)
        mode = "count" if self.output_mode == "tf_idf" else self.output_mode
        depth = self._depth()
        y = encode(np.where(ids < 0, depth, ids), mode, depth + 1, self._dtype)[..., :depth]
        return y * self._padded_idf() if self.output_mode == "tf_idf" else y

    def _padded_idf(self) -> Array:
        idf: Any = self._known.idf
        return np.pad(idf, (0, self._depth() - len(idf)))

    def _size(self) -> int:
        return self.vocabulary_size() if self._known.tokens else self._size_to_come

    def _depth(self) -> int:
        return self.max_tokens if self.pad_to_max_tokens else self._size()  # type: ignore[return-value]

    def _tokens_for(self, ids: Array) -> Any:
        tokens = np.array([*self.get_vocabulary(), self.oov_token])
        ids = np.where((ids < 0) | (ids >= len(tokens) - 1), len(tokens) - 1, ids)
        found = tokens[ids]
        return Tensor(found) if found.dtype.kind in "iu" else found

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        depth = None if self.output_mode == "int" else self._depth()
        mode = "count" if self.output_mode == "tf_idf" else self.output_mode
        return encoded_shape(input_shape, mode, depth)

    def get_config(self) -> Config:
        known = self._known
        return {
            **super().get_config(),
            "max_tokens": self.max_tokens,
            "num_oov_indices": self.num_oov_indices,
            "mask_token": self.mask_token,
            "oov_token": self.oov_token,
            "vocabulary": self.get_vocabulary(known.idf is not None) if len(known) else None,
            "idf_weights": None if known.idf is None else known.idf.tolist(),
            "invert": self.invert,
            "output_mode": self.output_mode,
            "pad_to_max_tokens": self.pad_to_max_tokens,
            "sparse": False,
            "salt": self.salt,
        }

    @classmethod
    def from_config(cls, config: Config) -> Any:
        layer = super().from_config(without_paths(cls, config))
        layer.expect(config.get("vocabulary_size"))
        return layer

    def expect(self, size: int | None) -> None:
        """Let the layer's outputs have the size of a vocabulary that is yet to come."""
        self._size_to_come = size or self._size_to_come


def without_paths(cls: type, config: Config) -> Config:
    """The config of a lookup; a saved model must not name files to be read.

    Raises:
        ValueError: if the vocabulary is a path.
    """
    if isinstance(config.get("vocabulary"), (str, bytes)):
        raise ValueError(
            f"The config of {cls.__name__} names the file {config['vocabulary']!r} as its "
            "vocabulary. A saved model must hold the vocabulary itself: build the layer without it "
            "and call set_vocabulary()."
        )
    return config


class StringLookup(TokenLookup):
    """Strings as numbers.

    Args:
        max_tokens: the most numbers, special ones included.
        num_oov_indices: how many numbers there are for unknown strings, told apart by a hash; with
            0 they are an error.
        mask_token: becomes number 0.
        oov_token: what unknown numbers become with invert.
        vocabulary: a list of strings, or the path of a text file with one a line.
        idf_weights: for output_mode "tf_idf", one for each string of the vocabulary.
        invert: numbers to strings.
        output_mode: "int", "one_hot", "multi_hot", "count" (see CategoryEncoding) or "tf_idf".
        pad_to_max_tokens: make vectors max_tokens long.
        sparse, encoding: accepted at their defaults.
        salt: for another hash.

    >>> StringLookup(vocabulary=["a", "b"])([["b", "a", "z"]]).numpy().tolist()
    [[2, 1, 0]]
    """

    def __init__(
        self,
        max_tokens: int | None = None,
        num_oov_indices: int = 1,
        mask_token: str | None = None,
        oov_token: str = "[UNK]",
        vocabulary: Any = None,
        idf_weights: Any = None,
        invert: bool = False,
        output_mode: str = "int",
        pad_to_max_tokens: bool = False,
        sparse: bool = False,
        encoding: str = "utf-8",
        name: str | None = None,
        salt: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            max_tokens, num_oov_indices, mask_token, oov_token, vocabulary, idf_weights, invert,
            output_mode, pad_to_max_tokens, salt, name=name, **kwargs,
        )  # fmt: skip
        self.refuse_sparse(sparse)
        self.encoding = choice(self, "encoding", encoding, ("utf-8",))

    def tokens_of(self, x: Any) -> Array:
        return as_texts(x)

    def get_config(self) -> Config:
        return {**super().get_config(), "encoding": self.encoding}


class IntegerLookup(TokenLookup):
    """Integers as numbers from 0 on.

    Args:
        max_tokens: the most numbers, special ones included.
        num_oov_indices: how many numbers there are for unknown integers; with 0 they are an error.
        mask_token: becomes number 0.
        oov_token: what unknown numbers become with invert.
        vocabulary: a list of integers, or the path of a text file with one a line.
        vocabulary_dtype: "int64" or "int32".
        idf_weights, invert, output_mode, sparse, pad_to_max_tokens: see StringLookup.
        oov_method: how unknown integers are told apart: "floormod", modulo num_oov_indices, or
            "farmhash", by a hash.
        salt: an integer or two, for another hash.

    >>> IntegerLookup(vocabulary=[10, 20])([[20, 10, 7]]).numpy().tolist()
    [[2, 1, 0]]
    """

    def __init__(
        self,
        max_tokens: int | None = None,
        num_oov_indices: int = 1,
        mask_token: int | None = None,
        oov_token: int = -1,
        vocabulary: Any = None,
        vocabulary_dtype: str = "int64",
        idf_weights: Any = None,
        invert: bool = False,
        output_mode: str = "int",
        sparse: bool = False,
        pad_to_max_tokens: bool = False,
        oov_method: str = "floormod",
        salt: Any = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            max_tokens, num_oov_indices, mask_token, oov_token, vocabulary, idf_weights, invert,
            output_mode, pad_to_max_tokens, salt, name=name, **kwargs,
        )  # fmt: skip
        self.refuse_sparse(sparse)
        self.vocabulary_dtype = choice(
            self, "vocabulary_dtype", vocabulary_dtype, ("int64", "int32")
        )
        self.oov_method = choice(self, "oov_method", oov_method, ("floormod", "farmhash"))
        if salt is not None and oov_method != "farmhash":
            raise ValueError(
                f'IntegerLookup layer "{self.name}": salt goes with oov_method="farmhash" only; '
                f"received {salt!r} and {oov_method!r}."
            )

    def tokens_of(self, x: Any) -> Array:
        array = x.data if isinstance(x, Tensor) else np.asarray(x)
        return array.astype(np.int64) if array.dtype.kind in "US" else whole_numbers(array)

    def unknown_numbers(self, tokens: Array) -> Array:
        if self.oov_method == "farmhash":
            return super().unknown_numbers(tokens)
        return tokens % self.num_oov_indices

    def get_config(self) -> Config:
        config = super().get_config()
        return {**config, "vocabulary_dtype": self.vocabulary_dtype, "oov_method": self.oov_method}
