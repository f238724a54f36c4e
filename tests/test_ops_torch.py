"""Values and gradients of ops against those that PyTorch computed in float64 (torch_ops.h5)."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from picodl import ops, tree
from picodl.tensor import Tensor

GOLDEN = Path(__file__).parent / "golden" / "torch_ops.h5"


def scattered(how):
    """torch.scatter along axis 1, said with scatter_update."""

    def function(a, b, c):
        rows = np.broadcast_to(np.arange(len(b))[:, None], b.shape)
        index = np.stack([rows, b], -1)
        return ops.scatter_update(a, index, c, how)

    return function


# PyTorch's names, and what says the same here; a, b, c are the inputs
SAID = {
    "abs": ops.abs,
    "acos": ops.arccos,
    "add": ops.add,
    "amax/axis1": lambda a: ops.amax(a, 1),
    "amax/keepdim": lambda a: ops.amax(a, -1, True),
    "amax/ties": lambda a: ops.amax(a, 1),
    "amin/axis1": lambda a: ops.amin(a, 1),
    "amin/keepdim": lambda a: ops.amin(a, -1, True),
    "argmax": lambda a: ops.argmax(a, 1),
    "argmin": lambda a: ops.argmin(a, 1),
    "asin": ops.arcsin,
    "atan": ops.arctan,
    "atan2": ops.arctan2,
    "cdist": ops.cdist,
    "ceil": ops.ceil,
    "cholesky": ops.cholesky,
    "clamp": lambda a: ops.clip(a, -1.0, 1.0),
    "concatenate": lambda a, b: ops.concatenate([a, b], 1),
    "cos": ops.cos,
    "cosh": ops.cosh,
    "cumprod": lambda a: ops.cumprod(a, 1),
    "cumsum/axis0": lambda a: ops.cumsum(a, 0),
    "cumsum/axis1": lambda a: ops.cumsum(a, 1),
    "det": ops.det,
    "diagonal": lambda a: ops.diagonal(a, 1),
    "div": ops.divide,
    "einsum/attention": lambda a, b: ops.einsum("bqhd,bkhd->bhqk", a, b),
    "einsum/bilinear": lambda a, b, c: ops.einsum("bi,oij,bj->bo", a, b, c),
    "einsum/trace": lambda a: ops.einsum("ii->i", a),
    "erf": ops.erf,
    "erfc": ops.erfc,
    "exp": ops.exp,
    "expand": lambda a: ops.broadcast_to(a, (3, 4)),
    "expm1": ops.expm1,
    "flip": lambda a: ops.flip(a, (0, 1)),
    "floor": ops.floor,
    "fmod": ops.fmod,
    "fold": lambda a: ops.fold(a, (4, 5), 2),
    "gather/dim1": lambda a, b: ops.take_along_axis(a, b, 1),
    "hypot": ops.hypot,
    "index/fancy": lambda a, b: a[b],
    "index/none_ellipsis": lambda a: a[..., None, 0],
    "index/rows_cols": lambda a, b, c: a[b, c],
    "index/slice_step": lambda a: a[:, 1::2],
    "index_add": lambda a, b, c: ops.index_add(a, b, c),
    "index_put": lambda a, b, c: ops.scatter_update(a, b[:, None], c, "add"),
    "index_select": lambda a, b: ops.take(a, b, 0),
    "inverse": ops.inv,
    "log": ops.log,
    "log10": ops.log10,
    "log1p": ops.log1p,
    "log2": ops.log2,
    "logaddexp": ops.logaddexp,
    "logsumexp/axis1": lambda a: ops.logsumexp(a, 1),
    "logsumexp/extreme": lambda a: ops.logsumexp(a, -1),
    "logsumexp/keepdim": lambda a: ops.logsumexp(a, -1, True),
    "logsumexp/minus_inf": lambda a: ops.logsumexp(a, -1),
    "masked_fill": lambda a, b: ops.where(b, -7.0, a),
    "masked_select": lambda a: a[a > 0],
    "matmul": ops.matmul,
    "max/all_ties": ops.max,
    "maximum": ops.maximum,
    "mean/axes": lambda a: ops.mean(a, (0, 2)),
    "mean/axis1": lambda a: ops.mean(a, 1),
    "mean/keepdim": lambda a: ops.mean(a, -1, True),
    "median": lambda a: ops.median(a, 1),
    "minimum": ops.minimum,
    "mul": ops.multiply,
    "neg": ops.negative,
    "norm/1": lambda a: ops.norm(a, 1, 1),
    "norm/2": lambda a: ops.norm(a, 2, 1),
    "norm/inf_ties": lambda a: ops.norm(a, np.inf, 1),
    "norm/zero": ops.norm,
    "one_hot": lambda a: ops.one_hot(a, 4),
    "outer": ops.outer,
    "pad/constant": lambda a: ops.pad(
        a, [(0, 0)] * (a.ndim - 2) + [(0, 1), (1, 2)], constant_values=3.0
    ),
    "pad/circular": lambda a: ops.pad(a, [(0, 0)] * (a.ndim - 1) + [(2, 1)], "wrap"),
    "pad/reflect": lambda a: ops.pad(a, [(0, 0)] * (a.ndim - 1) + [(2, 1)], "reflect"),
    "pad/replicate": lambda a: ops.pad(a, [(0, 0)] * (a.ndim - 1) + [(2, 1)], "edge"),
    "permute": lambda a: ops.transpose(a, (2, 0, 1)),
    "pow/int": lambda a: a**3,
    "pow/tensor": ops.power,
    "pow/zero_base": lambda a: a**2,
    "pow/zero_exponent": lambda a: a**0,
    "prod/axis1": lambda a: ops.prod(a, 1),
    "prod/keepdim": lambda a: ops.prod(a, -1, True),
    "prod/zeros": lambda a: ops.prod(a, 1),
    "reciprocal": ops.reciprocal,
    "remainder": ops.mod,
    "repeat": lambda a: ops.tile(a, (2, 3)),
    "repeat_interleave": lambda a: ops.repeat(a, 2, 1),
    "reshape_transpose": lambda a: ops.transpose(ops.reshape(a, (2, 6))),
    "roll": lambda a: ops.roll(a, (1, -1), (0, 1)),
    "round": ops.round,
    "rsqrt": ops.rsqrt,
    "scatter": scattered(None),
    "scatter_add": scattered("add"),
    "scatter_reduce": scattered("max"),
    "sign": ops.sign,
    "sin": ops.sin,
    "sinh": ops.sinh,
    "slogdet": lambda a: ops.slogdet(a)[1],
    "solve": ops.solve,
    "sort": lambda a: ops.flip(ops.sort(ops.flip(a, 1), 1), 1),
    "split": lambda a: ops.split(a, [1], 1),
    "sqrt": ops.sqrt,
    "square": ops.square,
    "squeeze_unsqueeze": lambda a: ops.squeeze(ops.expand_dims(a, 1), 2),
    "stack": lambda a, b: ops.stack([a, b], 1),
    "std": lambda a: ops.std(a, 0) * (len(a) / (len(a) - 1)) ** 0.5,
    "sub": ops.subtract,
    "sum/all": ops.sum,
    "sum/axis1": lambda a: ops.sum(a, 1),
    "sum/keepdim": lambda a: ops.sum(a, -1, True),
    "take_along_dim": lambda a, b: ops.take_along_axis(a, b, 1),
    "tan": ops.tan,
    "tanh": ops.tanh,
    "tile": lambda a: ops.tile(a, (2, 1, 2)),
    "topk/2": lambda a: ops.top_k(a, 2)[0],
    "topk/2_indices": lambda a: ops.top_k(a, 2)[1],
    "tril": lambda a: ops.tril(a, -1),
    "triu": lambda a: ops.triu(a, 1),
    "unfold/im2col": lambda a: ops.unfold(a, (2, 3), 1, 1, 2),
    "var/biased": lambda a: ops.var(a, 1),
    "where/basic": lambda a, b, c: ops.where(b, a, c),
    "where/broadcast": lambda a, b, c: ops.where(b, a, c),
}


def cases():
    with h5py.File(GOLDEN) as file:
        names = [f"{group}/{tag}" for group in file for tag in file[group]]
    return [name for name in names if name in SAID or name.split("/")[0] in SAID]


@pytest.mark.parametrize("name", cases())
def test_value_and_gradient_are_those_of_torch(name):
    function = SAID.get(name) or SAID[name.split("/")[0]]
    with h5py.File(GOLDEN) as file:
        group = file[name]
        inputs = [group["inputs"][i][()] for i in sorted(group["inputs"])]
        outputs = [group["outputs"][i][()] for i in sorted(group["outputs"])]
        upstream = [group["upstream"][i][()] for i in sorted(group.get("upstream", ()))]
        expected = {int(i): d[()] for i, d in group.get("input_grads", {}).items()}
    tensors = [Tensor(a, requires_grad=True) if a.dtype.kind == "f" else a for a in inputs]
    with np.errstate(divide="ignore"):
        found = tree.flatten(function(*tensors))
    for y, want in zip(found, outputs, strict=True):
        array = np.asarray(y)
        assert array.shape == want.shape
        np.testing.assert_allclose(array, want, rtol=1e-9, atol=1e-12)
    for y, g in zip([y for y in found if getattr(y, "requires_grad", False)], upstream):
        y.backward(g, retain_graph=True)
    for i, want in expected.items():
        grad = tensors[i].grad if tensors[i].grad is not None else np.zeros(inputs[i].shape)
        want = np.where(np.isnan(want), 0, want)  # the slope of log(0) counts as 0 here
        scale = np.abs(want[np.isfinite(want)]).max(initial=0)
        np.testing.assert_allclose(grad, want, rtol=1e-9, atol=1e-9 * scale + 1e-12)
