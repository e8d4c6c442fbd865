"""Hugging Face's architectures for images, sounds and series beyond those of language.py."""
import torch
import transformers as hf
from torch import nn
from torch.nn import functional as F

from export_models import model
from export_models.hf_text import network, register, still
from export_models.language import HEADS, VOCAB, WIDTH, Vision

CLASSES = dict(num_labels=3)
PATCHES = CLASSES | dict(hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=HEADS, intermediate_size=32, image_size=16, patch_size=4)
STAGES = CLASSES | dict(image_size=64)
SHORT = dict(lr=None, steps=3)  # of batch normalisations over few numbers, where rounding grows from step to step


def images(size, count=4):
    return lambda generator: {"x": torch.randn(count, 3, size, size, generator=generator),
                              "y": torch.randint(0, 3, (count,), generator=generator)}


register({
    "beit": dict(use_relative_position_bias=True, layer_scale_init_value=0.1), "data2vec-vision": dict(use_relative_position_bias=True),
    "deit": dict(architectures=["DeiTForImageClassification"]), "dinov2": dict(layerscale_value=0.5, mlp_ratio=2), "dinov2_with_registers": dict(layerscale_value=0.5, mlp_ratio=2),
    "vit_msn": {}, "ijepa": {},
}, hf.AutoModelForImageClassification, Vision, images(16), PATCHES)
register({
    "bit": dict(embedding_size=8, hidden_sizes=[8, 16, 16, 32], depths=[1, 1, 1, 1], num_groups=4, lr=0.002),
    "resnet": dict(embedding_size=8, hidden_sizes=[8, 16, 16, 32], depths=[1, 1, 1, 1], lr=0.002),
    "regnet": dict(embedding_size=8, hidden_sizes=[8, 16, 16, 32], depths=[1, 1, 1, 1], groups_width=4, lr=0.002),
    "convnextv2": dict(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2, patch_size=2),
    "cvt": dict(embed_dim=[8, 16, 16], num_heads=[1, 2, 2], depth=[1, 2, 3], drop_path_rate=[0.0, 0.0, 0.0], lr=0.01), "focalnet": dict(embed_dim=8, depths=[1, 1], focal_levels=[2, 2], focal_windows=[3, 3], patch_size=4),
    "hiera": dict(embed_dim=8, num_heads=[1, 2], depths=[1, 1], image_size=[64, 64], patch_stride=[4, 4], mlp_ratio=2.0, num_query_pool=1, masked_unit_size=[4, 4], query_stride=[2, 2]),
    "levit": dict(hidden_sizes=[16, 32, 32], num_attention_heads=[2, 2, 2], depths=[1, 1, 1], key_dim=[8, 8, 8], attention_ratio=[2, 2, 2], mlp_ratio=[2, 2, 2], image_size=64, architectures=["LevitForImageClassification"], **SHORT),
    "mobilenet_v1": dict(depth_multiplier=0.25, **SHORT), "mobilenet_v2": dict(depth_multiplier=0.25, **SHORT),
    "mobilevit": dict(hidden_sizes=[16, 16, 16], neck_hidden_sizes=[8, 8, 8, 16, 16, 16, 32], num_attention_heads=2, image_size=64, lr=0.002),
    "mobilevitv2": dict(width_multiplier=0.25, image_size=64, lr=0.002),
    "poolformer": dict(hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1], layer_scale_init_value=0.1),
    "pvt": dict(hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1], num_attention_heads=[1, 1, 2, 2]),
    "pvt_v2": dict(hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1], num_attention_heads=[1, 1, 2, 2]),
    "segformer": dict(hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1], num_attention_heads=[1, 1, 2, 2], decoder_hidden_size=16),
    "swiftformer": dict(embed_dims=[8, 8, 16, 16], depths=[1, 1, 1, 1], lr=0.01),
    "swinv2": dict(patch_size=2, embed_dim=8, depths=[2, 1], num_heads=[2, 4], window_size=4, image_size=16),
    "textnet": dict(stem_out_channels=8, hidden_sizes=[8, 8, 16, 16, 16], lr=0.002,
                    conv_layer_kernel_sizes=[[[3, 3]], [[3, 1]], [[1, 3]], [[3, 3]]], conv_layer_strides=[[1], [2], [2], [2]]),
    "hgnet_v2": dict(embedding_size=8, stem_channels=[3, 8, 8], stage_in_channels=[8, 16, 16, 32], stage_mid_channels=[8, 8, 8, 8], stage_out_channels=[16, 16, 32, 32],
                     hidden_sizes=[16, 16, 32, 32], stage_num_blocks=[1, 1, 1, 1], stage_numb_of_layers=[2, 2, 2, 2], depths=[1, 1, 1, 1], **SHORT),
}, hf.AutoModelForImageClassification, Vision, images(64), STAGES)


