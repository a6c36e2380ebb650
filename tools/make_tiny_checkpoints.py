#!/usr/bin/env python3
"""Writes the tiny random checkpoints of tests/golden/ and what transformers computes with them.

Run by hand (needs torch, transformers and safetensors from PyPI; see tests/golden/README.md):

  python tools/make_tiny_checkpoints.py [NAME ...]      # all, or the named ones

Each checkpoint is a Hugging Face directory whose tensors have the published names and element
types; tools/random_checkpoints.py draws them from a seed, and the repository has the rest.
transformers' own class computes the golden files in float32 from the weights as stored: the
files are read back, FP8 blocks are multiplied out, and the result is loaded into the class. Prompts
are drawn until no routing choice and no greedy token of the golden files is a near tie, so another
order of summation cannot flip one; those of STEADY token by token, so that arithmetic in bfloat16
cannot flip a choice of the prompt either. docs/golden-files.md describes the files. One family after the
other makes this file long.
"""
import argparse
import copy
import json
import pathlib
import shutil
import tempfile

import torch
import transformers
from safetensors.torch import load_file, save_file

import check_golden
import random_checkpoints

ROOT = pathlib.Path(__file__).resolve().parent.parent
BLOCK = 128  # rows and columns that share one FP8 scale
PROMPT_LENGTHS = (33, 7)
NEW_TOKENS = 24
MIN_ROUTING_MARGIN = 1e-4  # between the last chosen and the first rejected expert or group
MIN_ARGMAX_MARGIN = 1e-2  # between the two largest logits of a greedy step
# Of prompts whose choices hold in bfloat16: of an indexer in standard deviations of its scores, and as above.
STEADY_CHOICE_MARGIN, STEADY_ROUTING_MARGIN = 0.02, 0.02
STEADY_ARGMAX_MARGIN = 2e-3  # their logits are smaller
STEADY_PROMPT_LENGTHS = (100, 7)
STEADY_ROWS = 32  # the last ones of a case, which are kept
VOCAB = 264  # 6 special tokens, 256 bytes, 2 unused
FIRST_BYTE_TOKEN = 6

COMMON = dict(vocab_size=VOCAB, hidden_act="silu", attention_bias=False, attention_dropout=0.0,
              bos_token_id=0, eos_token_id=1, initializer_range=0.02, use_cache=True,
              tie_word_embeddings=False, num_hidden_layers=3)

DEEPSEEK_V2 = COMMON | dict(
    architectures=["DeepseekV2ForCausalLM"], model_type="deepseek_v2", num_hidden_layers=2,
    hidden_size=48, intermediate_size=80, moe_intermediate_size=16, num_attention_heads=4, num_key_value_heads=4,
    q_lora_rank=48, kv_lora_rank=64, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=32,
    n_routed_experts=16, n_shared_experts=2, num_experts_per_tok=3, n_group=4, topk_group=2,
    topk_method="group_limited_greedy", scoring_func="softmax", norm_topk_prob=False,
    routed_scaling_factor=4.0, first_k_dense_replace=1, moe_layer_freq=1, ep_size=1,
    rms_norm_eps=1e-6, max_position_embeddings=2560, rope_theta=10000,
    rope_scaling=dict(type="yarn", factor=40, original_max_position_embeddings=64, beta_fast=32,
                      beta_slow=1, mscale=0.707, mscale_all_dim=0.707),
    torch_dtype="bfloat16")

DEEPSEEK_V2_LITE = DEEPSEEK_V2 | dict(
    num_hidden_layers=3, hidden_size=64, intermediate_size=96, moe_intermediate_size=32,
    q_lora_rank=None, n_routed_experts=8, num_experts_per_tok=3, n_group=1, topk_group=1,
    topk_method="greedy", routed_scaling_factor=1.0, torch_dtype="float16")

GLM4_MOE_LITE = COMMON | dict(
    architectures=["Glm4MoeLiteForCausalLM"], model_type="glm4_moe_lite", num_hidden_layers=2,
    hidden_size=48, intermediate_size=80, moe_intermediate_size=16, num_attention_heads=3, num_key_value_heads=3,
    q_lora_rank=32, kv_lora_rank=32, qk_nope_head_dim=48, qk_rope_head_dim=16, v_head_dim=64,
    n_routed_experts=6, n_shared_experts=1, num_experts_per_tok=2, n_group=1, topk_group=1,
    topk_method="noaux_tc", norm_topk_prob=True, routed_scaling_factor=1.8, first_k_dense_replace=1,
    num_nextn_predict_layers=0, rms_norm_eps=1e-5, max_position_embeddings=1024,
    partial_rotary_factor=1.0, rope_theta=1000000, rope_scaling=None, pad_token_id=1,
    eos_token_id=[1, 3], dtype="float32")

