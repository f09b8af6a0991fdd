"""Losses and operators that the models of forward_models.py do not have, each in
a small network of its own; the same form.
"""
import torch
import torch.nn.functional as F
from torch import nn

BATCH = {0: "batch"}


class Apply(nn.Module):
    """A loss of f(h, module), h = Linear(x); f is free to use the weights."""

    def __init__(self, f, width=12, **modules):
        super().__init__()
        self.lin, self.f = nn.Linear(8, width), f
        for k, m in modules.items():
            setattr(self, k, m)

    def forward(self, x, *more):
        return self.f(self, self.lin(x), *more)


def apply(f, rows=(6,), feeds=None, dynamic=True, **kw):
    feeds = feeds or {}
    return Apply(f, **kw), dict(x=torch.randn(*rows, 8), **feeds), {k: BATCH for k in ["x", *feeds]} if dynamic else {}


def classes(*shape, n=12): return torch.randint(0, n, shape)


# Losses.
def ce_weights():
    w = torch.rand(12) + 0.5
    return apply(lambda m, h, t: F.cross_entropy(h, t, weight=m.w.v, ignore_index=3, label_smoothing=0.1),
                 feeds=dict(t=torch.tensor([1, 3, 5, 7, 3, 0])), w=Buffer(w))
def ce_sum(): return apply(lambda m, h, t: F.cross_entropy(h, t, reduction="sum", ignore_index=2), feeds=dict(t=torch.tensor([2, 3, 5, 7, 2, 0])))
def ce_none(): return apply(lambda m, h, t: (F.cross_entropy(h, t, reduction="none") * h[:, 0]).mean(), feeds=dict(t=classes(6)))
def ce_soft(): return apply(lambda m, h, t: F.cross_entropy(h, t), feeds=dict(t=torch.rand(6, 12).softmax(-1)))
def ce_deep(): return apply(lambda m, h, t: F.cross_entropy(h.transpose(1, 2), t), rows=(3, 5), feeds=dict(t=classes(3, 5)))
def nll(): return apply(lambda m, h, t: F.nll_loss(F.log_softmax(h, -1), t), feeds=dict(t=classes(6)))
def bce():
    return apply(lambda m, h, t: F.binary_cross_entropy_with_logits(h, t) + F.binary_cross_entropy(h.sigmoid(), t)
                 + F.binary_cross_entropy_with_logits(h, t, pos_weight=m.p.v), feeds=dict(t=torch.rand(6, 12).round()), p=Buffer(torch.rand(12) + 1))
def kl(): return apply(lambda m, h, t: F.kl_div(h.log_softmax(-1), t, reduction="batchmean") + F.kl_div(h.log_softmax(-1), t.log(), log_target=True), feeds=dict(t=torch.rand(6, 12).softmax(-1)))
def cosine(): return apply(lambda m, h, t: F.cosine_embedding_loss(h, m.o(h), t) + F.cosine_similarity(h, m.o(h)).mean(), feeds=dict(t=torch.tensor([1.0, -1, 1, -1, 1, 1])), o=nn.Linear(12, 12))
def huber(): return apply(lambda m, h, t: F.huber_loss(h, t, delta=0.5) + F.smooth_l1_loss(h, t, beta=0.3) + F.l1_loss(h, t, reduction="sum") / 50, feeds=dict(t=torch.randn(6, 12)))
def margin(): return apply(lambda m, h, t: F.margin_ranking_loss(h[:, 0], h[:, 1], t) + F.hinge_embedding_loss(h[:, 2], t) + F.soft_margin_loss(h[:, 3], t), feeds=dict(t=torch.tensor([1.0, -1, 1, -1, 1, 1])))
def triplet(): return apply(lambda m, h: F.triplet_margin_loss(h[:, :4], h[:, 4:8], h[:, 8:]) + F.pairwise_distance(h[:, :6], h[:, 6:]).mean())
def gaussian_nll(): return apply(lambda m, h, t: F.gaussian_nll_loss(h, t, h.exp()) + F.poisson_nll_loss(h, t.abs()), feeds=dict(t=torch.randn(6, 12)))
def multilabel(): return apply(lambda m, h, t: F.multilabel_soft_margin_loss(h, t), feeds=dict(t=torch.rand(6, 12).round()))
def clip_loss(): return apply(lambda m, h: (lambda a: F.cross_entropy(a, torch.arange(a.shape[0])) + F.cross_entropy(a.t(), torch.arange(a.shape[0])))(F.normalize(h, dim=-1) @ F.normalize(m.o(h), dim=-1).t() * m.s.exp()), o=nn.Linear(12, 12), s=nn.Parameter(torch.tensor(1.5)))
def focal(): return apply(lambda m, h, t: ((1 - (p := h.softmax(-1).gather(1, t[:, None])[:, 0])) ** 2 * -p.log()).mean(), feeds=dict(t=classes(6)))