class Sounds(nn.Module):
    """Classes of whole recordings: of waves, or of spectra."""

    def __init__(self, net):
        super().__init__()
        self.network = net

    def forward(self, x, y):
        return F.cross_entropy(self.network(x).logits, y)


def waves(generator):
    return {"x": torch.randn(4, 400, generator=generator), "y": torch.randint(0, 3, (4,), generator=generator)}


def spectra(generator):
    return {"x": torch.randn(4, 24, 16, generator=generator), "y": torch.randint(0, 3, (4,), generator=generator)}


WAVES = CLASSES | dict(vocab_size=VOCAB, hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=HEADS, intermediate_size=32, conv_dim=(8, 8), conv_stride=(5, 4), conv_kernel=(10, 4),
                       num_feat_extract_layers=2, num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=2, classifier_proj_size=8, apply_spec_augment=False, feat_extract_norm="layer")
register({"wav2vec2": {}, "hubert": {}, "unispeech": {}, "unispeech-sat": {}, "wavlm": dict(num_buckets=8, max_bucket_distance=16), "data2vec-audio": dict(conv_pos_kernel_size=3),
          "wav2vec2-conformer": dict(conv_depthwise_kernel_size=3, position_embeddings_type="relative"), "sew": dict(squeeze_factor=2)},
         hf.AutoModelForAudioClassification, Sounds, waves, WAVES)
register({"audio-spectrogram-transformer": CLASSES | dict(hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=HEADS, intermediate_size=32, patch_size=8, max_length=24,
                                                         num_mel_bins=16, frequency_stride=8, time_stride=8)},
         hf.AutoModelForAudioClassification, Sounds, spectra)


class Written(nn.Module):
    """Words of a recording: an encoder of spectra, a decoder that reads what was written so far."""

    def __init__(self, net, features):
        super().__init__()
        self.network, self.features = net, features

    def forward(self, sound, idx, labels):
        logits = self.network(**{self.features: sound}, decoder_input_ids=idx, use_cache=False).logits
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def spoken(*shape):
    def sample(generator):
        words = torch.randint(2, VOCAB, (4, 9), generator=generator)
        return {"sound": torch.randn(4, *shape, generator=generator), "idx": words[:, :-1].contiguous(), "labels": words[:, 1:].contiguous()}
    return sample


SPEECH = dict(vocab_size=VOCAB, d_model=WIDTH, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=32, decoder_ffn_dim=32,
              max_source_positions=12, max_target_positions=16, pad_token_id=0, bos_token_id=1, eos_token_id=1, decoder_start_token_id=1)
model(spoken(8, 24), name="hf_whisper")(lambda: Written(network(
    hf.AutoModelForSpeechSeq2Seq, "whisper", SPEECH | dict(num_mel_bins=8, suppress_tokens=[], begin_suppress_tokens=[])), "input_features"))
model(spoken(24, 8), name="hf_speech_to_text")(lambda: Written(network(
    hf.AutoModelForSpeechSeq2Seq, "speech_to_text", SPEECH | dict(input_feat_per_channel=8, input_channels=1, conv_channels=16, conv_kernel_sizes=(3, 3))), "input_features"))


# ---- images with words

SIDE = dict(hidden_size=WIDTH, intermediate_size=32, num_hidden_layers=1, num_attention_heads=HEADS)
WORDS = SIDE | dict(vocab_size=VOCAB, max_position_embeddings=8, eos_token_id=1, bos_token_id=0, pad_token_id=0)


def pairs(generator):
    return {"pixels": torch.randn(4, 3, 16, 16, generator=generator), "words": torch.randint(2, VOCAB, (4, 6), generator=generator)}


class Paired(nn.Module):
    """Each image belongs to the words of its place."""

    def __init__(self, kind):
        super().__init__()
        self.network = hf.AutoModel.from_config(still(hf.AutoConfig.for_model(
            kind, text_config=WORDS, vision_config=dict(image_size=16, patch_size=8, **SIDE), projection_dim=8)), attn_implementation="eager")

    def forward(self, pixels, words):
        scores = self.network(input_ids=words, pixel_values=pixels).logits_per_text
        labels = torch.arange(scores.shape[0])
        return (F.cross_entropy(scores, labels) + F.cross_entropy(scores.T, labels)) / 2


