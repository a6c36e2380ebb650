#!/usr/bin/env python3
"""Makes a model of the dense shape D8 for benchmarks.

  python3 tools/make_bench_model.py DIR --layers 27 --mtp-layers 1
  build/release/outrider bench latency DIR --load-format dummy
  python3 tools/make_bench_model.py DIR --weights
  build/release/outrider generate DIR --prompt-token-ids 1,2,3 --max-tokens 1

D8 has the proportions of DeepSeek-V2-Lite with dense feed-forward layers: hidden 2048, 16 heads,
feed-forward width 10944 and a vocabulary of 102,400; with its 8 layers 2.1 GB as bfloat16. Without
--weights only config.json is written, which is all that --load-format dummy needs. Weights are
random bytes in the range of trained ones, and repeat: they are for timing, not for text.
"""

import argparse
import array
import json
import pathlib
import random
import struct
import sys

HIDDEN, HEADS, WIDTH, VOCABULARY = 2048, 16, 10944, 102400
Q_RANK, LATENT, NOPE, ROPE, VALUE = 1536, 512, 128, 64, 128
MEBIBYTE = 1 << 20


def config(layers, mtp_layers):
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": WIDTH,
        "num_hidden_layers": layers,
        "num_nextn_predict_layers": mtp_layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "q_lora_rank": Q_RANK,
        "kv_lora_rank": LATENT,
        "qk_nope_head_dim": NOPE,
        "qk_rope_head_dim": ROPE,
        "v_head_dim": VALUE,
        "n_routed_experts": 0,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-06,
        "rope_theta": 10000.0,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": 0,
        "eos_token_id": 1,
    }


def layer_shapes(name):
    attention = name + ".self_attn."
    return {
        name + ".input_layernorm.weight": [HIDDEN],
        name + ".post_attention_layernorm.weight": [HIDDEN],
        attention + "q_a_proj.weight": [Q_RANK, HIDDEN],
        attention + "q_a_layernorm.weight": [Q_RANK],
        attention + "q_b_proj.weight": [HEADS * (NOPE + ROPE), Q_RANK],
        attention + "kv_a_proj_with_mqa.weight": [LATENT + ROPE, HIDDEN],
        attention + "kv_a_layernorm.weight": [LATENT],
        attention + "kv_b_proj.weight": [HEADS * (NOPE + VALUE), LATENT],
        attention + "o_proj.weight": [HIDDEN, HEADS * VALUE],
        name + ".mlp.gate_proj.weight": [WIDTH, HIDDEN],
        name + ".mlp.up_proj.weight": [WIDTH, HIDDEN],
        name + ".mlp.down_proj.weight": [HIDDEN, WIDTH],
    }


def shapes(layers, mtp_layers):
    result = {"model.embed_tokens.weight": [VOCABULARY, HIDDEN], "model.norm.weight": [HIDDEN],
              "lm_head.weight": [VOCABULARY, HIDDEN]}
    for layer in range(layers + mtp_layers):
        name = f"model.layers.{layer}"
        result |= layer_shapes(name)
        if layer >= layers:
            result |= {name + ".enorm.weight": [HIDDEN], name + ".hnorm.weight": [HIDDEN],
                       name + ".eh_proj.weight": [HIDDEN, 2 * HIDDEN],
                       name + ".shared_head.norm.weight": [HIDDEN]}
    return result


def random_bfloat16(count):
    """Numbers of either sign between 2^-8 and 2^-4, the range of trained weights."""
    generator = random.Random(0)
    return array.array("H", (generator.getrandbits(1) << 15 | generator.randint(0x3B80, 0x3D7F)
                             for _ in range(count))).tobytes()


def write_weights(path, tensors):
    header, offset = {}, 0
    for name, shape in tensors.items():
        size = 2
        for dimension in shape:
            size *= dimension
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    pattern = random_bfloat16(MEBIBYTE // 2)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for written in range(0, offset, MEBIBYTE):
            file.write(pattern[: min(MEBIBYTE, offset - written)])
            if sys.stderr.isatty():
                print(f"\r{written >> 20} of {offset >> 20} MiB", end="", file=sys.stderr)
    print(f"\r{path}: {offset >> 20} MiB", file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=pathlib.Path, metavar="DIR", help="is made; overwritten")
    parser.add_argument("--layers", type=int, default=8, metavar="N", help="default: 8")
    parser.add_argument("--mtp-layers", type=int, default=0, metavar="N", help="default: 0")
    parser.add_argument("--weights", action="store_true", help="write model.safetensors too")
    args = parser.parse_args()
    if args.layers < 1 or args.mtp_layers < 0:
        parser.error("--layers must be at least 1 and --mtp-layers at least 0")
    args.directory.mkdir(parents=True, exist_ok=True)
    text = json.dumps(config(args.layers, args.mtp_layers), indent=1) + "\n"
    (args.directory / "config.json").write_text(text)
    if args.weights:
        write_weights(args.directory / "model.safetensors", shapes(args.layers, args.mtp_layers))


if __name__ == "__main__":
    main()
