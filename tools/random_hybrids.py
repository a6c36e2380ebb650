#!/usr/bin/env python3
"""Random small Kimi-Linear and Ling-3.0 checkpoints, and what tools/hybrid_reference.py computes
with each. Needs numpy only.

  python3 tools/random_hybrids.py DIRECTORY --count N [--seed N]
      writes N of them into DIRECTORY/0, 1, ..., each with prompt.json: a prompt, its greedy answer,
      the log-probabilities of all tokens at each of their positions, and what an MTP module drafts:
      by number of answered tokens, from 1 on, the drafts of a module that is applied DRAFTS times,
      up to a near tie

Half of the Ling-3.0s have an MTP module, half of them positions scaled by YaRN. Half of all
checkpoints are stored in FP8 blocks, in INT4 or with experts in MXFP4, as they are published.
"""
import argparse
import json
import pathlib
import struct
import sys

import numpy as np

import stored_formats
from hybrid_reference import MIN_ARGMAX_MARGIN, MIN_ROUTING_MARGIN, Network

VOCAB = 48
PROMPT_TOKENS = 90
ANSWER_TOKENS = 20


def to_bf16(x):
    """The nearest bfloat16 values, as float32."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    bits = bits + 0x7FFF + ((bits >> 16) & 1)
    return (bits & np.uint32(0xFFFF0000)).view(np.float32)


def write_safetensors(path, tensors):
    """tensors: (type, array) by name."""
    header, data, offset = {}, [], 0
    for name, (dtype, array) in tensors.items():
        raw = np.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": dtype, "shape": list(array.shape),
                        "data_offsets": [offset, offset + len(raw)]}
        data.append(raw)
        offset += len(raw)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data))


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
    modules = pick(0, 1)
    limits = lambda: [pick(None, 0, 0.1, 0.3) for _ in range(layers + pick(0, modules))]
    yarn = {"rope_type": "yarn", "factor": pick(2.0, 4.0), "original_max_position_embeddings": 64}
    if pick(True, False):
        yarn |= {"mscale": 1.0, "mscale_all_dim": pick(0.7, 1.0)}
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
        "num_nextn_predict_layers": modules, "rope_scaling": pick(None, yarn),
        "rms_norm_eps": 1e-6})
    config["topk_group"] = min(2, config["n_group"])
    return config


def random_storage(config, generator):
    """Adds a quantization_config, or none. Returns how a matrix is stored: "" or a function of
    stored_formats, by its name and number of columns."""
    kind = ("", "", "", "fp8", "int4", "mxfp4")[generator.integers(6)]
    if not kind:
        return lambda name, cols: ""
    # Several blocks, the last ones cut.
    sizes = {"hidden_size": 160, "intermediate_size": 160, "moe_intermediate_size": 32}
    config.update(sizes if kind != "int4" else {"hidden_size": 64, "moe_intermediate_size": 32})
    plain = ("embed", "lm_head", ".gate.weight", "conv1d", "eh_proj", ".b_proj.weight")
    of_experts = lambda name: ".experts." in name
    if kind == "int4":
        # All matrices that take groups, or the routed experts only, as Ling-3.0 is published.
        everything = bool(generator.integers(2))
        config["quantization_config"] = {
            "quant_method": "compressed-tensors", "format": "pack-quantized",
            "ignore": [] if everything else ["lm_head", "re:.*attention.*", "re:.*shared_expert.*"],
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
                "num_bits": 4, "type": "int", "symmetric": True, "strategy": "group",
                "group_size": 32}}}}
        return lambda name, cols: "int4" if cols % 32 == 0 and (
            of_experts(name) or (everything and not any(part in name for part in plain))) else ""
    config["quantization_config"] = {
        "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
        "weight_block_size": [128, 128], "scale_fmt": "ue8m0",
        "modules_to_not_convert": ["lm_head", "b_proj", "eh_proj"]}
    if kind == "fp8":
        return lambda name, cols: "" if any(part in name for part in plain) else "fp8"
    config["quantization_config"] |= {"routed_experts_quant_method": "mxfp4",
                                      "routed_experts_group_size": 32}
    return lambda name, cols: ("" if any(part in name for part in plain) else
                               "mxfp4" if of_experts(name) else "fp8")


def random_tensors(config, generator, storage):
    """Values by name, and what they are stored as."""
    c, kimi, tensors = config, config["model_type"] == "kimi_linear", {}
    hidden, stored = c["hidden_size"], {}
    formats = {"fp8": lambda *a: stored_formats.fp8_blocks(*a, powers=True),
               "int4": stored_formats.int4_groups, "mxfp4": stored_formats.mxfp4}

    def matrix(name, rows, cols):
        kind = storage(name, cols)
        if not kind:
            tensors[name] = to_bf16(generator.normal(size=(rows, cols)) / np.sqrt(cols))
            return
        tensors[name], parts = formats[kind](generator, rows, cols, 1 / np.sqrt(cols))
        base = name.removesuffix(".weight")
        stored.update({base + suffix: part for suffix, part in parts.items()})
        packed.add(name)

    def vector(name, size, mean=1.0, spread=0.2):
        tensors[name] = to_bf16(mean + spread * generator.normal(size=size))

    packed = set()

    def mlp(prefix, width, names=("gate_proj", "up_proj", "down_proj")):
        matrix(f"{prefix}{names[0]}.weight", width, hidden)
        matrix(f"{prefix}{names[1]}.weight", width, hidden)
        matrix(f"{prefix}{names[2]}.weight", hidden, width)

    tensors["model.embed_tokens.weight" if kimi else "model.word_embeddings.weight"] = to_bf16(
        generator.normal(size=(VOCAB, hidden)))
    network = Network(c, {})
    for layer in range(c["num_hidden_layers"] + c["num_nextn_predict_layers"]):
        prefix = f"model.layers.{layer}."
        p = prefix + ("self_attn." if kimi else "attention.")
        if layer >= c["num_hidden_layers"]:
            for norm in ("enorm", "hnorm", "final_layernorm"):
                vector(f"{prefix}{norm}.weight", hidden)
            matrix(prefix + "eh_proj.weight", hidden, 2 * hidden)
        vector(prefix + "input_layernorm.weight", hidden)
        vector(prefix + "post_attention_layernorm.weight", hidden)
        if layer < c["num_hidden_layers"] and network.is_linear(layer):
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
    stored.update({name: ("F32", np.asarray(array, np.float32))
                   for name, array in tensors.items() if name not in packed})
    return tensors, stored


def write_random(directory, count, seed):
    generator = np.random.default_rng(seed)
    written = 0
    while written < count:
        config = random_config(generator, kimi=written % 2 == 0)
        storage = random_storage(config, generator)
        tensors, stored = random_tensors(config, generator, storage)
        network = Network(config, tensors)
        ids = [int(token) for token in generator.integers(2, VOCAB, size=PROMPT_TOKENS)]
        drafts = []
        for _ in range(ANSWER_TOKENS):
            hidden = network.hidden(ids)
            if config["num_nextn_predict_layers"] and len(ids) > PROMPT_TOKENS:
                drafts.append(network.drafts(ids, hidden[:-1]))
            logprobs = network.head(hidden)
            best = np.sort(logprobs[-1])[::-1]
            if network.margin < MIN_ROUTING_MARGIN or best[0] - best[1] < MIN_ARGMAX_MARGIN:
                break
            ids.append(int(logprobs[-1].argmax()))
        if len(ids) < PROMPT_TOKENS + ANSWER_TOKENS:
            continue
        target = directory / str(written)
        target.mkdir(parents=True)
        (target / "config.json").write_text(json.dumps(config, indent=1))
        write_safetensors(target / "model.safetensors", stored)
        (target / "prompt.json").write_text(json.dumps({
            "ids": ids[:PROMPT_TOKENS], "answer": ids[PROMPT_TOKENS:],
            "logprobs": logprobs.tolist(), "drafts": drafts}))
        written += 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    write_random(args.directory, args.count, args.seed)


if __name__ == "__main__":
    sys.exit(main())
