"""The configs of published models, as far as they decide parameters, memory and what runs: for tools/model_table.py.

CONFIGS maps a name for people to a config.json. What a config does not need to be read is left out.
"""

FP8_BLOCKS = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}


def _yarn(factor: float, original: int = 4096, mscale: float = 1.0) -> dict:
    return {"type": "yarn", "factor": factor, "original_max_position_embeddings": original, "beta_fast": 32,
            "beta_slow": 1, "mscale": mscale, "mscale_all_dim": mscale}


_LATENT = {"hidden_act": "silu", "tie_word_embeddings": False, "attention_bias": False, "kv_lora_rank": 512,
           "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "rms_norm_eps": 1e-6,
           "rope_theta": 10000, "moe_layer_freq": 1, "torch_dtype": "bfloat16"}

_V2 = _LATENT | {"architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "vocab_size": 102400,
                 "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1, "scoring_func": "softmax",
                 "norm_topk_prob": False, "max_position_embeddings": 163840}

V2_LITE = _V2 | {"hidden_size": 2048, "intermediate_size": 10944, "moe_intermediate_size": 1408,
                 "num_hidden_layers": 27, "num_attention_heads": 16, "num_key_value_heads": 16, "q_lora_rank": None,
                 "n_routed_experts": 64, "topk_method": "greedy", "n_group": 1, "topk_group": 1,
                 "routed_scaling_factor": 1.0, "rope_scaling": _yarn(40, mscale=0.707)}

V2 = _V2 | {"hidden_size": 5120, "intermediate_size": 12288, "moe_intermediate_size": 1536, "num_hidden_layers": 60,
            "num_attention_heads": 128, "num_key_value_heads": 128, "q_lora_rank": 1536, "n_routed_experts": 160,
            "topk_method": "group_limited_greedy", "n_group": 8, "topk_group": 3, "routed_scaling_factor": 16.0,
            "rope_scaling": _yarn(40, mscale=0.707)}

V3 = _LATENT | {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "vocab_size": 129280,
                "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
                "num_hidden_layers": 61, "num_nextn_predict_layers": 1, "num_attention_heads": 128,
                "num_key_value_heads": 128, "q_lora_rank": 1536, "n_routed_experts": 256, "n_shared_experts": 1,
                "num_experts_per_tok": 8, "first_k_dense_replace": 3, "scoring_func": "sigmoid",
                "topk_method": "noaux_tc", "n_group": 8, "topk_group": 4, "norm_topk_prob": True,
                "routed_scaling_factor": 2.5, "max_position_embeddings": 163840, "rope_scaling": _yarn(40),
                "quantization_config": FP8_BLOCKS}

V32 = V3 | {"architectures": ["DeepseekV32ForCausalLM"], "model_type": "deepseek_v32", "index_n_heads": 64,
            "index_head_dim": 128, "index_topk": 2048}

KIMI_K2 = V3 | {"model_type": "kimi_k2", "vocab_size": 163840, "num_nextn_predict_layers": 0,
                "num_attention_heads": 64, "num_key_value_heads": 64, "n_routed_experts": 384,
                "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.827,
                "rope_theta": 50000, "max_position_embeddings": 131072, "rope_scaling": _yarn(32)}

_INT4 = {"quant_method": "compressed-tensors", "format": "pack-quantized",
         "config_groups": {"group_0": {"targets": ["Linear"], "input_activations": None, "weights": {
             "num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32,
             "actorder": None}}},
         "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"]}

KIMI_K25 = {"architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25",
            "text_config": KIMI_K2 | {"max_position_embeddings": 262144, "rope_scaling": _yarn(64),
                                      "quantization_config": _INT4}}

GLM47_FLASH = _LATENT | {"architectures": ["Glm4MoeLiteForCausalLM"], "model_type": "glm4_moe_lite",
                         "vocab_size": 154880, "hidden_size": 2048, "intermediate_size": 10240,
                         "moe_intermediate_size": 1536, "num_hidden_layers": 47, "num_nextn_predict_layers": 1,
                         "num_attention_heads": 20, "num_key_value_heads": 20, "q_lora_rank": 768,
                         "qk_nope_head_dim": 192, "v_head_dim": 256, "n_routed_experts": 64, "n_shared_experts": 1,
                         "num_experts_per_tok": 4, "first_k_dense_replace": 1, "scoring_func": "sigmoid",
                         "topk_method": "noaux_tc", "n_group": 1, "topk_group": 1, "norm_topk_prob": True,
                         "routed_scaling_factor": 1.8, "rope_theta": 1000000, "rope_scaling": None,
                         "rms_norm_eps": 1e-5, "max_position_embeddings": 202752}

