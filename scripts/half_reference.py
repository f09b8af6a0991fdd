#!/usr/bin/env python3
"""What PyTorch says of a model that computes in a half type.

    pip install torch transformers numpy
    scripts/half_reference.py gpt2 OUT.npz
    scripts/half_reference.py encoder OUT.npz --batch 1 --seed 1328

Two small models are written out below in PyTorch, each operator with its own
forward and backward, so that every value of both is rounded where docs/precision.md
says that it is: products, what lies between them, softmax, norms and the sums of
backward take half values and make half values, and compute in float32 inside;
embeddings, the loss, and the two ends of backward next to them are float32; the
gradients are divided by the loss scale in float32. PyTorch's autograd joins the
operators, so the reference knows nothing of the graphs that it is compared with.

Where a value lies near the middle between two halves, the order of a sum, which
differs from one processor to the next, decides how it is rounded, and all that comes
after differs by a unit here and there. So seeds are tried, from --seed on, until
--trials runs with noise of that size keep within the bound of the comparison, for every
gradient.

With the rounding left out the models must equal transformers' GPT2LMHeadModel and
BertEncoder, loss and every gradient: checked before anything is written.

    in:NAME             feeds (in:loss_scale: of float16)
    param:NAME          weights, in Hugging Face's names
    float16:NAME        NAME is loss, or P.grad for a parameter P; float32
    bfloat16:NAME       likewise, without a loss scale

rewrite/precision/testdata/half_*.npz are what these two commands make.
"""
import argparse
import math

import numpy as np
import torch
import torch.nn.functional as F

SCALE = 1024.0
full = lambda x: x


def rounding(half, noise=0.0):
    """Values in half. With noise, what a sum of another order makes of float32
    values first; short ones, such as a sum of two halves, are the same in any
    order."""
    if half is None:
        return full

    def r(x):
        if noise:
            bits = x.detach().reshape(-1).view(torch.int32).reshape(x.shape)
            x = torch.where((bits & 0x3FF) == 0, x, x * (1 + noise * torch.randn_like(x)))
        return x.to(half).to(torch.float32)

    return r


