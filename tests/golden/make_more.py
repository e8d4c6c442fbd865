"""Exports models with what trains wrongly most easily: tables that are no weights, weights that are folded away,
additive masks that train, class weights, padding. It shares make_golden.py's recording.

    python tests/golden/make_more.py
"""
import onnx
import torch
from torch import nn
from torch.nn import functional as F

from make_golden import CONTEXT, HEADS, HERE, VOCAB, WIDTH, export, export_dynamo, randomise, record

BATCH = 3
SIZE = WIDTH // HEADS


def heads(x, count=HEADS):
    return x.view(x.shape[0], x.shape[1], count, -1).transpose(1, 2)


def rotate_half(x):
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


class RmsNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Rotary(nn.Module):
    """A LLaMA block: rotary tables in buffers, two key heads for four query heads, SwiGLU."""

    def __init__(self):
        super().__init__()
        self.emb, self.head = nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)
        self.norm1, self.norm2 = RmsNorm(), RmsNorm()
        self.q, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(WIDTH, 2 * SIZE, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(WIDTH, 24, bias=False) for _ in range(2))
        self.down = nn.Linear(24, WIDTH, bias=False)
        angles = torch.outer(torch.arange(2 * CONTEXT), 1e4 ** (-torch.arange(0, SIZE, 2) / SIZE)).repeat(1, 2)
        self.register_buffer("cos_cached", angles.cos())
        self.register_buffer("sin_cached", angles.sin())

    def forward(self, idx, target):
        x = self.emb(idx)
        t = idx.shape[1]
        h = self.norm1(x)
        q, k, v = heads(self.q(h)), heads(self.k(h), 2), heads(self.v(h), 2)
        cos, sin = self.cos_cached[:t], self.sin_cached[:t]
        q, k = q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin
        k, v = k.repeat_interleave(2, dim=1), v.repeat_interleave(2, dim=1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(x.shape))
        h = self.norm2(x)
        x = x + self.down(F.silu(self.gate(h)) * self.up(h))
        return F.cross_entropy(self.head(x).view(-1, VOCAB), target.view(-1))


class RelativeBias(nn.Module):
    """T5: a trained table of relative positions is added to the scores."""

    def __init__(self):
        super().__init__()
        self.emb, self.relative = nn.Embedding(VOCAB, WIDTH), nn.Embedding(8, HEADS)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, idx, target):
        x = self.emb(idx)
        at = torch.arange(idx.shape[1])
        distance = at[None, :] - at[:, None]
        bucket = (distance > 0).long() * 4 + distance.abs().clamp(max=3)
        bias = self.relative(bucket).permute(2, 0, 1).unsqueeze(0)
        q, k, v = heads(self.q(x)), heads(self.k(x)), heads(self.v(x))
        y = F.softmax(q @ k.transpose(2, 3) + bias, dim=-1) @ v
        x = x + self.o(y.transpose(1, 2).reshape(x.shape))
        return F.cross_entropy(self.head(x).view(-1, VOCAB), target.view(-1))


class Classes(nn.Module):
    """Class weights, an ignored label, and a learned temperature (a scalar parameter)."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(10, 12), nn.Linear(12, 5)
        self.temperature = nn.Parameter(torch.tensor(0.7))
        self.register_buffer("class_weight", torch.tensor([0.5, 1.0, 2.0, 0.25, 1.5]))

    def forward(self, x, y):
        logits = self.b(F.leaky_relu(self.a(x))) * self.temperature.exp()
        return F.cross_entropy(logits, y, weight=self.class_weight, ignore_index=3)


class Encoder(nn.Module):
    """BERT: padding, segments, a position table that is sliced, a classifier in addition to the words' loss."""

    def __init__(self):
        super().__init__()
        self.word, self.position, self.segment = nn.Embedding(VOCAB, WIDTH), nn.Embedding(16, WIDTH), nn.Embedding(2, WIDTH)
        self.norm, self.norm1 = nn.LayerNorm(WIDTH, eps=1e-12), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.head, self.pool, self.pair = nn.Linear(WIDTH, VOCAB), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)
        self.register_buffer("position_ids", torch.arange(16).expand((1, -1)))

    def forward(self, ids, keep, segment, labels, follows):
        b, t = ids.shape
        x = self.norm(self.word(ids) + self.position(self.position_ids[:, :t]) + self.segment(segment))
        q, k, v = heads(self.q(x)), heads(self.k(x)), heads(self.v(x))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=keep[:, None, None, :].expand(b, 1, t, t))
        x = self.norm1(x + self.o(y.transpose(1, 2).reshape(x.shape)))
        words = F.cross_entropy(self.head(x).view(-1, VOCAB), labels.view(-1))
        return words + F.cross_entropy(self.pair(torch.tanh(self.pool(x[:, 0]))), follows)


