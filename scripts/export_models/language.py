"""Transformers: GPTs written by hand, and those of Hugging Face, all of two small layers."""
import math

import torch
import transformers as hf
from torch import nn
from torch.nn import functional as F

from export_models import model

VOCAB, TIME, WIDTH, HEADS = 40, 8, 16, 4


def tokens(generator, count=4):
    idx = torch.randint(2, VOCAB, (count, TIME + 1), generator=generator)
    return {"idx": idx[:, :-1].contiguous(), "labels": idx[:, 1:].contiguous()}


# ---- written by hand

class Block(nn.Module):
    """nanoGPT's."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.c_fc, self.out = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = dropout

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (z.view(b, t, HEADS, c // HEADS).transpose(1, 2) for z in self.c_attn(self.ln_1(x)).split(c, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout if self.training else 0)
        x = x + F.dropout(self.c_proj(y.transpose(1, 2).reshape(b, t, c)), self.dropout, self.training)
        return x + self.out(F.gelu(self.c_fc(self.ln_2(x))))


class NanoGpt(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, WIDTH), nn.Embedding(TIME, WIDTH)
        self.h = nn.ModuleList(Block(dropout) for _ in range(2))
        self.ln_f, self.lm_head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)
        self.wte.weight = self.lm_head.weight
        for name, p in self.named_parameters():
            if name.endswith("weight") and p.dim() > 1:
                nn.init.normal_(p, std=0.1)
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, idx, labels):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        for block in self.h:
            x = block(x)
        return F.cross_entropy(self.lm_head(self.ln_f(x)).flatten(0, 1), labels.flatten(), ignore_index=-1)


@model(tokens)
def nanogpt():
    return NanoGpt()


@model(tokens, random=True, validates=False)
def nanogpt_dropout():
    return NanoGpt(0.3)


class LlamaBlock(nn.Module):
    """RMS norms, rotary positions, two heads of keys for four of queries, SwiGLU, a window."""

    def __init__(self):
        super().__init__()
        size = WIDTH // HEADS
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.q, self.o = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.k, self.v = nn.Linear(WIDTH, 2 * size, bias=False), nn.Linear(WIDTH, 2 * size, bias=False)
        self.gate, self.up, self.down = nn.Linear(WIDTH, 24, bias=False), nn.Linear(WIDTH, 24, bias=False), nn.Linear(24, WIDTH, bias=False)
        angles = torch.outer(torch.arange(TIME), 1e4 ** (-torch.arange(0, size, 2) / size)).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def turn(self, x):
        a, b = x.chunk(2, -1)
        return x * self.cos + torch.cat([-b, a], -1) * self.sin

    def forward(self, x):
        b, t, c = x.shape
        h = self.norm1(x)
        q, k, v = (m(h).view(b, t, -1, c // HEADS).transpose(1, 2) for m in (self.q, self.k, self.v))
        q, k = self.turn(q), self.turn(k)
        k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        keep = torch.ones(t, t, dtype=torch.bool).tril() & torch.ones(t, t, dtype=torch.bool).triu(-3)
        scores = (q @ k.transpose(-2, -1) / math.sqrt(c // HEADS)).masked_fill(~keep, float("-inf"))
        x = x + self.o((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, c))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


@model(tokens)
class LlamaOwn(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.blocks = nn.Embedding(VOCAB, WIDTH), nn.Sequential(LlamaBlock(), LlamaBlock())
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, idx, labels):
        logits = self.head(self.norm(self.blocks(self.tokens(idx))))
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


@model(tokens)
class Parallel(nn.Module):
    """GPT-J's block: attention and perceptron side by side, behind two norms of the same, and ALiBi's slopes."""

    def __init__(self):
        super().__init__()
        self.tokens, self.head = nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, VOCAB)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.o = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)
        distance = torch.arange(TIME)[None] - torch.arange(TIME)[:, None]
        self.register_buffer("bias", 2.0 ** -torch.arange(1, HEADS + 1)[:, None, None] * distance
                             + torch.full((TIME, TIME), float("-inf")).triu(1))

    def forward(self, idx, labels):
        x = self.tokens(idx)
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, c)) + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


# ---- Hugging Face's

COMMON = dict(vocab_size=VOCAB, hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=HEADS, intermediate_size=32,
              max_position_embeddings=16, use_cache=False, pad_token_id=0, bos_token_id=1, eos_token_id=1)
NO_DROPOUT = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


class Causal(nn.Module):
    """Logits of the next token."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, idx, labels):
        logits = self.network(input_ids=idx, use_cache=False).logits
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def causal(name, config, lr=0.05, experts=None, **options):
    def build():
        network = hf.AutoModelForCausalLM.from_config(config(), attn_implementation=options.get("attention", "eager"))
        if experts:
            network.set_experts_implementation(experts)
        return Causal(network)
    model(tokens, name=f"hf_{name}", lr=lr, says=options.get("says", {}), random=options.get("random", False),
          validates=not options.get("random", False))(build)


