#!/usr/bin/env python3
"""Step-3.5-Flash computed the plain way, in float64: the oracle of the engine's step3p5 network.

Independent of the engine and of transformers, which has no such class. Needs numpy only. The whole
sequence is computed at once, without a cache. Longer than most files: an oracle imports nothing
that it might share a mistake with.

What it was compared with, November 2026:
- stepfun's modeling_step3p5.py (of the published checkpoint), run with torch 2.15 and transformers
  4.57 in float32: the two goldens and 24 configurations of `random --seed 11`, the MTP modules from
  its decoder layer wired as vLLM wires them. Log-probabilities differ by at most 4.7e-5.
- Read beside it, rule by rule: vLLM's step3p5.py and step3p5_mtp.py, SGLang's step3p5_mtp.py,
  llama.cpp's step35.cpp. They agree in norms by 1 + w, rotation of the first dimensions of a head
  by halves, llama3 scaling of the layers that yarn_only_types names, heads by kind of layer, the
  gate per head from the normalised input, sigmoid scores with a bias for the choice only, weights
  normalised and scaled, clamps, shared experts, and modules that read residual streams before the
  norm, each with a norm and a head of its own.
- They differ where no published config goes: vLLM takes a clamp of routed experts of 7 only,
  rotary factors of 0.5 and 1 only, and normalises weights by norm_expert_weight, which stepfun's
  code does not read; llama.cpp multiplies by 1 + w in its converter.

  python3 tools/step3p5_reference.py golden NAME
      writes tests/golden/NAME: a tiny random checkpoint under the published names, and what it computes
  python3 tools/step3p5_reference.py random DIRECTORY --count N [--seed N]
      writes N of them with random configurations, into DIRECTORY/0, 1, ...
  python3 tools/step3p5_reference.py logits DIRECTORY ID [ID ...]
      prints the log-probabilities of the prompt's tokens, one JSON object

docs/golden-files.md describes the files.
"""
import argparse
import json
import pathlib
import shutil
import struct
import sys

import numpy as np

import random_checkpoints

PROMPT_LENGTHS = (27, 7)
NEW_TOKENS = 24
MIN_ROUTING_MARGIN = 1e-4
MIN_ARGMAX_MARGIN = 1e-2
FIRST_BYTE_TOKEN = 6
VOCAB = 264

# --- the checkpoint's files ---------------------------------------------------------------------


def e4m3_values():
    """The value of each of the 256 codes; NaN at 0x7F and 0xFF."""
    codes = np.arange(256)
    sign = np.where(codes >= 128, -1.0, 1.0)
    exponent, fraction = (codes >> 3) & 15, codes & 7
    value = np.where(exponent == 0, fraction * 2.0**-9, (8 + fraction) * 2.0 ** (exponent - 10.0))
    value[(codes & 127) == 127] = np.nan
    return sign * value


E4M3 = e4m3_values()


def to_bf16(x):
    """float -> the 16 upper bits, rounded to nearest even."""
    bits = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def to_e4m3(x):
    """The nearest code of each value (of two as near, the one with the even fraction)."""
    codes = np.concatenate([np.arange(0, 127), np.arange(128, 255)])
    order = codes[np.argsort(E4M3[codes], kind="stable")]
    values = E4M3[order]
    above = np.clip(np.searchsorted(values, x), 1, len(values) - 1)
    low, high = x - values[above - 1], values[above] - x
    even = (order[above] & 1) == 0
    return order[np.where((high < low) | ((high == low) & even), above, above - 1)].astype(np.uint8)


def write_safetensors(path, tensors):
    """tensors: {name: (dtype name, array)}."""
    header, offset = {}, 0
    for name, (dtype, array) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(array.shape),
                        "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, array in tensors.values():
            file.write(np.ascontiguousarray(array).tobytes())