class Buffer(nn.Module):
    def __init__(self, v):
        super().__init__()
        self.register_buffer("v", v)


# Operators.
CASES = {}


def each(prefix, functions, **options):
    """A case for every function of h, [6, 12]."""
    for name, f in functions.items():
        CASES[f"{prefix}_{name}"] = lambda f=f: apply(lambda m, h: scalar(f(h)), **options)


def scalar(y):
    """A loss whose gradient is not the same everywhere."""
    return (y * torch.linspace(0.5, 1.5, y.numel()).view(y.shape)).sum() if y.dim() else y


each("act", {n: lambda h, n=n: getattr(F, n)(h * 1.3) for n in (
    "elu selu celu softplus softsign hardsigmoid hardswish mish silu gelu relu6 leaky_relu hardtanh logsigmoid tanhshrink softshrink "
    "hardshrink softmin glu rrelu").split()}, dynamic=False)
each("el", dict(
    sin=torch.sin, cos=torch.cos, tan=lambda h: (h * 0.3).tan(), atan=torch.atan, asin=lambda h: (h.tanh() * 0.9).asin(), acos=lambda h: (h.tanh() * 0.9).acos(),
    sinh=torch.sinh, cosh=torch.cosh, asinh=torch.asinh, acosh=lambda h: (h.square() + 1.5).acosh(), atanh=lambda h: (h.tanh() * 0.9).atanh(), exp=torch.exp,
    exp2=torch.exp2, expm1=torch.expm1, log=lambda h: (h.abs() + 1).log(), log2=lambda h: (h.abs() + 1).log2(), log10=lambda h: (h.abs() + 1).log10(), log1p=lambda h: h.abs().log1p(),
    sqrt=lambda h: (h.square() + 1).sqrt(), rsqrt=lambda h: (h.square() + 1).rsqrt(), reciprocal=lambda h: 1 / (h.abs() + 1), erf=torch.erf, erfc=torch.erfc,
    pow=lambda h: (h.abs() + 0.1) ** 1.5, cube=lambda h: h ** 3, base=lambda h: 2.0 ** h, power=lambda h: (h.abs() + 0.5) ** h, negative=lambda h: (h.abs() + 1) ** -2, fourth=lambda h: h.pow(4),
    clamp=lambda h: h.clamp(-0.5, 0.5), clamp_min=lambda h: h.clamp(min=0.1), clamp_max=lambda h: h.clamp_max(0.1), clamp_tensor=lambda h: torch.clamp(h, h * 0.5, h * 0.3 + 1),
    floor=lambda h: h.floor() * h, ceil=lambda h: h.ceil() * h, round=lambda h: h.round() * h, trunc=lambda h: h.trunc() * h, sign=lambda h: h.sign() * h, frac=torch.frac,
    maximum=lambda h: torch.maximum(h, h * 0.5), minimum=lambda h: torch.minimum(h, h * 0.5), fmod=lambda h: h.fmod(0.7), remainder=lambda h: h.remainder(0.7), remainder_by=lambda h: torch.remainder(h, h.flip(1).abs() + 1),
    atan2=lambda h: torch.atan2(h, h.flip(1)), lerp=lambda h: torch.lerp(h, h.flip(1), 0.3), addcmul=lambda h: torch.addcmul(h, h, h.flip(0), value=0.5), addcdiv=lambda h: torch.addcdiv(h, h, h.flip(1).square() + 1),
    logit=lambda h: h.sigmoid().logit(), logaddexp=lambda h: torch.logaddexp(h, h.flip(1)), hypot=lambda h: torch.hypot(h, h.flip(1)), nan_to_num=torch.nan_to_num, xlogy=lambda h: torch.xlogy(h, h.abs() + 1), sinc=torch.sinc, rsub=lambda h: 1 - h,
    floor_divide=lambda h: torch.div(h, 0.7, rounding_mode="floor") * h, where=lambda h: torch.where(h > 0, h, h * 0.1), masked_fill=lambda h: h.masked_fill(h < 0, 0.3), std=lambda h: h.std(1), heaviside=lambda h: (h > 0).float() * h, double=lambda h: h.double().sin().float(), half=lambda h: (h.half() * 2).float()), dynamic=False)
