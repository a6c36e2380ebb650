#!/usr/bin/env python3
"""Draws the weights of the random checkpoints in tests/golden, which are not in the repository: 20 MB that a seed
stands for.

  python3 tools/random_checkpoints.py [NAME ...]    # all, or the named ones; cmake calls it
  python3 tools/random_checkpoints.py --check       # draws them, compares with the checksums, and writes nothing

A folder's config.json says which tensors there are. Numbers are sums of integers that a Mersenne twister gives, and
what is done with them is exactly rounded in IEEE arithmetic, so every machine writes the same bytes; SUMS holds their
checksums, and a folder whose files have these is left alone. tools/make_tiny_checkpoints.py and
tools/step3p5_reference.py write the folders' other files. Needs the standard library only.
"""
import argparse
import array
import bisect
import hashlib
import json
import math
import os
import pathlib
import random
import struct
import sys

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden"
SUMS = GOLDEN / "random_weights.sha256"  # as sha256sum writes and checks it
BLOCK = 128  # rows and columns that share one FP8 scale
CHECKPOINTS = {"tiny-v2": 1, "tiny-v2-lite": 2, "tiny-glm4-moe-lite": 3, "tiny-kimi-k25-fp8": 4, "tiny-v3-options": 5,
               "tiny-v32": 6, "tiny-glm-dsa": 7, "tiny-step3p5": 8, "tiny-step3p5-fp8": 10, "tiny-v32-gpu": 11,
               "tiny-glm-dsa-gpu": 12}  # and their seeds
SHARDS = {"tiny-glm4-moe-lite": 2}
# Of checkpoints for a GPU some tensors are smaller: roundings to bfloat16 then move log-probabilities by less than 2e-2.
QUIET = {name: {"q_b_proj.weight": 0.5, "lm_head.weight": 0.125} for name in ("tiny-v32-gpu", "tiny-glm-dsa-gpu")}


class Tensor:
    """A tensor's name, shape, and how it is drawn: normal numbers around `mean`, cut at `low` and `high`. The first
    `small_rows` rows of a matrix are 0.03 of the others."""

    def __init__(self, name, shape, deviation, mean=0.0, low=-math.inf, high=math.inf, small_rows=0):
        self.name, self.shape, self.deviation, self.mean = name, tuple(shape), deviation, mean
        self.low, self.high, self.small_rows = low, high, small_rows

    def values(self, normals):
        """A list of floats; normals gives that many numbers."""
        small = self.small_rows * self.shape[-1]
        drawn = normals(math.prod(self.shape))
        deviations = [0.03 * self.deviation] * small + [self.deviation] * (len(drawn) - small)
        if self.low == -math.inf:
            return [self.mean + d * x for d, x in zip(deviations, drawn)]
        return [min(max(self.mean + d * x, self.low), self.high) for d, x in zip(deviations, drawn)]


def matrix(name, *shape, gain=1.0, small_rows=0):
    """Products with it keep the size of their input, times gain."""
    return Tensor(name + ".weight", shape, gain / math.sqrt(shape[-1]), small_rows=small_rows)


def norm(name, size, mean=1.0):
    return Tensor(name + ".weight", [size], 0.25, mean, mean - 0.75, mean + 0.75)


def mlp(prefix, width, hidden):
    return [matrix(prefix + "gate_proj", width, hidden, gain=1.5), matrix(prefix + "up_proj", width, hidden, gain=1.5),
            matrix(prefix + "down_proj", hidden, width)]


