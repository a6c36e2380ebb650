"""DeepSeek-V4's published number formats and files.

Linear weights: FP8 e4m3 with one scale per 128x128 block. Routed experts: FP4 e2m1, two values per byte (low half = even column), one scale
per 32 columns. Scales are e8m0 bytes, value 2^(byte - 127), stored under the weight's name with `.scale` for `.weight`.
"""
import json, os, re

import torch

from common import fp8_blocks, from_fp8_blocks, power, two_to

FP8 = re.compile(r"(\.attn\.(wq_a|wq_b|wkv|wo_a|wo_b|indexer\.wq_b)|\.shared_experts\.w[123]|\.ffn\.s[123]|\.[eh]_proj|\.main_proj)\.weight$")
FP4 = re.compile(r"(\.ffn\.experts\.\d+\.w[123]\.weight|\.ffn\.w13|\.ffn\.w2)$")  # the last two are the trainers' stacked experts
FLOAT32 = re.compile(r"(hc_|attn_sink|\.ape|gate\.bias)")
LEVELS = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
TYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "I64": torch.int64, "I32": torch.int32, "I8": torch.uint8, "F8_E8M0": torch.uint8,
         "F8_E4M3": torch.float8_e4m3fn}


def to_e4m3(x):
    return x.clamp(-448, 448).to(torch.float8_e4m3fn)


def to_e2m1(x):
    """Nearest FP4 value, ties to the even mantissa."""
    a = x.abs().clamp(max=6)
    step = torch.where(a < 2, 0.5, torch.where(a < 4, 1.0, 2.0))
    return torch.round(a / step) * step * torch.sign(x)


def round_groups(x, size, top, least, cast):
    """x with its last axis rounded in groups of `size` that share a power-of-two scale."""
    g = x.float().unflatten(-1, (-1, size))
    s = power(g.abs().amax(-1, keepdim=True), top, least)
    return (cast(g / s).float() * s).flatten(-2).to(x.dtype)


def round_fp8(w):
    return from_fp8_blocks(*fp8_blocks(w))


def round_fp4(w):
    return round_groups(w, 32, 6, 1e-12, to_e2m1)


def exponent_bytes(s):
    return (torch.frexp(s)[1] - 1 + 127).to(torch.uint8)


def from_exponent_bytes(e):
    return two_to(e.int() - 127)


def encode(name, w):
    """Published entries {name: (safetensors type, tensor)} of one tensor."""
    w, scale = w.detach().cpu(), name[:-len("weight")] + "scale"
    if FP4.search(name):
        g = w.float().unflatten(-1, (-1, 32))
        s = power(g.abs().amax(-1, keepdim=True), 6, 1e-12)
        v = to_e2m1(g / s)
        code = torch.searchsorted(LEVELS, v.abs()) + 8 * (v < 0)
        code = code.flatten(-2).to(torch.uint8)
        return {name: ("I8", code[:, 0::2] | code[:, 1::2] << 4), scale: ("F8_E8M0", exponent_bytes(s.squeeze(-1)))}
    if FP8.search(name):
        q, s = fp8_blocks(w)
        return {name: ("F8_E4M3", q), scale: ("F8_E8M0", exponent_bytes(s))}
    if not w.is_floating_point():
        return {name: ("I64", w)}
    return {name: ("F32", w.float()) if FLOAT32.search(name) else ("BF16", w.to(torch.bfloat16))}


def decode(name, t, scale):
    """The float32 values of one stored tensor; scale is None or its e8m0 bytes."""
    if scale is None:
        return t if t.dtype == torch.int64 else t.float()
    s = from_exponent_bytes(scale)
    if t.dtype == torch.float8_e4m3fn:
        return from_fp8_blocks(t, s)
    code = torch.stack((t & 15, t >> 4), -1).flatten(-2).long()
    return LEVELS[code & 7] * (1 - 2 * (code >> 3)) * s.repeat_interleave(32, -1)


def write_file(path, entries):
    """A safetensors file of {name: (type, tensor)}, wider types first so that every tensor is aligned."""
    header, at, blobs = {"__metadata__": {"format": "pt"}}, 0, []
    for name, (kind, t) in sorted(entries.items(), key=lambda x: (-x[1][1].element_size(), x[0])):
        b = t.contiguous().view(torch.uint8).numpy().tobytes()
        header[name] = {"dtype": kind, "shape": list(t.shape), "data_offsets": [at, at + len(b)]}
        at += len(b); blobs.append(b)
    h = json.dumps(header, separators=(",", ":")).encode()
    h += b" " * (-len(h) % 8)
    with open(path, "wb") as f:
        f.write(len(h).to_bytes(8, "little") + h + b"".join(blobs))


