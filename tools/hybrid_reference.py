"""Kimi-Linear and Ling-3.0 computed the plain way, in float64: the oracle of the engine's networks
that mix linear and latent attention. Needs numpy only.

Written from the published descriptions (arXiv:2510.26692, the model cards' configs), not from the
engine: linear attention is the recurrence token by token, latent attention expands all keys and
values, nothing is cached. An oracle imports nothing that it might share a mistake with.
"""
import numpy as np

# Configurations whose routers are this close to choosing other experts say nothing.
MIN_ROUTING_MARGIN = 1e-4
# The same of a greedy answer's tokens.
MIN_ARGMAX_MARGIN = 1e-2
DRAFTS = 3


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def rms_norm(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


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

    def hidden(self, ids):
        """What the head reads, of all rows."""
        eps = self.c["rms_norm_eps"]
        embedding = "model.embed_tokens" if self.kimi else "model.word_embeddings"
        x = self.w[embedding + ".weight"][ids]
        for layer in range(self.c["num_hidden_layers"]):
            x = self.layer(x, layer, self.is_linear(layer))
        return rms_norm(x, self.w["model.norm.weight"], eps)

    def layer(self, x, layer, linear):
        prefix, eps = f"model.layers.{layer}.", self.c["rms_norm_eps"]
        h = rms_norm(x, self.w[prefix + "input_layernorm.weight"], eps)
        attention = prefix + ("self_attn." if self.kimi else "attention.")
        attend = self.linear_attention if linear else self.latent_attention
        x = x + attend(h, attention)
        h = rms_norm(x, self.w[prefix + "post_attention_layernorm.weight"], eps)
        return x + self.mlp(h, layer, prefix)

    def head(self, hidden):
        """Log-probabilities."""
        logits = hidden @ self.w["lm_head.weight"].T
        logits -= logits.max(-1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(-1, keepdims=True))

    def logprobs(self, ids):
        return self.head(self.hidden(ids))

    def module(self, ids, hidden):
        """The MTP module over rows: row i has what the target or the module gave at position i, and
        ids[i], the token behind it. What the head reads, and the module itself at the next row."""
        layer, eps = self.c["num_hidden_layers"], self.c["rms_norm_eps"]
        prefix = f"model.layers.{layer}."
        embedding = rms_norm(self.w["model.word_embeddings.weight"][ids],
                             self.w[prefix + "enorm.weight"], eps)
        previous = rms_norm(hidden, self.w[prefix + "hnorm.weight"], eps)
        x = np.concatenate([embedding, previous], -1) @ self.w[prefix + "eh_proj.weight"].T
        return rms_norm(self.layer(x, layer, False), self.w[prefix + "final_layernorm.weight"],
                        eps)

    def drafts(self, ids, hidden):
        """Of the module applied DRAFTS times behind the tokens, up to a near tie. hidden: what the
        target gave of all but the last token."""
        behind, drafts = list(ids[1:]), []
        while len(drafts) < DRAFTS:
            out = self.module(behind, hidden)
            logprobs = self.head(out[-1])
            best = np.sort(logprobs)[::-1]
            if best[0] - best[1] < MIN_ARGMAX_MARGIN or self.margin < MIN_ROUTING_MARGIN:
                break
            drafts.append(int(logprobs.argmax()))
            behind.append(drafts[-1])
            hidden = np.concatenate([hidden, out[-1:]])
        return drafts

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
        """x [rows, .., R]: pairs (2i, 2i + 1) turn by position * theta^(-2i / R), with YaRN
        (Peng et al., 2023) by less."""
        if self.kimi:
            return x
        dims = x.shape[-1]
        theta = float(self.c["rope_theta"])
        frequencies = theta ** (-np.arange(0, dims, 2) / dims)
        magnitude, yarn = 1.0, self.c.get("rope_scaling")
        if yarn:
            turning = [dims * np.log(yarn["original_max_position_embeddings"] /
                                     (turns * 2 * np.pi)) / (2 * np.log(theta))
                       for turns in (yarn.get("beta_fast", 32), yarn.get("beta_slow", 1))]
            low, high = max(np.floor(turning[0]), 0), min(np.ceil(turning[1]), dims - 1)
            ramp = np.clip((np.arange(dims // 2) - low) / max(high - low, 1e-3), 0, 1)
            frequencies = frequencies * (1 - ramp) + frequencies / yarn["factor"] * ramp
            magnitude = self.yarn_magnitude("mscale", 1) / self.yarn_magnitude("mscale_all_dim", 0)
        angles = np.arange(len(x))[:, None] * frequencies
        angles = angles.reshape([len(x)] + [1] * (x.ndim - 2) + [dims // 2])
        even, odd = x[..., 0::2], x[..., 1::2]
        y = np.empty_like(x)
        y[..., 0::2] = even * np.cos(angles) - odd * np.sin(angles)
        y[..., 1::2] = even * np.sin(angles) + odd * np.cos(angles)
        return y * magnitude

    def yarn_magnitude(self, key, default):
        yarn = self.c["rope_scaling"]
        return 0.1 * yarn.get(key, default) * np.log(yarn["factor"]) + 1

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
        if c.get("rope_scaling"):
            scores *= self.yarn_magnitude("mscale_all_dim", 0) ** 2
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
        limit, shared = (dict(enumerate(self.c.get(key) or [])).get(layer) for key in (
            "expert_swiglu_limit_list", "share_expert_swiglu_limit_list"))
        names = ("w1.weight", "w3.weight", "w2.weight") if self.kimi else named
        y = np.zeros_like(h)
        for expert in range(experts):
            y += weights[:, expert:expert + 1] * self.gated(
                h, *(f"{p}experts.{expert}.{name}" for name in names), limit)
        if self.c["num_shared_experts"]:
            y += self.gated(h, *(p + "shared_experts." + name for name in named), shared)
        return y
