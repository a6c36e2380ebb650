#!/usr/bin/env python3
"""Computes decoder layers in the order of docs/numerics.md and compares every bit with the engine.

For DeepSeek-V2 and V3 checkpoints in bfloat16 or in FP8 whose scales are powers of two. The engine's
rows come from the program layer_rows of tests/networks:

  python3 tools/check_layer.py --rows build/release/tests/networks/layer_rows [--model DIR]
      [--isa avx2 avx512 avx512_bf16] [--tokens N] [--dtype bfloat16] [--form heads] [--role prompt]

It prints, for each instruction set, how many of the values of each layer, of the last norm and of the
logits have the engine's bits. Exit status 1: some have not. Instruction sets that the machine lacks
are named and left out; 2: it has none of them.

Longer than most files: every sum of a layer is written out, with nothing of the engine's.

Each layer starts from the engine's output of the layer before it, so a difference stays where it
arose. --chain starts from the embeddings alone.

Needs numpy only: its elementwise float32 operations round as IEEE 754 says, and nothing else is
needed. --torch lets PyTorch add the products of matrices up, as a trainer would.
"""
import argparse
import ctypes
import json
import math
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
F32 = np.float32
SPLIT = 256  # keys of a partial softmax
FOLDED_SPLITS = 4  # partials that are merged with one another first
KEY_BLOCK = 32  # keys of a step of the expanded form
CODE_BLOCK = 128  # columns with one scale
LATENT_EPS = 1e-6


def c_function(name, kind):
    """A function of the C library: numpy's own are other functions, with other last bits."""
    function = getattr(ctypes.CDLL("libm.so.6"), name)
    function.restype = kind
    function.argtypes = [kind] * (2 if name.startswith("pow") else 1)
    return function


POWF, COSF, SINF = (c_function(name, ctypes.c_float) for name in ("powf", "cosf", "sinf"))


def round_to_bfloat16(x):
    bits = np.ascontiguousarray(x, F32).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded & np.uint32(0xFFFF0000)).view(F32)


def fma(a, b, c):
    """a * b + c of float32, rounded once. The product is exact in float64. The sum in float64 is
    rounded to odd (Boldo and Melquiond 2008), so that rounding it again to float32 gives what
    rounding once would."""
    product = np.asarray(a, np.float64) * np.asarray(b, np.float64)
    c = np.asarray(c, np.float64)
    total = product + c
    back = total - product
    error = (product - (total - back)) + (c - back)
    bits = total.view(np.int64)
    towards = np.where((error > 0) == (total > 0), 1, -1)
    odd = np.where((error != 0) & (bits & 1 == 0), bits + towards, bits)
    return odd.view(np.float64).astype(F32)


