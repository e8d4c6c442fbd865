"""Hugging Face's architectures for text beyond those of language.py, by the type that their configurations have. What
is given is what makes them small; the rest is as their authors left it, without dropout."""
import transformers as hf
from torch import nn

from export_models import model
from export_models.exporting import EXPORTERS
from export_models.language import COMMON, ENCODER, HEADS, TIME, VOCAB, WIDTH, Causal, Masked, Translator, tokens


def still(config):
    """The configuration with every probability of dropping something at 0."""
    for name, value in vars(config).items():
        if isinstance(value, hf.PretrainedConfig):
            still(value)
        elif isinstance(value, float) and any(part in name for part in ("drop", "time_mask_prob", "feature_mask_prob")):
            setattr(config, name, 0.0)
    return config


def network(auto, kind, options):
    """A model of this type by one of transformers' classes for a task, with attention as it is best exported, and
    experts without steps whose size depends on the data."""
    config = still(hf.AutoConfig.for_model(kind, **options))
    try:
        built = auto.from_config(config, attn_implementation="eager")
    except ValueError:  # has one kind of attention only
        built = auto.from_config(config)
    if any("num_experts" in name or "num_local_experts" in name or "n_routed_experts" in name for name in vars(config)):
        built.set_experts_implementation("batched_mm")
    return built


def register(table, auto, wrap, sample=tokens, common=None, lr=0.05):
    for kind, own in table.items():
        own = dict(own)
        training = dict(lr=lr) | {name: own.pop(name) for name in ("lr", "steps", "says") if name in own}
        options = (common or {}) | own
        model(sample, name="hf_" + kind.replace("-", "_"), **training)(
            lambda kind=kind, options=options: wrap(network(auto, kind, options)))


GROUPED = dict(num_key_value_heads=2)
GPT = dict(vocab_size=VOCAB, n_embd=WIDTH, n_layer=2, n_head=HEADS, n_positions=16, n_ctx=16, use_cache=False, bos_token_id=1,
           eos_token_id=1, pad_token_id=0)
EXPERTS = GROUPED | dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)
LATENT = dict(num_key_value_heads=HEADS, q_lora_rank=8, kv_lora_rank=8, qk_rope_head_dim=4, qk_nope_head_dim=4, v_head_dim=8, n_routed_experts=4,
              num_experts_per_tok=2, n_shared_experts=1, moe_intermediate_size=16, first_k_dense_replace=1, n_group=1, topk_group=1)
AFMOE = EXPERTS | dict(head_dim=8, num_shared_experts=1, num_dense_layers=1, sliding_window=4)

# Like LLaMA, with one thing or another changed.
register({
    "gemma": GROUPED | dict(head_dim=8, lr=0.01),
    "gemma3_text": GROUPED | dict(head_dim=8, query_pre_attn_scalar=8, sliding_window=4, layer_types=["sliding_attention", "full_attention"], lr=0.01),
    "vaultgemma": GROUPED | dict(head_dim=8, query_pre_attn_scalar=8, lr=0.01),
    "phi3": GROUPED, "starcoder2": GROUPED, "stablelm": GROUPED, "olmo": GROUPED, "olmo2": GROUPED | dict(lr=0.005), "olmo3": GROUPED | dict(lr=0.005),
    "cohere": GROUPED, "cohere2": GROUPED | dict(head_dim=4), "granite": GROUPED, "persimmon": {}, "nemotron": GROUPED | dict(head_dim=4),
    "smollm3": GROUPED, "glm": GROUPED | dict(head_dim=8), "glm4": GROUPED | dict(head_dim=8), "helium": GROUPED | dict(head_dim=4, says={"default": "and so an epsilon as small is gone"}),
    "arcee": GROUPED, "apertus": GROUPED, "seed_oss": GROUPED | dict(head_dim=4), "exaone4": GROUPED, "ernie4_5": GROUPED | dict(head_dim=4),
    "hunyuan_v1_dense": GROUPED | dict(head_dim=4), "ministral": GROUPED | dict(head_dim=4), "bitnet": GROUPED, "nanochat": GROUPED,
    "gpt_neox_japanese": dict(intermediate_multiple_size=2), "falcon": dict(new_decoder_architecture=True, num_kv_heads=2),
    "biogpt": {}, "modernbert-decoder": dict(global_attn_every_n_layers=2, local_attention=4),
}, hf.AutoModelForCausalLM, Causal, common=COMMON)

# GPT-2's relatives, with names of their own for the same sizes.
register({"gptj": dict(rotary_dim=4), "codegen": dict(rotary_dim=4), "openai-gpt": {}, "gpt_bigcode": {}, "ctrl": dict(dff=32)},
         hf.AutoModelForCausalLM, Causal, common=GPT)
