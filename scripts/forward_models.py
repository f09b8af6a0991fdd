"""The models of forward_exports.py: small, with random weights and their loss
inside. Each function returns a module whose forward takes the feeds and returns
the loss (perhaps with more behind it), the feeds by name, and the symbols of
their free axes.
"""
import math

import torch
import torch.nn.functional as F
from torch import nn

VOCAB, BATCH, SEQ, WIDTH, HEADS = 67, 2, 24, 32, 4
TOKENS = {0: "batch", 1: "seq"}


class Named(nn.Module):
    """A transformers model fed by position; a mask of ones keeps it from looking
    for packed sequences, which the TorchScript exporter cannot write."""

    def __init__(self, model, names, mask="attention_mask"):
        super().__init__()
        self.model, self.names, self.mask, self.logits = model, names, mask, True

    def forward(self, *feeds):
        named = dict(zip(self.names, feeds))
        if self.mask and self.mask not in named:
            named[self.mask] = torch.ones_like(named["input_ids"])
        out = self.model(**named, return_dict=True)
        return (out.loss, out.logits) if self.logits else out.loss


class Criterion(nn.Module):
    """model, then loss of its output and the last feed."""

    def __init__(self, model, loss):
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, *feeds):
        y = self.model(*feeds[:-1])
        return self.loss(y, feeds[-1])


def ids(vocab=VOCAB, batch=BATCH, seq=SEQ):
    return torch.randint(1, vocab, (batch, seq))


def causal(config, model, labels="labels", **more):
    """A decoder of transformers with its language-model loss."""
    import transformers

    sizes = dict(vocab_size=VOCAB, hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=HEADS,
                 intermediate_size=3 * WIDTH, max_position_embeddings=32, attention_dropout=0.0, bos_token_id=1,
                 eos_token_id=2, pad_token_id=0, use_cache=False, attn_implementation="eager")
    sizes.update(more)
    c = getattr(transformers, config)(**sizes)
    x = ids()
    y = x.clone()
    y[0, :3] = -100
    return Named(getattr(transformers, model)(c), ["input_ids", "labels"]), dict(input_ids=x, labels=y), \
        dict(input_ids=TOKENS, labels=TOKENS)


def llama(**kw): return causal("LlamaConfig", "LlamaForCausalLM", num_key_value_heads=2, **kw)
def llama_sdpa(): return llama(attn_implementation="sdpa")
def llama3_rope():
    return llama(rope_parameters=dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0,
                                      high_freq_factor=4.0, original_max_position_embeddings=16))
def llama_yarn():
    return llama(rope_parameters=dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=16))
def mistral(): return causal("MistralConfig", "MistralForCausalLM", num_key_value_heads=2, sliding_window=4)
def qwen2(): return causal("Qwen2Config", "Qwen2ForCausalLM", num_key_value_heads=2)
def qwen3(): return causal("Qwen3Config", "Qwen3ForCausalLM", num_key_value_heads=2, head_dim=16)
def qwen3_moe():
    return causal("Qwen3MoeConfig", "Qwen3MoeForCausalLM", num_key_value_heads=2, head_dim=16, num_experts=4,
                  num_experts_per_tok=2, moe_intermediate_size=24)
