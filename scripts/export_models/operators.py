"""Operators that few models have: rows that a mask picks, bags of embeddings, sampled grids, spectra, scans."""
import torch
from torch import nn
from torch.nn import functional as F

from export_models import model

CLASSES, WIDTH = 5, 6


def tagged(generator):
    """Labels of words, some of them -100, and a mask."""
    labels = torch.randint(0, CLASSES, (4, 7), generator=generator)
    unlabelled = torch.rand(4, 7, generator=generator) > 0.6
    return {"x": torch.randn(4, 7, WIDTH, generator=generator), "y": labels.masked_fill(unlabelled, -100)}


def masked(generator):
    return {"x": torch.randn(4, 7, WIDTH, generator=generator), "y": torch.randn(4, 7, CLASSES, generator=generator),
            "k": torch.rand(4, 7, generator=generator) > 0.4}


def elements(generator):
    return masked(generator) | {"k": torch.rand(4, 7, CLASSES, generator=generator) > 0.4}


class Rows(nn.Module):
    """`of` takes the module, what the body makes of x, and the other inputs."""

    def __init__(self, of):
        super().__init__()
        self.body, self.of = nn.Linear(WIDTH, CLASSES), of
        self.first, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x, *rest):
        return self.of(self, x, *rest)


def picked(name, sample, of, **options):
    model(sample, name=f"picked_{name}", **options)(lambda: Rows(of))


def of_labels(m, x, y):
    return F.cross_entropy(m.body(x)[y != -100], y[y != -100])


def by_flat_positions(m, x, y):
    at = (y.view(-1) != -100).nonzero().squeeze(-1)
    return F.cross_entropy(m.body(x).view(-1, CLASSES)[at], y.view(-1)[at], label_smoothing=0.1)


def sum_over_count(m, x, y):
    at = torch.where(y.view(-1) != -100)[0]
    rows = m.body(x).view(-1, CLASSES).index_select(0, at)
    return F.cross_entropy(rows, y.view(-1).index_select(0, at), reduction="sum") / at.numel()


def head_of_few(m, x, y):
    hidden = m.norm(F.gelu(m.first(x[y != -100])))
    return F.cross_entropy(m.body(hidden), y[y != -100])


def by_hand(m, x, y):
    kept = y != -100
    return -m.body(x)[kept].log_softmax(-1).gather(1, y[kept].unsqueeze(1)).mean()


def distances(m, x, y, k):
    return (m.body(x)[k] - y[k]).norm(dim=-1).mean()


def extremes(m, x, y, k):
    z = m.body(x)[k]
    return z.amax() - z.amin() + z.amax(1).mean() + z.logsumexp(0).mean() + z.square().mean().sqrt()


def of_elements(m, x, y, k):
    z = m.body(x)
    return ((z[k] - y[k]) ** 2).mean() + z[k].abs().sum() / k.sum()


def flattened(m, x, y, k):
    return F.smooth_l1_loss(m.body(x)[k].reshape(-1), y[k].reshape(-1))


def logarithms(m, x, y, k):
    """What the mask leaves out has no logarithm, or, near 0, a gradient that rounding decides."""
    z = m.body(x)
    return -z[z > 0.1].log().mean() + z.square().mean()


def two_masks(m, x, y, k):
    z = m.body(x)
    return F.relu(1 - z[k]).mean() + F.relu(1 + z[~k]).mean()


picked("labels", tagged, of_labels)
picked("flat", tagged, by_flat_positions)
picked("sum", tagged, sum_over_count)
picked("head", tagged, head_of_few)
picked("by_hand", tagged, by_hand)
picked("mse", masked, lambda m, x, y, k: F.mse_loss(m.body(x)[k], y[k]))
picked("distances", masked, distances)
picked("extremes", masked, extremes)
picked("elements", elements, of_elements)
picked("flattened", masked, flattened)
picked("select", masked, lambda m, x, y, k: (m.body(x) - y).square().masked_select(k.unsqueeze(-1)).mean())
picked("logarithms", masked, logarithms)
picked("two_masks", masked, two_masks)
picked("one", masked, lambda m, x, y, k: m.body(x)[k][0].square().sum(),
       says=dict.fromkeys(("dynamo", "default", "legacy"), "Gather is not of each row alone"))