class Order:
    """The order of sums of an instruction set, for operands of one type."""

    def __init__(self, isa, dtype, use_torch):
        self.narrow = dtype == "bfloat16"  # operands are bfloat16, so that products are exact
        self.pairs = isa == "avx512_bf16" and self.narrow
        self.lanes = 8 if isa == "avx2" else 16
        self.torch = __import__("torch") if use_torch else None

    def operand(self, x):
        return round_to_bfloat16(x) if self.narrow else x

    def columns(self, n):
        """The order in which n columns are added: VDPBF16PS takes the odd one of a pair first."""
        return np.arange(n).reshape(-1, 2)[:, ::-1].ravel() if self.pairs else np.arange(n)

    def add_product(self, total, a, b):
        """total + a * b: one rounding, as products of bfloat16 numbers are exact."""
        return total + a * b if self.narrow else fma(a, b, total)

    def chain(self, x, w):
        """One chain for each of [rows, outputs]."""
        if self.torch is not None and self.narrow:
            x, w = (self.torch.from_numpy(np.ascontiguousarray(m)) for m in (x, w))
            total = self.torch.zeros((x.shape[0], w.shape[0]))
            for k in self.columns(x.shape[1]):
                total += x[:, k, None] * w[None, :, k]
            return total.numpy()
        total = np.zeros((x.shape[0], w.shape[0]), F32)
        for k in self.columns(x.shape[1]):
            total = self.add_product(total, x[:, k, None], w[None, :, k])
        return total

    def product(self, x, weight):
        """x W^T."""
        x = self.operand(x)
        if not (self.pairs and weight.codes):
            return self.chain(x, weight.values)
        # Codes of one scale are a chain from zero, which is added to the total with its scale.
        total = np.zeros((x.shape[0], weight.values.shape[0]), F32)
        for k in range(0, x.shape[1], CODE_BLOCK):
            total = total + self.chain(x[:, k:k + CODE_BLOCK], weight.values[:, k:k + CODE_BLOCK])
        return total

    def add_lanes(self, lanes):
        """[..., lanes] -> [...]: neighbours at a distance of two, then of one, then halves."""
        quarters = lanes.reshape(*lanes.shape[:-1], -1, 4)
        sums = (quarters[..., 0] + quarters[..., 2]) + (quarters[..., 1] + quarters[..., 3])
        if sums.shape[-1] == 4:
            sums = sums[..., :2] + sums[..., 2:]
        return sums[..., 0] + sums[..., 1]

    def scores(self, q, k, scale):
        """q [queries, width], k [keys, width] -> [queries, keys], of entries of a paged cache."""
        n = self.lanes
        total = np.zeros((len(q), len(k), n), F32)
        for first in range(0, q.shape[1], 2 * n):
            block = np.arange(first, first + 2 * n)
            # Narrow entries: a lane takes neighbours, else what is half a block apart.
            parts = [block[0::2], block[1::2]] if self.narrow else [block[:n], block[n:]]
            for part in parts[::-1] if self.pairs else parts:
                total = self.add_product(total, q[:, None, part], k[None, :, part])
        return scale * self.add_lanes(total)


def plain_scores(order, q, k, scale):
    """The same of the expanded form, whose queries and keys are not rounded."""
    total = np.zeros((len(q), len(k), order.lanes), F32)
    for first in range(0, q.shape[1], order.lanes):
        part = slice(first, first + order.lanes)
        total = fma(q[:, None, part], k[None, :, part], total)
    return scale * order.add_lanes(total)


EXP_TERMS = [F32(float.fromhex(t)) for t in
             ("0x1.fffffcp-2", "0x1.555492p-3", "0x1.5558f0p-5", "0x1.1239e2p-7", "0x1.6a25b0p-10")]


def exp_parts(x):
    n = np.rint(x * F32(1.4426950408889634))
    r = fma(-n, F32(0.6931471805599453), x)
    r = fma(-n, F32(float.fromhex("-0x1.05c61p-29")), r)
    q = np.broadcast_to(EXP_TERMS[4], r.shape)
    for term in EXP_TERMS[3::-1]:
        q = fma(q, r, term)
    return fma(r * r, q, r) + F32(1), n.astype(np.int32)


def power_of_two(n):
    return ((n + 127).astype(np.uint32) << np.uint32(23)).view(F32)


def weight_of(x):
    """exp(x) of a softmax: 0 below -64."""
    power, n = exp_parts(np.maximum(x, F32(-64)))
    return np.where(x < -64, F32(0), power * power_of_two(n))


def silu(x):
    power, n = exp_parts(np.clip(-x, F32(-104), F32(89)))
    half = n >> 1
    return x / (F32(1) + (power * power_of_two(half)) * power_of_two(n - half))


def sigmoid(x):
    """Of the router: the same steps on every device (base/rounded_exp.h)."""
    y = -x
    count = np.rint(y * F32(1.4426950408889634))
    f = (y - count * F32(float.fromhex("0x1.62E4p-1"))) - count * F32(float.fromhex("0x1.7F7D1Cp-20"))
    total = np.broadcast_to(F32(1) / F32(5040), f.shape)
    for divisor in (720, 120, 24, 6, 2, 1, 1):
        total = total * f + F32(1) / F32(divisor)
    n = count.astype(np.int32)
    half = np.trunc(n / 2).astype(np.int32)
    return F32(1) / (F32(1) + total * power_of_two(half) * power_of_two(n - half))


