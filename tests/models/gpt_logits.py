"""Checks a GPT file with onnx's checker and prints onnxruntime's logits, one a line.

    shardrun model gpt --layers 2 --heads 2 --hidden 16 --vocab 32 --context 8 --batch 2 --seed 11 -o gpt.onnx
    python tests/models/gpt_logits.py gpt.onnx > tests/models/gpt_logits.txt

Tokens are (7 i + 3) mod 32 for i = 0, 1, …, row by row.
"""
import sys

import numpy as np
import onnx
import onnxruntime

onnx.checker.check_model(sys.argv[1], full_check=True)
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
tokens = ((7 * np.arange(16) + 3) % 32).reshape(2, 8)
(logits,) = session.run(None, {"tokens": tokens.astype(np.int64)})
for value in logits.ravel():
    print(f"{value:.9g}")
