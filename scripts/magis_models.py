"""The networks of MAGIS's evaluation (Chen et al., ASPLOS 2024) in PyTorch, at its sizes.

As there, transformers have neither embeddings nor biases of positions, their activation is
ReLU, convolutional networks have no batch norms, UNets take images of one channel and 256 x 256,
and the loss is the squared difference from a target of the output's shape. Weights are never
read: the modules are made without numbers.
"""
import torch
import torch.nn.functional as F
from torch import nn

CHANNELS = [64, 128, 256, 512, 1024]  # of the two UNets


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.query, self.key, self.value))
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.before, self.attention, self.between = nn.LayerNorm(width), Attention(width, heads), nn.LayerNorm(width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.attention(self.before(x))
        return x + self.narrow(self.widen(self.between(x)).relu())


def transformer(layers, width, heads):
    return nn.Sequential(*(Block(width, heads) for _ in range(layers)))


class ViT(nn.Module):
    """Pictures cut into patches, which are read as they are."""

    def __init__(self, layers=12, width=768, heads=12, patch=16, classes=1000):
        super().__init__()
        self.patch, self.blocks, self.head = patch, transformer(layers, width, heads), nn.Linear(width, classes)

    def forward(self, x):
        rows = x.unflatten(2, (-1, self.patch)).unflatten(4, (-1, self.patch))  # batch, channel, row, y, column, x
        return self.head(self.blocks(rows.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)))


class Convolution(nn.Module):
    def __init__(self, before, after, kernel=3):
        super().__init__()
        self.conv = nn.Conv2d(before, after, kernel, padding=kernel // 2)

    def forward(self, x):
        return self.conv(x).relu()


class UNet(nn.Module):
    def __init__(self, channels=CHANNELS):
        super().__init__()
        twice = lambda before, after: nn.Sequential(Convolution(before, after), Convolution(after, after))
        self.down = nn.ModuleList(twice(a, b) for a, b in zip([1] + channels, channels))
        self.up = nn.ModuleList(twice(a + b, a) for a, b in reversed(list(zip(channels, channels[1:]))))
        self.narrow, self.last = Convolution(channels[0], 2), nn.Conv2d(2, 1, 1)

    def forward(self, x):
        skips = []
        for level in self.down:
            if skips:
                x = F.avg_pool2d(x, 2)
            x = level(x)
            skips.append(x)
        skips.pop()
        for level in self.up:
            x = level(torch.cat([skips.pop(), F.interpolate(x, scale_factor=2)], 1))
        return self.last(self.narrow(x)).sigmoid()


class UNetPlusPlus(nn.Module):
    """Node (i, j) reads (i, j - 1) from below and all (k, ·) of its own height before it."""

    def __init__(self, channels=CHANNELS):
        super().__init__()
        self.down = nn.ModuleList(Convolution(a, b) for a, b in zip([1] + channels, channels))
        self.up = nn.ModuleList(
            nn.ModuleList(Convolution(channels[i - j] + (j + 1) * channels[i - j - 1], channels[i - j - 1]) for j in range(i))
            for i in range(len(channels)))
        self.last = nn.Conv2d(channels[0], 1, 1)

    def forward(self, x):
        at = {}
        for i, level in enumerate(self.down):
            x = at[i, 0] = level(x if i == 0 else F.avg_pool2d(x, 2))
            for j, up in enumerate(self.up[i]):
                beside = [at[i - 1 - k, j - k] for k in reversed(range(j + 1))]
                at[i, j + 1] = up(torch.cat([F.interpolate(at[i, j], scale_factor=2), *beside], 1))
        return self.last(at[i, i]).sigmoid()


class Bottleneck(nn.Module):
    def __init__(self, before, width, stride):
        super().__init__()
        after = 4 * width
        self.narrow, self.middle, self.widen = nn.Conv2d(before, width, 1), nn.Conv2d(width, width, 3, stride, 1), nn.Conv2d(width, after, 1)
        self.beside = nn.Conv2d(before, after, 1, stride) if stride > 1 or before != after else nn.Identity()

    def forward(self, x):
        return (self.widen(self.middle(self.narrow(x).relu()).relu()) + self.beside(x)).relu()


class ResNet(nn.Module):
    def __init__(self, blocks=(3, 4, 6, 3), classes=1000):
        super().__init__()
        self.first, channels, stages = nn.Conv2d(3, 64, 7, 2, 3), 64, []
        for stage, count in enumerate(blocks):
            width = 64 << stage
            for k in range(count):
                stages.append(Bottleneck(channels, width, 2 if k == 0 and stage else 1))
                channels = 4 * width
        self.blocks, self.last = nn.Sequential(*stages), nn.Conv2d(channels, classes, 1)

    def forward(self, x):
        x = self.blocks(F.avg_pool2d(self.first(x).relu(), 3, 2, 1))
        return self.last(F.avg_pool2d(x, x.shape[-1]))


class WithLoss(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, target):
        return F.mse_loss(self.model(x), target)


# A row: the network, its batch in the paper, a batch that this machine measures, the input's and the
# output's extents behind the batch, and the module.
TABLE = {
    "ResNet-50": (64, 4, (3, 224, 224), (1000, 1, 1), ResNet),
    "BERT-base": (32, 2, (512, 768), (512, 768), lambda: transformer(12, 768, 12)),
    "ViT-B/16": (64, 4, (3, 224, 224), (196, 1000), ViT),
    "UNet": (32, 1, (1, 256, 256), (1, 256, 256), UNet),
    "UNet++": (16, 1, (1, 256, 256), (1, 256, 256), UNetPlusPlus),
    "GPT-Neo": (32, 1, (512, 2048), (512, 2048), lambda: transformer(24, 2048, 16)),
}


def feeds(name, batch):
    _, _, x, target, _ = TABLE[name]
    return torch.empty(batch, *x), torch.empty(batch, *target)


def build(name):
    """The network with its loss, made of memory that nothing has written to."""
    with torch.device("meta"):
        model = WithLoss(TABLE[name][4]())
    return model.to_empty(device="cpu").train()
