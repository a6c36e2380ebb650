"""Trains a small Ling-3.0 with its MTP module: layers with Kimi Delta Attention (KDA), every third with gated latent attention, experts
behind the first.

Training computes KDA in chunks of 16 tokens: with the safe gate a chunk decays by at most exp(-80), which float32 can divide by. Golden
files are what tools/hybrid_reference.py computes in float64, token by token.

  python3 train_hybrid.py --tokenizer ../../models/tiny-v3-mtp3/tokenizer.json --corpus IDS.npy --seq 512 --batch 128 --graph --train_only
                          --out DIR --seconds 200
      on one GPU; writes a checkpoint in bfloat16
  python3 train_hybrid.py --weights DIR --go_on --corpus IDS.npy --seq 512 --batch 128 --graph --train_only --out BETTER --seconds 100
      trains on from a checkpoint
  python3 train_hybrid.py --weights DIR --fp8 --train_only --out SMALLER
      rounds the matrices of a checkpoint to FP8 blocks, as Ling-3.0 is published; no training follows
  python3 train_hybrid.py --weights SMALLER --out GOLDEN
      measures and writes golden files; without a GPU with few problems and stories (--help)
"""
import argparse
import os
import pathlib

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from common import (DEVICE, MAX_POS, Norm, arguments, chat_prompt, dump, lin, list_files, load_checkpoint, loss_terms, measure, rope,
                    train, write_checkpoint, write_tokenizer_cases)
import hybrid_reference as reference

VOCAB = 1552  # the tokenizer of tiny-v3-mtp3 uses 1549
HIDDEN, LAYERS, GROUP, HEADS, DENSE_INTER = 128, 6, 3, 2, 384
KDA_DIM, CONV, CHUNK, LOWER_BOUND = 128, 4, 16, -5.0
KV_LORA, NOPE, ROPE, VDIM, THETA = 512, 64, 64, 64, 10000.0
BEST = 16  # log-probabilities of a row that golden files have
NOT_CONVERTED = ("b", "eh")  # projections that stay in bfloat16, beside the head
EXPERTS, TOPK, MOE_INTER, ROUTED_SCALE = 8, 4, 32, 2.5


def config_dict():
    return dict(
        architectures=["BailingMoeV3ForCausalLM"], model_type="bailing_hybrid", vocab_size=VOCAB, hidden_size=HIDDEN,
        intermediate_size=DENSE_INTER, num_hidden_layers=LAYERS, num_nextn_predict_layers=1, num_attention_heads=HEADS,
        num_key_value_heads=HEADS, layer_group_size=GROUP, head_dim=KDA_DIM, short_conv_kernel_size=CONV, no_kda_lora=True,
        kda_safe_gate=True, kda_lower_bound=LOWER_BOUND, q_lora_rank=None, kv_lora_rank=KV_LORA, qk_nope_head_dim=NOPE,
        qk_rope_head_dim=ROPE, v_head_dim=VDIM, rope_theta=THETA, rope_interleave=True,
        gated_attention_proj_granularity_type="head_wise", num_experts=EXPERTS, num_experts_per_tok=TOPK, n_group=1, topk_group=1,
        score_function="sigmoid", router_dtype="fp32", norm_topk_prob=True, routed_scaling_factor=ROUTED_SCALE,
        moe_intermediate_size=MOE_INTER, num_shared_experts=1, first_k_dense_replace=1, mtp_use_kda=False, hidden_act="silu",
        max_position_embeddings=MAX_POS, tie_word_embeddings=False, rms_norm_eps=1e-6, bos_token_id=0, eos_token_id=1,
        torch_dtype="bfloat16")


def is_linear(layer):
    return (layer + 1) % GROUP != 0


