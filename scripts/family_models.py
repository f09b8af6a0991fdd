"""The models of families.py: TABLE, a row for each, and those that
forward_models.py does not have, in its form: a function that returns a module
whose forward takes the feeds and returns the loss, and the feeds by name.
All are small, with random weights.
"""
import dataclasses
import math
import shlex
import typing

import torch
import torch.nn.functional as F
from torch import nn

import forward_models as base
from forward_models import BATCH, HEADS, SEQ, VOCAB, WIDTH, Criterion, ids


# What a model needs beyond the defaults: how it is written, and what does it.


def attention(kind):
    def change(model):
        for m in model.modules():
            if hasattr(m, "set_attn_implementation"):
                m.set_attn_implementation(kind)
                return
    return change


def experts(model):
    for m in model.modules():
        if hasattr(m, "set_experts_implementation"):
            m.set_experts_implementation("batched_mm")
            return


def unchecked(model):
    torch.distributions.Distribution.set_default_validate_args(False)


def uncompiled(model):
    from transformers.models.llava import modeling_llava

    modeling_llava.torch_compilable_check = lambda *_, **__: None


SWITCHES = {
    "eager": ('`model.set_attn_implementation("eager")`', attention("eager")),
    "batched_mm": ('`model.set_experts_implementation("batched_mm")`', experts),
    "eval": ("`model.eval()`", None),
    "unchecked": ("`torch.distributions.Distribution.set_default_validate_args(False)`", unchecked),
    "loss": ("the loss written out, beside the model", None),
    "matching": ("the matching outside; its indices are inputs", None),
    "noise": ("the noise is an input", None),
    "no check": ("`modeling_llava.torch_compilable_check = lambda *_, **__: None`", uncompiled),
    "normal": ('`distribution_output="normal"`', None),
    "logs": ("`log(x).cumsum(-1).exp()` for `cumprod`", None),
}
TORCHSCRIPT = "`dynamo=False, training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False`"


@dataclasses.dataclass
class Model:
    name: str
    family: str
    make: typing.Callable
    switches: tuple = ()
    exporter: str = "dynamo"
    grad: tuple = ()  # flags of grad without which it trains what requires_grad=False freezes
    random: bool = False  # draws numbers: its gradients are not PyTorch's of another draw
    out: str = ""  # the way out, where it fails

    @property
    def bare(self):
        """Whether it could be exported without its switches too."""
        return self.exporter != "dynamo" or any(SWITCHES[s][1] for s in self.switches)

    def build(self, fresh, switches=True):
        torch.manual_seed(7)
        torch.distributions.Distribution.set_default_validate_args(True)
        made = self.make()
        model, feeds = made[0], made[1]
        for m in model.modules():
            if isinstance(m, base.Named):  # as a user wraps it: no mask, no logits
                m.mask, m.logits = None, False
                if hasattr(m.model, "set_attn_implementation"):
                    defaults(m.model)
        if not fresh:
            settle(model)
        model.train(not (switches and "eval" in self.switches))
        for s in self.switches if switches else ():
            if SWITCHES[s][1]:
                SWITCHES[s][1](model)
        return model, feeds

    def written(self, flags=True):
        """What a user writes beyond the lines of the README, with grad's flags or not."""
        words = [] if self.exporter == "dynamo" else [TORCHSCRIPT]
        words += [SWITCHES[s][0] for s in self.switches]
        return "; ".join(words + ([f"`remat grad {shlex.join(self.grad)}`"] if self.grad and flags else []))


def defaults(model):
    """The attention that a model has if nobody says otherwise."""
    try:
        model.set_attn_implementation("sdpa")
    except ValueError:  # it has none of that kind
        pass


def settle(model):
    """Moves all values a little, as training would: no norm is exactly one, no
    gradient zero by symmetry, no two parameters equal."""
    with torch.no_grad():
        for w in model.parameters():
            w.add_(0.02 * torch.randn_like(w))
        for name, b in model.named_buffers():
            if name.endswith("running_mean"):
                b.copy_(0.1 * torch.randn_like(b))
            if name.endswith("running_var"):
                b.copy_(1 + 0.3 * torch.rand_like(b))


# Language.


def modernbert():
    return base.masked("ModernBertConfig", "ModernBertForMaskedLM", local_attention=4, global_attn_every_n_layers=2, cls_token_id=1,
                       sep_token_id=2, mlp_dropout=0.0, embedding_dropout=0.0)
