"""Images in files as arrays and back, through Pillow (the extra "image")."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from picodl import config
from picodl.models.pydataset import PyDataset
from picodl.ops.image import resize
from picodl.typing import Array

_MODES = {"rgb": "RGB", "rgba": "RGBA", "grayscale": "L"}
_ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")


def load_img(
    path: str | os.PathLike[str],
    color_mode: str = "rgb",
    target_size: tuple[int, int] | None = None,
    interpolation: str = "nearest",
    keep_aspect_ratio: bool = False,
) -> Any:
    """Read a picture as a Pillow image.

    Args:
        path: the file.
        color_mode: "rgb", "rgba" or "grayscale".
        target_size: (height, width) to resize to.
        interpolation: "nearest", "bilinear", "bicubic", "lanczos", "box" or "hamming".
        keep_aspect_ratio: cut to the shape of target_size before resizing.

    Raises:
        ImportError: without Pillow.
        ValueError: for an unknown color_mode or interpolation.
    """
    pillow = _pillow()
    if color_mode not in _MODES:
        raise ValueError(
            f"load_img: color_mode must be one of {', '.join(_MODES)}; received {color_mode!r}."
        )
    with pillow.open(path) as file:
        image = file.convert(_MODES[color_mode])
    if target_size is None:
        return image
    return _fitted(image, target_size, interpolation, min if keep_aspect_ratio else None)


def _fitted(image: Any, size: tuple[int, int], interpolation: str, side: Any) -> Any:
    """The image resized to (height, width); with min its middle of that shape, with max the whole
    image in the middle of black borders."""
    pillow = _pillow()
    try:
        method = pillow.Resampling[str(interpolation).upper()]
    except KeyError:
        known = ", ".join(m.name.lower() for m in pillow.Resampling)
        raise ValueError(
            f"load_img: interpolation must be one of {known}; received {interpolation!r}."
        ) from None
    height, width = size
    if side is not None:
        image = image.crop(_middle(image.size, width / height, side))
    return image.resize((width, height), method)


def img_to_array(img: Any, data_format: str | None = None, dtype: str | None = None) -> Array:
    """A Pillow image as an array (height, width, channels), or channels first.

    Args:
        img: the image.
        data_format: "channels_last" or "channels_first". Defaults to that of the config.
        dtype: defaults to floatx.
    """
    first = config.standardize_data_format(data_format) == "channels_first"
    x = np.asarray(img, dtype or config.floatx())
    x = x[:, :, None] if x.ndim == 2 else x
    return x.transpose(2, 0, 1) if first else x


def array_to_img(
    x: Any, data_format: str | None = None, scale: bool = True, dtype: str | None = None
) -> Any:
    """An array (height, width, channels) as a Pillow image.

    Args:
        x: 1, 3 or 4 channels; channels first if data_format says so.
        data_format: defaults to that of the config.
        scale: stretch the values to 0 ... 255; otherwise they are clipped to that range.
        dtype: what to compute in. Defaults to floatx.

    Raises:
        ImportError: without Pillow.
        ValueError: for an array of another shape.
    """
    first = config.standardize_data_format(data_format) == "channels_first"
    x = np.asarray(x, dtype or config.floatx())
    if x.ndim == 3 and first:
        x = x.transpose(1, 2, 0)
    if x.ndim != 3 or x.shape[2] not in (1, 3, 4):
        raise ValueError(
            "array_to_img: expected an image of 3 axes with 1, 3 or 4 channels; received shape "
            f"{x.shape}."
        )
    if scale:
        x = x - x.min()
        x = x * (255 / (float(x.max()) or 1.0))
    pixels = np.clip(x, 0, 255).astype(np.uint8)
    return _pillow().fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)


def save_img(
    path: str | os.PathLike[str],
    x: Any,
    data_format: str | None = None,
    file_format: str | None = None,
    scale: bool = True,
) -> None:
    """Write an array (see `array_to_img`) as a picture.

    Args:
        path: the file.
        x, data_format, scale: see `array_to_img`. JPEG has no transparency: a fourth channel is
            left out.
        file_format: such as "png" or "jpg". Defaults to the ending of the path.
    """
    kind = str(file_format or Path(path).suffix[1:]).lower()
    image = array_to_img(x, data_format, scale)
    if kind in ("jpg", "jpeg") and image.mode == "RGBA":
        image = image.convert("RGB")
    image.save(path, format="jpeg" if kind == "jpg" else file_format)


def smart_resize(
    x: Any,
    size: tuple[int, int],
    interpolation: str = "bilinear",
    data_format: str = "channels_last",
) -> Any:
    """Images resized without distortion: the middle part of the right shape, scaled.

    Args:
        x: an image or a batch of them.
        size: (height, width).
        interpolation: see `picodl.ops.image.resize`.
        data_format: "channels_last" or "channels_first".
    """
    return resize(
        x,
        size,
        interpolation=interpolation,
        crop_to_aspect_ratio=True,
        data_format=data_format,
    )


class ImageFolder(PyDataset):
    """Batches of pictures that are read when they are needed: what `image_dataset_from_directory`
    gives.

    Attributes:
        file_paths: of the pictures, in the order of the batches.
        labels: one for each, or None.
        class_names: the names of the folders.
    """

    def __init__(
        self, file_paths: list[str], labels: Array | None, class_names: list[str], options: Any
    ) -> None:
        super().__init__(workers=2)
        self.file_paths = file_paths
        self.labels = labels
        self.class_names = class_names
        self._options = options

    def __len__(self) -> int:
        return -(-len(self.file_paths) // (self._options["batch_size"] or 1))

    def __getitem__(self, index: int) -> Any:
        size = self._options["batch_size"]
        part: Any = index if size is None else slice(index * size, (index + 1) * size)
        paths = self.file_paths[part]
        x = self._read(paths) if size is None else np.stack([self._read(path) for path in paths])
        return x if self.labels is None else (x, self.labels[part])

    def _read(self, path: str) -> Array:
        o = self._options
        side = min if o["crop_to_aspect_ratio"] else max if o["pad_to_aspect_ratio"] else None
        image = load_img(path, o["color_mode"])
        return img_to_array(
            _fitted(image, o["image_size"], o["interpolation"], side), o["data_format"]
        )


def image_dataset_from_directory(
    directory: str | os.PathLike[str],
    labels: Any = "inferred",
    label_mode: str | None = "int",
    class_names: Sequence[str] | None = None,
    color_mode: str = "rgb",
    batch_size: int | None = 32,
    image_size: tuple[int, int] = (256, 256),
    shuffle: bool = True,
    seed: int | None = None,
    validation_split: float | None = None,
    subset: str | None = None,
    interpolation: str = "bilinear",
    follow_links: bool = False,
    crop_to_aspect_ratio: bool = False,
    pad_to_aspect_ratio: bool = False,
    data_format: str | None = None,
    format: str = "tf",
    verbose: bool = True,
) -> Any:
    """A PyDataset of the pictures in a folder with one folder for each class.

    Args:
        directory: the folder.
        labels: "inferred" from the folders, None, or a list of integers in the order of the sorted
            paths.
        label_mode: "int", "categorical" (one-hot), "binary" (float, two classes) or None.
        class_names: the folders to use, in the order of the labels. Defaults to all, sorted.
        color_mode, interpolation: see `load_img`.
        batch_size: pictures in a batch; None for single pictures.
        image_size: (height, width) they are resized to.
        shuffle: mix the pictures once; fit shuffles batches besides.
        seed: of that; needed to get disjoint subsets.
        validation_split: fraction of the pictures for subset "validation".
        subset: "training", "validation", or "both" for the two as a tuple.
        follow_links: also enter folders that are symbolic links.
        crop_to_aspect_ratio: cut the middle of the shape of image_size out before resizing.
        pad_to_aspect_ratio: put black borders around to get that shape.
        data_format: see `img_to_array`.
        format: accepted; the result is a PyDataset.
        verbose: say how many pictures were found.

    Raises:
        ValueError: if there are no pictures, or for arguments that do not fit.
    """
    if crop_to_aspect_ratio and pad_to_aspect_ratio:
        raise ValueError("Pass crop_to_aspect_ratio or pad_to_aspect_ratio, not both.")
    root = Path(directory)
    names = list(class_names or sorted(p.name for p in root.iterdir() if p.is_dir()))
    inferred = isinstance(labels, str) and labels == "inferred"
    found: list[tuple[str, int]] = []
    for number, folder in enumerate(names if inferred else [""]):
        found += [(path, number) for path in _pictures(root / folder, follow_links)]
    if not found:
        raise ValueError(f"No pictures ({', '.join(_ENDINGS)}) were found in {str(root)!r}.")
    paths = [path for path, _ in found]
    codes = np.array([number for _, number in found]) if inferred else labels
    if codes is not None and len(codes) != len(paths):
        raise ValueError(f"labels has {len(codes)} entries for {len(paths)} pictures.")
    if verbose:
        print(f"Found {len(paths)} pictures" + (f" of {len(names)} classes." if inferred else "."))
    if (validation_split is None) != (subset is None):
        raise ValueError("validation_split and subset must be given together.")
    if subset not in (None, "training", "validation", "both"):
        raise ValueError(f'subset must be "training", "validation" or "both"; received {subset!r}.')
    if validation_split and shuffle and seed is None:
        raise ValueError("Give a seed, so that training and validation pictures are disjoint.")
    order = np.random.default_rng(seed).permutation(len(paths)) if shuffle else range(len(paths))
    targets = None if codes is None else _targets(np.asarray(codes), label_mode, len(names))
    options = {
        "batch_size": batch_size,
        "color_mode": color_mode,
        "image_size": image_size,
        "interpolation": interpolation,
        "crop_to_aspect_ratio": crop_to_aspect_ratio,
        "pad_to_aspect_ratio": pad_to_aspect_ratio,
        "data_format": data_format,
    }

    def part(rows: Any) -> ImageFolder:
        chosen = None if targets is None else targets[list(rows)]
        return ImageFolder([paths[i] for i in rows], chosen, names if inferred else [], options)

    if subset is None:
        return part(order)
    cut = len(paths) - int(float(validation_split or 0) * len(paths))
    halves = {"training": part(order[:cut]), "validation": part(order[cut:])}
    return (halves["training"], halves["validation"]) if subset == "both" else halves[subset]


def _targets(codes: Array, label_mode: str | None, classes: int) -> Array | None:
    if label_mode is None:
        return None
    if label_mode == "int":
        return codes.astype("int32")
    if label_mode == "categorical":
        return np.eye(classes, dtype=config.floatx())[codes]
    if label_mode == "binary" and classes == 2:
        return codes.astype(config.floatx())[:, None]
    raise ValueError(
        'label_mode must be "int", "categorical", "binary" (with two classes) or None; received '
        f"{label_mode!r} for {classes} classes."
    )


def _pictures(folder: Path, follow_links: bool) -> Iterator[str]:
    for path, folders, files in os.walk(folder, followlinks=follow_links):
        folders.sort()
        for name in sorted(files):
            if name.lower().endswith(_ENDINGS):
                yield os.path.join(path, name)


def _middle(size: tuple[int, int], ratio: float, side: Any) -> tuple[int, int, int, int]:
    """The largest box inside an image (width, height) with that width / height, or, for max, the
    smallest box around it; both have its middle."""
    width, height = size
    w = side(width, max(1, round(height * ratio)))
    h = side(height, max(1, round(width / ratio)))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("Pictures need Pillow: pip install 'picodl[image]'.") from error
    return Image