KIMI_TEXT = COMMON | dict(
    architectures=["DeepseekV3ForCausalLM"], model_type="kimi_k2", num_hidden_layers=2,
    hidden_size=144, intermediate_size=160, moe_intermediate_size=32, num_attention_heads=2, num_key_value_heads=2,
    q_lora_rank=144, kv_lora_rank=512, qk_nope_head_dim=48, qk_rope_head_dim=64, v_head_dim=32,
    n_routed_experts=6, n_shared_experts=1, num_experts_per_tok=2, n_group=2, topk_group=1,
    topk_method="noaux_tc", scoring_func="sigmoid", norm_topk_prob=True,
    routed_scaling_factor=2.827, first_k_dense_replace=1, moe_layer_freq=1, ep_size=1,
    num_nextn_predict_layers=0, rms_norm_eps=1e-5, max_position_embeddings=4096, rope_theta=50000.0,
    rope_scaling=dict(type="yarn", factor=64.0, original_max_position_embeddings=64, beta_fast=1.0,
                      beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0),
    dtype="bfloat16",
    quantization_config=dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic",
                             weight_block_size=[BLOCK, BLOCK]))

KIMI = dict(architectures=["KimiK25ForConditionalGeneration"], model_type="kimi_k25",
            bos_token_id=0, eos_token_id=1, pad_token_id=1, media_placeholder_token_id=5,
            tie_word_embeddings=False, dtype="bfloat16", text_config=KIMI_TEXT,
            vision_config=dict(model_type="kimi_k25_vision", vt_hidden_size=8, patch_size=2))

# What the class allows and no published checkpoint of these families combines: half-split rotary
# pairs, tied embeddings, cos/sin magnitude other than 1, transformers 5's rope keys.
V3_OPTIONS = COMMON | dict(
    architectures=["DeepseekV3ForCausalLM"], model_type="deepseek_v3", hidden_size=64,
    intermediate_size=96, moe_intermediate_size=32, num_attention_heads=2, num_key_value_heads=2,
    q_lora_rank=48, kv_lora_rank=64, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=48,
    n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=3, n_group=4, topk_group=2,
    topk_method="noaux_tc", scoring_func="sigmoid", norm_topk_prob=False,
    routed_scaling_factor=1.5, first_k_dense_replace=1, moe_layer_freq=1,
    num_nextn_predict_layers=0, rms_norm_eps=1e-6, max_position_embeddings=512,
    rope_interleave=False, tie_word_embeddings=True,
    rope_parameters=dict(rope_type="yarn", rope_theta=10000.0, factor=8.0,
                         original_max_position_embeddings=64, beta_fast=32.0, beta_slow=1.0,
                         mscale=1.0, mscale_all_dim=0.5),
    dtype="bfloat16")

# Latent attention over 8 tokens that an indexer chooses.
DEEPSEEK_V32 = COMMON | dict(
    architectures=["DeepseekV32ForCausalLM"], model_type="deepseek_v32", num_hidden_layers=2,
    hidden_size=32, intermediate_size=48, moe_intermediate_size=16, num_attention_heads=2,
    num_key_value_heads=2, q_lora_rank=24, kv_lora_rank=32, qk_nope_head_dim=24, qk_rope_head_dim=16,
    v_head_dim=16, n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2, n_group=1,
    topk_group=1, topk_method="noaux_tc", scoring_func="sigmoid", norm_topk_prob=True,
    routed_scaling_factor=2.5, first_k_dense_replace=1, moe_layer_freq=1, ep_size=1,
    num_nextn_predict_layers=0, rms_norm_eps=1e-6, max_position_embeddings=512, rope_theta=10000,
    rope_scaling=dict(type="yarn", factor=8, original_max_position_embeddings=64, beta_fast=32,
                      beta_slow=1, mscale=1.0, mscale_all_dim=1.0),
    index_n_heads=12, index_head_dim=24, index_topk=8, dtype="bfloat16")

GLM_MOE_DSA = DEEPSEEK_V32 | dict(
    architectures=["GlmMoeDsaForCausalLM"], model_type="glm_moe_dsa", num_attention_heads=3,
    num_key_value_heads=3, qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=32,
    rms_norm_eps=1e-5, rope_theta=1000000, rope_scaling=None, index_n_heads=16, index_head_dim=16,
    index_topk=5)