def bert_dropout():
    import transformers

    m, feeds, _ = base.bert()
    c = transformers.BertConfig(**{**m.model.config.to_dict(), "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1})
    m.model = transformers.BertForMaskedLM(c)
    return m, feeds
def olmo2(): return base.causal("Olmo2Config", "Olmo2ForCausalLM", num_key_value_heads=2)
def granite(): return base.causal("GraniteConfig", "GraniteForCausalLM", num_key_value_heads=2)
def cohere(): return base.causal("CohereConfig", "CohereForCausalLM", num_key_value_heads=2)
def smollm3(): return base.causal("SmolLM3Config", "SmolLM3ForCausalLM", num_key_value_heads=2)
def codegen():
    return base.causal("CodeGenConfig", "CodeGenForCausalLM", n_embd=WIDTH, n_layer=2, n_head=HEADS, n_positions=32, rotary_dim=4,
                       resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
def helium(): return base.causal("HeliumConfig", "HeliumForCausalLM", num_key_value_heads=2, head_dim=8)
def hybrid(config, model, **kw):
    return base.causal(config, model, num_key_value_heads=2, mamba_n_heads=4, mamba_n_groups=1, mamba_d_state=8, mamba_chunk_size=4, **kw)
def falcon_h1(): return hybrid("FalconH1Config", "FalconH1ForCausalLM", mamba_d_ssm=32, mamba_d_head=8)
def bamba(): return hybrid("BambaConfig", "BambaForCausalLM", mamba_d_head=16, attn_layer_indices=[1])


# Mixture of experts.


def deepseek_v3():
    return base.causal("DeepseekV3Config", "DeepseekV3ForCausalLM", num_key_value_heads=HEADS, moe_intermediate_size=16, n_routed_experts=4,
                       num_experts_per_tok=2, n_group=2, topk_group=1, n_shared_experts=1, first_k_dense_replace=1, q_lora_rank=16,
                       kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8)
def gpt_oss():
    return base.causal("GptOssConfig", "GptOssForCausalLM", num_key_value_heads=2, head_dim=8, num_local_experts=4, num_experts_per_tok=2,
                       sliding_window=4, layer_types=["sliding_attention", "full_attention"])
def olmoe(): return base.causal("OlmoeConfig", "OlmoeForCausalLM", num_key_value_heads=2, num_experts=4, num_experts_per_tok=2, intermediate_size=24)


# State space.


def sequential(config, model, **kw):
    import transformers

    sizes = dict(vocab_size=VOCAB, hidden_size=WIDTH, num_hidden_layers=2, use_cache=False, bos_token_id=1, eos_token_id=2, pad_token_id=0)
    c = getattr(transformers, config)(**{**sizes, **kw})
    x = ids(seq=9)  # some of them are unrolled
    return base.Named(getattr(transformers, model)(c), ["input_ids", "labels"]), dict(input_ids=x, labels=x.clone())


def mamba(): return sequential("MambaConfig", "MambaForCausalLM", state_size=4, conv_kernel=3, time_step_rank=4)
def mamba2(): return sequential("Mamba2Config", "Mamba2ForCausalLM", state_size=8, num_heads=4, head_dim=16, n_groups=1, chunk_size=4, conv_kernel=3)
def rwkv(): return sequential("RwkvConfig", "RwkvForCausalLM", attention_hidden_size=WIDTH, context_length=16)
def recurrent_gemma():
    return sequential("RecurrentGemmaConfig", "RecurrentGemmaForCausalLM", num_hidden_layers=3, num_attention_heads=HEADS, num_key_value_heads=1, intermediate_size=64,
                      lru_width=WIDTH, attention_window_size=4, conv1d_width=3, head_dim=8)


# Vision.


def dinov2():
    return base.vision("Dinov2Config", "Dinov2ForImageClassification", hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=HEADS, mlp_ratio=2, patch_size=8)
def pictures(model, size=32): return base.images(model, size=size)
def timm_model(name, **kw):
    import timm

    return pictures(timm.create_model(name, num_classes=10, **kw))
def timm_vit(): return timm_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=2, embed_dim=WIDTH, num_heads=HEADS)
def timm_convnext(): return timm_model("convnext_atto", depths=(1, 1, 1, 1), dims=(8, 16, 24, 32))
def torchvision_vit():
    import torchvision

    return pictures(torchvision.models.VisionTransformer(32, 8, 2, HEADS, WIDTH, 64, num_classes=10))
def torchvision_swin():
    import torchvision

    return pictures(torchvision.models.SwinTransformer([2, 2], 16, [2, 2], [2, 4], [4, 4], stochastic_depth_prob=0.0, num_classes=10))
def densenet():
    import torchvision

    return pictures(torchvision.models.DenseNet(growth_rate=4, block_config=(2, 2), num_init_features=8, bn_size=2, num_classes=10))
def timm_efficientnet():
    from timm.models._efficientnet_builder import decode_arch_def
    from timm.models.efficientnet import EfficientNet

    blocks = decode_arch_def([["ds_r1_k3_s1_e1_c8_se0.25"], ["ir_r2_k3_s2_e4_c16_se0.25"], ["ir_r1_k5_s2_e4_c24_se0.25"]])
    return pictures(EfficientNet(blocks, num_classes=10, num_features=32, stem_size=8))


# Detection. Which query answers for which box is decided outside, and an input.


class SetLoss(nn.Module):
    """A detector's classes and boxes against the boxes it was matched with."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, pixel_values, queries, labels, boxes):
        out = self.model(pixel_values=pixel_values)
        rows = torch.arange(queries.shape[0])[:, None]
        target = torch.full(out.logits.shape[:2], out.logits.shape[2] - 1).index_put((rows, queries), labels)
        classes = F.cross_entropy(out.logits.flatten(0, 1), target.flatten())
        p, q = corners(out.pred_boxes[rows, queries]), corners(boxes)
        size = lambda x: (x[..., 2:] - x[..., :2]).clamp(min=0).prod(-1)
        both = size(torch.cat([torch.maximum(p[..., :2], q[..., :2]), torch.minimum(p[..., 2:], q[..., 2:])], -1))
        iou = both / (size(p) + size(q) - both)
        return classes + 5 * F.l1_loss(p, q) + 2 * (1 - iou).mean()


def corners(x): return torch.cat([x[..., :2] - x[..., 2:] / 2, x[..., :2] + x[..., 2:] / 2], -1)
def detector(model):
    return SetLoss(model), dict(pixel_values=torch.randn(BATCH, 3, 32, 32), queries=torch.tensor([[0, 3], [4, 1]]),
                                labels=torch.tensor([[1, 2], [0, 3]]), boxes=0.3 + 0.3 * torch.rand(BATCH, 2, 4))
def detr():
    import transformers

    b = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], out_features=["stage2"])
    return detector(transformers.DetrForObjectDetection(transformers.DetrConfig(
        use_timm_backbone=False, use_pretrained_backbone=False, backbone=None, backbone_config=b, num_labels=4, d_model=WIDTH, encoder_layers=1,
        decoder_layers=1, encoder_attention_heads=HEADS, decoder_attention_heads=HEADS, encoder_ffn_dim=64, decoder_ffn_dim=64, num_queries=6, dropout=0.0)))
def yolos():
    import transformers

    return detector(transformers.YolosForObjectDetection(transformers.YolosConfig(
        hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=HEADS, intermediate_size=64, image_size=[32, 32], patch_size=8,
        num_detection_tokens=6, num_labels=4, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)))


class Retina(nn.Module):
    """A feature pyramid and torchvision's head, focal loss against dense targets."""

    def __init__(self):
        super().__init__()
        from torchvision.models.detection.retinanet import RetinaNetHead
        from torchvision.ops import FeaturePyramidNetwork

        self.one, self.two = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 16, 3, 2, 1)
        self.pyramid = FeaturePyramidNetwork([8, 16], WIDTH)
        self.head = RetinaNetHead(WIDTH, 1, 4, norm_layer=lambda n: nn.GroupNorm(4, n))

    def forward(self, x, labels, boxes):
        from torchvision.ops import sigmoid_focal_loss

        a = F.relu(self.one(x))
        levels = list(self.pyramid({"a": a, "b": F.relu(self.two(a))}).values())
        out = self.head(levels)
        return sigmoid_focal_loss(out["cls_logits"], labels, reduction="mean") + F.smooth_l1_loss(out["bbox_regression"], boxes)


def retinanet():
    n = 8 * 8 + 4 * 4
    return Retina(), dict(x=torch.randn(BATCH, 3, 16, 16), labels=(torch.rand(BATCH, n, 4) > 0.9).float(), boxes=torch.randn(BATCH, n, 4))


# Segmentation.


def segformer_segmentation():
    m, feeds, _ = base.segformer()
    import transformers

    c = m.model.config
    c.decoder_hidden_size, c.classifier_dropout_prob = WIDTH, 0.0
    m.model = transformers.SegformerForSemanticSegmentation(c)
    return m, dict(pixel_values=feeds["pixel_values"], labels=torch.randint(0, 10, (BATCH, 32, 32)))
def deeplab():
    from torchvision.models.segmentation.deeplabv3 import ASPP

    pyramid = ASPP(16, [2, 4], 16)
    pyramid.project[-1].p = 0.0
    stem = [nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, 1, 1)]
    head = [nn.Conv2d(16, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 4, 1), nn.Upsample(scale_factor=2, mode="bilinear")]
    return Criterion(nn.Sequential(*stem, pyramid, *head), F.cross_entropy), dict(x=torch.randn(BATCH, 3, 16, 16), labels=torch.randint(0, 4, (BATCH, 16, 16)))


# Speech. The sums over alignments are written out: torch's own are no ONNX operators.


def ctc(log_probs, labels, blank=0):
    """Connectionist temporal classification, mean over the batch: log_probs [batch,
    time, classes], labels [batch, length], every one of full length (Graves 2006)."""
    ext = torch.stack([torch.full_like(labels, blank), labels], 2).flatten(1)
    ext = torch.cat([ext, torch.full_like(labels[:, :1], blank)], 1)
    p = log_probs.gather(2, ext[:, None].expand(-1, log_probs.shape[1], -1))
    skip = torch.cat([torch.zeros_like(ext[:, :2], dtype=torch.bool), (ext[:, 2:] != ext[:, :-2]) & (ext[:, 2:] != blank)], 1)
    none = torch.full_like(p[:, 0], -1e4)
    a = torch.where(torch.arange(ext.shape[1]) < 2, p[:, 0], none)
    for t in range(1, p.shape[1]):
        one = torch.cat([none[:, :1], a[:, :-1]], 1)
        two = torch.where(skip, torch.cat([none[:, :2], a[:, :-2]], 1), none)
        a = torch.stack([a, one, two]).logsumexp(0) + p[:, t]
    return -torch.logsumexp(a[:, -2:], 1).mean() / labels.shape[1]


class Wav2Vec(nn.Module):
    def __init__(self):
        super().__init__()
        import transformers

        self.model = transformers.Wav2Vec2Model(transformers.Wav2Vec2Config(
            hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=HEADS, intermediate_size=64, conv_dim=[16, 16], conv_stride=[4, 4],
            conv_kernel=[8, 4], num_feat_extract_layers=2, num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=4, hidden_dropout=0.0,
            attention_dropout=0.0, activation_dropout=0.0, feat_proj_dropout=0.0, layerdrop=0.0, mask_time_prob=0.0, apply_spec_augment=False))
        self.head = nn.Linear(WIDTH, 12)

    def forward(self, audio, labels):
        return ctc(self.head(self.model(audio).last_hidden_state).log_softmax(-1), labels)


