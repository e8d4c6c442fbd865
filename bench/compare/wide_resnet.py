"""Wide residual networks as `shardrun model wide-resnet` writes them, channels-last, which oneDNN likes best."""
import torch
from torch import nn
from torch.nn import functional as F

from peer import load


def conv(inputs, outputs, kernel, stride=1):
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)


class Bottleneck(nn.Module):
    """torchvision's: the stride is in the 3x3 convolution."""

    def __init__(self, inputs, inner, outputs, stride):
        super().__init__()
        self.conv1, self.bn1 = conv(inputs, inner, 1), nn.BatchNorm2d(inner)
        self.conv2, self.bn2 = conv(inner, inner, 3, stride), nn.BatchNorm2d(inner)
        self.conv3, self.bn3 = conv(inner, outputs, 1), nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = F.relu(self.bn2(self.conv2(y)), inplace=True)
        y = self.bn3(self.conv3(y))
        y += x if self.downsample is None else self.downsample(x)
        return F.relu(y, inplace=True)


class ImageNet(nn.Module):
    """50 layers; `width` 128 is WRN-50-2."""

    def __init__(self, width, classes):
        super().__init__()
        self.conv1, self.bn1 = conv(3, 64, 7, 2), nn.BatchNorm2d(64)
        inputs = 64
        for stage, blocks in enumerate([3, 4, 6, 3]):
            planes = 64 << stage
            layer = nn.Sequential()
            for block in range(blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                layer.append(Bottleneck(inputs, planes * width // 64, 4 * planes, stride))
                inputs = 4 * planes
            setattr(self, f"layer{stage + 1}", layer)
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x)), inplace=True), 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


class Preactivated(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(inputs), conv(inputs, outputs, 3, stride)
        self.bn2, self.conv2 = nn.BatchNorm2d(outputs), conv(outputs, outputs, 3)
        self.shortcut = None if stride == 1 and inputs == outputs else conv(inputs, outputs, 1, stride)

    def forward(self, x):
        active = F.relu(self.bn1(x), inplace=True)
        y = self.conv2(F.relu(self.bn2(self.conv1(active)), inplace=True))
        y += x if self.shortcut is None else self.shortcut(active)
        return y


class Cifar(nn.Module):
    def __init__(self, layers, width, classes):
        super().__init__()
        self.conv1 = conv(3, 16, 3)
        inputs = 16
        for stage in range(3):
            layer, outputs = nn.Sequential(), (16 << stage) * width
            for block in range((layers - 4) // 6):
                layer.append(Preactivated(inputs, outputs, 2 if stage > 0 and block == 0 else 1))
                inputs = outputs
            setattr(self, f"layer{stage + 1}", layer)
        self.bn, self.fc = nn.BatchNorm2d(inputs), nn.Linear(inputs, classes)

    def forward(self, x):
        x = self.layer3(self.layer2(self.layer1(self.conv1(x))))
        return self.fc(F.relu(self.bn(x), inplace=True).mean((2, 3)))


def build(settings, weights, data):
    classes = weights["fc.bias"].shape[0]
    if settings["family"] == "imagenet":
        module = ImageNet(settings["width"], classes)
    else:
        module = Cifar(settings["layers"], settings["width"], classes)
    load(module, weights)
    module = module.to(memory_format=torch.channels_last)
    return module, loss, {**data, "images": data["images"].contiguous(memory_format=torch.channels_last)}


def loss(module, data):
    return F.cross_entropy(module(data["images"]), data["target"])


def blocks(module):
    """What FSDP gathers one after the other."""
    return [block for name, stage in module.named_children() if name.startswith("layer") for block in stage]


def version():
    return ""