picked("soft", masked, lambda m, x, y, k: F.cross_entropy(m.body(x)[k], y.softmax(-1)[k]))


@model(lambda g: {"x": torch.randn(9, WIDTH, generator=g), "y": torch.randn(9, WIDTH, generator=g)})
class Sought(nn.Module):
    """Experts that look for their tokens, as transformers' eager ones do."""

    def __init__(self):
        super().__init__()
        self.gate, self.experts = nn.Linear(WIDTH, 3), nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x, y):
        weights, chosen = self.gate(x).softmax(-1).topk(2, dim=-1)
        weights, out = weights / weights.sum(-1, keepdim=True), torch.zeros_like(x)
        mask = F.one_hot(chosen, 3).permute(2, 1, 0)
        for e, expert in enumerate(self.experts):
            choice, token = torch.where(mask[e])
            out.index_add_(0, token, expert(x[token]).tanh() * weights[token, choice, None])
        return F.mse_loss(out, y)


@model(lambda g: masked(g) | {"y": torch.randn(4, 7, WIDTH, generator=g)})
class Assigned(nn.Module):
    """Rows that are computed and put back."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, y, k):
        z = x.clone()
        z[k] = self.body(x[k]).tanh()
        return F.mse_loss(z, y)


class PutBack(nn.Module):
    """`of` takes the module, x, a mask of its rows and words; it returns what is compared with y."""

    def __init__(self, of):
        super().__init__()
        self.body, self.norm, self.of = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), of
        self.words, self.token = nn.Embedding(9, WIDTH), nn.Parameter(torch.randn(WIDTH))

    def forward(self, x, y, k, t):
        return F.mse_loss(self.of(self, x, k, t), y)


def put_back(name, of, **options):
    def sample(generator):
        words = torch.randint(4, 9, (4, 7), generator=generator)
        words[:, 2] = 3  # the image's, one in each sample, for samples come in any order
        return masked(generator) | {"y": torch.randn(4, 7, WIDTH, generator=generator), "t": words}
    model(sample, name=f"put_back_{name}", **options)(lambda: PutBack(of))


def of_unpadded(m, x, k, t):
    """Only rows that are no padding are computed, as by flash attention's users."""
    rows = x[k]
    out = torch.zeros_like(x)
    out[k] = m.norm(rows + F.relu(m.body(rows)))
    return out


def by_sign(m, x, k, t):
    """A sigmoid that never overflows: elements by their sign."""
    z = m.body(x)
    out, above = torch.empty_like(z), z >= 0
    out[above] = 1 / (1 + (-z[above]).exp())
    below = z[~above].exp()
    out[~above] = below / (1 + below)
    return out


def whole_samples(m, x, k, t):
    z, chosen = m.body(x), k.all(1) | k[:, 0]
    out = z.clone()
    out[chosen] = m.norm(z[chosen])
    return out


def token(m, x, k, t):
    z = m.body(x).clone()
    z[k] = m.token
    return m.norm(z)


def features(m, x, k, t):
    """An image's features in the places of the image's words, as vision language models have them."""
    words = m.words(t)
    return words.masked_scatter((t == 3).unsqueeze(-1).expand_as(words), m.body(x[:, 0]))


def added(m, x, k, t):
    z = x.clone()
    z[k] += m.body(x[k])
    return z


def half(m, x, k, t):
    z = m.body(x).clone()
    z[:, 2:][k[:, 2:]] = 0.5 * x[:, 2:][k[:, 2:]]
    return z