def wav2vec2(): return Wav2Vec(), dict(audio=torch.randn(BATCH, 320), labels=torch.randint(1, 12, (BATCH, 4)))


class LSTMCTC(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.LSTM(8, 16, bidirectional=True, batch_first=True), nn.Linear(32, 12)

    def forward(self, x, labels):
        return ctc(self.head(self.rnn(x)[0]).log_softmax(-1), labels)


def lstm_ctc(): return LSTMCTC(), dict(x=torch.randn(BATCH, 10, 8), labels=torch.randint(1, 12, (BATCH, 3)))


class Conformer(nn.Module):
    """A conformer block with torchaudio's order, its convolution normed by groups."""

    def __init__(self, n=WIDTH):
        super().__init__()
        half = lambda: nn.Sequential(nn.LayerNorm(n), nn.Linear(n, 2 * n), nn.SiLU(), nn.Linear(2 * n, n))
        self.one, self.two, self.norm, self.last = half(), half(), nn.LayerNorm(n), nn.LayerNorm(n)
        self.attend = nn.MultiheadAttention(n, HEADS, batch_first=True)
        self.conv = nn.Sequential(nn.Conv1d(n, 2 * n, 1), nn.GLU(1), nn.Conv1d(n, n, 5, padding=2, groups=n), nn.GroupNorm(1, n), nn.SiLU(), nn.Conv1d(n, n, 1))

    def forward(self, x):
        x = x + 0.5 * self.one(x)
        h = self.norm(x)
        x = x + self.attend(h, h, h, need_weights=False)[0]
        x = x + self.conv(x.transpose(1, 2)).transpose(1, 2)
        return self.last(x + 0.5 * self.two(x))


class RNNT(nn.Module):
    """Conformer encoder, LSTM predictor, joiner, and the transducer's recursion over
    time and labels (Graves 2012), every sequence of full length."""

    def __init__(self):
        super().__init__()
        self.inp, self.enc = nn.Linear(8, WIDTH), nn.Sequential(Conformer(), Conformer())
        self.emb, self.pred, self.join = nn.Embedding(12, 16), nn.LSTM(16, WIDTH, batch_first=True), nn.Linear(WIDTH, 12)

    def forward(self, x, labels):
        e = self.enc(self.inp(x))
        d = self.pred(self.emb(F.pad(labels, (1, 0))))[0]
        p = self.join(torch.tanh(e[:, :, None] + d[:, None])).log_softmax(-1)
        blank = p[..., 0]
        emit = p[:, :, :-1].gather(3, labels[:, None, :, None].expand(-1, p.shape[1], -1, -1))[..., 0]
        row = None
        for t in range(p.shape[1]):
            cells = []
            for u in range(p.shape[2]):
                ways = []
                if t > 0:
                    ways.append(row[u] + blank[:, t - 1, u])
                if u > 0:
                    ways.append(cells[u - 1] + emit[:, t, u - 1])
                cells.append(torch.logaddexp(*ways) if len(ways) == 2 else ways[0] if ways else torch.zeros_like(blank[:, 0, 0]))
            row = cells
        return -(row[-1] + blank[:, -1, -1]).mean()


def rnnt(): return RNNT(), dict(x=torch.randn(BATCH, 5, 8), labels=torch.randint(1, 12, (BATCH, 3)))
def audio_spectrogram():
    import transformers

    c = transformers.ASTConfig(hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=HEADS, intermediate_size=64, hidden_dropout_prob=0.0,
                               attention_probs_dropout_prob=0.0, patch_size=8, frequency_stride=8, time_stride=8, max_length=32, num_mel_bins=16, num_labels=5)
    return base.Named(transformers.ASTForAudioClassification(c), ["input_values", "labels"], None), dict(input_values=torch.randn(BATCH, 32, 16), labels=torch.tensor([1, 3]))


# Diffusion: the noise that is added, and its time, are inputs.


class Denoise(nn.Module):
    def __init__(self, model, call):
        super().__init__()
        self.model, self.call = model, call

    def forward(self, x, t, noise, *more):
        a = (t.float() / 1000)[:, None, None, None]
        return F.mse_loss(self.call(self.model, (1 - a).sqrt() * x + a.sqrt() * noise, t, *more), noise)


def diffusion(model, call=lambda m, x, t: m(x, t).sample, channels=3, size=16, **more):
    return Denoise(model, call), dict(x=torch.randn(BATCH, channels, size, size), t=torch.tensor([100, 700]), noise=torch.randn(BATCH, channels, size, size), **more)
def diffusers_unet():
    import diffusers

    return diffusion(diffusers.UNet2DModel(16, 3, 3, block_out_channels=(8, 16), layers_per_block=1, norm_num_groups=4, attention_head_dim=4,
                                           down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D")))
def sd_unet():
    import diffusers

    m = diffusers.UNet2DConditionModel(16, 4, 4, block_out_channels=(8, 16), layers_per_block=1, norm_num_groups=4, attention_head_dim=4, cross_attention_dim=WIDTH,
                                       down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"))
    return diffusion(m, lambda m, x, t, c: m(x, t, c).sample, 4, text=torch.randn(BATCH, 5, WIDTH))
def dit():
    import diffusers

    m = diffusers.DiTTransformer2DModel(num_attention_heads=HEADS, attention_head_dim=8, in_channels=4, out_channels=4, num_layers=2, sample_size=8,
                                        patch_size=2, num_embeds_ada_norm=10, norm_num_groups=4)
    for b in m.modules():
        if hasattr(b, "dropout_prob"):
            b.dropout_prob = 0.0
    return diffusion(m, lambda m, x, t, c: m(x, t, c).sample, 4, 8, classes=torch.tensor([2, 5]))
def sd3():
    import diffusers

    m = diffusers.SD3Transformer2DModel(sample_size=8, patch_size=2, in_channels=4, out_channels=4, num_layers=2, attention_head_dim=8, num_attention_heads=HEADS,
                                        joint_attention_dim=WIDTH, caption_projection_dim=WIDTH, pooled_projection_dim=16, pos_embed_max_size=8)
    return diffusion(m, lambda m, x, t, c, p: m(x, c, p, t).sample, 4, 8, text=torch.randn(BATCH, 5, WIDTH), pooled=torch.randn(BATCH, 16))


class Flux(nn.Module):
    def __init__(self):
        super().__init__()
        import diffusers

        self.model = diffusers.FluxTransformer2DModel(patch_size=1, in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=8, num_attention_heads=HEADS,
                                                      joint_attention_dim=WIDTH, pooled_projection_dim=16, axes_dims_rope=(4, 2, 2))

    def forward(self, x, t, text, pooled, velocity):
        places = torch.cartesian_prod(torch.zeros(1), torch.arange(4.0), torch.arange(4.0))
        out = self.model(hidden_states=x, timestep=t, encoder_hidden_states=text, pooled_projections=pooled, img_ids=places, txt_ids=torch.zeros(5, 3))
        return F.mse_loss(out.sample, velocity)


def flux(): return Flux(), dict(x=torch.randn(BATCH, 16, 16), t=torch.tensor([0.1, 0.7]), text=torch.randn(BATCH, 5, WIDTH), pooled=torch.randn(BATCH, 16), velocity=torch.randn(BATCH, 16, 16))


class KL(nn.Module):
    """Stable Diffusion's autoencoder; its noise fed."""

    def __init__(self):
        super().__init__()
        import diffusers

        self.model = diffusers.AutoencoderKL(3, 3, ("DownEncoderBlock2D",) * 2, ("UpDecoderBlock2D",) * 2, (8, 16), 1, latent_channels=4, norm_num_groups=4, sample_size=16)

    def forward(self, x, noise):
        d = self.model.encode(x).latent_dist
        y = self.model.decode(d.mean + d.std * noise).sample
        return F.mse_loss(y, x) + 1e-2 * d.kl().mean()


def autoencoder_kl(): return KL(), dict(x=torch.randn(BATCH, 3, 16, 16), noise=torch.randn(BATCH, 4, 8, 8))


# Generative.


class VAE(nn.Module):
    def __init__(self, drawn):
        super().__init__()
        self.drawn = drawn
        self.enc = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.SiLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.SiLU(), nn.Flatten(), nn.Linear(256, 16))
        self.dec = nn.Sequential(nn.Linear(8, 256), nn.SiLU(), nn.Unflatten(1, (16, 4, 4)), nn.ConvTranspose2d(16, 8, 4, 2, 1), nn.SiLU(), nn.ConvTranspose2d(8, 1, 4, 2, 1))

    def forward(self, x, *noise):
        mean, log_var = self.enc(x).chunk(2, -1)
        z = mean + (0.5 * log_var).exp() * (torch.randn_like(mean) if self.drawn else noise[0])
        kl = -0.5 * (1 + log_var - mean ** 2 - log_var.exp()).sum(-1).mean()
        return F.binary_cross_entropy_with_logits(self.dec(z), x, reduction="sum") / x.shape[0] + kl


def vae(): return VAE(False), dict(x=torch.rand(BATCH, 1, 16, 16), noise=torch.randn(BATCH, 8))
def vae_drawn(): return VAE(True), dict(x=torch.rand(BATCH, 1, 16, 16))


class GAN(nn.Module):
    def __init__(self, step, norm):
        super().__init__()
        self.step = step
        norms = (lambda n: nn.BatchNorm2d(n)) if norm == "batch" else (lambda n: nn.GroupNorm(2, n))
        self.gen = nn.Sequential(nn.ConvTranspose2d(8, 16, 4), norms(16), nn.ReLU(), nn.ConvTranspose2d(16, 8, 4, 2, 1), norms(8), nn.ReLU(), nn.ConvTranspose2d(8, 1, 4, 2, 1), nn.Tanh())
        self.disc = nn.Sequential(nn.Conv2d(1, 8, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(8, 16, 4, 2, 1), norms(16), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(256, 1))

    def forward(self, z, *real):
        fake = self.gen(z[:, :, None, None])
        if self.step == "generator":
            return F.softplus(-self.disc(fake)).mean()
        return F.softplus(self.disc(fake.detach())).mean() + F.softplus(-self.disc(real[0])).mean()


def gan_generator():
    m = GAN("generator", "batch")
    m.disc.requires_grad_(False)
    return m, dict(z=torch.randn(4, 8))
def gan_discriminator(): return GAN("discriminator", "group"), dict(z=torch.randn(4, 8), real=torch.randn(4, 1, 16, 16))


class Flow(nn.Module):
    """RealNVP: affine couplings, the likelihood of what they map to a normal."""

    def __init__(self, n=8):
        super().__init__()
        self.nets = nn.ModuleList(nn.Sequential(nn.Linear(n // 2, 32), nn.Tanh(), nn.Linear(32, n)) for _ in range(4))

    def forward(self, x):
        volume = 0
        for net in self.nets:
            a, b = x.chunk(2, -1)
            s, t = net(a).chunk(2, -1)
            s = torch.tanh(s)
            x, volume = torch.cat([b * s.exp() + t, a], -1), volume + s.sum(-1)
        return (0.5 * x ** 2).sum(-1).mean() - volume.mean()


def real_nvp(): return Flow(), dict(x=torch.randn(10, 8))


# Graphs. Edges are an input, [2, edges].


class GAT(nn.Module):
    """Attention over edges: a softmax by scatter, and a GRU cell."""

    def __init__(self, width=WIDTH):
        super().__init__()
        self.inp, self.msg, self.att = nn.Linear(8, width), nn.ModuleList(nn.Linear(2 * width, width) for _ in range(2)), nn.Linear(width, 1)
        self.cell, self.head = nn.GRUCell(width, width), nn.Linear(width, 3)

    def forward(self, x, edges, labels):
        h, (src, dst), n = self.inp(x), edges, x.shape[0]
        for layer in self.msg:
            m = F.relu(layer(torch.cat([h[src], h[dst]], -1)))
            a = self.att(m)[:, 0]
            top = torch.full((n,), -1e9).scatter_reduce(0, dst, a.detach(), "amax")
            e = (a - top[dst]).exp()
            w = e / torch.zeros(n).index_add(0, dst, e)[dst]
            h = self.cell(torch.zeros_like(h).index_add(0, dst, m * w[:, None]), h)
        return F.cross_entropy(self.head(h), labels)


class GCN(nn.Module):
    def __init__(self, width=WIDTH):
        super().__init__()
        self.one, self.two = nn.Linear(8, width), nn.Linear(width, 3)

    def forward(self, x, adjacency, labels):
        a = adjacency + torch.eye(adjacency.shape[0])
        d = a.sum(1).rsqrt()
        a = a * d[:, None] * d
        return F.cross_entropy(a @ self.two(F.relu(a @ self.one(x))), labels)


class SAGE(nn.Module):
    """Means over neighbours, a sum over each graph."""

    def __init__(self, width=WIDTH):
        super().__init__()
        self.own, self.near = nn.ModuleList([nn.Linear(8, width), nn.Linear(width, width)]), nn.ModuleList([nn.Linear(8, width), nn.Linear(width, width)])
        self.head = nn.Linear(width, 1)

    def forward(self, x, edges, graph, y):
        src, dst = edges
        ones = torch.zeros(x.shape[0], 1).index_add(0, dst, torch.ones(edges.shape[1], 1)).clamp(min=1)
        for own, near in zip(self.own, self.near):
            x = F.relu(own(x) + near(torch.zeros_like(x).index_add(0, dst, x[src]) / ones))
        pooled = torch.zeros(y.shape[0], x.shape[1]).scatter_add(0, graph[:, None].expand_as(x), x)
        return F.mse_loss(self.head(pooled)[:, 0], y)


def edges(n=12, m=40): return torch.randint(0, n, (2, m))
def gat(): return GAT(), dict(x=torch.randn(12, 8), edges=edges(), labels=torch.randint(0, 3, (12,)))
def gcn(): return GCN(), dict(x=torch.randn(12, 8), adjacency=(torch.rand(12, 12) > 0.7).float(), labels=torch.randint(0, 3, (12,)))
def sage(): return SAGE(), dict(x=torch.randn(12, 8), edges=edges(), graph=torch.randint(0, 3, (12,)), y=torch.randn(3))


# Recommendation.


class DLRM(nn.Module):
    def __init__(self, bag):
        super().__init__()
        kind = (lambda: nn.EmbeddingBag(50, 16, mode="sum")) if bag else (lambda: nn.Embedding(50, 16))
        self.tables, self.bag = nn.ModuleList(kind() for _ in range(3)), bag
        self.bottom = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(16 + 6, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, dense, sparse, labels):
        e = [t(sparse[:, i]) if self.bag else t(sparse[:, i]).sum(1) for i, t in enumerate(self.tables)]
        d = self.bottom(dense)
        z = torch.stack([d] + e, 1)
        p = (z @ z.transpose(1, 2))[:, *torch.tril_indices(4, 4, -1)]
        return F.binary_cross_entropy_with_logits(self.top(torch.cat([d, p], 1))[:, 0], labels)


def dlrm(bag=False): return DLRM(bag), dict(dense=torch.randn(8, 5), sparse=torch.randint(0, 50, (8, 3, 4)), labels=torch.rand(8).round())
def dlrm_bag(): return dlrm(True)


class DeepFM(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.emb = nn.Embedding(60, 1), nn.Embedding(60, 8)
        self.deep, self.bias = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 1)), nn.Parameter(torch.zeros(1))

    def forward(self, x, labels):
        e = self.emb(x)
        pairs = 0.5 * (e.sum(1) ** 2 - (e ** 2).sum(1)).sum(-1)
        return F.binary_cross_entropy_with_logits(self.first(x).sum((1, 2)) + pairs + self.deep(e.flatten(1))[:, 0] + self.bias, labels)


def deepfm(): return DeepFM(), dict(x=torch.randint(0, 60, (8, 4)), labels=torch.rand(8).round())


class TwoTower(nn.Module):
    """Users against items, the other items of the batch as negatives."""

    def __init__(self):
        super().__init__()
        tower = lambda: nn.Sequential(nn.Embedding(40, 16), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 8))
        self.user, self.item, self.scale = tower(), tower(), nn.Parameter(torch.tensor(2.0))

    def forward(self, user, item):
        s = self.scale.exp() * F.normalize(self.user(user), dim=-1) @ F.normalize(self.item(item), dim=-1).T
        return F.cross_entropy(s, torch.arange(s.shape[0]))


def two_tower(): return TwoTower(), dict(user=torch.randint(0, 40, (8,)), item=torch.randperm(40)[:8])


class SASRec(nn.Module):
    """The next item of a sequence, against one sampled negative each."""

    def __init__(self):
        super().__init__()
        self.item, self.place = nn.Embedding(VOCAB, WIDTH, padding_idx=0), nn.Embedding(SEQ, WIDTH)
        self.body = nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, 2, 64, 0.0, batch_first=True, norm_first=True), 2, enable_nested_tensor=False)

    def forward(self, seen, right, wrong):
        h = self.item(seen) + self.place(torch.arange(seen.shape[1]))
        h = self.body(h, mask=nn.Transformer.generate_square_subsequent_mask(seen.shape[1]), is_causal=True)
        return (F.softplus(-(h * self.item(right)).sum(-1)) + F.softplus((h * self.item(wrong)).sum(-1))).mean()


def sasrec(): return SASRec(), dict(seen=ids(), right=ids(), wrong=ids())


# Reinforcement.


class PPO(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.pi, self.v = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh()), nn.Linear(32, 4), nn.Linear(32, 1)

    def forward(self, obs, action, old, advantage, returned):
        h = self.body(obs)
        d = torch.distributions.Categorical(logits=self.pi(h))
        ratio = (d.log_prob(action) - old).exp()
        gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        return -gain + 0.5 * F.mse_loss(self.v(h)[:, 0], returned) - 0.01 * d.entropy().mean()


def ppo(): return PPO(), dict(obs=torch.randn(8, 6), action=torch.randint(0, 4, (8,)), old=-torch.rand(8) - 1, advantage=torch.randn(8), returned=torch.randn(8))


def mlp(*sizes): return nn.Sequential(*[m for a, b in zip(sizes, sizes[1:]) for m in (nn.Linear(a, b), nn.ReLU())][:-1])


class DQN(nn.Module):
    """The bootstrap of a target network, without a gradient."""

    def __init__(self):
        super().__init__()
        self.q, self.target = mlp(6, 32, 4), mlp(6, 32, 4)
        self.target.requires_grad_(False)

    def forward(self, obs, action, reward, after, done):
        with torch.no_grad():
            best = self.q(after).argmax(1, keepdim=True)
            y = reward + 0.99 * (1 - done) * self.target(after).gather(1, best)[:, 0]
        return F.smooth_l1_loss(self.q(obs).gather(1, action[:, None])[:, 0], y)


def dqn(): return DQN(), dict(obs=torch.randn(8, 6), action=torch.randint(0, 4, (8,)), reward=torch.randn(8), after=torch.randn(8, 6), done=torch.rand(8).round())


class SAC(nn.Module):
    """The actor's step: a squashed normal through frozen critics, and the temperature."""

    def __init__(self):
        super().__init__()
        self.pi, self.a, self.b = mlp(6, 32, 4), mlp(8, 32, 1), mlp(8, 32, 1)
        self.log_alpha = nn.Parameter(torch.tensor(-1.0))
        self.a.requires_grad_(False), self.b.requires_grad_(False)

    def forward(self, obs, noise):
        mean, log_std = self.pi(obs).chunk(2, -1)
        log_std = log_std.clamp(-5, 2)
        u = mean + log_std.exp() * noise
        act = u.tanh()
        logp = (-0.5 * noise ** 2 - log_std - 0.5 * math.log(2 * math.pi) - 2 * (math.log(2) - u - F.softplus(-2 * u))).sum(-1)
        x = torch.cat([obs, act], -1)
        q = torch.minimum(self.a(x), self.b(x))[:, 0]
        return (self.log_alpha.exp().detach() * logp - q).mean() - (self.log_alpha * (logp.detach() - 2)).mean()


def sac(): return SAC(), dict(obs=torch.randn(8, 6), noise=torch.randn(8, 2))


class Decision(nn.Module):
    def __init__(self):
        super().__init__()
        import transformers

        self.model = transformers.DecisionTransformerModel(transformers.DecisionTransformerConfig(
            state_dim=6, act_dim=3, hidden_size=WIDTH, max_ep_len=16, n_layer=2, n_head=HEADS, n_inner=64, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, n_positions=32))

    def forward(self, states, actions, returns, times):
        out = self.model(states=states, actions=actions, returns_to_go=returns, rewards=returns, timesteps=times, attention_mask=torch.ones_like(times), return_dict=True)
        return F.mse_loss(out.action_preds, actions)


def decision_transformer():
    return Decision(), dict(states=torch.randn(2, 5, 6), actions=torch.randn(2, 5, 3), returns=torch.randn(2, 5, 1), times=torch.arange(5).expand(2, 5).contiguous())


# Adapters.


def adapted(made, config):
    import peft

    m, feeds = made[0], made[1]
    m.model = peft.get_peft_model(m.model, config(peft))
    return m, feeds


def low_rank(**kw): return lambda peft: peft.LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, **{"target_modules": "all-linear", **kw})
def lora_llama(): return adapted(base.llama(), low_rank())
def dora_llama(): return adapted(base.llama(), low_rank(use_dora=True))
def lora_vit(): return adapted(base.vit(), low_rank(modules_to_save=["classifier"]))
def lora_bert(): return adapted(base.classify(), low_rank(target_modules=["query", "value"], modules_to_save=["classifier"]))
def ia3_llama(): return adapted(base.llama(), lambda peft: peft.IA3Config(target_modules=["k_proj", "v_proj", "down_proj"], feedforward_modules=["down_proj"]))
def vera_llama(): return adapted(base.llama(), lambda peft: peft.VeraConfig(r=4, target_modules=["q_proj"], vera_dropout=0.0))


# Preference. A policy, and where one is needed the reference it started from, frozen.


def log_likelihood(model, x):
    """Of each sequence, [batch]."""
    logits = model(input_ids=x[:, :-1]).logits.log_softmax(-1)
    return logits.gather(-1, x[:, 1:, None])[..., 0].sum(-1)


class Preference(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind, self.policy = kind, base.llama(attn_implementation="sdpa")[0].model
        if kind in ("dpo", "kto", "grpo"):
            self.reference = base.llama(attn_implementation="sdpa")[0].model.requires_grad_(False)

    def forward(self, chosen, rejected, *more):
        a, b = log_likelihood(self.policy, chosen), log_likelihood(self.policy, rejected)
        n = chosen.shape[1] - 1
        if self.kind == "orpo":  # the loss of the chosen, and the odds
            odds = (a / n - b / n) - (torch.log1p(-(a / n).exp()) - torch.log1p(-(b / n).exp()))
            return -(a / n).mean() - 0.1 * F.logsigmoid(odds).mean()
        if self.kind == "simpo":
            return -F.logsigmoid(2 * (a - b) / n - 0.5).mean()
        with torch.no_grad():
            ra, rb = log_likelihood(self.reference, chosen), log_likelihood(self.reference, rejected)
        if self.kind == "kto":  # against the batch's own divergence, which has no gradient
            kl = ((a - ra).mean() / 2 + (b - rb).mean() / 2).clamp(min=0).detach()
            return (1 - torch.sigmoid(0.1 * (a - ra - kl))).mean() + (1 - torch.sigmoid(0.1 * (kl - (b - rb)))).mean()
        if self.kind == "grpo":  # one group; the divergence's unbiased, positive estimate
            gain = -((a - a.detach()).exp() * more[0] + (b - b.detach()).exp() * more[1]).mean()
            k = lambda r, p: ((r - p).exp() - (r - p) - 1).mean()
            return gain + 0.04 * (k(ra / n, a / n) + k(rb / n, b / n))
        return -F.logsigmoid(0.1 * (a - ra - b + rb)).mean()


def preference(kind, **more): return lambda: (Preference(kind), dict(chosen=ids(), rejected=ids(), **{k: v() for k, v in more.items()}))


class Reward(nn.Module):
    """Bradley and Terry's model on a decoder with a scalar head."""

    def __init__(self):
        super().__init__()
        self.body, self.head = base.llama(attn_implementation="sdpa")[0].model.model, nn.Linear(WIDTH, 1)

    def forward(self, chosen, rejected):
        score = lambda x: self.head(self.body(input_ids=x).last_hidden_state[:, -1])[:, 0]
        return -F.logsigmoid(score(chosen) - score(rejected)).mean()


def reward(): return Reward(), dict(chosen=ids(), rejected=ids())


# What passes straight through, and what stops.


class VQVAE(nn.Module):
    """The decoder's gradient passes the codebook by."""

    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8))
        self.dec = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 16))
        self.codebook = nn.Parameter(torch.randn(12, 8))

    def forward(self, x):
        z = self.enc(x)
        far = (z ** 2).sum(-1, keepdim=True) - 2 * z @ self.codebook.T + (self.codebook ** 2).sum(-1)
        q = F.embedding(far.argmin(-1), self.codebook)
        commit = F.mse_loss(z, q.detach()) + F.mse_loss(q, z.detach())
        return F.mse_loss(self.dec(z + (q - z).detach()), x) + commit


