"""Losses with all their arguments, each behind a small layer."""
import torch
from torch import nn
from torch.nn import functional as F

from export_models import model

CLASSES = 5


def scores(generator):
    return {"x": torch.randn(12, 6, generator=generator), "y": torch.randint(0, CLASSES, (12,), generator=generator)}


def shares(generator):
    return {"x": torch.randn(12, 6, generator=generator),
            "y": torch.randn(12, CLASSES, generator=generator).softmax(-1)}


def bits(generator):
    return {"x": torch.randn(12, 6, generator=generator),
            "y": torch.randint(0, 2, (12, CLASSES), generator=generator).float()}


def numbers(generator):
    return {"x": torch.randn(12, 6, generator=generator), "y": torch.randn(12, CLASSES, generator=generator)}


def signs(generator):
    return {"x": torch.randn(12, 6, generator=generator),
            "y": torch.randint(0, 2, (12, CLASSES), generator=generator).float() * 2 - 1}


class Loss(nn.Module):
    """`of` takes the scores, the target and class weights."""

    def __init__(self, of):
        super().__init__()
        self.body, self.of = nn.Linear(6, CLASSES), of
        self.register_buffer("weight", torch.tensor([0.5, 1.0, 2.0, 0.25, 1.5]))

    def forward(self, x, y):
        return self.of(self.body(x), y, self.weight)


def loss(name, sample, of, **options):
    model(sample, name=f"loss_{name}", **options)(lambda: Loss(of))


# The older exporter does not tell the buffer from a weight: it is part of an expression, not of an operator.
_BUFFER = {"legacy": "tells neither parameters from buffers .* all that the loss depends on trains"}

loss("cross_entropy", scores, lambda z, y, w: F.cross_entropy(z, y))
loss("ce_smoothed", scores, lambda z, y, w: F.cross_entropy(z, y, label_smoothing=0.1))
loss("ce_weighted", scores, lambda z, y, w: F.cross_entropy(z, y, w, ignore_index=3))
loss("ce_all", scores, lambda z, y, w: F.cross_entropy(z, y, w, ignore_index=2, label_smoothing=0.2))
loss("ce_sum", scores, lambda z, y, w: 0.1 * F.cross_entropy(z, y, w, reduction="sum", label_smoothing=0.3))
loss("ce_none", scores,
     lambda z, y, w: F.cross_entropy(z, y, w, ignore_index=1, reduction="none", label_smoothing=0.1).square().mean())
loss("ce_soft", shares, lambda z, y, w: F.cross_entropy(z, y))
loss("ce_soft_all", shares, lambda z, y, w: F.cross_entropy(z, y, w, label_smoothing=0.2))
loss("nll", scores, lambda z, y, w: F.nll_loss(z.log_softmax(-1), y, w, ignore_index=0))
loss("focal", scores, lambda z, y, w: ((1 - (p := z.softmax(-1).gather(1, y[:, None]))) ** 2 * -p.log()).mean())
loss("bce", bits, lambda z, y, w: F.binary_cross_entropy(z.sigmoid(), y, w))
loss("bce_logits", bits, lambda z, y, w: F.binary_cross_entropy_with_logits(z, y, w, pos_weight=w), says=_BUFFER)
loss("mse", numbers, lambda z, y, w: F.mse_loss(z, y) + 0.1 * F.mse_loss(z, y, reduction="sum"))
loss("l1", numbers, lambda z, y, w: F.l1_loss(z, y) + F.l1_loss(z, y, reduction="none").square().mean())
loss("smooth_l1", numbers, lambda z, y, w: F.smooth_l1_loss(z, y, beta=0.5))
loss("huber", numbers, lambda z, y, w: F.huber_loss(z, y, delta=0.7))
loss("kl", shares, lambda z, y, w: F.kl_div(z.log_softmax(-1), y, reduction="batchmean"))
loss("kl_log", shares,
     lambda z, y, w: F.kl_div(z.log_softmax(-1), y.log(), reduction="sum", log_target=True) * 0.1)
loss("poisson", bits, lambda z, y, w: F.poisson_nll_loss(z, y + 1, full=True))
loss("gaussian", numbers, lambda z, y, w: F.gaussian_nll_loss(z, y, F.softplus(z) + 0.1))
loss("soft_margin", signs, lambda z, y, w: F.soft_margin_loss(z, y))
loss("hinge", signs, lambda z, y, w: F.hinge_embedding_loss(z, y, margin=1.5))
loss("margin_ranking", signs, lambda z, y, w: F.margin_ranking_loss(z, z.flip(1) * 0.5, y, margin=0.2))
loss("multi_margin", scores, lambda z, y, w: F.multi_margin_loss(z, y, margin=0.7))
loss("multilabel", bits, lambda z, y, w: F.multilabel_soft_margin_loss(z, y, w), says=_BUFFER)
loss("cosine", numbers,
     lambda z, y, w: F.cosine_embedding_loss(z, y, torch.ones(12)) + F.cosine_embedding_loss(z, y, -torch.ones(12), 0.1))
loss("dice", bits, lambda z, y, w: 1 - (2 * (z.sigmoid() * y).sum() + 1) / (z.sigmoid().sum() + y.sum() + 1))
loss("distillation", numbers,
     lambda z, y, w: 4 * F.kl_div((z / 2).log_softmax(-1), (y / 2).softmax(-1), reduction="batchmean"))
loss("quantile", numbers, lambda z, y, w: torch.maximum(0.9 * (y - z), -0.1 * (y - z)).mean())
loss("log_cosh", numbers, lambda z, y, w: torch.log(torch.cosh(z - y)).mean())
loss("entropy", numbers, lambda z, y, w: F.mse_loss(z, y) + 0.1 * torch.special.entr(z.softmax(-1)).sum(-1).mean())
loss("logsumexp", numbers, lambda z, y, w: (torch.logsumexp(z, -1) - (z * y.softmax(-1)).sum(-1)).mean())
loss("penalties", numbers,
     lambda z, y, w: F.mse_loss(z, y) + 0.01 * z.norm() + 0.01 * z.abs().sum() + 0.01 * z.std() + 0.01 * z.var(0).mean())


@model(lambda g: {"x": torch.randn(2, 3, 4, 4, generator=g), "y": torch.randint(0, CLASSES, (2, 4, 4), generator=g)})
class LossSegmentation(nn.Module):
    """Labels of pixels, some of them ignored."""

    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(3, CLASSES, 3, padding=1)

    def forward(self, x, y):
        z = self.body(x)
        return F.cross_entropy(z, y, ignore_index=0, label_smoothing=0.1) + F.nll_loss(F.log_softmax(z, 1), y)


@model(lambda g: {"x": torch.randn(7, 4, generator=g), "rows": torch.tensor([0, 2, 0, 2, 2, 1, 0])}, validates=False)
class LossScattered(nn.Module):
    """scatter_reduce by every reduction; the older exporter has no mean, and none without the elements themselves."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x, rows):
        index, source, base = rows[:, None].expand(-1, 3), self.a(x), self.b(x[:4])
        parts = [base.scatter_reduce(0, index, source, r, include_self=s).sin().mean()
                 for r in ("sum", "mean", "amax", "amin", "prod") for s in (True, False)]
        return sum(parts) + 2
