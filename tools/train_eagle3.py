#!/usr/bin/env python3
"""Trains an EAGLE-3 drafter (arXiv:2503.01840) for models/tiny-v3-mtp3, with latent attention or with Llama's.

Runs on a GPU or, slower, on a processor; needs torch, safetensors, numpy and tokenizers. Writes config.json and
model.safetensors (FP8 blocks, the head and norms bfloat16) as `--speculative-config '{"method": "eagle3", "model": DIR}'`
reads them.

  python3 tools/train_eagle3.py --out DIR --seconds 200 [--llama]

The target's streams are computed for a pool of texts (textgen.py), from which some steps are trained, then for the next
pool. As in the paper's training-time test the drafter runs STEPS times: in pass i row p reads what pass i - 1 gave at
p - 1, and attends to the first pass's entries up to p - i and to one entry of each later pass, which is what drafting
from position p - i would see. It learns the target's distribution of the token after the next one.
Longer than most files: network, training and export of one model.
"""
import argparse
import concurrent.futures
import json
import math
import os
import random
import sys
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "training")]
import pathlib  # noqa: E402

import textgen  # noqa: E402
import train_v3  # noqa: E402
from check_golden import read_checkpoint  # noqa: E402
from common import MAX_POS, VOCAB, Norm, fp8_blocks, from_fp8_blocks, lin, rope, yarn_inv_freq  # noqa: E402
from train_v3 import HEADS, HIDDEN, KV_LORA, NOPE, ROPE, THETA, VDIM, YARN, Mlp, softmax_scale  # noqa: E402

MODEL = pathlib.Path(HERE).parent / "models" / "tiny-v3-mtp3"
TAPS = [1, 3, 4]  # outputs of these layers; in the config the layers that they enter
Q_LORA, INTER, DRAFT_VOCAB = 64, 256, 576
LLAMA_HEADS, LLAMA_KV_HEADS, LLAMA_DIM = 4, 2, 128
STEPS = 3
FP8_FROM = 0.75  # of the time: then weights are rounded as they will be stored


def sparse_moe(moe, x):
    """train_v3.Moe.forward, of the chosen experts alone: what a processor can afford."""
    rows = x.reshape(-1, HIDDEN)
    weights, _ = moe.gate(rows)
    out = moe.shared_experts(rows)
    for e in range(weights.shape[1]):
        chosen = weights[:, e].nonzero()[:, 0]
        gate, up = F.linear(rows[chosen], moe.w13[e].to(x.dtype)).chunk(2, -1)
        y = F.linear(F.silu(gate) * up, moe.w2[e].to(x.dtype)) * weights[chosen, e, None].to(x.dtype)
        out = out.index_add(0, chosen, y)
    return out.view(x.shape), None


class Target(train_v3.Model):
    """The bundled model from its FP8 files."""

    def __init__(self, device):
        super().__init__()
        _, stored = read_checkpoint(MODEL)
        with torch.no_grad():
            for name, view in self.published_tensors().items():
                view.copy_(stored[name])
        self.to(device).eval().requires_grad_(False)
        if device == "cpu":
            train_v3.Moe.forward = sparse_moe

    def streams(self, ids):
        """The tapped layers' outputs side by side [B, T, len(TAPS) * HIDDEN]."""
        t, x, taps = ids.shape[1], self.embed_tokens(ids), []
        for i, layer in enumerate(self.layers):
            x, _ = layer(x, self.cos[:t], self.sin[:t])
            if i in TAPS:
                taps.append(x)
        return torch.cat(taps, -1)

    def logits(self, streams):
        return self.lm_head(self.norm(streams[..., -HIDDEN:]))