class Binary(nn.Module):
    """Weights of one bit, by the sign forward and as they are backward."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 4)])

    def forward(self, x, labels):
        for i, l in enumerate(self.layers):
            w = l.weight + (l.weight.sign() * l.weight.abs().mean() - l.weight).detach()
            x = F.linear(F.hardtanh(x) if i else x, w, l.bias)
        return F.cross_entropy(x, labels)


class Gumbel(nn.Module):
    """A hard choice with a soft gradient; the noise fed."""

    def __init__(self):
        super().__init__()
        self.enc, self.dec = mlp(16, 32, 6), mlp(6, 32, 16)

    def forward(self, x, noise):
        soft = ((self.enc(x) + noise) / 0.7).softmax(-1)
        hard = F.one_hot(soft.argmax(-1), 6).float()
        return F.mse_loss(self.dec(hard - soft.detach() + soft), x)


class FakeQuant(nn.Module):
    """Quantization-aware training: rounded to eight bits forward, the step size learned."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.scale = nn.Linear(16, 32), nn.Linear(32, 4), nn.Parameter(torch.tensor([0.05]))

    def forward(self, x, labels):
        h = F.relu(self.one(x)) / self.scale
        h = h + (h.round() - h).detach()
        return F.cross_entropy(self.two(h.clamp(0, 255) * self.scale), labels)