def read_file(path):
    """{name: tensor} of a safetensors file; e8m0 and packed FP4 come as bytes."""
    raw = bytearray(open(path, "rb").read())
    n = int.from_bytes(raw[:8], "little")
    out = {}
    for name, x in json.loads(raw[8:8 + n]).items():
        if name != "__metadata__":
            a, b = x["data_offsets"]
            out[name] = torch.frombuffer(raw[8 + n + a:8 + n + b], dtype=TYPES[x["dtype"]]).view(x["shape"])
    return out


def read_folder(path):
    """{name: float32 or integer tensor} of every weight that a checkpoint folder's index lists."""
    names = json.load(open(os.path.join(path, "model.safetensors.index.json")))["weight_map"]
    raw = {}
    for shard in sorted(set(names.values())):
        raw.update(read_file(os.path.join(path, shard)))
    assert set(raw) == set(names), set(raw) ^ set(names)
    return {k: decode(k, v, raw.get(k[:-len("weight")] + "scale")) for k, v in raw.items() if not k.endswith(".scale")}


@torch.no_grad()
def load(tensors, stored, o_groups=None):
    """Copies stored into the views of tensors. With o_groups the output projections' rank may be larger than stored.

    Then wo_a keeps what it has in its further rows, and wo_b gets zeros in its further columns: no figure changes, and both can be trained.
    """
    assert set(stored) == set(tensors), set(stored) ^ set(tensors)
    for k, v in stored.items():
        to = tensors[k]
        if o_groups and k.endswith(".wo_a.weight"):
            v, to = (x.view(o_groups, -1, x.shape[1]) for x in (v, to))
            to = to[:, :v.shape[1]]
        elif o_groups and k.endswith(".wo_b.weight"):
            v, to = (x.view(x.shape[0], o_groups, -1) for x in (v, to))
            to.zero_()
            to = to[..., :v.shape[2]]
        to.copy_(v)


def same_weights(tensors, stored):
    assert set(tensors) == set(stored)
    for k, v in stored.items():
        assert torch.equal(tensors[k].detach().cpu(), v), k


@torch.no_grad()
def round_all(m):
    """Rounds every weight, once, to what its published format holds."""
    for name, w in m.published_tensors().items():
        w.copy_(round_fp4(w) if FP4.search(name) else round_fp8(w) if FP8.search(name) else w if FLOAT32.search(name) or not w.is_floating_point()
                else w.to(torch.bfloat16))


def export(out, files):
    """Writes a checkpoint's safetensors files {file name: {tensor name: tensor}} and their index, reads them back and compares every value."""
    weight_map, size = {}, 0
    for file, tensors in files.items():
        entries = {}
        for k, v in tensors.items():
            entries.update(encode(k, v))
        write_file(os.path.join(out, file), entries)
        weight_map.update({k: file for k in entries})
        size += sum(t.numel() * t.element_size() for _, t in entries.values())
        back = read_file(os.path.join(out, file))
        for k, v in tensors.items():
            got, want = decode(k, back[k], back.get(k[:-len("weight")] + "scale")), v.detach().cpu()
            if not (FP4.search(k) or FP8.search(k) or FLOAT32.search(k)) and want.is_floating_point():
                want = want.to(torch.bfloat16).float()
            assert torch.equal(got, round_fp4(want) if FP4.search(k) else round_fp8(want) if FP8.search(k) else want), k
    return weight_map, size


def write_index(out, weight_map, size):
    json.dump({"metadata": {"total_size": size}, "weight_map": dict(sorted(weight_map.items()))},
              open(os.path.join(out, "model.safetensors.index.json"), "w"), indent=0)


def published_config(config):
    """config.json of a checkpoint in the published formats."""
    return config | dict(expert_dtype="fp4", quantization_config=dict(
        activation_scheme="dynamic", fmt="e4m3", quant_method="fp8", scale_fmt="ue8m0", weight_block_size=[128, 128]))


def rounding(m):
    """A function that rounds m's weights in place, those of stacked experts together, to what the FP8 and FP4 formats hold."""
    rounded = [(p, round_fp4 if FP4.search("." + n) else round_fp8) for n, p in m.named_parameters() if FP4.search("." + n) or FP8.search("." + n)]

    @torch.no_grad()
    def apply():
        for p, f in rounded:
            p.copy_(f(p))

    return apply
