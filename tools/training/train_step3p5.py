"""Trains a small Step-3.5: grouped-query attention in layers of full history and of a window, gates per head, norms by 1 + w, experts
with limits, and three chained MTP modules with heads of their own.

Runs on one GPU and writes a checkpoint in the published FP8 format plus golden files, which tools/step3p5_reference.py computes in float64.

  python3 train_step3p5.py --fp8 --tokenizer ../../models/tiny-v3-mtp3/tokenizer.json --out DIR --seconds 240
"""
import os
import pathlib
import shutil

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from common import (DEVICE, MAX_POS, VOCAB, Norm, arguments, chat_prompt, dump, lin, list_files, measure, train, write_checkpoint,
                    write_tokenizer_cases)
import random_checkpoints
import step3p5_reference as reference

HIDDEN, LAYERS, DENSE_INTER = 128, 5, 384
HEAD, KV_HEADS, FULL_HEADS, SLIDING_HEADS, WINDOW = 128, 1, 4, 6, 96
EXPERTS, TOPK, MOE_INTER, SHARED_INTER, ROUTED_SCALE = 8, 2, 64, 64, 3.0
MTP = 3
FULL = (0, 4)
KINDS = ["full_attention" if i in FULL else "sliding_attention" for i in range(LAYERS + MTP)]
# The published limits, of the last two layers only.
LIMITS = [7.0 if LAYERS - 2 <= i < LAYERS else 0.0 for i in range(LAYERS + MTP)]
SHARED_LIMITS = [16.0 if i == LAYERS - 1 else 0.0 for i in range(LAYERS + MTP)]


def config_dict():
    return dict(
        architectures=["Step3p5ForCausalLM"], model_type="step3p5", hidden_size=HIDDEN, intermediate_size=DENSE_INTER, vocab_size=VOCAB,
        num_hidden_layers=LAYERS, num_nextn_predict_layers=MTP, num_attention_heads=FULL_HEADS, num_attention_groups=KV_HEADS,
        head_dim=HEAD, attention_other_setting=dict(attention_type="sliding_attention", num_attention_heads=SLIDING_HEADS,
                                                    num_attention_groups=KV_HEADS, head_dim=HEAD, true_head_dim=HEAD),
        layer_types=KINDS, sliding_window=WINDOW,
        rope_theta=[5000000.0 if k == "full_attention" else 10000.0 for k in KINDS],
        partial_rotary_factors=[0.5 if k == "full_attention" else 1.0 for k in KINDS],
        rope_scaling=dict(rope_type="llama3", factor=2.0, original_max_position_embeddings=1024, low_freq_factor=1.0,
                          high_freq_factor=32.0),
        yarn_only_types=["full_attention"], max_position_embeddings=MAX_POS, max_seq_len=MAX_POS, use_qk_norm=True,
        use_head_wise_attn_gate=True, sink=False, use_rope_layers=[], moe_layers_enum=",".join(str(i) for i in range(1, LAYERS)),
        moe_num_experts=EXPERTS, moe_top_k=TOPK, moe_intermediate_size=MOE_INTER, share_expert_dim=SHARED_INTER,
        moe_router_activation="sigmoid", moe_router_scaling_factor=ROUTED_SCALE, norm_expert_weight=True, use_moe_router_bias=True,
        need_fp32_gate=True, swiglu_limits=LIMITS, swiglu_limits_shared=SHARED_LIMITS, zero_centered=True, tie_word_embeddings=False,
        rms_norm_eps=1e-5, bos_token_id=0, eos_token_id=1, torch_dtype="bfloat16")


class NormOfDifference(Norm):
    """RMSNorm whose stored weight is the difference from 1."""

    def __init__(self, n):
        super().__init__(n, eps=1e-5)
        nn.init.zeros_(self.weight)

    def forward(self, x):
        y = x.float()
        return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.eps) * (1 + self.weight)).to(x.dtype)


def rotate(x, cos, sin):
    """x [B, heads, T, HEAD]: pairs (i, i + R/2) of the first R dimensions; cos, sin [T, R/2]."""
    half = cos.shape[-1]
    a, b, rest = x[..., :half].float(), x[..., half:2 * half].float(), x[..., 2 * half:]
    return torch.cat(((a * cos - b * sin).to(x.dtype), (b * cos + a * sin).to(x.dtype), rest), -1)