class SimSiam(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc, self.pred = mlp(16, 32, 16), mlp(16, 8, 16)

    def forward(self, a, b):
        x, y = self.enc(a), self.enc(b)
        side = lambda p, z: -F.cosine_similarity(self.pred(p), z.detach(), dim=-1).mean()
        return side(x, y) / 2 + side(y, x) / 2


class BYOL(nn.Module):
    """A target network, moved outside of the step."""

    def __init__(self):
        super().__init__()
        self.enc, self.pred, self.target = mlp(16, 32, 16), mlp(16, 8, 16), mlp(16, 32, 16)
        self.target.requires_grad_(False)

    def forward(self, a, b):
        with torch.no_grad():
            z = F.normalize(self.target(b), dim=-1)
        return (2 - 2 * (F.normalize(self.pred(self.enc(a)), dim=-1) * z).sum(-1)).mean()


class Distill(nn.Module):
    def __init__(self):
        super().__init__()
        self.student, self.teacher = mlp(16, 16, 8), mlp(16, 64, 8)

    def forward(self, x, labels):
        s = self.student(x)
        with torch.no_grad():
            t = self.teacher(x)
        soft = F.kl_div((s / 2).log_softmax(-1), (t / 2).softmax(-1), reduction="batchmean")
        return F.cross_entropy(s, labels) + 4 * soft


def rows(n=10, of=16): return torch.randn(n, of)
def vq_vae(): return VQVAE(), dict(x=rows())
def binary(): return Binary(), dict(x=rows(), labels=torch.randint(0, 4, (10,)))
def gumbel(): return Gumbel(), dict(x=rows(), noise=-torch.rand(10, 6).log().neg().log())
def fake_quant(): return FakeQuant(), dict(x=rows(), labels=torch.randint(0, 4, (10,)))
def simsiam(): return SimSiam(), dict(a=rows(), b=rows())
def byol(): return BYOL(), dict(a=rows(), b=rows())
def distillation(): return Distill(), dict(x=rows(), labels=torch.randint(0, 8, (10,)))


# Time series.


class Series(nn.Module):
    """A model of transformers that forecasts, with its own loss."""

    def __init__(self, model, names):
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *feeds): return self.model(**dict(zip(self.names, feeds))).loss


