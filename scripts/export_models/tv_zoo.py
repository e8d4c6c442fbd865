"""Torchvision's builders as they are, in full depth, with a fraction of their channels."""
import torch
from torch import nn
from torch.nn import functional as F
from torchvision import models as tv

from export_models import model
from export_models.images import Classifier, images
from export_models.narrow import narrowed, still

CLASSES = 4


def builder(name, factor, **options):
    def build():
        with narrowed(factor, {3, CLASSES}):
            return still(tv.get_model(name, weights=None, num_classes=CLASSES, **options))
    return build


def whole(name, factor=8, size=64, sample=None, wrap=Classifier, lr=None, says=None, **options):
    build = builder(name, factor, **options)
    model(sample or images(8, 3, size, CLASSES), name=f"tv_{name}", lr=lr, steps=3, says=says or {})(lambda: wrap(build()))


whole("resnet34")
whole("resnet50", zero_init_residual=True)
whole("resnext50_32x4d", factor=4)
whole("wide_resnet50_2", zero_init_residual=True)
for name in ("densenet121", "densenet169"):
    whole(name)
for name in ("alexnet", "vgg11", "vgg16", "vgg13_bn"):
    whole(name, factor=16)
for name in ("mnasnet1_0", "mobilenet_v3_large", "efficientnet_b0", "efficientnet_v2_s"):
    whole(name, **dict(stochastic_depth_prob=0.0) if name.startswith("efficient") else {})
whole("shufflenet_v2_x1_0", factor=2)
whole("inception_v3", size=80, aux_logits=False, init_weights=False, transform_input=True)
whole("regnet_y_400mf")
whole("regnet_x_400mf", lr=3e-6)


@model(images(8, 3, 64, CLASSES), name="tv_convnext_tiny", lr=0.002)
def convnext_tiny():
    sizes = ((8, 16, 3), (16, 24, 3), (24, 32, 9), (32, None, 3))
    return Classifier(tv.ConvNeXt([tv.convnext.CNBlockConfig(*stage) for stage in sizes], stochastic_depth_prob=0.0, num_classes=CLASSES))


@model(images(4, 3, 64, CLASSES), name="tv_swin_t", lr=0.002)
def swin_t():
    return Classifier(tv.SwinTransformer([4, 4], 8, [2, 2, 6, 2], [2, 2, 4, 4], [4, 4], stochastic_depth_prob=0.0, num_classes=CLASSES))


@model(images(4, 3, 32, CLASSES), name="tv_vit_b", lr=0.002)
def vit_b():
    return Classifier(tv.VisionTransformer(32, 8, 12, 4, 16, 32, num_classes=CLASSES))


@model(images(4, 3, 64, CLASSES), name="tv_swin_v2", lr=0.002)
def swin_v2():
    return Classifier(tv.SwinTransformer([4, 4], 16, [2, 2], [2, 2], [4, 4], stochastic_depth_prob=0.0, num_classes=CLASSES,
                                         block=tv.swin_transformer.SwinTransformerBlockV2, downsample_layer=tv.swin_transformer.PatchMergingV2))


@model(images(4, 3, 64, CLASSES), name="tv_maxvit", lr=0.002)
def maxvit():
    return Classifier(tv.MaxVit((64, 64), 8, 4, [8, 16], [1, 1], 8, 0.0, num_classes=CLASSES))


# ---- pixels

class Segments(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body = body

    def forward(self, x, y):
        return F.cross_entropy(self.body(x)["out"], y)


class FrozenSegments(Segments):
    """With statistics that stay, as a small batch is trained. By those of a batch, fcn_resnet50's rounding grows a
    hundredfold from step to step."""

    def train(self, mode=True):
        super().train(mode)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
        return self


def pixels(generator):
    return {"x": torch.randn(4, 3, 32, 32, generator=generator), "y": torch.randint(0, CLASSES, (4, 32, 32), generator=generator)}


whole("fcn_resnet50", sample=pixels, wrap=FrozenSegments, weights_backbone=None,
      says={"default": "with its stored statistics: the model trains without it"})
whole("lraspp_mobilenet_v3_large", sample=pixels, wrap=Segments, weights_backbone=None)


# ---- moving pictures

def clips(generator):
    return {"x": torch.randn(4, 3, 8, 32, 32, generator=generator), "y": torch.randint(0, CLASSES, (4,), generator=generator)}


for name in ("r3d_18", "mc3_18", "r2plus1d_18"):
    whole(name, factor=16, sample=clips)
