"""Exports image models: torchvision's WRN-50-2, narrowed, and one of every convolution and pool that it has not.

    pip install torch torchvision onnx onnxscript numpy
    python tests/golden/make_images.py

It shares make_golden.py's recording: gradients and running statistics, too, are those of float64.
"""
import copy

import numpy as np
import onnx
import torch
from torch import nn
from torch.nn import functional as F
from torchvision.models.resnet import Bottleneck, ResNet

from make_golden import HERE, export_dynamo, export_legacy, record

CLASSES = 10


class NarrowWrn(ResNet):
    """WRN-50-2 with a 64th of its channels: 50 layers, bottlenecks twice as wide as a ResNet's."""

    def __init__(self):
        super().__init__(Bottleneck, [3, 4, 6, 3], num_classes=CLASSES, width_per_group=128)
        self.conv1, self.bn1 = nn.Conv2d(3, 4, 7, 2, 3, bias=False), nn.BatchNorm2d(4)
        self.fc = nn.Linear(8 * Bottleneck.expansion, CLASSES)

    def _make_layer(self, block, planes, blocks, stride=1, dilate=False):
        if self.inplanes == 64:
            self.inplanes = 4
        return super()._make_layer(block, planes // 64, blocks, stride, dilate)


class Shapes(nn.Module):
    """Bias, groups, depthwise, dilation, uneven padding and strides; each pool; transposed; nearest; 1-D; 3-D."""

    def __init__(self):
        super().__init__()
        # A bias before a batch normalisation has no gradient but rounding.
        self.a = nn.Conv2d(3, 8, (3, 5), stride=(2, 1), padding=(1, 2), bias=False)
        self.norm = nn.BatchNorm2d(8, momentum=0.3, eps=1e-3)
        self.grouped = nn.Conv2d(8, 12, 3, padding=2, dilation=2, groups=4)
        self.deep = nn.Conv2d(12, 12, (2, 3), groups=12, bias=False)
        self.plain = nn.BatchNorm2d(12, affine=False)
        self.up = nn.ConvTranspose2d(12, 6, 3, stride=2, padding=1, output_padding=1, groups=2)
        self.line = nn.Conv1d(6, 5, 4, stride=3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm1d(5)
        self.cube = nn.Conv3d(2, 3, (1, 3, 2), stride=(1, 2, 1), padding=(0, 1, 0))
        self.head = nn.Linear(5 + 12, 4)

    def forward(self, x, y):
        x = F.relu(self.norm(self.a(x)))
        x = F.max_pool2d(x, 3, stride=2, padding=1, ceil_mode=True)
        x = torch.tanh(self.grouped(F.pad(x, (0, 1, 2, 0))))
        x = F.avg_pool2d(x, 3, stride=2, padding=1, ceil_mode=True, count_include_pad=False)
        x = self.plain(self.deep(x))
        x = self.up(F.interpolate(x, scale_factor=2, mode="nearest"))
        z = F.adaptive_max_pool2d(x, 1).flatten(1)
        v = self.cube(x.reshape(x.shape[0], 2, 3, *x.shape[2:])).mean(-1).flatten(1)
        x = F.max_pool1d(self.norm1(self.line(x.flatten(2))), 4, stride=3, dilation=2)
        x = F.avg_pool1d(x, 5, stride=2, padding=2)
        x = torch.cat((x.mean(-1), z, v[:, :6]), 1)
        return F.cross_entropy(self.head(x), y)


def finish(name, model):
    """The file gets the running statistics from before the export, which moves them; and of the nodes' metadata only
    what says whether a batch normalisation was in training mode is kept."""
    path = str(HERE / f"{name}.onnx")
    file = onnx.load(path)
    state = {n: t.numpy() for n, t in model.state_dict().items() if "running_" in n}
    for tensor in file.graph.initializer:
        if tensor.name in state:
            tensor.CopyFrom(onnx.numpy_helper.from_array(state[tensor.name], tensor.name))
    for node in file.graph.node:
        kept = [p for p in node.metadata_props
                if p.key == "pkg.torch.onnx.fx_node" and node.op_type == "BatchNormalization"]
        del node.metadata_props[:]
        node.metadata_props.extend(kept)
    stored = {tensor.name for tensor in file.graph.initializer}
    kept = [info for info in file.graph.value_info if info.name in stored]  # these say what is a parameter
    del file.graph.value_info[:]
    file.graph.value_info.extend(kept)
    onnx.save(file, path)


def randomise(model):
    """Fresh scales and statistics are ones and zeros, which would hide mistakes."""
    generator = torch.Generator().manual_seed(3)
    for n, p in list(model.named_parameters()) + list(model.named_buffers()):
        if p.dim() == 1 and p.is_floating_point():
            p.data = torch.rand(p.shape, generator=generator) * 0.5 + (0.75 if n.endswith(("weight", "var")) else 0.0)


def export(name, model, args, names):
    model.train()
    before = copy.deepcopy(model.state_dict())
    for exporter in ("dynamo", "legacy"):
        if exporter == "dynamo":
            export_dynamo(f"{name}.dynamo", model, args, names, optimize=False)
        else:
            export_legacy(f"{name}.legacy", model, args, names, 17)
        model.load_state_dict(before)
        finish(f"{name}.{exporter}", model)


def main():
    generator = torch.Generator().manual_seed(4)
    torch.manual_seed(4)
    x, y = torch.randn(4, 3, 48, 48, generator=generator), torch.randint(0, CLASSES, (4,), generator=generator)
    wrn, shapes = NarrowWrn(), Shapes()
    for name, model, args, names, loss in (
            ("wrn", wrn, (x,), ["x"], lambda logits: F.cross_entropy(logits, y)),
            ("shapes", shapes, (x[:, :, :19, :22].contiguous(), y % 4), ["x", "y"], lambda loss: loss)):
        randomise(model)
        export(name, model, args, names)
        if name == "wrn":  # in inference form, from each exporter; and with the statistics folded into convolutions
            state = copy.deepcopy(model.state_dict())
            model.eval()
            export_dynamo("wrn.dynamo_eval", model, args, names, optimize=False)
            finish("wrn.dynamo_eval", model)
            torch.onnx.export(model, args, str(HERE / "wrn.legacy_eval.onnx"), dynamo=False, input_names=names,
                              opset_version=17, do_constant_folding=False,
                              training=torch.onnx.TrainingMode.PRESERVE)
            model.load_state_dict(state)
        record(name, model, args, names, loss)
    data = dict(np.load(HERE / "wrn.npz"))
    np.savez(HERE / "wrn.npz", **data, **{"in/target": y.numpy()})


if __name__ == "__main__":
    main()
