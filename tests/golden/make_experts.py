"""Exports language models whose MLP is a mixture of experts, in the ways in which people write one.

    pip install torch transformers onnx onnxscript numpy
    python tests/golden/make_experts.py

writes experts_<form>.<exporter>.onnx and experts_<form>.npz next to this file, as make_losses.py does. Every loss but that
of experts_after has a load balancing loss in it.

experts_masked    4 experts, each an MLP of its own that sees every token and is weighted by 0 where it is not chosen
experts_batched   4 experts, weights [experts, in, out]: every expert sees every token
experts_capacity  8 experts that take some tokens of a sample: one-hot tensors dispatch and combine (GShard)
experts_after     8 experts, tokens gathered to places and back; the softmax is over the chosen experts alone
experts_added     8 experts, tokens of all samples together, scattered to places and added up
experts_sought    as experts_masked, but each expert looks for its tokens, and puts them back by index_copy
experts_mixtral   transformers' Mixtral, whose 4 experts' weights are picked for every token
"""
import math

import torch
from torch import nn
from torch.nn import functional as F

from make_golden import finish
from make_losses import VOCAB, record

WIDTH, INNER, BATCH, CONTEXT, TOP_K, CAPACITY = 8, 12, 8, 6, 2, 1.25


def balance(among, chosen):
    """Experts times the sum of the fraction of choices and the mean probability of each (Fedus et al., 2021)."""
    experts = among.shape[-1]
    fraction = F.one_hot(chosen, experts).float().flatten(0, -2).mean(0)
    return experts * (fraction * among.flatten(0, -2).mean(0)).sum()


class Mixture(nn.Module):
    """Scores, chosen experts and their weights; a form says what becomes of the tokens."""

    experts, softmax_first = 4, True

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(WIDTH, self.experts, bias=False)
        self.make_experts()

    def make_experts(self):
        self.w1, self.w3 = (nn.Parameter(torch.randn(self.experts, WIDTH, INNER) * 0.3) for _ in range(2))
        self.w2 = nn.Parameter(torch.randn(self.experts, INNER, WIDTH) * 0.3)

    def forward(self, x):
        scores = self.gate(x)
        among = scores.softmax(-1)
        if self.softmax_first:
            weights, chosen = among.topk(TOP_K, dim=-1)
            weights = weights / weights.sum(-1, keepdim=True)
        else:
            weights, chosen = scores.topk(TOP_K, dim=-1)
            weights = weights.softmax(-1)
        return self.mix(x, weights, chosen), balance(among, chosen)

    def inside(self, x):
        """[experts, tokens, width] through each expert."""
        return torch.bmm(F.silu(torch.bmm(x, self.w1)) * torch.bmm(x, self.w3), self.w2)

    def places(self, chosen, slots):
        """The place of each choice [.., choices] in its expert, and whether there is one."""
        taken = F.one_hot(chosen, self.experts)
        place = (taken.cumsum(-2) * taken).sum(-1) - 1
        return place, place < slots

    def slots(self, tokens):
        return math.ceil(CAPACITY * TOP_K * tokens / self.experts)


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w3 = (nn.Linear(WIDTH, INNER, bias=False) for _ in range(2))
        self.w2 = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Masked(Mixture):
    def make_experts(self):
        self.each = nn.ModuleList(Expert() for _ in range(self.experts))

    def mix(self, x, weights, chosen):
        return sum(f(x) * (weights * (chosen == e)).sum(-1, keepdim=True) for e, f in enumerate(self.each))


class Sought(Masked):
    def mix(self, x, weights, chosen):
        flat = x.flatten(0, 1)
        made = torch.zeros_like(flat)
        for e, f in enumerate(self.each):
            token, choice = torch.where(chosen.flatten(0, 1) == e)
            made = made.index_copy(0, token, made[token] + f(flat[token]) * weights.flatten(0, 1)[token, choice, None])
        return made.view_as(x)


class Batched(Mixture):
    def mix(self, x, weights, chosen):
        of_all = torch.zeros(*chosen.shape[:-1], self.experts, dtype=weights.dtype).scatter(-1, chosen, weights)
        inner = F.silu(torch.einsum("bsd,edf->ebsf", x, self.w1)) * torch.einsum("bsd,edf->ebsf", x, self.w3)
        return torch.einsum("ebsd,bse->bsd", torch.einsum("ebsf,efd->ebsd", inner, self.w2), of_all)


