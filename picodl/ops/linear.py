"""Products: matmul, einsum, and dense with its bias and activation fused."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from picodl.blas import SMALL, dot, dot_over_rows
from picodl.config import thread
from picodl.ops import dense_direct
from picodl.ops.activation import Pair, linear_pair, works_in_place
from picodl.ops.core import Numeric, op
from picodl.ops.diagonals import diagonal
from picodl.parallel import GRAIN, blas_is_single, map_blocks, shares_of
from picodl.tensor import Tensor, record, value
from picodl.typing import Array

_FLOPS_PER_US = 6e4  # of one thread: 60 GFLOP/s
_SMALL = GRAIN * _FLOPS_PER_US
_TALL = 512  # rows from which on the way back goes over blocks of them


@op
def dense(x: Tensor, kernel: Tensor, bias: Tensor | None = None, pair: Any = None) -> Tensor:
    """y = f(z) with z = x @ kernel + bias, over the last axis.

    Args:
        x: the input.
        kernel, bias: the weights; no bias for None.
        pair: the activation's array functions (`activations.relu.pair`); None for the identity.

    Shapes: x (..., n), kernel (n, m), bias (m,) -> y (..., m).
    Gradient: with h = f'(z) * g and rows flattened, dx = h @ kernel.T, dkernel = x.T @ h,
    dbias = sum of h over the rows.
    """
    a, w = x.data, kernel.data
    rows = a if a.ndim == 2 else a.reshape(-1, a.shape[-1])
    function: Pair = linear_pair if pair is None else pair
    y, back = affine(rows, w, None if bias is None else bias.data, function)
    out = y if a.ndim == 2 else y.reshape(*a.shape[:-1], w.shape[1])
    if not thread.recording:
        return record(out)

    def backward(g: Any) -> Any:
        g = g if g.ndim == 2 else g.reshape(y.shape)
        dx, dw, db = back(g, x.requires_grad, kernel.requires_grad)
        if dx is not None and a.ndim != 2:
            dx = dx.reshape(a.shape)
        return (dx, dw) if bias is None else (dx, dw, db)

    def composed(x: Tensor, kernel: Tensor, bias: Any = None) -> Any:
        z = matmul(x, kernel)
        return function.composed(z if bias is None else z + bias)

    inputs = (x, kernel) if bias is None else (x, kernel, bias)
    return record(out, inputs, backward, composed)


Back: TypeAlias = Callable[[Array, bool, bool], tuple[Any, Any, Any]]


def affine(rows: Array, w: Array, b: Array | None, function: Pair) -> tuple[Array, Back]:
    """f(rows @ w + b), and its way back: (g, need_x, need_w) to the gradients of rows, w and b.

    Many rows are worked out in blocks, each with all that happens to it, on threads.
    """
    flops = 2 * rows.size * w.shape[1]
    if 2 * flops >= _SMALL:  # the way back has two products
        if len(rows) >= _TALL:
            return _affine_in_blocks(rows, w, b, function, flops)
        if dense_direct.spreads(rows, w, b, function):
            return dense_direct.affine(rows, w, b, function, flops / _FLOPS_PER_US)
    times = np.ndarray.dot if flops < 2 * SMALL else product
    direct = flops < 8 * SMALL
    found = dense_direct.forward(rows, w, b, function) if direct else None
    y, saved = found or _forward(times(rows, w), b, function)

    def back(g: Array, need_x: bool, need_w: bool) -> tuple[Any, Any, Any]:
        if direct and need_w and (found := dense_direct.back(rows, w, g, function, saved, need_x)):
            return found if b is not None else (*found[:2], None)
        h = function.backward(g, saved)
        return (
            times(h, w.T) if need_x else None,
            weight_product(rows, h, flops) if need_w else None,
            None if b is None else sum_of_rows(h),
        )

    return y, back


def _forward(z: Array, b: Array | None, function: Pair) -> tuple[Array, Any]:
    if b is not None:
        z += b
    return function.forward(z)


def _affine_in_blocks(
    rows: Array, w: Array, b: Array | None, function: Pair, flops: int
) -> tuple[Array, Back]:
    blocks = shares_of(len(rows), 2 * max(1, min(4, int(flops / (8 * _SMALL)))))
    y = np.empty((len(rows), w.shape[1]), np.result_type(rows, w))
    in_place = works_in_place(function)

    def forward(s: slice) -> Any:
        out = y[s]
        found = dense_direct.forward(rows[s], w, b, function, out)
        value, saved = found or _forward(dot(rows[s], w, out if in_place else None), b, function)
        if value is not out:  # z may be among what was saved
            out[...] = value
        return saved

    kept = map_blocks(forward, blocks, flops / _FLOPS_PER_US)

    def back(g: Array, need_x: bool, need_w: bool) -> tuple[Any, Any, Any]:
        dx = np.empty(rows.shape, y.dtype) if need_x else None
        turned = functools.cache(lambda: np.ascontiguousarray(w.T))  # where BLAS has to do it

        def backward(place: int) -> tuple[Any, Any]:
            s, saved = blocks[place], kept[place]
            out = None if dx is None else dx[s]
            if need_w and (
                found := dense_direct.back(rows[s], w, g[s], function, saved, need_x, out)
            ):
                return found[1], None if b is None else found[2]
            h = function.backward(g[s], saved)
            if out is not None:
                dot(h, turned(), out)
            dw = dot_over_rows(rows[s], h) if need_w else None
            return dw, None if b is None else sum_of_rows(h)

        found = map_blocks(backward, range(len(blocks)), 2 * flops / _FLOPS_PER_US)
        dw, db = found[0]
        for more_w, more_b in found[1:]:
            dw = None if dw is None else np.add(dw, more_w, out=dw)
            db = None if db is None else db + more_b
        return dx, dw, db

    return y, back


def product(a: Array, b: Array) -> Array:
    """a.dot(b) for matrices; a large one is worked out in blocks of rows of a, on threads."""
    flops = 2 * a.size * b.shape[1]
    if flops < _SMALL:
        return dot(a, b) if blas_is_single() else a.dot(b)
    n = len(a)
    out = np.empty((n, b.shape[1]), np.result_type(a, b))

    def rows(s: slice) -> None:
        dot(a[s], b, out[s])

    map_blocks(rows, shares_of(n, max(2, min(8, n // 64))), flops / _FLOPS_PER_US)
    return out


def weight_product(rows: Array, h: Array, flops: int) -> Array:
    """rows.T @ h, as `product` or as sums over some rows each."""
    if 2 * SMALL <= flops < _SMALL and blas_is_single():
        return dot_over_rows(rows, h)
    return product(rows.T, h)


def sum_of_rows(h: Array) -> Array:
    """The sum over the first axis of a matrix, as a product: 0.3 us for 32x128 against 1.3."""
    return _ones(len(h), h.dtype).dot(h) if h.size < 1 << 20 else np.add.reduce(h, axis=0)


def sum_of_columns(h: Array) -> Array:
    """The sum over the last axis of a matrix, as a product where that takes 1 us less."""
    return h.dot(_ones(h.shape[1], h.dtype)) if h.size < 8192 else np.add.reduce(h, axis=1)


@functools.lru_cache(maxsize=16)
def _ones(n: int, dtype: Any) -> Array:
    return np.ones(n, dtype)


@op
def matmul(x1: Numeric, x2: Numeric) -> Tensor:
    """The matrix product, over stacks of matrices with broadcasting as in numpy.

    Shapes: (..., n, k), (..., k, m) -> (..., n, m); vectors as in numpy.
    Gradient: dx1 = g @ x2.T, dx2 = x1.T @ g, summed where broadcasting stretched.
    """
    a, b = x1.data, x2.data
    y = product(a, b) if a.ndim == 2 and b.ndim == 2 else np.matmul(a, b)

    def backward(g: Any) -> Any:
        u, v = value(x1, g), value(x2, g)
        if a.ndim == 1 and b.ndim == 1:
            return g * v, g * u
        if a.ndim == 1:  # (k), (..., k, m): a row vector
            return _matvec(v, g), u[:, None] * g[..., None, :]
        if b.ndim == 1:  # (..., n, k), (k)
            return g[..., None] * v, _matvec(_swap(u), g)
        dx1 = g @ _swap(v) if x1.requires_grad else None
        dx2 = _swap(u) @ g if x2.requires_grad else None
        return dx1, dx2

    return record(y, (x1, x2), backward)


def _swap(x: Any) -> Any:
    axes = (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2)
    return x.transpose(axes)


def _matvec(m: Any, v: Any) -> Any:
    """m @ v over stacks, for arrays and Tensors."""
    return (m @ v[..., None])[..., 0]


def einsum(subscripts: str, *operands: Any, **kwargs: Any) -> Any:
    """Sum of products in Einstein's notation, such as "bij,bjk->bik".

    Gradient: the same sum with the gradient in the place of each operand.

    Raises:
        ValueError: for subscripts that numpy does not accept, or an index repeated in one operand.
    """
    return _einsum(list(operands), subscripts.replace(" ", ""))


@op
def _einsum(operands: list[Numeric], subscripts: str) -> Tensor:
    left, _, right = subscripts.partition("->")
    terms = left.split(",")
    if "->" not in subscripts:
        letters = left.replace(",", "").replace("...", "")
        right = ("..." if "..." in left else "") + "".join(
            sorted(c for c in set(letters) if letters.count(c) == 1)
        )
    if len(terms) == len(operands):
        pairs = [_diagonals(x, term) for x, term in zip(operands, terms, strict=True)]
        operands, terms = [x for x, _ in pairs], [term for _, term in pairs]
    arrays = [x.data for x in operands]
    y = np.einsum(f"{','.join(terms)}->{right}", *arrays, optimize=len(arrays) > 1)

    def backward(g: Any) -> Any:
        return [
            _einsum_gradient(i, terms, right, operands, g) if x.requires_grad else None
            for i, x in enumerate(operands)
        ]

    backward.__qualname__ = "einsum"
    return record(y, operands, backward)


def _diagonals(x: Tensor, term: str) -> tuple[Tensor, str]:
    """An index that is repeated in one operand means a diagonal: take it, and name it once."""
    for letter in set(term):
        while letter != "." and term.count(letter) > 1 and "." not in term:
            first = term.index(letter)
            second = term.index(letter, first + 1)
            if x.data.shape[first] != x.data.shape[second]:
                raise ValueError(
                    f"einsum: the index {letter!r} is repeated in {term!r}, but the axes of shape "
                    f"{x.data.shape} that it names differ in size."
                )
            x = diagonal(x, 0, first, second)
            term = term[:first] + term[first + 1 : second] + term[second + 1 :] + letter
    return x, term


def _einsum_gradient(i: int, terms: list[str], right: str, operands: list[Tensor], g: Any) -> Any:
    """The gradient of operand i: letters that only it has are spread out by broadcasting."""
    own, shape = terms[i], operands[i].data.shape
    letters = own.replace("...", "")
    if len(set(letters)) != len(letters):
        raise ValueError(f"einsum has no gradient for {own!r}: an index is repeated in it.")
    others = [t for j, t in enumerate(terms) if j != i]
    rest = [value(x, g) for j, x in enumerate(operands) if j != i]
    there = set("".join(others) + right)
    ellipsis = "..." if "..." in "".join(others) + right else ""
    target = ellipsis + "".join(c for c in letters if c in there)
    if isinstance(g, Tensor):
        dx = einsum(f"{','.join([right, *others])}->{target}", g, *rest)
    else:
        dx = np.einsum(f"{','.join([right, *others])}->{target}", g, *rest, optimize=len(rest) > 1)
    spread = len(dx.shape) - (len(target) - len(ellipsis))  # axes of the ellipsis come first
    own_spread = len(shape) - len(letters)
    if spread > own_spread:
        dx = dx.sum(tuple(range(spread - own_spread)))
    where = own.find("...") if "..." in own else 0
    kept = [c for c in letters if c in there]
    order = [own_spread + kept.index(c) for c in kept]
    before = len([c for c in letters[:where] if c in there])
    order[before:before] = range(own_spread)
    dx = dx.transpose(order)
    full = [c if c in there else None for c in letters]
    full[where:where] = ["."] * own_spread
    index = tuple(slice(None) if c is not None else None for c in full)
    dx = dx[index]
    if tuple(dx.shape) != shape:
        dx = dx * np.ones(shape, dx.dtype)
    return dx
