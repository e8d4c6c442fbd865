"""Exports models of which PyTorch's exporters lose something: arguments of a call that the operator has no place for,
the dropout of an attention. It shares make_golden.py's recording.

    python tests/golden/make_lost.py
"""
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from make_golden import HERE, export_dynamo, export_legacy, randomise, record
from make_more import Quantised


def export_legacy_default(name, model, args, names):
    torch.onnx.export(model, args, str(HERE / f"{name}.onnx"), dynamo=False, input_names=names, opset_version=17)


class Losses(nn.Module):
    """Every argument of cross_entropy and nll_loss; labels of an image, and labels that are shares of the classes."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 5)
        self.register_buffer("class_weight", torch.tensor([0.5, 1.0, 2.0, 0.25, 1.5]))

    def forward(self, x, y, shares):
        z, w = self.a(x), self.class_weight
        image = z.view(2, 2, 2, 5).permute(0, 3, 1, 2)
        return (F.cross_entropy(z, y, label_smoothing=0.1)
                + F.cross_entropy(z, y, weight=w, ignore_index=3, label_smoothing=0.3)
                + 0.1 * F.cross_entropy(z, y, weight=w, reduction="sum", label_smoothing=0.2)
                + F.cross_entropy(z, y, ignore_index=1, reduction="none", label_smoothing=0.25).square().mean()
                + F.cross_entropy(image, y.view(2, 2, 2), weight=w, ignore_index=0, label_smoothing=0.15)
                + F.cross_entropy(z, shares)
                + F.cross_entropy(z, shares, weight=w, label_smoothing=0.1)
                + 0.1 * F.cross_entropy(z, shares, weight=w, reduction="sum", label_smoothing=0.1)
                + F.nll_loss(z.log_softmax(-1), y, weight=w, ignore_index=2))


class Scattered(nn.Module):
    """scatter_reduce by all its reductions, onto elements that count and that do not. Row 3 is named by no index."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x, rows):
        index, source, base = rows[:, None].expand(-1, 3), self.a(x), self.b(x[:4])
        total = 0.0
        for reduce in ("sum", "mean", "amax", "amin", "prod"):
            for include_self in (True, False):
                total = total + base.scatter_reduce(0, index, source, reduce, include_self=include_self).sin().mean()
        return total + 2


class Attentions(nn.Module):
    """Attention whose dropout both exporters write inactive, and the newer one's optimiser leaves out: with a causal mask,
    and with one of booleans."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 8, bias=False) for _ in range(3))

    def forward(self, x):
        q, k, v = (m(x).view(2, 5, 2, 4).transpose(1, 2) for m in (self.q, self.k, self.v))
        causal = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.25)
        keep = x[:, None, None, :, 0] < 1
        return (causal + F.scaled_dot_product_attention(q, k, v, keep, dropout_p=0.5)).square().mean()


class Block(nn.Module):
    """Two norms of one width, whose fresh weights are equal; biases of zeros before and behind a rank of 3."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(6), nn.LayerNorm(6)
        self.up, self.down = nn.Linear(6, 12), nn.Linear(12, 6)
        self.gain = nn.Parameter(torch.ones(6))

    def forward(self, x):
        x = x + self.gain * self.norm1(x)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Fresh(nn.Module):
    """A fresh model, as most are exported: biases of zeros, which the newer exporter's optimiser removes from convolutions
    and from products of matrices, and tensors of equal numbers, which it merges: vectors, running statistics among them, a
    layer that began as a copy, and the ones and zeros of norms that have no weights. A norm that is used twice, and a head
    that is tied, stay one."""

    def __init__(self):
        super().__init__()
        self.conv, self.transposed, self.depthwise = nn.Conv2d(2, 6, 3), nn.ConvTranspose2d(6, 6, 2, groups=2), nn.Conv1d(6, 6, 3, groups=6)
        self.pool, self.plain_pool, self.plain = nn.BatchNorm2d(6), nn.BatchNorm2d(6, affine=False), nn.LayerNorm(6, elementwise_affine=False)
        self.groups = nn.ModuleList(nn.GroupNorm(2, 6) for _ in range(2))
        self.instance, self.plain_instance = nn.InstanceNorm2d(6, affine=True), nn.InstanceNorm2d(6)
        self.blocks = nn.Sequential(Block(), Block())
        self.norm, self.tokens, self.first = nn.LayerNorm(6), nn.Embedding(9, 6), nn.Linear(6, 6)
        self.head = nn.Linear(6, 9)
        self.head.weight = self.tokens.weight
        self.second = nn.Linear(6, 6)
        self.unused = nn.Linear(3, 3)

    def forward(self, image, idx, target):
        x = self.transposed(F.relu(self.conv(image)))
        x = self.pool(F.relu(F.avg_pool2d(x, 2)))
        x = x + self.groups[0](x).sin() + self.groups[1](x.cos()).sin() + self.instance(x).sin() + self.plain_instance(x * x).sin()
        x = self.plain_pool(x)
        x = self.depthwise(x.flatten(2)).transpose(1, 2).mean(1)
        x = self.plain(self.second(torch.tanh(self.first(x))))
        x = self.norm(self.tokens(idx) + self.norm(torch.tanh(x))[:, None])
        return F.cross_entropy(self.head(self.blocks(x)).flatten(0, 1), target.flatten())