# Both in sizes that a GPU takes, with a module.
DEEPSEEK_V32_GPU = DEEPSEEK_V32 | dict(
    hidden_size=64, intermediate_size=96, moe_intermediate_size=32, num_attention_heads=16,
    num_key_value_heads=16, q_lora_rank=32, kv_lora_rank=512, qk_nope_head_dim=32, qk_rope_head_dim=64,
    v_head_dim=32, n_routed_experts=8, num_nextn_predict_layers=1, index_n_heads=64, index_head_dim=128,
    index_topk=64)

GLM_MOE_DSA_GPU = GLM_MOE_DSA | dict(
    hidden_size=64, intermediate_size=96, moe_intermediate_size=32, num_attention_heads=24,
    num_key_value_heads=24, q_lora_rank=48, kv_lora_rank=512, qk_nope_head_dim=32, qk_rope_head_dim=64,
    v_head_dim=64, n_routed_experts=8, num_nextn_predict_layers=1, index_n_heads=32, index_head_dim=128,
    index_topk=48)

CHECKPOINTS = {"tiny-v2": DEEPSEEK_V2, "tiny-v2-lite": DEEPSEEK_V2_LITE, "tiny-glm4-moe-lite": GLM4_MOE_LITE, "tiny-kimi-k25-fp8": KIMI,
               "tiny-v3-options": V3_OPTIONS, "tiny-v32": DEEPSEEK_V32, "tiny-glm-dsa": GLM_MOE_DSA,
               "tiny-v32-gpu": DEEPSEEK_V32_GPU, "tiny-glm-dsa-gpu": GLM_MOE_DSA_GPU}
STEADY = ("tiny-v32-gpu", "tiny-glm-dsa-gpu")


def text_config(config):
    return config.get("text_config", config)


def spread(per_block, shape):
    """[block rows, block columns] -> [rows, columns]."""
    return per_block.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)[:shape[0], :shape[1]]


def write_json(path, value, **form):
    path.write_text(json.dumps(value, ensure_ascii=False, **(form or {"indent": 1})) + "\n", encoding="utf-8")


def write_tokenizer(directory):
    """One token per byte: the bundled model's tokenizer with its merges left out."""
    bundled = ROOT / "models" / "tiny-v3-mtp3"
    tokenizer = json.loads((bundled / "tokenizer.json").read_text(encoding="utf-8"))
    special = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    assert sorted(special.values()) == list(range(FIRST_BYTE_TOKEN)), special
    letters = [t for t in tokenizer["model"]["vocab"] if len(t) == 1 and t not in special]
    letters.sort(key=tokenizer["model"]["vocab"].get)
    assert len(letters) == 256, len(letters)
    tokenizer["model"]["vocab"] = special | {
        letter: FIRST_BYTE_TOKEN + i for i, letter in enumerate(letters)}
    tokenizer["model"]["merges"] = []
    write_json(directory / "tokenizer.json", tokenizer, separators=(",", ":"))
    shutil.copy(bundled / "tokenizer_config.json", directory / "tokenizer_config.json")


def load_transformers(directory, config, scratch, module=None):
    """transformers' model in float32 with the weights as the files of `directory` hold them. module: a
    model of that MTP module's layer alone, whose last norm is the module's; and what makes its input."""
    text = copy.deepcopy(text_config(config))
    prefix = "language_model." if text_config(config) is not config else ""
    stored = {}
    for file in sorted(directory.glob("model*.safetensors")):
        stored |= load_file(file)
    plain = {}
    for name, tensor in stored.items():
        if not name.startswith(prefix) or name.endswith("_scale_inv"):
            continue
        tensor = tensor.float()
        if name + "_scale_inv" in stored:
            tensor = tensor * spread(stored[name + "_scale_inv"], tensor.shape)
        plain[name.removeprefix(prefix)] = tensor.contiguous()
    of_modules = {name: plain.pop(name) for name in list(plain) if layer_of(name) >= text["num_hidden_layers"]}
    extra = {}
    if module is not None:
        layer = f"model.layers.{text['num_hidden_layers'] + module}."
        own = {name.removeprefix(layer): of_modules[name] for name in of_modules if name.startswith(layer)}
        plain = {name: tensor for name, tensor in plain.items() if layer_of(name) < 0}
        plain["model.norm.weight"] = own.pop("shared_head.norm.weight")
        extra = {name: own.pop(name + ".weight") for name in ("enorm", "hnorm", "eh_proj")}
        plain |= {"model.layers.0." + name: tensor for name, tensor in own.items()}
        text |= dict(num_hidden_layers=1, first_k_dense_replace=0)
    text.pop("quantization_config", None)
    if text["model_type"] == "kimi_k2":  # as transformers' own Kimi_K25Config does
        text["model_type"] = "deepseek_v3"
    save_file(plain, scratch / "model.safetensors", metadata={"format": "pt"})
    write_json(scratch / "config.json", text)
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        scratch, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager",
        output_loading_info=True)
    problems = {key: value for key, value in info.items() if value}
    assert not problems, problems
    return model.eval(), extra