each("red", dict(
    mean=lambda h: h.mean(0), amax=lambda h: h.amax(1), amin=lambda h: h.amin(0), logsumexp=lambda h: h.logsumexp(1), norm=lambda h: h.norm(), norm1=lambda h: h.norm(p=1, dim=1), norm3=lambda h: h.norm(p=3, dim=1), norm_inf=lambda h: h.norm(p=float("inf"), dim=1), var=lambda h: h.var(1),
    std=lambda h: h.std(0, unbiased=False), prod=lambda h: (h * 0.3 + 1).prod(1), prod_all=lambda h: (h * 0.3 + 1).prod(), max=lambda h: h.max(), min=lambda h: h.min(1).values, max_index=lambda h: h.max(1).values, var_mean=lambda h: sum(torch.var_mean(h, 1)), cumsum=lambda h: h.cumsum(1), cumprod=lambda h: (h * 0.3 + 1).cumprod(1), logcumsumexp=lambda h: h.logcumsumexp(1),
    vector_norm=lambda h: torch.linalg.vector_norm(h, dim=1), matrix_norm=lambda h: torch.linalg.matrix_norm(h), median=lambda h: h.median(1).values, square_sum=lambda h: h.square().sum(-1, keepdim=True).sqrt(), softmax=lambda h: h.softmax(0), log_softmax=lambda h: h.view(6, 3, 4).log_softmax(1), argmax=lambda h: h.argmax(1) * h[:, 0], aminmax=lambda h: sum(h.aminmax(dim=1)),
    none=lambda h: h.sum(()), diff=lambda h: h.diff(dim=1), trapz=lambda h: torch.trapezoid(h), dist=lambda h: torch.dist(h, h.flip(0)), nansum=lambda h: h.nansum(1), standardize=lambda h: (h - h.mean(1, keepdim=True)) / (h.std(1, keepdim=True) + 1e-5)), dynamic=False)