def operators(r):
    """The operators of a model whose values r rounds."""

    class Fork(torch.autograd.Function):
        """One value read in several places: gradients are added one by one,
        the last reader's first."""

        @staticmethod
        def forward(ctx, x, n):
            return tuple(x.clone() for _ in range(n))

        @staticmethod
        def backward(ctx, *grads):
            total = grads[-1]
            for g in reversed(grads[:-1]):
                total = r(total + g)
            return total, None

    class Add(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a, b):
            return r(r(a) + r(b))

        @staticmethod
        def backward(ctx, g):
            return g, g

    class Dense(torch.autograd.Function):
        """alpha * (x w + b), w [in, out], or [out, in] where transposed."""

        @staticmethod
        def forward(ctx, x, w, b, transposed, alpha):
            ctx.save_for_backward(r(x), r(w))
            ctx.transposed, ctx.alpha = transposed, alpha
            return r(alpha * (r(x) @ (r(w).T if transposed else r(w))) + alpha * r(b))

        @staticmethod
        def backward(ctx, g):
            x, w = ctx.saved_tensors
            dx = r(ctx.alpha * (g @ (w if ctx.transposed else w.T)))
            dw = r(ctx.alpha * (g.T @ x if ctx.transposed else x.T @ g))
            # The factor of a bias comes after its sum, in float32.
            return dx, dw, ctx.alpha * r(g.sum(0)), None, None

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            return r(a @ b)

        @staticmethod
        def backward(ctx, g):
            a, b = ctx.saved_tensors
            return r(g @ b.transpose(-1, -2)), r(a.transpose(-1, -2) @ g)

    class Times(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, c):
            ctx.c = r(torch.tensor(c))
            return r(x * ctx.c)

        @staticmethod
        def backward(ctx, g):
            return r(g * ctx.c), None

    class Softmax(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = r(F.softmax(x, -1))
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx, g):
            (y,) = ctx.saved_tensors
            return r(r(g - r(r(g * y).sum(-1, keepdim=True))) * y)

    class GeluTanh(torch.autograd.Function):
        """x s(z), s the logistic function, z = x (a + a b x²)."""

        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return r(F.gelu(x, approximate="tanh"))

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            a = torch.tensor(2 * math.sqrt(2 / math.pi))
            ab = torch.tensor(2 * math.sqrt(2 / math.pi) * 0.044715)
            square = r(x * x)
            z = r(x * r(r(square * r(ab)) + r(a)))
            s = r(torch.sigmoid(z))
            slope = r(x * r(r(square * r(3 * ab)) + r(a)))
            return r(g * r(s * r(r(slope * r(1 - s)) + 1)))

    class GeluErf(torch.autograd.Function):
        """x Φ(x); Φ' in float32, as it has an exponential."""

        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return r(F.gelu(x))

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            y = r(x * r(torch.tensor(math.sqrt(0.5))))
            cdf = r(r(torch.erf(y)) * 0.5 + 0.5)
            # x φ(x) = y exp(-y² - log sqrt(π))
            density = torch.exp(-math.log(math.sqrt(math.pi)) - r(y * y))
            return r(g * r(cdf + r(y * r(density))))

    class Norm(torch.autograd.Function):
        """Statistics in float32, rounded where they meet half values. A norm
        that the loss reads ("last") makes float32, and its parameters'
        gradients are sums in float32; one whose gradient goes to an embedding
        ("first") has a backward in float32 from its half gradient on."""

        @staticmethod
        def forward(ctx, x, w, b, eps, place):
            x = r(x)
            mean = x.mean(-1, keepdim=True)
            inverse = 1 / torch.sqrt(((x - mean) ** 2).mean(-1, keepdim=True) + eps)
            centred = r(r(x - r(mean)) * r(inverse))
            ctx.save_for_backward(centred, inverse, w)
            ctx.place = place
            q = full if place == "last" else r
            return q((x - mean) * inverse * q(w) + q(b))

        @staticmethod
        def backward(ctx, g):
            centred, inverse, w = ctx.saved_tensors
            q = full if ctx.place == "first" else r
            s = full if ctx.place == "last" else r
            m = q(q(g) * q(w))
            spread = q(centred * q(q(m * centred).mean(-1, keepdim=True)))
            dx = q(q(q(m - q(m.mean(-1, keepdim=True))) - spread) * q(inverse))
            return dx, s(s(g * centred).sum(0)), s(g.sum(0)), None, None

    class TokenLoss(torch.autograd.Function):
        """Mean cross entropy of x wᵀ over the labels that are not -100. The
        gradient of the logits leaves out what a row is weighted with, which is
        put on x and on the gradient of x."""

        @staticmethod
        def forward(ctx, x, w, labels, scale):
            logits = r(x @ r(w).T)
            log = F.log_softmax(logits, -1)
            kept = (labels != -100).float()[:, None]
            index = labels.clamp(min=0)[:, None]
            share = (r(log).softmax(-1)).scatter_add(1, index, torch.full_like(kept, -1.0))
            rows = r(-r(r(torch.tensor(-scale) / kept.sum()) * r(kept)))
            ctx.save_for_backward(x, r(w), r(share), rows)
            return -(log.gather(1, index) * kept).sum() / kept.sum()

        @staticmethod
        def backward(ctx, g):
            x, w, share, rows = ctx.saved_tensors
            return r(r(share @ w) * rows), r(share.T @ r(x * rows)), None, None

    class SquaredError(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, target, scale):
            d = x - target
            ctx.save_for_backward(r(d))  # it waits for backward in half
            ctx.scale = scale
            return (d * d).mean()

        @staticmethod
        def backward(ctx, g):
            (d,) = ctx.saved_tensors
            return torch.tensor(2.0 / d.numel()) * d * ctx.scale, None, None

    return argparse.Namespace(**{k: (v.apply if isinstance(v, type) else v) for k, v in locals().items()})