class Folded(nn.Module):
    """Batch normalisations behind all that the newer exporter's optimiser folds them into, which have been trained."""

    def __init__(self):
        super().__init__()
        self.a, self.norm_a = nn.Conv2d(2, 3, 2, bias=False), nn.BatchNorm2d(3)
        self.b, self.norm_b = nn.ConvTranspose2d(3, 3, 2), nn.BatchNorm2d(3)
        self.c, self.norm_c = nn.Linear(3, 4), nn.BatchNorm1d(4)

    def forward(self, x):
        x = F.relu(self.norm_b(self.b(F.relu(self.norm_a(self.a(x))))))
        return self.norm_c(self.c(x.mean((2, 3)))).square().sum()


class Detached(nn.Module):
    """Values that stand still: a factor, a weight, a half behind which only a view lies, and the target of a loss."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        a, b = self.a(x), self.b(x)
        halves = b.view(-1, 2, 2).detach().reshape(-1, 4)
        frozen = F.linear(a, self.b.weight.detach())
        return ((a * a.detach()).mean() + (frozen * halves).square().mean()
                + (a - (b - a).detach()).square().mean() + F.mse_loss(a, b.detach()) + b.square().mean())


def fresh(model):
    """Matrices that differ, but biases of zeros, scales of ones and fresh statistics."""
    generator = torch.Generator().manual_seed(3)
    for p in model.parameters():
        if p.dim() > 1:
            p.data = torch.randn(p.shape, generator=generator) * 0.3
    for name, p in model.named_parameters():
        if name.endswith("bias"):
            p.data.zero_()


def main():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(7)
    x, y = torch.randn(8, 4, generator=generator), torch.tensor([0, 3, 1, 4, 2, 0, 1, 3])
    shares = torch.rand(8, 5, generator=generator).softmax(-1)
    cases = [("losses", Losses(), {"x": x, "y": y, "shares": shares}),
             ("scattered", Scattered(), {"x": torch.randn(6, 3, generator=generator),
                                         "rows": torch.tensor([0, 2, 1, 2, 0, 2])})]
    for name, model, inputs in cases:
        randomise(model)
        names, args = list(inputs), tuple(inputs.values())
        model.train()
        export_dynamo(f"{name}.dynamo", model, args, names, optimize=False)
        export_dynamo(f"{name}.dynamo_default", model, args, names)
        record(name, model, args, names, lambda loss: loss)
    model, args = Attentions().train(), (torch.randn(2, 5, 8, generator=generator),)
    export_dynamo("attentions.dynamo", model, args, ["x"], optimize=False)
    export_dynamo("attentions.dynamo_default", model, args, ["x"])
    export_legacy("attentions.legacy", model, args, ["x"], 17)
    model = Fresh().train()
    fresh(model)
    model.second.weight.data.copy_(model.first.weight)
    inputs = {"image": torch.randn(3, 2, 6, 6, generator=generator), "idx": torch.tensor([[0, 3], [8, 1], [5, 5]]),
              "target_in": torch.tensor([[3, 2], [1, 0], [5, 8]])}
    names, args = list(inputs), tuple(inputs.values())
    export_dynamo("lost_fresh.dynamo", model, args, names, optimize=False)
    export_dynamo("lost_fresh.dynamo_default", model, args, names)
    record("lost_fresh", model, args, names, lambda loss: loss)
    # Of the names of a tied weight PyTorch's exporter keeps the last, named_parameters() the first.
    recorded = {n.replace("tokens.weight", "head.weight"): a for n, a in np.load(HERE / "lost_fresh.npz").items()}
    np.savez(HERE / "lost_fresh.npz", **recorded)
    model, args = Detached().train(), (torch.randn(6, 4, generator=generator),)
    randomise(model)
    export_dynamo("detached.dynamo", model, args, ["x"], optimize=False)
    export_dynamo("detached.dynamo_default", model, args, ["x"])
    record("detached", model, args, ["x"], lambda loss: loss)
    model, args = Quantised().train(), (torch.randn(7, 6, generator=generator),)
    export_dynamo("quantised.dynamo_default", model, args, ["x"])
    model, args = Folded(), (torch.randn(2, 2, 5, 5, generator=generator),)
    randomise(model)
    for _ in range(3):
        model(*args)
    export_dynamo("folded.dynamo_default", model, args, ["x"])
    export_dynamo("folded.dynamo_default_eval", model.eval(), args, ["x"])
    export_legacy_default("folded.legacy_eval", model, args, ["x"])

if __name__ == "__main__":
    main()
