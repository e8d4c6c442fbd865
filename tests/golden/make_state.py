"""Exports models whose forward() changes tensors of its own, and records what PyTorch computes for them.

    python tests/golden/make_state.py

writes <name>.<exporter>.onnx and <name>.npz next to this file. The .npz holds x and y, eight samples of which the
first four are one batch to train on and the rest one to validate on; the losses of six steps of SGD on one micro-batch
and on two, the loss of the four others in evaluation mode after each, and all buffers and parameters after the six
steps of one. Computed in float64. It shares make_golden.py's writing of files.
"""
import copy

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from make_golden import HERE, export_dynamo, export_legacy

STEPS, RATE, MOMENTUM = 6, 0.05, 0.9


def mse(a, b):
    return ((a - b) ** 2).mean()


class Averages(nn.Module):
    """An average of features, and a count, that the loss reads."""

    shape, out = (8,), 4

    def __init__(self):
        super().__init__()
        self.up, self.lin = nn.Linear(8, 6), nn.Linear(6, 4)
        self.register_buffer("ema", torch.zeros(6))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def forward(self, x, y):
        h = torch.tanh(self.up(x))
        if self.training:
            with torch.no_grad():
                self.ema.mul_(0.8).add_(h.mean(0), alpha=0.2)
                self.count += 1
        return mse(self.lin(h - self.ema) * (1 + 0.1 * self.count), y)


class Spectral(nn.Module):
    """Spectral norm, whose first vector is not in the file: it is written before it is read."""

    shape, out = (8,), 4

    def __init__(self):
        super().__init__()
        self.a = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 6))
        self.b = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 4), n_power_iterations=2)

    def forward(self, x, y):
        return mse(self.b(F.relu(self.a(x))), y)


class Momentum(nn.Module):
    """A momentum encoder: parameters that follow others."""

    shape, out = (8,), 4

    def __init__(self):
        super().__init__()
        self.q = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 4))
        self.k, self.p = copy.deepcopy(self.q), nn.Linear(4, 4)
        for parameter in self.k.parameters():
            parameter.requires_grad_(False)

    def forward(self, x, y):
        if self.training:
            with torch.no_grad():
                for a, b in zip(self.q.parameters(), self.k.parameters()):
                    b.mul_(0.9).add_(a.detach(), alpha=0.1)
        with torch.no_grad():
            k = self.k(x + 0.1)
        return mse(self.p(self.q(x)), k) + 0.1 * mse(self.q(x), y)


class Codebook(nn.Module):
    """A codebook that follows its vectors, as in VQ-VAE. It is returned: its users read it as it was."""

    shape, out = (8,), 4

    def __init__(self, codes=6, width=4):
        super().__init__()
        self.enc, self.dec = nn.Linear(8, width), nn.Linear(width, 4)
        self.register_buffer("embed", torch.randn(codes, width))
        self.register_buffer("size", torch.ones(codes))
        self.register_buffer("sums", self.embed.clone())

    def forward(self, x, y):
        z = self.enc(x)
        code = ((z**2).sum(1, keepdim=True) - 2 * z @ self.embed.T + (self.embed**2).sum(1)).argmin(1)
        q = F.embedding(code, self.embed)
        if self.training:
            with torch.no_grad():
                hot = F.one_hot(code, 6).to(z.dtype)
                self.size.mul_(0.9).add_(hot.sum(0), alpha=0.1)
                self.sums.mul_(0.9).add_(hot.T @ z.detach(), alpha=0.1)
                n = self.size.sum()
                self.embed.copy_(self.sums / ((self.size + 1e-5) / (n + 6e-5) * n).unsqueeze(1))
        loss = mse(self.dec(z + (q - z).detach()), y) + 0.25 * mse(q.detach(), z)
        return loss, self.embed, self.size, self.sums


