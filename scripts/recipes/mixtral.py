"""Mixtral: four experts, of which each token takes two. `batched_mm` is the form whose sizes do not depend on data."""
import torch
from transformers import MixtralConfig, MixtralForCausalLM

from recipe import compare


class WithLoss(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, labels):
        return self.model(input_ids=input_ids, labels=labels, use_cache=False).loss


torch.manual_seed(0)
config = MixtralConfig(vocab_size=256, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                       intermediate_size=128, max_position_embeddings=64, attn_implementation="eager",
                       num_local_experts=4, num_experts_per_tok=2)
model = MixtralForCausalLM(config)
model.set_experts_implementation("batched_mm")
tokens = torch.randint(256, (16, 32))
compare(WithLoss(model), {"input_ids": tokens, "labels": tokens.clone()}, exporters=["dynamo"])
