"""Checks wide-resnet files with onnx's checker and runs them once in onnxruntime.

    shardrun model wide-resnet --family cifar --layers 16 --width 1 --image 8 --batch 2 -o a.onnx
    python tests/models/wide_resnet_check.py a.onnx … [--check-only b.onnx …]

Files with described weights (--no-weights) are checked only: onnxruntime merges the nodes that make equal tensors, and
then updates running statistics in place of a scale.
"""
import sys

import numpy as np
import onnx
import onnxruntime

run = True
for path in sys.argv[1:]:
    if path == "--check-only":
        run = False
        continue
    onnx.checker.check_model(path, full_check=True)
    if not run:
        continue
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (images,) = session.get_inputs()
    shape = [d if isinstance(d, int) else 2 for d in images.shape]
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    (logits,) = session.run(None, {images.name: x})
    assert logits.shape[0] == shape[0] and np.isfinite(logits).all() and np.ptp(logits) > 0, path
