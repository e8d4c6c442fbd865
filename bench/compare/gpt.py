"""GPT-2 as `shardrun model gpt` writes it: learned positions, GELU by tanh, the head tied to the embedding."""
import torch
from torch import nn
from torch.nn import functional as F

from peer import load


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.ModuleDict({"c_attn": nn.Linear(width, 3 * width), "c_proj": nn.Linear(width, width)})
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(width, 4 * width), "c_proj": nn.Linear(4 * width, width)})

    def forward(self, x):
        # Columns lie head by head: q, k and v of head 0, of head 1, ...
        qkv = self.attn["c_attn"](self.ln_1(x)).unflatten(2, (self.heads, 3, -1))
        q, k, v = qkv.permute(3, 0, 2, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn["c_proj"](y.transpose(1, 2).flatten(2))
        return x + self.mlp["c_proj"](F.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, layers, heads, width, vocab, context):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.h = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe.weight
        for block in self.h:
            x = block(x)
        return self.head(self.ln_f(x))


def build(settings, weights, data):
    vocab, width = weights["wte.weight"].shape
    module = Gpt(settings["layers"], settings["heads"], width, vocab, weights["wpe.weight"].shape[0])
    load(module, weights, transposed=lambda name: ".c_" in name and name.endswith("weight"))
    return module, loss, data


def loss(module, data):
    return F.cross_entropy(module(data["tokens"]).flatten(0, 1), data["target"].flatten())


def blocks(module):
    """What FSDP gathers one after the other."""
    return list(module.h)


def tensor_parallel(module, mesh):
    """Megatron's layout by DTensor: heads, the MLP's hidden dim and the vocabulary are cut; so are the logits."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    parallelize_module(module, mesh, {
        "wte": RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate()),
        "h.*.attn.c_attn": ColwiseParallel(), "h.*.attn.c_proj": RowwiseParallel(),
        "h.*.mlp.c_fc": ColwiseParallel(), "h.*.mlp.c_proj": RowwiseParallel(),
        "head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)})
    module.head.weight = module.wte.weight
    for block in module.h:
        block.heads //= mesh.size()


def version():
    return ""
