"""DeepSeek-V4 with one MTP module, in float32 or under autocast: hyper-connections, attention over a window and over entries compressed
by 4 (chosen by an indexer) and by 128, with sinks, experts by token and by score. Weights carry the published checkpoint's names.

What the published model rounds in its caches is left out, except within rounded_caches().
"""
import contextlib
import dataclasses
import json
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

from common import MAX_POS, Norm, lin, rope, yarn_inv_freq
from v4_published import round_groups, to_e2m1, to_e4m3

HEAD_DIM, ROPE, WINDOW, IDX_DIM = 512, 64, 128, 128
RATIOS = [0, 4, 128, 4]  # one trunk layer each; the MTP module is sliding-window only
HASH_LAYERS, TOPK, ROUTED_SCALE, LIMIT = 2, 2, 1.5, 10.0
HC, SINKHORN, HC_EPS, EPS = 4, 20, 1e-6, 1e-6
THETA, C_THETA, YARN = 10000.0, 160000.0, dict(factor=16.0, original=65536, beta_fast=32, beta_slow=1)


@dataclasses.dataclass(frozen=True)
class Dimensions:
    """What may be chosen; each field is a command line argument, and in config.json under the name in KEYS."""
    vocab: int = 1552  # 1549 ids of the tokenizer, the rest unused: the last one is the DSpark drafter's noise token
    hidden: int = 128
    heads: int = 4
    q_lora: int = 48
    o_groups: int = 2
    o_lora: int = 64  # GPU kernels take multiples of 64
    inter: int = 64  # of an expert; FP4 takes multiples of 32
    experts: int = 8
    index_heads: int = 8
    index_top_k: int = 64


KEYS = dict(vocab="vocab_size", hidden="hidden_size", heads="num_attention_heads", q_lora="q_lora_rank", o_groups="o_groups",
            o_lora="o_lora_rank", inter="moe_intermediate_size", experts="n_routed_experts", index_heads="index_n_heads",
            index_top_k="index_topk")


def dimensions_of(folder):
    with open(os.path.join(folder, "config.json")) as f:
        config = json.load(f)
    return Dimensions(**{field: config[key] for field, key in KEYS.items()})


def config_dict(d):
    """config.json with weights in bfloat16, as transformers reads it too."""
    return dict(
        architectures=["DeepseekV4ForCausalLM"], model_type="deepseek_v4", **{key: getattr(d, field) for field, key in KEYS.items()},
        num_hidden_layers=len(RATIOS), num_key_value_heads=1, head_dim=HEAD_DIM, qk_rope_head_dim=ROPE, compress_ratios=RATIOS + [0],
        num_hash_layers=HASH_LAYERS, sliding_window=WINDOW, index_head_dim=IDX_DIM, n_shared_experts=1, num_experts_per_tok=TOPK,
        scoring_func="sqrtsoftplus", topk_method="noaux_tc", norm_topk_prob=True, routed_scaling_factor=ROUTED_SCALE, swiglu_limit=LIMIT,
        hc_mult=HC, hc_sinkhorn_iters=SINKHORN, hc_eps=HC_EPS, rms_norm_eps=EPS, rope_theta=int(THETA), compress_rope_theta=int(C_THETA),
        rope_scaling=dict(type="yarn", factor=int(YARN["factor"]), beta_fast=YARN["beta_fast"], beta_slow=YARN["beta_slow"],
                          original_max_position_embeddings=YARN["original"]),
        max_position_embeddings=1048576, num_nextn_predict_layers=1, hidden_act="silu", initializer_range=0.02, attention_bias=False,
        attention_dropout=0.0, bos_token_id=0, eos_token_id=1, tie_word_embeddings=False, use_cache=True, torch_dtype="bfloat16")


CACHE_ROUNDING = False


@contextlib.contextmanager
def rounded_caches(rounded=True):
    """Within it, figures include the published model's rounding of the KV and indexer caches."""
    global CACHE_ROUNDING
    before, CACHE_ROUNDING = CACHE_ROUNDING, rounded
    try:
        yield
    finally:
        CACHE_ROUNDING = before


def rope_tail(x, cos, sin):
    """Rotates the last ROPE channels of [..., T, D]."""
    return torch.cat((x[..., :-ROPE], rope(x[..., -ROPE:], cos, sin)), -1)