for kind in ("siglip", "chinese_clip"):
    model(pairs, name=f"hf_{kind}")(lambda kind=kind: Paired(kind))


class Pointed(nn.Module):
    """What of an image the words mean: a decoder on a CLIP that does not learn, which PyTorch runs under no_grad()."""

    def __init__(self):
        super().__init__()
        self.network = hf.CLIPSegForImageSegmentation(still(hf.CLIPSegConfig(
            text_config=WORDS, vision_config=dict(image_size=16, patch_size=8, **SIDE), projection_dim=8, reduce_dim=8,
            decoder_num_attention_heads=2, decoder_intermediate_size=16, extract_layers=[0], conditional_layer=0)))

    def forward(self, pixels, words):
        return self.network(input_ids=words, pixel_values=pixels).logits.sigmoid().square().mean()


class PointedFrozen(Pointed):
    def __init__(self):
        super().__init__()
        self.network.clip.requires_grad_(False)


model(pairs, name="hf_clipseg", validates=False, says={"dynamo": r"come out of a region of torch.no_grad\(\)", "legacy": r"nor where detach\(\) was"})(Pointed)
model(pairs, name="hf_clipseg_frozen", validates=False)(PointedFrozen)


@model(lambda g: pairs(g) | {"y": torch.randint(0, 3, (4,), generator=g)}, name="hf_visual_bert")
class VisualBert(nn.Module):
    """Regions of an image, as vectors, among words."""

    def __init__(self):
        super().__init__()
        self.network = hf.VisualBertForVisualReasoning(still(hf.VisualBertConfig(visual_embedding_dim=48, num_labels=3, **WORDS)))

    def forward(self, pixels, words, y):
        regions = pixels.flatten(2).transpose(1, 2).reshape(pixels.shape[0], 16, 48)
        return F.cross_entropy(self.network(input_ids=words, visual_embeds=regions).logits, y)


# ---- pixels, series, games

class Segments(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.network = net

    def forward(self, x, y):
        return F.cross_entropy(self.network(pixel_values=x).logits, y)


model(lambda g: {"x": torch.randn(4, 3, 32, 32, generator=g), "y": torch.randint(0, 3, (4, 8, 8), generator=g)}, name="hf_segformer_segments", lr=0.002)(
    lambda: Segments(network(hf.AutoModelForSemanticSegmentation, "segformer", CLASSES | dict(
        hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1], num_attention_heads=[1, 1, 2, 2], decoder_hidden_size=16))))


class Series(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.network = net

    def forward(self, past, future):
        return self.network(past_values=past, future_values=future).loss


def series(generator):
    return {"past": torch.randn(4, 16, 2, generator=generator).cumsum(1), "future": torch.randn(4, 4, 2, generator=generator)}


FORECAST = dict(num_input_channels=2, context_length=16, prediction_length=4, patch_length=4, patch_stride=4, d_model=WIDTH)
model(series, name="hf_patchtst", lr=0.005)(lambda: Series(hf.PatchTSTForPrediction(still(hf.PatchTSTConfig(
    num_hidden_layers=2, num_attention_heads=HEADS, ffn_dim=32, loss="mse", **FORECAST)))))
model(series, name="hf_patchtsmixer", lr=0.005)(lambda: Series(hf.PatchTSMixerForPrediction(still(hf.PatchTSMixerConfig(num_layers=2, **FORECAST)))))


@model(lambda g: {"states": torch.randn(4, 5, 6, generator=g), "actions": torch.randn(4, 5, 3, generator=g), "returns": torch.randn(4, 5, 1, generator=g),
                  "steps": torch.randint(0, 8, (4, 5), generator=g)}, name="hf_decision_transformer")
class Decisions(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = hf.DecisionTransformerModel(still(hf.DecisionTransformerConfig(
            state_dim=6, act_dim=3, hidden_size=WIDTH, max_ep_len=8, n_layer=2, n_head=HEADS, n_positions=16)))

    def forward(self, states, actions, returns, steps):
        predicted = self.network(states=states, actions=actions, returns_to_go=returns, timesteps=steps).action_preds
        return F.mse_loss(predicted, actions)