class Recurrent(nn.Module):
    """An LSTM in both directions, then a GRU."""

    def __init__(self):
        super().__init__()
        self.emb, self.head = nn.Embedding(VOCAB, 4), nn.Linear(5, VOCAB)
        self.lstm = nn.LSTM(4, 3, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(6, 5, batch_first=True)

    def forward(self, idx, target):
        y, last = self.gru(self.lstm(self.emb(idx))[0])
        logits = self.head(y + last.transpose(0, 1))
        return F.cross_entropy(logits.view(-1, VOCAB), target.view(-1))


class Quantised(nn.Module):
    """A VQ-VAE: the gradient goes straight through the look-up of the nearest code, and each side of its loss stands still
    for the other. The legacy exporter writes nothing of detach()."""

    def __init__(self):
        super().__init__()
        self.a, self.codes, self.b = nn.Linear(6, 4), nn.Embedding(5, 4), nn.Linear(4, 6)

    def forward(self, x):
        z = self.a(x)
        code = self.codes((z[:, None] - self.codes.weight).pow(2).sum(2).argmin(1))
        y = self.b(z + (code - z).detach())
        return F.mse_loss(y, x) + F.mse_loss(code, z.detach()) + 0.25 * F.mse_loss(z, code.detach())


def without_node_metadata(path):
    """Import reads the metadata of values; that of nodes is the larger part of a small file."""
    model = onnx.load(path)
    for node in model.graph.node:
        del node.metadata_props[:]
    onnx.save(model, path)


def main():
    generator = torch.Generator().manual_seed(5)

    def integers(high, *shape):
        return torch.randint(0, high, shape, generator=generator)

    idx, target, labels = (integers(VOCAB, BATCH, CONTEXT) for _ in range(3))
    labels[1, 3:] = -100
    keep = torch.ones(BATCH, CONTEXT, dtype=torch.bool)
    keep[0, 5:] = False
    classes = integers(5, 8)
    classes[2] = 3
    cases = [
        ("rotary", Rotary(), {"idx": idx, "target_in": target}),
        ("relative", RelativeBias(), {"idx": idx, "target_in": target}),
        ("classes", Classes(), {"x": torch.randn(8, 10, generator=generator), "y": classes}),
        ("encoder", Encoder(), {"ids": idx, "keep": keep, "segment": integers(2, BATCH, CONTEXT), "labels": labels,
                                "follows": integers(2, BATCH)}),
        ("recurrent", Recurrent(), {"idx": idx, "target_in": target}),
    ]
    for name, model, inputs in cases:
        randomise(model)
        if name == "classes":
            model.temperature.data.fill_(0.7)
        names, args = list(inputs), tuple(inputs.values())
        export(name, model, args, names)
        export_dynamo(f"{name}.dynamo_default", model, args, names)
        for exporter in ("dynamo", "dynamo_default"):
            without_node_metadata(str(HERE / f"{name}.{exporter}.onnx"))
        record(name, model, args, names, lambda loss: loss)
    model, args, names = Quantised(), (torch.randn(7, 6, generator=generator),), ["x"]
    randomise(model)
    export_dynamo("quantised.dynamo", model.train(), args, names, optimize=False)
    record("quantised", model, args, names, lambda loss: loss)


if __name__ == "__main__":
    main()