def rms(x):
    return x * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + EPS).to(x.dtype)


def cached_kv(x):
    """A KV row as the published cache holds it: channels without rotation in FP8, one power-of-two scale per 64."""
    return torch.cat((round_groups(x[..., :-ROPE], 64, 448, 1e-4, to_e4m3), x[..., -ROPE:]), -1) if CACHE_ROUNDING else x


def cached_index(x):
    """An indexer query or key as published: Hadamard rotation over the whole row, then FP4, one power-of-two scale per 32."""
    if not CACHE_ROUNDING:
        return x
    h = torch.ones(1, 1, device=x.device)
    while h.shape[0] < IDX_DIM:
        h = torch.cat((torch.cat((h, h), 1), torch.cat((h, -h), 1)), 0)
    return round_groups(x.float() @ h * IDX_DIM**-0.5, 32, 6, 6 * 2.0**-126, to_e2m1)


class HyperConnection(nn.Module):
    """mHC site: [B, T, HC, D] -> (post [B, T, HC], comb [B, T, HC, HC], collapsed [B, T, D])."""

    def __init__(self, d):
        super().__init__()
        self.fn = nn.Parameter(torch.randn((2 + HC) * HC, HC * d.hidden) * 0.02)
        self.base = nn.Parameter(torch.cat((torch.zeros(2 * HC), (torch.eye(HC) * 2).flatten())))
        self.scale = nn.Parameter(torch.full((3,), 0.5))

    def forward(self, x):
        m = F.linear(rms(x.flatten(2).float()), self.fn)
        pre_w, post_w, comb_w = m.split([HC, HC, HC * HC], -1)
        pre_b, post_b, comb_b = self.base.split([HC, HC, HC * HC])
        pre = torch.sigmoid(pre_w * self.scale[0] + pre_b) + HC_EPS
        post = 2 * torch.sigmoid(post_w * self.scale[1] + post_b)
        comb = torch.softmax(comb_w.unflatten(-1, (HC, HC)) * self.scale[2] + comb_b.view(HC, HC), -1) + HC_EPS
        comb = comb / (comb.sum(-2, keepdim=True) + HC_EPS)
        for _ in range(SINKHORN - 1):
            comb = comb / (comb.sum(-1, keepdim=True) + HC_EPS)
            comb = comb / (comb.sum(-2, keepdim=True) + HC_EPS)
        return post, comb, (pre.unsqueeze(-1) * x).sum(2).to(x.dtype)


def hc_update(post, comb, y, x):
    return post.to(x.dtype).unsqueeze(-1) * y.unsqueeze(-2) + torch.matmul(comb.to(x.dtype).transpose(-1, -2), x)


