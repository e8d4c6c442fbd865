"""LLaMA: rotary positions, RMS norms, gated MLPs, and two heads of keys for four of queries."""
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from recipe import compare


class WithLoss(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, labels):
        return self.model(input_ids=input_ids, labels=labels, use_cache=False).loss


torch.manual_seed(0)
config = LlamaConfig(vocab_size=256, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                     intermediate_size=128, max_position_embeddings=64, attn_implementation="eager")
model = LlamaForCausalLM(config)
tokens = torch.randint(256, (16, 32))
compare(WithLoss(model), {"input_ids": tokens, "labels": tokens.clone()}, exporters=["dynamo"])