put_back("unpadded", of_unpadded)
put_back("by_sign", by_sign, says={"default": "nothing is left"})
put_back("samples", whole_samples)
# The older exporter writes one vector as the source of all rows, which no runtime takes.
put_back("token", token, says={"legacy": "first value that is not finite is '%/Slice"})
put_back("features", features)
put_back("added", added)
put_back("accumulated", lambda m, x, k, t: x.index_put((k,), m.body(x[k]), accumulate=True), says={"legacy": "also where PyTorch adds"})
put_back("half", half, says={"legacy": "Reshape is not of each row alone"})


class Chosen(nn.Module):
    """Two ways by the data. The one that is not taken has neither a value nor a gradient."""

    def __init__(self, script):
        super().__init__()
        self.body, self.other, self.script = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), script

    def forward(self, x, y):
        h, g = self.body(x), self.other(x)
        if self.script:
            return F.mse_loss(larger(h, g), y)
        z = torch.cond(x.sum() < 1000, lambda h, g: h.tanh() + g.abs(), lambda h, g: (h - h).sqrt() + (0 * g).log(), (h, g))
        return F.mse_loss(z, y)


@torch.jit.script
def larger(h, g):
    if bool(h.mean() > g.mean()):
        return h * 2
    return -g.abs()


for script in (False, True):
    model(lambda g: {"x": torch.randn(6, WIDTH, generator=g), "y": torch.randn(6, WIDTH, generator=g)},
          name=f"chosen_{'script' if script else 'cond'}")(lambda s=script: Chosen(s))


def bags(weighted=False, last=False):
    """Eight words in four bags, of which one is empty."""
    def sample(generator):
        out = {"i": torch.randint(0, 10, (8,), generator=generator)}
        out["o"] = torch.tensor([0, 2, 2, 5, 8] if last else [0, 2, 2, 5])
        if weighted:
            out["w"] = torch.rand(8, generator=generator)
        return out | {"y": torch.randn(4, 3, generator=generator)}
    return sample


class Bag(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(10, WIDTH, **options), nn.Linear(WIDTH, 3)

    def forward(self, i, o, *rest):
        return F.mse_loss(self.head(self.bag(i, o, *rest[:-1])), rest[-1])


model(bags(), name="bag_sum", validates=False)(lambda: Bag(mode="sum"))
model(bags(), name="bag_mean", validates=False)(lambda: Bag(mode="mean"))
model(bags(), name="bag_max", validates=False)(lambda: Bag(mode="max"))
model(bags(weighted=True), name="bag_weighted", validates=False)(lambda: Bag(mode="sum"))
model(bags(last=True), name="bag_last", validates=False)(lambda: Bag(mode="mean", include_last_offset=True))
model(bags(), name="bag_padded", validates=False)(lambda: Bag(mode="mean", padding_idx=3))


@model(lambda g: {"i": torch.randint(0, 10, (6, 3), generator=g), "y": torch.randn(6, 3, generator=g)})
class BagOfAll(nn.Module):
    """Bags of one size, without offsets."""

    def __init__(self):
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(10, WIDTH, mode="mean"), nn.Linear(WIDTH, 3)

    def forward(self, i, y):
        return F.mse_loss(self.head(self.bag(i)), y)


@model(lambda g: {"dense": torch.randn(4, 5, generator=g), "offsets": torch.tensor([[0, 2, 2, 5], [0, 1, 3, 4]]),
                  "first": torch.randint(0, 10, (8,), generator=g), "second": torch.randint(0, 7, (6,), generator=g),
                  "y": torch.randint(0, 2, (4, 1), generator=g).float()}, name="dlrm_bags", validates=False)
class DlrmBags(nn.Module):
    """DLRM's form (Naumov et al., 2019): offsets of all tables in one tensor, dot products of all pairs."""

    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(n, WIDTH, mode="sum", sparse=True) for n in (10, 7))
        self.bottom = nn.Sequential(nn.Linear(5, WIDTH), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(WIDTH + 3, 4), nn.ReLU(), nn.Linear(4, 1))

    def forward(self, dense, offsets, first, second, y):
        x = self.bottom(dense)
        bags = [table(i, offsets[k]) for k, (table, i) in enumerate(zip(self.tables, (first, second)))]
        both = torch.cat([x, *bags], 1).view(x.shape[0], -1, WIDTH)
        pairs = torch.bmm(both, both.transpose(1, 2))
        left = torch.tensor([i for i in range(3) for _ in range(i)])
        right = torch.tensor([j for i in range(3) for j in range(i)])
        scores = self.top(torch.cat([x, pairs[:, left, right]], 1))
        return F.binary_cross_entropy_with_logits(scores, y)