def series(model, **feeds): return Series(model, list(feeds)), feeds
def patchtst(norm="batchnorm"):
    import transformers

    c = transformers.PatchTSTConfig(num_input_channels=2, context_length=24, prediction_length=6, patch_length=6, patch_stride=6, d_model=WIDTH, num_hidden_layers=2,
                                    num_attention_heads=HEADS, ffn_dim=64, loss="mse", scaling=None, attention_dropout=0.0, ff_dropout=0.0, head_dropout=0.0, norm_type=norm)
    return series(transformers.PatchTSTForPrediction(c), past_values=torch.randn(BATCH, 24, 2), future_values=torch.randn(BATCH, 6, 2))
def patchtst_layer(): return patchtst("layernorm")
def patchtsmixer():
    import transformers

    c = transformers.PatchTSMixerConfig(num_input_channels=2, context_length=24, prediction_length=6, patch_length=6, patch_stride=6, d_model=16, num_layers=2, dropout=0.0,
                                        head_dropout=0.0, norm_mlp="LayerNorm", scaling="std", loss="mse")
    return series(transformers.PatchTSMixerForPrediction(c), past_values=torch.randn(BATCH, 24, 2), future_values=torch.randn(BATCH, 6, 2))
def time_series_transformer():
    import transformers

    c = transformers.TimeSeriesTransformerConfig(prediction_length=4, context_length=12, lags_sequence=[1, 2], num_time_features=1, d_model=16, encoder_layers=1, decoder_layers=1,
                                                 encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, dropout=0.0, scaling=None,
                                                 distribution_output="normal")
    return series(transformers.TimeSeriesTransformerForPrediction(c), past_values=torch.randn(BATCH, 14), past_time_features=torch.randn(BATCH, 14, 1),
                  past_observed_mask=torch.ones(BATCH, 14), future_values=torch.randn(BATCH, 4), future_time_features=torch.randn(BATCH, 4, 1))


