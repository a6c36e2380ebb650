"""Trains a DSpark drafter (as DeepSeek-V4-Flash-0731 and Pro-0813 ship) on the frozen trunk of tiny-v4 and writes it in the published format.

The drafter is three V4 blocks under mtp.0..2. With p the newest position whose trunk figures are known and t[p+1] the token after it (the anchor):
context   main_x = main_norm(main_proj(outputs of the trunk's last three layers, each averaged over its four streams, side by side)); every stage
          keeps kv_norm(wkv(main_x)), rotated at its own position, for the newest 128 positions up to p
block     embeddings of [anchor, noise, noise, noise, noise] at positions p+1..p+5; every row attends the context and all five rows
output    x = hc_head of the last stage; base logits = head(norm(x)); draft k = argmax(base[k] + markov_w2 markov_w1[draft k-1]), draft -1 = anchor;
          confidence k = sigmoid(proj([x[k]; markov_w1[draft k-1]])), from x before the norm; draft k is a guess at t[p+2+k]

  python3 train_dspark.py --weights FP8_DIR --corpus IDS.npy --out DIR --batch 24 --lr 1e-3 --seconds 70
      trains, exports, measures, writes golden files
  python3 train_dspark.py --weights FP8_DIR --drafter DIR --resume --corpus IDS.npy --out MORE --graph --seconds 100
      trains a drafter further, for instance behind a trunk that was
  python3 train_dspark.py --weights FP8_DIR --drafter DIR --out DIR
      measures and writes golden files again

The trunk's two files are not copied: DIR holds links to those in FP8_DIR, which lies beside it.
"""
import argparse
import json
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from tokenizers import Tokenizer

from common import DEVICE, Norm, arguments, balance_gates, corpus, dump, evaluation_prompts, fit, greedy, lin, list_files, sample, windows, write_configs
from train_v4 import MTP_FILE, TRUNK_FILES
from v4_goldens import write_goldens
from v4_model import (HC, HEAD_DIM, RATIOS, WINDOW, Attention, HyperHead, Layer, Model, cached_kv, compiled_blocks, config_dict, dimensions_of,
                      hc_update, layer_tensors, rms, rope_tail, rounded_caches)
from v4_published import decode, export, load, published_config, read_file, read_folder, round_all, rounding, same_weights, write_index

STAGES, BLOCK, TAPS = 3, 5, [1, 2, 3]
assert TAPS[-1] < len(RATIOS)


class DraftAttention(Attention):
    """Attention of blocks of BLOCK rows, all of which see the context's newest WINDOW rows and the whole block."""

    def forward(self, x, main_x, pos, tables):
        """x [B, A*BLOCK, hidden], main_x [B, T, hidden]; block a continues position pos[a]."""
        d, b, t, n = self.d, x.shape[0], main_x.shape[1], pos.shape[0]
        cos, sin = tables["main"]
        at = pos[:, None] + 1 + torch.arange(BLOCK, device=x.device)
        bc, bs = cos[at], sin[at]
        ctx = cached_kv(rope_tail(self.kv_norm(self.wkv(main_x)), cos[:t], sin[:t]))
        x = x.view(b, n, BLOCK, d.hidden)
        q = rms(self.wq_b(self.q_norm(self.wq_a(x))).view(b, n, BLOCK, d.heads, HEAD_DIM))
        q = rope_tail(q, bc.unsqueeze(2), bs.unsqueeze(2))
        kv = cached_kv(rope_tail(self.kv_norm(self.wkv(x)), bc, bs))
        p = torch.arange(t, device=x.device)
        seen = (p <= pos[:, None]) & (p > pos[:, None] - WINDOW)
        s = torch.einsum("baghd,btd->baght", q, ctx).float() * HEAD_DIM**-0.5
        s = s.masked_fill(~seen[:, None, None], float("-inf"))
        own = torch.einsum("baghd,band->baghn", q, kv).float() * HEAD_DIM**-0.5
        s = torch.cat((s, own, self.attn_sink.view(1, 1, 1, -1, 1).expand(b, n, BLOCK, -1, 1)), -1).softmax(-1).to(kv.dtype)
        o = torch.einsum("baght,btd->baghd", s[..., :t], ctx) + torch.einsum("baghn,band->baghd", s[..., t:t + BLOCK], kv)
        return self.output(rope_tail(o, bc.unsqueeze(2), -bs.unsqueeze(2)).flatten(1, 2))