class Projected(nn.Module):
    """A parameter that forward() normalises and that learns, too, and one that it prunes."""

    shape, out = (8,), 4

    def __init__(self):
        super().__init__()
        self.w, self.h = nn.Parameter(torch.randn(8, 4)), nn.Linear(4, 4)
        self.register_buffer("mask", (torch.arange(16).view(4, 4) % 3 > 0).float())

    def forward(self, x, y):
        if self.training:
            with torch.no_grad():
                self.w.copy_(F.normalize(self.w, dim=0))
                self.h.weight.mul_(self.mask)
        return mse(self.h(x @ F.normalize(self.w, dim=0)), y)


class Quantile(nn.Module):
    """A running quantile and a largest value, by a step that gets smaller."""

    shape, out = (8,), 4

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(8, 4)
        self.register_buffer("quantile", torch.zeros(()))
        self.register_buffer("step", torch.zeros((), dtype=torch.long))
        self.register_buffer("largest", torch.full((), -1e3))

    def forward(self, x, y):
        z = self.lin(x)
        if self.training:
            with torch.no_grad():
                self.step += 1
                self.largest.copy_(torch.maximum(self.largest, z.detach().max()))
                self.quantile += (0.9 - (z.detach() < self.quantile).to(z.dtype).mean()) / self.step
        return mse(z - self.quantile, y) / self.largest


class Instances(nn.Module):
    """Instance normalisation with running statistics, which validation reads; called twice."""

    shape, out = (3, 5, 5), 4

    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 6, 3, padding=1), nn.Linear(6, 4)
        self.norm = nn.InstanceNorm2d(6, affine=True, track_running_stats=True)
        self.other = nn.InstanceNorm2d(6, track_running_stats=True, momentum=0.3)

    def forward(self, x, y):
        h = torch.relu(self.norm(self.conv(x)))
        return mse(self.head(self.other(self.norm(h) + h).amax((2, 3))), y)


class Instance(nn.Module):
    """One of them: the older exporter knows no sizes behind it."""

    shape, out = (3, 5, 5), 4

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 6, 3, padding=1), nn.InstanceNorm2d(6, affine=True, track_running_stats=True)
        self.head = nn.Linear(6, 4)

    def forward(self, x, y):
        return mse(self.head(self.norm(self.conv(x)).amax((2, 3))), y)


class Recurrent(nn.Module):
    """A layer that goes on from its last output, of which the buffer keeps a copy; the gradient flows through it."""

    shape, out = (8,), 4

    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.Linear(8, 5), nn.Linear(5, 4)
        self.register_buffer("state", torch.zeros(4, 5))

    def forward(self, x, y):
        h = torch.tanh(self.cell(x) + 0.5 * self.state)
        with torch.no_grad():
            self.state.copy_(h)
        return mse(self.head(h), y)


class Pair(nn.Module):
    """A discriminator that sees both of a pair, so that spectral norm moves its vectors twice."""

    shape, out = (8,), 4

    def __init__(self):
        super().__init__()
        self.d, self.head = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 6)), nn.Linear(6, 4)

    def forward(self, x, y):
        real, fake = self.d(x), self.d(x.sin())
        return mse(self.head(torch.tanh(real) - torch.tanh(2 * fake)), y)


class Twice(nn.Module):
    """An average of a layer that is called twice, and reads it as it then is."""

    shape, out = (8,), 4

    class Centre(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(6))

        def forward(self, x):
            if self.training:
                with torch.no_grad():
                    self.mean.lerp_(x.mean(0), 0.3)
            return x - self.mean

    def __init__(self):
        super().__init__()
        self.lin, self.centre, self.head = nn.Linear(8, 6), self.Centre(), nn.Linear(6, 4)

    def forward(self, x, y):
        return mse(self.head(torch.tanh(self.centre(self.lin(x)) + self.centre(self.lin(x.sin() * 2)))), y)


class Queue(nn.Module):
    """The last keys, as in MoCo: the loss reads the queue before this batch's keys are in it. It is returned, or the file
    would not have what becomes of it."""

    shape, out = (8,), 4

    def __init__(self):
        super().__init__()
        self.q, self.k = nn.Linear(8, 4), nn.Linear(8, 4)
        self.register_buffer("queue", torch.randn(12, 4))

    def forward(self, x, y):
        q = F.normalize(self.q(x), dim=1)
        with torch.no_grad():
            k = F.normalize(self.k(x), dim=1).detach()
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ self.queue.clone().T], 1)
        if self.training:
            self.queue.copy_(torch.cat([k, self.queue])[:12])
        return (logits.logsumexp(1) - logits[:, 0]).mean() + 0.1 * mse(q, y), self.queue


