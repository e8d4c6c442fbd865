"""Perceptrons, autoencoders, losses of two sides, and modules of torch.nn that wrap others."""
import copy

import torch
from torch import nn
from torch.nn import functional as F

from export_models import model


def rows(*shape, classes=0, name="x", target="y"):
    """Normal rows of a shape; with classes, and a label for each."""
    def sample(generator):
        out = {name: torch.randn(shape, generator=generator)}
        if classes:
            out[target] = torch.randint(0, classes, shape[:1], generator=generator)
        return out
    return sample


def pairs(shape, other, names=("x", "y")):
    def sample(generator):
        return {names[0]: torch.randn(shape, generator=generator), names[1]: torch.randn(other, generator=generator)}
    return sample


class Classifier(nn.Module):
    """A body, and the cross entropy of what it makes."""

    def __init__(self, *layers):
        super().__init__()
        self.body = nn.Sequential(*layers)

    def forward(self, x, y):
        return F.cross_entropy(self.body(x), y)


@model(rows(16, 12, classes=5))
def mlp():
    return Classifier(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 5))


@model(rows(16, 12, classes=5))
def mlp_activations():
    acts = [nn.SiLU(), nn.Mish(), nn.ELU(), nn.SELU(), nn.CELU(), nn.Softplus(), nn.Softsign(), nn.Tanh(), nn.Sigmoid(),
            nn.LeakyReLU(0.1), nn.PReLU(12), nn.Hardswish(), nn.Hardsigmoid(), nn.GELU("tanh"), nn.Tanhshrink(),
            nn.LogSigmoid(), nn.ReLU6(), nn.Hardtanh()]
    layers = [m for act in acts for m in (nn.Linear(12, 12), nn.LayerNorm(12), act)]
    return Classifier(*layers, nn.Linear(12, 5))


@model(rows(16, 12, classes=5))
def mlp_batch_norm():
    return Classifier(nn.Linear(12, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 32, bias=False),
                      nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 5))


@model(rows(16, 12, classes=5))
class MlpZeroBias(nn.Module):
    """Biases of zeros, and scales of ones, as many initialise them."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(12, 12) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(12) for _ in range(3))
        self.gains = nn.ParameterList(nn.Parameter(torch.ones(12)) for _ in range(3))
        self.head = nn.Linear(12, 5)
        for m in self.modules():
            if isinstance(m, nn.Linear):
                nn.init.zeros_(m.bias)

    def forward(self, x, y):
        for layer, norm, gain in zip(self.layers, self.norms, self.gains):
            x = x + gain * torch.tanh(layer(norm(x)))
        return F.cross_entropy(self.head(x), y)


@model(rows(16, 12, classes=5))
class ScalarGains(nn.Module):
    """ReZero, and a temperature that begins at one."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.head = nn.Linear(12, 12), nn.Linear(12, 12), nn.Linear(12, 5)
        self.alpha, self.temperature = nn.Parameter(torch.zeros(())), nn.Parameter(torch.ones(()))

    def forward(self, x, y):
        x = x + self.alpha * torch.tanh(self.a(x))
        x = x + 0.5 * torch.tanh(self.b(x))
        return F.cross_entropy(self.head(x) * self.temperature, y)


@model(rows(16, 12))
class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 3))
        self.decode = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 12))

    def forward(self, x):
        return F.mse_loss(self.decode(self.encode(x)), x)


