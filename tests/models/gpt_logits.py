"""Checks a GPT file with onnx's checker and prints onnxruntime's logits, one a line.

    small="shardrun model gpt --layers 2 --heads 2 --hidden 16 --vocab 32 --context 8 --batch 2 --seed 11"
    $small -o gpt.onnx
    $small --norm rms --mlp swiglu --positions rotary --kv-heads 1 --mlp-width 24 --no-biases --untied -o llama.onnx
    $small --norm rms --mlp geglu --positions rotary --head-width 12 --no-biases -o gemma.onnx
    $small --experts 4 --capacity 0.75 -o experts.onnx
    for model in gpt llama gemma experts; do
      python tests/models/gpt_logits.py $model.onnx > tests/models/${model}_logits.txt
    done

Tokens are (7 i + 3) mod 32 for i = 0, 1, …, row by row.
"""
import sys

import numpy as np
import onnx
import onnx.reference
import onnxruntime

onnx.checker.check_model(sys.argv[1], full_check=True)
try:
    session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented:  # 1.31: RandomNormal of opset 22
    session = onnx.reference.ReferenceEvaluator(sys.argv[1])
tokens = ((7 * np.arange(16) + 3) % 32).reshape(2, 8)
(logits,) = session.run(None, {"tokens": tokens.astype(np.int64)})
for value in logits.ravel():
    print(f"{value:.9g}")
