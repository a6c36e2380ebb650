#!/usr/bin/env python3
"""A second implementation of EAGLE-3 drafters, and the golden files made with it.

Run by hand (needs torch and safetensors from PyPI, see tests/golden/README.md):

  python tools/eagle3_reference.py golden          # writes tests/golden/tiny-eagle3, tiny-eagle3.1 and tiny-eagle3-llama

Everything is evaluated in float64 from the checkpoints' files, over whole sequences and without a cache. The target's
streams come from check_golden.py. A row at position p reads the target's streams at p and the token after p; the rows
that are drafted after position L read the drafter's own last row in place of the target's:

  h = fc(streams side by side), each normalised before (fc_norm)
  y = [norm(embedding) ; norm(h)],  x = (norm_before_residual ? norm(h) : h) + attention(y),  x += mlp(norm(x))
  logits = lm_head(norm(x)),  the next row reads x, or norm(x) (norm_output)
"""
import argparse
import json
import pathlib
import sys

import torch
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from check_golden import GOLDEN, Network, read_checkpoint  # noqa: E402

DRAFTS = 4
VOCAB = 264

COMMON = dict(vocab_size=VOCAB, hidden_act="silu", num_hidden_layers=1, rms_norm_eps=1e-5, max_position_embeddings=512,
              attention_bias=False, tie_word_embeddings=False, bos_token_id=0, eos_token_id=1, torch_dtype="bfloat16")

DRAFTERS = {
    # Version 3: the target's embedding, a part of the vocabulary, ids of the layers that streams enter.
    "tiny-eagle3": dict(target="tiny-v3-options", seed=11, layer="midlayer.", config=COMMON | dict(
        architectures=["Eagle3DeepseekV2ForCausalLM"], model_type="deepseek_v3", hidden_size=64, intermediate_size=40,
        num_attention_heads=2, num_key_value_heads=2, q_lora_rank=24, kv_lora_rank=32, qk_nope_head_dim=32,
        qk_rope_head_dim=16, v_head_dim=48, draft_vocab_size=100, rope_theta=10000.0,
        rope_scaling=dict(type="yarn", factor=8.0, original_max_position_embeddings=64, beta_fast=32, beta_slow=1,
                          mscale=1.0, mscale_all_dim=1.0),
        eagle_config=dict(eagle_aux_hidden_state_layer_ids=[2, 3], use_aux_hidden_state=True))),
    # Version 3.1: another hidden size, so an embedding of its own; ids of the layers that streams leave.
    "tiny-eagle3.1": dict(target="tiny-v2-lite", seed=12, layer="layers.0.", config=COMMON | dict(
        architectures=["Eagle3DeepseekV3ForCausalLM"], model_type="deepseek_v3", hidden_size=48, intermediate_size=56,
        num_attention_heads=3, num_key_value_heads=3, q_lora_rank=None, kv_lora_rank=40, qk_nope_head_dim=24,
        qk_rope_head_dim=8, v_head_dim=16, rope_theta=50000.0, rope_scaling=dict(rope_type="default"),
        target_hidden_size=64, eagle_aux_hidden_state_layer_ids=[1, 2], fc_norm=True, norm_output=True,
        norm_before_residual=True)),
    # Llama's attention, with angles that llama3 stretches: heads that share keys, and are no part of the hidden size.
    "tiny-eagle3-llama": dict(target="tiny-v3-options", seed=13, layer="midlayer.", config=COMMON | dict(
        architectures=["LlamaForCausalLMEagle3"], model_type="llama", hidden_size=64, intermediate_size=40,
        num_attention_heads=4, num_key_value_heads=2, head_dim=24, draft_vocab_size=120, rope_theta=20000.0,
        rope_scaling=dict(rope_type="llama3", factor=4.0, original_max_position_embeddings=32, low_freq_factor=1.0,
                          high_freq_factor=4.0),
        eagle_config=dict(eagle_aux_hidden_state_layer_ids=[1, 2], use_aux_hidden_state=True))),
}