class Sampled(nn.Module):
    """A spatial transformer, which learns where it looks."""

    def __init__(self, mode, padding, aligned, dims=2):
        super().__init__()
        self.how, self.dims = dict(mode=mode, padding_mode=padding, align_corners=aligned), dims
        conv = nn.Conv2d if dims == 2 else nn.Conv3d
        self.conv, self.where = conv(3, 3, 1), nn.Parameter(torch.eye(dims, dims + 1) * 1.3 + 0.1 * torch.randn(dims, dims + 1))

    def forward(self, x, y):
        size = (x.shape[0], 3) + (4,) * self.dims
        grid = F.affine_grid(self.where.expand(x.shape[0], -1, -1), size, align_corners=self.how["align_corners"])
        return F.mse_loss(F.grid_sample(self.conv(x), grid, **self.how), y)


def pictures(g):
    return {"x": torch.randn(2, 3, 5, 6, generator=g), "y": torch.randn(2, 3, 4, 4, generator=g)}


for mode in ("bilinear", "nearest", "bicubic"):
    for padding in ("zeros", "border", "reflection"):
        for aligned in (False, True):
            # The default export computes the grid ahead, though it is learned.
            model(pictures, name=f"grid_{mode}_{padding}{'_aligned' if aligned else ''}")(
                lambda a=(mode, padding, aligned): Sampled(*a))
model(lambda g: {"x": torch.randn(2, 3, 4, 5, 6, generator=g), "y": torch.randn(2, 3, 4, 4, 4, generator=g)},
      name="grid_volume")(lambda: Sampled("bilinear", "border", False, 3))


