"""Checks model files with onnx's checker and runs them once in onnxruntime.

    shardrun model wide-resnet --family cifar --layers 16 --width 1 --image 8 --batch 2 -o a.onnx
    python tests/models/runs_elsewhere.py a.onnx … [--check-only b.onnx …]

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
    random = np.random.default_rng(1)
    feeds = {}
    for given in session.get_inputs():
        shape = [d if isinstance(d, int) else 2 for d in given.shape]
        is_index = "int64" in given.type  # of a row, of which every model here has two at least
        feeds[given.name] = random.integers(0, 2, shape) if is_index else random.standard_normal(shape).astype(np.float32)
    (result,) = session.run(None, feeds)
    assert np.isfinite(result).all() and np.ptp(result) > 0, path