each("shape", dict(
    stack=lambda h: torch.stack([h, h * 2], 1), flip=lambda h: h.flip(1), roll=lambda h: h.roll(2, 1), roll2=lambda h: h.view(6, 3, 4).roll((1, -1), (0, 2)), permute=lambda h: h.view(6, 3, 4).permute(2, 0, 1), chunk=lambda h: torch.cat([c * i for i, c in enumerate(h.chunk(3, 1))], 0), split=lambda h: torch.cat([c * (i + 1) for i, c in enumerate(h.split([5, 4, 3], 1))], 1), split_size=lambda h: h.split(5, 1)[2], unbind=lambda h: h.unbind(1)[3],
    repeat=lambda h: h.repeat(2, 1, 3), tile=lambda h: h.tile(2, 2), expand=lambda h: h[:, None].expand(6, 5, 12), pad=lambda h: F.pad(h, (1, 2), value=0.3), pad_negative=lambda h: F.pad(h, (-1, 2)), reflect=lambda h: F.pad(h.view(6, 3, 4), (2, 1), mode="reflect"), replicate=lambda h: F.pad(h.view(6, 3, 4), (2, 1), mode="replicate"), circular=lambda h: F.pad(h.view(6, 3, 4), (1, 1), mode="circular"),
    reflect2=lambda h: F.pad(h.view(1, 6, 3, 4), (2, 1, 1, 2), mode="reflect"), replicate2=lambda h: F.pad(h.view(1, 6, 3, 4), (2, 1, 1, 3), mode="replicate"), unfold=lambda h: h.unfold(1, 4, 2), step=lambda h: h[::2, 1::3], negative=lambda h: h[-3:, :-2], interleave=lambda h: h.repeat_interleave(2, 1), narrow=lambda h: h.narrow(1, 2, 5), diagonal=lambda h: h.diagonal(), diag_embed=lambda h: h.diag_embed(), tril=lambda h: h.tril(-1), triu=lambda h: h.triu(1),
    movedim=lambda h: h.view(6, 3, 4).movedim(0, -1), squeeze=lambda h: h[:1].squeeze(0), meshgrid=lambda h: torch.meshgrid(h[0], h[1], indexing="ij")[0] * 2, block=lambda h: torch.block_diag(h[:2], h[2:]), rot90=lambda h: h.rot90(), hstack=lambda h: torch.hstack([h, h]), cartesian=lambda h: h.unflatten(1, (3, 4)).swapaxes(0, 1).contiguous().flatten(), as_strided=lambda h: h.as_strided((3, 4), (2, 3)), select=lambda h: h.select(1, 3), one_hot=lambda h: F.one_hot(h.argmax(1), 12) * h), dynamic=False)
I = torch.tensor([[0, 3, 5], [2, 2, 1], [11, 0, 4], [7, 8, 9], [1, 1, 1], [10, 6, 3]])
each("index", dict(
    gather=lambda h: h.gather(1, I), gather0=lambda h: h.gather(0, I % 6), select=lambda h: h.index_select(0, I[0] % 6), rows=lambda h: h[I[:, 0] % 6], columns=lambda h: h[:, I[0]], pairs=lambda h: h[torch.arange(6), I[:, 1]], grid=lambda h: h[I % 6], two=lambda h: h[I % 6, I], middle=lambda h: h.view(6, 3, 4)[:, I[:, 0] % 3, 1], mixed=lambda h: h.view(6, 3, 4)[I[:, 0] % 6, :, I[:, 1] % 4],
    scatter_add=lambda h: torch.zeros(6, 12).scatter_add(1, I, h[:, :3]), scatter=lambda h: h.scatter(1, torch.tensor([[0, 1, 2]] * 6), h[:, :3] * 2), scatter_value=lambda h: h.scatter(1, I, 0.5), scatter_reduce=lambda h: h.scatter_reduce(1, I, h[:, :3], "amax"), scatter_mean=lambda h: h.scatter_reduce(1, I, h[:, :3], "mean"), scatter_prod=lambda h: h.scatter_reduce(1, I, h[:, :3], "prod"), index_add=lambda h: torch.zeros(8, 12).index_add(0, I[:, 0] % 8, h), index_copy=lambda h: h.index_copy(0, torch.tensor([1, 4]), h[:2] * 3), index_put=lambda h: h.index_put((torch.tensor([1, 1, 4]),), h[:3] * 3, accumulate=True), index_fill=lambda h: h.index_fill(0, torch.tensor([1, 4]), 0.5),
    topk=lambda h: h.topk(3).values, topk_least=lambda h: h.topk(3, 0, largest=False).values, sort=lambda h: h.sort(1).values, sort_down=lambda h: h.sort(0, descending=True).values, along=lambda h: torch.take_along_dim(h, I, 1), take=lambda h: h.take(I), masked_select=lambda h: h.masked_select(I.repeat(1, 4) > 4), masked=lambda h: h[I.repeat(1, 4) > 4], masked_scatter=lambda h: h.masked_scatter(I.repeat(1, 4) > 4, h * 2), bag=lambda h: F.embedding_bag(I % 6, h), bag_max=lambda h: F.embedding_bag(I % 6, h, mode="max"), embedding=lambda h: F.embedding(I % 6, h), kth=lambda h: h.kthvalue(3, 1).values), dynamic=False)


