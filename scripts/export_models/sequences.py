"""Recurrent networks, convolutions in time, and transformers of torch.nn."""
import torch
from torch import nn
from torch.nn import functional as F

from export_models import model

VOCAB, TIME, WIDTH = 20, 6, 12


def tokens(generator, count=6):
    idx = torch.randint(0, VOCAB, (count, TIME + 1), generator=generator)
    return {"idx": idx[:, :-1].contiguous(), "labels": idx[:, 1:].contiguous()}


def series(generator):
    return {"x": torch.randn(6, TIME, 5, generator=generator), "y": torch.randint(0, 4, (6,), generator=generator)}


class Tagger(nn.Module):
    """Tokens through a recurrent network, each with a label."""

    def __init__(self, network, width):
        super().__init__()
        self.tokens, self.network, self.head = nn.Embedding(VOCAB, WIDTH, padding_idx=0), network, nn.Linear(width, VOCAB)

    def forward(self, idx, labels):
        return F.cross_entropy(self.head(self.network(self.tokens(idx))[0]).flatten(0, 1), labels.flatten())


@model(tokens)
def rnn_tanh():
    return Tagger(nn.RNN(WIDTH, 10, batch_first=True), 10)


@model(tokens)
def rnn_relu():
    return Tagger(nn.RNN(WIDTH, 10, nonlinearity="relu", batch_first=True, bias=False), 10)


@model(tokens)
def lstm():
    return Tagger(nn.LSTM(WIDTH, 8, num_layers=2, batch_first=True), 8)


@model(tokens)
def lstm_bidirectional():
    return Tagger(nn.LSTM(WIDTH, 8, bidirectional=True, batch_first=True), 16)


@model(tokens)
def gru():
    return Tagger(nn.GRU(WIDTH, 8, num_layers=2, batch_first=True), 8)


@model(tokens)
def gru_bidirectional():
    return Tagger(nn.GRU(WIDTH, 6, bidirectional=True, batch_first=True), 12)


class Steps(nn.Module):
    """An nn.LSTM with proj_size, which no exporter writes, step by step: as in docs/onnx.md."""

    def __init__(self, lstm):
        super().__init__()
        self.lstm = lstm

    def direction(self, x, name, steps):
        w, u, p = (getattr(self.lstm, f"weight_{kind}_{name}") for kind in ("ih", "hh", "hr"))
        bias = sum(getattr(self.lstm, f"bias_{kind}_{name}") for kind in ("ih", "hh")) if self.lstm.bias else None
        h, c, out = x.new_zeros(x.shape[0], p.shape[0]), x.new_zeros(x.shape[0], p.shape[1]), {}
        for t in steps:
            i, f, g, o = (F.linear(x[:, t], w, bias) + F.linear(h, u)).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            out[t] = h = F.linear(o.sigmoid() * c.tanh(), p)
        return torch.stack([out[t] for t in sorted(out)], 1)

    def forward(self, x):
        steps = range(x.shape[1])
        for layer in range(self.lstm.num_layers):
            both = [self.direction(x, f"l{layer}", steps)]
            if self.lstm.bidirectional:
                both.append(self.direction(x, f"l{layer}_reverse", reversed(steps)))
            x = torch.cat(both, -1)
        return x, None


def projected(**options):
    return nn.LSTM(WIDTH, 8, num_layers=2, proj_size=5, batch_first=True, bidirectional=True, **options)


model(tokens, name="lstm_projected")(lambda: Tagger(Steps(projected()), 10))
model(tokens, name="lstm_projected_without_bias")(lambda: Tagger(Steps(projected(bias=False)), 10))
model(tokens, name="lstm_projected_as_it_is", says={e: "projects the states of an LSTM" for e in ("dynamo", "default")})(
    lambda: Tagger(projected(), 10))


class Packed(nn.Module):
    """Samples of several lengths, in both directions: states at each one's end, and a mean over what it has."""

    def __init__(self, network):
        super().__init__()
        self.network, self.head = network, nn.Linear(12, 4)

    def forward(self, x, lengths, y):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, state = self.network(packed)
        out, _ = nn.utils.rnn.pad_packed_sequence(out, batch_first=True, total_length=TIME)
        last = state[0] if isinstance(state, tuple) else state
        return F.cross_entropy(self.head(out.sum(1) / lengths[:, None]) + self.head(last[-2:].transpose(0, 1).flatten(1)), y)


def packed(generator):
    return {"x": torch.randn(6, TIME, 5, generator=generator), "lengths": torch.tensor([4, 6, 1, 2, 6, 3]),
            "y": torch.randint(0, 4, (6,), generator=generator)}


for kind, own in {"LSTM": dict(), "GRU": dict(num_layers=2), "RNN": dict(nonlinearity="relu")}.items():
    model(packed, name=f"packed_{kind.lower()}")(lambda kind=kind, own=own: Packed(getattr(nn, kind)(5, 6, batch_first=True, bidirectional=True, **own)))


@model(series)
class LstmCells(nn.Module):
    """A cell that is stepped by hand, and its last state."""

    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.LSTMCell(5, 8), nn.Linear(8, 4)

    def forward(self, x, y):
        h = c = x.new_zeros(x.shape[0], 8)
        for t in range(TIME):
            h, c = self.cell(x[:, t], (h, c))
        return F.cross_entropy(self.head(h), y)


