"""Mistral: LLaMA with attention in a window, here of eight tokens."""
import torch
from transformers import MistralConfig, MistralForCausalLM

from recipe import compare


class WithLoss(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, labels):
        return self.model(input_ids=input_ids, labels=labels, use_cache=False).loss


torch.manual_seed(0)
config = MistralConfig(vocab_size=256, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                       intermediate_size=128, max_position_embeddings=64, attn_implementation="eager", sliding_window=8)
model = MistralForCausalLM(config)
tokens = torch.randint(256, (16, 32))
compare(WithLoss(model), {"input_ids": tokens, "labels": tokens.clone()}, exporters=["dynamo"])
