"""Connectionist temporal classification: the loss of unaligned labels, and decoding.

Reference: Graves et al., 2006, "Connectionist temporal classification: labelling unsegmented
sequence data with recurrent neural networks".
"""

from __future__ import annotations

from typing import Any

import numpy as np

from picodl.ops.core import Array, op
from picodl.tensor import Tensor, record


@op
def ctc_loss(
    target: Array, output: Tensor, target_length: Array, output_length: Array, mask_index: int = 0
) -> Tensor:
    """-log of the probability of the labels, summed over all alignments with the steps.

    Args:
        target: labels, padded at the end.
        output: logits of each step.
        target_length: how many labels count, per sample.
        output_length: how many steps count, per sample.
        mask_index: the class that stands for no label. Defaults to 0.

    Shapes: target (batch, labels), output (batch, steps, classes), lengths (batch,) -> (batch,).

    Raises:
        ValueError: for labels out of range, or more labels than the steps have room for.

    Gradient: doutput = g * (softmax(output) - the probability that the step shows each class, given
    the labels), by the forward-backward algorithm. No second derivative.
    """
    logits = output.data.astype(np.float64)
    if logits.ndim != 3:
        raise ValueError(
            f"ctc_loss expects output of shape (batch, steps, classes); received {logits.shape}."
        )
    batch, steps, classes = logits.shape
    labels = np.asarray(target).astype(np.int64)
    if labels.ndim != 2 or len(labels) != batch:
        raise ValueError(
            f"ctc_loss expects target of shape ({batch}, labels); received {labels.shape}."
        )
    n_labels = _lengths(target_length, batch, labels.shape[1], "target_length")
    n_steps = _lengths(output_length, batch, steps, "output_length")
    mask_index = mask_index % classes
    _check_labels(labels, n_labels, n_steps, classes, mask_index)

    logits = logits - logits.max(-1, keepdims=True)
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    states = np.full((batch, 2 * labels.shape[1] + 1), mask_index)  # a blank around every label
    states[:, 1::2] = np.where(np.arange(labels.shape[1]) < n_labels[:, None], labels, mask_index)
    emit = np.take_along_axis(log_p, states[:, None, :].repeat(steps, 1), 2)  # (batch, steps, s)
    skip = np.zeros(states.shape, bool)  # from the label before, over the blank between
    skip[:, 2:] = (states[:, 2:] != mask_index) & (states[:, 2:] != states[:, :-2])
    ends = np.arange(states.shape[1])
    last = (ends == 2 * n_labels[:, None]) | (ends == 2 * n_labels[:, None] - 1)

    alpha = _forward(emit, skip)
    final = alpha[np.arange(batch), np.maximum(n_steps - 1, 0)]
    loss = -np.logaddexp.reduce(np.where(last, final, -np.inf), 1)
    loss = np.where(n_steps == 0, 0.0, loss)  # no step and no label

    def backward(g: Any) -> Any:
        beta = _backward(emit, skip, last, n_steps)
        share = np.exp(alpha + beta + loss[:, None, None])
        dx = np.exp(log_p)
        rows = np.arange(batch)[:, None, None], np.arange(steps)[None, :, None]
        np.subtract.at(dx, (*rows, states[:, None, :]), share)
        dx *= (np.arange(steps) < n_steps[:, None])[:, :, None]
        return ((dx * g[:, None, None]).astype(output.data.dtype),)

    return record(loss.astype(output.data.dtype), (output,), backward, composed=False)


def _lengths(lengths: Any, batch: int, most: int, name: str) -> Array:
    n = np.asarray(lengths).astype(np.int64)
    n = n.reshape(-1) if n.ndim == 2 else n
    if n.shape != (batch,) or (batch and not 0 <= n.min() <= n.max() <= most):
        raise ValueError(
            f"ctc_loss: {name} must be {batch} numbers from 0 to {most}; received {n.tolist()}."
        )
    return n


def _check_labels(
    labels: Array, n_labels: Array, n_steps: Array, classes: int, mask_index: int
) -> None:
    counted = np.arange(labels.shape[1]) < n_labels[:, None]
    used = labels[counted]
    if used.size and not 0 <= used.min() <= used.max() < classes:
        raise ValueError(
            f"ctc_loss: labels must lie from 0 to {classes - 1}; they go from {used.min()} to "
            f"{used.max()}."
        )
    if (used == mask_index).any():
        raise ValueError(
            f"ctc_loss: the label {mask_index} is mask_index, which stands for no label. Shift the "
            "labels, or pass another mask_index."
        )
    repeats = ((labels[:, 1:] == labels[:, :-1]) & counted[:, 1:]).sum(1)
    short = np.flatnonzero(n_labels + repeats > n_steps)
    if short.size:
        i = int(short[0])
        raise ValueError(
            f"ctc_loss: sample {i} has {n_labels[i]} labels, {repeats[i]} equal to the one before; "
            f"they need {n_labels[i] + repeats[i]} steps, but its output has {n_steps[i]}."
        )


def _forward(emit: Array, skip: Array) -> Array:
    """log of the probability to have reached each state at each step, its emission included."""
    alpha = np.full(emit.shape, -np.inf)
    if emit.shape[1]:
        alpha[:, 0, :2] = emit[:, 0, :2]
    for t in range(1, emit.shape[1]):
        before = alpha[:, t - 1]
        now = before.copy()
        now[:, 1:] = np.logaddexp(now[:, 1:], before[:, :-1])
        now[:, 2:] = np.logaddexp(now[:, 2:], np.where(skip[:, 2:], before[:, :-2], -np.inf))
        alpha[:, t] = now + emit[:, t]
    return alpha


