"""One small model for each kind of layer that can be exported, for the tests of all formats."""

import numpy as np

from picodl import Input, Model, Sequential, layers, ops


def _branches():
    a = Input((5,), name="a")
    b = Input((3,), name="b")
    x = layers.Dense(4, activation="relu")(a)
    y = layers.Dense(4)(b)
    joined = [
        cls()([x, y])
        for cls in (
            layers.Add,
            layers.Subtract,
            layers.Multiply,
            layers.Average,
            layers.Maximum,
            layers.Minimum,
        )
    ]
    z = layers.Concatenate()([*joined, ops.add(x, y)])
    return Model([a, b], [layers.Dense(2, name="first")(z), layers.Activation("tanh")(x)])


def _residual():
    x = Input((6,))
    inner = Sequential([Input((6,)), layers.Dense(6, activation="tanh"), layers.Dense(6)])
    y = layers.Add()([x, inner(x)])
    z = layers.Add()([inner(y), y])  # the same block again
    return Model(x, layers.Reshape((2, 3))(z))


def _joined_images():
    x = Input((4, 5, 2))
    a = layers.Conv2D(3, 3, padding="same")(x)
    b = layers.Conv2D(3, 1)(x)
    return Model(x, layers.Concatenate(axis=2)([a, b]))


def _numbers():
    x = Input((4,))
    y = 2 - layers.Dense(3)(x) * 0.5
    return Model(x, ops.reshape((y + 1.5) / 4 - 1, (-1, 3, 1)))


def chain(shape, *parts):
    return lambda: Sequential([Input(shape), *(part() for part in parts)])


def _l(name, *args, **kwargs):
    return lambda: getattr(layers, name)(*args, **kwargs)


MODELS = {
    "mlp": chain(
        (4,), _l("Dense", 5, activation="tanh"), _l("Dropout", 0.5), _l("Dense", 3, "softmax")
    ),
    "dense on sequences": chain((3, 4), _l("Dense", 2, use_bias=False), _l("Flatten")),
    "relu layers": chain(
        (4,),
        _l("ReLU", max_value=1.0, negative_slope=0.1, threshold=0.2),
        _l("LeakyReLU", 0.3),
        _l("ELU", 0.7),
        _l("Dense", 6),
        _l("PReLU"),
        _l("Softmax"),
    ),
    "scaling": chain(
        (3, 2), _l("Rescaling", [2.0, 3.0], 0.5), _l("Permute", (2, 1)), _l("LayerNormalization")
    ),
    "batch norm folded": chain(
        (4,), _l("Dense", 5), _l("BatchNormalization"), _l("Activation", "relu"), _l("Dense", 2)
    ),
    "batch norm alone": chain(
        (4,), _l("BatchNormalization"), _l("Dense", 3, "relu"), _l("BatchNormalization")
    ),
    "repeat": chain((3,), _l("RepeatVector", 4), _l("Dense", 2)),
    "branches": _branches,
    "numbers": _numbers,
    "residual": _residual,
    "convnet": chain(
        (8, 9, 2),
        _l("Conv2D", 4, 3, padding="same", activation="relu"),
        _l("MaxPooling2D", 2),
        _l("Conv2D", 6, (2, 3), strides=(2, 1), use_bias=False),
        _l("BatchNormalization"),
        _l("AveragePooling2D", 2, padding="same"),
        _l("GlobalAveragePooling2D"),
        _l("Dense", 3, activation="softmax"),
    ),
    "more convolution": chain(
        (7, 7, 4),
        _l("Conv2D", 4, 3, dilation_rate=2, groups=2, padding="same"),
        _l("DepthwiseConv2D", 3, depth_multiplier=2, padding="same"),
        _l("BatchNormalization"),
        _l("SeparableConv2D", 5, 3, strides=2, padding="same", activation="tanh"),
        _l("GlobalMaxPooling2D"),
    ),
    "moved pixels": chain(
        (4, 5, 2),
        _l("ZeroPadding2D", ((1, 0), (2, 1))),
        _l("UpSampling2D", (2, 3)),
        _l("Cropping2D", ((1, 2), (0, 3))),
        _l("MaxPooling2D", 3, strides=2, padding="same"),
    ),
    "sequences": chain(
        (12, 3),
        _l("Conv1D", 4, 3, padding="causal", dilation_rate=2, activation="relu"),
        _l("ZeroPadding1D", (1, 2)),
        _l("MaxPooling1D", 2),
        _l("SeparableConv1D", 5, 3, padding="same"),
        _l("UpSampling1D", 2),
        _l("Cropping1D", (1, 1)),
        _l("AveragePooling1D", 3, strides=1, padding="same"),
        _l("GlobalAveragePooling1D"),
    ),
    "transposed": chain(
        (3, 4, 2),
        _l("Conv2DTranspose", 4, (2, 3), strides=(2, 1), activation="relu"),
        _l("GroupNormalization", 2),
        _l("Conv2DTranspose", 2, 3, strides=2, padding="same"),
        _l("Conv2DTranspose", 2, 1, strides=3),
    ),
    "transposed sequences": chain(
        (5, 2),
        _l("Conv1DTranspose", 4, 4, strides=2, padding="same"),
        _l("Conv1DTranspose", 3, 3, strides=2, output_padding=1, use_bias=False),
        _l("RMSNormalization"),
        lambda: layers.TimeDistributed(layers.Dense(2, "tanh")),
    ),
    "joined images": _joined_images,
    "lstm": chain(
        (6, 3),
        _l("LSTM", 4, return_sequences=True),
        _l("LSTM", 5, go_backwards=True, use_bias=False),
    ),
    "gru": chain(
        (6, 3),
        _l("GRU", 4, return_sequences=True, go_backwards=True),
        _l("GRU", 5, reset_after=False),
    ),
    "simple rnn": chain((6, 3), _l("SimpleRNN", 4, activation="relu"), _l("Dense", 2)),
    "bidirectional": chain(
        (5, 3),
        lambda: layers.Bidirectional(layers.LSTM(4, return_sequences=True)),
        lambda: layers.Bidirectional(layers.GRU(3), merge_mode="ave"),
    ),
    "embedding": chain((7,), _l("Embedding", 6, 4), _l("GRU", 5), _l("Dense", 2)),
    **{
        f"activation {name}": chain((5,), _l("Dense", 8, activation=name))
        for name in (
            "relu", "relu6", "sigmoid", "tanh", "elu", "selu", "gelu", "silu", "softplus",
            "softsign", "exponential", "hard_sigmoid", "hard_silu", "leaky_relu", "mish", "celu",
            "log_softmax",
        )
    },
}  # fmt: skip


def build(name, seed=0):
    """The model with random weights (positive variances), and inputs for a few samples."""
    model = MODELS[name]()
    rng = np.random.default_rng(seed)
    for weight in model.weights:
        if weight.dtype.kind == "f":
            values = rng.normal(scale=0.5, size=weight.shape)
            if "variance" in weight.name:
                values = np.abs(values) + 0.5
            weight.assign(values.astype(np.float32))
    ids = name == "embedding"
    xs = [
        rng.integers(0, 6, size=(3, *s.shape[1:])).astype(np.float32)
        if ids
        else rng.normal(size=(3, *s.shape[1:])).astype(np.float32)
        for s in model.inputs
    ]
    return model, xs