class Stage(Layer):
    def __init__(self, d, k, rank):
        super().__init__(d, 0, False)
        self.attn = DraftAttention(d, 0)
        if k == 0:
            self.main_proj, self.main_norm = lin(len(TAPS) * d.hidden, d.hidden), Norm(d.hidden)
        if k == STAGES - 1:
            self.norm, self.hc_head = Norm(d.hidden), HyperHead(d)
            self.markov_head, self.confidence_head = nn.Module(), nn.Module()
            self.markov_head.markov_w1, self.markov_head.markov_w2 = nn.Embedding(d.vocab, rank), lin(rank, d.vocab)
            nn.init.normal_(self.markov_head.markov_w1.weight, std=0.3)
            nn.init.zeros_(self.markov_head.markov_w2.weight)
            self.confidence_head.proj = lin(d.hidden + rank, 1)

    def forward(self, x, main_x, pos, tables):
        post, comb, u = self.hc_attn(x)
        x = hc_update(post, comb, self.attn(self.attn_norm(u), main_x, pos, tables), x)
        post, comb, u = self.hc_ffn(x)
        y, load = self.ffn(self.ffn_norm(u), None)
        return hc_update(post, comb, y, x), load


class Drafter(nn.Module):
    def __init__(self, d, rank):
        super().__init__()
        self.rank, self.noise = rank, d.vocab - 1
        self.mtp = nn.ModuleList(Stage(d, k, rank) for k in range(STAGES))

    def main_x(self, taps):
        return self.mtp[0].main_norm(self.mtp[0].main_proj(taps))

    def forward(self, trunk, taps, anchors, pos):
        """taps [B, T, 3*hidden], anchors [B, A] after the positions pos [A] -> (x before the norm [B, A, BLOCK, hidden], expert loads)."""
        b, n = anchors.shape
        ids = torch.full((b, n, BLOCK), self.noise, device=anchors.device)
        ids[..., 0] = anchors
        x, main_x, loads, tables = trunk.embed(ids).view(b, n * BLOCK, 1, -1).expand(-1, -1, HC, -1), self.main_x(taps), [], trunk.tables()
        for stage in self.mtp:
            x, load = stage(x, main_x, pos, tables)
            loads.append(load)
        return self.mtp[-1].hc_head(x).view(b, n, BLOCK, -1), loads

    def base(self, trunk, x):
        return trunk.lm_head(self.mtp[-1].norm(x)).float()

    def bias(self, previous):
        """(Markov bias over the vocabulary, its embedding) after the tokens previous."""
        e = self.mtp[-1].markov_head.markov_w1(previous)
        return self.mtp[-1].markov_head.markov_w2(e), e

    def confidence(self, x, e):
        """Logit of the chance that a draft is accepted, given that those before it are."""
        return F.linear(torch.cat((x, e), -1).float(), self.mtp[-1].confidence_head.proj.weight.float())[..., 0]

    def chain(self, base, x, anchors):
        """Greedy drafts: (tokens [B, A, BLOCK], biased logits, confidence logits)."""
        prev, tokens, logits, conf = anchors, [], [], []
        for k in range(BLOCK):
            bias, e = self.bias(prev)
            logits.append(base[:, :, k] + bias)
            conf.append(self.confidence(x[:, :, k], e))
            prev = logits[-1].argmax(-1)
            tokens.append(prev)
        return torch.stack(tokens, 2), torch.stack(logits, 2), torch.stack(conf, 2)

    def published_tensors(self):
        return {k: v for i, stage in enumerate(self.mtp) for k, v in layer_tensors(f"mtp.{i}.", stage).items()}


def taps_of(trunk, ids):
    """(trunk's hidden after the final norm, the tapped layers' outputs averaged over streams, side by side)."""
    streams = []
    h = trunk.trunk(ids, streams)[0]
    return h, torch.cat([streams[i].mean(2) for i in TAPS], -1)


def write_drafter(trunk, d, tok, a):
    """The checkpoint folder: links to the trunk's files, the drafter in the file that holds the MTP module otherwise, index, config, tokenizer."""
    weight_map, size = export(a.out, {MTP_FILE: d.published_tensors()})
    for f in TRUNK_FILES:
        path = os.path.join(a.out, f)
        if not os.path.lexists(path):
            os.symlink(os.path.join("..", os.path.basename(os.path.normpath(a.weights)), f), path)
        for k, v in read_file(os.path.join(a.weights, f)).items():
            weight_map[k] = f
            size += v.numel() * v.element_size()
    write_index(a.out, weight_map, size)
    write_configs(a, published_config(config_dict(trunk.d)) | dict(compress_ratios=RATIOS + [0] * STAGES, dspark_block_size=BLOCK,
                  dspark_markov_rank=d.rank, dspark_noise_token_id=d.noise, dspark_target_layer_ids=TAPS))
    tok.save(os.path.join(a.out, "tokenizer.json"))