def mixtral(): return causal("MixtralConfig", "MixtralForCausalLM", num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2)
def gemma(): return causal("GemmaConfig", "GemmaForCausalLM", num_key_value_heads=1, head_dim=16)
def gemma2(): return causal("Gemma2Config", "Gemma2ForCausalLM", num_key_value_heads=2, head_dim=16, sliding_window=4)
def gemma3(): return causal("Gemma3TextConfig", "Gemma3ForCausalLM", num_key_value_heads=2, head_dim=16, sliding_window=4)
def phi(): return causal("PhiConfig", "PhiForCausalLM")
def phi3(): return causal("Phi3Config", "Phi3ForCausalLM", num_key_value_heads=2)
def falcon(): return causal("FalconConfig", "FalconForCausalLM", new_decoder_architecture=False, multi_query=True, alibi=False)
def stablelm(): return causal("StableLmConfig", "StableLmForCausalLM", num_key_value_heads=2)
def opt(): return causal("OPTConfig", "OPTForCausalLM", ffn_dim=3 * WIDTH, word_embed_proj_dim=WIDTH, dropout=0.0)
def neox(): return causal("GPTNeoXConfig", "GPTNeoXForCausalLM")
def gptj():
    return causal("GPTJConfig", "GPTJForCausalLM", n_embd=WIDTH, n_layer=2, n_head=HEADS, n_positions=32, rotary_dim=4,
                  resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
def gpt_neo():
    return causal("GPTNeoConfig", "GPTNeoForCausalLM", num_layers=2, num_heads=HEADS, attention_types=[[["global", "local"], 1]],
                  window_size=4, resid_dropout=0.0, embed_dropout=0.0)
def gpt2(): return causal("GPT2Config", "GPT2LMHeadModel", n_embd=WIDTH, n_layer=2, n_head=HEADS, n_positions=32, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
def gpt2_sdpa(): return causal("GPT2Config", "GPT2LMHeadModel", n_embd=WIDTH, n_layer=2, n_head=HEADS, n_positions=32, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, attn_implementation="sdpa")
def bloom(): return causal("BloomConfig", "BloomForCausalLM", n_layer=2, n_head=HEADS, hidden_dropout=0.0)
def mpt(): return causal("MptConfig", "MptForCausalLM", d_model=WIDTH, n_layers=2, n_heads=HEADS, max_seq_len=32)


def masked(config, model, **more):
    import transformers

    m, feeds, axes = causal(config, model, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **more)
    mask = torch.ones_like(feeds["input_ids"])
    mask[1, -2:] = 0
    m.names = ["input_ids", "attention_mask", "labels"]
    return m, dict(input_ids=feeds["input_ids"], attention_mask=mask, labels=feeds["labels"]), dict(axes, attention_mask=TOKENS)


def bert(): return masked("BertConfig", "BertForMaskedLM")
def bert_sdpa(): return masked("BertConfig", "BertForMaskedLM", attn_implementation="sdpa")
def roberta(): return masked("RobertaConfig", "RobertaForMaskedLM", max_position_embeddings=34)
def albert(): return masked("AlbertConfig", "AlbertForMaskedLM", embedding_size=16)
def electra(): return masked("ElectraConfig", "ElectraForMaskedLM", embedding_size=16)
def distilbert():
    return masked("DistilBertConfig", "DistilBertForMaskedLM", dim=WIDTH, n_layers=2, n_heads=HEADS, hidden_dim=3 * WIDTH, dropout=0.0)
def deberta(): return masked("DebertaV2Config", "DebertaV2ForMaskedLM", relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=8, legacy=False)
def mobilebert(): return masked("MobileBertConfig", "MobileBertForMaskedLM", intra_bottleneck_size=16, embedding_size=16, true_hidden_size=16)


def classify():
    import transformers

    c = transformers.BertConfig(vocab_size=VOCAB, hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=HEADS,
                                intermediate_size=64, max_position_embeddings=32, hidden_dropout_prob=0.0,
                                attention_probs_dropout_prob=0.0, num_labels=3, attn_implementation="eager")
    x = ids()
    return Named(transformers.BertForSequenceClassification(c), ["input_ids", "labels"]), \
        dict(input_ids=x, labels=torch.tensor([0, 2])), dict(input_ids=TOKENS, labels={0: "batch"})


def t5():
    import transformers

    c = transformers.T5Config(vocab_size=VOCAB, d_model=WIDTH, d_kv=8, d_ff=64, num_layers=2, num_decoder_layers=2,
                              num_heads=HEADS, dropout_rate=0.0, use_cache=False, decoder_start_token_id=0,
                              relative_attention_num_buckets=8, relative_attention_max_distance=16)
    x, y = ids(), ids(seq=7)
    return Named(transformers.T5ForConditionalGeneration(c), ["input_ids", "labels"]), dict(input_ids=x, labels=y), \
        dict(input_ids=TOKENS, labels={0: "batch", 1: "target"})


def bart():
    import transformers

    c = transformers.BartConfig(vocab_size=VOCAB, d_model=WIDTH, encoder_layers=1, decoder_layers=1, encoder_attention_heads=HEADS,
                                decoder_attention_heads=HEADS, encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=32,
                                dropout=0.0, attention_dropout=0.0, activation_dropout=0.0, use_cache=False,
                                decoder_start_token_id=2, attn_implementation="eager")
    x, y = ids(), ids(seq=7)
    return Named(transformers.BartForConditionalGeneration(c), ["input_ids", "labels"]), dict(input_ids=x, labels=y), \
        dict(input_ids=TOKENS, labels={0: "batch", 1: "target"})


def whisper():
    import transformers

    c = transformers.WhisperConfig(vocab_size=VOCAB, d_model=WIDTH, encoder_layers=1, decoder_layers=1, encoder_attention_heads=HEADS,
                                   decoder_attention_heads=HEADS, encoder_ffn_dim=64, decoder_ffn_dim=64, num_mel_bins=8,
                                   max_source_positions=16, max_target_positions=16, dropout=0.0, use_cache=False,
                                   decoder_start_token_id=1, pad_token_id=0, bos_token_id=1, eos_token_id=2, attn_implementation="eager")
    return Named(transformers.WhisperForConditionalGeneration(c), ["input_features", "labels"], None), \
        dict(input_features=torch.randn(BATCH, 8, 32), labels=ids(seq=7)), dict(input_features={0: "batch"}, labels={0: "batch", 1: "target"})


def vision(config, model, size=32, **more):
    import transformers

    c = getattr(transformers, config)(image_size=size, num_labels=10, num_channels=3, **more)
    return Named(getattr(transformers, model)(c), ["pixel_values", "labels"], None), \
        dict(pixel_values=torch.randn(BATCH, 3, size, size), labels=torch.tensor([3, 7])), \
        dict(pixel_values={0: "batch"}, labels={0: "batch"})


def vit():
    return vision("ViTConfig", "ViTForImageClassification", hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=HEADS,
                  intermediate_size=64, patch_size=8, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, attn_implementation="eager")
def swin():
    return vision("SwinConfig", "SwinForImageClassification", embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4, patch_size=2,
                  hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, drop_path_rate=0.0)
def swinv2():
    return vision("Swinv2Config", "Swinv2ForImageClassification", embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4, patch_size=2,
                  hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, drop_path_rate=0.0)
def convnext():
    return vision("ConvNextConfig", "ConvNextForImageClassification", hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1], drop_path_rate=0.0)
def convnextv2():
    return vision("ConvNextV2Config", "ConvNextV2ForImageClassification", hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1], drop_path_rate=0.0)
