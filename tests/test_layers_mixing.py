"""MixUp, CutMix, RandomErasing, Pipeline: the numbers of Keras, labels that follow the images."""

from __future__ import annotations

import numpy as np
import pytest

import picodl
from picodl import layers
from picodl.tensor import Tensor
from tests.goldens import Case, names

rng = np.random.default_rng(0)
X = rng.uniform(0, 1, size=(6, 8, 10, 3)).astype(np.float32)
Y = np.eye(6, dtype=np.float32)


@pytest.mark.parametrize("name", names("mixing.h5"))
def test_numbers_are_those_of_keras(name):
    case = Case("mixing.h5", name)
    layer = getattr(layers, case["class"])(**case["config"])
    batch = {"images": case.arrays["images"], "labels": case.arrays["labels"]}
    for i in range(2):
        found = layer(batch, training=True)
        for key, tensor in found.items():
            expected = case.arrays[f"expected/{i}/{key}"]
            np.testing.assert_allclose(tensor.data, expected, rtol=1e-6, atol=1e-6)
            assert tensor.dtype == np.float32


def test_numbers_are_those_of_keras_with_channels_first():
    case = Case("mixing.h5", "random_erasing_colour")
    layer = layers.RandomErasing(**case["config"], data_format="channels_first")
    y = layer(case.arrays["images"].transpose(0, 3, 1, 2)).data
    np.testing.assert_array_equal(y.transpose(0, 2, 3, 1), case.arrays["expected/0/images"])


def test_labels_are_mixed_as_the_images_are():
    x = np.broadcast_to(np.eye(6, dtype=np.float32)[:, None, None, :], (6, 40, 50, 6))
    for layer in (layers.MixUp(1.0, seed=2), layers.CutMix(seed=2)):
        mixed = layer({"images": x, "labels": Y, "weights": np.ones(6, np.float32)})
        share = mixed["images"].data.mean((1, 2))  # of each image in each mixed one
        np.testing.assert_allclose(mixed["labels"].data, share, atol=0.05)
        assert np.abs(share - Y).max() > 0.1
        np.testing.assert_array_equal(mixed["weights"].data, 1)


def test_a_cut_is_one_box_of_another_image():
    y = layers.CutMix(seed=0)(X).data
    for image, original in zip(y, X, strict=True):
        changed = (image != original).any(-1)
        rows, columns = np.flatnonzero(changed.any(1)), np.flatnonzero(changed.any(0))
        assert changed.sum() == len(rows) * len(columns)
        if len(rows):
            box = np.ix_(rows, columns)
            assert any(np.array_equal(image[box], other[box]) for other in X)