def _backward(emit: Array, skip: Array, last: Array, n_steps: Array) -> Array:
    """log of the probability of the rest from each state at each step, its emission left out."""
    beta = np.full(emit.shape, -np.inf)
    steps = emit.shape[1]
    now = np.full(last.shape, -np.inf)
    for t in range(steps - 1, -1, -1):
        if t < steps - 1:
            after = now + emit[:, t + 1]
            now = after.copy()
            now[:, :-1] = np.logaddexp(now[:, :-1], after[:, 1:])
            now[:, :-2] = np.logaddexp(now[:, :-2], np.where(skip[:, 2:], after[:, 2:], -np.inf))
        now = np.where((n_steps == t + 1)[:, None], np.where(last, 0.0, -np.inf), now)
        beta[:, t] = now
    return beta


# -------------------------------------------------------------------- decoding


@op
def ctc_decode(
    inputs: Tensor,
    sequence_lengths: Array,
    strategy: str = "greedy",
    beam_width: int = 100,
    top_paths: int = 1,
    merge_repeated: bool = True,
    mask_index: int = 0,
) -> tuple[Tensor, Tensor]:
    """The labels that logits stand for. Not differentiable.

    Args:
        inputs: logits of each step.
        sequence_lengths: how many steps count, per sample.
        strategy: "greedy" takes the best class of each step, "beam_search" the best labels over all
            their alignments.
        beam_width: how many beginnings the beam search keeps. Defaults to 100.
        top_paths: how many results the beam search gives. Defaults to 1.
        merge_repeated: "greedy" counts a class that stays over steps once. Defaults to True.
        mask_index: the class that stands for no label. Defaults to 0.

    Shapes: (batch, steps, classes) -> labels (paths, batch, steps), padded with -1, and scores
    (batch, paths): for "greedy" minus the sum of the best logits, else log probabilities.
    """
    x = inputs.data
    if x.ndim != 3:
        raise ValueError(
            f"ctc_decode expects inputs of shape (batch, steps, classes); received {x.shape}."
        )
    n_steps = _lengths(sequence_lengths, len(x), x.shape[1], "sequence_lengths")
    mask_index = x.shape[2] - 1 if mask_index is None else mask_index % x.shape[2]
    if strategy == "greedy":
        return _greedy(x, n_steps, merge_repeated, mask_index)
    if strategy != "beam_search":
        raise ValueError(f'strategy must be "greedy" or "beam_search"; received {strategy!r}.')
    labels = np.full((top_paths, *x.shape[:2]), -1, np.int32)
    scores = np.full((len(x), top_paths), -np.inf, x.dtype)
    peak = x.max(-1, keepdims=True)
    log_p = x - peak - np.log(np.exp(x - peak).sum(-1, keepdims=True))
    for i, n in enumerate(n_steps):
        best = _beam_search(log_p[i, :n].astype(np.float64), beam_width, top_paths, mask_index)
        for k, (path, score) in enumerate(best):
            labels[k, i, : len(path)] = path
            scores[i, k] = score
    return record(labels), record(scores)


def _greedy(x: Array, n_steps: Array, merge: bool, mask_index: int) -> tuple[Tensor, Tensor]:
    counted = np.arange(x.shape[1]) < n_steps[:, None]
    best = np.where(counted, x.argmax(-1), mask_index)
    scores = -np.where(counted, x.max(-1), 0).sum(1, keepdims=True)
    keep = best != mask_index
    if merge:
        keep[:, 1:] &= best[:, 1:] != best[:, :-1]
    order = np.argsort(~keep, axis=1, kind="stable")  # what is kept goes to the front
    labels = np.take_along_axis(np.where(keep, best, -1), order, 1)
    return record(labels[None].astype(np.int32)), record(scores.astype(x.dtype))


def _beam_search(
    log_p: Array, width: int, top: int, mask_index: int
) -> list[tuple[tuple[int, ...], float]]:
    """The best labels and their log probabilities.

    Of each beginning two numbers are kept: the log probability of the alignments that end in no
    label, and of those that end in the last label.
    """
    nothing = -np.inf
    beam: dict[tuple[int, ...], tuple[float, float]] = {(): (0.0, nothing)}
    for row in log_p.tolist():
        new: dict[tuple[int, ...], list[float]] = {}
        for path, (blank, label) in beam.items():
            total = np.logaddexp(blank, label)
            for c, p in enumerate(row):
                if c == mask_index:
                    _add(new, path, 0, total + p)
                elif path and path[-1] == c:
                    _add(new, path, 1, label + p)
                    _add(new, (*path, c), 1, blank + p)
                else:
                    _add(new, (*path, c), 1, total + p)
        ranked = sorted(new.items(), key=lambda item: -np.logaddexp(item[1][0], item[1][1]))
        beam = {path: (pair[0], pair[1]) for path, pair in ranked[:width]}
    scored = [(path, float(np.logaddexp(*pair))) for path, pair in beam.items()]
    return sorted(scored, key=lambda item: -item[1])[:top]


def _add(new: dict[tuple[int, ...], list[float]], path: Any, which: int, p: float) -> None:
    if p == -np.inf:
        return
    pair = new.setdefault(path, [-np.inf, -np.inf])
    pair[which] = float(np.logaddexp(pair[which], p))
