"""Convolution, pooling and resampling layers: shapes, messages, and what Keras leaves out."""

from __future__ import annotations

import numpy as np
import pytest

import picodl
from picodl import layers

rng = np.random.default_rng(0)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: layers.Conv2D(0, 3), "Conv2D layer .* filters must be an integer of at least 1"),
        (lambda: layers.Conv2D(4, 0), "kernel_size must be an integer of at least 1 or 2 of them"),
        (lambda: layers.Conv2D(4, (3, 3, 3)), r"kernel_size .* received \(3, 3, 3\)"),
        (lambda: layers.Conv2D(4, "big"), "kernel_size .* received 'big'"),
        (lambda: layers.Conv2D(4, 3, strides=-1), "strides .* received -1"),
        (lambda: layers.Conv2D(4, 3, padding="causal"), "padding must be one of 'valid', 'same'"),
        (lambda: layers.Conv2D(4, 3, data_format="hwc"), "data_format must be"),
        (lambda: layers.Conv2D(4, 3, groups=3), "filters must be a multiple of groups"),
        (lambda: layers.DepthwiseConv2D(3, depth_multiplier=0), "depth_multiplier must be"),
        (lambda: layers.Conv2DTranspose(2, 3, 2, output_padding=2), "output_padding must be below"),
        (lambda: layers.MaxPooling2D(0), "MaxPooling2D layer .* pool_size must be"),
        (lambda: layers.AveragePooling1D(2, padding="full"), "padding must be one of"),
        (lambda: layers.AdaptiveMaxPooling2D((2, 0)), "output_size must be"),
        (lambda: layers.UpSampling2D(2, interpolation="cubic"), "interpolation must be one of"),
        (lambda: layers.ZeroPadding2D((1, 2, 3)), "padding must be an integer"),
        (lambda: layers.Cropping2D(-1), "cropping must be"),
        (lambda: layers.Padding1D(1, mode="mirror"), "mode must be one of"),
        (lambda: layers.Permute((1, 3)), "Permute layer .* dims must hold the numbers 1 to 2"),
        (lambda: layers.RepeatVector("3"), "RepeatVector layer .* n must be an integer"),
    ],
)
def test_bad_arguments_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    "layer, shape, message",
    [
        (layers.Conv2D(4, 3, name="c"), (8, 8), 'Conv2D layer "c" expects input of rank 4'),
        (
            layers.Conv2D(4, 5, name="c"),
            (3, 3, 1),
            r'"c": a kernel of size \(5, 5\).*\(None, 3, 3, 1\)',
        ),
        (layers.Conv2D(4, 3, groups=2, name="c"), (8, 8, 3), '"c": the 3 channels .* groups=2'),
        (layers.Conv1D(4, 3, dilation_rate=4, name="c"), (8, 1), '"c": .*reaching over 9'),
        (layers.MaxPooling2D(5, name="p"), (3, 3, 1), r'"p": windows of size \(5, 5\) do not fit'),
        (layers.Cropping1D(3, name="c"), (5, 2), '"c": cropping .* leaves nothing'),
        (layers.CenterCrop(2, 2, name="c"), (5,), '"c" expects an image'),
    ],
)
def test_inputs_that_do_not_fit_are_named(layer, shape, message):
    with pytest.raises(ValueError, match=message):
        picodl.Sequential([picodl.Input(shape), layer])


def test_other_channels_than_built_for_are_named():
    layer = layers.Conv2D(4, 3, name="c")
    layer(np.ones((1, 8, 8, 1)))
    with pytest.raises(
        ValueError, match=r'"c" was built for inputs with last axis 1.*\(1, 8, 8, 3\)'
    ):
        layer(np.ones((1, 8, 8, 3)))


def test_a_varying_size_that_becomes_too_small_is_named():
    model = picodl.Sequential([picodl.Input((None, None, 1)), layers.Conv2D(2, 5, name="c")])
    assert model.output_shape == (None, None, None, 2)
    with pytest.raises(ValueError, match=r"does not fit into inputs of size \(3, 3\)") as error:
        model(np.ones((1, 3, 3, 1)))
    assert any('layer "c"' in note for note in error.value.__notes__)


def test_strides_and_dilation_go_together():
    x = rng.normal(size=(2, 9, 9, 2)).astype(np.float32)
    layer = layers.Conv2D(3, 3, strides=2, dilation_rate=2, use_bias=False)
    y = layer(x)
    assert y.shape == layer.compute_output_shape(x.shape) == (2, 3, 3, 3)
    wide = layers.Conv2D(3, 3, dilation_rate=2, use_bias=False)
    wide(x)
    wide.set_weights(layer.get_weights())
    np.testing.assert_allclose(y.data, wide(x).data[:, ::2, ::2], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "cls", ["Conv2D", "Conv2DTranspose", "DepthwiseConv2D", "SeparableConv2D", "MaxPooling2D"]
)
@pytest.mark.parametrize("padding", ["valid", "same"])
def test_channels_first_is_the_same_transposed(cls, padding):
    x = rng.normal(size=(2, 6, 7, 3)).astype(np.float32)
    arguments = {"kernel_size": 3} if "Conv" in cls else {"pool_size": 3}
    if cls in ("Conv2D", "Conv2DTranspose", "SeparableConv2D"):
        arguments["filters"] = 4
    if "Conv" in cls:
        arguments["activation"] = "relu"
    last, first = (
        getattr(layers, cls)(**arguments, strides=2, padding=padding, data_format=data_format)
        for data_format in ("channels_last", "channels_first")
    )
    y, z = last(x), first(np.moveaxis(x, -1, 1))
    if last.weights:
        first.set_weights(last.get_weights())
        z = first(np.moveaxis(x, -1, 1))
    assert z.shape == first.compute_output_shape((2, 3, 6, 7))
    np.testing.assert_allclose(np.moveaxis(z.data, 1, -1), y.data, rtol=1e-5, atol=1e-5)


def test_upper_case_padding_is_accepted():
    assert layers.Conv2D(4, 3, padding="SAME").padding == "same"


@pytest.mark.parametrize("mode", ["reflect", "symmetric", "edge", "wrap", "constant"])
def test_padding_modes_are_those_of_numpy_with_exact_gradients(mode):
    from picodl.testing import gradcheck

    layer = layers.Padding2D(((1, 2), (0, 3)), mode, dtype="float64")
    x = rng.normal(size=(2, 4, 5, 2))
    expected = np.pad(x, ((0, 0), (1, 2), (0, 3), (0, 0)), mode)
    np.testing.assert_array_equal(layer(x).data, expected)
    assert layer.compute_output_shape(x.shape) == expected.shape
    gradcheck(layer, x)


def test_spatial_dropout_drops_whole_channels():
    x = np.ones((8, 5, 6, 10), np.float32)
    y = layers.SpatialDropout2D(0.4, seed=0)(x, training=True).data
    np.testing.assert_allclose(np.unique(y), [0, 1 / 0.6], rtol=1e-3)
    np.testing.assert_array_equal(y, np.broadcast_to(y[:, :1, :1], y.shape))
    first = layers.SpatialDropout2D(0.4, "channels_first", seed=0)(x, training=True).data
    np.testing.assert_array_equal(first, np.broadcast_to(first[:, :, :1, :1], first.shape))


def test_global_average_of_a_fully_masked_sequence_is_zero():
    mask = np.array([[True, True, False], [False, False, False]])
    y = layers.GlobalAveragePooling1D()(np.arange(12.0).reshape(2, 3, 2), mask=mask)
    assert y.data.tolist() == [[1, 2], [0, 0]]
