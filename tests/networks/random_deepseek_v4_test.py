"""Random small DeepSeek-V4 checkpoints, computed by transformers in float32, through the engine's network:
log-probabilities differ by less than 1e-3. Half of the checkpoints are in the published formats (FP8 blocks, FP4
experts, e8m0 scales), the others bfloat16 and float32. Prompts are drawn again until no choice of an indexer or
router is a near tie. Needs torch and transformers (5.24), which ctest does not install:

  random_deepseek_v4_test.py --check DEEPSEEK_V4_GOLDEN_CHECK [--count N] [--seed N] [--keep DIR]
"""
import argparse
import json
import pathlib
import random
import re
import struct
import subprocess
import sys
import tempfile

import torch
import torch.nn.functional as F
import transformers
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

LEAST_MARGIN = 1e-5  # between what is chosen and what is not
FP8 = re.compile(r"(attn\.(wq_a|wq_b|wkv|wo_a|wo_b|indexer\.wq_b)|shared_experts\.w[123])\.weight$")
FP4 = re.compile(r"ffn\.experts\.\d+\.w[123]\.weight$")
FLOAT32 = re.compile(r"(hc_|attn_sink|\.ape|gate\.bias)")
FP4_LEVELS = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
RENAMES = (
    (r"^model\.", ""), (r"^embed_tokens\.", "embed."), (r"^lm_head\.", "head."),
    (r"hc_head\.hc_(fn|base|scale)$", r"hc_head_\1"), (r"attn_hc\.(\w+)$", r"hc_attn_\1"), (r"ffn_hc\.(\w+)$", r"hc_ffn_\1"),
    (r"input_layernorm", "attn_norm"), (r"post_attention_layernorm", "ffn_norm"), (r"\.mlp\.", ".ffn."),
    (r"\.self_attn\.compressor\.indexer\.scorer\.weights_proj", ".attn.indexer.weights_proj"),
    (r"\.self_attn\.compressor\.indexer\.q_b_proj", ".attn.indexer.wq_b"),
    (r"\.self_attn\.compressor\.indexer\.", ".attn.indexer.compressor."), (r"\.self_attn\.", ".attn."),
    (r"(compressor)\.kv_norm", r"\1.norm"), (r"position_bias$", "ape"), (r"sinks$", "attn_sink"),
    (r"q_a_proj", "wq_a"), (r"q_a_norm", "q_norm"), (r"q_b_proj", "wq_b"), (r"o_a_proj", "wo_a"), (r"o_b_proj", "wo_b"),
    (r"kv_proj", "wkv"), (r"(compressor\.)gate_proj", r"\1wgate"), (r"gate\.e_score_correction_bias", "gate.bias"),
    (r"shared_experts\.gate_proj", "shared_experts.w1"), (r"shared_experts\.up_proj", "shared_experts.w3"),
    (r"shared_experts\.down_proj", "shared_experts.w2"))


def random_config(rng):
    layers = rng.randint(2, 5)
    heads = rng.choice([2, 4, 8])
    rope = rng.choice([4, 8, 16])
    experts = rng.choice([3, 4, 8])
    config = dict(
        architectures=["DeepseekV4ForCausalLM"], model_type="deepseek_v4", vocab_size=rng.randint(50, 300),
        hidden_size=32 * rng.randint(1, 5), moe_intermediate_size=32 * rng.randint(1, 3), num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=1, head_dim=rope * rng.randint(2, 5), qk_rope_head_dim=rope,
        q_lora_rank=8 * rng.randint(2, 6), o_groups=rng.choice([g for g in (1, 2, 4) if heads % g == 0]),
        o_lora_rank=16 * rng.randint(1, 3), compress_ratios=[rng.choice([0, 4, 4, 128]) for _ in range(layers)] + [0],
        num_hash_layers=rng.randint(0, 2), sliding_window=rng.randint(1, 70), index_n_heads=rng.randint(7, 10),
        index_head_dim=rope + 4 * rng.randint(0, 4), index_topk=rng.randint(1, 40), n_routed_experts=experts,
        n_shared_experts=1, num_experts_per_tok=rng.randint(1, experts), scoring_func="sqrtsoftplus",
        topk_method="noaux_tc", norm_topk_prob=True, routed_scaling_factor=round(rng.uniform(0.5, 3), 2),
        swiglu_limit=rng.choice([0.5, 2.0, 10.0]), hc_mult=rng.randint(2, 4), hc_sinkhorn_iters=rng.randint(1, 20),
        hc_eps=rng.choice([1e-6, 1e-3]), rms_norm_eps=rng.choice([1e-6, 1e-5]), rope_theta=rng.choice([1e3, 1e4]),
        compress_rope_theta=rng.choice([1e4, 1.6e5]), max_position_embeddings=4096, num_nextn_predict_layers=0,
        hidden_act="silu", attention_bias=False, tie_word_embeddings=False, torch_dtype="bfloat16", bos_token_id=0,
        eos_token_id=1)
    if rng.random() < 0.7:
        config["rope_scaling"] = dict(type="yarn", factor=rng.choice([2, 16]), beta_fast=32, beta_slow=1,
                                      original_max_position_embeddings=rng.choice([64, 512]))
    return config


