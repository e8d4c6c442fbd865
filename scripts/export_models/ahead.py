"""Weights that a default export's optimiser computes ahead: moved, computed, in parts. The other exporters keep the steps."""
import torch
from torch import nn
from torch.nn import functional as F

from export_models import model
from export_models.basics import rows

LENGTH, WIDTH = 40, 8


class Table(nn.Module):
    """`of` takes what a layer makes of x [samples, LENGTH, WIDTH], and a table."""

    def __init__(self, shape, of):
        super().__init__()
        self.layer, self.table, self.of = nn.Linear(WIDTH, WIDTH), nn.Parameter(0.3 * torch.randn(*shape)), of

    def forward(self, x):
        return self.of(self.layer(x), self.table).tanh().square().mean()


def ahead(name, shape, of):
    model(rows(4, LENGTH, WIDTH), name=f"ahead_{name}", lr=0.5)(lambda: Table(shape, of))


SQUARE, POSITIONS = (WIDTH, WIDTH), (LENGTH, WIDTH)

# Moved: each trains in the table's place.
ahead("transposed", SQUARE, lambda x, w: (x @ w.T).tanh() @ w.T)
ahead("viewed_twice", POSITIONS, lambda x, w: (x + w[None]) * w[torch.arange(LENGTH)])
ahead("halves", (2 * LENGTH, WIDTH), lambda x, w: (x + w[:LENGTH]).tanh() + w[LENGTH:])
ahead("shifted_positions", (LENGTH + 2, WIDTH), lambda x, w: x + F.embedding(torch.arange(LENGTH) + 2, w))
# In parts that overlap, or with a row twice.
ahead("two_lengths", POSITIONS, lambda x, w: (x + w).tanh()[:, :20] + w[:20])
ahead("two_slices", (LENGTH + 8, WIDTH), lambda x, w: (x + w[:LENGTH]).tanh() + w[8:])
ahead("two_columns", (LENGTH, WIDTH + 2), lambda x, w: (x + w[:, :WIDTH]).tanh() + w[:, 2:])
ahead("turned_and_not", SQUARE, lambda x, w: (x @ w.T).tanh()[:, None] @ w[None, None])
ahead("row_twice", POSITIONS, lambda x, w: x + w[torch.tensor([0, *range(LENGTH - 1)])])
# Computed.
for function in (F.relu, F.silu, F.elu, torch.erf, torch.abs):
    ahead(function.__name__, SQUARE, lambda x, w, function=function: x @ function(w))
    ahead(f"{function.__name__}_turned", SQUARE, lambda x, w, function=function: x @ function(w).T[None])
ahead("scaled_turned", SQUARE, lambda x, w: x @ (2 * w).T[None])
ahead("summed_turned", SQUARE, lambda x, w: x @ w.cumsum(0).T[None])
ahead("padded", (LENGTH - 1, WIDTH), lambda x, w: x + F.pad(w, (0, 0, 1, 0)))
ahead("squared_sum", (WIDTH,), lambda x, w: torch.dot(w, w) * x)