def resnet():
    return vision("ResNetConfig", "ResNetForImageClassification", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="bottleneck")
def regnet():
    return vision("RegNetConfig", "RegNetForImageClassification", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], groups_width=4)
def mobilenet_v2():
    return vision("MobileNetV2Config", "MobileNetV2ForImageClassification", size=64, depth_multiplier=0.25, min_depth=4, depth_divisible_by=4,
                  classifier_dropout_prob=0.0)
def mobilenet_v1():
    return vision("MobileNetV1Config", "MobileNetV1ForImageClassification", size=64, depth_multiplier=0.125, classifier_dropout_prob=0.0)
def efficientnet():
    return vision("EfficientNetConfig", "EfficientNetForImageClassification", size=64, width_coefficient=0.25, depth_coefficient=0.25,
                  hidden_dim=320, dropout_rate=0.0, drop_connect_rate=0.0)
def poolformer():
    return vision("PoolFormerConfig", "PoolFormerForImageClassification", hidden_sizes=[8, 16, 16, 24], depths=[1, 1, 1, 1], drop_path_rate=0.0)
def segformer():
    return vision("SegformerConfig", "SegformerForImageClassification", hidden_sizes=[8, 16, 16, 24], depths=[1, 1, 1, 1],
                  num_attention_heads=[1, 2, 2, 4], drop_path_rate=0.0, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
def mobilevit():
    return vision("MobileViTConfig", "MobileViTForImageClassification", size=64, hidden_sizes=[16, 16, 16], neck_hidden_sizes=[8, 8, 12, 12, 16, 16, 32],
                  hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, classifier_dropout_prob=0.0)


def images(model, classes=10, size=16, channels=3):
    return Criterion(model, F.cross_entropy), dict(x=torch.randn(BATCH, channels, size, size), labels=torch.randint(0, classes, (BATCH,))), \
        dict(x={0: "batch"}, labels={0: "batch"})


class SqueezeExcite(nn.Module):
    def __init__(self, n, gate):
        super().__init__()
        self.a, self.b, self.gate = nn.Conv2d(n, n // 2, 1), nn.Conv2d(n // 2, n, 1), gate

    def forward(self, x):
        return x * self.gate(self.b(F.relu(self.a(F.adaptive_avg_pool2d(x, 1)))))


def mobilenet_v3():
    def block(n, k, act):
        return nn.Sequential(nn.Conv2d(n, 2 * n, 1, bias=False), nn.BatchNorm2d(2 * n), act, nn.Conv2d(2 * n, 2 * n, k, padding=k // 2, groups=2 * n, bias=False),
                             nn.BatchNorm2d(2 * n), act, SqueezeExcite(2 * n, nn.Hardsigmoid()), nn.Conv2d(2 * n, n, 1, bias=False), nn.BatchNorm2d(n))
    m = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.Hardswish(), block(8, 3, nn.ReLU()), block(8, 5, nn.Hardswish()),
                      nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 16), nn.Hardswish(), nn.Dropout(0.0), nn.Linear(16, 10))
    return images(m)


class UNet(nn.Module):
    def __init__(self, up):
        super().__init__()
        def double(i, o): return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.GroupNorm(2, o), nn.SiLU(), nn.Conv2d(o, o, 3, padding=1), nn.InstanceNorm2d(o, affine=True), nn.ReLU())
        self.down1, self.down2, self.mid = double(3, 8), double(8, 16), double(16, 16)
        if up == "transpose":
            self.up1, self.up2 = nn.ConvTranspose2d(16, 16, 2, 2), nn.ConvTranspose2d(8, 8, 4, 2, 1)
        else:
            self.up1 = self.up2 = nn.Upsample(scale_factor=2, mode=up, **({} if up == "nearest" else dict(align_corners=up == "bilinear")))
        self.dec1, self.dec2, self.out = double(32, 8), double(16, 8), nn.Conv2d(8, 4, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.mid(F.avg_pool2d(b, 2))
        d = self.dec1(torch.cat([self.up1(c), b], 1))
        return self.out(self.dec2(torch.cat([self.up2(d), a], 1)))


def unet(up="transpose"):
    return Criterion(UNet(up), F.cross_entropy), dict(x=torch.randn(BATCH, 3, 16, 16), labels=torch.randint(0, 4, (BATCH, 16, 16))), \
        dict(x={0: "batch"}, labels={0: "batch"})


def unet_nearest(): return unet("nearest")
def unet_bilinear(): return unet("bilinear")
def unet_bicubic(): return unet("bicubic")


class Recurrent(nn.Module):
    def __init__(self, kind, **kw):
        super().__init__()
        first = kw.get("batch_first", False)
        self.emb = nn.Embedding(VOCAB, 16, padding_idx=0)
        self.rnn = kind(16, 12, **kw)
        self.first = first
        wide = 12 * (2 if kw.get("bidirectional") else 1)
        self.head = nn.Linear(kw.get("proj_size", 0) or wide, VOCAB)

    def forward(self, x, labels):
        h = self.emb(x)
        h = h if self.first else h.transpose(0, 1)
        y, state = self.rnn(h)
        y = y if self.first else y.transpose(0, 1)
        last = state[0] if isinstance(state, tuple) else state
        return F.cross_entropy(self.head(y).flatten(0, 1), labels.flatten()) + last.pow(2).mean()


def recurrent(kind, **kw):
    # No token is the padding: that its row gets no gradient is not in the file.
    return Recurrent(kind, **kw), dict(x=ids(), labels=ids()), dict(x={0: "batch"}, labels={0: "batch"})


def lstm(): return recurrent(nn.LSTM)
def lstm_deep(): return recurrent(nn.LSTM, num_layers=2, bidirectional=True, batch_first=True)
def gru_deep(): return recurrent(nn.GRU, num_layers=2, bidirectional=True)
def gru_first(): return recurrent(nn.GRU, batch_first=True, bias=False)
def rnn(): return recurrent(nn.RNN, num_layers=2, batch_first=True)
def rnn_relu(): return recurrent(nn.RNN, nonlinearity="relu", bidirectional=True)


class Cells(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.head = nn.LSTMCell(8, 12), nn.GRUCell(12, 12), nn.Linear(12, 1)

    def forward(self, x, y):
        h, c, g = [torch.zeros(x.shape[0], 12) for _ in range(3)]
        for t in range(4):
            h, c = self.a(x[:, t], (h, c))
            g = self.b(h, g)
        return F.mse_loss(self.head(g)[:, 0], y)


def cells(): return Cells(), dict(x=torch.randn(3, 4, 8), y=torch.randn(3)), {}


class Mixer(nn.Module):
    def __init__(self, s=16, n=24):
        super().__init__()
        self.patch = nn.Conv2d(3, n, 4, 4)
        self.token = nn.ModuleList(nn.Sequential(nn.Linear(s, 32), nn.GELU(), nn.Linear(32, s)) for _ in range(2))
        self.channel = nn.ModuleList(nn.Sequential(nn.Linear(n, 32), nn.GELU("tanh"), nn.Linear(32, n)) for _ in range(2))
        self.norm = nn.ModuleList(nn.LayerNorm(n) for _ in range(4))
        self.head = nn.Linear(n, 10)

    def forward(self, x):
        h = self.patch(x).flatten(2).transpose(1, 2)
        for i in range(2):
            h = h + self.token[i](self.norm[2 * i](h).transpose(1, 2)).transpose(1, 2)
            h = h + self.channel[i](self.norm[2 * i + 1](h))
        return self.head(h.mean(1))


def mixer(): return images(Mixer())


class Seq2Seq(nn.Module):
    def __init__(self, first, **kw):
        super().__init__()
        self.src, self.tgt, self.first = nn.Embedding(VOCAB, WIDTH), nn.Embedding(VOCAB, WIDTH), first
        self.body = nn.Transformer(WIDTH, HEADS, 1, 1, 48, dropout=0.0, batch_first=first, **kw)
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, src, tgt, labels):
        a, b = self.src(src), self.tgt(tgt)
        mask = nn.Transformer.generate_square_subsequent_mask(tgt.shape[1])
        if not self.first:
            a, b = a.transpose(0, 1), b.transpose(0, 1)
        y = self.body(a, b, tgt_mask=mask)
        y = y if self.first else y.transpose(0, 1)
        return F.cross_entropy(self.head(y).flatten(0, 1), labels.flatten(), ignore_index=0, label_smoothing=0.1)


def seq2seq(first=True, **kw):
    labels = ids(seq=7)
    labels[0, 2] = 0
    return Seq2Seq(first, **kw), dict(src=ids(), tgt=ids(seq=7), labels=labels), \
        dict(src={0: "batch"}, tgt={0: "batch"}, labels={0: "batch"})


def seq2seq_pre(): return seq2seq(False, norm_first=True, activation="gelu")


class Encoder(nn.Module):
    def __init__(self, padded, **kw):
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 48, dropout=0.0, batch_first=True, **kw)
        self.body, self.head, self.padded = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(WIDTH, 1), padded

    def forward(self, x, y):
        pad = (y == 0) if self.padded else None
        return F.smooth_l1_loss(self.head(self.body(x, src_key_padding_mask=pad))[..., 0], y)


