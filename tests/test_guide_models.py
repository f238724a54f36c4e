"""Models as the guides of Keras build them: each trains a few steps and its loss falls."""

from __future__ import annotations

from typing import Any

import numpy as np

import picodl
from picodl import Input, Model, Sequential, layers, losses, ops, optimizers

rng = np.random.default_rng(0)
IMAGES = rng.random((24, 8, 8, 1)).astype("float32")
MASKS = (IMAGES > 0.5).astype("float32")
LABELS = (IMAGES.mean((1, 2, 3)) > 0.5).astype("int32")


def falls(model: Model, x: Any, y: Any = None, epochs: int = 8, **options: Any) -> None:
    history = model.fit(x, y, epochs=epochs, batch_size=8, verbose=0, **options).history
    first, last = history["loss"][0], history["loss"][-1]
    assert np.isfinite(last) and last < first, history["loss"]


def test_siamese_network_with_a_contrastive_loss() -> None:
    encoder = Sequential([Input((8, 8, 1)), layers.Flatten(), layers.Dense(16, activation="tanh")])
    a, b = Input((8, 8, 1)), Input((8, 8, 1))

    def distance(pair: Any) -> Any:
        return ops.sqrt(ops.sum(ops.square(pair[0] - pair[1]), axis=-1, keepdims=True) + 1e-7)

    far = layers.Lambda(distance, output_shape=(1,))([encoder(a), encoder(b)])
    model = Model([a, b], layers.Dense(1, activation="sigmoid")(far))
    model.compile(optimizers.Adam(0.01), "binary_crossentropy", metrics=["accuracy"])
    order = rng.permutation(24)
    equal = (LABELS[order] == LABELS).astype("float32")
    falls(model, [IMAGES, IMAGES[order]], equal)


def test_unet_with_skip_connections() -> None:
    x = Input((8, 8, 1))
    down = layers.Conv2D(8, 3, padding="same", activation="relu")(x)
    h = layers.MaxPooling2D()(down)
    h = layers.Conv2D(16, 3, padding="same", activation="relu")(h)
    h = layers.UpSampling2D()(h)
    h = layers.Concatenate()([h, down])
    h = layers.Conv2DTranspose(8, 3, padding="same", activation="relu")(h)
    model = Model(x, layers.Conv2D(1, 1, activation="sigmoid")(h))
    model.compile(optimizers.Adam(0.01), "binary_crossentropy")
    falls(model, IMAGES, MASKS)
    assert model.predict(IMAGES[:2], verbose=0).shape == (2, 8, 8, 1)


