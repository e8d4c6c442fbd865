"""Exports small PyTorch models with both exporters and records what PyTorch computes for them.

    pip install torch onnx onnxscript numpy
    python tests/golden/make_golden.py

writes <name>.<exporter>.onnx and <name>.npz next to this file, and with fresh.* and dropout.* exports that would
train wrongly as they stand, and random.* ones that draw numbers. The .npz holds the inputs, the first output, the loss, the gradient of every parameter,
and the parameters after three AdamW steps, all computed in float64 and stored in float32. `make test` reads these
files and needs no PyTorch.
"""
import math
import pathlib

import numpy as np
import onnx
import torch
from torch import nn
from torch.nn import functional as F

HERE = pathlib.Path(__file__).parent
BATCH, CONTEXT, WIDTH, HEADS, LAYERS, VOCAB = 4, 8, 16, 4, 2, 32
# A key's bias shifts every score of a query alike, so its gradient is zero but for rounding. With eps=1e-8 Adam
# would make steps of that rounding; with 1e-5 it does not.
ADAMW = dict(lr=1e-2, betas=(0.9, 0.99), eps=1e-5)
DECAY = 0.1


class ManualAttention(nn.Module):
    """Fused query-key-value projection, a mask buffer, softmax written out: nanoGPT's slow path."""

    def __init__(self):
        super().__init__()
        self.c_attn = nn.Linear(WIDTH, 3 * WIDTH)
        self.c_proj = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("mask", torch.tril(torch.ones(CONTEXT, CONTEXT)).view(1, 1, CONTEXT, CONTEXT))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.c_attn(x).split(WIDTH, dim=2)
        q, k, v = (z.view(b, t, HEADS, c // HEADS).transpose(1, 2) for z in (q, k, v))
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.mask[:, :, :t, :t] == 0, float("-inf"))
        y = F.softmax(att, dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(b, t, c))


class SdpaAttention(nn.Module):
    """Separate projections and scaled_dot_product_attention."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (m(x).view(b, t, HEADS, c // HEADS).transpose(1, 2) for m in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).reshape(b, t, c))


def tanh_gelu(x):
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


class Block(nn.Module):
    def __init__(self, attention, gelu):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn = attention()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.gelu = gelu

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.down(self.gelu(self.up(self.ln_2(x))))


class Gpt(nn.Module):
    def __init__(self, attention, gelu, tied):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.h = nn.ModuleList(Block(attention, gelu) for _ in range(LAYERS))
        self.ln_f = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        if tied:
            self.head.weight = self.wte.weight

    def forward(self, idx):
        pos = torch.arange(0, idx.shape[1], dtype=torch.long, device=idx.device)
        x = self.wte(idx) + self.wpe(pos)
        for block in self.h:
            x = block(x)
        return self.head(self.ln_f(x))


class GptWithLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.gpt = Gpt(SdpaAttention, nn.GELU(), tied=True)

    def forward(self, idx, target):
        logits = self.gpt(idx)
        return F.cross_entropy(logits.view(-1, logits.size(-1)), target.view(-1))


class Mlp(nn.Module):
    """A regression with its loss inside."""

    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(10, 24), nn.LayerNorm(24), nn.Linear(24, 3)

    def forward(self, x, y):
        return F.mse_loss(self.b(F.silu(self.norm(self.a(x)))), y)


def randomise(model):
    """Fresh weights of LayerNorm and biases are all ones and zeros, which would hide mistakes."""
    generator = torch.Generator().manual_seed(1)
    for p in model.parameters():
        p.data = torch.randn(p.shape, generator=generator) * 0.2 + (1.0 if p.dim() == 1 else 0.0)


def without_traces(path):
    """Each node's stack trace names this file by its whole path, which is nobody's business, and is most of the bytes."""
    def strip(graph):
        for node in graph.node:
            kept = [p for p in node.metadata_props if p.key != "pkg.torch.onnx.stack_trace"]
            del node.metadata_props[:]
            node.metadata_props.extend(kept)
            for attribute in node.attribute:
                strip(attribute.g)
    model = onnx.load(path)
    strip(model.graph)
    onnx.save(model, path)


def finish(name):
    """Of the nodes' metadata nothing is needed; of the values', what says which weight is a parameter."""
    path = str(HERE / f"{name}.onnx")
    file = onnx.load(path)
    for node in file.graph.node:
        del node.metadata_props[:]
    stored = {tensor.name for tensor in file.graph.initializer}
    kept = [info for info in file.graph.value_info if info.name in stored]
    del file.graph.value_info[:]
    file.graph.value_info.extend(kept)
    onnx.save(file, path)


def export_dynamo(name, model, args, names, **options):
    path = str(HERE / f"{name}.onnx")
    torch.onnx.export(model, args, path, dynamo=True, input_names=names, external_data=False, verbose=False, **options)
    without_traces(path)


def export_legacy(name, model, args, names, opset, **options):
    torch.onnx.export(model, args, str(HERE / f"{name}.onnx"), dynamo=False, input_names=names, opset_version=opset,
                      training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False, **options)


def export(name, model, args, names):
    model.train()
    export_dynamo(f"{name}.dynamo", model, args, names, optimize=False)
    export_legacy(f"{name}.legacy", model, args, names, 17)
    # Before opset 17 LayerNormalization is in pieces, from 23 on Attention is whole. PyTorch does not export
    # scaled_dot_product_attention below 14.
    if name == "gpt_manual":
        export_legacy(f"{name}.legacy13", model, args, names, 13)
    if name == "gpt_loss":
        export_legacy(f"{name}.legacy14", model, args, names, 14)
    if name == "gpt_sdpa":
        export_dynamo(f"{name}.dynamo23", model, args, names, optimize=False, opset_version=23)


def record(name, model, args, names, loss_of, **extra):
    model = model.double().train()
    args64 = tuple(a.double() if a.is_floating_point() else a for a in args)
    out = {f"in/{n}": a.numpy() for n, a in zip(names, args)}
    out |= {f"in/{n}": a for n, a in extra.items()}
    parameters = dict(model.named_parameters())
    groups = [{"params": [p for p in parameters.values() if p.dim() >= 2], "weight_decay": DECAY},
              {"params": [p for p in parameters.values() if p.dim() < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, **ADAMW)
    losses = []
    for step in range(3):
        optimizer.zero_grad()
        first = model(*args64)
        loss = loss_of(first)
        loss.backward()
        if step == 0:
            out["output"] = first.detach().float().numpy()
            parameters = {n: p for n, p in parameters.items() if p.grad is not None}
            for n, p in parameters.items():
                out[f"grad/{n}"] = p.grad.float().numpy()
        losses.append(loss.item())
        optimizer.step()
    out["losses"] = np.array(losses, dtype=np.float32)
    for n, p in parameters.items():
        out[f"after/{n}"] = p.detach().float().numpy()
    for n, b in model.named_buffers():
        if "running_" in n:  # what batch normalisation averages
            out[f"stats/{n}"] = b.float().numpy()
    np.savez(HERE / f"{name}.npz", **out)


class Dropped(nn.Module):
    """Dropout in every place that a GPT has it: a module, inside attention, and in scaled_dot_product_attention."""

    def __init__(self):
        super().__init__()
        self.wte, self.drop = nn.Embedding(VOCAB, WIDTH), nn.Dropout(0.25)
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, idx):
        x = self.drop(self.wte(idx))
        b, t, c = x.shape
        q, k, v = (m(x).view(b, t, HEADS, c // HEADS).transpose(1, 2) for m in (self.q, self.k, self.v))
        att = F.softmax(q @ k.transpose(-2, -1) / math.sqrt(c // HEADS), dim=-1)
        y = F.dropout(att, 0.1, self.training) @ v
        y = y + F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.1 if self.training else 0.0)
        return self.head(F.dropout(y.transpose(1, 2).reshape(b, t, c), 0.5, self.training))


class Drawn(nn.Module):
    """What draws random numbers besides dropout: stochastic depth as timm and as transformers write it, a variational
    autoencoder's noise, uniform noise, and a mask with a probability of its own for each element."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.decode = nn.Linear(12, 12), nn.Linear(12, 12), nn.Linear(6, 12)

    def forward(self, x):
        keep = 0.75
        path = x.new_empty((x.shape[0], 1)).bernoulli_(keep)
        h = x + F.gelu(self.first(x)) * path.div_(keep)
        path = (keep + torch.rand((x.shape[0], 1), dtype=x.dtype)).floor_()
        h = h + F.gelu(self.second(h)).div(keep) * path
        mean, deviation = h.chunk(2, -1)
        z = mean + 0.1 * deviation * torch.randn_like(mean)
        z = z * torch.bernoulli(torch.sigmoid(mean + 2)) + 0.01 * (torch.rand_like(z) - 0.5)
        return F.mse_loss(self.decode(z), x)


def export_drawn():
    torch.manual_seed(3)
    model = Drawn()
    model.train()
    x = torch.randn(7, 12)
    export_dynamo("random.dynamo", model, (x,), ["x"], optimize=False)
    export_legacy("random.legacy", model, (x,), ["x"], 17)


def export_wrongly():
    """What trains wrongly as it stands: the exporters' defaults on a freshly initialised, tied GPT, and dropout."""
    torch.manual_seed(2)
    idx = torch.randint(0, VOCAB, (BATCH, CONTEXT))
    model = Gpt(ManualAttention, tanh_gelu, tied=True)
    for name, p in model.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(p)
    model.train()
    export_dynamo("fresh.dynamo", model, (idx,), ["idx"], optimize=False)   # for comparison: as it should be
    export_dynamo("fresh.dynamo_default", model, (idx,), ["idx"])
    model.eval()
    torch.onnx.export(model, (idx,), str(HERE / "fresh.legacy_default.onnx"), dynamo=False, input_names=["idx"],
                      opset_version=17)
    model = Dropped()
    model.train()
    export_dynamo("dropout.dynamo_train", model, (idx,), ["idx"], optimize=False)
    export_legacy("dropout.legacy_train", model, (idx,), ["idx"], 17)
    model.eval()
    export_dynamo("dropout.dynamo_eval", model, (idx,), ["idx"], optimize=False)
    torch.onnx.export(model, (idx,), str(HERE / "dropout.legacy_eval.onnx"), dynamo=False, input_names=["idx"],
                      opset_version=17)


def main():
    export_wrongly()
    export_drawn()
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, VOCAB, (BATCH, CONTEXT + 1), generator=generator)
    idx, target = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def token_loss(logits):
        return F.cross_entropy(logits.view(-1, VOCAB), target.view(-1))

    cases = [
        ("gpt_manual", Gpt(ManualAttention, tanh_gelu, tied=True), (idx,), ["idx"], token_loss),
        ("gpt_sdpa", Gpt(SdpaAttention, nn.GELU(), tied=False), (idx,), ["idx"], token_loss),
        ("gpt_loss", GptWithLoss(), (idx, target), ["idx", "target_in"], lambda loss: loss),
        ("mlp", Mlp(), (torch.randn(6, 10, generator=generator), torch.randn(6, 3, generator=generator)), ["x", "y"],
         lambda loss: loss),
    ]
    for name, model, args, names, loss_of in cases:
        randomise(model)
        export(name, model, args, names)
        record(name, model, args, names, loss_of)
        if name.startswith("gpt") and len(args) == 1:
            data = dict(np.load(HERE / f"{name}.npz"))
            np.savez(HERE / f"{name}.npz", **data, **{"in/target": target.numpy()})


if __name__ == "__main__":
    main()