@model(rows(16, 12), random=True, validates=False)
class Vae(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(12, 8), nn.Linear(4, 12)

    def forward(self, x):
        mean, log_variance = self.encode(x).chunk(2, -1)
        z = mean + torch.exp(0.5 * log_variance) * torch.randn_like(mean)
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(-1).mean()
        return F.mse_loss(self.decode(z), x) + 0.1 * divergence


@model(rows(16, 6), says={"legacy": r"nor where detach\(\) was"})
class VqVae(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.codes, self.b = nn.Linear(6, 4), nn.Embedding(5, 4), nn.Linear(4, 6)

    def forward(self, x):
        z = self.a(x)
        code = self.codes((z[:, None] - self.codes.weight).pow(2).sum(2).argmin(1))
        y = self.b(z + (code - z).detach())
        return F.mse_loss(y, x) + F.mse_loss(code, z.detach()) + 0.25 * F.mse_loss(z, code.detach())


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, x):
        return F.normalize(self.second(torch.relu(self.first(x))), dim=-1)


_STANDS_STILL = r"no export keeps requires_grad=False.*a copy of 'online'"


@model(pairs((16, 6), (16, 6)), says={e: _STANDS_STILL for e in ("dynamo", "default", "legacy")})
class Byol(nn.Module):
    """The target is a copy that stands still under no_grad(), of which no export has a trace."""

    def __init__(self):
        super().__init__()
        self.online = Encoder()
        self.target = copy.deepcopy(self.online).requires_grad_(False)
        self.predict = nn.Linear(4, 4)

    def forward(self, x, y):
        with torch.no_grad():
            aim = self.target(y)
        return (2 - 2 * (F.normalize(self.predict(self.online(x)), dim=-1) * aim).sum(-1)).mean()


@model(pairs((16, 6), (16, 6)), says={"legacy": r"nor where detach\(\) was"})
class SimSiam(nn.Module):
    """Both sides of the loss hold the other one's gradient back."""

    def __init__(self):
        super().__init__()
        self.encode, self.predict = Encoder(), nn.Linear(4, 4)

    def forward(self, x, y):
        a, b = self.encode(x), self.encode(y)
        return (-F.cosine_similarity(self.predict(a), b.detach(), dim=-1).mean()
                - F.cosine_similarity(self.predict(b), a.detach(), dim=-1).mean())


@model(lambda g: {n: torch.randn(12, 6, generator=g) for n in ("anchor", "positive", "negative")})
class Triplet(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = Encoder()

    def forward(self, anchor, positive, negative):
        return F.triplet_margin_loss(self.encode(anchor), self.encode(positive), self.encode(negative))


@model(pairs((12, 6), (12, 6)))
class Contrastive(nn.Module):
    """CLIP's loss over the pairs of a batch, with a learned temperature."""

    def __init__(self):
        super().__init__()
        self.a, self.b = Encoder(), Encoder()
        self.scale = nn.Parameter(torch.tensor(2.6593))

    def forward(self, x, y):
        scores = self.scale.exp() * self.a(x) @ self.b(y).T
        labels = torch.arange(scores.shape[0])
        return (F.cross_entropy(scores, labels) + F.cross_entropy(scores.T, labels)) / 2


_DETACH = r"nor where detach\(\) was: all that the loss depends on trains"


@model(pairs((8, 1, 8, 8), (8, 6), ("image", "noise")), says={"legacy": _DETACH})
class GanDiscriminator(nn.Module):
    """A step of the discriminator: what the generator makes is detached."""

    def __init__(self):
        super().__init__()
        self.make = nn.Sequential(nn.Linear(6, 64), nn.Tanh())
        self.judge = nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(36, 1))

    def forward(self, image, noise):
        real = self.judge(image)
        fake = self.judge(self.make(noise).view(-1, 1, 8, 8).detach())
        return (F.binary_cross_entropy_with_logits(real, torch.ones_like(real))
                + F.binary_cross_entropy_with_logits(fake, torch.zeros_like(fake)))


@model(pairs((8, 6), (8, 5), ("dense", "score")))
class WeightNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.utils.parametrizations.weight_norm(nn.Linear(6, 8))
        self.b = nn.utils.parametrizations.weight_norm(nn.Linear(8, 5), dim=None)

    def forward(self, dense, score):
        return F.mse_loss(self.b(torch.tanh(self.a(dense))), score)


@model(pairs((8, 6), (8, 5), ("dense", "score")))
class SpectralNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 8))
        self.b = nn.Linear(8, 5)

    def forward(self, dense, score):
        return F.mse_loss(self.b(torch.tanh(self.a(dense))), score)


@model(pairs((8, 6), (8, 6), ("dense", "score")))
class Orthogonal(nn.Module):
    """A rotation by Cayley's map of a skew matrix, written out."""

    def __init__(self):
        super().__init__()
        self.skew = nn.Parameter(torch.randn(6, 6) * 0.1)
        self.b = nn.Linear(6, 6)

    def forward(self, dense, score):
        a = self.skew.triu(1)
        a, rotation, power = a - a.T, torch.eye(6, dtype=a.dtype), torch.eye(6, dtype=a.dtype)
        for k in range(1, 5):
            power = power @ a / k
            rotation = rotation + power
        return F.mse_loss(self.b(dense @ rotation), score)


@model(lambda g: {"dense": torch.randn(16, 6, generator=g), "sparse": torch.randint(0, 20, (16, 4), generator=g),
                  "click": torch.randint(0, 2, (16, 1), generator=g).float()})