def attend(q, passes):
    """q [B, heads, T, D], of the last of `passes`, [(keys, values)] [B, heads, T, ...] -> [B, T, heads * value]."""
    b, heads, t, _ = q.shape
    i = len(passes) - 1
    seen = torch.ones(t, t, dtype=torch.bool, device=q.device).tril(-i)
    scores = [(q @ passes[0][0].transpose(-1, -2)).float().masked_fill(~seen, -1e9)]
    values = []
    for s in range(1, i + 1):
        keys, value = (torch.roll(x, i - s, 2) for x in passes[s])
        scores.append((q * keys).sum(-1, keepdim=True).float())
        values.append(value)
    weights = torch.cat(scores, -1).softmax(-1).to(q.dtype)
    out = weights[..., :t] @ passes[0][1]
    for s, value in enumerate(values):
        out = out + weights[..., t + s, None] * value
    return out.transpose(1, 2).reshape(b, t, -1)


def angles(inv_freq):
    f = torch.outer(torch.arange(MAX_POS).float(), inv_freq)
    return f.cos(), f.sin()


class LatentAttention(nn.Module):
    """Latent attention over rows of 2 * HIDDEN numbers, whose entries come from several passes."""

    def __init__(self):
        super().__init__()
        self.q_a_proj, self.q_a_layernorm, self.q_b_proj = lin(2 * HIDDEN, Q_LORA), Norm(Q_LORA), lin(Q_LORA, HEADS * (NOPE + ROPE))
        self.kv_a_proj_with_mqa, self.kv_a_layernorm = lin(2 * HIDDEN, KV_LORA + ROPE), Norm(KV_LORA)
        self.kv_b_proj, self.o_proj = lin(KV_LORA, HEADS * (NOPE + VDIM)), lin(HEADS * VDIM, HIDDEN)

    @staticmethod
    def angles():
        return angles(yarn_inv_freq(ROPE, THETA, YARN["factor"], YARN["original_max_position_embeddings"], YARN["beta_fast"],
                                    YARN["beta_slow"]))

    def forward(self, y, cos, sin, passes):
        """Appends the pass's entries to `passes` and attends to those before too."""
        b, t, _ = y.shape
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(y))).view(b, t, HEADS, NOPE + ROPE).transpose(1, 2)
        q = torch.cat((q[..., :NOPE], rope(q[..., NOPE:], cos, sin)), -1) * softmax_scale()
        kv = self.kv_a_proj_with_mqa(y)
        up = self.kv_b_proj(self.kv_a_layernorm(kv[..., :KV_LORA])).view(b, t, HEADS, NOPE + VDIM).transpose(1, 2)
        k_rope = rope(kv[..., KV_LORA:], cos, sin).unsqueeze(1).expand(b, HEADS, t, ROPE)
        passes.append((torch.cat((up[..., :NOPE], k_rope), -1), up[..., NOPE:]))
        return self.o_proj(attend(q, passes))


