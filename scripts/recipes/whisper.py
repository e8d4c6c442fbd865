"""Whisper writes down what it hears: an encoder of spectra, and a decoder that reads the words so far."""
import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration

from recipe import compare


class WithLoss(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_features, labels):
        return self.model(input_features=input_features, labels=labels, use_cache=False).loss


torch.manual_seed(0)
config = WhisperConfig(vocab_size=256, d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
                       decoder_attention_heads=4, encoder_ffn_dim=128, decoder_ffn_dim=128, num_mel_bins=16,
                       max_source_positions=32, max_target_positions=32, pad_token_id=0, bos_token_id=1, eos_token_id=1,
                       decoder_start_token_id=1, dropout=0, attn_implementation="eager")
model = WhisperForConditionalGeneration(config)
model.model.encoder.embed_positions.requires_grad_(True)   # frozen by default, which no exporter writes: see the page
compare(WithLoss(model), {"input_features": torch.randn(16, 16, 64), "labels": torch.randint(2, 256, (16, 16))},
        exporters=["dynamo"])