def writes():
    def f(m, h):
        d = h.clone()
        d[:, 2] = h[:, 3] * 2
        d[1:3] += 1.0
        d[torch.tensor([0, 5])] = 0.5
        d[:, ::3] *= 2
        d[3, 4:6] = h[0, :2]
        return d.square().sum()
    return apply(f, dynamic=False)


def einsums():
    def f(m, h):
        q = h.view(-1, 3, 4)
        return sum(torch.einsum(e, *o).square().mean() for e, o in [
            ("bij,bkj->bik", (q, q)), ("bij,jk->bik", (q, m.w)), ("bij->ji", (q,)), ("bii->bi", (q[:, :, :3],)), ("bij,bij->b", (q, q)), ("bi,j->bij", (q[:, 0], m.w[0])),
            ("...ij,...jk->...ik", (q, m.w)), ("bhd,hde->bhe", (q, m.v)), ("bij,bik,kl->bjl", (q, q, m.w))])
    return apply(f, w=nn.Parameter(torch.randn(4, 4)), v=nn.Parameter(torch.randn(3, 4, 5)))


W = dict(w=nn.Parameter(torch.linspace(-1, 1, 144).view(12, 12)), b=nn.Parameter(torch.linspace(-1, 2, 12)), k=nn.Parameter(torch.linspace(-1, 1, 288).view(2, 12, 12)))
for name, f in dict(
        bmm=lambda m, a, h: torch.bmm(a, a.transpose(1, 2)), addmm=lambda m, a, h: torch.addmm(m.b, h, m.w, beta=0.5, alpha=2), baddbmm=lambda m, a, h: torch.baddbmm(a, a, m.w[:4, :4].expand(6, 4, 4)), mv=lambda m, a, h: torch.mv(h, m.b), dot=lambda m, a, h: torch.dot(h[0], m.b), outer=lambda m, a, h: torch.outer(m.b, h[0]),
        right=lambda m, a, h: a @ m.b[:4], left=lambda m, a, h: m.b[:3] @ a, bilinear=lambda m, a, h: F.bilinear(h, h, m.k), tensordot=lambda m, a, h: torch.tensordot(a, m.w[:4], 1), kron=lambda m, a, h: torch.kron(m.b[None, :3], h[:2, :2]), cdist=lambda m, a, h: torch.cdist(a, a * 0.5 + 1), chain=lambda m, a, h: torch.linalg.multi_dot([h, m.w, m.w]), broadcast=lambda m, a, h: a[:, None] @ m.w[:4].view(4, 3, 4).permute(1, 0, 2)[None], inner=lambda m, a, h: torch.inner(h, m.w), matrix_power=lambda m, a, h: torch.matrix_power(m.w * 0.1, 3), cross=lambda m, a, h: torch.linalg.cross(a.transpose(1, 2), a.transpose(1, 2).flip(0))).items():
    CASES["product_" + name] = lambda f=f: apply(lambda m, h: scalar(f(m, h.view(-1, 3, 4), h)), dynamic=False, **{k: nn.Parameter(v.detach().clone()) for k, v in W.items()})


class Conv(nn.Module):
    def __init__(self, f, **m):
        super().__init__()
        self.f = f
        for k, v in m.items():
            setattr(self, k, v)

    def forward(self, x):
        return self.f(self, x)


def conv(f, *shape, dynamic=True, **m): return Conv(f, **m), dict(x=torch.randn(*shape)), dict(x=BATCH) if dynamic else {}