register({
    "gpt_neo": dict(vocab_size=VOCAB, hidden_size=WIDTH, num_layers=2, num_heads=HEADS, attention_types=[[["global", "local"], 1]], window_size=4,
                    max_position_embeddings=16, bos_token_id=1, eos_token_id=1),
    "bloom": dict(vocab_size=VOCAB, hidden_size=WIDTH, n_layer=2, n_head=HEADS, bos_token_id=1, eos_token_id=1),
    "mpt": dict(vocab_size=VOCAB, d_model=WIDTH, n_heads=HEADS, n_layers=2, max_seq_len=16),
    "xglm": dict(vocab_size=VOCAB, d_model=WIDTH, ffn_dim=32, num_layers=2, attention_heads=HEADS, max_position_embeddings=16, pad_token_id=0),
    "xlnet": dict(vocab_size=VOCAB, d_model=WIDTH, n_layer=2, n_head=HEADS, d_inner=32),
    "mamba": dict(vocab_size=VOCAB, hidden_size=WIDTH, state_size=4, num_hidden_layers=2, use_cache=False, pad_token_id=0),
    "lfm2": COMMON | GROUPED | dict(layer_types=["conv", "full_attention"]),
}, hf.AutoModelForCausalLM, Causal)

# Mixtures of experts.
register({
    "qwen2_moe": EXPERTS | dict(shared_expert_intermediate_size=16), "qwen3_moe": EXPERTS | dict(head_dim=8), "olmoe": EXPERTS,
    "phimoe": GROUPED | dict(num_local_experts=4, router_jitter_noise=0.0), "granitemoe": GROUPED | dict(num_local_experts=4, num_experts_per_tok=2),
    "gpt_oss": GROUPED | dict(num_local_experts=4, num_experts_per_tok=2, head_dim=8, sliding_window=4),
    "deepseek_v2": LATENT, "deepseek_v3": LATENT, "glm4_moe": GROUPED | dict(head_dim=4) | {k: LATENT[k] for k in
        ("n_routed_experts", "num_experts_per_tok", "n_shared_experts", "moe_intermediate_size", "first_k_dense_replace", "n_group", "topk_group")},
    "ernie4_5_moe": GROUPED | dict(moe_num_experts=4, moe_k=2, moe_intermediate_size=16, moe_num_shared_experts=1),
    "flex_olmo": EXPERTS | dict(lr=0.005),
    "afmoe": AFMOE | dict(says=dict.fromkeys(EXPORTERS, "among equal scores while .*router.gate.weight' is zero")),
    "dots1": LATENT | GROUPED | dict(head_dim=8), "exaone_moe": EXPERTS | dict(head_dim=8), "cohere2_moe": EXPERTS | dict(head_dim=8),
    "granitemoeshared": GROUPED | dict(num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=16),
    "minimax": GROUPED | dict(head_dim=8, num_local_experts=4, num_experts_per_tok=2, layer_types=["linear_attention", "full_attention"], block_size=4),
    "qwen3_next": EXPERTS | dict(head_dim=8, linear_num_key_heads=2, linear_num_value_heads=2, linear_key_head_dim=8, linear_value_head_dim=8,
        shared_expert_intermediate_size=16, layer_types=["linear_attention", "full_attention"]),
    "lfm2_moe": EXPERTS | dict(layer_types=["conv", "full_attention"], num_dense_layers=1),
}, hf.AutoModelForCausalLM, Causal, common=COMMON)


@model(tokens, name="hf_afmoe_drawn")
def afmoe_drawn():
    """AFMoE's routers begin at zero, and of equal scores PyTorch's topk takes any. With random numbers in them."""
    out = Causal(network(hf.AutoModelForCausalLM, "afmoe", COMMON | AFMOE))
    for name, weight in out.named_parameters():
        if name.endswith("router.gate.weight"):
            nn.init.normal_(weight, std=0.02)
    return out