def kda(q, k, v, g, beta):
    """Kimi Delta Attention (arXiv:2510.26692) from an empty state, in float32.

    q, k, v, g [B, H, T, D], beta [B, H, T]; T is a multiple of CHUNK. Per token: the state [D, D] decays by exp(g) per key channel, then
    u = beta (v - state^T k), state += k u^T, and the output is state^T q. Within a chunk, with G the running sum of g and S the state
    before it: state = diag(exp(G)) (S + sum of k exp(-G) u^T), so all u of a chunk solve one triangular system.
    """
    b, h, t, d = q.shape
    chunks = lambda x: x.reshape(b * h, t // CHUNK, CHUNK, -1)
    q, k, v, g, beta = (chunks(x) for x in (q, k, v, g, beta.unsqueeze(-1)))
    total = g.cumsum(-2)
    k_in, k_out, q_in = k * total.exp(), k * (-total).exp(), q * total.exp()
    eye = torch.eye(CHUNK, device=q.device)
    solved = torch.linalg.solve_triangular(eye + beta * (k_in @ k_out.transpose(-1, -2)).tril(-1), torch.cat((beta * v, beta * k_in), -1),
                                           upper=False)
    end = total[..., -1:, :].exp()
    parts = (solved[..., :d], solved[..., d:], end.transpose(-1, -2), (k_out * end).transpose(-1, -2))
    state, states, us = q.new_zeros(b * h, d, d), [], []
    for from_values, from_state, decay, k_end in zip(*(x.unbind(1) for x in parts)):
        states.append(state)
        us.append(torch.baddbmm(from_values, from_state, state, alpha=-1))
        state = torch.baddbmm(decay * state, k_end, us[-1])
    seen = (q_in @ k_out.transpose(-1, -2)).tril()
    return (q_in @ torch.stack(states, 1) + seen @ torch.stack(us, 1)).reshape(b, h, t, d)


class ShortConvolution(nn.Module):
    """Each channel of x [B, T, width] over its last CONV rows, then silu."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, 1, CONV).uniform_(-0.5, 0.5))

    def forward(self, x):
        t, taps = x.shape[1], self.weight[:, 0].to(x.dtype)
        x = F.pad(x, (0, 0, CONV - 1, 0))
        return F.silu(sum(x[:, i:i + t] * taps[:, i] for i in range(CONV)))


class LinearAttention(nn.Module):
    def __init__(self):
        super().__init__()
        width = HEADS * KDA_DIM
        for part in "qkvfg":
            setattr(self, part + "_proj", lin(HIDDEN, width))
        for part in "qkv":
            setattr(self, part + "_conv1d", ShortConvolution(width))
        self.b_proj, self.o_proj, self.o_norm = lin(HIDDEN, HEADS), lin(width, HIDDEN), Norm(KDA_DIM)
        self.A_log = nn.Parameter(torch.empty(HEADS).uniform_(1, 4).log())
        self.dt_bias = nn.Parameter(torch.full((width,), -3.0) + 0.5 * torch.randn(width))

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        heads = lambda y: y.view(b, t, HEADS, KDA_DIM).transpose(1, 2)
        q, k, v = (heads(getattr(self, p + "_conv1d")(getattr(self, p + "_proj")(x))) for p in "qkv")
        decay, beta = heads(self.f_proj(x)), torch.sigmoid(self.b_proj(x)).transpose(1, 2)
        with torch.autocast(DEVICE, enabled=False):
            q, k, v, decay, beta = (y.float() for y in (q, k, v, decay, beta))
            q = q * torch.rsqrt(q.square().sum(-1, keepdim=True) + 1e-6) * KDA_DIM ** -0.5
            k = k * torch.rsqrt(k.square().sum(-1, keepdim=True) + 1e-6)
            bias = self.dt_bias.view(HEADS, 1, KDA_DIM)
            g = LOWER_BOUND * torch.sigmoid(self.A_log.exp().view(HEADS, 1, 1) * (decay + bias))
            pad = -t % CHUNK
            q, k, v, g = (F.pad(y, (0, 0, 0, pad)) for y in (q, k, v, g))
            o = kda(q, k, v, g, F.pad(beta, (0, pad)))[:, :, :t]
        o = self.o_norm(o.to(x.dtype)) * torch.sigmoid(heads(self.g_proj(x)))
        return self.o_proj(o.transpose(1, 2).reshape(b, t, HEADS * KDA_DIM))


class LatentAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj, self.g_proj = lin(HIDDEN, HEADS * (NOPE + ROPE)), lin(HIDDEN, HEADS)
        self.kv_a_proj_with_mqa, self.kv_a_layernorm = lin(HIDDEN, KV_LORA + ROPE), Norm(KV_LORA)
        self.kv_b_proj, self.dense = lin(KV_LORA, HEADS * (NOPE + VDIM)), lin(HEADS * VDIM, HIDDEN)

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        q = self.q_proj(x).view(b, t, HEADS, NOPE + ROPE).transpose(1, 2)
        kv = self.kv_a_proj_with_mqa(x)
        up = self.kv_b_proj(self.kv_a_layernorm(kv[..., :KV_LORA])).view(b, t, HEADS, NOPE + VDIM).transpose(1, 2)
        q = torch.cat((q[..., :NOPE], rope(q[..., NOPE:], cos, sin)), -1)
        shared = rope(kv[..., KV_LORA:], cos, sin).unsqueeze(1).expand(b, HEADS, t, ROPE)
        k, v = torch.cat((up[..., :NOPE], shared), -1), F.pad(up[..., NOPE:], (0, NOPE + ROPE - VDIM))
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)[..., :VDIM]
        o = o * torch.sigmoid(self.g_proj(x)).transpose(1, 2).unsqueeze(-1)
        return self.dense(o.transpose(1, 2).reshape(b, t, HEADS * VDIM))


class Mlp(nn.Module):
    def __init__(self, inter):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = lin(HIDDEN, inter), lin(HIDDEN, inter), lin(inter, HIDDEN)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.shared_experts = lin(HIDDEN, EXPERTS), Mlp(MOE_INTER)
        self.register_buffer("e_score_correction_bias", torch.zeros(EXPERTS))
        self.w13 = nn.Parameter(torch.randn(EXPERTS, 2 * MOE_INTER, HIDDEN) * 0.03)
        self.w2 = nn.Parameter(torch.randn(EXPERTS, HIDDEN, MOE_INTER) * 0.03)

    def forward(self, x):
        """x [N, HIDDEN] -> ([N, HIDDEN], rows of each expert [EXPERTS])."""
        scores = torch.sigmoid(F.linear(x.float(), self.gate.weight.float()))
        chosen = torch.zeros_like(scores).scatter_(1, (scores + self.e_score_correction_bias).detach().topk(TOPK, -1).indices, 1.0)
        w = scores * chosen
        w = w / (w.sum(-1, keepdim=True) + 1e-20) * ROUTED_SCALE
        h = torch.einsum("nh,eih->eni", x, self.w13.to(x.dtype))
        h = F.silu(h[..., :MOE_INTER]) * h[..., MOE_INTER:] * w.t().unsqueeze(-1).to(x.dtype)
        return torch.einsum("eni,ehi->nh", h, self.w2.to(x.dtype)) + self.shared_experts(x), chosen.sum(0)


class Layer(nn.Module):
    def __init__(self, linear, dense):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = Norm(HIDDEN), Norm(HIDDEN)
        self.attention = LinearAttention() if linear else LatentAttention()
        self.mlp = Mlp(DENSE_INTER) if dense else Experts()

    def forward(self, x, cos, sin):
        x = x + self.attention(self.input_layernorm(x), cos, sin)
        y = self.mlp(self.post_attention_layernorm(x).reshape(-1, HIDDEN))
        y, load = y if isinstance(y, tuple) else (y, None)
        return x + y.view_as(x), load


class MtpModule(Layer):
    """eh_proj([enorm(embedding), hnorm(what the head read)]), one layer, a norm of its own before the shared head."""

    def __init__(self):
        super().__init__(False, False)
        self.enorm, self.hnorm, self.eh_proj, self.final_layernorm = Norm(HIDDEN), Norm(HIDDEN), lin(2 * HIDDEN, HIDDEN), Norm(HIDDEN)

    def forward(self, embedding, previous, cos, sin):
        x, load = super().forward(self.eh_proj(torch.cat((self.enorm(embedding), self.hnorm(previous)), -1)), cos, sin)
        return self.final_layernorm(x), load


class Model(nn.Module):
    modules_count = 1
    float32_names = ("bias", "A_log")  # dt_bias, expert_bias
    quantization = dict(modules_to_not_convert=["lm_head", *(p + "_proj" for p in NOT_CONVERTED)])

    def __init__(self):
        super().__init__()
        self.word_embeddings = nn.Embedding(VOCAB, HIDDEN)
        nn.init.normal_(self.word_embeddings.weight, std=0.05)
        self.layers = nn.ModuleList(Layer(is_linear(i), i == 0) for i in range(LAYERS))
        self.norm, self.lm_head, self.module = Norm(HIDDEN), lin(HIDDEN, VOCAB), MtpModule()
        angle = torch.outer(torch.arange(MAX_POS).float(), THETA ** (-torch.arange(0, ROPE, 2).float() / ROPE))
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def trunk(self, ids):
        """ids [B, T] -> (hidden after the final norm [B, T, HIDDEN], the same, expert loads)."""
        t = ids.shape[1]
        x, loads = self.word_embeddings(ids), []
        for layer in self.layers:
            x, load = layer(x, self.cos[:t], self.sin[:t])
            if load is not None:
                loads.append(load)
        h = self.norm(x)
        return h, h, loads

    def draft(self, k, previous, ids):
        """The module over previous [B, T, HIDDEN] and the tokens ids [B, T] that follow: (what the head reads, the same, expert load)."""
        t = ids.shape[1]
        h, load = self.module(self.word_embeddings(ids), previous, self.cos[:t], self.sin[:t])
        return h, h, load

    def module_head(self, k):
        return self.lm_head

    def compiled_step(self):
        """Without torch.compile: it would unroll the loop over chunks."""
        return lambda s: loss_terms(self, s)

    def is_fp8(self, name):
        """What is stored in FP8 blocks: the matrices of attention and feed-forward, but for those of few rows."""
        return name.endswith(("_proj.weight", "_with_mqa.weight", "dense.weight")) and not any(f".{p}_proj." in name for p in NOT_CONVERTED)

    def balanced_gates(self):
        return [layer.mlp for layer in self.layers if isinstance(layer.mlp, Experts)] + [self.module.mlp]

    def published_tensors(self):
        """Views of the weights under the published names."""
        out = {"model.word_embeddings.weight": self.word_embeddings.weight, "model.norm.weight": self.norm.weight,
               "lm_head.weight": self.lm_head.weight}
        for i, layer in enumerate([*self.layers, self.module]):
            p = f"model.layers.{i}."
            for n, w in layer.named_parameters():
                if n not in ("mlp.w13", "mlp.w2"):
                    out[p + n] = w
                    continue
                for e in range(EXPERTS):
                    if n == "mlp.w2":
                        out[f"{p}mlp.experts.{e}.down_proj.weight"] = w[e]
                    else:
                        out[f"{p}mlp.experts.{e}.gate_proj.weight"] = w[e, :MOE_INTER]
                        out[f"{p}mlp.experts.{e}.up_proj.weight"] = w[e, MOE_INTER:]
            if isinstance(layer.mlp, Experts):
                out[p + "mlp.gate.expert_bias"] = layer.mlp.e_score_correction_bias
        return out


def drafts_along(network, prompt, answer):
    """What the module drafts behind each token of the answer; -1 from a near tie on."""
    ids = np.asarray(prompt + answer)
    hidden, along = network.hidden(ids), []
    for end in range(len(prompt) + 1, len(ids)):
        network.margin = np.inf
        drafts = network.drafts(ids[:end], hidden[:end - 1])
        along.append(drafts + [-1] * (reference.DRAFTS - len(drafts)))
    return along


def write_goldens(m, tok, a, prompts, answers):
    """What the oracle computes from the stored weights: per case ids, and of the last 16 rows (of the first case all) the BEST likeliest
    tokens [rows, BEST] with their log-probabilities, and those of the tokens that follow in the prompt [rows - 1]; and greedy answers."""
    from safetensors.torch import save_file
    tensors = {n: w.detach().double().cpu().numpy() for n, w in m.published_tensors().items()}
    network = reference.Network(config_dict(), tensors)
    cases = [chat_prompt(tok, "Count from 3 to 9."), prompts["chat"][1] + answers["chat"][1], (prompts["story"][3] + answers["story"][3])[:300]]
    gold = {}
    for i, ids in enumerate(cases):
        logprobs = network.logprobs(np.asarray(ids))
        with torch.no_grad():
            mine = m.lm_head(m.trunk(torch.tensor([ids], device=DEVICE))[0])[0].log_softmax(-1).double().cpu().numpy()
        print(f"case {i}: {len(ids)} tokens, max |mine - oracle| {np.abs(mine - logprobs)[logprobs > -20].max():.1e}, "
              f"routing margin {network.margin:.1e}", flush=True)
        gold[f"case{i}.ids"] = torch.tensor(ids, dtype=torch.int32)
        first = 0 if i == 0 else len(ids) - 16
        best = np.argsort(-logprobs[first:], -1, kind="stable")[:, :BEST]
        gold[f"case{i}.best"] = torch.from_numpy(best).int().contiguous()
        gold[f"case{i}.logprobs"] = torch.from_numpy(np.take_along_axis(logprobs[first:], best, -1)).float().contiguous()
        gold[f"case{i}.next"] = torch.from_numpy(logprobs[np.arange(first, len(ids) - 1), ids[first + 1:]]).float().contiguous()
    save_file(gold, str(pathlib.Path(a.out) / "golden.safetensors"))
    dump(a, "golden_greedy.json", [dict(prompt_ids=p, greedy_ids=c, draft_ids=drafts_along(network, p, c))
                                   for p, c in zip(prompts["chat"][:24], answers["chat"][:24])], separators=(",", ":"))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--go_on", action="store_true", help="train on from --weights")
    a = arguments(ap)
    if a.fp8 and not a.weights:
        ap.error("--fp8 rounds the checkpoint of --weights")
    torch.manual_seed(0)
    m = Model().to(DEVICE)
    if a.go_on:
        load_checkpoint(m.published_tensors(), a.weights)
        a.tokenizer, a.weights = os.path.join(a.weights, "tokenizer.json"), None
    fp8, a.fp8 = a.fp8, False  # rounding is all that is done
    tok = train(m, a)
    a.fp8 = fp8
    write_checkpoint(m, tok, a, config_dict())
    if not a.train_only:
        _, prompts, answers = measure(m, tok, a)
        write_goldens(m, tok, a, prompts, answers)
        write_tokenizer_cases(tok, a)
    list_files(a)


if __name__ == "__main__":
    main()
