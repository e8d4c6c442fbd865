"""Networks of timm, as small as its builders make them."""
import timm
import torch
from torch import nn
from torch.nn import functional as F

from export_models import FOLDED, REPEATED, model


class Classifier(nn.Module):
    def __init__(self, body, smoothing):
        super().__init__()
        self.body, self.smoothing = body, smoothing

    def forward(self, x, y):
        return F.cross_entropy(self.body(x), y, label_smoothing=self.smoothing)


def vision(name, size=64, lr=0.002, says=None, smoothing=0.0, **options):
    def sample(generator):
        return {"x": torch.randn(8, 3, size, size, generator=generator), "y": torch.randint(0, 4, (8,), generator=generator)}
    model(sample, name=f"timm_{name}", lr=lr, says=says or {})(
        lambda: Classifier(timm.create_model(name, pretrained=False, num_classes=4, **options), smoothing))


vision("resnet10t", says=FOLDED)
vision("mobilenetv3_small_050", says=FOLDED)
vision("regnetx_002", says=FOLDED)
vision("vit_tiny_patch16_224", size=32, lr=0.02, embed_dim=24, depth=2, num_heads=3, img_size=32, patch_size=8, smoothing=0.1,
       says=REPEATED)
vision("convnext_atto", dims=[8, 12, 16, 24], depths=[1, 1, 1, 1], drop_path_rate=0.0, smoothing=0.1)
vision("pvt_v2_b0", lr=0.01)
