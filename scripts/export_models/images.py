"""Networks of convolutions and of patches."""
import torch
from torch import nn
from torch.nn import functional as F
from torchvision import models as tv

from export_models import model


def images(count, channels, size, classes):
    def sample(generator):
        return {"x": torch.randn(count, channels, size, size, generator=generator),
                "y": torch.randint(0, classes, (count,), generator=generator)}
    return sample


class Classifier(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body = body

    def forward(self, x, y):
        return F.cross_entropy(self.body(x), y)


def pooled(*layers, width, classes=4):
    return Classifier(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes)))


@model(images(8, 3, 12, 4))
def lenet():
    return Classifier(nn.Sequential(nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(96, 24),
                                    nn.ReLU(), nn.Linear(24, 4)))


@model(images(8, 3, 12, 4))
def conv_plain():
    """Strides, dilations, groups and paddings."""
    return pooled(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding="same", dilation=2),
                  nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1, groups=2, padding_mode="reflect"), nn.ReLU(),
                  nn.Conv2d(8, 8, 3, padding=1, padding_mode="circular"), nn.ReLU(), width=8)


@model(images(8, 3, 12, 4))
def conv_batch_norm():
    return pooled(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, bias=False),
                  nn.BatchNorm2d(8, momentum=0.3, eps=1e-3), nn.ReLU(), width=8)


@model(images(8, 3, 12, 4))
def conv_transpose_batch_norm():
    return pooled(nn.ConvTranspose2d(3, 8, 3, stride=2, output_padding=1), nn.BatchNorm2d(8), nn.ReLU(),
                  nn.ConvTranspose2d(8, 8, 2, groups=2, bias=False), nn.BatchNorm2d(8), nn.ReLU(), width=8)


@model(images(8, 3, 12, 4))
def batch_norm_first():
    """A norm that nothing can be folded into, and one without a scale."""
    return pooled(nn.BatchNorm2d(3), nn.Conv2d(3, 8, 3), nn.ReLU(), nn.BatchNorm2d(8, affine=False), width=8)


@model(images(8, 3, 12, 4))
def group_norm():
    return pooled(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.SiLU(), nn.Conv2d(8, 8, 3), nn.GroupNorm(8, 8), nn.SiLU(),
                  width=8)


@model(images(8, 3, 12, 4))
def instance_norm():
    return pooled(nn.Conv2d(3, 8, 3), nn.InstanceNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3),
                  nn.InstanceNorm2d(8, affine=True), nn.ReLU(), width=8)


@model(images(8, 3, 12, 4))
def local_response():
    return pooled(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.LocalResponseNorm(3, alpha=0.1), nn.LPPool2d(2, 2),
                  nn.AvgPool2d(2, ceil_mode=True), width=8)


class Residual(nn.Module):
    def __init__(self, inside, outside, stride):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(inside, outside, 3, stride, 1, bias=False), nn.BatchNorm2d(outside),
                                  nn.ReLU(), nn.Conv2d(outside, outside, 3, 1, 1, bias=False), nn.BatchNorm2d(outside))
        self.skip = nn.Identity() if inside == outside else nn.Conv2d(inside, outside, 1, stride)

    def forward(self, x):
        return F.relu(self.body(x) + self.skip(x))


@model(images(8, 3, 12, 4))
def residual():
    return pooled(Residual(3, 8, 1), Residual(8, 8, 1), Residual(8, 16, 2), width=16)


class SqueezeExcite(nn.Module):
    """A depthwise convolution, and channels scaled by what their means say."""

    def __init__(self, width):
        super().__init__()
        self.depthwise, self.pointwise = nn.Conv2d(width, width, 3, padding=1, groups=width), nn.Conv2d(width, width, 1)
        self.down, self.up = nn.Conv2d(width, 2, 1), nn.Conv2d(2, width, 1)

    def forward(self, x):
        h = F.hardswish(self.depthwise(x))
        h = h * torch.sigmoid(self.up(F.relu(self.down(h.mean((2, 3), keepdim=True)))))
        return x + self.pointwise(h)


@model(images(8, 3, 12, 4))
def depthwise():
    return pooled(nn.Conv2d(3, 8, 3), SqueezeExcite(8), SqueezeExcite(8), width=8)


@model(lambda g: {"x": torch.randn(4, 2, 16, 16, generator=g), "y": torch.randint(0, 3, (4, 16, 16), generator=g)})
class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1, self.down2, self.middle = nn.Conv2d(2, 6, 3, padding=1), nn.Conv2d(6, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.up2, self.up1 = nn.ConvTranspose2d(8, 8, 2, stride=2), nn.Conv2d(8 + 6, 6, 3, padding=1)
        self.norm, self.out = nn.GroupNorm(2, 6), nn.Conv2d(6, 3, 1)

    def forward(self, x, y):
        a = F.silu(self.down1(x))
        b = F.silu(self.down2(F.max_pool2d(a, 2)))
        c = F.silu(self.middle(F.avg_pool2d(b, 2)))
        b = b + self.up2(c)
        b = F.interpolate(b, scale_factor=2, mode="bilinear", align_corners=False)
        return F.cross_entropy(self.out(F.silu(self.norm(self.up1(torch.cat([a, b], 1))))), y)


@model(lambda g: {"low": torch.randn(4, 1, 6, 6, generator=g), "high": torch.randn(4, 1, 12, 12, generator=g)})
class SuperResolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 4, 3, padding=1)

    def forward(self, low, high):
        base = F.interpolate(low, size=(12, 12), mode="bicubic", align_corners=True)
        return F.l1_loss(base + F.pixel_shuffle(self.b(F.relu(self.a(low))), 2), high)