def latent_attention_tensors(c):
    """Of a DeepSeek-V2, V3 or V3.2 or a GLM, with its MTP modules. Embeddings and latents are small on purpose: the epsilons of the norms
    behind them then change the logits by far more than the tests' tolerance. Logits come out with a standard
    deviation of about 1."""
    hidden, heads, latent, rope = c["hidden_size"], c["num_attention_heads"], c["kv_lora_rank"], c["qk_rope_head_dim"]
    nope, value, queries = c["qk_nope_head_dim"], c["v_head_dim"], c["q_lora_rank"]
    tied = c["tie_word_embeddings"]
    out = [Tensor("model.embed_tokens.weight", [c["vocab_size"], hidden], 1 / math.sqrt(hidden) if tied else 0.03)]
    for layer in range(c["num_hidden_layers"] + c.get("num_nextn_predict_layers", 0)):
        prefix = f"model.layers.{layer}."
        attention, indexer = prefix + "self_attn.", prefix + "self_attn.indexer."
        if layer >= c["num_hidden_layers"]:
            out += [norm(prefix + "enorm", hidden), norm(prefix + "hnorm", hidden),
                    matrix(prefix + "eh_proj", hidden, 2 * hidden), norm(prefix + "shared_head.norm", hidden)]
        out.append(norm(prefix + "input_layernorm", hidden))
        if queries is None:
            out.append(matrix(attention + "q_proj", heads * (nope + rope), hidden, gain=1.5))
        else:
            out += [matrix(attention + "q_a_proj", queries, hidden, gain=0.03), norm(attention + "q_a_layernorm", queries),
                    matrix(attention + "q_b_proj", heads * (nope + rope), queries, gain=1.5)]
        out += [matrix(attention + "kv_a_proj_with_mqa", latent + rope, hidden, small_rows=latent),
                norm(attention + "kv_a_layernorm", latent), matrix(attention + "kv_b_proj", heads * (nope + value), latent),
                matrix(attention + "o_proj", hidden, heads * value)]
        if "index_topk" in c:
            dim = c["index_head_dim"]
            out += [matrix(indexer + "wq_b", c["index_n_heads"] * dim, queries, gain=1.5), matrix(indexer + "wk", dim, hidden),
                    norm(indexer + "k_norm", dim), Tensor(indexer + "k_norm.bias", [dim], 0.25),
                    matrix(indexer + "weights_proj", c["index_n_heads"], hidden)]
        out.append(norm(prefix + "post_attention_layernorm", hidden))
        if layer < c["first_k_dense_replace"]:
            out += mlp(prefix + "mlp.", c["intermediate_size"], hidden)
            continue
        experts, width = c["n_routed_experts"], c["moe_intermediate_size"]
        out.append(matrix(prefix + "mlp.gate", experts, hidden, gain=2.0))
        if c["topk_method"] == "noaux_tc":  # low enough that some biased scores are negative
            out.append(Tensor(prefix + "mlp.gate.e_score_correction_bias", [experts], 0.25, -0.4))
        for expert in range(experts):
            out += mlp(f"{prefix}mlp.experts.{expert}.", width, hidden)
        out += mlp(prefix + "mlp.shared_experts.", c["n_shared_experts"] * width, hidden)
    return out + [norm("model.norm", hidden)] + ([] if tied else [matrix("lm_head", c["vocab_size"], hidden, gain=1.5)])


def step3p5_tensors(c):
    """Of a Step-3.5 with its MTP modules. Its norms store their difference from 1."""
    hidden, d, enum = c["hidden_size"], c["head_dim"], c["moe_layers_enum"]
    moe = {int(i) for i in (enum.split(",") if isinstance(enum, str) else enum)}
    out = [Tensor("model.embed_tokens.weight", [c["vocab_size"], hidden], 0.03)]
    for layer in range(c["num_hidden_layers"] + c["num_nextn_predict_layers"]):
        prefix = f"model.layers.{layer}."
        attention, head = prefix + "self_attn.", prefix + "transformer.shared_head."
        setting = c["attention_other_setting"] if c["layer_types"][layer] == "sliding_attention" else c
        heads, groups = setting["num_attention_heads"], setting["num_attention_groups"]
        if layer >= c["num_hidden_layers"]:
            out += [norm(prefix + "enorm", hidden, 0.0), norm(prefix + "hnorm", hidden, 0.0),
                    matrix(prefix + "eh_proj", hidden, 2 * hidden), norm(head + "norm", hidden, 0.0),
                    matrix(head + "output", c["vocab_size"], hidden, gain=1.5)]
        out += [norm(prefix + "input_layernorm", hidden, 0.0), matrix(attention + "q_proj", heads * d, hidden, gain=1.5),
                matrix(attention + "k_proj", groups * d, hidden, gain=1.5), matrix(attention + "v_proj", groups * d, hidden),
                matrix(attention + "g_proj", heads, hidden, gain=1.5), matrix(attention + "o_proj", hidden, heads * d, gain=1.5),
                norm(attention + "q_norm", d, 0.0), norm(attention + "k_norm", d, 0.0),
                norm(prefix + "post_attention_layernorm", hidden, 0.0)]
        if layer not in moe:
            out += mlp(prefix + "mlp.", c["intermediate_size"], hidden)
            continue
        experts, width = c["moe_num_experts"], c["moe_intermediate_size"]
        out += [matrix(prefix + "moe.gate", experts, hidden, gain=2.0), Tensor(prefix + "moe.router_bias", [experts], 0.25, -0.4),
                matrix(prefix + "moe.gate_proj", experts, width, hidden, gain=1.5),
                matrix(prefix + "moe.up_proj", experts, width, hidden, gain=1.5),
                matrix(prefix + "moe.down_proj", experts, hidden, width), *mlp(prefix + "share_expert.", c["share_expert_dim"], hidden)]
    return out + [norm("model.norm", hidden, 0.0), matrix("lm_head", c["vocab_size"], hidden, gain=1.5)]