def layer_of(name):
    """The number in "model.layers.N.", or -1."""
    parts = name.split(".")
    return int(parts[2]) if parts[1:2] == ["layers"] else -1


@torch.no_grad()
def module_golden(model, extra, eps, hidden, ids):
    """(hidden rows, logits) of an MTP module for the rows that see a next token."""
    def norm(x, weight):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight

    embeddings = model.get_input_embeddings()(torch.tensor(ids[1:]))
    joined = torch.cat((norm(embeddings, extra["enorm"]), norm(hidden[:-1], extra["hnorm"])), -1)
    out = model(inputs_embeds=(joined @ extra["eh_proj"].T)[None], output_hidden_states=True, use_cache=False)
    return out.hidden_states[-1][0], out.logits[0]


def margin(scores, count):
    """Smallest gap between the count-th and the next largest of each row's scores."""
    if count >= scores.shape[-1]:
        return float("inf")
    best = scores.topk(count + 1, -1)[0]
    return (best[..., -2] - best[..., -1]).min().item()


def routing_margin(config, logits, bias):
    """Smallest margin of the group choice and of the expert choice; logits [rows, experts]."""
    logits = logits.double()
    greedy = config["topk_method"] != "noaux_tc"
    scores = logits.softmax(-1) if greedy else logits.sigmoid() + bias.double()
    smallest = float("inf")
    if config["topk_method"] != "greedy":
        groups = scores.view(len(scores), config["n_group"], -1)
        ranking = groups.amax(-1) if greedy else groups.topk(2, -1)[0].sum(-1)
        smallest = margin(ranking, config["topk_group"])
        kept = torch.zeros_like(ranking).scatter_(1, ranking.topk(config["topk_group"])[1], 1)
        scores = groups.masked_fill(kept[..., None] == 0, float("-inf")).flatten(1)
    return min(smallest, margin(scores, config["num_experts_per_tok"]))


class RouterLog:
    """Keeps what each router of a model gave in the last forward pass."""

    def __init__(self, model):
        self.routers, self.logits = [], {}
        for name, module in model.named_modules():
            if type(module).__name__.endswith("TopkRouter"):
                self.routers.append((name, module))
                module.register_forward_hook(
                    lambda _, __, out, name=name: self.logits.__setitem__(name, out[0]))

    def margin(self, config):
        return min(routing_margin(config, self.logits[name],
                                  getattr(module, "e_score_correction_bias", None))
                   for name, module in self.routers)


def random_tokens(length, generator):
    return torch.randint(FIRST_BYTE_TOKEN, VOCAB - 2, (length,), generator=generator).tolist()


class SteadyPrompts:
    """Prompts of which every row, of the target and of its module, chooses by a margin; in float64. Another
    one differs in its last tokens."""

    def __init__(self, directory, length, generator):
        self.config, self.tensors = check_golden.read_checkpoint(directory)
        self.length, self.generator, self.ids = length, generator, [0]

    @torch.no_grad()
    def __call__(self):
        self.ids = self.ids[:max(1, len(self.ids) - 4)]
        while len(self.ids) < self.length:
            network = check_golden.Network(self.config, self.tensors)
            tried = torch.tensor(self.ids + random_tokens(1, self.generator))
            network.mtp(0, network.trunk(tried)[-1], tried)
            if (network.last_choice_margin >= STEADY_CHOICE_MARGIN
                    and network.last_routing_margin >= STEADY_ROUTING_MARGIN):
                self.ids = tried.tolist()
        return list(self.ids)