@model(images(6, 3, 12, 4), lr=1e-3)
class SpatialTransformer(nn.Module):
    """An image that is turned as the network says (grid_sample)."""

    def __init__(self):
        super().__init__()
        self.locate, self.conv, self.head = nn.Linear(3 * 144, 6), nn.Conv2d(3, 6, 3), nn.Linear(6, 4)
        nn.init.zeros_(self.locate.weight)
        self.locate.bias.data = torch.tensor([1.0, 0.1, 0.02, -0.1, 1.0, 0.03])

    def forward(self, x, y):
        grid = F.affine_grid(self.locate(x.flatten(1)).view(-1, 2, 3), [6, 3, 12, 12], align_corners=False)
        x = F.grid_sample(x, grid, align_corners=False)
        return F.cross_entropy(self.head(F.relu(self.conv(x)).mean((2, 3))), y)


@model(lambda g: {"x": torch.randn(4, 2, 6, 6, 6, generator=g), "y": torch.randint(0, 3, (4,), generator=g)})
def conv3d():
    return Classifier(nn.Sequential(nn.Conv3d(2, 4, 3), nn.ReLU(), nn.MaxPool3d(2), nn.Flatten(), nn.Linear(32, 3)))


class Patches(nn.Module):
    """A vision transformer with a class token and learned positions."""

    def __init__(self, width=16, heads=4):
        super().__init__()
        self.embed = nn.Conv2d(3, width, 4, stride=4)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, 10, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, heads, 32, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 4)

    def forward(self, x):
        x = self.embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        return self.head(self.norm(self.layers(x))[:, 0])


@model(images(6, 3, 12, 4))
def vit_own():
    return Classifier(Patches())


@model(images(6, 3, 12, 4), random=True, validates=False)
class StochasticDepth(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8, 4)
        self.blocks = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(2))

    def forward(self, x, y):
        x = F.relu(self.stem(x))
        for block in self.blocks:
            keep = x.new_empty((x.shape[0], 1, 1, 1)).bernoulli_(0.7)
            x = x + F.relu(block(x)) * keep / 0.7
        return F.cross_entropy(self.head(F.dropout2d(x, 0.2, self.training).mean((2, 3))), y)


# ---- torchvision's, as small as they come

def vision(name, build, size=64, lr=0.002, count=8, **options):
    model(images(count, 3, size, 4), name=name, lr=lr, **options)(lambda: Classifier(build()))


vision("tv_resnet18", lambda: tv.resnet18(num_classes=4, norm_layer=nn.BatchNorm2d), lr=2e-5)
vision("tv_resnet_groups", lambda: tv.ResNet(tv.resnet.Bottleneck, [1, 1, 1, 1], num_classes=4, groups=4,
                                             width_per_group=8), lr=1e-5)
vision("tv_mobilenet_v2", lambda: tv.MobileNetV2(num_classes=4, width_mult=0.35, dropout=0.0, inverted_residual_setting=[
    [1, 8, 1, 1], [6, 12, 2, 2], [6, 16, 1, 2]]))
vision("tv_mobilenet_v3", lambda: tv.mobilenet_v3_small(num_classes=4, width_mult=0.5, dropout=0.0))
vision("tv_efficientnet", lambda: tv.EfficientNet(
    [tv.efficientnet.MBConvConfig(1, 3, 1, 8, 8, 1, 1.0, 1.0), tv.efficientnet.MBConvConfig(4, 5, 2, 8, 12, 2, 1.0, 1.0)],
    dropout=0.0, stochastic_depth_prob=0.0, num_classes=4, last_channel=32))
vision("tv_densenet", lambda: tv.DenseNet(8, (2, 2), 8, drop_rate=0, num_classes=4))
vision("tv_squeezenet", lambda: tv.squeezenet1_1(num_classes=4, dropout=0.0), lr=1e-4)
vision("tv_shufflenet", lambda: tv.ShuffleNetV2([1, 2, 1], [8, 16, 24, 32, 32], num_classes=4))
vision("tv_googlenet", lambda: tv.GoogLeNet(num_classes=4, aux_logits=False, init_weights=False, dropout=0.0), lr=None, steps=3)
vision("tv_convnext", lambda: tv.ConvNeXt([tv.convnext.CNBlockConfig(8, 16, 1), tv.convnext.CNBlockConfig(16, None, 1)],
                                          stochastic_depth_prob=0.0, num_classes=4))
vision("tv_swin", lambda: tv.SwinTransformer([2, 2], 16, [1, 1], [2, 2], [4, 4], stochastic_depth_prob=0.0, num_classes=4),
       size=32, lr=0.02)
vision("tv_vit", lambda: tv.VisionTransformer(32, 8, 2, 2, 16, 32, num_classes=4), size=32)