class HyperHead(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.fn = nn.Parameter(torch.randn(HC, HC * d.hidden) * 0.02)
        self.base, self.scale = nn.Parameter(torch.zeros(HC)), nn.Parameter(torch.full((1,), 0.5))

    def forward(self, x):
        pre = torch.sigmoid(F.linear(rms(x.flatten(2).float()), self.fn) * self.scale + self.base) + HC_EPS
        return (pre.unsqueeze(-1) * x).sum(2).to(x.dtype)


class Compressor(nn.Module):
    """Softmax-gated pooling of windows of `ratio` tokens to entries of width dim; C4 windows also take the previous window's first half."""

    def __init__(self, d, ratio, dim):
        super().__init__()
        self.ratio, self.dim, self.overlap = ratio, dim, ratio == 4
        w = dim * (2 if self.overlap else 1)
        self.wkv, self.wgate, self.ape, self.norm = lin(d.hidden, w), lin(d.hidden, w), nn.Parameter(torch.randn(ratio, w) * 0.1), Norm(dim)

    def forward(self, x, cos, sin):
        b, n = x.shape[0], x.shape[1] // self.ratio
        x = x[:, :n * self.ratio]
        kv = self.wkv(x).view(b, n, self.ratio, -1).float()
        z = self.wgate(x).view(b, n, self.ratio, -1).float() + self.ape
        if self.overlap:
            dim = self.dim
            prev = lambda v, fill: F.pad(v[:, :-1, :, :dim], (0, 0, 0, 0, 1, 0), value=fill)
            kv, z = torch.cat((prev(kv, 0.0), kv[..., dim:]), 2), torch.cat((prev(z, -1e30), z[..., dim:]), 2)
        e = self.norm((kv * z.softmax(2)).sum(2)).to(x.dtype)
        return rope_tail(e, cos[:n * self.ratio:self.ratio], sin[:n * self.ratio:self.ratio])


class Indexer(nn.Module):
    """Scores every visible C4 entry per query and keeps the top index_top_k; returns a boolean mask [B, T, entries]."""

    def __init__(self, d):
        super().__init__()
        self.d = d
        self.compressor, self.wq_b, self.weights_proj = Compressor(d, 4, IDX_DIM), lin(d.q_lora, d.index_heads * IDX_DIM), lin(d.hidden, d.index_heads)

    def scores(self, x, qr, cos, sin, visible):
        d, (b, t, _) = self.d, x.shape
        k = cached_index(self.compressor(x, cos, sin))
        q = cached_index(rope_tail(self.wq_b(qr).view(b, t, d.index_heads, IDX_DIM).transpose(1, 2), cos[:t], sin[:t]).transpose(1, 2))
        s = F.relu(torch.einsum("bthd,bnd->bthn", q.float(), k.float())) * IDX_DIM**-0.5
        return (s * (self.weights_proj(x).float() * d.index_heads**-0.5).unsqueeze(-1)).sum(2).masked_fill(~visible, float("-inf"))

    def forward(self, x, qr, cos, sin, visible):
        s = self.scores(x, qr, cos, sin, visible)
        # Of equal scores (0, where all heads' are negative) the first count. The sort that sees to it is slow, so training does without.
        order = s.topk(min(self.d.index_top_k, s.shape[-1]), -1).indices if self.training else s.sort(dim=-1, descending=True, stable=True).indices
        keep = torch.zeros_like(s, dtype=torch.bool).scatter_(-1, order[..., :self.d.index_top_k], True)
        return keep & visible


class Attention(nn.Module):
    def __init__(self, d, ratio):
        super().__init__()
        self.d, self.ratio = d, ratio
        self.wq_a, self.q_norm, self.wq_b = lin(d.hidden, d.q_lora), Norm(d.q_lora), lin(d.q_lora, d.heads * HEAD_DIM)
        self.wkv, self.kv_norm = lin(d.hidden, HEAD_DIM), Norm(HEAD_DIM)
        self.attn_sink = nn.Parameter(torch.randn(d.heads) * 0.5)
        self.wo_a, self.wo_b = lin(d.heads * HEAD_DIM // d.o_groups, d.o_groups * d.o_lora), lin(d.o_groups * d.o_lora, d.hidden)
        if ratio:
            self.compressor = Compressor(d, ratio, HEAD_DIM)
        if ratio == 4:
            self.indexer = Indexer(d)

    def forward(self, x, tables):
        d, (b, t, _) = self.d, x.shape
        cos, sin = tables["compress" if self.ratio else "main"]
        qr = self.q_norm(self.wq_a(x))
        q = rope_tail(rms(self.wq_b(qr).view(b, t, d.heads, HEAD_DIM).transpose(1, 2)), cos[:t], sin[:t])
        kv = cached_kv(rope_tail(self.kv_norm(self.wkv(x)), cos[:t], sin[:t]))
        p = torch.arange(t, device=x.device)
        mask = ((p[None] <= p[:, None]) & (p[None] > p[:, None] - WINDOW)).expand(b, t, t)
        n = t // self.ratio if self.ratio else 0
        if n:
            visible = (torch.arange(n, device=x.device)[None] < (p[:, None] + 1) // self.ratio).expand(b, t, n)
            with torch.no_grad():  # top-k selection carries no gradient
                chosen = self.indexer(x, qr, cos, sin, visible) if self.ratio == 4 else visible
            kv = torch.cat((kv, cached_kv(self.compressor(x, cos, sin))), 1)
            mask = torch.cat((mask, chosen), -1)
        s = torch.einsum("bhtd,bnd->bhtn", q, kv).float() * HEAD_DIM**-0.5
        s = s.masked_fill(~mask.unsqueeze(1), float("-inf"))
        s = torch.cat((s, self.attn_sink.view(1, -1, 1, 1).expand(b, -1, t, 1)), -1)
        a = s.softmax(-1)[..., :-1].to(kv.dtype)
        return self.output(rope_tail(torch.einsum("bhtn,bnd->bhtd", a, kv), cos[:t], -sin[:t]).transpose(1, 2))

    def output(self, o):
        """The grouped projection of the heads' outputs o [B, T, heads, HEAD_DIM]: [B, T, hidden]."""
        d = self.d
        o = o.reshape(*o.shape[:2], d.o_groups, -1)
        return self.wo_b(torch.einsum("btgi,goi->btgo", o, self.wo_a.weight.to(o.dtype).view(d.o_groups, d.o_lora, -1)).flatten(2))


class Experts(nn.Module):
    def __init__(self, d, hashed):
        super().__init__()
        self.d = d
        self.weight = nn.Parameter(torch.randn(d.experts, d.hidden) * 0.02)
        self.hashed = hashed
        self.register_buffer("e_score_correction_bias", torch.zeros(d.experts))
        if hashed:
            g = torch.Generator().manual_seed(3)
            self.register_buffer("tid2eid", torch.stack([torch.randperm(d.experts, generator=g)[:TOPK] for _ in range(d.vocab)]))
        self.w13 = nn.Parameter(torch.randn(d.experts, 2 * d.inter, d.hidden) * 0.03)
        self.w2 = nn.Parameter(torch.randn(d.experts, d.hidden, d.inter) * 0.03)
        self.s1, self.s3, self.s2 = lin(d.hidden, d.inter), lin(d.hidden, d.inter), lin(d.inter, d.hidden)

    def forward(self, x, ids):
        d, shape = self.d, x.shape
        x = x.reshape(-1, d.hidden)
        s = torch.sqrt(F.softplus(F.linear(x.float(), self.weight.float())))
        idx = self.tid2eid[ids.reshape(-1)] if self.hashed else (s + self.e_score_correction_bias).detach().topk(TOPK, -1).indices
        chosen = torch.zeros_like(s).scatter_(1, idx, 1.0)
        w = s * chosen
        w = w / (w.sum(-1, keepdim=True) + 1e-20) * ROUTED_SCALE
        act = lambda g, u: F.silu(g.clamp(max=LIMIT)) * u.clamp(-LIMIT, LIMIT)
        h = torch.einsum("nh,eih->eni", x, self.w13.to(x.dtype))
        h = act(h[..., :d.inter], h[..., d.inter:]) * w.t().unsqueeze(-1).to(x.dtype)
        y = torch.einsum("eni,ehi->nh", h, self.w2.to(x.dtype)) + self.s2(act(self.s1(x), self.s3(x)))
        return y.view(shape), chosen.sum(0)


class Layer(nn.Module):
    def __init__(self, d, ratio, hashed):
        super().__init__()
        self.attn_norm, self.attn, self.ffn_norm, self.ffn = Norm(d.hidden), Attention(d, ratio), Norm(d.hidden), Experts(d, hashed)
        self.hc_attn, self.hc_ffn = HyperConnection(d), HyperConnection(d)

    def forward(self, x, ids, tables):
        post, comb, u = self.hc_attn(x)
        x = hc_update(post, comb, self.attn(self.attn_norm(u), tables), x)
        post, comb, u = self.hc_ffn(x)
        y, load = self.ffn(self.ffn_norm(u), ids)
        return hc_update(post, comb, y, x), load


class MtpModule(Layer):
    def __init__(self, d):
        super().__init__(d, 0, False)
        self.e_proj, self.h_proj = lin(d.hidden, d.hidden), lin(d.hidden, d.hidden)
        self.enorm, self.hnorm, self.norm, self.hc_head = Norm(d.hidden), Norm(d.hidden), Norm(d.hidden), HyperHead(d)

    def forward(self, emb, streams, ids, tables):
        x = self.h_proj(self.hnorm(streams)) + self.e_proj(self.enorm(emb)).unsqueeze(2)
        x, load = super().forward(x, ids, tables)
        return self.norm(self.hc_head(x)), x, load


@contextlib.contextmanager
def compiled_blocks(*more):
    """Within it the blocks are compiled one by one: the unrolled Sinkhorn loops make whole-step compilation take many minutes."""
    torch._dynamo.config.suppress_errors = True  # what does not compile runs as it is
    eager = {block: block.forward for block in (HyperConnection, Experts, Attention, HyperHead) + more}
    try:
        for block, forward in eager.items():
            block.forward = torch.compile(forward, dynamic=False)
        yield
    finally:
        for block, forward in eager.items():
            block.forward = forward


def layer_tensors(p, layer):
    """Views of one layer's weights under DeepSeek-V4's names with prefix p."""
    out = {}
    for n in ("hc_attn", "hc_ffn", "hc_head"):
        if hasattr(layer, n):
            out.update(hyper_tensors(p + n, getattr(layer, n)))
    for n, w in layer.named_parameters():
        if n.startswith("hc_"):
            continue
        if n == "ffn.weight":
            out[p + "ffn.gate.weight"] = w
        elif n == "ffn.w13":
            for e in range(len(w)):
                out[f"{p}ffn.experts.{e}.w1.weight"], out[f"{p}ffn.experts.{e}.w3.weight"] = w[e].chunk(2)
        elif n == "ffn.w2":
            for e in range(len(w)):
                out[f"{p}ffn.experts.{e}.w2.weight"] = w[e]
        elif n.startswith("ffn.s"):
            out[f"{p}ffn.shared_experts.w{n[5]}.weight"] = w
        else:
            out[p + n] = w
    if layer.ffn.hashed:
        out[p + "ffn.gate.tid2eid"] = layer.ffn.tid2eid
    else:
        out[p + "ffn.gate.bias"] = layer.ffn.e_score_correction_bias
    return out


def hyper_tensors(p, mod):
    return {p + "_fn": mod.fn, p + "_base": mod.base, p + "_scale": mod.scale}


class Model(nn.Module):
    modules_count = 1

    def __init__(self, d):
        super().__init__()
        self.d = d
        self.embed = nn.Embedding(d.vocab, d.hidden)
        nn.init.normal_(self.embed.weight, std=0.05)
        self.layers = nn.ModuleList(Layer(d, r, i < HASH_LAYERS) for i, r in enumerate(RATIOS))
        self.norm, self.lm_head, self.hc_head, self.mtp = Norm(d.hidden), lin(d.hidden, d.vocab), HyperHead(d), nn.ModuleList([MtpModule(d)])
        p = torch.arange(MAX_POS).float()
        main = torch.outer(p, 1.0 / THETA ** (torch.arange(0, ROPE, 2).float() / ROPE))
        comp = torch.outer(p, yarn_inv_freq(ROPE, C_THETA, YARN["factor"], YARN["original"], YARN["beta_fast"], YARN["beta_slow"]))
        for n, f in (("main", main), ("compress", comp)):
            self.register_buffer(n + "_cos", f.cos(), persistent=False)
            self.register_buffer(n + "_sin", f.sin(), persistent=False)

    def tables(self):
        return {n: (getattr(self, n + "_cos"), getattr(self, n + "_sin")) for n in ("main", "compress")}

    def trunk(self, ids, streams=None):
        """ids [B, T] -> (hidden after the final norm [B, T, hidden], the HC streams before the head [B, T, HC, hidden], expert loads).

        Appends the HC streams after each layer to the list streams.
        """
        x = self.embed(ids).unsqueeze(2).expand(-1, -1, HC, -1)
        loads, tables = [], self.tables()
        for layer in self.layers:
            x, load = layer(x, ids, tables)
            if not layer.ffn.hashed:
                loads.append(load)
            if streams is not None:
                streams.append(x)
        return self.norm(self.hc_head(x)), x, loads

    def draft(self, k, streams, ids):
        """The MTP module over streams [B, T, HC, hidden] and the next tokens ids [B, T]: (hidden for the head, next streams, expert load)."""
        return self.mtp[0](self.embed(ids), streams, ids, self.tables())

    def module_head(self, k):
        return self.lm_head

    def balanced_gates(self):
        return [x.ffn for x in list(self.layers) + list(self.mtp) if not x.ffn.hashed]

    def published_tensors(self):
        """Views of the weights under DeepSeek-V4's names."""
        out = {"embed.weight": self.embed.weight, "head.weight": self.lm_head.weight, "norm.weight": self.norm.weight}
        out.update(hyper_tensors("hc_head", self.hc_head))
        for p, layers in (("layers", self.layers), ("mtp", self.mtp)):
            for i, layer in enumerate(layers):
                out.update(layer_tensors(f"{p}.{i}.", layer))
        return out