class LlamaAttention(nn.Module):
    """Grouped-query attention, likewise."""

    def __init__(self):
        super().__init__()
        self.q_proj, self.o_proj = lin(2 * HIDDEN, LLAMA_HEADS * LLAMA_DIM), lin(LLAMA_HEADS * LLAMA_DIM, HIDDEN)
        self.k_proj, self.v_proj = (lin(2 * HIDDEN, LLAMA_KV_HEADS * LLAMA_DIM) for _ in range(2))

    @staticmethod
    def angles():
        return angles(THETA ** -(torch.arange(0, LLAMA_DIM, 2).float() / LLAMA_DIM))

    def forward(self, y, cos, sin, passes):
        q, k, v = (x.unflatten(-1, (-1, LLAMA_DIM)).transpose(1, 2) for x in (self.q_proj(y), self.k_proj(y), self.v_proj(y)))

        def turned(x):
            a, b = x.float().chunk(2, -1)
            return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)

        passes.append(tuple(x.repeat_interleave(LLAMA_HEADS // LLAMA_KV_HEADS, 1) for x in (turned(k), v)))
        return self.o_proj(attend(turned(q) * LLAMA_DIM**-0.5, passes))


class Drafter(nn.Module):
    def __init__(self, target, tokens, attention):
        super().__init__()
        self.fc = lin(len(TAPS) * HIDDEN, HIDDEN)
        self.midlayer = nn.Module()
        self.midlayer.input_layernorm, self.midlayer.hidden_norm = Norm(HIDDEN), Norm(HIDDEN)
        self.midlayer.post_attention_layernorm = Norm(HIDDEN)
        self.midlayer.self_attn, self.midlayer.mlp = attention(), Mlp(INTER)
        self.norm, self.lm_head = Norm(HIDDEN), lin(HIDDEN, len(tokens))
        with torch.no_grad():  # the last stream passes through, and the head reads it as the target's does
            self.fc.weight[:, -HIDDEN:] += torch.eye(HIDDEN)
            self.lm_head.weight.copy_(target.lm_head.weight[tokens].cpu())
            self.norm.weight.copy_(target.norm.weight.cpu())
        cos, sin = attention.angles()
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, streams, embeddings):
        """Logits of each pass [B, T, draft tokens]; embeddings: of the tokens after the rows."""
        t, layer, passes, out = streams.shape[1], self.midlayer, [], []
        e, h = layer.input_layernorm(embeddings), self.fc(streams)
        for _ in range(STEPS):
            y = torch.cat((e, layer.hidden_norm(h)), -1)
            x = h + layer.self_attn(y, self.cos[:t], self.sin[:t], passes)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
            out.append(self.lm_head(self.norm(x)))
            h = torch.roll(x, 1, 1)
        return out

    def is_fp8(self, name):
        return name.endswith("weight") and ("proj" in name or name.startswith("fc."))


@torch.no_grad()
def round_weights(drafter):
    for name, w in drafter.named_parameters():
        if drafter.is_fp8(name):
            w.copy_(from_fp8_blocks(*fp8_blocks(w)))
        else:
            w.copy_(w.bfloat16())


def texts(seed, count):
    r = random.Random(seed)
    out = []
    for _ in range(count):
        if r.random() < 0.6:
            q, a, _ = textgen.problem(r)
            out.append(f"{textgen.BOS}{textgen.USER}{q}{textgen.ASSISTANT}{a}{textgen.EOS}")
        else:
            out.append(textgen.document(r))
    return out


def tokenizer():
    from tokenizers import Tokenizer
    return Tokenizer.from_file(str(MODEL / "tokenizer.json"))


def rows_of_ids(seed, count, length):
    """[count, length] token ids: documents one after the other, from their beginnings on."""
    tok, rows, row, batch = tokenizer(), [], [], []
    while len(rows) < count:
        if not batch:
            batch = [e.ids for e in tok.encode_batch(texts(seed, 200), add_special_tokens=False)][::-1]
            seed += 1
        row += batch.pop()
        if len(row) >= length:
            rows.append(row[:length])
            row = []
    return np.array(rows, dtype=np.int16)


class Pools:
    """Rows of token ids, made by other processes while this one trains."""
    PIECE, AHEAD = 256, 3  # rows that a process makes at a time; pools that are begun

    def __init__(self, count, length, processes):
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        self.count, self.length, self.begun, self.seed = count, length, [], 1000
        self.executor = concurrent.futures.ProcessPoolExecutor(processes)
        self.begin()

    def begin(self):
        while len(self.begun) < self.AHEAD:
            pieces = []
            for first in range(0, self.count, self.PIECE):
                pieces.append(self.executor.submit(rows_of_ids, self.seed, min(self.PIECE, self.count - first), self.length))
                self.seed += 1000
            self.begun.append(pieces)

    def next(self):
        pieces = self.begun.pop(0)
        self.begin()
        return torch.from_numpy(np.concatenate([p.result() for p in pieces])).long()

    def stop(self):
        self.executor.shutdown(wait=False, cancel_futures=True)


def frequent_tokens(tok):
    """The tokens that answers hold most often, rising, EOS among them."""
    counts = np.zeros(VOCAB, dtype=np.int64)
    for e in tok.encode_batch(texts(4242, 10000), add_special_tokens=False):
        counts += np.bincount(e.ids, minlength=VOCAB)
    chosen = np.sort(np.argsort(-counts, kind="stable")[:DRAFT_VOCAB])
    print(f"draft vocabulary: {DRAFT_VOCAB} of {int((counts > 0).sum())} tokens in use, {counts[chosen].sum() / counts.sum():.4%} of the text")
    return torch.from_numpy(chosen)


def answer_weights(ids, tok):
    """1 where an answer's token is to be predicted two tokens on, else 0.1: [B, T - 2]."""
    user, assistant = tok.token_to_id(textgen.USER), tok.token_to_id(textgen.ASSISTANT)
    change = (ids == assistant).int() - (ids == user).int()
    last = torch.where(change != 0, torch.arange(ids.shape[1], device=ids.device), -1).cummax(1).values
    inside = (last >= 0) & (change.gather(1, last.clamp_min(0)) > 0)
    return torch.where(inside[:, 2:], 1.0, 0.1)


def config(llama):
    attention = dict(
        architectures=["LlamaForCausalLMEagle3"], model_type="llama", num_attention_heads=LLAMA_HEADS,
        num_key_value_heads=LLAMA_KV_HEADS, head_dim=LLAMA_DIM, rope_scaling=None) if llama else dict(
        architectures=["Eagle3DeepseekV2ForCausalLM"], model_type="deepseek_v3", num_attention_heads=HEADS, num_key_value_heads=HEADS,
        q_lora_rank=Q_LORA, kv_lora_rank=KV_LORA, qk_nope_head_dim=NOPE, qk_rope_head_dim=ROPE, v_head_dim=VDIM, rope_scaling=YARN)
    return attention | dict(
        vocab_size=VOCAB, draft_vocab_size=DRAFT_VOCAB, hidden_size=HIDDEN, intermediate_size=INTER, num_hidden_layers=1,
        hidden_act="silu", rms_norm_eps=1e-6, max_position_embeddings=MAX_POS, rope_theta=THETA, tie_word_embeddings=False,
        attention_bias=False, bos_token_id=0, eos_token_id=1, torch_dtype="bfloat16",
        eagle_config=dict(eagle_aux_hidden_state_layer_ids=[i + 1 for i in TAPS], use_aux_hidden_state=True),
        quantization_config=dict(activation_scheme="dynamic", fmt="e4m3", quant_method="fp8", scale_fmt="ue8m0", weight_block_size=[128, 128]))


@torch.no_grad()
def export(drafter, tokens, out, llama):
    from safetensors.torch import save_file
    os.makedirs(out, exist_ok=True)
    tensors = {"d2t": tokens - torch.arange(len(tokens))}
    for name, w in drafter.named_parameters():
        w = w.detach().cpu()
        if drafter.is_fp8(name):
            tensors[name], tensors[name + "_scale_inv"] = fp8_blocks(w)
        else:
            tensors[name] = w.bfloat16()
    save_file(tensors, os.path.join(out, "model.safetensors"), metadata={"format": "pt"})
    with open(os.path.join(out, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config(llama), file, indent=1)
        file.write("\n")
    print(f"wrote {out}: {sum(t.numel() * t.element_size() for t in tensors.values())} bytes", flush=True)


@torch.no_grad()
def hits(logits, want, weights):
    """Per pass: share of answer rows whose draft is the target's likeliest token, given that those before it were."""
    shares, right = [], weights >= 1
    for i, x in enumerate(logits):
        rows = right[:, STEPS:]
        hit = (x.argmax(-1) == want)[:, STEPS:]
        shares.append((hit & rows).sum().item() / max(rows.sum().item(), 1))
        right = torch.roll(right & (x.argmax(-1) == want), 1, 1)
    return [round(s, 4) for s in shares]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", required=True)
    ap.add_argument("--seconds", type=float, default=200)
    ap.add_argument("--llama", action="store_true", help="with Llama's attention; else latent")
    ap.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    ap.add_argument("--seq", type=int, default=256)
    ap.add_argument("--batch", type=int, help="sequences a step")
    ap.add_argument("--pool", type=int, help="sequences whose streams are computed at a time")
    ap.add_argument("--epochs", type=int, help="over a pool")
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--compile", action="store_true", help="with torch.compile: pays after some minutes")
    ap.add_argument("--threads", type=int)
    ap.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 2) - 2), help="that make texts")
    a = ap.parse_args()
    if a.threads:
        torch.set_num_threads(a.threads)
    gpu = a.device != "cpu"
    a.batch, a.pool, a.epochs = a.batch or (256 if gpu else 16), a.pool or (8192 if gpu else 512), a.epochs or (2 if gpu else 3)
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    start, tok = time.time(), tokenizer()
    tokens = frequent_tokens(tok)
    pools = Pools(a.pool, a.seq, a.processes)  # before the GPU is used: processes are forked
    target = Target(a.device)
    drafter = Drafter(target, tokens, LlamaAttention if a.llama else LatentAttention).to(a.device)
    print(f"{sum(p.numel() for p in drafter.parameters()) / 1e6:.2f} M parameters", flush=True)
    row_of = torch.full((VOCAB,), -1).index_copy(0, tokens, torch.arange(DRAFT_VOCAB)).to(a.device)
    tokens_there = tokens.to(a.device)
    opt = torch.optim.AdamW([dict(params=[p for p in drafter.parameters() if p.ndim >= 2], weight_decay=0.02),
                             dict(params=[p for p in drafter.parameters() if p.ndim < 2], weight_decay=0.0)], lr=a.lr, betas=(0.9, 0.95))
    cast = torch.autocast("cuda", dtype=torch.bfloat16, enabled=gpu)
    generator, step, written = torch.Generator().manual_seed(1), 0, time.time()
    run = torch.compile(drafter) if a.compile else drafter
    while time.time() - start < a.seconds:
        ids = pools.next()
        with torch.no_grad(), cast:
            streams = torch.cat([target.streams(ids[i:i + a.batch].to(a.device)).to(torch.bfloat16) for i in range(0, a.pool, a.batch)])
        for epoch in range(a.epochs):
            for chosen in torch.randperm(a.pool, generator=generator).split(a.batch):
                frac = (time.time() - start) / a.seconds
                if frac >= 1 or len(chosen) < a.batch:
                    break
                for group in opt.param_groups:
                    group["lr"] = a.lr * min(1, (step + 1) / 100) * (0.5 * (1 + math.cos(math.pi * frac)) * 0.97 + 0.03)
                batch, rows = ids[chosen].to(a.device), streams[chosen.to(streams.device)].float()
                with torch.no_grad():
                    teacher = target.logits(rows[:, 1:-1])
                    want = teacher[..., tokens_there].softmax(-1)
                    best = row_of[teacher.argmax(-1)]
                    weights = answer_weights(batch, tok)
                fp8 = frac > FP8_FROM
                if fp8:
                    master = [p.detach().clone() for p in drafter.parameters()]
                    round_weights(drafter)
                with cast:
                    logits = run(rows[:, :-2], target.embed_tokens(batch[:, 1:-1]))
                loss = 0
                for i, x in enumerate(logits):
                    w = weights * (torch.arange(x.shape[1], device=x.device) >= i)
                    log = x.float().log_softmax(-1)
                    hard = -log.gather(-1, best.clamp_min(0)[..., None])[..., 0] * (best >= 0)
                    loss = loss + ((-(want * log).sum(-1) + 0.5 * hard) * w).sum() / w.sum()
                loss.backward()
                if fp8:  # straight through: gradients at the rounded weights move the unrounded ones
                    with torch.no_grad():
                        torch._foreach_copy_(list(drafter.parameters()), master)
                torch.nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
                opt.step()
                opt.zero_grad(set_to_none=True)
                if step % (200 if gpu else 10) == 0:
                    shares = hits(logits, best, weights)
                    length = 1 + sum(math.prod(shares[:i + 1]) for i in range(3))
                    print(f"step {step} {time.time() - start:.0f}s epoch {epoch} loss {loss.item():.3f} hits {shares} length {length:.3f}", flush=True)
                step += 1
        if time.time() - written > 600:
            export(drafter, tokens, a.out, a.llama)
            written = time.time()
    pools.stop()
    print(f"{step} steps, {step * a.batch * a.seq / 1e6:.1f} M tokens", flush=True)
    round_weights(drafter)
    export(drafter, tokens, a.out, a.llama)


if __name__ == "__main__":
    main()