def test_residual_network_with_batch_normalization() -> None:
    x = Input((8, 8, 1))
    h = layers.Conv2D(8, 3, padding="same")(x)
    for stride in (1, 2):
        y = layers.Conv2D(8, 3, strides=stride, padding="same", use_bias=False)(h)
        y = layers.ReLU()(layers.BatchNormalization()(y))
        y = layers.BatchNormalization()(layers.Conv2D(8, 3, padding="same", use_bias=False)(y))
        skip = h if stride == 1 else layers.Conv2D(8, 1, strides=2)(h)
        h = layers.ReLU()(y + skip)
    model = Model(x, layers.Dense(2, activation="softmax")(layers.GlobalAveragePooling2D()(h)))
    model.compile(optimizers.Adam(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"])
    falls(model, IMAGES, LABELS)


def test_inception_block() -> None:
    x = Input((8, 8, 1))
    towers = [
        layers.Conv2D(4, 1, activation="relu")(x),
        layers.Conv2D(4, 3, padding="same", activation="relu")(x),
        layers.Conv2D(4, 5, padding="same", activation="relu")(x),
        layers.Conv2D(4, 1)(layers.MaxPooling2D(3, strides=1, padding="same")(x)),
    ]
    h = layers.GlobalMaxPooling2D()(layers.concatenate(towers))
    model = Model(x, layers.Dense(1, activation="sigmoid")(h))
    model.compile(optimizers.Adam(0.01), "binary_crossentropy")
    falls(model, IMAGES, LABELS[:, None].astype("float32"))


def test_multi_task_with_weights_and_metrics_per_output() -> None:
    x = Input((8, 8, 1), name="picture")
    h = layers.Dense(16, activation="relu")(layers.Flatten()(x))
    outputs = {
        "bright": layers.Dense(1, activation="sigmoid")(h),
        "mean": layers.Dense(1)(h),
    }
    model = Model(x, outputs)
    model.compile(
        optimizers.Adam(0.01),
        loss={"bright": "binary_crossentropy", "mean": "mse"},
        loss_weights={"bright": 0.5, "mean": 2.0},
        metrics={"bright": "accuracy", "mean": ["mae", "mse"]},
    )
    y = {"bright": LABELS[:, None], "mean": IMAGES.mean((1, 2, 3))[:, None]}
    falls(model, IMAGES, y, sample_weight={"bright": np.ones(24), "mean": np.ones(24)})
    report = model.evaluate(IMAGES, y, verbose=0, return_dict=True)
    assert {"bright_accuracy", "mean_mae", "mean_mse", "bright_loss", "mean_loss"} < set(report)


def test_convolutional_autoencoder() -> None:
    encoder = Sequential([Input((8, 8, 1)), layers.Conv2D(8, 3, 2, "same", activation="relu")])
    decoder = Sequential(
        [
            layers.Conv2DTranspose(8, 3, 2, "same", activation="relu"),
            layers.Conv2D(1, 3, padding="same", activation="sigmoid"),
        ]
    )
    model = Sequential([encoder, decoder])
    model.compile(optimizers.Adam(0.01), "mse")
    falls(model, IMAGES, IMAGES)


def test_variational_autoencoder_with_a_sampling_layer() -> None:
    class Sampling(layers.Layer):
        def __init__(self, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.seed = picodl.random.SeedGenerator(1)

        def call(self, inputs: Any) -> Any:
            mean, log_variance = inputs
            kl = 1 + log_variance - ops.square(mean) - ops.exp(log_variance)
            self.add_loss(-0.5 * ops.mean(ops.sum(kl, axis=-1)) / 64)
            noise = picodl.random.normal(mean.shape, seed=self.seed)
            return mean + ops.exp(0.5 * log_variance) * noise

    x = Input((8, 8, 1))
    h = layers.Dense(16, activation="relu")(layers.Flatten()(x))
    code = Sampling()([layers.Dense(2)(h), layers.Dense(2)(h)])
    y = layers.Reshape((8, 8, 1))(layers.Dense(64, activation="sigmoid")(code))
    model = Model(x, y)
    model.compile(optimizers.Adam(0.01), "binary_crossentropy")
    falls(model, IMAGES, IMAGES)


def test_gan_with_a_train_step_of_its_own() -> None:
    class GAN(Model):
        def __init__(self) -> None:
            super().__init__()
            self.maker = Sequential([Input((4,)), layers.Dense(64, activation="sigmoid")])
            self.judge = Sequential(
                [Input((64,)), layers.Dense(16, activation="relu"), layers.Dense(1)]
            )
            self.seed = picodl.random.SeedGenerator(2)

        def compile(self, d_optimizer: Any, g_optimizer: Any) -> None:
            super().compile()
            self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer

        def train_step(self, data: Any) -> Any:
            real = ops.reshape(data, (len(data), 64))
            loss_fn = losses.BinaryCrossentropy(from_logits=True)
            noise = picodl.random.normal((len(data), 4), seed=self.seed)
            found = {}
            for net, optimizer, x, target in (
                (self.judge, self.d_optimizer, ops.concatenate([real, self.maker(noise)], 0), None),
                (self.maker, self.g_optimizer, None, 1.0),
            ):
                x = self.maker(noise) if x is None else x
                labels = np.repeat([1.0, 0.0], len(real))[:, None] if target is None else None
                labels = np.ones((len(real), 1)) if labels is None else labels
                self.zero_grad()
                loss = loss_fn(labels, self.judge(x))
                loss.backward()
                weights = net.trainable_weights
                optimizer.apply([w.grad for w in weights], weights)
                found["g_loss" if target else "d_loss"] = float(loss)
            return found

    gan = GAN()
    gan.compile(optimizers.Adam(0.01), optimizers.Adam(0.01))
    maker = gan.maker.get_weights()[0].copy()
    history = gan.fit(IMAGES, epochs=3, batch_size=8, verbose=0).history
    assert set(history) == {"d_loss", "g_loss"} and len(history["d_loss"]) == 3
    assert not np.array_equal(maker, gan.maker.get_weights()[0])


def test_mlp_mixer_block() -> None:
    class Mixer(layers.Layer):
        def __init__(self, patches: int, width: int, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.norms = [layers.LayerNormalization() for _ in range(2)]
            self.patch_mlp = Sequential([layers.Dense(8, activation="gelu"), layers.Dense(patches)])
            self.width_mlp = Sequential([layers.Dense(8, activation="gelu"), layers.Dense(width)])

        def call(self, x: Any) -> Any:
            mixed = ops.transpose(
                self.patch_mlp(ops.transpose(self.norms[0](x), (0, 2, 1))), (0, 2, 1)
            )
            x = x + mixed
            return x + self.width_mlp(self.norms[1](x))

    x = Input((16, 4))
    h = Mixer(16, 4)(Mixer(16, 4)(x))
    model = Model(x, layers.Dense(2, activation="softmax")(layers.GlobalAveragePooling1D()(h)))
    model.compile(optimizers.Adam(0.02), "sparse_categorical_crossentropy")
    falls(model, IMAGES.reshape(24, 16, 4), LABELS, epochs=15)


def test_deep_set_does_not_depend_on_the_order() -> None:
    x = Input((None, 2))
    h = layers.Dense(16, activation="relu")(x)
    h = ops.sum(h, axis=1)
    model = Model(x, layers.Dense(1)(layers.Dense(16, activation="relu")(h)))
    model.compile(optimizers.Adam(0.01), "mse")
    points = rng.normal(size=(24, 5, 2)).astype("float32")
    falls(model, points, points.max((1, 2))[:, None])
    shuffled = points[:, rng.permutation(5)]
    np.testing.assert_allclose(
        model.predict(points, verbose=0), model.predict(shuffled, verbose=0), atol=1e-5
    )
    assert model.predict(points[:, :3], verbose=0).shape == (24, 1)
