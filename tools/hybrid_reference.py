#!/usr/bin/env python3
"""Kimi-Linear and Ling-3.0 computed the plain way, in float64: the oracle of the engine's networks
that mix linear and latent attention. Needs numpy only.

Written from the published descriptions (arXiv:2510.26692, the model cards' configs), not from the
engine: linear attention is the recurrence token by token, latent attention expands all keys and
values, nothing is cached. An oracle imports nothing that it might share a mistake with.

  python3 tools/hybrid_reference.py random DIRECTORY --count N [--seed N]
      writes N checkpoints with random configurations, into DIRECTORY/0, 1, ..., each with
      prompt.json: a prompt, its greedy answer, and the log-probabilities of all tokens at each of
      their positions
"""
import argparse
import json
import pathlib
import struct
import sys

import numpy as np

VOCAB = 48
# Configurations whose routers are this close to choosing other experts say nothing.
MIN_ROUTING_MARGIN = 1e-4
# The same of a greedy answer's tokens.
MIN_ARGMAX_MARGIN = 1e-2
PROMPT_TOKENS = 90
ANSWER_TOKENS = 20


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def rms_norm(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def to_bf16(x):
    """The nearest bfloat16 values, as float32."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    bits = bits + 0x7FFF + ((bits >> 16) & 1)
    return (bits & np.uint32(0xFFFF0000)).view(np.float32)


def write_safetensors(path, tensors):
    header, data, offset = {}, [], 0
    for name, array in tensors.items():
        raw = np.ascontiguousarray(array, np.float32).tobytes()
        header[name] = {"dtype": "F32", "shape": list(array.shape),
                        "data_offsets": [offset, offset + len(raw)]}
        data.append(raw)
        offset += len(raw)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data))


class Network:
    """One prompt at once. `margin` is how far the routers were from other choices."""

    def __init__(self, config, tensors):
        self.c = config
        self.w = {name: array.astype(np.float64) for name, array in tensors.items()}
        self.kimi = config["model_type"] == "kimi_linear"
        self.margin = np.inf

    def is_linear(self, layer):
        if self.kimi:
            return layer + 1 in self.c["linear_attn_config"]["kda_layers"]
        group, layers = self.c["layer_group_size"], self.c["num_hidden_layers"]
        return (layer + 1) % group != 0 and layer < layers // group * group

    def logprobs(self, ids):
        eps = self.c["rms_norm_eps"]
        embedding = "model.embed_tokens" if self.kimi else "model.word_embeddings"
        x = self.w[embedding + ".weight"][ids]
        for layer in range(self.c["num_hidden_layers"]):
            prefix = f"model.layers.{layer}."
            h = rms_norm(x, self.w[prefix + "input_layernorm.weight"], eps)
            attention = prefix + ("self_attn." if self.kimi else "attention.")
            attend = self.linear_attention if self.is_linear(layer) else self.latent_attention
            x = x + attend(h, attention)
            h = rms_norm(x, self.w[prefix + "post_attention_layernorm.weight"], eps)
            x = x + self.mlp(h, layer, prefix)
        x = rms_norm(x, self.w["model.norm.weight"], eps)
        logits = x @ self.w["lm_head.weight"].T
        logits -= logits.max(-1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(-1, keepdims=True))

    def project(self, h, name):
        if name + "_proj.weight" in self.w:
            return h @ self.w[name + "_proj.weight"].T
        return h @ self.w[name + "_a_proj.weight"].T @ self.w[name + "_b_proj.weight"].T

    def convolve(self, x, taps):
        taps = taps.reshape(taps.shape[0], -1)
        y = np.zeros_like(x)
        for back in range(taps.shape[1]):
            tap = taps[:, taps.shape[1] - 1 - back]
            y[back:] += tap * x[:len(x) - back]
        return silu(y)

    def linear_attention(self, h, p):
        heads = self.w[p + "b_proj.weight"].shape[0]
        n = len(h)
        q, k, v = (self.convolve(h @ self.w[f"{p}{part}_proj.weight"].T,
                                 self.w[f"{p}{part}_conv1d.weight"]).reshape(n, heads, -1)
                   for part in "qkv")
        dim = q.shape[-1]
        q = q / np.sqrt((q * q).sum(-1, keepdims=True) + 1e-6) / np.sqrt(dim)
        k = k / np.sqrt((k * k).sum(-1, keepdims=True) + 1e-6)
        beta = sigmoid(h @ self.w[p + "b_proj.weight"].T)
        x = (self.project(h, p + "f") + self.w[p + "dt_bias"]).reshape(n, heads, dim)
        a = np.exp(self.w[p + "A_log"].reshape(heads, 1))
        if not self.kimi and self.c["kda_safe_gate"]:
            g = self.c["kda_lower_bound"] * sigmoid(a * x)
        else:
            g = -a * np.logaddexp(0, x)
        out = np.zeros((n, heads, dim))
        state = np.zeros((heads, dim, dim))
        for t in range(n):
            state *= np.exp(g[t])[:, :, None]
            u = beta[t][:, None] * (v[t] - np.einsum("hkv,hk->hv", state, k[t]))
            state += k[t][:, :, None] * u[:, None, :]
            out[t] = np.einsum("hkv,hk->hv", state, q[t])
        out = rms_norm(out, self.w[p + "o_norm.weight"], self.c["rms_norm_eps"])
        out *= sigmoid(self.project(h, p + "g")).reshape(n, heads, dim)
        return out.reshape(n, -1) @ self.w[p + "o_proj.weight"].T

    def rotate(self, x):
        """x [rows, .., R]: pairs (2i, 2i + 1) turn by position * theta^(-2i / R)."""
        if self.kimi:
            return x
        dims = x.shape[-1]
        frequencies = float(self.c["rope_theta"]) ** (-np.arange(0, dims, 2) / dims)
        angles = np.arange(len(x))[:, None] * frequencies
        angles = angles.reshape([len(x)] + [1] * (x.ndim - 2) + [dims // 2])
        even, odd = x[..., 0::2], x[..., 1::2]
        y = np.empty_like(x)
        y[..., 0::2] = even * np.cos(angles) - odd * np.sin(angles)
        y[..., 1::2] = even * np.sin(angles) + odd * np.cos(angles)
        return y

    def latent_attention(self, h, p):
        c = self.c
        heads, nope, rope, value = (c[key] for key in ("num_attention_heads", "qk_nope_head_dim",
                                                       "qk_rope_head_dim", "v_head_dim"))
        n, latent_eps = len(h), 1e-6
        if c["q_lora_rank"]:
            low = rms_norm(h @ self.w[p + "q_a_proj.weight"].T,
                           self.w[p + "q_a_layernorm.weight"], latent_eps)
            q = low @ self.w[p + "q_b_proj.weight"].T
        else:
            q = h @ self.w[p + "q_proj.weight"].T
        q = q.reshape(n, heads, nope + rope)
        q = np.concatenate([q[..., :nope], self.rotate(q[..., nope:])], -1)
        kv = h @ self.w[p + "kv_a_proj_with_mqa.weight"].T
        rank = c["kv_lora_rank"]
        latent = rms_norm(kv[:, :rank], self.w[p + "kv_a_layernorm.weight"], latent_eps)
        shared_key = self.rotate(kv[:, rank:])
        up = (latent @ self.w[p + "kv_b_proj.weight"].T).reshape(n, heads, nope + value)
        scores = np.einsum("qhd,khd->hqk", q[..., :nope], up[..., :nope])
        scores += np.einsum("qhd,kd->hqk", q[..., nope:], shared_key)
        scores /= np.sqrt(nope + rope)
        scores[:, np.triu(np.ones((n, n), bool), 1)] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        out = np.einsum("hqk,khd->qhd", weights, up[..., nope:])
        if not self.kimi:
            out *= sigmoid(h @ self.w[p + "g_proj.weight"].T)[:, :, None]
        output = "o_proj" if self.kimi else "dense"
        return out.reshape(n, -1) @ self.w[p + output + ".weight"].T

    def gated(self, h, gate, up, down, limit=None):
        a, b = silu(h @ self.w[gate].T), h @ self.w[up].T
        if limit:
            a, b = np.minimum(a, limit), np.clip(b, -limit, limit)
        return (a * b) @ self.w[down].T

    def mlp(self, h, layer, prefix):
        named = ("gate_proj.weight", "up_proj.weight", "down_proj.weight")
        if layer < self.c["first_k_dense_replace"]:
            return self.gated(h, *(prefix + "mlp." + name for name in named))
        p = prefix + ("block_sparse_moe." if self.kimi else "mlp.")
        experts = self.c["num_experts"]
        groups = self.c["num_expert_group" if self.kimi else "n_group"]
        top_k = self.c["num_experts_per_token" if self.kimi else "num_experts_per_tok"]
        bias = self.w[p + ("gate.e_score_correction_bias" if self.kimi else "gate.expert_bias")]
        scores = sigmoid(h @ self.w[p + "gate.weight"].T)
        choice = scores + bias
        if groups > 1:
            by_group = choice.reshape(len(h), groups, -1)
            rank = np.sort(by_group, -1)[..., -2:].sum(-1)
            order = np.sort(rank, -1)[:, ::-1]
            kept = self.c["topk_group"]
            if kept < groups:
                self.margin = min(self.margin, (order[:, kept - 1] - order[:, kept]).min())
            threshold = order[:, kept - 1:kept]
            choice = np.where((rank >= threshold)[:, :, None], by_group, -np.inf)
            choice = choice.reshape(len(h), experts)
        order = np.sort(choice, -1)[:, ::-1]
        if top_k < experts:
            self.margin = min(self.margin, (order[:, top_k - 1] - order[:, top_k]).min())
        chosen = choice >= order[:, top_k - 1:top_k]
        weights = np.where(chosen, scores, 0)
        if self.c["moe_renormalize" if self.kimi else "norm_topk_prob"]:
            weights = weights / (weights.sum(-1, keepdims=True) + 1e-20)
        weights = weights * self.c["routed_scaling_factor"]
        limit = (self.c.get("expert_swiglu_limit_list") or [None] * (layer + 1))[layer]
        shared = (self.c.get("share_expert_swiglu_limit_list") or [None] * (layer + 1))[layer]
        names = ("w1.weight", "w3.weight", "w2.weight") if self.kimi else named
        y = np.zeros_like(h)
        for expert in range(experts):
            y += weights[:, expert:expert + 1] * self.gated(
                h, *(f"{p}experts.{expert}.{name}" for name in names), limit)
        if self.c["num_shared_experts"]:
            y += self.gated(h, *(p + "shared_experts." + name for name in named), shared)
        return y


def random_config(generator, kimi):
    pick = lambda *values: values[generator.integers(len(values))]
    layers = pick(4, 5, 7)
    heads, dim = pick(2, 4), pick(16, 24)
    config = {
        "vocab_size": VOCAB, "hidden_size": pick(32, 48), "intermediate_size": pick(32, 40),
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": heads,
        "kv_lora_rank": pick(16, 32), "qk_nope_head_dim": pick(16, 24), "qk_rope_head_dim": 8,
        "v_head_dim": pick(16, 20), "first_k_dense_replace": pick(0, 1, 2),
        "moe_intermediate_size": 16, "num_shared_experts": pick(0, 1, 2),
        "routed_scaling_factor": pick(1.0, 2.446, 2.5), "max_position_embeddings": 1024,
        "tie_word_embeddings": False, "torch_dtype": "float32", "eos_token_id": 1,
        "num_nextn_predict_layers": 0, "hidden_act": "silu"}
    if kimi:
        full = sorted(generator.choice(np.arange(1, layers + 1), pick(1, 2), replace=False))
        full = [int(layer) for layer in full]
        config.update({
            "architectures": ["KimiLinearForCausalLM"], "model_type": "kimi_linear",
            "linear_attn_config": {
                "kda_layers": [i for i in range(1, layers + 1) if i not in full],
                "full_attn_layers": full, "num_heads": pick(2, 3), "head_dim": dim,
                "short_conv_kernel_size": pick(2, 4)},
            "q_lora_rank": None, "mla_use_nope": True, "num_experts": 8,
            "num_experts_per_token": pick(1, 2, 4), "num_expert_group": 1, "topk_group": 1,
            "moe_renormalize": bool(pick(True, False)),
            "moe_router_activation_func": "sigmoid", "rms_norm_eps": 1e-5})
        return config
    limits = lambda: [pick(None, 0, 0.1, 0.3) for _ in range(layers)]
    config.update({
        "architectures": ["BailingMoeV3ForCausalLM"], "model_type": "bailing_hybrid",
        "layer_group_size": pick(2, 3, 4), "head_dim": dim, "short_conv_kernel_size": 4,
        "no_kda_lora": bool(pick(True, False)), "kda_safe_gate": bool(pick(True, True, False)),
        "kda_lower_bound": pick(-5, -2.5), "q_lora_rank": pick(None, 24),
        "rope_theta": pick(10000, 6000000), "rope_interleave": True,
        "gated_attention_proj_granularity_type": "head_wise", "num_experts": 16,
        "num_experts_per_tok": pick(2, 4), "n_group": pick(1, 4), "score_function": "sigmoid",
        "router_dtype": "fp32", "norm_topk_prob": bool(pick(True, False)),
        "expert_swiglu_limit_list": pick(None, limits()),
        "share_expert_swiglu_limit_list": pick(None, limits()), "mtp_use_kda": False,
        "rms_norm_eps": 1e-6})
    config["topk_group"] = min(2, config["n_group"])
    return config


def random_tensors(config, generator):
    c, kimi, tensors = config, config["model_type"] == "kimi_linear", {}
    hidden = c["hidden_size"]

    def matrix(name, rows, cols):
        tensors[name] = to_bf16(generator.normal(size=(rows, cols)) / np.sqrt(cols))

    def vector(name, size, mean=1.0, spread=0.2):
        tensors[name] = to_bf16(mean + spread * generator.normal(size=size))

    def mlp(prefix, width, names=("gate_proj", "up_proj", "down_proj")):
        matrix(f"{prefix}{names[0]}.weight", width, hidden)
        matrix(f"{prefix}{names[1]}.weight", width, hidden)
        matrix(f"{prefix}{names[2]}.weight", hidden, width)

    tensors["model.embed_tokens.weight" if kimi else "model.word_embeddings.weight"] = to_bf16(
        generator.normal(size=(VOCAB, hidden)))
    network = Network(c, {})
    for layer in range(c["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        p = prefix + ("self_attn." if kimi else "attention.")
        vector(prefix + "input_layernorm.weight", hidden)
        vector(prefix + "post_attention_layernorm.weight", hidden)
        if network.is_linear(layer):
            linear = c["linear_attn_config"] if kimi else c
            heads = linear["num_heads" if kimi else "num_attention_heads"]
            dim, conv = linear["head_dim"], linear["short_conv_kernel_size"]
            for part in "qkv":
                matrix(f"{p}{part}_proj.weight", heads * dim, hidden)
                taps = to_bf16(generator.normal(size=(heads * dim, 1, conv)) / np.sqrt(conv))
                tensors[f"{p}{part}_conv1d.weight"] = taps
            for part in "fg":
                if kimi or not c["no_kda_lora"]:
                    matrix(f"{p}{part}_a_proj.weight", dim, hidden)
                    matrix(f"{p}{part}_b_proj.weight", heads * dim, dim)
                else:
                    matrix(f"{p}{part}_proj.weight", heads * dim, hidden)
            matrix(p + "b_proj.weight", heads, hidden)
            a_log = np.log(generator.uniform(1, 16, size=heads)).astype(np.float32)
            tensors[p + "A_log"] = a_log.reshape(1, 1, heads, 1) if kimi else a_log
            mean = (-4.0, 0.0, -8.0)[generator.integers(3)]  # decays near 1 and near their bound
            vector(p + "dt_bias", heads * dim, mean, 1.0)
            vector(p + "o_norm.weight", dim)
            matrix(p + "o_proj.weight", hidden, heads * dim)
        else:
            heads = c["num_attention_heads"]
            query = heads * (c["qk_nope_head_dim"] + c["qk_rope_head_dim"])
            if c["q_lora_rank"]:
                matrix(p + "q_a_proj.weight", c["q_lora_rank"], hidden)
                vector(p + "q_a_layernorm.weight", c["q_lora_rank"])
                matrix(p + "q_b_proj.weight", query, c["q_lora_rank"])
            else:
                matrix(p + "q_proj.weight", query, hidden)
            matrix(p + "kv_a_proj_with_mqa.weight", c["kv_lora_rank"] + c["qk_rope_head_dim"],
                   hidden)
            vector(p + "kv_a_layernorm.weight", c["kv_lora_rank"])
            matrix(p + "kv_b_proj.weight", heads * (c["qk_nope_head_dim"] + c["v_head_dim"]),
                   c["kv_lora_rank"])
            matrix(p + ("o_proj.weight" if kimi else "dense.weight"), hidden,
                   heads * c["v_head_dim"])
            if not kimi:
                matrix(p + "g_proj.weight", heads, hidden)
        if layer < c["first_k_dense_replace"]:
            mlp(prefix + "mlp.", c["intermediate_size"])
            continue
        p = prefix + ("block_sparse_moe." if kimi else "mlp.")
        matrix(p + "gate.weight", c["num_experts"], hidden)
        vector(p + ("gate.e_score_correction_bias" if kimi else "gate.expert_bias"),
               c["num_experts"], 0.0, 0.05)
        names = ("w1", "w3", "w2") if kimi else ("gate_proj", "up_proj", "down_proj")
        for expert in range(c["num_experts"]):
            mlp(f"{p}experts.{expert}.", c["moe_intermediate_size"], names)
        if c["num_shared_experts"]:
            mlp(p + "shared_experts.", c["num_shared_experts"] * c["moe_intermediate_size"])
    vector("model.norm.weight", hidden)
    matrix("lm_head.weight", VOCAB, hidden)
    tensors["lm_head.weight"] *= 4
    return tensors


def write_random(directory, count, seed):
    generator = np.random.default_rng(seed)
    written = 0
    while written < count:
        config = random_config(generator, kimi=written % 2 == 0)
        tensors = random_tensors(config, generator)
        network = Network(config, tensors)
        ids = [int(token) for token in generator.integers(2, VOCAB, size=PROMPT_TOKENS)]
        closest = np.inf
        for _ in range(ANSWER_TOKENS):
            logprobs = network.logprobs(ids)
            best = np.sort(logprobs[-1])[::-1]
            closest = min(closest, best[0] - best[1])
            ids.append(int(logprobs[-1].argmax()))
        if network.margin < MIN_ROUTING_MARGIN or closest < MIN_ARGMAX_MARGIN:
            continue
        target = directory / str(written)
        target.mkdir(parents=True)
        (target / "config.json").write_text(json.dumps(config, indent=1))
        write_safetensors(target / "model.safetensors", tensors)
        (target / "prompt.json").write_text(json.dumps({
            "ids": ids[:PROMPT_TOKENS], "answer": ids[PROMPT_TOKENS:],
            "logprobs": logprobs.tolist()}))
        written += 1


def main():
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command", required=True)
    random = commands.add_parser("random")
    random.add_argument("directory", type=pathlib.Path)
    random.add_argument("--count", type=int, required=True)
    random.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    write_random(args.directory, args.count, args.seed)


if __name__ == "__main__":
    sys.exit(main())
