"""Checks GAT files, sparse and dense, with onnx's checker and prints onnxruntime's logits, one a line.

    shardrun model gat --features 6 --hidden 3 --heads 4 --classes 5 --output-heads 2 --seed 11 -o sparse.onnx
    shardrun model gat --features 6 --hidden 3 --heads 4 --classes 5 --output-heads 2 --seed 11 --dense -o dense.onnx
    python tests/models/gat_logits.py sparse.onnx dense.onnx > tests/models/gat_logits.txt

Seven nodes. Node i is a source of i, of i + 1 and of 3 i + 1 mod 7, without doubles; only node 4 has no edge to itself
and node 6 is no target. Feature k of node i is ((5 (6 i + k) + 2) mod 11 - 5) / 5.
"""
import sys

import numpy as np
import onnx
import onnxruntime

NODES, FEATURES = 7, 6
edges = sorted({(i, t) for i in range(NODES) for t in (i, (i + 1) % NODES, (3 * i + 1) % NODES)} - {(4, 4)})
edges = np.array([e for e in edges if e[1] != 6], np.int64).T
adjacency = np.zeros((NODES, NODES), bool)
adjacency[edges[1], edges[0]] = True
features = ((5 * np.arange(NODES * FEATURES) + 2) % 11 - 5).reshape(NODES, FEATURES).astype(np.float32) / 5
results = []
for path, graph in zip(sys.argv[1:], ({"edge_index": edges}, {"adjacency": adjacency})):
    onnx.checker.check_model(path, full_check=True)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    results.append(session.run(None, {"features": features, **graph})[0])
assert len(results) == 2 and np.abs(results[0] - results[1]).max() < 1e-6
for value in results[0].ravel():
    print(f"{value:.9g}")