def is_fp8(name):
    """The linear layers of attention and feed-forward, not the router, gates or heads."""
    return name.endswith(("_proj.weight", "kv_a_proj_with_mqa.weight")) and "g_proj" not in name and "eh_proj" not in name


# --- numbers as a file stores them ----------------------------------------------------------------


def normals_of(generator):
    """count -> as many numbers of nearly a normal distribution: sums of four integers of 16 bits."""
    def normals(count):
        bits = array.array("H", generator.randbytes(8 * count))
        if sys.byteorder == "big":
            bits.byteswap()
        return [(a + b + c + d - 131070) / 37837 for a, b, c, d in zip(*[iter(bits)] * 4)]
    return normals


def little(numbers):
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def to_float32(values):
    return little(array.array("f", values))


def to_float16(values):
    return struct.pack(f"<{len(values)}e", *values)


def to_bfloat16(values):
    bits = array.array("I", array.array("f", values).tobytes())
    return little(array.array("H", [(b + 0x7FFF + (b >> 16 & 1)) >> 16 for b in bits]))


E4M3 = [(c & 7) * 2.0**-9 if c < 8 else (8 + (c & 7)) * 2.0 ** ((c >> 3) - 10) for c in range(127)]
BETWEEN = [(a + b) / 2 for a, b in zip(E4M3, E4M3[1:])]


def to_e4m3(x):
    """The nearest code; of two as near, the one with the even fraction."""
    code = bisect.bisect_left(BETWEEN, abs(x))
    if code < 126 and BETWEEN[code] == abs(x):
        code += code & 1
    return code | (0x80 if x < 0 else 0)


def to_fp8_blocks(values, shape, generator):
    """(codes, scales as float32, the scales' shape). A block's largest value becomes e4m3's largest; the generator
    makes blocks differ by up to a factor of 3."""
    rows, cols = shape[-2:]
    down, across, lead = -(-rows // BLOCK), -(-cols // BLOCK), math.prod(shape[:-2])
    codes, scales = bytearray(len(values)), []
    for block in range(lead * down * across):
        first_row, first = block // across % down * BLOCK, block % across * BLOCK
        begin = block // (down * across) * rows * cols
        starts = [begin + row * cols for row in range(first_row, min(first_row + BLOCK, rows))]
        last = min(first + BLOCK, cols)
        largest = max(abs(x) for s in starts for x in values[s + first:s + last])
        for s in starts:
            codes[s + first:s + last] = bytes(to_e4m3(x / largest * 448) for x in values[s + first:s + last])
        scales.append(largest / 448 * (0.5 + generator.random()))
    return bytes(codes), to_float32(scales), [*shape[:-2], down, across]


def stored_tensors(config, seed, factors):
    """{name in the file: (safetensors' type, shape, bytes)}. factors: of deviations, by the end of a tensor's name."""
    text = config.get("text_config", config)
    prefix = "language_model." if text is not config else ""
    generator = random.Random(seed)
    normals = normals_of(generator)
    kind = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}[text.get("dtype") or text["torch_dtype"]]
    convert = {"F32": to_float32, "F16": to_float16, "BF16": to_bfloat16}
    stored = {}
    for tensor in (step3p5_tensors if text["model_type"] == "step3p5" else latent_attention_tensors)(text):
        for end, factor in factors.items():
            if tensor.name.endswith(end):
                tensor.deviation *= factor
        values, name, shape = tensor.values(normals), prefix + tensor.name, list(tensor.shape)
        if "quantization_config" in text and is_fp8(tensor.name):
            codes, scales, blocks = to_fp8_blocks(values, shape, generator)
            stored[name], stored[name + "_scale_inv"] = ("F8_E4M3", shape, codes), ("F32", blocks, scales)
        else:  # biases of routers are published as float32
            own = "F32" if name.endswith(("e_score_correction_bias", "router_bias")) else kind
            stored[name] = (own, shape, convert[own](values))
    if "vision_config" in config:  # the parts that a text engine has to pass over
        for name, shape in (("vision_tower.patch_embed.proj.weight", [8, 3, 2, 2]), ("mm_projector.proj.0.weight", [8, 8])):
            stored[name] = (kind, shape, convert[kind](normals(math.prod(shape))))
    return stored