class Capacity(Mixture):
    experts = 8

    def mix(self, x, weights, chosen):
        batch, tokens, _ = x.shape
        slots = self.slots(tokens)
        place, kept = self.places(chosen.transpose(1, 2).reshape(batch, TOP_K * tokens), slots)  # first choices first
        place, kept = (t.view(batch, TOP_K, tokens).transpose(1, 2) for t in (place, kept))
        at = F.one_hot(place.clamp(max=slots - 1), slots) * kept.unsqueeze(-1)
        combine = torch.einsum("btke,btkc,btk->btec", F.one_hot(chosen, self.experts).to(x), at.to(x), weights)
        sent = torch.einsum("btec,btd->ebcd", (combine > 0).to(x), x)
        inner = F.silu(torch.einsum("ebcd,edf->ebcf", sent, self.w1)) * torch.einsum("ebcd,edf->ebcf", sent, self.w3)
        return torch.einsum("ebcd,btec->btd", torch.einsum("ebcf,efd->ebcd", inner, self.w2), combine)


class After(Mixture):
    experts, softmax_first = 8, False

    def mix(self, x, weights, chosen):
        batch, tokens, width = x.shape
        slots, last = self.slots(tokens), self.slots(tokens) * self.experts
        chosen = chosen.reshape(batch, tokens * TOP_K)
        place, kept = self.places(chosen, slots)
        slot = torch.where(kept, chosen * slots + place, last)
        token = (torch.arange(tokens * TOP_K) // TOP_K).expand(batch, -1)
        of_slot = torch.zeros(batch, last + 1, dtype=torch.int64).scatter(1, slot, token)[:, :-1]
        sent = x.gather(1, of_slot.unsqueeze(-1).expand(-1, -1, width)).view(batch, self.experts, slots, width)
        made = self.inside(sent.transpose(0, 1).reshape(self.experts, batch * slots, width))
        made = made.view(self.experts, batch, slots, width).transpose(0, 1).reshape(batch, last, width)
        back = made.gather(1, slot.clamp(max=last - 1).unsqueeze(-1).expand(-1, -1, width))
        return (back.view(batch, tokens, TOP_K, width) * (weights * kept.view_as(weights)).unsqueeze(-1)).sum(2)


class Added(Mixture):
    experts = 8

    def mix(self, x, weights, chosen):
        batch, tokens, width = x.shape
        slots, last = self.slots(batch * tokens), self.slots(batch * tokens) * self.experts
        chosen, flat = chosen.flatten(), x.reshape(batch * tokens, width)
        place, kept = self.places(chosen, slots)
        slot = torch.where(kept, chosen * slots + place, last)
        token = torch.arange(batch * tokens * TOP_K) // TOP_K
        sent = torch.zeros(last + 1, width, dtype=x.dtype).index_add(0, slot, flat[token])[:-1]
        made = self.inside(sent.view(self.experts, slots, width)).view(last, width)
        back = made[slot.clamp(max=last - 1)] * (weights.flatten() * kept).unsqueeze(-1)
        return torch.zeros_like(flat).index_add(0, token, back).view_as(x)


def language_model(mixture, balancing=0.02):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.norm, self.mixture = nn.Embedding(VOCAB, WIDTH), nn.LayerNorm(WIDTH), mixture()
            self.head = nn.Linear(WIDTH, VOCAB, bias=False)

        def forward(self, tokens, targets):
            x = self.words(tokens)
            mixed, uneven = self.mixture(self.norm(x))
            loss = F.cross_entropy(self.head(x + mixed).flatten(0, 1), targets.flatten())
            return loss + balancing * uneven if balancing else loss

    return Model


class Mixtral(nn.Module):
    def __init__(self):
        super().__init__()
        from transformers import MixtralConfig, MixtralForCausalLM

        self.model = MixtralForCausalLM(MixtralConfig(
            vocab_size=VOCAB, hidden_size=WIDTH, intermediate_size=INNER, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=1, num_local_experts=4, num_experts_per_tok=TOP_K, max_position_embeddings=CONTEXT,
            use_cache=False, output_router_logits=True, router_aux_loss_coef=0.02, attn_implementation="eager",
            initializer_range=0.3))
        self.model.set_experts_implementation("batched_mm")

    def forward(self, tokens, targets):
        return self.model(input_ids=tokens, labels=targets).loss


if __name__ == "__main__":
    tokens = torch.randint(0, VOCAB, (BATCH, CONTEXT + 1), generator=torch.Generator().manual_seed(2))
    now, following = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    both = {"tokens": now, "targets": following}
    record("experts_masked", language_model(Masked), both, ("dynamo", "legacy"))
    record("experts_batched", language_model(Batched), both, ("dynamo", "legacy"))
    record("experts_capacity", language_model(Capacity), both, ("dynamo", "legacy"))
    record("experts_after", language_model(After, balancing=0), both, ("dynamo", "legacy"))
    record("experts_added", language_model(Added), both)  # the older exporter has no index_add of equal indices
    record("experts_mixtral", Mixtral, {"tokens": now, "targets": now.clone()})  # shifts them itself
    finish("experts_mixtral.dynamo")
    record("experts_sought", language_model(Sought), both, ("legacy",))