def rms_norm(x, weight, eps):
    rows, n = x.shape
    padded = np.zeros((rows, -(-n // 32) * 32), F32)
    padded[:, :n] = x
    total = np.zeros((rows, 4, 8), F32)  # accumulators of eight lanes
    for block in padded.reshape(rows, -1, 4, 8).transpose(1, 0, 2, 3):
        total = fma(block, block, total)
    a = (total[:, 0] + total[:, 1]) + (total[:, 2] + total[:, 3])
    sums = ((a[:, 0] + a[:, 2]) + (a[:, 1] + a[:, 3])) + ((a[:, 4] + a[:, 6]) + (a[:, 5] + a[:, 7]))
    scale = F32(1) / np.sqrt(sums / F32(n) + F32(eps))
    return weight * (x * scale[:, None])


def rotary_tables(config, count):
    """Cosines and sines [positions, rope / 2], and the factor of YaRN in the softmax's scale."""
    dim, theta = config["qk_rope_head_dim"], float(config.get("rope_theta", 10000))
    frequencies = [F32(1) / F32(POWF(F32(theta), F32(2 * i / dim))) for i in range(dim // 2)]
    yarn, magnitude, factor = config.get("rope_scaling"), 1.0, 1.0
    if yarn:
        def dimension_of(turns):
            length = yarn["original_max_position_embeddings"]
            return dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(theta))

        def magnitude_of(a):
            return 0.1 * a * math.log(yarn["factor"]) + 1

        low = max(math.floor(dimension_of(yarn["beta_fast"])), 0)
        high = min(math.ceil(dimension_of(yarn["beta_slow"])), dim - 1)
        for i, f in enumerate(frequencies):
            ramp = F32(min(max((i - low) / (high - low or 0.001), 0), 1))
            frequencies[i] = (f / F32(yarn["factor"])) * ramp + f * (F32(1) - ramp)
        magnitude = magnitude_of(yarn["mscale"]) / magnitude_of(yarn["mscale_all_dim"])
        factor = magnitude_of(yarn["mscale_all_dim"])
    angles = [[F32(p) * f for f in frequencies] for p in range(count)]
    tables = [np.array([[F32(function(a)) for a in row] for row in angles], F32) * F32(magnitude)
              for function in (COSF, SINF)]
    return tables[0], tables[1], factor


def rotate(x, cos, sin):
    """x [rows, ..., rope]: pairs (2 i, 2 i + 1), or with rope_interleave false (i, i + rope / 2)."""
    shape = (len(x),) + (1,) * (x.ndim - 2) + (-1,)
    cos, sin = cos.reshape(shape), sin.reshape(shape)
    a, b = x[..., 0::2], x[..., 1::2]
    out = np.empty_like(x)
    out[..., 0::2] = a * cos - b * sin
    out[..., 1::2] = a * sin + b * cos
    return out


class Weight:
    def __init__(self, values, codes=False):
        self.values = np.ascontiguousarray(values, F32)
        self.codes = codes

    def rows(self, first, count):
        return Weight(self.values[first:first + count], self.codes)


class Checkpoint:
    def __init__(self, directory):
        self.config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        self.stored = {}
        for path in sorted(directory.glob("model*.safetensors")):
            raw = path.read_bytes()
            size = struct.unpack("<Q", raw[:8])[0]
            for name, entry in json.loads(raw[8:8 + size]).items():
                if name != "__metadata__":
                    begin, end = entry["data_offsets"]
                    self.stored[name] = (entry["dtype"], entry["shape"],
                                         raw[8 + size + begin:8 + size + end])

    def weight(self, name):
        dtype, shape, data = self.stored[name]
        if dtype == "F32":
            return Weight(np.frombuffer(data, F32).reshape(shape))
        if dtype == "BF16":
            wide = np.frombuffer(data, np.uint16).astype(np.uint32) << np.uint32(16)
            return Weight(wide.view(F32).reshape(shape))
        if dtype != "F8_E4M3":
            sys.exit(f"check_layer: error: {name} is {dtype}; F32, BF16 and F8_E4M3 are known")
        code = np.frombuffer(data, np.uint8).reshape(shape).astype(np.int32)
        exponent, mantissa = code >> 3 & 15, code & 7
        value = np.where(exponent == 0, np.ldexp(mantissa / 8.0, -6),
                         np.ldexp(1 + mantissa / 8.0, exponent - 7)) * np.where(code & 128, -1, 1)
        scales = self.weight(name + "_scale_inv").values
        if (np.frexp(scales)[0] != 0.5).any():
            sys.exit(f"check_layer: error: {name} has scales that are no powers of two")
        spread = np.repeat(np.repeat(scales, CODE_BLOCK, 0), CODE_BLOCK, 1)
        return Weight(value * spread[:shape[0], :shape[1]], codes=True)

    def vector(self, name):
        return self.weight(name).values


def merge(total, part):
    """Two partial softmaxes (maximum, sum, unnormalised output) of the same rows."""
    if total is None:
        return part
    largest = np.where(part[0] > total[0], part[0], total[0])
    keep, take = weight_of(total[0] - largest), weight_of(part[0] - largest)
    return (largest, total[1] * keep + part[1] * take,
            total[2] * keep[:, None] + part[2] * take[:, None])


def attend_split(order, q, keys, values, visible, scale):
    """A partial softmax of rows that all see the first key; visible [rows]: how many each sees."""
    rows, count = len(q), len(keys)
    sees = np.arange(count)[None, :] < visible[:, None]
    scores = order.scores(q, keys, scale)
    largest = np.where(sees, scores, F32(-np.inf)).max(1)
    weights = np.where(sees, order.operand(weight_of(scores - largest[:, None])), F32(0))
    sums = np.zeros((4, rows), F32)
    for t in range(count):
        sums[t % 4] += weights[:, t]
    out = np.zeros((rows, values.shape[1]), F32)
    keys_in_order = np.arange(count)
    if order.pairs:
        padded = np.arange(count + count % 2).reshape(-1, 2)[:, ::-1].ravel()
        keys_in_order = padded[padded < count]
    for t in keys_in_order:
        out = np.where(sees[:, t, None],
                       order.add_product(out, weights[:, t, None], values[None, t]), out)
    return largest, (sums[0] + sums[1]) + (sums[2] + sums[3]), out


def paged_attention(order, q, keys, values, scale):
    """One head, row r at position r: splits at fixed positions, groups of four merged first."""
    count = len(q)
    q, keys, values = order.operand(q), order.operand(keys), order.operand(values)
    out = np.zeros((count, values.shape[1]), F32)
    total_of, group_of = [None] * count, [None] * count

    def merge_rows(into, first, part):
        begin = next((r for r in range(first, count) if into[r] is not None), None)
        if begin is None:
            into[first:] = [tuple(p[i:i + 1] for p in part) for i in range(count - first)]
            return
        stacked = tuple(np.concatenate([into[r][i] for r in range(first, count)]) for i in range(3))
        merged = merge(stacked, part)
        into[first:] = [tuple(p[i:i + 1] for p in merged) for i in range(count - first)]

    splits = range(0, count, SPLIT)
    for number, begin in enumerate(splits):
        visible = np.minimum(np.arange(begin, count) + 1 - begin, SPLIT)
        end = min(begin + SPLIT, count)
        part = attend_split(order, q[begin:], keys[begin:end], values[begin:end], visible, scale)
        merge_rows(group_of, begin, part)
        if number % FOLDED_SPLITS == FOLDED_SPLITS - 1 or end == count:
            first = number // FOLDED_SPLITS * FOLDED_SPLITS * SPLIT
            group = tuple(np.concatenate([group_of[r][i] for r in range(first, count)])
                          for i in range(3))
            merge_rows(total_of, first, group)
            group_of = [None] * count
    for r in range(count):
        out[r] = total_of[r][2][0] / total_of[r][1][0]
    return out


def expanded_attention(order, q, keys, values, scale):
    """One head of prompt rows over a latent cache: a running softmax in blocks of 32 keys."""
    count = len(q)
    largest, total = np.full(count, -np.inf, F32), np.zeros(count, F32)
    out = np.zeros((count, values.shape[1]), F32)
    for begin in range(0, count, KEY_BLOCK):
        block = slice(begin, min(begin + KEY_BLOCK, count))
        rows = slice(begin, count)
        scores = plain_scores(order, q[rows], keys[block], scale)
        sees = np.arange(block.start, block.stop)[None, :] <= np.arange(begin, count)[:, None]
        new = np.maximum(largest[rows], np.where(sees, scores, F32(-np.inf)).max(1))
        same = largest[rows] == new
        with np.errstate(invalid="ignore"):
            factor = np.where(same, F32(1), weight_of(np.maximum(largest[rows] - new, F32(-1e30))))
        weights = np.where(sees, weight_of(scores - new[:, None]), F32(0))
        total[rows] = total[rows] * factor
        out[rows] = out[rows] * factor[:, None]
        for t in range(block.stop - block.start):
            total[rows] += weights[:, t]
            out[rows] = np.where(sees[:, t, None],
                                 fma(weights[:, t, None], values[None, block.start + t], out[rows]),
                                 out[rows])
        largest[rows] = new
    return out * (F32(1) / total)[:, None]


class Model:
    def __init__(self, checkpoint, order, form, role, count):
        self.c, self.order, self.form, self.role = checkpoint, order, form, role
        config = checkpoint.config
        if config.get("topk_method", "noaux_tc") != "noaux_tc" or config["q_lora_rank"] is None:
            sys.exit("check_layer: error: this checks models with noaux_tc routers and a query latent")
        if config.get("rope_interleave") is False:
            sys.exit("check_layer: error: this checks models that rotate pairs (2 i, 2 i + 1)")
        self.heads, self.latent = config["num_attention_heads"], config["kv_lora_rank"]
        self.nope, self.rope = config["qk_nope_head_dim"], config["qk_rope_head_dim"]
        self.value, self.eps = config["v_head_dim"], config["rms_norm_eps"]
        self.cos, self.sin, factor = rotary_tables(config, count)
        self.scale = F32(factor * factor / math.sqrt(self.nope + self.rope))

    def attention(self, prefix, h):
        order, c = self.order, self.c
        down = order.product(h, c.weight(prefix + "kv_a_proj_with_mqa.weight"))
        q_latent = rms_norm(order.product(h, c.weight(prefix + "q_a_proj.weight")),
                            c.vector(prefix + "q_a_layernorm.weight"), LATENT_EPS)
        latent = rms_norm(down[:, :self.latent], c.vector(prefix + "kv_a_layernorm.weight"),
                          LATENT_EPS)
        k_rope = rotate(down[:, self.latent:], self.cos, self.sin)
        q = order.product(q_latent, c.weight(prefix + "q_b_proj.weight"))
        q = q.reshape(len(h), self.heads, self.nope + self.rope)
        q_rope = rotate(q[..., self.nope:], self.cos, self.sin)
        kv_b = c.weight(prefix + "kv_b_proj.weight")
        out = []
        for head in range(self.heads):
            first = head * (self.nope + self.value)
            key_up, value_up = kv_b.rows(first, self.nope), kv_b.rows(first + self.nope, self.value)
            q_nope = q[:, head, :self.nope]
            if self.form == "latent" and self.role == "decode":
                absorbed = order.product(q_nope, Weight(key_up.values.T))
                entries = np.concatenate([latent, k_rope], 1)
                found = paged_attention(order, np.concatenate([absorbed, q_rope[:, head]], 1),
                                        entries, latent, self.scale)
                out.append(order.product(found, value_up))
                continue
            # Entries of a latent cache are rounded before keys and values are made of them.
            made_from = order.operand(latent) if self.form == "latent" else latent
            k_part = order.operand(k_rope) if self.form == "latent" else k_rope
            keys = np.concatenate([order.product(made_from, key_up), k_part], 1)
            values = order.product(made_from, value_up)
            attend = expanded_attention if self.form == "latent" else paged_attention
            out.append(attend(order, np.concatenate([q_nope, q_rope[:, head]], 1), keys, values,
                              self.scale))
        return order.product(np.concatenate(out, 1), c.weight(prefix + "o_proj.weight"))

    def mlp(self, prefix, h):
        """An MLP without the sum with the residual stream."""
        gate = self.order.product(h, self.c.weight(prefix + "gate_proj.weight"))
        up = self.order.product(h, self.c.weight(prefix + "up_proj.weight"))
        return self.order.product(silu(gate) * up, self.c.weight(prefix + "down_proj.weight"))

    def route(self, prefix, h):
        """Experts [rows, top] in order of choice and their weights."""
        config = self.c.config
        exact = Order("avx2", "float32", False)  # in float32, whatever the type of operands is
        scores = sigmoid(exact.product(h, self.c.weight(prefix + "gate.weight")))
        choice = scores + self.c.vector(prefix + "gate.e_score_correction_bias")
        groups, top = config["n_group"], config["num_experts_per_tok"]
        by_group = choice.reshape(len(h), groups, -1)
        best = np.sort(by_group, -1)[..., ::-1]
        of_group = best[..., 0] + best[..., 1] if best.shape[-1] > 1 else best[..., 0]
        # Stable sorts of negated values: the lower index wins among equals.
        kept = np.argsort(-of_group, -1, kind="stable")[:, :config["topk_group"]]
        mask = np.full(by_group.shape, -np.inf, F32)
        np.put_along_axis(mask, kept[..., None], 0, 1)
        chosen = np.argsort(-(by_group + mask).reshape(len(h), -1), -1, kind="stable")[:, :top]
        weights = np.take_along_axis(scores, chosen, 1)
        if config.get("norm_topk_prob", True):
            total = np.zeros(len(h), F32)
            for j in range(top):
                total += weights[:, j]
            weights = weights / (total + F32(1e-20))[:, None]
        return chosen, weights * F32(config["routed_scaling_factor"])

    def experts(self, prefix, h, x):
        chosen, weights = self.route(prefix, h)
        outputs = np.zeros((chosen.shape[1], *x.shape), F32)
        for expert in np.unique(chosen):
            rows, places = np.nonzero(chosen == expert)
            outputs[places, rows] = self.mlp(f"{prefix}experts.{expert}.", h[rows])
        total = np.zeros_like(x)
        for j, output in enumerate(outputs):
            total = fma(weights[:, j, None], output, total)
        if self.c.config.get("n_shared_experts"):
            total = total + self.mlp(prefix + "shared_experts.", h)
        return x + total

    def layer(self, index, x):
        prefix = f"model.layers.{index}."
        h = rms_norm(x, self.c.vector(prefix + "input_layernorm.weight"), self.eps)
        x = x + self.attention(prefix + "self_attn.", h)
        h = rms_norm(x, self.c.vector(prefix + "post_attention_layernorm.weight"), self.eps)
        if index < self.c.config["first_k_dense_replace"]:
            return x + self.mlp(prefix + "mlp.", h)
        return self.experts(prefix + "mlp.", h, x)


def engine_rows(args, isa, tokens, config):
    """The engine's [layers + 1, tokens, hidden] and logits, or None if the machine lacks the set."""
    count, hidden = len(tokens), config["hidden_size"]
    layers = config["num_hidden_layers"]
    with tempfile.TemporaryDirectory() as directory:
        ids, rows = pathlib.Path(directory) / "tokens", pathlib.Path(directory) / "rows"
        ids.write_bytes(np.asarray(tokens, np.int32).tobytes())
        done = subprocess.run([args.rows, args.model, ids, rows, args.dtype, args.form, args.role],
                              env=os.environ | {"OUTRIDER_ISA": isa}, capture_output=True, text=True,
                              check=False)
        if done.returncode != 0:
            if "OUTRIDER_ISA" in done.stderr:
                return None
            sys.exit(f"check_layer: error: {args.rows}: {done.stderr.strip()}")
        values = np.frombuffer(rows.read_bytes(), F32)
    split = (layers + 1) * count * hidden
    return values[:split].reshape(layers + 1, count, hidden), values[split:].reshape(count, -1)


def report(name, got, want):
    """Whether all bits are equal; NaN of equal bits counts as equal."""
    equal = np.ascontiguousarray(got, F32).view(np.uint32) == want.view(np.uint32)
    rest = "" if equal.all() else f", largest difference {np.abs(got - want).max():.2e}"
    print(f"  {name:12} {equal.sum():>8,} of {equal.size:,} values have the engine's bits{rest}",
          flush=True)
    return bool(equal.all())


def check(args, isa, checkpoint, tokens):
    engine = engine_rows(args, isa, tokens, checkpoint.config)
    if engine is None:
        print(f"{isa}: this machine lacks it", flush=True)
        return None
    outputs, logits = engine
    print(f"{isa}, {args.dtype}, {args.form}, {args.role}, {len(tokens)} tokens", flush=True)
    order = Order(isa, args.dtype, args.torch)
    model = Model(checkpoint, order, args.form, args.role, len(tokens))
    x = checkpoint.vector("model.embed_tokens.weight")[tokens]
    equal = []
    for index in range(min(args.layers or len(outputs), len(outputs) - 1)):
        x = model.layer(index, x)
        equal.append(report(f"layer {index}", x, outputs[index]))
        if not args.chain:
            x = outputs[index]
    if not args.layers:
        h = rms_norm(x, checkpoint.vector("model.norm.weight"), model.eps)
        equal.append(report("last norm", h, outputs[-1]))
        equal.append(report("logits", order.product(h, checkpoint.weight("lm_head.weight")), logits))
    return all(equal)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", required=True, help="the program layer_rows of tests/networks")
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "models" / "tiny-v3-mtp3")
    parser.add_argument("--isa", nargs="+", default=["avx2", "avx512", "avx512_bf16"],
                        choices=["avx2", "avx512", "avx512_bf16"])
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1, help="of the tokens, which are random")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--form", default="heads", choices=["heads", "latent"])
    parser.add_argument("--role", default="prompt", choices=["prompt", "decode"])
    parser.add_argument("--layers", type=int, default=0, help="only the first N, and no logits")
    parser.add_argument("--chain", action="store_true", help="start from the embeddings alone")
    parser.add_argument("--torch", action="store_true", help="products of matrices in PyTorch")
    args = parser.parse_args()
    checkpoint = Checkpoint(args.model)
    tokens = np.random.default_rng(args.seed).integers(0, checkpoint.config["vocab_size"],
                                                       args.tokens)
    results = [check(args, isa, checkpoint, tokens) for isa in args.isa]
    ran = [result for result in results if result is not None]
    if not ran:
        print("check_layer: error: this machine has none of these instruction sets", file=sys.stderr)
        return 2
    return 0 if all(ran) else 1


if __name__ == "__main__":
    sys.exit(main())
