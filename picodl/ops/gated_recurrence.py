"""LSTM and GRU over whole sequences; see `recurrence.py` for what they share.

A sigmoid is computed as (1 + tanh(z / 2)) / 2, so that one tanh serves all gates; the half is
multiplied into the weights. Backward, the factors of dh and dc are computed for some steps at once,
and a step multiplies by them: half the numpy calls of the plain form.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from picodl.ops.recurrence import (
    Recurrence,
    StepsBack,
    hold_back,
    pieces,
    product,
    product_back,
    unstacked,
    weight_product,
)
from picodl.typing import Array


class LongShortTerm(Recurrence):
    """LSTM: c' = f * c + i * g, h' = o * tanh(c'). In the loop the gates stand as o, i, f, g."""

    gates = 4
    state_count = 2
    order = (3, 0, 1, 2)  # Keras has i, f, g, o

    def prepare(self) -> None:
        self.weights = self.stacked(self.kernel, self.recurrent, self.bias)

    def _columns(self, w: Array, order: tuple[int, ...]) -> Array:
        return w.reshape(len(w), 4, self.units)[:, order].reshape(w.shape)

    def loop(self, hx: Array, first: list[Array], rows: slice) -> tuple[Any, list[Array]]:
        u, b = self.units, hx.shape[2]
        turned = self._columns(self.weights, self.order).T.copy()
        turned[: 3 * u] *= 0.5
        drop, stale = self.drops(rows, self.order), self.stale_steps(rows)
        z = np.empty((len(stale), 4 * u, b), self.dtype)
        c = np.empty((len(stale) + 1, u, b), self.dtype)
        c[0] = first[1]
        tanh_c = np.empty((len(stale), u, b), self.dtype)
        a = np.empty((u, b), self.dtype)
        half = np.asarray(0.5, self.dtype)
        for t, zt in enumerate(z):
            sigmoids, h, new = zt[: 3 * u], hx[t + 1, :u], c[t + 1]
            product(turned, hx[t], zt, drop)
            np.tanh(zt, out=zt)
            sigmoids *= half
            sigmoids += half
            np.multiply(zt[2 * u : 3 * u], c[t], out=new)
            np.multiply(zt[u : 2 * u], zt[3 * u :], out=a)
            new += a
            np.tanh(new, out=tanh_c[t])
            np.multiply(zt[:u], tanh_c[t], out=h)
            if stale[t] is not None:
                np.copyto(h, hx[t, :u], where=stale[t])
                np.copyto(new, c[t], where=stale[t])
        return (z, c, tanh_c), [hx[-1, :u], c[-1]]

    def loop_back(
        self, kept: Any, hx: Array, g: Any, d: list[Array], rows: slice, need_x: bool
    ) -> tuple[list[Array], Any, tuple[Array, ...]]:
        z, c, tanh_c = kept
        steps, _, b = z.shape
        u = self.units
        drop, stale = self.drops(rows, self.order), self.stale_steps(rows)
        back = StepsBack(self._columns(self.weights, self.order), u, hx.shape, drop, need_x)
        dz = np.empty(z.shape, self.dtype)
        slots = dz.reshape(steps, 4, u, b)
        a = np.empty((u, b), self.dtype)
        dh, dc = d
        for piece in pieces(steps, 4 * u * b):
            gates, y = z[piece], tanh_c[piece]
            factor = gates * gates
            np.subtract(gates[:, : 3 * u], factor[:, : 3 * u], out=factor[:, : 3 * u])
            np.subtract(1, factor[:, 3 * u :], out=factor[:, 3 * u :])
            factor[:, :u] *= y
            factor[:, u : 2 * u] *= gates[:, 3 * u :]
            factor[:, 2 * u : 3 * u] *= c[piece]
            factor[:, 3 * u :] *= gates[:, u : 2 * u]
            through = y * y
            np.subtract(1, through, out=through)
            through *= gates[:, :u]
            factor = factor.reshape(len(gates), 4, u, b)
            for t in range(piece.stop - 1, piece.start - 1, -1):
                k = t - piece.start
                if g is not None:
                    dh += g[:, t].T
                hold_h, hold_c = hold_back(dh, stale[t]), hold_back(dc, stale[t])
                np.multiply(dh, factor[k, 0], out=slots[t, 0])
                np.multiply(dh, through[k], out=a)
                dc += a
                np.multiply(factor[k, 1:], dc, out=slots[t, 1:])
                dc *= gates[k, 2 * u : 3 * u]
                dh = back(t, dz[t])
                if hold_h is not None:
                    dh += hold_h
                    dc += hold_c
                if t % 8 == 0:
                    self.flush(dh, dc)
        return [dh, dc], back.dx, (weight_product(hx[:-1], dz, drop),)

    def weight_gradients(self, parts: tuple[Array, ...]) -> tuple[Array, Array, Array]:
        return unstacked(self._columns(parts[0], (1, 2, 3, 0)), self.units)


class GatedUnit(Recurrence):
    """GRU: h' = z * h + (1 - z) * n with the candidate n = tanh(x_n + r * (h @ U_n + b_n)), or with
    reset_after=False n = tanh(x_n + (r * h) @ U_n).

    In the loop the gates of the input stand as n, z, r, those of h as in Keras, z, r, n.
    """

    gates = 3
    reset_after = True

    def prepare(self) -> None:
        u = self.units
        two = self.bias is not None and self.bias.ndim == 2
        whole = self.stacked(
            np.concatenate([self.kernel[:, 2 * u :], self.kernel[:, : 2 * u]], axis=1),
            self.recurrent,
            self.bias[1] if two else None,  # the recurrent side's
        )
        self.of_h = whole[: u + 1]
        self.of_x = whole[u:].copy()
        bias = self.bias[0] if two else self.bias
        self.of_x[0] = 0 if bias is None else np.concatenate([bias[2 * u :], bias[: 2 * u]])

    def loop(self, hx: Array, first: list[Array], rows: slice) -> tuple[Any, list[Array]]:
        u, b = self.units, hx.shape[2]
        of_x, of_h = self.of_x.T.copy(), self.of_h.T.copy()
        of_x[u:] *= 0.5
        of_h[: 2 * u] *= 0.5
        of_n = of_h[2 * u :, :u].copy()  # for reset_after=False
        drop_h, stale = self.drops(rows, (0, 1, 2), slice(u + 1)), self.stale_steps(rows)
        drop_zr = drop_h
        if not self.reset_after:
            of_h = of_h[: 2 * u].copy()
            drop_zr = None if drop_h is None else drop_h[:2]
        z = self._input_products(of_x, hx, rows)
        side = np.empty((len(z), u, b), self.dtype)  # h @ U_n + b_n, or r * h
        a = np.empty((len(of_h), b), self.dtype)
        e = np.empty((u, b), self.dtype)
        half = np.asarray(0.5, self.dtype)
        for t, zt in enumerate(z):
            before, after = hx[t, :u], hx[t + 1, :u]
            candidate, gates, keep, reset = zt[:u], zt[u:], zt[u : 2 * u], zt[2 * u :]
            product(of_h, hx[t, : u + 1], a, drop_zr)
            gates += a[: 2 * u]
            np.tanh(gates, out=gates)
            gates *= half
            gates += half
            if self.reset_after:
                side[t] = a[2 * u :]
                np.multiply(reset, side[t], out=e)
            else:
                np.multiply(reset, before, out=side[t])
                product(of_n, side[t], e, None if drop_h is None else drop_h[2:, :u])
            candidate += e
            np.tanh(candidate, out=candidate)
            np.subtract(before, candidate, out=e)
            e *= keep
            np.add(candidate, e, out=after)
            if stale[t] is not None:
                np.copyto(after, before, where=stale[t])
        return (z, side), [hx[-1, :u]]

    def _input_products(self, of_x: Array, hx: Array, rows: slice) -> Array:
        """Those of all steps, (T, 3u, b)."""
        inputs = hx[:-1, self.units :]
        drop = self.drops(rows, (2, 0, 1), slice(self.units, None))
        if drop is None:
            return np.matmul(of_x, inputs)
        z = np.empty((len(inputs), len(of_x), hx.shape[2]), self.dtype)
        for t, part in enumerate(inputs):
            product(of_x, part, z[t], drop)
        return z

    def loop_back(
        self, kept: Any, hx: Array, g: Any, d: list[Array], rows: slice, need_x: bool
    ) -> tuple[list[Array], Any, tuple[Array, ...]]:
        z, side = kept
        back = self._back_after if self.reset_after else self._back_before
        return back(z, side, hx, g, d[0], rows, need_x)

    def _factors(self, z: Array, h: Array, slots: int) -> Array:
        """Of dh for some steps at once, (steps, slots, u, b): slot 0 is n, 1 is z, others free."""
        u = self.units
        factor = np.empty((len(z), slots, u, z.shape[2]), self.dtype)
        n, keep = z[:, :u], z[:, u : 2 * u]
        rest = 1 - keep
        slope = n * n
        np.subtract(1, slope, out=slope)
        np.multiply(slope, rest, out=factor[:, 0])
        rest *= keep
        np.subtract(h, n, out=slope)
        np.multiply(rest, slope, out=factor[:, 1])
        return factor

    def _back_after(
        self, z: Array, side: Array, hx: Array, g: Any, dh: Array, rows: slice, need_x: bool
    ) -> tuple[list[Array], Any, tuple[Array, ...]]:
        u = self.units
        steps, _, b = z.shape
        drop, stale = self.drops(rows, (0, 1, 2), slice(u + 1)), self.stale_steps(rows)
        back = StepsBack(self.of_h, u, (2, u, b), drop, False)
        # the input side n, z, r and then the recurrent side's own n: two windows of one array
        d = np.empty((steps, 4 * u, b), self.dtype)
        for piece in pieces(steps, 4 * u * b):
            reset = z[piece, 2 * u :]
            factor = self._factors(z[piece], hx[piece, :u], 4)
            np.multiply(factor[:, 0], reset, out=factor[:, 3])
            np.multiply(factor[:, 3], 1 - reset, out=factor[:, 2])
            factor[:, 2] *= side[piece]
            for t in range(piece.stop - 1, piece.start - 1, -1):
                if g is not None:
                    dh += g[:, t].T
                hold = hold_back(dh, stale[t])
                np.multiply(factor[t - piece.start], dh, out=d[t].reshape(4, u, b))
                dh *= z[t, u : 2 * u]
                dh += back(0, d[t, u:])
                if hold is not None:
                    dh += hold
                if t % 8 == 0:
                    self.flush(dh)
        dx, of_x = self._inputs_back(d[:, : 3 * u], hx, rows, need_x)
        return [dh], dx, (of_x, weight_product(hx[:-1, : u + 1], d[:, u:], drop))

    def _back_before(
        self, z: Array, side: Array, hx: Array, g: Any, dh: Array, rows: slice, need_x: bool
    ) -> tuple[list[Array], Any, tuple[Array, ...]]:
        u = self.units
        steps, _, b = z.shape
        drop, stale = self.drops(rows, (0, 1, 2), slice(u)), self.stale_steps(rows)
        drop_zr, drop_n = (None, None) if drop is None else (drop[:2], drop[2:])
        back = StepsBack(self.recurrent[:, : 2 * u].copy(), u, (2, u, b), drop_zr, False)
        back_n = StepsBack(self.recurrent[:, 2 * u :].copy(), u, (2, u, b), drop_n, False)
        d = np.empty((steps, 3 * u, b), self.dtype)
        for piece in pieces(steps, 3 * u * b):
            reset = z[piece, 2 * u :]
            factor = self._factors(z[piece], hx[piece, :u], 3)
            np.multiply(1 - reset, reset, out=factor[:, 2])
            factor[:, 2] *= hx[piece, :u]
            for t in range(piece.stop - 1, piece.start - 1, -1):
                k = t - piece.start
                if g is not None:
                    dh += g[:, t].T
                hold = hold_back(dh, stale[t])
                dt = d[t].reshape(3, u, b)
                np.multiply(factor[k, :2], dh, out=dt[:2])
                inner = back_n(0, dt[0])  # the gradient of r * h
                np.multiply(factor[k, 2], inner, out=dt[2])
                dh *= z[t, u : 2 * u]
                inner *= reset[k]
                dh += inner
                dh += back(0, d[t, u:])
                if hold is not None:
                    dh += hold
                if t % 8 == 0:
                    self.flush(dh)
        dx, of_x = self._inputs_back(d, hx, rows, need_x)
        of_zr = weight_product(hx[:-1, :u], d[:, u:], drop_zr)
        return [dh], dx, (of_x, np.hstack([of_zr, weight_product(side, d[:, :u], drop_n)]))

    def _inputs_back(self, d: Array, hx: Array, rows: slice, need_x: bool) -> tuple[Any, Array]:
        """Gradients of the inputs and of their weights."""
        u = self.units
        drop = self.drops(rows, (2, 0, 1), slice(u, None))
        of_x = weight_product(hx[:-1, u:], d, drop)
        if not need_x:
            return None, of_x
        if drop is None:
            return np.matmul(self.of_x[1:], d), of_x
        dx = np.empty((len(d), len(self.of_x), hx.shape[2]), self.dtype)
        for t, part in enumerate(d):
            product_back(self.of_x, part, dx[t], drop)
        return dx[:, 1:], of_x

    def weight_gradients(self, parts: tuple[Array, ...]) -> tuple[Array, Array, Array]:
        u = self.units
        of_x, of_h = parts
        of_x = np.hstack([of_x[:, u:], of_x[:, :u]])
        bias = np.stack([of_x[0], of_h[u]]) if self.reset_after else of_x[0]
        return of_x[1:], of_h[:u], bias