GLM5 = GLM47_FLASH | {"architectures": ["GlmMoeDsaForCausalLM"], "model_type": "glm_moe_dsa", "hidden_size": 6144,
                      "intermediate_size": 12288, "moe_intermediate_size": 2048, "num_hidden_layers": 78,
                      "num_attention_heads": 64, "num_key_value_heads": 64, "q_lora_rank": 2048,
                      "n_routed_experts": 256, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
                      "routed_scaling_factor": 2.5, "index_n_heads": 32, "index_head_dim": 128, "index_topk": 2048}

_V4 = {"architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "vocab_size": 129280,
       "num_key_value_heads": 1, "head_dim": 512, "qk_rope_head_dim": 64, "o_lora_rank": 1024, "sliding_window": 128,
       "index_n_heads": 64, "index_head_dim": 128, "n_shared_experts": 1, "num_experts_per_tok": 6,
       "scoring_func": "sqrtsoftplus", "norm_topk_prob": True, "topk_method": "noaux_tc", "num_hash_layers": 3,
       "swiglu_limit": 10.0, "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6, "rms_norm_eps": 1e-6,
       "rope_theta": 10000, "compress_rope_theta": 160000,
       "rope_scaling": {"type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1,
                        "original_max_position_embeddings": 65536},
       "max_position_embeddings": 1048576, "num_nextn_predict_layers": 1, "hidden_act": "silu",
       "attention_bias": False, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "expert_dtype": "fp4",
       "quantization_config": FP8_BLOCKS | {"scale_fmt": "ue8m0"}}

V4_FLASH = _V4 | {"hidden_size": 4096, "moe_intermediate_size": 2048, "num_hidden_layers": 43,
                  "num_attention_heads": 64, "q_lora_rank": 1024, "o_groups": 8,
                  "compress_ratios": [0, 0] + [4, 128] * 20 + [4] + [0], "index_topk": 512, "n_routed_experts": 256,
                  "routed_scaling_factor": 1.5}

V4_PRO = _V4 | {"hidden_size": 7168, "moe_intermediate_size": 3072, "num_hidden_layers": 61,
                "num_attention_heads": 128, "q_lora_rank": 1536, "o_groups": 16,
                "compress_ratios": [128, 128] + [4, 128] * 29 + [4] + [0], "index_topk": 1024,
                "n_routed_experts": 384, "routed_scaling_factor": 2.5}

# 45 layers and three MTP modules; every fourth layer reads all tokens.
_STEP_FULL = [layer % 4 == 0 and layer < 45 for layer in range(48)]

STEP35_FLASH = {"architectures": ["Step3p5ForCausalLM"], "model_type": "step3p5", "hidden_size": 4096,
                "intermediate_size": 11264, "vocab_size": 128896, "num_hidden_layers": 45,
                "num_nextn_predict_layers": 3, "num_attention_heads": 64, "num_attention_groups": 8, "head_dim": 128,
                "attention_other_setting": {"attention_type": "sliding_attention", "num_attention_heads": 96,
                                            "num_attention_groups": 8, "head_dim": 128, "true_head_dim": 128},
                "layer_types": ["full_attention" if full else "sliding_attention" for full in _STEP_FULL],
                "sliding_window": 512, "rope_theta": [5e6 if full else 1e4 for full in _STEP_FULL],
                "partial_rotary_factors": [0.5 if full else 1.0 for full in _STEP_FULL],
                "rope_scaling": {"rope_type": "llama3", "factor": 2.0, "original_max_position_embeddings": 131072,
                                 "low_freq_factor": 1.0, "high_freq_factor": 32.0},
                "yarn_only_types": ["full_attention"], "max_position_embeddings": 262144, "max_seq_len": 262144,
                "use_qk_norm": True, "use_head_wise_attn_gate": True, "sink": False, "use_rope_layers": [],
                "moe_layers_enum": ",".join(str(layer) for layer in range(3, 45)), "moe_num_experts": 288,
                "moe_top_k": 8, "moe_intermediate_size": 1280, "share_expert_dim": 1280,
                "moe_router_activation": "sigmoid", "moe_router_scaling_factor": 3.0, "norm_expert_weight": True,
                "use_moe_router_bias": True, "need_fp32_gate": True,
                "swiglu_limits": [7.0 if layer in (43, 44) else None for layer in range(48)],
                "swiglu_limits_shared": [16.0 if layer == 44 else 0.0 for layer in range(48)],
                "zero_centered": True, "tie_word_embeddings": False, "torch_dtype": "bfloat16"}

