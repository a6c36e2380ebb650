#!/usr/bin/env python3
"""Checks tests/golden/ against a second implementation, and that wrong rules would show.

Run by hand (needs torch and safetensors from PyPI, see tests/golden/README.md):

  python tools/check_golden.py [NAME ...]

The network is evaluated here from the checkpoint's files in float64, in the absorbed form, by the
rules of docs/golden-files.md and without transformers. The first list shows the largest differences
from the golden files, which should be float32 rounding. The second breaks one rule at a time and
shows how far the logits of case 0 move: a test with a tolerance below that notices. Exit status 1:
a difference exceeds 1e-3.
"""
import argparse
import json
import math
import pathlib
import sys

import torch
from safetensors.torch import load_file

ROOT = pathlib.Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden"
BLOCK = 128
TOLERANCE = 1e-3

WRONG_RULES = {
    "latent norms use rms_norm_eps or 1e-5": "latent_eps",
    "other norms use ten times rms_norm_eps": "eps",
    "the other rotary pairing": "pairing",
    "no YaRN frequencies": "yarn",
    "no softmax multiplier of YaRN": "softmax_scale",
    "no cos/sin magnitude": "magnitude",
    "router bias left out": "router_bias",
    "biased scores as weights": "biased_weights",
    "the other group score": "group_score",
    "no groups": "groups",
    "dropped groups masked with 0": "mask",
    "norm_topk_prob the other way": "norm_topk",
    "no routed_scaling_factor": "scaling",
    "no shared expert": "shared",
    "rows read all tokens": "indexer",
    "no bias of the indexer's keys": "key_bias",
    "the indexer's other rotary pairing": "index_pairing",
    "the indexer's scores may be negative": "relu",
}


def read_checkpoint(directory):
    """(config of the text model, {published name: float64 tensor})."""
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    prefix = "language_model." if "text_config" in config else ""
    config = config.get("text_config", config)
    stored, tensors = {}, {}
    for file in sorted(directory.glob("model*.safetensors")):
        stored |= load_file(file)
    for name, tensor in stored.items():
        if name.startswith(prefix) and not name.endswith("_scale_inv"):
            value = tensor.double()
            if name + "_scale_inv" in stored:
                scale = stored[name + "_scale_inv"].double()
                value *= scale.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)[
                    :value.shape[0], :value.shape[1]]
            tensors[name.removeprefix(prefix)] = value
    return config, tensors