class NBeats(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(mlp(12, 32, 32, 12 + 4) for _ in range(3))

    def forward(self, x, y):
        total = 0
        for b in self.blocks:
            back, ahead = b(x).split([12, 4], -1)
            x, total = x - back, total + ahead
        return (2 * (total - y).abs() / (total.abs() + y.abs() + 1e-3)).mean()


class TCN(nn.Module):
    """Dilated causal convolutions under weight normalization."""

    def __init__(self):
        super().__init__()
        norm = torch.nn.utils.parametrizations.weight_norm
        self.convs = nn.ModuleList(norm(nn.Conv1d(i, 16, 3, dilation=d)) for i, d in ((4, 1), (16, 2), (16, 4)))
        self.head = nn.Linear(16, 1)

    def forward(self, x, y):
        for i, c in enumerate(self.convs):
            h = F.relu(c(F.pad(x, (2 * c.dilation[0], 0))))
            x = h + x if i else h
        return F.huber_loss(self.head(x[:, :, -1])[:, 0], y)


def nbeats(): return NBeats(), dict(x=torch.randn(8, 12), y=torch.randn(8, 4))
def tcn(): return TCN(), dict(x=torch.randn(4, 4, 20), y=torch.randn(4))


# Multimodal.


def text(layers=2): return dict(vocab_size=VOCAB, hidden_size=WIDTH, intermediate_size=64, num_hidden_layers=layers, num_attention_heads=HEADS, max_position_embeddings=16, attention_dropout=0.0)
def sight(layers=2): return dict(hidden_size=WIDTH, intermediate_size=64, num_hidden_layers=layers, num_attention_heads=HEADS, image_size=16, patch_size=8, attention_dropout=0.0)


class Contrast(nn.Module):
    """Two towers with their own contrastive loss."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, pixel_values): return self.model(input_ids=input_ids, pixel_values=pixel_values, return_loss=True).loss


def towers(config, model, **kw):
    import transformers

    c = getattr(transformers, config)(text_config=dict(text(), **kw), vision_config=sight())
    x = torch.randint(5, VOCAB - 2, (4, 8))
    x[:, -1] = VOCAB - 1
    return Contrast(getattr(transformers, model)(c)), dict(input_ids=x, pixel_values=torch.randn(4, 3, 16, 16))


def clip(): return towers("CLIPConfig", "CLIPModel", eos_token_id=VOCAB - 1, bos_token_id=1, pad_token_id=0)
def siglip(): return towers("SiglipConfig", "SiglipModel")


class Llava(nn.Module):
    def __init__(self):
        super().__init__()
        import transformers

        c = transformers.LlavaConfig(
            vision_config=transformers.CLIPVisionConfig(**sight()), image_token_index=VOCAB - 1, image_token_id=VOCAB - 1, vision_feature_layer=-1, image_seq_length=4,
            text_config=transformers.LlamaConfig(**text(), num_key_value_heads=2, use_cache=False, pad_token_id=0, bos_token_id=1, eos_token_id=2))
        self.model = transformers.LlavaForConditionalGeneration(c)

    def forward(self, input_ids, pixel_values, labels): return self.model(input_ids=input_ids, pixel_values=pixel_values, labels=labels).loss


def llava():
    x = torch.randint(3, VOCAB - 2, (BATCH, 10))
    x[:, 1:5] = VOCAB - 1
    y = x.clone()
    y[:, :5] = -100
    return Llava(), dict(input_ids=x, pixel_values=torch.randn(BATCH, 3, 16, 16), labels=y)


class Flamingo(nn.Module):
    """Gated cross attention from words to patches."""

    def __init__(self):
        super().__init__()
        self.words, self.patches = nn.Embedding(VOCAB, WIDTH), nn.Conv2d(3, WIDTH, 8, 8)
        self.latents, self.perceive = nn.Parameter(torch.randn(4, WIDTH)), nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.cross, self.gate = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True), nn.Parameter(torch.zeros(1))
        self.body, self.head = nn.TransformerEncoderLayer(WIDTH, HEADS, 64, 0.0, batch_first=True, norm_first=True), nn.Linear(WIDTH, VOCAB)

    def forward(self, input_ids, pixel_values, labels):
        p = self.patches(pixel_values).flatten(2).transpose(1, 2)
        m = self.perceive(self.latents.expand(p.shape[0], -1, -1), p, p, need_weights=False)[0]
        h = self.words(input_ids)
        h = h + self.gate.tanh() * self.cross(h, m, m, need_weights=False)[0]
        h = self.body(h, src_mask=nn.Transformer.generate_square_subsequent_mask(h.shape[1]), is_causal=True)
        return F.cross_entropy(self.head(h).flatten(0, 1), labels.flatten())


def flamingo(): return Flamingo(), dict(input_ids=ids(), pixel_values=torch.randn(BATCH, 3, 16, 16), labels=ids())


# Sequences and fields.


class Seq2Seq(nn.Module):
    """Bahdanau's attention over an LSTM, the decoder a cell at a time."""

    def __init__(self, n=16):
        super().__init__()
        self.src, self.tgt, self.enc = nn.Embedding(VOCAB, n), nn.Embedding(VOCAB, n), nn.LSTM(n, n, batch_first=True)
        self.q, self.k, self.v, self.cell, self.head = nn.Linear(n, n), nn.Linear(n, n), nn.Linear(n, 1), nn.LSTMCell(2 * n, n), nn.Linear(n, VOCAB)

    def forward(self, src, tgt):
        e, (h, c) = self.enc(self.src(src))
        h, c, k, loss = h[0], c[0], self.k(e), 0
        for t in range(tgt.shape[1] - 1):
            w = self.v(torch.tanh(k + self.q(h)[:, None])).softmax(1)
            h, c = self.cell(torch.cat([self.tgt(tgt[:, t]), (w * e).sum(1)], -1), (h, c))
            loss = loss + F.cross_entropy(self.head(h), tgt[:, t + 1])
        return loss / (tgt.shape[1] - 1)


class NeRF(nn.Module):
    """Colours along rays, composed by their densities."""

    def __init__(self):
        super().__init__()
        self.body, self.density, self.colour = mlp(3 * 9, 32, 32), nn.Linear(32, 1), nn.Linear(32, 3)

    def forward(self, origin, direction, colour):
        t = torch.linspace(0.5, 3.0, 8)
        p = origin[:, None] + direction[:, None] * t[:, None]
        waves = [f(p * 2.0 ** i) for i in range(4) for f in (torch.sin, torch.cos)]
        h = F.relu(self.body(torch.cat([p, *waves], -1)))
        alpha = 1 - (-F.softplus(self.density(h)[..., 0]) * 0.35).exp()
        left = torch.cat([torch.ones_like(alpha[:, :1]), (1 - alpha + 1e-7).log().cumsum(1).exp()[:, :-1]], 1)
        return F.mse_loss(((alpha * left)[..., None] * self.colour(h).sigmoid()).sum(1), colour)


class ODE(nn.Module):
    """A neural ODE by four steps of Runge and Kutta."""

    def __init__(self):
        super().__init__()
        self.f, self.head = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 8)), nn.Linear(8, 3)

    def forward(self, x, labels):
        for _ in range(4):
            a = self.f(x)
            b = self.f(x + 0.125 * a)
            c = self.f(x + 0.125 * b)
            x = x + 0.25 / 6 * (a + 2 * b + 2 * c + self.f(x + 0.25 * c))
        return F.cross_entropy(self.head(x), labels)


