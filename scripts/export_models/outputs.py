"""Models that return their loss among other outputs, or take labels as they are: nanoGPT's own class, Hugging Face's."""
import torch
import transformers as hf
from torch import nn
from torch.nn import functional as F

from export_models import model
from export_models.language import COMMON, HEADS, NO_DROPOUT, TIME, VOCAB, WIDTH, Block, tokens


@model(lambda g: {"idx" if n == "idx" else "targets": t for n, t in tokens(g).items()})
class NanoGptClass(nn.Module):
    """nanoGPT's model.py: a ModuleDict, tied weights, targets of -1 ignored, and `logits, loss` returned."""

    def __init__(self):
        super().__init__()
        self.transformer = nn.ModuleDict(dict(
            wte=nn.Embedding(VOCAB, WIDTH), wpe=nn.Embedding(TIME, WIDTH), drop=nn.Dropout(0.0),
            h=nn.ModuleList([Block() for _ in range(2)]), ln_f=nn.LayerNorm(WIDTH)))
        self.lm_head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.transformer.wte.weight = self.lm_head.weight

    def forward(self, idx, targets=None):
        b, t = idx.size()
        pos = torch.arange(0, t, dtype=torch.long, device=idx.device)
        x = self.transformer.drop(self.transformer.wte(idx) + self.transformer.wpe(pos))
        for block in self.transformer.h:
            x = block(x)
        logits = self.lm_head(self.transformer.ln_f(x))
        loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)
        return logits, loss


@model(lambda g: {"x": torch.randn(8, 6, generator=g), "y": torch.randint(0, 5, (8,), generator=g)})
class LossFirst(nn.Module):
    """A dict of outputs, of which two are single numbers: the loss comes first."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 5)

    def forward(self, x, y):
        scores = self.body(x)
        return {"loss": F.cross_entropy(scores, y), "scores": scores}


class Labelled(nn.Module):
    """Hugging Face's own loss of `labels`."""

    def __init__(self, network, tokens_too=True):
        super().__init__()
        self.network, self.words = network, tokens_too

    def forward(self, idx, labels):
        out = self.network(input_ids=idx, labels=labels) if self.words else self.network(pixel_values=idx, labels=labels)
        return out.loss, out.logits


def same(generator):
    """A causal model shifts its labels itself, which are its tokens, some of them ignored."""
    idx = torch.randint(2, VOCAB, (4, TIME), generator=generator)
    return {"idx": idx, "labels": torch.where(torch.rand(idx.shape, generator=generator) < 0.2, -100, idx)}


def labelled(name, auto, config, sample=same, **options):
    model(sample, name=f"labels_{name}", **options)(
        lambda: Labelled(auto.from_config(config(), attn_implementation="eager")))


ENCODER = {k: v for k, v in COMMON.items() if k != "use_cache"} | NO_DROPOUT


def classes(generator):
    return {"idx": torch.randint(2, VOCAB, (6, TIME), generator=generator),
            "labels": torch.randint(0, 3, (6,), generator=generator)}


def scores(generator):
    return {"idx": torch.randint(2, VOCAB, (6, TIME), generator=generator), "labels": torch.randn(6, 1, generator=generator)}


labelled("gpt2", hf.AutoModelForCausalLM, lambda: hf.GPT2Config(
    vocab_size=VOCAB, n_embd=WIDTH, n_layer=2, n_head=HEADS, n_positions=16, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    use_cache=False, bos_token_id=1, eos_token_id=1))
labelled("llama", hf.AutoModelForCausalLM, lambda: hf.LlamaConfig(num_key_value_heads=2, **COMMON))
labelled("bert", hf.AutoModelForMaskedLM, lambda: hf.BertConfig(**ENCODER))
labelled("bert_tokens", hf.AutoModelForTokenClassification, lambda: hf.BertConfig(num_labels=VOCAB, **ENCODER))
labelled("bert_classes", hf.AutoModelForSequenceClassification,
         lambda: hf.BertConfig(num_labels=3, problem_type="single_label_classification", **ENCODER), classes)
labelled("bert_score", hf.AutoModelForSequenceClassification,
         lambda: hf.BertConfig(num_labels=1, problem_type="regression", **ENCODER), scores)
labelled("t5", hf.AutoModelForSeq2SeqLM, lambda: hf.T5Config(
    vocab_size=VOCAB, d_model=WIDTH, d_kv=4, d_ff=32, num_layers=1, num_heads=HEADS, dropout_rate=0.0, use_cache=False,
    relative_attention_num_buckets=8, decoder_start_token_id=0))
