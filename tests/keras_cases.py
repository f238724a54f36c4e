"""Calls of keras.ops whose values golden/make_keras_ops.py keeps in golden/keras_ops.h5."""

from __future__ import annotations

from typing import Any

import numpy as np

_rng = np.random.default_rng(1)
IMAGES = _rng.random((2, 6, 8, 3))
IMAGE = _rng.random((5, 7, 3))
FIRST = IMAGES.transpose(0, 3, 1, 2)
LOGITS = _rng.normal(size=(3, 9, 5))
LABELS = np.array([[1, 2, 2, 4], [3, 3, 0, 0], [1, 0, 0, 0]])
LENGTHS = np.array([4, 2, 1]), np.array([9, 6, 4])
M = _rng.normal(size=(4, 3))
V = _rng.normal(size=7)
X = _rng.normal(size=(2, 4, 6, 8))
IDS = np.array([0, 2, 2, 0])
TRANSFORM = np.array(
    [[1.1, 0.1, -0.43, 0.05, 0.9, 0.7, 0, 0], [0.8, -0.3, 1.03, 0.2, 1.2, -1.04, 0, 0]]
)
PLACES = np.array([[-1.3, 0.2, 3.6, 1.1], [0.4, 2.7, -0.6, 1.9]])

CASES: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []


def case(name: str, *args: Any, **kwargs: Any) -> None:
    CASES.append((name, args, kwargs))


for _size in ((3, 4), (9, 5), (12, 16), (6, 8)):
    for _method in ("nearest", "bilinear", "bicubic", "lanczos3", "lanczos5"):
        case("image.resize", IMAGES, _size, interpolation=_method)
        case("image.resize", IMAGES, _size, interpolation=_method, antialias=True)
case("image.resize", IMAGES, (4, 4), crop_to_aspect_ratio=True)
case("image.resize", IMAGES, (4, 4), pad_to_aspect_ratio=True, fill_value=0.5)
case("image.resize", IMAGE, (10, 3))
case("image.resize", FIRST, (10, 3), data_format="channels_first")
case("image.pad_images", IMAGES, 1, 2, 3, 4)
case("image.pad_images", IMAGES, 1, 2, target_height=9, target_width=15)
case("image.crop_images", IMAGES, 1, 2, 1, 1)
case("image.crop_images", IMAGES, 1, 2, target_height=3, target_width=4)
case("image.rgb_to_grayscale", IMAGES)
case("image.rgb_to_grayscale", (IMAGES * 255).astype("uint8"))
case("image.rgb_to_hsv", IMAGES)
case("image.hsv_to_rgb", IMAGES)
case("image.extract_patches", IMAGES, 2)
case("image.extract_patches", IMAGES, (3, 2), 1, 1, "same")
case("image.extract_patches", IMAGES, 3, 2, 1, "same")
case("image.extract_patches", IMAGES, 2, 1, 2)
case("image.extract_patches", IMAGE, (3, 2))
case("image.extract_patches", FIRST, 2, data_format="channels_first")
for _fill in ("constant", "nearest", "wrap", "mirror", "reflect"):
    for _order, _method in enumerate(("nearest", "bilinear")):
        case("image.affine_transform", IMAGES, TRANSFORM, _method, _fill, 0.3)
        case("image.map_coordinates", M, PLACES, _order, _fill, 0.3)
case("image.affine_transform", IMAGE, TRANSFORM[0])
case("ctc_loss", LABELS, LOGITS, *LENGTHS)
case("ctc_loss", np.where(LABELS == 0, 1, LABELS - 1), LOGITS, *LENGTHS, mask_index=4)
case("ctc_decode", LOGITS, LENGTHS[1])
case("ctc_decode", LOGITS, LENGTHS[1], merge_repeated=False)
case("ctc_decode", LOGITS, LENGTHS[1], strategy="beam_search", beam_width=20, top_paths=3)
case("ctc_decode", LOGITS, LENGTHS[1], strategy="beam_search", beam_width=4, mask_index=4)
for _kwargs in ({}, {"axis": 0, "order": 1}, {"order": 3}):
    case("normalize", M, **_kwargs)
for _format in ("channels_last", "channels_first"):
    case("depth_to_space", X, 2, _format)
    case("space_to_depth", X, 2, _format)
case("unfold", X, (2, 3), 1, (1, 0), 2)
case("unfold", X, 2, 2)
case("fold", _rng.normal(size=(2, 12, 6)), (3, 4), 2)
case("fold", _rng.normal(size=(2, 8, 18)), (4, 5), 2, 1, 1, (2, 1))
case("rearrange", X, "b (h p) w c -> b h (w p) c", p=2)
case("rearrange", X, "b h w (c d) -> b (h w) d c", d=4)
for _name in ("segment_sum", "segment_max", "segment_min", "segment_prod"):
    case(_name, M, IDS, num_segments=4)
for _mode in ("valid", "same", "full"):
    case("correlate", V, V[:3], _mode)
    case("correlate", V[:2], V, _mode)
case("multi_hot", np.array([[0, 2], [1, 1]]), num_classes=4)
case("multi_hot", np.array([0, 2]), num_classes=4)
case("one_hot", np.array([[0, 2], [1, -1]]), 3)
case("one_hot", np.array([[0, 2], [1, 1]]), 3, axis=0)
INDEX = np.array([[0, 1], [2, 0], [0, 1]])
case("scatter", INDEX, V[:3], (3, 2))
case("scatter_update", M, INDEX[:2], V[:2])
for _how in ("add", "max", "min", "mul"):
    case("scatter_update", M, INDEX, V[:3], _how)
case("slice", M, (1, 0), (2, 2))
case("slice_update", M, (1, 0), np.ones((2, 2)))
case("top_k", M, 2)
case("in_top_k", np.array([0, 1, 2, 0]), M, 2)
case("moments", M, (0,))
case("moments", M, (0, 1), keepdims=True)
case("searchsorted", np.array([1.0, 2.0, 3.0]), M)
case("digitize", M, np.array([-0.5, 0.0, 0.5]))
case("bincount", IDS)
case("bincount", IDS, weights=M[:, 0])
case("unique", np.array([3, 1, 3]))
case("unravel_index", np.array([5, 7]), (3, 4))
case("arange", 5)
case("full", (2,), 3)
case("psnr", M, M + 0.1, 2.0)
case("quantile", M, [0.2, 0.7], axis=0)
case("nan_to_num", np.array([np.nan, np.inf, 1.0]))
case("saturate_cast", M * 300, "uint8")
case("lu_factor", M[:3])
case("cholesky_inverse", np.linalg.cholesky(M[:3] @ M[:3].T + np.eye(3)))
case("solve_triangular", M[:3], np.ones((3, 1)), lower=True)
case("isclose", M, M + 1e-9)
case("sum", np.arange(4))
case("mean", np.arange(4))
case("sqrt", np.arange(3))
case("floor", np.arange(3))
case("divide", np.arange(3), 2)
case("add", np.arange(3), 1.5)
case("power", np.arange(3), 2)