class Attention(nn.Module):
    def __init__(self, sliding):
        super().__init__()
        self.heads, self.sliding = SLIDING_HEADS if sliding else FULL_HEADS, sliding
        self.q_proj, self.g_proj = lin(HIDDEN, self.heads * HEAD), lin(HIDDEN, self.heads)
        self.k_proj, self.v_proj = lin(HIDDEN, KV_HEADS * HEAD), lin(HIDDEN, KV_HEADS * HEAD)
        self.q_norm, self.k_norm, self.o_proj = NormOfDifference(HEAD), NormOfDifference(HEAD), lin(self.heads * HEAD, HIDDEN)

    def forward(self, x, cos, sin, seen):
        b, t, _ = x.shape
        split = lambda y, heads: y.view(b, t, heads, HEAD).transpose(1, 2)
        q = rotate(self.q_norm(split(self.q_proj(x), self.heads)), cos, sin)
        k = rotate(self.k_norm(split(self.k_proj(x), KV_HEADS)), cos, sin)
        v = split(self.v_proj(x), KV_HEADS)
        k, v = (y.repeat_interleave(self.heads // KV_HEADS, 1) for y in (k, v))
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=seen if self.sliding else None, is_causal=not self.sliding)
        o = o * torch.sigmoid(self.g_proj(x)).transpose(1, 2).unsqueeze(-1)
        return self.o_proj(o.transpose(1, 2).reshape(b, t, self.heads * HEAD))


def swiglu(gate, up, limit):
    """The gate is cut after silu, and only above. A limit of 0 is none."""
    if limit == 0:
        return F.silu(gate) * up
    return F.silu(gate).clamp(max=limit) * up.clamp(-limit, limit)


class Mlp(nn.Module):
    def __init__(self, inter, limit):
        super().__init__()
        self.limit = limit
        self.gate_proj, self.up_proj, self.down_proj = lin(HIDDEN, inter), lin(HIDDEN, inter), lin(inter, HIDDEN)

    def forward(self, x):
        return self.down_proj(swiglu(self.gate_proj(x), self.up_proj(x), self.limit))


class Experts(nn.Module):
    def __init__(self, limit):
        super().__init__()
        self.limit = limit
        self.gate = lin(HIDDEN, EXPERTS)
        self.register_buffer("e_score_correction_bias", torch.zeros(EXPERTS))
        weight = lambda *shape: nn.Parameter(torch.randn(EXPERTS, *shape) * 0.03)
        self.gate_proj, self.up_proj, self.down_proj = weight(MOE_INTER, HIDDEN), weight(MOE_INTER, HIDDEN), weight(HIDDEN, MOE_INTER)

    def forward(self, x):
        """x [N, HIDDEN] -> ([N, HIDDEN], rows of each expert [EXPERTS])."""
        scores = torch.sigmoid(F.linear(x.float(), self.gate.weight.float()))
        chosen = torch.zeros_like(scores).scatter_(1, (scores + self.e_score_correction_bias).detach().topk(TOPK, -1).indices, 1.0)
        w = scores * chosen
        w = w / (w.sum(-1, keepdim=True) + 1e-20) * ROUTED_SCALE
        up = lambda p: torch.einsum("nh,eih->eni", x, p.to(x.dtype))
        h = swiglu(up(self.gate_proj), up(self.up_proj), self.limit) * w.t().unsqueeze(-1).to(x.dtype)
        return torch.einsum("eni,ehi->nh", h, self.down_proj.to(x.dtype)), chosen.sum(0)


class Layer(nn.Module):
    def __init__(self, index):
        super().__init__()
        self.index, self.has_experts = index, 1 <= index < LAYERS
        self.input_layernorm, self.post_attention_layernorm = NormOfDifference(HIDDEN), NormOfDifference(HIDDEN)
        self.self_attn = Attention(KINDS[index] == "sliding_attention")
        if self.has_experts:
            self.moe, self.share_expert = Experts(LIMITS[index]), Mlp(SHARED_INTER, SHARED_LIMITS[index])
        else:
            self.mlp = Mlp(DENSE_INTER, SHARED_LIMITS[index])

    def forward(self, x, cos, sin, seen):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, seen)
        y = self.post_attention_layernorm(x)
        if not self.has_experts:
            return x + self.mlp(y), None
        routed, load = self.moe(y.reshape(-1, HIDDEN))
        return x + routed.view_as(x) + self.share_expert(y), load


class MtpModule(Layer):
    """eh_proj([enorm(embedding), hnorm(previous residual stream)]) -> one layer; a norm and a head of its own."""

    def __init__(self, index):
        super().__init__(index)
        self.enorm, self.hnorm, self.eh_proj = NormOfDifference(HIDDEN), NormOfDifference(HIDDEN), lin(2 * HIDDEN, HIDDEN)
        self.norm, self.output = NormOfDifference(HIDDEN), lin(HIDDEN, VOCAB)

    def forward(self, emb, prev, cos, sin, seen):
        return super().forward(self.eh_proj(torch.cat((self.enorm(emb), self.hnorm(prev)), -1)), cos, sin, seen)