def convs():
    return conv(lambda m, x: m.c(m.b(m.a(x))).square().mean() + m.d(x).square().mean() + m.e(x).square().mean() + m.t(x).square().mean() + m.u(x).square().mean(), 2, 4, 11, 9,
                a=nn.Conv2d(4, 8, 3, 2, 1, groups=2), b=nn.Conv2d(8, 8, 3, padding="same", dilation=2, groups=8), c=nn.Conv2d(8, 3, 1), d=nn.Conv2d(4, 5, (5, 3), (3, 2), (2, 0)), e=nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"),
                t=nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2), u=nn.ConvTranspose2d(4, 2, 3, (1, 2), dilation=2))
def convs_1d3d():
    return conv(lambda m, x: m.a(x.flatten(2)).square().mean() + m.b(x[:, :, None].repeat(1, 1, 3, 1, 1)).square().mean() + m.t(x.flatten(2)).square().mean() + m.p(m.v(x[:, :, None].repeat(1, 1, 3, 1, 1))).square().mean() + m.q(x.flatten(2)).mean(), 2, 4, 5, 6,
                a=nn.Conv1d(4, 6, 5, 2, 3), b=nn.Conv3d(4, 3, 3, padding=1), t=nn.ConvTranspose1d(4, 3, 4, 3), v=nn.ConvTranspose3d(4, 2, 2, 2), p=nn.MaxPool3d(2), q=nn.AvgPool1d(3, 2))
def each_conv(prefix, functions, *shape):
    for name, f in functions.items():
        CASES[f"{prefix}_{name}"] = lambda f=f: conv(lambda m, x: scalar(f(m.a(x))), *shape, dynamic=False, a=nn.Conv2d(shape[1], 4, 3, padding=1))


each_conv("pool", dict(
    max=lambda h: F.max_pool2d(h, 3, 2, 1), max_ceil=lambda h: F.max_pool2d(h, 2, ceil_mode=True), avg=lambda h: F.avg_pool2d(h, 3, 2, 1), avg_inside=lambda h: F.avg_pool2d(h, 3, 2, 1, count_include_pad=False), avg_ceil=lambda h: F.avg_pool2d(h, 2, ceil_mode=True), avg_ceil_pad=lambda h: F.avg_pool2d(h, 3, 2, 1, ceil_mode=True),
    adaptive=lambda h: F.adaptive_avg_pool2d(h, (4, 3)), adaptive_max=lambda h: F.adaptive_max_pool2d(h, 1), adaptive_uneven=lambda h: F.adaptive_avg_pool2d(h, (3, 4)), dilated=lambda h: F.max_pool2d(h, 3, 1, dilation=2), lp=lambda h: F.lp_pool2d(h, 2, 2), all=lambda h: F.adaptive_avg_pool2d(h, 1), overlap=lambda h: F.max_pool2d(h, 5, 1, 2), divisor=lambda h: F.avg_pool2d(h, 2, divisor_override=3)), 2, 3, 8, 9)
each_conv("resize", dict(
    nearest=lambda h: F.interpolate(h, scale_factor=2), bilinear=lambda h: F.interpolate(h, size=(5, 13), mode="bilinear"), corners=lambda h: F.interpolate(h, scale_factor=1.5, mode="bilinear", align_corners=True), bicubic=lambda h: F.interpolate(h, size=(12, 9), mode="bicubic"), bicubic_corners=lambda h: F.interpolate(h, size=(12, 9), mode="bicubic", align_corners=True), exact=lambda h: F.interpolate(h, size=(4, 5), mode="nearest-exact"), area=lambda h: F.interpolate(h, scale_factor=0.5, mode="area"), down=lambda h: F.interpolate(h, size=(3, 5)), antialias=lambda h: F.interpolate(h, size=(4, 4), mode="bilinear", antialias=True), antialias_cubic=lambda h: F.interpolate(h, size=(4, 4), mode="bicubic", antialias=True), linear=lambda h: F.interpolate(h.flatten(2), scale_factor=2, mode="linear"), trilinear=lambda h: F.interpolate(h[:, :, None].repeat(1, 1, 2, 1, 1), scale_factor=2, mode="trilinear")), 2, 3, 8, 8)