def read_drafter(path):
    raw = read_file(os.path.join(path, MTP_FILE))
    return {k: decode(k, v, raw.get(k[:-len("weight")] + "scale")) for k, v in raw.items() if not k.endswith(".scale")}


def teacher_loss(trunk, d, ids, pos):
    """Distance of the drafts' distributions from the trunk's, drafts before them taken from the text, and the confidence head's error.

    Returns (loss, [cross-entropy, mean acceptance probability per slot], expert loads).
    """
    at = pos[:, None] + 1 + torch.arange(BLOCK, device=ids.device)
    with torch.no_grad():
        h, taps = taps_of(trunk, ids)
        with torch.autocast(DEVICE, enabled=False):
            want = trunk.lm_head(h[:, at].float()).softmax(-1)
    x, loads = d(trunk, taps, ids[:, pos + 1], pos)
    with torch.autocast(DEVICE, enabled=False):
        x = x.float()
        bias, e = d.bias(ids[:, at])
        logp = (d.base(trunk, x) + bias).log_softmax(-1)
        ce = -(want * logp).sum(-1)
        accept = 1 - 0.5 * (want - logp.exp()).abs().sum(-1)
        conf = F.binary_cross_entropy_with_logits(d.confidence(x, e), accept.detach(), reduction="none")
    w = 0.85 ** torch.arange(BLOCK, device=ids.device)
    loss = ((ce + (1 - accept) + 0.3 * conf) * (w / w.sum())).sum(-1).mean()
    return loss, torch.cat((ce.mean()[None], accept.mean((0, 1)))).detach(), torch.stack(loads)


def train(trunk, d, a):
    _, data = corpus(a)
    g, stride = torch.Generator().manual_seed(4), (a.seq - BLOCK - 1) // a.blocks

    def inputs():
        for ids in windows(data, a.batch, a.seq):
            first = int(torch.randint(0, stride, (1,), generator=g))
            yield ids, first + stride * torch.arange(a.blocks, device=DEVICE)

    run = lambda: fit(d, a, inputs(), lambda ids, pos: teacher_loss(trunk, d, ids, pos), rounding(d),
                      lambda loads: balance_gates([stage.ffn for stage in d.mtp], loads))
    if a.no_compile or a.graph:
        return run()
    with compiled_blocks(DraftAttention):
        run()


@torch.no_grad()
def acceptance(trunk, d, ps, conts):
    """Greedy drafts against given continuations. Per slot: share of blocks (one at every position) whose draft matches, given that the drafts before
    it match; mean_acceptance_length: emitted tokens per verification when blocks follow one another; and the confidences, compared."""
    hit, tot, steps, emitted, predicted, buckets = [0] * BLOCK, [0] * BLOCK, 0, 0, [0.0] * BLOCK, [[0, 0.0, 0] for _ in range(10)]
    for p, c in zip(ps, conts):
        s = torch.tensor([p + c], device=DEVICE)
        pos = torch.arange(len(p) - 1, len(p) + len(c) - 2, device=DEVICE)
        if len(pos) == 0:
            continue
        x, _ = d(trunk, taps_of(trunk, s)[1], s[:, pos + 1], pos)
        tokens, _, conf = d.chain(d.base(trunk, x), x, s[:, pos + 1])
        tokens, conf, text, end = tokens[0].tolist(), conf[0].sigmoid().tolist(), p + c, s.shape[1]
        run = []
        for i, q in enumerate(pos.tolist()):
            n = 0
            for k in range(BLOCK):
                if q + 2 + k >= end:
                    break
                ok = tokens[i][k] == text[q + 2 + k]
                tot[k] += 1; hit[k] += ok; predicted[k] += conf[i][k]
                bk = buckets[min(9, int(conf[i][k] * 10))]
                bk[0] += 1; bk[1] += conf[i][k]; bk[2] += ok
                if not ok:
                    break
                n += 1
            run.append(n)
        i = 0
        while i < len(run):
            steps += 1; emitted += run[i] + 1
            i += run[i] + 1
    return dict(prompts=len(ps), conditional_acceptance=[h / max(t, 1) for h, t in zip(hit, tot)], mean_confidence=[c / max(t, 1) for c, t in zip(predicted, tot)],
                confidence_error=sum(abs(b[1] - b[2]) for b in buckets) / max(sum(b[0] for b in buckets), 1), mean_acceptance_length=emitted / max(steps, 1))