def heads(x, n):
    b, t, h = x.shape
    return x.view(b, t, n, h // n).permute(0, 2, 1, 3)


def attention(o, q, k, v, n, mask):
    scores = o.Product(heads(q, n), heads(k, n).transpose(-1, -2))
    if mask is not None:
        scores = o.Add(scores, mask)
    context = o.Product(o.Softmax(scores), heads(v, n))
    return context.permute(0, 2, 1, 3).reshape(-1, q.shape[-1])


def gpt2(a, w, feeds, r, scale):
    o = operators(r)
    ids, labels = feeds["input_ids"], feeds["labels"]
    batch, seq = ids.shape
    wte = w["transformer.wte.weight"]
    x = o.Add(F.embedding(ids, wte), w["transformer.wpe.weight"][:seq].expand(batch, -1, -1)).view(-1, a.hidden)
    mask = torch.full((seq, seq), -math.inf).triu(1)

    def dense(x, name):
        return o.Dense(x, w[name + ".weight"], w[name + ".bias"], False, 1.0)

    def norm(x, name, place=""):
        return o.Norm(x, w[name + ".weight"], w[name + ".bias"], 1e-5, place)

    for i in range(a.layers):
        name = f"transformer.h.{i}."
        # Where the gradient goes to the embedding, it is added up in float32.
        main, side = (operators(full) if i == 0 else o).Fork(x, 2)
        h = dense(norm(side, name + "ln_1", "first" if i == 0 else ""), name + "attn.c_attn")
        q, k, v = (p.view(batch, seq, -1) for p in h.split(a.hidden, -1))
        q = o.Times(q, 1 / math.sqrt(a.hidden // a.heads))
        x = o.Add(main, dense(attention(o, q, k, v, a.heads, mask), name + "attn.c_proj"))
        main, side = o.Fork(x, 2)
        h = o.GeluTanh(dense(norm(side, name + "ln_2"), name + "mlp.c_fc"))
        x = o.Add(main, dense(h, name + "mlp.c_proj"))
    x = norm(x, "transformer.ln_f")
    labels = torch.cat([labels[:, 1:], torch.full((batch, 1), -100)], 1).reshape(-1)
    return o.TokenLoss(x, wte, labels, scale)


def encoder(a, w, feeds, r, scale):
    o = operators(r)
    x = feeds["x"]
    batch, seq, _ = x.shape
    x = r(x).view(-1, a.hidden)

    def dense(x, name, alpha=1.0):
        return o.Dense(x, w[name + ".weight"], w[name + ".bias"], True, alpha)

    def norm(x, name, place=""):
        return o.Norm(x, w[name + ".weight"], w[name + ".bias"], 1e-12, place)

    for i in range(a.layers):
        name = f"encoder.layer.{i}."
        forks = o.Fork(x, 4)
        q = dense(forks[0], name + "attention.self.query", 1 / math.sqrt(a.hidden // a.heads))
        k = dense(forks[1], name + "attention.self.key")
        v = dense(forks[2], name + "attention.self.value")
        q, k, v = (p.view(batch, seq, -1) for p in (q, k, v))
        h = dense(attention(o, q, k, v, a.heads, None), name + "attention.output.dense")
        x = norm(o.Add(h, forks[3]), name + "attention.output.LayerNorm")
        side, main = o.Fork(x, 2)
        h = dense(o.GeluErf(dense(side, name + "intermediate.dense")), name + "output.dense")
        x = norm(o.Add(h, main), name + "output.LayerNorm", "last" if i == a.layers - 1 else "")
    return o.SquaredError(x.view(batch, seq, -1), feeds["target"], scale)


def seen(model, weights):
    """Weights of transformers, off their zeros and ones, and large enough that
    attention is not uniform."""
    with torch.no_grad():
        for name, w in model.named_parameters():
            if "ln_" in name or "LayerNorm" in name or name.endswith("bias"):
                w.add_(0.1 * torch.randn_like(w))
            else:
                w.mul_(2.0)
            weights[name] = w.detach().clone()


def transformers_gpt2(a):
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(
        n_layer=a.layers, n_embd=a.hidden, n_head=a.heads, vocab_size=a.vocab, n_positions=a.seq,
        embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0, attn_implementation="eager"))
    weights = {}
    seen(model, weights)
    ids = torch.randint(0, a.vocab, (a.batch, a.seq))
    labels = ids.clone()
    labels[0, : a.seq // 4] = -100
    loss = model(ids, labels=labels, use_cache=False).loss
    loss.backward()
    grads = {n: p.grad for n, p in model.named_parameters()}
    return weights, {"input_ids": ids, "labels": labels}, loss, grads


def transformers_encoder(a):
    from transformers import BertConfig
    from transformers.models.bert.modeling_bert import BertEncoder

    model = BertEncoder(BertConfig(
        hidden_size=a.hidden, num_hidden_layers=a.layers, num_attention_heads=a.heads, intermediate_size=4 * a.hidden,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, attn_implementation="eager"))
    model = torch.nn.ModuleDict({"encoder": model})
    weights = {}
    seen(model, weights)
    x, target = torch.randn(a.batch, a.seq, a.hidden), torch.randn(a.batch, a.seq, a.hidden)
    loss = F.mse_loss(model["encoder"](x).last_hidden_state, target)
    loss.backward()
    grads = {n: p.grad for n, p in model.named_parameters()}
    return weights, {"x": x, "target": target}, loss, grads


def gradients(model, a, weights, feeds, half, scale, noise=0.0):
    w = {n: v.clone().requires_grad_() for n, v in weights.items()}
    loss = model(a, w, feeds, rounding(half, noise), scale)
    loss.backward()
    return loss.detach(), {n: v.grad / scale for n, v in w.items()}


HALVES = ((torch.float16, SCALE), (torch.bfloat16, 1.0))


def nought(grads):
    """Gradients that are nought but for rounding, such as a key's bias, which
    softmax does not see."""
    largest = max(g.abs().max() for g in grads.values())
    return {n for n, g in grads.items() if g.abs().max() < 1e-5 * largest}


def settled(model, a, weights, feeds, grads):
    """No noise moves more than a thousandth of a gradient's elements by more
    than four units."""
    for half, scale in HALVES:
        unit = torch.finfo(half).eps / 2
        _, want = gradients(model, a, weights, feeds, half, scale)
        for _ in range(a.trials):
            _, got = gradients(model, a, weights, feeds, half, scale, a.noise)
            for n in want.keys() - nought(grads):
                bound = 4 * unit * want[n].abs().maximum(want[n].pow(2).mean().sqrt())
                if ((got[n] - want[n]).abs() > bound).float().mean() > 0.001:
                    return False
    return True


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", choices=["gpt2", "encoder"])
    p.add_argument("out")
    for name, default in dict(layers=2, hidden=24, heads=3, vocab=61, batch=2, seq=8, seed=0, trials=20).items():
        p.add_argument("--" + name, type=int, default=default)
    p.add_argument("--noise", type=float, default=1e-7, help="relative, standard deviation")
    a = p.parse_args()
    torch.set_num_threads(1)
    model, other = (gpt2, transformers_gpt2) if a.model == "gpt2" else (encoder, transformers_encoder)
    while True:
        torch.manual_seed(a.seed)
        weights, feeds, want, grads = other(a)
        if settled(model, a, weights, feeds, grads):
            break
        a.seed += 1

    loss, got = gradients(model, a, weights, feeds, None, 1.0)
    worst = abs(loss - want) / want
    for n in grads.keys() - nought(grads):
        worst = max(worst, (got[n] - grads[n]).abs().max() / grads[n].abs().max())
    print(f"seed {a.seed}; unrounded, off transformers by {worst:.1e}")
    assert worst < 1e-4

    arrays = {"in:" + n: v.numpy() for n, v in feeds.items()}
    arrays["in:loss_scale"] = np.float32(SCALE)
    arrays.update({"param:" + n: v.numpy() for n, v in weights.items()})
    for half, scale in HALVES:
        name = str(half).removeprefix("torch.")
        loss, got = gradients(model, a, weights, feeds, half, scale)
        arrays[f"{name}:loss"] = loss.numpy()
        arrays.update({f"{name}:{n}.grad": g.numpy() for n, g in got.items()})
        off = max((got[n] - grads[n]).norm() / grads[n].norm() for n in grads.keys() - nought(grads))
        print(f"{name}: loss {loss:.6f} of {want:.6f}, gradients off float32 by up to {off:.1e}")
    np.savez_compressed(a.out, **arrays)


if __name__ == "__main__":
    main()