def read_safetensors(path, config):
    """{name: float64 array}; FP8 codes are multiplied out by their weight_scale_inv."""
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + size])
    header.pop("__metadata__", None)
    numpy_type = {"F32": np.float32, "BF16": np.uint16, "F8_E4M3": np.uint8, "I32": np.int32}
    stored = {}
    for name, info in header.items():
        begin, end = (8 + size + at for at in info["data_offsets"])
        array = np.frombuffer(raw[begin:end], numpy_type[info["dtype"]]).reshape(info["shape"])
        if info["dtype"] == "BF16":
            array = from_bf16(array)
        elif info["dtype"] == "F8_E4M3":
            array = E4M3[array]
        stored[name] = array.astype(np.float64) if info["dtype"] != "I32" else array
    for name in [n for n in stored if n.endswith("_scale_inv")]:
        weight = stored[name.removesuffix("_scale_inv")]
        rows, cols = config["quantization_config"]["weight_block_size"]
        scale = np.repeat(np.repeat(stored.pop(name), rows, -2), cols, -1)
        weight *= scale[..., :weight.shape[-2], :weight.shape[-1]]
    return stored


# --- the network --------------------------------------------------------------------------------


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


class Step3p5:
    """One network over the tensors of a checkpoint."""

    def __init__(self, config, tensors):
        self.c, self.w = config, tensors
        enum = config["moe_layers_enum"]
        self.moe_layers = {int(i) for i in (enum.split(",") if isinstance(enum, str) else enum)}
        self.routing_margin = np.inf  # smallest gap at the last chosen expert, over all rows

    def norm(self, x, name):
        """RMS norm whose stored weight is the difference from 1."""
        mean = (x * x).mean(-1, keepdims=True)
        return x / np.sqrt(mean + self.c.get("rms_norm_eps", 1e-5)) * (1 + self.w[name])

    def linear(self, x, name):
        return x @ self.w[name + ".weight"].T

    def frequencies(self, layer):
        """Rotary frequencies of the first rotary dimensions of a head."""
        c = self.c
        dims = int(c["head_dim"] * c["partial_rotary_factors"][layer])
        f = c["rope_theta"][layer] ** (-np.arange(0, dims, 2) / dims)
        scaling = c.get("rope_scaling")
        scaled = c.get("yarn_only_types") or ["full_attention", "sliding_attention"]
        if scaling is None or c["layer_types"][layer] not in scaled:
            return f
        assert scaling["rope_type"] == "llama3"
        original = scaling["original_max_position_embeddings"]
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        wavelength = 2 * np.pi / f
        smooth = (original / wavelength - low) / (high - low)
        between = (1 - smooth) * f / scaling["factor"] + smooth * f
        return np.where(wavelength > original / low, f / scaling["factor"],
                        np.where(wavelength < original / high, f, between))

    def rotate(self, x, layer):
        """x [T, heads, head_dim]: pairs (i, i + R/2) of the first R dimensions."""
        f = self.frequencies(layer)
        half = len(f)
        angle = np.arange(len(x))[:, None, None] * f
        cos, sin = np.cos(angle), np.sin(angle)
        a, b, rest = x[..., :half], x[..., half:2 * half], x[..., 2 * half:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], -1)

    def attention(self, x, layer):
        """x [T, hidden] is normalised."""
        c, prefix = self.c, f"model.layers.{layer}.self_attn."
        sliding = c["layer_types"][layer] == "sliding_attention"
        setting = c["attention_other_setting"] if sliding else c
        heads, groups = setting["num_attention_heads"], setting["num_attention_groups"]
        d, tokens = c["head_dim"], len(x)
        q = self.linear(x, prefix + "q_proj").reshape(tokens, heads, d)
        k = self.linear(x, prefix + "k_proj").reshape(tokens, groups, d)
        v = self.linear(x, prefix + "v_proj").reshape(tokens, groups, d)
        q = self.rotate(self.norm(q, prefix + "q_norm.weight"), layer)
        k = self.rotate(self.norm(k, prefix + "k_norm.weight"), layer)
        k, v = (np.repeat(t, heads // groups, 1) for t in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) * d**-0.5
        row, key = np.arange(tokens)[:, None], np.arange(tokens)[None]
        seen = key <= row
        if sliding:
            seen &= key > row - c["sliding_window"]
        scores = np.where(seen, scores, -np.inf)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        out = np.einsum("hqk,khd->qhd", p / p.sum(-1, keepdims=True), v)
        gate = sigmoid(self.linear(x, prefix + "g_proj"))
        return self.linear((out * gate[..., None]).reshape(tokens, -1), prefix + "o_proj")

    def limit(self, key, layer):
        limits = self.c.get(key)
        return (limits[layer] if limits else 0) or np.inf

    @staticmethod
    def swiglu(gate, up, limit):
        """The gate is cut after silu, and only above."""
        return np.minimum(silu(gate), limit) * np.clip(up, -limit, limit)

    def mlp(self, x, prefix, limit):
        gate, up = self.linear(x, prefix + "gate_proj"), self.linear(x, prefix + "up_proj")
        return self.linear(self.swiglu(gate, up, limit), prefix + "down_proj")

    def experts(self, x, layer):
        c, prefix = self.c, f"model.layers.{layer}.moe."
        scores = sigmoid(self.linear(x, prefix + "gate"))
        ranking = scores + self.w[prefix + "router_bias"]
        order = np.argsort(-ranking, -1, kind="stable")
        chosen = order[:, :c["moe_top_k"]]
        if c["moe_top_k"] < ranking.shape[1]:
            ranked = np.take_along_axis(ranking, order, -1)
            gap = ranked[:, c["moe_top_k"] - 1] - ranked[:, c["moe_top_k"]]
            self.routing_margin = min(self.routing_margin, gap.min())
        weights = np.take_along_axis(scores, chosen, -1)
        weights = weights / (weights.sum(-1, keepdims=True) + 1e-20)
        weights = weights * c["moe_router_scaling_factor"]
        limit = self.limit("swiglu_limits", layer)
        gate_w, up_w, down_w = (self.w[f"{prefix}{n}_proj.weight"] for n in ("gate", "up", "down"))
        out = np.zeros_like(x)
        for t, row in enumerate(x):
            for e, weight in zip(chosen[t], weights[t]):
                inner = self.swiglu(gate_w[e] @ row, up_w[e] @ row, limit)
                out[t] += weight * (down_w[e] @ inner)
        return out

    def layer(self, x, layer):
        """x [T, hidden], the residual stream."""
        prefix = f"model.layers.{layer}."
        x = x + self.attention(self.norm(x, prefix + "input_layernorm.weight"), layer)
        f = self.norm(x, prefix + "post_attention_layernorm.weight")
        shared = self.limit("swiglu_limits_shared", layer)
        if layer not in self.moe_layers:
            return x + self.mlp(f, prefix + "mlp.", shared)
        return x + self.experts(f, layer) + self.mlp(f, prefix + "share_expert.", shared)

    def embed(self, ids):
        return self.w["model.embed_tokens.weight"][np.asarray(ids)]

    def forward(self, ids):
        """(residual stream after the embedding and after each layer, logits)."""
        streams = [self.embed(ids)]
        for layer in range(self.c["num_hidden_layers"]):
            streams.append(self.layer(streams[-1], layer))
        return streams, self.linear(self.norm(streams[-1], "model.norm.weight"), "lm_head")

    def mtp(self, m, ids, previous):
        """MTP module m: (its residual stream, its logits) at positions 0 .. T - 2 - m.

        previous: the residual stream before the last norm, of the target or of module m - 1. Row p
        reads token p + 1 + m and predicts token p + 2 + m.
        """
        layer = self.c["num_hidden_layers"] + m
        prefix = f"model.layers.{layer}."
        rows = len(ids) - 1 - m
        e = self.norm(self.embed(ids[1 + m:]), prefix + "enorm.weight")
        h = self.norm(previous[:rows], prefix + "hnorm.weight")
        x = self.layer(self.linear(np.concatenate([e, h], -1), prefix + "eh_proj"), layer)
        head = prefix + "transformer.shared_head."
        return x, self.linear(self.norm(x, head + "norm.weight"), head + "output")


# --- a tiny random checkpoint -------------------------------------------------------------------


def random_config(generator, modules):
    """Every rule is in use: both kinds of attention, clamps, dense and expert layers."""
    layers = int(generator.integers(4, 6))
    total = layers + modules
    kinds = ["full_attention" if i % 4 == 0 and i < layers else "sliding_attention"
             for i in range(total)]
    groups = int(generator.choice([1, 2]))
    limits = [0.0] * total
    limits[layers - 1] = limits[layers - 2] = 0.7
    shared = [0.0] * total
    shared[layers - 1] = 0.5
    return dict(
        architectures=["Step3p5ForCausalLM"], model_type="step3p5", hidden_size=48,
        intermediate_size=80, vocab_size=VOCAB, num_hidden_layers=layers,
        num_nextn_predict_layers=modules, num_attention_heads=4, num_attention_groups=groups,
        head_dim=32,
        attention_other_setting=dict(attention_type="sliding_attention", num_attention_heads=6,
                                     num_attention_groups=groups, head_dim=32, true_head_dim=32),
        layer_types=kinds, sliding_window=int(generator.integers(5, 20)),
        rope_theta=[5000000.0 if k == "full_attention" else 10000.0 for k in kinds],
        partial_rotary_factors=[0.5 if k == "full_attention" else 1.0 for k in kinds],
        rope_scaling=dict(rope_type="llama3", factor=2.0, original_max_position_embeddings=64,
                          low_freq_factor=1.0, high_freq_factor=32.0),
        yarn_only_types=["full_attention"], max_position_embeddings=512, max_seq_len=512,
        use_qk_norm=True, use_head_wise_attn_gate=True, sink=False, use_rope_layers=[],
        moe_layers_enum=",".join(str(i) for i in range(1, layers)), moe_num_experts=6,
        moe_top_k=int(generator.integers(2, 4)), moe_intermediate_size=16, share_expert_dim=32,
        moe_router_activation="sigmoid", moe_router_scaling_factor=3.0, norm_expert_weight=True,
        use_moe_router_bias=True, need_fp32_gate=True, swiglu_limits=limits,
        swiglu_limits_shared=shared, zero_centered=True, tie_word_embeddings=False,
        bos_token_id=0, eos_token_id=[1, 2], torch_dtype="bfloat16")


def random_tensors(config, generator):
    """{published name: float64}."""
    return {t.name: np.clip(t.mean + t.deviation * generator.normal(size=t.shape), t.low, t.high)
            for t in random_checkpoints.step3p5_tensors(config)}


def stored_tensors(tensors, config):
    """{name: (dtype, array)} as the file holds them."""
    stored = {}
    block = config.get("quantization_config", {}).get("weight_block_size")
    for name, tensor in tensors.items():
        if name.endswith("router_bias"):
            stored[name] = ("F32", tensor.astype(np.float32))
        elif block and random_checkpoints.is_fp8(name):
            rows, cols = tensor.shape[-2:]
            lead = tensor.shape[:-2]
            scale = np.zeros((*lead, -(-rows // block[0]), -(-cols // block[1])), np.float32)
            codes = np.zeros(tensor.shape, np.uint8)
            for i in range(scale.shape[-2]):
                for j in range(scale.shape[-1]):
                    at = (..., slice(i * block[0], (i + 1) * block[0]),
                          slice(j * block[1], (j + 1) * block[1]))
                    scale[..., i, j] = np.abs(tensor[at]).max((-2, -1)) / 448
                    codes[at] = to_e4m3(tensor[at] / scale[..., i, j][..., None, None])
            stored[name] = ("F8_E4M3", codes)
            stored[name + "_scale_inv"] = ("F32", scale)
        else:
            stored[name] = ("BF16", to_bf16(tensor))
    return stored


def write_json(path, value, **form):
    path.write_text(json.dumps(value, ensure_ascii=False, **(form or {"indent": 1})) + "\n", encoding="utf-8")


def gap(logits):
    top = np.sort(logits, -1)
    return (top[..., -1] - top[..., -2]).min()


def find_prompt(network, length, generator):
    """A prompt whose golden figures hold no near tie: (ids, greedy continuation)."""
    for _ in range(2000):
        ids = [0] + generator.integers(FIRST_BYTE_TOKEN, VOCAB - 2, length - 1).tolist()
        network.routing_margin = np.inf
        full, smallest = list(ids), np.inf
        for _ in range(NEW_TOKENS):
            logits = network.forward(full)[1][-1]
            smallest = min(smallest, gap(logits))
            full.append(int(logits.argmax()))
            if smallest < MIN_ARGMAX_MARGIN or network.routing_margin < MIN_ROUTING_MARGIN:
                break
        else:
            new = full[length:]
            if not set(new) & {1, 2} and len(set(new)) >= 8:
                return ids, new
    raise SystemExit(f"no prompt of {length} tokens without a near tie; try another seed")


def greedy_drafts(network, ids):
    """What the chain of modules drafts after `ids`; -1 from the first near tie on."""
    drafts, near_tie = [], False
    previous = network.forward(ids[:-1])[0][-1]
    for m in range(network.c["num_nextn_predict_layers"]):
        previous, logits = network.mtp(m, ids + drafts, previous)
        near_tie = near_tie or gap(logits[-1]) < MIN_ARGMAX_MARGIN
        drafts.append(int(logits[-1].argmax()))
        if near_tie:
            return drafts[:-1] + [-1] * (network.c["num_nextn_predict_layers"] - m)
    return drafts


def quantization(block):
    return dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic",
                weight_block_size=list(block))


def write_checkpoint(directory, config, generator):
    """Returns the network of the values as they are stored."""
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / "config.json", config)
    path = directory / "model.safetensors"
    write_safetensors(path, stored_tensors(random_tensors(config, generator), config))
    return Step3p5(config, read_safetensors(path, config))


def add_case(golden, case, network, ids):
    """The logits of the target and of every MTP module."""
    streams, logits = network.forward(ids)
    golden[f"case{case}.ids"] = ("I32", np.array(ids, np.int32))
    golden[f"case{case}.logits"] = ("F32", logits.astype(np.float32))
    previous = streams[-1]
    for m in range(network.c["num_nextn_predict_layers"]):
        previous, module_logits = network.mtp(m, ids, previous)
        golden[f"case{case}.mtp{m}.logits"] = ("F32", module_logits.astype(np.float32))
    return logits


def write_golden(name):
    """The folder of tests/golden, but for its weights, which tools/random_checkpoints.py draws."""
    directory, fp8 = random_checkpoints.GOLDEN / name, name.endswith("fp8")
    directory.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(2 if fp8 else 1)
    config = random_config(generator, modules=3)
    if fp8:
        config["quantization_config"] = quantization((128, 128))
    write_json(directory / "config.json", config)
    random_checkpoints.write(name, record=True)
    network = Step3p5(config, read_safetensors(directory / "model.safetensors", config))
    write_json(directory / "generation_config.json",
               dict(bos_token_id=0, eos_token_id=config["eos_token_id"]))
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(random_checkpoints.GOLDEN / "tiny-v2" / file, directory / file)
    golden, greedy = {}, []
    for case, length in enumerate(PROMPT_LENGTHS):
        ids, new = find_prompt(network, length, generator)
        logits = add_case(golden, case, network, ids)
        drafts = [greedy_drafts(network, ids + new[:i]) for i in range(1, len(new) + 1)]
        greedy.append(dict(prompt_ids=ids, greedy_ids=new, draft_ids=drafts))
        print(f"case {case}: {length} tokens, std of logits {logits.std():.2f}, routing margin "
              f"{network.routing_margin:.1e}", flush=True)
    write_safetensors(directory / "golden.safetensors", golden)
    write_json(directory / "golden_greedy.json", greedy, separators=(",", ":"))


def varied_config(generator):
    """Any sizes and any mix of rules that the parser takes."""
    def pick(*choices):
        return choices[int(generator.integers(len(choices)))]

    modules = int(generator.integers(4))
    config = random_config(generator, modules)
    layers = config["num_hidden_layers"] = int(generator.integers(1, 7))
    total = layers + modules
    config["hidden_size"] = pick(32, 48, 64, 96)
    config["intermediate_size"] = pick(24, 64, 96)
    config["head_dim"] = head = pick(16, 32)
    full, sliding = pick(1, 2, 4), pick(1, 2, 4)
    config.update(num_attention_heads=full * pick(1, 2, 3), num_attention_groups=full)
    config["attention_other_setting"] = dict(
        attention_type="sliding_attention", num_attention_heads=sliding * pick(1, 3, 6),
        num_attention_groups=sliding, head_dim=head, true_head_dim=head)
    kinds = [pick("full_attention", "sliding_attention") for _ in range(layers)]
    config["layer_types"] = kinds + [pick("full_attention", "sliding_attention")] * modules
    config["sliding_window"] = pick(1, 2, 9, 40)
    kinds = config["layer_types"]
    config["rope_theta"] = [pick(1e4, 5e6) for _ in range(layers)] + [1e4] * modules
    config["partial_rotary_factors"] = [pick(0.25, 0.5, 1.0) for _ in range(layers)] + [1.0] * modules
    if pick(True, False):
        config["rope_scaling"] = None
    config["yarn_only_types"] = pick(["full_attention"], ["sliding_attention"], None)
    experts = sorted({int(generator.integers(layers)) for _ in range(layers)})
    config["moe_layers_enum"] = pick(experts, ",".join(str(i) for i in experts))
    config["moe_num_experts"] = pick(3, 8, 20)
    config["moe_top_k"] = int(generator.integers(1, 4))
    config["moe_intermediate_size"], config["share_expert_dim"] = pick(16, 32), pick(16, 48)
    config["moe_router_scaling_factor"] = pick(1.0, 3.0)
    for key in ("swiglu_limits", "swiglu_limits_shared"):
        config[key] = pick([pick(0, 0.3, 1.5, None) for _ in range(layers)] + [0] * modules, None)
    config["rms_norm_eps"] = pick(1e-5, 1e-3)
    if pick(True, False):
        config["quantization_config"] = quantization(pick((128, 128), (32, 16), (16, 64)))
    return config


def write_random(directory, count, seed):
    for i in range(count):
        generator = np.random.default_rng([seed, i])
        network = write_checkpoint(directory / str(i), varied_config(generator), generator)
        length = int(generator.integers(5, 60))
        for attempt in range(1000):
            if attempt % 50 == 49:  # many experts and rows leave few prompts without a near tie
                length = max(4, length * 2 // 3)
            network.routing_margin = np.inf
            ids = [0] + generator.integers(FIRST_BYTE_TOKEN, VOCAB - 2, length - 1).tolist()
            golden = {}
            add_case(golden, 0, network, ids)
            if network.routing_margin >= MIN_ROUTING_MARGIN / 10:
                break
        else:
            raise SystemExit(f"configuration {i}: no prompt without a near tie")
        write_safetensors(directory / str(i) / "golden.safetensors", golden)


def print_logprobs(directory, ids):
    config = json.loads((directory / "config.json").read_text())
    network = Step3p5(config, read_safetensors(directory / "model.safetensors", config))
    logits = network.forward(ids)[1]
    top = logits.max(-1, keepdims=True)
    logprobs = logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))
    picked = [float(logprobs[i, token]) for i, token in enumerate(ids[1:])]
    json.dump(dict(prompt_logprobs=picked, greedy=int(logits[-1].argmax()),
                   routing_margin=float(network.routing_margin)), sys.stdout)
    print()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    golden = commands.add_parser("golden", help="write a tiny checkpoint and its golden files")
    golden.add_argument("name", choices=("tiny-step3p5", "tiny-step3p5-fp8"), help="the second in FP8 blocks, scales that are no powers of 2")
    several = commands.add_parser("random", help="write checkpoints of random configurations")
    several.add_argument("directory", type=pathlib.Path)
    several.add_argument("--count", type=int, required=True)
    several.add_argument("--seed", type=int, default=1)
    logits = commands.add_parser("logits", help="print log-probabilities of a prompt")
    logits.add_argument("directory", type=pathlib.Path)
    logits.add_argument("ids", type=int, nargs="+", metavar="ID")
    args = parser.parse_args()
    if args.command == "golden":
        write_golden(args.name)
    elif args.command == "random":
        write_random(args.directory, args.count, args.seed)
    else:
        print_logprobs(args.directory, args.ids)


if __name__ == "__main__":
    main()