# --- files ----------------------------------------------------------------------------------------


def safetensors(stored):
    """The bytes of a file. Wider types come first, so that every tensor is aligned."""
    width = {"F32": 0, "F16": 1, "BF16": 1, "F8_E4M3": 2}
    header, data = {"__metadata__": {"format": "pt"}}, bytearray()
    for name, (kind, shape, values) in sorted(stored.items(), key=lambda item: (width[item[1][0]], item[0])):
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + bytes(data)


def files_of(config, seed, shards=1, factors=None):
    """{file name: bytes} of a checkpoint's weights."""
    stored = stored_tensors(config, seed, factors or {})
    if shards == 1:
        return {"model.safetensors": safetensors(stored)}
    total, parts, size = sum(len(t[2]) for t in stored.values()), [{} for _ in range(shards)], 0
    for name, tensor in stored.items():
        parts[size * shards // total][name] = tensor
        size += len(tensor[2])
    names = [f"model-{i + 1:05d}-of-{shards:05d}.safetensors" for i in range(shards)]
    index = {"metadata": {"total_size": total}, "weight_map": {t: n for n, part in zip(names, parts) for t in part}}
    return {**{n: safetensors(part) for n, part in zip(names, parts)},
            "model.safetensors.index.json": (json.dumps(index, indent=1) + "\n").encode()}


def checksums():
    """{"NAME/FILE": sha256}."""
    return {file: total for total, file in (line.split() for line in SUMS.read_text().splitlines())} if SUMS.exists() else {}


def drawn(name):
    """{file name: bytes} of the weights of tests/golden/NAME."""
    config = json.loads((GOLDEN / name / "config.json").read_text(encoding="utf-8"))
    return files_of(config, CHECKPOINTS[name], SHARDS.get(name, 1), QUIET.get(name))


def check(name, files):
    """Ends the program if the checksums are not those of SUMS."""
    sums = {key: total for key, total in checksums().items() if key.startswith(name + "/")}
    if sums != (now := {f"{name}/{file}": hashlib.sha256(content).hexdigest() for file, content in files.items()}):
        raise SystemExit(f"tests/golden/{name}: what was drawn is not what {SUMS.name} has:\n{now}")


def write(name, record=False):
    """Writes the weights of tests/golden/NAME. record: notes their checksums; else they must be those noted."""
    files = drawn(name)
    if record:
        others = {key: total for key, total in checksums().items() if not key.startswith(name + "/")}
        mine = {f"{name}/{file}": hashlib.sha256(content).hexdigest() for file, content in files.items()}
        SUMS.write_text("".join(f"{total}  {key}\n" for key, total in sorted((others | mine).items())))
    check(name, files)
    for file, content in files.items():
        part = GOLDEN / name / f"{file}.{os.getpid()}"
        part.write_bytes(content)
        part.replace(GOLDEN / name / file)  # whole, also where two builds are configured at once


def is_there(name):
    files = {key: total for key, total in checksums().items() if key.startswith(name + "/")}
    return bool(files) and all((GOLDEN / key).exists() and
                               hashlib.sha256((GOLDEN / key).read_bytes()).hexdigest() == total
                               for key, total in files.items())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(CHECKPOINTS))
    parser.add_argument("--check", action="store_true", help="write nothing, only compare with the checksums")
    arguments = parser.parse_args()
    names = arguments.names or list(CHECKPOINTS)
    if unknown := sorted(set(names) - set(CHECKPOINTS)):
        parser.error(f"unknown checkpoint {unknown[0]}; known: {', '.join(CHECKPOINTS)}")
    for name in names:
        if arguments.check:
            check(name, drawn(name))
        elif not is_there(name):
            write(name)


if __name__ == "__main__":
    main()