class Network:
    """A DeepSeek-V2, -V3 or GLM-4.7-Flash network; `wrong` names the rule to break, if any."""

    def __init__(self, config, tensors, wrong=None):
        self.c, self.t, self.wrong = config, tensors, wrong
        self.is_v2 = config["model_type"] == "deepseek_v2"
        self.choice_margin = math.inf  # of an indexer, relative
        # Of the last row alone: by what an indexer's choice and a router's are clear.
        self.last_choice_margin = self.last_routing_margin = math.inf
        self.eps = config["rms_norm_eps"] * (10 if wrong == "eps" else 1)
        self.latent_eps = 1e-5 if wrong == "latent_eps" else 1e-6
        self.interleaved = config.get("rope_interleave", True) != (wrong == "pairing")
        self.nope, self.rope = config["qk_nope_head_dim"], config["qk_rope_head_dim"]
        self.scale, self.magnitude = (self.nope + self.rope)**-0.5, 1.0
        rope = config.get("rope_parameters") or dict(
            config.get("rope_scaling") or {}, rope_theta=config["rope_theta"])
        exponents = torch.arange(0, self.rope, 2).double() / self.rope
        self.frequencies = rope["rope_theta"]**-exponents
        if rope.get("rope_type", rope.get("type")) == "yarn":
            self._apply_yarn(rope)

    def _apply_yarn(self, rope):
        factor, theta = rope["factor"], rope["rope_theta"]

        def m(exponent):
            return 0.1 * exponent * math.log(factor) + 1

        def dimension(rotations):
            turns = rope["original_max_position_embeddings"] / (rotations * 2 * math.pi)
            return self.rope * math.log(turns) / (2 * math.log(theta))

        low = max(math.floor(dimension(rope["beta_fast"])), 0)
        high = min(math.ceil(dimension(rope["beta_slow"])), self.rope - 1)
        ramp = (torch.arange(self.rope // 2).double() - low) / max(high - low, 0.001)
        ramp = ramp.clamp(0, 1)
        if self.wrong != "yarn":
            self.frequencies = self.frequencies * (ramp / factor + 1 - ramp)
        if self.wrong != "softmax_scale":
            self.scale *= m(rope["mscale_all_dim"])**2
        if self.wrong != "magnitude":
            self.magnitude = m(rope["mscale"]) / m(rope["mscale_all_dim"])

    def norm(self, x, name, eps=None):
        variance = x.square().mean(-1, keepdim=True)
        return x / (variance + (self.eps if eps is None else eps)).sqrt() * self.t[name + ".weight"]

    def linear(self, x, name):
        return x @ self.t[name + ".weight"].T

    def mlp(self, x, name):
        gate = torch.nn.functional.silu(self.linear(x, name + ".gate_proj"))
        return self.linear(gate * self.linear(x, name + ".up_proj"), name + ".down_proj")

    def rotate(self, x):
        """x [T, ..., rope] at positions 0, 1, ...; out: first parts of all pairs, then second."""
        angles = torch.arange(len(x)).double()[:, None] * self.frequencies
        angles = angles.view(len(x), *[1] * (x.dim() - 2), -1)
        cos, sin = angles.cos() * self.magnitude, angles.sin() * self.magnitude
        a, b = (x[..., 0::2], x[..., 1::2]) if self.interleaved else x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def attention(self, x, name):
        c, rows, heads = self.c, len(x), self.c["num_attention_heads"]
        if c.get("q_lora_rank") is None:
            q = self.linear(x, name + ".q_proj")
        else:
            latent = self.norm(self.linear(x, name + ".q_a_proj"), name + ".q_a_layernorm",
                               self.latent_eps)
            latent_of_queries = latent
            q = self.linear(latent, name + ".q_b_proj")
        q_nope, q_rope = q.view(rows, heads, -1).split([self.nope, self.rope], -1)
        latent, k_rope = self.linear(x, name + ".kv_a_proj_with_mqa").split(
            [c["kv_lora_rank"], self.rope], -1)
        latent = self.norm(latent, name + ".kv_a_layernorm", self.latent_eps)
        w_k, w_v = self.t[name + ".kv_b_proj.weight"].view(
            heads, -1, c["kv_lora_rank"]).split([self.nope, c["v_head_dim"]], 1)
        scores = torch.einsum("thp,hpl,sl->hts", q_nope, w_k, latent)
        scores += torch.einsum("thr,sr->hts", self.rotate(q_rope), self.rotate(k_rope))
        scores = scores * self.scale + torch.full((rows, rows), -math.inf).triu(1)
        if "index_topk" in c and self.wrong != "indexer":
            scores = scores + self.not_chosen(x, latent_of_queries, name + ".indexer")
        out = torch.einsum("hts,sl,hvl->thv", scores.softmax(-1), latent, w_v)
        return self.linear(out.reshape(rows, -1), name + ".o_proj")

    def not_chosen(self, x, queries, name):
        """[T, T]: 0 where a row's indexer chooses the token, else minus infinity."""
        c, rows, dim = self.c, len(x), self.c["index_head_dim"]
        half_split = c["model_type"] == "deepseek_v32"
        q = self.linear(queries, name + ".wq_b").view(rows, c["index_n_heads"], dim)
        k = self.linear(x, name + ".wk")
        k = k - k.mean(-1, keepdim=True)
        k = k / (k.square().mean(-1, keepdim=True) + 1e-6).sqrt() * self.t[name + ".k_norm.weight"]
        if self.wrong != "key_bias":
            k = k + self.t[name + ".k_norm.bias"]
        interleaved, self.interleaved = self.interleaved, half_split == (self.wrong == "index_pairing")
        q, k = (torch.cat((self.rotate(v[..., :self.rope]), v[..., self.rope:]), -1) for v in (q, k))
        self.interleaved = interleaved
        heads = self.linear(x, name + ".weights_proj")
        dots = torch.einsum("thd,sd->ths", q, k)
        scores = torch.einsum("ths,th->ts", dots if self.wrong == "relu" else dots.relu(), heads)
        hidden = torch.full((rows, rows), -math.inf)
        scores = scores + hidden.triu(1)
        best = scores.topk(min(c["index_topk"] + 1, rows), -1)[0]
        if rows > c["index_topk"]:
            gaps = (best[..., -2] - best[..., -1])[c["index_topk"]:] / scores[scores > -math.inf].std()
            self.choice_margin = min(self.choice_margin, gaps.min().item())
            self.last_choice_margin = min(self.last_choice_margin, gaps[-1].item())
        return hidden.scatter(-1, scores.topk(min(c["index_topk"], rows), -1)[1], 0.0)

    def route(self, x, name):
        """(expert indices, weights), each [T, num_experts_per_tok]."""
        c, wrong = self.c, self.wrong
        logits = x @ self.t[name + ".weight"].T
        scores = logits.softmax(-1) if self.is_v2 else logits.sigmoid()
        choice = scores
        if not self.is_v2 and wrong != "router_bias":
            choice = scores + self.t[name + ".e_score_correction_bias"]
        if c.get("topk_method") != "greedy" and wrong != "groups":
            groups = choice.view(len(x), c["n_group"], -1)
            best = groups.amax(-1) if self.is_v2 != (wrong == "group_score") else (
                groups.topk(2, -1)[0].sum(-1))
            kept = torch.zeros_like(best).scatter_(1, best.topk(c["topk_group"])[1], 1)
            fill = 0.0 if wrong == "mask" else -math.inf
            choice = groups.masked_fill(kept[..., None] == 0, fill).flatten(1)
        index = choice.topk(c["num_experts_per_tok"])[1]
        ranked = choice[-1].sort(descending=True)[0][c["num_experts_per_tok"] - 1:]
        self.last_routing_margin = min([self.last_routing_margin, *(ranked[:-1] - ranked[1:])[:1].tolist()])
        weights = (choice if wrong == "biased_weights" else scores).gather(1, index)
        if c["norm_topk_prob"] != (wrong == "norm_topk"):
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return index, weights * (1 if wrong == "scaling" else c["routed_scaling_factor"])

    def feed_forward(self, x, name):
        if name + ".gate.weight" not in self.t:
            return self.mlp(x, name)
        index, weights = self.route(x, name + ".gate")
        out = self.mlp(x, name + ".shared_experts") * (self.wrong != "shared")
        for expert in range(self.c["n_routed_experts"]):
            share = (weights * (index == expert)).sum(-1, keepdim=True)
            out = out + share * self.mlp(x, f"{name}.experts.{expert}")
        return out

    def layer(self, x, name):
        x = x + self.attention(self.norm(x, name + ".input_layernorm"), name + ".self_attn")
        normed = self.norm(x, name + ".post_attention_layernorm")
        return x + self.feed_forward(normed, name + ".mlp")

    def head(self, hidden):
        return hidden @ self.t.get("lm_head.weight", self.t["model.embed_tokens.weight"]).T

    def trunk(self, ids):
        """transformers' list of hidden states; the last one is after the final norm."""
        states = [self.t["model.embed_tokens.weight"][ids]]
        for i in range(self.c["num_hidden_layers"]):
            states.append(self.layer(states[-1], f"model.layers.{i}"))
        states[-1] = self.norm(states[-1], "model.norm")
        return states

    def mtp(self, module, hidden, ids):
        """A module's hidden rows [T - 1] from those [T] of the trunk or the module before."""
        name = f"model.layers.{self.c['num_hidden_layers'] + module}"
        embeddings = self.t["model.embed_tokens.weight"][ids[module + 1:]]
        joined = torch.cat((self.norm(embeddings, name + ".enorm"),
                            self.norm(hidden[:len(embeddings)], name + ".hnorm")), -1)
        out = self.layer(self.linear(joined, name + ".eh_proj"), name)
        return self.norm(out, name + ".shared_head.norm")


def differences(network, golden):
    """{what: largest absolute difference} over all cases; a golden file may hold last rows only."""
    worst = {}

    def compare(what, case, mine):
        tensor = golden.get(f"case{case}.{what}")
        if tensor is not None:
            gap = (mine[-len(tensor):] - tensor.double()).abs().max().item()
            worst[what] = max(worst.get(what, 0), gap)

    for case in range(sum(name.endswith(".ids") for name in golden)):
        ids = golden[f"case{case}.ids"].long()
        states = network.trunk(ids)
        for i, state in enumerate(states):
            compare(f"hidden_states.{i}", case, state)
        compare("logits", case, network.head(states[-1]))
        hidden, module = states[-1], 0
        while f"case{case}.mtp{module}.hidden" in golden:
            hidden = network.mtp(module, hidden, ids)
            compare(f"mtp{module}.hidden", case, hidden)
            compare(f"mtp{module}.logits", case, network.head(hidden))
            module += 1
    return worst


def checkpoint_directory(name):
    bundled = ROOT / "models" / name
    return bundled if bundled.is_dir() else GOLDEN / name


def is_family_of_this(name):
    """Whether this file's network is the one: EAGLE-3, DeepSeek-V4 and Step-3.5 have their own."""
    path = checkpoint_directory(name) / "config.json"
    config = json.loads(path.read_text()) if path.exists() else {}
    config = config.get("text_config", config)
    return "kv_lora_rank" in config and "Eagle3" not in config["architectures"][0]


def main():
    known = sorted(path.parent.name for path in GOLDEN.glob("*/golden.safetensors")
                   if is_family_of_this(path.parent.name))
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(known))
    names = parser.parse_args().names or known
    unknown = sorted(set(names) - set(known))
    if unknown:
        parser.error(f"no golden files of {unknown[0]}; there are: {', '.join(known)}")
    torch.set_default_dtype(torch.float64)
    status = 0
    for name in names:
        config, tensors = read_checkpoint(checkpoint_directory(name))
        golden = load_file(GOLDEN / name / "golden.safetensors")
        network = Network(config, tensors)
        worst = differences(network, golden)
        if network.choice_margin < math.inf:
            print(f"{name}: smallest margin of an indexer's choice {network.choice_margin:.1e}")
        print(f"{name}: largest differences from the golden files")
        print("\n".join(f"  {what:<18} {gap:.1e}" for what, gap in sorted(worst.items())))
        if not worst or max(worst.values()) > TOLERANCE:
            print(f"  FAILED: more than {TOLERANCE}")
            status = 1
        first = {k: v for k, v in golden.items() if k in ("case0.ids", "case0.logits")}
        print("  how far a wrong rule moves the logits of case 0 (rules that apply)")
        for text, rule in WRONG_RULES.items():
            gap = differences(Network(config, tensors, rule), first)["logits"]
            if gap > 2 * worst["logits"]:
                print(f"    {text:<40} {gap:.1e}")
    return status


if __name__ == "__main__":
    sys.exit(main())