def power(amax, top):
    """The least powers of two s with amax / s <= top."""
    m, e = torch.frexp(amax.clamp_min(1e-12) / top)
    return torch.ldexp(torch.ones_like(amax), e - (m == 0.5).int())


def encode(name, w, published):
    """({stored name: (safetensors type, bytes, shape)}, the values that are stored)."""
    def raw(t):
        return t.contiguous().view(torch.uint8).numpy().tobytes()

    def exponents(s):
        return (torch.frexp(s)[1] - 1 + 127).to(torch.uint8)

    scale = name[:-len("weight")] + "scale"
    if not w.is_floating_point():
        return {name: ("I64", raw(w), w.shape)}, w
    if published and FP8.search(name):
        n, k = w.shape
        p = F.pad(w, (0, -k % 128, 0, -n % 128))
        b = p.view(p.shape[0] // 128, 128, p.shape[1] // 128, 128)
        s = power(b.abs().amax((1, 3)), 448)
        q = (b / s[:, None, :, None]).view(p.shape)[:n, :k].clamp(-448, 448).to(torch.float8_e4m3fn)
        spread = s.repeat_interleave(128, 0).repeat_interleave(128, 1)[:n, :k]
        return {name: ("F8_E4M3", raw(q), w.shape), scale: ("F8_E8M0", raw(exponents(s)), s.shape)}, q.float() * spread
    if published and FP4.search(name):
        g = w.unflatten(-1, (-1, 32))
        s = power(g.abs().amax(-1, keepdim=True), 6)
        code = ((g / s).abs()[..., None] - FP4_LEVELS).abs().argmin(-1)  # of equally near ones the lower
        values = FP4_LEVELS[code] * torch.sign(g)
        code = (code + 8 * (g < 0)).flatten(-2).to(torch.uint8)
        s2 = s.squeeze(-1)
        return {name: ("I8", raw(code[:, 0::2] | code[:, 1::2] << 4), (w.shape[0], w.shape[1] // 2)),
                scale: ("F8_E8M0", raw(exponents(s2)), s2.shape)}, (values * s).flatten(-2)
    if FLOAT32.search(name):
        return {name: ("F32", raw(w), w.shape)}, w
    narrow = w.to(torch.bfloat16)
    return {name: ("BF16", raw(narrow), w.shape)}, narrow.float()


def write_file(path, entries):
    header, at, blobs = {}, 0, []
    for name, (kind, data, shape) in entries.items():
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
        blobs.append(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def published_views(model):
    """{published name: view of the weight}."""
    views = {}
    for name, w in model.state_dict().items():
        for pattern, to in RENAMES:
            name = re.sub(pattern, to, name)
        if name.endswith("experts.gate_up_proj"):
            half = w.shape[1] // 2
            for e in range(w.shape[0]):
                prefix = name[:-len("gate_up_proj")] + f"{e}."
                views[prefix + "w1.weight"], views[prefix + "w3.weight"] = w[e, :half], w[e, half:]
        elif name.endswith("experts.down_proj"):
            for e in range(w.shape[0]):
                views[name[:-len("down_proj")] + f"{e}.w2.weight"] = w[e]
        elif "rotary" not in name:
            views[name] = w
    return views


@torch.no_grad()
def randomise(model, config):
    for name, w in published_views(model).items():
        if not w.is_floating_point():
            w.copy_(torch.stack([torch.randperm(config["n_routed_experts"])[:w.shape[1]] for _ in range(w.shape[0])]))
        elif name.endswith("norm.weight"):
            w.copy_(1 + 0.2 * torch.randn_like(w))
        elif name.endswith("_scale"):
            w.uniform_(0.3, 1.5)
        elif name.endswith(("_base", "attn_sink", "gate.bias")):
            w.copy_(0.3 * torch.randn_like(w))
        elif name.endswith("ape"):
            w.copy_(0.5 * torch.randn_like(w))
        elif name == "embed.weight":
            w.copy_(torch.randn_like(w))
        elif "gate.weight" in name:
            w.copy_(torch.randn_like(w) * 2 * w.shape[-1] ** -0.5)
        else:
            w.copy_(torch.randn_like(w) * 1.3 * w.shape[-1] ** -0.5)


class Margins:
    """Least distance between the last score that torch.topk chooses and the first that it does not."""

    def __enter__(self):
        self.least, self.topk = float("inf"), torch.topk
        self.method = torch.Tensor.topk

        def watched(x, k, dim=-1, **kwargs):
            if k < x.shape[-1]:
                top = self.topk(x, k + 1, dim=-1).values
                gap = top[..., k - 1] - top[..., k]
                gap = gap[torch.isfinite(gap)]
                if gap.numel():
                    self.least = min(self.least, gap.min().item())
            return self.topk(x, k, dim=dim, **kwargs)

        torch.topk = watched
        torch.Tensor.topk = watched
        return self

    def __exit__(self, *_):
        torch.topk, torch.Tensor.topk = self.topk, self.method


@torch.no_grad()
def write_checkpoint(directory, config, published, rng):
    torch.manual_seed(rng.randrange(1 << 30))
    hf = DeepseekV4Config(**{k: v for k, v in config.items() if k not in ("rope_scaling", "torch_dtype", "architectures")},
                          rope_parameters=config.get("rope_scaling"))
    hf._attn_implementation = "eager"
    model = DeepseekV4ForCausalLM(hf).float().eval()
    randomise(model, config)
    entries = {}
    for name, w in published_views(model).items():
        stored, values = encode(name, w, published)
        entries.update(stored)
        w.copy_(values)
    text = dict(config)
    if published:
        text |= dict(expert_dtype="fp4", quantization_config=dict(
            quant_method="fp8", fmt="e4m3", scale_fmt="ue8m0", activation_scheme="dynamic", weight_block_size=[128, 128]))
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(text))
    write_file(directory / "model.safetensors", entries)
    for attempt in range(200):
        ids = torch.randint(0, config["vocab_size"], (rng.randint(140, 330),))
        with Margins() as margins:
            logits = model(ids[None], use_cache=False).logits[0]
        if margins.least > LEAST_MARGIN:
            break
    else:
        raise SystemExit(f"{directory}: no prompt without near ties")
    golden = {"case0.ids": ("I32", ids.to(torch.int32).numpy().tobytes(), ids.shape),
              "case0.logits": ("F32", logits.float().contiguous().numpy().tobytes(), logits.shape)}
    write_file(directory / "golden.safetensors", golden)
    print(f"{directory.name}: {len(ids)} tokens, ratios {config['compress_ratios'][:-1]}, "
          f"{'published formats' if published else 'bfloat16'}, margin {margins.least:.1e}, attempt {attempt + 1}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", required=True)
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", help="write the checkpoints here")
    args = parser.parse_args()
    print("torch", torch.__version__, "transformers", transformers.__version__)
    torch.set_num_threads(1)
    rng = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as temporary:
        root = pathlib.Path(args.keep or temporary)
        directories = [root / f"random-{args.seed}-{i}" for i in range(args.count)]
        for i, directory in enumerate(directories):
            write_checkpoint(directory, random_config(rng), i % 2 == 0, rng)
        return subprocess.run([args.check, *map(str, directories)], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