def taps(config, target_layers):
    """The target's layers whose outputs are read, from 0."""
    ids = config.get("eagle_aux_hidden_state_layer_ids") or (config.get("eagle_config") or {}).get(
        "eagle_aux_hidden_state_layer_ids") or [2, target_layers // 2, target_layers - 3]
    return ids if ids[0] == 1 else [i - 1 for i in ids]


class Target(Network):
    def streams(self, ids):
        """(the outputs of all layers, not normalised; the logits) at every position."""
        x, streams = self.t["model.embed_tokens.weight"][ids], []
        for i in range(self.c["num_hidden_layers"]):
            x = self.layer(x, f"model.layers.{i}")
            streams.append(x)
        return streams, self.head(self.norm(x, "model.norm"))


class Drafter(Network):
    """An EAGLE-3 drafter: its config, its tensors by name, and the target that it reads."""

    def __init__(self, config, tensors, target):
        self.grouped = config["model_type"] == "llama"
        # Without latent attention all of a head is rotated, in halves.
        width = dict(qk_nope_head_dim=0, qk_rope_head_dim=config.get("head_dim"), rope_interleave=False)
        super().__init__(config | width if self.grouped else config, tensors)
        if (config.get("rope_scaling") or {}).get("rope_type") == "llama3":
            self.stretch(config["rope_scaling"])
        self.target = target
        self.taps = taps(config, target.c["num_hidden_layers"])
        self.name = next(n for n in ("midlayer", "layers.0") if f"{n}.hidden_norm.weight" in tensors)
        size = tensors["lm_head.weight"].shape[0]
        self.tokens = torch.arange(size) + tensors.get("d2t", torch.zeros(size)).long()

    def stretch(self, rope):
        """Divides slow angles by the factor, keeps fast ones, and goes over from one to the other between."""
        turns = rope["original_max_position_embeddings"] * self.frequencies / (2 * torch.pi)
        kept = ((turns - rope["low_freq_factor"]) / (rope["high_freq_factor"] - rope["low_freq_factor"])).clamp(0, 1)
        self.frequencies = self.frequencies * (kept + (1 - kept) / rope["factor"])

    def attention(self, x, name):
        if not self.grouped:
            return super().attention(x, name)
        rows, width = len(x), self.c["head_dim"]
        q, k, v = (self.linear(x, f"{name}.{part}_proj").view(rows, -1, width) for part in "qkv")
        k, v = (part.repeat_interleave(q.shape[1] // part.shape[1], 1) for part in (self.rotate(k), v))
        scores = torch.einsum("thd,shd->hts", self.rotate(q), k) * self.scale
        scores = scores + torch.full((rows, rows), -torch.inf).triu(1)
        out = torch.einsum("hts,shd->thd", scores.softmax(-1), v)
        return self.linear(out.reshape(rows, -1), name + ".o_proj")

    def read(self, streams):
        rows = [streams[i] for i in self.taps]
        if self.c.get("fc_norm") or self.c.get("use_aux_norm"):
            rows = [self.norm(row, f"fc_norm.{i}") for i, row in enumerate(rows)]
        return self.linear(torch.cat(rows, -1), "fc")

    def rows(self, h, tokens):
        """(what the next pass reads, logits) of all rows; h [T, hidden] and the tokens behind the rows."""
        embedding = self.t.get("embed_tokens.weight", self.target.t["model.embed_tokens.weight"])[tokens]
        normed = self.norm(h, self.name + ".hidden_norm")
        y = torch.cat((self.norm(embedding, self.name + ".input_layernorm"), normed), -1)
        x = normed if self.c.get("norm_before_residual") else h
        x = x + self.attention(y, self.name + ".self_attn")
        x = x + self.mlp(self.norm(x, self.name + ".post_attention_layernorm"), self.name + ".mlp")
        last = self.norm(x, "norm")
        return last if self.c.get("norm_output") else x, self.linear(last, "lm_head")

    def draft(self, h, tokens, count):
        """Greedy drafts behind `tokens`, which are the tokens behind the rows h: (target's tokens, logits [count])."""
        drafts, all_logits, tokens = [], [], tokens.tolist()
        for _ in range(count):
            out, logits = self.rows(h, torch.tensor(tokens))
            all_logits.append(logits[-1])
            drafts.append(int(self.tokens[logits[-1].argmax()]))
            tokens.append(drafts[-1])
            h = torch.cat((h, out[-1:]))
        return drafts, torch.stack(all_logits)


def latent_attention(config, attn, matrix, norm):
    """Draws the matrices and norms of latent attention, which reads rows of two hidden sizes."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    width = config["qk_nope_head_dim"] + config["qk_rope_head_dim"]
    if config["q_lora_rank"] is None:
        matrix(attn + "q_proj", heads * width, 2 * hidden, 3.0)
    else:
        matrix(attn + "q_a_proj", config["q_lora_rank"], 2 * hidden)
        norm(attn + "q_a_layernorm", config["q_lora_rank"])
        matrix(attn + "q_b_proj", heads * width, config["q_lora_rank"], 3.0)
    matrix(attn + "kv_a_proj_with_mqa", config["kv_lora_rank"] + config["qk_rope_head_dim"], 2 * hidden)
    norm(attn + "kv_a_layernorm", config["kv_lora_rank"])
    matrix(attn + "kv_b_proj", heads * (config["qk_nope_head_dim"] + config["v_head_dim"]), config["kv_lora_rank"])
    matrix(attn + "o_proj", hidden, heads * config["v_head_dim"], 2.0)


def random_drafter(config, seed, layer, target_hidden):
    """A drafter's tensors by published name, bfloat16, d2t int64: sizes as make_tiny_checkpoints.py has them."""
    generator = torch.Generator().manual_seed(seed)
    normal = lambda *shape: torch.randn(*shape, generator=generator)
    tensors, hidden, heads = {}, config["hidden_size"], config["num_attention_heads"]

    def matrix(name, rows, cols, gain=1.0):
        tensors[name + ".weight"] = normal(rows, cols) * (gain / cols**0.5)

    def norm(name, size):
        tensors[name + ".weight"] = (1 + 0.25 * normal(size)).clamp(0.25, 1.75)

    count = len(taps(config, 0))
    matrix("fc", hidden, count * target_hidden)
    if config.get("fc_norm"):
        for i in range(count):
            norm(f"fc_norm.{i}", target_hidden)
    for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
        norm(layer + name, hidden)
    attn = layer + "self_attn."
    if config["model_type"] == "llama":
        for name, parts, gain in (("q", heads, 3.0), ("k", config["num_key_value_heads"], 1.0),
                                  ("v", config["num_key_value_heads"], 1.0)):
            matrix(f"{attn}{name}_proj", parts * config["head_dim"], 2 * hidden, gain)
        matrix(attn + "o_proj", hidden, heads * config["head_dim"], 2.0)
    else:
        latent_attention(config, attn, matrix, norm)
    for name, rows, cols in (("gate", config["intermediate_size"], hidden), ("up", config["intermediate_size"], hidden),
                             ("down", hidden, config["intermediate_size"])):
        matrix(f"{layer}mlp.{name}_proj", rows, cols, 1.5)
    norm("norm", hidden)
    size = config.get("draft_vocab_size") or config["vocab_size"]
    matrix("lm_head", size, hidden)
    if target_hidden != hidden:
        tensors["embed_tokens.weight"] = normal(config["vocab_size"], hidden) * 0.05
    tensors = {k: v.bfloat16() for k, v in tensors.items()}
    if size < config["vocab_size"]:
        kept = torch.randperm(config["vocab_size"], generator=generator)[:size].sort().values
        tensors["d2t"] = kept - torch.arange(size)
        tensors["t2d"] = torch.zeros(config["vocab_size"], dtype=torch.bool).index_fill(0, kept, True)
    return tensors


def doubles(tensors):
    return {k: v.double() if v.is_floating_point() else v for k, v in tensors.items()}


def write_golden(name):
    spec = DRAFTERS[name]
    config, directory = spec["config"], GOLDEN / name
    target = Target(*read_checkpoint(GOLDEN / spec["target"]))
    directory.mkdir(exist_ok=True)
    tensors = random_drafter(config, spec["seed"], spec["layer"], target.c["hidden_size"])
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    drafter = Drafter(config, doubles(load_file(directory / "model.safetensors")), target)
    golden, generator = {}, torch.Generator().manual_seed(spec["seed"])
    for case, length in enumerate((41, 9)):
        ids = torch.randint(6, 262, (length,), generator=generator)
        streams, logits = target.streams(ids)
        h = drafter.read(streams)
        tokens = torch.cat((ids[1:], logits[-1].argmax()[None]))
        hidden, draft_logits = drafter.rows(h, tokens)
        drafts, chain_logits = drafter.draft(h, tokens, DRAFTS)
        top = chain_logits.topk(2, -1).values
        assert (top[:, 0] - top[:, 1]).min() > 1e-3, "a near tie: take another seed"
        golden |= {f"case{case}.ids": ids.int(), f"case{case}.next": tokens.int(),
                   f"case{case}.read": h.float(), f"case{case}.hidden": hidden.float(),
                   f"case{case}.logits": draft_logits.float(), f"case{case}.chain_logits": chain_logits.float(),
                   f"case{case}.drafts": torch.tensor(drafts).int()}
    save_file({k: v.contiguous() for k, v in golden.items()}, directory / "golden.safetensors")
    print(name, "drafts", [golden[f"case{i}.drafts"].tolist() for i in range(2)])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["golden"])
    parser.parse_args()
    torch.set_num_threads(1)
    for name in DRAFTERS:
        write_golden(name)


if __name__ == "__main__":
    main()
