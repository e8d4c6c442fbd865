#!/usr/bin/env python3
"""Writes tests/golden/weights_*: modules as their exporters write them, and their state_dict() before and after training.

    venv/bin/python tests/golden/make_weights.py        # torch, onnx, onnxscript, safetensors, numpy

NAME.EXPORTER.onnx is an export, which the older exporter makes by running the module in training mode once, so that its
running statistics have moved; NAME.before.safetensors the state_dict() that it was made of. Of those that train:
NAME.npz has a batch, NAME.after.safetensors the state_dict() after STEPS steps of SGD on it with LR and MOMENTUM, and
NAME.losses.npy the losses of these steps and of the next one.
"""
import contextlib
import copy
import logging
import os
import pathlib
import warnings

import numpy as np
import onnx
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

HERE = pathlib.Path(__file__).resolve().parent
EXPORTERS = ("dynamo", "default", "legacy", "legacy_eval")
STEPS, LR, MOMENTUM = 5, 0.1, 0.9


class Tied(nn.Module):
    """A language model whose head has the embedding's weight, with buffers of both kinds."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(12, 6)
        self.up, self.down = nn.Linear(6, 10), nn.Linear(10, 6)
        self.norm = nn.LayerNorm(6)
        self.head = nn.Linear(6, 12, bias=False)
        self.head.weight = self.tokens.weight
        self.register_buffer("scale", torch.rand(6) + 0.5)
        self.register_buffer("shift", torch.rand(6), persistent=False)

    def forward(self, x):
        x = self.tokens(x)
        x = self.norm(x + self.down(torch.tanh(self.up(x))))
        return self.head(x * self.scale + self.shift)


class Images(nn.Module):
    """Convolutions in both directions, batch and group normalisation, a PReLU."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, padding=1)
        self.batch = nn.BatchNorm2d(4)
        self.up = nn.ConvTranspose2d(4, 4, 2)
        self.group, self.slope = nn.GroupNorm(2, 4), nn.PReLU(4)
        self.last = nn.Conv2d(4, 2, 3)
        self.fc = nn.Linear(2, 3)

    def forward(self, x):
        x = torch.relu(self.batch(self.first(x)))
        x = self.slope(self.group(self.up(x)))
        return self.fc(self.last(x).mean((2, 3)))


class Recurrent(nn.Module):
    """Recurrent layers, in one direction and in two."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 4, 2, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(8, 4, batch_first=True)
        self.fc = nn.Linear(4, 3)

    def forward(self, x):
        for layer in (self.lstm, self.gru):
            x, _ = layer(x)
        return self.fc(x[:, -1])


class Fresh(nn.Module):
    """Scales of ones and biases of zeros, which the newer exporter merges and removes, and a layer that is called twice."""

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(6) for _ in range(3))
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))
        self.twice, self.head = nn.Linear(6, 6), nn.Linear(6, 3)
        for layer in (*self.layers, self.twice, self.head):
            nn.init.zeros_(layer.bias)

    def forward(self, x):
        for norm, layer in zip(self.norms, (*self.layers, self.twice)):
            x = x + torch.tanh(layer(norm(x)))
        return self.head(self.twice(x))


class Half(nn.Module):
    """Weights of 16 bits."""

    def __init__(self):
        super().__init__()
        self.up, self.norm, self.fc = nn.Linear(5, 6), nn.LayerNorm(6), nn.Linear(6, 3)
        self.half()

    def forward(self, x):
        return self.fc(self.norm(torch.tanh(self.up(x.half())))).float()


class Headed(nn.Module):
    """A head whose last layer has its bias from the module around it, as BERT's has."""

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(6, 10)
        self.bias = nn.Parameter(torch.zeros(12))
        self.decoder = nn.Linear(10, 12)
        self.decoder.bias = self.bias

    def forward(self, x):
        return self.decoder(torch.tanh(self.up(x)))


class Predictions(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.predictions = nn.Embedding(12, 6), Headed()

    def forward(self, x):
        return self.predictions(self.tokens(x))


def shaken(module):
    """Numbers that no exporter takes for equal ones."""
    with torch.no_grad():
        for name, tensor in module.named_parameters():
            tensor += torch.randn_like(tensor) * 0.1
    for child in module.modules():
        if isinstance(child, nn.BatchNorm2d):
            child.running_mean.normal_(0, 0.3)
            child.running_var.uniform_(0.5, 1.5)
    return module


@contextlib.contextmanager
def quiet():
    logging.disable(logging.CRITICAL)
    kept, nothing = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    os.dup2(kept, 1)


def shorten(path):
    """Leaves out where in Python each node comes from, most of the file."""
    model = onnx.load(path)
    for node in model.graph.node:
        kept = [entry for entry in node.metadata_props if entry.key in ("pkg.torch.onnx.fx_node",
                                                                        "pkg.torch.onnx.name_scopes",
                                                                        "pkg.onnxscript.rewriter.rule_name")]
        del node.metadata_props[:]
        node.metadata_props.extend(kept)
    onnx.save(model, path)


def export(name, module, args):
    for exporter in EXPORTERS:
        if (name, exporter) == ("recurrent", "dynamo"):
            continue  # a large file, in which all weights are as in the legacy one
        path = HERE / f"weights_{name}.{exporter}.onnx"
        own = copy.deepcopy(module)
        if exporter.startswith("legacy"):
            more = {} if exporter == "legacy_eval" else {"training": torch.onnx.TrainingMode.TRAINING,
                                                         "do_constant_folding": False}
            torch.onnx.export(own, args, path, dynamo=False, input_names=["x"], **more)
        else:
            torch.onnx.export(own.train(), args, dynamo=True, input_names=["x"], verbose=False,
                              optimize=exporter == "default").save(path, external_data=False)
            shorten(path)


def state(module):
    return {name: tensor.clone().contiguous() for name, tensor in module.state_dict().items()}


def save(tensors, path):
    save_file(tensors, path)
    path.chmod(0o644)


def train(name, module, x, target):
    optimizer = torch.optim.SGD(module.parameters(), lr=LR, momentum=MOMENTUM)
    losses = []
    for step in range(STEPS + 1):
        logits = module.train()(x)
        loss = F.cross_entropy(logits.flatten(0, -2), target.flatten())
        losses.append(loss.item())
        if step == STEPS:
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        after = state(module)
    save(after, HERE / f"weights_{name}.after.safetensors")
    np.save(HERE / f"weights_{name}.losses.npy", np.array(losses, np.float32))
    np.savez(HERE / f"weights_{name}.npz", x=x.numpy(), target=target.numpy())


def main():
    os.umask(0o022)
    torch.manual_seed(0)
    tokens, images = torch.randint(12, (4, 5)), torch.randn(4, 1, 6, 6)
    models = {
        "tied": (Tied(), tokens, torch.randint(12, (4, 5))),
        "images": (Images(), images, torch.randint(3, (4,))),
        "recurrent": (Recurrent(), torch.randn(4, 5, 3), torch.randint(3, (4,))),
        "fresh": (Fresh(), torch.randn(4, 6), torch.randint(3, (4,))),
        "half": (Half(), torch.randn(2, 4, 5), None),
        "predictions": (Predictions(), tokens, None),
    }
    for name, (module, x, target) in models.items():
        if name != "fresh":
            shaken(module)
        save(state(module), HERE / f"weights_{name}.before.safetensors")
        with quiet():
            export(name, module, (x,))
        if target is not None:
            train(name, module, x, target)


main()
