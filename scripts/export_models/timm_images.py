"""Networks of timm, as small as its builders make them."""
import contextlib

import timm
import torch
from torch import nn
from torch.nn import functional as F

from export_models import model
from export_models.narrow import narrowed, still


class Classifier(nn.Module):
    def __init__(self, body, smoothing):
        super().__init__()
        self.body, self.smoothing = body, smoothing

    def forward(self, x, y):
        return F.cross_entropy(self.body(x), y, label_smoothing=self.smoothing)


def images(size):
    return lambda generator: {"x": torch.randn(8, 3, size, size, generator=generator), "y": torch.randint(0, 4, (8,), generator=generator)}


def vision(name, size=64, lr=0.002, says=None, smoothing=0.0, narrow=1, steps=10, **options):
    def build():
        with narrowed(narrow, {3, 4}) if narrow > 1 else contextlib.nullcontext():
            return Classifier(still(timm.create_model(name, pretrained=False, num_classes=4, drop_rate=0.0, **options)), smoothing)
    model(images(size), name=f"timm_{name}", lr=lr, steps=steps, says=says or {})(build)


vision("resnet10t")
vision("mobilenetv3_small_050")
vision("regnetx_002")
vision("vit_tiny_patch16_224", size=32, lr=0.02, embed_dim=24, depth=2, num_heads=3, img_size=32, patch_size=8, smoothing=0.1)
vision("convnext_atto", dims=[8, 12, 16, 24], depths=[1, 1, 1, 1], drop_path_rate=0.0, smoothing=0.1)
vision("pvt_v2_b0", lr=0.01)

# Families of timm's own, with fewer channels and blocks where their builders take that.
DEEP = dict(lr=None, steps=3)
EMBED = dict(img_size=32, embed_dim=24, depth=2)
for name in ("ghostnet_050", "tinynet_e", "mobilenetv2_035", "hardcorenas_a", "lcnet_035", "repghostnet_050", "resnet14t",
             "fbnetv3_b", "mnasnet_small", "hgnetv2_b0", "starnet_s050", "fastvit_t8", "repvit_m0_9"):
    vision(name, **DEEP, narrow=4 if name in ("hardcorenas_a", "fbnetv3_b", "hgnetv2_b0", "resnet14t", "repvit_m0_9") else 1)
vision("semnasnet_050", lr=6e-9, steps=3)
vision("mobileone_s0", lr=2e-07, steps=3, narrow=4)
vision("vgg11_bn", **DEEP, narrow=16)
vision("dla34", **DEEP, narrow=8)
vision("hrnet_w18_small", **DEEP, narrow=4)
vision("res2net50_26w_4s", **DEEP, layers=[1, 1, 1, 1])
vision("resnest14d", **DEEP, narrow=4)
vision("seresnet18", **DEEP, narrow=8)
vision("ecaresnet50t", **DEEP, layers=[1, 1, 1, 1])
vision("nf_resnet26", lr=0.01, narrow=8)
vision("deit_tiny_distilled_patch16_224", size=32, lr=0.02, num_heads=3, patch_size=8, **EMBED)
vision("beit_base_patch16_224", size=32, lr=0.02, num_heads=3, patch_size=8, init_values=0.1, **EMBED)
vision("eva02_tiny_patch14_224", size=32, lr=0.02, num_heads=3, patch_size=8, **EMBED)
vision("cait_xxs24_224", size=32, lr=0.02, num_heads=3, patch_size=8, init_values=0.1, **EMBED)
vision("xcit_nano_12_p16_224", size=32, lr=0.02, num_heads=3, **EMBED)
model(images(32), name="timm_convmixer", **DEEP)(lambda: Classifier(timm.models.convmixer.ConvMixer(
    24, depth=4, kernel_size=7, patch_size=7, num_classes=4), 0.0))
vision("edgenext_xx_small", lr=0.002, dims=[8, 16, 16, 32], depths=[1, 1, 1, 1])
vision("davit_tiny", size=64, lr=0.002, embed_dims=[8, 16, 16, 32], num_heads=[2, 2, 2, 4], depths=[1, 1, 1, 1])
vision("inception_next_atto", lr=0.01, dims=[16, 16, 16, 32], depths=[1, 1, 1, 1])
vision("mambaout_femto", lr=0.01, dims=[8, 16, 16, 32], depths=[1, 1, 1, 1])
vision("twins_svt_small", size=64, lr=0.01, img_size=64, embed_dims=[8, 16, 16, 32], num_heads=[1, 2, 2, 4], depths=[1, 1, 2, 1])
vision("visformer_tiny", size=64, lr=0.002, img_size=64, init_channels=8, embed_dim=48, depth=(1, 1, 1), num_heads=3)
vision("tnt_s_patch16_224", size=32, lr=0.01, img_size=32, embed_dim=24, inner_dim=8, depth=2, num_heads_outer=3, num_heads_inner=2)
vision("levit_128s", size=64, lr=0.002, img_size=64, embed_dim=(16, 32, 32), key_dim=8, num_heads=(2, 2, 2), depth=(1, 1, 1))
vision("swinv2_cr_tiny_224", size=64, lr=0.002, img_size=64, embed_dim=24, depths=[1, 1], num_heads=[2, 2], window_size=4)
vision("sequencer2d_s", size=64, lr=0.01, layers=[1, 1, 1, 1], embed_dims=[16, 16, 16, 16], hidden_sizes=[4, 4, 4, 4])
