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
        batch, context, width = x.shape
        # Columns lie head by head: q, k and v of head 0, of head 1, ...
        qkv = self.attn["c_attn"](self.ln_1(x)).view(batch, context, self.heads, 3, width // self.heads)
        q, k, v = qkv.permute(3, 0, 2, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn["c_proj"](y.transpose(1, 2).reshape(batch, context, width))
        return x + self.mlp["c_proj"](F.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, layers, heads, width, vocab, context):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.h = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe.weight
        for block in self.h:
            x = block(x)
        return F.linear(self.ln_f(x), self.wte.weight)


def build(settings, weights, data):
    vocab, width = weights["wte.weight"].shape
    module = Gpt(settings["layers"], settings["heads"], width, vocab, weights["wpe.weight"].shape[0])
    load(module, weights, transposed=lambda name: ".c_" in name and name.endswith("weight"))
    tokens, target = data["tokens"], data["target"]
    return module, lambda: F.cross_entropy(module(tokens).view(-1, vocab), target.view(-1))


def version():
    return ""