@model(series)
class GruCells(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.GRUCell(5, 8), nn.Linear(8, 4)

    def forward(self, x, y):
        h = x.new_zeros(x.shape[0], 8)
        for step in x.unbind(1):
            h = self.cell(step, h)
        return F.cross_entropy(self.head(h), y)


@model(series)
class WaveNet(nn.Module):
    """Causal, dilated convolutions with gates, and their skips."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv1d(5, 8, 1)
        self.gates = nn.ModuleList(nn.Conv1d(8, 16, 2, dilation=2 ** i) for i in range(2))
        self.skips = nn.ModuleList(nn.Conv1d(8, 8, 1) for _ in range(2))
        self.head = nn.Linear(8, 4)

    def forward(self, x, y):
        x = self.first(x.transpose(1, 2))
        total = 0
        for i, (gate, skip) in enumerate(zip(self.gates, self.skips)):
            h = F.glu(gate(F.pad(x, (2 ** i, 0))), dim=1)
            total, x = total + skip(h), x + h
        return F.cross_entropy(self.head(F.relu(total)[..., -1]), y)


@model(series)
class Tcn(nn.Module):
    """weight_norm around convolutions in time."""

    def __init__(self):
        super().__init__()
        norm = nn.utils.parametrizations.weight_norm
        self.a, self.b = norm(nn.Conv1d(5, 8, 3, padding=1)), norm(nn.Conv1d(8, 8, 3, padding=1))
        self.head = nn.Linear(8, 4)

    def forward(self, x, y):
        x = F.relu(self.b(F.relu(self.a(x.transpose(1, 2)))))
        return F.cross_entropy(self.head(x.amax(2)), y)


@model(tokens)
class NnTransformerEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 3, 24, dropout=0.0, batch_first=True)
        self.tokens, self.layers = nn.Embedding(VOCAB, WIDTH), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, idx, labels):
        x = self.layers(self.tokens(idx), src_key_padding_mask=idx == 0)
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten(), ignore_index=0)


@model(tokens)
class NnTransformer(nn.Module):
    """Encoder and decoder, with a causal mask."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, WIDTH)
        self.network = nn.Transformer(WIDTH, 3, 1, 1, 24, dropout=0.0, batch_first=True)
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, idx, labels):
        mask = nn.Transformer.generate_square_subsequent_mask(TIME)
        x = self.network(self.tokens(idx), self.tokens(idx.flip(1)), tgt_mask=mask)
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


@model(tokens)
class Multihead(nn.Module):
    """nn.MultiheadAttention with keys and values of another width, and with biases of their own."""

    def __init__(self):
        super().__init__()
        self.tokens, self.other = nn.Embedding(VOCAB, WIDTH), nn.Embedding(VOCAB, 8)
        self.cross = nn.MultiheadAttention(WIDTH, 3, kdim=8, vdim=8, batch_first=True)
        self.own = nn.MultiheadAttention(WIDTH, 3, add_bias_kv=True, batch_first=True)
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, idx, labels):
        x, other = self.tokens(idx), self.other(idx)
        x = x + self.cross(x, other, other, need_weights=False)[0]
        x = x + self.own(x, x, x)[0]
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


@model(tokens)
class StateSpace(nn.Module):
    """A selective state space, scanned in time, as of Mamba."""

    def __init__(self):
        super().__init__()
        self.tokens, self.step, self.into, self.out = (nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, WIDTH),
                                                       nn.Linear(WIDTH, 4), nn.Linear(WIDTH, 4))
        self.log_a = nn.Parameter(torch.log(torch.arange(1, 5).float()).repeat(WIDTH, 1))
        self.skip, self.head = nn.Parameter(torch.ones(WIDTH)), nn.Linear(WIDTH, VOCAB)

    def forward(self, idx, labels):
        x = self.tokens(idx)
        step, into, out = F.softplus(self.step(x)), self.into(x), self.out(x)
        state, made = x.new_zeros(x.shape[0], WIDTH, 4), []
        for t in range(TIME):
            decay = torch.exp(-step[:, t, :, None] * self.log_a.exp())
            state = decay * state + (step[:, t] * x[:, t])[..., None] * into[:, t, None]
            made.append((state * out[:, t, None]).sum(-1) + self.skip * x[:, t])
        return F.cross_entropy(self.head(torch.stack(made, 1)).flatten(0, 1), labels.flatten())


@model(tokens)
class LinearAttention(nn.Module):
    """Causal attention by running sums, and an einsum of three operands."""

    def __init__(self):
        super().__init__()
        self.tokens, self.qkv, self.head = nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, VOCAB)
        self.mix = nn.Parameter(torch.randn(TIME, WIDTH, WIDTH) * 0.1)

    def forward(self, idx, labels):
        x = self.tokens(idx)
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        memory = torch.cumsum(k[..., None] * v[:, :, None], 1)
        y = torch.einsum("btd,btde->bte", q, memory) / (q * torch.cumsum(k, 1)).sum(-1, keepdim=True)
        y = y + torch.einsum("btd,tde->bte", x, self.mix)
        return F.cross_entropy(self.head(y).flatten(0, 1), labels.flatten())
