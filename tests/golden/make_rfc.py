"""The MLP of the mesh dialect's RFC, as an ONNX file.

    pip install onnx
    python make_rfc.py

rfc_mlp  x [2, 4, 8] by w1, the maximum with a constant of zeros, and by w2
"""
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

HERE = Path(__file__).parent
TEXT = """<ir_version: 8, opset_import: ["" : 17]>
mlp (float[2, 4, 8] x) => (float[2, 4, 8] y)
<float[8, 32] w1, float[32, 8] w2, int64[3] shape = {2, 4, 32}> {
    h = MatMul (x, w1)
    zero = ConstantOfShape (shape)
    r = Max (h, zero)
    y = MatMul (r, w2)
}"""
NAMES = ["dot1", "zero", "max", "dot2"]

model = onnx.parser.parse_model(TEXT)
for node, name in zip(model.graph.node, NAMES):
    node.name = name
random = np.random.default_rng(5)
del model.graph.initializer[:]
for name, array in {
    "w1": random.standard_normal((8, 32), dtype=np.float32) / 8,
    "w2": random.standard_normal((32, 8), dtype=np.float32) / 8,
    "shape": np.array([2, 4, 32]),
}.items():
    model.graph.initializer.append(numpy_helper.from_array(array, name))
onnx.checker.check_model(model)
onnx.save(model, str(HERE / "rfc_mlp.onnx"))
