"""The examples of TOAST's section 3 as ONNX files: figures 4, 5 and 6.

    pip install onnx
    python make_toast.py

figure4  the MLP of two layers
figure5  attention with an average in place of the softmax
figure6  a box of conflicts (left), and boxes that paths go across (middle, right)
"""
from pathlib import Path

import onnx

HERE = Path(__file__).parent
HEADER = '<ir_version: 8, opset_import: ["" : 17]>\n'

FIGURES = {
    "figure4": """mlp (float[256, 32] x, float[32, 64] w1, float[64, 16] w2) => (float[256, 16] w) {
        y = MatMul (x, w1)
        z = Relu (y)
        w = MatMul (z, w2)
    }""",
    "figure5": """attn (float[8, 12] x, float[12, 4] wq, float[12, 4] wk, float[12, 6] wv) => (float[8, 6] z)
    <int64[1] rows = {0}, int64[2] square = {8, 8}> {
        k = MatMul (x, wk)
        v = MatMul (x, wv)
        q = MatMul (x, wq)
        qt = Transpose <perm = [1, 0]> (q)
        a = MatMul (k, qt)
        b = ReduceSum <keepdims = 0> (a, rows)
        c = Expand (b, square)
        d = Div (a, c)
        z = MatMul (d, v)
    }""",
    "figure6_left": """left (float[8, 12] x) => (float[8, 8] b) {
        xt = Transpose <perm = [1, 0]> (x)
        a = MatMul (x, xt)
        b = Exp (a)
    }""",
    # What sums a's rows divides its columns: a.0 reaches e.1.
    "figure6_middle": """middle (float[8, 12] x) => (float[8, 8] e)
    <int64[1] columns = {1}, int64[2] square = {8, 8}> {
        xt = Transpose <perm = [1, 0]> (x)
        a = MatMul (x, xt)
        r = ReduceSum <keepdims = 0> (a, columns)
        s = Expand (r, square)
        e = Div (a, s)
    }""",
    # And the other way round as well.
    "figure6_right": """right (float[8, 12] x) => (float[8, 8] e)
    <int64[1] rows = {0}, int64[1] columns = {1}> {
        xt = Transpose <perm = [1, 0]> (x)
        a = MatMul (x, xt)
        r = ReduceSum <keepdims = 0> (a, columns)
        u = ReduceSum <keepdims = 0> (a, rows)
        c = Unsqueeze (u, columns)
        g = Add (r, c)
        e = Div (a, g)
    }""",
}

for name, text in FIGURES.items():
    model = onnx.parser.parse_model(HEADER + text)
    onnx.checker.check_model(model)
    onnx.save(model, str(HERE / f"toast_{name}.onnx"))
