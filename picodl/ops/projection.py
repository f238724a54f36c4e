"""Products over several axes at once, for layers with heads."""

from __future__ import annotations

from math import prod
from typing import Any

from picodl.ops.activation import Pair, linear_pair
from picodl.ops.core import op
from picodl.ops.linear import affine, matmul
from picodl.ops.shape import reshape
from picodl.tensor import Tensor, record


@op
def project(
    x: Tensor, kernel: Tensor, bias: Tensor | None = None, axes: int = 1, pair: Any = None
) -> Tensor:
    """y = f(z) with z = x times kernel + bias, the last axes of x meeting the first of the kernel.

    Args:
        x: the input.
        kernel, bias: the weights; no bias for None.
        axes: how many axes meet.
        pair: the activation's array functions; None for the identity.

    Shapes: x (..., n1, n2), kernel (n1, n2, m1, m2), bias (m1, m2), axes 2 -> y (..., m1, m2).

    Raises:
        ValueError: if the axes that meet differ.

    Gradient: as that of `dense`, the axes that meet seen as one, and so the others.
    """
    a, w = x.data, kernel.data
    around = a.shape[: a.ndim - axes]
    if a.shape[a.ndim - axes :] != w.shape[:axes]:
        raise ValueError(
            f"The last axes of an input of shape {a.shape} must be {w.shape[:axes]} for a kernel "
            f"of shape {w.shape}."
        )
    inner, outer = prod(w.shape[:axes]), prod(w.shape[axes:])
    rows, columns = a.reshape(-1, inner), w.reshape(inner, outer)
    function: Pair = linear_pair if pair is None else pair
    y, back = affine(rows, columns, None if bias is None else bias.data.reshape(-1), function)

    def backward(g: Any) -> Any:
        dx, dw, db = back(g.reshape(y.shape), x.requires_grad, kernel.requires_grad)
        dx = None if dx is None else dx.reshape(a.shape)
        dw = None if dw is None else dw.reshape(w.shape)
        return (dx, dw) if bias is None else (dx, dw, db.reshape(bias.data.shape))

    def composed(x: Tensor, kernel: Tensor, bias: Any = None) -> Any:
        z = matmul(reshape(x, (-1, inner)), reshape(kernel, (inner, outer)))
        z = z if bias is None else z + reshape(bias, (outer,))
        return reshape(function.composed(z), (*around, *w.shape[axes:]))

    inputs = (x, kernel) if bias is None else (x, kernel, bias)
    return record(y.reshape(*around, *w.shape[axes:]), inputs, backward, composed)
