"""GPT-2 predicts the next token. It shifts its labels itself; those of -100, such as of padding, do not count."""
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from recipe import compare


class WithLoss(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, labels):
        return self.model(input_ids=input_ids, labels=labels, use_cache=False).loss


torch.manual_seed(0)
config = GPT2Config(vocab_size=256, n_positions=64, n_embd=64, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0,
                    resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, attn_implementation="eager")
tokens = torch.randint(256, (16, 32))
labels = tokens.masked_fill(torch.rand(tokens.shape) < 0.2, -100)
compare(WithLoss(GPT2LMHeadModel(config)), {"input_ids": tokens, "labels": labels}, exporters=["dynamo"])