class PINN(nn.Module):
    """A residual of derivatives by the input, taken inside the forward."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, x):
        u, d = torch.func.vmap(lambda x: torch.func.jvp(self.net, (x,), (torch.ones_like(x),)))(x)
        return ((d + u) ** 2).mean()


class FNO(nn.Module):
    """A Fourier layer: modes of a real transform, mixed by complex weights."""

    def __init__(self, n=8, modes=4):
        super().__init__()
        self.inp, self.real, self.imag, self.skip, self.out, self.modes = nn.Linear(1, n), nn.Parameter(0.1 * torch.randn(n, n, modes)), nn.Parameter(0.1 * torch.randn(n, n, modes)), nn.Linear(n, n), nn.Linear(n, 1), modes

    def forward(self, x, y):
        h = self.inp(x)
        f = torch.view_as_real(torch.fft.rfft(h.transpose(1, 2)))[:, :, :self.modes]
        re = torch.einsum("bim,iom->bom", f[..., 0], self.real) - torch.einsum("bim,iom->bom", f[..., 1], self.imag)
        im = torch.einsum("bim,iom->bom", f[..., 0], self.imag) + torch.einsum("bim,iom->bom", f[..., 1], self.real)
        w = torch.arange(h.shape[1]) * torch.arange(self.modes)[:, None] * (2 * math.pi / h.shape[1])
        g = (re @ w.cos() - im @ w.sin()) / h.shape[1]
        return F.mse_loss(self.out(F.gelu(g.transpose(1, 2) + self.skip(h))), y)


def lstm_attention(): return Seq2Seq(), dict(src=ids(), tgt=ids(seq=5))
def nerf(): return NeRF(), dict(origin=torch.randn(6, 3), direction=F.normalize(torch.randn(6, 3), dim=-1), colour=torch.rand(6, 3))
def neural_ode(): return ODE(), dict(x=torch.randn(6, 8), labels=torch.randint(0, 3, (6,)))
def pinn(): return PINN(), dict(x=torch.linspace(0, 1, 12)[:, None])
def fourier(): return FNO(), dict(x=torch.randn(2, 16, 1), y=torch.randn(2, 16, 1))


def row(name, family, make, *switches, **kw):
    return Model(name, family, make, switches, **kw)


TS = dict(exporter="torchscript")
LORA = dict(grad=("--params", "*lora_*"))
FROZEN = dict(grad=("--frozen", "reference.*"))

TABLE = [
    *(row(n.replace("_", "-"), "language", getattr(base, n)) for n in "gpt2 opt neox gptj bloom falcon mpt llama mistral qwen3 gemma2 gemma3 phi phi3".split()),
    *(row(f.__name__, "language", f) for f in (olmo2, granite, cohere, smollm3, codegen, helium)),
    *(row(n, "language", getattr(base, n)) for n in "bert roberta albert electra deberta".split()),
    row("bert-dropout", "language", bert_dropout, random=True),
    row("modernbert", "language", modernbert),
    row("t5", "language", base.t5, "eager"),
    row("bart", "language", base.bart),
    row("mixtral", "mixture of experts", base.mixtral, "batched_mm"),
    row("qwen3-moe", "mixture of experts", base.qwen3_moe, "batched_mm"),
    row("olmoe", "mixture of experts", olmoe, "batched_mm"),
    row("deepseek-v3", "mixture of experts", deepseek_v3, "batched_mm"),
    row("gpt-oss", "mixture of experts", gpt_oss, "batched_mm"),
    row("mamba", "state space", mamba),
    row("mamba2", "state space", mamba2),
    row("rwkv", "state space", rwkv),
    row("recurrent-gemma", "state space", recurrent_gemma),
    row("falcon-h1", "state space", falcon_h1),
    row("bamba", "state space", bamba),
    row("vit", "vision", base.vit),
    row("dinov2", "vision", dinov2),
    row("swin", "vision", base.swin, "eager"),
    row("convnext", "vision", base.convnext),
    row("poolformer", "vision", base.poolformer),
    row("mixer", "vision", base.mixer),
    row("timm-vit", "vision", timm_vit),
    row("timm-convnext", "vision", timm_convnext),
    row("torchvision-vit", "vision", torchvision_vit),
    row("torchvision-swin", "vision", torchvision_swin),
    row("resnet", "vision", base.resnet, **TS),
    row("mobilenet-v3", "vision", base.mobilenet_v3, **TS),
    row("efficientnet", "vision", base.efficientnet, **TS),
    row("timm-efficientnet", "vision", timm_efficientnet, **TS),
    row("densenet", "vision", densenet, **TS),
    row("detr", "detection", detr, "eval", "matching", grad=("--frozen", "*.embedder.*,*.stages.*")),
    row("yolos", "detection", yolos, "matching"),
    row("retinanet", "detection", retinanet, "loss"),
    row("unet", "segmentation", base.unet),
    row("segformer", "segmentation", segformer_segmentation, **TS),
    row("deeplab", "segmentation", deeplab, **TS),
    row("whisper", "speech", base.whisper, grad=("--frozen", "*.encoder.embed_positions.*")),
    row("wav2vec2", "speech", wav2vec2, "loss"),
    row("audio-spectrogram", "speech", audio_spectrogram),
    row("lstm-ctc", "speech", lstm_ctc, "loss"),
    row("conformer-rnnt", "speech", rnnt, "loss"),
    row("diffusers-unet", "diffusion", diffusers_unet),
    row("sd-unet", "diffusion", sd_unet),
    row("dit", "diffusion", dit),
    row("sd3", "diffusion", sd3),
    row("flux", "diffusion", flux),
    row("autoencoder-kl", "diffusion", autoencoder_kl, "noise"),
    row("vae", "generative", vae, "noise"),
    row("vae-drawn", "generative", vae_drawn, random=True),
    row("gan-generator", "generative", gan_generator, grad=("--frozen", "disc.*"), **TS),
    row("gan-discriminator", "generative", gan_discriminator),
    row("real-nvp", "generative", real_nvp),
    row("gat", "graph", gat),
    row("gcn", "graph", gcn),
    row("graph-sage", "graph", sage),
    row("dlrm", "recommendation", dlrm),
    row("dlrm-bag", "recommendation", dlrm_bag),
    row("deepfm", "recommendation", deepfm),
    row("two-tower", "recommendation", two_tower),
    row("sasrec", "recommendation", sasrec),
    row("ppo", "reinforcement", ppo, "unchecked"),
    row("dqn", "reinforcement", dqn, grad=("--frozen", "target.*")),
    row("sac-actor", "reinforcement", sac, "noise", grad=("--frozen", "a.*,b.*")),
    row("decision-transformer", "reinforcement", decision_transformer),
    row("lora-llama", "adapters", lora_llama, **LORA),
    row("dora-llama", "adapters", dora_llama, **LORA),
    row("lora-vit", "adapters", lora_vit, grad=("--params", "*lora_*,*modules_to_save*")),
    row("lora-bert", "adapters", lora_bert, grad=("--params", "*lora_*,*modules_to_save*")),
    row("ia3-llama", "adapters", ia3_llama, grad=("--params", "*ia3_*")),
    row("vera-llama", "adapters", vera_llama, grad=("--params", "*vera_lambda_*")),
    row("dpo", "preference", preference("dpo"), **FROZEN),
    row("kto", "preference", preference("kto"), **FROZEN),
    row("grpo", "preference", preference("grpo", good=lambda: torch.randn(BATCH), bad=lambda: torch.randn(BATCH)), **FROZEN),
    row("orpo", "preference", preference("orpo")),
    row("simpo", "preference", preference("simpo")),
    row("reward", "preference", reward),
    row("vq-vae", "straight-through", vq_vae),
    row("binary-weights", "straight-through", binary),
    row("gumbel-softmax", "straight-through", gumbel, "noise"),
    row("fake-quantization", "straight-through", fake_quant),
    row("simsiam", "stop gradient", simsiam),
    row("byol", "stop gradient", byol, grad=("--frozen", "target.*")),
    row("distillation", "stop gradient", distillation, grad=("--frozen", "teacher.*")),
    row("patchtst", "time series", patchtst_layer, grad=("--frozen", "*.position_enc")),
    row("patchtst-batchnorm", "time series", patchtst, grad=("--frozen", "*.position_enc"), **TS, out='`norm_type="layernorm"` (row patchtst), or `model.eval()` with dynamo.'),
    row("patchtsmixer", "time series", patchtsmixer),
    row("time-series-transformer", "time series", time_series_transformer, "eval", "normal", "unchecked", grad=("--frozen", "*.embed_positions.*")),
    row("n-beats", "time series", nbeats),
    row("tcn", "time series", tcn),
    row("clip", "multimodal", clip),
    row("siglip", "multimodal", siglip),
    row("llava", "multimodal", llava, "no check", out="`masked_scatter` becomes NonZero, whose size depends on the data, so peaks are lower bounds; "
        "results are right. Where the image's places are fixed, join the embeddings with `torch.cat` and pass `inputs_embeds`."),
    row("flamingo", "multimodal", flamingo),
    row("lstm", "recurrent", base.lstm),
    row("gru", "recurrent", base.gru_deep),
    row("lstm-attention", "recurrent", lstm_attention),
    row("lstm-gru-cells", "recurrent", base.cells),
    row("nerf", "fields", nerf, "logs"),
    row("neural-ode", "fields", neural_ode),
    row("fourier-operator", "fields", fourier, out="for a fixed length, multiply by tables of cosines and sines instead of `torch.fft.rfft`."),
    row("pinn", "fields", pinn, out="write the derivative out layer by layer (tanh' = 1 - tanh²), as part of the forward."),
]
