"""Wav2Vec2 classifies sounds by their waves. Masking of the hidden states, which draws numbers, is off."""
import torch
from transformers import Wav2Vec2Config, Wav2Vec2ForSequenceClassification

from recipe import compare


class WithLoss(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_values, labels):
        return torch.nn.functional.cross_entropy(self.model(input_values=input_values).logits, labels)


torch.manual_seed(0)
config = Wav2Vec2Config(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, conv_dim=(32, 32, 32),
                        conv_kernel=(10, 3, 3), conv_stride=(5, 2, 2), num_conv_pos_embeddings=16,
                        num_conv_pos_embedding_groups=4, feat_extract_norm="layer", do_stable_layer_norm=True,
                        num_labels=6, classifier_proj_size=32, apply_spec_augment=False, layerdrop=0,
                        hidden_dropout=0, attention_dropout=0, activation_dropout=0, feat_proj_dropout=0,
                        final_dropout=0, attn_implementation="eager")
compare(WithLoss(Wav2Vec2ForSequenceClassification(config)), {
    "input_values": torch.randn(16, 1600), "labels": torch.randint(6, (16,))})
