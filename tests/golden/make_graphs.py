"""Exports graph attention: PyTorch Geometric's GATConv over a list of edges, and masked softmax over a matrix.

    pip install torch torch_geometric onnx onnxscript numpy
    python tests/golden/make_graphs.py

It shares make_golden.py's recording. GATConv comes with and without self loops and edge features, with one
head and eight, which it concatenates or averages. The graph has equal edges, loops, and a node that no edge enters.
Self loops have no dynamic sizes: torch.export does not know how many edges remain when the loops are taken out.
"""
import torch
from torch import nn
from torch.nn import functional as F
from torch_geometric.nn import GATConv

from make_golden import export_dynamo, export_legacy, finish, record

NODES, EDGES, FEATURES, EDGE_FEATURES, CLASSES = 11, 34, 6, 3, 4


class Convs(nn.Module):
    """Two GATConvs of these options."""

    def __init__(self, first, second, **both):
        super().__init__()
        self.a = GATConv(FEATURES, **first, **both)
        self.b = GATConv(first["out_channels"] * (first["heads"] if first.get("concat", True) else 1), **second, **both)

    def forward(self, x, edge_index, edge_attr=None):
        x = F.elu(self.a(x, edge_index, edge_attr))
        return self.b(x, edge_index, edge_attr)


class DenseLayer(nn.Module):
    """Scores of all pairs, masked by the adjacency: the formulas of the paper's section 2."""

    def __init__(self, inputs, outputs, heads):
        super().__init__()
        self.w = nn.Linear(inputs, heads * outputs, bias=False)
        self.source, self.target = nn.Parameter(torch.empty(heads, outputs)), nn.Parameter(torch.empty(heads, outputs))
        self.heads = heads

    def forward(self, x, adjacency):
        z = self.w(x).view(x.shape[0], self.heads, -1)
        e = (z * self.target).sum(-1).t()[:, :, None] + (z * self.source).sum(-1).t()[:, None, :]
        e = F.leaky_relu(e, 0.2).masked_fill(~adjacency, float("-inf"))
        return (F.softmax(e, dim=-1) @ z.transpose(0, 1)).transpose(0, 1)


class Dense(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = DenseLayer(FEATURES, 3, 5), DenseLayer(15, CLASSES, 2)

    def forward(self, x, adjacency):
        return self.b(F.elu(self.a(x, adjacency).flatten(1)), adjacency).mean(1)


def main():
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(NODES, FEATURES, generator=generator)
    edges = torch.randint(0, NODES - 1, (2, EDGES), generator=generator)
    edges[:, 1], edges[1, 2] = edges[:, 0], edges[0, 2]
    features = torch.randn(EDGES, EDGE_FEATURES, generator=generator)
    adjacency = torch.rand(NODES, NODES, generator=generator) < 0.3
    adjacency |= torch.eye(NODES, dtype=torch.bool)
    labels = torch.randint(0, CLASSES, (NODES,), generator=generator)
    labels[3] = -100  # not for training
    wide, narrow = dict(out_channels=3, heads=8), dict(out_channels=CLASSES, heads=1)
    averaged = dict(out_channels=CLASSES, heads=8, concat=False)
    dynamic = {"x": {0: "nodes"}, "edge_index": {1: "edges"}}
    cases = [
        ("gat_dense", Dense(), (x, adjacency), None),
        ("gat_conv", Convs(wide, {**narrow, "concat": False}, add_self_loops=False), (x, edges), dynamic),
        ("gat_loops", Convs(dict(out_channels=5, heads=1), averaged), (x, edges), None),
        ("gat_edges", Convs({**wide, "concat": False}, {**narrow, "residual": True}, add_self_loops=False,
                            edge_dim=EDGE_FEATURES), (x, edges, features), None),
        ("gat_edge_loops", Convs(wide, averaged, edge_dim=EDGE_FEATURES, fill_value="mean"), (x, edges, features), None),
    ]
    for name, model, args, shapes in cases:
        names = ["x", "adjacency" if name == "gat_dense" else "edge_index", "edge_attr"][:len(args)]
        for p in model.parameters():  # fresh biases are zeros, which would hide mistakes
            p.data = torch.randn(p.shape, generator=generator) * 0.4
        model.train()
        export_dynamo(f"{name}.dynamo", model, args, names, optimize=False,
                      **({"dynamic_shapes": (shapes["x"], shapes["edge_index"])} if shapes else {}))
        export_legacy(f"{name}.legacy", model, args, names, 18, **({"dynamic_axes": shapes} if shapes else {}))
        for exporter in ("dynamo", "legacy"):
            finish(f"{name}.{exporter}")
        record(name, model, args, names, lambda logits: F.cross_entropy(logits, labels), target=labels.numpy())


if __name__ == "__main__":
    main()
