"""Exports models with operators that few have, which scripts/export_models/operators.py has.

    python tests/golden/make_operators.py [MODEL ...]

writes operators_<model>.<exporter>.onnx and operators_<model>.npz next to this file. The .npz holds the inputs and the
losses of six steps of SGD with momentum 0.9 on them, computed in float64.
"""
import pathlib
import sys

import numpy as np
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
from export_models import operators  # noqa: F401, registers the models
from export_models import all_models
from export_models.exporting import quiet
from export_models.peer import train
from make_golden import HERE, export_dynamo, export_legacy

STEPS = 6
CHOSEN = {"picked_labels": ["legacy"], "picked_head": ["legacy"], "picked_sum": ["legacy"], "picked_mse": ["legacy"],
          "picked_by_hand": ["dynamo"], "picked_elements": ["dynamo"], "picked_extremes": ["legacy"],
          "picked_two_masks": ["dynamo"], "picked_flattened": ["dynamo"], "picked_one": ["legacy"],
          "sought": ["dynamo", "legacy"], "assigned": ["dynamo", "legacy"], "put_back_by_sign": ["dynamo"],
          "put_back_samples": ["dynamo", "legacy"], "put_back_features": ["dynamo"], "put_back_token": ["dynamo"],
          "chosen_cond": ["dynamo"], "chosen_script": ["legacy"], "dlrm_bags": ["dynamo", "legacy"],
          "bag_mean": ["dynamo", "legacy"], "bag_max": ["legacy"], "bag_weighted": ["legacy"], "bag_last": ["dynamo"],
          "bag_padded": ["dynamo"], "grid_bilinear_reflection": ["legacy"], "grid_bicubic_border_aligned": ["legacy"],
          "folded": ["legacy"], "antialias_bicubic": ["dynamo"], "waves_stft": ["dynamo"], "waves_stft_plain": ["dynamo"], "waves_irfft": ["dynamo"],
          "scanned": ["dynamo"], "ctcbyhand": ["dynamo"]}


def main(only):
    models = {m.name: m for m in all_models()[0]}
    for name, exporters in CHOSEN.items():
        if only and name not in only:
            continue
        model = models[name]
        torch.manual_seed(0)
        module = model.build().train()
        batch = model.sample(torch.Generator().manual_seed(1))
        args, names = tuple(batch.values()), list(batch)
        with quiet():
            if "dynamo" in exporters:
                export_dynamo(f"operators_{name}.dynamo", module, args, names, optimize=False)
            if "legacy" in exporters:
                export_legacy(f"operators_{name}.legacy", module, args, names, 20)
        torch.set_default_dtype(torch.float64)
        curve = train(module, [batch], STEPS, model.lr, False, torch.float64)
        torch.set_default_dtype(torch.float32)
        np.savez(HERE / f"operators_{name}.npz", **{n: v.numpy() for n, v in batch.items()},
                 losses=np.array(curve.losses, dtype=np.float32))


if __name__ == "__main__":
    main(sys.argv[1:])
