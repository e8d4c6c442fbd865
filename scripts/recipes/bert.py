"""BERT finds masked words. Labels are -100 where no word was masked, and padding is masked out of the attention."""
import torch
from transformers import BertConfig, BertForMaskedLM

from recipe import compare


class WithLoss(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask, labels):
        return self.model(input_ids=input_ids, attention_mask=attention_mask, labels=labels).loss


torch.manual_seed(0)
config = BertConfig(vocab_size=256, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
                    max_position_embeddings=64, hidden_dropout_prob=0, attention_probs_dropout_prob=0,
                    attn_implementation="eager")
tokens = torch.randint(5, 256, (16, 32))
kept = (torch.arange(32) < torch.randint(16, 33, (16, 1))).long()   # sentences of 16 to 32 tokens
masked = (torch.rand(tokens.shape) < 0.15) & kept.bool()
compare(WithLoss(BertForMaskedLM(config)), {
    "input_ids": tokens.masked_fill(masked, 4) * kept, "attention_mask": kept, "labels": tokens.masked_fill(~masked, -100)})