KIMI_LINEAR = {"architectures": ["KimiLinearForCausalLM"], "model_type": "kimi_linear", "vocab_size": 163840,
               "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 27,
               "linear_attn_config": {"kda_layers": [n for n in range(1, 27) if n % 4 != 0],
                                      "full_attn_layers": [4, 8, 12, 16, 20, 24, 27], "num_heads": 32,
                                      "head_dim": 128, "short_conv_kernel_size": 4},
               "num_attention_heads": 32, "num_key_value_heads": 32, "q_lora_rank": None, "kv_lora_rank": 512,
               "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "mla_use_nope": True,
               "rope_theta": 10000.0, "rope_scaling": None, "first_k_dense_replace": 1, "moe_layer_freq": 1,
               "moe_intermediate_size": 1024, "num_experts": 256, "num_experts_per_token": 8, "num_expert_group": 1,
               "topk_group": 1, "use_grouped_topk": True, "num_shared_experts": 1,
               "moe_router_activation_func": "sigmoid", "moe_renormalize": True, "routed_scaling_factor": 2.446,
               "num_nextn_predict_layers": 0, "hidden_act": "silu", "rms_norm_eps": 1e-5, "model_max_length": 1048576,
               "tie_word_embeddings": False, "torch_dtype": "bfloat16"}

LING3_FLASH = {"architectures": ["BailingMoeV3ForCausalLM"], "model_type": "bailing_hybrid", "vocab_size": 157184,
               "hidden_size": 2560, "intermediate_size": 6144, "num_hidden_layers": 42, "layer_group_size": 6,
               "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 128, "short_conv_kernel_size": 4,
               "no_kda_lora": True, "kda_safe_gate": True, "kda_lower_bound": -5, "q_lora_rank": None,
               "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
               "rope_theta": 6000000, "gated_attention_proj_granularity_type": "head_wise",
               "first_k_dense_replace": 2, "moe_intermediate_size": 768, "num_experts": 512,
               "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4, "num_shared_experts": 1,
               "score_function": "sigmoid", "router_dtype": "fp32", "norm_topk_prob": True,
               "routed_scaling_factor": 2.5, "num_nextn_predict_layers": 1, "rms_norm_eps": 1e-6,
               "max_position_embeddings": 262144, "tie_word_embeddings": False, "torch_dtype": "bfloat16"}

LING3_TINY = LING3_FLASH | {"hidden_size": 1536, "intermediate_size": 4608, "num_hidden_layers": 24,
                            "layer_group_size": 4, "num_attention_heads": 16, "num_key_value_heads": 16,
                            "q_lora_rank": 256, "first_k_dense_replace": 1, "moe_intermediate_size": 512,
                            "num_experts": 128, "num_nextn_predict_layers": 0, "max_position_embeddings": 131072}

_LING_FP8 = FP8_BLOCKS | {"scale_fmt": "ue8m0", "modules_to_not_convert": ["lm_head", "b_proj"]}
_LING_INT4 = _INT4 | {"ignore": ["lm_head", "re:.*attention.*", "re:.*shared_experts.*", "re:.*eh_proj.*",
                                 "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"]}

CONFIGS = {
    "DeepSeek-V2-Lite": V2_LITE,
    "DeepSeek-V2": V2,
    "DeepSeek-V3, R1": V3,
    "DeepSeek-V3.2": V32,
    "DeepSeek-V4-Flash": V4_FLASH,
    "DeepSeek-V4-Pro": V4_PRO,
    "Kimi-K2": KIMI_K2,
    "Kimi-K2.5": KIMI_K25,
    "GLM-4.7-Flash": GLM47_FLASH,
    "GLM-4.7-Flash in FP8": GLM47_FLASH | {"quantization_config": FP8_BLOCKS},
    "GLM-5": GLM5,
    "Step-3.5-Flash": STEP35_FLASH,
    "Kimi-Linear-48B": KIMI_LINEAR,
    "Ling-3.0-tiny": LING3_TINY,
    "Ling-3.0-flash": LING3_FLASH,
    "Ling-3.0-flash in FP8": LING3_FLASH | {"quantization_config": _LING_FP8},
    "Ling-3.0-flash in INT4": LING3_FLASH | {"quantization_config": _LING_INT4},
    "Ling-3.0-flash in FP4": LING3_FLASH | {"quantization_config": _LING_FP8 | {
        "routed_experts_quant_method": "mxfp4", "routed_experts_group_size": 32}},
}