def test_sizes_of_erased_boxes_and_how_many_are_erased():
    x = np.zeros((4000, 20, 20, 1), np.float32)
    y = layers.RandomErasing((0.3, 0.5), (0.25, 0.25), 1.0, (0, 1), seed=0)(x).data
    erased = y.any((1, 2, 3))
    assert 0.37 < erased.mean() < 0.43
    np.testing.assert_array_equal(y[erased].sum((1, 2, 3)), 100)
    corners = y[erased].reshape(-1, 400).argmax(1)
    assert set(corners // 20) == set(corners % 20) == set(range(1, 11))
    noise = layers.RandomErasing((1, 1), (1, 1), value_range=(0, 1), seed=0)(X).data
    assert noise.min() == 0 and noise.max() == 1 and 0.4 < (noise == 0).mean() < 0.6


def test_pairs_single_images_and_rest():
    for cls in (layers.MixUp, layers.CutMix):
        images, labels = cls(seed=1)((X, Y))
        again = cls(seed=1)({"images": X, "labels": Y})
        np.testing.assert_array_equal(images.data, again["images"].data)
        np.testing.assert_array_equal(labels.data, again["labels"].data)
        assert isinstance(cls()([X, Y]), list)
        np.testing.assert_array_equal(cls(seed=1)(X).data, images.data)
        np.testing.assert_array_equal(cls()(X[0]).data, X[0])
        for key, part in cls()({"images": X, "labels": Y}, training=False).items():
            np.testing.assert_array_equal(part.data, X if key == "images" else Y)


def test_inputs_stay_as_they_were_and_gradients_pass():
    x, y = X.copy(), Y.copy()
    batch = {"images": x, "labels": y}
    pipeline = layers.Pipeline([layers.MixUp(), layers.CutMix(), layers.RandomErasing()])
    pipeline(batch)
    assert batch["images"] is x and batch["labels"] is y
    np.testing.assert_array_equal(x, X)
    np.testing.assert_array_equal(y, Y)
    t = Tensor(X, requires_grad=True)
    layers.CutMix(seed=0)(t).sum().backward()
    assert t.grad.sum() == X.size  # each pixel shown once for each that shows one


def test_pipeline_applies_its_layers_also_to_dicts():
    pipeline = layers.Pipeline(
        [
            layers.Resizing(12, 12),
            layers.RandomCrop(8, 8, seed=0),
            layers.RandomFlip(seed=0),
            layers.MixUp(seed=0),
        ]
    )
    y = pipeline({"images": X, "labels": Y})
    assert y["images"].shape == (6, 8, 8, 3) and y["labels"].shape == (6, 6)
    shapes = pipeline.compute_output_shape({"images": (None, 8, 10, 3), "labels": (None, 6)})
    assert shapes == {"images": (None, 8, 8, 3), "labels": (None, 6)}
    rest = pipeline(X, training=False).data
    np.testing.assert_allclose(rest, layers.CenterCrop(8, 8)(layers.Resizing(12, 12)(X)).data)
    assert [type(layer).__name__ for layer in pipeline.layers][-1] == "MixUp"


def test_pipeline_in_a_model_trains_rests_and_is_saved(tmp_path):
    pipeline = layers.Pipeline([layers.RandomErasing(seed=0), layers.Conv2D(2, 3)])
    model = picodl.Sequential([picodl.Input((8, 10, 3)), pipeline, layers.Flatten()])
    model.add(layers.Dense(6, activation="softmax"))
    model.compile("sgd", "categorical_crossentropy")
    model.fit(X, Y, verbose=0)
    assert len(model.trainable_weights) == 4
    expected = model.predict(X, verbose=0)
    np.testing.assert_array_equal(model.predict(X, verbose=0), expected)
    model.save(tmp_path / "model.keras")
    loaded = picodl.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(X, verbose=0), expected)


def test_pipeline_hands_masks_from_layer_to_layer():
    ids = np.array([[1, 2, 0], [3, 0, 0]])
    pipeline = layers.Pipeline([layers.Embedding(5, 4, mask_zero=True), layers.Dropout(0.5)])
    np.testing.assert_array_equal(pipeline(ids, training=False).mask, ids != 0)
    recurrent = layers.LSTM(2)
    outer = layers.Pipeline([recurrent])
    x, mask = np.ones((2, 3, 4), np.float32), ids != 0
    expected = recurrent(x, mask=mask).data
    np.testing.assert_array_equal(outer(x, mask=mask, training=False).data, expected)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: layers.MixUp(0), 'MixUp layer "mix_up.*alpha must be a positive number'),
        (lambda: layers.CutMix(1.5), "factor must be a number from 0 to 1 or a pair"),
        (lambda: layers.CutMix((0.1, 0.2, 0.3)), "factor must be"),
        (lambda: layers.RandomErasing(scale="big"), "scale must be a number from 0 to 1"),
        (lambda: layers.RandomErasing(fill_value="red"), "fill_value must be None, a number"),
        (lambda: layers.RandomErasing(value_range=(1, 0)), "value_range must be a pair"),
        (lambda: layers.RandomErasing(fill_value=(1, 2))(X), "has 2 numbers for images of 3"),
        (lambda: layers.MixUp()((X, np.arange(6))), r"one-hot labels of shape \(6, classes\)"),
        (lambda: layers.MixUp()((X, Y[:3])), r"for 6 images, but received shape \(3, 6\)"),
        (lambda: layers.CutMix()((X, np.arange(6)[:, None])), "codes of classes: .* up to 5"),
        (lambda: layers.MixUp()((X, Y, Y)), r"a pair \(images, labels\); received 3 entries"),
        (lambda: layers.MixUp()({"image": X}), r"key \"images\"; received the keys \['image'\]"),
        (lambda: layers.RandomFlip()({"images": X, "bounding_boxes": Y}), "Leave it out"),
        (lambda: layers.Pipeline.from_config({"name": "a"}), 'the config needs "layers"'),
    ],
)
def test_bad_arguments_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("given", [layers.Dense(3), [layers.Dense(3), 3], "flip"])
def test_pipeline_takes_a_list_of_layers(given):
    with pytest.raises(TypeError, match="layers must be a list of layers; received"):
        layers.Pipeline(given)
