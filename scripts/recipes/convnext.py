"""ConvNeXt classifies images by convolutions of seven by seven, each channel by itself."""
import torch
from transformers import ConvNextConfig, ConvNextForImageClassification

from recipe import compare


class WithLoss(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, pixel_values, labels):
        return torch.nn.functional.cross_entropy(self.model(pixel_values=pixel_values).logits, labels)


torch.manual_seed(0)
config = ConvNextConfig(hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 2, 1], drop_path_rate=0, num_labels=10)
compare(WithLoss(ConvNextForImageClassification(config)), {
    "pixel_values": torch.randn(16, 3, 64, 64), "labels": torch.randint(10, (16,))})
