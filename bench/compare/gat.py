"""GAT as `shardrun model gat` writes it: over an adjacency matrix, or over edges by PyTorch Geometric's GATConv."""
import torch
from torch import nn
from torch.nn import functional as F

from peer import load


class Dense(nn.Module):
    def __init__(self, inputs, heads, outputs):
        super().__init__()
        self.heads = heads
        self.weight = nn.Parameter(torch.empty(inputs, heads * outputs))
        self.att_source = nn.Parameter(torch.empty(1, heads, outputs))
        self.att_target = nn.Parameter(torch.empty(1, heads, outputs))
        self.bias = nn.Parameter(torch.empty(heads * outputs))

    def forward(self, x, adjacency):
        z = (x @ self.weight).view(x.shape[0], self.heads, -1).transpose(0, 1)  # [heads, nodes, outputs]
        source = z @ self.att_source[0].unsqueeze(2)  # [heads, nodes, 1]
        target = z @ self.att_target[0].unsqueeze(2)
        scores = F.leaky_relu(target + source.transpose(1, 2), 0.2)
        alpha = F.softmax(scores.masked_fill(~adjacency, -1e9), -1)
        return (alpha @ z).transpose(0, 1).reshape(x.shape[0], -1) + self.bias


def dense(settings, weights, data):
    """One layer, as MetaDist's."""
    module = nn.ModuleDict({"layers": nn.ModuleList(
        [Dense(settings["features"], settings["heads"], settings["hidden"])])})
    load(module, weights)
    return module, dense_loss, data


def dense_loss(module, data):
    return F.cross_entropy(module["layers"][0](data["features"], data["adjacency"]), data["target"])


class Sparse(nn.Module):
    def __init__(self, inputs, hidden, classes, heads, dropout):
        from torch_geometric.nn import GATConv
        super().__init__()
        self.dropout = dropout
        self.layers = nn.ModuleList([
            GATConv(inputs, hidden, heads, dropout=dropout, add_self_loops=False),
            GATConv(heads * hidden, classes, 1, concat=False, dropout=dropout, add_self_loops=False)])

    def forward(self, x, edges):
        x = F.elu(self.layers[0](F.dropout(x, self.dropout, self.training), edges))
        return self.layers[1](F.dropout(x, self.dropout, self.training), edges)


NAMES = {"lin.weight": "weight", "att_src": "att_source", "att_dst": "att_target", "bias": "bias"}


def ours(name):
    """layers.0.lin.weight -> layers.0.weight"""
    layers, number, rest = name.split(".", 2)
    return f"{layers}.{number}.{NAMES[rest]}"


def sparse(settings, weights, data):
    module = Sparse(settings["features"], settings["hidden"], settings["classes"], settings["heads"],
                    settings["dropout"])
    load(module, weights, rename=ours, transposed=lambda name: name.endswith("lin.weight"))
    features, mask = data["features"], data["train_mask"]
    return module, sparse_loss, {"features": features / features.sum(1, keepdim=True).clamp(min=1e-12), "mask": mask,
                                 "edges": data["edge_index"], "target": data["labels"][mask]}


def sparse_loss(module, data):
    return F.cross_entropy(module(data["features"], data["edges"])[data["mask"]], data["target"])


def build(settings, weights, data):
    return (dense if settings["dense"] else sparse)(settings, weights, data)


def version():
    try:
        import torch_geometric
    except ImportError:
        return ", without PyTorch Geometric"
    return f", PyTorch Geometric {torch_geometric.__version__}"
