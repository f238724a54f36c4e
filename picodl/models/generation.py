"""Texts and other sequences from a model that predicts the next token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from picodl.config import thread_values
from picodl.parallel import blas_single_thread
from picodl.tensor import no_grad
from picodl.typing import Array


class Decoding:
    """What the layers of a model remember from one token to the next.

    While it is in `config.thread.decoding`, causal attention layers keep their keys and values,
    recurrent layers their states, and position layers count on from `position`.
    """

    def __init__(self) -> None:
        self.position = 0
        self._memories: dict[int, dict[str, Any]] = {}

    def of(self, layer: Any) -> dict[str, Any]:
        """The memory of one layer."""
        return self._memories.setdefault(id(layer), {})


def generate(
    model: Callable[..., Any],
    prompt: Any,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    end_id: int | None = None,
    context: int | None = None,
    seed: int | None = None,
    use_cache: bool = True,
) -> Array:
    """Continue a prompt token by token.

    Each step computes the new token only: layers keep what they need of the earlier ones. The first
    such step is compared with the whole sequence computed again; a model for which that does not
    hold (one that looks ahead, say) is run on whole sequences.

    Args:
        model: a model or function from token ids (batch, T) to logits (batch, T, vocabulary).
        prompt: ids (T,) or (batch, T), at least one token.
        max_new_tokens: how many to add.
        temperature: logits are divided by it; 0 takes the likeliest token.
        top_k: choose among the k likeliest tokens.
        top_p: choose among the likeliest tokens that together have this probability.
        end_id: a sequence that reached it is continued with it only, and all stop when all have.
        context: the most tokens the model looks at. Defaults to the model's input length if that is
            fixed.
        seed: repeats the choices. Defaults to new ones each time.
        use_cache: False runs on whole sequences at once.

    Returns:
        The ids with the new ones, (T + new,) or (batch, T + new).

    Raises:
        ValueError: for an empty prompt or settings out of range.

    Reference: Holtzman et al., 2019, "The Curious Case of Neural Text Degeneration",
    arXiv:1904.09751 (top-p).
    """
    ids = np.asarray(prompt)
    single = ids.ndim == 1
    ids = ids[None] if single else ids
    if ids.ndim != 2 or ids.shape[1] == 0 or ids.dtype.kind not in "iu":
        raise ValueError(
            "generate expects a prompt of integer ids, (T,) or (batch, T) with T of at least 1; "
            f"received shape {np.shape(prompt)} of dtype {ids.dtype}."
        )
    if max_new_tokens < 0:
        raise ValueError(f"max_new_tokens must not be negative; received {max_new_tokens}.")
    choose = _chooser(temperature, top_k, top_p, np.random.default_rng(seed))
    fixed = _fixed_length(model)
    context = context or fixed
    steps = _Steps(model, context, fixed, use_cache and fixed is None)
    ended = np.zeros(len(ids), bool)
    with no_grad(), blas_single_thread():
        for _ in range(max_new_tokens):
            new = choose(steps.logits(ids))
            if end_id is not None:
                new = np.where(ended, end_id, new)
                ended |= new == end_id
            ids = np.concatenate([ids, new[:, None].astype(ids.dtype)], axis=1)
            if end_id is not None and ended.all():
                break
    return ids[0] if single else ids


class _Steps:
    """The logits of the next token, computed from the new tokens only where that is the same."""

    def __init__(self, model: Any, context: int | None, fixed: int | None, cache: bool) -> None:
        self.model, self.context, self.fixed = model, context, fixed
        self.decoding = Decoding() if cache else None
        self.checked = False

    def logits(self, ids: Array) -> Array:
        """(batch, vocabulary) for the token after ids."""
        if self.context is not None and ids.shape[1] > self.context:
            self.decoding = None  # places shift from here on, so nothing can be kept
            ids = ids[:, -self.context :]
        if self.decoding is None:
            return self._whole(ids)
        start = self.decoding.position
        with thread_values(decoding=self.decoding):
            y = self._run(ids[:, start:])[:, -1]
        self.decoding.position = ids.shape[1]
        if start and not self.checked:
            self.checked = True
            whole = self._whole(ids)
            if not np.allclose(y, whole, rtol=1e-3, atol=1e-3 * float(np.abs(whole).max())):
                self.decoding = None
                return whole
        return y

    def _whole(self, ids: Array) -> Array:
        last = ids.shape[1] - 1
        if self.fixed is not None and ids.shape[1] < self.fixed:
            ids = np.pad(ids, ((0, 0), (0, self.fixed - ids.shape[1])))
        return self._run(ids)[:, last]

    def _run(self, ids: Array) -> Array:
        y = np.asarray(self.model(ids))
        if y.ndim != 3 or y.shape[:2] != ids.shape:
            raise ValueError(
                "generate needs a model from ids (batch, T) to logits (batch, T, vocabulary); it "
                f"gave shape {y.shape} for ids of shape {ids.shape}."
            )
        return y


def _fixed_length(model: Any) -> int | None:
    """The length of the model's input, if it is fixed."""
    shape = getattr(model, "input_shape", None)
    if isinstance(shape, tuple) and len(shape) == 2 and isinstance(shape[1], int):
        return shape[1]
    return None


def _chooser(
    temperature: float, top_k: int | None, top_p: float | None, rng: np.random.Generator
) -> Callable[[Array], Array]:
    """A function from logits (batch, vocabulary) to ids (batch,)."""
    if temperature < 0:
        raise ValueError(f"temperature must not be negative; received {temperature}.")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k must be at least 1; received {top_k}.")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p must be above 0 and at most 1; received {top_p}.")
    if temperature == 0:
        return lambda logits: logits.argmax(axis=-1)

    def choose(logits: Array) -> Array:
        scaled = logits.astype(np.float64) / temperature
        order = np.argsort(-scaled, axis=-1, kind="stable")
        ranked = np.take_along_axis(scaled, order, axis=-1)
        p = np.exp(ranked - ranked[:, :1])
        p /= p.sum(axis=-1, keepdims=True)
        if top_p is not None:
            before = np.cumsum(p, axis=-1) - p
            p = np.where(before < top_p, p, 0)
        if top_k is not None:
            p[:, top_k:] = 0
        edges = np.cumsum(p, axis=-1)
        drawn = rng.random((len(p), 1)) * edges[:, -1:]
        place = np.minimum((edges <= drawn).sum(axis=-1), (p > 0).sum(axis=-1) - 1)
        return np.take_along_axis(order, place[:, None], axis=-1)[:, 0]

    return choose
