"""ResNet classifies images. Batch normalisation takes its statistics from the whole batch, on any number of ranks."""
import torch
from transformers import ResNetConfig, ResNetForImageClassification

from recipe import compare


class WithLoss(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, pixel_values, labels):
        return torch.nn.functional.cross_entropy(self.model(pixel_values=pixel_values).logits, labels)


torch.manual_seed(0)
config = ResNetConfig(embedding_size=16, hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 1, 1], layer_type="basic",
                      num_labels=10)
compare(WithLoss(ResNetForImageClassification(config)), {
    "pixel_values": torch.randn(16, 3, 64, 64), "labels": torch.randint(10, (16,))})
