"""Where operators bend: bounds, ties, zeros, masks that hide all, indices that come twice. Numbers that training meets at its start,
as a head of zeros, a black background, or padding that a mask makes zero."""
import torch
from torch import nn
from torch.nn import functional as F

from export_models import model

WIDTH = 6


def rows(generator):
    return {"x": torch.randn(4, 5, WIDTH, generator=generator), "y": torch.randn(4, 5, WIDTH, generator=generator)}


def padded(generator):
    return rows(generator) | {"k": (torch.rand(4, 5, 1, generator=generator) > 0.4).float()}


def seen(generator):
    """Padding on the left: the first queries see nothing."""
    from_left = torch.tensor([0, 2, 1, 3])
    return rows(generator) | {"k": torch.arange(5) >= from_left[:, None]}


def indexed(generator):
    return rows(generator) | {"i": torch.randint(0, 4, (4,), generator=generator)}


class Of(nn.Module):
    """`of` takes the module and its inputs without the target. Half of what the body makes is 0 at first."""

    def __init__(self, of, slope):
        super().__init__()
        self.body, self.of = nn.Linear(WIDTH, WIDTH), of
        if slope:
            self.slope = nn.Parameter(torch.tensor([0.25]))
        with torch.no_grad():
            self.body.weight[::2], self.body.bias[::2] = 0, 0

    def forward(self, x, y, *rest):
        return F.mse_loss(self.of(self, x, *rest), y)


def edge(name, of, sample=rows, slope=False, **options):
    model(sample, name=f"edge_{name}", **options)(lambda: Of(of, slope))


def attended(m, x, k):
    q = m.body(x)
    mask = k[:, None, :] & torch.ones(5, 5, dtype=torch.bool).tril()
    return x + F.scaled_dot_product_attention(q[:, None], q[:, None], q[:, None], attn_mask=mask[:, None])[:, 0]


edge("clamp", lambda m, x: m.body(x).clamp(0.0, 0.5))
edge("clamp_min", lambda m, x: m.body(x).clamp(min=0))
edge("clamp_max", lambda m, x: m.body(x).clamp_max(0))
edge("learned_bound", lambda m, x: (m.body(x) + 0.25).clamp(max=m.slope), slope=True)
edge("relu6", lambda m, x: F.relu6(m.body(x)) + F.relu6(m.body(x) + 6))
edge("hardtanh", lambda m, x: F.hardtanh(m.body(x) - 1) + F.hardtanh(m.body(x) + 1))
edge("maximum", lambda m, x: torch.maximum(m.body(x), torch.zeros_like(x)))
edge("minimum", lambda m, x: torch.minimum(m.body(x), 2 * m.body(x)))
edge("max_of_dim", lambda m, x: x + m.body(x).max(-1, keepdim=True)[0] - m.body(x).min(-1, keepdim=True).values,
     says={"legacy": "equal elements share the gradient"})
edge("amax", lambda m, x: x + m.body(x).amax(-1, keepdim=True))
edge("power_0", lambda m, x: (m.body(x)[..., None] ** torch.arange(4)).sum(-1))
edge("log_sigmoid", lambda m, x: F.logsigmoid(m.body(x) + 30 * torch.sign(x)) / 30, lr=None)
edge("bce_with_logits", lambda m, x: F.binary_cross_entropy_with_logits(m.body(x) + 30 * torch.sign(x), (x > 0.5).float(), reduction="none") / 30,
     lr=None)
edge("bce", lambda m, x: F.binary_cross_entropy(F.softmax(60 * m.body(x), -1), (x > 0.5).float(), reduction="none") / 30)
edge("logaddexp", lambda m, x: torch.logaddexp(m.body(x) - 120, torch.logaddexp(x - 120, m.body(x) - 121)) + 120)
edge("atan2", lambda m, x: x + torch.atan2(m.body(x), F.relu(m.body(x) + x)))
edge("dropout_of_all", lambda m, x: m.body(x) + F.dropout(m.body(x), 1.0))
edge("prelu", lambda m, x: F.prelu(m.body(x), m.slope), slope=True)
edge("normalize", lambda m, x, k: F.normalize(m.body(x) * k, dim=-1), padded)
edge("norm", lambda m, x, k: m.body(x) * k / ((m.body(x) * k).norm(dim=-1, keepdim=True) + 1e-6), padded)
edge("std", lambda m, x, k: m.body(x) * k / ((m.body(x) * k).std(-1, keepdim=True) + 1e-5), padded)
edge("cosine", lambda m, x, k: x * F.cosine_similarity(m.body(x) * k, x, dim=-1).unsqueeze(-1), padded)
edge("norm_of_3", lambda m, x, k: x + torch.linalg.vector_norm(m.body(x) * k, 3, -1, keepdim=True), padded)
edge("attention", attended, seen)
edge("nearest", lambda m, x: x + F.interpolate(F.interpolate(m.body(x), scale_factor=1.6), size=WIDTH))
edge("nearest_down", lambda m, x: x + F.interpolate(F.interpolate(m.body(x).repeat(1, 1, 2)[..., :9], scale_factor=0.6), size=WIDTH))
# An index names a sample of its batch, whose order must not change: one batch.
edge("index_add", lambda m, x, i: torch.zeros_like(x).index_add(0, i, m.body(x)), indexed, validates=False)
