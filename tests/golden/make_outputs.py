"""What ONNX Runtime computes for models of this folder: outputs.npz, with 'MODEL/in/NAME' and 'MODEL/out/NAME'.

    venv/bin/python tests/golden/make_outputs.py       # onnx, onnxruntime

A model of a fixed batch is run as often as the samples need, the last time filled up with the last sample.
"""
import pathlib

import numpy as np
import onnx
import onnxruntime

HERE = pathlib.Path(__file__).parent
# Samples (0: one batch, of the sizes that follow), and bounds of integers by name.
MODELS = {
    "gpt_manual.legacy": (7, {"idx": 32}, {}),
    "gpt_sdpa.dynamo23": (4, {"idx": 32}, {}),
    "images_keras.jax2onnx": (9, {}, {}),
    "weights_images.legacy_eval": (6, {}, {}),
    "weights_tied.default": (5, {"x": 12}, {}),
    "weights_half.legacy": (3, {}, {}),
    "recurrent.legacy": (0, {"idx": 11, "target_in": 11}, {}),
    "encoder.legacy": (0, {"ids": 16, "segment": 2, "labels": 16, "follows": 2}, {}),
    "loss_nano.dynamo": (0, {"idx": 16, "targets": 16}, {}),
    "gat_conv.legacy": (0, {"edge_index": 13}, {"nodes": 13, "edges": 29}),
    "gat_conv.dynamo": (0, {"edge_index": 13}, {"nodes": 13, "edges": 29}),
    "gat_edges.dynamo": (0, {"edge_index": 11}, {}),
    "gat_dense.dynamo": (0, {}, {}),
}
TYPES = {1: np.float32, 6: np.int32, 7: np.int64, 9: np.bool_}

rng = np.random.default_rng(0)
arrays = {}
for name, (samples, bounds, sizes) in MODELS.items():
    model = onnx.load(HERE / f"{name}.onnx")
    stored = {t.name for t in model.graph.initializer}
    inputs, batch = {}, samples
    for value in model.graph.input:
        if value.name in stored:
            continue
        tensor = value.type.tensor_type
        shape = [d.dim_value or sizes.get(d.dim_param) for d in tensor.shape.dim]
        if samples:
            batch = shape[0] or samples
            shape[0] = samples
        dtype = TYPES[tensor.elem_type]
        if dtype == np.float32:
            inputs[value.name] = rng.standard_normal(shape, dtype=np.float32)
        elif dtype == np.bool_:
            inputs[value.name] = rng.random(shape) < 0.7
        else:
            inputs[value.name] = rng.integers(0, bounds[value.name], shape).astype(dtype)
    session = onnxruntime.InferenceSession(str(HERE / f"{name}.onnx"), providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    turns = []
    for first in range(0, samples or 1, batch or 1):
        feed = inputs
        if samples:
            rows = [min(first + i, samples - 1) for i in range(batch)]
            feed = {k: v[rows] for k, v in inputs.items()}
        turns.append(session.run(names, feed))
    for key, value in inputs.items():
        arrays[f"{name}/in/{key}"] = value
    for i, key in enumerate(names):
        arrays[f"{name}/out/{key}"] = np.concatenate([t[i] for t in turns])[:samples] if samples else turns[0][i]
    print(name, {k: v.shape for k, v in arrays.items() if k.startswith(name + "/")})
np.savez_compressed(HERE / "outputs.npz", **arrays)
