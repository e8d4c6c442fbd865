"""ViT classifies images by patches."""
import torch
from transformers import ViTConfig, ViTForImageClassification

from recipe import compare


class WithLoss(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, pixel_values, labels):
        return torch.nn.functional.cross_entropy(self.model(pixel_values=pixel_values).logits, labels)


torch.manual_seed(0)
config = ViTConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, image_size=32,
                   patch_size=8, num_labels=10, hidden_dropout_prob=0, attention_probs_dropout_prob=0,
                   attn_implementation="eager")
compare(WithLoss(ViTForImageClassification(config)), {
    "pixel_values": torch.randn(16, 3, 32, 32), "labels": torch.randint(10, (16,))})