@model(lambda g: {"x": torch.randn(2, 6, 7, 8, generator=g)})
class Folded(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(6, 8, 1)

    def forward(self, x):
        pieces = F.unfold(self.conv(x), (3, 2), padding=(1, 0), stride=2, dilation=(1, 2))
        return F.fold(pieces.tanh(), (7, 8), (3, 2), padding=(1, 0), stride=2, dilation=(1, 2)).square().mean()


class Resized(nn.Module):
    def __init__(self, mode):
        super().__init__()
        self.conv, self.mode = nn.Conv2d(3, 3, 1), mode

    def forward(self, x):
        z = self.conv(x)
        small = F.interpolate(z, size=(7, 6), mode=self.mode, antialias=True)
        mixed = F.interpolate(z, size=(5, 20), mode=self.mode, antialias=True)
        return small.square().mean() + mixed.square().mean()


for mode in ("bilinear", "bicubic"):
    model(lambda g: {"x": torch.randn(2, 3, 16, 15, generator=g)}, name=f"antialias_{mode}")(lambda m=mode: Resized(m))


@model(lambda g: {"x": torch.randn(8, WIDTH, generator=g)}, random=True, validates=False)
class Drawn(nn.Module):
    """Classes drawn by a softmax, as REINFORCE has them."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        scores = self.body(x)
        return -scores.log_softmax(-1).gather(1, torch.multinomial(scores.softmax(-1), 3, replacement=True)).mean()


class Waves(nn.Module):
    def __init__(self, of, width):
        super().__init__()
        self.body, self.of = nn.Linear(width, width), of

    def forward(self, x):
        return self.of(self.body(x))


HAMMING = torch.hamming_window(12)


def waves(name, shape, of, **options):
    model(lambda g: {"x": torch.randn(shape, generator=g)}, name=f"waves_{name}", **options)(
        lambda: Waves(of, shape[-1]))


waves("stft", (2, 64), lambda z: torch.view_as_real(
    torch.stft(z, 16, 6, window=torch.hann_window(16), return_complex=True)).square().sum(-1).add(1).log().mean())
waves("stft_plain", (2, 64), lambda z: torch.view_as_real(
    torch.stft(z, 15, 5, win_length=12, window=torch.hamming_window(12), center=False, return_complex=True)).abs().mean())
waves("windowed", (2, 4, 12), lambda z: (
    (z * F.pad(torch.hamming_window(9), (1, 2))).tanh().square().mean() + (z.mT * torch.hamming_window(12)[:, None]).abs().mean()))
waves("window_of_mean_1", (2, 12), lambda z: (z * (torch.hamming_window(12) / torch.hamming_window(12).mean())).tanh().square().mean(),
      says={"default": "'div' was computed from .*, a Hamming window"})
waves("window_kept", (2, 12), lambda z: (z * HAMMING / HAMMING.mean()).tanh().square().mean())
waves("fft2", (2, 8, 6), lambda z: torch.fft.fft2(z).real.square().mean())
waves("rfft", (2, 8, 6), lambda z: torch.fft.rfft(z, dim=1).abs().mean())
waves("irfft", (2, 8, 6), lambda z: (
    torch.fft.irfft(torch.fft.rfft(z, dim=1) * torch.fft.rfft(z, dim=1), n=8, dim=1) - z).square().mean())
waves("padded", (2, 8, 6), lambda z: torch.view_as_real(torch.fft.fft(z, n=11, dim=1)).tanh().square().mean())
waves("eye", (8, 5), lambda z: (z.T @ z / 8 - torch.eye(5)).square().mean())
waves("diagonal", (3, 5, 5), lambda z: torch.einsum("bii,bij->j", z, z).tanh().mean())
waves("positions", (3, 5), lambda z: (z * torch.arange(1.0, 6)).square().mean())
waves("stacked", (3, 4, 6), lambda z: torch.hstack([z, z[:, :2]]).tanh().mean() + torch.dstack([z, 2 * z]).square().mean())
waves("resized_by_scale", (2, 3, 9, 8), lambda z: (
    F.interpolate(z, scale_factor=0.6, mode="bilinear", antialias=True).square().mean()
    + F.interpolate(z, scale_factor=(0.7, 0.4), mode="bicubic", antialias=True).square().mean()))


@model(lambda g: {"x": torch.randn(4, 5, WIDTH, generator=g)})
class Scanned(nn.Module):
    """A recurrence by PyTorch's scan."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        from torch._higher_order_ops.scan import scan

        def step(state, now):
            state = torch.tanh(state + self.body(now))
            return state, 2 * state
        last, all_steps = scan(step, torch.zeros(x.shape[0], CLASSES), x.transpose(0, 1), dim=0)
        return all_steps.square().mean() + last.mean()


@model(lambda g: {"x": torch.randn(3, 9, WIDTH, generator=g), "t": torch.randint(1, CLASSES, (3, 4), generator=g),
                  "steps": torch.tensor([9, 8, 7]), "lengths": torch.tensor([4, 3, 2])})
class CtcByHand(nn.Module):
    """Connectionist temporal classification (Graves et al., 2006): no exporter has F.ctc_loss."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(WIDTH, CLASSES)

    def forward(self, x, t, steps, lengths):
        return ctc_loss(self.body(x).log_softmax(-1), t, steps, lengths)


def ctc_loss(log_p, targets, steps, lengths, blank=0):
    """F.ctc_loss(log_p.transpose(0, 1), targets, steps, lengths) of log_p [samples, steps, classes] and targets
    [samples, most], of operators that can be exported."""
    samples, most, never = log_p.shape[0], targets.shape[1], -1e30
    labels = F.pad(torch.stack([torch.full_like(targets, blank), targets], 2).flatten(1), (0, 1), value=blank)
    skips = F.pad((labels[:, 2:] != labels[:, :-2]) & (labels[:, 2:] != blank), (2, 0))
    at = torch.arange(2 * most + 1)
    scores = log_p.gather(2, labels.unsqueeze(1).expand(-1, log_p.shape[1], -1))
    alpha = torch.where(at < 2, scores[:, 0], never)
    for step in range(1, log_p.shape[1]):
        one, two = F.pad(alpha, (1, -1), value=never), F.pad(alpha, (2, -2), value=never)
        ways = torch.stack([alpha, one, torch.where(skips, two, never)])
        alpha = torch.where((step < steps).unsqueeze(1), ways.logsumexp(0) + scores[:, step], alpha)
    ends = torch.stack([2 * lengths, 2 * lengths - 1], 1)
    return (-alpha.gather(1, ends).logsumexp(1) / lengths).mean()


class Strided(nn.Module):
    """Windows by as_strided(), of memory that is contiguous or that of a view."""

    def __init__(self, of):
        super().__init__()
        self.body, self.of = nn.Linear(8, 8), of

    def forward(self, x):
        t = self.of(self.body(x))
        return t.as_strided((4, 3, 3, 6), (t.stride(0), 2 * t.stride(1), t.stride(1), t.stride(2))).tanh().square().mean()


def lines(generator):
    return {"x": torch.randn(4, 8, 8, generator=generator)}


_VIEW = r"as_strided\(\) reads the memory below"
_PLACES = r"as as_strided\(\) and take\(\) do"
for name, of, says in (
        ("whole", lambda x: x, {}),
        ("copied", lambda x: x.transpose(1, 2).contiguous(), {"default": _VIEW}),  # its optimiser takes contiguous() out
        ("turned", lambda x: x.transpose(1, 2), {"dynamo": _VIEW, "default": _VIEW, "legacy": _PLACES}),
        ("scaled", lambda x: 2 * x.transpose(1, 2), {"dynamo": _VIEW, "default": _VIEW, "legacy": _PLACES})):
    model(lines, name=f"strided_{name}", lr=0.5, says=says, validates=False)(lambda of=of: Strided(of))


# ---- windows, and gradients that are held back

class Windows(nn.Module):
    """Sliding windows of features, whose dim is counted from the end."""

    def __init__(self, dim, step):
        super().__init__()
        self.body, self.out, self.dim, self.step = nn.Linear(8, 8), nn.Linear(4, 2), dim, step

    def forward(self, x):
        windows = self.body(x).unfold(self.dim, 4, self.step)
        return self.out(windows).tanh().square().cumsum(1).mean()


for name, dim, step in (("last", -1, 2), ("square", -1, 1), ("second", -2, 4)):
    model(lines, name=f"windows_{name}", lr=0.5)(lambda dim=dim, step=step: Windows(dim, step))

_REGION = r"comes? out of a region of torch.no_grad\(\)"


class HeldBack(nn.Module):
    """Attention of which only the values learn: the scores are computed without gradients, or from a detached copy."""

    def __init__(self, scores):
        super().__init__()
        self.keys, self.values, self.scores = nn.Linear(8, 8), nn.Linear(8, 8), scores

    def forward(self, x):
        return (self.scores(self, x).softmax(-1) @ self.values(x)).tanh().square().mean() + self.keys(x).square().mean()


def without_gradients(module, x):
    with torch.no_grad():
        keys = module.keys(x)
        return 3 * keys @ keys.transpose(1, 2)


def of_copies(module, x):
    keys = module.keys(x).detach().clone()
    return 3 * keys @ keys.transpose(1, 2)


_OLDER = r"nor where detach\(\) was"
model(lines, name="held_region", lr=0.5, says={"dynamo": _REGION, "default": _REGION, "legacy": _OLDER})(lambda: HeldBack(without_gradients))
model(lines, name="held_copy", lr=0.5, says={"default": r"called with a clone\(\) that the optimiser", "legacy": _OLDER})(lambda: HeldBack(of_copies))
