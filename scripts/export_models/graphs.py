"""Graph networks of PyTorch Geometric. A graph is one batch: nothing is kept for a validation."""
import torch
from torch import nn
from torch.nn import functional as F
from torch_geometric import nn as pyg

from export_models import model

NODES, FEATURES = 9, 5


def graph(generator):
    source = torch.randint(0, NODES, (20,), generator=generator)
    # One for each node: one that none points to has only its bias, a 0 before the relu, which the noise moves.
    target = torch.cat([torch.arange(NODES), torch.randint(0, NODES, (20 - NODES,), generator=generator)])
    target = torch.where(source == target, (target + 1) % NODES, target)  # no loops: exporters write them by data
    return {"x": torch.randn(NODES, FEATURES, generator=generator), "edges": torch.stack([source, target]),
            "y": torch.randint(0, 3, (NODES,), generator=generator)}


class Nodes(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x, edges, y):
        for i, layer in enumerate(self.layers):
            x = layer(x, edges) if i == 0 else layer(torch.relu(x), edges)
        return F.cross_entropy(x, y)


def nodes(name, *layers, **options):
    model(graph, name=f"pyg_{name}", validates=False, **options)(lambda: Nodes(*(make() for make in layers)))


nodes("gcn", lambda: pyg.GCNConv(FEATURES, 8, add_self_loops=False), lambda: pyg.GCNConv(8, 3, add_self_loops=False))
nodes("gat", lambda: pyg.GATConv(FEATURES, 4, heads=2, add_self_loops=False),
      lambda: pyg.GATConv(8, 3, add_self_loops=False, concat=False))
nodes("gatv2", lambda: pyg.GATv2Conv(FEATURES, 4, heads=2, add_self_loops=False),
      lambda: pyg.GATv2Conv(8, 3, add_self_loops=False, concat=False))
nodes("sage", lambda: pyg.SAGEConv(FEATURES, 8), lambda: pyg.SAGEConv(8, 3))
nodes("sage_max", lambda: pyg.SAGEConv(FEATURES, 8, aggr="max"), lambda: pyg.SAGEConv(8, 3, aggr="max"))
nodes("gin", lambda: pyg.GINConv(nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Linear(8, 8)), train_eps=True),
      lambda: pyg.GINConv(nn.Linear(8, 3)), lr=0.02, says={"legacy": "'layers.0.eps', 'layers.1.eps' train"})
nodes("graph_conv", lambda: pyg.GraphConv(FEATURES, 8), lambda: pyg.GraphConv(8, 3, aggr="mean"))
nodes("transformer", lambda: pyg.TransformerConv(FEATURES, 4, heads=2), lambda: pyg.TransformerConv(8, 3))