@torch.no_grad()
def find_prompt(model, routers, config, draw, least_lead):
    """A prompt whose golden figures hold no near tie: (ids, greedy continuation, margins). draw() gives one;
    least_lead: of greedy tokens."""
    for attempt in range(2000):
        ids = draw()
        length = len(ids)
        x = torch.tensor([ids])
        model(x, use_cache=False)
        if routers.margin(config) < MIN_ROUTING_MARGIN:
            continue
        full = model.generate(x, attention_mask=torch.ones_like(x), max_new_tokens=NEW_TOKENS,
                              do_sample=False, pad_token_id=1)
        new = full[0, length:].tolist()
        if len(new) < NEW_TOKENS or len(set(new)) < 10:
            continue
        logits = model(full, use_cache=False).logits[0, length - 1:-1]
        routing, argmax = routers.margin(config), margin(logits, 1)
        if routing >= MIN_ROUTING_MARGIN and argmax >= least_lead:
            if logits.argmax(-1).tolist() != new:  # with and without the cache
                assert "index_topk" in config  # a near tie of an indexer's choice
                continue
            return ids, new, dict(attempts=attempt + 1, routing=routing, argmax=argmax)
    raise SystemExit("no prompt without a near tie; try another seed")


@torch.no_grad()
def write_golden(directory, model, module, config, seed):
    """module: the MTP module's model and its tensors, or None."""
    routers = RouterLog(model)
    generator = torch.Generator().manual_seed(seed + 2000)
    tensors, greedy = {}, []
    steady = directory.name in STEADY
    for case, length in enumerate(STEADY_PROMPT_LENGTHS if steady else PROMPT_LENGTHS):
        draw = (SteadyPrompts(directory, length, generator) if steady
                else lambda length=length: [0] + random_tokens(length - 1, generator))
        ids, new, found = find_prompt(model, routers, config, draw,
                                      STEADY_ARGMAX_MARGIN if steady else MIN_ARGMAX_MARGIN)
        out = model(torch.tensor([ids]), output_hidden_states=True, use_cache=False)
        tensors[f"case{case}.ids"] = torch.tensor(ids, dtype=torch.int32)
        tensors[f"case{case}.logits"] = out.logits[0]
        if case == 0:
            for i, hidden in list(enumerate(out.hidden_states))[1:]:  # the first are the embeddings
                tensors[f"case{case}.hidden_states.{i}"] = hidden[0]
        if module is not None:
            tensors[f"case{case}.mtp0.hidden"], tensors[f"case{case}.mtp0.logits"] = module_golden(
                *module, config["rms_norm_eps"], out.hidden_states[-1][0], ids)
        greedy.append(dict(prompt_ids=ids, greedy_ids=new))
        print(f"  case {case}: {length} tokens, std of logits {out.logits.std():.3f}, "
              f"smallest margins: routing {found['routing']:.1e}, argmax {found['argmax']:.1e} "
              f"(prompt {found['attempts']})", flush=True)
    if steady:
        tensors = {name: tensor if name.endswith(".ids") else tensor[-STEADY_ROWS:] for name, tensor in tensors.items()}
    save_file({k: v.float().contiguous() if v.is_floating_point() else v
               for k, v in tensors.items()}, directory / "golden.safetensors")
    write_json(directory / "golden_greedy.json", greedy, separators=(",", ":"))


def make(name, config):
    directory = ROOT / "tests" / "golden" / name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    text = text_config(config)
    write_json(directory / "config.json", config)
    write_json(directory / "generation_config.json",
               dict(_from_model_config=True, bos_token_id=0, eos_token_id=text["eos_token_id"]))
    write_tokenizer(directory)
    random_checkpoints.write(name, record=True)
    print(name, flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        model, _ = load_transformers(directory, config, pathlib.Path(scratch))
    module = None
    if text.get("num_nextn_predict_layers", 0):
        with tempfile.TemporaryDirectory() as scratch:
            module = load_transformers(directory, config, pathlib.Path(scratch), module=0)
    write_golden(directory, model, module, text, random_checkpoints.CHECKPOINTS[name])
    total = sum(file.stat().st_size for file in directory.iterdir())
    print(f"  {total / 1024:.0f} KiB", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(CHECKPOINTS))
    names = parser.parse_args().names or list(CHECKPOINTS)
    unknown = sorted(set(names) - set(CHECKPOINTS))
    if unknown:
        parser.error(f"unknown checkpoint {unknown[0]}; known: {', '.join(CHECKPOINTS)}")
    torch.set_num_threads(1)  # one fixed order of summation
    print(f"torch {torch.__version__}, transformers {transformers.__version__}", flush=True)
    for name in names:
        make(name, CHECKPOINTS[name])


if __name__ == "__main__":
    main()