class Samples(nn.Module):
    """A row for each sample goes on from step to step, and the gradient flows through it, though the layer before it has
    another way to the loss."""

    shape, out = (8,), 4

    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.Linear(8, 4), nn.Linear(4, 4)
        self.register_buffer("state", torch.zeros(4, 4))

    def forward(self, x, y):
        a = self.cell(x)
        h = torch.tanh(a + 0.5 * self.state)
        with torch.no_grad():
            self.state.copy_(h)
        return mse(self.head(h) + a, y)


class Filled(nn.Module):
    """A buffer that one number fills."""

    shape, out = (8,), 4

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(8, 4)
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x, y):
        z = self.lin(x)
        if self.training:
            with torch.no_grad():
                self.scale.copy_(0.7 * self.scale.mean() + 0.3 * z.abs().mean())
        return mse(z / self.scale, y)


def loss_of(output):
    return output[0] if isinstance(output, tuple) else output


def train(model, x, y, accumulate):
    model = copy.deepcopy(model).double().train()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=RATE, momentum=MOMENTUM)
    losses, validated = [], []
    for _ in range(STEPS):
        optimizer.zero_grad()
        total = 0.0
        for _ in range(accumulate):
            loss = loss_of(model.train()(x[:4], y[:4])) / accumulate
            loss.backward()
            total += loss.item()
        optimizer.step()
        losses.append(total)
        kept = copy.deepcopy(model.state_dict())
        validated.append(loss_of(model.eval()(x[4:], y[4:])).item())
        model.load_state_dict(kept)
    return model, losses, validated


def record(name, module, exporters=("dynamo", "legacy"), fixed=False):
    torch.manual_seed(3)
    model = module()
    x, y = torch.randn(8, *module.shape), torch.randn(8, module.out)
    args, names = (x[:4].clone(), y[:4].clone()), ["x", "y"]
    fresh = copy.deepcopy(model).train()
    if "dynamo" in exporters:
        batch = None if fixed else ({0: "batch"}, {0: "batch"})
        export_dynamo(f"{name}.dynamo", copy.deepcopy(model).train(), args, names, optimize=False, dynamic_shapes=batch)
    if "default" in exporters:
        export_dynamo(f"{name}.dynamo_default", copy.deepcopy(model).train(), args, names)
    if "legacy" in exporters:
        export_legacy(f"{name}.legacy", copy.deepcopy(model).train(), args, names, 17)
    x, y = x.double(), y.double()
    out = {"x": x.float().numpy(), "y": y.float().numpy()}
    for accumulate in (1, 2):
        after, losses, validated = train(fresh, x, y, accumulate)
        out[f"losses/{accumulate}"] = np.array(losses, dtype=np.float32)
        out[f"validated/{accumulate}"] = np.array(validated, dtype=np.float32)
        if accumulate == 1:
            for n, v in after.state_dict().items():
                out[f"after/{n}"] = (v.float() if v.is_floating_point() else v).numpy()
    np.savez(HERE / f"{name}.npz", **out)


if __name__ == "__main__":
    record("state_averages", Averages, ("dynamo", "default", "legacy"))
    record("state_spectral", Spectral, ("dynamo",))
    record("state_momentum", Momentum)
    record("state_codebook", Codebook, ("dynamo",))
    record("state_projected", Projected, ("dynamo",))
    record("state_quantile", Quantile, ("dynamo",))
    record("state_instances", Instances, ("dynamo",))
    record("state_instance", Instance)
    record("state_recurrent", Recurrent, ("dynamo",), fixed=True)
    record("state_pair", Pair, ("dynamo",))
    record("state_twice", Twice)
    record("state_queue", Queue, ("dynamo",))
    record("state_samples", Samples, ("dynamo",), fixed=True)
    record("state_filled", Filled, ("dynamo",))