causal("gpt2", lambda: hf.GPT2Config(vocab_size=VOCAB, n_embd=WIDTH, n_layer=2, n_head=HEADS, n_positions=16, resid_pdrop=0.0,
                                     embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1, eos_token_id=1))
causal("gpt2_sdpa", lambda: hf.GPT2Config(vocab_size=VOCAB, n_embd=WIDTH, n_layer=2, n_head=HEADS, n_positions=16, resid_pdrop=0.0,
                                          embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1, eos_token_id=1), attention="sdpa")
causal("gpt2_dropout", lambda: hf.GPT2Config(vocab_size=VOCAB, n_embd=WIDTH, n_layer=2, n_head=HEADS, n_positions=16, resid_pdrop=0.2,
                                             embd_pdrop=0.2, attn_pdrop=0.4, bos_token_id=1, eos_token_id=1), attention="sdpa",
       random=True)
causal("llama", lambda: hf.LlamaConfig(num_key_value_heads=2, **COMMON))
causal("llama_sdpa", lambda: hf.LlamaConfig(num_key_value_heads=2, **COMMON), attention="sdpa")
causal("mistral", lambda: hf.MistralConfig(num_key_value_heads=2, sliding_window=4, **COMMON))
causal("mixtral", lambda: hf.MixtralConfig(num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2, **COMMON),
       experts="batched_mm")
causal("qwen2", lambda: hf.Qwen2Config(num_key_value_heads=2, tie_word_embeddings=True, **COMMON))
causal("qwen3", lambda: hf.Qwen3Config(num_key_value_heads=2, head_dim=8, **COMMON))
causal("gemma2", lambda: hf.Gemma2Config(num_key_value_heads=2, head_dim=8, query_pre_attn_scalar=8, **COMMON), lr=0.01)
causal("phi", lambda: hf.PhiConfig(resid_pdrop=0.0, embd_pdrop=0.0, **COMMON))
causal("gpt_neox", lambda: hf.GPTNeoXConfig(hidden_dropout=0.0, attention_dropout=0.0, **COMMON))
causal("opt", lambda: hf.OPTConfig(vocab_size=VOCAB, hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=HEADS, ffn_dim=32,
                                   max_position_embeddings=16, dropout=0.0, word_embed_proj_dim=WIDTH))


class Masked(nn.Module):
    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, idx, labels):
        logits = self.network(input_ids=idx, attention_mask=(idx > 2).long()).logits
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def masked(name, config, lr=0.05, **options):
    model(tokens, name=f"hf_{name}", lr=lr, **options)(
        lambda: Masked(hf.AutoModelForMaskedLM.from_config(config(), attn_implementation="eager")))