class Dlrm(nn.Module):
    """Embeddings of categories and a projection, all pairs' products, and a perceptron on top."""

    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(20, 8) for _ in range(4))
        self.bottom = nn.Sequential(nn.Linear(6, 8), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(8 + 10, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, dense, sparse, click):
        x = self.bottom(dense)
        vectors = torch.stack([x] + [table(sparse[:, i]) for i, table in enumerate(self.tables)], 1)
        products = vectors @ vectors.transpose(1, 2)
        rows, columns = torch.tril_indices(5, 5, -1).unbind(0)
        z = torch.cat([x, products[:, rows, columns]], 1)
        return F.binary_cross_entropy_with_logits(self.top(z), click)


@model(lambda g: {"bags": torch.randint(0, 20, (8, 5), generator=g), "y": torch.randint(0, 3, (8,), generator=g)})
class EmbeddingBags(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean, self.sum = nn.EmbeddingBag(20, 6, mode="mean"), nn.EmbeddingBag(20, 6, mode="sum")
        self.head = nn.Linear(12, 3)

    def forward(self, bags, y):
        return F.cross_entropy(self.head(torch.cat([self.mean(bags), self.sum(bags)], 1)), y)


@model(rows(16, 8, classes=4))
class SoftExperts(nn.Module):
    """A mixture of experts of which each sample takes the best two."""

    def __init__(self):
        super().__init__()
        self.gate, self.experts = nn.Linear(8, 4), nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.head = nn.Linear(8, 4)

    def forward(self, x, y):
        score, index = self.gate(x).softmax(-1).topk(2, -1)
        weight = torch.zeros(x.shape[0], 4).scatter(1, index, score / score.sum(-1, keepdim=True))
        made = torch.stack([torch.tanh(expert(x)) for expert in self.experts], 1)
        return F.cross_entropy(self.head((weight[..., None] * made).sum(1)), y)


@model(pairs((16, 2), (16, 1)), lr=0.01, says={"legacy": "'frequencies' trains"})
class Siren(nn.Module):
    """Sines of a coordinate, behind Fourier features, as of a radiance field."""

    def __init__(self):
        super().__init__()
        self.register_buffer("frequencies", 2.0 ** torch.arange(4))
        self.a, self.b, self.c = nn.Linear(16, 24), nn.Linear(24, 24), nn.Linear(24, 1)

    def forward(self, x, y):
        angles = (x[..., None] * self.frequencies).flatten(1)
        h = torch.cat([angles.sin(), angles.cos()], -1)
        return F.mse_loss(self.c(torch.sin(self.b(torch.sin(3 * self.a(h))))), y)


@model(pairs((8, 4), (8, 4)), lr=0.02)
class NeuralOde(nn.Module):
    """Runge and Kutta's steps of one learned field."""

    def __init__(self):
        super().__init__()
        self.field = nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 4))

    def forward(self, x, y):
        h = 0.25
        for _ in range(4):
            k1 = self.field(x)
            k2 = self.field(x + h / 2 * k1)
            k3 = self.field(x + h / 2 * k2)
            x = x + h / 6 * (k1 + 2 * k2 + 2 * k3 + self.field(x + h * k3))
        return F.mse_loss(x, y)


@model(pairs((8, 5, 6), (8, 3)))
class DeepSets(nn.Module):
    """Elements pooled by sum, mean, largest and smallest, and by attention."""

    def __init__(self):
        super().__init__()
        self.each, self.score, self.head = nn.Linear(6, 8), nn.Linear(8, 1), nn.Linear(40, 3)

    def forward(self, x, y):
        h = torch.tanh(self.each(x))
        attended = (self.score(h).softmax(1) * h).sum(1)
        pooled = torch.cat([h.sum(1), h.mean(1), h.amax(1), h.min(1).values, attended], 1)
        return F.mse_loss(self.head(pooled), y)


@model(pairs((8, 6), (8, 4)))
class Bilinear(nn.Module):
    """Bilinear products, low-rank updates of a frozen matrix, and a highway."""

    def __init__(self):
        super().__init__()
        self.both, self.gate, self.head = nn.Bilinear(6, 4, 8), nn.Linear(8, 8), nn.Linear(8, 4)
        self.register_buffer("frozen", torch.randn(8, 8))
        self.down, self.up = nn.Parameter(torch.randn(8, 2)), nn.Parameter(torch.zeros(2, 8))

    def forward(self, x, y):
        h = self.both(x, y)
        gate = torch.sigmoid(self.gate(h))
        h = gate * torch.tanh(h @ (self.frozen + self.down @ self.up)) + (1 - gate) * h
        return F.smooth_l1_loss(self.head(h), y)


@model(rows(64, 12, classes=5), random=True, validates=False)
def dropouts():
    return Classifier(nn.Dropout(0.1), nn.Linear(12, 32), nn.ReLU(), nn.Dropout(0.4), nn.Linear(32, 32),
                      nn.AlphaDropout(0.2), nn.Linear(32, 5))