class Model(nn.Module):
    modules_count = MTP
    float32_names = ("router_bias",)

    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCAB, HIDDEN)
        nn.init.normal_(self.embed_tokens.weight, std=0.05)
        self.layers = nn.ModuleList(Layer(i) for i in range(LAYERS))
        self.norm, self.lm_head = NormOfDifference(HIDDEN), lin(HIDDEN, VOCAB)
        self.mtp = nn.ModuleList(MtpModule(LAYERS + i) for i in range(MTP))
        oracle = reference.Step3p5(config_dict(), {})
        for i in range(LAYERS + MTP):
            angle = torch.outer(torch.arange(MAX_POS).double(), torch.from_numpy(np.asarray(oracle.frequencies(i))))
            self.register_buffer(f"cos{i}", angle.cos().float(), persistent=False)
            self.register_buffer(f"sin{i}", angle.sin().float(), persistent=False)

    def run(self, layer, t, *inputs):
        cos, sin = getattr(self, f"cos{layer.index}")[:t], getattr(self, f"sin{layer.index}")[:t]
        row, key = torch.arange(t, device=cos.device)[:, None], torch.arange(t, device=cos.device)[None]
        return layer(*inputs, cos, sin, (key <= row) & (key > row - WINDOW))

    def trunk(self, ids):
        """ids [B, T] -> (hidden after the final norm [B, T, HIDDEN], the residual stream before it, expert loads)."""
        x, loads = self.embed_tokens(ids), []
        for layer in self.layers:
            x, load = self.run(layer, ids.shape[1], x)
            if load is not None:
                loads.append(load)
        return self.norm(x), x, loads

    def draft(self, k, prev, ids):
        """Module k (0-based) over the residual stream prev [B, T, HIDDEN] and the tokens ids [B, T] that follow by k+1.

        Returns (hidden after the module's norm, its residual stream, None: modules have no experts).
        """
        x, load = self.run(self.mtp[k], ids.shape[1], self.embed_tokens(ids), prev)
        return self.mtp[k].norm(x), x, load

    def module_head(self, k):
        return self.mtp[k].output

    def balanced_gates(self):
        return [layer.moe for layer in self.layers if layer.has_experts]

    def is_fp8(self, name):
        return random_checkpoints.is_fp8(name)

    def published_tensors(self):
        """Views of the weights under the published names."""
        out = {"model.embed_tokens.weight": self.embed_tokens.weight, "model.norm.weight": self.norm.weight, "lm_head.weight": self.lm_head.weight}
        for layer in list(self.layers) + list(self.mtp):
            p = f"model.layers.{layer.index}."
            for n, w in layer.named_parameters():
                if n in ("norm.weight", "output.weight"):
                    n = "transformer.shared_head." + n
                elif n.startswith("moe.") and not n.endswith(".weight"):
                    n += ".weight"
                out[p + n] = w
            if layer.has_experts:
                out[p + "moe.router_bias"] = layer.moe.e_score_correction_bias
        return out


def write_goldens(m, tok, a, prompts, answers):
    """What the oracle computes from the stored weights: log-probabilities' logits, residual streams, greedy answers, drafts."""
    out = pathlib.Path(a.out)
    config = config_dict() | dict(quantization_config=reference.quantization((128, 128)))
    tensors = {}
    for shard in sorted(out.glob("model*.safetensors")):
        tensors |= reference.read_safetensors(shard, config)
    network = reference.Step3p5(config, tensors)
    cases = [chat_prompt(tok, "Count from 3 to 9."), prompts["chat"][1] + answers["chat"][1], (prompts["story"][3] + answers["story"][3])[:300]]
    gold = {}
    for i, ids in enumerate(cases):
        logits = reference.add_case(gold, i, network, ids)
        with torch.no_grad():
            mine = m.lm_head(m.trunk(torch.tensor([ids], device=DEVICE))[0])[0].double().cpu().numpy()
        print(f"case {i}: {len(ids)} tokens, max |mine - oracle| {np.abs(mine - logits).max():.1e} of {np.abs(logits).max():.1f}, "
              f"routing margin {network.routing_margin:.1e}", flush=True)
    for n, (dtype, x) in gold.items():  # all but the first case keep their last 32 positions, of logits the last 4
        if not n.startswith("case0.") and x.ndim == 2:
            gold[n] = (dtype, x[-(4 if n.endswith("logits") else 32):])
    reference.write_safetensors(out / "golden.safetensors", gold)
    dump(a, "golden_greedy.json", [dict(prompt_ids=p, greedy_ids=c) for p, c in zip(prompts["chat"][:24], answers["chat"][:24])])


def main():
    a = arguments()
    torch.manual_seed(0)
    m = Model().to(DEVICE)
    tok = train(m, a)
    plain = write_checkpoint(m, tok, a, config_dict())
    _, prompts, answers = measure(m, tok, a)
    write_goldens(m, tok, a, prompts, answers)
    write_tokenizer_cases(tok, a)
    if a.fp8:
        shutil.rmtree(plain)
    list_files(a)


if __name__ == "__main__":
    main()