each_conv("grid", {f"{o}_{p}_{'corners' if c else 'centres'}": lambda h, o=o, p=p, c=c: F.grid_sample(h, (h[:, :2, :5].tanh() * 1.3).permute(0, 2, 3, 1), mode=o, padding_mode=p, align_corners=c) for o in ("bilinear", "nearest", "bicubic") for p in ("zeros", "border", "reflection") for c in (True, False)}, 2, 3, 6, 6)
each_conv("image", dict(
    shuffle=lambda h: F.pixel_shuffle(h, 2), unshuffle=lambda h: F.pixel_unshuffle(h, 2), channels=lambda h: F.channel_shuffle(h, 2), response=lambda h: F.local_response_norm(h, 3), unfold=lambda h: F.unfold(h, 3, padding=1), fold=lambda h: F.fold(F.unfold(h, 2, stride=2), (6, 6), 2, stride=2), fold_overlap=lambda h: F.fold(F.unfold(h, 3, padding=1), (6, 6), 3, padding=1), fold_dilated=lambda h: F.fold(F.unfold(h, 2, dilation=2, stride=2), (6, 6), 2, dilation=2, stride=2),
    unpool=lambda h: F.max_unpool2d(*F.max_pool2d(h, 2, return_indices=True), 2), indices=lambda h: F.max_pool2d(h, 2, return_indices=True)[0], affine=lambda h: F.grid_sample(h, F.affine_grid(h[:, 0, :2, :3], (2, 4, 5, 5), align_corners=False), align_corners=False)), 2, 3, 6, 6)
def norms():
    return conv(lambda m, x: sum(n(m.a(x)).pow(3).mean() for n in (m.b, m.g, m.i, m.j)) + m.r(m.a(x).mean((2, 3))).pow(3).mean() + m.l(m.a(x)).pow(3).mean() + F.normalize(m.a(x), dim=1).pow(3).mean() + m.b1(m.a(x).flatten(2)).pow(3).mean(), 4, 3, 5, 6,
                a=nn.Conv2d(3, 8, 3, padding=1), b=nn.BatchNorm2d(8), b1=nn.BatchNorm1d(8), g=nn.GroupNorm(4, 8), i=nn.InstanceNorm2d(8), j=nn.InstanceNorm2d(8, affine=True), r=nn.RMSNorm(8), l=nn.LayerNorm([8, 5, 6]))
def weight_norm():
    from torch.nn.utils import parametrizations

    return conv(lambda m, x: m.b(m.a(x).relu().mean((2, 3))).square().mean(), 2, 3, 5, 5, a=parametrizations.weight_norm(nn.Conv2d(3, 8, 3)), b=parametrizations.weight_norm(nn.Linear(8, 4), dim=0))
def deformable():
    return conv(lambda m, x: m.b(F.conv2d(m.a(x), m.w.tanh(), stride=1)).square().mean(), 2, 3, 6, 6, a=nn.Conv2d(3, 4, 1), b=nn.Softmax2d(), w=nn.Parameter(torch.randn(4, 4, 3, 3)))


class MoE(nn.Module):
    """Tokens to the best two of four experts, by masks and index_add."""

    def __init__(self, dense):
        super().__init__()
        self.gate, self.dense = nn.Linear(12, 4), dense
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(12, 20), nn.SiLU(), nn.Linear(20, 12)) for _ in range(4))
        self.w1, self.w2 = nn.Parameter(torch.randn(4, 12, 16) * 0.3), nn.Parameter(torch.randn(4, 16, 12) * 0.3)

    def forward(self, x, y):
        p, i = self.gate(x).softmax(-1).topk(2)
        p = p / p.sum(-1, keepdim=True)
        if self.dense:
            w = torch.zeros(x.shape[0], 4).scatter(1, i, p)
            h = torch.einsum("nd,edf->enf", x, self.w1).relu()
            out = torch.einsum("enf,efd,ne->nd", h, self.w2, w)
        else:
            picked1, picked2 = self.w1[i], self.w2[i]
            out = ((x[:, None, None] @ picked1).relu() @ picked2)[:, :, 0]
            out = (out * p[..., None]).sum(1)
            for e, expert in enumerate(self.experts):
                out = out + expert(x) * torch.where(i == e, p, 0.0).sum(1, keepdim=True)
        return F.mse_loss(out, y)


