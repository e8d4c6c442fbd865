"""Exports small Keras models through tf2onnx and jax2onnx and records what Keras computes for them.

    pip install keras tensorflow-cpu tf2onnx && KERAS_BACKEND=tensorflow python tests/golden/make_exporters.py
    pip install keras jax jax2onnx && KERAS_BACKEND=jax python tests/golden/make_exporters.py

writes <name>.tf2onnx.onnx or <name>.jax2onnx.onnx, and <name>.npz with the inputs and the losses of three steps of
AdamW without decay, of both forms of batch normalisation where a model has it, and its running averages thereafter.
"""
import pathlib

import keras
import numpy as np
from keras import layers

HERE = pathlib.Path(__file__).parent
RATE, BETA1, BETA2, EPS = 1e-2, 0.9, 0.99, 1e-5
random = np.random.default_rng(7)


def randomise(model):
    """tf2onnx leaves out biases that are zero and scales that are one, and merges weights that are equal."""
    for v in model.weights:
        if "seed" not in v.path:
            noise = np.asarray(0.1 * random.standard_normal(v.shape), dtype=np.float32)
            v.assign(np.array(v) + (np.abs(noise) if "variance" in v.path else noise))


def adamw(weights, gradients, state, step):
    out = []
    for i, (w, g) in enumerate(zip(weights, gradients)):
        m, v = state.get(i, (0.0, 0.0))
        m, v = BETA1 * m + (1 - BETA1) * g, BETA2 * v + (1 - BETA2) * g * g
        state[i] = m, v
        out.append(w - RATE * m / (1 - BETA1**step) / (np.sqrt(v / (1 - BETA2**step)) + EPS))
    return out


def images():
    """Channels last throughout; batch normalisations of an image and of a vector, the second without a scale."""
    x = keras.Input((6, 6, 2), name="x")
    y = layers.Conv2D(4, 3, padding="same", use_bias=False)(x)
    y = layers.ReLU()(layers.BatchNormalization()(y))
    y = layers.DepthwiseConv2D(3, strides=2, padding="same")(y)
    y = layers.Dense(6, activation="gelu")(layers.Flatten()(y))
    y = layers.BatchNormalization(scale=False)(y)
    return keras.Model(x, layers.Dense(3, activation="softmax")(y))


def tokens():
    """Recurrent layers in both directions, a temperature, and the exact GELU."""

    class Temperature(layers.Layer):
        def build(self, shape):
            self.scale = self.add_weight(shape=(), initializer="ones", name="scale")

        def call(self, x):
            return x * self.scale

    x = keras.Input((5,), dtype="int64", name="x")
    y = layers.Embedding(7, 4)(x)
    y = layers.LSTM(3, return_sequences=True)(y)
    y = layers.Bidirectional(layers.GRU(3))(y)
    y = layers.Dense(4, activation="gelu")(y)
    return keras.Model(x, layers.Dense(3)(Temperature()(y)))


def losses_tensorflow(model, x, target, training):
    import tensorflow as tf

    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    state, losses = {}, []
    for step in range(1, 4):
        with tf.GradientTape() as tape:
            loss = loss_of(target, model(x, training=training))
        gradients = [tf.convert_to_tensor(g).numpy() for g in tape.gradient(loss, model.trainable_variables)]
        losses.append(float(loss))
        weights = [v.numpy() for v in model.trainable_variables]
        for v, w in zip(model.trainable_variables, adamw(weights, gradients, state, step)):
            v.assign(w)
    return losses


def losses_jax(model, x, target, training):
    import jax
    import jax.numpy as jnp

    def loss_of(weights, others):
        y, others = model.stateless_call(weights, others, x, training=training)
        return -jnp.log(jnp.take_along_axis(y, target[:, None], -1)).mean(), others

    state, losses = {}, []
    for step in range(1, 4):
        weights = [np.array(v) for v in model.trainable_variables]
        others = [np.array(v) for v in model.non_trainable_variables]
        (loss, others), gradients = jax.value_and_grad(loss_of, has_aux=True)(weights, others)
        losses.append(float(loss))
        for v, w in zip(model.trainable_variables, adamw(weights, [np.array(g) for g in gradients], state, step)):
            v.assign(w)
        if training:
            for v, w in zip(model.non_trainable_variables, others):
                v.assign(w)
    return losses


def write(name, exporter, model, x, losses_of, forms):
    import onnx
    from onnx import numpy_helper

    randomise(model)
    path = HERE / f"{name}.{exporter}.onnx"
    model(x)  # or Keras does not export it
    model.export(path, format="onnx", verbose=False)
    target = random.integers(0, 3, len(x))
    out = {"in/x": x, "in/target": target}
    first = [np.array(v) for v in model.weights]
    stored = {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}
    for form in forms:
        for v, w in zip(model.weights, first):
            v.assign(w)
        out[f"losses{form}"] = np.array(losses_of(model, x, target, form == "/training"), dtype=np.float32)
        if form != "/training":
            continue
        for v, w in zip(model.weights, first):
            if "moving_" in v.path:
                found = [n for n, a in stored.items() if np.array_equal(a, w)]
                out[f"stats/{found[0]}"] = np.array(v)
    np.savez(HERE / f"{name}.npz", **out)


if keras.backend.backend() == "jax":
    write("images_keras", "jax2onnx", images(), random.standard_normal((4, 6, 6, 2)).astype(np.float32), losses_jax,
          ["/stored", "/training"])
else:
    write("tokens_keras", "tf2onnx", tokens(), random.integers(0, 7, (4, 5)), losses_tensorflow,
          ["/stored"])
