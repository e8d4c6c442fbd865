"""DistilBERT classifies sentences. The kind of problem is named, for else the labels decide it while the model runs."""
import torch
from transformers import DistilBertConfig, DistilBertForSequenceClassification

from recipe import compare


class WithLoss(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask, labels):
        return self.model(input_ids=input_ids, attention_mask=attention_mask, labels=labels).loss


torch.manual_seed(0)
config = DistilBertConfig(vocab_size=256, dim=64, n_layers=2, n_heads=4, hidden_dim=128, max_position_embeddings=64,
                          num_labels=3, problem_type="single_label_classification", dropout=0, attention_dropout=0,
                          seq_classif_dropout=0, attn_implementation="eager")
tokens = torch.randint(5, 256, (16, 32))
kept = (torch.arange(32) < torch.randint(16, 33, (16, 1))).long()
compare(WithLoss(DistilBertForSequenceClassification(config)), {
    "input_ids": tokens * kept, "attention_mask": kept, "labels": torch.randint(3, (16,))})