def moe(dense=False): return MoE(dense), dict(x=torch.randn(7, 12), y=torch.randn(7, 12)), dict(x=BATCH, y=BATCH)
def moe_dense(): return moe(True)


class Siren(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(2, 16), nn.Linear(16, 16), nn.Linear(16, 1)

    def forward(self, x, y):
        return F.mse_loss(self.c(torch.sin(3 * self.b(torch.sin(30 * self.a(x)))))[:, 0], y)


def siren(): return Siren(), dict(x=torch.rand(20, 2), y=torch.randn(20)), dict(x=BATCH, y=BATCH)


class Fourier(nn.Module):
    """The time embedding of a diffusion model, float times."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, t, y):
        f = torch.exp(torch.arange(8) * (-9.2 / 8))
        e = torch.cat([(t[:, None] * f).sin(), (t[:, None] * f).cos()], -1)
        return F.mse_loss(self.b(F.silu(self.a(e))), y)


def diffusion_time(): return Fourier(), dict(t=torch.rand(5) * 100, y=torch.randn(5, 4)), dict(t=BATCH, y=BATCH)
each("tie", dict(
    maximum=lambda h: torch.maximum(h.relu(), torch.zeros_like(h)), minimum=lambda h: torch.minimum(h.relu(), h.relu() * 1.0), clamp=lambda h: h.relu().clamp(0.0, 0.5), clamp_min=lambda h: h.relu().clamp(min=0), relu6=lambda h: F.relu6(h.relu()), amax=lambda h: h.relu().amax(1) + (-h).relu().amin(1), max=lambda h: (-h).relu().min(1).values, all=lambda h: h.relu().min(), abs=lambda h: h.relu().abs(), hardtanh=lambda h: F.hardtanh(h.relu() * 0, 0.0, 1.0), hardsigmoid=lambda h: F.hardsigmoid(h.sign() * 3), hardswish=lambda h: F.hardswish(h.sign() * 3 + h * 0), leaky=lambda h: F.leaky_relu(h.relu()), elu=lambda h: F.elu(h.relu()), sqrt=lambda h: (h.relu() + 1e-12).sqrt(), norm=lambda h: h.relu().norm(dim=1), prod=lambda h: h.relu().prod(1), prod_one=lambda h: (h * (torch.arange(12) != 4)).prod(1), prod_two=lambda h: (h * (torch.arange(12) % 5 != 0)).prod(1), prod_all=lambda h: (h * (torch.arange(12) != 4)).prod(0), pow_zero=lambda h: h.relu() ** 2.5, log=lambda h: torch.where(h > 0, h, 1.0).log(), logsumexp=lambda h: h.masked_fill(h < 0, float("-inf")).logsumexp(0), clip_norm=lambda h: h / h.norm(dim=1, keepdim=True).clamp(min=1.0)), dynamic=False)
def complex_norm(): return apply(lambda m, h: torch.fft.rfft(h).abs().square().mean(), dynamic=False)
def mixed(): return apply(lambda m, h: m.o(h.to(torch.float16).to(torch.float32)).double().square().mean().float(), o=nn.Linear(12, 4))
def embeddings(): return apply(lambda m, h, i: (m.e(i) * h).square().mean() + F.linear(h, m.e.weight).logsumexp(-1).mean(), feeds=dict(i=classes(6, n=9)), e=nn.Embedding(9, 12))