def encoder(padded=False, **kw):
    y = torch.randn(BATCH, SEQ)
    y[1, -2:] = 0
    return Encoder(padded, **kw), dict(x=torch.randn(BATCH, SEQ, WIDTH), y=y), dict(x=TOKENS, y=TOKENS)


def encoder_padded(): return encoder(True, norm_first=True, activation="gelu")


class Attend(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind, self.q = kind, nn.Linear(WIDTH, WIDTH)
        self.mha = nn.MultiheadAttention(WIDTH, HEADS, batch_first=kind != "cross", kdim=WIDTH, vdim=WIDTH, add_bias_kv=kind == "bias")

    def forward(self, x, y):
        h = self.q(x)
        if self.kind == "sdpa":
            t = h.unflatten(-1, (HEADS, -1)).transpose(1, 2)
            a = F.scaled_dot_product_attention(t, t.flip(2), t * 0.5, is_causal=True)
            a = a + F.scaled_dot_product_attention(t, t, t, attn_mask=torch.zeros(x.shape[1], x.shape[1]).masked_fill(torch.ones(x.shape[1], x.shape[1]).triu(2) > 0, -1e9), scale=0.3)
            a = a + F.scaled_dot_product_attention(t, t, t, attn_mask=torch.ones(x.shape[1], x.shape[1]).tril(1) > 0)
            return F.mse_loss(a.transpose(1, 2).flatten(2), y)
        if self.kind == "gqa":
            t = h.unflatten(-1, (HEADS, -1)).transpose(1, 2)
            return F.mse_loss(F.scaled_dot_product_attention(t, t[:, :2] * 0.7, t[:, 2:], enable_gqa=True).transpose(1, 2).flatten(2), y)
        if self.kind == "cross":
            h, x = h.transpose(0, 1), x.transpose(0, 1)
            return F.l1_loss(self.mha(h, x, x)[0].transpose(0, 1), y)
        out, weights = self.mha(h, h, h)
        return F.mse_loss(out, y) + weights.square().mean()


def attend(kind): return Attend(kind), dict(x=torch.randn(BATCH, SEQ, WIDTH), y=torch.randn(BATCH, SEQ, WIDTH)), dict(x={0: "batch"}, y={0: "batch"})
def mha(): return attend("plain")
def mha_bias(): return attend("bias")
def mha_cross(): return attend("cross")
def sdpa(): return attend("sdpa")
def sdpa_gqa(): return attend("gqa")