@torch.no_grad()
def measure_drafts(trunk, d, tok, a):
    """Writes dspark_report.json: acceptance on greedy answers, and on sampled ones."""
    _, prompts = evaluation_prompts(tok)
    report = {}
    for name, ps, pick in (("chat", prompts["chat"][:min(200, a.problems)], greedy), ("five_shot", prompts["five_shot"][:min(60, a.few_shot)], greedy),
                           ("story", prompts["story"][:a.stories], greedy), ("story_sampled_T1", prompts["story"][:a.stories], sample)):
        report[name] = acceptance(trunk, d, ps, pick(trunk, ps, 110))
        print(name, report[name], flush=True)
    dump(a, "dspark_report.json", report, indent=1)


@torch.no_grad()
def goldens(trunk, d, cases, out):
    """golden_dspark.safetensors, per case: ids, pos (newest known positions) and, for each of these blocks, the figures below; case 0 also
    has the trunk's taps and main_x. Under `cache.` the same with the published rounding of the caches (trunk's too)."""
    gold = {}
    for i, x in enumerate(cases):
        x, n = x.long()[None].to(DEVICE), len(x)
        pos = torch.tensor([n - 8, n - 2] if i else [0, 3, n - 2], device=DEVICE)  # case 0: contexts of 1, 4 and n-1 positions
        for prefix in ("", "cache."):
            with rounded_caches(prefix != ""):
                p = f"{prefix}case{i}."
                _, taps = taps_of(trunk, x)
                hidden, _ = d(trunk, taps, x[:, pos + 1], pos)
                base = d.base(trunk, hidden)
                tokens, logits, conf = d.chain(base, hidden, x[:, pos + 1])
            if not prefix:
                gold[p + "ids"], gold[p + "pos"] = x[0].to(torch.int32), pos.to(torch.int32)
                if i == 0:
                    gold[p + "taps"], gold[p + "main_x"] = taps[0], d.main_x(taps)[0]
                    gold[p + "base_logits"], gold[p + "biased_logits"] = base[0, -1:], logits[0, -1:]  # the last block's
            gold[p + "hidden"], gold[p + "tokens"], gold[p + "confidence_logits"] = hidden[0], tokens[0].to(torch.int32), conf[0]
    write_goldens(os.path.join(out, "golden_dspark.safetensors"), gold)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--drafter", help="start from this exported drafter; without --resume no training follows")
    ap.add_argument("--resume", action="store_true", help="train on from --drafter, whose output rank may be smaller")
    ap.add_argument("--blocks", type=int, default=96, help="blocks per training sequence")
    ap.add_argument("--rank", type=int, default=16, help="of the Markov head")
    a = arguments(ap)
    if not a.weights:
        ap.error("--weights is needed: the trunk's checkpoint in the published format")
    if a.resume and not a.drafter:
        ap.error("--resume needs --drafter")
    if a.seq <= a.blocks + BLOCK:
        ap.error(f"--seq {a.seq} has no room for {a.blocks} blocks that begin at different positions; more than {a.blocks + BLOCK} are needed")
    a.tokenizer = os.path.join(a.weights, "tokenizer.json")
    os.makedirs(a.out, exist_ok=True)
    torch.manual_seed(0)
    dims = dimensions_of(a.weights)
    if a.drafter:
        with open(os.path.join(a.drafter, "config.json")) as f:
            a.rank = json.load(f)["dspark_markov_rank"]
    trunk, d = Model(dims).to(DEVICE).requires_grad_(False), Drafter(dims, a.rank).to(DEVICE)
    load(trunk.published_tensors(), read_folder(a.weights))
    tok = Tokenizer.from_file(a.tokenizer)
    if a.drafter:
        load(d.published_tensors(), read_drafter(a.drafter), dims.o_groups)
    if a.resume or not a.drafter:
        train(trunk, d, a)
    round_all(d)
    write_drafter(trunk, d, tok, a)
    same_weights(d.published_tensors(), read_drafter(a.out))
    if a.train_only:
        return list_files(a)
    trunk.eval()
    d.eval()
    torch.set_float32_matmul_precision("highest")
    golden = read_file(os.path.join(a.weights, "golden.safetensors"))
    goldens(trunk, d, [golden[f"case{i}.ids"] for i in range(5)], a.out)
    torch.set_float32_matmul_precision("high")
    measure_drafts(trunk, d, tok, a)
    list_files(a)


if __name__ == "__main__":
    main()