ENCODER = {k: v for k, v in COMMON.items() if k != "use_cache"} | NO_DROPOUT
masked("bert", lambda: hf.BertConfig(**ENCODER))
masked("roberta", lambda: hf.RobertaConfig(**ENCODER))
masked("albert", lambda: hf.AlbertConfig(embedding_size=8, **ENCODER))
masked("electra", lambda: hf.ElectraConfig(embedding_size=8, **ENCODER))
masked("distilbert", lambda: hf.DistilBertConfig(vocab_size=VOCAB, dim=WIDTH, n_layers=2, n_heads=HEADS, hidden_dim=32, dropout=0.0,
                                                 attention_dropout=0.0, max_position_embeddings=16))


class Translator(nn.Module):
    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, idx, labels):
        logits = self.network(input_ids=idx, decoder_input_ids=idx.flip(1), use_cache=False).logits
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def translator(name, config, lr=0.05, **options):
    model(tokens, name=f"hf_{name}", lr=lr, **options)(
        lambda: Translator(hf.AutoModelForSeq2SeqLM.from_config(config(), attn_implementation="eager")))


translator("t5", lambda: hf.T5Config(vocab_size=VOCAB, d_model=WIDTH, d_kv=4, d_ff=32, num_layers=2, num_heads=HEADS, dropout_rate=0.0,
                                     relative_attention_num_buckets=8, decoder_start_token_id=0))
translator("bart", lambda: hf.BartConfig(vocab_size=VOCAB, d_model=WIDTH, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
                                         decoder_attention_heads=4, encoder_ffn_dim=32, decoder_ffn_dim=32, dropout=0.0,
                                         max_position_embeddings=16, pad_token_id=0, bos_token_id=1, eos_token_id=1,
                                         decoder_start_token_id=1, forced_eos_token_id=1),
           says={"legacy": "'network.final_logits_bias' train"})


# ---- images, and both

def images(generator):
    return {"x": torch.randn(4, 3, 16, 16, generator=generator), "y": torch.randint(0, 3, (4,), generator=generator)}


class Vision(nn.Module):
    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x, y):
        return F.cross_entropy(self.network(pixel_values=x).logits, y)


def vision(name, config, lr=0.05, **options):
    model(images, name=f"hf_{name}", lr=lr, **options)(
        lambda: Vision(hf.AutoModelForImageClassification.from_config(config(), attn_implementation="eager")))


vision("vit", lambda: hf.ViTConfig(hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=HEADS, intermediate_size=32,
                                   image_size=16, patch_size=4, num_labels=3, **NO_DROPOUT))
vision("swin", lambda: hf.SwinConfig(image_size=16, patch_size=2, embed_dim=8, depths=[2, 1], num_heads=[2, 4], window_size=4,
                                     drop_path_rate=0.0, num_labels=3, **NO_DROPOUT))
model(images, name="hf_convnext", lr=0.05)(lambda: Vision(hf.ConvNextForImageClassification(
    hf.ConvNextConfig(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2, patch_size=2, drop_path_rate=0.0, num_labels=3,
                      layer_scale_init_value=0.1))))


@model(sample=lambda g: {"pixels": torch.randn(4, 3, 16, 16, generator=g), "words": torch.randint(2, VOCAB, (4, 6), generator=g)})
class HfClip(nn.Module):
    def __init__(self):
        super().__init__()
        side = dict(hidden_size=WIDTH, intermediate_size=32, num_hidden_layers=1, num_attention_heads=HEADS)
        config = hf.CLIPConfig(text_config=dict(vocab_size=VOCAB, max_position_embeddings=8, eos_token_id=1, bos_token_id=0, pad_token_id=0, **side),
                               vision_config=dict(image_size=16, patch_size=8, **side), projection_dim=8)
        config._attn_implementation = "eager"
        self.network = hf.CLIPModel(config)

    def forward(self, pixels, words):
        scores = self.network(input_ids=words, pixel_values=pixels).logits_per_text
        labels = torch.arange(scores.shape[0])
        return (F.cross_entropy(scores, labels) + F.cross_entropy(scores.T, labels)) / 2
