"""Writes gated.onnx: two products into acme::Gate, an op that no operator set has, and a third behind it.

    pip install onnx numpy
    python tests/golden/make_gated.py
"""
import pathlib

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

random = np.random.default_rng(5)


def weight(name, *shape):
    return numpy_helper.from_array((random.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32), name)


graph = helper.make_graph(
    [
        helper.make_node("MatMul", ["x", "w_value"], ["a"], name="value"),
        helper.make_node("MatMul", ["x", "w_gate"], ["b"], name="gate_of"),
        helper.make_node("Gate", ["a", "b"], ["h"], name="gate", domain="acme", slope=1.5),
        helper.make_node("MatMul", ["h", "w_out"], ["y"], name="out"),
    ],
    "gated",
    [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 24])],
    [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 6])],
    [weight("w_value", 24, 36), weight("w_gate", 24, 36), weight("w_out", 36, 6)],
)
model = helper.make_model(
    graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("acme", 1)])
onnx.checker.check_model(model)
onnx.save(model, pathlib.Path(__file__).parent / "gated.onnx")
