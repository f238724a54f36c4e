"""The loop over time of recurrent layers: plain arrays, whole sequences, a block of the batch each.

Arrays have the batch last: one step of a block is (features, b), so that each gate is one piece of
memory, and a step costs few numpy calls on contiguous arrays (rows of gates side by side made them
twice as slow). The state, a one for the bias and the input of a step lie one below the other in
`hx`, (T + 1, u + 1 + n, b), and meet the recurrent kernel, the bias and the kernel, stacked in the
same way, in one product.

Legend: T steps, b samples of the block, n features in, u units; z before and after the activation,
h and c states; "stale" samples are those a mask holds back at a step; d... gradients.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from picodl import compiled
from picodl.blas import dot
from picodl.parallel import map_blocks, shares_of
from picodl.typing import Array

# a gradient that faded to this part of the largest one counts as 0
_TINY = {"float32": 1e-30, "float64": 1e-280}


class Recurrence:
    """What all recurrences share: blocks, masks, the stack of states and inputs, the result.

    Args:
        x: (batch, T, n).
        states: arrays (batch, u), h first; None stands for zeros.
        kernel, recurrent: (n, gates * u) and (u, gates * u), gates in Keras's order.
        bias: as the layer has it, or None.
        mask: (batch, T), True for the steps that count, or None.
        dropout: multiplies the input, (gates, batch, n), one mask for each gate; or None.
        recurrent_dropout: multiplies h, (gates, batch, u), or None.
        go_backwards: start at the last step.
        zero_output: masked steps put out zeros instead of the output before.
        returns: "last", "sequences", or "all" (sequences, then each last state as one more step).
    """

    gates = 1
    state_count = 1

    def __init__(
        self,
        x: Array,
        states: list[Any],
        kernel: Array,
        recurrent: Array,
        bias: Any = None,
        mask: Any = None,
        dropout: Any = None,
        recurrent_dropout: Any = None,
        go_backwards: bool = False,
        zero_output: bool = False,
        returns: str = "last",
    ) -> None:
        self.x = x[:, ::-1] if go_backwards else x
        self.units = recurrent.shape[0]
        self.dtype = x.dtype
        self.states = states
        self.kernel, self.recurrent, self.bias = kernel, recurrent, bias
        self.dropout, self.recurrent_dropout = dropout, recurrent_dropout
        self.stale = None if mask is None else ~(mask[:, ::-1] if go_backwards else mask)
        self.go_backwards, self.zero_output, self.returns = go_backwards, zero_output, returns
        batch, steps, n = x.shape
        wide = self.gates * self.units
        # a step of a block should keep numpy busy for a while, or the threads wait for each other
        most = -(-batch // 64)
        self.blocks = shares_of(batch, most if batch * wide < 16384 else max(2, most))
        self.work = steps * batch * wide * ((n + self.units) / 8e4 + 1e-3)
        self.saved: list[Any] = []
        self.tiny = 0.0

    # ---------------------------------------------------------------- what a subclass gives

    def prepare(self) -> None:
        """Arrange the weights as `loop` and `loop_back` want them."""
        raise NotImplementedError

    def loop(self, hx: Array, first: list[Array], rows: slice) -> tuple[Any, list[Array]]:
        """Run forward from hx[0]: fill the states in hx[1:].

        Args: first: the first states, (u, b) each.

        Returns: what `loop_back` needs, and the last states.
        """
        raise NotImplementedError

    def loop_back(
        self, kept: Any, hx: Array, g: Any, d: list[Array], rows: slice, need_x: bool
    ) -> tuple[list[Array], Any, tuple[Array, ...]]:
        """Run backward.

        Args: g: gradients (b, T, u) of the outputs, None if only the last counts; d: of the last
            states, (u, b) each, arrays of the caller's own to be written into.

        Returns: gradients of the first states, of the inputs ((T, n, b), or None), and of the
            arranged weights, which are arrays of their own.
        """
        raise NotImplementedError

    def weight_gradients(self, parts: tuple[Array, ...]) -> tuple[Array, Array, Array]:
        """Those of the kernel, the recurrent kernel and the bias, as the layer has them."""
        raise NotImplementedError

    # ---------------------------------------------------------------- forward and backward

    def run(self, keep: bool) -> Array:
        """The output; with keep, what `back` needs is kept."""
        batch, steps, _ = self.x.shape
        u = self.units
        length = {"last": 0, "sequences": steps, "all": steps + self.state_count}[self.returns]
        out = np.empty(
            (batch, length, u) if length or self.returns != "last" else (batch, u), self.dtype
        )
        self.prepare()

        def forward(rows: slice) -> Any:
            first = [
                np.zeros((u, rows.stop - rows.start), self.dtype) if s is None else s[rows].T.copy()
                for s in self.states
            ]
            hx = self._stack(first[0], rows)
            kept, last = self.loop(hx, first, rows)
            self._put_out(out[rows], hx[1:, :u], last, rows)
            return (kept, hx) if keep else None

        self.saved = map_blocks(forward, self.blocks, self.work)
        return out

    def back(self, g: Array, need_x: bool) -> tuple[Any, list[Array], Array, Array, Array]:
        """Gradients of x, the first states, kernel, recurrent kernel and bias."""
        batch, _, _ = self.x.shape
        dx = np.empty(self.x.shape, self.dtype) if need_x else None
        dfirst = [np.empty((batch, self.units), self.dtype) for _ in range(self.state_count)]
        self.tiny = _TINY.get(self.dtype.name, 0.0) * max(
            float(g.max(initial=0)), -float(g.min(initial=0))
        )

        def backward(place: int) -> Any:
            rows = self.blocks[place]
            kept, hx = self.saved[place]
            d, part = self._start(g[rows], rows)
            dstates, own, parts = self.loop_back(kept, hx, part, d, rows, need_x)
            for all_rows, ds in zip(dfirst, dstates, strict=True):
                all_rows[rows] = ds.T
            if dx is not None:
                dx[rows] = own.transpose(2, 0, 1)
            return parts

        found = map_blocks(backward, range(len(self.blocks)), 2 * self.work)
        for parts in found[1:]:
            for whole, part in zip(found[0], parts, strict=True):
                whole += part
        if dx is not None and self.go_backwards:
            dx = dx[:, ::-1]
        dkernel, drecurrent, dbias = self.weight_gradients(found[0])
        return dx, dfirst, dkernel, drecurrent, dbias

    def _stack(self, h: Array, rows: slice) -> Array:
        """States to fill, ones, inputs. Masked inputs are zeros: NaN in them does no harm."""
        u, (_, steps, n) = self.units, self.x.shape
        hx = np.empty((steps + 1, u + 1 + n, h.shape[1]), self.dtype)
        hx[0, :u] = h
        hx[:, u] = 1
        inputs = hx[:-1, u + 1 :]
        inputs[...] = self.x[rows].transpose(1, 2, 0)
        if self.stale is not None:
            inputs.transpose(2, 0, 1)[self.stale[rows]] = 0
        return hx

    def _put_out(self, out: Array, h: Array, last: list[Array], rows: slice) -> None:
        hold = self.zero_output and self.stale is not None
        if self.returns == "last":
            out[...] = last[0].T
            if hold and len(h):
                out[self.stale[rows, -1]] = 0  # type: ignore[index]
            return
        out[:, : len(h)] = h.transpose(2, 0, 1)
        if hold:
            out[:, : len(h)][self.stale[rows]] = 0  # type: ignore[index]
        if self.returns == "all":
            for k, state in enumerate(last):
                out[:, len(h) + k] = state.T

    def _start(self, g: Array, rows: slice) -> tuple[list[Array], Any]:
        """The gradients that a block starts with: of the last states and of the outputs."""
        steps = self.x.shape[1]
        hold = self.zero_output and self.stale is not None
        d = [np.zeros((self.units, len(g)), self.dtype) for _ in range(self.state_count)]
        if self.returns == "last":
            d[0][...] = g.T
            if hold and steps:
                d[0][:, self.stale[rows, -1]] = 0  # type: ignore[index]
            return d, None
        if self.returns == "all":
            for k, ds in enumerate(d):
                ds[...] = g[:, steps + k].T
        part = g[:, :steps]
        return d, np.where(self.stale[rows, :, None], 0, part) if hold else part  # type: ignore[index]

    # ---------------------------------------------------------------- for the loops

    def stale_steps(self, rows: slice) -> list[Any]:
        """For each step the samples to hold back, (b,), or None."""
        if self.stale is None:
            return [None] * self.x.shape[1]
        return [s if s.any() else None for s in np.ascontiguousarray(self.stale[rows].T)]

    def flush(self, *gradients: Array) -> None:
        """Set what has faded to nothing to 0; done every 8 steps.

        Products of numbers below the normal range of floats are ten times slower, and a gate of 1/2
        gets a gradient there in 126 steps.
        """
        for d in gradients:
            np.copyto(d, 0, where=np.abs(d) < self.tiny)

    def drops(self, rows: slice, order: tuple[int, ...], part: slice = slice(None)) -> Any:
        """Dropout masks of rows of hx, (gates, ..., b), gates in the given order; None without."""
        if self.dropout is None and self.recurrent_dropout is None:
            return None
        _, _, n = self.x.shape
        u = self.units
        masks = np.ones((len(order), u + 1 + n, rows.stop - rows.start), self.dtype)
        for place, k in enumerate(order):
            if self.recurrent_dropout is not None:
                masks[place, :u] = self.recurrent_dropout[k, rows].T
            if self.dropout is not None:
                masks[place, u + 1 :] = self.dropout[k, rows].T
        return np.ascontiguousarray(masks[:, part])

    def stacked(self, kernel: Array, recurrent: Array, bias: Any) -> Array:
        """The recurrent kernel, the bias and the kernel one below the other, as hx wants them."""
        row = np.zeros((1, kernel.shape[1]), self.dtype) if bias is None else bias[None]
        return np.concatenate([recurrent, row, kernel])


def product(turned: Array, inputs: Array, out: Array, drop: Any) -> None:
    """out = turned @ inputs: (gates * u, k) with (k, b); with a dropout mask for each gate."""
    if drop is None:
        dot(turned, inputs, out)
        return
    u = len(turned) // len(drop)
    for k, mask in enumerate(drop):
        np.dot(turned[k * u : k * u + u], inputs * mask, out[k * u : k * u + u])


def product_back(weights: Array, dz: Array, out: Array, drop: Any) -> None:
    """out = weights @ dz: (k, gates * u) with (gates * u, b); the way back of `product`."""
    if drop is None:
        dot(weights, dz, out)
        return
    u = len(dz) // len(drop)
    out[...] = 0
    for k, mask in enumerate(drop):
        out += weights[:, k * u : k * u + u].dot(dz[k * u : k * u + u]) * mask


def weight_product(inputs: Array, dz: Array, drop: Any) -> Array:
    """The gradient of the weights, (k, gates * u): the sum of inputs[t] @ dz[t].T over t."""
    steps, k, b = inputs.shape
    wide = dz.shape[1]
    if drop is None and compiled.kernels is not None and dz.dtype == np.float32:
        from picodl.ops.gated_direct import direct_weight_product

        return direct_weight_product(inputs, dz)
    total = np.zeros((wide, k), dz.dtype)
    some = max(1, 256 // max(1, b))
    for start in range(0, steps, some):
        part = inputs[start : start + some]
        samples = len(part) * b
        columns = dz[start : start + some].transpose(1, 0, 2).reshape(wide, samples)
        if drop is None:
            total += dot(columns, part.transpose(0, 2, 1).reshape(samples, k))
            continue
        u = wide // len(drop)
        for place, mask in enumerate(drop):
            gate = slice(place * u, place * u + u)
            rows = (part * mask).transpose(0, 2, 1).reshape(samples, k)
            total[gate] += dot(columns[gate], rows)
    return total.T


def hold_back(d: Array, stale: Any) -> Any:
    """Take the gradient of stale samples out of d: it goes past this step."""
    if stale is None:
        return None
    held = np.where(stale, d, 0)
    np.copyto(d, 0, where=stale)
    return held


def pieces(steps: int, size: int) -> list[slice]:
    """The steps in pieces of about 64k elements, the last ones first."""
    some = max(1, 65536 // max(1, size))
    return [slice(max(0, stop - some), stop) for stop in range(steps, 0, -some)]


class SimpleRecurrence(Recurrence):
    """h' = f(x @ W + b + h @ U), with f given by its array function and its slope from h'."""

    forward: Any = staticmethod(np.tanh)
    slope: Any = staticmethod(lambda y: 1 - y * y)

    def prepare(self) -> None:
        self.weights = self.stacked(self.kernel, self.recurrent, self.bias)

    def loop(self, hx: Array, first: list[Array], rows: slice) -> tuple[Any, list[Array]]:
        u = self.units
        turned, drop = np.ascontiguousarray(self.weights.T), self.drops(rows, (0,))
        z = np.empty((u, hx.shape[2]), self.dtype)
        for t, stale in enumerate(self.stale_steps(rows)):
            product(turned, hx[t], z, drop)
            self.forward(z, out=hx[t + 1, :u])
            if stale is not None:
                np.copyto(hx[t + 1, :u], hx[t, :u], where=stale)
        return None, [hx[-1, :u]]

    def loop_back(
        self, kept: Any, hx: Array, g: Any, d: list[Array], rows: slice, need_x: bool
    ) -> tuple[list[Array], Any, tuple[Array, ...]]:
        u = self.units
        drop, stale = self.drops(rows, (0,)), self.stale_steps(rows)
        dz = self.slope(hx[1:, :u])
        back = StepsBack(self.weights, u, hx.shape, drop, need_x)
        (dh,) = d
        for t in range(len(dz) - 1, -1, -1):
            if g is not None:
                dh += g[:, t].T
            hold = hold_back(dh, stale[t])
            dz[t] *= dh
            dh = back(t, dz[t])
            if hold is not None:
                dh += hold
            if t % 8 == 0:
                self.flush(dh)
        return [dh], back.dx, (weight_product(hx[:-1], dz, drop),)

    def weight_gradients(self, parts: tuple[Array, ...]) -> tuple[Array, Array, Array]:
        return unstacked(parts[0], self.units)


class StepsBack:
    """The products of the steps back: calling it gives dh, and what goes to the inputs is kept."""

    def __init__(self, weights: Array, u: int, shape: Any, drop: Any, need_x: bool) -> None:
        steps = shape[0] - 1
        rows = shape[1] if need_x else u
        self.weights, self.units = weights[:rows], u
        self.drop = drop if drop is None or need_x else drop[:, :u]
        self.all = np.empty((steps if need_x else 1, rows, shape[2]), weights.dtype)
        self.dx = self.all[:, u + 1 :] if need_x else None

    def __call__(self, t: int, dz: Array) -> Array:
        out = self.all[t if self.dx is not None else 0]
        product_back(self.weights, dz, out, self.drop)
        return out[: self.units]


def unstacked(d: Array, u: int) -> tuple[Array, Array, Array]:
    """The gradients of kernel, recurrent kernel and bias from that of the stack."""
    return d[u + 1 :], d[:u], d[u]
