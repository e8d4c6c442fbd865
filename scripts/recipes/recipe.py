#!/usr/bin/env python3
"""What the recipes of this folder share: export as docs/huggingface.md says, train here and in PyTorch, compare.

    SHARDRUN_PEER_PYTHON=../venv/bin/python scripts/recipes/recipe.py [--keep FOLDER] [NAME ...]

runs the recipes of these names, or all. Each is a program of its own as well: ../venv/bin/python scripts/recipes/gpt2.py.
The Python is one of its own, outside the tree:

    python3 -m venv ../venv
    ../venv/bin/pip install torch transformers onnx onnxscript

A recipe makes a model of its family's architecture, small and with random weights, because nothing is downloaded. Half of
its samples are a batch on which both train by AdamW, gradients clipped at 1; the others are a validation at the end. The
largest relative difference of the losses is printed, on one rank and on two (under mpirun), and next to it PyTorch's own:
what it differs from itself when it computes in f64. Status 1 where a difference is above both 1e-5 and that.
"""
import argparse
import contextlib
import copy
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import warnings

HERE = pathlib.Path(__file__).resolve().parent
PEER = os.environ.get("SHARDRUN_PEER_PYTHON")
if PEER and pathlib.Path(sys.executable).absolute() != pathlib.Path(PEER).absolute():
    os.execv(PEER, [PEER, *sys.argv])

try:
    import numpy as np
    import torch
    import transformers  # noqa: F401, for the message below
except ImportError as error:
    sys.exit(f"recipes: {error}; set SHARDRUN_PEER_PYTHON to a Python that has torch, transformers, onnx and onnxscript")

SHARDRUN = os.environ.get("SHARDRUN", str(HERE.parents[1] / "build/shardrun"))
STEPS, LR, LIMIT = 10, 1e-3, 1e-5
RANKS = (1, 2)


def export(model, inputs, path, exporter):
    """The two calls of docs/huggingface.md; the batch is a symbolic dim."""
    names, args = list(inputs), tuple(inputs.values())
    if exporter == "dynamo":
        torch.onnx.export(model.train(), args, path, dynamo=True, optimize=False, input_names=names, verbose=False,
                          dynamic_shapes=[{0: "batch"} for _ in names], external_data=False)
    else:
        torch.onnx.export(model.train(), args, path, dynamo=False, do_constant_folding=False, input_names=names,
                          training=torch.onnx.TrainingMode.TRAINING, dynamic_axes={name: {0: "batch"} for name in names})


def train_in_pytorch(model, batches, dtype):
    """The losses of each step on the first batch, and then that of the second in evaluation mode."""
    model = copy.deepcopy(model).to(dtype).train()
    batches = [[t.to(dtype) if t.is_floating_point() else t for t in batch.values()] for batch in batches]
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(*batches[0])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    with torch.no_grad():
        losses.append(model.eval()(*batches[1]).item())
    return losses


def train_here(path, data, batch, ranks):
    """The same losses by shardrun on so many ranks; ends with what it said if it fails."""
    metrics = path.with_suffix(f".{ranks}.jsonl")
    command = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", str(ranks), SHARDRUN, "train", str(path), "--data", f"npz:{data}",
               "--batch", str(batch), "--validation", "0.5", "--steps", str(STEPS), "--lr", str(LR), "--threads", "1", "--metrics", str(metrics)]
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    run = subprocess.run(command, capture_output=True, text=True, env=environment)
    if run.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{run.stdout}{run.stderr}")
    lines = [json.loads(line) for line in metrics.open()]
    return [line["loss"] for line in lines if "loss" in line] + [line["val_loss"] for line in lines if "val_loss" in line][-1:]


def apart(ours, theirs):
    return max(abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True))


@contextlib.contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def compare(model, inputs, exporters=("dynamo", "legacy")):
    """Trains `model`, whose forward() takes the tensors of `inputs` in their order and returns the loss, and prints a line
    for each exporter and number of ranks. `inputs` has an even number of samples, by name, in dim 0."""
    name = pathlib.Path(sys.argv[0]).stem
    batch = len(next(iter(inputs.values()))) // 2
    batches = [{n: t[:batch].contiguous() for n, t in inputs.items()}, {n: t[batch:].contiguous() for n, t in inputs.items()}]
    good = True
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(os.environ.get("RECIPES_KEEP", temporary))
        data = folder / f"{name}.npz"
        np.savez(data, **{n: t.numpy() for n, t in inputs.items()})
        for exporter in exporters:
            path = folder / f"{name}.{exporter}.onnx"
            exported = copy.deepcopy(model)
            with quiet():
                export(exported, batches[0], path, exporter)
            # The older exporter runs the model, which moves running statistics: so they are in the file.
            theirs = train_in_pytorch(exported, batches, torch.float32)
            with default_dtype(torch.float64):
                noise = apart(train_in_pytorch(exported, batches, torch.float64), theirs)
            for ranks in RANKS:
                ours = train_here(path, data, batch, ranks)
                difference = apart(ours, theirs)
                right = difference <= max(LIMIT, noise)
                good &= right
                print(f"{name:11} {exporter:7} {ranks} rank{'s' if ranks > 1 else ' '}  loss {ours[0]:.4f} -> {ours[-2]:.4f}, validation "
                      f"{ours[-1]:.4f}  apart {difference:.0e}  noise {noise:.0e}{'' if right else '  WRONG'}", flush=True)
    if not good:
        sys.exit(1)


@contextlib.contextmanager
def quiet():
    """The exporters warn at length about what these recipes mean."""
    with warnings.catch_warnings(), open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing), \
            contextlib.redirect_stderr(nothing):
        warnings.simplefilter("ignore")
        yield


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--keep", type=pathlib.Path, help="where models, data and metrics are left")
    options = parser.parse_args()
    every = sorted(path.stem for path in HERE.glob("*.py") if path.stem != "recipe")
    if unknown := set(options.names) - set(every):
        sys.exit(f"recipes: no recipe is called {' or '.join(sorted(unknown))}; there are {', '.join(every)}")
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
        os.environ["RECIPES_KEEP"] = str(options.keep)
    failed = []
    for name in options.names or every:
        if subprocess.run([sys.executable, str(HERE / f"{name}.py")]).returncode != 0:
            failed.append(name)
    if failed:
        sys.exit(f"recipes: {', '.join(failed)} went wrong")


if __name__ == "__main__":
    main()
