"""T5 writes one text for another. From the labels it makes what its decoder reads, shifted by one."""
import torch
from transformers import T5Config, T5ForConditionalGeneration

from recipe import compare


class WithLoss(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, labels):
        return self.model(input_ids=input_ids, labels=labels, use_cache=False).loss


torch.manual_seed(0)
config = T5Config(vocab_size=256, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, dropout_rate=0,
                  decoder_start_token_id=0, attn_implementation="eager")
labels = torch.randint(2, 256, (16, 16))
labels[:, 12:] = labels[:, 12:].masked_fill(torch.rand(16, 4) < 0.5, -100)
compare(WithLoss(T5ForConditionalGeneration(config)), {"input_ids": torch.randint(2, 256, (16, 24)), "labels": labels})
