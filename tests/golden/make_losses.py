"""Exports language models that bring their loss and other outputs, and one whose weights have several names.

    python tests/golden/make_losses.py

writes <name>.<exporter>.onnx and <name>.npz next to this file. The .npz holds the inputs and the losses of six steps of
SGD on them, computed in float64. It shares make_golden.py's writing of files.
"""
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from make_golden import HERE, export_dynamo, export_legacy

VOCAB, WIDTH, BATCH, CONTEXT, STEPS = 16, 8, 2, 6, 6


class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.mix = nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)

    def logits(self, tokens):
        x = self.wte(tokens)
        return self.head(x + torch.tanh(self.mix(x.cumsum(1))))


class Nano(Body):
    """nanoGPT's class: logits and a loss, of targets that are the next tokens."""

    def forward(self, idx, targets=None):
        logits = self.logits(idx)
        if targets is None:
            return self.head(self.wte(idx)[:, [-1], :]), None
        return logits, F.cross_entropy(logits.view(-1, VOCAB), targets.view(-1), ignore_index=-1)


class Shifting(Body):
    """As in transformers: labels are the tokens themselves, moved by one on the way to the loss."""

    def forward(self, input_ids, attention_mask, labels):
        logits = self.logits(input_ids) * attention_mask.unsqueeze(-1)
        moved = F.pad(labels, (0, 1), value=-100)[..., 1:].contiguous()
        return {"loss": F.cross_entropy(logits.view(-1, VOCAB), moved.view(-1)), "logits": logits}


class Cut(Body):
    """The same with the last logits cut off, as transformers did it before."""

    def forward(self, input_ids, labels):
        logits = self.logits(input_ids)
        kept, moved = logits[..., :-1, :].contiguous(), labels[..., 1:].contiguous()
        return F.cross_entropy(kept.view(-1, VOCAB), moved.view(-1)), logits


class Alone(Body):
    """Tokens alone."""

    def forward(self, tokens):
        return F.cross_entropy(self.logits(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


class Gathered(Body):
    """A loss of its own, in which nothing shows what the targets are."""

    def forward(self, idx, following):
        chosen = self.logits(idx).log_softmax(-1).gather(2, following.unsqueeze(2))
        return -chosen.mean()


class Head(nn.Module):
    """A head that hands its own bias to the layer within, as BERT's does."""

    def __init__(self):
        super().__init__()
        self.bias, self.decoder = nn.Parameter(torch.randn(VOCAB)), nn.Linear(WIDTH, VOCAB)
        self.decoder.bias = self.bias

    def forward(self, x):
        return self.decoder(x)


class Tied(nn.Module):
    """A head with the embedding's weight: each has two names."""

    def __init__(self):
        super().__init__()
        self.embeddings = nn.ModuleDict({"words": nn.Embedding(VOCAB, WIDTH), "places": nn.Embedding(CONTEXT, WIDTH)})
        self.mix, self.head = nn.Linear(WIDTH, WIDTH), Head()
        self.head.decoder.weight = self.embeddings["words"].weight

    def forward(self, tokens):
        x = self.embeddings["words"](tokens) + self.embeddings["places"](torch.arange(CONTEXT))
        return self.head(torch.tanh(self.mix(x)))


def losses(model, inputs):
    model = model.double().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    out = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        got = model(**inputs)
        got = got["loss"] if isinstance(got, dict) else got
        loss = next(t for t in (got if isinstance(got, tuple) else (got,)) if t.dim() == 0)
        loss.backward()
        out.append(loss.item())
        optimizer.step()
    return np.array(out, dtype=np.float32)


def record(name, module, inputs, exporters=("dynamo",)):
    torch.manual_seed(5)
    model = module().train()
    args, names = tuple(v.clone() for v in inputs.values()), list(inputs)
    if "dynamo" in exporters:
        export_dynamo(f"{name}.dynamo", model, args, names, optimize=False)
    if "legacy" in exporters:
        export_legacy(f"{name}.legacy", model, args, names, 17)
    np.savez(HERE / f"{name}.npz", **{n: v.numpy() for n, v in inputs.items()}, losses=losses(model, inputs))


if __name__ == "__main__":
    tokens = torch.randint(0, VOCAB, (BATCH, CONTEXT + 1), generator=torch.Generator().manual_seed(2))
    now, following = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    record("loss_nano", Nano, {"idx": now, "targets": following}, ("dynamo", "legacy"))
    record("loss_shifting", Shifting, {"input_ids": now, "attention_mask": torch.ones_like(now), "labels": now})
    record("loss_cut", Cut, {"input_ids": now, "labels": now}, ("dynamo", "legacy"))
    record("loss_alone", Alone, {"tokens": now})
    record("loss_gathered", Gathered, {"idx": now, "following": following})
    torch.manual_seed(5)
    export_dynamo("loss_same.dynamo", Nano().train(), (now, now), ["idx", "targets"], optimize=False)
    export_dynamo("loss_last.dynamo", Nano().train(), (now,), ["idx"], optimize=False)
    torch.manual_seed(5)
    export_dynamo("tied.dynamo", Tied().train(), (now,), ["tokens"], optimize=False)
    torch.manual_seed(5)
    export_legacy("tied.legacy", Tied().train(), (now,), ["tokens"], 17)