# Encoders, which predict the words that are masked.
register({
    "camembert": {}, "xlm-roberta": {}, "roberta-prelayernorm": {}, "megatron-bert": {}, "ernie": {}, "data2vec-text": {}, "luke": dict(entity_vocab_size=5, entity_emb_size=8),
    "rembert": dict(input_embedding_size=8, output_embedding_size=8), "roformer": dict(embedding_size=WIDTH), "squeezebert": dict(embedding_size=WIDTH, q_groups=2, k_groups=2, v_groups=2,
        post_attention_groups=1, intermediate_groups=2, output_groups=2), "mpnet": {},
    "mobilebert": dict(embedding_size=8, intra_bottleneck_size=16, num_feedforward_networks=2), "convbert": dict(embedding_size=WIDTH, conv_kernel_size=3),
    "deberta": dict(relative_attention=True, pos_att_type=["c2p", "p2c"], max_relative_positions=8),
    "deberta-v2": dict(relative_attention=True, pos_att_type=["c2p", "p2c"], position_buckets=4, max_relative_positions=8),
    "longformer": dict(attention_window=[4, 4], says={"legacy": r"as as_strided\(\) and take\(\) do"}), "xlm-roberta-xl": {}, "mra": dict(block_per_row=1),
    "ibert": {}, "nystromformer": dict(num_landmarks=8, segment_means_seq_len=8, conv_kernel_size=3), "layoutlm": {},
    "esm": dict(position_embedding_type="rotary", mask_token_id=2, emb_layer_norm_before=False), "modernbert": dict(global_attn_every_n_layers=2, local_attention=4),
    "big_bird": dict(attention_type="original_full"), "xmod": dict(languages=["en_XX"], default_language="en_XX"),
    "eurobert": {}, "nomic_bert": {}, "roc_bert": dict(enable_pronunciation=False, enable_shape=False, pronunciation_vocab_size=5, shape_vocab_size=5),
}, hf.AutoModelForMaskedLM, Masked, common=ENCODER)
register({
    "xlm": dict(vocab_size=VOCAB, emb_dim=WIDTH, n_layers=2, n_heads=HEADS, max_position_embeddings=16, pad_index=0, bos_index=1, eos_index=1),
    "flaubert": dict(vocab_size=VOCAB, emb_dim=WIDTH, n_layers=2, n_heads=HEADS, max_position_embeddings=16, pad_index=0, bos_index=1, eos_index=1),
    "funnel": dict(vocab_size=VOCAB, block_sizes=[1, 1], num_decoder_layers=1, d_model=WIDTH, n_head=HEADS, d_head=4, d_inner=32, max_position_embeddings=16, pad_token_id=0),
}, hf.AutoModelForMaskedLM, Masked)

# Encoders with decoders.
PAIR = dict(vocab_size=VOCAB, d_model=WIDTH, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=32,
            decoder_ffn_dim=32, max_position_embeddings=16, pad_token_id=0, bos_token_id=1, eos_token_id=1, decoder_start_token_id=1, forced_eos_token_id=1)
T5 = dict(vocab_size=VOCAB, d_model=WIDTH, d_kv=4, d_ff=32, num_layers=2, num_decoder_layers=2, num_heads=HEADS, relative_attention_num_buckets=8, decoder_start_token_id=0)
register({"mbart": {}, "pegasus": {}, "marian": {}, "blenderbot": {}, "blenderbot-small": {}, "m2m_100": {}, "plbart": {}, "mvp": {},
          "bigbird_pegasus": dict(attention_type="original_full")},
         hf.AutoModelForSeq2SeqLM, Translator, common=PAIR)
register({"mt5": {}, "umt5": {}, "longt5": dict(local_radius=3)}, hf.AutoModelForSeq2SeqLM, Translator, common=T5)
register({"prophetnet": dict(vocab_size=VOCAB, hidden_size=WIDTH, num_encoder_layers=1, num_decoder_layers=1, num_encoder_attention_heads=4, num_decoder_attention_heads=4,
                             encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=16, ngram=2, num_buckets=8, relative_max_distance=16, pad_token_id=0),
          "fsmt": dict(says={"legacy": "holds sines or cosines of positions and is not trained"}, src_vocab_size=VOCAB, tgt_vocab_size=VOCAB, langs=["en", "de"], **{k: v for k, v in PAIR.items() if k != "vocab_size"})},
         hf.AutoModelForSeq2SeqLM, Translator)

# As deep as they are published: what planning takes grows with the depth alone.
def deep(kind, auto, wrap, options, **more):
    model(tokens, name=f"hf_{kind}_deep", **more)(lambda: wrap(network(auto, kind, options)))


deep("gpt2", hf.AutoModelForCausalLM, Causal, GPT | dict(n_layer=12), lr=0.01)
deep("llama", hf.AutoModelForCausalLM, Causal, COMMON | GROUPED | dict(num_hidden_layers=32), lr=0.003)  # where rounding grows less from step to step
deep("bert", hf.AutoModelForMaskedLM, Masked, ENCODER | dict(num_hidden_layers=12), lr=0.01)
deep("t5", hf.AutoModelForSeq2SeqLM, Translator, T5 | dict(num_layers=12, num_decoder_layers=12), lr=0.01)
