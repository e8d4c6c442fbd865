"""Exports models of which PyTorch's exporters lose something: arguments of a call that the operator has no place for,
the dropout of an attention. Beside make_golden.py, whose recording it shares.

    python tests/golden/make_lost.py
"""
import torch
from torch import nn
from torch.nn import functional as F

from make_golden import export_dynamo, export_legacy, randomise, record


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


def main():
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


if __name__ == "__main__":
    main()
