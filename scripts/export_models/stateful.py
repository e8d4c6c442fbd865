"""Modules whose forward() changes tensors of their own: averages, copies, vectors of a power iteration, queues."""
import copy

import torch
from torch import nn
from torch.nn import functional as F

from export_models import model

# What the newer exporter's optimiser makes of the arithmetic on a first content.
AHEAD = {"default": "optimiser computed ahead with the first contents"}


def pairs(generator):
    return {"x": torch.randn(8, 6, generator=generator), "y": torch.randn(8, 5, generator=generator)}


def images(generator):
    return {"x": torch.randn(6, 3, 8, 8, generator=generator), "y": torch.randint(0, 4, (6,), generator=generator)}


@model(images, lr=0.02, validates=False)
class MovedThenRead(nn.Module):
    """A normalisation by the batch, and one by the averages that it has just moved."""

    def __init__(self):
        super().__init__()
        self.body, self.out = nn.Conv2d(3, 4, 3), nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.ones(4))
        self.register_buffer("centre", torch.zeros(4))
        self.register_buffer("spread", torch.ones(4))

    def forward(self, x, y):
        h = F.batch_norm(self.body(x), self.centre, self.spread, self.scale, None, training=True, momentum=0.3)
        h = F.batch_norm(torch.tanh(h), self.centre, self.spread, training=False)
        return F.cross_entropy(self.out(h.mean((2, 3))), y)


@model(pairs, says=AHEAD)
class EmaBuffer(nn.Module):
    """Features less their running mean, over their running spread."""

    def __init__(self):
        super().__init__()
        self.up, self.out = nn.Linear(6, 8), nn.Linear(8, 5)
        self.register_buffer("centre", torch.zeros(8))
        self.register_buffer("spread", torch.ones(8))

    def forward(self, x, y):
        h = self.up(x)
        if self.training:
            with torch.no_grad():
                self.centre.mul_(0.9).add_(h.mean(0), alpha=0.1)
                self.spread.lerp_(h.std(0), 0.1)
        return F.mse_loss(self.out(torch.tanh((h - self.centre) / self.spread)), y)


@model(pairs, says=AHEAD)
class EmaTwice(nn.Module):
    """The same of a module that two inputs pass."""

    class Centre(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(8))

        def forward(self, x):
            if self.training:
                with torch.no_grad():
                    self.mean.mul_(0.8).add_(0.2 * x.mean(0))
            return x - self.mean

    def __init__(self):
        super().__init__()
        self.up, self.centre, self.out = nn.Linear(6, 8), self.Centre(), nn.Linear(8, 5)

    def forward(self, x, y):
        a, b = self.centre(self.up(x)), self.centre(self.up(x.sin()))
        return F.mse_loss(self.out(torch.tanh(a) * torch.tanh(b)), y)


@model(pairs)
class MomentumEncoder(nn.Module):
    """MoCo's second encoder, which follows the first."""

    def __init__(self):
        super().__init__()
        self.query = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5))
        self.key, self.predict = copy.deepcopy(self.query).requires_grad_(False), nn.Linear(5, 5)

    def forward(self, x, y):
        if self.training:
            with torch.no_grad():
                for q, k in zip(self.query.parameters(), self.key.parameters()):
                    k.mul_(0.9).add_(q, alpha=0.1)
        with torch.no_grad():
            aim = self.key(x + 0.1 * x.sin())
        return F.mse_loss(self.predict(self.query(x)), aim) + F.mse_loss(self.query(x), y)


@model(pairs, says=AHEAD)
class KeyQueue(nn.Module):
    """The keys of earlier batches, newest first. It is returned, or the file would not have what becomes of it."""

    def __init__(self):
        super().__init__()
        self.query, self.key = nn.Linear(6, 5), nn.Linear(6, 5)
        self.register_buffer("queue", F.normalize(torch.randn(24, 5)))

    def forward(self, x, y):
        q = F.normalize(self.query(x))
        with torch.no_grad():
            k = F.normalize(self.key(x)).detach()
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ self.queue.clone().T], 1)
        if self.training:
            self.queue.copy_(torch.cat([k, self.queue])[:24])
        return F.cross_entropy(logits / 0.5, torch.zeros(8, dtype=torch.long)) + F.mse_loss(q, y), self.queue


@model(pairs)
class SpectralPair(nn.Module):
    """Spectral norm around a layer that sees two inputs, and around a convolution."""

    def __init__(self):
        super().__init__()
        norm = nn.utils.parametrizations.spectral_norm
        self.a, self.b = norm(nn.Linear(6, 8), n_power_iterations=2), norm(nn.Conv1d(1, 4, 3))
        self.out = nn.Linear(24, 5)

    def forward(self, x, y):
        h = torch.tanh(self.a(x)) + torch.tanh(self.a(x.cos()))
        return F.mse_loss(self.out(self.b(h[:, None]).flatten(1)), y)


@model(images)
class InstanceStatistics(nn.Module):
    """Instance normalisation with running statistics, which evaluation reads."""

    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 6, 3), nn.Linear(6, 4)
        self.norm = nn.InstanceNorm2d(6, affine=True, track_running_stats=True, momentum=0.2)

    def forward(self, x, y):
        return F.cross_entropy(self.head(F.relu(self.norm(self.conv(x))).amax((2, 3))), y)


@model(images, says={"legacy": "was exported with momentum 0"})
class NormTwice(nn.Module):
    """A batch normalisation that two inputs pass, and one that averages over all batches (momentum=None)."""

    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 6, 3), nn.Linear(6, 4)
        self.norm, self.other = nn.BatchNorm2d(6), nn.BatchNorm1d(6, momentum=None)

    def forward(self, x, y):
        h = F.relu(self.norm(self.conv(x))) + F.relu(self.norm(self.conv(x.flip(3) * 2)))
        return F.cross_entropy(self.head(self.other(h.mean((2, 3)))), y)


@model(pairs, says=AHEAD)
class CodebookAverages(nn.Module):
    """VQ-VAE's codebook by averages of what it is nearest to."""

    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(6, 4), nn.Linear(4, 5)
        self.register_buffer("codes", torch.randn(7, 4))
        self.register_buffer("size", torch.ones(7))
        self.register_buffer("sums", self.codes.clone())

    def forward(self, x, y):
        z = self.encode(x)
        nearest = (z[:, None] - self.codes).square().sum(2).argmin(1)
        if self.training:
            with torch.no_grad():
                hot = F.one_hot(nearest, 7).to(z.dtype)
                self.size.mul_(0.9).add_(hot.sum(0), alpha=0.1)
                self.sums.mul_(0.9).add_(hot.T @ z, alpha=0.1)
                self.codes.copy_(self.sums / (self.size + 1e-5)[:, None])
        code = self.codes[nearest]
        return F.mse_loss(self.decode(z + (code - z).detach()), y) + 0.25 * F.mse_loss(z, code.detach())


@model(pairs, says=AHEAD)
class Counter(nn.Module):
    """A schedule inside of the module: the weight of one loss falls with each step."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 5)
        self.register_buffer("step", torch.zeros((), dtype=torch.long))

    def forward(self, x, y):
        if self.training:
            self.step += 1
        h = torch.tanh(self.a(x))
        return F.mse_loss(self.b(h), y) + 0.1 / (1 + self.step) * h.abs().mean()
