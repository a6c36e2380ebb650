#!/usr/bin/env python3
"""tools/hybrid_reference.py against transformers' own classes of Kimi-Linear and Ling-3.0, in float32
on random configurations and weights: log-probabilities differ by less than 1e-3. By hand: needs
torch and transformers (5.24.0 was compared), without fla, whose kernels need a GPU.

  python3 tools/check_hybrids.py [--count N] [--seed N]    N configurations of each family

What the classes do not compute is left out: limits of experts, MTP modules and, of Ling-3.0,
projections of low rank and decays without a bound.
"""
import argparse
import re
import sys

import numpy as np

import random_hybrids
from hybrid_reference import MIN_ROUTING_MARGIN, Network

sys.modules["fla"] = None  # transformers' classes then take their own loops
import torch  # noqa: E402
from transformers.models.bailing_hybrid import (  # noqa: E402
    BailingHybridConfig, BailingHybridForCausalLM)
from transformers.models.kimi_linear import KimiLinearConfig, KimiLinearForCausalLM  # noqa: E402

TOLERANCE = 1e-3
SHARED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
          "num_attention_heads", "num_key_value_heads", "kv_lora_rank", "qk_nope_head_dim",
          "qk_rope_head_dim", "v_head_dim", "q_lora_rank", "moe_intermediate_size",
          "routed_scaling_factor", "max_position_embeddings", "rms_norm_eps",
          "topk_group", "first_k_dense_replace")


def known_to_the_classes(config, kimi):
    config["num_shared_experts"] = max(1, config["num_shared_experts"])
    config["num_nextn_predict_layers"] = 0
    if not kimi:
        config |= {"no_kda_lora": True, "kda_safe_gate": True, "expert_swiglu_limit_list": None,
                   "share_expert_swiglu_limit_list": None}
    return config


def model_of(config, network, kimi):
    layers = range(config["num_hidden_layers"])
    words = {key: config[key] for key in SHARED}
    words |= {"layer_types": ["linear_attention" if network.is_linear(layer) else "full_attention"
                              for layer in layers],
              "mlp_layer_types": ["dense" if layer < config["first_k_dense_replace"] else "sparse"
                                  for layer in layers],
              "num_local_experts": config["num_experts"],
              "n_shared_experts": config["num_shared_experts"],
              "pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
    if kimi:
        linear = config["linear_attn_config"]
        words |= {"linear_num_heads": linear["num_heads"], "linear_head_dim": linear["head_dim"],
                  "linear_conv_kernel_dim": linear["short_conv_kernel_size"],
                  "n_group": config["num_expert_group"],
                  "num_experts_per_tok": config["num_experts_per_token"],
                  "norm_topk_prob": config["moe_renormalize"]}
        del words["first_k_dense_replace"]
        return KimiLinearForCausalLM(KimiLinearConfig(**words))
    rope = {"rope_type": "default"} | (config["rope_scaling"] or {})
    words |= {key: config[key] for key in ("head_dim", "layer_group_size", "kda_lower_bound",
                                           "short_conv_kernel_size", "n_group", "norm_topk_prob",
                                           "num_experts_per_tok")}
    words |= {"kda_lower_bound": float(config["kda_lower_bound"]),
              "rope_parameters": rope | {"rope_theta": config["rope_theta"]},
              "num_mtp_layers": 0}
    return BailingHybridForCausalLM(BailingHybridConfig(**words))


def published_name(name, kimi):
    """Of a tensor of the classes, or of the tensors that it joins."""
    experts = "block_sparse_moe" if kimi and ".mlp." in name else "mlp"
    name = name.replace("forget_gate.", "")
    if not kimi:
        name = name.replace("embed_tokens", "word_embeddings").replace("self_attn", "attention")
        return name.replace("e_score_correction_bias", "expert_bias")
    return name.replace(".mlp.", f".{experts}.")


def value_of(name, tensors, config, kimi, linear):
    name = published_name(name, kimi)
    layer = int((re.search(r"layers\.(\d+)\.", name) or [0, -1])[1])
    if 0 <= layer < config["first_k_dense_replace"]:
        name = name.replace("block_sparse_moe", "mlp")
    if not kimi and not linear(layer):
        name = name.replace("attention.o_proj", "attention.dense")
    if name.endswith("attn.conv1d.weight") or name.endswith("attention.conv1d.weight"):
        parts = (name.replace("conv1d", f"{part}_conv1d") for part in "qkv")
        return np.concatenate([tensors[part] for part in parts])
    gate, up, down = ("w1", "w3", "w2") if kimi else ("gate_proj", "up_proj", "down_proj")
    of_experts = lambda part: [tensors[f"{name.rsplit('.', 1)[0]}.{expert}.{part}.weight"]
                               for expert in range(config["num_experts"])]
    if name.endswith("experts.gate_up_proj"):
        return np.stack([np.concatenate(pair) for pair in zip(of_experts(gate), of_experts(up))])
    if name.endswith("experts.down_proj"):
        return np.stack(of_experts(down))
    return tensors[name]


def largest_difference(generator, kimi):
    """Of a log-probability; None where a router was close to another choice."""
    config = known_to_the_classes(random_hybrids.random_config(generator, kimi), kimi)
    tensors, _ = random_hybrids.random_tensors(config, generator, lambda name, cols: "")
    network = Network(config, tensors)
    ids = [int(token) for token in generator.integers(2, random_hybrids.VOCAB, size=150)]
    expected = network.logprobs(ids)
    if network.margin < MIN_ROUTING_MARGIN:
        return None
    model = model_of(config, network, kimi).float().eval()
    with torch.no_grad():
        for name, parameter in model.state_dict().items():
            value = value_of(name, tensors, config, kimi, network.is_linear)
            parameter.copy_(torch.from_numpy(np.asarray(value)).reshape(parameter.shape))
        got = model(torch.tensor([ids]), use_cache=False).logits[0].log_softmax(-1).numpy()
    return np.abs(got - expected).max()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)
    status = 0
    for family, kimi in (("Kimi-Linear", True), ("Ling-3.0", False)):
        generator, found = np.random.default_rng(args.seed), []
        while len(found) < args.count:
            difference = largest_difference(generator, kimi)
            if difference is not None:
                found.append(difference)
        print(f"{family}: {args.count} configurations, largest difference {max(found):.1e}")
        status |= max(found) >= TOLERANCE
    return status


if __name__ == "__main__":
    sys.exit(main())
